"""From an experiment file to a run directory: sampling, measuring, analysis, growth, regrading and sweeps."""

from gradstats.runs.sweep import run_sweep

__all__ = ["run_sweep"]
