"""How many prompts does a training step need?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from gradstats import estimators as families
from gradstats.analyses.declaration import (
    Analysis,
    AnalysisFigure,
    Ranking,
    group_level_estimators,
    level_of,
    missing_sketches,
)
from gradstats.analyses.numbers import format_estimate, percentage, percentage_at_most
from gradstats.analyses.results import LevelNote, RemarkedResult, Row, column, estimate
from gradstats.analyses.variance_notes import about_target, remarks_about, warnings_about, why_not_judged
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.config.options import Target as AskedTarget
from gradstats.estimators import Batch
from gradstats.estimators.by_label import get_all
from gradstats.estimators.estimator import Weighting, unit_of
from gradstats.plots.marks import (
    WithFrame,
    as_frame,
    draw_nothing,
    estimates_of,
    legend_below,
    legend_height,
    require_columns,
    with_ends,
)
from gradstats.plots.names import estimator_appearance, names_in, variants
from gradstats.plots.style import stroke
from gradstats.plots.variance import draw_landmark, plain_ticks
from gradstats.stats.intervals import share_saved
from gradstats.stats.jackknife import Estimated, Interval, Statistic, mean_statistic
from gradstats.stats.protocols import MeasuredGradients
from gradstats.stats.variance.alignment import Alignment, CriticalBatch, alignment_at
from gradstats.stats.variance.best_set import equal_by_construction
from gradstats.stats.variance.inputs import TargetChoice, pooled, prepared_inputs, target_of
from gradstats.stats.variance.moments import (
    SignalComponents,
    shuffled_prompts,
    split_into_groups,
    weighted_rows,
)
from gradstats.stats.variance.pools import PooledCompletions
from gradstats.stats.variance.quantities import NOT_NEGATIVE, SHARE, BoundedQuotient, KeptShare
from gradstats.stats.variance.row import EstimatorVariance
from gradstats.stats.variance.sketch_error import rotated_once
from gradstats.system.lazy_imports import mpl, pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gradstats.config.experiment import Experiment
    from gradstats.measurement.measurement import Measurement

#: Prompts of a batch where none are asked for: a common size of a step of GRPO.
_PROMPTS = 64
#: The alignment whose batch the sentence names.
_HALF = 0.5
# Lines with a band each, beyond which bands hide one another and only that of the reference is drawn.
_MOST_BANDS = 3


@dataclass(frozen=True)
class BatchRow(Row):
    """What batches of one estimator reach."""

    estimator: str = column("label of the estimator", short=True, file="estimators/by_label.py")
    unit: str = column("unit of the gradient as measured", file="estimators/estimator.py")
    group_size: float = column("completions per prompt, the mean where prompts have different numbers")
    prompts: float = column("prompts of the batch asked for")
    tokens: float = column("completion tokens of this batch")
    critical_batch: Estimated | None = estimate(
        "prompts at which noise equals signal: tr Cov at the target's scale over ‖∇J‖²", "critical batch",
        short=True, limits=NOT_NEGATIVE, file="stats/variance/alignment.py",
        sentence="Critical batch: prompts at which noise equals signal.",
    )  # fmt: skip
    alignment: Estimated | None = estimate(
        "share of the improvement by a noiseless gradient that a step of the batch reaches", "alignment",
        short=True, limits=SHARE, file="stats/variance/alignment.py",
        sentence="Alignment: share of a noiseless gradient's improvement that a step of this batch reaches.",
    )  # fmt: skip
    alignment_limit: Estimated | None = estimate("alignment of ever larger batches: the squared cosine", limits=SHARE)
    relative_progress: Estimated | None = estimate(
        "alignment over that of the reference at the batch asked for", "progress", limits=NOT_NEGATIVE,
        sentence="Progress: alignment over that of the reference.",
    )  # fmt: skip
    silent_groups: Estimated = estimate(
        "share of groups in which every weight is 0", "without signal", short=True, limits=SHARE,
        sentence="Without signal: groups in which every weight is 0.",
    )  # fmt: skip
    relative_prompts: Estimated | None = estimate(
        "prompts for an alignment, times those of the reference: its relative noise", "prompts for equal alignment",
        short=True, limits=NOT_NEGATIVE,
        sentence="Prompts for equal alignment: as a multiple of those of the reference.",
    )  # fmt: skip
    silent_tokens: Estimated = estimate("share of tokens in such groups", limits=SHARE)
    prompts_to_resolve: Callable[[float], float] = column(
        "prompts that would resolve the signal, by estimate; NaN where it is resolved"
    )
    of_batches: Alignment | None = None  # from which the alignment at any size follows


@dataclass(frozen=True, repr=False)
class BatchSizes(RemarkedResult):
    r"""What a step of a batch reaches: :math:`ρ(B) = 1/(1/\cos² + B^*/B)`.

    Attributes:
        rows: one per estimator, in the order asked for.
        prompts: B, the batch asked for.
        reference: label of the estimator that savings are relative to.
        target: what the alignment is judged against.
        n_prompts: prompts it rests on.
        remarks: what could not be estimated, and why.
    """

    question: ClassVar[str] = "batch_size"

    row: ClassVar = BatchRow

    rows: tuple[BatchRow, ...]
    prompts: float
    reference: str
    target: TargetChoice
    n_prompts: int
    remarks: tuple[str, ...] = ()

    def about(self) -> dict[str, object]:
        """Return what the frame's ``.attrs`` state besides the level and the notes."""
        return {"reference": self.reference, "target": self.target.kind}

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State what the batch reaches, what twice as many prompts and how many one half, and what is silent."""
        if (why := why_not_judged(self.target)) is not None:
            return f"No batch size can be judged, since {why.partition('since ')[2]}."
        # The reference comes first, wherever it stands.
        judged = sorted(
            (row for row in self.rows if row.alignment is not None), key=lambda row: row.estimator != self.reference
        )
        if not judged:
            return "No estimator has a gradient here, so that no batch size can be judged."
        known = [row for row in judged if np.isfinite(_of(row.alignment, confidence_level)[0])]
        batch = f"With {self.prompts:,.4g} prompts × {judged[0].group_size:.3g} completions"
        if not known:
            return self._bound(judged[0], batch, confidence_level)
        first = known[0]
        assert first.of_batches is not None
        alignment = _of(first.alignment, confidence_level)
        said = [
            f"{batch}, a step of {first.estimator} makes {percentage(*alignment)} of the progress of one without noise"
        ]
        doubled, *_ = first.of_batches.at(2.0 * self.prompts).with_interval(confidence_level)
        said[0] += f"; with twice as many prompts it would make {doubled:.0%}."
        half = first.of_batches.groups_for(_HALF).with_interval(confidence_level)
        if np.isfinite(half[0]):
            said.append(f"For half of the noiseless progress it takes {format_estimate(*half)} prompts.")
        if (silent := _of(first.silent_groups, confidence_level)[0]) > 0:
            said.append(f"{silent:.0%} of its groups carry no signal: every advantage is 0.")
        return " ".join(said)

    def _bound(self, row: BatchRow, batch: str, confidence_level: float) -> str:
        """State what the data exclude where the signal is not resolved, and what would resolve it."""
        most = _of(row.alignment, confidence_level)[2]
        made = f"makes at most {percentage_at_most(most)} of the progress of one without noise"
        if not most < 1.0:
            made = "may make any share of the progress of one without noise"
        needed = row.prompts_to_resolve(confidence_level)
        more = f"About {_count(needed)} prompts like these" if np.isfinite(needed) else "Only more prompts"
        return f"{batch}, a step of {row.estimator} {made}. {more} would resolve the signal."


def _of(one: Estimated | None, confidence_level: float) -> Interval:
    return (np.nan, np.nan, np.nan) if one is None else one.with_interval(confidence_level)


def _count(prompts: float) -> str:
    """Write a number of prompts to two digits."""
    return f"{float(f'{prompts:.2g}'):,.4g}"


def batch_size(
    measured_or_batch: Batch | MeasuredGradients,
    estimators: Sequence[str | Weighting],
    scores: npt.ArrayLike | None = None,
    *,
    prompts: float | None = None,
    tokens: float | None = None,
    group_size: int | None = None,
    reference: str = "rloo",
    target: AskedTarget = "auto",
    n_resamples: int | None = None,
    rng: int | np.random.Generator | None = 0,
    scores_are_sketches: bool | None = None,
) -> BatchSizes:
    r"""Estimate the critical batch of estimators, and the alignment with the true gradient of a batch of B prompts.

    The critical batch :math:`B^* = \mathrm{tr\,Cov}(g)/‖G‖²`, with g one group's gradient at the scale of the target
    and G the expectation of the target, is the number of prompts at which noise and signal are equal. The alignment

    .. math:: ρ(B) = \frac{(E⟨ĝ_B, G⟩)²}{E‖ĝ_B‖²\,‖G‖²} = \frac{1}{1/\cos² + B^*/B}

    of the mean of B groups is the share of the largest possible improvement of one SGD step that it reaches with its
    best learning rate, which follows the signal-to-noise ratio (2511.23310); cos, between E ĝ and G, is 1 for
    estimators that are unbiased up to a scale. B* assumes a Hessian that is a multiple of the identity (McCandlish et
    al., 1812.06162).

    With the relative noise r, equal alignment takes r times the prompts of the reference, whatever B (below the limit
    of biased estimators); at equal B the progress per step differs by the quotient of the alignments. Drawing prompts
    until B groups have a weight, as dynamic sampling does, reaches hardly more than all the groups that it draws.

    **Intervals.** That of B* is a Fieller set over prompts whose variance is that under the value in question
    (:func:`gradstats.stats.variance.alignment.critical_batch`). Where ‖G‖² is not resolved there are bounds and no
    values; where it is so only just, a value may have no upper end, since values are shown of those data sets alone
    that find enough signal (:func:`gradstats.stats.variance.alignment.selection_adjusted_upper`). Everything else is a
    monotone function of B* and, for a biased estimator, of the interval of its cosine. The mean length and the share
    of groups with a weight are taken as known.

    Args:
        measured_or_batch: as in :func:`gradstats.compare`.
        estimators: labels of estimators, in order.
        scores: as in :func:`gradstats.compare`.
        prompts: B, prompts of a batch; 64 by default, a common size of a step of GRPO.
        tokens: completion tokens of a batch, in place of its prompts.
        group_size: completions of a group; all of a prompt by default.
        reference: the estimator that savings and progress are relative to.
        target: as in :func:`gradstats.compare`.
        n_resamples: as in :func:`gradstats.compare`.
        rng: as in :func:`gradstats.compare`.
        scores_are_sketches: as in :func:`gradstats.compare`.

    Returns:
        A :class:`BatchSizes`.

    Raises:
        ValueError: for a batch below one group, prompts and tokens together, a reference of batch level, and as in
            :func:`gradstats.compare`.

    Example:
        >>> import numpy as np
        >>> import gradstats as gs
        >>> rng = np.random.default_rng(0)
        >>> rewards = rng.integers(0, 2, 1600)
        >>> batch = gs.estimators.Batch(rewards, np.full(1600, 50), np.repeat(np.arange(200), 8))
        >>> scores = rng.normal(size=(1600, 32)) + 0.8 * rewards[:, None] - 0.4
        >>> frame = gs.analyses.batch_size(batch, ["rloo"], scores, prompts=16).to_frame()
        >>> frame[["critical_batch", "alignment"]].round(2).to_numpy().tolist()
        [[0.88, 0.95]]
    """
    if prompts is not None and tokens is not None:
        raise ValueError("prompts and tokens both state the size of the batch: give one of them")
    chosen, base = get_all(estimators), families.get(reference)
    if base.across_groups:
        raise ValueError(f"reference={base.label!r} is a batch-level estimator: choose a group-level one, as in 'rloo'")
    generator = np.random.default_rng(rng)
    labels = [one.label for one in chosen]
    inputs, (*chosen, base), judged = prepared_inputs(
        measured_or_batch, [*chosen, base], scores, scores_are_sketches, target
    )
    order = shuffled_prompts(inputs.batch.group_index, generator)
    groups = split_into_groups(order, inputs.order, group_size)
    mean_size = len(groups.rows) / groups.n_groups
    per_prompt = mean_size * float(inputs.batch.lengths[groups.rows].mean())
    n_groups = _groups_asked_for(prompts, tokens, per_prompt)
    # Intervals of what is dealt need several disjoint batches.
    dealt = min(max(round(n_groups), 1), max(groups.n_prompts // 4, 1))
    with rotated_once():
        stream = generator.spawn(1)[0]
        pool = pooled(inputs, groups, [*chosen, base], stream, judged, dealt, n_resamples, shared=True)
        beside, goal = pool.local(base), target_of(pool, judged)
        if np.array_equal(goal.weights, beside.weights):
            goal = beside
        *found, of_base = pool.rows([*chosen, base], base, beside, [goal] * (len(chosen) + 1))
    signal = None if goal.moments is None else goal.moments.signal
    parts = None if goal.moments is None else goal.moments.components.found
    base_alignment, rows = _alignment_of(of_base), []
    for label, one, row in zip(labels, chosen, found, strict=True):
        alignment = _alignment_of(row)
        critical = None if alignment is None else alignment.critical
        progress = None
        if alignment is not None and base_alignment is not None:
            progress = alignment.progress_over(base_alignment, row.matched_ratio, n_groups)
        rows.append(
            BatchRow(
                estimator=label,
                unit=unit_of(one),
                group_size=mean_size,
                prompts=n_groups,
                tokens=n_groups * per_prompt,
                critical_batch=critical,
                alignment=None if alignment is None else alignment.at(n_groups),
                alignment_limit=None if alignment is None else alignment.limit,
                relative_progress=progress,
                silent_groups=share_saved(row.kept_share),
                relative_prompts=None if alignment is None else row.matched_ratio,
                silent_tokens=share_saved(_kept_tokens(pool, one)),
                prompts_to_resolve=partial(_prompts_to_resolve, critical, signal, parts),
                of_batches=alignment,
            )
        )
    notes: list[str | None] = [
        why_not_judged(judged),
        about_target(judged),
        *warnings_about(pool, found, chosen),
        *remarks_about(pool, found, chosen),
    ]
    if any(one.across_groups for one in chosen) and dealt < round(n_groups):
        notes.append(f"batch-level estimators are dealt batches of {dealt} prompts, a quarter of those measured")
    if rows:
        # What is left of a batch without some of its groups has other weights where these depend on the batch.
        of_batches = None if chosen[0].across_groups else rows[0].of_batches
        notes.append(LevelNote.of(partial(_about_silent, rows[0], of_batches)))
    told = tuple(dict.fromkeys(note for note in notes if note is not None))
    return BatchSizes(tuple(rows), n_groups, reference, judged, groups.n_prompts, told)


@dataclass(frozen=True)
class SquaredCosine:
    """The alignment of ever larger batches; 1 without a cosine, for estimators that are unbiased up to a scale.

    Where the norms under the cosine are not resolved it has its estimate and the interval from 0 to 1: to show values
    only where they are would choose the data sets that overestimate the signal.
    """

    cosine: BoundedQuotient | None

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``, the value within what is possible."""
        if self.cosine is None:
            return 1.0, 1.0, 1.0
        _, *ends = self.cosine.with_interval(confidence_level)
        value, low, high = (float(np.clip(one, 0.0, 1.0)) ** 2 for one in (self.cosine.quotient.value, *ends))
        return value, low, high


