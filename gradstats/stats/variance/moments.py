"""Groups of completions, moments of their gradients as U-statistics over prompts, and batches dealt from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from gradstats.stats.intervals import completions_that_carry
from gradstats.stats.jackknife import SharedError, Statistic, mean_statistic, require_level
from gradstats.stats.prompt_plan import ASSURANCE, smallest
from gradstats.stats.variance.products import PooledProducts, WeightedSums
from gradstats.stats.variance.scores import CombinedScores, Scores
from gradstats.stats.variance.sketch_error import SketchError


@dataclass(frozen=True)
class Groups:
    """Completions split into disjoint groups of one prompt each."""

    rows: Int[np.ndarray, " n"]  # positions of the kept completions, ordered by group
    group: Int[np.ndarray, " n"]  # of each, 0 … n_groups − 1
    prompt: Int[np.ndarray, " groups"]  # 0 … n_prompts − 1; groups of a prompt are neighbours
    n_leftover: int  # completions that filled no group

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return len(self.prompt)

    @property
    def n_prompts(self) -> int:
        """Number of prompts that fill at least one group."""
        return int(self.prompt[-1]) + 1

    @property
    def sizes(self) -> Int[np.ndarray, " groups"]:
        """Completions of each group."""
        return np.bincount(self.group, minlength=self.n_groups)

    @property
    def groups_per_prompt(self) -> Int[np.ndarray, " prompts"]:
        """Groups of each prompt."""
        return np.bincount(self.prompt, minlength=self.n_prompts)


def shuffled_prompts(labels: np.ndarray, rng: np.random.Generator) -> Int[np.ndarray, " n"]:
    """Assign numbers from 0 to prompts at random, so that runs of consecutive numbers are random folds of prompts."""
    numbers = np.unique(labels, return_inverse=True)[1]
    return rng.permutation(int(numbers.max()) + 1)[numbers]


def split_into_groups(prompts: Int[np.ndarray, " n"], order: Int[np.ndarray, " n"], group_size: int | None) -> Groups:
    """Split each prompt's completions into disjoint groups; None makes one group of all of them.

    Prompts are numbered from 0; ``order`` has the positions of the completions in sample order.
    """
    rows = order[np.argsort(prompts[order], kind="stable")]
    prompt = prompts[rows]
    available = np.bincount(prompts)
    starts = np.cumsum(available) - available
    rank = np.arange(len(rows)) - starts[prompt]
    if group_size is None:
        slot = np.zeros_like(rank)
        kept = np.ones(len(rows), dtype=bool)
    else:
        if not 1 <= group_size <= available.max():
            raise ValueError(
                f"group_size={group_size} must lie between 1 and the number of completions of a prompt, at "
                f"most {available.max()} here: choose a smaller one or sample more completions"
            )
        slot = rank // group_size
        kept = slot < (available // group_size)[prompt]
    pairs = np.column_stack([prompt[kept], slot[kept]])
    labels, group = np.unique(pairs, axis=0, return_inverse=True)
    prompt_of_group = np.unique(labels[:, 0], return_inverse=True)[1]
    return Groups(rows[kept], group.reshape(-1), prompt_of_group, int(np.sum(~kept)))


def mean_over_pairs(
    first: Float[np.ndarray, "*k m d"],
    second: Float[np.ndarray, "*k m e"],
    signs: Float[np.ndarray, " features"] | None = None,
) -> tuple[Float[np.ndarray, "*k"], Float[np.ndarray, "*k m"]]:
    r"""Compute the U-statistic of ⟨a_m, b_m'⟩ over ordered pairs m ≠ m', on all M units and without each of them.

    With :math:`A = \sum_m a_m` and :math:`B = \sum_m b_m`,

    .. math:: U = \frac{⟨A, B⟩ - \sum_m ⟨a_m, b_m⟩}{M(M-1)}, \qquad
        U_{(m)} = \frac{M(M-1)\,U - ⟨a_m, B⟩ - ⟨A, b_m⟩ + 2⟨a_m, b_m⟩}{(M-1)(M-2)}
    """
    common = min(first.shape[-1], second.shape[-1])
    a, b = first[..., :common], _apply_signature(second[..., :common], signs)
    m = a.shape[-2]
    total_a, total_b = a.sum(axis=-2), b.sum(axis=-2)
    diagonal = np.einsum("...md,...md->...m", a, b)
    pairs = np.einsum("...d,...d->...", total_a, total_b) - diagonal.sum(axis=-1)
    with_total = (a @ total_b[..., None] + b @ total_a[..., None])[..., 0]
    without = pairs[..., None] - with_total + 2.0 * diagonal
    return np.asarray(pairs / (m * (m - 1.0))), without / ((m - 1.0) * (m - 2.0) or np.nan)


def _apply_signature(
    vectors: Float[np.ndarray, "*rows d"], signs: Float[np.ndarray, " features"] | None
) -> Float[np.ndarray, "*rows d"]:
    """Return what vectors are multiplied with for inner products of a signature of these coordinates or more."""
    return vectors if signs is None else vectors * signs[: vectors.shape[-1]]


def _inner_products(
    first: Float[np.ndarray, "rows d"],
    second: Float[np.ndarray, "rows d"],
    signs: Float[np.ndarray, " features"] | None,
) -> Float[np.ndarray, " rows"]:
    """Return ⟨first_r, second_r⟩ of each row."""
    return np.einsum("rd,rd->r", first, _apply_signature(second, signs))


@dataclass(frozen=True)
class PromptMoments:
    r"""Second moments of an estimator's group gradients, with the prompt as the independent unit.

    With :math:`g_{mk}` the gradient of group k of prompt m, K_m groups of it and :math:`\bar g_m` their mean,
    ``second_moment`` is :math:`E‖g‖²`, the mean over prompts of :math:`\frac{1}{K_m}\sum_k‖g_{mk}‖²`, ``signal``
    :math:`‖E g‖²` without bias, the mean of :math:`⟨\bar g_m, \bar g_{m'}⟩` over different prompts, and ``within`` the
    variance between groups of one prompt, the mean over prompts with two or more of
    :math:`\frac{1}{K_m-1}\sum_k‖g_{mk} - \bar g_m‖²`.
    """

    sums: Float[np.ndarray, "m d"] | WeightedSums  # the ḡ_m, or their products where these are large
    second_moment: Statistic
    within: Statistic | None  # None when no prompt has two groups
    signs: Float[np.ndarray, " features"] | None = None  # of inner products, of d or more; None where all are positive
    sketch_error: SketchError | None = field(default=None, repr=False)  # None where inner products are exact
    completions: float = math.inf  # how many carry E‖g‖², by the tail of their w²‖S‖²

    @cached_property
    def signal(self) -> Statistic:
        """‖E g‖² without bias."""
        return cross_signal(self, self, self.sketch_error)

    @property
    def means(self) -> Float[np.ndarray, "m d"]:
        """The ḡ_m."""
        return self.first_means(None)

    def first_means(self, most: int | None) -> Float[np.ndarray, "some d"]:
        """Return the ḡ_m of the first few prompts, or of all."""
        return self.sums.vectors(most) if isinstance(self.sums, WeightedSums) else self.sums[:most]

    def scaled(self, factor: float) -> PromptMoments:
        """Return the moments of a multiple, of products of large scores."""
        assert isinstance(self.sums, WeightedSums)
        within = None if self.within is None else self.within.scaled(factor**2)
        second_moment = self.second_moment.scaled(factor**2)
        return PromptMoments(self.sums.scaled(factor), second_moment, within, self.signs, completions=self.completions)

    @cached_property
    def trace_cov(self) -> Statistic:
        r""":math:`\mathrm{tr\,Cov}` of one group's gradient: :math:`E‖g‖² - ‖E g‖²`.

        With one group a prompt this is (Σ‖g_m‖² − ‖Σg_m‖²/M)/(M−1); with several it is the sum of the variance
        within prompts and of that between prompts.
        """
        return self.second_moment - self.signal

    @cached_property
    def components(self) -> ComponentsOf:
        """The parts of the variance of ‖E g‖²."""
        return ComponentsOf(self)


def prompt_moments(
    contributions: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"],
    groups: Groups,
    surplus_sq: Float[np.ndarray, " n"] | None = None,
    sketch_error: SketchError | None = None,
    *,
    signs: Float[np.ndarray, " features"] | None = None,
    exact_squares: bool = True,
) -> PromptMoments:
    r"""Sum weighted scores to groups and prompts, with delete-one-prompt replicates in closed form.

    With :math:`g_{mk} = \sum_{i \in (m,k)} w_i S_i` and M prompts, E‖g‖² is the mean of
    :math:`x_m = \frac{1}{K_m}\sum_k‖g_{mk}‖²`, whose replicate without prompt m is
    :math:`(\sum_{m'} x_{m'} - x_m)/(M-1)`. ‖E g‖² is the U-statistic of :func:`mean_over_pairs`. ``surplus_sq`` is
    exact ‖S_i‖² less that of the sketch; without ``exact_squares`` some of the sketch's error remains in their sum,
    and is estimated as well.
    """
    n_groups, n_prompts = groups.n_groups, groups.n_prompts
    per_prompt = groups.groups_per_prompt
    # g_k = Σ_i w_i S_i over the completions of group k.
    gather = scipy.sparse.csr_array((weights, (groups.group, np.arange(len(weights)))), shape=(n_groups, len(weights)))
    gradients = gather @ contributions
    # ‖g_k‖² = Σ_{i≠j} w_i w_j ⟨S_i, S_j⟩ + Σ_i w_i²‖S_i‖², the last with exact norms.
    squares = _inner_products(gradients, gradients, signs)
    own = _inner_products(contributions, contributions, signs)
    if surplus_sq is not None:
        squares = squares + np.bincount(groups.group, weights=weights**2 * surplus_sq, minlength=n_groups)
        own = own + surplus_sq
    # x_m = (1/K_m) Σ_k ‖g_mk‖², and ḡ_m = (1/K_m) Σ_k g_mk.
    mean_squares = np.bincount(groups.prompt, weights=squares, minlength=n_prompts) / per_prompt
    share = 1.0 / per_prompt[groups.prompt]
    if n_groups == n_prompts:
        means = gradients
    else:
        average = scipy.sparse.csr_array((share, (groups.prompt, np.arange(n_groups))), shape=(n_prompts, n_groups))
        means = average @ gradients

    slope = None
    if sketch_error is not None:
        # C of E‖g‖² gives K = Σ_k g_k g_kᵀ/(M K_m); exact squares take Σ_i w_i² S_i S_iᵀ/(M K_m) out of it.
        slope = sketch_error.squares(gradients, share / n_prompts, groups.prompt)
        if surplus_sq is not None and exact_squares:
            row_share = share[groups.group] * weights**2 / n_prompts
            slope -= sketch_error.squares(contributions, row_share, groups.prompt[groups.group])
    within = None
    if per_prompt.max() > 1:
        diagonal = np.zeros(len(weights)) if surplus_sq is None else weights**2 * surplus_sq
        deviations = gradients - means[groups.prompt]
        slope_within = None
        if sketch_error is not None:
            slope_within = sketch_error.squares(deviations, _shares_within(groups)[groups.prompt], groups.prompt)
        deviations_sq = np.bincount(groups.prompt, weights=_inner_products(deviations, deviations, signs))
        within = _within_prompt(deviations_sq, diagonal, groups, slope_within)
    return PromptMoments(
        sums=means,
        second_moment=mean_statistic(mean_squares, slope),
        within=within,
        signs=signs,
        sketch_error=sketch_error,
        completions=completions_that_carry(weights**2 * own),
    )


def moments_from_products(
    scores: PooledProducts, weights: Sequence[Float[np.ndarray, " n"]], groups: Groups
) -> list[PromptMoments]:
    """Return the same as :func:`prompt_moments` for several weightings, from products of scores with their sums."""
    for one in weights:  # all are known before the first is multiplied
        scores.means(one)
    found = (scores.known.find(one, partial(_from_products, scores, groups)) for one in weights)
    return [unit.scaled(factor) for unit, factor in found]


def _from_products(scores: PooledProducts, groups: Groups, given: Float[np.ndarray, " n"]) -> PromptMoments:
    products, n_groups, n_prompts = scores.products, groups.n_groups, groups.n_prompts
    per_prompt = groups.groups_per_prompt
    surplus = np.zeros(len(given)) if scores.surplus_sq is None else given**2 * scores.surplus_sq
    weights, group, sums = scores.among_all(given), scores.among_all(groups.group), scores.means(given)
    # ‖g_k‖² of the sketches, then with exact squares; x_m = (1/K_m) Σ_k ‖g_mk‖².
    sketched = np.bincount(group, weights * products.within(weights, group), n_groups)
    squares = sketched + np.bincount(groups.group, surplus, n_groups)
    mean_squares = np.bincount(groups.prompt, squares, n_prompts) / per_prompt
    several = per_prompt.max() > 1
    # Σ_k ‖g_k − ḡ‖² = Σ_k ‖g_k‖² − K ‖ḡ‖².
    means = sums.factor * sums.unit.weights
    own = np.bincount(products.prompt, means * products.within(means, products.prompt), n_prompts)
    deviations_sq = np.maximum(np.bincount(groups.prompt, sketched, n_prompts) - per_prompt * own, 0.0)
    slope = slope_within = None
    if products.error is not None:
        # The same forms as in `prompt_moments`: the row of completion i in Σ_k s_k g_k g_kᵀ Z is s_k w_i g_kᵀ Z.
        along = products.directions_of(weights, group, n_groups)
        of_fold = n_prompts / products.prompts_of_folds
        by_row = of_fold[products.fold_of_row] * weights
        mean = scores.among_all(scores.share) / n_prompts
        coefficients = (mean * by_row)[:, None] * along[group]
        traces = np.bincount(groups.prompt, sketched, n_prompts) / (per_prompt * n_prompts)
        if scores.surplus_sq is not None:
            coefficients -= (mean * by_row * weights)[:, None] * products.along_directions
            traces -= np.bincount(products.prompt, mean * weights**2 * products.squares, n_prompts)
        slope = products.form(coefficients, of_fold * products.sum_by_fold(traces))
        if several:
            shares = _shares_within(groups)
            deviations = along[group] - products.directions_of(means, products.prompt, n_prompts)[products.prompt]
            coefficients = (shares[products.prompt] * by_row)[:, None] * deviations
            slope_within = products.form(coefficients, of_fold * products.sum_by_fold(shares * deviations_sq))
    return PromptMoments(
        sums=sums,
        second_moment=mean_statistic(mean_squares, slope),
        within=_within_prompt(deviations_sq, surplus, groups, slope_within) if several else None,
        completions=completions_that_carry(weights**2 * products.squares + scores.among_all(surplus)),
    )


def cross_signal(first: PromptMoments, second: PromptMoments, sketch_error: SketchError | None = None) -> Statistic:
    """Return ⟨E g, E h⟩ of two estimators without bias: the mean of ⟨ḡ_m, h̄_m'⟩ over different prompts."""
    if isinstance(first.sums, WeightedSums) and isinstance(second.sums, WeightedSums):
        return first.sums.products.cross(first.sums, second.sums)
    value, replicates = mean_over_pairs(first.means, second.means, first.signs)
    slopes = None if sketch_error is None else sketch_error.cross(first.means, second.means)
    return Statistic(float(value), replicates, slopes)


