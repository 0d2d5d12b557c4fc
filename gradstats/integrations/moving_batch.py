"""What a trainer's own batch reaches, as a moving estimate over the last measured steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gradstats import estimators as families
from gradstats.analyses.numbers import percentage, percentage_at_most
from gradstats.stats.intervals import fieller_ratio
from gradstats.stats.jackknife import Interval, mean_statistic
from gradstats.stats.silent_groups import equal_rewards
from gradstats.stats.variance.alignment import alignment_at, selection_adjusted_upper
from gradstats.stats.variance.row import EstimatorVariance

if TYPE_CHECKING:
    from torch import Tensor

#: Measured steps of the moving estimate.
WINDOW = 10
#: Steps from which their scatter gives an interval: that of three missed a tenth and more of the values shown.
_FEWEST = 5
_ENDS = ("", "_low", "_high")


@dataclass
class MovingBatch:
    r"""The comparisons of the last measured steps.

    The critical batch is noise at the scale of the target over its squared signal,
    :math:`\mathrm{tr\,Cov}(g)\,‖G‖²/⟨E g, G⟩²`. The three are unbiased in every step, so that their means over steps
    resolve what no single step does. Its interval takes the steps as the sample, and its upper end is open where the
    signal is resolved only just.

    Attributes:
        better: the estimator that the last ``best_saving`` is of, where that is resolved also for the best of several.
    """

    better: str | None = None
    # tr Cov(g), ‖E g‖², ⟨E g, G⟩ and ‖G‖² of the trainer's own estimator, and the relative noise of all
    _steps: deque[tuple[tuple[float, ...], pd.Series]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, variance: pd.DataFrame, own: EstimatorVariance, n_prompts: float) -> dict[str, float]:
        """Add the comparison of a step; returns what it says about the batch of the trainer: key → number.

        Args:
            variance: one row for each estimator.
            own: what was estimated of the trainer's own estimator.
            n_prompts: prompts that an optimizer step learns from.
        """
        self.better = None
        table, label = variance.set_index("estimator"), own.label
        of_own = (*(float(table.at[label, name]) for name in ("trace_cov", "signal_sq")), own.on_target, own.target_sq)
        if not np.isfinite(of_own).all():
            return {}
        self._steps.append((of_own, pd.Series(table["matched_ratio"], dtype=float)))
        level = float(variance.attrs["confidence_level"])
        found = {"batch_prompts": float(n_prompts)}
        if len(self._steps) < _FEWEST:
            value, low, high = (float(table.at[label, f"noise_to_signal{end}"]) for end in _ENDS)
            found["over_steps"] = 1.0
        else:
            numbers = np.array([of_step for of_step, _ in self._steps]).T
            noise, signal, along, target = map(mean_statistic, numbers)
            resolved = min(target.value, float(target.replicates.min())) > 0.0
            # Otherwise the squared signal is only known to be at most the estimator's own.
            quotient = fieller_ratio(noise, (along * along / target).without_bias() if resolved else signal)
            low, high = quotient.within(level, 0.0, np.inf)
            value = np.nan
            if resolved and np.isfinite(high):
                value, high = quotient.value, selection_adjusted_upper(quotient, high, level)
            elif not resolved:
                high = np.inf
            found["over_steps"] = float(len(self._steps))
            found |= self._saving(label, level)
        aligned, least, most = (float(alignment_at(one, 1.0, n_prompts)) for one in (value, high, low))
        found |= _with_ends("critical_batch", (value, low, high)) | _with_ends("alignment", (aligned, least, most))
        return {key: one for key, one in found.items() if math.isfinite(one)}

    def _relative_noise(self, label: str) -> np.ndarray:
        """Return that of an estimator in every step; NaN in those without it."""
        return np.array([of_step.get(label, np.nan) for _, of_step in self._steps], dtype=float)

    def _saving(self, own: str, level: float) -> Mapping[str, float]:
        """Return the share of prompts that the best estimator saves over the trainer's own at equal alignment."""
        best, better, of_own = mean_statistic(np.zeros(_FEWEST)), None, self._relative_noise(own)
        others = self._steps[-1][1].index.drop(own)
        for label in others:
            with np.errstate(invalid="ignore", divide="ignore"):
                logarithms = np.log(self._relative_noise(label) / of_own)
            known = logarithms[np.isfinite(logarithms)]
            if len(known) >= _FEWEST and known.mean() < best.value:
                best, better = mean_statistic(known), label
        if not np.isfinite(of_own).sum() >= _FEWEST:
            return {}
        low, high = best.estimate().confidence_interval(level)
        if better is not None and best.estimate().confidence_interval(1.0 - (1.0 - level) / len(others))[1] < 0.0:
            self.better = better
        return _with_ends("best_saving", (1.0 - math.exp(best.value), 1.0 - math.exp(high), 1.0 - math.exp(low)))


