"""Which lengths make up the gradient and its noise?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from jaxtyping import Int

from gradstats import estimators as families
from gradstats.analyses.declaration import (
    Analysis,
    AnalysisFigure,
    Column,
    Ranking,
    chosen,
    group_level_estimators,
    missing_sketches,
    size_of_groups,
)
from gradstats.analyses.numbers import percent, percentage
from gradstats.analyses.results import RemarkedResult
from gradstats.analyses.variance import COLUMNS, VarianceComparison, compare_at_group_size
from gradstats.analyses.variance_notes import about_target, why_not_judged, why_silent
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.config.options import Target as AskedTarget
from gradstats.estimators import Batch
from gradstats.estimators.by_label import get_all
from gradstats.estimators.estimator import Weighting, Wrapped
from gradstats.plots.length_scaling import plot_length_bins
from gradstats.plots.shares import SHARES, lines_of_units, plot_shares
from gradstats.stats.intervals import FiellerRatio, fieller_ratio
from gradstats.stats.jackknife import NOT_ESTIMATED, interval_columns
from gradstats.stats.protocols import MeasuredGradients
from gradstats.stats.variance.best_set import pairwise_differences
from gradstats.stats.variance.inputs import (
    expect_parts,
    pooled,
    prepared_inputs,
    refuse_batch_level,
    target_of,
)
from gradstats.stats.variance.moments import PromptMoments, cross_signal, shuffled_prompts, split_into_groups
from gradstats.stats.variance.pools import PooledCompletions, Weighted
from gradstats.stats.variance.quantities import JUDGED
from gradstats.stats.variance.shares import (
    GradientShares,
    ResolvedRatio,
    equal_count_bins,
    gradient_shares,
    inside_bins,
)
from gradstats.system.lazy_imports import pd

if TYPE_CHECKING:
    from gradstats.config.experiment import Experiment
    from gradstats.measurement.measurement import Measurement


#: What bins, by lengths or by success rates, make up of a gradient: column → meaning and heading.
SHARE_MEANINGS = {
    "share_of_gradient": ("share of the expected gradient that the bin makes up", SHARES["share_of_gradient"]),
    "share_of_variance": (
        "share of tr Cov: the covariance of the bin's part with the whole",
        SHARES["share_of_variance"],
    ),
}


def _share_columns(shares: GradientShares, confidence_level: float) -> dict[str, float]:
    """Return both shares with their ``_low`` and ``_high``."""
    return interval_columns(dict(zip(SHARES, shares.with_intervals(confidence_level), strict=True)))


@dataclass(frozen=True)
class _OfLengths(Wrapped[Weighting]):
    """An estimator whose completions outside a range of lengths get no weight; baselines still see the whole group."""

    low: float
    high: float

    @property
    def label(self) -> str:
        return f"{self.estimator.label} of {self.low:g} to {self.high:g} tokens"

    @property
    def composition(self) -> str:
        return self.label

    def same_part(self, other: Weighting) -> Weighting:
        """Return what completions of these lengths contribute to another estimator."""
        return replace(self, estimator=other)

    def expected_scale(self, group_size: int) -> float | None:
        """None: the contribution of some lengths is not a known multiple of the gradient."""
        return None

    def weights(self, batch: Batch) -> np.ndarray:
        weights = self.estimator.weights(batch)
        inside = (batch.lengths >= self.low) & (batch.lengths <= self.high)
        return np.where(inside if weights.ndim == 1 else inside[:, None], weights, 0.0)


@dataclass(frozen=True, repr=False)
class LengthBins(RemarkedResult):
    r"""The noise and signal of :math:`g^b = \sum_{i:\,T_i \in b} w_i S_i`, the gradient from completions of lengths b.

    Attributes:
        estimators: labels.
        bins: (n, 2) smallest and greatest length of each bin, in tokens, both inside.
        n_completions: (n,) completions in each.
        comparison: a row for each estimator and bin, with ratios to the whole estimator.
        scales: of each row, what its expected gradient keeps of the target's; None without a gradient.
        shares: of each row, what it makes up of the expected gradient and of the variance.
        reference: the estimator of the sentence and of the figure.
    """

    question: ClassVar[str] = "length_bins"

    printed_columns: ClassVar[tuple[str, ...]] = (
        "estimator", "length", "n_completions", "share_of_gradient", "share_of_variance", "ratio",
    )  # fmt: skip

    estimators: tuple[str, ...]
    bins: np.ndarray
    n_completions: np.ndarray
    comparison: VarianceComparison
    scales: tuple[FiellerRatio | None, ...]
    shares: tuple[GradientShares, ...]
    reference: str

    @property
    def remarks(self) -> tuple[str, ...]:
        """What may be said of it, one sentence each."""
        return self.comparison.remarks

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return one row per estimator and bin: lengths, ``scale``, shares, and the columns of ``compare``.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        frame = self.comparison.to_frame(confidence_level)
        scales = [
            interval_columns({"scale": ResolvedRatio(scale).with_interval(confidence_level)}) for scale in self.scales
        ]
        columns = {
            "length_low": np.tile(self.bins[:, 0], len(self.estimators)),
            "length_high": np.tile(self.bins[:, 1], len(self.estimators)),
            "n_completions": np.tile(self.n_completions, len(self.estimators)),
            **pd.DataFrame(scales),
            **pd.DataFrame([_share_columns(one, confidence_level) for one in self.shares]),
        }
        for place, (name, column) in enumerate(columns.items(), start=1):
            frame.insert(place, str(name), column)
        return frame.assign(estimator=np.repeat(self.estimators, len(self.bins)).tolist())

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State which lengths make up most of the variance of the reference, and how much of its gradient."""
        first = len(self.bins) * self.estimators.index(self.reference)
        shares = [_share_columns(one, confidence_level) for one in self.shares[first : first + len(self.bins)]]
        known = [at for at, one in enumerate(shares) if np.isfinite(one["share_of_variance"])]
        if not known:
            return f"No share of the variance of {self.reference} could be estimated."
        most = max(known, key=lambda at: shares[at]["share_of_variance"])
        low, high = self.bins[most]
        variance, gradient = (
            [shares[most][f"{name}{end}"] for end in ("", "_low", "_high")]
            for name in ("share_of_variance", "share_of_gradient")
        )
        told = (
            f"The {self.n_completions[most] / self.n_completions.sum():.0%} of completions with {low:,}–{high:,} "
            f"tokens make up {percentage(*variance)} of the variance of {self.reference}"
        )
        # Outside its range a share is not resolved.
        resolved_share = all(np.isfinite(gradient)) and 0.0 <= gradient[0] <= 1.0
        return f"{told} and {percentage(*gradient)} of its gradient." if resolved_share else f"{told}."


