"""What a comparison starts from: completions with gradients, the target they are judged by, and groups of each size."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int

from gradstats import estimators as families
from gradstats.config.options import EUCLIDEAN, MEASURE_PROBES
from gradstats.config.options import Target as AskedTarget
from gradstats.estimators import Batch, Estimator, Recipe, recipes
from gradstats.estimators.baselines.weighted import (
    FITTED_ELSEWHERE,
    GivenExponents,
    exponents_of_others,
    fits_exponents,
)
from gradstats.estimators.estimator import Weighting
from gradstats.estimators.ratios import (
    LARGEST_LOG_RATIO,
    NEGLIGIBLE_CHI_SQUARED,
    as_sequence_level,
    chi_squared,
    log_ratios,
    sequence_log_ratios,
    without_negligible_ratios,
)
from gradstats.estimators.recipes.weightings import (
    MEASURED_WEIGHTS,
    ByOwnWeights,
    ByWeightings,
    Combination,
    advantage_of_values,
    own_name,
    weighting_names,
    weightings_by_name,
)
from gradstats.measurement.measurement import NO_SKETCHES, Measurement, WeightedGradients, metric_label
from gradstats.stats.jackknife import UNKNOWN, Interval, Statistic
from gradstats.stats.on_policy import departures_of, other_policy_of, truncating
from gradstats.stats.protocols import MeasuredGradients, MeasuredRollouts
from gradstats.stats.ratios import RatioSpread, ratio_spread
from gradstats.stats.variance.moments import (
    Groups,
    PromptMoments,
    cross_signal,
    shuffled_prompts,
    split_into_groups,
)
from gradstats.stats.variance.pools import PooledCompletions, Weighted
from gradstats.stats.variance.products import PooledProducts, PromptGrams, ScoreProducts, use_blocked_products
from gradstats.stats.variance.scores import (
    CombinedScores,
    ProbedTokens,
    Scores,
    prepare_scores,
    probed_tokens,
    refuse_not_finite,
    refuse_other_shape,
)
from gradstats.stats.variance.sketch_error import (
    SketchError,
    TokenProbeError,
    in_fewer_coordinates,
    shared_coordinates,
    with_directions,
)

#: Below this effective number of completions nothing is judged against an importance-weighted target.
FEWEST_EFFECTIVE_COMPLETIONS = 50.0


def recorded_differences(measured: object) -> list[str]:
    """Name recorded settings in which sampler and scorer differ, as ``name=value`` of the sampler."""
    if not isinstance(measured, MeasuredRollouts):
        return []
    drawn = getattr(measured.rollouts, "metadata", None) or {}
    scorer = (getattr(measured, "metadata", None) or {}).get("policy") or {}
    found = departures_of(drawn.get("sampler") or {}, scorer.get("temperature"))
    return [*found, *other_policy_of(drawn.get("policy"), scorer)]


@dataclass(frozen=True)
class TargetChoice:
    """Which gradient estimators are judged against, decided once for all group sizes of a comparison.

    It is leave-one-out REINFORCE, or the same weighted by the importance ratio of whole completions.
    """

    kind: Literal["on_policy", "importance"]
    ratios: RatioSpread | None = None  # None where the sampler's log-probabilities are not known
    agree: bool = True  # whether sampler and scorer count as one policy
    differences: tuple[str, ...] = ()  # recorded settings in which they differ, as name=value of the sampler
    overflow: tuple[int, float] | None = None  # the completion whose log-ratio overflows, and that

    @property
    def far(self) -> bool:
        """Whether ratios of whole completions show that the two policies differ."""
        return self.ratios is not None and not self.ratios.chi_squared.value <= NEGLIGIBLE_CHI_SQUARED

    @property
    def truncating(self) -> tuple[str, ...]:
        """The recorded settings with which the sampler cut off a part of the distribution."""
        return truncating(self.differences)

    @property
    def unusable(self) -> bool:
        """Whether nothing can be judged against it: ratios are not known, do not help, overflow, or leave too few."""
        if self.kind == "on_policy":
            return False
        if self.truncating or self.ratios is None or self.overflow is not None:
            return True
        return bool(self.ratios.effective_sample_size.value < FEWEST_EFFECTIVE_COMPLETIONS)

    def effective_sample_size(self, confidence_level: float) -> Interval:
        """Return the effective number of completions with its interval; NaN where ratios are not known."""
        if self.ratios is None:
            return UNKNOWN
        return (self.ratios.effective_sample_size.value, *self.ratios.effective_size_interval(confidence_level))


#: Of completions about whose sampler nothing is known.
ON_POLICY = TargetChoice("on_policy")


def choose_target(target: AskedTarget, batch: Batch, differences: Sequence[str] = ()) -> TargetChoice:
    r"""Decide what estimators are judged against.

    ``auto`` takes the importance-weighted target where the :math:`χ²` of whole completions exceeds
    :data:`NEGLIGIBLE_CHI_SQUARED` or recorded settings differ, and otherwise stays on-policy: expectations under the
    two policies then differ by at most :math:`\sqrt{χ²}` root mean squares of a group's gradient.
    """
    ratios, overflow = None, None
    if batch.old_logprobs is not None and batch.logprobs is not None:
        logs = sequence_log_ratios(batch)
        row = int(np.argmax(logs))
        overflow = (row, float(logs[row])) if logs[row] > LARGEST_LOG_RATIO else None
        ratios = ratio_spread("product", logs, batch.group_index, batch.lengths)
    elif target == "importance":
        raise ValueError(
            "target='importance' needs the log-probabilities of sampler and scorer at every counted token: sample with "
            "an engine that records them, such as transformers or vllm, and measure"
        )
    found = TargetChoice("on_policy", ratios, True, tuple(differences), overflow)
    agree = not found.far and not differences
    importance = target == "importance" or (target == "auto" and not agree)
    return replace(found, kind="importance" if importance else "on_policy", agree=agree)


@dataclass(frozen=True)
class ComparisonInputs:
    """Completions and their gradients, as measured or given."""

    batch: Batch
    order: Int[np.ndarray, " n"]  # positions in sample order
    scores: np.ndarray  # (N, D) or (N, T, D)
    sketched: bool  # whether these are a random projection
    probed: ProbedTokens | None  # None where token scores were not projected on probes, or are not needed
    weighted: Mapping[str, WeightedGradients] = field(default_factory=dict)  # further weightings that were measured
    combined: tuple[str, ...] = ()  # the names of those that estimators of the comparison combine
    measured_batch: Batch | None = None  # of a measurement, with the ratios that weightings were measured with
    metric: str = EUCLIDEAN  # that gradients were measured in
    # Of what the scores project, where these are those of one block; estimators may weight by those of the batch.
    sq_norms: Float[np.ndarray, " n"] | None = None
    measured: Measurement | None = None  # whose sketches these are; it may keep what is derived from them
    _products: dict[str, ScoreProducts] = field(default_factory=dict)  # of all completions, where it keeps none

    def with_combined(self, chosen: Sequence[Weighting]) -> tuple[ComparisonInputs, list[Weighting]]:
        """Return inputs and estimators, with recipes whose weightings were measured as combinations of these."""
        if self.scores.ndim == 3:
            return self, list(chosen)
        weightings = [self._measured_weightings(one) for one in chosen]
        own = [self._measured_advantage(one) for one in chosen]
        combined = tuple(dict.fromkeys([*chain.from_iterable(weightings), *filter(None, own)]))
        replaced = []
        for one, names, name in zip(chosen, weightings, own, strict=True):
            if names:
                one = ByWeightings(cast(Recipe, one), combined)
            elif name is not None:
                one = ByOwnWeights(one, combined, name)
            replaced.append(one)
        columns = {MEASURED_WEIGHTS + name: self._token_weights(name) for name in own if name is not None}
        batch = self.batch.with_fields(columns={**self.batch.columns, **columns}) if columns else self.batch
        return replace(self, batch=batch, combined=combined), replaced

    def _measured_weightings(self, one: Weighting) -> tuple[str, ...]:
        """Return the names of the weightings that a recipe combines; none where it does not, or one is missing."""
        names = weighting_names(one) if isinstance(one, Recipe) and one.level == "token" else ()
        return names if all(name in self.weighted for name in names) else ()

    def _measured_advantage(self, one: Weighting) -> str | None:
        """Return the name of the weighting that holds an estimator's advantages of tokens; None where none does."""
        advantage = advantage_of_values(one)
        # Beside probes all weights are formed from token scores.
        if advantage is None or self.probed is not None or not all(map(self.batch.has, one.needs)):
            return None
        name = own_name(advantage)
        return name if name in self.weighted and self.weighted[name].weights is not None else None

    def _token_weights(self, name: str) -> Float[np.ndarray, "n t"]:
        rows, padded = self.weighted[name].weights, np.zeros(self.batch.mask.shape)
        assert rows is not None
        for row, weights in zip(padded, rows, strict=True):
            row[: len(weights)] = weights
        return padded

    def with_fitted_exponents(self, chosen: Sequence[Weighting]) -> tuple[ComparisonInputs, list[Weighting]]:
        """Fit exponents that estimators take from the other prompts, once and on all of these.

        The batch has them as a column, so that they are the same at every group size, and the estimators stay within
        their group.
        """
        if not any(map(fits_exponents, chosen)) or self.batch.sq_norms is None:
            return self, list(chosen)
        columns = {**self.batch.columns, FITTED_ELSEWHERE: exponents_of_others(self.batch)}
        given = [GivenExponents(one) if isinstance(one, Estimator) and fits_exponents(one) else one for one in chosen]
        return replace(self, batch=self.batch.with_fields(columns=columns)), given

    def with_settled_ratios(self, judged: TargetChoice) -> ComparisonInputs:
        """Set every ratio to exactly 1 where sampler and scorer differ by rounding only.

        An importance-weighted target keeps the ratios as they are: without them it would be that of the sampler.
        """
        if judged.kind == "importance":
            return self
        return replace(self, batch=without_negligible_ratios(self.batch))

    def refuse_unknown_token_scores(self, weightings: Sequence[Weighting]) -> None:
        """Refuse estimators that weight single tokens where only scores of whole completions are known."""
        if self.scores.ndim == 3 or self.probed is not None:
            return
        for one in weightings:
            if one.level == "token" and not isinstance(one, Combination):
                self.batch.require(one.needs, one.label)
                raise ValueError(_unknown_token_scores(one, self.batch))

    def of_block(
        self, gradients: WeightedGradients, block: str, estimators: Sequence[Weighting] = ()
    ) -> ComparisonInputs:
        """Return the gradients with respect to one block; the estimators' weights remain those of the whole."""
        for one in estimators:
            if one.level == "token" and not isinstance(one, Combination):
                raise ValueError(
                    f"{one.label} weights each token, whose scores are not kept by block: leave it out of a comparison "
                    "by block"
                )
        of_block = gradients.of_block(block)
        weighted = {name: self.weighted[name].of_block(block) for name in self.combined}
        scores = np.asarray(of_block.sketches)
        changed = {"scores": scores, "sq_norms": of_block.sq_norms, "probed": None, "weighted": weighted}
        return replace(self, **changed, measured=None, _products={})

    def prepared(self, rows: Int[np.ndarray, " kept"]) -> Scores:
        """Return the scores of some completions, in that order."""
        scores = prepare_scores(self.scores, self.batch.mask, rows, self.sketched, self._squares, self.probed)
        return replace(scores, combined=self._combined_scores(rows, scores.signs)) if self.combined else scores

    @property
    def _squares(self) -> Float[np.ndarray, " n"] | None:
        return self.batch.sq_norms if self.sq_norms is None else self.sq_norms

    def _combined_scores(
        self, rows: Int[np.ndarray, " kept"], signs: Float[np.ndarray, " features"] | None
    ) -> CombinedScores:
        parts = [self.weighted[name] for name in self.combined]
        sketches = np.stack([np.asarray(part.sketches, dtype=np.float64)[rows] for part in parts], axis=1)
        squares = np.stack([part.sq_norms[rows] for part in parts], axis=1)
        surplus = squares - np.einsum("nkd,nkd->nk", sketches, sketches) if self.sketched else None
        if self.probed is not None:
            # Nothing of these gradients is left to the probes, P = P^Z; but products with one that has such a rest
            # need their projections.
            assert self.measured_batch is not None
            of_tokens = weightings_by_name(self.combined, self.measured_batch)
            weights = np.stack([of_tokens[name][rows] for name in self.combined], axis=1)
            along = np.einsum("nwt,ntk->nwk", weights, self.probed.projections[rows]) / np.sqrt(self.probed.n_probes)
            sketches = np.concatenate([sketches, along, along], axis=2)
        return CombinedScores(sketches, surplus, signs)

    def sketch_error(self, n_prompts: int, rng: np.random.Generator) -> SketchError | None:
        """Return the error of sketch and token probes; None where inner products are exact."""
        dim = self.scores.shape[-1]
        if self.probed is not None:
            return TokenProbeError(dim, n_prompts, rng, self.probed.n_probes, self.sketched)
        return SketchError(dim, n_prompts, rng) if self.sketched else None

    @cached_property
    def _within(self) -> PromptGrams:
        def multiplied() -> PromptGrams:
            return PromptGrams.of(self.scores, self.batch.group_index)

        return multiplied() if self.measured is None else self.measured.derived("products within prompts", multiplied)

    @property
    def in_blocks(self) -> bool:
        """Whether scores are so large that they are multiplied in blocks."""
        few = self.probed is not None or self.combined
        return not few and use_blocked_products(self.scores, self.batch.group_sizes)

    def products(
        self,
        rows: Int[np.ndarray, " kept"],
        prompt: Int[np.ndarray, " kept"],
        sketch_error: SketchError | None,
        shared: bool,
    ) -> ScoreProducts | None:
        """Return what multiplies the scores of completions, in the order of their prompts; None where they are few.

        With ``shared``, products of all completions are the same at every group size and, where the measurement keeps
        what is derived from it, for every question.
        """
        refuse_other_shape(self.scores, len(self.batch.rewards))
        if not self.in_blocks:
            return None
        shared = shared and len(rows) == len(self.batch.rewards)
        keeps = shared and self.measured is not None and self.measured.keeps_derived

        def made() -> ScoreProducts:
            products = ScoreProducts(self.scores, rows, prompt, self._within, sketch_error, kept=keeps)
            refuse_not_finite(rows[~np.isfinite(products.squares)])
            return products

        directions = None if sketch_error is None else sketch_error.directions
        parts = [np.ascontiguousarray(one).tobytes() for one in (rows, prompt, directions) if one is not None]
        name = f"products of all, {hashlib.sha256(b''.join(parts)).hexdigest()}"
        if keeps and self.measured is not None:
            return self.measured.derived(name, made)
        if not shared:
            return made()
        if name not in self._products:
            self._products[name] = made()
        return self._products[name]

    def products_of_split(
        self, groups: Groups, sketch_error: SketchError | None, shared: bool
    ) -> PooledProducts | None:
        """Return the completions of one split as products; see :meth:`products`."""
        products = self.products(groups.rows, groups.prompt[groups.group], sketch_error, shared)
        return None if products is None else self.among_products(products, np.arange(len(groups.rows)), groups)

    def among_products(self, products: ScoreProducts, places: Int[np.ndarray, " n"], groups: Groups) -> PooledProducts:
        """Return the completions of one split among those of some products, the same for the same split."""
        surplus = None
        if self.sketched and self._squares is not None:
            surplus = self._squares[products.rows[places]] - products.squares[places]
        split = tuple(one.tobytes() for one in (places, groups.group, surplus) if one is not None)
        if split not in products.splits:
            share = 1.0 / groups.groups_per_prompt[groups.prompt[groups.group]]
            products.splits[split] = PooledProducts(products, places, groups.group, share, self.sketched, surplus)
        return products.splits[split]

    def in_coordinates(
        self, rows: Int[np.ndarray, " kept"], sketch_error: SketchError | None
    ) -> tuple[Scores, SketchError | None]:
        """Return the scores of some completions and the error of their sketch, in few coordinates where that pays."""
        of_completions = self.scores.ndim == 2 and self.probed is None and not self.combined
        spanned = shared_coordinates(self.scores) if of_completions else None
        if spanned is None:
            return in_fewer_coordinates(self.prepared(rows), sketch_error)
        scores = prepare_scores(spanned.coordinates, self.batch.mask, rows, self.sketched, self._squares)
        return with_directions(scores, spanned, sketch_error)


