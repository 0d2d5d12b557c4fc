"""Comparisons of the variance of estimators on the same completions, of all that can be computed if need be."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import chain
from operator import index
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from gradstats import estimators as families
from gradstats.config.options import Target as AskedTarget
from gradstats.config.sections import VarianceSection
from gradstats.estimators import Batch
from gradstats.estimators.by_label import get_all
from gradstats.estimators.estimator import Weighting, composition_of, unit_of
from gradstats.estimators.ratios import along_completions
from gradstats.measurement.measurement import NO_BLOCK_SKETCHES, WeightedGradients, metric_sentence
from gradstats.stats.measured import MeasuredBlockGradients, MeasuredGradients
from gradstats.stats.variance.inputs import (
    ComparisonInputs,
    TargetChoice,
    choose_target,
    comparison_inputs,
    recorded_differences,
    refuse_unusable_ratios,
    target_of,
)
from gradstats.stats.variance.moments import Groups, shuffled_prompts, split_into_groups
from gradstats.stats.variance.notes import notes_of_each, remarks_about, warnings_about
from gradstats.stats.variance.pools import PooledCompletions
from gradstats.stats.variance.products import PooledProducts
from gradstats.stats.variance.quantities import EstimatorVariance, silent_row
from gradstats.stats.variance.result import (
    GroupSplit,
    VarianceByBlock,
    VarianceComparison,
    pairwise_differences,
)
from gradstats.stats.variance.sketch_error import rotated_once


def prepared_inputs(
    measured_or_batch: Batch | MeasuredGradients,
    estimators: Sequence[Weighting],
    scores: ArrayLike | None,
    scores_are_sketches: bool | None,
    target: AskedTarget,
    fields: Mapping[str, ArrayLike | None] | None = None,
) -> tuple[ComparisonInputs, list[Weighting], TargetChoice]:
    """Return the inputs of a comparison, its estimators as these inputs allow them, and what they are judged against.

    Judged on-policy, ratios that differ from 1 by rounding only are 1; exponents within prompts are fitted on all
    prompts; estimators whose weights are constant along completions need no scores of tokens; recipes whose weightings
    were measured are combinations of these.
    """
    inputs = comparison_inputs(measured_or_batch, scores, scores_are_sketches, estimators, fields)
    judged = choose_target(target, inputs.batch, recorded_differences(measured_or_batch))
    refuse_unusable_ratios(estimators, inputs.batch, judged)
    inputs, estimators = inputs.with_settled_ratios(judged).with_fitted_exponents(estimators)
    if inputs.scores.ndim == 2:  # equal weights along each completion need no scores of tokens
        estimators = [along_completions(estimator, inputs.batch) for estimator in estimators]
    return *inputs.with_combined(estimators), judged


def pooled(
    inputs: ComparisonInputs,
    groups: Groups,
    estimators: Sequence[Weighting],
    rng: np.random.Generator,
    target: TargetChoice,
    prompts_per_batch: int | None = None,
    n_resamples: int | None = None,
    max_grad_norm: float | None = None,
) -> PooledCompletions:
    """Return the completions of one split, after a check of what the estimators need."""
    if groups.n_prompts < 2:
        raise ValueError(
            "compare needs at least 2 prompts with a full group each, got 1: prompts are the independent units"
        )
    sketch_error = inputs.sketch_error(groups.n_prompts, rng)
    products = inputs.products(groups.rows, groups.prompt[groups.group], sketch_error)
    if products is None:
        scores, sketch_error = inputs.in_coordinates(groups.rows, sketch_error)
    else:
        scores = inputs.among_products(products, np.arange(len(groups.rows)), groups)
    inputs.refuse_unknown_token_scores(estimators)
    pool = PooledCompletions(
        batch=inputs.batch.select(groups.rows).regrouped(groups.group),
        groups=groups,
        scores=scores,
        sketch_error=sketch_error,
        prompts_per_batch=prompts_per_batch,
        n_resamples=n_resamples,
        deal_seed=int(rng.integers(2**63)),
        prompt_labels=inputs.batch.groups[groups.rows[np.unique(groups.prompt[groups.group], return_index=True)[1]]],
        on_policy=target.kind == "on_policy" and target.agree,
        max_grad_norm=max_grad_norm,
    )
    pool.expect(estimators)
    return pool


def compared(
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
        notes=tuple(remarks_about(pool, rows)),
        differences=(pairwise_differences([row.at_matched_signal for row in rows]),),
        prompt_labels=(pool.prompt_labels,),
    )
    return comparison, warnings_about(pool, rows, estimators)


@overload
def compare(
    measured_or_batch: Batch | MeasuredGradients,
    estimators: Sequence[str | Weighting],
    scores: ArrayLike | None = None,
    group_size: int | Sequence[int] | None = None,
    reference: str | Weighting = "rloo",
    prompts_per_batch: int | None = None,
    n_resamples: int | None = None,
    rng: int | np.random.Generator | None = 0,
    *,
    max_grad_norm: float | None = None,
    target: AskedTarget = "auto",
    scores_are_sketches: bool | None = None,
    blocks: Literal[False] = False,
    **fields: ArrayLike | None,
) -> VarianceComparison: ...


@overload
def compare(
    measured_or_batch: MeasuredBlockGradients,
    estimators: Sequence[str | Weighting],
    scores: None = None,
    group_size: int | Sequence[int] | None = None,
    reference: str | Weighting = "rloo",
    prompts_per_batch: int | None = None,
    n_resamples: int | None = None,
    rng: int | np.random.Generator | None = 0,
    *,
    max_grad_norm: None = None,
    target: AskedTarget = "auto",
    scores_are_sketches: bool | None = None,
    blocks: Literal[True],
    **fields: ArrayLike | None,
) -> VarianceByBlock: ...


def compare(
    measured_or_batch: Batch | MeasuredGradients,
    estimators: Sequence[str | Weighting],
    scores: ArrayLike | None = None,
    group_size: int | Sequence[int] | None = None,
    reference: str | Weighting = "rloo",
    prompts_per_batch: int | None = None,
    n_resamples: int | None = None,
    rng: int | np.random.Generator | None = 0,
    *,
    max_grad_norm: float | None = None,
    target: AskedTarget = "auto",
    scores_are_sketches: bool | None = None,
    blocks: bool = False,
    **fields: ArrayLike | None,
) -> VarianceComparison | VarianceByBlock:
    r"""Compare the variance of policy-gradient estimators on the same rollouts, with paired intervals.

    With :math:`g_m = \sum_{i \in m} w_i S_i` the gradient of a group of completions of prompt m, each row holds

    - ``trace_cov``: :math:`\mathrm{tr\,Cov}(g) = E‖g‖² - ‖E g‖²` of one group's gradient, over prompts and
      completions;
    - ``signal_sq``: :math:`‖E g‖²`, the mean of :math:`⟨g_m, g_{m'}⟩` over different prompts: unbiased, may be
      negative;
    - ``noise_to_signal``: their quotient, in units of groups (McCandlish et al., 1812.06162);
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

    Each is defined in :mod:`gradstats.stats.variance.estimates`. The best set holds the estimators that may have the
    lowest variance at matched signal.

    **Intervals.** The prompt is the independent unit. Everything is a function of U-statistics over prompts, with
    delete-one-prompt replicates in closed form: Student intervals for ``trace_cov`` (on the log scale) and
    ``signal_sq``, a studentised bootstrap over prompts for ``ratio``, Wilson's interval for ``kept_share``, and Fieller
    sets for what divides by a signal that may be 0: ``noise_to_signal``, cosine, ``bias_share``, and ``matched_ratio``
    where its coefficient is estimated. docs/statistics.md states what each covers where.

    **What is not resolved.** ‖E g‖² counts as resolved when its interval lies above 0. Where it is not,
    ``noise_to_signal`` is a ray with an infinite upper end and no value, and a warning estimates the number of prompts
    needed. An estimated ``matched_ratio`` is such a ray where the projection of E g on the target is not resolved, and
    cosine has no value where the product of the two norms is not.

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
        **fields: further fields of the measurement's :class:`gradstats.estimators.Batch`, such as ``values`` for
            ``gae`` (one array per completion or (N, T)) or ``greedy_rewards`` for ``remax``.

    Returns:
        A :class:`gradstats.stats.VarianceComparison`; with ``blocks=True`` a :class:`gradstats.stats.VarianceByBlock`,
        whose frame has one row per block and estimator.

    Raises:
        TypeError: for a Batch without scores, or further fields given with a Batch.
        ValueError: for fewer than 2 prompts, a group size larger than the number of completions, scores of a wrong
            shape, a token-level estimator without token scores, an estimator whose inputs are missing or whose
            ratios overflow, batches too large, or fewer than one prompt a batch or one resample; with ``blocks=True``
            for a measurement without sketches by block, scores, or a ``max_grad_norm``.

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
    if not chosen:
        raise ValueError(f"estimators is empty: name at least one of {', '.join(families.names())}")
    base = families.get(reference)
    if base.across_groups:
        raise ValueError(
            f"reference={base.label!r} is a batch-level estimator: choose a group-level one, such as 'rloo'"
        )
    sizes = _sizes(group_size)
    inputs, (*chosen, base), judged = prepared_inputs(
        measured_or_batch, [*chosen, base], scores, scores_are_sketches, target, fields
    )
    by_name = {"": inputs}
    if blocks:
        by_name = _inputs_by_block(measured_or_batch, inputs, [*chosen, base], scores, max_grad_norm)
    in_metric = metric_sentence(getattr(measured_or_batch, "metadata", {}))
    found: dict[str, VarianceComparison] = {}
    warned: list[list[str]] = []
    # Every block is dealt the same batches; the caller's generator has been used once.
    streams = [*(deepcopy(generator) for _ in range(len(by_name) - 1)), generator]
    for (name, of_one), stream in zip(by_name.items(), streams, strict=True):
        comparison, warned_of_one = _compared_at_sizes(
            of_one, chosen, base, judged, sizes, stream, prompts_per_batch, n_resamples, max_grad_norm
        )
        remarks = [*filter(None, [in_metric, judged.remark]), *comparison.notes]
        warned.append([*filter(None, [judged.missing]), *warned_of_one])
        found[name] = replace(comparison, notes=(*warned[-1], *remarks))
    for note in notes_of_each(warned, list(found)):
        warnings.warn(note, UserWarning, stacklevel=2)
    return VarianceByBlock(found) if blocks else found[""]


