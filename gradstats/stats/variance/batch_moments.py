"""Second moments of batch-level estimators, from batches of prompts drawn without replacement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from gradstats.stats.jackknife import Statistic
from gradstats.stats.variance.group_moments import Groups, PromptMoments
from gradstats.stats.variance.score_vectors import Scores
from gradstats.stats.variance.sketch_error import SketchError
from gradstats.stats.variance.u_statistic import inner_products, mean_over_pairs

#: Deals whose gradients are formed together, in one product.
DEALS_AT_ONCE = 32


@dataclass(frozen=True)
class BatchMoments:
    """Second moments of the gradient of a batch, per group, so that they compare with `PromptMoments`.

    Attributes:
        trace_cov: B·tr Cov of the gradient of a batch of B prompts, one group each.
        signal: ‖E ĝ‖² without bias, from pairs of disjoint batches.
        crosses: ⟨E ĝ, E h⟩ with each of the other estimators' moments, from disjoint batches.
        kept_share: (M,) share of each prompt's drawn groups with any non-zero weight.
    """

    trace_cov: Statistic
    signal: Statistic
    crosses: tuple[Statistic, ...]
    kept_share: Float[np.ndarray, " m"]


def batch_moments(
    weights_of: Callable[[Int[np.ndarray, " rows"]], np.ndarray],
    scores: Scores,
    groups: Groups,
    prompts_per_batch: int,
    n_resamples: int,
    rng: np.random.Generator,
    others: tuple[PromptMoments, ...] = (),
    sketch_error: SketchError | None = None,
) -> BatchMoments:
    r"""Deal the prompts into disjoint batches many times and average over the deals.

    A deal shuffles the M prompts (one group of each, drawn at random where there are several) into
    J = ⌊M/B⌋ disjoint batches, which are independent. With G_j the gradient of batch j,

    .. math:: ‖E\,\hat g‖² = E\Big[\frac{1}{J(J-1)}\sum_{j≠j'}⟨G_j, G_{j'}⟩\Big], \qquad
        \mathrm{tr\,Cov} = B\,\Big(E\Big[\frac1J\sum_j‖G_j‖²\Big] - ‖E\,\hat g‖²\Big).

    Drawing without replacement matters: a prompt drawn twice would leak a sample's own reward into a leave-one-out
    baseline.

    The replicate without prompt m leaves out, in every deal, the batch that holds m: averaged over the deals
    the other prompts of that batch cancel, and the change, times M(J−1)/(J(M−1)), is the jackknife's.

    Args:
        weights_of: positions within ``groups.rows`` → weights of that batch, (rows,) or (rows, T).
        scores: scores in the order of ``groups.rows``.
        groups: the split into groups.
        prompts_per_batch: B, at most half the prompts.
        n_resamples: how many deals.
        rng: source of randomness.
        others: moments of estimators to take cross terms with.
        sketch_error: for sketched scores, estimates the sketch's error.
    """
    m = groups.n_prompts
    n_batches = m // prompts_per_batch
    first_group = np.searchsorted(groups.prompt, np.arange(m))
    members = np.split(np.arange(len(groups.group)), np.cumsum(groups.sizes)[:-1])
    # Row 0: second moment; row 1: signal; then crosses. Their values by deal, and their change without each prompt.
    values = np.zeros((2 + len(others), n_resamples))
    changes = np.zeros((2 + len(others), m))
    kept, drawn = np.zeros(m), np.zeros(m)
    slopes = _SketchSlopes(scores, n_batches, n_resamples, len(others), sketch_error)
    for start in range(0, n_resamples, DEALS_AT_ONCE):
        deals = range(start, min(start + DEALS_AT_ONCE, n_resamples))
        prompts = np.stack([rng.permutation(m)[: n_batches * prompts_per_batch] for _ in deals])
        chosen = first_group[prompts] + rng.integers(0, groups.groups_per_prompt[prompts])
        batches = np.sort(chosen.reshape(-1, prompts_per_batch), axis=1)
        rows = [np.concatenate([members[group] for group in batch]) for batch in batches]
        # G_j = (1/B) Σ_{i in batch j} w_i S_i.
        weights = [weights_of(batch_rows) / prompts_per_batch for batch_rows in rows]
        gradients, surplus = scores.sums(rows, weights)
        if weights[0].ndim == 1 and scores.surplus_sq is not None:
            slopes.count_diagonal(np.concatenate(rows), np.concatenate(weights))
        alive = np.zeros((len(deals), groups.n_groups), dtype=bool)
        for place, (batch_rows, weight) in enumerate(zip(rows, weights, strict=True)):
            alive[place // n_batches, groups.group[batch_rows[weighted_rows(weight)]]] = True
        kept += _count(prompts, np.take_along_axis(alive, chosen, axis=1), m)
        drawn += _count(prompts, np.ones(prompts.shape), m)
        shape = (len(deals), n_batches, -1)
        average = _average_over_batches(prompts, prompts_per_batch, m)
        others_gradients = [(average @ other.means).reshape(shape) for other in others]
        squares = (inner_products(gradients, gradients, scores.signs) + surplus).reshape(shape[:2])
        gradients = gradients.reshape(shape)
        terms = [_mean_without_each(squares)]
        terms += [mean_over_pairs(gradients, second, scores.signs) for second in (gradients, *others_gradients)]
        for row, (value, without) in enumerate(terms):
            values[row, deals] = value
            change = np.repeat(without - value[:, None], prompts_per_batch, axis=1)
            changes[row] += _count(prompts, change, m)
        slopes.add(gradients, others_gradients)
    correction = m * (n_batches - 1.0) / (n_batches * (m - 1.0))
    means = values.mean(axis=1)
    replicates = means[:, None] + changes * (correction / n_resamples)
    second, signal, *crosses = (
        Statistic(float(mean), row, slope)
        for mean, row, slope in zip(means, replicates, slopes.averages(), strict=True)
    )
    return BatchMoments(
        trace_cov=(second - signal).scaled(float(prompts_per_batch)),
        signal=signal,
        crosses=tuple(crosses),
        kept_share=kept / np.maximum(drawn, 1.0),
    )


class _SketchSlopes:
    """Accumulates, over deals, how each statistic changes with the sketch's error."""

    def __init__(
        self, scores: Scores, n_batches: int, n_resamples: int, n_others: int, sketch_error: SketchError | None
    ):
        self._scores, self._sketch_error = scores, sketch_error
        self._n_batches, self._n_resamples = n_batches, n_resamples
        self._diagonal = np.zeros(len(scores.sequence))
        self._sums: list[np.ndarray | float] = [0.0] * (2 + n_others)

    def count_diagonal(self, rows: Int[np.ndarray, " rows"], weights: Float[np.ndarray, " rows"]) -> None:
        share = weights**2 / (self._n_batches * self._n_resamples)
        self._diagonal += _count(rows, share, len(self._diagonal))

    def add(self, gradients: Float[np.ndarray, "k j d"], others: list[np.ndarray]) -> None:
        if self._sketch_error is None:
            return
        flat = gradients.reshape(-1, gradients.shape[2])
        shares = np.full(len(flat), 1.0 / (self._n_batches * self._n_resamples))
        self._sums[0] += self._sketch_error.whole_squares(flat, shares)
        share_of_deals = len(gradients) / self._n_resamples
        for place, second in enumerate([gradients, *others], start=1):
            self._sums[place] += self._sketch_error.mean_cross(gradients, second) * share_of_deals

    def averages(self) -> list[np.ndarray | None]:
        if self._sketch_error is None:
            return [None] * len(self._sums)
        if self._scores.surplus_sq is not None:
            # Exact squares on the diagonal carry none of the sketch's error.
            self._sums[0] -= self._sketch_error.whole_squares(self._scores.vectors, self._diagonal)
        return [self._sketch_error.in_every_fold(np.asarray(total)) for total in self._sums]


