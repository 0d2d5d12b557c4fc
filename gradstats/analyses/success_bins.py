"""Which prompts, easy or hard, make up gradient and noise?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int

from gradstats import estimators as families
from gradstats.analyses.declaration import (
    LEFT_OUT,
    Analysis,
    AnalysisFigure,
    Ranking,
    group_level_estimators,
    level_of,
    most_completions,
    without_groups,
)
from gradstats.analyses.length_bins import SHARE_MEANINGS
from gradstats.analyses.numbers import percentage
from gradstats.analyses.results import RemarkedResult, Row, column, estimate, span
from gradstats.analyses.variance_notes import about_target, target_attrs, why_not_judged, why_silent
from gradstats.config.options import CONFIDENCE_LEVEL, EUCLIDEAN
from gradstats.config.options import Target as AskedTarget
from gradstats.estimators import Batch
from gradstats.estimators.by_label import get_all
from gradstats.estimators.estimator import Weighting, unit_of
from gradstats.plots.shares import bin_label, lines_of_units, plot_shares
from gradstats.stats.intervals import FiellerRatio, fieller_ratio
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimated, Interval, mean_statistic
from gradstats.stats.protocols import MeasuredGradients
from gradstats.stats.variance.inputs import (
    TargetChoice,
    expect_parts,
    pooled,
    prepared_inputs,
    refuse_batch_level,
    target_of,
)
from gradstats.stats.variance.moments import (
    Groups,
    cross_signal_among,
    form_among,
    of_rows,
    shuffled_prompts,
    split_into_groups,
)
from gradstats.stats.variance.pools import PooledCompletions, Weighted, multiple_of
from gradstats.stats.variance.products import PooledProducts
from gradstats.stats.variance.quantities import KeptShare, share_kept
from gradstats.stats.variance.shares import ResolvedRatio, binned, gradient_shares
from gradstats.system.lazy_imports import pd

if TYPE_CHECKING:
    from gradstats.config.experiment import Experiment
    from gradstats.measurement.measurement import Measurement


@dataclass(frozen=True)
class ScaleOfKept:
    """The scale of groups with any non-zero weight, from that of all groups where this is a known multiple."""

    scale: FiellerRatio | None
    kept_scale: FiellerRatio | None
    kept_share: KeptShare

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``."""
        share, low, high = self.kept_share.with_interval(confidence_level)
        if self.scale is not None and self.scale.is_known and self.scale.is_exact and low > 0:
            # Of a known multiple of the target only the share is uncertain, however small the gradient.
            return self.scale.value / share, self.scale.value / high, self.scale.value / low
        return ResolvedRatio(self.kept_scale).with_interval(confidence_level)


@dataclass(frozen=True)
class SuccessBin(Row):
    """One estimator's gradient on the prompts of one bin of success rates."""

    estimator: str = column("label of the estimator", short=True, file="estimators/by_label.py")
    unit: str = column("unit of the gradient", file="estimators/estimator.py")
    success: tuple[float, float] = span("range of success rates", short=True)
    n_prompts: int = column("prompts of these rates", short=True)
    group_size: float = column("completions per group")
    scale: ResolvedRatio = estimate(
        "factor of the prompts' expected gradient on that of the target", "scale", short=True
    )
    kept_scale: ScaleOfKept = estimate("the same of groups with any non-zero weight", "scale of kept groups")
    share_of_gradient: ResolvedRatio = estimate(*SHARE_MEANINGS["share_of_gradient"], short=True)
    share_of_variance: Estimated = estimate(*SHARE_MEANINGS["share_of_variance"], short=True)
    kept_share: KeptShare = estimate("share of groups with any non-zero weight", "groups kept")
    spread_share: KeptShare = estimate("share of groups whose rewards are not all equal", "groups with spread")


