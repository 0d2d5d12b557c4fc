"""Estimators that weight by importance ratios which are not known, or too large for numbers."""

from __future__ import annotations

from collections.abc import Sequence

from gradstats.estimators import Batch, Estimator, Recipe
from gradstats.estimators.estimator import Weighting
from gradstats.estimators.ratios import LARGEST_LOG_RATIO, log_ratios
from gradstats.stats.variance.target import TargetChoice


def refuse_unusable_ratios(weightings: Sequence[Weighting], batch: Batch, choice: TargetChoice) -> None:
    """Refuse estimators whose ratios π/π_old are not known although the completions are off-policy, or overflow.

    Without log-probabilities of the sampler every ratio is taken as 1, which holds on-policy only; with
    ``target="on_policy"`` a user asks for it.

    Args:
        weightings: what is compared.
        batch: the completions in the order of the rollouts, which a message counts.
        choice: what they are judged against.

    Raises:
        ValueError: naming the estimator, the completion and the remedy.
    """
    using = [one for one in weightings if uses_ratios(one)]
    if not using:
        return
    if choice.kind == "importance" and choice.ratios is None:
        raise ValueError(
            f"{using[0].label} weights by the ratios π/π_old, and the completions were drawn with "
            f"{', '.join(choice.differences)} by a sampler whose log-probabilities are not known: sample with an "
            "engine that records them, or take every ratio as 1 (target='on_policy')"
        )
    if batch.old_logprobs is None or not _may_overflow(batch):
        return
    for one in using:
        if all(batch.has(need) for need in one.needs):
            try:
                one.weights(batch)
            except ValueError as error:
                raise ValueError(f"{one.label}: {error}") from error


def uses_ratios(weighting: Weighting) -> bool:
    """Return whether the weights depend on the ratios π/π_old."""
    if isinstance(weighting, Recipe):
        own = weighting.ratio.name != "none" or weighting.mask.definition.of_ratios
        return own or uses_ratios(weighting.advantage)
    return isinstance(weighting, Estimator) and bool(weighting.parameters.get("off_policy", False))


def _may_overflow(batch: Batch) -> bool:
    logs = log_ratios(batch)
    return bool(max(logs.max(), logs.sum(axis=1).max()) > LARGEST_LOG_RATIO)
