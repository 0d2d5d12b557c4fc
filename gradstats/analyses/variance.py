"""Which estimator takes the fewest samples?"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import index
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool

from gradstats import estimators as families
from gradstats.analyses.declaration import (
    ORDER,
    Analysis,
    AnalysisFigure,
    Column,
    FurtherTable,
    Ranking,
    clipping_of,
    level_of,
    missing_sketches,
    size_of_groups,
)
from gradstats.analyses.results import RemarkedResult
from gradstats.analyses.variance_notes import (
    about_target,
    notes_of_each,
    remarks_about,
    target_attrs,
    warnings_about,
    why_not_judged,
)
from gradstats.config.options import CONFIDENCE_LEVEL, EUCLIDEAN, Target
from gradstats.config.sections import DEFAULT_ESTIMATORS, VarianceSection
from gradstats.estimators import Batch
from gradstats.estimators.by_label import get_all
from gradstats.estimators.display_names import uses_own_sample
from gradstats.estimators.estimator import Weighting, composition_of, unit_of
from gradstats.measurement.measurement import NO_BLOCK_SKETCHES, Measurement, WeightedGradients, metric_sentence
from gradstats.measurement.scored import FORWARD
from gradstats.plots.names import reference_name
from gradstats.plots.variance import ShortRows, plot_variance, plot_variance_panels, rows_shown_below, short_rows
from gradstats.stats.jackknife import interval_columns
from gradstats.stats.protocols import MeasuredGradients
from gradstats.stats.variance.best_set import PairwiseDifferences, pairwise_differences
from gradstats.stats.variance.calibrated import Calibration, Scored, calibrate, unweightable
from gradstats.stats.variance.inputs import (
    ON_POLICY,
    ComparisonInputs,
    TargetChoice,
    pooled,
    prepared_inputs,
    reasons_against,
    target_of,
)
from gradstats.stats.variance.moments import shuffled_prompts, split_into_groups
from gradstats.stats.variance.pools import PooledCompletions
from gradstats.stats.variance.products import PooledProducts
from gradstats.stats.variance.quantities import (
    COMPARED,
    JUDGED,
    QUANTITIES,
    TARGETS,
    VARIANCE_COMPONENTS,
    Limits,
    Quantity,
    filled_in,
    simultaneous,
)
from gradstats.stats.variance.row import EstimatorVariance, row_without_gradient
from gradstats.stats.variance.sketch_error import rotated_once
from gradstats.system.lazy_imports import pd

#: What becomes of a row that cannot be computed.
Unavailable = Literal["refuse", "nan", "leave_out"]
#: Entry of a comparison's ``.attrs`` where rows have no relative noise: how many prompts would give them one, or None.
NEEDED = "prompts_to_resolve"
_PROXY = "stats/variance/calibrated.py"
_HERE, _QUANTITIES = "analyses/variance.py", "stats/variance/quantities.py"
#: Entry of a frame's ``.attrs``: how many estimators were compared, where only some are listed.
COMPARED_ROWS = "n_compared"
_BEST_SET = "best set"


def _on_bold(frame: pd.DataFrame) -> str:
    """Say what is bold, as far as the simultaneous intervals of the relative noise decide, and what is not resolved."""
    if f"{JUDGED.name}_simultaneous_high" not in frame or _n_compared(frame) < 2:
        return ""
    judged = np.isfinite(frame[JUDGED.name].to_numpy(dtype=float))
    if not judged.any():
        return f"No {JUDGED.heading} is resolved."
    corrected = f"corrected for comparing all {_n_compared(frame)} estimators"
    said = (
        f"Bold: shown to be below 1, {corrected}."
        if rows_shown_below(frame)
        else f"No row is shown to be below 1, {corrected}."
    )
    known = frame["trace_cov"].notna().to_numpy() if "trace_cov" in frame else np.ones(len(frame), dtype=bool)
    n = int((known & ~judged).sum())
    return f"{said} {n} {'row is' if n == 1 else 'rows are'} not resolved and may be lower." if n else said


def _n_compared(frame: pd.DataFrame) -> int:
    """Return the number of estimators that were compared, those that are not listed included."""
    return int(frame.attrs.get(COMPARED_ROWS, frame["estimator"].nunique()))


def about_intervals_together(frame: pd.DataFrame) -> str:
    """State of which rows the intervals hold that hold for several at once: others compared have other ones."""
    return f"between these ends all {_n_compared(frame)} estimators compared lie at once"


def _columns_of(one: Quantity) -> tuple[Column, ...]:
    """Return the column of a quantity and, where it has one, that of its intervals for all rows at once."""

    def remark(frame: pd.DataFrame) -> str:
        try:
            return _on_bold(frame) if one is JUDGED else one.remark.format_map(frame.attrs)
        except KeyError:  # which a frame may lack
            return ""

    own = Column(
        one.name, one.meaning, one.heading, True, one.short, one.limits, _QUANTITIES, one.shown_in, sentence=remark
    )
    if not one.together_heading:
        return (own,)
    together = Column(
        f"{one.name}_simultaneous",
        f"interval of the {filled_in(one.heading, {})} that holds for all rows at once",
        one.together_heading,
        limits=one.limits,
        file=_QUANTITIES,
        places=one.together_in,
        sentence=lambda frame: f"{one.together_heading.capitalize()}: {about_intervals_together(frame)}.",
    )
    return own, together


#: The columns of a comparison, which other analyses extend.
COLUMNS = (
    Column("estimator", "label of the estimator", short=True, file="estimators/by_label.py"),
    Column("group_size", "completions per group", file="stats/variance/row.py"),
    Column("unit", "unit of the gradient; ratios compare rows of one unit", file="estimators/estimator.py"),
    Column("components", "the choices that a recipe is composed of", file="estimators/recipes/components.py"),
    Column("target", "the gradient that bias and cosine are judged against", file="stats/variance/inputs.py"),
    *(column for one in COMPARED for column in _columns_of(one)),
    Column("n_effective_prompts", "number of equally noisy prompts that the variance rests on", file=_QUANTITIES),
    Column("most_influential_prompt", "the prompt without which tr Cov changes most", file=_QUANTITIES),
    Column(
        "in_best_set",
        "whether it may have the lowest relative noise",
        _BEST_SET,
        file=_HERE,
        places=("page", "terminal"),
    ),
)


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
class VarianceComparison(RemarkedResult):
    r"""The variance :math:`\mathrm{tr\,Cov}(ĝ)`, bias and cosine of several estimators; ``.to_frame()`` is the table.

    Attributes:
        rows: one entry per estimator, in the order asked for, block by block and group size by group size.
        splits: the split into groups, one for each group size.
        reference: label of the estimator in the denominator of ratios.
        prompts_per_batch: B in ``bias_share``.
        sketch_dim: dimension of the random projection; None for exact scores.
        target: what bias, cosine and matched variances are judged against.
        remarks: what a reader of the table has to know, one sentence each.
        differences: the estimators of each block and group size, compared pair by pair.
        prompt_labels: what the prompts of each block and group size are called.
        max_grad_norm: the norm that gradients of batches are clipped to; None without clipping.
        metric: label of the metric that gradients were measured in, ``"euclidean"`` or ``"adam(…)"``.
    """

    question: ClassVar[str] = "variance"

    printed_columns: ClassVar[tuple[str, ...]] = ("estimator", "matched_ratio", "cosine", "trace_cov")
    printed_limits: ClassVar[Mapping[str, Limits]] = {name: quantity.limits for name, quantity in QUANTITIES.items()}

    rows: tuple[EstimatorVariance, ...]
    splits: tuple[GroupSplit, ...]
    reference: str
    prompts_per_batch: int
    sketch_dim: int | None
    target: TargetChoice = field(default=ON_POLICY)
    remarks: tuple[str, ...] = field(default=())
    differences: tuple[PairwiseDifferences, ...] = field(default=(), repr=False, compare=False)
    prompt_labels: tuple[np.ndarray, ...] = field(default=(), repr=False, compare=False)
    max_grad_norm: float | None = None
    metric: str = EUCLIDEAN
    # of each group size, where only some prompts of a run are measured and all are scored
    calibrations: tuple[Calibration, ...] = field(default=(), repr=False, compare=False)

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

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per estimator: ``estimator, group_size, unit, components``, each quantity with ``_low``, ``_high``.

        Then follow ``ratio_simultaneous_low`` and ``ratio_simultaneous_high``, between which the ratios of all rows of
        a group size lie at once, and the same of ``matched_ratio``; ``in_best_set``, whether the estimator may have the
        lowest relative noise (None for rows without a relative noise, which are not judged);
        ``n_effective_prompts``, how many prompts of equal squared gradients the variance is worth; and
        ``most_influential_prompt``, without which it changes most.
        ``.attrs`` hold how the comparison was made.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        frame = self._table(COMPARED, confidence_level)
        judged = np.isfinite(frame[JUDGED.name].to_numpy(dtype=float))
        together = {one.name: [] for one in COMPARED if one.together_heading}
        best: list[bool | None] = []
        influential = []
        for differences, labels in zip(self.differences, self.prompt_labels, strict=True):
            rows = slice(len(best), len(best) + len(differences.studentised))
            of_part = self.rows[rows]
            for name, ends in together.items():
                ends += simultaneous([row.quantities[name] for row in of_part], confidence_level)
            inside, known = differences.best_set(judged[rows], confidence_level), differences.known(judged[rows])
            best += [bool(one) if is_known else None for one, is_known in zip(inside, known, strict=True)]
            places = [row.most_influential for row in of_part]
            influential += [None if place is None else labels[place] for place in places]
        for name, ends in together.items():
            frame[f"{name}_simultaneous_low"], frame[f"{name}_simultaneous_high"] = np.array(ends).T
        frame["in_best_set"] = best
        frame["n_effective_prompts"] = [row.n_effective_prompts for row in self.rows]
        frame["most_influential_prompt"] = influential
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

    def _table(self, quantities: Sequence[Quantity], confidence_level: float) -> pd.DataFrame:
        """Return one row per estimator with some quantities, and in ``.attrs`` how the comparison was made."""
        records = []
        for row in self.rows:
            intervals = {one.name: row.quantities[one.name].with_interval(confidence_level) for one in quantities}
            record: dict[str, object] = {
                **({"block": row.block} if row.block else {}),
                "estimator": row.label,
                "group_size": np.nan if row.group_size is None else row.group_size,
                "unit": row.unit,
                "components": row.components,
                "target": self.target.kind,
            }
            records.append(record | interval_columns(intervals))
        frame = pd.DataFrame(records)
        frame.attrs |= {
            "reference": self.reference,
            "confidence_level": confidence_level,
            "prompts_per_batch": self.prompts_per_batch,
            **({} if self.max_grad_norm is None else {"max_grad_norm": self.max_grad_norm}),
            "n_prompts": self.n_prompts,
            # Groups of several sizes overlap: their number says nothing.
            **({"n_groups": self.n_groups, "n_leftover": self.n_leftover} if len(self.splits) == 1 else {}),
            "n_completions": max(split.n_completions for split in self.splits),
            "sketch_dim": self.sketch_dim,
            **target_attrs(self.target, confidence_level),
            "metric": self.metric,
            "notes": list(self.notes_at(confidence_level)),
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
        return self._table(VARIANCE_COMPONENTS, confidence_level)


@dataclass(frozen=True, repr=False)
class VarianceByBlock(VarianceComparison):
    r"""The variance of estimators of the gradient with respect to each block of parameters alone.

    With the gradient in blocks, :math:`\mathrm{tr\,Cov}(ĝ) = \sum_b \mathrm{tr\,Cov}(ĝ_b)`: ``trace_cov`` says
    where an estimator's noise lies, and ``ratio`` which blocks' noise it reduces. The weights of completions are those
    of the whole in every block, which is the column ``block`` of its frame.
    """

    question: ClassVar[str] = "variance_by_block"

    printed_columns: ClassVar[tuple[str, ...]] = ("block", *VarianceComparison.printed_columns)


def compare(
    measured_or_batch: Batch | MeasuredGradients,
    estimators: Sequence[str | Weighting],
    scores: npt.ArrayLike | None = None,
    group_size: int | Sequence[int] | None = None,
    reference: str | Weighting = "rloo",
    prompts_per_batch: int | None = None,
    n_resamples: int | None = None,
    rng: int | np.random.Generator | None = 0,
    *,
    max_grad_norm: float | None = None,
    target: Target = "auto",
    scores_are_sketches: bool | None = None,
    blocks: bool = False,
    unavailable: Unavailable = "refuse",
    **fields: npt.ArrayLike | None,
) -> VarianceComparison:
    r"""Compare the variance of policy-gradient estimators on the same rollouts, with paired intervals.

    With :math:`g_m = \sum_{i \in m} w_i S_i` the gradient of a group of completions of prompt m, each row holds

    - ``trace_cov``: :math:`\mathrm{tr\,Cov}(g) = E‖g‖² - ‖E g‖²` of one group's gradient, over prompts and
      completions;
    - ``signal_sq``: :math:`‖E g‖²`, the mean of :math:`⟨g_m, g_{m'}⟩` over different prompts: unbiased, may be
      negative;
    - ``noise_to_signal``: the critical batch, ``trace_cov`` at the scale of the target over ‖G‖², with G the expected
      gradient of the target, in units of groups (McCandlish et al., 1812.06162);
    - ``ratio``: ``trace_cov`` over the reference's;
    - ``matched_ratio``: the same after scaling both so that their expected gradients project with coefficient 1 on
      that of the target. Where both expectations are exact multiples of the true gradient (an own-sample mean keeps
      (N−1)/N of it) that number is used, otherwise the coefficient is estimated;
    - ``cosine``: between E g and the expected gradient of the target, cross-fitted;
    - ``bias_share``: :math:`‖E d‖²/(‖E d‖² + \mathrm{trace\_cov}/B)`, d = g minus the target's: the share of the
      mean squared error of a batch of B prompts that is bias; unbiased, so that it may be negative.
      ``matched_bias_share`` is the same of g scaled onto the target;
    - ``kept_share``: the share of groups with any non-zero weight.

    **Target.** ``rloo`` is unbiased for completions of the scored policy. For those of another one (an older
    checkpoint, another temperature) the target is ``rloo`` with completions weighted by :math:`\prod_t π/π_{old}`:
    ``"auto"`` takes it where their χ² exceeds 0.01 or recorded settings differ. Below an effective number of 50
    completions, or where the sampler cut off part of the distribution, what is judged against it is NaN
    (docs/statistics.md).

    Each is defined in :mod:`gradstats.stats.variance.quantities`. The best set holds the estimators that may have the
    lowest relative noise.

    **Intervals.** The prompt is the independent unit. Everything is a function of U-statistics over prompts, with
    delete-one-prompt replicates in closed form: Student intervals for ``trace_cov`` (on the log scale) and
    ``signal_sq``, a studentised bootstrap over prompts for ``ratio``, Wilson's interval for ``kept_share``, and Fieller
    sets for what divides by a signal that may be 0: ``noise_to_signal``, cosine, ``bias_share``, and ``matched_ratio``
    where its coefficient is estimated. docs/statistics.md states what each covers where.

    **What is not resolved.** ‖E g‖² counts as resolved when its interval lies above 0. Where it is not, a warning
    estimates the number of prompts needed; where that of the target is not, ``noise_to_signal`` is a ray with an
    infinite upper end and no value. An estimated ``matched_ratio`` is such a ray where the projection of E g on the
    target is not resolved, and cosine has no value where the product of the two norms is not.

    **Sketches.** Scores from a random projection of dimension D give inner products without bias. Squares
    :math:`‖S_i‖²` are exact where they were measured. A quadratic form tr(C·G) of the Gram matrix G then has the
    variance (2/D)·tr(C G C G) over sketches. A jackknife over prompts sees the component of it that differs between
    prompts, but not the one that all share, because one sketch serves them all: the latter is estimated for the
    linearised form of every quantity, from disjoint folds of prompts, and added.

    **Tokens.** Where random probes of the token scores were measured (``token_probes``), token-level estimators are
    compared from them: whole completions and heavy tokens through their sketches, the light rest through the probes
    (:class:`gradstats.stats.variance.scores.ProbedTokens`). The error that all prompts share is estimated from the
    spread over probes and added likewise. Weights that depend on token energies (``otb(energy="exact")``,
    ``causal_optimal``) are computed from three disjoint thirds of the probes, so that their noise does not count as the
    estimator's. Recipes whose weightings were measured (``token_weights``) need no probes, and are compared with these
    estimators without their error.

    **Batch-level estimators** get batches of ``prompts_per_batch`` prompts dealt without replacement; their
    ``trace_cov`` is B times that of the batch gradient, and so comparable with the others'
    (:class:`gradstats.stats.variance.moments.DealtDifferences`).

    **Blocks.** With ``blocks=True`` the gradient with respect to each block of parameters is compared alone, from the
    sketches of a measurement with ``block_sketches=True``: which blocks' noise an estimator reduces. Completions keep
    the weights that they have in the whole gradient, so that ``trace_cov`` adds up over blocks.

    Args:
        measured_or_batch: a measurement, or a :class:`gradstats.estimators.Batch` (then ``scores`` is needed).
        estimators: labels of estimators, with parameters as in ``"length_weighted(alpha=0.8, loo=True)"``; or
            estimators or recipes themselves. Rows keep their order.
        scores: (N, D) scores of completions or (N, T, D) of tokens, in any coordinates that keep the
            gradients' inner products; None takes the measurement's sketches.
        group_size: completions of a group, one size or several; all of a prompt by default. A prompt with more is
            split, in sample order, into disjoint groups, and leftovers are counted. Several sizes are compared from the
            same completions, rows size by size, each relative to the reference at the same size; ``trace_cov`` is of
            one group, so that estimators at the same total number of completions are compared by ``group_size`` ·
            ``trace_cov``.
        reference: estimator that ratios are taken to.
        prompts_per_batch: prompts of a batch, for the share of bias (128 by default) and for batch-level estimators (by
            default a quarter of the prompts, at most 128).
        max_grad_norm: norm that the gradient of a batch of ``prompts_per_batch`` prompts is clipped to, as trainers do,
            in every row; none by default. ``trace_cov``, bias and cosine are then those of :math:`G \min(1, c/‖G‖)`
            with G the mean gradient of the batch, and ratios are to the unclipped reference.
        n_resamples: how often the prompts are shuffled into new batches for batch-level estimators; by default until
            the error that this leaves is small: 1 % of the squared standard errors, at most 512 times; fewer, but 64 at
            least, where these would be more than 32 768 batches that an estimator weights one by one.
        rng: seed of the comparison, or a generator: for the deals into batches and for the estimate of the sketch's
            error.
        target: what cosine and bias are judged against; ``"auto"``, ``"on_policy"`` or ``"importance"``.
        scores_are_sketches: whether ``scores`` are a random projection; by default True for a
            measurement's sketches and False for ``scores`` given here.
        blocks: compare on each block of parameters alone; sequence-level estimators, and recipes whose weightings were
            measured.
        unavailable: of an estimator that these completions do not allow, ``"refuse"`` the comparison, give it a row of
            NaN, or leave it out; the notes then state why.
        **fields: further fields of the measurement's :class:`gradstats.estimators.Batch`, such as ``values`` for
            ``gae`` (one array per completion or (N, T)) or ``greedy_rewards`` for ``remax``.

    Returns:
        A :class:`gradstats.analyses.VarianceComparison`; with ``blocks=True`` a
        :class:`gradstats.analyses.VarianceByBlock`, whose frame has one row per block and estimator.

    Raises:
        TypeError: for a Batch without scores, or further fields given with a Batch.
        ValueError: for fewer than 2 prompts, a group size larger than the number of completions, scores of a wrong
            shape, a token-level estimator without token scores, an estimator whose inputs are missing or whose
            ratios overflow, batches too large, or fewer than one prompt a batch or one resample; with ``blocks=True``
            for a measurement without sketches by block, scores, or a ``max_grad_norm``; where no estimator is
            available.

    Example:
        >>> import numpy as np
        >>> import gradstats as gs
        >>> rng = np.random.default_rng(0)
        >>> rewards, lengths = rng.integers(0, 2, 400), rng.integers(10, 100, 400)
        >>> batch = gs.estimators.Batch(rewards, lengths, np.repeat(np.arange(100), 4))
        >>> scores = (rewards[:, None] + rng.normal(size=(400, 8))) * np.sqrt(lengths)[:, None]
        >>> table = gs.compare(batch, ["rloo", "group_mean", "reinforce"], scores)
        >>> frame = table.to_frame()
        >>> frame[["estimator", "ratio", "matched_ratio"]].round(3).to_numpy().tolist()
        [['rloo', 1.0, 1.0], ['group_mean', 0.563, 1.0], ['reinforce', 2.448, 2.448]]

        By block, of what ``gs.measure(…, block_sketches=True)`` returns:

        >>> import pandas as pd
        >>> parts = np.stack([scores, scores + rng.normal(size=(400, 8))], axis=1)
        >>> norms = pd.DataFrame((parts**2).sum(axis=2), columns=["attention", "mlp"])
        >>> completions, prompts = [[2] * length for length in lengths], batch.groups.astype(str).tolist()
        >>> rollouts = gs.Rollouts.from_sequences([[1]] * 400, completions, rewards, prompts)
        >>> logprobs = [np.zeros(length) for length in lengths]
        >>> measured = gs.Measurement(rollouts, norms, parts.sum(axis=1), *[logprobs] * 4, sketches_by_block=parts)
        >>> frame = gs.compare(measured, ["reinforce"], blocks=True, scores_are_sketches=False).to_frame()
        >>> frame[["block", "estimator", "ratio"]].round(3).to_numpy().tolist()
        [['attention', 'reinforce', 2.448], ['mlp', 'reinforce', 2.435]]
    """
    VarianceSection(
        prompts_per_batch=prompts_per_batch, max_grad_norm=max_grad_norm, n_resamples=n_resamples, target=target
    )  # checks them
    generator = np.random.default_rng(rng)
    chosen = get_all(estimators)
    if unavailable not in get_args(Unavailable):
        raise ValueError(f"unavailable={unavailable!r} must be one of {', '.join(get_args(Unavailable))}")
    reasons: list[str | None] = [None] * len(chosen)
    if unavailable != "refuse":
        reasons = reasons_against(measured_or_batch, chosen, target, scores, scores_are_sketches, fields)
    available = [one for one, reason in zip(chosen, reasons, strict=True) if reason is None]
    missing = list(dict.fromkeys(filter(None, reasons)))
    if not available:
        empty = f"estimators is empty: name at least one of {', '.join(families.names())}"
        raise ValueError("; ".join(missing) or empty)
    base = families.get(reference)
    if base.across_groups:
        raise ValueError(
            f"reference={base.label!r} is a batch-level estimator: choose a group-level one, such as 'rloo'"
        )
    sizes = _sizes(group_size)
    inputs, (*prepared, base), judged = prepared_inputs(
        measured_or_batch, [*available, base], scores, scores_are_sketches, target, fields
    )
    by_block = {"": inputs}
    if blocks:
        by_block = _inputs_by_block(measured_or_batch, inputs, [*prepared, base], scores, max_grad_norm)
    dealt = prompts_per_batch, n_resamples, max_grad_norm
    in_metric = metric_sentence(getattr(measured_or_batch, "metadata", {}))
    of_every_part = list(filter(None, [in_metric, about_target(judged)]))
    found: list[VarianceComparison] = []
    warned: list[list[str]] = []
    # Every block is dealt the same batches; the caller's generator has been used once.
    streams = [*(deepcopy(generator) for _ in range(len(by_block) - 1)), generator]
    for (block, of_one), stream in zip(by_block.items(), streams, strict=True):
        comparison, warned_of_one = _compared_at_sizes(of_one, prepared, base, judged, sizes, stream, dealt)
        if unavailable == "nan":
            comparison = _with_unknown_rows(comparison, chosen, reasons)
        remarks = [*of_every_part, *comparison.remarks]
        warned.append([*filter(None, [why_not_judged(judged)]), *warned_of_one])
        rows = tuple(replace(row, block=block) for row in comparison.rows)
        found.append(replace(comparison, rows=rows, remarks=(*warned[-1], *remarks)))
    if unavailable == "nan":
        missing = [f"the row is NaN: {reason}" for reason in missing]
    of_each = notes_of_each(warned, list(by_block))
    for note in filter(None, of_each if unavailable == "leave_out" else [*of_each, *missing]):
        warnings.warn(note, UserWarning, stacklevel=2)
    remarks = (*missing, *notes_of_each([one.remarks for one in found], list(by_block)))
    if not blocks:
        return replace(found[0], remarks=remarks)
    return VarianceByBlock(**vars(replace(_joined(found), splits=found[0].splits, remarks=remarks)))


def _joined(comparisons: Sequence[VarianceComparison]) -> VarianceComparison:
    """Return the rows of several comparisons, one after the other, as one."""
    names = ("rows", "splits", "differences", "prompt_labels")
    joined = {name: tuple(chain.from_iterable(getattr(one, name) for one in comparisons)) for name in names}
    return replace(comparisons[-1], **joined)


def _inputs_by_block(
    measured: Batch | MeasuredGradients,
    inputs: ComparisonInputs,
    estimators: Sequence[Weighting],
    scores: npt.ArrayLike | None,
    max_grad_norm: float | None,
) -> dict[str, ComparisonInputs]:
    """Return the inputs of a comparison on each block alone."""
    if scores is not None or isinstance(measured, Batch):
        raise ValueError("blocks=True takes the sketches of a measurement, which scores have not: leave blocks out")
    if max_grad_norm is not None:
        raise ValueError("max_grad_norm clips whole gradients, which blocks=True divides: leave one of them out")
    if not isinstance(measured, Measurement):
        raise ValueError(NO_BLOCK_SKETCHES)
    gradients = WeightedGradients(measured.sq_norms_by_block, measured.sketches, measured.sketches_by_block)
    return {block: inputs.of_block(gradients, block, estimators) for block in gradients.sq_norms_by_block}


def _compared_at_sizes(
    inputs: ComparisonInputs,
    estimators: Sequence[Weighting],
    reference: Weighting,
    judged: TargetChoice,
    sizes: Sequence[int | None],
    generator: np.random.Generator,
    dealt: tuple[int | None, int | None, float | None],
) -> tuple[VarianceComparison, list[str]]:
    """Compare at each group size; return the comparison, with what is to be remarked on it, and what to warn of."""
    prompts = shuffled_prompts(inputs.batch.group_index, generator)
    by_size: list[VarianceComparison] = []
    warned: list[list[str]] = []
    with rotated_once():
        (stream,) = generator.spawn(1)
        weighted = [*estimators, reference]

        def pool_of(size: int | None) -> PooledCompletions:
            own = deepcopy(stream)  # intervals do not depend on the other sizes
            groups = split_into_groups(prompts, inputs.order, size)
            return pooled(inputs, groups, weighted, own, judged, *dealt, shared=True)

        pools: Iterable[PooledCompletions] = map(pool_of, sizes)
        if len(sizes) > 1 and inputs.in_blocks:  # scores are read once for all sizes
            pools = list(pools)
            for pool in pools:
                pool.form(weighted, [target_of(pool, judged), pool.local(reference)])
        for pool in pools:
            of_size, warned_of_size = compare_at_group_size(inputs, pool, estimators, reference, judged)
            by_size.append(of_size)
            warned.append(warned_of_size)
    for pool in pools:
        if isinstance(pool.scores, PooledProducts) and not pool.scores.products.kept:
            pool.scores.products.forms.release()
    names = [f"group_size={size}" for size in sizes]
    remarks = tuple(notes_of_each([one.remarks for one in by_size], names))
    return replace(_joined(by_size), remarks=remarks), notes_of_each(warned, names)


def _sizes(group_size: int | Sequence[int] | None) -> list[int | None]:
    if group_size is None:
        return [None]
    sizes = [index(size) for size in np.atleast_1d(np.asarray(group_size)).tolist()]
    if not sizes:
        raise ValueError("group_size is empty: give one size, several, or None for all completions of a prompt")
    return list(dict.fromkeys(sizes))


def compare_at_group_size(
    inputs: ComparisonInputs,
    pool: PooledCompletions,
    estimators: Sequence[Weighting],
    reference: Weighting,
    judged: TargetChoice,
) -> tuple[VarianceComparison, list[str]]:
    """Compare at one group size; return the comparison, with what is to be remarked on it, and what to warn of.

    A part of a gradient, such as that of completions of some lengths, is judged against the same part of the target.
    """
    reference_weighted, target = pool.local(reference), target_of(pool, judged)
    if np.array_equal(target.weights, reference_weighted.weights):
        target = reference_weighted
    groups = pool.groups
    size = int(groups.sizes[0]) if groups.sizes.min() == groups.sizes.max() else None
    judges = []
    for estimator in estimators:
        same_part = getattr(estimator, "same_part", None)
        judges.append(target if same_part is None else target_of(pool, judged, same_part))
    rows = []
    for estimator, row in zip(estimators, pool.rows(estimators, reference, reference_weighted, judges), strict=True):
        about = {"group_size": size, "unit": unit_of(estimator), "components": composition_of(estimator)}
        rows.append(replace(row, **about, gradient=None))
    mean_length = float(pool.batch.lengths.mean())
    split = GroupSplit(size, groups.n_prompts, groups.n_groups, groups.n_leftover, len(groups.rows), mean_length)
    comparison = VarianceComparison(
        rows=tuple(rows),
        splits=(split,),
        reference=reference.label,
        prompts_per_batch=pool.error_prompts if pool.max_grad_norm is None else pool.batch_prompts,
        max_grad_norm=pool.max_grad_norm,
        metric=inputs.metric,
        sketch_dim=inputs.scores.shape[-1] if inputs.sketched else None,
        target=judged,
        remarks=tuple(remarks_about(pool, rows, estimators)),
        differences=(pairwise_differences([row.at_matched_signal for row in rows]),),
        prompt_labels=(pool.prompt_labels,),
    )
    return comparison, list(warnings_about(pool, rows, estimators))


def _with_unknown_rows(
    comparison: VarianceComparison, chosen: Sequence[Weighting], reasons: Sequence[str | None]
) -> VarianceComparison:
    """Return a comparison with a row of NaN for each estimator that there is a reason against."""
    places = [place for place, reason in enumerate(reasons) if reason is None]
    known, rows = iter(comparison.rows), []
    for split in comparison.splits:
        for one, reason in zip(chosen, reasons, strict=True):
            rows.append(next(known) if reason is None else _unknown_row(one, split.group_size))
    differences = tuple(one.placed(places, len(chosen)) for one in comparison.differences)
    return replace(comparison, rows=tuple(rows), differences=differences)


def _unknown_row(estimator: Weighting, group_size: int | None) -> EstimatorVariance:
    row = row_without_gradient(estimator.label, np.array([np.nan]))
    return replace(row, group_size=group_size, unit=unit_of(estimator), components=composition_of(estimator))


def variance(
    measured: MeasuredGradients,
    estimators: Sequence[str | Weighting] = DEFAULT_ESTIMATORS,
    *,
    group_size: int | Sequence[int] | None = None,
    **options: Any,
) -> VarianceComparison:
    """Compare as :func:`gradstats.compare` does, with a row of NaN for each estimator that cannot be computed.

    Args:
        measured: a measurement.
        estimators: labels, with parameters as in "length_weighted(alpha=0.8, loo=True)".
        group_size: completions of a group; all of a prompt by default.
        **options: the other arguments of :func:`gradstats.compare`.
    """
    found = compare(measured, estimators, group_size=group_size, unavailable="nan", **options)
    return found if getattr(measured, "scored", None) is None else _calibrated(found, measured, options)


def _calibrated(found: VarianceComparison, measured: Any, options: Mapping[str, Any]) -> VarianceComparison:
    """Return a comparison of the measured prompts of a run with what the proxies of all its prompts add."""
    refused = unweightable([found.reference, *dict.fromkeys(row.label for row in found.rows)])
    known = {row.label for row in found.rows if np.isfinite(row.trace_cov.value)} - set(refused)
    if found.reference in refused or not known:
        return found
    labels = [label for label in dict.fromkeys(row.label for row in found.rows) if label in known]
    table = measured.scored
    proxies = {name: table[name].to_numpy() for name in FORWARD}
    scored = Scored(table["prompt_id"].to_numpy(), table["reward"].to_numpy(), table["length"].to_numpy(), proxies)
    given = {name: options[name] for name in ("target", "rng") if name in options}
    calibrations = tuple(
        calibrate(measured, labels, scored, group_size=split.group_size, reference=found.reference, **given)
        for split in found.splits
    )
    said = dict.fromkeys(one.sentence() for one in calibrations)
    return replace(found, calibrations=calibrations, remarks=(*said, *found.remarks))


def _calibrated_frame(found: VarianceComparison, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
    """Return a row for each estimator that the proxies of all prompts calibrate, group size by group size."""
    records = []
    for split, calibration in zip(found.splits, found.calibrations, strict=False):
        for row in calibration.rows:
            intervals = {name: getattr(row, name).with_interval(confidence_level) for name in ("trace_cov", "ratio")}
            size = np.nan if split.group_size is None else split.group_size
            record = {"estimator": row.label, "group_size": size, **interval_columns(intervals)}
            factors = {"factor": row.ratio.factor, "factor_trace_cov": row.trace_cov.factor}
            records.append(record | factors | {"proxy": calibration.proxy})
    frame = pd.DataFrame(records)
    if records:
        about = {"n_measured": found.calibrations[0].n_measured, "n_prompts": found.calibrations[0].n_prompts}
        frame.attrs |= {"reference": found.reference, "confidence_level": confidence_level, **about}
    return frame


def _caption_of_calibrated(frame: pd.DataFrame) -> str:
    about = frame.attrs
    return (
        f"Variance of one prompt group's gradient and its ratio to that of {about['reference']}, from "
        f"{about['n_measured']:,} measured prompts and proxies of all {about['n_prompts']:,}, "
        f"{level_of(frame)}intervals; they are those of the measured prompts alone where the factor is 1."
    )


def with_sizes_in_names(frame: pd.DataFrame) -> pd.DataFrame:
    """Add what the name of a row says of its group size, where these differ."""
    several = "group_size" in frame and len(set(frame["group_size"].dropna())) > 1
    return frame.assign(size_in_name=[f", N = {size:g}" for size in frame["group_size"]] if several else "")


def row_name(row: dict[str, Any]) -> str:
    """Return the estimator of a row, with its group size where these differ."""
    return f"{row['estimator']}{row['size_in_name']}"


def caption_of_comparison(frame: pd.DataFrame) -> str:
    """Return the caption of the table of a comparison."""
    about, reference = frame.attrs, frame.attrs.get("reference", "the reference")
    n = f" over n = {about['n_prompts']} prompts" if "n_prompts" in about else ""
    # Groups of several sizes share completions: their number says nothing.
    size = (about.get("n_groups"), "groups") if "n_groups" in about else (about.get("n_completions"), "completions")
    of_size = size_of_groups(frame) if "n_groups" in about else ""
    groups = f" ({size[0]:,} {size[1]}{of_size})" if size[0] is not None else ""
    caption = (
        f"Variance of one prompt group's gradient, {level_of(frame)}intervals{n}{groups}; ratios to {reference} are "
        f"paired. {JUDGED.heading.capitalize()}: variance at equal signal over that of {reference}, which is how many "
        f"times its samples are needed. Cosine: between an estimator's expected gradient and the "
        f"{TARGETS[str(about.get('target', 'on_policy'))]} gradient.{clipping_of(frame)}"
    )
    if about.get("target") == "importance":
        caption += (
            f" Cosine and bias are judged against the {TARGETS['importance']} gradient of the scored policy; effective "
            f"sample size {about['effective_sample_size']:.0f}."
        )
    return caption


def _figure_caption(frame: pd.DataFrame) -> str:
    """Say what the marks of the figure mean, as far as it has them, and name the rows that it leaves out."""
    chosen = short_rows(frame, JUDGED.name) if _by_value(frame) else ShortRows(frame, [], [])
    parts = [
        f"Samples that each estimator needs for equal noise at equal signal, where {reference_name(frame)} needs 1, "
        f"with {level_of(frame)}intervals.{clipping_of(frame)}"
    ]
    if f"{JUDGED.name}_simultaneous_low" in frame:
        parts.append(f"Thin bars: intervals that hold for all {_n_compared(frame)} estimators compared at once.")
        parts.append("Bold: shown to need fewer, by these.")
    if any(uses_own_sample(str(label)) for label in chosen.drawn["estimator"]):
        parts.append("Half-filled markers: the baseline includes the completion itself.")
    if not np.isfinite(chosen.drawn[JUDGED.name].to_numpy(dtype=float)).all():
        parts.append("Dashed bars: no estimate; arrows: no end.")
    if chosen.unresolved:
        parts.append(f"Not drawn, since not resolved: {'; '.join(chosen.unresolved)}.")
    if chosen.between:
        parts.append(f"Not drawn, between the rows shown: {'; '.join(chosen.between)}.")
    return " ".join(parts).replace("\u00a0", " ")


def _caption_of_panels(frame: pd.DataFrame) -> str:
    order = ", with the lowest at the top" if _by_value(frame) else ""
    return f"Relative noise, next to cosine and share of bias{order}.{clipping_of(frame)}"


def _by_value(frame: pd.DataFrame) -> bool:
    return frame.attrs.get(ORDER) != "listed"


def _resolved(frame: pd.DataFrame) -> pd.DataFrame | None:
    return frame if np.isfinite(frame[JUDGED.name].to_numpy(dtype=float)).any() else None


ANALYSIS = Analysis(
    name="variance",
    ask=variance,
    unavailable_because=missing_sketches,
    options=(
        "estimators", "group_size", "reference", "target", "prompts_per_batch", "max_grad_norm", "n_resamples", "rng",
    ),
    columns=COLUMNS,
    ranking=Ranking(JUDGED.name, scale="ratio"),
    row_heading="estimator",
    row_name=row_name,
    display_frame=with_sizes_in_names,
    caption=caption_of_comparison,
    section="variance",
    in_run=lambda measured, experiment: experiment.variance.arguments(),
    further=(
        FurtherTable(
            "variance_calibrated",
            _calibrated_frame,
            (
                *COLUMNS[:2],
                Column("trace_cov", "tr Cov of one group's gradient, calibrated", "variance", True, file=_PROXY),
                Column("ratio", "the same relative to the reference's, calibrated", "ratio", True, file=_PROXY),
                Column("factor", "times as many measured prompts that the ratio is worth", "prompts ×", file=_PROXY),
                Column("factor_trace_cov", "the same of tr Cov", "prompts × (variance)"),
                Column("proxy", "the proxy that was chosen; empty where none helps", file=_PROXY),
            ),
            row_heading="estimator",
            row_name=row_name,
            display_frame=with_sizes_in_names,
            caption=_caption_of_calibrated,
        ),
    ),
    figures=(
        AnalysisFigure(
            "variance",
            _figure_caption,
            lambda frame: plot_variance(frame, sort=_by_value(frame), short=_by_value(frame)),
        ),
        AnalysisFigure(
            "variance_bias",
            _caption_of_panels,
            lambda frame: plot_variance_panels(frame, sort=_by_value(frame)),
            rows=_resolved,
        ),
    ),
)  # fmt: skip
