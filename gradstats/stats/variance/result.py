"""What a comparison of variances returns, which estimators may be the lowest, and the same by block of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

from gradstats.config.options import CONFIDENCE_LEVEL, EUCLIDEAN
from gradstats.stats.intervals import N_RESAMPLES, studentised_means
from gradstats.stats.jackknife import Interval, Statistic, require_level
from gradstats.stats.numbers import Limits
from gradstats.stats.printed import Printed
from gradstats.stats.variance.estimates import matched_ratio_simultaneous, ratio_simultaneous
from gradstats.stats.variance.inputs import ON_POLICY, TargetChoice
from gradstats.stats.variance.notes import notes_of_each
from gradstats.stats.variance.quantities import COMPARED, JUDGED, QUANTITIES, EstimatorVariance, with_ends
from gradstats.system.late import pd

#: Entry of a comparison's ``.attrs`` where rows have no relative noise: how many prompts would give them one, or None.
NEEDED = "prompts_to_resolve"
# Logarithms of variances that differ by less are the same: what is left is rounding, or a constant such as the ε of a
# division, which no one would choose an estimator by.
TIE = 1e-5
#: Relative difference below which the numbers of two estimators are those of the same one at another scale.
EQUAL = 1e-6


def equal_by_construction(triples: Sequence[Sequence[float]]) -> list[list[int]]:
    """Return the places of rows of numbers, those of equal ones together, in order of appearance.

    >>> equal_by_construction([(1, 1, 1), (2, 1, 3), (1, 1, 1)])
    [[0, 2], [1]]
    """
    groups: list[list[int]] = []
    for at, triple in enumerate(triples):
        for group in groups:
            if np.allclose(triples[group[0]], triple, rtol=EQUAL, atol=0.0, equal_nan=True):
                group.append(at)
                break
        else:
            groups.append([at])
    return groups


@dataclass(frozen=True)
class PairwiseDifferences:
    """Studentised differences of all pairs of estimators, and the distribution of the largest deviation."""

    # (log V_e − log V_f)/se, with V the variance at matched signal; 0 for a tie, NaN where one of them is not known.
    studentised: Float[np.ndarray, "e e"]
    largest: Float[np.ndarray, " resamples"]  # studentised deviation over all pairs, in each resample of the prompts

    def known(self, judged: Bool[np.ndarray, " e"]) -> Bool[np.ndarray, " e"]:
        """Return which of the judged estimators have a variance at matched signal to compare."""
        return judged & np.isfinite(np.diag(self.studentised))

    def best_set(self, judged: Bool[np.ndarray, " e"], confidence_level: float) -> Bool[np.ndarray, " e"]:
        """Return whether each estimator belongs to the set that holds the truly lowest one, at this level.

        An estimator is left out where another one is lower by more than the quantile of the largest difference: the
        truly lowest is left out only if that difference is exceeded by chance (Hsu 1984, with the quantile from a
        studentised bootstrap over prompts).
        """
        level = require_level(confidence_level)
        known = self.known(judged)
        above = self.studentised[:, known] > (np.nanquantile(self.largest, level) if known.sum() > 1 else np.inf)
        return known & ~above.any(axis=1)

    def placed(self, places: Sequence[int], n: int) -> PairwiseDifferences:
        """Return the same among n rows, of which those at other places are not known."""
        studentised = np.full((n, n), np.nan)
        studentised[np.ix_(places, places)] = self.studentised
        return PairwiseDifferences(studentised, self.largest)


def pairwise_differences(matched: Sequence[Statistic | None]) -> PairwiseDifferences:
    """Compare the variances at matched signal of E estimators on the same prompts."""
    n = len(matched)
    studentised = np.full((n, n), np.nan)
    usable = {
        at: one
        for at, one in enumerate(matched)
        if one is not None and one.value > 0 and np.isfinite(one.replicates).all()
    }
    studentised[[*usable], [*usable]] = 0.0
    relative = {at: one.in_units_of_itself() for at, one in usable.items()}
    influences = []
    for first, second in combinations(usable, 2):
        one, other = usable[first], usable[second]
        difference = float(np.log(one.value / other.value))
        stderr = float(np.sqrt((one / other).logarithm().variance()))
        score = 0.0
        if abs(difference) >= TIE:
            score = difference / stderr if stderr > 0 else float(np.copysign(np.inf, difference))
        studentised[first, second], studentised[second, first] = score, -score
        if score and stderr > 0:
            influences.append((relative[first] - relative[second]).pseudo_values)
    largest = np.zeros(N_RESAMPLES)
    if influences:
        draws = np.abs(studentised_means(np.stack(influences, axis=1)))
        largest = np.nan_to_num(draws, nan=0.0).max(axis=1)
    return PairwiseDifferences(studentised, largest)


@runtime_checkable
class Comparison(Protocol):
    """An object that has the frame of a variance comparison, at any level."""

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return a frame with one row per estimator."""
        ...