def _unknown_token_scores(estimator: Weighting, batch: Batch) -> str:
    """Return why an estimator cannot be compared from scores of whole completions, and what to measure."""
    sentence = f"{estimator.label} weights each token, and only scores of whole completions are known"
    if isinstance(estimator, Recipe) and weighting_names(estimator):
        return (
            f"{sentence} (χ² of the sampler and the scored policy is {chi_squared(batch):.2g}): measure again with "
            f"token_weights=gradstats.estimators.token_weightings([{estimator.label!r}], measured); a run does so for "
            "the estimators of its experiment file"
        )
    known = f"pass scores=(N, T, D), or {MEASURE_PROBES}, so that token scores are known"
    if advantage_of_values(estimator):
        return (
            f"{sentence}: measure with token_weights=gradstats.estimators.token_weightings([{estimator.label!r}], "
            f"rollouts, values), as a run does for the estimators of its experiment file where they were there before "
            f"it measured (else in another run directory); or {known}"
        )
    return f"{sentence}: {known}"


def comparison_inputs(
    measured_or_batch: Batch | MeasuredGradients,
    scores: npt.ArrayLike | None,
    scores_are_sketches: bool | None,
    weightings: Sequence[Weighting] = (),
    fields: Mapping[str, npt.ArrayLike | None] | None = None,
) -> ComparisonInputs:
    """Return the completions, their sample order, their scores, and the projections of token scores."""
    fields = dict(fields or {})
    if "confidence_level" in fields:
        raise TypeError("a comparison is made at no level: give confidence_level to what it returns, as to .to_frame()")
    if isinstance(measured_or_batch, Batch):
        if scores is None:
            raise TypeError("a Batch has no gradients: pass scores=(N, D) of its completions, or a measurement")
        if fields:
            raise TypeError(f"give {', '.join(fields)} to the Batch itself: batch.with_fields({next(iter(fields))}=…)")
        batch = measured_or_batch
        order = np.arange(len(batch.rewards))
        return ComparisonInputs(batch, order, np.asarray(scores), bool(scores_are_sketches), None)
    measured = measured_or_batch
    if isinstance(measured, Measurement) and not fields:
        batch = measured.derived("batch", lambda: Batch.from_measurement(measured))
    else:
        batch = Batch.from_measurement(measured, **fields)
    order = np.argsort(np.asarray(measured.rollouts.sample_id), kind="stable")
    metric = metric_label(getattr(measured, "metadata", {}))
    if scores is not None:
        return ComparisonInputs(batch, order, np.asarray(scores), bool(scores_are_sketches), None, metric=metric)
    if measured.sketches is None:
        raise ValueError(NO_SKETCHES)
    sketched = True if scores_are_sketches is None else scores_are_sketches
    probed = None
    has_probes = getattr(measured, "token_projections", None) is not None
    if has_probes and any(each.level == "token" for each in weightings):
        if given := sorted({"token_energy", "token_cross"} & set(fields)):
            raise TypeError(f"{' and '.join(given)} come from the measurement: pass a Batch with scores=…")
        probed = probed_tokens(cast(Measurement, measured), batch)
    every = getattr(measured, "weighted", {})
    weighted = {name: gradients for name, gradients in every.items() if gradients.sketches is not None}
    sketches = np.asarray(measured.sketches)
    return ComparisonInputs(
        batch,
        order,
        sketches,
        sketched,
        probed,
        weighted,
        measured_batch=batch,
        metric=metric,
        measured=measured if isinstance(measured, Measurement) else None,
    )


