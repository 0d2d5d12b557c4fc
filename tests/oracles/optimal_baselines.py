"""The exact optima that :func:`gradstats.optimal_baselines` estimates, on an enumerated policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from jaxtyping import Float
from scipy import optimize

from gradstats import estimators as families
from gradstats.estimators import Batch
from gradstats.estimators.by_label import with_parameter
from gradstats.estimators.estimator import SEQUENCE_SUM, Level, Weighting
from gradstats.reference import EnumeratedPolicy


@dataclass(frozen=True)
class ExactOptimum:
    """The parameters of lowest variance of a family of estimators.

    Attributes:
        label: of the family.
        parameters: the best, by name.
        trace_cov: tr Cov of a group's gradient there, at matched signal.
    """

    label: str
    parameters: dict[str, float]
    trace_cov: float


def exact_minimiser(
    policy: EnumeratedPolicy,
    estimator: str | Weighting,
    parameter: str,
    bounds: tuple[float, float],
    group_size: int,
    *,
    n_values: int = 31,
) -> ExactOptimum:
    r"""Find where an estimator has its lowest variance, which :func:`gradstats.variance_curve` estimates.

    The minimiser of :math:`\mathrm{tr\,Cov}(ĝ_β)/c_β²`, with c the part of ∇J that :math:`E[ĝ_β]` keeps: the lowest of
    a grid, then Brent's method between its neighbours.

    Args:
        policy: whose moments are known.
        estimator: a label, in which the parameter may be missing, or an estimator; it stays within its group.
        parameter: its name, of a parameter that is continuous.
        bounds: the first and last value that is considered.
        group_size: N.
        n_values: of the grid, which has to separate the minima that the variance may have.
    """

    def variance(value: float) -> float:
        return policy.moments(with_parameter(estimator, parameter, value), group_size).matched_trace_cov

    grid = np.linspace(*bounds, n_values)
    at = int(np.argmin([variance(value) for value in grid]))
    around = (float(grid[max(at - 1, 0)]), float(grid[min(at + 1, n_values - 1)]))
    found = optimize.minimize_scalar(variance, bounds=around, method="bounded", options={"xatol": 1e-7})
    # Brent's method does not try the ends themselves.
    best = min((float(found.x), *bounds), key=variance)
    label = estimator if isinstance(estimator, str) else estimator.label
    return ExactOptimum(label, {parameter: best}, variance(best))


def exact_optimal_shift(policy: EnumeratedPolicy, group_size: int) -> ExactOptimum:
    r"""Find the best constant shift δ of the leave-one-out mean, in closed form.

    With :math:`ĝ_δ = ĝ_0 - δ \bar S` and :math:`E[\bar S] = 0` the variance is a parabola, known from three of its
    points.
    """
    below, middle, above = (
        policy.moments(families.asymmetric(delta=delta, loo=True), group_size).trace_cov for delta in (-1.0, 0.0, 1.0)
    )
    slope, curvature = (above - below) / 2.0, (above + below) / 2.0 - middle
    best = -slope / (2.0 * curvature)
    return ExactOptimum("shift", {"delta": best}, middle + slope * best + curvature * best**2)


@dataclass(frozen=True)
class MixtureOfMeans:
    r"""The baseline :math:`\sum_k p_k b_k + δ` of leave-one-out means, plain and by length, and of a constant.

    The shares p sum to 1; the constant stands for the mean reward of all other prompts. The shift δ is the last of the
    parameters.
    """

    parameters: Float[np.ndarray, "4"] = field(compare=False)
    constant: float

    name = label = "mixture"
    level: Level = "sequence"
    needs: tuple[str, ...] = ()
    across_groups = False
    unit = SEQUENCE_SUM

    def expected_scale(self, group_size: int) -> float | None:
        """Return 1: no part contains the own sample; for a group of one, which has no others, it is not known."""
        return 1.0 if group_size > 1 else None

    def weights(self, batch: Batch) -> Float[np.ndarray, " n"]:
        """Return the weights (R − b)/N."""
        plain, by_length = (one.weights(batch) for one in (families.rloo(), families.token_mean(loo=True)))
        sizes = batch.group_sizes[batch.group_index]
        return np.asarray(self.parameters) @ np.stack(
            [plain, by_length, (batch.rewards - self.constant) / sizes, -1.0 / sizes]
        )


def exact_optimal_mixture(policy: EnumeratedPolicy, group_size: int, n_prompts: int | None = None) -> ExactOptimum:
    r"""Find the best shifted mixture of leave-one-out means: of the group, by length, and of all other prompts.

    The variance of a batch of M prompts, times M, is a quadratic form of the shares p and the shift δ. The mean of the
    M−1 other prompts is independent of the own group and has the expectation E[R]: with the constant E[R] in its place
    the form is known from the enumeration of groups, and its deviation from E[R] adds to the entry of that mean alone

    .. math:: \frac{E‖\bar S‖² \, \mathrm{Var}(\bar R)}{M-1} + \frac{‖∇J‖²}{N²(M-1)},

    the second term because two prompts are in each other's baselines.

    Args:
        policy: whose moments are known.
        group_size: N, at least 2.
        n_prompts: M; None for infinitely many, whose mean is E[R].
    """
    form = mixture_form(policy, group_size)
    if n_prompts is not None:
        form[2, 2] += _deviation_of_others(policy, group_size) / (n_prompts - 1)
    # For given shares the lowest shift is −qᵀp/c, which leaves the form Q − qqᵀ/c of the shares.
    of_shift, curvature = form[:3, 3], form[3, 3]
    shares = lowest_on_simplex(form[:3, :3] - np.outer(of_shift, of_shift) / curvature)
    found = np.append(shares, -(of_shift @ shares) / curvature)
    names = ("group", "token", "batch", "shift")
    return ExactOptimum("mixture", dict(zip(names, map(float, found), strict=True)), float(found @ form @ found))


def mixture_form(policy: EnumeratedPolicy, group_size: int) -> Float[np.ndarray, "4 4"]:
    """Return the form of the variance of a group's gradient, with E[R] for the mean of all other prompts."""
    mean, unit = float(policy.probabilities @ policy.rewards), np.eye(4)

    def variance(parameters: Float[np.ndarray, "4"]) -> float:
        return policy.moments(MixtureOfMeans(parameters, mean), group_size).trace_cov

    form = np.diag([variance(one) for one in unit])
    for first, second in combinations(range(4), 2):
        half = variance((unit[first] + unit[second]) / 2.0)
        form[first, second] = form[second, first] = 2.0 * half - (form[first, first] + form[second, second]) / 2.0
    return form