@dataclass(frozen=True, repr=False)
class SuccessBins(RemarkedResult):
    r"""Gradients split by the success rate p of the prompt, :math:`g^b = g\,1[p \in b]`.

    Attributes:
        rows: estimators in the order given, bins ascending.
        reference: the estimator of the sentence, which comes first on a first screen.
        group_size: completions of a group; None where prompts have different numbers.
        exact: whether success rates were given, and not estimated from the other half of the completions.
        target: what scales are relative to.
        silent: a sentence where no completion has any weight, and there is nothing to split.
        metric: label of the metric that gradients were measured in.
    """

    question: ClassVar[str] = "success_bins"

    row: ClassVar = SuccessBin

    rows: tuple[SuccessBin, ...]
    reference: str
    group_size: int | None
    exact: bool
    target: TargetChoice
    silent: str | None = None
    metric: str = EUCLIDEAN

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return one row per estimator and bin, estimators in the order given, bins ascending.

        Columns are ``estimator, unit, success_low, success_high, n_prompts, group_size``, and with ``_low`` and
        ``_high`` ``scale, kept_scale, share_of_gradient, share_of_variance, kept_share`` and ``spread_share``, the
        share of groups whose rewards are not all equal. ``.attrs`` state the group size, where success rates come from
        and the target.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        frame = super().to_frame(confidence_level)
        frame.attrs |= {
            "reference": self.reference,
            "group_size": self.group_size,
            "success": "given" if self.exact else "other half",
            "metric": self.metric,
            **target_attrs(self.target, confidence_level),
        }
        return frame

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State which prompts make up most of the variance of the reference."""
        bins = [row for row in self.rows if row.estimator == self.reference]
        shares = [(row.share_of_variance.with_interval(confidence_level), row) for row in bins]
        known = [one for one in shares if np.isfinite(one[0][0])]
        if not known:
            return f"No share of the variance of {self.reference} could be estimated."
        variance, most = max(known, key=lambda one: one[0][0])
        share = most.n_prompts / sum(row.n_prompts for row in bins)
        prompts = f"The {share:.0%} of prompts with success rate {bin_label(*most.success)}"
        return f"{prompts} make up {percentage(*variance)} of the variance of {self.reference}."

    @property
    def remarks(self) -> tuple[str, ...]:
        """How groups and bins were made, and what scales are relative to."""
        size = "groups of different sizes" if self.group_size is None else f"groups of {self.group_size} completions"
        origin = (
            f"success rates as given, {size}"
            if self.exact
            else f"one half of each prompt's completions forms {size}, and the other half chooses the bin, so that the "
            "bin does not depend on the rewards of the gradient"
        )
        return (origin, *filter(None, [self.silent, why_not_judged(self.target), about_target(self.target)]))


def variance_by_success(
    measured_or_batch: Batch | MeasuredGradients,
    estimators: Sequence[str | Weighting],
    scores: npt.ArrayLike | None = None,
    *,
    success: npt.ArrayLike | None = None,
    group_size: int | None = None,
    bins: int | Sequence[float] | None = None,
    rng: int | np.random.Generator | None = 0,
    reference: str = "rloo",
    target: AskedTarget = "auto",
    scores_are_sketches: bool | None = None,
) -> SuccessBins:
    r"""Split the expected gradient and the variance of estimators by the success rate of the prompt.

    With :math:`g^b = g\,1[p \in b]` the gradient of prompts whose success rate lies in bin b, and G that of the target
    (:func:`gradstats.compare`),

    - ``scale`` is :math:`⟨E[g|b], E[G|b]⟩/‖E[G|b]‖²`: the factor by which the estimator changes the gradient of these
      prompts. It is 1 for ``rloo``. Dividing by the group's standard deviation gives prompts of p = 0.1 or 0.9 the
      factor 2.18 and those of 0.5 the factor 1.74, for 0/1 rewards and N = 8 (``ddof=1``);
    - ``kept_scale`` is the same given that the group has any non-zero weight, as under dynamic sampling (DAPO,
      2503.14476), which replaces the others: ``scale`` over ``kept_share``. Replacing them multiplies what every bin
      contributes to a batch by the same 1/P(kept), so that shares stay as they are;
    - ``share_of_gradient`` is :math:`⟨E g^b, E g⟩/‖E g‖²` and ``share_of_variance``
      :math:`(E⟨g^b, g⟩ - ⟨E g^b, E g⟩)/\mathrm{tr\,Cov}(g)`; both sum to 1 over the bins. That prompts of p = ½ have
      the largest gradient is said in 2510.01135 and 2607.00152, that low p(1 − p) has a low signal in 2604.06268;
    - ``kept_share`` is the share of groups with any non-zero weight, and ``spread_share`` of those whose rewards are
      not all equal.

    **Success rates.** A bin must not depend on the rewards that enter the gradient: a group of zeros would otherwise
    always lie in the lowest bin. So without ``success`` the first half of each prompt's completions, in sample order,
    forms the group, and the mean reward of the others chooses the bin; the group size is then at most half the number
    of completions, and is stated. The rate of a bin is then itself uncertain, and bins are blurred.

    **Intervals.** Fieller sets for scales and shares of the gradient, from U-statistics over pairs of different prompts
    (of the same bin, for scales); a studentised bootstrap of the odds for shares of the variance; Wilson's for shares
    of groups.

    Args:
        measured_or_batch: as in :func:`gradstats.compare`.
        estimators: labels or objects of group-level estimators.
        scores: as in :func:`gradstats.compare`.
        success: (N,) the exact success rate of each completion's prompt, for a command the column of the rollouts that
            holds it; by default it is estimated from the other half.
        group_size: completions of a group; by default all of a prompt, or half of them without ``success``.
        bins: number of bins of about equally many prompts, 4 by default and fewer where rates tie; or ascending edges,
            each bin without its upper edge except the last.
        rng: for estimating the sketch's error.
        reference: the estimator of the sentence; the first where it is not among these.
        target: as in :func:`gradstats.compare`.
        scores_are_sketches: as in :func:`gradstats.compare`.

    Returns:
        A :class:`SuccessBins`. A bin has no scale with fewer than three prompts, where its gradient is not resolved, or
        where its groups are so much alike that the estimator cannot be told from a multiple of the target.

    Raises:
        ValueError: for a batch-level estimator, rates of a wrong shape or that differ within a prompt, prompts without
            two completions, a group size above half their number, and as in :func:`gradstats.compare`.

    Example:
        >>> import numpy as np
        >>> import gradstats as gs
        >>> rng = np.random.default_rng(0)
        >>> success = np.repeat(rng.choice([0.1, 0.5], 2000), 8)
        >>> rewards = (rng.random(16000) < success).astype(float)
        >>> scores = (rewards - success)[:, None]  # of a policy whose only choice is to be right
        >>> batch = gs.estimators.Batch(rewards, np.ones(16000, dtype=int), np.repeat(np.arange(2000), 8))
        >>> frame = gs.variance_by_success(batch, ["rloo", "grpo"], scores, success=success).to_frame()
        >>> frame[["estimator", "success_low", "scale"]].round(1).to_numpy().tolist()
        [['rloo', 0.1, 1.0], ['rloo', 0.5, 1.0], ['grpo', 0.1, 2.2], ['grpo', 0.5, 1.7]]
    """
    chosen = get_all(estimators)
    if not chosen:
        raise ValueError(f"estimators is empty: name at least one of {', '.join(families.names())}")
    refuse_batch_level(chosen)
    inputs, prepared, judged = prepared_inputs(measured_or_batch, chosen, scores, scores_are_sketches, target)
    generator = np.random.default_rng(rng)
    if success is None:
        order, rates = _halves(inputs.batch, inputs.order, group_size)
    else:
        order, rates = inputs.order, _given_rates(success, inputs.batch)
    prompts = shuffled_prompts(inputs.batch.group_index[order], generator)
    groups = split_into_groups(prompts, np.arange(len(order)), group_size)
    groups = replace(groups, rows=order[groups.rows])
    pool = pooled(inputs, groups, prepared, generator.spawn(1)[0], judged)
    first = groups.rows[np.unique(groups.prompt[groups.group], return_index=True)[1]]
    ends, inside = binned(rates[first], 4 if bins is None else bins)
    masks = [one[groups.prompt[groups.group]] for one in inside]
    expect_parts(pool, prepared, judged, masks)
    judge = target_of(pool, judged)
    pool.form(prepared, [], masks)
    if judge.moments is not None and isinstance(pool.scores, PooledProducts):
        of_prepared = [one.moments for one in map(pool.local, prepared) if one.moments is not None]
        form_among(of_prepared, judge.moments, [one for one in inside if one.sum() > 2])
    sizes, spread = groups.sizes, _with_spread(pool)
    size, silent = int(sizes[0]) if sizes.min() == sizes.max() else None, None
    if not judged.unusable and judge.moments is None:
        silent = f"{why_silent(pool)}, so the gradient that the rows are relative to is 0 and they have no values"
    labels, of_sentence = [one.label for one in chosen], families.get(reference).label
    rows = [
        SuccessBin(
            label,
            unit_of(one),
            (float(low), float(high)),
            int(here.sum()),
            np.nan if size is None else size,
            *found,
            _share_of_groups(spread[here]),
        )
        for label, one in zip(labels, prepared, strict=True)
        for (low, high), here, found in zip(ends, inside, _of_bins(pool, one, judge, inside), strict=True)
    ]
    return SuccessBins(
        rows=tuple(rows),
        reference=of_sentence if of_sentence in labels else labels[0],
        group_size=size,
        exact=success is not None,
        target=judged,
        silent=silent,
        metric=inputs.metric,
    )


def _halves(
    batch: Batch, order: Int[np.ndarray, " n"], group_size: int | None
) -> tuple[Int[np.ndarray, " kept"], Float[np.ndarray, " n"]]:
    """Return the first half of each prompt's completions, and of each prompt the mean reward of the others."""
    sizes = batch.group_sizes
    half = sizes // 2
    if not half.any():
        raise ValueError(
            "success rates need two completions of a prompt, one for the gradient and one for the bin: sample more "
            "completions, or name the column of exact rates (--success; in Python success=…)"
        )
    if group_size is not None and not 1 <= group_size <= half.max():
        raise ValueError(
            f"group_size={group_size} must lie between 1 and half of a prompt's completions, at most {half.max()} "
            "here, since the other half chooses the bin: choose a smaller one, sample more completions, or name "
            "the column of exact rates (--success; in Python success=…)"
        )
    by_prompt = order[np.argsort(batch.group_index[order], kind="stable")]
    prompt = batch.group_index[by_prompt]
    rank = np.arange(len(by_prompt)) - (np.cumsum(sizes) - sizes)[prompt]
    for_gradient = rank < half[prompt]
    others = by_prompt[~for_gradient]
    totals = np.bincount(batch.group_index[others], weights=batch.rewards[others], minlength=batch.n_groups)
    return by_prompt[for_gradient], (totals / (sizes - half))[batch.group_index]


