"""Second moments of batch-level estimators, from batches of prompts dealt without replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from gradstats.stats.jackknife import Statistic
from gradstats.stats.variance.group_moments import Groups, PromptMoments
from gradstats.stats.variance.score_vectors import CombinedScores, Scores
from gradstats.stats.variance.u_statistic import inner_products, mean_over_pairs

#: Deals whose gradients are formed together, in one product.
DEALS_AT_ONCE = 32
#: Folds of deals, whose scatter is the error that a finite number of deals leaves.
N_FOLDS = 16

Deals = Int[np.ndarray, "k drawn"]


def shuffled_deals(
    rng: np.random.Generator, n_prompts: int, prompts_per_batch: int, n_deals: int
) -> Iterator[Int[np.ndarray, "k drawn"]]:
    """Yield deals of ⌊M/B⌋ disjoint batches of B prompts each, in random order, a few at a time."""
    drawn = n_prompts // prompts_per_batch * prompts_per_batch
    for start in range(0, n_deals, DEALS_AT_ONCE):
        size = min(DEALS_AT_ONCE, n_deals - start)
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

    Args:
        weights_of: positions within ``groups.rows`` → weights of that batch, (rows,) or (rows, T).
        fixed: the weights of all completions that are dealt alike, (n,), (n, T) or (3, n, T).
        scores: scores in the order of ``groups.rows``.
        groups: the split into groups.
        prompts_per_batch: B, at most half the prompts.
        rng: draws a group of each prompt.
        others: moments of estimators to take cross terms with.
        max_norm: the norm that the gradient of a batch is clipped to, :math:`G_j \min(1, c/‖G_j‖)`; None leaves it.
    """

    def __init__(
        self,
        weights_of: Callable[[Int[np.ndarray, " rows"]], np.ndarray],
        fixed: np.ndarray,
        scores: Scores | CombinedScores,
        groups: Groups,
        prompts_per_batch: int,
        rng: np.random.Generator,
        others: tuple[PromptMoments, ...] = (),
        max_norm: float | None = None,
    ):
        self._weights_of, self._fixed, self._scores, self._groups = weights_of, fixed, scores, groups
        self._size, self._rng, self._others, self._max_norm = prompts_per_batch, rng, others, max_norm
        self._n_clipped = 0
        self._shrinkage: float | None = None
        m = groups.n_prompts
        self._n_batches = m // prompts_per_batch
        self._first_group = np.searchsorted(groups.prompt, np.arange(m))
        self._members = np.split(np.arange(len(groups.group)), np.cumsum(groups.sizes)[:-1])
        # Row 0: second moment; row 1: signal; then crosses. By fold of deals: sums of values, and of their changes
        # without each prompt.
        self._values = np.zeros((2 + len(others), N_FOLDS))
        self._changes = np.zeros((2 + len(others), N_FOLDS, m))
        self._deals = np.zeros(N_FOLDS)
        self._kept, self._drawn = np.zeros(m), np.zeros(m)

    @property
    def n_deals(self) -> int:
        """Deals added so far."""
        return int(self._deals.sum())

    @property
    def clipped_share(self) -> float:
        """The share of dealt batches whose gradient was longer than the norm that it is clipped to."""
        return self._n_clipped / (self.n_deals * self._n_batches)

    @property
    def kept_share(self) -> Float[np.ndarray, " drawn"]:
        """The share of each prompt's drawn groups with any non-zero weight, of prompts that were drawn."""
        drawn = self._drawn > 0
        return self._kept[drawn] / self._drawn[drawn]

    def add(self, prompts: Deals) -> None:
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
        folds = (self.n_deals + np.arange(n_deals)) % N_FOLDS
        np.add.at(self._deals, folds, 1.0)
        places = (folds[:, None] * m + prompts).ravel()
        for row, ((value, without), (fixed_value, fixed_without)) in enumerate(zip(found, expected, strict=True)):
            # x_d, and x_{d(m)} − x_d for every prompt m of the batch left out, both less those of the fixed weights.
            difference = value - fixed_value
            change = np.repeat(without - fixed_without - difference[:, None], self._size, axis=1)
            np.add.at(self._values[row], folds, difference)
            self._changes[row] += np.bincount(places, change.ravel(), N_FOLDS * m).reshape(N_FOLDS, m)

    def added_to(self, closed: list[Statistic]) -> list[Statistic]:
        """Second moment of a batch's gradient, signal and crosses, given those under the fixed weights in closed form.

        Args:
            closed: E‖G‖², ‖E g‖², and ⟨E g, E h⟩ with each of the others.
        """
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
        self, prompts: Deals, rows: list[np.ndarray], weights: list[np.ndarray], max_norm: float | None
    ) -> list[tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k j"]]]:
        """Return each statistic in every deal, and without each of its batches."""
        gradients, surplus = self._scores.sums(rows, weights)
        shape = (len(prompts), self._n_batches, -1)
        average = _average_over_batches(prompts, self._size, self._groups.n_prompts)
        squares = inner_products(gradients, gradients, self._scores.signs) + surplus
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
        others = [(average @ other.means).reshape(shape) for other in self._others]
        pairs = [mean_over_pairs(gradients, second, self._scores.signs) for second in (gradients, *others)]
        return [_mean_without_each(squares), *pairs]

    @property
    def _scales(self) -> list[float]:
        """The factor of each statistic under the fixed weights times f."""
        factor = 1.0 if self._shrinkage is None else self._shrinkage
        return [factor**2, factor**2, *[factor] * len(self._others)]

    def _count_kept(self, prompts: Deals, chosen: Deals, rows: list[np.ndarray], weights: list[np.ndarray]) -> None:
        m = self._groups.n_prompts
        alive = np.zeros((len(prompts), self._groups.n_groups), dtype=bool)
        for place, (batch_rows, weight) in enumerate(zip(rows, weights, strict=True)):
            alive[place // self._n_batches, self._groups.group[batch_rows[weighted_rows(weight)]]] = True
        self._kept += np.bincount(prompts.ravel(), np.take_along_axis(alive, chosen, axis=1).ravel(), m)
        self._drawn += np.bincount(prompts.ravel(), minlength=m)


def of_rows(weights: np.ndarray, rows: Int[np.ndarray, " rows"]) -> np.ndarray:
    """Select the weights of some completions, from (n,), (n, T) or (3, n, T)."""
    return weights[:, rows] if weights.ndim == 3 else weights[rows]


def _average_over_batches(prompts: Deals, prompts_per_batch: int, m: int) -> sparse.csr_array:
    """Return the matrix that takes (M, D) means of prompts to the mean over the prompts of each batch."""
    # H_j = (1/B) Σ_{m in batch j} h̄_m.
    n_batches = prompts.size // prompts_per_batch
    entries = np.full(prompts.size, 1.0 / prompts_per_batch)
    places = (np.repeat(np.arange(n_batches), prompts_per_batch), prompts.ravel())
    return sparse.csr_array((entries, places), shape=(n_batches, m))


def _mean_without_each(values: Float[np.ndarray, "k j"]) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k j"]]:
    total = values.sum(axis=1, keepdims=True)
    n = values.shape[1]
    # (1/J) Σ_j x_j, and (Σ_j' x_j' − x_j)/(J − 1) without each.
    return total[:, 0] / n, (total - values) / (n - 1.0)


def weighted_rows(weights: np.ndarray) -> Bool[np.ndarray, " n"]:
    """Return which completions have any non-zero weight, from weights (n,), (n, T) or (3, n, T)."""
    nonzero = weights != 0
    return nonzero if weights.ndim == 1 else nonzero.any(axis=-1).reshape(-1, weights.shape[-2]).any(axis=0)