def form_among(several: Sequence[PromptMoments], other: PromptMoments, bins: Sequence[Bool[np.ndarray, " m"]]) -> None:
    """Have large scores read once for what :func:`cross_signal_among` needs of these, each with the other, in bins."""
    if not isinstance(other.sums, WeightedSums):
        return
    every = (*several, other)
    for sums in (one.sums for one in every if isinstance(one.sums, WeightedSums)):
        for inside in bins:
            sums.among(inside)
    for one in every:
        for inside in bins:
            cross_signal_among(one, other, inside)


def cross_signal_among(
    first: PromptMoments, second: PromptMoments, inside: Bool[np.ndarray, " m"], sketch_error: SketchError | None = None
) -> Statistic:
    """Return ⟨E g, E h⟩ given that the prompt is among some, from pairs of these two or more."""
    if isinstance(first.sums, WeightedSums) and isinstance(second.sums, WeightedSums):
        return first.sums.products.cross(first.sums.among(inside), second.sums.among(inside), inside)
    value, replicates = mean_over_pairs(first.means[inside], second.means[inside], first.signs)
    if sketch_error is None:
        return Statistic(float(value), replicates)
    # Folds are runs of all M prompts: the others enter as zeros, and the mean over pairs is scaled to those inside.
    n, m = int(inside.sum()), len(inside)
    mine = np.where(inside[:, None], first.means, 0.0)
    theirs = mine if second is first else np.where(inside[:, None], second.means, 0.0)
    slopes = sketch_error.cross(mine, theirs) * (m * (m - 1.0) / (n * (n - 1.0)))
    return Statistic(float(value), replicates, slopes)


