"""The variance of estimators, block by block of the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.stats.printed import Printed
from gradstats.stats.variance.notes import notes_of_each
from gradstats.stats.variance.quantities import JUDGED
from gradstats.stats.variance.variance_comparison import VarianceComparison


@dataclass(frozen=True, repr=False)
class VarianceByBlock(Printed):
    r"""The variance of estimators of the gradient with respect to each block of parameters alone.

    With the gradient in blocks, :math:`\mathrm{tr\,Cov}(ĝ) = \sum_b \mathrm{tr\,Cov}(ĝ_b)`: ``trace_cov`` says
    where an estimator's noise lies, and ``ratio`` which blocks' noise it reduces. The weights of completions are those
    of the whole in every block.

    Attributes:
        comparisons: block → the comparison of the estimators on it, in the order of the measurement's blocks.
    """

    printed_columns: ClassVar[tuple[str, ...]] = ("block", "estimator", "trace_cov", "ratio", JUDGED.name, "cosine")

    comparisons: Mapping[str, VarianceComparison]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the table has to know, one sentence each; those of one block with its name."""
        return tuple(notes_of_each([one.notes for one in self.comparisons.values()], list(self.comparisons)))

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return ``block`` and the columns of :meth:`gradstats.stats.VarianceComparison.to_frame`, block by block.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        frames = [one.to_frame(confidence_level) for one in self.comparisons.values()]
        attrs = {name: value for name, value in frames[0].attrs.items() if name != "lowest_beyond_doubt"}
        for block, frame in zip(self.comparisons, frames, strict=True):
            frame.insert(0, "block", block)
            frame.attrs = {}  # lists in them cannot be compared when frames are joined
        frame = pd.concat(frames, ignore_index=True)
        frame.attrs |= attrs | {"notes": list(self.notes)}
        return frame
