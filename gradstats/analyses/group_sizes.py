"""Which group size takes the fewest samples?"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from gradstats import estimators as families
from gradstats.analyses.allocation import best_size, how_many
from gradstats.analyses.declaration import (
    NO_GROUPS,
    Analysis,
    AnalysisFigure,
    Column,
    FurtherTable,
    Ranking,
    group_level_estimators,
    powers_of_two,
    without_groups,
)
from gradstats.analyses.numbers import ROUNDING, format_estimate, percent, percentage
from gradstats.analyses.results import RemarkedResult, ScalarResult, column, estimate
from gradstats.analyses.variance import (
    COLUMNS,
    VarianceComparison,
    caption_of_comparison,
    compare,
    row_name,
    with_sizes_in_names,
)
from gradstats.analyses.variance_notes import moments_of, why_not_judged
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.config.options import Target as AskedTarget
from gradstats.estimators import Batch
from gradstats.estimators.by_label import get_all
from gradstats.estimators.estimator import SEQUENCE_SUM, Weighting, unit_of
from gradstats.plots.group_size import plot_group_size, plot_prompt_parts
from gradstats.plots.marks import with_ends
from gradstats.plots.names import reference_name
from gradstats.stats.intervals import MonotoneFunction, share_saved, skewed_mean, studentised_ratio
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, Estimated, Statistic
from gradstats.stats.protocols import MeasuredGradients
from gradstats.stats.variance.inputs import (
    PoolsBySize,
    TargetChoice,
    pools_by_size,
    prepared_inputs,
    refuse_batch_level,
    target_of,
)
from gradstats.stats.variance.moments import PromptMoments, cross_signal
from gradstats.stats.variance.pools import PooledCompletions, multiple_of
from gradstats.stats.variance.quantities import JUDGED, VARIANCE_COMPONENTS, fewest_carriers
from gradstats.system.lazy_imports import pd

if TYPE_CHECKING:
    from gradstats.config.experiment import Experiment
    from gradstats.measurement.measurement import Measurement


@dataclass(frozen=True, repr=False)
class EquivalentGroupSize(ScalarResult):
    r"""The group size at which RLOO is as noisy as an estimator, at the same total number of completions.

    Attributes:
        estimator: label of the estimator.
        group_size: completions per group of it.
        equivalent_group_size: N', infinite where no group size of RLOO has as low a variance.
        n_prompts: prompts it rests on.
        same_prompts_group_size: the group size at which RLOO is as noisy at the same number of prompts.
        tokens_saved: share of tokens saved at equal noise against RLOO in groups of the same size: 1 less the ratio of
            the variances, within and between prompts together; negative where the estimator is noisier.
    """

    estimator: str = column("label of the estimator", file="estimators/by_label.py")
    group_size: int = column("completions per group")
    equivalent_group_size: MonotoneFunction = estimate("group size at which RLOO is as noisy", "equivalent group size")
    n_prompts: int = column("prompts")
    same_prompts_group_size: Estimate = estimate("group size at which RLOO is as noisy at the same number of prompts")
    tokens_saved: Estimated = estimate(
        "share of tokens saved at equal noise, against RLOO in groups of the same size", "share of tokens saved"
    )

    @property
    def value(self) -> float:
        """N'; infinite when no group size of RLOO has as low a variance."""
        return self.equivalent_group_size.with_interval(CONFIDENCE_LEVEL)[0]

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval of N', whose upper end may be infinite."""
        return self.equivalent_group_size.with_interval(confidence_level)[1:]

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State the answer in words."""
        if self.estimator == "rloo":
            return f"rloo in groups of {self.group_size} is what other estimators are compared with."
        size = self.size_in_words(confidence_level)
        text = f"{self.estimator} in groups of {self.group_size} is as noisy as rloo at {size}"
        saved, low, high = (100.0 * share for share in self.tokens_saved.with_interval(confidence_level))
        if not np.isfinite(saved):
            return f"{text}, at the same total of completions."
        if max(abs(saved), abs(low), abs(high)) < ROUNDING:
            share = "as many tokens"
        elif saved < 0:
            share = f"{format_estimate(-saved, -high, -low)} % more tokens"
        else:
            share = f"{format_estimate(saved, low, high)} % fewer tokens"
        return f"{text} and takes {share} for the same noise."

    def size_in_words(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """Write N' with its interval."""
        return _size_in_words(self.value, *self.confidence_interval(confidence_level))