def variance_by_length(
    measured_or_batch: Batch | MeasuredGradients,
    estimators: Sequence[str | Weighting] | str | Weighting,
    scores: npt.ArrayLike | None = None,
    n_bins: int = 4,
    group_size: int | None = None,
    rng: int | np.random.Generator | None = 0,
    *,
    reference: str = "rloo",
    target: AskedTarget = "auto",
    prompts_per_batch: int | None = None,
    scores_are_sketches: bool | None = None,
) -> LengthBins:
    r"""Split estimators' gradients by completion length, and estimate noise, signal and bias of each bin.

    :math:`g_m = \sum_b g_m^b` with :math:`g_m^b = \sum_{i \in m,\, T_i \in b} w_i S_i`: the weights are those of the
    whole group, and completions of other lengths are left out of the sum. Each bin is then a gradient estimator in
    itself, with the ``trace_cov``, ``signal_sq`` and ``noise_to_signal`` of :func:`gradstats.compare`; ``ratio`` is its
    share of the ``trace_cov`` of the whole (bins of one group covary, so that shares need not sum to 1).

    **Bias by length.** Each bin is judged against what completions of the same lengths contribute to the target,
    :math:`G^b`: ``scale`` is :math:`⟨E g^b, G^b⟩/‖G^b‖²` with its Fieller set, 1 where the estimator keeps the gradient
    of these lengths, 0 where it drops it, and more where it gives them more weight than others; ``cosine`` and
    ``matched_bias_share`` are of the bin against :math:`G^b`. ``matched_ratio`` is not defined for parts and NaN.

    **Shares.** ``share_of_gradient`` is :math:`⟨E g^b, E g⟩/‖E g‖²` and ``share_of_variance`` the covariance of
    :math:`g^b` with g over tr Cov(g); both sum to 1 over the bins
    (:func:`gradstats.stats.variance.shares.gradient_shares`). They have no unit, so that an aggregation that
    divides by the length can be compared with a plain sum.

    Args:
        measured_or_batch: as in :func:`gradstats.compare`.
        estimators: whose gradients are split in the same bins; labels or objects of group-level ones, or only one.
        scores: as in :func:`gradstats.compare`.
        n_bins: bins of about equally many completions; fewer where lengths tie.
        group_size: as in :func:`gradstats.compare`.
        rng: for estimating the sketch's error.
        reference: the estimator of the sentence and of the figure; the first where it is not among these.
        target: as in :func:`gradstats.compare`.
        prompts_per_batch: prompts of a batch, for the share of bias; 128 by default.
        scores_are_sketches: as in :func:`gradstats.compare`.

    Returns:
        A :class:`LengthBins`; where a bin's signal is not resolved, its ``noise_to_signal`` is NaN with a lower end.

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
    chosen = get_all([estimators] if isinstance(estimators, (str, Weighting)) else estimators)
    refuse_batch_level(chosen)
    inputs, prepared, judged = prepared_inputs(measured_or_batch, chosen, scores, scores_are_sketches, target)
    generator = np.random.default_rng(rng)
    prompts = shuffled_prompts(inputs.batch.group_index, generator)
    groups = split_into_groups(prompts, inputs.order, group_size)
    pool = pooled(inputs, groups, prepared, generator.spawn(1)[0], judged, prompts_per_batch)
    bins = equal_count_bins(inputs.batch.lengths, n_bins)
    counts = np.array([inside.sum() for inside in inside_bins(inputs.batch.lengths, bins)])
    inside = inside_bins(pool.batch.lengths, bins)
    expect_parts(pool, prepared, judged, inside)
    for whole in prepared:
        parts = [(part, target_of(pool, judged, part.same_part)) for part in _parts(whole, bins)]
        pool.form([whole], [of_target for _, of_target in parts], inside)
        for part, of_target in parts:
            pool.form([part], [of_target])
    labels = tuple(one.label for one in chosen)
    rows, notes, scales, shares = [], [], [], []
    for label, whole in zip(labels, prepared, strict=True):
        parts = _parts(whole, bins)
        comparison, _ = compare_at_group_size(inputs, pool, parts, whole, judged)
        rows += [
            replace(row, quantities={**row.quantities, JUDGED.name: NOT_ESTIMATED}, signal_parts=None)
            for row in comparison.rows
        ]
        if all(row.kept_share.value == 0.0 for row in comparison.rows):
            notes.append(f"{why_silent(pool)}, so {label} gives every completion weight 0 and its rows are NaN")
        _, of_parts = gradient_shares(pool, whole, inside)
        shares += of_parts
        scales += [
            _scale(pool, pool.weights(part), share.part, target_of(pool, judged, part.same_part))
            for part, share in zip(parts, of_parts, strict=True)
        ]
    of_sentence = families.get(reference).label
    of_sentence = of_sentence if of_sentence in labels else labels[0]
    comparison = replace(
        comparison,
        rows=tuple(rows),
        reference=of_sentence,
        remarks=tuple(filter(None, [*notes, why_not_judged(judged), about_target(judged)])),
        # Intervals that hold for all bins at once are those of one estimator.
        differences=(pairwise_differences([None] * len(bins)),) * len(labels),
        prompt_labels=comparison.prompt_labels * len(labels),
    )
    return LengthBins(labels, bins, counts, comparison, tuple(scales), tuple(shares), of_sentence)


def _parts(whole: Weighting, bins: Int[np.ndarray, "bins ends"]) -> list[_OfLengths]:
    """Return the parts of an estimator in each bin."""
    return [_OfLengths(whole, float(low), float(high)) for low, high in bins]


def _scale(
    pool: PooledCompletions, weights: np.ndarray, mine: PromptMoments | None, theirs: Weighted
) -> FiellerRatio | None:
    """Return what the expected gradient of a bin keeps of the target's; None where one of them has no weights."""
    if theirs.moments is None or not np.isfinite(weights).all():
        return None
    if mine is None:  # the estimator drops all completions of these lengths
        return fieller_ratio(theirs.moments.signal.scaled(0.0), theirs.moments.signal)
    if np.array_equal(weights, theirs.weights):
        return fieller_ratio(theirs.moments.signal, theirs.moments.signal)
    return fieller_ratio(cross_signal(mine, theirs.moments, pool.sketch_error), theirs.moments.signal)