def _shares_within(groups: Groups) -> Float[np.ndarray, " m"]:
    """Return the share of each Σ_k‖g_k − ḡ‖² in the mean over the prompts that have two groups or more."""
    per_prompt = groups.groups_per_prompt
    several = per_prompt > 1
    return several / (np.maximum(per_prompt - 1, 1) * several.sum())


def _within_prompt(
    squares: Float[np.ndarray, " m"],
    diagonal: Float[np.ndarray, " n"],
    groups: Groups,
    slope: np.ndarray | SharedError | None,
) -> Statistic:
    r"""Average the variance between groups of one prompt over the prompts that have two or more.

    :math:`\frac{1}{K-1}\sum_k‖g_k - \bar g‖²` with exact squares on the diagonal: a completion of group k enters
    :math:`g_k - \bar g` with the factor :math:`1 - 1/K` and the K−1 others with :math:`-1/K`, so that its square
    counts :math:`\frac{1}{K-1}[(1-\frac1K)² + (K-1)\frac{1}{K²}] = \frac1K` times. How the sketch's error moves these
    squares is left in the error estimate, which errs on the wide side.
    """
    per_prompt = groups.groups_per_prompt
    several = per_prompt > 1
    # v_m = Σ_k ‖g_k − ḡ‖²/(K_m − 1) + Σ_i (exact less sketched square)/K_m; its replicate is (Σ_m' v_m' − v_m)/(M₂ − 1)
    # with M₂ the prompts that have two groups or more.
    surplus = np.bincount(groups.prompt[groups.group], weights=diagonal) / per_prompt
    spread = np.where(several, squares / np.maximum(per_prompt - 1, 1) + surplus, 0.0)
    n_several = several.sum()
    remaining = n_several - several
    replicates = np.divide(spread.sum() - spread, remaining, out=np.full(len(spread), np.nan), where=remaining > 0)
    return Statistic(float(spread.sum() / n_several), replicates, slope)