def refuse_batch_level(estimators: Sequence[Weighting]) -> None:
    """Refuse estimators whose weights depend on the completions of other prompts."""
    for one in estimators:
        if one.across_groups:
            raise ValueError(f"{one.label} is a batch-level estimator: choose a group-level one, such as 'rloo'")


def refuse_unusable_ratios(weightings: Sequence[Weighting], batch: Batch, choice: TargetChoice) -> None:
    """Refuse estimators whose ratios π/π_old are not known although the completions are off-policy, or overflow.

    Without log-probabilities of the sampler every ratio is taken as 1, which holds on-policy only; with
    ``target="on_policy"`` a user asks for it.
    """
    using = [one for one in weightings if uses_ratios(one)]
    if not using:
        return
    if choice.kind == "importance" and choice.ratios is None:
        raise ValueError(
            f"{using[0].label} weights by the ratios π/π_old, and the completions were drawn with "
            f"{', '.join(choice.differences)} by a sampler whose log-probabilities are not known: sample with an "
            "engine that records them, or take every ratio as 1 (target='on_policy')"
        )
    if batch.old_logprobs is None:
        return
    logs = log_ratios(batch)
    if not max(logs.max(), logs.sum(axis=1).max()) > LARGEST_LOG_RATIO:
        return
    for one in using:
        if all(batch.has(need) for need in one.needs):
            try:
                one.weights(batch)
            except ValueError as error:
                raise ValueError(f"{one.label}: {error}") from error