@dataclass(frozen=True)
class BestSize:
    r"""How many completions of a prompt ``rloo`` should take, and what fewer cost.

    At equal tokens its noise is :math:`N (w(N) + b) = v_1 + v_2/(N-1) + N b`; the least, at :math:`1 + \sqrt{v_2/b}`,
    is :math:`v_1 + b + 2\sqrt{v_2 b}`.

    Attributes:
        size: the best number of completions.
        relative_noise: of smaller groups, over that at the best size, by size; empty where that is not resolved.
    """

    size: Estimated
    relative_noise: Mapping[int, Estimated]

    @classmethod
    def of(cls, perfect: Statistic, cost: Statistic, between: Statistic, most: int, carriers: float) -> BestSize:
        """Return it for v_1, v_2 and b, with the noise of powers of two up to ``most`` completions.

        So many prompts carry the variance.
        """
        size = best_size(cost, between)
        if not np.isfinite(size.with_interval(CONFIDENCE_LEVEL)).all():
            return cls(size, {})
        least = perfect + between + (cost * between).root().scaled(2.0)
        noises = {n: perfect + cost.scaled(1.0 / (n - 1.0)) + between.scaled(float(n)) for n in powers_of_two(most)}
        return cls(size, {n: studentised_ratio(noise, least, carriers) for n, noise in noises.items()})

    def sentence(self, confidence_level: float) -> str:
        """State the number, and what fewer completions cost, the most first."""
        said, costs = how_many(self.size, confidence_level), []
        best = self.size.with_interval(confidence_level)[0]
        for n, noise in sorted(self.relative_noise.items(), reverse=True):
            found = [end - 1.0 for end in noise.with_interval(confidence_level)]
            if n < best and np.isfinite(found).all() and found[1] > -1.0:  # with both ends
                costs.append(f"{percentage(*found)}{' more noise' if not costs else ''} in groups of {n}")
        return f"{said} At equal tokens, fewer cost {', '.join(costs)}." if costs else said


def _size_in_words(size: float, low: float, high: float) -> str:
    """Write a group size with its interval, or as a bound.

    >>> _size_in_words(4.0, 4.0, 4.0), _size_in_words(np.inf, 9.0, np.inf), _size_in_words(*[np.inf] * 3)
    ('N = 4', 'N ≥ 9', 'no N, however large')
    """
    if np.isinf(low):
        return "no N, however large"
    number = format_estimate(size if np.isfinite(size) else np.nan, low, high)
    return f"N {number}" if number[0] in "≥≤" else f"N = {number}"


def _size(inverse: float) -> float:
    if np.isnan(inverse):
        return np.nan
    return 1.0 + 1.0 / inverse if inverse > 0 else np.inf


def equivalent_group_size(
    measured_or_batch: Batch | MeasuredGradients,
    estimator: str | Weighting,
    group_size: int,
    scores: npt.ArrayLike | None = None,
    rng: int | np.random.Generator | None = 0,
    *,
    target: AskedTarget = "auto",
    scores_are_sketches: bool | None = None,
) -> EquivalentGroupSize:
    r"""Find the group size at which ``rloo`` is as noisy as an estimator at ``group_size`` completions.

    The comparison is at the same total number of completions and of the within-prompt variance w, since the
    between-prompt variance does not shrink with the group. RLOO is a U-statistic of pairs, so that
    :math:`N w(N) = v_1 + v_2/(N-1)` exactly: :math:`v_1` is what a perfect baseline would leave, :math:`v_2` the cost
    of estimating it. Both come from groups of 2 and of N, and :math:`v_1 + v_2/(N'-1) = N w_\mathrm{estimator}(N)` is
    solved for N'. The interval is a delete-one-prompt jackknife of 1/(N' − 1), which stays finite where N' does not. An
    estimator of another unit, such as ``recipe:grpo``, is first scaled so that its expected gradient projects on the
    target of :func:`gradstats.compare` with the coefficient of RLOO's. So is every estimator where completions were
    drawn from another policy than the scored one, since what is known of E[ĝ] holds on-policy.

    Two further answers come with it. ``same_prompts`` is the size at which RLOO has the within-prompt variance of the
    estimator at the same *number of prompts*, :math:`(v_1 + v_2/(N''-1))/N'' = w_\mathrm{estimator}(N)`: RLOO then
    takes N''/N times the tokens. ``tokens_saved`` compares with RLOO in groups of the same size, by the whole variance.

    Args:
        measured_or_batch: as in :func:`gradstats.compare`.
        estimator: label or object of a group-level estimator, a recipe included.
        group_size: N, at least 3 (groups of 2 are the second anchor); prompts with fewer than 2N completions are
            left out.
        scores: as in :func:`gradstats.compare`.
        rng: for estimating the sketch's error.
        target: as in :func:`gradstats.compare`.
        scores_are_sketches: as in :func:`gradstats.compare`.

    Raises:
        ValueError: for a group size below 3, fewer than 3 prompts with 2N completions, a batch-level
            estimator, one that weights single tokens whose scores are unknown, one whose scale is needed and not
            resolved, or data on which the baseline of RLOO costs nothing.

    Example:
        >>> import numpy as np
        >>> import gradstats as gs
        >>> rng = np.random.default_rng(0)
        >>> rewards, lengths = rng.integers(0, 2, 1600), rng.integers(10, 100, 1600)
        >>> batch = gs.estimators.Batch(rewards, lengths, np.repeat(np.arange(100), 16))
        >>> scores = rng.normal(size=(1600, 8)) * np.sqrt(lengths)[:, None]
        >>> result = gs.equivalent_group_size(batch, "rloo", 4, scores)
        >>> round(result.value, 6)
        4.0
    """
    (found,), _ = _equivalents(
        measured_or_batch, [estimator], group_size, scores, rng, target=target, scores_are_sketches=scores_are_sketches
    )
    return found


