"""Scores of completions and of their tokens, exact, sketched or along random probes, and weighted sums of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from gradstats.config.options import MEASURE_PROBES, how_to_set
from gradstats.estimators import Batch
from gradstats.estimators.baselines.token_baseline import logit_energy
from gradstats.measurement.measurement import Measurement

# Weights that were estimated from probes need three disjoint thirds of them: one for each side of a product, and one
# for the product itself. The influence of a probe on them follows from leaving out one block of a third at a time.
_N_THIRDS = 3
_MOST_BLOCKS = 10
_FEWEST_PROBES = 2 * _N_THIRDS


def probe_thirds(n_probes: int) -> list[Int[np.ndarray, " probes"]]:
    """Return three disjoint thirds of the probes."""
    return np.array_split(np.arange(n_probes), _N_THIRDS)


def probe_blocks(n_probes: int) -> list[list[Int[np.ndarray, " probes"]]]:
    """Return the blocks that each third is divided into, at most ten."""
    thirds = probe_thirds(n_probes)
    return [np.array_split(third, min(len(third), _MOST_BLOCKS)) if len(third) else [] for third in thirds]


@dataclass(frozen=True)
class ProbedTokens:
    r"""The token scores of n completions, projected on random probes; the heaviest ones measured exactly.

    A weighted sum is split, for any c that is not chosen from the probes, into

    .. math:: \sum_t w_t s_t = \underbrace{c S + \sum_{h\ \mathrm{heavy}} (w_h - c) s_h}_{Z}
        + \underbrace{\sum_{t\ \mathrm{light}} (w_t - c) s_t}_{L}

    Z is known by sketches, and L is small when c is a typical weight of the light tokens; with
    :math:`P_k = ⟨\sum_t w_t s_t, v_k⟩` and :math:`P^Z_k = ⟨Z, v_k⟩` along K isotropic probes, inner products are

    .. math:: ⟨a, b⟩ ≈ ⟨Z_a, Z_b⟩ + \frac{1}{K}\sum_k (P_{a,k} P_{b,k} - P^Z_{a,k} P^Z_{b,k}),

    without bias: probes estimate only what the sketches do not hold. So a weighted sum is represented by
    (Z, P/√K, P^Z/√K), with inner products of signature (+, +, −).

    Weights that were themselves estimated from the probes (energies, cross products) would be correlated with P, and
    their noise would count as variance of the estimator. They are therefore computed separately from each of three
    thirds of the probes, and products are averaged over ⟨a with weights of one third, b with weights of another⟩ along
    the probes of the remaining one. With :math:`x^{f}` the sum under the weights of third f this needs the mean
    :math:`\bar x` and, with negative sign, the deviations from it: :math:`\frac16\sum_{f≠f'}⟨x^f, y^{f'}⟩ =
    ⟨\bar x, \bar y⟩ - \frac16\sum_f ⟨x^f - \bar x, y^f - \bar y⟩`. Weights that are the same for all thirds have no
    deviations.
    """

    whole: Float[np.ndarray, "n d"]  # sketch of S_i
    surplus_sq: Float[np.ndarray, " n"]  # exact ‖S_i‖² less that of the sketch; zeros where nothing better is known
    projections: Float[np.ndarray, "n t k"]  # ⟨s_{i,t}, v_k⟩, 0 where masked out
    light: Bool[np.ndarray, "n t"]  # counted tokens that were not measured one by one
    proxy: Float[np.ndarray, "n t"]  # forward-only energy of counted tokens, which weights them in c
    owner: Int[np.ndarray, " h"]  # completion of each heavy token, ascending
    position: Int[np.ndarray, " h"]
    heavy: Float[np.ndarray, "h d"]  # sketch of each heavy token
    heavy_sq: Float[np.ndarray, " h"]  # its exact squared norm

    @property
    def n_probes(self) -> int:
        """K, the number of probes."""
        return self.projections.shape[2]

    @property
    def signs(self) -> Float[np.ndarray, " features"]:
        """The signature of the features that ``sums`` and :meth:`influence` give, deviations included."""
        d, k = self.whole.shape[1], self.n_probes
        blocks = sum(map(len, probe_blocks(k)))
        # Z̄, P̄, P̄^Z, two contrasts of Z, half-differences of P and of P^Z, and influences, which enter no product.
        return np.repeat([1.0, 1.0, -1.0, -1.0, -1.0, 1.0, 0.0], [d, k, k, 2 * d, k, k, blocks * k])

    def select(
        self,
        rows: Int[np.ndarray, " kept"],
        whole: Float[np.ndarray, "kept d"],
        surplus_sq: Float[np.ndarray, " kept"] | None,
    ) -> ProbedTokens:
        """Select some completions, in that order, with their sketches and surplus squares as given."""
        heavy, owner = self._heavy_of(rows)
        per_row = {name: getattr(self, name)[rows] for name in ("projections", "light", "proxy")}
        per_heavy = {name: getattr(self, name)[heavy] for name in ("position", "heavy", "heavy_sq")}
        surplus = np.zeros(len(rows)) if surplus_sq is None else surplus_sq
        return ProbedTokens(whole=whole, surplus_sq=surplus, owner=owner, **per_row, **per_heavy)

    def batches(self, batch: Batch) -> tuple[Batch, ...]:
        """Return the batch with token energies and cross products as estimated from each third of the probes."""
        if self.n_probes < _FEWEST_PROBES:
            raise ValueError(
                f"token_probes={self.n_probes} are too few for weights that depend on token energies, which need "
                f"{_N_THIRDS} disjoint sets of probes: {MEASURE_PROBES}, or at least {_FEWEST_PROBES}"
            )
        return tuple(self._batch(batch, third) for third in probe_thirds(self.n_probes))

    def influence(
        self, batch: Batch, weights_of: Callable[[Batch], np.ndarray], weights: Float[np.ndarray, "thirds n t"]
    ) -> Float[np.ndarray, "n features"]:
        r"""How each block of probes changes weighted sums through the weights, along the probes of the other thirds.

        Leaving block b out of its third of K_f probes changes the weights w into :math:`w_{(b)}`; to first order the
        block shifts them by :math:`\frac{K_f - K_b}{K_f}(w - w_{(b)})`.
        """
        influences = []
        thirds = zip(probe_thirds(self.n_probes), probe_blocks(self.n_probes), weights, strict=True)
        for third, blocks, from_third in thirds:
            for block in blocks:
                rest = np.setdiff1d(third, block)
                shift = (from_third - weights_of(self._batch(batch, rest))) * (len(rest) / len(third))
                along = np.einsum("nt,ntk->nk", shift, self.projections) / np.sqrt(self.n_probes)
                along[:, third] = 0.0
                influences.append(along)
        return np.concatenate(influences, axis=1)

    def sums(
        self, weights: np.ndarray, rows: Int[np.ndarray, " rows"], which: Int[np.ndarray, " rows"], n_sums: int
    ) -> tuple[Float[np.ndarray, "sums features"], Float[np.ndarray, " sums"]]:
        """Return weighted sums of the token scores of some completions, and how far their squares are off.

        Weights are (rows, t), or (3, rows, t) where each third of the probes gives different ones; ``which`` is the sum
        that each completion enters.
        """
        weights = weights if weights.ndim == 3 else weights[None]
        heavy, owner = self._heavy_of(rows)
        on_heavy = weights[:, owner, self.position[heavy]]
        proxy = self.proxy[rows]
        # c of the class: the weight that a whole completion gets, which its heavy tokens are then corrected for.
        common = np.stack([_middle_weight(third, np.where(self.light[rows], proxy, 0.0)) for third in weights])
        excess = on_heavy - common[:, owner]
        known, along_known, along = [], [], []
        for third, c, beyond_c in zip(weights, common, excess, strict=True):
            # Z = c S + Σ_heavy (w_h − c) s_h, and its projections P^Z; then P = ⟨Σ_t w_t s_t, v_k⟩.
            whole = scipy.sparse.csr_array((c, (which, rows)), shape=(n_sums, len(self.whole)))
            # In the type of the sketches, which would otherwise be copied to a wider one.
            single = scipy.sparse.csr_array(
                (beyond_c.astype(self.heavy.dtype), (which[owner], heavy)), shape=(n_sums, len(self.heavy))
            )
            known.append(whole @ self.whole + single @ self.heavy)
            along_known.append(whole @ self._along_whole + single @ self._along_heavy)
            into = scipy.sparse.csr_array(
                (np.ones(len(rows)), (which, np.arange(len(rows)))), shape=(n_sums, len(rows))
            )
            along.append(into @ np.einsum("nt,ntk->nk", third, self.projections[rows]))
        scale = 1.0 / np.sqrt(self.n_probes)
        features = self._features(np.stack(known), scale * np.stack(along), scale * np.stack(along_known))
        # Any c may be used for the exact squares. The middle weight of all tokens keeps the surplus small where a light
        # token has a huge weight and cS nearly cancels against heavy tokens.
        overall = np.stack([_middle_weight(third, proxy) for third in weights])
        # ‖Σ_t w_t s_t‖² is off by c²(‖S‖² − ‖sketch of S‖²) + Σ_heavy (w_h − c)²(‖s_h‖² − ‖sketch of s_h‖²).
        of_whole = _across_thirds(overall) * self.surplus_sq[rows]
        of_heavy = _across_thirds(on_heavy - overall[:, owner]) * self._heavy_surplus_sq[heavy]
        return features, np.bincount(which, of_whole, n_sums) + np.bincount(which[owner], of_heavy, n_sums)

    @cached_property
    def _along_whole(self) -> Float[np.ndarray, "n k"]:
        return self.projections.sum(axis=1)

    @cached_property
    def _along_heavy(self) -> Float[np.ndarray, "h k"]:
        return self.projections[self.owner, self.position]

    @cached_property
    def _heavy_surplus_sq(self) -> Float[np.ndarray, " h"]:
        return self.heavy_sq - np.einsum("hd,hd->h", self.heavy, self.heavy, dtype=np.float64)

    def _features(
        self,
        known: Float[np.ndarray, "thirds sums d"],
        along: Float[np.ndarray, "thirds sums k"],
        along_known: Float[np.ndarray, "thirds sums k"],
    ) -> Float[np.ndarray, "sums features"]:
        """Return (Z, P/√K, P^Z/√K) of one set of weights; of three, their means and the deviations from them."""
        if len(known) == 1:
            return np.concatenate([known[0], along[0], along_known[0]], axis=1)
        mean, deviations = [], []
        for values in (along, along_known):
            middle, half = np.empty_like(values[0]), np.empty_like(values[0])
            # Along the probes of one third only the weights of the other two enter: with their mean m and
            # half-difference h, the average of first·second and second·first is m² − h².
            for number, third in enumerate(probe_thirds(self.n_probes)):
                first, second = (values[other][:, third] for other in range(_N_THIRDS) if other != number)
                middle[:, third], half[:, third] = (first + second) / 2.0, (first - second) / 2.0
            mean.append(middle)
            deviations.append(half)
        first, second, third = known
        # (1/6) Σ_f ‖x_f − x̄‖² as two squares: (x_1 − x_2)²/12 + (x_1 + x_2 − 2 x_3)²/36.
        contrasts = [(first - second) / np.sqrt(12.0), (first + second - 2.0 * third) / 6.0]
        return np.concatenate([known.mean(axis=0), *mean, *contrasts, *deviations], axis=1)

    def _batch(self, batch: Batch, probes: Int[np.ndarray, " probes"]) -> Batch:
        """Return the batch with ‖s_t‖² and ⟨s_t, S⟩ of every token: along some probes, heavy ones as measured."""
        # p_{t,k}² and p_{t,k} Σ_u p_{u,k}, averaged over these probes.
        some = self.projections[:, :, probes]
        energy = np.einsum("ntk,ntk->nt", some, some) / len(probes)
        cross = np.einsum("ntk,nk->nt", some, some.sum(axis=1)) / len(probes)
        energy[self.owner, self.position] = self.heavy_sq
        # ⟨s_h, S⟩ = ⟨s_h, S − s_h⟩ + ‖s_h‖², the last exactly.
        with_others = np.einsum("hd,hd->h", self.heavy, self.whole[self.owner] - self.heavy, dtype=np.float64)
        cross[self.owner, self.position] = with_others + self.heavy_sq
        return batch.with_fields(token_energy=energy, token_cross=cross)

    def _heavy_of(self, rows: Int[np.ndarray, " rows"]) -> tuple[Int[np.ndarray, " h"], Int[np.ndarray, " h"]]:
        """Return the heavy tokens of some completions, and the place in ``rows`` of the completion each belongs to."""
        ends = np.searchsorted(self.owner, np.stack([rows, rows + 1]))
        counts = ends[1] - ends[0]
        owner = np.repeat(np.arange(len(rows)), counts)
        rank = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        return ends[0][owner] + rank, owner


def _middle_weight(
    weights: Float[np.ndarray, "rows t"], energy: Float[np.ndarray, "rows t"]
) -> Float[np.ndarray, " rows"]:
    """Return the median over tokens of their weights, each counted with its energy; 0 where there is none.

    A mean would follow the weight of a single token whose energy is overestimated.
    """
    order = np.argsort(weights, axis=1)
    reached = np.cumsum(np.take_along_axis(energy, order, axis=1), axis=1)
    total = reached[:, -1:]
    place = np.argmax(reached >= 0.5 * total, axis=1)[:, None]
    middle = np.take_along_axis(weights, np.take_along_axis(order, place, axis=1), axis=1)
    return np.where(total > 0, middle, 0.0)[:, 0]


def _across_thirds(values: Float[np.ndarray, "thirds x"]) -> Float[np.ndarray, " x"]:
    """Products of a value with itself across different thirds of the probes, averaged; the square of a single one."""
    if len(values) == 1:
        return values[0] ** 2
    # Σ_{f≠f'} x_f x_f'/(F(F−1)) = ((Σ_f x_f)² − Σ_f x_f²)/(F(F−1)).
    return (values.sum(axis=0) ** 2 - (values**2).sum(axis=0)) / (len(values) * (len(values) - 1.0))


def probed_tokens(measured: Measurement, batch: Batch) -> ProbedTokens:
    """Return the token scores of a measurement, as its probes, sketches and heavy tokens give them."""
    mask, rows = batch.mask, measured.token_projections
    assert rows is not None
    whole = np.asarray(measured.sketches)
    projections = np.zeros((*mask.shape, rows[0].shape[1]))
    for row, values in enumerate(rows):
        projections[row, : len(values)] = values
    projections[~mask] = 0.0
    bad = np.flatnonzero(~np.isfinite(projections.sum(axis=(1, 2))))
    if len(bad):
        raise ValueError(
            f"token_projections of completion {bad[0]} hold values that are not finite: measure it again, or leave it "
            "out"
        )
    heavy_positions = measured.heavy_positions or [np.zeros(0, dtype=np.int64)] * len(mask)
    owner = np.repeat(np.arange(len(mask)), [len(positions) for positions in heavy_positions])
    position = np.concatenate([np.asarray(positions, dtype=np.int64) for positions in heavy_positions])
    if len(owner) and measured.heavy_sketches is None:
        raise ValueError(
            "the heavy tokens have no sketches, which weighted sums of token scores need: measure with "
            f"{how_to_set('measurement.sketch_dim', 16384)}"
        )
    heavy, heavy_sq = np.zeros((0, whole.shape[1])), np.zeros(0)
    if measured.heavy_sketches is not None and measured.heavy_sq_norms is not None and len(owner):
        counted = mask[owner, position]
        heavy = np.concatenate(measured.heavy_sketches)
        heavy_sq = np.concatenate(measured.heavy_sq_norms).astype(np.float64)
        if not counted.all():
            owner, position, heavy, heavy_sq = owner[counted], position[counted], heavy[counted], heavy_sq[counted]
    light = mask.copy()
    light[owner, position] = False
    proxy = mask.astype(np.float64)
    if batch.logprobs is not None and batch.sum_pi_squared is not None:
        proxy = np.where(mask, logit_energy(batch), 0.0)
    return ProbedTokens(whole, np.zeros(len(mask)), projections, light, proxy, owner, position, heavy, heavy_sq)


@dataclass(frozen=True)
class Contributions:
    """The weighted scores of n completions: vectors and weights whose products have the gradients' inner products."""

    vectors: Float[np.ndarray, "n d"]
    weights: Float[np.ndarray, " n"]  # still to be applied to the vectors
    surplus_sq: Float[np.ndarray, " n"] | None  # exact ‖·‖² less that in these coordinates; None when unknown or exact
    exact_squares: bool = True  # with the surplus; otherwise they keep some of the sketch's error