def uses_ratios(weighting: Weighting) -> bool:
    """Return whether the weights depend on the ratios π/π_old."""
    if isinstance(weighting, Recipe):
        own = weighting.ratio.name != "none" or any(one.definition.of_ratios for one in weighting.components)
        return own or uses_ratios(weighting.advantage)
    return isinstance(weighting, Estimator) and bool(weighting.parameters.get("off_policy", False))


def target_of(
    pool: PooledCompletions, choice: TargetChoice, part: Callable[[Weighting], Weighting] | None = None
) -> Weighted:
    """Return the target, or a part of it, on the completions of one split; no moments where nothing can be judged.

    Groups of one completion have no baseline: there it is the plain, or weighted, reward.
    """
    estimator = _target_estimator(choice, pool)
    if part is not None:
        estimator = part(estimator)
    if choice.unusable:
        empty = np.zeros(len(pool.batch.rewards))
        return Weighted(empty, np.zeros(pool.groups.n_groups, dtype=bool), None)
    if estimator.label not in pool.targets:
        pool.targets[estimator.label] = pool.local(estimator)
    return pool.targets[estimator.label]


def expect_parts(
    pool: PooledCompletions,
    estimators: Sequence[Weighting],
    choice: TargetChoice,
    masks: Sequence[Bool[np.ndarray, " n"]],
) -> None:
    """Have large scores read once for the parts of estimators and of the target inside masks."""
    target = [] if choice.unusable else [_target_estimator(choice, pool)]
    pool.expect([*estimators, *target], masks)