#: The parts are estimated from at most so many prompts, so that they cost little beside everything else.
MOST_PAIRED_PROMPTS = 512


# Prompts of which products of three are formed.
_MOST_CUBED = 400


@dataclass(frozen=True)
class SignalComponents:
    r"""The parts of the variance of the mean of :math:`h(m, l) = ⟨g_m, g_l⟩` over pairs of prompts.

    The mean over the pairs of M prompts has the variance :math:`\frac{4ζ}{M} + \frac{2δ}{M(M-1)}` (Hoeffding, Annals of
    Mathematical Statistics 19, 1948).
    """

    mean: float  # s, the mean of h: ‖E g‖²
    linear: float  # ζ = Cov(h(m, l), h(m, k)), the variance of ⟨E g, g_m⟩ over prompts
    quadratic: float  # δ = Var h − 2ζ
    skewness: float = 0.0  # of the mean where s is 0: 8 Σλ³/(2 Σλ²)^{3/2} with λ the eigenvalues of h

    def prompts_to_resolve(self, of: float, estimate: float, confidence_level: float) -> int | float:
        r"""Return how many prompts put the interval of ‖E g‖² above 0 in 80 % of studies; infinite for none.

        The estimate from M prompts varies by :math:`4ζ/M + 2δ/M²`, of which the jackknife counts the second part twice.
        The signal s is resolved in 80 % of studies where
        :math:`z\sqrt{4ζ/M + 4δ/M²} + z_{0.8}\sqrt{4ζ/M + 2δ/M²} \le s`. A part whose estimate is negative counts as 0,
        and ζ is taken in proportion to s.
        """
        if not of > 0:
            return math.inf
        z, z_80 = (float(scipy.special.ndtri(at)) for at in (0.5 + require_level(confidence_level) / 2.0, ASSURANCE))
        first = 4.0 * max(self.linear, 0.0) * (of / estimate if estimate > 0 else 1.0)
        second = 2.0 * max(self.quadratic, 0.0)

        def enough(m: int) -> bool:
            own = z * math.sqrt(first / m + 2.0 * second / m**2)
            return own + z_80 * math.sqrt(first / m + second / m**2) <= of

        return smallest(enough)


