"""Gradients of groups of completions, and the second moments of prompts they give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from gradstats.stats.jackknife import Statistic, mean_statistic
from gradstats.stats.variance.sketch_error import SketchProbes


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
    """Numbers prompts from 0 at random: what is done by runs of numbers then meets prompts that are alike."""
    numbers = np.unique(labels, return_inverse=True)[1]
    return rng.permutation(int(numbers.max()) + 1)[numbers]


def split_into_groups(prompts: Int[np.ndarray, " n"], order: Int[np.ndarray, " n"], group_size: int | None) -> Groups:
    """Splits each prompt's completions, in sample order, into disjoint groups.

    Args:
        prompts: (n,) prompt of each completion, numbered from 0.
        order: (n,) positions of the completions in sample order.
        group_size: completions a group; None makes one group of all of a prompt's completions.

    Raises:
        ValueError: when no prompt has that many completions.
    """
    rows = order[np.argsort(prompts[order], kind="stable")]
    prompt = prompts[rows]
    pool = np.bincount(prompts)
    starts = np.cumsum(pool) - pool
    rank = np.arange(len(rows)) - starts[prompt]
    if group_size is None:
        part = np.zeros_like(rank)
        kept = np.ones(len(rows), dtype=bool)
    else:
        if not 1 <= group_size <= pool.max():
            raise ValueError(
                f"group_size={group_size} must lie between 1 and the number of completions of a prompt, at "
                f"most {pool.max()} here: choose a smaller one or sample more completions"
            )
        part = rank // group_size
        kept = part < (pool // group_size)[prompt]
    pairs = np.column_stack([prompt[kept], part[kept]])
    labels, group = np.unique(pairs, axis=0, return_inverse=True)
    return Groups(
        rows=rows[kept],
        group=group.reshape(-1),
        prompt=np.unique(labels[:, 0], return_inverse=True)[1],
        n_leftover=int(np.sum(~kept)),
    )


@dataclass(frozen=True)
class PromptMoments:
    r"""What an estimator's group gradients leave behind for each prompt.

    With g_{mk} the gradient of group k of prompt m and \(\bar g_m\) their mean over k:

    Attributes:
        means: (M, D) the \(\bar g_m\).
        total: (D,) their sum.
        own_sq: (M,) \(‖\bar g_m‖²\), in the space of the scores.
        second_moment: \(E‖g‖²\), the mean over prompts of \(\frac{1}{K}\sum_k‖g_{mk}‖²\).
        within: the variance between groups of one prompt, the mean over prompts with two or more of
            \(\frac{1}{K-1}\sum_k‖g_{mk} - \bar g_m‖²\); None when no prompt has two.
        signal: \(‖E g‖²\) without bias: the mean of \(⟨\bar g_m, \bar g_{m'}⟩\) over different prompts.
        signs: the signature of inner products in these coordinates, or more; None where it is positive.
    """

    means: Float[np.ndarray, "m d"]
    total: Float[np.ndarray, " d"]
    own_sq: Float[np.ndarray, " m"]
    second_moment: Statistic
    signal: Statistic
    within: Statistic | None
    signs: Float[np.ndarray, " features"] | None = None

    @property
    def trace_cov(self) -> Statistic:
        r"""\(\mathrm{tr\,Cov}\) of one group's gradient: \(E‖g‖² - ‖E g‖²\).

        With one group a prompt this is (Σ‖g_m‖² − ‖Σg_m‖²/M)/(M−1); with several it is the sum of the
        within-prompt part and the between-prompt part.
        """
        return self.second_moment - self.signal


def prompt_moments(
    contributions: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"],
    groups: Groups,
    surplus_sq: Float[np.ndarray, " n"] | None = None,
    probes: SketchProbes | None = None,
    *,
    signs: Float[np.ndarray, " features"] | None = None,
    exact_squares: bool = True,
) -> PromptMoments:
    """Sums weighted scores to groups and prompts, with delete-one-prompt replicates in closed form.

    Args:
        contributions: (n, D) score of each kept completion, in the order of ``groups.rows``.
        weights: (n,) its weight in its group's gradient.
        groups: the split.
        surplus_sq: (n,) exact ‖S_i‖² less that of the sketch, which replaces the sketch's on the diagonal.
        probes: for sketches, the directions that price the sketch's error.
        signs: the signature of inner products in these coordinates, of D or more; None where it is positive.
        exact_squares: whether ``surplus_sq`` makes squares exact; if they keep errors of the sketch, these are priced.
    """
    n_groups, n_prompts = groups.n_groups, groups.n_prompts
    per_prompt = groups.groups_per_prompt
    gather = sparse.csr_array((weights, (groups.group, np.arange(len(weights)))), shape=(n_groups, len(weights)))
    gradients = gather @ contributions
    squares = inner_products(gradients, gradients, signs)
    if surplus_sq is not None:
        squares = squares + np.bincount(groups.group, weights=weights**2 * surplus_sq, minlength=n_groups)
    mean_squares = np.bincount(groups.prompt, weights=squares, minlength=n_prompts) / per_prompt
    share = 1.0 / per_prompt[groups.prompt]
    if n_groups == n_prompts:
        means = gradients
    else:
        average = sparse.csr_array((share, (groups.prompt, np.arange(n_groups))), shape=(n_prompts, n_groups))
        means = average @ gradients
    total = means.sum(axis=0)
    dual = in_dual(total, signs)
    own_sq = inner_products(means, means, signs)

    slope = None
    if probes is not None:
        slope = probes.squares(gradients, share / n_prompts, groups.prompt)
        if surplus_sq is not None and exact_squares:
            row_share = share[groups.group] * weights**2 / n_prompts
            slope -= probes.squares(contributions, row_share, groups.prompt[groups.group])
    second = mean_statistic(mean_squares, slope)
    signal = Statistic(
        *_cross_mean(float(total @ dual), float(own_sq.sum()), means @ dual, means @ dual, own_sq),
        sketch=None if probes is None else probes.cross(means, means),
    )
    within = None
    if per_prompt.max() > 1:
        diagonal = np.zeros(len(weights)) if surplus_sq is None else weights**2 * surplus_sq
        within = _within_prompt(gradients - means[groups.prompt], diagonal, groups, probes, signs)
    return PromptMoments(means, total, own_sq, second, signal, within, signs)


def cross_signal(first: PromptMoments, second: PromptMoments, probes: SketchProbes | None = None) -> Statistic:
    """⟨E g, E h⟩ of two estimators without bias: the mean of ⟨ḡ_m, h̄_m'⟩ over different prompts."""
    signs = first.signs
    # Coordinates that only one of them has are those in which the other is 0.
    common = min(len(first.total), len(second.total))
    mine, theirs = first.means[:, :common], second.means[:, :common]
    own = inner_products(mine, theirs, signs)
    dual = in_dual(second.total[:common], signs)
    return Statistic(
        *_cross_mean(
            float(first.total[:common] @ dual),
            float(own.sum()),
            mine @ dual,
            theirs @ in_dual(first.total[:common], signs),
            own,
        ),
        sketch=None if probes is None else probes.cross(first.means, second.means),
    )


def in_dual(vectors: Float[np.ndarray, "*rows d"], signs: Float[np.ndarray, " features"] | None) -> np.ndarray:
    """What to multiply vectors with for inner products of a signature, given for these coordinates or more."""
    return vectors if signs is None else vectors * signs[: vectors.shape[-1]]


def inner_products(
    first: Float[np.ndarray, "rows d"],
    second: Float[np.ndarray, "rows d"],
    signs: Float[np.ndarray, " features"] | None,
) -> Float[np.ndarray, " rows"]:
    """⟨first_r, second_r⟩ of each row."""
    return np.einsum("rd,rd->r", first, in_dual(second, signs))


def _within_prompt(
    deviations: Float[np.ndarray, "groups d"],
    diagonal: Float[np.ndarray, " n"],
    groups: Groups,
    probes: SketchProbes | None,
    signs: Float[np.ndarray, " features"] | None,
) -> Statistic:
    """The variance between groups of one prompt, averaged over prompts that have two or more.

    The sketch's own squares on the diagonal are put right by ``diagonal``; how they move with the sketch is left in,
    which errs on the wide side.
    """
    per_prompt = groups.groups_per_prompt
    several = per_prompt > 1
    squares = np.bincount(groups.prompt, weights=inner_products(deviations, deviations, signs))
    repair = np.bincount(groups.prompt[groups.group], weights=diagonal) / per_prompt
    spread = np.where(several, squares / np.maximum(per_prompt - 1, 1) + repair, 0.0)
    n_several = several.sum()
    left = n_several - several
    replicates = np.divide(spread.sum() - spread, left, out=np.full(len(spread), np.nan), where=left > 0)
    shares = several[groups.prompt] / (np.maximum(per_prompt - 1, 1)[groups.prompt] * n_several)
    slope = None if probes is None else probes.squares(deviations, shares, groups.prompt)
    return Statistic(float(spread.sum() / n_several), replicates, slope)


def _cross_mean(
    product: float, diagonal: float, first: np.ndarray, second: np.ndarray, own: np.ndarray
) -> tuple[float, np.ndarray]:
    """Mean over ordered pairs of different prompts, on all prompts and without each."""
    m = len(own)
    pairs = product - diagonal
    left = pairs - first - second + 2.0 * own
    return pairs / (m * (m - 1.0)), left / ((m - 1.0) * (m - 2.0) or np.nan)