def _average_over_batches(prompts: Int[np.ndarray, "k drawn"], prompts_per_batch: int, m: int) -> sparse.csr_array:
    """The matrix that takes (M, D) means of prompts to the mean over the prompts of each batch."""
    n_batches = prompts.size // prompts_per_batch
    entries = np.full(prompts.size, 1.0 / prompts_per_batch)
    places = (np.repeat(np.arange(n_batches), prompts_per_batch), prompts.ravel())
    return sparse.csr_array((entries, places), shape=(n_batches, m))


def _count(places: np.ndarray, shares: np.ndarray, n: int) -> Float[np.ndarray, " n"]:
    return np.bincount(places.ravel(), weights=np.asarray(shares, dtype=np.float64).ravel(), minlength=n)


def _mean_without_each(values: Float[np.ndarray, "k j"]) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k j"]]:
    total = values.sum(axis=1, keepdims=True)
    n = values.shape[1]
    return total[:, 0] / n, (total - values) / (n - 1.0)


def weighted_rows(weights: np.ndarray) -> Bool[np.ndarray, " n"]:
    """Which completions have any non-zero weight, of weights as `Scores.weighted` takes them."""
    nonzero = weights != 0
    return nonzero if weights.ndim == 1 else nonzero.any(axis=-1).reshape(-1, weights.shape[-2]).any(axis=0)