def signal_components(
    means: Float[np.ndarray, "m d"], signs: Float[np.ndarray, " features"] | None = None
) -> SignalComponents | None:
    r"""Estimate the mean of ⟨g_m, g_l⟩ over pairs of prompts, and the two parts of its variance.

    Each product of means is an average over distinct prompts, so that none of the three is biased by squares; they may
    be negative.
    """
    g = means[:MOST_PAIRED_PROMPTS]
    m = len(g)
    if m < 4:
        return None
    pairs = _apply_signature(g, signs) @ g.T
    np.fill_diagonal(pairs, 0.0)
    rows, total, squares = pairs.sum(axis=1), float(pairs.sum()), float((pairs**2).sum())
    triples = float(rows @ rows) - squares  # Σ h(m, l) h(m, k) over l ≠ k
    quadruples = total**2 - 4.0 * triples - 2.0 * squares  # Σ h(m, l) h(k, j) over four distinct prompts
    mean_sq = quadruples / (m * (m - 1.0) * (m - 2.0) * (m - 3.0))
    linear = triples / (m * (m - 1.0) * (m - 2.0)) - mean_sq
    variance = squares / (m * (m - 1.0)) - mean_sq
    few = pairs[:_MOST_CUBED, :_MOST_CUBED]
    k = len(few)
    cubes, second = float(((few @ few) * few).sum()) / (k * (k - 1.0) * (k - 2.0)), squares / (m * (m - 1.0))
    skewness = 8.0 * max(cubes, 0.0) / (2.0 * second) ** 1.5 if second > 0 else 0.0
    return SignalComponents(total / (m * (m - 1.0)), linear, variance - 2.0 * linear, skewness)


