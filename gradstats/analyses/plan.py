"""How many prompts does a study need?"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import scipy

from gradstats.analyses.batch_size import batch_size
from gradstats.analyses.declaration import Analysis, Column
from gradstats.analyses.numbers import percent
from gradstats.analyses.points import load_points
from gradstats.analyses.printed import ReprMixin
from gradstats.analyses.results import Result
from gradstats.analyses.variance import VarianceComparison, compare, variance
from gradstats.config.options import CONFIDENCE_LEVEL, of_type
from gradstats.measurement.measurement import Measurement
from gradstats.stats.intervals import StudentisedEstimate
from gradstats.stats.jackknife import Estimate, require_level
from gradstats.stats.length_scaling.alpha import LengthScalingFit, fit_length_scaling
from gradstats.stats.prompt_plan import (
    ASSURANCE,
    prompts_for_factor,
    prompts_for_logarithm,
    prompts_for_slope,
)
from gradstats.stats.variance.alignment import CriticalBatch
from gradstats.stats.variance.quantities import FEW_PROMPTS, JUDGED, ScaledRatio
from gradstats.system.lazy_imports import pd

#: A ratio within this share of 1 counts as equal, where a pilot does not tell it from 1.
_EQUAL_WITHIN = 0.05
#: What can be planned: the ratio of variances, and the relative noise.
RATIOS = ("ratio", JUDGED.name)


@dataclass(frozen=True, kw_only=True, repr=False)
class PromptPlan(ReprMixin):
    """The size that a question takes; whole numbers, infinite where no size is enough.

    Attributes:
        goal: what is planned, with the level of its interval: that which takes so many prompts.
        aim: what the prompts do, in a few words: a verb and its object.
        asked: what was planned for, and what of the pilot it rests on: column → value, those of the goal alone.
        confidence_level: of the planned interval, and of the range of sizes.
        n_prompts: prompts needed, if the pilot's estimates are exactly right.
        n_prompts_low: lower end of the range of sizes that may be needed, as the pilot's estimates are uncertain.
        n_prompts_high: upper end of it.
        n_prompts_assured: prompts that are enough in 80 % of studies, over pilots and studies.
        completions_per_prompt: as in the pilot.
        tokens_per_completion: mean length in the pilot; NaN where it is not known.
        pilot_n_prompts: prompts of the pilot; None without one.
        seconds_per_token: of sampling and measuring, see :meth:`with_throughput`; NaN where it is not known.
        remarks: sentences on what else decides the size.
    """

    #: One number answers: that which is enough in 80 % of studies.
    printed_columns: ClassVar[tuple[str, ...]] = ("n_prompts_assured", "n_assured", "n_tokens", "confidence_level")

    goal: str
    aim: str
    asked: Mapping[str, Any]
    confidence_level: float
    n_prompts: int | float
    n_prompts_low: int | float
    n_prompts_high: int | float
    n_prompts_assured: int | float
    completions_per_prompt: float
    tokens_per_completion: float = math.nan
    pilot_n_prompts: int | None = None
    seconds_per_token: float = math.nan
    remarks: tuple[str, ...] = ()

    @property
    def n(self) -> int | float:
        """Completions of ``n_prompts``."""
        return self._completions(self.n_prompts)

    @property
    def n_assured(self) -> int | float:
        """Completions of ``n_prompts_assured``."""
        return self._completions(self.n_prompts_assured)

    @property
    def n_tokens(self) -> int | float:
        """Tokens of ``n_assured`` completions of the pilot's mean length."""
        return self.n_assured * self.tokens_per_completion

    @property
    def hours(self) -> int | float:
        """Hours that ``n_tokens`` take to sample and to measure, at the speed of a dry run."""
        return self.n_tokens * self.seconds_per_token / 3600.0

    def with_throughput(self, cost: Any) -> PromptPlan:
        """Return the same plan with its hours, from the tokens and seconds of a dry run."""
        seconds = cost.sampling_seconds + cost.measuring_seconds
        return replace(self, seconds_per_token=seconds / cost.n_tokens)

    def to_frame(self) -> pd.DataFrame:
        """Return a frame of one row: sizes, what was asked, and the cost."""
        sizes = {name: value for name, value in vars(self).items() if name not in ("goal", "aim", "asked", "remarks")}
        cost = {name: getattr(self, name) for name in ("n", "n_assured", "n_tokens", "hours")}
        return pd.DataFrame([{**sizes, **self.asked, **cost}])

    def sentence(self) -> str:
        """Put the answer in words: the size that is enough in 80 % of studies."""
        aim = f"{self.aim} in {ASSURANCE:.0%} of studies"
        if not np.isfinite(self.n_prompts_assured):
            low = f": at least {_count(self.n_prompts_low)}" if np.isfinite(self.n_prompts_low) else ""
            return f"The pilot is too small to say how many prompts {aim}{low}."
        cost = f"{_count(self.n_assured)} completions"
        if np.isfinite(self.n_tokens):
            rounded = round(self.n_tokens, 1 - math.floor(math.log10(self.n_tokens)))
            cost += f", {rounded:,.0f} tokens"
        if np.isfinite(self.hours):
            cost += f", {self.hours:.2g} hours"
        return f"{_count(self.n_prompts_assured)} prompts ({cost}) {aim}."

    def sentences(self) -> list[str]:
        """Return the answer, the range of sizes behind it, and the remarks."""
        behind = f"Planned: {self.goal}"
        if self.pilot_n_prompts is not None:
            most = f" to {self.n_prompts_high:,.0f}" if np.isfinite(self.n_prompts_high) else " or more"
            known = f"{self.n_prompts_low:,.0f}{most}" if np.isfinite(self.n_prompts_low) else _count(math.inf)
            behind += f"; from the pilot's {self.pilot_n_prompts:,} prompts, {known} may be needed"
        return [self.sentence(), f"{behind}.", *self.remarks]

    def _completions(self, n_prompts: int | float) -> int | float:
        return math.ceil(n_prompts * self.completions_per_prompt - 1e-9) if np.isfinite(n_prompts) else math.inf


