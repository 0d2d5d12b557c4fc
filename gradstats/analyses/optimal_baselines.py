"""How much could any cheap baseline still gain?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy
from jaxtyping import Float, Int

from gradstats import estimators as families
from gradstats.analyses.declaration import Analysis, AnalysisFigure, Column, chosen, missing_sketches, size_of_groups
from gradstats.analyses.numbers import format_estimate, minimiser_with_interval, percent, percentage, percentage_at_most
from gradstats.analyses.results import RemarkedResult
from gradstats.analyses.variance import COLUMNS, VarianceComparison, compare_at_group_size
from gradstats.analyses.variance_notes import why_silent
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.config.options import Target as AskedTarget
from gradstats.estimators import Batch
from gradstats.estimators.baselines.grouping import unbiased
from gradstats.estimators.baselines.weighted import FITTED_ELSEWHERE
from gradstats.estimators.estimator import SEQUENCE_SUM, Level, Weighting
from gradstats.plots.variance import plot_variance
from gradstats.stats.intervals import FEWEST_CARRIERS, FiellerRatio, carriers_of, fieller_ratio
from gradstats.stats.jackknife import Statistic, influential_prompts, require_level, satterthwaite_degrees
from gradstats.stats.protocols import MeasuredGradients
from gradstats.stats.variance.inputs import pooled, prepared_inputs
from gradstats.stats.variance.minimiser import Minimiser, minimiser_of
from gradstats.stats.variance.moments import shuffled_prompts, split_into_groups
from gradstats.stats.variance.pools import PooledCompletions
from gradstats.system.lazy_imports import pd

if TYPE_CHECKING:
    from gradstats.config.experiment import Experiment

#: Exponents through whose variances a curve is drawn, and points of it between neighbours.
EXPONENTS = tuple(0.1 * step - 1.0 for step in range(31))
_STEPS_OF_LEARNED_BASELINES = 16
# Difference of variances, relative to the largest of a form, that counts as rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class LearnedBaseline:
    """A baseline with parameters for each prompt, on the completions on which they were chosen."""

    label: str
    names: tuple[str, ...]  # of its parameters
    parameters: Float[np.ndarray, "m k"] = field(repr=False, compare=False)  # of each prompt, chosen on the others
    given: Float[np.ndarray, " n"] = field(repr=False, compare=False)  # weights of the completions
    # The parameter of lowest variance on all prompts, with the interval of the true one; None for several parameters.
    optimum: Minimiser | FiellerRatio | None = field(default=None, repr=False, compare=False)
    # As of any estimator; what it takes from other prompts is fixed.
    level: Level = "sequence"
    needs: tuple[str, ...] = ()
    across_groups: bool = False
    unit: str = SEQUENCE_SUM

    @property
    def name(self) -> str:
        """Its label."""
        return self.label

    def expected_scale(self, group_size: int) -> float | None:
        """Return 1, as for every leave-one-out baseline."""
        return unbiased(group_size, {"singleton": "zero"})

    def weights(self, batch: Batch) -> Float[np.ndarray, " n"]:
        """Return the weights of all completions that it was learned on."""
        if batch.rewards.size != self.given.size:
            raise ValueError(f"{self.label} has weights for {self.given.size} completions, got {batch.rewards.size}")
        return self.given

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval of the parameter of lowest variance; NaN where there are several, or it is not known.

        Where the slope of the variance is compatible with 0: for the exponent as in
        :class:`gradstats.stats.variance.minimiser.Minimiser`, cut to the exponents that were tried; for the shift
        Fieller's set, which may be unbounded.
        """
        require_level(confidence_level)
        if isinstance(self.optimum, FiellerRatio):
            return self.optimum.within(confidence_level, -np.inf, np.inf)
        return (np.nan, np.nan) if self.optimum is None else self.optimum.confidence_interval(confidence_level)

    def described(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """Return the mean of each parameter over prompts, with its interval, or else with its range over prompts."""
        means, lows, highs = (operation(self.parameters, axis=0) for operation in (np.mean, np.min, np.max))
        low, high = self.confidence_interval(confidence_level)
        if np.isfinite(low) or np.isfinite(high):
            tried = self.optimum.values if isinstance(self.optimum, Minimiser) else (-np.inf, np.inf)
            return f"{self.names[0]} {minimiser_with_interval(means[0], low, high, tried)}"
        return ", ".join(
            f"{name} {mean:.3g}" + (f" ({low:.3g} to {high:.3g})" if low < high else "")
            for name, mean, low, high in zip(self.names, means, lows, highs, strict=True)
        ).replace("-", "−")


def variance_with(pool: PooledCompletions, weights: Float[np.ndarray, " n"]) -> Statistic:
    """Return tr Cov of the gradient with these weights, whose replicates are those of the other prompts."""
    moments = pool.local(LearnedBaseline("candidate", (), np.empty((0, 0)), weights)).moments
    if moments is None:
        raise ValueError(f"a baseline cannot be learned here, since every completion has weight 0: {why_silent(pool)}")
    return moments.trace_cov


def _prompts(pool: PooledCompletions) -> Int[np.ndarray, " n"]:
    """Return the prompt of each completion."""
    return pool.groups.prompt[pool.groups.group]


def learned_exponent(pool: PooledCompletions) -> LearnedBaseline:
    r"""Return length weights :math:`T^{2α}` with the α of lowest variance on the other prompts.

    :math:`α_m` is the lowest point, between −1 and 2, of the cubic spline through the variances without prompt m.
    """
    variances = [
        variance_with(pool, families.length_weighted(alpha=one, loo=True).weights(pool.batch)) for one in EXPONENTS
    ]
    points = np.linspace(EXPONENTS[0], EXPONENTS[-1], _STEPS_OF_LEARNED_BASELINES * (len(EXPONENTS) - 1) + 1)
    curve = scipy.interpolate.CubicSpline(EXPONENTS, np.stack([one.replicates for one in variances]))
    chosen = points[np.argmin(curve(points), axis=0)]
    by_row = chosen[_prompts(pool)]
    # The exponents are given, so that norms, from which they would be fitted, do not matter.
    given = pool.batch.with_fields(
        columns={**pool.batch.columns, FITTED_ELSEWHERE: by_row}, sq_norms=np.ones(len(by_row))
    )
    weights = families.length_weighted(alpha="within_prompt", loo=True).weights(given)
    optimum = minimiser_of(EXPONENTS, variances)
    return LearnedBaseline("learned exponent", ("alpha",), chosen[:, None], weights, optimum)


def learned_shift(pool: PooledCompletions) -> LearnedBaseline:
    r"""Return the leave-one-out mean plus the shift δ of lowest variance on the other prompts.

    The variance without prompt m is a parabola :math:`a + bδ + cδ²`, known from three shifts; :math:`δ_m = -b/2c`.
    """
    unit = float(np.abs(pool.batch.rewards).max()) or 1.0

    def weights_at(delta: float | np.ndarray) -> np.ndarray:
        plain = families.rloo().weights(pool.batch)
        sizes = pool.batch.group_sizes[pool.batch.group_index]
        return np.where(sizes == 1, plain, plain - delta / sizes)

    below, middle, above = (variance_with(pool, weights_at(delta)) for delta in (-unit, 0.0, unit))
    # −b and 2c, of δ in units of the largest reward.
    descent, curvature = (below - above).scaled(0.5), above + below - middle.scaled(2.0)
    lowest = np.zeros_like(descent.replicates)
    np.divide(descent.replicates, curvature.replicates, out=lowest, where=curvature.replicates > 0)
    chosen = unit * lowest
    optimum = fieller_ratio(descent.scaled(unit), curvature)
    # As of the slope of any curve, at its lowest point.
    of_error = satterthwaite_degrees(influential_prompts(optimum.influence), len(chosen))
    optimum = replace(optimum, degrees=min(optimum.degrees, float(of_error)))
    return LearnedBaseline("learned shift", ("delta",), chosen[:, None], weights_at(chosen[_prompts(pool)]), optimum)


def learned_mixture(pool: PooledCompletions) -> LearnedBaseline:
    r"""Return the shifted mixture of three leave-one-out means that has the lowest variance on the other prompts.

    The baseline is :math:`\sum_k p_k b_k + δ` with shares :math:`p_k ≥ 0` that sum to 1 of the mean of the group's
    other completions, the same weighted by length, and the mean over the completions of all other prompts. The variance
    without prompt m is a quadratic form of p and δ, known from the three means, the shift alone, and their halves in
    pairs.
    """
    batch, prompts = pool.batch, _prompts(pool)
    sums = np.bincount(prompts, weights=batch.rewards)
    counts = np.bincount(prompts)
    of_others = (sums.sum() - sums) / np.maximum(counts.sum() - counts, 1)
    sizes = batch.group_sizes[batch.group_index]
    beside = np.where(sizes == 1, 0.0, (batch.rewards - of_others[prompts]) / sizes)
    plain, by_length = (one.weights(batch) for one in (families.rloo(), families.token_mean(loo=True)))
    unit = float(np.abs(batch.rewards).max()) or 1.0
    parts = np.stack([plain, by_length, beside, np.where(sizes == 1, 0.0, -unit / sizes)])
    n_parts = len(parts)
    form = np.empty((pool.groups.n_prompts, n_parts, n_parts))
    for at in range(n_parts):
        form[:, at, at] = variance_with(pool, parts[at]).replicates
    for first, second in combinations(range(n_parts), 2):
        half = variance_with(pool, (parts[first] + parts[second]) / 2.0).replicates
        form[:, first, second] = form[:, second, first] = (
            2.0 * half - (form[:, first, first] + form[:, second, second]) / 2
        )
    chosen = lowest_shifted_shares(form)
    weights = np.einsum("nk,kn->n", chosen[prompts], parts)
    return LearnedBaseline(
        "learned mixture", ("group", "token", "batch", "shift"), chosen * [1.0, 1.0, 1.0, unit], weights
    )


def lowest_shifted_shares(form: Float[np.ndarray, "m k k"]) -> Float[np.ndarray, "m k"]:
    """Return the shares p ≥ 0, Σp = 1, and last the δ of either sign, at which each quadratic form is lowest.

    At its lowest δ = −qᵀp/c the form [[Q, q], [qᵀ, c]] is pᵀ(Q − qqᵀ/c)p.
    """
    of_shift, curvature = form[:, :-1, -1], form[:, -1, -1]
    per_share = np.divide(of_shift, curvature[:, None], out=np.zeros_like(of_shift), where=curvature[:, None] > 0)
    shares = lowest_shares(form[:, :-1, :-1] - per_share[:, :, None] * of_shift[:, None, :])
    return np.column_stack([shares, -(per_share * shares).sum(axis=1)])


def lowest_shares(form: Float[np.ndarray, "m k k"]) -> Float[np.ndarray, "m k"]:
    """Return the shares p ≥ 0, Σp = 1, at which each quadratic form pᵀQp is lowest.

    For every set of shares that may differ from 0 the lowest point on their plane is Q⁻¹1, scaled; the lowest of those
    that are not negative is the answer. Of several that are equal but for rounding it is that of the fewest and first
    shares.
    """
    m, k = form.shape[:2]
    best, shares = np.full(m, np.inf), np.zeros((m, k))
    shares[:, 0] = 1.0
    rounding = _ROUNDING * np.abs(form).max(axis=(1, 2))
    for size in range(1, k + 1):
        for kept in map(list, combinations(range(k), size)):
            inner = form[:, kept][:, :, kept]
            solved = np.linalg.pinv(inner, hermitian=True).sum(axis=2)
            total = solved.sum(axis=1, keepdims=True)
            found = np.divide(solved, total, out=np.full_like(solved, np.nan), where=total != 0)
            value = np.einsum("mi,mij,mj->m", found, inner, found)
            better = (found >= 0).all(axis=1) & (value < best - np.where(np.isinf(best), 0.0, rounding))
            best[better] = value[better]
            shares[better] = 0.0
            shares[np.ix_(better, kept)] = found[better]
    return shares


def learned_baselines(pool: PooledCompletions) -> list[LearnedBaseline]:
    """Return the learned exponent, shift and mixture."""
    return [learn(pool) for learn in (learned_exponent, learned_shift, learned_mixture)]


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
_FEWEST_PROMPTS = 4
_ON_POLICY = "the gradient of what was drawn (target='on_policy')"
_OF_ANOTHER_POLICY = (
    "leave-one-out baselines are biased for completions of another policy: measure on-policy, or judge against "
    f"{_ON_POLICY}"
)
_OF_WHAT_WAS_DRAWN = (
    "leave-one-out baselines have no importance weights, so that target='importance' does not judge them: judge "
    f"against {_ON_POLICY}"
)
_RATIO_ENDS = ("", "_low", "_high", "_simultaneous_low", "_simultaneous_high")


@dataclass(frozen=True, repr=False)
class OptimalBaselines(RemarkedResult):
    r"""Learned baselines beside published ones and the oracle; ``.to_frame()`` is the table.

    A prompt m has the parameters :math:`\hat β_m = \arg\min_β V_{(m)}(β)`, with the variance of the others.

    Attributes:
        learned: the learned baselines, with their parameters for each prompt.
        to_oracle: all of them, with ratios to the oracle.
        to_learned: the same, with ratios to the learned baseline of lowest variance.
    """

    question: ClassVar[str] = "optimal_baselines"

    printed_columns: ClassVar[tuple[str, ...]] = ("estimator", "kind", "parameters", "ratio", "ratio_to_learned")

    learned: tuple[LearnedBaseline, ...]
    to_oracle: VarianceComparison
    to_learned: VarianceComparison

    @property
    def best(self) -> str:
        """Label of the learned baseline of lowest variance."""
        return self.to_learned.reference

    @property
    def remarks(self) -> tuple[str, ...]:
        """What may be said of the table."""
        return self.to_oracle.remarks

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
        """State the most that a learned baseline gains over RLOO, and what the oracle's variance is beside it."""
        frame = self.to_frame(confidence_level).set_index("estimator")
        ends = ("", "_simultaneous_low", "_simultaneous_high")  # those of the table below the sentence
        beside = {
            label: [float(frame.loc[label, f"ratio_to_learned{end}"]) for end in ends]
            for label in ("rloo", ORACLE)
            if label in frame.index
        }
        answer = f"The best learned baseline is the {self.best}"
        if "rloo" in beside:
            gain, least, most = (1.0 - 1.0 / ratio if ratio else -np.inf for ratio in beside["rloo"])
            noise = next(row.trace_cov for row in self.to_oracle.rows if row.label == "rloo")
            if carriers_of(noise) < FEWEST_CARRIERS:
                # What was learned on a sample without the prompts that carry the variance loses on others.
                answer = f"Too few prompts carry the variance to learn from: the {self.best} may lose to rloo"
            elif least > 0:
                answer = f"The {self.best} saves {percentage(gain, least, most)} of the variance of rloo"
            else:
                bound = percentage_at_most(max(most, 0.0))
                answer = f"No learned baseline is shown to beat rloo: the {self.best} saves at most {bound}"
        if ORACLE in beside:
            learned = self.best.removeprefix("learned ")
            answer += f"; the oracle has {format_estimate(*beside[ORACLE])} times the variance of the {learned}"
        return f"{answer}."


def optimal_baselines(
    measured_or_batch: Batch | MeasuredGradients,
    scores: npt.ArrayLike | None = None,
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
    shifted mixture of three leave-one-out means (of the group, of the group weighted by length, of all other prompts).
    Each prompt's parameters minimise the variance of the gradient on all *other* prompts,
    :math:`\hat β_m = \arg\min_β V_{(m)}(β)` with :math:`V_{(m)} = \mathrm{tr\,Cov}` without prompt m, so that the
    choice costs no bias:
    they do not depend on the prompt's own completions. Beside them stand published baselines and the oracle
    ``norm_weighted(loo=True)``, whose weights are the measured squared norms. Intervals of variances and ratios take
    what was learned as given; the best exponent and the best shift have intervals of their own
    (:meth:`LearnedBaseline.confidence_interval`). Where fewer than 15 prompts carry the variance
    (:func:`gradstats.stats.intervals.prompts_that_carry`) no gain is stated: in simulations the mixture then lost.

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
        raise ValueError(_OF_WHAT_WAS_DRAWN if judged.agree else _OF_ANOTHER_POLICY)
    inputs.batch.require(("sq_norms",), ORACLE)
    groups = split_into_groups(shuffled_prompts(inputs.batch.group_index, generator), inputs.order, group_size)
    if groups.n_prompts < _FEWEST_PROMPTS:
        raise ValueError(
            f"learning on the other prompts needs at least {_FEWEST_PROMPTS} prompts, got {groups.n_prompts}: measure "
            "more"
        )
    pool = pooled(inputs, groups, chosen, generator.spawn(1)[0], judged, prompts_per_batch, n_resamples)
    learned = learned_baselines(pool)
    rows: list[Weighting] = [*learned, *chosen]
    best = min(learned, key=lambda one: variance_with(pool, one.given).value)
    tables = []
    for reference in (chosen[-1], best):
        table, warned = compare_at_group_size(inputs, pool, rows, reference, judged)
        tables.append(replace(table, remarks=(*warned, *table.remarks)))
    return OptimalBaselines(tuple(learned), *tables)


def _caption(frame: pd.DataFrame) -> str:
    about = frame.attrs
    return (
        f"Variance of leave-one-out baselines{size_of_groups(frame, ' in groups of ')} over that of the oracle, "
        f"{about.get('reference')}, which knows the measured norms and is no bound, and over that of the "
        f"{about.get('best_learned')}; {percent(about.get('confidence_level', np.nan))} intervals hold for all rows at "
        f"once, over {about.get('n_prompts')} prompts."
    )


def _row_name(row: dict[str, Any]) -> str:
    learned = row["parameters"]
    if isinstance(learned, str) and learned:  # a text that is empty is missing in a file
        return f"{row['estimator']}: {learned}"
    return f"{row['estimator']} ({row['kind']})"


def _for_all_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame whose ratios have the intervals that hold for all rows at once."""
    ends = [f"{name}{{}}_{end}" for name in ("ratio", "ratio_to_learned") for end in ("low", "high")]
    return frame.assign(**{end.format(""): frame[end.format("_simultaneous")] for end in ends})


def _unanswerable(experiment: Experiment, settings: Mapping[str, Any]) -> str:
    """Return why a run cannot find them, whatever it draws."""
    target, per_batch = (
        settings.get(name, getattr(experiment.variance, name)) for name in ("target", "prompts_per_batch")
    )
    n_prompts = experiment.prompts.n
    if target == "importance":
        return _OF_WHAT_WAS_DRAWN
    if per_batch is not None and n_prompts is not None and per_batch > n_prompts // 2:
        return (
            f"prompts_per_batch is {per_batch}, and batch-level baselines need two batches of the {n_prompts} prompts: "
            f"choose at most {n_prompts // 2}"
        )
    return ""


ANALYSIS = Analysis(
    name="optimal_baselines",
    ask=optimal_baselines,
    unavailable_because=missing_sketches,
    unanswerable_because=_unanswerable,
    options=("group_size", "target", "prompts_per_batch", "n_resamples", "rng"),
    columns=(
        Column("kind", "learned, published or oracle"),
        Column("parameters", "what was learned, with its range"),
        *(
            replace(one, meaning="variance over that of the oracle") if one.name == "ratio" else one
            for one in chosen(COLUMNS, {"ratio": "over oracle"}, short=("ratio",))
        ),
        Column("ratio_to_learned", "variance over that of the best learned baseline", "over best learned", short=True),
        Column("ratio_to_learned_simultaneous", "its interval that holds for all rows at once"),
    ),
    display_frame=_for_all_rows,
    row_heading="baseline",
    row_name=_row_name,
    caption=_caption,
    figures=(
        AnalysisFigure(
            "optimal_baselines",
            "Variance of learned and published baselines over that of the oracle, which knows measured norms and is "
            "no bound; thin bars hold for all rows at once.",
            partial(plot_variance, value="ratio"),
        ),
    ),
)
