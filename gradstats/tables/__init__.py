"""Tables for papers, under their public name; :mod:`gradstats.report.tables` builds them."""

from gradstats.report.analysis_tables import alpha_table, variance_table
from gradstats.report.latex import Layout
from gradstats.report.tables import Table, latex_escape, markdown_escape

__all__ = [
    "Layout",
    "Table",
    "alpha_table",
    "latex_escape",
    "markdown_escape",
    "variance_table",
]