def _count(number: int | float) -> str:
    return f"{number:,.0f}" if np.isfinite(number) else "more than 10¹²"


def plan_alpha(
    pilot: LengthScalingFit | None = None,
    half_width: float = 0.05,
    confidence_level: float = CONFIDENCE_LEVEL,
    *,
    noise: float | None = None,
    length_spread: float | None = None,
) -> PromptPlan:
    r"""Compute how many prompts give α ± ``half_width``, from a pilot fit or from two numbers.

    The standard error falls like one over the root of the number of prompts, at the pilot's completions per prompt,
    range of lengths and noise; the Student quantile is that of the resulting number. Without a pilot, independent
    sequences have :math:`\mathrm{se}(α) = \frac{σ}{2 s \sqrt n}`, σ the noise about the line and s the spread of
    lengths. A wider range of lengths needs fewer.

    A pilot's squared standard error is taken as a multiple of χ² with ν degrees of freedom, 1/ν being the sum of that
    of the error (Satterthwaite's) and of that of the spread of lengths, which the next study will not share. So is that
    of the study, with degrees that grow with its size: the half-width is reached in 80 % of studies where the quantile
    of their F-distributed quotient allows for it.

    Args:
        pilot: a fit of the same policy and task, however small.
        half_width: wanted half-width of the interval.
        confidence_level: of the interval, and of the range of sizes.
        noise: σ, the standard deviation of log‖S‖² about the line, instead of a pilot.
        length_spread: s, the standard deviation of log T, instead of a pilot.

    Raises:
        TypeError: when neither or both of a pilot and the two numbers are given, or the pilot is not a fit.
        ValueError: for a half-width, noise or spread that is not positive, or a pilot without a standard error.

    Example:
        >>> import gradstats as gs
        >>> gs.plan_alpha(half_width=0.1, noise=1.0, length_spread=0.5).n
        387
        >>> points = gs.data.load("gloeckle2026")
        >>> pilot = gs.fit_length_scaling(lengths=points.length, sq_norms=points.sq_norm)
        >>> plan = gs.plan_alpha(pilot, half_width=0.1)
        >>> plan.n_prompts, plan.n_prompts_low < plan.n_prompts < plan.n_prompts_assured < plan.n_prompts_high
        (220, True)
    """
    if (pilot is None) == (noise is None and length_spread is None):
        raise TypeError(
            "give either a pilot (a fit; of the command a run, a measurement folder or a table of points), or both "
            "noise= and length_spread= (--noise and --length-spread)"
        )
    if pilot is not None and not isinstance(pilot, LengthScalingFit):
        raise TypeError(f"pilot is {of_type(pilot)}: give a fit, for example gs.fit_length_scaling(measured)")
    for name, value, example in (
        ("half_width", half_width, 0.05),
        ("noise", noise, 1.0),
        ("length_spread", length_spread, 0.6),
    ):
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value:g} must be positive, for example {example:g}")
    level = require_level(confidence_level)
    degrees_of_one, degrees = 0.5, math.inf
    if pilot is not None:
        if not pilot.alpha_stderr > 0:
            raise ValueError("the pilot has no standard error of alpha: give one with noise and at least 3 prompts")
        of_one, per_prompt = pilot.alpha_stderr * math.sqrt(pilot.n_prompts), pilot.n / pilot.n_prompts
        degrees = 1.0 / (1.0 / pilot.line.degrees() + 1.0 / (pilot.n_prompts - 1.0))
        degrees_of_one = degrees / pilot.n_prompts
    elif noise is None or length_spread is None:
        raise TypeError("give both noise= and length_spread=: the error of a slope is proportional to their quotient")
    else:
        of_one, per_prompt = noise / (2.0 * length_spread), 1.0

    planned = prompts_for_slope(of_one, half_width, level, degrees=degrees, degrees_of_one=degrees_of_one)
    return PromptPlan(
        goal=f"α ± {half_width:g} ({percent(level)} interval)",
        aim=f"give α ± {half_width:g}",
        asked={"half_width": half_width, "stderr_of_one": of_one},
        confidence_level=level,
        **vars(planned),
        completions_per_prompt=per_prompt,
        tokens_per_completion=math.nan if pilot is None else float(pilot.lengths.mean()),
        pilot_n_prompts=None if pilot is None else pilot.n_prompts,
    )


