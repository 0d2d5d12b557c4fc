"""The variance of the optimal token baseline with a proxy, over that with energies."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from gradstats.estimators import Batch
from gradstats.estimators.baselines.token_baseline import otb
from gradstats.estimators.estimator import Level
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate
from gradstats.stats.measured import MeasuredTokens
from gradstats.stats.variance.comparison import compare


@dataclass(frozen=True)
class _OtbOf:
    """The leave-one-out optimal token baseline with a proxy of energies, passed as the batch's ``values``."""

    name: str
    level: Level = "token"
    needs: tuple[str, ...] = ("values",)
    across_groups: bool = False

    @property
    def label(self) -> str:
        return f"otb(energy={self.name}, loo=True)"

    def expected_scale(self, group_size: int) -> float | None:
        return 1.0

    def weights(self, batch: Batch) -> np.ndarray:
        return otb(energy="exact", loo=True).weights(batch.with_fields(token_energy=batch.values))


def otb_ratio(
    measured: MeasuredTokens,
    name: str,
    values: list[np.ndarray],
    batch: Batch,
    group_size: int | None,
    rng: int | np.random.Generator | None,
) -> Estimate:
    r"""Estimate :math:`\mathrm{tr\,Cov}(ĝ_p)/\mathrm{tr\,Cov}(ĝ_e)` of leave-one-out optimal token baselines.

    One takes the proxy p for token energies, the other the energies e themselves. NaN without sketches, or two
    completions of a prompt.

    Args:
        measured: a measurement with ``token_projections``.
        name: of the proxy.
        values: for each completion, the proxy by position.
        batch: the completions.
        group_size: completions per group.
        rng: for the comparison.
    """
    # Without two completions of a prompt there is no baseline, and without varied rewards no gradient.
    if measured.sketches is None or batch.group_sizes.max() < 2:
        return NOT_ESTIMATED
    with warnings.catch_warnings():  # they are about the signal, which is not used here
        warnings.simplefilter("ignore", UserWarning)
        comparison = compare(
            measured,
            [_OtbOf(name)],
            group_size=group_size,
            reference="otb(energy=exact, loo=True)",
            rng=rng,
            values=list(values),
        )
    return comparison.rows[0].ratio