def _with_ends(name: str, interval: Interval) -> dict[str, float]:
    return {f"{name}{end}": one for end, one in zip(_ENDS, interval, strict=True)}


def head_noise_proxy(advantages: Tensor, logprobs: Tensor, mask: Tensor) -> float:
    r"""Return the mean over completions of :math:`\sum_t A_t² (-\log π_t)` over tokens that count.

    It follows the noise of the output layer alone, uncalibrated: compare it with itself over steps, not between
    estimators.

    Args:
        advantages: (B,) or (B, T).
        logprobs: (B, T), of the trainer's policy.
        mask: (B, T).
    """
    squared = (advantages if advantages.ndim == 2 else advantages[:, None]).double() ** 2
    return float((squared * -logprobs.double()).masked_fill(mask == 0, 0.0).sum(1).mean())


def silent_shares(rewards: np.ndarray, lengths: np.ndarray, groups: np.ndarray) -> dict[str, float]:
    """Return the shares of groups whose rewards are all equal, and of the tokens that are in them: key → number.

    Args:
        rewards: of each completion; NaN where one has no reward, which is left out.
        lengths: tokens that count.
        groups: the number of each completion's group.
    """
    usable = np.flatnonzero(np.isfinite(rewards))
    if not usable.size:
        return {}
    equal = equal_rewards(rewards[usable], groups[usable], lengths[usable])
    silent, tokens = equal.size == equal.of, equal.size * equal.length
    found = {"silent_groups": float(silent.sum() / len(np.unique(equal.group)))}
    return found | ({"silent_tokens": float(tokens[silent].sum() / tokens.sum())} if tokens.any() else {})


def step_in_words(step: int, own: str, group_size: int, values: Mapping[str, float], better: str | None = None) -> str:
    """State what a measured step says about the trainer's batch, and nothing that it does not resolve.

    Args:
        step: optimizer steps so far.
        own: the trainer's own estimator.
        group_size: completions of a group.
        values: what :meth:`MovingBatch.add` and :func:`silent_shares` returned.
        better: as :attr:`MovingBatch.better`.
    """
    said = []
    if "batch_prompts" in values:
        aligned, low, high = (values.get(f"alignment{end}", math.nan) for end in _ENDS)
        # In whole per cent, ends at 0 and 100 exclude nothing.
        if math.isfinite(aligned + high) and round(low, 2) > 0.0:
            # Of an estimator that is biased in direction this is an upper bound.
            bound = "" if families.get(own).expected_scale(group_size) else "up to "
            share = (
                f"a step of {own} makes {bound}{percentage(aligned, low, high)} of the progress of one without noise"
            )
        elif high <= 0.99:
            share = f"a step of {own} makes at most {percentage_at_most(high)} of the progress of one without noise"
        else:
            share = f"how near a step of {own} comes to one without noise is not resolved yet"
        over = f" (over {values['over_steps']:.0f} measured steps)" if values["over_steps"] > 1 else ""
        said.append(f"with {values['batch_prompts']:.4g} prompts × {group_size} completions, {share}{over}")
    if better is not None and "best_saving" in values:
        saving = percentage(*(values[f"best_saving{end}"] for end in _ENDS))
        said.append(f"{better} would need {saving} fewer prompts")
    if "silent_tokens" in values:
        said.append(f"{values['silent_tokens']:.0%} of the tokens are in groups whose rewards are all equal")
    return f"step {step}: {'; '.join(said)}"
