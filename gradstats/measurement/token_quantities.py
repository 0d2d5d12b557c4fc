"""Quantities of a measurement that have one value per token: energies, cumulative energies, inner products."""

from __future__ import annotations

import warnings

import numpy as np

from gradstats.measurement.token_scores import TokenScores
from gradstats.rollouts.table import Rollouts


class TokenQuantities:
    """What follows from a measurement's token scores; base class of :class:`gradstats.Measurement`."""

    rollouts: Rollouts
    sketches: np.ndarray | None
    token_projections: list[np.ndarray] | None
    heavy_positions: list[np.ndarray] | None
    heavy_sq_norms: list[np.ndarray] | None
    heavy_sketches: list[np.ndarray] | None

    @property
    def n_token_probes(self) -> int:
        """K, the number of random directions that token scores were projected on; 0 for none."""
        return self.token_projections[0].shape[1] if self.token_projections else 0

    def token_scores(self) -> list[TokenScores] | None:
        """Return each sequence's measured token scores; None when neither probes nor exact tokens were measured."""
        if self.token_projections is None and self.heavy_positions is None:
            return None
        nothing = np.zeros(0)
        return [
            TokenScores(
                None if self.token_projections is None else self.token_projections[row],
                nothing.astype(np.int64) if self.heavy_positions is None else self.heavy_positions[row],
                nothing if self.heavy_sq_norms is None else self.heavy_sq_norms[row],
                None if self.heavy_sketches is None else self.heavy_sketches[row],
                mask,
            )
            for row, mask in enumerate(self.rollouts.masks)
        ]

    @property
    def token_energy(self) -> list[np.ndarray] | None:
        r"""For each sequence, (T_i,) :math:`\lVert s_t\rVert^2`, unbiased: see :meth:`TokenScores.energy`."""
        scores = self._scores_with_probes(1, "token energies")
        return None if scores is None else [one.energy() for one in scores]

    @property
    def token_energy_stderr(self) -> list[np.ndarray] | None:
        """For each sequence, (T_i,) standard errors of the token energies, 0 where they are exact."""
        scores = self._scores_with_probes(1, "token energies")
        return None if scores is None else [one.energy_stderr() for one in scores]

    @property
    def cumulative_energy(self) -> list[np.ndarray] | None:
        r"""For each sequence, (T_i,) :math:`W_t = \sum_{u\le t}\lVert s_u\rVert^2`, unbiased."""
        scores = self._scores_with_probes(1, "cumulative energies")
        return None if scores is None else [one.cumulative_energy() for one in scores]

    @property
    def cumulative_energy_stderr(self) -> list[np.ndarray] | None:
        """For each sequence, (T_i,) standard errors of the cumulative energies, from the spread of the probes."""
        scores = self._scores_with_probes(2, "standard errors of cumulative energies")
        return None if scores is None else [one.cumulative_energy_stderr() for one in scores]

    @property
    def token_cross(self) -> list[np.ndarray] | None:
        r"""For each sequence, (T_i,) :math:`\langle s_t, S\rangle`, unbiased: see :meth:`TokenScores.cross`."""
        scores = self._scores_with_probes(1, "inner products of light tokens")
        if scores is None:
            return None
        sketches = [None] * len(scores) if self.sketches is None else self.sketches
        return [one.cross(sketch) for one, sketch in zip(scores, sketches, strict=True)]

    def _scores_with_probes(self, needed: int, what: str) -> list[TokenScores] | None:
        """Return the token scores, with a warning where some tokens need more probes than were measured."""
        scores = self.token_scores()
        if scores is not None and self.n_token_probes < needed and any(one.light.any() for one in scores):
            warnings.warn(
                f"{what} are NaN on tokens that were not measured exactly, since token_probes is "
                f"{self.n_token_probes}: measure with token_probes={max(needed, 32)}",
                RuntimeWarning,
                stacklevel=3,
            )
        return scores