def _alignment_of(row: EstimatorVariance) -> Alignment | None:
    """Return the alignment of an estimator with the target; None where nothing can be judged."""
    gradient, critical, found = row.gradient, row.noise_to_signal, row.cosine
    if gradient is None or not isinstance(critical, CriticalBatch):
        return None
    return Alignment(critical, SquaredCosine(found if gradient.known_scale is None else None))


def _groups_asked_for(prompts: float | None, tokens: float | None, per_prompt: float) -> float:
    if tokens is not None:
        if not per_prompt <= tokens < math.inf:
            raise ValueError(
                f"tokens={tokens:g} is below one group, which takes {per_prompt:.0f} completion tokens here: give more"
            )
        return tokens / per_prompt
    asked = _PROMPTS if prompts is None else prompts
    if not 1 <= asked < math.inf:
        raise ValueError(f"prompts={asked:g} is not a batch: give at least 1 prompt, for example {_PROMPTS}")
    return float(asked)


def _prompts_to_resolve(
    critical: Estimated | None, signal: Statistic | None, parts: SignalComponents | None, confidence_level: float
) -> float:
    """Return how many prompts would resolve ‖G‖²; of an estimate that is not positive, for the end of its interval."""
    if signal is None or parts is None or np.isfinite(_of(critical, confidence_level)[0]):
        return math.nan
    found = signal.estimate()
    of = found.value if found.value > 0 else found.confidence_interval(confidence_level)[1]
    needed = parts.prompts_to_resolve(of, found.value, confidence_level)
    return float(needed) if np.isfinite(needed) else math.nan


