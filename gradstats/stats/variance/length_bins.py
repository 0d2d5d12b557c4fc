"""The variance of the gradient by completion length."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from gradstats import estimators as families
from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.estimators import Batch
from gradstats.estimators.estimator import Level, Weighting, unit_of
from gradstats.stats.measured import MeasuredGradients
from gradstats.stats.variance.comparison import compare
from gradstats.stats.variance.comparison_inputs import comparison_inputs
from gradstats.stats.variance.variance_comparison import VarianceComparison


@dataclass(frozen=True)
class _OfLengths:
    """An estimator whose completions outside a range of lengths get no weight; baselines still see the whole group."""

    whole: Weighting
    low: float
    high: float

    @property
    def name(self) -> str:
        return self.whole.name

    @property
    def label(self) -> str:
        return f"{self.whole.label} of {self.low:g} to {self.high:g} tokens"

    @property
    def level(self) -> Level:
        return self.whole.level

    @property
    def needs(self) -> tuple[str, ...]:
        return self.whole.needs

    @property
    def across_groups(self) -> bool:
        return self.whole.across_groups

    @property
    def unit(self) -> str:
        return unit_of(self.whole)

    def expected_scale(self, group_size: int) -> float | None:
        """None: the contribution of some lengths is not a known multiple of the gradient."""
        return None

    def weights(self, batch: Batch) -> np.ndarray:
        weights = self.whole.weights(batch)
        inside = (batch.lengths >= self.low) & (batch.lengths <= self.high)
        return np.where(inside if weights.ndim == 1 else inside[:, None], weights, 0.0)


@dataclass(frozen=True)
class LengthBins:
    r"""The noise and signal of :math:`g^b = \sum_{i:\,T_i \in b} w_i S_i`, the gradient from completions of lengths b.

    Attributes:
        estimator: label of the estimator.
        bins: (n, 2) smallest and greatest length of each bin, in tokens, both inside.
        n_completions: (n,) completions in each.
        comparison: one row a bin, ratios to the whole estimator.
    """

    estimator: str
    bins: np.ndarray
    n_completions: np.ndarray
    comparison: VarianceComparison

    def confidence_interval(
        self, confidence_level: float = CONFIDENCE_LEVEL, quantity: str = "noise_to_signal"
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the interval of one quantity for every bin, ``(low, high)``."""
        return self.comparison.confidence_interval(confidence_level, quantity)

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per bin: its lengths, ``n_completions``, and what :func:`gradstats.compare` gives."""
        frame = self.comparison.to_frame(confidence_level)
        frame.insert(1, "length_low", self.bins[:, 0])
        frame.insert(2, "length_high", self.bins[:, 1])
        frame.insert(3, "n_completions", self.n_completions)
        del frame.attrs["lowest_beyond_doubt"]  # bins are not compared with each other
        return frame.assign(estimator=self.estimator)


def variance_by_length(
    measured_or_batch: Batch | MeasuredGradients,
    estimator: str | Weighting = "rloo",
    scores: ArrayLike | None = None,
    n_bins: int = 4,
    group_size: int | None = None,
    rng: int | np.random.Generator | None = 0,
    *,
    scores_are_sketches: bool | None = None,
) -> LengthBins:
    r"""Split an estimator's gradient by completion length, and estimate the noise and signal of each bin.

    :math:`g_m = \sum_b g_m^b` with :math:`g_m^b = \sum_{i \in m,\, T_i \in b} w_i S_i`: the weights are those of the
    whole group, and completions of other lengths are left out of the sum. Each bin is then a gradient estimator in
    itself, with the trace_cov, signal_sq and noise_to_signal of :func:`gradstats.compare`; ``ratio`` is its share of
    the trace_cov of the whole (bins of one group covary, so that shares need not sum to 1).

    Args:
        measured_or_batch: as in :func:`gradstats.compare`.
        estimator: whose gradient is split; a group-level one.
        scores: as in :func:`gradstats.compare`.
        n_bins: bins of about equally many completions; fewer where lengths tie.
        group_size: as in :func:`gradstats.compare`.
        rng: for estimating the sketch's error.
        scores_are_sketches: as in :func:`gradstats.compare`.

    Returns:
        A :class:`LengthBins`; where a bin's signal is not resolved, its noise_to_signal is NaN with a lower end.

    Raises:
        ValueError: for ``n_bins`` below 1, a batch-level estimator, and as in :func:`gradstats.compare`.

    Example:
        >>> import numpy as np
        >>> import gradstats as gs
        >>> rng = np.random.default_rng(0)
        >>> lengths = rng.integers(10, 100, 400)
        >>> batch = gs.estimators.Batch(rng.integers(0, 2, 400), lengths, np.repeat(np.arange(100), 4))
        >>> scores = rng.normal(size=(400, 8)) * np.sqrt(lengths)[:, None]
        >>> frame = gs.variance_by_length(batch, "rloo", scores, n_bins=2).to_frame()
        >>> frame[["length_low", "length_high", "n_completions", "ratio"]].round(2).to_numpy().tolist()
        [[10.0, 57.0, 198.0, 0.31], [58.0, 99.0, 202.0, 0.67]]
    """
    if n_bins < 1:
        raise ValueError(f"n_bins={n_bins} must be at least 1")
    chosen = families.get(estimator)
    if chosen.across_groups:
        raise ValueError(f"{chosen.label} is a batch-level estimator: choose a group-level one, such as 'rloo'")
    lengths = np.sort(comparison_inputs(measured_or_batch, scores, scores_are_sketches).batch.lengths)
    starts = np.unique(lengths[(np.arange(n_bins) * len(lengths)) // n_bins])
    ends = [*(lengths[lengths < start].max() for start in starts[1:]), lengths[-1]]
    bins = np.column_stack([starts, ends])
    with warnings.catch_warnings():  # the rows themselves are NaN where the signal is not resolved
        warnings.simplefilter("ignore", UserWarning)
        comparison = compare(
            measured_or_batch,
            [_OfLengths(chosen, float(low), float(high)) for low, high in bins],
            scores,
            group_size,
            reference=chosen,
            rng=rng,
            scores_are_sketches=scores_are_sketches,
        )
    counts = np.array([((lengths >= low) & (lengths <= high)).sum() for low, high in bins])
    return LengthBins(chosen.label, bins, counts, comparison)
