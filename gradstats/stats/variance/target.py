"""What bias, cosine and matched variances are judged against: the gradient of the scored policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gradstats import estimators as families
from gradstats.config.option_types import Target as AskedTarget
from gradstats.estimators import Batch, recipes
from gradstats.estimators.estimator import Weighting
from gradstats.estimators.ratios import LARGEST_LOG_RATIO, NEGLIGIBLE_CHI_SQUARED, sequence_log_ratios
from gradstats.stats.measured import MeasuredRollouts
from gradstats.stats.on_policy.settings import departures_of, other_policy_of
from gradstats.stats.ratios.spread import RatioSpread, ratio_spread
from gradstats.stats.variance.pooled_completions import PooledCompletions, Weighted
from gradstats.stats.variance.quantities import JUDGED

TargetKind = Literal["on_policy", "importance"]

#: Below this effective number of completions nothing is judged against an importance-weighted target.
FEWEST_EFFECTIVE_COMPLETIONS = 50.0

# Settings with which a sampler cannot draw some of what the scored policy can.
_TRUNCATING = ("top_p", "top_k", "min_p")


@dataclass(frozen=True)
class TargetChoice:
    """Which gradient estimators are judged against, decided once for all group sizes of a comparison.

    Attributes:
        kind: ``"on_policy"``, leave-one-out REINFORCE; or ``"importance"``, the same weighted by the ratio of whole
            completions.
        ratios: the spread of these ratios; None where the sampler's log-probabilities are not known.
        missing: why nothing can be judged, as a sentence; None where it can.
        remark: how the target was chosen, as a sentence; None in the plain case.
        agree: whether sampler and scorer count as one policy.
        differences: recorded settings in which they differ, as ``name=value`` of the sampler.
    """

    kind: TargetKind
    ratios: RatioSpread | None
    missing: str | None
    remark: str | None
    agree: bool
    differences: tuple[str, ...] = ()

    def attributes(self, confidence_level: float) -> dict[str, object]:
        """Return the entries of a frame's ``.attrs``; the effective sample size is NaN where ratios are not known."""
        low, high = (np.nan, np.nan)
        if self.ratios is not None:
            low, high = self.ratios.effective_size_interval(confidence_level)
        return {
            "target": self.kind,
            "effective_sample_size": np.nan if self.ratios is None else self.ratios.effective_sample_size.value,
            "effective_sample_size_low": low,
            "effective_sample_size_high": high,
        }


def recorded_differences(measured: object) -> list[str]:
    """Name recorded settings in which sampler and scorer differ, as ``name=value`` of the sampler."""
    if not isinstance(measured, MeasuredRollouts):
        return []
    drawn = getattr(measured.rollouts, "metadata", None) or {}
    scorer = (getattr(measured, "metadata", None) or {}).get("policy") or {}
    found = departures_of(drawn.get("sampler") or {}, scorer.get("temperature"))
    return [*found, *other_policy_of(drawn.get("policy"), scorer)]


def choose_target(target: AskedTarget, batch: Batch, differences: Sequence[str] = ()) -> TargetChoice:
    r"""Decide what estimators are judged against.

    ``auto`` takes the importance-weighted target where the :math:`χ²` of whole completions exceeds
    :data:`NEGLIGIBLE_CHI_SQUARED` or recorded settings differ, and otherwise stays on-policy: expectations under the
    two policies then differ by at most :math:`\sqrt{χ²}` root mean squares of a group's gradient.

    Args:
        target: what the user asks for.
        batch: the completions, with both log-probabilities where they are known.
        differences: recorded settings in which sampler and scorer differ, as ``name=value``.

    Raises:
        ValueError: for ``"importance"`` without the log-probabilities of sampler and scorer.
    """
    ratios, overflow = None, None
    if batch.old_logprobs is not None and batch.logprobs is not None:
        logs = sequence_log_ratios(batch)
        row = int(np.argmax(logs))
        overflow = f"that of completion {row} is e^{logs[row]:.0f}" if logs[row] > LARGEST_LOG_RATIO else None
        ratios = ratio_spread("product", logs, batch.group_index, batch.lengths)
    elif target == "importance":
        raise ValueError(
            "target='importance' needs the log-probabilities of sampler and scorer at every counted token: sample with "
            "an engine that records them, such as transformers or vllm, and measure"
        )
    far = ratios is not None and not ratios.chi_squared.value <= NEGLIGIBLE_CHI_SQUARED
    agree = not far and not differences
    recorded = tuple(differences)
    if target == "on_policy" or (target == "auto" and agree):
        return TargetChoice("on_policy", ratios, None, _about_on_policy(ratios, differences, agree), agree, recorded)
    missing = _why_missing(ratios, differences, overflow)
    return TargetChoice("importance", ratios, missing, _about_importance(ratios, differences, far), agree, recorded)