def _kept_tokens(pool: PooledCompletions, one: Weighting) -> KeptShare:
    """Return the share of tokens in groups with any non-zero weight."""
    groups, lengths = pool.groups, pool.batch.lengths.astype(np.float64)
    of_completion = weighted_rows(pool.weights(one))
    kept = (np.bincount(groups.group, of_completion, groups.n_groups) > 0)[groups.group]
    prompt = groups.prompt[groups.group]
    inside, whole = (mean_statistic(np.bincount(prompt, values)) for values in (lengths * kept, lengths))
    return KeptShare((inside / whole).estimate())


def _about_silent(row: BatchRow, of_batches: Alignment | None, confidence_level: float) -> str:
    silent, of_tokens = (_of(one, confidence_level)[0] for one in (row.silent_groups, row.silent_tokens))
    if not silent > 0:
        return ""
    told = f"{silent:.0%} of the groups, with {of_tokens:.0%} of the tokens, have no weight in {row.estimator}"
    if of_batches is None or silent == 1.0:
        return told
    kept = 1.0 - silent
    filtered, plain = (
        _of(one, confidence_level)[0]
        for one in (of_batches.of_kept(row.prompts, kept), of_batches.at(row.prompts / kept))
    )
    if not np.isfinite([filtered, plain]).all():
        return told
    return (
        f"{told}: drawing until {row.prompts:.4g} groups have one takes {row.tokens / kept:,.0f} tokens and reaches an "
        f"alignment of {filtered:.3g}, and all groups of as many tokens {plain:.3g}"
    )