def lowest_on_simplex(form: Sequence[Sequence[float]] | Float[np.ndarray, "k k"]) -> Float[np.ndarray, " k"]:
    r"""Return the p ≥ 0, Σp = 1, at which a positive semidefinite form pᵀQp is lowest.

    :math:`\min_{x ≥ 0} x^T Q x + (1 - \sum x)²` is a problem of non-negative least squares. For x = s p it is lowest at
    :math:`q/(1 + q)` with q = pᵀQp, so that x has the direction of the best p.
    """
    values, vectors = np.linalg.eigh(np.asarray(form, dtype=np.float64))
    scale = values.max() or 1.0
    root = np.sqrt(np.maximum(values / scale, 0.0))[:, None] * vectors.T
    solved = optimize.nnls(np.vstack([root, np.ones(len(values))]), np.append(np.zeros(len(values)), 1.0))[0]
    return solved / solved.sum()


def _deviation_of_others(policy: EnumeratedPolicy, group_size: int) -> float:
    """Return E‖S̄‖² Var(R̄) + ‖∇J‖²/N² of a group's means."""
    of_prompt = policy.prompt_probabilities
    given = policy.probabilities / of_prompt[policy.prompts]
    means = np.bincount(policy.prompts, given * policy.rewards, policy.n_prompts)
    squares = np.bincount(policy.prompts, given * policy.rewards**2, policy.n_prompts)
    variance = of_prompt @ (squares - means**2) / group_size + of_prompt @ means**2 - (of_prompt @ means) ** 2
    signal = float(policy.gradient @ policy.gradient) / group_size**2
    return float(policy.expected_sq_norm / group_size * variance + signal)


#: The exponents between which the best is sought, as in :func:`gradstats.optimal_baselines`.
EXPONENTS = (-1.0, 2.0)


def exact_optimal_baselines(
    policy: EnumeratedPolicy, group_size: int, n_prompts: int | None = None
) -> tuple[ExactOptimum, ExactOptimum, ExactOptimum]:
    """Return the best exponent, shift and mixture, which :func:`gradstats.optimal_baselines` learns from completions.

    Args:
        policy: whose moments are known; completions are drawn from it as it is scored.
        group_size: N, at least 2.
        n_prompts: prompts of a batch, for the mixture; None for infinitely many.
    """
    mixture = exact_optimal_mixture(policy, group_size, n_prompts)
    exponent = exact_minimiser(policy, "length_weighted(loo=True)", "alpha", EXPONENTS, group_size)
    named = ExactOptimum("exponent", exponent.parameters, exponent.trace_cov)
    return named, exact_optimal_shift(policy, group_size), mixture