class ComponentsOf:
    """The parts of the variance of ‖E g‖² of some moments: of large scores, when they are first asked for."""

    def __init__(self, moments: PromptMoments):
        self._moments: PromptMoments | None = moments
        if not isinstance(moments.sums, WeightedSums):
            self.found  # noqa: B018

    @cached_property
    def found(self) -> SignalComponents | None:
        """The parts; None for fewer than 4 prompts."""
        assert self._moments is not None
        found = signal_components(self._moments.first_means(MOST_PAIRED_PROMPTS), self._moments.signs)
        self._moments = None
        return found

    def __getstate__(self) -> dict[str, object]:
        """Return what is pickled: without the moments."""
        return {"_moments": None, "found": self.found}


#: Deals whose gradients are formed together, in one product.
_DEALS_AT_ONCE = 32
#: Folds of deals, whose scatter is the error that a finite number of deals leaves.
_N_FOLDS = 16


def shuffled_deals(
    rng: np.random.Generator, n_prompts: int, prompts_per_batch: int, n_deals: int
) -> Iterator[Int[np.ndarray, "k drawn"]]:
    """Yield deals of ⌊M/B⌋ disjoint batches of B prompts each, in random order, a few at a time."""
    drawn = n_prompts // prompts_per_batch * prompts_per_batch
    for start in range(0, n_deals, _DEALS_AT_ONCE):
        size = min(_DEALS_AT_ONCE, n_deals - start)
        yield np.stack([rng.permutation(n_prompts)[:drawn] for _ in range(size)])