@dataclass(frozen=True)
class Scores:
    """Scores of n completions, in the order of their groups."""

    sequence: Float[np.ndarray, "n d"]  # S_i = Σ_t s_{i,t}
    tokens: Float[np.ndarray, "n t d"] | None  # s_{i,t}; None when they are unknown or known from probes
    sketched: bool  # whether inner products hold only on average, as in a random projection
    surplus_sq: (
        Float[np.ndarray, " n"] | None
    )  # exact ‖S_i‖² less the sketch's; None when unknown or nothing is sketched
    probed: ProbedTokens | None = None  # whose features are then the vectors
    combined: CombinedScores | None = None  # None where no estimator combines measured weightings

    @property
    def signs(self) -> Float[np.ndarray, " features"] | None:
        """The signature of inner products of vectors; None where all are positive."""
        return None if self.probed is None else self.probed.signs

    @cached_property
    def vectors(self) -> Float[np.ndarray, "n d"]:
        """The S_i in the coordinates of weighted scores."""
        if self.probed is None:
            return self.sequence
        along = self.probed.projections.sum(axis=1) / np.sqrt(self.probed.n_probes)
        return np.concatenate([self.sequence, along, along], axis=1)

    def weighted(self, weights: np.ndarray) -> Contributions:
        """Weight the scores by (n,), (n, T), or (3, n, T) where each third of the probes gives different weights."""
        if weights.ndim == 1:
            return Contributions(self.vectors, weights, self.surplus_sq)
        n = weights.shape[-2]
        if self.probed is not None:
            features, surplus = self.probed.sums(weights, np.arange(n), np.arange(n), n)
            return Contributions(features, np.ones(n), surplus, exact_squares=False)
        assert self.tokens is not None
        return _summed(weights, self.tokens, None)

    def sums(
        self, rows: list[np.ndarray], weights: list[np.ndarray]
    ) -> tuple[Float[np.ndarray, "sums d"], Float[np.ndarray, " sums"]]:
        """Return weighted sums of completions' scores, one for each entry of the lists, and what to add to squares."""
        which = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        flat = np.concatenate(rows)
        if weights[0].ndim == 1:
            entries = np.concatenate(weights)
            surplus = np.zeros(len(rows))
            if self.surplus_sq is not None:
                surplus = np.bincount(which, entries**2 * self.surplus_sq[flat], len(rows))
            gather = scipy.sparse.csr_array((entries, (which, flat)), shape=(len(rows), len(self.vectors)))
            return gather @ self.vectors, surplus
        if self.probed is not None:
            return self.probed.sums(np.concatenate(weights, axis=-2), flat, which, len(rows))
        assert self.tokens is not None
        return _sums(rows, weights, self.tokens, None)


