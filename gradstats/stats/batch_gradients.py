"""Second moments of estimators that look across groups, from batches of prompts without replacement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from gradstats.stats.group_gradients import Groups, PromptMoments, in_dual, inner_products
from gradstats.stats.jackknife import Statistic
from gradstats.stats.scores import Scores
from gradstats.stats.sketch_error import SketchProbes


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
        weights_of: positions within ``groups.rows`` → weights of that batch, as `Scores.weighted` takes them.
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
    sketch = _SketchSums(scores, prompts_per_batch, n_batches, n_resamples, len(others), probes)
    for deal in range(n_resamples):
        prompts = rng.permutation(m)[: n_batches * prompts_per_batch]
        chosen = first_group[prompts] + rng.integers(0, groups.groups_per_prompt[prompts])
        batch_of = np.repeat(np.arange(n_batches), prompts_per_batch)
        rows = [
            np.concatenate([members[group] for group in np.sort(part)])
            for part in chosen.reshape(n_batches, prompts_per_batch)
        ]
        weights = [weights_of(own) / prompts_per_batch for own in rows]
        gradients, surplus = scores.sums(rows, weights)
        alive = np.zeros(groups.n_groups, dtype=bool)
        for j in range(n_batches):
            if weights[j].ndim == 1 and scores.surplus_sq is not None:
                sketch.count_diagonal(rows[j], weights[j])
            alive[groups.group[rows[j][weighted_rows(weights[j])]]] = True
        kept[prompts] += alive[chosen]
        drawn[prompts] += 1
        member = sparse.csr_array(
            (np.full(len(prompts), 1.0 / prompts_per_batch), (batch_of, prompts)), shape=(n_batches, m)
        )
        theirs = [member @ other.means for other in others]
        squares = inner_products(gradients, gradients, scores.signs)
        terms = [_mean_without_each(squares + surplus)]
        terms += [_pairs_without_each(gradients, their, scores.signs) for their in (gradients, *theirs)]
        for row, (value, without) in enumerate(terms):
            values[row, deal] = value
            moved[row, prompts] += (without - value)[batch_of]
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

    def __init__(
        self,
        scores: Scores,
        prompts_per_batch: int,
        n_batches: int,
        n_resamples: int,
        n_others: int,
        probes: SketchProbes | None,
    ):
        self._scores, self._probes = scores, probes
        self._n_batches, self._n_resamples = n_batches, n_resamples
        self._diagonal = np.zeros(len(scores.sequence))
        self._sums: list[np.ndarray | float] = [0.0] * (2 + n_others)

    def count_diagonal(self, rows: Int[np.ndarray, " rows"], weights: Float[np.ndarray, " rows"]) -> None:
        self._diagonal[rows] += weights**2 / (self._n_batches * self._n_resamples)

    def add(self, gradients: np.ndarray, theirs: list[np.ndarray]) -> None:
        if self._probes is None:
            return
        share = np.full(self._n_batches, 1.0 / (self._n_batches * self._n_resamples))
        self._sums[0] += self._probes.whole_squares(gradients, share)
        for place, their in enumerate([gradients, *theirs], start=1):
            self._sums[place] += self._probes.whole_cross(gradients, their) / self._n_resamples

    def slopes(self) -> list[np.ndarray | None]:
        if self._probes is None:
            return [None] * len(self._sums)
        if self._scores.surplus_sq is not None:
            self._sums[0] -= self._probes.whole_squares(self._scores.vectors, self._diagonal)
        return [self._probes.in_every_fold(np.asarray(total)) for total in self._sums]


def _mean_without_each(values: Float[np.ndarray, " j"]) -> tuple[float, np.ndarray]:
    total = values.sum()
    return float(total / len(values)), (total - values) / (len(values) - 1.0)


def weighted_rows(weights: np.ndarray) -> Bool[np.ndarray, " n"]:
    """Which completions have any non-zero weight, of weights as `Scores.weighted` takes them."""
    nonzero = weights != 0
    return nonzero if weights.ndim == 1 else nonzero.any(axis=-1).reshape(-1, weights.shape[-2]).any(axis=0)


def _pairs_without_each(
    first: Float[np.ndarray, "j d"], second: Float[np.ndarray, "j e"], signs: np.ndarray | None
) -> tuple[float, np.ndarray]:
    """Mean of ⟨first_j, second_j'⟩ over different batches, on all and without each (NaN for two batches)."""
    # Coordinates that only one of them has are those in which the other is 0.
    common = min(first.shape[1], second.shape[1])
    gram = first[:, :common] @ in_dual(second[:, :common], signs).T
    n = len(gram)
    pairs = gram.sum() - np.trace(gram)
    left = pairs - gram.sum(axis=0) - gram.sum(axis=1) + 2.0 * np.diag(gram)
    return float(pairs / (n * (n - 1.0))), left / ((n - 1.0) * (n - 2.0) or np.nan)