def _inputs_by_block(
    measured: Batch | MeasuredGradients,
    inputs: ComparisonInputs,
    estimators: Sequence[Weighting],
    scores: ArrayLike | None,
    max_grad_norm: float | None,
) -> dict[str, ComparisonInputs]:
    """Return the inputs of a comparison on each block alone."""
    if scores is not None or isinstance(measured, Batch):
        raise ValueError("blocks=True takes the sketches of a measurement, which scores have not: leave blocks out")
    if max_grad_norm is not None:
        raise ValueError("max_grad_norm clips whole gradients, which blocks=True divides: leave one of them out")
    if not isinstance(measured, MeasuredBlockGradients):
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
    prompts_per_batch: int | None,
    n_resamples: int | None,
    max_grad_norm: float | None,
) -> tuple[VarianceComparison, list[str]]:
    """Compare at each group size; return the comparison, with what is to be remarked on it, and what to warn of."""
    prompts = shuffled_prompts(inputs.batch.group_index, generator)
    by_size: list[VarianceComparison] = []
    warned: list[list[str]] = []
    with rotated_once():
        for size, stream in zip(sizes, generator.spawn(len(sizes)), strict=True):
            groups = split_into_groups(prompts, inputs.order, size)
            weighted = [*estimators, reference]
            pool = pooled(inputs, groups, weighted, stream, judged, prompts_per_batch, n_resamples, max_grad_norm)
            of_size, warned_of_size = compared(inputs, pool, estimators, reference, judged)
            if isinstance(pool.scores, PooledProducts):
                pool.scores.products.forms.release()
            by_size.append(of_size)
            warned.append(warned_of_size)
    names = [f"group_size={size}" for size in sizes]
    joined = {
        name: tuple(chain.from_iterable(getattr(one, name) for one in by_size))
        for name in ("rows", "splits", "differences", "prompt_labels")
    }
    notes = tuple(notes_of_each([one.notes for one in by_size], names))
    return replace(by_size[-1], **joined, notes=notes), notes_of_each(warned, names)


