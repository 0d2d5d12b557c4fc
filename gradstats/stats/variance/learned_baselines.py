"""Baselines whose parameters are chosen for each prompt on the others, to minimise the variance of the gradient."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from jaxtyping import Float, Int
from scipy import interpolate

from gradstats import estimators as families
from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.estimators import Batch
from gradstats.estimators.baselines.expectations import unbiased
from gradstats.estimators.baselines.length_exponent import FITTED_ELSEWHERE
from gradstats.estimators.estimator import SEQUENCE_SUM, Level
from gradstats.stats.fieller import FiellerRatio, fieller_ratio
from gradstats.stats.jackknife import Statistic, require_level
from gradstats.stats.satterthwaite import influential_prompts, satterthwaite_degrees
from gradstats.stats.variance.minimiser import Minimiser, minimiser_of, written_interval
from gradstats.stats.variance.notes import why_silent
from gradstats.stats.variance.pooled_completions import PooledCompletions

#: Exponents through whose variances a curve is drawn, and points of it between neighbours.
EXPONENTS = np.linspace(-1.0, 2.0, 31)
_STEPS = 16


@dataclass(frozen=True)
class LearnedBaseline:
    """A baseline with parameters for each prompt, on the completions on which they were chosen.

    Attributes:
        label: what it is called.
        names: of its parameters.
        parameters: (prompts, k) of each prompt, chosen on the others.
        given: (n,) weights of the completions.
        optimum: the parameter of lowest variance on all prompts, with the interval of the true one; None where there
            are several parameters.
    """

    label: str
    names: tuple[str, ...]
    parameters: Float[np.ndarray, "m k"] = field(repr=False, compare=False)
    given: Float[np.ndarray, " n"] = field(repr=False, compare=False)
    optimum: Minimiser | FiellerRatio | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Its label."""
        return self.label

    @property
    def level(self) -> Level:
        """``"sequence"``."""
        return "sequence"

    @property
    def needs(self) -> tuple[str, ...]:
        """Nothing: the weights are given."""
        return ()

    @property
    def across_groups(self) -> bool:
        """``False``: what it takes from other prompts is fixed."""
        return False

    @property
    def unit(self) -> str:
        """That of a plain sum."""
        return SEQUENCE_SUM

    def expected_scale(self, group_size: int) -> float | None:
        """Return 1, as for every leave-one-out baseline."""
        return unbiased(group_size, {"singleton": "zero"})

    def weights(self, batch: Batch) -> Float[np.ndarray, " n"]:
        """Return the weights of all completions that it was learned on.

        Raises:
            ValueError: for another number of completions.
        """
        if batch.rewards.size != self.given.size:
            raise ValueError(f"{self.label} has weights for {self.given.size} completions, got {batch.rewards.size}")
        return self.given

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval of the parameter of lowest variance; NaN where there are several, or it is not known.

        Where the slope of the variance is compatible with 0: for the exponent as in
        :class:`gradstats.stats.variance.minimiser.Minimiser`, cut to the exponents that were tried; for the shift
        Fieller's set, which may be unbounded.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        require_level(confidence_level)
        if isinstance(self.optimum, FiellerRatio):
            return self.optimum.within(confidence_level, -np.inf, np.inf)
        return (np.nan, np.nan) if self.optimum is None else self.optimum.confidence_interval(confidence_level)

    def described(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """Return the mean of each parameter over prompts, with its interval, or else with its range over prompts."""
        means, lows, highs = (operation(self.parameters, axis=0) for operation in (np.mean, np.min, np.max))
        low, high = self.confidence_interval(confidence_level)
        if np.isfinite(low) or np.isfinite(high):
            tried = self.optimum.values if isinstance(self.optimum, Minimiser) else (-np.inf, np.inf)
            return f"{self.names[0]} {means[0]:.3g} {written_interval(low, high, tried)}"
        return ", ".join(
            f"{name} {mean:.3g} ({low:.3g} to {high:.3g})"
            for name, mean, low, high in zip(self.names, means, lows, highs, strict=True)
        )


def learned_exponent(pool: PooledCompletions) -> LearnedBaseline:
    r"""Return length weights :math:`T^{2α}` with the α of lowest variance on the other prompts.

    :math:`α_m` is the lowest point, between −1 and 2, of the cubic spline through the variances without prompt m.
    """
    variances = [
        variance_with(pool, families.length_weighted(alpha=one, loo=True).weights(pool.batch)) for one in EXPONENTS
    ]
    points = np.linspace(EXPONENTS[0], EXPONENTS[-1], _STEPS * (len(EXPONENTS) - 1) + 1)
    curve = interpolate.CubicSpline(EXPONENTS, np.stack([one.replicates for one in variances]))
    chosen = points[np.argmin(curve(points), axis=0)]
    by_row = chosen[_prompts(pool)]
    # The exponents are given, so that norms, from which they would be fitted, do not matter.
    given = pool.batch.with_fields(
        columns={**pool.batch.columns, FITTED_ELSEWHERE: by_row}, sq_norms=np.ones(len(by_row))
    )
    weights = families.length_weighted(alpha="within_prompt", loo=True).weights(given)
    optimum = minimiser_of(EXPONENTS, variances)
    return LearnedBaseline("learned exponent", ("alpha",), chosen[:, None], weights, optimum)


def learned_shift(pool: PooledCompletions) -> LearnedBaseline:
    r"""Return the leave-one-out mean plus the shift δ of lowest variance on the other prompts.

    The variance without prompt m is a parabola :math:`a + bδ + cδ²`, known from three shifts; :math:`δ_m = -b/2c`.
    """
    unit = float(np.abs(pool.batch.rewards).max()) or 1.0

    def weights_at(delta: float | np.ndarray) -> np.ndarray:
        plain = families.rloo().weights(pool.batch)
        sizes = pool.batch.group_sizes[pool.batch.group_index]
        return np.where(sizes == 1, plain, plain - delta / sizes)

    below, middle, above = (variance_with(pool, weights_at(delta)) for delta in (-unit, 0.0, unit))
    # −b and 2c, of δ in units of the largest reward.
    descent, curvature = (below - above).scaled(0.5), above + below - middle.scaled(2.0)
    lowest = np.zeros_like(descent.replicates)
    np.divide(descent.replicates, curvature.replicates, out=lowest, where=curvature.replicates > 0)
    chosen = unit * lowest
    optimum = fieller_ratio(descent.scaled(unit), curvature)
    # As of the slope of any curve, at its lowest point.
    of_error = satterthwaite_degrees(influential_prompts(optimum.influence), len(chosen))
    optimum = replace(optimum, degrees=min(optimum.degrees, float(of_error)))
    return LearnedBaseline("learned shift", ("delta",), chosen[:, None], weights_at(chosen[_prompts(pool)]), optimum)


def learned_mixture(pool: PooledCompletions) -> LearnedBaseline:
    r"""Return the mixture of three leave-one-out means that has the lowest variance on the other prompts.

    The baseline is :math:`\sum_k p_k b_k` with shares :math:`p_k ≥ 0` that sum to 1 of the mean of the group's other
    completions, the same weighted by length, and the mean over the completions of all other prompts. The variance
    without prompt m is :math:`p^T Q p`, known from the three means and their halves in pairs.
    """
    batch, prompts = pool.batch, _prompts(pool)
    sums = np.bincount(prompts, weights=batch.rewards)
    counts = np.bincount(prompts)
    of_others = (sums.sum() - sums) / np.maximum(counts.sum() - counts, 1)
    sizes = batch.group_sizes[batch.group_index]
    beside = np.where(sizes == 1, 0.0, (batch.rewards - of_others[prompts]) / sizes)
    plain, by_length = (one.weights(batch) for one in (families.rloo(), families.token_mean(loo=True)))
    means = np.stack([plain, by_length, beside])
    n_means = len(means)
    form = np.empty((pool.groups.n_prompts, n_means, n_means))
    for at in range(n_means):
        form[:, at, at] = variance_with(pool, means[at]).replicates
    for first, second in combinations(range(n_means), 2):
        half = variance_with(pool, (means[first] + means[second]) / 2.0).replicates
        form[:, first, second] = form[:, second, first] = (
            2.0 * half - (form[:, first, first] + form[:, second, second]) / 2
        )
    chosen = lowest_shares(form)
    return LearnedBaseline(
        "learned mixture", ("group", "token", "batch"), chosen, np.einsum("nk,kn->n", chosen[prompts], means)
    )


def lowest_shares(form: Float[np.ndarray, "m k k"]) -> Float[np.ndarray, "m k"]:
    """Return the shares p ≥ 0, Σp = 1, at which each quadratic form pᵀQp is lowest.

    For every set of shares that may differ from 0 the lowest point on their plane is Q⁻¹1, scaled; the lowest of those
    that are not negative is the answer.
    """
    m, k = form.shape[:2]
    best, shares = np.full(m, np.inf), np.zeros((m, k))
    for size in range(1, k + 1):
        for kept in map(list, combinations(range(k), size)):
            inner = form[:, kept][:, :, kept]
            solved = np.linalg.pinv(inner, hermitian=True).sum(axis=2)
            total = solved.sum(axis=1, keepdims=True)
            found = np.divide(solved, total, out=np.full_like(solved, np.nan), where=total != 0)
            value = np.einsum("mi,mij,mj->m", found, inner, found)
            better = (found >= 0).all(axis=1) & (value < best)
            best[better] = value[better]
            shares[better] = 0.0
            shares[np.ix_(better, kept)] = found[better]
    return shares


def learned_baselines(pool: PooledCompletions) -> list[LearnedBaseline]:
    """Return the learned exponent, shift and mixture."""
    return [learn(pool) for learn in (learned_exponent, learned_shift, learned_mixture)]


def variance_with(pool: PooledCompletions, weights: Float[np.ndarray, " n"]) -> Statistic:
    """Return tr Cov of the gradient with these weights, whose replicates are those of the other prompts.

    Raises:
        ValueError: when every weight is 0, as where rewards are equal within all groups.
    """
    moments = pool.local(LearnedBaseline("candidate", (), np.empty((0, 0)), weights)).moments
    if moments is None:
        raise ValueError(f"a baseline cannot be learned here, since every completion has weight 0: {why_silent(pool)}")
    return moments.trace_cov


def _prompts(pool: PooledCompletions) -> Int[np.ndarray, " n"]:
    """Return the prompt of each completion."""
    return pool.groups.prompt[pool.groups.group]
