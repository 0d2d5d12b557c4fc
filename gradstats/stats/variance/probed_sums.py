r"""Token scores known by a sketch of their sum, sketches of the heaviest, and random probes of all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from gradstats.estimators import Batch
from gradstats.estimators.baselines.token_baseline import logit_energy

# Weights that were estimated from probes take three disjoint parts of them: one for each side of a product, and one
# for the product itself. What a probe changes in them is found by leaving out one block of a part at a time.
N_PARTS = 3
MOST_BLOCKS = 10
FEWEST_PROBES = 2 * N_PARTS


def probe_parts(n_probes: int) -> list[Int[np.ndarray, " probes"]]:
    """Three disjoint parts of the probes."""
    return np.array_split(np.arange(n_probes), N_PARTS)


def probe_blocks(n_probes: int) -> list[list[Int[np.ndarray, " probes"]]]:
    """The blocks that each part is divided into, at most ten."""
    return [np.array_split(part, min(len(part), MOST_BLOCKS)) if len(part) else [] for part in probe_parts(n_probes)]


@dataclass(frozen=True)
class ProbedTokens:
    r"""What a measurement with ``token_probes`` knows of the token scores of n completions.

    A weighted sum is split, for any c that is not chosen from the probes, into

    .. math:: \sum_t w_t s_t = \underbrace{c S + \sum_{h\ \mathrm{heavy}} (w_h - c) s_h}_{Z}
        + \underbrace{\sum_{t\ \mathrm{light}} (w_t - c) s_t}_{L}

    Z is known by sketches, and L is small when c is a typical weight of the light tokens; with
    :math:`P_k = ⟨\sum_t w_t s_t, v_k⟩` and :math:`P^Z_k = ⟨Z, v_k⟩` along K isotropic probes, inner products are

    .. math:: ⟨a, b⟩ ≈ ⟨Z_a, Z_b⟩ + \frac{1}{K}\sum_k (P_{a,k} P_{b,k} - P^Z_{a,k} P^Z_{b,k}),

    without bias: probes are asked only about what sketches do not tell. So a weighted sum is represented by
    (Z, P/√K, P^Z/√K), with inner products of signature (+, +, −).

    Weights that were themselves estimated from the probes (energies, cross products) would be correlated with P, and
    their noise would count as variance of the estimator. They are therefore made anew from each of three parts of the
    probes, and products are averaged over ⟨a with weights of one part, b with weights of another⟩ along the probes of
    the third. With :math:`x^{f}` made of the weights of part f this needs the mean :math:`\bar x` and, with negative
    sign, the deviations from it: :math:`\frac16\sum_{f≠f'}⟨x^f, y^{f'}⟩ = ⟨\bar x, \bar y⟩ - \frac16\sum_f
    ⟨x^f - \bar x, y^f - \bar y⟩`. Weights that are alike for all parts have no deviations.

    Attributes:
        whole: (n, d) sketch of S_i.
        surplus_sq: (n,) exact ‖S_i‖² less that of the sketch; zeros where nothing better is known.
        projections: (n, t, k) ⟨s_{i,t}, v_k⟩, 0 where masked out.
        light: (n, t) counted tokens that were not measured one by one.
        proxy: (n, t) forward-only energy of counted tokens, which weights them in c.
        owner: (h,) completion of each heavy token, ascending.
        position: (h,) its position.
        heavy: (h, d) its sketch.
        heavy_sq: (h,) its exact squared norm.
    """

    whole: Float[np.ndarray, "n d"]
    surplus_sq: Float[np.ndarray, " n"]
    projections: Float[np.ndarray, "n t k"]
    light: Bool[np.ndarray, "n t"]
    proxy: Float[np.ndarray, "n t"]
    owner: Int[np.ndarray, " h"]
    position: Int[np.ndarray, " h"]
    heavy: Float[np.ndarray, "h d"]
    heavy_sq: Float[np.ndarray, " h"]

    @property
    def n_probes(self) -> int:
        """K."""
        return self.projections.shape[2]

    @property
    def signs(self) -> Float[np.ndarray, " features"]:
        """The signature of the features that `sums` and `influence` give, deviations included."""
        d, k = self.whole.shape[1], self.n_probes
        blocks = sum(map(len, probe_blocks(k)))
        return np.repeat([1.0, 1.0, -1.0, -1.0, -1.0, 1.0, 0.0], [d, k, k, 2 * d, k, k, blocks * k])

    def select(
        self,
        rows: Int[np.ndarray, " kept"],
        whole: Float[np.ndarray, "kept d"],
        surplus_sq: Float[np.ndarray, " kept"] | None,
    ) -> ProbedTokens:
        """Those of some completions, in that order, with the given sketches of them and surplus squares."""
        heavy, owner = self._heavy_of(rows)
        per_row = {name: getattr(self, name)[rows] for name in ("projections", "light", "proxy")}
        per_heavy = {name: getattr(self, name)[heavy] for name in ("position", "heavy", "heavy_sq")}
        surplus = np.zeros(len(rows)) if surplus_sq is None else surplus_sq
        return ProbedTokens(whole=whole, surplus_sq=surplus, owner=owner, **per_row, **per_heavy)

    def batches(self, batch: Batch) -> tuple[Batch, ...]:
        """The batch with token energies and cross products as each part of the probes gives them.

        Raises:
            ValueError: for fewer probes than parts.
        """
        if self.n_probes < FEWEST_PROBES:
            raise ValueError(
                f"token_probes={self.n_probes} are too few for weights that depend on token energies, which take "
                f"{N_PARTS} disjoint parts of the probes: measure with token_probes=32, or at least {FEWEST_PROBES}"
            )
        return tuple(self._batch(batch, part) for part in probe_parts(self.n_probes))

    def influence(
        self, batch: Batch, weights_of: Callable[[Batch], np.ndarray], weights: Float[np.ndarray, "parts n t"]
    ) -> Float[np.ndarray, "n features"]:
        r"""What each block of probes changes in the weighted sums by way of the weights, along the other parts' probes.

        Leaving block b out of its part of K_f probes turns the weights w into \(w_{(b)}\); to first order the block
        moves them by \(\frac{K_f - K_b}{K_f}(w - w_{(b)})\).

        Args:
            batch: the completions.
            weights_of: batch → (n, t) weights.
            weights: (3, n, t) those of each part of the probes.
        """
        found = []
        parts = zip(probe_parts(self.n_probes), probe_blocks(self.n_probes), weights, strict=True)
        for part, blocks, own in parts:
            for block in blocks:
                rest = np.setdiff1d(part, block)
                moved = (own - weights_of(self._batch(batch, rest))) * (len(rest) / len(part))
                along = np.einsum("nt,ntk->nk", moved, self.projections) / np.sqrt(self.n_probes)
                along[:, part] = 0.0
                found.append(along)
        return np.concatenate(found, axis=1)

    def sums(
        self, weights: np.ndarray, rows: Int[np.ndarray, " rows"], which: Int[np.ndarray, " rows"], n_sums: int
    ) -> tuple[Float[np.ndarray, "sums features"], Float[np.ndarray, " sums"]]:
        """Weighted sums of the token scores of some completions, and how far their squares are off.

        Args:
            weights: (rows, t), or (3, rows, t) where each part of the probes gives weights of its own.
            rows: which completions they are for.
            which: the sum that each completion enters, from 0.
            n_sums: number of sums.

        Returns:
            The features of each sum, as told in the class, and the exact squares of whole completions and of heavy
            tokens in it less those of their sketches.
        """
        weights = weights if weights.ndim == 3 else weights[None]
        heavy, owner = self._heavy_of(rows)
        on_heavy = weights[:, owner, self.position[heavy]]
        proxy = self.proxy[rows]
        common = np.stack([_middle_weight(part, np.where(self.light[rows], proxy, 0.0)) for part in weights])
        excess = on_heavy - common[:, owner]
        known, along_known, along = [], [], []
        for part, alike, more in zip(weights, common, excess, strict=True):
            whole = sparse.csr_array((alike, (which, rows)), shape=(n_sums, len(self.whole)))
            # In the type of the sketches, which would otherwise be copied to a wider one.
            single = sparse.csr_array(
                (more.astype(self.heavy.dtype), (which[owner], heavy)), shape=(n_sums, len(self.heavy))
            )
            known.append(whole @ self.whole + single @ self.heavy)
            along_known.append(whole @ self._along_whole + single @ self._along_heavy)
            into = sparse.csr_array((np.ones(len(rows)), (which, np.arange(len(rows)))), shape=(n_sums, len(rows)))
            along.append(into @ np.einsum("nt,ntk->nk", part, self.projections[rows]))
        scale = 1.0 / np.sqrt(self.n_probes)
        features = self._features(np.stack(known), scale * np.stack(along), scale * np.stack(along_known))
        # What is exact may be put in with any share. That of all tokens' middle weight stays small where a light token
        # has a huge weight and cS nearly cancels against heavy tokens.
        overall = np.stack([_middle_weight(part, proxy) for part in weights])
        of_whole = _across_parts(overall) * self.surplus_sq[rows]
        of_heavy = _across_parts(on_heavy - overall[:, owner]) * self.heavy_surplus_sq[heavy]
        return features, np.bincount(which, of_whole, n_sums) + np.bincount(which[owner], of_heavy, n_sums)

    @cached_property
    def _along_whole(self) -> Float[np.ndarray, "n k"]:
        return self.projections.sum(axis=1)

    @cached_property
    def _along_heavy(self) -> Float[np.ndarray, "h k"]:
        return self.projections[self.owner, self.position]

    @cached_property
    def heavy_surplus_sq(self) -> Float[np.ndarray, " h"]:
        """(h,) exact ‖s_t‖² of heavy tokens less those of their sketches."""
        return self.heavy_sq - np.einsum("hd,hd->h", self.heavy, self.heavy, dtype=np.float64)

    def _features(
        self,
        known: Float[np.ndarray, "parts sums d"],
        along: Float[np.ndarray, "parts sums k"],
        along_known: Float[np.ndarray, "parts sums k"],
    ) -> Float[np.ndarray, "sums features"]:
        if len(known) == 1:
            return np.concatenate([known[0], along[0], along_known[0]], axis=1)
        mean, deviations = [], []
        for values in (along, along_known):
            middle, half = np.empty_like(values[0]), np.empty_like(values[0])
            for number, part in enumerate(probe_parts(self.n_probes)):
                first, second = (values[other][:, part] for other in range(N_PARTS) if other != number)
                middle[:, part], half[:, part] = (first + second) / 2.0, (first - second) / 2.0
            mean.append(middle)
            deviations.append(half)
        first, second, third = known
        contrasts = [(first - second) / np.sqrt(12.0), (first + second - 2.0 * third) / 6.0]
        return np.concatenate([known.mean(axis=0), *mean, *contrasts, *deviations], axis=1)

    def _batch(self, batch: Batch, part: Int[np.ndarray, " probes"]) -> Batch:
        """The batch with ‖s_t‖² and ⟨s_t, S⟩ of every token: along some probes, and of heavy tokens as measured."""
        some = self.projections[:, :, part]
        energy = np.einsum("ntk,ntk->nt", some, some) / len(part)
        cross = np.einsum("ntk,nk->nt", some, some.sum(axis=1)) / len(part)
        energy[self.owner, self.position] = self.heavy_sq
        own = np.einsum("hd,hd->h", self.heavy, self.whole[self.owner] - self.heavy, dtype=np.float64)
        cross[self.owner, self.position] = own + self.heavy_sq
        return batch.with_fields(token_energy=energy, token_cross=cross)

    def _heavy_of(self, rows: Int[np.ndarray, " rows"]) -> tuple[Int[np.ndarray, " h"], Int[np.ndarray, " h"]]:
        """Heavy tokens of some completions, and the place in ``rows`` of the completion each belongs to."""
        ends = np.searchsorted(self.owner, np.stack([rows, rows + 1]))
        counts = ends[1] - ends[0]
        owner = np.repeat(np.arange(len(rows)), counts)
        rank = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        return ends[0][owner] + rank, owner


def _middle_weight(
    weights: Float[np.ndarray, "rows t"], energy: Float[np.ndarray, "rows t"]
) -> Float[np.ndarray, " rows"]:
    """The median over tokens of their weights, each counted with its energy; 0 where there is none.

    A mean would follow the weight of a single token whose energy is overrated.
    """
    order = np.argsort(weights, axis=1)
    reached = np.cumsum(np.take_along_axis(energy, order, axis=1), axis=1)
    total = reached[:, -1:]
    place = np.argmax(reached >= 0.5 * total, axis=1)[:, None]
    middle = np.take_along_axis(weights, np.take_along_axis(order, place, axis=1), axis=1)
    return np.where(total > 0, middle, 0.0)[:, 0]


def _across_parts(values: Float[np.ndarray, "parts x"]) -> Float[np.ndarray, " x"]:
    """Products of a value with itself across different parts of the probes, averaged; its square for one part."""
    if len(values) == 1:
        return values[0] ** 2
    return (values.sum(axis=0) ** 2 - (values**2).sum(axis=0)) / (len(values) * (len(values) - 1.0))


def probed_tokens(measured: Any, batch: Batch) -> ProbedTokens:
    """What a measurement's probes, sketches and heavy tokens tell.

    Args:
        measured: a measurement with ``token_projections``, ``heavy_positions``, ``heavy_sq_norms``,
            ``heavy_sketches`` and ``sketches``.
        batch: its batch, whose log-probabilities give the forward-only energy.

    Raises:
        ValueError: when the heavy tokens have no sketches, or projections are not finite.
    """
    mask = batch.mask
    whole = np.asarray(measured.sketches)
    projections = np.zeros((*mask.shape, measured.token_projections[0].shape[1]))
    for row, values in enumerate(measured.token_projections):
        projections[row, : len(values)] = values
    projections[~mask] = 0.0
    bad = np.flatnonzero(~np.isfinite(projections.sum(axis=(1, 2))))
    if len(bad):
        raise ValueError(
            f"token_projections of completion {bad[0]} hold values that are not finite: measure it again, or leave it "
            "out"
        )
    owner = np.repeat(np.arange(len(mask)), [len(positions) for positions in measured.heavy_positions])
    position = np.concatenate([np.asarray(positions, dtype=np.int64) for positions in measured.heavy_positions])
    if len(owner) and measured.heavy_sketches is None:
        raise ValueError(
            "the heavy tokens have no sketches, which weighted sums of token scores need: measure with sketch_dim=…, "
            "for example 16384"
        )
    heavy, heavy_sq = np.zeros((0, whole.shape[1])), np.zeros(0)
    if len(owner):
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
