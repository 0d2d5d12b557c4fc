"""The inputs of a comparison: completions in sample order, and the known properties of their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from gradstats.config.metrics import EUCLIDEAN
from gradstats.estimators import Batch, Estimator
from gradstats.estimators.baselines.length_exponent import (
    FITTED_ELSEWHERE,
    GivenExponents,
    exponents_of_others,
    fits_exponents,
)
from gradstats.estimators.estimator import Weighting
from gradstats.estimators.ratios import chi_squared, without_negligible_ratios
from gradstats.estimators.recipes.recipe import Recipe
from gradstats.estimators.recipes.weightings import ByWeightings, weighting_names, weightings_by_name
from gradstats.measurement.metric import metric_label
from gradstats.measurement.weighted_gradients import WeightedGradients
from gradstats.stats.measured import MeasuredGradients, MeasuredTokens
from gradstats.stats.variance.group_moments import Groups
from gradstats.stats.variance.probe_error import TokenProbeError
from gradstats.stats.variance.probed_sums import ProbedTokens, probed_tokens
from gradstats.stats.variance.reduced_coordinates import in_fewer_coordinates, shared_coordinates, with_directions
from gradstats.stats.variance.score_vectors import CombinedScores, Scores, prepare_scores
from gradstats.stats.variance.sketch_error import SketchError
from gradstats.stats.variance.target import TargetChoice


@dataclass(frozen=True)
class ComparisonInputs:
    """Completions and their gradients, as measured or given.

    Attributes:
        batch: the completions.
        order: (N,) their positions in sample order.
        scores: (N, D) or (N, T, D).
        sketched: whether the scores are a random projection.
        probed: token scores projected on random probes; None where they were not measured or are not needed.
        weighted: further weightings that were measured, by name.
        combined: the names of those that estimators of the comparison combine.
        measured_batch: the completions of a measurement, with the ratios that weightings were measured with.
        metric: label of the metric that gradients were measured in.
        sq_norms: (N,) exact squared norms of what ``scores`` project; by default those of ``batch``, which estimators
            may weight by. Both differ where the scores are those of one block.
    """

    batch: Batch
    order: Int[np.ndarray, " n"]
    scores: np.ndarray
    sketched: bool
    probed: ProbedTokens | None
    weighted: Mapping[str, WeightedGradients] = field(default_factory=dict)
    combined: tuple[str, ...] = ()
    measured_batch: Batch | None = None
    metric: str = EUCLIDEAN
    sq_norms: Float[np.ndarray, " n"] | None = None

    def with_combined(self, chosen: Sequence[Weighting]) -> tuple[ComparisonInputs, list[Weighting]]:
        """Return inputs and estimators, with recipes whose weightings were measured as combinations of these."""
        if self.scores.ndim == 3:
            return self, list(chosen)
        known = {
            id(one): names
            for one in chosen
            if isinstance(one, Recipe) and one.level == "token" and (names := weighting_names(one))
            if all(name in self.weighted for name in names)
        }
        combined = tuple(dict.fromkeys(name for names in known.values() for name in names))
        replaced = [ByWeightings(cast(Recipe, one), combined) if id(one) in known else one for one in chosen]
        return replace(self, combined=combined), replaced

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

        Args:
            judged: what the estimators of the comparison are judged against.
        """
        if judged.kind == "importance":
            return self
        return replace(self, batch=without_negligible_ratios(self.batch))

    def refuse_unknown_token_scores(self, weightings: Sequence[Weighting]) -> None:
        """Refuse estimators that weight single tokens where only scores of whole completions are known.

        Raises:
            ValueError: naming the estimator and the measurement that it needs.
        """
        if self.scores.ndim == 3 or self.probed is not None:
            return
        for one in weightings:
            if one.level == "token" and not isinstance(one, ByWeightings):
                self.batch.require(one.needs, one.label)
                raise ValueError(_unknown_token_scores(one, self.batch))

    @property
    def _squares(self) -> Float[np.ndarray, " n"] | None:
        return self.batch.sq_norms if self.sq_norms is None else self.sq_norms

    def of_block(
        self, gradients: WeightedGradients, block: str, estimators: Sequence[Weighting] = ()
    ) -> ComparisonInputs:
        """Return the gradients with respect to one block; the estimators' weights remain those of the whole.

        Args:
            gradients: the whole, with sketches by block.
            block: the name of the block.
            estimators: what is compared.

        Raises:
            ValueError: without sketches by block, or for an estimator that weights single tokens.
        """
        for one in estimators:
            if one.level == "token" and not isinstance(one, ByWeightings):
                raise ValueError(
                    f"{one.label} weights each token, whose scores are not kept by block: leave it out of a comparison "
                    "by block"
                )
        of_block = gradients.of_block(block)
        return replace(
            self,
            scores=np.asarray(of_block.sketches),
            sq_norms=of_block.sq_norms,
            probed=None,
            weighted={name: self.weighted[name].of_block(block) for name in self.combined},
        )

    def prepared(self, rows: Int[np.ndarray, " kept"]) -> Scores:
        """Return the scores of some completions, in that order."""
        scores = prepare_scores(self.scores, self.batch.mask, rows, self.sketched, self._squares, self.probed)
        return replace(scores, combined=self._combined_scores(rows, scores.signs)) if self.combined else scores

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

    def with_coordinates(self, groups: Groups, rng: np.random.Generator) -> tuple[Batch, Scores, SketchError | None]:
        """Return the completions of a split in its order, their scores, and the error of these."""
        scores, sketch_error = self.in_coordinates(groups.rows, self.sketch_error(groups.n_prompts, rng))
        return self.batch.select(groups.rows).with_fields(groups=groups.group), scores, sketch_error