def plan_ratio(
    pilot: Result | pd.DataFrame,
    estimator: str,
    ratio: float | None = None,
    confidence_level: float = CONFIDENCE_LEVEL,
    *,
    quantity: str = "ratio",
    within: float | None = None,
    equivalent: float | None = None,
    tokens_per_completion: float = math.nan,
) -> PromptPlan:
    r"""Compute how many prompts distinguish a ratio of variances from 1, from a pilot comparison.

    Or, with ``within``, make the half-width of the interval of its logarithm at most :math:`\log(1 + w)`; with
    ``equivalent``, put the interval between :math:`1/(1 + m)` and :math:`1 + m` in 80 % of studies where the ratio is
    that given, 1 by default.

    The standard error of the logarithm falls like one over the root of the number of prompts. It is that of the pilot's
    influence values, or from the width of the interval where a frame states no more: of a small pilot that interval is
    wider than a larger study's will be, which plans several times too many prompts. The interval of a study of M
    prompts excludes 1 in 80 % of studies where
    :math:`(t + z_{0.8})\,\mathrm{se}_1/\sqrt M \le |\log r|`. The range and the assured size take the squared standard
    error of the pilot as a multiple of χ² with one degree of freedom fewer than its (effective) prompts. No size is
    smaller than the number of prompts that is worth 50 effective ones, at the pilot's share of them: with fewer the
    interval covers less than stated (docs/statistics.md).

    Args:
        pilot: a comparison, or its frame (as in ``variance.csv``, with its ``.attrs``).
        estimator: label of a row, other than the reference.
        ratio: the ratio to distinguish from 1; None for the pilot's.
        confidence_level: of the interval, and of the range of sizes.
        quantity: the name of the ratio, see :data:`RATIOS`.
        within: w, the share of itself to which the ratio is to be known.
        equivalent: m, the largest difference that counts as equal, as a share.
        tokens_per_completion: for the tokens of the plan; known for the comparison of a measurement.

    Raises:
        ValueError: for an estimator without one row in the pilot, a ratio that is 1 or not positive, or one without an
            interval.

    Example:
        >>> import pandas as pd
        >>> import gradstats as gs
        >>> pilot = pd.DataFrame({"estimator": ["grpo"], "ratio": [0.87], "ratio_low": [0.7], "ratio_high": [1.08]})
        >>> pilot.attrs = {"n_prompts": 100, "reference": "rloo", "confidence_level": 0.95, "completions_per_prompt": 8}
        >>> plan = gs.plan_ratio(pilot, "grpo")
        >>> plan.n_prompts, plan.n_prompts_low < plan.n_prompts < plan.n_prompts_high
        (485, True)
    """
    level = require_level(confidence_level)
    frame = pilot if isinstance(pilot, pd.DataFrame) else pilot.to_frame(level)
    if quantity not in RATIOS:
        raise ValueError(f"quantity={quantity!r} is not a ratio to be planned: choose {' or '.join(RATIOS)}")
    rows = frame.loc[frame["estimator"] == estimator]
    if len(rows) != 1:
        raise ValueError(
            f"estimator={estimator!r} has {len(rows)} rows in the pilot and one is needed: compare it at one group size"
        )
    row, about = rows.to_dict("records")[0], frame.attrs
    name = JUDGED.heading if quantity == JUDGED.name else quantity
    value, low, high = (float(row[f"{quantity}{end}"]) for end in ("", "_low", "_high"))
    wanted = (1.0 if equivalent is not None else value) if ratio is None else ratio
    if low == high:
        raise ValueError(
            f"{name} of {estimator!r} is known exactly ({low:g}), since it is a multiple of the reference: choose "
            "another estimator"
        )
    precision = _precision(frame, row, pilot, quantity)
    if not (low < high and precision["stderr_of_one"] > 0):
        raise ValueError(
            f"{name} of {estimator!r} is not resolved in the pilot, so that no number of prompts can be planned from "
            "it: plan those that resolve its signal (--signal; in Python signal=True), or measure more"
        )
    if within is not None and (ratio is not None or equivalent is not None):
        other = "ratio" if equivalent is None else "equivalent"
        raise ValueError(f"within and {other} are two goals: plan for one of them")
    distance = _distance(wanted, within, equivalent)
    if distance == 0.0:
        raise ValueError(f"ratio={wanted:g} must be positive and not 1, for example 0.87")
    fewest = precision["fewest"]
    # A width is reached or not, whatever the estimate; of an equivalence both ends have to lie inside.
    power = 0.0 if within is not None else ASSURANCE if equivalent is None else (1.0 + ASSURANCE) / 2.0
    planned = prompts_for_logarithm(distance=distance, level=level, power=power, **precision)
    reference = str(about.get("reference", "the reference"))
    both, in_studies = f"{estimator} to {reference}", f"({percent(level)} interval, in {ASSURANCE:.0%} of studies)"
    if within is not None:
        goal = f"a {name} of {both} known to ± {within:.2g} of itself ({percent(level)} interval)"
        aim = f"give the {name} of {both} ± {100 * within:.2g}%"
    elif equivalent is not None:
        lies = f"lies within {equivalent:.2g} of 1, if it is {wanted:.3g}"
        goal = f"showing that the {name} of {both} {lies} {in_studies}"
        aim = f"show {estimator} and {reference} to differ by at most {100 * equivalent:.2g}%"
    else:
        goal = f"distinguishing a {name} of {wanted:.3g} of {both} from 1 {in_studies}"
        aim = f"distinguish {estimator} from {reference} at a {name} of {wanted:.3g}"
    fewer = (
        f"Fewer would make it narrow enough, but intervals hold from about {FEW_PROMPTS} effective prompts on, which "
        f"{fewest:,} prompts are worth."
    )
    return PromptPlan(
        goal=goal,
        aim=aim,
        asked={
            "estimator": estimator,
            "reference": reference,
            "quantity": quantity,
            "ratio": wanted,
            "stderr_of_one": precision["stderr_of_one"],
            "fewest_prompts": fewest,
            "within": within,
            "equivalent": equivalent,
        },
        confidence_level=level,
        **vars(planned),
        completions_per_prompt=_completions_per_prompt(about, row),
        tokens_per_completion=tokens_per_completion,
        pilot_n_prompts=int(about["n_prompts"]),
        remarks=() if planned.n_prompts > fewest else (fewer,),
    )