#: Of completions about whose sampler nothing is known.
ON_POLICY = TargetChoice("on_policy", None, None, None, True)


@dataclass(frozen=True)
class Target:
    """An estimator whose expected gradient is that of the objective.

    Attributes:
        label: of the estimator.
        weighted: its weights on the completions of a comparison, and their moments.
    """

    label: str
    weighted: Weighted


def target_of(
    pool: PooledCompletions, choice: TargetChoice, part: Callable[[Weighting], Weighting] | None = None
) -> Target:
    """Return the target on the completions of one split; without moments where nothing can be judged.

    Groups of one completion have no baseline: there it is the plain, or weighted, reward.

    Args:
        pool: the completions.
        choice: which target.
        part: makes it the part of its gradient that an estimator stands for.
    """
    estimator = _estimator(choice.kind, pool)
    if part is not None:
        estimator = part(estimator)
    if choice.missing is not None:
        empty = np.zeros(len(pool.batch.rewards))
        return Target(estimator.label, Weighted(empty, np.zeros(pool.groups.n_groups, dtype=bool), None))
    if estimator.label not in pool.targets:
        pool.targets[estimator.label] = pool.local(estimator)
    return Target(estimator.label, pool.targets[estimator.label])


def _estimator(kind: TargetKind, pool: PooledCompletions) -> Weighting:
    if kind == "importance":
        return recipes.get("rloo_is", advantage="rloo(off_policy=True, singleton=reward)")
    sizes = pool.groups.sizes
    return families.get("reinforce" if sizes.max() == 1 else "rloo" if sizes.min() > 1 else "rloo(singleton=reward)")


def _judged() -> str:
    return f"cosine, shares of bias and the {JUDGED.heading}"


def _why_missing(ratios: RatioSpread | None, differences: Sequence[str], overflow: str | None) -> str | None:
    truncating = [one for one in differences if one.partition("=")[0] in _TRUNCATING]
    sampler = f"{_judged()} are NaN, since "
    if truncating:
        return (
            f"{sampler}the sampler cut off part of the distribution ({', '.join(truncating)}), whose share no "
            "importance weight brings back: draw with top_p=1, top_k=0, min_p=0, or judge against the gradient of "
            "what was drawn (target='on_policy')"
        )
    if ratios is None:
        return (
            f"{sampler}the completions were drawn with {', '.join(differences)} and the sampler's log-probabilities "
            "are not known: sample with an engine that records them, or judge against the gradient of what was drawn "
            "(target='on_policy')"
        )
    size = ratios.effective_sample_size.value
    if overflow is not None:
        return (
            f"{sampler}ratios of whole completions overflow ({overflow}): score a policy closer to the one that sampled"
        )
    if size < FEWEST_EFFECTIVE_COMPLETIONS:
        return (
            f"{sampler}the effective sample size is {size:.1f} of {ratios.n} completions, and at least "
            f"{FEWEST_EFFECTIVE_COMPLETIONS:g} are needed: score a policy closer to the sampler, or sample more"
        )
    return None


def _about_on_policy(ratios: RatioSpread | None, differences: Sequence[str], agree: bool) -> str | None:
    if ratios is None and agree:
        return None
    if not agree:
        why = f"χ² of whole completions is {_short(ratios)}" if ratios is not None else ""
        recorded = f"the sampler's settings differ ({', '.join(differences)})" if differences else ""
        return (
            "bias and cosine are judged against rloo as asked for, although "
            f"{' and '.join(filter(None, (why, recorded)))}: rloo is then not the gradient of the scored policy, which "
            "target='importance' judges against"
        )
    assert ratios is not None
    return (
        f"the samples count as on-policy: importance ratios of whole completions have a χ² of {_short(ratios)}, which "
        f"moves the expected gradient by at most {np.sqrt(ratios.chi_squared.value):.2g} times the root mean square "
        "gradient of a completion"
    )


def _about_importance(ratios: RatioSpread | None, differences: Sequence[str], far: bool) -> str | None:
    if ratios is None:
        return None
    low, high = ratios.effective_size_interval(0.95)
    reasons = [f"χ² of whole completions is {_short(ratios)}"] if far else []
    reasons += [f"the sampler's settings differ ({', '.join(differences)})"] if differences else []
    because = f", since {' and '.join(reasons)}" if reasons else ""
    return (
        f"{_judged()} are judged against the importance-weighted gradient of the scored policy (rloo_is){because}; the "
        f"effective sample size is {ratios.effective_sample_size.value:.0f} [{low:.0f}, {high:.0f}] of {ratios.n} "
        "completions"
    )


def _short(ratios: RatioSpread | None) -> str:
    assert ratios is not None
    low, high = ratios.chi_squared.confidence_interval(0.95)
    return f"{ratios.chi_squared.value:.2g} [{low:.2g}, {high:.2g}]"
