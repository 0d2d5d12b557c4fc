"""The number of prompts that resolves the expected gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy import stats

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import require_level
from gradstats.stats.plans.prompt_plan import ASSURANCE, PromptPlan, smallest
from gradstats.stats.variance.comparison import VarianceComparison


@dataclass(frozen=True, kw_only=True)
class SignalPlan(PromptPlan):
    """The size of a measurement whose interval of ‖E g‖² lies above 0.

    Attributes:
        estimator: label of the estimator.
        signal_sq: the pilot's estimate of ‖E g‖².
        linear: ζ, the variance of ⟨E g, g_m⟩ over prompts: the part of the variance that falls like 4ζ/M.
        quadratic: δ, the rest of the variance of ⟨g_m, g_l⟩: the part that falls like 2δ/M².
    """

    estimator: str
    signal_sq: float
    linear: float
    quadratic: float

    def _goal(self) -> str:
        return (
            f"‖E ĝ‖² of {self.estimator} resolved ({self.confidence_level:.0%} interval above 0 in {ASSURANCE:.0%} of "
            "studies)"
        )


def pair_components(
    gram: Float[np.ndarray, "m m"],
) -> tuple[float, float, float]:
    r"""Estimate the mean of ⟨g_m, g_l⟩ over pairs of prompts, and the two parts of its variance.

    With :math:`h(m, l) = ⟨g_m, g_l⟩`, s its mean, :math:`ζ = \mathrm{Cov}(h(m, l), h(m, k))` and
    :math:`δ = \mathrm{Var}\,h - 2ζ`, the mean over the pairs of M prompts has the variance
    :math:`\frac{4ζ}{M} + \frac{2δ}{M(M-1)}` (Hoeffding, Annals of Mathematical Statistics 19, 1948). Each product of
    means is an average over distinct prompts, so that none of the three is biased by squares.

    Args:
        gram: inner products of the prompts' gradients; its diagonal is not used.

    Returns:
        s, ζ and δ.
    """
    m = len(gram)
    pairs = np.array(gram, dtype=np.float64)
    np.fill_diagonal(pairs, 0.0)
    rows, total, squares = pairs.sum(axis=1), float(pairs.sum()), float((pairs**2).sum())
    triples = float(rows @ rows) - squares  # Σ h(m, l) h(m, k) over l ≠ k
    quadruples = total**2 - 4.0 * triples - 2.0 * squares  # Σ h(m, l) h(k, j) over four distinct prompts
    mean_sq = quadruples / (m * (m - 1.0) * (m - 2.0) * (m - 3.0))
    linear = triples / (m * (m - 1.0) * (m - 2.0)) - mean_sq
    variance = squares / (m * (m - 1.0)) - mean_sq
    return total / (m * (m - 1.0)), linear, variance - 2.0 * linear


def plan_signal(pilot: VarianceComparison, estimator: str, confidence_level: float = CONFIDENCE_LEVEL) -> SignalPlan:
    r"""Compute how many prompts put the interval of ‖E g‖² above 0, from a pilot comparison.

    The estimate varies by :math:`4ζ/M + 2δ/M²` (:func:`pair_components`), of which the jackknife counts the second part
    twice. The signal s is resolved in 80 % of studies of M prompts where
    :math:`z\sqrt{4ζ/M + 4δ/M²} + z_{0.8}\sqrt{4ζ/M + 2δ/M²} \le s`; ζ is taken in proportion to s. The range is that
    over the pilot's interval of s, and reaches to infinity where that does to 0; the assured size is that for the lower
    end of its one-sided 80 % interval.

    Args:
        pilot: a comparison at one group size.
        estimator: label of a row.
        confidence_level: of the interval, and of the range of sizes.

    Raises:
        ValueError: for an estimator without a row, at batch level, or without an interval; a comparison of several
            group sizes; fewer than 4 prompts.
    """
    level = require_level(confidence_level)
    row = next((row for row in pilot.rows if row.label == estimator), None)
    if row is None:
        raise ValueError(
            f"estimator={estimator!r} is not in the pilot: choose from {', '.join(row.label for row in pilot.rows)}"
        )
    if pilot.paired is None:
        raise ValueError("the pilot compares several group sizes, or was pickled: compare at one group size")
    chosen = next(one for one in pilot.paired.estimators if one.label == estimator)
    moments = None if chosen.across_groups else pilot.paired.pool.local(chosen).moments
    if moments is None or not np.isfinite(row.signal_sq.stderr) or pilot.n_prompts < 4:
        raise ValueError(
            f"the pilot has no interval of ‖E g‖² for {estimator!r} from at least 4 prompts: choose a group-level "
            "estimator with weights that are not all 0, or measure more prompts"
        )
    signs = 1.0 if moments.signs is None else moments.signs
    means = moments.means[:, : moments.means.shape[1] if moments.signs is None else len(moments.signs)]
    _, linear, quadratic = pair_components((means * signs) @ means.T)
    linear, quadratic = max(linear, 0.0), max(quadratic, 0.0)
    signal = row.signal_sq.value
    low, high = row.signal_sq.confidence_interval(level)
    assured = signal - float(stats.t.ppf(ASSURANCE, row.signal_sq.degrees)) * row.signal_sq.stderr
    z, z_80 = float(stats.norm.ppf(0.5 + level / 2.0)), float(stats.norm.ppf(ASSURANCE))

    def needed(of: float) -> int | float:
        if not of > 0:
            return math.inf
        first = 4.0 * linear * (of / signal if signal > 0 else 1.0)

        def enough(m: int) -> bool:
            own = z * math.sqrt(first / m + 4.0 * quadratic / m**2)
            return own + z_80 * math.sqrt(first / m + 2.0 * quadratic / m**2) <= of

        return smallest(enough)

    batch = pilot.paired.pool.batch
    return SignalPlan(
        estimator=estimator,
        signal_sq=signal,
        linear=linear,
        quadratic=quadratic,
        confidence_level=confidence_level,
        n_prompts=needed(signal),
        n_prompts_low=needed(high),
        n_prompts_high=needed(low),
        n_prompts_assured=needed(assured),
        completions_per_prompt=len(batch.rewards) / pilot.n_prompts,
        tokens_per_completion=float(batch.lengths.mean()),
        pilot_n_prompts=pilot.n_prompts,
    )
