"""The completions that all estimators of one comparison share, and the row of each estimator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Int

from gradstats.config.defaults import PROMPTS_PER_BATCH
from gradstats.estimators import Batch
from gradstats.estimators.estimator import Weighting
from gradstats.stats.jackknife import Statistic
from gradstats.stats.variance.batch_moments import batch_moments, weighted_rows
from gradstats.stats.variance.gradient_statistics import Beside, GradientStatistics
from gradstats.stats.variance.group_moments import Groups, PromptMoments, cross_signal, prompt_moments
from gradstats.stats.variance.row import EstimatorVariance, row_of, silent_row
from gradstats.stats.variance.score_vectors import Scores
from gradstats.stats.variance.sketch_error import SketchError


@dataclass(frozen=True)
class PooledCompletions:
    """Completions in the order of their groups, with their scores.

    Attributes:
        batch: the kept completions; its groups are those of ``groups``.
        groups: the split into groups of one prompt each.
        scores: their scores.
        sketch_error: for sketched or probed scores, estimates their error; None where inner products are exact.
        prompts_per_batch: as for `compare`.
        n_resamples: how often prompts are dealt into batches for those.
        deal_seed: for those deals, which are the same for all estimators.
    """

    batch: Batch
    groups: Groups
    scores: Scores
    sketch_error: SketchError | None
    prompts_per_batch: int | None
    n_resamples: int
    deal_seed: int

    @property
    def batch_prompts(self) -> int:
        """Prompts in a batch of batch-level estimators."""
        if self.prompts_per_batch is not None:
            return self.prompts_per_batch
        return min(PROMPTS_PER_BATCH, max(1, self.groups.n_prompts // 4))

    @property
    def error_prompts(self) -> int:
        """Prompts in the batch whose mean squared error `bias_share` is a share of."""
        return PROMPTS_PER_BATCH if self.prompts_per_batch is None else self.prompts_per_batch

    def weights(self, estimator: Weighting, rows: Int[np.ndarray, " rows"] | None = None) -> np.ndarray:
        """The weights of all completions, or of some as a separate batch, as `Scores.weighted` takes them.

        An estimator that uses token energies gets them from each third of the probes in turn.
        """
        chosen = [batch if rows is None else batch.select(rows) for batch in self._batches(estimator)]
        if len(chosen) == 1:
            return estimator.weights(chosen[0])
        return np.stack([_token_weights(estimator, batch) for batch in chosen])

    def _batches(self, estimator: Weighting) -> tuple[Batch, ...]:
        if self.scores.probed is None or {"token_energy", "token_cross"}.isdisjoint(estimator.needs):
            return (self.batch,)
        return self._batch_by_third

    @cached_property
    def _batch_by_third(self) -> tuple[Batch, ...]:
        assert self.scores.probed is not None
        return self.scores.probed.batches(self.batch)

    def local(self, estimator: Weighting) -> Weighted:
        """The moments of an estimator that stays within its group."""
        weights = self.weights(estimator)
        kept = np.bincount(self.groups.group, weighted_rows(weights), self.groups.n_groups) > 0
        if not (kept.any() and np.isfinite(weights).all()):
            return Weighted(weights, kept, None)
        given = self.scores.weighted(weights)
        if weights.ndim == 3:
            assert self.scores.probed is not None
            shifts = self.scores.probed.influence(self.batch, lambda batch: _token_weights(estimator, batch), weights)
            given = replace(given, vectors=np.concatenate([given.vectors, shifts], axis=1))
        moments = prompt_moments(
            given.vectors,
            given.weights,
            self.groups,
            given.surplus_sq,
            self.sketch_error,
            signs=self.scores.signs,
            exact_squares=given.exact_squares,
        )
        return Weighted(weights, kept, moments)

    def row(
        self, estimator: Weighting, reference_estimator: Weighting, reference: Weighted, target: Weighted
    ) -> EstimatorVariance:
        """All quantities of one estimator, relative to the reference and judged against the target."""
        known = self._known_coefficient(estimator, reference_estimator)
        if estimator.across_groups:
            return self._batch_level_row(estimator, reference, target, known)
        weighted = self.local(estimator)
        # Equal weights are one estimator under two names: share the moments, so that differences are exactly 0.
        for other in (target, reference):
            if other.moments is not None and np.array_equal(weighted.weights, other.weights):
                weighted = other
        moments = weighted.moments
        kept = np.bincount(self.groups.prompt, weights=weighted.kept) / self.groups.groups_per_prompt
        if moments is None:
            return silent_row(estimator.label, kept)
        crosses = {
            id(other): cross_signal(moments, other, self.sketch_error)
            for other in _moments_of(reference, target).values()
        }
        gradient = GradientStatistics(
            moments.trace_cov,
            moments.signal,
            kept,
            self.error_prompts,
            _beside(reference.moments, crosses),
            _beside(target.moments, crosses),
            1.0 if weighted is reference else known,
            moments.within,
        )
        return row_of(estimator.label, gradient)

    def _batch_level_row(
        self, estimator: Weighting, reference: Weighted, target: Weighted, known: float | None
    ) -> EstimatorVariance:
        n_prompts = self.groups.n_prompts
        if not 1 <= self.batch_prompts <= n_prompts // 2:
            raise ValueError(
                f"prompts_per_batch={self.batch_prompts} must be between 1 and half the {n_prompts} prompts "
                f"here: {estimator.label} is a batch-level estimator, whose variance needs two disjoint batches"
            )
        others = _moments_of(reference, target)
        moments = batch_moments(
            lambda rows: self.weights(estimator, rows),
            self.scores,
            self.groups,
            self.batch_prompts,
            self.n_resamples,
            np.random.default_rng(self.deal_seed),
            tuple(others.values()),
            self.sketch_error,
        )
        if not moments.kept_share.any():
            return silent_row(estimator.label, moments.kept_share)
        crosses = dict(zip(others, moments.crosses, strict=True))
        gradient = GradientStatistics(
            moments.trace_cov,
            moments.signal,
            moments.kept_share,
            self.error_prompts,
            _beside(reference.moments, crosses),
            _beside(target.moments, crosses),
            known,
        )
        return row_of(estimator.label, gradient)

    def _known_coefficient(self, estimator: Weighting, reference: Weighting) -> float | None:
        """E[ĝ] of one over E[ĝ] of the other, where both are known multiples of ∇J at every size here."""
        scales = []
        for size in {int(size) for size in self.groups.sizes}:
            scale, of_reference = estimator.expected_scale(size), reference.expected_scale(size)
            if scale is None or of_reference is None or of_reference == 0.0:
                return None
            scales.append((scale, of_reference))
        return scales[0][0] / scales[0][1] if len(set(scales)) == 1 else None


def _token_weights(estimator: Weighting, batch: Batch) -> np.ndarray:
    weights = estimator.weights(batch)
    return np.where(batch.mask, weights[:, None], 0.0) if weights.ndim == 1 else weights


@dataclass(frozen=True)
class Weighted:
    """Weights of an estimator on these completions, the groups with a non-zero one, and their moments.

    ``moments`` is None when every weight is zero or some are not finite, so that there is no gradient.
    """

    weights: np.ndarray
    kept: np.ndarray
    moments: PromptMoments | None


def _moments_of(*others: Weighted) -> dict[int, PromptMoments]:
    """The moments of those that have any, each once, by identity."""
    return {id(other.moments): other.moments for other in others if other.moments is not None}


def _beside(moments: PromptMoments | None, crosses: dict[int, Statistic]) -> Beside | None:
    return None if moments is None else Beside(moments.trace_cov, moments.signal, crosses[id(moments)])