def _target_estimator(choice: TargetChoice, pool: PooledCompletions) -> Weighting:
    if choice.kind == "importance":
        return recipes.get("rloo_is", advantage="rloo(off_policy=True, singleton=reward)")
    sizes = pool.groups.sizes
    return families.get("reinforce" if sizes.max() == 1 else "rloo" if sizes.min() > 1 else "rloo(singleton=reward)")


def prepared_inputs(
    measured_or_batch: Batch | MeasuredGradients,
    estimators: Sequence[Weighting],
    scores: npt.ArrayLike | None,
    scores_are_sketches: bool | None,
    target: AskedTarget,
    fields: Mapping[str, npt.ArrayLike | None] | None = None,
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
        estimators = [as_sequence_level(estimator, inputs.batch) for estimator in estimators]
    return *inputs.with_combined(estimators), judged


def reasons_against(
    measured_or_batch: Batch | MeasuredGradients,
    estimators: Sequence[Weighting],
    target: AskedTarget = "auto",
    scores: npt.ArrayLike | None = None,
    scores_are_sketches: bool | None = None,
    fields: Mapping[str, npt.ArrayLike | None] | None = None,
) -> list[str | None]:
    """Return why each estimator cannot be compared on these completions, with the remedy; None for one that can."""
    inputs = comparison_inputs(measured_or_batch, scores, scores_are_sketches, estimators, fields)
    judged = choose_target(target, inputs.batch, recorded_differences(measured_or_batch))
    known, inputs = inputs.batch, inputs.with_settled_ratios(judged)
    inputs, along = inputs.with_combined([as_sequence_level(estimator, inputs.batch) for estimator in estimators])
    reasons: list[str | None] = []
    for original, estimator in zip(estimators, along, strict=True):
        try:
            refuse_unusable_ratios([original], known, judged)
            from_probes = ("token_energy", "token_cross") if inputs.probed else ()
            inputs.batch.require([need for need in estimator.needs if need not in from_probes], estimator.label)
            inputs.refuse_unknown_token_scores([estimator])
            _refuse_failing(estimator if isinstance(estimator, ByOwnWeights) else original, inputs.batch)
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


def pooled(
    inputs: ComparisonInputs,
    groups: Groups,
    estimators: Sequence[Weighting],
    rng: np.random.Generator,
    target: TargetChoice,
    prompts_per_batch: int | None = None,
    n_resamples: int | None = None,
    max_grad_norm: float | None = None,
    *,
    shared: bool = False,
) -> PooledCompletions:
    """Return the completions of one split, after a check of what the estimators need.

    With ``shared``, what is multiplied here serves other sizes of groups, and a measurement that keeps what is derived
    from it keeps it for whoever asks about all its completions.
    """
    if groups.n_prompts < 2:
        raise ValueError(
            "compare needs at least 2 prompts with a full group each, got 1: prompts are the independent units"
        )
    sketch_error = inputs.sketch_error(groups.n_prompts, rng)
    scores = inputs.products_of_split(groups, sketch_error, shared)
    if scores is None:
        scores, sketch_error = inputs.in_coordinates(groups.rows, sketch_error)
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


@dataclass(frozen=True)
class PoolsBySize:
    """Completions of the prompts that have enough of them, to be put into groups of any size.

    Prompts keep their numbers and scores their coordinates at every size, so that statistics of different sizes are
    paired, with the error of one sketch.
    """

    inputs: ComparisonInputs
    judged: TargetChoice
    order: Int[np.ndarray, " n"]  # positions of the kept completions in sample order
    prompts: Int[np.ndarray, " n"]  # of these, numbered at random
    # In few coordinates, or their products; None where those of tokens are taken from the inputs for each size.
    scores: Scores | ScoreProducts | None
    sketch_error: SketchError | None

    @property
    def n_prompts(self) -> int:
        """Prompts with enough completions."""
        return int(self.prompts.max()) + 1

    @property
    def on_policy(self) -> bool:
        """Whether multiples of the gradient are known: of completions of the scored policy, judged as such."""
        return self.judged.kind == "on_policy" and self.judged.agree

    def pool(self, size: int) -> PooledCompletions:
        """Return the completions in disjoint groups of one size."""
        groups = split_into_groups(self.prompts, np.arange(len(self.order)), size)
        rows = self.order[groups.rows]
        if self.scores is None:
            scores = self.inputs.prepared(rows)
        elif isinstance(self.scores, ScoreProducts):
            # Those of products are in the order of prompts.
            place = np.empty(len(self.order), dtype=np.int64)
            place[np.argsort(self.prompts, kind="stable")] = np.arange(len(self.order))
            scores = self.inputs.among_products(self.scores, place[groups.rows], groups)
        else:
            surplus = None if self.scores.surplus_sq is None else self.scores.surplus_sq[groups.rows]
            scores = replace(self.scores, sequence=self.scores.sequence[groups.rows], surplus_sq=surplus)
        return PooledCompletions(
            batch=self.inputs.batch.select(rows).regrouped(groups.group),
            groups=groups,
            scores=scores,
            sketch_error=self.sketch_error,
            n_resamples=1,
            on_policy=self.on_policy,
        )


def pools_by_size(
    inputs: ComparisonInputs, judged: TargetChoice, enough: Bool[np.ndarray, " prompts"], rng: np.random.Generator
) -> PoolsBySize:
    """Keep the completions of some prompts."""
    order = inputs.order[enough[inputs.batch.group_index[inputs.order]]]
    # As a comparison at one size draws them, so that the same quantity has the same interval.
    prompts = shuffled_prompts(inputs.batch.group_index[order], rng)
    sketch_error = inputs.sketch_error(int(enough.sum()), rng.spawn(1)[0])
    scores = None
    if inputs.scores.ndim == 2 and inputs.probed is None and not inputs.combined:
        by_prompt = np.argsort(prompts, kind="stable")
        scores = inputs.products(order[by_prompt], prompts[by_prompt], sketch_error, shared=True)
        if scores is None:
            scores, sketch_error = inputs.in_coordinates(order, sketch_error)
    return PoolsBySize(inputs, judged, order, prompts, scores, sketch_error)


def projection_on_target(
    pool: PooledCompletions, moments: PromptMoments, judged: TargetChoice
) -> tuple[Statistic, Statistic] | None:
    """Return ⟨E g, G⟩ and ‖G‖², G the target; None where either is not resolved above 0, or nothing can be judged."""
    target = target_of(pool, judged).moments
    if target is None:
        return None
    along = cross_signal(moments, target, pool.sketch_error)
    if not min(one.estimate().confidence_interval()[0] for one in (along, target.signal)) > 0:
        return None
    return along, target.signal