def _equivalents(
    measured_or_batch: Batch | MeasuredGradients,
    estimators: Sequence[str | Weighting],
    group_size: int,
    scores: npt.ArrayLike | None,
    rng: int | np.random.Generator | None,
    *,
    target: AskedTarget,
    scores_are_sketches: bool | None,
    unresolved: Literal["refuse", "nan"] = "refuse",
) -> tuple[list[EquivalentGroupSize], BestSize | None]:
    """Find the equivalent group sizes of several estimators, and the best size of ``rloo``, from the same groups.

    Where the scale of one is needed and not resolved, ``unresolved="nan"`` gives NaN with a warning in place of an
    error.
    """
    chosen = get_all(estimators)
    for one in chosen:
        if one.across_groups:
            raise ValueError(
                f"{one.label} is a batch-level estimator, for which an equivalent group size is not defined"
            )
    if group_size < 3:
        raise ValueError(
            f"group_size={group_size} must be at least 3: the noise is computed from groups of 2 and of this size"
        )
    labels = [one.label for one in chosen]
    inputs, chosen, judged = prepared_inputs(measured_or_batch, chosen, scores, scores_are_sketches, target)
    inputs.refuse_unknown_token_scores(chosen)
    batch = inputs.batch
    enough = batch.group_sizes >= 2 * group_size
    if enough.sum() < 3:
        found = int(enough.sum())
        raise ValueError(
            f"{('no prompt has', 'only 1 prompt has', 'only 2 prompts have')[found]} the {2 * group_size} completions "
            f"that two groups of {group_size} need, and at least 3 prompts are required: sample more completions or "
            "lower group_size"
        )
    pools = pools_by_size(inputs, judged, enough, np.random.default_rng(rng))
    for one in chosen:
        if pools.on_policy and one.expected_scale(group_size) is None and unit_of(one) == SEQUENCE_SUM:
            warnings.warn(
                f"E[ĝ] of {one.label} is not a known multiple of the true gradient, so that its shrinkage counts as "
                "lower variance: use the leave-one-out version (loo=True)",
                UserWarning,
                stacklevel=2,
            )
    rloo = families.get("rloo")
    grouped, in_pairs = pools.pool(group_size), pools.pool(2)
    in_pairs.expect([rloo])
    grouped.expect([*chosen, rloo])
    grouped.form([*chosen, rloo], [target_of(grouped, judged)])
    pairs = _within(moments_of(in_pairs, rloo), 2)
    of_rloo = moments_of(grouped, rloo)
    larger = _within(of_rloo, group_size)
    # From 2 w(2) = v_1 + v_2 and N w(N) = v_1 + v_2/(N−1): v_2 = (2 w(2) − N w(N))·(N−1)/(N−2).
    cost = (pairs - larger).scaled((group_size - 1.0) / (group_size - 2.0))
    if not cost.value > 0:
        raise ValueError(
            "the baseline of rloo costs nothing measurable here (pairs are no noisier than larger groups): measure "
            "more prompts"
        )
    perfect = pairs - cost
    answers = []
    for one, label in zip(chosen, labels, strict=True):
        moments = moments_of(grouped, one)
        inverse = same_prompts = relative_noise = NOT_ESTIMATED
        try:
            at_scale = _to_scale(grouped, one, rloo, pools)
        except ValueError as error:
            if unresolved == "refuse":
                raise
            warnings.warn(str(error), UserWarning, stacklevel=2)
        else:
            matched = at_scale(_within(moments, group_size))
            inverse = ((matched - perfect) / cost).estimate()
            same_prompts = _same_prompts(matched.scaled(1.0 / group_size), perfect, cost)
            carriers = fewest_carriers(moments, of_rloo)
            relative_noise = studentised_ratio(at_scale(moments.trace_cov), of_rloo.trace_cov, carriers)
        equivalent = MonotoneFunction(_size, (inverse,))
        answers.append(
            EquivalentGroupSize(
                label, group_size, equivalent, pools.n_prompts, same_prompts, share_saved(relative_noise)
            )
        )
    if of_rloo.within is None:
        return answers, None
    between = of_rloo.trace_cov - of_rloo.within
    return answers, BestSize.of(perfect, cost, between, 2 * group_size, fewest_carriers(of_rloo))


