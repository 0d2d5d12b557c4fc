"""How far published baselines are from the best that can be learned, and from the oracle of measured norms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from gradstats import estimators as families
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.config.options import Target as AskedTarget
from gradstats.estimators import Batch
from gradstats.estimators.estimator import Weighting
from gradstats.stats.measured import MeasuredGradients
from gradstats.stats.printed import Printed
from gradstats.stats.variance.comparison import compared, pooled, prepared_inputs
from gradstats.stats.variance.minimiser import LearnedBaseline, learned_baselines, variance_with
from gradstats.stats.variance.moments import shuffled_prompts, split_into_groups
from gradstats.stats.variance.result import VarianceComparison

#: The baseline with the measured squared norms of all completions as weights.
ORACLE = "norm_weighted(loo=True)"
#: Published baselines that are compared by default, all without bias.
PUBLISHED = (
    "rloo",
    "token_mean(loo=True)",
    "length_weighted(alpha=within_prompt, loo=True)",
    "asymmetric(delta=-0.1, loo=True)",
    "batch_mean(loo=True)",
    "james_stein",
)
#: Prompts below which nothing can be learned on the others.
FEWEST_PROMPTS = 4
_RATIO_ENDS = ("", "_low", "_high", "_simultaneous_low", "_simultaneous_high")


@dataclass(frozen=True, repr=False)
class OptimalBaselines(Printed):
    r"""Learned baselines beside published ones and the oracle; ``.to_frame()`` is the table.

    A prompt m has the parameters :math:`\hat β_m = \arg\min_β V_{(m)}(β)`, with the variance of the others.

    Attributes:
        learned: the learned baselines, with their parameters for each prompt.
        to_oracle: all of them, with ratios to the oracle.
        to_learned: the same, with ratios to the learned baseline of lowest variance.
    """

    printed_columns: ClassVar[tuple[str, ...]] = ("estimator", "kind", "parameters", "ratio", "ratio_to_learned")

    learned: tuple[LearnedBaseline, ...]
    to_oracle: VarianceComparison
    to_learned: VarianceComparison

    @property
    def best(self) -> str:
        """Label of the learned baseline of lowest variance."""
        return self.to_learned.reference

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the table has to know."""
        return self.to_oracle.notes

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per baseline: the columns of :func:`gradstats.compare`, with ratios to the oracle, and more.

        ``kind`` is ``"learned"``, ``"published"`` or ``"oracle"``; ``parameters`` states what was learned, as the mean
        over prompts, with the interval of the best exponent and shift and the range of the shares;
        ``ratio_to_learned`` is the variance over that of the best learned baseline, which ``.attrs["best_learned"]``
        names; ``ratio_to_learned_simultaneous_low`` and ``_high`` hold for all rows at once, as do those of ``ratio``.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        frame = self.to_oracle.to_frame(confidence_level)
        beside = self.to_learned.to_frame(confidence_level)
        described = {one.label: one.described(confidence_level) for one in self.learned}
        labels = [str(label) for label in frame["estimator"]]
        kinds = ["oracle" if one == ORACLE else "learned" if one in described else "published" for one in labels]
        frame.insert(1, "kind", kinds)
        frame.insert(2, "parameters", [described.get(label, "") for label in labels])
        for end in _RATIO_ENDS:
            frame[f"ratio_to_learned{end}"] = beside[f"ratio{end}"]
        frame.attrs["best_learned"] = self.best
        return frame

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State the most that a learned baseline gains, and what the oracle would gain beyond."""
        frame = self.to_frame(confidence_level).set_index("estimator")
        parameters = frame.loc[self.best, "parameters"]
        text = f"The best learned baseline is the {self.best}, {parameters}"
        for label, what in (("rloo", "that of rloo is"), (ORACLE, "that of the oracle")):
            if label in frame.index:
                value, low, high = (float(frame.loc[label, f"ratio_to_learned{end}"]) for end in ("", "_low", "_high"))
                text += f"{': relative to its variance' if label == 'rloo' else ' and'} {what} "
                text += f"{value:.3g} [{low:.3g}, {high:.3g}]"
        return f"{text}."


def optimal_baselines(
    measured_or_batch: Batch | MeasuredGradients,
    scores: ArrayLike | None = None,
    group_size: int | None = None,
    *,
    published: Sequence[str | Weighting] = PUBLISHED,
    prompts_per_batch: int | None = None,
    n_resamples: int | None = None,
    rng: int | np.random.Generator | None = 0,
    target: AskedTarget = "auto",
    scores_are_sketches: bool | None = None,
) -> OptimalBaselines:
    r"""Find the most that a cheap baseline could gain here, and how far published ones are from it.

    Three baselines are learned: the exponent of length weights, a constant shift of the leave-one-out mean, and the
    mixture of three leave-one-out means (of the group, of the group weighted by length, of all other prompts). Each
    prompt's parameters minimise the variance of the gradient on all *other* prompts,
    :math:`\hat β_m = \arg\min_β V_{(m)}(β)` with :math:`V_{(m)} = \mathrm{tr\,Cov}` without prompt m, so that the
    choice costs no bias:
    they do not depend on the prompt's own completions. Beside them stand published baselines and the oracle
    ``norm_weighted(loo=True)``, whose weights are the measured squared norms. Intervals of variances and ratios take
    what was learned as given; the best exponent and the best shift have intervals of their own
    (:meth:`gradstats.stats.variance.minimiser.LearnedBaseline.confidence_interval`).

    Args:
        measured_or_batch: a measurement, or a :class:`gradstats.estimators.Batch` with ``sq_norms`` and ``scores``.
        scores: as for :func:`gradstats.compare`.
        group_size: completions of a group; all of a prompt by default.
        published: labels of the baselines to compare.
        prompts_per_batch: prompts of a batch, for the batch-level ones among these.
        n_resamples: how often the prompts are dealt into batches for these.
        rng: seed of the comparison, or a generator.
        target: as for :func:`gradstats.compare`; only completions of the scored policy are taken.
        scores_are_sketches: as for :func:`gradstats.compare`.

    Returns:
        An :class:`OptimalBaselines`.

    Raises:
        TypeError: as :func:`gradstats.compare`.
        ValueError: off-policy, where these baselines are biased; for fewer than 4 prompts; without squared norms;
            where every completion has weight 0; otherwise as :func:`gradstats.compare`.
    """
    generator = np.random.default_rng(rng)
    asked = [families.get(one) for one in (*published, ORACLE)]
    inputs, chosen, judged = prepared_inputs(measured_or_batch, asked, scores, scores_are_sketches, target)
    if judged.kind == "importance":
        raise ValueError(
            "leave-one-out baselines are biased for completions of another policy: measure on-policy, or judge against "
            "the gradient of what was drawn (target='on_policy')"
        )
    inputs.batch.require(("sq_norms",), ORACLE)
    groups = split_into_groups(shuffled_prompts(inputs.batch.group_index, generator), inputs.order, group_size)
    if groups.n_prompts < FEWEST_PROMPTS:
        raise ValueError(
            f"learning on the other prompts needs at least {FEWEST_PROMPTS} prompts, got {groups.n_prompts}: measure "
            "more"
        )
    pool = pooled(inputs, groups, chosen, generator, prompts_per_batch, n_resamples, judged)
    learned = learned_baselines(pool)
    rows: list[Weighting] = [*learned, *chosen]
    best = min(learned, key=lambda one: variance_with(pool, one.given).value)
    tables = []
    for reference in (chosen[-1], best):
        split, found, warned, remarks, differences, labels = compared(pool, rows, reference, judged)
        tables.append(
            VarianceComparison(
                rows=tuple(found),
                splits=(split,),
                reference=reference.label,
                prompts_per_batch=pool.error_prompts,
                sketch_dim=inputs.scores.shape[-1] if inputs.sketched else None,
                target=judged,
                metric=inputs.metric,
                notes=(*warned, *remarks),
                differences=(differences,),
                prompt_labels=(labels,),
            )
        )
    return OptimalBaselines(tuple(learned), *tables)
