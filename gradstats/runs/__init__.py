"""From an experiment file to a run directory: sampling, measuring, analysis, growth, regrading and sweeps."""
