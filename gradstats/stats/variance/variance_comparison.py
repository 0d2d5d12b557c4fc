"""The table of a variance comparison: its rows, intervals and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.config.metrics import EUCLIDEAN
from gradstats.stats.jackknife import Interval
from gradstats.stats.printed import Printed
from gradstats.stats.variance.best_set import PairwiseDifferences
from gradstats.stats.variance.matched_ratio_simultaneous import matched_ratio_simultaneous
from gradstats.stats.variance.quantities import COMPARED, JUDGED
from gradstats.stats.variance.ratio_simultaneous import ratio_simultaneous
from gradstats.stats.variance.row import EstimatorVariance
from gradstats.stats.variance.target import ON_POLICY, TargetChoice
from gradstats.stats.variance.winner import lowest, lowest_beyond_doubt


@dataclass(frozen=True)
class GroupSplit:
    """How the completions were split into groups of one size.

    Attributes:
        group_size: completions per group; None when prompts have different numbers and all were used.
        n_prompts: prompts that fill at least one group, the independent units.
        n_groups: number of groups.
        n_leftover: completions that filled no group.
        n_completions: completions in groups.
        mean_length: their tokens, on average.
    """

    group_size: int | None
    n_prompts: int
    n_groups: int
    n_leftover: int
    n_completions: int
    mean_length: float


@dataclass(frozen=True, repr=False)
class VarianceComparison(Printed):
    r"""The variance :math:`\mathrm{tr\,Cov}(ĝ)`, bias and cosine of several estimators; ``.to_frame()`` is the table.

    Attributes:
        rows: one entry per estimator, in the order asked for, group size by group size.
        splits: the split into groups, one for each group size.
        reference: label of the estimator in the denominator of ratios.
        prompts_per_batch: B in ``bias_share``.
        sketch_dim: dimension of the random projection; None for exact scores.
        target: what bias, cosine and matched variances are judged against.
        notes: what a reader of the table has to know, one sentence each.
        differences: the estimators of each group size, compared pair by pair.
        prompt_labels: what the prompts of each group size are called.
        max_grad_norm: the norm that gradients of batches are clipped to; None without clipping.
        metric: label of the metric that gradients were measured in, ``"euclidean"`` or ``"adam(…)"``.
    """

    printed_columns: ClassVar[tuple[str, ...]] = ("estimator", "trace_cov", "ratio", "matched_ratio", "cosine")

    rows: tuple[EstimatorVariance, ...]
    splits: tuple[GroupSplit, ...]
    reference: str
    prompts_per_batch: int
    sketch_dim: int | None
    target: TargetChoice = field(default=ON_POLICY)
    notes: tuple[str, ...] = field(default=())
    differences: tuple[PairwiseDifferences, ...] = field(default=(), repr=False, compare=False)
    prompt_labels: tuple[np.ndarray, ...] = field(default=(), repr=False, compare=False)
    max_grad_norm: float | None = None
    metric: str = EUCLIDEAN

    @property
    def group_size(self) -> int | tuple[int | None, ...] | None:
        """Completions per group; a tuple for several sizes."""
        sizes = tuple(split.group_size for split in self.splits)
        return sizes[0] if len(sizes) == 1 else sizes

    @property
    def n_prompts(self) -> int:
        """Prompts that fill at least one group of every size."""
        return min(split.n_prompts for split in self.splits)

    @property
    def n_groups(self) -> int:
        """Groups, summed over all sizes."""
        return sum(split.n_groups for split in self.splits)

    @property
    def n_leftover(self) -> int:
        """Completions that filled no group, over all sizes."""
        return sum(split.n_leftover for split in self.splits)

    def confidence_interval(
        self, confidence_level: float = CONFIDENCE_LEVEL, quantity: str = "trace_cov"
    ) -> tuple[Float[np.ndarray, " estimators"], Float[np.ndarray, " estimators"]]:
        """Return the interval of one quantity for every estimator, ``(low, high)``.

        Raises:
            ValueError: for an unknown quantity, or a level outside (0, 1).
        """
        names = [one.name for one in COMPARED]
        if quantity not in names:
            raise ValueError(f"quantity={quantity!r} is not estimated: choose from {', '.join(names)}")
        frame = self._frame(confidence_level)
        return frame[f"{quantity}_low"].to_numpy(), frame[f"{quantity}_high"].to_numpy()

    def lowest(self, confidence_level: float = CONFIDENCE_LEVEL) -> str | None:
        """Label of the estimator with the lowest matched ratio; None where none is resolved."""
        return lowest(self._frame(confidence_level))

    def lowest_beyond_doubt(self, confidence_level: float = CONFIDENCE_LEVEL) -> str | None:
        """Label of the only estimator in the best set, where every row is judged, else None."""
        return lowest_beyond_doubt(self._frame(confidence_level))

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per estimator: ``estimator, group_size, unit, components``, each quantity with ``_low``, ``_high``.

        Then follow ``ratio_simultaneous_low`` and ``ratio_simultaneous_high``, between which the ratios of all rows of
        a group size lie at once, and the same of ``matched_ratio``; ``in_best_set``, whether the estimator may have the
        lowest variance at matched signal (None for rows without a matched ratio, which are not judged);
        ``n_effective_prompts``, how many prompts of equal squared gradients the variance is worth; and
        ``most_influential_prompt``, without which it changes most.
        ``.attrs`` hold how the comparison was made, and as ``lowest_beyond_doubt`` which estimator is lowest.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        frame = self._frame(confidence_level)
        frame.attrs["lowest_beyond_doubt"] = lowest_beyond_doubt(frame)
        return frame

    def _frame(self, confidence_level: float) -> pd.DataFrame:
        frame = self._table([row.intervals(confidence_level) for row in self.rows], confidence_level)
        judged = np.isfinite(frame[JUDGED.name].to_numpy(dtype=float))
        ends: dict[str, list[tuple[float, float]]] = {"ratio": [], JUDGED.name: []}
        best: list[bool | None] = []
        influential = []
        for differences, labels in zip(self.differences, self.prompt_labels, strict=True):
            rows = slice(len(best), len(best) + len(differences.studentised))
            of_size = self.rows[rows]
            ends["ratio"] += ratio_simultaneous([row.ratio for row in of_size], confidence_level)
            ends[JUDGED.name] += matched_ratio_simultaneous([row.matched_ratio for row in of_size], confidence_level)
            inside, known = differences.best_set(judged[rows], confidence_level), differences.known(judged[rows])
            best += [bool(one) if is_known else None for one, is_known in zip(inside, known, strict=True)]
            places = [row.most_influential for row in of_size]
            influential += [None if place is None else labels[place] for place in places]
        for name, intervals in ends.items():
            frame[f"{name}_simultaneous_low"], frame[f"{name}_simultaneous_high"] = np.array(intervals).T
        frame["in_best_set"] = best
        frame["n_effective_prompts"] = [row.n_effective_prompts for row in self.rows]
        frame["most_influential_prompt"] = influential
        return frame

    def _table(self, intervals: Sequence[dict[str, Interval]], confidence_level: float) -> pd.DataFrame:
        """Return one row per estimator with its quantities, and in ``.attrs`` how the comparison was made."""
        records = []
        for row, quantities in zip(self.rows, intervals, strict=True):
            record: dict[str, object] = {
                "estimator": row.label,
                "group_size": np.nan if row.group_size is None else row.group_size,
                "unit": row.unit,
                "components": row.components,
                "target": self.target.kind,
            }
            for quantity, (value, low, high) in quantities.items():
                record |= {quantity: value, f"{quantity}_low": low, f"{quantity}_high": high}
            records.append(record)
        frame = pd.DataFrame(records)
        frame.attrs |= {
            "reference": self.reference,
            "confidence_level": confidence_level,
            "prompts_per_batch": self.prompts_per_batch,
            **({} if self.max_grad_norm is None else {"max_grad_norm": self.max_grad_norm}),
            "n_prompts": self.n_prompts,
            "n_groups": self.n_groups,
            "n_leftover": self.n_leftover,
            "sketch_dim": self.sketch_dim,
            **self.target.attributes(confidence_level),
            "metric": self.metric,
            "notes": list(self.notes),
        }
        return frame

    def variance_components(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Split ``trace_cov`` into the variance within prompts and the variance between prompts.

        The variance within prompts falls as groups grow, the variance between prompts does not.

        Returns:
            One row per estimator: ``estimator, group_size, unit``, ``within_prompt`` and ``between_prompt`` with
            their ``_low`` and ``_high``; NaN for batch-level estimators, and for group sizes at which every prompt has
            a single group. ``.attrs`` hold how the comparison was made.

        Raises:
            ValueError: when every prompt has a single group, whatever the group size.
        """
        if all(split.n_groups == split.n_prompts for split in self.splits):
            raise ValueError(
                "every prompt has a single group, so that variance within and between prompts cannot be separated: "
                "choose a group_size of at most half of a prompt's completions"
            )
        return self._table([row.component_intervals(confidence_level) for row in self.rows], confidence_level)

    #: The name of `variance_components` in version 0.1.
    prompt_parts = variance_components
