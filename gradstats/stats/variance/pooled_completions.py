"""The completions that all estimators of one comparison share, and the row of each estimator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Int

from gradstats.config.defaults import PROMPTS_PER_BATCH
from gradstats.estimators import Batch
from gradstats.estimators.estimator import Weighting
from gradstats.stats.jackknife import Statistic, mean_statistic
from gradstats.stats.variance.batch_moments import batch_moments, weighted_rows
from gradstats.stats.variance.group_moments import Groups, PromptMoments, cross_signal, prompt_moments
from gradstats.stats.variance.row import EstimatorVariance
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
        prompts_per_batch: for batch-level estimators; None takes a quarter of the prompts.
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
        self,
        estimator: Weighting,
        reference_estimator: Weighting,
        reference: Weighted,
        unbiased: Weighted,
    ) -> EstimatorVariance:
        """All quantities of one estimator, relative to the reference and the unbiased one."""
        known = self._known_coefficient(estimator, reference_estimator)
        if estimator.across_groups:
            return self._batch_level_row(estimator, reference, unbiased, known)
        weighted = self.local(estimator)
        # Equal weights are one estimator under two names: share the moments, so that differences are exactly 0.
        for other in (unbiased, reference):
            if other.moments is not None and np.array_equal(weighted.weights, other.weights):
                weighted = other
        shares = np.bincount(self.groups.prompt, weights=weighted.kept) / self.groups.groups_per_prompt
        if weighted.moments is None:
            return EstimatorVariance(estimator.label, kept_share=mean_statistic(shares).estimate())
        crosses = {
            id(other): cross_signal(weighted.moments, other.moments, self.sketch_error)
            for other in (reference, unbiased)
            if other.moments is not None
        }
        return _row(
            estimator.label,
            weighted.moments.trace_cov,
            weighted.moments.signal,
            shares,
            reference.moments,
            unbiased.moments,
            crosses.get(id(reference)),
            crosses.get(id(unbiased)),
            1.0 if weighted is reference else known,
            weighted.moments.within,
        )

    def _batch_level_row(
        self, estimator: Weighting, reference: Weighted, unbiased: Weighted, known: float | None
    ) -> EstimatorVariance:
        n_prompts = self.groups.n_prompts
        if not 1 <= self.batch_prompts <= n_prompts // 2:
            raise ValueError(
                f"prompts_per_batch={self.batch_prompts} must be between 1 and half the {n_prompts} prompts "
                f"here: {estimator.label} is a batch-level estimator, whose variance needs two disjoint batches"
            )

        others = {id(other): other.moments for other in (reference, unbiased) if other.moments is not None}
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
            return EstimatorVariance(estimator.label, kept_share=mean_statistic(moments.kept_share).estimate())
        crosses = dict(zip(others, moments.crosses, strict=True))
        return _row(
            estimator.label,
            moments.trace_cov,
            moments.signal,
            moments.kept_share,
            reference.moments,
            unbiased.moments,
            crosses.get(id(reference)),
            crosses.get(id(unbiased)),
            known,
        )

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


def _row(
    label: str,
    trace_cov: Statistic,
    signal: Statistic,
    shares: np.ndarray,
    reference: PromptMoments | None,
    unbiased: PromptMoments | None,
    with_reference: Statistic | None,
    with_unbiased: Statistic | None,
    known_coefficient: float | None,
    within: Statistic | None = None,
) -> EstimatorVariance:
    """The estimates of a row as functions of U-statistics, each jackknifed as a whole.

    ``cosine`` is ⟨E g, E u⟩/√(‖E g‖²‖E u‖²), ``coefficient`` ⟨E g, E r⟩/‖E r‖², ``matched_ratio`` the ratio over its
    square, and ``bias_to_noise`` ‖E g − E u‖²/tr Cov, with r the reference and u the unbiased estimator.
    """
    row = EstimatorVariance(
        label=label,
        known_coefficient=known_coefficient,
        trace_cov=trace_cov.estimate("log"),
        signal_sq=signal.estimate(),
        signal_to_noise=(signal / trace_cov).estimate(),
        kept_share=mean_statistic(shares).estimate(),
    )
    if within is not None:
        row = replace(row, within_prompt=within.estimate("log"), between_prompt=(trace_cov - within).estimate())
    if reference is not None and with_reference is not None:
        ratio = trace_cov / reference.trace_cov
        coefficient = with_reference / reference.signal
        row = replace(
            row,
            ratio=ratio.estimate("log"),
            coefficient=coefficient.estimate(),
            matched_ratio=(ratio / (coefficient * coefficient)).estimate("log"),
            reference_signal_sq=reference.signal.estimate(),
        )
    if unbiased is not None and with_unbiased is not None:
        bias_sq = signal - with_unbiased.scaled(2.0) + unbiased.signal
        row = replace(
            row,
            cosine=(with_unbiased / (signal.root() * unbiased.signal.root())).estimate(),
            bias_to_noise=(bias_sq / trace_cov).estimate(),
            unbiased_signal_sq=unbiased.signal.estimate(),
        )
    return row