def _precision(
    frame: pd.DataFrame, row: Mapping[Any, Any], pilot: Result | pd.DataFrame | None, quantity: str
) -> dict[str, Any]:
    """Return what a plan needs of the logarithm of a ratio, by the arguments of :func:`prompts_for_logarithm`.

    The standard error is that of the influence values, or that of the interval's width where the pilot has none; NaN
    where that interval has one end.
    """
    n_prompts = int(frame.attrs["n_prompts"])
    stderr, tail = math.nan, 0.0
    if isinstance(pilot, VarianceComparison):
        of_row = next(one for one in pilot.rows if one.label == row["estimator"])
        found = of_row.ratio if quantity == "ratio" else of_row.matched_ratio
        found = found.ratio if isinstance(found, ScaledRatio) else found
        stderr = found.stderr if isinstance(found, Estimate) and found.scale == "log" else math.nan
        tail = found.tail(float(frame.attrs["confidence_level"])) if isinstance(found, StudentisedEstimate) else 0.0
    student = float(scipy.special.stdtrit(n_prompts - 1, 0.5 + frame.attrs["confidence_level"] / 2.0))
    low, high = float(row[f"{quantity}_low"]), float(row[f"{quantity}_high"])
    if not stderr > 0 and 0 < low <= high < math.inf:
        width = (math.log(high) - math.log(low)) / 2.0
        stderr = width / student
    effective = min(float(row.get("n_effective_prompts", n_prompts)), n_prompts)
    return {
        "stderr_of_one": stderr * math.sqrt(n_prompts),
        "degrees": max(effective - 1.0, 1.0),
        "excess_of_one": max(tail - student, 0.0) * math.sqrt(n_prompts),
        "fewest": math.ceil(FEW_PROMPTS * n_prompts / effective),
    }


