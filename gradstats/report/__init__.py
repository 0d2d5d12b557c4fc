"""A run's saved numbers → figures, tables and a page."""

from gradstats.report.gallery import write_gallery
from gradstats.report.page import write_report
from gradstats.report.sweeps import SweepResult, read_sweep

__all__ = ["SweepResult", "read_sweep", "write_gallery", "write_report"]