def _within(moments: PromptMoments, size: int) -> Statistic:
    """Return N·w(N), the within-prompt variance at the same total number of completions."""
    assert moments.within is not None  # every prompt has two groups
    return moments.within.scaled(float(size))


def _same_prompts(within: Statistic, perfect: Statistic, cost: Statistic) -> Estimate:
    """Return the larger root N of w N² − (w + v_1) N + (v_1 − v_2) = 0, of w = (v_1 + v_2/(N−1))/N."""
    linear = within + perfect
    root = (linear * linear - (within * (perfect - cost)).scaled(4.0)).root()
    return ((linear + root) / within.scaled(2.0)).estimate("log")


def _to_scale(
    pool: PooledCompletions, one: Weighting, rloo: Weighting, pools: PoolsBySize
) -> Callable[[Statistic], Statistic]:
    """Return what brings a variance of an estimator to the scale of RLOO, by E[ĝ] over RLOO's.

    On-policy a biased estimator of RLOO's unit keeps its scale, of which :func:`equivalent_group_size` warns.
    """
    known = multiple_of(pool.local(one).weights, pool.local(rloo).weights)
    if known is None and pools.on_policy and unit_of(one) == unit_of(rloo):
        known = one.expected_scale(int(pool.groups.sizes[0])) or 1.0
    if known is not None:
        return lambda variance: variance.scaled(known**-2)
    coefficient = _coefficient(pool, one, rloo, pools.judged)
    return lambda variance: variance / (coefficient * coefficient)


def _coefficient(pool: PooledCompletions, estimator: Weighting, rloo: Weighting, judged: TargetChoice) -> Statistic:
    """Estimate ⟨E ĝ, G⟩/⟨E g, G⟩ with g RLOO's gradient, the scale of an estimator along the target G."""
    target = target_of(pool, judged).moments
    if target is None:
        raise ValueError(f"the scale of {estimator.label} relative to rloo is not known: {why_not_judged(judged)}")
    crosses = [cross_signal(moments_of(pool, one), target, pool.sketch_error) for one in (estimator, rloo)]
    if not min(one.estimate().confidence_interval()[0] for one in crosses) > 0:
        why = "the completions count as off-policy, for which no scale is known"
        if judged.kind == "importance":
            why = "judged by importance weights, under which no scale is known"
        if unit_of(estimator) != unit_of(rloo):
            why = f"it is measured in {unit_of(estimator)}"
        raise ValueError(
            f"{estimator.label}: its scale relative to rloo, along the target, is not resolved by "
            f"{pool.groups.n_prompts} prompts ({why}): measure more prompts"
        )
    return crosses[0] / crosses[1]


