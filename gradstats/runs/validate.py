"""Checks of an experiment before anything is sampled or loaded."""

from __future__ import annotations

from gradstats.analyses import registry
from gradstats.config.experiment import Experiment
from gradstats.estimators import by_label, needs
from gradstats.prompts import load
from gradstats.rewards import grading


def check_names(experiment: Experiment) -> None:
    """Check every name of an experiment, and warn of estimators whose inputs the run will not measure.

    Each registry checks its own part; what sections say of one another is checked as they are read.
    """
    for check in (by_label.check, load.check, grading.check, registry.check, needs.check):
        check(experiment)
