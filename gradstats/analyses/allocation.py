"""How should tokens be split between prompts and completions?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from gradstats import estimators as families
from gradstats.analyses.allotment import GROUPS_NEEDED, noise_of_rules
from gradstats.analyses.declaration import (
    NO_GROUPS,
    Analysis,
    AnalysisFigure,
    Ranking,
    group_level_estimators,
    level_of,
    measured_group_sizes,
    powers_of_two,
    without_groups,
)
from gradstats.analyses.numbers import UNRESOLVED, format_estimate, percent, percentage
from gradstats.analyses.results import RemarkedResult, Row, at_level, column, estimate
from gradstats.analyses.variance_notes import about_target, moments_of, why_not_judged
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.config.options import Target as AskedTarget
from gradstats.estimators import Batch
from gradstats.estimators.by_label import get_all
from gradstats.estimators.estimator import Weighting, unit_of
from gradstats.plots.marks import (
    WithFrame,
    as_frame,
    draw_intervals,
    draw_nothing,
    estimates_of,
    interval_keys,
    legend_below,
    legend_height,
    require_columns,
    with_ends,
)
from gradstats.plots.names import estimator_appearance, names_in, sentence_height, variants, write_sentence
from gradstats.plots.style import edge, stroke
from gradstats.plots.variance import draw_landmark, plain_ticks, short_rows
from gradstats.stats.intervals import (
    FiellerRatio,
    MonotoneFunction,
    fieller_ratio,
    share_saved,
    skewed_mean,
    studentised_ratio,
)
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, Estimated, Interval, Statistic
from gradstats.stats.protocols import MeasuredGradients
from gradstats.stats.variance.best_set import EQUAL
from gradstats.stats.variance.inputs import (
    PoolsBySize,
    pools_by_size,
    prepared_inputs,
    projection_on_target,
    refuse_batch_level,
)
from gradstats.stats.variance.moments import PromptMoments
from gradstats.stats.variance.pools import PooledCompletions, multiple_of
from gradstats.stats.variance.quantities import (
    FEW_PROMPTS,
    NOT_NEGATIVE,
    OfEstimatedScale,
    fewest_carriers,
    in_metric,
    shown_below,
)
from gradstats.system.lazy_imports import mpl, pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gradstats.config.experiment import Experiment
    from gradstats.measurement.measurement import Measurement


#: Entry of what an answer is about: the best number of completions of a prompt with its interval, where it is known.
BEST_SIZE = "best_size"
# Fewest completions of a prompt that ``rloo`` can take.
_FEWEST = 2.0


def completions_in_words(size: float, low: float, high: float) -> str:
    """Write a best number of completions in whole numbers, or its bound; "" where nothing is known.

    >>> completions_in_words(13.2, 9.4, 20.1), completions_in_words(math.nan, 9.4, math.inf)
    ('13 [9, 21] completions', 'at least 9 completions')
    """
    if math.isfinite(size) and math.isfinite(high):
        return f"{size:.0f} [{math.floor(low)}, {math.ceil(high)}] completions"
    return f"at least {math.floor(low)} completions" if low >= _FEWEST + 1.0 else ""


def how_many(best: Estimated | None, confidence_level: float) -> str:
    """State how many completions of each prompt ``rloo`` should take; "" where that cannot be extrapolated."""
    if best is None:
        return ""
    drawn = completions_in_words(*best.with_interval(confidence_level))
    if not drawn:
        return "How many completions of each prompt are best is not resolved: measure more prompts."
    return f"Draw {drawn} of each prompt (rloo)."


@dataclass(frozen=True)
class AllocationRow(Row):
    """One estimator in groups of one size, at a number of tokens."""

    estimator: str = column("label of the estimator", short=True, file="estimators/by_label.py")
    unit: str = column("unit of the gradient as measured", file="estimators/estimator.py")
    group_size: int = column("completions of a prompt", short=True)
    n_prompts: float = column("prompts that the tokens pay for", short=True)
    extrapolated: bool = column("whether no groups of this size were measured")
    relative_noise: Estimated = estimate(
        "the variance over that of rloo at the largest measured size", "relative noise", short=True, limits=NOT_NEGATIVE
    )
    tokens_saved: Estimated = estimate(
        "share of tokens saved at equal noise", "share of tokens saved", short=True, limits=(-math.inf, 1.0)
    )
    within_prompt: Estimate = estimate("variance between groups of one prompt", "within prompts", limits=NOT_NEGATIVE)
    between_prompt: Estimate = estimate(
        "variance between the expected gradients of prompts", "between prompts", limits=NOT_NEGATIVE
    )


@dataclass(frozen=True, repr=False)
class Allocation(RemarkedResult):
    r"""The noise at an equal number of tokens, :math:`N \bar L\,\mathrm{tr\,Cov}(g)/(c² T)`.

    Attributes:
        rows: by estimator, then by group size.
        tokens: completion tokens of a batch.
        mean_length: tokens of a completion.
        reference_size: group size of ``rloo`` that noise is relative to.
        n_prompts: prompts it rests on.
        remarks: what could not be estimated, and why.
        best_size: completions per prompt at which ``rloo`` has the least noise; None where it cannot be extrapolated.
        by_rule: noise within prompts of ``rloo`` over that of equal groups, by rule of how many completions each prompt
            gets: ``Neyman``, and with rewards of 0 and 1 ``VIP`` and ``HORA``. Empty with fewer than 8 completions.
        allotted_size: completions of the groups that these rules allot.
    """

    question: ClassVar[str] = "allocation"

    row: ClassVar = AllocationRow
    stated: ClassVar = ("tokens", "mean_length", "reference", "reference_size")
    reference: ClassVar = "rloo"

    rows: tuple[AllocationRow, ...]
    tokens: float
    mean_length: float
    reference_size: int
    n_prompts: int
    remarks: tuple[str, ...] = ()
    best_size: Estimated | None = None
    by_rule: Mapping[str, Estimated] = field(default_factory=dict)
    allotted_size: int | None = None

    def notes_at(self, confidence_level: float) -> tuple[str, ...]:
        """Return the remarks, what unequal groups leave, and the best size of ``rloo`` with its interval."""
        return (*self._remarks_at(confidence_level), *self._on_rules(confidence_level))

    def _on_rules(self, confidence_level: float) -> tuple[str, ...]:
        if not self.by_rule:
            return ()
        noise = ", ".join(
            f"{format_estimate(*one.with_interval(confidence_level), limits=NOT_NEGATIVE)} ({rule})"
            for rule, one in self.by_rule.items()
        )
        return (
            f"the same completions allotted unequally, in groups of {self.allotted_size} and by what half of each "
            f"prompt's predict, leave so many times the noise within prompts of rloo: {noise}",
        )

    def _remarks_at(self, confidence_level: float) -> tuple[str, ...]:
        if self.best_size is None:
            return at_level(self.remarks, confidence_level)
        size = format_estimate(*self.best_size.with_interval(confidence_level), limits=(_FEWEST, math.inf))
        best = f"is {size} completions per prompt ({percent(confidence_level)} interval)"
        if size == UNRESOLVED:
            best = f"is not resolved at {percent(confidence_level)}: measure more prompts"
        remarks = at_level(self.remarks, confidence_level)
        return (*remarks, f"the best size of rloo, whatever the tokens, {best}")

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return the rows; the ``.attrs`` also state the best size and the noise by rule, with intervals.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        frame = super().to_frame(confidence_level)
        if self.best_size is not None:
            frame.attrs[BEST_SIZE] = list(self.best_size.with_interval(confidence_level))
        if self.by_rule:
            ends = {rule: list(one.with_interval(confidence_level)) for rule, one in self.by_rule.items()}
            frame.attrs["by_rule"] = ends
        return frame

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State how many completions of each prompt are best, and what other sizes cost; or else the best row."""
        said = [how_many(self.best_size, confidence_level), self._other_sizes(confidence_level)]
        return " ".join(filter(None, said)) if all(said) else f"{said[0]} {self._best_row(confidence_level)}".strip()

    def _other_sizes(self, confidence_level: float) -> str:
        """State how much noisier ``rloo`` is in smaller groups, where that is resolved."""
        costs = []
        for row in reversed(self.rows):
            noise, low, high = row.relative_noise.with_interval(confidence_level)
            if row.estimator == self.reference and not row.extrapolated and low > 1.0:
                than = "" if costs else f" than groups of {self.reference_size}"
                share = percentage(noise - 1.0, low - 1.0, high - 1.0)
                costs.append(f"groups of {row.group_size} are {share} noisier{than}")
        return f"With the same tokens, {', and '.join(costs)}." if costs else ""

    def _best_row(self, confidence_level: float) -> str:
        noises = [(row.relative_noise.with_interval(confidence_level), row) for row in self.rows]
        known = [(noise, row) for noise, row in noises if np.isfinite(noise[0])]
        if not known:
            return "No noise could be estimated; the notes say why."
        lowest = min(noise[0] for noise, _ in known)
        # Of those that are equal by construction rloo, which names them in the table as well.
        equal = [one for one in known if math.isclose(one[0][0], lowest, rel_tol=EQUAL)]
        (ratio, low, high), best = min(equal, key=lambda one: one[1].estimator != "rloo")
        split = f"{best.estimator}, {best.group_size} completions of {best.n_prompts:.3g} prompts"
        split += ", extrapolated" if best.extrapolated else ""
        reference, noise = f"rloo with {self.reference_size}", format_estimate(ratio, low, high)
        if (best.estimator, best.group_size) == ("rloo", self.reference_size):
            return f"With {self.tokens:,.0f} tokens, no other split here has less noise than {reference}."
        if not (shown_below(low, high) or low > 1.0):
            lowest = f"the lowest noise is {noise} ({split})"
            return f"No split of {self.tokens:,.0f} tokens is shown to beat {reference}; {lowest}."
        tokens = f"{abs(1.0 - ratio):.0%} {'fewer' if ratio < 1.0 else 'more'} tokens than {reference}"
        return f"The best split ({split}) needs {tokens} for the same noise, {noise} times at equal tokens."