def plot_batch_size(table: WithFrame | pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    r"""Draw the alignment against prompts per batch, with its intervals, and tokens per batch on a second axis.

    The dashed line is the batch asked for. Bands follow from the intervals of the critical batch and of the limit
    together; without a value there is a band alone, up to the bound. Of many estimators only the reference has one.
    Estimators of equal critical batch share a line.

    Args:
        table: :func:`gradstats.analyses.batch_size` or its frame; columns ``estimator``, ``prompts``, ``tokens``, and
            ``critical_batch`` and ``alignment_limit`` with their ends.
        ax: where to draw; None makes a figure, higher for more entries in the legend below.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    columns = ["estimator", "prompts", "tokens", *with_ends("critical_batch"), *with_ends("alignment_limit")]
    require_columns(frame, columns, "draw what batch_size() gives")
    frame = frame.loc[np.isfinite(frame["critical_batch_low"].to_numpy(dtype=float))].reset_index(drop=True)
    lines, shown = _lines(frame), names_in(frame)
    labels = [" = ".join(shown[name] for name in names) for names, _, _ in lines]
    if ax is None:
        width, height = mpl.rcParams["figure.figsize"]
        _, ax = plt.subplots(figsize=(width, height + 0.35 + legend_height(labels)), layout="constrained")
    ax.set_xscale("log")
    ax.set_ylim(0.0, 1.0)
    ax.set_xlabel("prompts per batch")
    ax.set_ylabel("alignment")
    if not lines:
        draw_nothing(ax, "not resolved")
        return ax
    asked, tokens = (float(frame[name].iloc[0]) for name in ("prompts", "tokens"))
    ends = np.concatenate([[asked], *(critical[np.isfinite(critical)] for _, critical, _ in lines)])
    at = np.geomspace(max(float(ends.min()) / 20.0, 1.0), 20.0 * float(ends.max()), 200)
    reference, kinds = str(frame.attrs.get("reference")), variants([names[0] for names, _, _ in lines])
    for (names, critical, limit), label, kind in zip(lines, labels, kinds, strict=True):
        color, _ = estimator_appearance(names[0])
        with np.errstate(divide="ignore"):
            value, most, least = (alignment_at(*pair, at) for pair in zip(critical, limit[[0, 2, 1]], strict=True))
        if len(lines) <= _MOST_BANDS or reference in names:
            ax.fill_between(at, np.nan_to_num(least), most, color=color, alpha=0.2, linewidth=0, zorder=2)
        ax.plot(at, value, color=color, linestyle=kind.linestyle, linewidth=stroke(1.2), label=label, zorder=3)
    draw_landmark(ax, asked)
    ax.set_xlim(at[0], at[-1])
    plain_ticks(ax, logarithmic=True)
    per_prompt = tokens / asked
    above = ax.twiny()
    above.tick_params(axis="y", left=False, labelleft=False)
    above.set_xscale("log")
    above.set_xlim(at[0] * per_prompt, at[-1] * per_prompt)
    plain_ticks(above, logarithmic=True, most=4)
    above.set_xlabel("completion tokens per batch")
    legend_below(ax)
    return ax


def _lines(frame: pd.DataFrame) -> list[tuple[list[str], np.ndarray, np.ndarray]]:
    """Return the estimators of each line, the reference first, with the critical batch and the limit and their ends."""
    reference = str(frame.attrs.get("reference"))
    both = np.concatenate([estimates_of(frame, name) for name in ("critical_batch", "alignment_limit")], axis=1)
    return [
        (
            sorted(frame["estimator"].iloc[group].astype(str), key=lambda label: label != reference),
            both[group[0], :3],
            both[group[0], 3:],
        )
        for group in equal_by_construction(both.tolist())
    ]


def _in_run(measured: Measurement, experiment: Experiment) -> dict[str, Any] | None:
    """Ask of the estimators of the run that stay within their group."""
    if len(set(measured.rollouts.prompt_id)) < 3:
        return None
    section = experiment.variance
    asked = experiment.analyses.get("batch_size")
    by_tokens = isinstance(asked, Mapping) and "tokens" in asked
    return {
        "estimators": group_level_estimators(measured, section),
        "reference": section.reference,
        "target": section.target,
        "rng": section.seed,
        **({} if by_tokens else {"prompts": section.prompts_per_batch}),
    }


def _sorted(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows by critical batch, those that have bounds alone last."""
    return frame.sort_values(["critical_batch", "critical_batch_low"], kind="stable", ignore_index=True)


def _caption(frame: pd.DataFrame) -> str:
    if not len(frame):
        return "No estimators."
    row = frame.iloc[0]
    return (
        f"Batches of {row['prompts']:.4g} prompts × {row['group_size']:.3g}, {row['tokens']:,.0f} tokens, "
        f"{level_of(frame)}intervals over prompts; the reference is {frame.attrs.get('reference', 'the first')}."
    )


ANALYSIS = Analysis(
    name="batch_size",
    ask=batch_size,
    unavailable_because=missing_sketches,
    options=("estimators", "prompts", "tokens", "group_size", "reference", "target", "n_resamples", "rng"),
    columns=BatchRow.columns(),
    ranking=Ranking("relative_prompts"),
    row_heading="estimator",
    caption=_caption,
    display_frame=_sorted,
    in_run=_in_run,
    figures=(
        AnalysisFigure(
            "batch_size",
            "Share of a noiseless gradient's improvement that a step reaches, against prompts per batch (below) and "
            "completion tokens (above), with intervals; dashed: the batch asked for.",
            plot_batch_size,
        ),
    ),
)
