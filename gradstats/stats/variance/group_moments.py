"""Gradients of groups of completions, and their second moments over prompts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from gradstats.stats.jackknife import Statistic, mean_statistic
from gradstats.stats.variance.sketch_error import SketchError
from gradstats.stats.variance.u_statistic import inner_products, mean_over_pairs


@dataclass(frozen=True)
class Groups:
    """Completions split into disjoint groups of one prompt each.

    Attributes:
        rows: (n,) positions of the kept completions, ordered by group.
        group: (n,) group of each, 0 … n_groups − 1.
        prompt: (n_groups,) prompt of each group, 0 … n_prompts − 1; groups of a prompt are neighbours.
        n_leftover: completions that filled no group.
    """

    rows: Int[np.ndarray, " n"]
    group: Int[np.ndarray, " n"]
    prompt: Int[np.ndarray, " groups"]
    n_leftover: int

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
    """Split each prompt's completions, in sample order, into disjoint groups.

    Args:
        prompts: (n,) prompt of each completion, numbered from 0.
        order: (n,) positions of the completions in sample order.
        group_size: completions per group; None makes one group of all of a prompt's completions.

    Raises:
        ValueError: when no prompt has that many completions.
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
    return Groups(
        rows=rows[kept],
        group=group.reshape(-1),
        prompt=np.unique(labels[:, 0], return_inverse=True)[1],
        n_leftover=int(np.sum(~kept)),
    )


@dataclass(frozen=True)
class PromptMoments:
    r"""Second moments of an estimator's group gradients, with the prompt as the independent unit.

    With :math:`g_{mk}` the gradient of group k of prompt m, K_m groups of it and :math:`\bar g_m` their mean:

    Attributes:
        means: (M, D) the :math:`\bar g_m`.
        second_moment: :math:`E‖g‖²`, the mean over prompts of :math:`\frac{1}{K_m}\sum_k‖g_{mk}‖²`.
        signal: :math:`‖E g‖²` without bias, the mean of :math:`⟨\bar g_m, \bar g_{m'}⟩` over different prompts.
        within: the variance between groups of one prompt, the mean over prompts with two or more of
            :math:`\frac{1}{K_m-1}\sum_k‖g_{mk} - \bar g_m‖²`; None when no prompt has two.
        signs: the signature of inner products in these coordinates, or more; None where it is positive.
    """

    means: Float[np.ndarray, "m d"]
    second_moment: Statistic
    signal: Statistic
    within: Statistic | None
    signs: Float[np.ndarray, " features"] | None = None

    @property
    def trace_cov(self) -> Statistic:
        r""":math:`\mathrm{tr\,Cov}` of one group's gradient: :math:`E‖g‖² - ‖E g‖²`.

        With one group a prompt this is (Σ‖g_m‖² − ‖Σg_m‖²/M)/(M−1); with several it is the sum of the variance
        within prompts and of that between prompts.
        """
        return self.second_moment - self.signal


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
    :math:`(\sum_{m'} x_{m'} - x_m)/(M-1)`. ‖E g‖² is the U-statistic of :func:`mean_over_pairs`.

    Args:
        contributions: (n, D) score of each kept completion, in the order of ``groups.rows``.
        weights: (n,) its weight in its group's gradient.
        groups: the split.
        surplus_sq: (n,) exact ‖S_i‖² less that of the sketch, which replaces the sketch's on the diagonal.
        sketch_error: for sketched scores, estimates the sketch's error.
        signs: the signature of inner products in these coordinates, of D or more; None where it is positive.
        exact_squares: whether ``surplus_sq`` makes squares exact. Where they keep some of the sketch's error, it is
            estimated as well.
    """
    n_groups, n_prompts = groups.n_groups, groups.n_prompts
    per_prompt = groups.groups_per_prompt
    # g_k = Σ_i w_i S_i over the completions of group k.
    gather = sparse.csr_array((weights, (groups.group, np.arange(len(weights)))), shape=(n_groups, len(weights)))
    gradients = gather @ contributions
    # ‖g_k‖² = Σ_{i≠j} w_i w_j ⟨S_i, S_j⟩ + Σ_i w_i²‖S_i‖², the last with exact norms.
    squares = inner_products(gradients, gradients, signs)
    if surplus_sq is not None:
        squares = squares + np.bincount(groups.group, weights=weights**2 * surplus_sq, minlength=n_groups)
    # x_m = (1/K_m) Σ_k ‖g_mk‖², and ḡ_m = (1/K_m) Σ_k g_mk.
    mean_squares = np.bincount(groups.prompt, weights=squares, minlength=n_prompts) / per_prompt
    share = 1.0 / per_prompt[groups.prompt]
    if n_groups == n_prompts:
        means = gradients
    else:
        average = sparse.csr_array((share, (groups.prompt, np.arange(n_groups))), shape=(n_prompts, n_groups))
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
        within = _within_prompt(gradients - means[groups.prompt], diagonal, groups, sketch_error, signs)
    return PromptMoments(
        means=means,
        second_moment=mean_statistic(mean_squares, slope),
        signal=_mean_cross(means, means, signs, sketch_error),
        within=within,
        signs=signs,
    )


def cross_signal(first: PromptMoments, second: PromptMoments, sketch_error: SketchError | None = None) -> Statistic:
    """Return ⟨E g, E h⟩ of two estimators without bias: the mean of ⟨ḡ_m, h̄_m'⟩ over different prompts."""
    return _mean_cross(first.means, second.means, first.signs, sketch_error)