def _given_rates(success: npt.ArrayLike, batch: Batch) -> Float[np.ndarray, " n"]:
    rates = np.asarray(success, dtype=np.float64)
    if rates.shape != batch.rewards.shape:
        raise ValueError(
            f"success has shape {rates.shape}, expected {batch.rewards.shape}: the rate of each completion's prompt"
        )
    first = np.unique(batch.group_index, return_index=True)[1]
    differing = np.flatnonzero(~(rates == rates[first][batch.group_index]))
    if len(differing):
        raise ValueError(
            f"success of completion {differing[0]} ({rates[differing[0]]:g}) differs from that of another completion "
            "of its prompt, or is not a number: give one rate for each prompt"
        )
    return rates


def _of_bins(
    pool: PooledCompletions, estimator: Weighting, judge: Weighted, inside: Sequence[Bool[np.ndarray, " m"]]
) -> Iterator[tuple[ResolvedRatio, ScaleOfKept, ResolvedRatio, Estimated, KeptShare]]:
    """Yield what is estimated of each bin, in the order of :class:`SuccessBin`."""
    prompt_of = pool.groups.prompt[pool.groups.group]
    whole, shares = gradient_shares(pool, estimator, [one[prompt_of] for one in inside])
    if judge.moments is not None and np.array_equal(whole.weights, judge.weights):
        whole = replace(whole, moments=judge.moments)  # one gradient under two names: the scale is exactly 1
    kept = _of_prompts(pool.groups, whole.kept)
    for one, share in zip(inside, shares, strict=True):
        (scale, kept_scale), kept_share = _scales(pool, whole, judge, kept, one), _share_of_groups(kept[one])
        of_kept = ScaleOfKept(scale, kept_scale, kept_share)
        yield ResolvedRatio(scale), of_kept, ResolvedRatio(share.gradient), share.variance, kept_share