def _in_run(measured: Measurement, experiment: Experiment) -> dict[str, Any] | None:
    """Ask of the reference, which comes first, and of each estimator that is split by length."""
    section = experiment.variance
    chosen = group_level_estimators(measured, section, dict.fromkeys([section.reference, *section.estimators]))
    shared = {name: getattr(section, name) for name in ("reference", "target", "prompts_per_batch")}
    asked = {"estimators": chosen, "rng": section.seed, **shared}
    return asked if chosen else None


def _of_reference(bins: pd.DataFrame) -> pd.DataFrame | None:
    """Return the bins of the reference, or of the first estimator that is shown; None where no noise is known."""
    of_reference = bins["estimator"] == bins.attrs.get("reference")
    bins = bins.loc[of_reference if of_reference.any() else bins["estimator"] == bins["estimator"].iloc[0]]
    return bins if np.isfinite(bins["noise_to_signal_low"].to_numpy(dtype=float)).any() else None


def _of_units(bins: pd.DataFrame) -> pd.DataFrame | None:
    """Return a line for each unit; None where less than two have resolved shares, which would show no difference."""
    return lines_of_units(bins, fewest_resolved=2)


def _caption(frame: pd.DataFrame) -> str:
    return (
        f"Gradients of completions by length{size_of_groups(frame, ', in groups of ')}, with "
        f"{percent(frame.attrs['confidence_level'])} intervals over prompts, judged against what completions of the "
        "same lengths contribute to the target; the scale kept is 1 where the estimator keeps their gradient, 0 where "
        "it drops it."
    )


