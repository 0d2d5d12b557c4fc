"""To which shift δ does a baseline correspond?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from gradstats import estimators as families
from gradstats.analyses.declaration import Analysis
from gradstats.analyses.numbers import format_estimate, percent
from gradstats.analyses.results import ScalarResult, column, estimate
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators import Batch, Estimator, Recipe
from gradstats.stats.jackknife import Estimate, mean_statistic
from gradstats.stats.protocols import MeasuredRollouts


@dataclass(frozen=True, repr=False)
class ImpliedShift(ScalarResult):
    r"""How far an estimator's baseline lies above the group mean, on average.

    Attributes:
        estimator: its label.
        delta: δ, mean over prompts of :math:`b - \bar R`, b the baseline.
        n_prompts: prompts it rests on.
        by_construction: whether δ is 0 whatever the rewards are, as that of a leave-one-out mean.
    """

    question: ClassVar[str] = "shift"

    estimator: str = column("label of the estimator", file="estimators/by_label.py")
    delta: Estimate = estimate("δ, the baseline less the group mean")
    n_prompts: int = column("prompts it rests on")
    by_construction: bool = False

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval of δ."""
        return self.delta.confidence_interval(confidence_level)

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State the answer in words."""
        if self.by_construction:
            return (
                f"The equivalent δ of {self.estimator} is 0 by construction: averaged over these completions, its "
                "baseline is the mean reward."
            )
        low, high = self.confidence_interval(confidence_level)
        return (
            f"The baseline of {self.estimator} lies {format_estimate(self.delta.value, low, high)} from the group "
            f"mean, like asymmetric with this δ ({percent(confidence_level)} interval, {self.n_prompts} prompts)."
        )


def implied_shift(measured_or_batch: Batch | MeasuredRollouts, estimator: str | Estimator | Recipe) -> ImpliedShift:
    r"""Find the δ for which Asymmetric REINFORCE, :math:`A = R - (\bar R + δ)`, has an estimator's mean baseline.

    A length-weighted baseline lies below the group mean where longer answers are less often right, which is what a
    negative δ does by hand (Arnal et al., 2506.20520). No gradient is needed. The shift of a recipe is that of what it
    subtracts before it divides by a scale, from rewards with its KL and length terms. The δ of lowest variance is
    another one: the minimiser of :func:`gradstats.variance_curve` along ``delta`` of ``asymmetric``.

    Args:
        measured_or_batch: a measurement or a :class:`gradstats.estimators.Batch`.
        estimator: a baseline, a recipe, or a function of your own, whose advantages are taken as R − baseline; as a
            label, such as ``length_weighted(alpha=0.8)``, ``recipe:opo`` or ``module:function``.

    Returns:
        The shift; exactly 0, and ``by_construction``, where the average of the baseline is the mean reward.

    Raises:
        ValueError: for an estimator without one baseline for each completion, in units of the reward; for fewer than 3
            prompts.

    Example:
        >>> import gradstats as gs
        >>> batch = gs.estimators.Batch([1, 0, 1, 1, 0, 0], [10, 40, 20, 30, 50, 30], [0, 0, 1, 1, 2, 2])
        >>> shift = gs.implied_shift(batch, "token_mean")
        >>> round(shift.delta.value, 3)  # the longer answer of prompt 0 is wrong: (0.2 − 0.5)/3
        -0.1
        >>> gs.implied_shift(batch, "recipe:grpo").delta.value
        0.0
    """
    batch = measured_or_batch if isinstance(measured_or_batch, Batch) else Batch.from_measurement(measured_or_batch)
    chosen = families.get(estimator)
    if batch.n_groups < 3:
        raise ValueError(f"an interval of the shift needs at least 3 prompts, got {batch.n_groups}: measure more")
    advantages = _advantages(chosen, batch)
    shift = 0.0 - np.bincount(batch.group_index, weights=advantages) / batch.group_sizes
    rounding = 1e-12 * np.abs(advantages).max()
    settled = np.abs(shift).max() <= rounding or (chosen.across_groups and abs(shift.mean()) <= rounding)
    by_construction = bool(settled and rounding > 0)  # without any advantage nothing is known of the baseline
    definition = (chosen.advantage if isinstance(chosen, Recipe) else chosen).definition
    if not by_construction and definition.scale != "–":
        raise _no_shift(chosen, f"baseline: {definition.baseline}; divided by: {definition.scale}")
    delta = mean_statistic(np.zeros_like(shift) if by_construction else shift).estimate()
    return ImpliedShift(chosen.label, delta, batch.n_groups, by_construction)


def _advantages(estimator: Estimator | Recipe, batch: Batch) -> Float[np.ndarray, " n"]:
    """Return reward less baseline of each completion, up to a scale that the estimator itself divides by."""
    batch.require(estimator.needs, estimator.label)
    if isinstance(estimator, Recipe):
        advantages = estimator.advantage.advantages(estimator.rewarded(batch))
    else:
        advantages = estimator.advantages(batch)
    if advantages.ndim == 1:
        return advantages
    first = advantages[np.arange(len(advantages)), batch.mask.argmax(axis=1)]
    if not np.allclose(advantages, np.where(batch.mask, first[:, None], 0.0), rtol=1e-12, atol=0.0):
        raise _no_shift(estimator, "its advantages differ from token to token")
    return first


def _no_shift(estimator: Estimator | Recipe, why: str) -> ValueError:
    return ValueError(f"{estimator.label} has no single baseline in units of the reward, and so no shift ({why})")


ANALYSIS = Analysis(
    name="shift",
    ask=implied_shift,
    options=("estimator",),
    columns=ImpliedShift.columns(),
)
