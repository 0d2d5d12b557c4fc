"""The δ of Asymmetric REINFORCE that a baseline is equivalent to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from gradstats import estimators as families
from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.estimators import Batch, Estimator, Recipe
from gradstats.stats.jackknife import Estimate, mean_statistic
from gradstats.stats.measured import MeasuredRollouts


@dataclass(frozen=True)
class ImpliedShift:
    r"""How far an estimator's baseline lies above the group mean, on average.

    Attributes:
        estimator: its label.
        delta: δ, mean over prompts of :math:`b - \bar R`, b the baseline.
        n_prompts: prompts it rests on.
    """

    estimator: str
    delta: Estimate
    n_prompts: int

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval of δ."""
        return self.delta.confidence_interval(confidence_level)

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return a frame of one row: the estimator and δ with its interval."""
        low, high = self.confidence_interval(confidence_level)
        row = {"estimator": self.estimator, "delta": self.delta.value, "delta_low": low, "delta_high": high}
        return pd.DataFrame([row])

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State the answer in words."""
        low, high = self.confidence_interval(confidence_level)
        return (
            f"The baseline of {self.estimator} lies {self.delta.value:+.3g} [{low:.3g}, {high:.3g}] from the group "
            f"mean: the equivalent δ of asymmetric ({confidence_level:.0%} interval, {self.n_prompts} prompts)."
        )


def implied_shift(measured_or_batch: Batch | MeasuredRollouts, estimator: str | Estimator | Recipe) -> ImpliedShift:
    r"""Find the δ for which Asymmetric REINFORCE, :math:`A = R - (\bar R + δ)`, has an estimator's mean baseline.

    A length-weighted baseline lies below the group mean where longer answers are less often right, which is what a
    negative δ does by hand (Arnal et al., 2506.20520). No gradient is needed.

    Args:
        measured_or_batch: a measurement or a :class:`gradstats.estimators.Batch`.
        estimator: a sequence-level estimator of the form R − baseline, or a recipe with such an advantage; the shift of
            one that also divides, such as grpo, would have no meaning.

    Raises:
        ValueError: for a token-level estimator, one that scales its advantages, fewer than 3 prompts, or a shift that
            is 0 by construction.

    Example:
        >>> import gradstats as gs
        >>> batch = gs.estimators.Batch([1, 0, 1, 1, 0, 0], [10, 40, 20, 30, 50, 30], [0, 0, 1, 1, 2, 2])
        >>> shift = gs.implied_shift(batch, "token_mean")
        >>> round(shift.delta.value, 3)  # the longer answer of prompt 0 is wrong: (0.2 − 0.5)/3
        -0.1
    """
    batch = measured_or_batch if isinstance(measured_or_batch, Batch) else Batch.from_measurement(measured_or_batch)
    chosen = families.get(estimator)
    if batch.n_groups < 3:
        raise ValueError(f"an interval of the shift needs at least 3 prompts, got {batch.n_groups}: measure more")
    if not _subtracts_a_baseline(chosen):
        raise ValueError(
            f"{chosen.label} does not subtract one baseline from a completion's reward, so it has no shift"
        )
    baseline = batch.rewards - chosen.advantages(batch)
    shift = np.bincount(batch.group_index, weights=baseline - batch.rewards) / batch.group_sizes
    if chosen.across_groups and np.ptp(shift) > 0 and abs(shift.mean()) <= 1e-12 * np.abs(shift).max():
        raise ValueError(
            f"the shift of {chosen.label} is 0 by construction here: with groups of one size the mean over the batch "
            "is that of the group means; choose a baseline of its own group"
        )
    return ImpliedShift(chosen.label, mean_statistic(shift).estimate(), batch.n_groups)


def _subtracts_a_baseline(estimator: Estimator | Recipe) -> bool:
    """Return whether each completion's advantage is its reward less one baseline."""
    if isinstance(estimator, Recipe):
        plain = estimator.scale.name == "none" and estimator.kl.name != "in_reward" and estimator.reward.name == "none"
        return plain and _subtracts_a_baseline(estimator.advantage)
    return estimator.level == "sequence" and estimator.definition.scale == "–"