@dataclass(frozen=True, repr=False)
class GroupSizes(RemarkedResult):
    r"""The variance of estimators in groups of several sizes, and the sizes at which RLOO is as noisy as they are.

    Attributes:
        comparison: a row for each estimator and size.
        equivalents: of the estimators for which an equivalent group size is defined.
        remarks: what a reader has to know, one sentence each.
        group_size_of_run: completions of each prompt; None where prompts have different numbers.
        of_largest: variance within prompts and between them of RLOO and its multiples, by label, in groups of all
            completions of a prompt: that between them does not depend on the size.
        best: completions per prompt at which RLOO has the least noise for its tokens; None where it is not known.
    """

    question: ClassVar[str] = "group_sizes"

    printed_columns: ClassVar[tuple[str, ...]] = ("estimator", "group_size", "trace_cov", "within_prompt", "ratio")

    comparison: VarianceComparison
    equivalents: tuple[EquivalentGroupSize, ...]
    remarks: tuple[str, ...] = ()
    group_size_of_run: int | None = None
    of_largest: Mapping[str, tuple[Estimate, Estimate]] = field(default_factory=dict, repr=False)
    best: BestSize | None = None

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return the frame of the comparison, with the variance within prompts and between them where it is known.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        frame = self.comparison.to_frame(confidence_level)
        if self.comparison.n_groups > sum(split.n_prompts for split in self.comparison.splits):
            components = self.comparison.variance_components(confidence_level)
            columns = [column for column in components if column not in frame]
            frame[columns] = components[columns]
            for label, parts in self.of_largest.items():
                rows = (frame["estimator"] == label) & (frame["group_size"] == self.group_size_of_run)
                for one, part in zip(VARIANCE_COMPONENTS, parts, strict=True):
                    frame.loc[rows, with_ends(one.name)] = part.with_interval(confidence_level)
        frame.attrs["group_size_of_run"] = self.group_size_of_run
        return frame

    def equivalents_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return one row for each equivalent group size."""
        frame = pd.DataFrame([one.record(confidence_level) for one in self.equivalents])
        frame.attrs["confidence_level"] = confidence_level
        return frame

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State how many completions to draw, and the smallest and the largest group of RLOO that is as noisy."""
        known = sorted((one for one in self.equivalents if not np.isnan(one.value)), key=lambda one: one.value)
        others = [one for one in known if one.estimator != "rloo"]
        said = [
            self.best.sentence(confidence_level) if self.best else "",
            self._equivalents_in_words(others, confidence_level),
        ]
        return " ".join(filter(None, said)) or "No equivalent group size could be estimated."

    def _equivalents_in_words(self, others: Sequence[EquivalentGroupSize], confidence_level: float) -> str:
        """Compare the least and the most efficient of other estimators, in ascending order, with groups of RLOO."""
        if len(others) < 2:
            return others[0].sentence(confidence_level) if others else ""
        least, most = others[0], others[-1]
        smallest, largest = (one.size_in_words(confidence_level) for one in (least, most))
        sizes = f"In groups of N = {most.group_size}, {least.estimator} is as noisy as rloo at {smallest}"
        if not most.confidence_interval(confidence_level)[0] > most.group_size:
            return f"{sizes}; no estimator is shown to do better than rloo."
        return f"{sizes}, and {most.estimator} as rloo at {largest}."