@dataclass(frozen=True)
class CombinedScores:
    """Gradients of n completions under each of K weightings of their tokens, in the coordinates of ``Scores.vectors``.

    The coefficients of a :class:`gradstats.estimators.recipes.weightings.Combination` apply to them.
    """

    vectors: Float[np.ndarray, "n k d"]
    surplus_sq: Float[np.ndarray, "n k"] | None  # exact ‖·‖² less those in these coordinates; None where they are exact
    signs: Float[np.ndarray, " features"] | None  # of inner products; None where all are positive

    def weighted(self, weights: Float[np.ndarray, "n k"]) -> Contributions:
        """Combine the gradients of each completion."""
        return _summed(weights, self.vectors, self.surplus_sq)

    def sums(
        self, rows: list[np.ndarray], weights: list[np.ndarray]
    ) -> tuple[Float[np.ndarray, "sums d"], Float[np.ndarray, " sums"]]:
        """Return combined gradients of some completions, summed, and what to add to squares; see :class:`Scores`."""
        return _sums(rows, weights, self.vectors, self.surplus_sq)


def _summed(weights: np.ndarray, vectors: np.ndarray, surplus_sq: np.ndarray | None) -> Contributions:
    """Return Σ_k w_{i,k} x_{i,k} of each completion."""
    summed = np.einsum("nk,nkd->nd", weights, vectors)
    if surplus_sq is None:
        return Contributions(summed, np.ones(len(summed)), None)
    surplus = np.einsum("nk,nk->n", weights**2, surplus_sq)
    exact = bool((np.count_nonzero(weights, 1) <= 1).all())
    return Contributions(summed, np.ones(len(summed)), surplus, exact_squares=exact)


