"""What a training loop logs of a measurement: one number a key, and no key for what could not be estimated."""

from __future__ import annotations

import math

from gradstats.integrations.training_record import RecordedStep

#: What every key begins with.
PREFIX = "gradstats"
#: Quantities of each estimator that are logged with the ends of their intervals.
WITH_INTERVAL = ("ratio", "matched_ratio", "noise_to_signal")
#: Quantities of each estimator that are logged alone.
ALONE = ("kept_share",)
_ENDS = ("", "_low", "_high")


def logged_values(step: RecordedStep, seconds: float) -> dict[str, float]:
    """Return what to log of a measured step: key → number, as in ``"gradstats/rloo/ratio_low"``.

    Of each estimator ``ratio``, ``matched_ratio`` and ``noise_to_signal`` with ``_low`` and ``_high``, and
    ``kept_share``; of the reference ``trace_cov``; of the run ``alpha``, ``on_policy`` (1 or 0, see
    :meth:`gradstats.stats.OnPolicyCheck.holds`), ``n_sequences``, ``mean_length``, ``mean_reward``,
    ``truncated_share`` and ``seconds``. What could not be estimated has no key, and neither has
    an end of an interval that is not finite.

    Args:
        step: the results of the measurement.
        seconds: how long measuring and analysing took.
    """
    rollouts = step.measured.rollouts
    found = {
        "seconds": seconds,
        "n_sequences": float(len(rollouts)),
        "mean_length": float(rollouts.lengths.mean()),
        "mean_reward": float(rollouts.rewards.mean()),
        "truncated_share": float(rollouts.truncated.mean()),
        **_of_comparison(step),
    }
    if step.alpha is not None:
        low, high = step.alpha.confidence_interval()
        found |= dict(zip((f"alpha{end}" for end in _ENDS), (step.alpha.fit.alpha, low, high), strict=True))
    holds = _on_policy(step)
    if holds is not None:
        found["on_policy"] = float(holds)
    return {f"{PREFIX}/{key}": value for key, value in found.items() if math.isfinite(value)}


def _of_comparison(step: RecordedStep) -> dict[str, float]:
    if step.variance is None:
        return {}
    found = {}
    for row in step.variance.to_dict("records"):
        label = row["estimator"]
        resolved = [name for name in WITH_INTERVAL if math.isfinite(row[name])]
        found |= {f"{label}/{name}{end}": float(row[f"{name}{end}"]) for name in resolved for end in _ENDS}
        found |= {f"{label}/{name}": float(row[name]) for name in ALONE}
        if label == step.variance.attrs["reference"]:
            found |= {f"trace_cov{end}": float(row[f"trace_cov{end}"]) for end in _ENDS}
    return found


def _on_policy(step: RecordedStep) -> bool | None:
    """Whether the completions were drawn from the scored policy; None where that is not resolved."""
    if step.gap is not None and step.gap.off_policy:
        return False
    return None if step.on_policy is None else step.on_policy.holds()