def _distance(wanted: float, within: float | None, equivalent: float | None) -> float:
    """Return what standard errors of the logarithm are measured against; 0 where nothing can be planned."""
    for name, share in (("within", within), ("equivalent", equivalent)):
        if share is not None and not 0 < share < math.inf:
            raise ValueError(f"{name}={share:g} must be a positive share, for example 0.05 for 5 %")
    if within is not None:
        return math.log1p(within)
    if not wanted > 0:
        return 0.0
    if equivalent is None:
        return 0.0 if abs(math.log(wanted)) < 1e-9 else abs(math.log(wanted))
    room = math.log1p(equivalent) - abs(math.log(wanted))
    if not room > 0:
        raise ValueError(f"a ratio of {wanted:g} is not within {equivalent:g} of 1: give a larger share as equivalent")
    return room


def prompts_to_distinguish(frame: pd.DataFrame, pilot: VarianceComparison | None = None) -> dict[str, int | None]:
    """Plan as :func:`plan_ratio` does for each estimator whose relative noise is not resolved from 1.

    Those that are equal to the reference within 5 % by estimate are left out.

    Args:
        frame: of a comparison at one group size.
        pilot: that comparison, whose standard errors plan closer than the intervals of a small frame do.

    Returns:
        Label → prompts that are enough in 80 % of studies; None where the data do not say.
    """
    found: dict[str, int | None] = {}
    level = float(frame.attrs["confidence_level"])
    for row in frame.to_dict("records"):
        value, low, high = (float(row[f"{JUDGED.name}{end}"]) for end in ("", "_low", "_high"))
        if not (low < high and low <= 1.0 <= high and value > 0 and abs(math.log(value)) > math.log1p(_EQUAL_WITHIN)):
            continue
        enough = math.inf
        precision = _precision(frame, row, pilot, JUDGED.name)
        if precision["stderr_of_one"] > 0:
            distance = abs(math.log(value))
            enough = prompts_for_logarithm(
                distance=distance, level=level, power=ASSURANCE, **precision
            ).n_prompts_assured
        found[str(row["estimator"])] = int(enough) if np.isfinite(enough) else None
    return found


def _completions_per_prompt(about: dict[Any, Any], row: Mapping[Any, Any]) -> float:
    if "completions_per_prompt" in about:
        return float(about["completions_per_prompt"])
    if "n_completions" in about:
        return about["n_completions"] / about["n_prompts"]
    size = row.get("group_size", about.get("group_size"))
    groups = about.get("n_groups", about["n_prompts"]) / about["n_prompts"]
    return float(size) * groups if size is not None and np.isfinite(float(size)) else 1.0