def allocate(
    measured_or_batch: Batch | MeasuredGradients,
    estimators: Sequence[str | Weighting],
    scores: npt.ArrayLike | None = None,
    *,
    tokens: int | float | None = None,
    group_sizes: Sequence[int] | None = None,
    rng: int | np.random.Generator | None = 0,
    target: AskedTarget = "auto",
    scores_are_sketches: bool | None = None,
) -> Allocation:
    r"""Estimate the noise of a batch gradient over prompts and completions per prompt, at an equal number of tokens.

    A batch of T tokens holds :math:`M = T/(N\,\bar L)` prompts with N completions of mean length :math:`\bar L`. Its
    gradient has the variance

    .. math:: \frac{\mathrm{tr\,Cov}(g)}{M} = \frac{N \bar L}{T}\,\big(w(N) + b\big),

    w within and b between prompts. N w(N) falls with N, since a larger group has a better baseline: for RLOO
    :math:`N\,w(N) = v_1 + v_2/(N-1)` exactly. N b rises, since fewer prompts are drawn. Every variance is at the scale
    of the target, divided by the square of the coefficient c with which the expected gradient projects on it,
    known or estimated; the bias beyond a scale is not part of the noise.

    Sizes up to the number of completions of a prompt are measured. Larger ones are extrapolated for ``rloo`` and what
    is a multiple of it, from the formula, with b and w as measured in groups of 2 and of half the completions (or of
    all, with four of a prompt).

    The best size of RLOO, :math:`1 + \sqrt{v_2/b}`, is the N of the least :math:`N (w(N) + b)`, whatever T
    (2603.01162, of GRPO's gradient as a U-statistic). What unequal numbers of completions would leave is
    :func:`gradstats.analyses.allotment.noise_of_rules`.

    **Intervals.** ``relative_noise``, over that of ``rloo`` at the largest measured size, has the interval that
    :func:`gradstats.compare` gives it: a studentised bootstrap over prompts, and where the scale is estimated a Fieller
    set. The best size has the Fieller set of v₂/b, a ray where b is not resolved. ``tokens_saved`` is what the relative
    noise is less than 1: the share of tokens that the row saves at equal noise. The mean length is taken as known.

    Args:
        measured_or_batch: as in :func:`gradstats.compare`.
        estimators: labels or objects of group-level estimators, recipes and token-level ones included.
        scores: as in :func:`gradstats.compare`.
        tokens: T, completion tokens of a batch; by default as many as were measured.
        group_sizes: N; by default powers of two up to the smallest number of completions of a prompt, and two and four
            times the largest of these. Of given sizes, prompts with fewer completions than the largest measured one
            are left out.
        rng: for estimating the sketch's error.
        target: as in :func:`gradstats.compare`.
        scores_are_sketches: as in :func:`gradstats.compare`.

    Returns:
        An :class:`Allocation`, estimators in the order given and sizes ascending; of sizes that cannot be
        extrapolated, or of which the tokens do not pay for one group, there is no row.

    Raises:
        ValueError: for tokens that are not positive or below one group, sizes below 2, a batch-level estimator, fewer
            than 3 prompts, an estimator without weights, and as in :func:`gradstats.compare`.

    Example:
        >>> import numpy as np
        >>> import gradstats as gs
        >>> rng = np.random.default_rng(0)
        >>> rewards, lengths = rng.integers(0, 2, 1600), rng.integers(10, 100, 1600)
        >>> batch = gs.estimators.Batch(rewards, lengths, np.repeat(np.arange(200), 8))
        >>> scores = rng.normal(size=(1600, 8)) * np.sqrt(lengths)[:, None]
        >>> frame = gs.allocate(batch, ["rloo"], scores, tokens=100_000, group_sizes=[2, 4, 8]).to_frame()
        >>> frame[["group_size", "n_prompts", "relative_noise"]].round(1).to_numpy().tolist()
        [[2.0, 906.2, 1.9], [4.0, 453.1, 1.2], [8.0, 226.6, 1.0]]
    """
    if tokens is not None and not (tokens > 0 and np.isfinite(tokens)):
        raise ValueError(f"tokens={tokens} must be a positive number of completion tokens")
    chosen = get_all(estimators)
    refuse_batch_level(chosen)
    inputs, prepared, judged = prepared_inputs(measured_or_batch, chosen, scores, scores_are_sketches, target)
    inputs.refuse_unknown_token_scores(prepared)
    tokens = float(inputs.batch.lengths.sum()) if tokens is None else tokens
    sizes, most = _sizes(group_sizes, inputs.batch)
    pools = pools_by_size(inputs, judged, inputs.batch.group_sizes >= most, np.random.default_rng(rng))
    measured_sizes = sorted({*(size for size in sizes if size <= most), 2, max(most // 2, 2), most})
    by_size = {size: pools.pool(size) for size in measured_sizes}
    for pool in by_size.values():
        pool.expect([*prepared, families.get("rloo")])
    mean_length = float(inputs.batch.lengths[pools.order].mean())
    if tokens < sizes[0] * mean_length:
        raise ValueError(
            f"tokens={tokens:g} is below one group of {sizes[0]}, which takes {sizes[0] * mean_length:.0f} completion "
            "tokens here: give more"
        )
    sizes = [size for size in sizes if size * mean_length <= tokens]
    of_reference = moments_of(by_size[most], families.get("rloo"))
    reference = of_reference.trace_cov.scaled(float(most))
    rows: list[AllocationRow] = []
    notes = list(filter(None, [why_not_judged(judged), about_target(judged)]))
    if pools.n_prompts < FEW_PROMPTS:
        notes.append(
            f"fewer than {FEW_PROMPTS} prompts: where the variance between prompts is small, its interval may end too "
            "low; measure more prompts, see docs/statistics.md"
        )
    found_of_each = [{size: _parts(by_size[size], one, pools, notes) for size in measured_sizes} for one in prepared]
    for one, label, found in zip(prepared, (one.label for one in chosen), found_of_each, strict=True):
        for size, parts in _at_sizes(found, sizes, most):
            n_prompts = tokens / (size * mean_length)
            relative = parts.over(reference, size, fewest_carriers(parts.moments, of_reference))
            rows.append(
                AllocationRow(
                    estimator=label,
                    unit=unit_of(one),
                    group_size=size,
                    n_prompts=n_prompts,
                    relative_noise=relative,
                    tokens_saved=share_saved(relative),
                    within_prompt=NOT_ESTIMATED
                    if parts.within is None
                    else skewed_mean(parts.within, parts.within.pseudo_values, parts.moments.completions),
                    between_prompt=NOT_ESTIMATED if parts.between is None else parts.between.estimate(),
                    extrapolated=size > most,
                )
            )
    of_rloo = {size: _parts(by_size[size], families.get("rloo"), pools, []) for size in measured_sizes}
    components = _parts_of_rloo(of_rloo, most)
    best = None if components is None else best_size(*components[1:])
    told = tuple(dict.fromkeys(notes))
    by_rule, allotted = {}, most // GROUPS_NEEDED
    if rows and allotted >= _FEWEST:
        by_rule = noise_of_rules(by_size.get(allotted) or pools.pool(allotted))
    best = best if rows else None
    return Allocation(tuple(rows), float(tokens), mean_length, most, pools.n_prompts, told, best, by_rule, allotted)


def _sizes(group_sizes: Sequence[int] | None, batch: Batch) -> tuple[list[int], int]:
    """Return the group sizes in order, and the number of completions that every prompt counted has."""
    smallest = int(batch.group_sizes.min())
    if smallest < 2:
        raise ValueError(NO_GROUPS)
    if group_sizes is None:
        measured = powers_of_two(smallest)
        sizes, most = [*measured, 2 * measured[-1], 4 * measured[-1]], smallest
    else:
        sizes = sorted({int(size) for size in group_sizes})
        most = max(smallest, max((size for size in sizes if size <= batch.group_sizes.max()), default=0))
    if not sizes or sizes[0] < 2:
        raise ValueError(f"group_sizes={list(group_sizes or [])} must be at least 2")
    if (batch.group_sizes >= most).sum() < 3:
        raise ValueError(f"fewer than 3 prompts have {most} completions: choose smaller group_sizes")
    return sizes, most


@dataclass(frozen=True)
class _Parts:
    """Variance components of one estimator at the scale of the target; ``within`` is None without two groups."""

    total: Statistic
    within: Statistic | None
    multiple_of_rloo: bool
    moments: PromptMoments  # whose prompts carry them, those of the largest groups where these are extrapolated
    # tr Cov at its own scale, ⟨E g, G⟩ and ‖G‖², where the scale is estimated
    own: tuple[Statistic, Statistic, Statistic] | None = None

    @property
    def between(self) -> Statistic | None:
        return None if self.within is None else self.total - self.within

    def over(self, reference: Statistic, size: int, carriers: float) -> Estimated:
        """Return N tr Cov at the scale of the target over that of the reference, which so many prompts carry."""
        if self.own is None:
            return studentised_ratio(self.total.scaled(float(size)), reference, carriers)
        trace_cov, along, signal = self.own
        root = (trace_cov.scaled(float(size)) / reference).root()
        return OfEstimatedScale(fieller_ratio(root * signal, along), carriers)


def _parts(pool: PooledCompletions, one: Weighting, pools: PoolsBySize, notes: list[str]) -> _Parts | None:
    """Return variance components at the scale of the target; None where the scale is not resolved."""
    moments, size = moments_of(pool, one), int(pool.groups.sizes[0])
    rloo = families.get("rloo")
    multiple = multiple_of(pool.local(one).weights, pool.local(rloo).weights)
    known = None
    if pools.on_policy:
        known = one.expected_scale(size) if multiple is None else multiple
    if known:
        factor = known**-2
        within = None if moments.within is None else moments.within.scaled(factor)
        return _Parts(moments.trace_cov.scaled(factor), within, multiple is not None, moments)
    found = projection_on_target(pool, moments, pools.judged)
    if found is None:
        notes.append(
            f"{one.label} at N = {size} has no row: its scale relative to the target is not resolved by "
            f"{pools.n_prompts} prompts"
        )
        return None
    along, signal = found
    square = (along / signal) * (along / signal)
    within = None if moments.within is None else moments.within / square
    return _Parts(moments.trace_cov / square, within, multiple is not None, moments, (moments.trace_cov, *found))


def _at_sizes(found: dict[int, _Parts | None], sizes: Sequence[int], most: int) -> Iterator[tuple[int, _Parts]]:
    """Yield the components at each size that was measured or can be extrapolated."""
    anchor, of_rloo = found[max(most // 2, 2)], _parts_of_rloo(found, most)
    between = None if anchor is None else anchor.between
    for size in sizes:
        parts = found.get(size)
        if parts is not None:
            if parts.within is None and between is not None and parts.multiple_of_rloo:
                # Of multiples of RLOO the variance between prompts does not depend on the size.
                parts = _Parts(parts.total, parts.total - between, True, parts.moments)
            yield size, parts
        elif size > most and of_rloo is not None:
            perfect, cost, between = of_rloo
            within = (perfect + cost.scaled(1.0 / (size - 1.0))).scaled(1.0 / size)
            assert anchor is not None  # as its parts are known
            yield size, _Parts(within + between, within, True, anchor.moments)


def _parts_of_rloo(found: dict[int, _Parts | None], most: int) -> tuple[Statistic, Statistic, Statistic] | None:
    """Return v₁, v₂ and b of RLOO or a multiple of it; None of others, and with fewer than 4 completions a prompt."""
    largest = max(most // 2, 2)
    anchor, pairs, whole, n = found[largest], found[2], found[most], largest if largest > 2 else most
    if n == 2 or anchor is None or pairs is None or whole is None or not whole.multiple_of_rloo:
        return None
    if anchor.between is None or pairs.within is None:
        return None
    # From 2 w(2) = v_1 + v_2 and N w(N) = v_1 + v_2/(N−1), with w(N) = tr Cov − b at the larger anchor N.
    of_anchor = found[n]
    assert of_anchor is not None
    larger = (of_anchor.total - anchor.between).scaled(float(n))
    cost = (pairs.within.scaled(2.0) - larger).scaled((n - 1.0) / (n - 2.0))
    return pairs.within.scaled(2.0) - cost, cost, anchor.between


@dataclass(frozen=True)
class _NotNegative:
    """A quotient that is not negative: a ray without a value where its denominator is not resolved."""

    quotient: FiellerRatio

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``."""
        low, high = self.quotient.within(confidence_level, 0.0, np.inf)
        return self.quotient.value if np.isfinite(high) else np.nan, low, high


def best_size(cost: Statistic, between: Statistic) -> MonotoneFunction:
    r"""Return the N at which :math:`v_1 + v_2/(N-1) + N b` of ``rloo`` is least, at least 2, of v₂ and b."""
    quotient = _NotNegative(fieller_ratio(cost, between))
    return MonotoneFunction(lambda one: float(np.maximum(1.0 + np.sqrt(np.maximum(one, 0.0)), _FEWEST)), (quotient,))


def plot_allocation(table: WithFrame | pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the noise at an equal number of tokens against completions per prompt, one line per estimator.

    Noise is at the scale of the target, so that estimators of every unit share the axis. Which lines
    are drawn is decided at the largest measured size, as in :func:`gradstats.plots.plot_group_size`: multiples of one
    another share one. Sizes that were extrapolated are open markers on a dotted line.

    Args:
        table: :func:`gradstats.allocate` or its frame; columns ``estimator``, ``group_size``, ``n_prompts``,
            ``extrapolated``, and ``relative_noise`` with its ``_low`` and ``_high``.
        ax: where to draw; None makes a figure, higher for more entries in the legend below.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    columns = ["estimator", "group_size", "n_prompts", "extrapolated", *with_ends("relative_noise")]
    require_columns(frame, columns, "draw what allocate() gives")
    of_reference = frame.loc[frame["group_size"] == frame.loc[~frame["extrapolated"].astype(bool), "group_size"].max()]
    of_reference.attrs = {"reference": "rloo"} | frame.attrs
    short = short_rows(of_reference, "relative_noise", named_by_size=True)
    lines, shown = list(map(str, short.drawn["estimator"])), names_in(short.drawn)
    labels = [shown[label] for label in lines]
    keys = interval_keys(frame, ["relative_noise"])
    if ax is None:
        width, height = mpl.rcParams["figure.figsize"]
        height += 0.25 + legend_height(labels, keys) + sentence_height(short.sentence)
        _, ax = plt.subplots(figsize=(width, height), layout="constrained")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    for place, (name, label, kind) in enumerate(zip(lines, labels, variants(lines), strict=True)):
        rows = frame.loc[frame["estimator"] == name]
        sizes, guessed = rows["group_size"].to_numpy(dtype=float), rows["extrapolated"].to_numpy(dtype=bool)
        centre, low, high = estimates_of(rows, "relative_noise").T
        color, marker = estimator_appearance(name)
        # Side by side, so that intervals do not overlap.
        at = sizes * 2.0 ** (0.3 * (place - (len(lines) - 1) / 2.0) / max(len(lines) / 2.0, 1.0))
        ax.plot(at, centre, color=color, linestyle=":", linewidth=stroke(1.0), zorder=2)
        seen = ~guessed
        drawn = {"color": color, "marker": marker, "markerfacecoloralt": ax.get_facecolor(), **kind._asdict()}
        ax.plot(at[seen], centre[seen], linewidth=stroke(1.0), label=label, zorder=3, **drawn, **edge())
        ax.plot(at[guessed], centre[guessed], color=color, marker=marker, linestyle="none", markerfacecolor="none")
        draw_intervals(ax, at, centre, low, high, color)
    if frame.empty:
        draw_nothing(ax, "no estimators")
    else:
        draw_landmark(ax, 1.0, horizontal=True)
    prompts = dict(zip(frame["group_size"], frame["n_prompts"], strict=True))
    if prompts:
        ax.set_xlim(min(prompts) / 1.4, max(prompts) * 1.4)
    ax.set_xticks(list(prompts), labels=[f"{size:g}\n({_n_prompts_label(n)})" for size, n in prompts.items()])
    ax.xaxis.set_minor_locator(plt.NullLocator())
    plain_ticks(ax, logarithmic=True, vertical=True)
    ax.set_xlabel("completions per prompt (prompts)")
    ax.set_ylabel(in_metric("relative noise\nat equal tokens", frame.attrs))
    write_sentence(ax, short.sentence)
    legend_below(ax, keys)
    return ax


def _n_prompts_label(n: float) -> str:
    """Return how many prompts the tokens pay for, thousands in full."""
    return f"{n:,.0f}" if n >= 1000 else f"{n:.3g}"


def _in_run(measured: Measurement, experiment: Experiment) -> dict[str, Any] | None:
    """Ask of the number of tokens of the run itself; nothing where a prompt has a single completion."""
    if not measured_group_sizes(measured):
        return None
    section = experiment.variance
    return {
        "estimators": group_level_estimators(measured, section),
        "tokens": float(np.sum(measured.rollouts.lengths)),
        "target": section.target,
        "rng": section.seed,
    }


def _row_name(row: dict[str, Any]) -> str:
    size = f"{row['group_size']:g}{'*' if row['extrapolated'] else ''}"
    return f"{row['estimator']}, {size} × {_n_prompts_label(row['n_prompts'])}"


def _starred(frame: pd.DataFrame) -> bool:
    return bool(frame["extrapolated"].to_numpy(dtype=bool).any())


def _row_heading(frame: pd.DataFrame) -> str:
    return f"estimator, completions × prompts{' (* extrapolated)' if _starred(frame) else ''}"


def _caption(frame: pd.DataFrame) -> str:
    about, stars = frame.attrs, " Stars: extrapolated sizes." if _starred(frame) else ""
    return (
        f"Noise of a gradient of {about['tokens']:,.0f} completion tokens, at the scale of the target, "
        f"{level_of(frame)}intervals over prompts; relative to {about['reference']} with {about['reference_size']} "
        f"completions per prompt.{stars}"
    )


ANALYSIS = Analysis(
    name="allocation",
    ask=allocate,
    unavailable_because=without_groups,
    options=("estimators", "tokens", "group_sizes", "target", "rng"),
    columns=AllocationRow.columns(),
    ranking=Ranking("relative_noise"),
    row_heading=_row_heading,
    row_name=_row_name,
    caption=_caption,
    in_run=_in_run,
    figures=(
        AnalysisFigure(
            "allocation",
            lambda frame: (
                f"Noise at {frame.attrs['tokens']:,.0f} tokens against completions per prompt (and prompts), relative "
                "to RLOO at the largest measured size; open markers are extrapolated."
            ),
            plot_allocation,
        ),
    ),
)
