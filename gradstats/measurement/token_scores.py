r"""One sequence's measured token scores :math:`s_t = \nabla\log\pi(y_t)`, and the quantities that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclass(frozen=True)
class TokenScores:
    r"""Random projections of every token's score, and exact norms of the heaviest tokens.

    Heavy tokens are chosen from a forward pass, before anything is projected: every estimate below is unbiased over the
    draw of the probes, :math:`\mathbb E\,v v^\top = I`. Tokens that a completion mask leaves out have score zero.
    """

    # (T, K), p_{t,k} = ⟨s_t, v_k⟩, or None without probes
    projections: Float[np.ndarray, "time probes"] | None
    heavy_positions: Int[np.ndarray, " heavy"]  # (m,), sorted positions of the tokens that were measured exactly
    heavy_sq_norms: Float[np.ndarray, " heavy"]  # (m,), ‖s_t‖² of those
    # (m, sketch_dim), their projections by the same sketch as whole sequences, or None
    heavy_sketches: Float[np.ndarray, "heavy buckets"] | None
    mask: Bool[np.ndarray, " time"]  # (T,), which tokens count

    @property
    def n_probes(self) -> int:
        """K, 0 without probes."""
        return 0 if self.projections is None else self.projections.shape[1]

    @property
    def light(self) -> Bool[np.ndarray, " time"]:
        """(T,), the tokens that count and were not measured exactly."""
        light = self.mask.copy()
        light[self.heavy_positions] = False
        return light

    def energy(self) -> Float[np.ndarray, " time"]:
        r"""(T,) :math:`\lVert s_t\rVert^2`: exact on heavy tokens, :math:`\frac1K\sum_k p_{t,k}^2` on light ones.

        NaN on light tokens without probes.
        """
        energy = np.zeros(len(self.mask))
        energy[self.light] = np.nan if self.projections is None else self._squares().mean(axis=1)
        energy[self.heavy_positions] = self.heavy_sq_norms
        return energy

    def energy_stderr(self) -> Float[np.ndarray, " time"]:
        r"""Return (T,) standard errors of :meth:`energy`, 0 on heavy tokens.

        A score of many coordinates projects to a normal variable, so that the mean of K squares has the variance
        :math:`2\lVert s_t\rVert^4/K`; with :math:`\hat e` for the mean, :math:`2\hat e^2/(K+2)` is unbiased for it.
        """
        stderr = self.energy() * np.sqrt(2 / (self.n_probes + 2))
        stderr[self.heavy_positions] = 0.0
        return stderr

    def cumulative_energy(self) -> Float[np.ndarray, " time"]:
        r"""Return (T,) :math:`W_t = \sum_{u\le t}\lVert s_u\rVert^2`."""
        return np.cumsum(self.energy())

    def cumulative_energy_stderr(self) -> Float[np.ndarray, " time"]:
        r"""Return (T,) standard errors of :meth:`cumulative_energy`.

        Tokens share their probes, so their errors are correlated where their scores are. Each probe by itself gives one
        sum :math:`\sum_{u\le t,\,\text{light}} p_{u,k}^2`; the standard deviation of the K sums, over
        :math:`\sqrt K`, is right whatever the correlations. NaN where that takes two probes and there are fewer.
        """
        light = self.light
        if self.n_probes < 2:
            return np.where(np.cumsum(light) > 0, np.nan, 0.0)
        sums = np.zeros((len(light), self.n_probes))
        sums[light] = self._squares()
        return np.cumsum(sums, axis=0).std(axis=1, ddof=1) / np.sqrt(self.n_probes)

    def cross(self, sketch: Float[np.ndarray, " buckets"] | None) -> Float[np.ndarray, " time"]:
        r"""Return (T,) :math:`\langle s_t, S\rangle` with :math:`S = \sum_u s_u`, unbiased.

        Light tokens take :math:`\frac1K\sum_k p_{t,k} P_k` with :math:`P_k = \sum_u p_{u,k}`. Heavy ones take
        :math:`\lVert s_t\rVert^2 + \langle Cs_t, C(S - s_t)\rangle` with the sketch C, whose error is
        :math:`\sqrt{D/K}` times smaller, or the same with probes where there are no sketches. NaN where there is
        neither.
        """
        cross = np.where(self.mask, np.nan, 0.0)
        heavy = self.heavy_positions
        if self.projections is not None:
            projections = self.projections.astype(np.float64)
            total = projections.sum(axis=0)
            cross[self.mask] = projections[self.mask] @ total / self.n_probes
            cross[heavy] += self.heavy_sq_norms - np.square(projections[heavy]).mean(axis=1)
        if self.heavy_sketches is not None and sketch is not None:
            sketches = self.heavy_sketches.astype(np.float64)
            others = np.einsum("hd,hd->h", sketches, sketch.astype(np.float64) - sketches)
            cross[heavy] = self.heavy_sq_norms + others
        return cross

    def _squares(self) -> Float[np.ndarray, "light probes"]:
        """Return squared projections of the light tokens."""
        assert self.projections is not None
        return np.square(self.projections[self.light].astype(np.float64))


def relative_error_of_total(scores: Sequence[TokenScores]) -> float:
    """Median over sequences of the standard error of :math:`W_T` relative to it; NaN where probes are too few."""
    return float(np.median([one.cumulative_energy_stderr()[-1] / one.cumulative_energy()[-1] for one in scores]))


#: Relative standard error of cumulative energies above which a remedy is named.
_POOR_PRECISION = 0.1


def remark_on_precision(scores: Sequence[TokenScores]) -> str:
    """Return a sentence on how well the probes resolve cumulative energies, with the remedy where they do so poorly."""
    error = relative_error_of_total(scores)
    exact = int(np.median([len(one.heavy_positions) for one in scores]))
    precision = f"W_T has a median relative standard error of {error:.1%}, from {scores[0].n_probes} probes"
    precision += f" and {exact} exact tokens" if exact else ""
    if error <= _POOR_PRECISION:
        return precision
    remedy = (
        f"raise token_exact, for example to {max(16, 2 * exact)}, or token_probes, since the error decreases with its "
        "square root"
    )
    return f"{precision}, which is poor: {remedy}"