def _row_name(row: dict[str, Any]) -> str:
    lengths = f"{row['length_low']:g}–{row['length_high']:g} tokens"
    return f"{row['estimator']}, {lengths} (n = {row['n_completions']:,})"


ANALYSIS = Analysis(
    name="length_bins",
    ask=variance_by_length,
    unavailable_because=missing_sketches,
    options=("estimators", "n_bins", "group_size", "reference", "target", "prompts_per_batch", "rng"),
    columns=(
        Column("n_completions", "completions of these lengths"),
        Column("length", "range of lengths", estimated=True),
        Column("scale", "what their expected gradient keeps of the target's", "scale kept", estimated=True),
        *(Column(name, *about, estimated=True, short=True) for name, about in SHARE_MEANINGS.items()),
        *chosen(
            COLUMNS,
            {"matched_bias_share": "matched bias", "cosine": "cosine", "noise_to_signal": "noise to signal"},
        ),
    ),
    ranking=Ranking("share_of_variance", most_first=True, in_blocks=True, scale="scale"),
    row_heading="estimator",
    row_name=_row_name,
    caption=_caption,
    in_run=_in_run,
    figures=(
        AnalysisFigure(
            "length_bins",
            "Noise to signal of the reference's gradient contributed by completions of each range of lengths.",
            plot_length_bins,
            rows=_of_reference,
        ),
        AnalysisFigure(
            "length_shares",
            "Share of the expected gradient that completions of each range of lengths make up, by aggregation.",
            plot_shares,
            rows=_of_units,
        ),
    ),
)
