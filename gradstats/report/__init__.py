"""A run's saved numbers → figures, tables and a page."""

from gradstats.report.page import write_report

__all__ = ["write_report"]