def _scales(
    pool: PooledCompletions,
    whole: Weighted,
    judge: Weighted,
    kept: Float[np.ndarray, " m"],
    inside: Bool[np.ndarray, " m"],
) -> tuple[FiellerRatio | None, FiellerRatio | None]:
    """Return the scale of a bin, of all its groups and of those with any non-zero weight."""
    if judge.moments is None or not np.isfinite(whole.weights).all() or inside.sum() < 3:
        return None, None
    signal = cross_signal_among(judge.moments, judge.moments, inside, pool.sketch_error)
    if whole.moments is None:  # the estimator gives no completion any weight
        return fieller_ratio(signal.scaled(0.0), signal), None
    along = signal
    if whole.moments is not judge.moments:
        along = cross_signal_among(whole.moments, judge.moments, inside, pool.sketch_error)
    scale = fieller_ratio(along, signal)
    if not kept[inside].any():
        return scale, None
    rows = np.flatnonzero(inside[pool.groups.prompt[pool.groups.group]])
    multiple = multiple_of(of_rows(whole.weights, rows), of_rows(judge.weights, rows))
    if multiple is not None and multiple_of(whole.weights, judge.weights) is None:
        # The groups of this bin happen to be alike, say with one right answer each: the data show no spread.
        return replace(scale, contrast_variance=np.nan), None
    no_error = None if signal.sketch is None else signal.sketch * 0.0  # counts are not sketched
    return scale, fieller_ratio(along, mean_statistic(kept[inside], no_error) * signal)