def _sizes(group_size: int | Sequence[int] | None) -> list[int | None]:
    if group_size is None:
        return [None]
    sizes = [index(size) for size in np.atleast_1d(np.asarray(group_size)).tolist()]
    if not sizes:
        raise ValueError("group_size is empty: give one size, several, or None for all completions of a prompt")
    return list(dict.fromkeys(sizes))


def reasons_against(
    measured: Batch | MeasuredGradients, estimators: Sequence[Weighting], target: AskedTarget = "auto"
) -> list[str | None]:
    """Return why each estimator cannot be compared on a measurement, with the remedy; None for one that can."""
    if isinstance(measured, Batch):
        return [None] * len(estimators)
    inputs = comparison_inputs(measured, None, None, estimators)
    judged = choose_target(target, inputs.batch, recorded_differences(measured))
    known, inputs = inputs.batch, inputs.with_settled_ratios(judged)
    inputs, along = inputs.with_combined([along_completions(estimator, inputs.batch) for estimator in estimators])
    reasons: list[str | None] = []
    for original, estimator in zip(estimators, along, strict=True):
        try:
            refuse_unusable_ratios([original], known, judged)
            from_probes = ("token_energy", "token_cross") if inputs.probed else ()
            inputs.batch.require([need for need in estimator.needs if need not in from_probes], estimator.label)
            inputs.refuse_unknown_token_scores([estimator])
            _refuse_failing(original, inputs.batch)
        except ValueError as error:
            reasons.append(str(error))
        else:
            reasons.append(None)
    return reasons