def plan_signal(pilot: VarianceComparison, estimator: str, confidence_level: float = CONFIDENCE_LEVEL) -> PromptPlan:
    r"""Compute how many prompts put the interval of ‖E g‖² above 0, from a pilot comparison.

    How many are needed for a signal follows from the two parts of the variance of its estimate, :math:`4ζ/M + 2δ/M²`
    (:meth:`gradstats.stats.variance.moments.SignalComponents.prompts_to_resolve`). The range is that over the
    pilot's interval of the signal, and reaches to infinity where that does to 0; the assured size is that for the lower
    end of its one-sided 80 % interval.

    Args:
        pilot: a comparison at one group size.
        estimator: label of a row.
        confidence_level: of the interval, and of the range of sizes.

    Raises:
        ValueError: for an estimator without a row, at batch level, or without an interval; a comparison of several
            group sizes; fewer than 4 prompts.
    """
    level = require_level(confidence_level)
    row = next((row for row in pilot.rows if row.label == estimator), None)
    if row is None:
        raise ValueError(
            f"estimator={estimator!r} is not in the pilot: choose from {', '.join(row.label for row in pilot.rows)}"
        )
    if len(pilot.splits) > 1:
        raise ValueError("the pilot compares several group sizes: compare at one group size")
    parts = row.signal_components
    if parts is None or not np.isfinite(row.signal_sq.stderr):
        raise ValueError(
            f"the pilot has no interval of ‖E g‖² for {estimator!r} from at least 4 prompts: choose a group-level "
            "estimator with weights that are not all 0, or measure more prompts"
        )
    signal = row.signal_sq.value
    low, high = row.signal_sq.confidence_interval(level)
    assured = signal - float(scipy.special.stdtrit(row.signal_sq.degrees, ASSURANCE)) * row.signal_sq.stderr

    def needed(of: float) -> int | float:
        return parts.prompts_to_resolve(of, signal, level)

    return PromptPlan(
        goal=f"‖E ĝ‖² of {estimator} resolved ({percent(level)} interval above 0 in {ASSURANCE:.0%} of studies)",
        aim=f"resolve the signal of {estimator}",
        asked={
            "estimator": estimator,
            "signal_sq": signal,
            "linear": max(parts.linear, 0.0),
            "quadratic": max(parts.quadratic, 0.0),
        },
        confidence_level=level,
        n_prompts=needed(signal),
        n_prompts_low=needed(high),
        n_prompts_high=needed(low),
        n_prompts_assured=needed(assured),
        completions_per_prompt=pilot.splits[0].n_completions / pilot.n_prompts,  # pyright: ignore[reportGeneralTypeIssues]
        tokens_per_completion=pilot.splits[0].mean_length,  # pyright: ignore[reportGeneralTypeIssues]
        pilot_n_prompts=pilot.n_prompts,
    )


def plan_critical_batch(
    pilot: CriticalBatch,
    factor: float = 2.0,
    confidence_level: float = CONFIDENCE_LEVEL,
    *,
    estimator: str,
    completions_per_prompt: float = 1.0,
    tokens_per_completion: float = math.nan,
) -> PromptPlan:
    r"""Compute how many prompts make the interval of a critical batch end within a factor of its value.

    It is the smallest number whose interval :math:`[l, h]` of :math:`B^*` has :math:`B^*/f \le l` and
    :math:`h \le f B^*`.

    The interval of a study follows from the variances of the pilot's influence values, scaled to its prompts
    (:meth:`gradstats.stats.variance.alignment.CriticalBatch.in_study`), for a signal as low as one study in five finds.
    The range is that over the pilot's interval of the signal, and reaches to infinity where that does to 0; the assured
    size is that for the lower end of its one-sided 80 % interval.

    Args:
        pilot: ``critical_batch`` of a row of :func:`gradstats.analyses.batch_size`.
        factor: f, above 1.
        confidence_level: of the interval, and of the range of sizes.
        estimator: label of the estimator.
        completions_per_prompt: as in the pilot.
        tokens_per_completion: mean length in the pilot.

    Raises:
        ValueError: for a factor that is not above 1, or a pilot whose signal is not known well enough to plan with.

    Example:
        >>> import numpy as np
        >>> import gradstats as gs
        >>> rng = np.random.default_rng(0)
        >>> rewards = rng.integers(0, 2, 400)
        >>> batch = gs.estimators.Batch(rewards, np.full(400, 50), np.repeat(np.arange(50), 8))
        >>> scores = rng.normal(size=(400, 32)) + 0.8 * rewards[:, None] - 0.4
        >>> pilot = gs.analyses.batch_size(batch, ["rloo"], scores).rows[0].critical_batch
        >>> plan = gs.analyses.plan_critical_batch(pilot, 1.5, estimator="rloo", completions_per_prompt=8)
        >>> plan.n_prompts <= plan.n_prompts_assured < 50
        True
    """
    level = require_level(confidence_level)
    if not 1.0 < factor < math.inf:
        raise ValueError(f"critical_batch={factor:g} must be a factor above 1, for example 2")
    found = pilot.at_estimate
    if pilot.only_low or not (found.is_known and found.denominator > 0.0):
        raise ValueError(
            f"the pilot does not resolve the signal of {estimator!r}, which its critical batch is relative to: measure "
            "as many prompts as --signal plans"
        )
    planned = prompts_for_factor(
        lambda n_prompts, at: pilot.in_study(n_prompts, at, ASSURANCE).with_interval(level),
        factor,
        level,
        signal=found.denominator,
        stderr=math.sqrt(found.denominator_variance),
        degrees=found.degrees,
    )
    to_factor = f"to a factor of {factor:g}"
    return PromptPlan(
        goal=(
            f"the critical batch of {estimator} known {to_factor} ({percent(level)} interval, in {ASSURANCE:.0%} of "
            "studies)"
        ),
        aim=f"give the critical batch of {estimator} {to_factor}",
        asked={"estimator": estimator, "factor": factor, "critical_batch": found.value},
        confidence_level=level,
        **vars(planned),
        completions_per_prompt=completions_per_prompt,
        tokens_per_completion=tokens_per_completion,
        pilot_n_prompts=round(found.degrees) + 1,
    )