def _sums(
    rows: list[np.ndarray], weights: list[np.ndarray], vectors: np.ndarray, surplus_sq: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ_i Σ_k w_{i,k} x_{i,k} over some completions, for each entry of the lists."""
    which = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    flat = np.concatenate(rows)
    width = vectors.shape[1]
    positions = (flat[:, None] * width + np.arange(width)).ravel()
    entries = np.concatenate([weight.ravel() for weight in weights])
    places = (np.repeat(which, width), positions)
    gather = scipy.sparse.csr_array((entries, places), shape=(len(rows), vectors.shape[0] * width))
    surplus = np.zeros(len(rows))
    if surplus_sq is not None:
        each = np.concatenate(weights) ** 2 * surplus_sq[flat]
        surplus = np.bincount(which, each.sum(axis=1), len(rows))
    return gather @ vectors.reshape(-1, vectors.shape[2]), surplus


def refuse_other_shape(scores: np.ndarray, n: int) -> None:
    """Refuse scores that are not those of n completions or of their tokens."""
    if scores.ndim not in (2, 3) or scores.shape[0] != n or scores.shape[-1] == 0:
        raise ValueError(
            f"scores has shape {scores.shape}, expected ({n}, D) for whole completions or ({n}, T, D) for tokens"
        )


def refuse_not_finite(completions: Int[np.ndarray, " bad"]) -> None:
    """Refuse scores of which some completions have values that are not finite."""
    if len(completions):
        raise ValueError(
            f"scores of completion {completions[0]} hold values that are not finite: measure it again, or leave it out"
        )


def prepare_scores(
    scores: np.ndarray,
    mask: Bool[np.ndarray, "n t"],
    rows: Int[np.ndarray, " kept"],
    sketched: bool,
    sq_norms: Float[np.ndarray, " n"] | None,
    probed: ProbedTokens | None = None,
) -> Scores:
    """Check scores, (N, D) or (N, T, D), against the completions and put the kept ones in the order of their groups."""
    n = len(mask)
    refuse_other_shape(scores, n)
    if scores.ndim == 3 and scores.shape[1] != mask.shape[1]:
        raise ValueError(
            f"scores holds {scores.shape[1]} tokens per completion, but the batch is {mask.shape[1]} wide: pad both to "
            "the same width"
        )
    in_order = len(rows) == n and np.array_equal(rows, np.arange(n))
    values = np.asarray(scores if in_order else scores[rows], dtype=np.float64)
    tokens = None
    if values.ndim == 3:
        tokens = np.where(mask[rows][:, :, None], values, 0.0)
        values = tokens.sum(axis=1)
    refuse_not_finite(rows[~np.isfinite(values.sum(axis=1))])
    surplus = None
    if sketched and sq_norms is not None:
        surplus = sq_norms[rows] - np.einsum("nd,nd->n", values, values)
    kept = None if probed is None else probed.select(rows, values, surplus)
    return Scores(values, tokens, sketched, surplus, kept)