def _with_spread(pool: PooledCompletions) -> Float[np.ndarray, " m"]:
    """Return the share of each prompt's groups whose rewards are not all equal."""
    group, rewards = pool.groups.group, pool.batch.rewards
    first = rewards[np.unique(group, return_index=True)[1]]
    return _of_prompts(pool.groups, np.bincount(group, rewards != first[group], pool.groups.n_groups) > 0)


def _share_of_groups(of_prompts: Float[np.ndarray, " inside"]) -> KeptShare:
    """Return the mean over the prompts of a bin; not known for fewer than two, which are no sample."""
    return share_kept(of_prompts) if len(of_prompts) > 1 else KeptShare(NOT_ESTIMATED)


def _of_prompts(groups: Groups, of_groups: Bool[np.ndarray, " groups"]) -> Float[np.ndarray, " m"]:
    return np.bincount(groups.prompt, weights=of_groups) / groups.groups_per_prompt


def _of_units(bins: pd.DataFrame) -> pd.DataFrame | None:
    """Return a line for the reference and for each other unit; None where none is resolved."""
    return lines_of_units(bins, fewest_resolved=1)


def _in_run(measured: Measurement, experiment: Experiment) -> dict[str, Any] | None:
    """Ask of the reference and of the first estimator of each other unit."""
    if most_completions(measured) < 4:  # half of them form a group, and one completion has no baseline
        return None
    section = experiment.variance
    reference = families.get(section.reference)
    by_unit: dict[str, Weighting] = {unit_of(reference): reference}
    for one in group_level_estimators(measured, section):
        by_unit.setdefault(unit_of(one), one)
    shared = {"reference": section.reference, "rng": section.seed, "target": section.target}
    return {"estimators": list(by_unit.values()), **shared}


def _caption(frame: pd.DataFrame) -> str:
    size = frame.attrs.get("group_size")
    groups = "groups" if size is None else f"groups of {size} completions"
    origin = "as given" if frame.attrs.get("success") == "given" else "of the other half of the completions"
    caption = (
        f"Gradient by success rate of the prompt ({origin}), {groups}, {level_of(frame)}intervals over prompts. Scale: "
        "factor of the prompts' expected gradient on that of the target; shares sum to 1."
    )
    if left_out := frame.attrs.get(LEFT_OUT):
        caption += f" One estimator of each unit is shown; the run's other {len(left_out)} are not."
    return caption


def _row_name(row: dict[str, Any]) -> str:
    return f"{row['estimator']}, {bin_label(row['success_low'], row['success_high'])} (n = {row['n_prompts']:,})"


ANALYSIS = Analysis(
    name="success_bins",
    ask=variance_by_success,
    unavailable_because=without_groups,
    options=("estimators", "success", "group_size", "bins", "reference", "target", "rng"),
    columns=SuccessBin.columns(),
    ranking=Ranking("share_of_variance", most_first=True, in_blocks=True, scale="scale"),
    row_heading="estimator, success rate",
    row_name=_row_name,
    caption=_caption,
    in_run=_in_run,
    figures=(
        AnalysisFigure(
            "success_shares",
            "Share of the expected gradient that prompts of each range of success rates make up.",
            plot_shares,
            rows=_of_units,
        ),
    ),
)