def frame_of(comparison: Comparison | pd.DataFrame, confidence_level: float | None) -> pd.DataFrame:
    """Return the frame of a comparison, or the frame itself."""
    if isinstance(comparison, pd.DataFrame):
        return comparison
    return comparison.to_frame() if confidence_level is None else comparison.to_frame(confidence_level)


def lowest(comparison: Comparison | pd.DataFrame) -> str | None:
    """Label of the estimator with the lowest relative noise; None where no estimator's is known."""
    frame = frame_of(comparison, None)
    values = frame[JUDGED.name].to_numpy(dtype=float) if JUDGED.name in frame else np.empty(0)
    if not np.isfinite(values).any():
        return None
    return str(frame["estimator"].iloc[int(np.nanargmin(values))])


def rows_in_best_set(frame: pd.DataFrame) -> list[int]:
    """Return the positions of the rows whose ``in_best_set`` is true; what is missing there was not judged."""
    return np.flatnonzero(frame["in_best_set"].eq(True)).tolist()


def lowest_beyond_doubt(frame: pd.DataFrame) -> str | None:
    """Label of the only estimator in the best set of a comparison, where every row with a gradient is judged."""
    values = frame[["trace_cov", JUDGED.name]].to_numpy(dtype=float)
    # An estimator without a gradient, or whose inputs were not measured, has a row and no part in the comparison.
    judged = bool((np.isfinite(values[:, 1]) | np.isnan(values[:, 0])).all())
    if len(frame) < 2 or not judged or frame["estimator"].duplicated().any():
        return None
    best = rows_in_best_set(frame)
    return str(frame["estimator"].iloc[best[0]]) if len(best) == 1 else None


def clear_winner(frame: pd.DataFrame, paired: pd.DataFrame | None = None) -> int | None:
    """Return the position of the row that is lowest beyond doubt, as far as frames show it.

    Args:
        frame: of a comparison.
        paired: of the same comparison with the lowest estimator as reference. Without it the question is settled only
            where the lowest estimator is the reference, or one of two rows of which the other is.

    Raises:
        ValueError: when ``paired`` has another reference, or other rows.
    """
    best = lowest(frame)
    if best is None or len(frame) < 2 or frame["estimator"].duplicated().any():
        return None
    at = [str(name) for name in frame["estimator"]].index(best)
    if paired is not None:
        if paired.attrs.get("reference") != best:
            raise ValueError(
                f"paired has the reference {paired.attrs.get('reference')!r}, and {best!r} is the lowest: compare "
                f"again with reference={best!r}"
            )
        if list(paired["estimator"]) != list(frame["estimator"]):
            raise ValueError("paired holds other estimators than the table: compare the same ones")
        others = paired[f"{JUDGED.name}_low"].drop(paired.index[at])
        return at if bool((others > 1.0).all()) else None
    if frame.attrs.get("reference") == best:
        return clear_winner(frame, frame)
    if len(frame) == 2 and frame["estimator"].iloc[1 - at] == frame.attrs.get("reference"):
        return at if bool(frame[f"{JUDGED.name}_high"].iloc[at] < 1.0) else None
    return None


def best_rows(frame: pd.DataFrame, paired: pd.DataFrame | None = None) -> list[int]:
    """Positions of the best set, as a frame gives it; without that column, of the row that is lowest beyond doubt."""
    if paired is None and "in_best_set" in frame:
        return rows_in_best_set(frame)
    if paired is not None or "lowest_beyond_doubt" not in frame.attrs:
        winner = clear_winner(frame, paired)
        return [] if winner is None else [winner]
    best = frame.attrs["lowest_beyond_doubt"]
    return [at for at, name in enumerate(frame["estimator"]) if str(name) == best]


