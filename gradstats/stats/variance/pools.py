"""The completions that all estimators of one comparison share, and the row of each estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from jaxtyping import Bool, Int

from gradstats.config.options import PROMPTS_PER_BATCH
from gradstats.estimators import Batch
from gradstats.estimators.estimator import Weighting, Wrapped
from gradstats.estimators.recipes.weightings import Combination
from gradstats.stats.jackknife import Statistic
from gradstats.stats.variance.moments import (
    DealtDifferences,
    Groups,
    PromptMoments,
    cross_signal,
    moments_from_products,
    of_rows,
    prompt_moments,
    shuffled_deals,
    weighted_rows,
)
from gradstats.stats.variance.products import PooledProducts
from gradstats.stats.variance.quantities import GradientStatistics
from gradstats.stats.variance.row import EstimatorVariance, row_of, row_without_gradient, share_of_deals
from gradstats.stats.variance.scores import CombinedScores, Contributions, Scores
from gradstats.stats.variance.sketch_error import SketchError

#: Deals of prompts into batches, where their number is chosen: from so many, doubled until the error that they leave
#: is at most this share of the squared standard error, up to so many.
_FEWEST_DEALS, _MOST_DEALS = 64, 512
SMALL_DEAL_SHARE = 0.01
#: A batch-level estimator weights each dealt batch by itself: no more than this many of them, beyond the fewest deals.
MOST_WEIGHTED_BATCHES = 2**15


@dataclass(frozen=True)
class Weighted:
    """Weights of an estimator on some completions, the groups with a non-zero one, and their moments."""

    weights: np.ndarray
    kept: np.ndarray
    moments: PromptMoments | None  # None where every weight is zero or some are not finite


@dataclass(frozen=True)
class PooledCompletions:
    """Completions in the order of their groups, with their scores."""

    batch: Batch  # whose groups are those of ``groups``
    groups: Groups
    scores: Scores | PooledProducts
    sketch_error: SketchError | None  # of sketched or probed scores; None where inner products are exact
    prompts_per_batch: int | None = None  # None chooses
    n_resamples: int | None = None  # how often prompts are dealt into batches; None chooses
    deal_seed: int = 0  # one for all estimators
    prompt_labels: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (prompts,)
    on_policy: bool = True  # whether the target is ∇J whose multiples are known
    max_grad_norm: float | None = None  # that gradients of batches are clipped to

    @cached_property
    def targets(self) -> dict[str, Weighted]:
        """Moments of targets and of their parts by label, once they are known: rows share them."""
        return {}

    @property
    def batch_prompts(self) -> int:
        """Prompts in a batch of batch-level estimators."""
        if self.prompts_per_batch is not None:
            return self.prompts_per_batch
        return min(PROMPTS_PER_BATCH, max(1, self.groups.n_prompts // 4))

    @property
    def error_prompts(self) -> int:
        """Prompts in the batch whose mean squared error ``bias_share`` is a share of."""
        return PROMPTS_PER_BATCH if self.prompts_per_batch is None else self.prompts_per_batch

    def weights(self, estimator: Weighting, rows: Int[np.ndarray, " rows"] | None = None) -> np.ndarray:
        """Return the weights of all completions, or of some as a separate batch: (n,), (n, T) or (3, n, T).

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

    def scores_of(self, estimator: Weighting) -> Scores | CombinedScores | PooledProducts:
        """Return what the estimator's weights apply to."""
        # A part, such as that of some lengths, weights what the whole does.
        whole = estimator.estimator if isinstance(estimator, Wrapped) and hasattr(estimator, "same_part") else estimator
        if isinstance(whole, Combination):
            assert self.scores.combined is not None
            return self.scores.combined
        return self.scores

    def expect(
        self,
        estimators: Sequence[Weighting],
        masks: Sequence[Bool[np.ndarray, " n"]] = (),
    ) -> None:
        """Have large scores read once for the gradients of all these, their parts inside masks, and the rests."""
        if not isinstance(self.scores, PooledProducts):
            return
        inside = [True, *(part for mask in masks for part in (mask, ~mask))]
        for weights in map(self.weights, estimators):
            if np.isfinite(weights).all():
                for mask in inside:
                    self.scores.means(np.where(mask, weights, 0.0))

    def form(
        self,
        estimators: Sequence[Weighting],
        others: Sequence[Weighted],
        masks: Sequence[Bool[np.ndarray, " n"]] = (),
    ) -> None:
        """Form the statistics of all these, and their products with others and with their own parts inside masks.

        Done before the first error is asked for, large scores are read once for the errors of all.
        """
        if not isinstance(self.scores, PooledProducts):
            return
        beside = [one.moments for one in others if one.moments is not None]
        for one in estimators:
            whole, parts = self.with_parts(one, [part for mask in masks for part in (mask, ~mask)])
            if whole.moments is not None:
                inside = [part for part in parts[::2] if part is not None]
                for other in (whole.moments, *beside, *inside):
                    cross_signal(whole.moments, other)

    def local(self, estimator: Weighting) -> Weighted:
        """Estimate the moments of an estimator that stays within its group."""
        return self.with_parts(estimator, [])[0]

    def with_parts(
        self, estimator: Weighting, masks: Sequence[Bool[np.ndarray, " n"]]
    ) -> tuple[Weighted, list[PromptMoments | None]]:
        """Estimate the same, and the moments of parts of its gradient: the sums over some completions each."""
        weights = self.weights(estimator)
        rows = weighted_rows(weights)
        kept = np.bincount(self.groups.group, rows, self.groups.n_groups) > 0
        if not (kept.any() and np.isfinite(weights).all()):
            return Weighted(weights, kept, None), [None for _ in masks]
        if isinstance(self.scores, PooledProducts):
            chosen = [np.where(mask, weights, 0.0) if (rows & mask).any() else None for mask in masks]
            of_some = [weights, *(one for one in chosen if one is not None)]
            whole, *of_parts = moments_from_products(self.scores, of_some, self.groups)
            found = iter(of_parts)
            return Weighted(weights, kept, whole), [None if one is None else next(found) for one in chosen]
        scores = self.scores_of(estimator)
        assert not isinstance(scores, PooledProducts)
        given = scores.weighted(weights)
        if weights.ndim == 3:
            assert self.scores.probed is not None
            shifts = self.scores.probed.influence(self.batch, lambda batch: _token_weights(estimator, batch), weights)
            given = replace(given, vectors=np.concatenate([given.vectors, shifts], axis=1))
        parts = [self._moments(given, mask) if (rows & mask).any() else None for mask in masks]
        return Weighted(weights, kept, self._moments(given)), parts

    def _moments(self, given: Contributions, mask: Bool[np.ndarray, " n"] | None = None) -> PromptMoments:
        """Return the moments of weighted scores, or of those of some completions."""
        return prompt_moments(
            given.vectors,
            given.weights if mask is None else np.where(mask, given.weights, 0.0),
            self.groups,
            given.surplus_sq,
            self.sketch_error,
            signs=self.scores.signs,
            exact_squares=given.exact_squares,
        )

    def rows(
        self,
        estimators: Sequence[Weighting],
        reference_estimator: Weighting,
        reference: Weighted,
        targets: Sequence[Weighted],
    ) -> list[EstimatorVariance]:
        """Return all quantities of each estimator, relative to the reference and judged against its target.

        The statistics of all are formed before the first error is asked for, so that errors are estimated together.
        """
        pairs = zip(estimators, targets, strict=True)
        prepared = [self._row(one, reference_estimator, reference, target) for one, target in pairs]
        return [finished() for finished in prepared]

    def _row(
        self, estimator: Weighting, reference_estimator: Weighting, reference: Weighted, target: Weighted
    ) -> Callable[[], EstimatorVariance]:
        """Return what gives all quantities of one estimator."""
        weighted = self.local(estimator)
        # Equal weights are one estimator under two names: share the moments, so that differences are exactly 0.
        for other in (target, reference):
            if other.moments is not None and np.array_equal(weighted.weights, other.weights):
                weighted = other
        kept = np.bincount(self.groups.prompt, weights=weighted.kept) / self.groups.groups_per_prompt
        dealt = estimator.across_groups or self.max_grad_norm is not None
        if dealt:
            self._require_two_batches(estimator)
        if not estimator.across_groups and weighted.moments is None:
            return partial(row_without_gradient, estimator.label, kept)
        for judge in filter(None, (reference.moments, target.moments)):
            judge.trace_cov  # noqa: B018  formed with all others, before the first error is asked for
        gradient_of = partial(
            GradientStatistics,
            kept=kept,
            prompts_per_batch=self.error_prompts,
            reference=reference.moments,
            target=target.moments,
            reference_on_target=self._cross(reference.moments, target.moments),
            known_coefficient=self._known_coefficient(estimator, reference_estimator, weighted, reference),
            known_scale=1.0 if weighted is target and not dealt else self._known_scale(estimator),
            is_multiple=not dealt and multiple_of(weighted.weights, target.weights) is not None,
        )
        if dealt:
            closed = self._closed(weighted.moments, target.moments)
            return partial(self._batch_level_row, estimator, weighted, target.moments, closed, gradient_of)
        moments = weighted.moments
        assert moments is not None
        gradient = gradient_of(
            on_target=self._cross(moments, target.moments),
            trace_cov=moments.trace_cov,
            second_moment=moments.second_moment,
            signal=moments.signal,
            within=moments.within,
            signal_parts=moments.components,
            completions=moments.completions,
        )
        return lambda: row_of(estimator.label, gradient, signal_parts=moments.components)

    def _cross(self, first: PromptMoments | None, second: PromptMoments | None) -> Statistic | None:
        return None if first is None or second is None else cross_signal(first, second, self.sketch_error)

    def _require_two_batches(self, estimator: Weighting) -> None:
        n_prompts = self.groups.n_prompts
        if 1 <= self.batch_prompts <= n_prompts // 2:
            return
        needs = f"{estimator.label} is a batch-level estimator, whose variance needs two disjoint batches"
        if not estimator.across_groups:
            needs = "max_grad_norm clips gradients of batches, whose variance needs two disjoint ones"
        raise ValueError(
            f"prompts_per_batch={self.batch_prompts} must be between 1 and half the {n_prompts} prompts here: {needs}"
        )

    def _batch_level_row(
        self,
        estimator: Weighting,
        weighted: Weighted,
        target: PromptMoments | None,
        closed: list[Statistic],
        gradient_of: Callable[..., GradientStatistics],
    ) -> EstimatorVariance:
        """Estimate a batch-level row: all completions as one batch, and what dealt batches have beyond it."""
        size, rng = self.batch_prompts, np.random.default_rng(self.deal_seed)
        fixed = weighted.weights
        if weighted.moments is None:
            fixed = np.zeros_like(fixed)

        def weights_of(rows: Int[np.ndarray, " rows"]) -> np.ndarray:
            # Those of a group do not depend on the batch.
            return self.weights(estimator, rows) if estimator.across_groups else of_rows(fixed, rows)

        others, scores = () if target is None else (target,), self.scores_of(estimator)
        dealt = DealtDifferences(weights_of, fixed, scores, self.groups, size, rng, others, max_norm=self.max_grad_norm)
        most = _MOST_DEALS
        if estimator.across_groups:
            most = min(most, max(_FEWEST_DEALS, MOST_WEIGHTED_BATCHES * size // self.groups.n_prompts))
        while True:
            more = self.n_resamples or min(max(_FEWEST_DEALS, dealt.n_deals), most - dealt.n_deals)
            for prompts in shuffled_deals(rng, self.groups.n_prompts, size, more):
                dealt.add(prompts)
            kept = dealt.kept_share
            if not kept.any():
                return row_without_gradient(estimator.label, kept)
            second, signal, *crosses = dealt.added_to(closed)
            gradient = gradient_of(
                trace_cov=(second - signal).scaled(float(size)),
                # E‖G‖² of a batch is that of a group over B, plus (1 − 1/B)‖E g‖².
                second_moment=second.scaled(float(size)) - signal.scaled(size - 1.0),
                signal=signal,
                on_target=next(iter(crosses), None),
                kept=kept,
                prompts_per_batch=size,
                completions=np.inf if weighted.moments is None else weighted.moments.completions,
            )
            left = share_of_deals(gradient)
            if self.n_resamples or dealt.n_deals >= most or left <= SMALL_DEAL_SHARE:
                clipped = np.nan if self.max_grad_norm is None else dealt.clipped_share
                about = {"n_deals": dealt.n_deals, "share_of_deals": left, "clipped_share": clipped}
                return row_of(estimator.label, gradient, **about)

    def _closed(self, moments: PromptMoments | None, target: PromptMoments | None) -> list[Statistic]:
        """E‖G‖² of a batch, ‖E g‖² and ⟨E g, G⟩ of weights that are fixed before completions are dealt into batches."""
        if moments is None:
            return [Statistic(0.0, np.zeros(self.groups.n_prompts))] * (2 if target is None else 3)
        size = float(self.batch_prompts)
        # E‖G‖² = E‖g‖²/B + (1 − 1/B)‖E g‖².
        second = moments.second_moment.scaled(1.0 / size) + moments.signal.scaled(1.0 - 1.0 / size)
        cross = self._cross(moments, target)
        return [second, moments.signal, *([] if cross is None else [cross])]

    def _known_scale(self, estimator: Weighting) -> float | None:
        """Return E[ĝ] over ∇J, where it is known and the same at every size here: on-policy only."""
        if not self.on_policy or self.max_grad_norm is not None:
            return None
        scales = {estimator.expected_scale(int(size)) for size in self.groups.sizes}
        return scales.pop() if len(scales) == 1 else None

    def _known_coefficient(
        self, estimator: Weighting, reference_estimator: Weighting, weighted: Weighted, reference: Weighted
    ) -> float | None:
        """Return E[ĝ] of one over E[ĝ] of the other, where it is known exactly.

        Where the weights of one are a multiple of the other's, it is that number whatever the completions. Otherwise
        both have to be known multiples of ∇J at every size here, which holds for completions drawn from the scored
        policy.
        """
        if self.max_grad_norm is not None:  # the scale of the clipped gradient is not that of the estimator
            return None
        if not estimator.across_groups:
            multiple = multiple_of(weighted.weights, reference.weights)
            if multiple is not None:
                return multiple
        if not self.on_policy:
            return None
        sizes = {int(size) for size in self.groups.sizes}
        scales = {(estimator.expected_scale(size), reference_estimator.expected_scale(size)) for size in sizes}
        scale, of_reference = scales.pop() if len(scales) == 1 else (None, None)
        return None if scale is None or not of_reference else scale / of_reference


def _token_weights(estimator: Weighting, batch: Batch) -> np.ndarray:
    weights = estimator.weights(batch)
    return np.where(batch.mask, weights[:, None], 0.0) if weights.ndim == 1 else weights


def multiple_of(weights: np.ndarray, of: np.ndarray) -> float | None:
    """Return the factor between two sets of weights; None where they are not proportional."""
    if weights.shape != of.shape or not (np.isfinite(weights).all() and np.isfinite(of).all()) or not of.any():
        return None
    largest = np.unravel_index(np.argmax(np.abs(of)), of.shape)
    factor = float(weights[largest] / of[largest])
    if not np.allclose(weights, factor * of, rtol=1e-12, atol=1e-14 * float(np.abs(weights).max())) or factor == 0.0:
        return None
    return factor