def plan(
    measured: Measurement | None = None,
    *,
    half_width: float = 0.05,
    noise: float | None = None,
    length_spread: float | None = None,
    estimator: str | None = None,
    ratio: float | None = None,
    quantity: Literal["ratio", "matched_ratio"] = "matched_ratio",
    reference: str = "rloo",
    group_size: int | None = None,
    signal: bool = False,
    within: float | None = None,
    equivalent: float | None = None,
    critical_batch: float | None = None,
    confidence_level: float = CONFIDENCE_LEVEL,
    lengths: npt.ArrayLike | None = None,
    sq_norms: npt.ArrayLike | None = None,
    groups: npt.ArrayLike | None = None,
    truncated: npt.ArrayLike | None = None,
) -> PromptPlan:
    """Plan a study of α, of a ratio of variances, of the expected gradient or of a critical batch, from a pilot.

    Args:
        measured: the pilot; or, for α, its arrays or none.
        half_width: desired half-width of the interval of α.
        noise: standard deviation of log‖S‖² about the line, instead of a pilot.
        length_spread: standard deviation of log T, instead of a pilot.
        estimator: plan for the ratio of its variance to that of the reference, in place of α.
        ratio: the relative noise to distinguish from 1; the pilot's by default. Where that is within 5 % of
            1 and not resolved from it, the plan is for showing that it lies within 5 %.
        quantity: ``matched_ratio``, the relative noise, or ratio, of raw variances.
        reference: the estimator in the denominator.
        group_size: completions per group of the ratio; all by default.
        signal: plan how many prompts resolve ‖E ĝ‖² of the estimator, in place of its ratio.
        within: plan until the ratio is known to this share of itself, as in 0.03.
        equivalent: plan until the two are shown to differ by at most this share, as in 0.05, if their ratio is 1.
        critical_batch: plan until the critical batch of the estimator is known to this factor, as in 2.
        confidence_level: of the planned interval.
        lengths: as in :func:`gradstats.fit_length_scaling`.
        sq_norms: likewise.
        groups: likewise.
        truncated: likewise.

    Raises:
        TypeError: as :func:`gradstats.plan_alpha`.
        ValueError: likewise, as :func:`gradstats.plan_ratio` and :func:`gradstats.plan_signal`, for a ratio or signal
            without an estimator, and an estimator without a measurement.
    """
    if estimator is None:
        of_one = {
            "--ratio": ratio, "--signal": signal or None, "--within": within, "--equivalent": equivalent,
            "--critical-batch": critical_batch,
        }  # fmt: skip
        if given := [option for option, value in of_one.items() if value is not None]:
            needs = "needs" if len(given) == 1 else "need"
            raise ValueError(f"{' and '.join(given)} {needs} --estimator: name the estimator to plan for")
        fit = None
        if measured is not None or lengths is not None:
            fit = fit_length_scaling(measured, lengths=lengths, sq_norms=sq_norms, groups=groups, truncated=truncated)
        return plan_alpha(fit, half_width, confidence_level, noise=noise, length_spread=length_spread)
    if measured is None:
        raise ValueError("give a measurement folder or a run directory as the pilot of --estimator")
    with warnings.catch_warnings():  # the plan says what is not resolved
        warnings.simplefilter("ignore")
        if critical_batch is None:
            compared = compare(measured, [estimator], group_size=group_size, reference=reference)
        else:
            found = batch_size(measured, [estimator], group_size=group_size, reference=reference)
            pilot = found.rows[0].critical_batch
            if not isinstance(pilot, CriticalBatch):
                raise ValueError(f"the pilot has no critical batch of {estimator!r}: {found.sentence()}")
            return plan_critical_batch(
                pilot,
                critical_batch,
                confidence_level,
                estimator=estimator,
                completions_per_prompt=len(measured.rollouts) / len(set(measured.rollouts.prompt_id)),
                tokens_per_completion=float(measured.rollouts.lengths.mean()),
            )
    label, length = compared.rows[0].label, compared.splits[0].mean_length
    if signal:
        return plan_signal(compared, label, confidence_level)
    if ratio is None and within is None and equivalent is None:
        row = compared.to_frame(confidence_level).iloc[0]
        known = not row[f"{quantity}_low"] <= 1.0 <= row[f"{quantity}_high"]
        # To tell apart what is nearly equal takes any number.
        if not known and abs(math.log(row[quantity])) < math.log1p(_EQUAL_WITHIN):
            equivalent = _EQUAL_WITHIN
    planned = plan_ratio(
        compared,
        label,
        ratio,
        confidence_level,
        quantity=quantity,
        within=within,
        equivalent=equivalent,
        tokens_per_completion=length,
    )
    scored = getattr(measured, "scored", None)
    return planned if scored is None else _of_a_part(planned, measured, label, group_size, reference)