def comparison_inputs(
    measured_or_batch: Batch | MeasuredGradients,
    scores: ArrayLike | None,
    scores_are_sketches: bool | None,
    weightings: Sequence[Weighting] = (),
    fields: Mapping[str, ArrayLike | None] | None = None,
) -> ComparisonInputs:
    """Return the completions, their sample order, their scores, and the projections of token scores.

    Args:
        measured_or_batch: a measurement, or a :class:`gradstats.estimators.Batch` with ``scores``.
        scores: as for :func:`gradstats.compare`.
        scores_are_sketches: as for :func:`gradstats.compare`.
        weightings: what is compared: token scores are prepared only when one of them weights tokens.
        fields: further fields of a measurement's batch.

    Raises:
        TypeError: for a Batch without scores, or with further fields; for fields that are measured.
        ValueError: for a measurement without sketches, and no scores in their place.
    """
    fields = dict(fields or {})
    if isinstance(measured_or_batch, Batch):
        if scores is None:
            raise TypeError("a Batch has no gradients: pass scores=(N, D) of its completions, or a measurement")
        if fields:
            raise TypeError(f"give {', '.join(fields)} to the Batch itself: batch.with_fields({next(iter(fields))}=…)")
        batch = measured_or_batch
        return ComparisonInputs(
            batch, np.arange(len(batch.rewards)), np.asarray(scores), bool(scores_are_sketches), None
        )
    measured = measured_or_batch
    batch = Batch.from_measurement(measured, **fields)
    order = np.argsort(np.asarray(measured.rollouts.sample_id), kind="stable")
    metric = metric_label(getattr(measured, "metadata", {}))
    if scores is not None:
        return ComparisonInputs(batch, order, np.asarray(scores), bool(scores_are_sketches), None, metric=metric)
    if measured.sketches is None:
        raise ValueError(
            "the measurement holds no sketches, which inner products of gradients need: measure with sketch_dim, for "
            "example 16384"
        )
    sketched = True if scores_are_sketches is None else scores_are_sketches
    probed = None
    has_probes = getattr(measured, "token_projections", None) is not None
    if has_probes and any(each.level == "token" for each in weightings):
        measured_fields = {"token_energy", "token_cross"} & set(fields)
        if measured_fields:
            raise TypeError(
                f"{' and '.join(sorted(measured_fields))} come from the measurement: pass a Batch with scores=…"
            )
        probed = probed_tokens(cast(MeasuredTokens, measured), batch)
    weighted = {
        name: gradients
        for name, gradients in getattr(measured, "weighted", {}).items()
        if gradients.sketches is not None
    }
    sketches = np.asarray(measured.sketches)
    return ComparisonInputs(batch, order, sketches, sketched, probed, weighted, measured_batch=batch, metric=metric)


def _unknown_token_scores(estimator: Weighting, batch: Batch) -> str:
    """Return why an estimator cannot be compared from scores of whole completions, and what to measure."""
    sentence = f"{estimator.label} weights each token, and only scores of whole completions are known"
    if isinstance(estimator, Recipe) and weighting_names(estimator):
        return (
            f"{sentence} (χ² of the sampler and the scored policy is {chi_squared(batch):.2g}): measure again with "
            f"token_weights=gradstats.estimators.token_weightings([{estimator.label!r}], measured); a run does so for "
            "the estimators of its experiment file"
        )
    return f"{sentence}: pass scores=(N, T, D), or measure with token_probes=… so that token scores are known"