def cross_signal_among(
    first: PromptMoments, second: PromptMoments, inside: Bool[np.ndarray, " m"], sketch_error: SketchError | None = None
) -> Statistic:
    """Return ⟨E g, E h⟩ given that the prompt is among some, from pairs of these, which are the independent units.

    Args:
        first: of g.
        second: of h.
        inside: (M,) which prompts; at least two.
        sketch_error: for sketched scores, estimates the sketch's error.
    """
    value, replicates = mean_over_pairs(first.means[inside], second.means[inside], first.signs)
    if sketch_error is None:
        return Statistic(float(value), replicates)
    # Folds are runs of all M prompts: the others enter as zeros, and the mean over pairs is scaled to those inside.
    n, m = int(inside.sum()), len(inside)
    mine = np.where(inside[:, None], first.means, 0.0)
    theirs = mine if second is first else np.where(inside[:, None], second.means, 0.0)
    slopes = sketch_error.cross(mine, theirs) * (m * (m - 1.0) / (n * (n - 1.0)))
    return Statistic(float(value), replicates, slopes)


def _mean_cross(
    first: Float[np.ndarray, "m d"],
    second: Float[np.ndarray, "m e"],
    signs: Float[np.ndarray, " features"] | None,
    sketch_error: SketchError | None,
) -> Statistic:
    value, replicates = mean_over_pairs(first, second, signs)
    return Statistic(float(value), replicates, None if sketch_error is None else sketch_error.cross(first, second))


def _within_prompt(
    deviations: Float[np.ndarray, "groups d"],
    diagonal: Float[np.ndarray, " n"],
    groups: Groups,
    sketch_error: SketchError | None,
    signs: Float[np.ndarray, " features"] | None,
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
    squares = np.bincount(groups.prompt, weights=inner_products(deviations, deviations, signs))
    surplus = np.bincount(groups.prompt[groups.group], weights=diagonal) / per_prompt
    spread = np.where(several, squares / np.maximum(per_prompt - 1, 1) + surplus, 0.0)
    n_several = several.sum()
    remaining = n_several - several
    replicates = np.divide(spread.sum() - spread, remaining, out=np.full(len(spread), np.nan), where=remaining > 0)
    shares = several[groups.prompt] / (np.maximum(per_prompt - 1, 1)[groups.prompt] * n_several)
    slope = None if sketch_error is None else sketch_error.squares(deviations, shares, groups.prompt)
    return Statistic(float(spread.sum() / n_several), replicates, slope)