def _refuse_failing(estimator: Weighting, batch: Batch) -> None:
    """Refuse an estimator whose weights cannot be computed with its parameters."""
    if not all(batch.has(need) for need in estimator.needs):  # the rest was measured by probes
        return
    try:
        with warnings.catch_warnings():  # the comparison itself warns
            warnings.simplefilter("ignore")
            estimator.weights(batch)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{estimator.label} cannot be computed: {error}") from error


def compare_available(
    measured: Batch | MeasuredGradients, estimators: Sequence[str | Weighting], **options: Any
) -> VarianceComparison:
    """Compare as :func:`gradstats.compare` does, with a row of NaN for each estimator that cannot be computed."""
    chosen = get_all(estimators)
    reasons = reasons_against(measured, chosen, options.get("target", "auto"))
    available = [one for one, reason in zip(chosen, reasons, strict=True) if reason is None]
    if not available:
        raise ValueError("; ".join(dict.fromkeys(reason for reason in reasons if reason)) or "estimators is empty")
    comparison = compare(measured, available, **options)
    notes = tuple(dict.fromkeys(f"the row is NaN: {reason}" for reason in reasons if reason is not None))
    for note in notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    rows: list[EstimatorVariance] = []
    for number, split in enumerate(comparison.splits):
        measured_rows = iter(comparison.rows[number * len(available) : (number + 1) * len(available)])
        for one, reason in zip(chosen, reasons, strict=True):
            rows.append(next(measured_rows) if reason is None else _unknown_row(one, split.group_size))
    places = [place for place, reason in enumerate(reasons) if reason is None]
    differences = tuple(one.placed(places, len(chosen)) for one in comparison.differences)
    return replace(comparison, rows=tuple(rows), notes=(*notes, *comparison.notes), differences=differences)


def _unknown_row(estimator: Weighting, group_size: int | None) -> EstimatorVariance:
    row = silent_row(estimator.label, np.array([np.nan]))
    return replace(row, group_size=group_size, unit=unit_of(estimator), components=composition_of(estimator))