class DealtDifferences:
    r"""What a batch-level estimator has beyond the same completions under fixed weights, averaged over deals.

    A deal puts the M prompts (one group of each, drawn at random where there are several) into J = ⌊M/B⌋ disjoint
    batches, which are independent. With G_j the gradient of batch j,

    .. math:: ‖E\,\hat g‖² = E\Big[\frac{1}{J(J-1)}\sum_{j≠j'}⟨G_j, G_{j'}⟩\Big], \qquad
        \mathrm{tr\,Cov} = B\,\Big(E\Big[\frac1J\sum_j‖G_j‖²\Big] - ‖E\,\hat g‖²\Big),

    with expectations over all deals. Of weights that are fixed before the deal, such as those that the estimator gives
    to all completions as one batch, these expectations have a closed form: with :math:`E‖g‖²` and the U-statistic U of
    :class:`PromptMoments`, :math:`E‖G_j‖² = \frac1B E‖g‖² + (1-\frac1B) U` and :math:`E⟨G_j, G_{j'}⟩ = U`. So the fixed
    weights are dealt alike, and only the *difference* is averaged over deals; it is small, and 0 for an estimator that
    stays within its group. Gradients that are clipped are shorter: there the fixed weights are taken times the factor f
    that clipping leaves of the first deals' gradients on average. The average over all deals does not depend on f, but
    how far a finite number of deals scatters about it does. Drawing without replacement matters: a prompt drawn twice
    would leak a sample's own reward into a leave-one-out baseline.

    The replicate without prompt m leaves out, in every deal, the batch that holds m, and nothing in a deal that leaves
    m out already: what remains is a random deal of the other M − 1 prompts, so that the average over deals is the
    statistic without m, and no correction is due. With :math:`x_d` the statistic of deal d and :math:`x_{d(m)}` that
    without m's batch, over D deals,

    .. math:: x_{(m)} = \frac1D\sum_d x_{d(m)} = \bar x + \frac1D\sum_{d\,∋\,m} (x_{d(m)} - x_d).
    """

    def __init__(
        self,
        # Of a batch with these rows: (rows,) or (rows, T).
        weights_of: Callable[[Int[np.ndarray, " rows"]], np.ndarray],
        fixed: np.ndarray,  # the weights of all completions that are dealt alike: (n,), (n, T) or (3, n, T)
        scores: Scores | CombinedScores | PooledProducts,
        groups: Groups,
        prompts_per_batch: int,
        rng: np.random.Generator,
        others: tuple[PromptMoments, ...] = (),  # to take cross terms with
        max_norm: float | None = None,  # c of G_j min(1, c/‖G_j‖); None does not clip
    ):
        self._weights_of, self._fixed, self._scores, self._groups = weights_of, fixed, scores, groups
        self._size, self._rng, self._max_norm = prompts_per_batch, rng, max_norm
        self._others = [other.means for other in others]
        self._n_clipped = 0
        self._shrinkage: float | None = None
        m = groups.n_prompts
        self._n_batches = m // prompts_per_batch
        self._first_group = np.searchsorted(groups.prompt, np.arange(m))
        self._members = np.split(np.arange(len(groups.group)), np.cumsum(groups.sizes)[:-1])
        # Row 0: second moment; row 1: signal; then crosses. By fold of deals: sums of values, and of their changes
        # without each prompt.
        self._values = np.zeros((2 + len(others), _N_FOLDS))
        self._changes = np.zeros((2 + len(others), _N_FOLDS, m))
        self._deals = np.zeros(_N_FOLDS)
        self._kept, self._drawn = np.zeros(m), np.zeros(m)

    @property
    def n_deals(self) -> int:
        """Deals added so far."""
        return int(self._deals.sum())

    @property
    def clipped_share(self) -> float:
        """The share of dealt batches whose gradient was clipped."""
        return self._n_clipped / (self.n_deals * self._n_batches)

    @property
    def kept_share(self) -> Float[np.ndarray, " drawn"]:
        """The share of each prompt's drawn groups with any non-zero weight, of prompts that were drawn."""
        drawn = self._drawn > 0
        return self._kept[drawn] / self._drawn[drawn]

    def add(self, prompts: Int[np.ndarray, "k drawn"]) -> None:
        """Add deals, each J·B different prompts in the order of their batches."""
        m, n_deals = self._groups.n_prompts, len(prompts)
        of_prompt = self._groups.groups_per_prompt[prompts]
        chosen = self._first_group[prompts] + self._rng.integers(0, of_prompt)
        batches = np.sort(chosen.reshape(-1, self._size), axis=1)
        rows = [np.concatenate([self._members[group] for group in batch]) for batch in batches]
        # G_j = (1/B) Σ_{i in batch j} w_i S_i, of the estimator and under the fixed weights.
        weights = [self._weights_of(batch_rows) for batch_rows in rows]
        self._count_kept(prompts, chosen, rows, weights)
        fixed = [of_rows(self._fixed, batch_rows) for batch_rows in rows]
        found, expected = (
            self._terms(prompts, rows, [weight / self._size for weight in some], max_norm)
            for some, max_norm in ((weights, self._max_norm), (fixed, None))
        )
        expected = [(value * by, without * by) for (value, without), by in zip(expected, self._scales, strict=True)]
        folds = (self.n_deals + np.arange(n_deals)) % _N_FOLDS
        np.add.at(self._deals, folds, 1.0)
        places = (folds[:, None] * m + prompts).ravel()
        for row, ((value, without), (fixed_value, fixed_without)) in enumerate(zip(found, expected, strict=True)):
            # x_d, and x_{d(m)} − x_d for every prompt m of the batch left out, both less those of the fixed weights.
            difference = value - fixed_value
            change = np.repeat(without - fixed_without - difference[:, None], self._size, axis=1)
            np.add.at(self._values[row], folds, difference)
            self._changes[row] += np.bincount(places, change.ravel(), _N_FOLDS * m).reshape(_N_FOLDS, m)

    def added_to(self, closed: list[Statistic]) -> list[Statistic]:
        """Second moment of a batch gradient, signal and crosses, given those under the fixed weights in closed form."""
        used = self._deals > 0
        n_folds = int(used.sum())
        total = self._deals.sum()
        result = []
        scaled = [one.scaled(by) for one, by in zip(closed, self._scales, strict=True)]
        for one, values, changes in zip(scaled, self._values, self._changes, strict=True):
            value, change = values.sum() / total, changes.sum(axis=0) / total
            dealt = None
            if n_folds > 1:
                # (x_f − x̄)/√(F(F−1)) of each fold f of deals, whose sum of squares is the variance of the mean.
                of_fold = values[used] / self._deals[used] - value
                without = changes[used] / self._deals[used][:, None] - change + of_fold[:, None]
                dealt = np.column_stack([of_fold, without]) / np.sqrt(n_folds * (n_folds - 1.0))
            result.append(Statistic(one.value + value, one.replicates + value + change, one.sketch, dealt))
        return result

    def _terms(
        self,
        prompts: Int[np.ndarray, "k drawn"],
        rows: list[np.ndarray],
        weights: list[np.ndarray],
        max_norm: float | None,
    ) -> list[tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k j"]]]:
        """Return each statistic in every deal, and without each of its batches."""
        gradients, surplus = self._scores.sums(rows, weights)
        shape = (len(prompts), self._n_batches, -1)
        average = _average_over_batches(prompts, self._size, self._groups.n_prompts)
        squares = _inner_products(gradients, gradients, self._scores.signs) + surplus
        if max_norm is not None:
            # A sketched square may be negative by its error, and is then not clipped.
            factors = np.minimum(1.0, max_norm / np.sqrt(np.maximum(squares, np.finfo(float).tiny)))
            self._n_clipped += int(np.sum(factors < 1.0))
            if self._shrinkage is None:
                # Σ⟨clipped, G⟩/Σ‖G‖²: the multiple of the unclipped gradients that is nearest to the clipped ones.
                weight = np.maximum(squares, 0.0)
                self._shrinkage = float(factors @ weight / weight.sum()) if weight.any() else 1.0
            gradients, squares = gradients * factors[:, None], squares * factors**2
        squares = squares.reshape(shape[:2])
        gradients = gradients.reshape(shape)
        others = [(average @ means).reshape(shape) for means in self._others]
        pairs = [mean_over_pairs(gradients, second, self._scores.signs) for second in (gradients, *others)]
        return [_mean_without_each(squares), *pairs]

    @property
    def _scales(self) -> list[float]:
        """The factor of each statistic under the fixed weights times f."""
        factor = 1.0 if self._shrinkage is None else self._shrinkage
        return [factor**2, factor**2, *[factor] * len(self._others)]

    def _count_kept(
        self,
        prompts: Int[np.ndarray, "k drawn"],
        chosen: Int[np.ndarray, "k drawn"],
        rows: list[np.ndarray],
        weights: list[np.ndarray],
    ) -> None:
        m = self._groups.n_prompts
        alive = np.zeros((len(prompts), self._groups.n_groups), dtype=bool)
        for place, (batch_rows, weight) in enumerate(zip(rows, weights, strict=True)):
            alive[place // self._n_batches, self._groups.group[batch_rows[weighted_rows(weight)]]] = True
        self._kept += np.bincount(prompts.ravel(), np.take_along_axis(alive, chosen, axis=1).ravel(), m)
        self._drawn += np.bincount(prompts.ravel(), minlength=m)


def of_rows(weights: np.ndarray, rows: Int[np.ndarray, " rows"]) -> np.ndarray:
    """Select the weights of some completions, from (n,), (n, T) or (3, n, T)."""
    return weights[:, rows] if weights.ndim == 3 else weights[rows]


def _average_over_batches(
    prompts: Int[np.ndarray, "k drawn"], prompts_per_batch: int, m: int
) -> scipy.sparse.csr_array:
    """Return the matrix that takes (M, D) means of prompts to the mean over the prompts of each batch."""
    # H_j = (1/B) Σ_{m in batch j} h̄_m.
    n_batches = prompts.size // prompts_per_batch
    entries = np.full(prompts.size, 1.0 / prompts_per_batch)
    places = (np.repeat(np.arange(n_batches), prompts_per_batch), prompts.ravel())
    return scipy.sparse.csr_array((entries, places), shape=(n_batches, m))


def _mean_without_each(values: Float[np.ndarray, "k j"]) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k j"]]:
    total = values.sum(axis=1, keepdims=True)
    n = values.shape[1]
    # (1/J) Σ_j x_j, and (Σ_j' x_j' − x_j)/(J − 1) without each.
    return total[:, 0] / n, (total - values) / (n - 1.0)


def weighted_rows(weights: np.ndarray) -> Bool[np.ndarray, " n"]:
    """Return which completions have any non-zero weight, from weights (n,), (n, T) or (3, n, T)."""
    nonzero = weights != 0
    return nonzero if weights.ndim == 1 else nonzero.any(axis=-1).reshape(-1, weights.shape[-2]).any(axis=0)
