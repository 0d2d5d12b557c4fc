"""A quantity of tokens along an axis: position in the completion, distance between tokens, number of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.stats.jackknife import Estimate
from gradstats.stats.printed import Printed


@dataclass(frozen=True, repr=False)
class TokenProfile(Printed):
    """Estimates of one quantity, bin by bin, each with an interval clustered by prompt.

    Attributes:
        quantity: what is estimated.
        axis: what the bins divide: ``"position"`` (from 1), ``"distance"`` or ``"tokens"``.
        first: (bins,) first value of the axis in each bin.
        last: (bins,) last value of it.
        estimates: one per bin.
        n_prompts: (bins,) prompts that each rests on.
    """

    quantity: str
    axis: str
    first: Int[np.ndarray, " bins"]
    last: Int[np.ndarray, " bins"]
    estimates: tuple[Estimate, ...]
    n_prompts: Int[np.ndarray, " bins"]

    @property
    def values(self) -> Float[np.ndarray, " bins"]:
        """The estimates."""
        return np.array([estimate.value for estimate in self.estimates])

    def confidence_interval(
        self, confidence_level: float = CONFIDENCE_LEVEL
    ) -> tuple[Float[np.ndarray, " bins"], Float[np.ndarray, " bins"]]:
        """Return ``(low, high)`` of every bin."""
        ends = np.array([estimate.confidence_interval(confidence_level) for estimate in self.estimates])
        return ends[:, 0], ends[:, 1]

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per bin: ``AXIS_first, AXIS_last``, the quantity with ``_low`` and ``_high``, ``n_prompts``."""
        low, high = self.confidence_interval(confidence_level)
        columns = {
            f"{self.axis}_first": self.first,
            f"{self.axis}_last": self.last,
            self.quantity: self.values,
            f"{self.quantity}_low": low,
            f"{self.quantity}_high": high,
            "n_prompts": self.n_prompts,
        }
        frame = pd.DataFrame(columns)
        frame.attrs["confidence_level"] = confidence_level
        return frame


def doubling_bins(longest: int) -> tuple[Int[np.ndarray, " bins"], Int[np.ndarray, " bins"]]:
    """Return the first and last value of bins 1, 2, 3–4, 5–8, …, the last of which ends at ``longest``."""
    last = np.unique(np.minimum(2 ** np.arange(int(np.ceil(np.log2(max(longest, 1)))) + 1), longest))
    return np.concatenate([[1], last[:-1] + 1]), last
