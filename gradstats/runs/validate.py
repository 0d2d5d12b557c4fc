"""Checks the names in an experiment against the registries, before anything is sampled."""

from __future__ import annotations

from gradstats import estimators
from gradstats.config.experiment import Experiment


def check_names(experiment: Experiment) -> None:
    """Check that every estimator of an experiment can be looked up.

    Raises:
        ValueError: for an unknown name, or parameters that the estimator does not accept; names the setting.
    """
    section = experiment.variance
    for setting, labels in (("estimators", section.estimators), ("reference", [section.reference])):
        for label in labels:
            try:
                estimators.get(label)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"variance.{setting}: {error.args[0]}") from error