def _of_a_part(
    planned: PromptPlan, measured: Measurement, label: str, group_size: int | None, reference: str
) -> PromptPlan:
    """Add how many prompts to measure of how many sampled, where proxies of all prompts calibrate the pilot.

    The variance :math:`(1 - ρ²)/m + ρ²/n` of a ratio from m measured prompts of n is that of m alone over the factor
    of the pilot, at its m/n.
    """
    calibration = variance(measured, [label], group_size=group_size, reference=reference).calibrations
    factor = calibration[0].rows[0].ratio.factor if calibration else 1.0
    if not (factor > 1.0 and np.isfinite(planned.n_prompts_assured)):
        return planned
    n_measured, n_prompts = calibration[0].n_measured, calibration[0].n_prompts
    needed = math.ceil(planned.n_prompts_assured / factor)
    sampled = math.ceil(needed * n_prompts / n_measured)
    said = (
        f"calibrated by {calibration[0].proxy}, {needed:,} measured prompts of {sampled:,} sampled do the same "
        f"(measurement.n_prompts={needed}, prompts.n={sampled}): in the pilot, {n_measured:,} of {n_prompts:,}, they "
        f"are worth {factor:.1f} times as many for the ratio of variances"
    )
    asked = {**planned.asked, "n_measured": needed, "n_sampled": sampled}
    return replace(planned, asked=asked, remarks=(*planned.remarks, said))


def _pilot(path: Path | None = None, *, partial: bool = False) -> dict[str, Any]:
    """The pilot, as of gradstats alpha: a run directory, a measurement folder or a table; none with --noise."""  # noqa: D401
    return {} if path is None else load_points(path, partial=partial)


ANALYSIS = Analysis(
    name="plan",
    ask=plan,
    options=(
        "half_width", "estimator", "ratio", "reference", "group_size", "signal", "within", "equivalent",
        "critical_batch", "noise", "length_spread", "quantity",
    ),
    columns=(
        Column("confidence_level", "level of the planned interval"),
        Column("n_prompts", "prompts needed, by the pilot's estimates", estimated=True),
        Column("n_prompts_assured", "prompts that are enough in 80 % of studies"),
        Column("completions_per_prompt", "as in the pilot"),
        Column("tokens_per_completion", "mean length in the pilot"),
        Column("pilot_n_prompts", "prompts of the pilot"),
        Column("seconds_per_token", "of sampling and measuring"),
        Column("n", "completions of n_prompts"),
        Column("n_assured", "completions of n_prompts_assured"),
        Column("n_tokens", "tokens of those"),
        Column("hours", "hours that they take"),
        Column("half_width", "wanted half-width of α"),
        Column("stderr_of_one", "standard error of α, or of the logarithm of the ratio, times √M"),
        Column("estimator", "in the numerator, or whose signal or critical batch is planned for"),
        Column("reference", "in the denominator"),
        Column("quantity", "which ratio"),
        Column("ratio", "that is to be distinguished from 1"),
        Column("fewest_prompts", "prompts that are worth 50 effective ones"),
        Column("within", "share of itself to which the ratio is to be known"),
        Column("equivalent", "largest share by which the two may differ and count as equal"),
        Column("factor", "to which the critical batch is to be known"),
        Column("critical_batch", "the pilot's, in prompts"),
        Column("signal_sq", "the pilot's ‖E ĝ‖²"),
        Column("linear", "part of its variance that falls like 4/M"),
        Column("quadratic", "part that falls like 2/M²"),
        Column("n_measured", "prompts to measure where proxies of all calibrate, as in the pilot"),
        Column("n_sampled", "prompts to sample beside them"),
    ),
    source=_pilot,
)  # fmt: skip