def variance_by_group_size(
    measured_or_batch: Batch | MeasuredGradients,
    estimators: Sequence[str | Weighting],
    group_sizes: Sequence[int] | None = None,
    scores: npt.ArrayLike | None = None,
    *,
    group_size: int | None = None,
    rng: int | np.random.Generator | None = 0,
    target: AskedTarget = "auto",
    scores_are_sketches: bool | None = None,
    **options: Any,
) -> GroupSizes:
    r"""Compare estimators in groups of several sizes N, and find the N' at which ``rloo`` is as noisy as each.

    The same completions are split into groups of every size. The variance of a group's gradient is
    :math:`w(N) + b`, of which w within prompts falls with N and b between prompts does not; N' is that of
    :func:`equivalent_group_size`, at an equal total of completions.

    Args:
        measured_or_batch: as in :func:`gradstats.compare`.
        estimators: labels or objects of group-level estimators, recipes included.
        group_sizes: completions per group; by default powers of two up to the smallest number of a prompt.
        scores: as in :func:`gradstats.compare`.
        group_size: N of the estimators whose equivalent group size is sought, at least 3; by default half the largest
            power of two, where an estimator without one is left out.
        rng: for estimating the sketch's error.
        target: as in :func:`gradstats.compare`.
        scores_are_sketches: as in :func:`gradstats.compare`.
        **options: the other arguments of :func:`gradstats.compare`.

    Returns:
        A :class:`GroupSizes`.

    Raises:
        ValueError: for a batch-level estimator, for a size that no prompt has, for sizes that leave the reference no
            gradient, as :func:`gradstats.compare`, and with ``group_size`` as :func:`equivalent_group_size`.

    Example:
        >>> import numpy as np
        >>> import gradstats as gs
        >>> from gradstats.analyses import variance_by_group_size
        >>> rng = np.random.default_rng(0)
        >>> lengths = rng.integers(10, 100, 1600)
        >>> scores = rng.normal(size=(1600, 8)) * np.sqrt(lengths)[:, None]
        >>> batch = gs.estimators.Batch(scores[:, 0] > 0, lengths, np.repeat(np.arange(200), 8))
        >>> found = variance_by_group_size(batch, ["rloo"], scores=scores)
        >>> found.to_frame()["group_size"].tolist(), [one.group_size for one in found.equivalents]
        ([2, 4, 8], [4])
    """
    chosen = get_all(estimators)
    refuse_batch_level(chosen)
    asked: dict[str, Any] = {"rng": rng, "target": target, "scores_are_sketches": scores_are_sketches}
    of_prompts = _completions_per_prompt(measured_or_batch)
    sizes = powers_of_two(int(of_prompts.min()))
    if wrong := [one for one in group_sizes or () if not 1 <= one <= of_prompts.max()]:
        raise ValueError(
            f"group_sizes={wrong[0]}: choose from 1 to the {of_prompts.max()} completions of a prompt, or sample more"
        )
    if not group_sizes and not sizes:
        raise ValueError(NO_GROUPS)
    reference = families.get(options.get("reference", "rloo"))
    if group_sizes and not any(reference.expected_scale(one) != 0.0 for one in group_sizes):
        given = ", ".join(map(str, group_sizes))
        raise ValueError(
            f"group_sizes={given}: a group of {max(group_sizes)} leaves the reference, {reference.label}, no gradient: "
            "choose larger groups, or another reference, such as reinforce"
        )
    equivalents, best, notes, size = [], None, [], max(sizes, default=0) // 2
    if group_size is not None:  # refused before the comparison, which takes longer
        equivalents, best = _equivalents(measured_or_batch, chosen, group_size, scores, **asked)
    comparison = compare(measured_or_batch, chosen, scores, group_sizes or sizes, **options, **asked)
    if group_size is None and size < 3:
        notes = ["an equivalent group size needs two groups of 3: sample at least 6 completions of each prompt"]
    elif group_size is None:
        # The shrinkage of an own-sample baseline would count as lower variance.
        known = [one for one in chosen if one.expected_scale(size) or unit_of(one) != SEQUENCE_SUM]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                equivalents, best = _equivalents(measured_or_batch, known, size, scores, **asked, unresolved="nan")
                notes = [str(one.message) for one in caught]
            except ValueError as error:
                notes = [str(error)]
    of_run, of_largest = int(of_prompts[0]) if of_prompts.min() == of_prompts.max() else None, {}
    if of_run is not None and of_run in (group_sizes or sizes) and not options.get("max_grad_norm"):
        of_largest = _of_largest(measured_or_batch, chosen, of_run, scores, **asked)
    return GroupSizes(comparison, tuple(equivalents), (*comparison.remarks, *notes), of_run, of_largest, best)


