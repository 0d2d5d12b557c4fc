"""The results of a run or a training step as numbers by name, as trackers and trainers' logs take them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pandas as pd

from gradstats.rollouts.table import Rollouts

if TYPE_CHECKING:
    from gradstats.analyses import OnPolicyCheck, SamplerGap
    from gradstats.analyses.alpha import AlphaReport


#: Quantities of each estimator that are given with the ends of their intervals.
_WITH_INTERVAL = ("ratio", "matched_ratio", "noise_to_signal")
#: Quantities of each estimator that are given alone.
_ALONE = ("kept_share",)
_ENDS = ("", "_low", "_high")


def result_values(
    rollouts: Rollouts,
    alpha: AlphaReport | None,
    variance: pd.DataFrame | None,
    *,
    on_policy: OnPolicyCheck | None = None,
    gap: SamplerGap | None = None,
) -> dict[str, float]:
    """Return key → number, as in ``"rloo/ratio_low"``.

    Of each estimator ``ratio``, ``matched_ratio`` and ``noise_to_signal`` with ``_low`` and ``_high``, and
    ``kept_share``; of the reference ``trace_cov``; of the run ``alpha``, ``on_policy`` (1 or 0, see
    :meth:`gradstats.analyses.OnPolicyCheck.holds`) and the completions' :func:`completion_values`. What could not be
    estimated has no key, and neither has an end of an interval that is not finite.
    """
    found = completion_values(rollouts) | ({} if variance is None else _of_comparison(variance))
    if alpha is not None:
        low, high = alpha.confidence_interval()
        found |= dict(zip((f"alpha{end}" for end in _ENDS), (alpha.fit.alpha, low, high), strict=True))
    holds = False if gap is not None and gap.off_policy else None if on_policy is None else on_policy.holds()
    if holds is not None:  # whether the completions were drawn from the scored policy is resolved
        found["on_policy"] = float(holds)
    return {key: value for key, value in found.items() if math.isfinite(value)}


def completion_values(rollouts: Rollouts) -> dict[str, float]:
    """Return ``n_sequences``, ``mean_length`` (tokens, of those with one that counts), ``mean_reward`` and
    ``truncated_share`` of completions.
    """
    lengths = rollouts.lengths
    return {
        "n_sequences": float(len(rollouts)),
        "mean_length": float(lengths.sum() / max(int((lengths > 0).sum()), 1)),
        "mean_reward": float(rollouts.rewards.mean()),
        "truncated_share": float(rollouts.truncated.mean()),
    }


def _of_comparison(variance: pd.DataFrame) -> dict[str, float]:
    found = {}
    for row in variance.to_dict("records"):
        label = row["estimator"]
        resolved = [name for name in _WITH_INTERVAL if math.isfinite(row[name])]
        found |= {f"{label}/{name}{end}": float(row[f"{name}{end}"]) for name in resolved for end in _ENDS}
        found |= {f"{label}/{name}": float(row[name]) for name in _ALONE}
        if label == variance.attrs["reference"]:
            found |= {f"trace_cov{end}": float(row[f"trace_cov{end}"]) for end in _ENDS}
    return found
