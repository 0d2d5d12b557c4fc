"""The same completions in groups of several sizes, whose statistics can be combined prompt by prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int

from gradstats.estimators.estimator import Weighting
from gradstats.stats.jackknife import Statistic
from gradstats.stats.variance.comparison_inputs import ComparisonInputs
from gradstats.stats.variance.group_moments import PromptMoments, cross_signal, shuffled_prompts, split_into_groups
from gradstats.stats.variance.notes import why_silent
from gradstats.stats.variance.pooled_completions import PooledCompletions
from gradstats.stats.variance.score_vectors import Scores
from gradstats.stats.variance.sketch_error import SketchError
from gradstats.stats.variance.target import TargetChoice, target_of


@dataclass(frozen=True)
class PoolsBySize:
    """Completions of the prompts that have enough of them, to be put into groups of any size.

    Prompts keep their numbers and scores their coordinates at every size, so that statistics of different sizes are
    paired, with the error of one sketch.

    Attributes:
        inputs: all completions.
        judged: what estimators are judged against.
        order: (n,) positions of the kept completions in sample order.
        prompts: (n,) their prompts, numbered at random.
        scores: their scores in few coordinates; None where scores of tokens are taken from the inputs for each size.
        sketch_error: estimates the sketch's error in these coordinates.
    """

    inputs: ComparisonInputs
    judged: TargetChoice
    order: Int[np.ndarray, " n"]
    prompts: Int[np.ndarray, " n"]
    scores: Scores | None
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
        return PooledCompletions(
            batch=self.inputs.batch.select(rows).with_fields(groups=groups.group),
            groups=groups,
            scores=self.inputs.prepared(rows) if self.scores is None else _rows_of(self.scores, groups.rows),
            sketch_error=self.sketch_error,
            prompts_per_batch=None,
            n_resamples=1,
            deal_seed=0,
            prompt_labels=np.zeros(0),
            on_policy=self.on_policy,
        )


def pools_by_size(
    inputs: ComparisonInputs, judged: TargetChoice, enough: Bool[np.ndarray, " prompts"], rng: np.random.Generator
) -> PoolsBySize:
    """Keep the completions of some prompts.

    Args:
        inputs: all completions.
        judged: what estimators are judged against.
        enough: which prompts.
        rng: numbers the prompts, and draws the directions of the sketch's error.
    """
    order = inputs.order[enough[inputs.batch.group_index[inputs.order]]]
    sketch_error = inputs.sketch_error(int(enough.sum()), rng)
    prompts = shuffled_prompts(inputs.batch.group_index[order], rng)
    scores = None
    if inputs.scores.ndim == 2 and inputs.probed is None and not inputs.combined:
        scores, sketch_error = inputs.in_coordinates(order, sketch_error)
    return PoolsBySize(inputs, judged, order, prompts, scores, sketch_error)


def moments_of(pool: PooledCompletions, estimator: Weighting) -> PromptMoments:
    """Return the moments of an estimator that gives some completion a weight.

    Raises:
        ValueError: for one that gives none any.
    """
    moments = pool.local(estimator).moments
    if moments is None:
        size = int(pool.groups.sizes[0])
        raise ValueError(
            f"{estimator.label} gives no completion any weight in groups of {size}, since {why_silent(pool)}"
        )
    return moments


def coefficient_on_target(pool: PooledCompletions, moments: PromptMoments, judged: TargetChoice) -> Statistic | None:
    """Return ⟨E g, G⟩/‖G‖² with G the target; None where it is not resolved above 0, or nothing can be judged."""
    target = target_of(pool, judged).weighted.moments
    if target is None:
        return None
    along = cross_signal(moments, target, pool.sketch_error)
    if not min(one.estimate().confidence_interval()[0] for one in (along, target.signal)) > 0:
        return None
    return along / target.signal


def _rows_of(scores: Scores, rows: Int[np.ndarray, " rows"]) -> Scores:
    surplus = None if scores.surplus_sq is None else scores.surplus_sq[rows]
    return replace(scores, sequence=scores.sequence[rows], surplus_sq=surplus)
