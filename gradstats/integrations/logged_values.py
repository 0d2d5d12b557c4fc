"""What a training loop logs of a measurement: one number a key, and no key for what could not be estimated."""

from __future__ import annotations

from gradstats.integrations.training_record import RecordedStep
from gradstats.runs.result_values import result_values

#: What every key begins with.
PREFIX = "gradstats"


def logged_values(step: RecordedStep, seconds: float) -> dict[str, float]:
    """Return what to log of a measured step: key → number, as in ``"gradstats/rloo/ratio_low"``.

    These are the :func:`gradstats.runs.result_values.result_values` of the step, and ``seconds``.

    Args:
        step: the results of the measurement.
        seconds: how long measuring and analysing took.
    """
    found = result_values(step.measured.rollouts, step.alpha, step.variance, on_policy=step.on_policy, gap=step.gap) | {
        "seconds": seconds
    }
    return {f"{PREFIX}/{key}": value for key, value in found.items()}