def _of_largest(
    measured_or_batch: Batch | MeasuredGradients,
    estimators: Sequence[Weighting],
    most: int,
    scores: npt.ArrayLike | None,
    *,
    rng: int | np.random.Generator | None,
    target: AskedTarget,
    scores_are_sketches: bool | None,
) -> dict[str, tuple[Estimate, Estimate]]:
    """Return the variance within prompts and between them in groups of all completions, of multiples of RLOO.

    A prompt has a single such group; what is between prompts is that of groups of half the completions.
    """
    inputs, prepared, judged = prepared_inputs(measured_or_batch, estimators, scores, scores_are_sketches, target)
    pools = pools_by_size(inputs, judged, inputs.batch.group_sizes >= most, np.random.default_rng(rng))
    rloo, half, whole = families.get("rloo"), pools.pool(max(most // 2, 2)), pools.pool(most)
    found = {}
    for one, label in zip(prepared, (one.label for one in estimators), strict=True):
        of_half, of_whole = (multiple_of(pool.weights(one), pool.weights(rloo)) for pool in (half, whole))
        if of_half is not None and of_whole is not None:
            smaller = moments_of(half, one)
            if smaller.within is not None:
                between = (smaller.trace_cov - smaller.within).scaled((of_whole / of_half) ** 2)
                of_all = moments_of(whole, one)
                within = of_all.trace_cov - between
                found[label] = skewed_mean(within, within.pseudo_values, of_all.completions), between.estimate()
    return found


def _completions_per_prompt(measured_or_batch: Batch | MeasuredGradients) -> np.ndarray:
    if isinstance(measured_or_batch, Batch):
        return measured_or_batch.group_sizes
    return np.unique(measured_or_batch.rollouts.prompt_id, return_counts=True)[1]


def _in_run(measured: Measurement, experiment: Experiment) -> dict[str, Any]:
    """Ask of the estimators that stay within their group, in groups of all measured sizes."""
    section = experiment.variance
    return section.arguments(estimators=group_level_estimators(measured, section), group_size=None)


def _with_components(sizes: pd.DataFrame) -> pd.DataFrame | None:
    """Return the rows whose variance components are known, the same frame where all are; None where none is."""
    if "within_prompt" not in sizes:
        return None
    known = np.isfinite(sizes["within_prompt"].to_numpy(dtype=float))
    if not known.any():
        return None
    return sizes if known.all() else sizes.loc[known]


def _of_several_sizes(sizes: pd.DataFrame) -> pd.DataFrame | None:
    """Return the rows where groups of several sizes were compared, at the relative noise of each."""
    return sizes if len(set(sizes["group_size"])) > 1 and JUDGED.name in sizes else None


def _draw_group_sizes(frame: pd.DataFrame) -> object:
    """Draw the relative noise in groups of each size."""
    return plot_group_size(frame, group_size_of_run=frame.attrs.get("group_size_of_run"))


def _largest_groups(sizes: pd.DataFrame) -> pd.DataFrame | None:
    """Return the variance components at the largest group size where most rows have them."""
    within = _with_components(sizes)
    if within is None:
        return None
    found, n_known = np.unique(within["group_size"].to_numpy(dtype=float), return_counts=True)
    return within.loc[within["group_size"] == found[n_known == n_known.max()].max()]


def _caption_of_equivalents(frame: pd.DataFrame) -> str:
    n_prompts = f"n = {frame['n_prompts'].iloc[0]} prompts" if "n_prompts" in frame else "prompts"
    return (
        f"Group size at which RLOO has the same noise, and share of tokens saved against RLOO in groups of the same "
        f"size, {percent(frame.attrs['confidence_level'])} intervals over {n_prompts}. Each estimator with N = "
        f"{frame['group_size'].iloc[0]:g} completions per prompt."
    )


_EQUIVALENTS = FurtherTable(
    name="equivalent_group_size",
    frame=GroupSizes.equivalents_frame,
    columns=EquivalentGroupSize.columns(),
    row_heading="estimator",
    row_name=lambda row: str(row["estimator"]),
    caption=_caption_of_equivalents,
    ranking=Ranking("equivalent_group_size", most_first=True),
)

ANALYSIS = Analysis(
    name="group_sizes",
    ask=variance_by_group_size,
    unavailable_because=without_groups,
    options=(
        "estimators", "group_sizes", "group_size", "reference", "target", "prompts_per_batch", "n_resamples",
        "max_grad_norm", "rng",
    ),
    columns=(
        *COLUMNS,
        *(
            Column(one.name, one.meaning, estimated=True, file="stats/variance/quantities.py")
            for one in VARIANCE_COMPONENTS
        ),
    ),
    row_heading="estimator",
    row_name=row_name,
    display_frame=with_sizes_in_names,
    caption=caption_of_comparison,
    further=(_EQUIVALENTS,),
    in_run=_in_run,
    figures=(
        AnalysisFigure(
            "group_sizes",
            lambda frame: (
                f"Samples that each estimator needs for equal noise, where {reference_name(frame)} in groups of the "
                "same size needs 1; the upright line is the group size of the run. Broken lines, half-filled markers: "
                "the baseline includes the completion itself."
            ).replace("\u00a0", " "),
            _draw_group_sizes,
            rows=_of_several_sizes,
        ),
        AnalysisFigure(
            "prompt_parts",
            "Variance within prompts, which decreases with the group size, and between prompts, which does not.",
            plot_prompt_parts,
            rows=_largest_groups,
        ),
    ),
)  # fmt: skip