@dataclass(frozen=True)
class GroupSplit:
    """How the completions were split into groups of one size."""

    group_size: int | None  # None when prompts have different numbers of completions and all were used
    n_prompts: int  # that fill at least one group, the independent units
    n_groups: int
    n_leftover: int  # completions that filled no group
    n_completions: int  # in groups
    mean_length: float  # of these, in tokens


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
    printed_limits: ClassVar[Mapping[str, Limits]] = {name: quantity.limits for name, quantity in QUANTITIES.items()}

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
        frame = self.to_frame(confidence_level)
        return frame[f"{quantity}_low"].to_numpy(), frame[f"{quantity}_high"].to_numpy()

    def lowest(self, confidence_level: float = CONFIDENCE_LEVEL) -> str | None:
        """Label of the estimator with the lowest relative noise; None where none is resolved."""
        return lowest(self.to_frame(confidence_level))

    def lowest_beyond_doubt(self, confidence_level: float = CONFIDENCE_LEVEL) -> str | None:
        """Label of the only estimator in the best set, where every row is judged, else None."""
        return self.to_frame(confidence_level).attrs["lowest_beyond_doubt"]

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per estimator: ``estimator, group_size, unit, components``, each quantity with ``_low``, ``_high``.

        Then follow ``ratio_simultaneous_low`` and ``ratio_simultaneous_high``, between which the ratios of all rows of
        a group size lie at once, and the same of ``matched_ratio``; ``in_best_set``, whether the estimator may have the
        lowest variance at matched signal (None for rows without a relative noise, which are not judged);
        ``n_effective_prompts``, how many prompts of equal squared gradients the variance is worth; and
        ``most_influential_prompt``, without which it changes most.
        ``.attrs`` hold how the comparison was made, and as ``lowest_beyond_doubt`` which estimator is lowest.

        Raises:
            ValueError: for a level outside (0, 1).
        """
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
        frame.attrs["lowest_beyond_doubt"] = lowest_beyond_doubt(frame)
        if not judged.all():
            frame.attrs[NEEDED] = self._prompts_to_resolve(judged, confidence_level)
        return frame

    def _prompts_to_resolve(self, judged: Bool[np.ndarray, " e"], confidence_level: float) -> int | None:
        """Return how many prompts would give every row without a relative noise one; None where that cannot be said."""
        needed = [
            row.signal_components.prompts_to_resolve(row.signal_sq.value, row.signal_sq.value, confidence_level)
            for row, is_judged in zip(self.rows, judged, strict=True)
            if not is_judged and row.signal_components is not None and row.trace_cov.value > 0
        ]
        most = max(needed, default=np.inf)
        return int(most) if np.isfinite(most) else None

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
            records.append(record | with_ends(quantities))
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


@dataclass(frozen=True, repr=False)
class VarianceByBlock(Printed):
    r"""The variance of estimators of the gradient with respect to each block of parameters alone.

    With the gradient in blocks, :math:`\mathrm{tr\,Cov}(ĝ) = \sum_b \mathrm{tr\,Cov}(ĝ_b)`: ``trace_cov`` says
    where an estimator's noise lies, and ``ratio`` which blocks' noise it reduces. The weights of completions are those
    of the whole in every block.
    """

    printed_columns: ClassVar[tuple[str, ...]] = ("block", "estimator", "trace_cov", "ratio", JUDGED.name, "cosine")

    # block → the comparison of the estimators on it, in the order of the measurement's blocks
    comparisons: Mapping[str, VarianceComparison]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the table has to know, one sentence each; those of one block with its name."""
        return tuple(notes_of_each([one.notes for one in self.comparisons.values()], list(self.comparisons)))

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return ``block`` and the columns of :meth:`gradstats.stats.VarianceComparison.to_frame`, block by block."""
        frames = [one.to_frame(confidence_level) for one in self.comparisons.values()]
        attrs = {name: value for name, value in frames[0].attrs.items() if name != "lowest_beyond_doubt"}
        for block, frame in zip(self.comparisons, frames, strict=True):
            frame.insert(0, "block", block)
            frame.attrs = {}  # lists in them cannot be compared when frames are joined
        frame = pd.concat(frames, ignore_index=True)
        frame.attrs |= attrs | {"notes": list(self.notes)}
        return frame
