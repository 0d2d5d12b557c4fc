"""Second moments of estimators that look across groups, from batches of prompts without replacement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from gradstats.stats.jackknife import Statistic
from gradstats.stats.variance.group_moments import Groups, PromptMoments, in_dual, inner_products
from gradstats.stats.variance.score_vectors import Scores
from gradstats.stats.variance.sketch_error import SketchProbes

#: Deals whose gradients are formed together, in one product.
DEALS_AT_ONCE = 32


@dataclass(frozen=True)
class BatchMoments:
    """What batches leave behind, in units of one group so that it compares with `PromptMoments`.

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
    probes: SketchProbes | None = None,
) -> BatchMoments:
    r"""Deals the prompts into disjoint batches, again and again, and averages what each deal says.

    A deal shuffles the M prompts (one group of each, drawn at random where there are several) into
    J = ⌊M/B⌋ disjoint batches, which are independent: with G_j the gradient of batch j, ‖E ĝ‖² is the mean of
    ⟨G_j, G_j'⟩ over different batches and tr Cov the mean of ‖G_j‖² less that. Drawing without replacement
    matters: a prompt that came twice would leak a sample's own reward into a leave-one-out baseline.

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
        probes: for sketches, the directions that price the sketch's error.
    """
    m = groups.n_prompts
    n_batches = m // prompts_per_batch
    first_group = np.searchsorted(groups.prompt, np.arange(m))
    members = np.split(np.arange(len(groups.group)), np.cumsum(groups.sizes)[:-1])
    # Row 0: second moment; row 1: signal; then crosses. What each deal says, and what leaving a prompt out changes.
    values = np.zeros((2 + len(others), n_resamples))
    moved = np.zeros((2 + len(others), m))
    kept, drawn = np.zeros(m), np.zeros(m)
    sketch = _SketchSums(scores, n_batches, n_resamples, len(others), probes)
    for start in range(0, n_resamples, DEALS_AT_ONCE):
        deals = range(start, min(start + DEALS_AT_ONCE, n_resamples))
        prompts = np.stack([rng.permutation(m)[: n_batches * prompts_per_batch] for _ in deals])
        chosen = first_group[prompts] + rng.integers(0, groups.groups_per_prompt[prompts])
        parts = np.sort(chosen.reshape(-1, prompts_per_batch), axis=1)
        rows = [np.concatenate([members[group] for group in part]) for part in parts]
        weights = [weights_of(own) / prompts_per_batch for own in rows]
        gradients, surplus = scores.sums(rows, weights)
        if weights[0].ndim == 1 and scores.surplus_sq is not None:
            sketch.count_diagonal(np.concatenate(rows), np.concatenate(weights))
        alive = np.zeros((len(deals), groups.n_groups), dtype=bool)
        for place, (row, own) in enumerate(zip(rows, weights, strict=True)):
            alive[place // n_batches, groups.group[row[weighted_rows(own)]]] = True
        kept += _count(prompts, np.take_along_axis(alive, chosen, axis=1), m)
        drawn += _count(prompts, np.ones(prompts.shape), m)
        member = sparse.csr_array(
            (
                np.full(prompts.size, 1.0 / prompts_per_batch),
                (np.repeat(np.arange(len(rows)), prompts_per_batch), prompts.ravel()),
            ),
            shape=(len(rows), m),
        )
        shape = (len(deals), n_batches, -1)
        theirs = [(member @ other.means).reshape(shape) for other in others]
        squares = (inner_products(gradients, gradients, scores.signs) + surplus).reshape(shape[:2])
        gradients = gradients.reshape(shape)
        terms = [_mean_without_each(squares)]
        terms += [_pairs_without_each(gradients, their, scores.signs) for their in (gradients, *theirs)]
        for row, (value, without) in enumerate(terms):
            values[row, deals] = value
            change = np.repeat(without - value[:, None], prompts_per_batch, axis=1)
            moved[row] += _count(prompts, change, m)
        sketch.add(gradients, theirs)
    correction = m * (n_batches - 1.0) / (n_batches * (m - 1.0))
    means = values.mean(axis=1)
    replicates = means[:, None] + moved * (correction / n_resamples)
    second, signal, *crosses = (
        Statistic(float(mean), row, slope) for mean, row, slope in zip(means, replicates, sketch.slopes(), strict=True)
    )
    return BatchMoments(
        trace_cov=(second - signal).scaled(float(prompts_per_batch)),
        signal=signal,
        crosses=tuple(crosses),
        kept_share=kept / np.maximum(drawn, 1.0),
    )


class _SketchSums:
    """Accumulates, over deals, how each statistic moves with the sketch's error."""

    def __init__(self, scores: Scores, n_batches: int, n_resamples: int, n_others: int, probes: SketchProbes | None):
        self._scores, self._probes = scores, probes
        self._n_batches, self._n_resamples = n_batches, n_resamples
        self._diagonal = np.zeros(len(scores.sequence))
        self._sums: list[np.ndarray | float] = [0.0] * (2 + n_others)

    def count_diagonal(self, rows: Int[np.ndarray, " rows"], weights: Float[np.ndarray, " rows"]) -> None:
        share = weights**2 / (self._n_batches * self._n_resamples)
        self._diagonal += _count(rows, share, len(self._diagonal))

    def add(self, gradients: Float[np.ndarray, "k j d"], theirs: list[np.ndarray]) -> None:
        if self._probes is None:
            return
        flat = gradients.reshape(-1, gradients.shape[2])
        share = np.full(len(flat), 1.0 / (self._n_batches * self._n_resamples))
        self._sums[0] += self._probes.whole_squares(flat, share)
        part = len(gradients) / self._n_resamples
        for place, their in enumerate([gradients, *theirs], start=1):
            self._sums[place] += self._probes.mean_cross(gradients, their) * part

    def slopes(self) -> list[np.ndarray | None]:
        if self._probes is None:
            return [None] * len(self._sums)
        if self._scores.surplus_sq is not None:
            self._sums[0] -= self._probes.whole_squares(self._scores.vectors, self._diagonal)
        return [self._probes.in_every_fold(np.asarray(total)) for total in self._sums]


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


def _pairs_without_each(
    first: Float[np.ndarray, "k j d"], second: Float[np.ndarray, "k j e"], signs: np.ndarray | None
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k j"]]:
    """Mean of ⟨first_j, second_j'⟩ over different batches of a deal, on all and without each (NaN for two batches)."""
    # Coordinates that only one of them has are those in which the other is 0.
    common = min(first.shape[2], second.shape[2])
    gram = first[..., :common] @ in_dual(second[..., :common], signs).transpose(0, 2, 1)
    n = gram.shape[1]
    own = np.einsum("kjj->kj", gram)
    pairs = gram.sum(axis=(1, 2)) - own.sum(axis=1)
    left = pairs[:, None] - gram.sum(axis=1) - gram.sum(axis=2) + 2.0 * own
    return pairs / (n * (n - 1.0)), left / ((n - 1.0) * (n - 2.0) or np.nan)
