"""Tables for papers, under their public name; they are made in :mod:`gradstats.report.tables`."""

from gradstats.report.tables import Table, alpha_table, latex_escape, markdown_escape, variance_table
from gradstats.stats.variance.winner import clear_winner, lowest

__all__ = ["Table", "alpha_table", "clear_winner", "latex_escape", "lowest", "markdown_escape", "variance_table"]
