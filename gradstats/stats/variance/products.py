r"""Everything that statistics need of large scores, from few readings of them.

With :math:`g_p = \sum_{i∈p} u_i S_i` the weighted sum of a prompt's completions under one of many weightings u,

- what stays within a prompt, such as :math:`⟨g_p, h_p⟩`, follows from the Gram matrix of its completions;
- what crosses prompts follows from :math:`A = \sum_p g_p` and the products :math:`⟨S_i, A⟩`;
- the error of a sketch of S follows from its products with random directions.

Weightings, and forms whose error is asked for, are collected until the first of them has to be known; then the scores
are read, a block at a time, for all of them together. What crosses prompts is multiplied in the type of the scores,
and summed over blocks in eight bytes; what stays within a prompt has eight bytes throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from gradstats.stats.jackknife import SharedError, Statistic
from gradstats.stats.variance.sketch_error import SketchError

#: Bytes of scores that are multiplied together: few enough for a cache, or many where the product is large.
FEW_BYTES, MANY_BYTES = 2**24, 2**27
#: Of so many numbers on, scores are multiplied in blocks; fewer are held as vectors.
FEWEST_NUMBERS = 2**24
#: Completions of a prompt up to which Gram matrices of prompts are small beside the scores.
_MOST_COMPLETIONS = 64
#: Rows in which the same forms are 0 are multiplied without these, where they are so many.
FEWEST_ALIKE = 256
#: Forms whose products with scores are held at once.
_MOST_FORMS = 16
#: Bytes of the coefficients of forms that wait to be multiplied together.
MOST_PENDING_BYTES = 2**28


@dataclass(frozen=True)
class PromptGrams:
    r"""The Gram matrix of each prompt's completions: what is quadratic in weighted sums of a few of them needs no more.

    A completion has a place among those of its prompt, 0, 1, …; column j of its row is its inner product with the
    completion at place j, and 0 where there is none.
    """

    products: Float[np.ndarray, "n most"]
    place: Int[np.ndarray, " n"]

    @classmethod
    def of(cls, scores: Float[np.ndarray, "n d"], prompts: Int[np.ndarray, " n"]) -> PromptGrams:
        """Multiply the scores of each prompt's completions, a prompt at a time, with sums of eight bytes.

        Args:
            scores: may be mapped from a file; no copy of all is made.
            prompts: the number of each completion's prompt.
        """
        order = np.argsort(prompts, kind="stable")
        counts = np.bincount(prompts)
        starts = np.cumsum(counts) - counts
        place = np.empty(len(prompts), dtype=np.int64)
        place[order] = np.arange(len(prompts)) - starts[prompts[order]]
        products = np.zeros((len(prompts), int(counts.max(initial=0))))
        for start, count in zip(starts, counts, strict=True):
            rows = order[start : start + count]
            values = scores[rows].astype(np.float64)
            products[rows, :count] = values @ values.T
        return cls(products, place)

    @property
    def squares(self) -> Float[np.ndarray, " n"]:
        """The squared norms."""
        return np.take_along_axis(self.products, self.place[:, None], axis=1)[:, 0]


@dataclass(eq=False)
class UnitSums:
    """The weighted sums of the completions of each prompt whose largest weight is 1, and what was read of them."""

    weights: Float[np.ndarray, " n"]
    n_prompts: int  # that the sums are over; all others have weight 0
    by_fold: Float[np.ndarray, "folds d"] = field(default_factory=lambda: np.zeros((0, 0)))  # sums of folds of prompts
    along: Float[np.ndarray, " n"] = field(default_factory=lambda: np.zeros(0))  # ⟨S_i, A⟩ with A the sum of all

    @property
    def is_read(self) -> bool:
        """Whether the products are known."""
        return len(self.along) > 0


@dataclass(frozen=True)
class WeightedSums:
    """The weighted sums of the completions of each prompt.

    Weights that are multiples of one another have one unit, so that what differs by a factor differs by no rounding.
    """

    products: ScoreProducts = field(repr=False)
    unit: UnitSums = field(repr=False)
    factor: float

    def scaled(self, factor: float) -> WeightedSums:
        """Return a multiple."""
        return WeightedSums(self.products, self.unit, self.factor * factor)

    def vectors(self, most: int | None = None) -> Float[np.ndarray, "m d"]:
        """Return the sums themselves, of all prompts or of the first few."""
        return self.products.vectors_of(self.factor * self.unit.weights, most)

    def among(self, inside: Bool[np.ndarray, " m"]) -> WeightedSums:
        """Return the sums of some prompts alone."""
        restricted = np.where(inside[self.products.prompt], self.unit.weights, 0.0)
        return self.products.sums_of(restricted, int(inside.sum())).scaled(self.factor)


class ScoreProducts:
    """Products of the weighted sums of n completions, in the order of their prompts, which are numbered from 0."""

    def __init__(
        self,
        scores: Float[np.ndarray, "all d"],  # read in blocks
        rows: Int[np.ndarray, " n"],  # of the scores, ordered by prompt
        prompt: Int[np.ndarray, " n"],  # ascending
        within: PromptGrams,  # of all scores
        error: SketchError | None,  # of the sketch; None where inner products are exact
        *,
        kept: bool = False,  # whether further questions will ask for more of the same products
    ):
        self.scores, self.rows, self.prompt, self.error, self.kept = scores, rows, prompt, error, kept
        self.n_prompts = int(prompt[-1]) + 1
        self.dtype = np.result_type(scores.dtype, np.float32)  # that scores are multiplied in
        self._products, self._place = within.products[rows], within.place[rows]
        self.squares = within.squares[rows]  # (n,) ‖S_i‖²
        bounds = np.array([0, self.n_prompts]) if error is None else error.bounds
        self._folds = [slice(*ends) for ends in pairwise(np.searchsorted(prompt, bounds).tolist())]
        self.prompts_of_folds = np.diff(bounds)
        self._sums = ScaleInvariantCache[UnitSums]()
        self._directions = np.zeros((0, 0))
        self.forms = Forms(self)
        self.splits: dict[tuple[bytes, ...], PooledProducts] = {}  # by places, groups and surplus squares
        self._crosses: dict[frozenset[int], Statistic] = {}

    def sums_of(self, weights: Float[np.ndarray, " n"], n_prompts: int | None = None) -> WeightedSums:
        """Return the sums under some weights: the same for the same weights, to be known with all others."""
        m = self.n_prompts if n_prompts is None else n_prompts
        unit, factor = self._sums.find(weights, lambda one: UnitSums(one, m), lambda known: known.n_prompts == m)
        return WeightedSums(self, unit, factor)

    def within(self, weights: Float[np.ndarray, " n"], unit: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return ⟨S_i, Σ_j w_j S_j⟩ with the sum over completions of the same unit, a prompt or a part of one."""
        most = self._products.shape[1]
        table = np.bincount(unit * most + self._place, weights, (int(unit.max()) + 1) * most).reshape(-1, most)
        return np.einsum("nk,nk->n", self._products, table[unit])

    def cross(
        self, first: WeightedSums, second: WeightedSums, inside: Bool[np.ndarray, " m"] | None = None
    ) -> Statistic:
        """Return the mean of ⟨g_p, h_p'⟩ over ordered pairs of different prompts, or of some that alone have weights.

        As :func:`gradstats.stats.variance.moments.mean_over_pairs`, from products.
        """
        key = frozenset((id(first.unit), id(second.unit)))
        if key not in self._crosses:
            self._crosses[key] = self._cross(first.unit, second.unit)
        found = self._crosses[key].scaled(first.factor * second.factor)
        return found if inside is None else replace(found, replicates=found.replicates[inside])

    def _cross(self, first: UnitSums, second: UnitSums) -> Statistic:
        self._read_sums()
        diagonal, forward, backward = (
            np.bincount(self.prompt, values, self.n_prompts)
            for values in (
                first.weights * self.within(second.weights, self.prompt),
                first.weights * second.along,
                second.weights * first.along,
            )
        )
        # ⟨A, B⟩ of the sums themselves: it has the digits that a small bias of a large signal needs.
        total = float(first.by_fold.sum(axis=0) @ second.by_fold.sum(axis=0))
        m, pairs = first.n_prompts, total - float(diagonal.sum())
        without = (pairs - forward - backward + 2.0 * diagonal) / ((m - 1.0) * (m - 2.0) or np.nan)
        error = None if self.error is None else self._form_of_cross(first, second, diagonal)
        return Statistic(pairs / (m * (m - 1.0)), without, error)

    def _form_of_cross(self, first: UnitSums, second: UnitSums, diagonal: Float[np.ndarray, " m"]) -> SharedError:
        # K = Σ_{p≠p'} (g_p h_p'ᵀ + h_p' g_pᵀ)/(2M(M−1)) of the M prompts of a fold: the row of completion i in
        # Σ_{p≠p'} g_p h_p'ᵀ Z is u_i (Σ_p' h_p'ᵀ Z − h_pᵀ Z).
        coefficients = np.zeros_like(self.along_directions, dtype=np.float64)
        for one, other in ((first, second), (second, first)):
            along = self.directions_of(other.weights, self.prompt, self.n_prompts)
            others = self.sum_by_fold(along)[self.fold_of_row] - along[self.prompt]
            coefficients += one.weights[:, None] * others
        # Folds are runs of all M prompts: the mean over their pairs is scaled to those that have weights.
        m, n, of_fold = self.n_prompts, first.n_prompts, self.prompts_of_folds
        scale = (m * (m - 1.0) / (n * (n - 1.0))) / (2.0 * of_fold * np.maximum(of_fold - 1.0, 1.0))
        products = np.einsum("fd,fd->f", first.by_fold, second.by_fold) - self.sum_by_fold(diagonal)
        return self.form(coefficients * scale[self.fold_of_row, None], 2.0 * scale * products)

    @property
    def along_directions(self) -> Float[np.ndarray, "n r"]:
        """The scores along the random directions of the sketch's error."""
        self._read_sums()
        return self._directions

    def directions_of(
        self, weights: Float[np.ndarray, " n"], unit: Int[np.ndarray, " n"], n_units: int
    ) -> Float[np.ndarray, "units r"]:
        """Return the weighted sums of each unit along the random directions."""
        places = (unit, np.arange(len(unit)))
        return scipy.sparse.csr_array((weights, places), shape=(n_units, len(unit))) @ self.along_directions

    def form(self, coefficients: Float[np.ndarray, "n r"], traces: Float[np.ndarray, " folds"]) -> SharedError:
        r"""Return the error of a quadratic form with matrix K, by fold :math:`K Z = \sum_i S_i c_i^T` and tr K."""
        return self.forms.add(coefficients, traces)

    def sum_by_fold(self, of_prompts: Float[np.ndarray, "m *others"]) -> Float[np.ndarray, "folds *others"]:
        """Return the sums over the prompts of each fold."""
        ends = np.cumsum(self.prompts_of_folds)
        return np.add.reduceat(of_prompts, ends - self.prompts_of_folds, axis=0)

    @cached_property
    def fold_of_row(self) -> Int[np.ndarray, " n"]:
        """The number of each completion's fold."""
        return np.repeat(np.arange(len(self._folds)), [rows.stop - rows.start for rows in self._folds])

    def blocks(
        self, dtype: Any, among: Bool[np.ndarray, " n"] | None = None, n_bytes: int = FEW_BYTES
    ) -> Iterator[tuple[int, Int[np.ndarray, " block"], Float[np.ndarray, "block d"]]]:
        """Yield the scores in blocks: the number of the fold, positions of completions, and their scores.

        All blocks are in the same memory, whose pages a new array would have to get from the system.
        """
        dim = self.scores.shape[1]
        step = max(1, n_bytes // (dim * np.dtype(dtype).itemsize))
        stored = np.empty((min(step, len(self.rows)), dim), dtype=self.scores.dtype)
        values = stored if stored.dtype == dtype else np.empty(stored.shape, dtype=dtype)
        for at, rows in enumerate(self._folds):
            places = np.arange(rows.start, rows.stop)
            if among is not None:
                places = places[among[rows]]
            for start in range(0, len(places), step):
                block = places[start : start + step]
                np.take(self.scores, self.rows[block], axis=0, out=stored[: len(block)], mode="clip")
                if values is not stored:
                    values[: len(block)] = stored[: len(block)]
                yield at, block, values[: len(block)]

    def _read_sums(self) -> None:
        """Read the sums by fold, then the products of all scores with their totals and with random directions."""
        pending = [one for one in self._sums.found if not one.is_read]
        is_first = self.error is not None and not len(self._directions)
        if not (pending or is_first):
            return
        weights = np.array([one.weights for one in pending], dtype=self.dtype).reshape(len(pending), -1)
        by_fold = np.zeros((len(self._folds), len(pending), self.scores.shape[1]))
        if pending:
            for fold, block, x in self.blocks(self.dtype):
                by_fold[fold] += weights[:, block] @ x
        directions = self.error.directions.T if self.error is not None and is_first else np.zeros((0, by_fold.shape[2]))
        beside = np.concatenate([by_fold.sum(axis=0), directions]).astype(self.dtype)
        along = np.empty((len(beside), len(self.rows)))
        for _, block, x in self.blocks(self.dtype):
            along[:, block] = beside @ x.T
        for at, one in enumerate(pending):
            one.by_fold, one.along = by_fold[:, at].copy(), along[at].copy()
        if is_first:
            self._directions = along[len(pending) :].T.copy()

    def vectors_of(self, weights: Float[np.ndarray, " n"], most: int | None = None) -> Float[np.ndarray, "m d"]:
        """Return the weighted sums of prompts as vectors, of all or of the first few."""
        m = self.n_prompts if most is None else min(most, self.n_prompts)
        found = np.zeros((m, self.scores.shape[1]))
        for _, block, x in self.blocks(np.float64, self.prompt < m):
            first, last = self.prompt[block[[0, -1]]]
            places = (self.prompt[block] - first, np.arange(len(block)))
            found[first : last + 1] += (
                scipy.sparse.csr_array((weights[block], places), shape=(last - first + 1, len(x))) @ x
            )
        return found


#: Weights whose quotients differ by less are multiples of one another; of a sum along random numbers by less than this.
_EQUAL, _NEARLY = 1e-12, 1e-9

Found = TypeVar("Found")


class ScaleInvariantCache(Generic[Found]):
    """What is known of weights, found again for all their multiples."""

    def __init__(self) -> None:
        self.found: list[Found] = []
        self._units: list[np.ndarray] = []
        self._marks: list[float] = []

    def find(
        self,
        weights: Float[np.ndarray, " n"],
        make: Callable[[Float[np.ndarray, " n"]], Found],
        fits: Callable[[Found], bool] = lambda known: True,
    ) -> tuple[Found, float]:
        """Return what belongs to the weights divided by their largest one, and that one."""
        # The first of those that are largest up to rounding, whose signs may differ.
        sizes = np.abs(weights)
        largest = float(weights[np.argmax(sizes >= (1.0 - _NEARLY) * sizes.max())]) or 1.0
        unit = weights / largest
        mark = float(unit @ np.cos(np.arange(len(unit))))
        for known, other, other_mark in zip(self.found, self._units, self._marks, strict=True):
            near = abs(mark - other_mark) <= _NEARLY * len(unit) and fits(known)
            if near and np.allclose(unit, other, rtol=_EQUAL, atol=_EQUAL / 100.0):
                return known, largest
        self.found.append(make(unit))
        self._units.append(unit)
        self._marks.append(mark)
        return self.found[-1], largest


class Forms:
    r"""Quadratic forms of the same sketch, and how their errors covary over sketches.

    As :class:`gradstats.stats.variance.sketch_error.SketchError` states, the covariance of two forms is the mean of
    :math:`⟨L_f, L'_{f'}⟩` over pairs of different folds of prompts, with :math:`L_f = K_f Z - \frac{\mathrm{tr} K_f}{D}
    Z`. A form is given by the coefficients c of :math:`K_f Z = \sum_{i∈f} S_i c_i^T`.
    """

    def __init__(self, products: ScoreProducts):
        self._products: ScoreProducts | None = products
        self._pending: list[tuple[np.ndarray, np.ndarray]] = []
        self._slopes: list[np.ndarray] = []  # (folds, r, D) of each form
        self._covariance = np.zeros((0, 0))

    def add(self, coefficients: Float[np.ndarray, "n r"], traces: Float[np.ndarray, " folds"]) -> SharedError:
        """Add a form, to be known with all others."""
        if self._products is None:
            raise RuntimeError("the scores that errors are estimated from were released")
        self._pending.append((coefficients.astype(self._products.dtype), traces))
        added = SharedError(self, {len(self._covariance) + len(self._pending) - 1: 1.0})
        if len(self._pending) * self._pending[0][0].nbytes > MOST_PENDING_BYTES:
            self._evaluate()
        return added

    def covariance(self, first: Mapping[int, float], second: Mapping[int, float]) -> float:
        """Return the covariance that the sketch adds to two combinations of forms."""
        if self._pending and max(*first, *second) >= len(self._covariance):
            self._evaluate()
        part = self._covariance[np.ix_([*first], [*second])]
        return float(np.array([*first.values()]) @ part @ np.array([*second.values()]))

    def release(self) -> None:
        """Forget the scores and what only further forms would need; covariances stay known."""
        if self._pending:
            self._evaluate()
        self._products = None
        self._slopes = []

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: without the scores."""
        if self._pending:
            self._evaluate()
        return self.__dict__ | {"_products": None, "_slopes": []}

    def _evaluate(self) -> None:
        assert self._products is not None
        new = self._multiplied(self._products)
        self._pending.clear()
        before = len(self._slopes)
        self._slopes += list(new)
        found = np.zeros((len(self._slopes), len(new)))
        n_folds, n_directions, _ = self._slopes[0].shape
        for at in range(n_directions):
            every = np.stack([one[:, at] for one in self._slopes], dtype=np.float64)
            total = every.sum(axis=1)
            if n_folds == 1:
                found += total @ total[before:].T
                continue
            within = sum(every[:, fold] @ every[before:, fold].T for fold in range(n_folds))
            found += (total @ total[before:].T - within) / (n_folds * (n_folds - 1))
        covariance = np.zeros((len(self._slopes), len(self._slopes)))
        covariance[:before, :before] = self._covariance
        covariance[:, before:], covariance[before:, :] = found, found.T
        self._covariance = covariance

    def _multiplied(self, products: ScoreProducts) -> Float[np.ndarray, "new folds r d"]:
        """Return the slopes of pending forms: one product of scores and coefficients for all that a row enters."""
        error = products.error
        assert error is not None
        coefficients = [one for one, _ in self._pending]
        n_forms, n_directions = len(coefficients), coefficients[0].shape[1]
        dim, dtype = products.scores.shape[1], products.dtype
        slopes = np.empty((n_forms, len(products.prompts_of_folds), n_directions, dim), dtype=dtype)
        directions = (error.directions / error.dim).T
        for at, (_, traces) in enumerate(self._pending):
            slopes[at] = -traces[:, None, None] * directions
        product = np.empty((min(n_forms, _MOST_FORMS) * n_directions, dim), dtype=dtype)
        for forms, rows in _rows_alike(np.stack([one.any(axis=1) for one in coefficients])):
            for fold, block, x in products.blocks(dtype, rows, MANY_BYTES):
                for first in range(0, len(forms), _MOST_FORMS):
                    some = forms[first : first + _MOST_FORMS]
                    stacked = np.concatenate([coefficients[form][block].T for form in some])
                    of_forms = np.matmul(stacked, x, out=product[: len(stacked)]).reshape(len(some), n_directions, dim)
                    for form, values in zip(some, of_forms, strict=True):
                        slopes[form, fold] += values
        return slopes


def _rows_alike(nonzero: Bool[np.ndarray, "forms n"]) -> list[tuple[Int[np.ndarray, " some"], Bool[np.ndarray, " n"]]]:
    """Return rows that enter the same forms, with these forms; rows that are like few others enter all of theirs."""
    patterns, which, counts = np.unique(nonzero, axis=1, return_inverse=True, return_counts=True)
    which, many = which.reshape(-1), counts >= FEWEST_ALIKE
    found = [(np.flatnonzero(patterns[:, at]), which == at) for at in np.flatnonzero(many)]
    if not many.all():
        found.append((np.flatnonzero(patterns[:, ~many].any(axis=1)), ~many[which]))
    return [(forms, rows) for forms, rows in found if len(forms)]


@dataclass(frozen=True)
class PooledProducts:
    """The completions of one split, in the order of their groups, among those whose products are shared."""

    products: ScoreProducts
    places: Int[np.ndarray, " n"]  # of the completions among those of ``products``
    group: Int[np.ndarray, " n"]  # of each completion
    share: Float[np.ndarray, " n"]  # 1/K, of the group in the mean over the K groups of its prompt
    sketched: bool
    surplus_sq: Float[np.ndarray, " n"] | None  # exact ‖S_i‖² less the sketch's; None when unknown or exact
    known: ScaleInvariantCache[Any] = field(
        default_factory=ScaleInvariantCache, repr=False
    )  # moments by the weights that they are of
    # What :class:`gradstats.stats.variance.scores.Scores` has beside it and these have not.
    tokens: None = None
    probed: None = None
    combined: None = None
    signs: None = None

    def among_all(self, values: np.ndarray) -> np.ndarray:
        """Return values of these completions in the place of each among all; 0 for those that are in no group."""
        result = np.zeros(len(self.products.rows), dtype=values.dtype)
        result[self.places] = values
        return result

    def means(self, weights: Float[np.ndarray, " n"]) -> WeightedSums:
        """Return the mean gradient of each prompt's groups, to be known together with all others."""
        return self.products.sums_of(self.among_all(self.share * weights))

    def sums(
        self, rows: list[np.ndarray], weights: list[np.ndarray]
    ) -> tuple[Float[np.ndarray, "sums d"], Float[np.ndarray, " sums"]]:
        """Return weighted sums of some completions, one for each entry of the lists, and what to add to squares."""
        which = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        flat, entries = np.concatenate(rows), np.concatenate(weights)
        surplus = np.zeros(len(rows))
        if self.surplus_sq is not None:
            surplus = np.bincount(which, entries**2 * self.surplus_sq[flat], len(rows))
        products = self.products
        gather = scipy.sparse.csr_array((entries, (which, self.places[flat])), shape=(len(rows), len(products.rows)))
        found = np.zeros((len(rows), products.scores.shape[1]))
        for _, block, x in products.blocks(np.float64):
            found += gather[:, block] @ x
        return found, surplus


def use_blocked_products(scores: np.ndarray, group_sizes: Int[np.ndarray, " prompts"]) -> bool:
    """Whether scores are so large that they are multiplied in blocks."""
    return scores.ndim == 2 and scores.size >= FEWEST_NUMBERS and int(group_sizes.max()) <= _MOST_COMPLETIONS
