"""How does the gradient grow with a completion's length?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import numpy.typing as npt

from gradstats.analyses.declaration import POINTS, Analysis, AnalysisFigure, Column, FurtherTable, chosen
from gradstats.analyses.numbers import format_estimate, format_number, percent
from gradstats.analyses.on_policy import OnPolicyCheck, check_on_policy
from gradstats.analyses.points import load_points
from gradstats.analyses.printed import records
from gradstats.analyses.results import Result
from gradstats.config.options import CONFIDENCE_LEVEL, EUCLIDEAN, FitMethod, IntervalMethod
from gradstats.measurement.measurement import metric_label
from gradstats.plots.length_scaling import plot_length_scaling
from gradstats.plots.style import palette
from gradstats.stats.length_scaling.alpha import LengthScalingFit, fit_length_scaling
from gradstats.stats.length_scaling.diagnostics import (
    CurvatureTest,
    MundlakTest,
    alpha_without_each_prompt,
    curvature_test,
    fit_energy_scaling,
    mundlak_test,
)
from gradstats.stats.length_scaling.regression import RegressionLine
from gradstats.stats.protocols import MeasuredBlocks, MeasuredNorms, MeasuredPolicy
from gradstats.stats.token_profiles import has_token_energies, summed_energy
from gradstats.stats.variance.quantities import in_metric
from gradstats.system.lazy_imports import pd

# Regressions have the fit without each prompt in closed form; other methods refit, up to this many sequences.
_MOST_REFITS = 200
CURVED_BELOW = 0.01
# How much wider the interval that allows for unequal and shared noise has to be before a report mentions it.
_NOTICEABLY_WIDER = 1.2

Diagnosis = TypeVar("Diagnosis")


@dataclass(frozen=True, repr=False)
class AlphaReport(Result):
    r"""A fit of :math:`\log‖S‖² = c + 2α\log T` with the diagnostics to read before relying on its α.

    Attributes:
        fit: the fit.
        confidence_level: level of the intervals.
        interval: method of the interval of α.
        low: lower end of it.
        high: upper end of it.
        stderr: the standard error of α that this interval uses.
        mean_fit: for ``fit.method == "ols"``, the gamma fit of E[‖S‖² | T], which the baseline needs; else None.
        within_fit: the fit within prompts, whose α is that of a group baseline; the fit itself where it is that, None
            without prompts of different lengths.
        uncut_fit: the fit without completions that were cut off at the cap; None where none was, or too few remain.
        curvature: whether one power law fits; None with too few lengths or prompts.
        within_between: whether α within prompts equals α between them; None without prompts that vary in length.
        influence: frame of :func:`gradstats.stats.alpha_without_each_prompt`; None where it
            would take too many refits.
        by_block: frame of :func:`gradstats.analyses.length_scaling_by_block`; None for bare points, or a single block.
        energy_fit: α of the summed token energies; None where they were not measured.
        on_policy: the on-policy check; None for bare points, or fewer than 3 prompts.
        points: a row for each completion, ``prompt_id``, ``sample_id``, ``reward``, ``length``, ``sq_norm``,
            ``truncated`` and, where it was measured, ``energy``; None for bare points.
    """

    question: ClassVar[str] = "alpha"

    printed_columns: ClassVar[tuple[str, ...]] = ("alpha", "n", "n_prompts", "r_squared", "method", "interval")

    fit: LengthScalingFit
    confidence_level: float
    interval: str
    low: float
    high: float
    stderr: float
    mean_fit: LengthScalingFit | None
    within_fit: LengthScalingFit | None
    uncut_fit: LengthScalingFit | None
    curvature: CurvatureTest | None
    within_between: MundlakTest | None
    influence: pd.DataFrame | None = field(repr=False)
    by_block: pd.DataFrame | None = field(repr=False)
    energy_fit: LengthScalingFit | None
    on_policy: OnPolicyCheck | None
    points: pd.DataFrame | None = field(default=None, repr=False)

    def confidence_interval(self, confidence_level: float | None = None) -> tuple[float, float]:
        """Return the interval of α, by default at the report's level."""
        level = self.confidence_level if confidence_level is None else confidence_level
        return self.fit.confidence_interval(level, self.interval)

    def to_frame(self, confidence_level: float | None = None) -> pd.DataFrame:
        """Return a frame of one row, that of the fit, with the report's interval; :meth:`summary` as its ``.attrs``."""
        frame = self._of_fit(confidence_level)
        frame.attrs |= self.summary()
        return frame

    def _of_fit(self, confidence_level: float | None = None) -> pd.DataFrame:
        level = self.confidence_level if confidence_level is None else confidence_level
        return self.fit.to_frame(level, self.interval)

    def points_frame(self, confidence_level: float | None = None) -> pd.DataFrame:
        """Return the points, with what their fit takes as ``.attrs``; an empty frame where there are none."""
        points = pd.DataFrame() if self.points is None else self.points.copy()
        points.attrs |= {
            "method": self.fit.method,
            "interval": self.interval,
            "confidence_level": self.confidence_level if confidence_level is None else confidence_level,
            "metric": self.fit.metric,
            "n_prompts": self.fit.n_prompts,
        }
        return points

    def plot(self, **options: Any) -> Any:
        """Draw the points with the fit; returns the axes."""
        return plot_length_scaling(self.fit, confidence_level=self.confidence_level, **options)

    def summary(self) -> dict[str, object]:
        """Return everything as nested numbers and sentences, as in ``alpha.json``; what is not available is None."""
        level = self.confidence_level
        influence = self.influence
        return {
            **self._of_fit().iloc[0].to_dict(),
            "mean_scaling": _brief(self.mean_fit, level),
            "within_prompt": _brief(self.within_fit, level),
            "without_truncated": _brief(self.uncut_fit, level),
            "curvature": None if self.curvature is None else self.curvature.to_frame(level).iloc[0].to_dict(),
            "within_between": (
                None if self.within_between is None else self.within_between.to_frame(level).iloc[0].to_dict()
            ),
            "most_influential_prompt": None if influence is None else records(influence.head(1))[0],
            "token_energy": _brief(self.energy_fit, level),
            "by_block": None if self.by_block is None else records(self.by_block),
            "on_policy": None if self.on_policy is None else records(self.on_policy.to_frame(level)),
            "metric": self.fit.metric,
            "sentences": self.sentences(),
        }

    def sentence(self) -> str:
        """State α, and α within prompts where it is not that of the fit."""
        alpha = f"α = {self.fit.alpha:.3f} [{self.low:.3f}, {self.high:.3f}]"
        return " ".join([f"The norm of a completion's gradient grows like T^α, {alpha}.", *self.beside()])

    def beside(self) -> list[str]:
        """State α within prompts, which a group baseline uses, where it is not the α of the fit; else nothing."""
        if self.within_fit is None or self.within_fit is self.fit:
            return []
        return [f"Among answers to one prompt, as a group baseline sees them, {self._alpha(self.within_fit)}."]

    def sentences(self) -> list[str]:
        """State what to consider when reading α, one sentence each; the on-policy verdict is the first."""
        sentences = ["Whether the samples are on-policy is not known: lengths and norms alone do not show it."]
        if self.on_policy is not None:
            sentences = [self.on_policy.verdict()]
        if self.fit.metric != EUCLIDEAN:
            sentences.append(f"α is the exponent of norms in the metric {self.fit.metric}, not of Euclidean ones.")
        if self.interval != "cluster":
            low, high = self.fit.confidence_interval(self.confidence_level, "cluster")
            if high - low > _NOTICEABLY_WIDER * (self.high - self.low):
                sentences.append(
                    f"The noise changes with length or is shared by answers to a prompt, which the {self.interval} "
                    f"interval does not allow for: use the cluster interval, [{low:.3f}, {high:.3f}]."
                )
        if self.mean_fit is not None:
            sentences.append(
                f"For length weights use {self._alpha(self.mean_fit)} (fit to the mean). The interval is too narrow "
                "where single norms are very large."
            )
        if self.within_between is not None:
            sentences.append(within_and_between(self.within_between, self.confidence_level))
        if self.energy_fit is not None:
            sentences.append(
                f"The summed token energies Σ‖s_t‖² have {self._alpha(self.energy_fit)}; the rest of α is correlation "
                "between tokens."
            )
        if self.fit.n_truncated:
            rest = "too few remain for a fit" if self.uncut_fit is None else self._alpha(self.uncut_fit)
            sentences.append(
                f"{self.fit.n_truncated} of {self.fit.n} completions were cut off at the cap; without them: {rest}."
            )
        if self.curvature is not None and self.curvature.pvalue < CURVED_BELOW:
            trend = "steepens" if self.curvature.curvature > 0 else "flattens"
            sentences.append(
                f"One power law does not fit: the line {trend} with length (p = "
                f"{format_number(self.curvature.pvalue, 1)}), so α is an average over these lengths."
            )
        if self.influence is not None:
            prompt, without, change = (self.influence[name].iloc[0] for name in ("prompt", "alpha", "change"))
            inside = self.low <= without <= self.high
            sentences.append(
                f"Leaving out one prompt moves α by at most {format_number(abs(change), 2)} (prompt {prompt}, to "
                f"{without:.3f}){'' if inside else ', outside the interval'}."
            )
        return sentences

    def _alpha(self, fit: LengthScalingFit) -> str:
        low, high = fit.confidence_interval(self.confidence_level)
        return f"α = {fit.alpha:.3f} [{low:.3f}, {high:.3f}]"


def within_and_between(found: MundlakTest, confidence_level: float = CONFIDENCE_LEVEL) -> str:
    """State whether answers to one prompt scale as prompts do."""
    low, high = found.confidence_interval(confidence_level)
    estimate = (
        f"Longer answers to the same prompt give α = {found.alpha_within:.3f}, prompts with longer answers "
        f"α = {found.alpha_between:.3f}; the difference {format_estimate(found.difference, low, high)} "
        f"({percent(confidence_level)} interval) is"
    )
    test = f"(Mundlak's test, p = {format_number(found.pvalue, 2)})"
    if low > 0 or high < 0:
        verdict = "significant" if confidence_level == CONFIDENCE_LEVEL else "resolved"
        return f"{estimate} {verdict}, so that α of all completions mixes the two {test}."
    return f"{estimate} not resolved {test}."


def alpha_report(
    measured: MeasuredNorms | None = None,
    *,
    method: FitMethod = "ols",
    interval: IntervalMethod | None = None,
    confidence_level: float = CONFIDENCE_LEVEL,
    lengths: npt.ArrayLike | None = None,
    sq_norms: npt.ArrayLike | None = None,
    groups: npt.ArrayLike | None = None,
    truncated: npt.ArrayLike | None = None,
) -> AlphaReport:
    r"""Fit the length exponent α of :math:`‖S‖ ∝ T^{α}` and run every diagnostic that bears on it.

    Args:
        measured: a measurement; or give the arrays.
        method: least squares in logarithms, the median of pairwise slopes, the scaling of the mean of ‖S‖² (by gamma
            or Poisson pseudo-likelihood), least squares with a random effect of the prompt, the scaling among answers
            to one prompt, or that between prompts; see :func:`gradstats.fit_length_scaling`.
        interval: kind of interval; by default cluster-robust by prompt (CR2), see
            :meth:`gradstats.stats.LengthScalingFit.confidence_interval`.
        confidence_level: level of the intervals.
        lengths: as in :func:`gradstats.fit_length_scaling`, instead of ``measured``.
        sq_norms: likewise.
        groups: likewise.
        truncated: likewise.

    Raises:
        TypeError: as :func:`gradstats.fit_length_scaling`.
        ValueError: likewise, or for an interval that this fit does not offer.

    Example:
        >>> import gradstats as gs
        >>> points = gs.data.load("gloeckle2026")
        >>> report = gs.alpha_report(lengths=points.length, sq_norms=points.sq_norm)
        >>> round(report.fit.alpha, 3), round(report.low, 3), round(report.high, 3)
        (0.789, 0.474, 1.103)
        >>> print(report.sentences()[-1])
        Leaving out one prompt moves α by at most 0.082 (prompt 24, to 0.707).
    """
    fit = fit_length_scaling(
        measured,
        lengths=lengths,
        sq_norms=sq_norms,
        groups=groups,
        method=method,
        truncated=truncated,
    )
    low, high = fit.confidence_interval(confidence_level, interval)
    mean_fit = None
    if method == "ols":
        mean_fit = fit_length_scaling(
            lengths=fit.lengths, sq_norms=fit.sq_norms, groups=fit.clusters, method="gamma", truncated=fit.truncated
        )
        mean_fit = replace(mean_fit, metric=fit.metric)
    closed_form = isinstance(fit.line, RegressionLine) and fit.line.exact
    return AlphaReport(
        fit=fit,
        confidence_level=confidence_level,
        interval=interval or fit.interval,
        low=low,
        high=high,
        stderr=fit.standard_error(interval),
        mean_fit=mean_fit,
        within_fit=fit.within_prompts(),
        uncut_fit=_or_none(fit.without_truncated) if fit.n_truncated else None,
        curvature=_or_none(lambda: curvature_test(fit)),
        within_between=_or_none(lambda: mundlak_test(fit)),
        influence=_named_influence(fit, measured, groups) if closed_form or fit.n <= _MOST_REFITS else None,
        by_block=_by_block(measured, method, confidence_level),
        energy_fit=None
        if measured is None or not has_token_energies(measured)
        else fit_energy_scaling(measured, method=method),
        on_policy=(
            _or_none(lambda: check_on_policy(cast(MeasuredPolicy, measured))) if hasattr(measured, "entropy") else None
        ),
        points=None if measured is None else _points(measured),
    )


def _points(measured: MeasuredNorms) -> pd.DataFrame:
    """Return a row for each completion with a token that counts."""
    rollouts = measured.rollouts
    points = pd.DataFrame(
        {
            "prompt_id": rollouts.prompt_id,
            "sample_id": rollouts.sample_id,
            "reward": rollouts.rewards,
            "length": measured.lengths,
            "sq_norm": measured.sq_norms,
            "truncated": rollouts.truncated,
        }
    )
    if has_token_energies(measured):
        points["energy"] = summed_energy(measured)[0]
    return points.loc[points["length"] > 0]


def _named_influence(
    fit: LengthScalingFit, measured: MeasuredNorms | None, groups: npt.ArrayLike | None
) -> pd.DataFrame | None:
    """Return :func:`gradstats.stats.alpha_without_each_prompt`, with the names of the prompts."""
    frame = _or_none(lambda: alpha_without_each_prompt(fit))
    groups = groups if measured is None else measured.rollouts.prompt_id
    if frame is None or groups is None:
        return frame
    names = np.unique(np.asarray(groups))
    return frame.assign(prompt=[str(names[number]) for number in frame["prompt"]])


def _by_block(measured: MeasuredNorms | None, method: str, confidence_level: float) -> pd.DataFrame | None:
    blocks = getattr(measured, "sq_norms_by_block", None)
    if blocks is None or blocks.shape[1] < 2:
        return None
    return length_scaling_by_block(cast(MeasuredBlocks, measured), method=method, confidence_level=confidence_level)


def _or_none(action: Callable[[], Diagnosis]) -> Diagnosis | None:
    """Return None for a diagnostic that a small data set does not allow; the fit itself has succeeded."""
    try:
        return action()
    except ValueError:
        return None


def _brief(fit: LengthScalingFit | None, level: float) -> dict[str, object] | None:
    if fit is None:
        return None
    columns = ["alpha", "alpha_low", "alpha_high", "n", "n_prompts", "method", "interval"]
    return fit.to_frame(level).iloc[0][columns].to_dict()


def length_scaling_by_block(
    measured: MeasuredBlocks, *, method: str = "ols", confidence_level: float = CONFIDENCE_LEVEL
) -> pd.DataFrame:
    r"""Fit α of each block b of parameters, :math:`‖S_b‖ ∝ T^{α_b}`, and of the whole gradient.

    Args:
        measured: a measurement with ``.sq_norms_by_block``.
        method: as in :func:`gradstats.fit_length_scaling`.
        confidence_level: of the intervals.

    Returns:
        The rows of :meth:`gradstats.stats.LengthScalingFit.to_frame` with a column ``block`` in front (``"total"``
        last) and ``share_of_sq_norm``, the block's share of Σ‖S‖². A block whose gradient vanishes on some sequence has
        no logarithm and gets NaN.

    Example:
        >>> import numpy as np, pandas as pd
        >>> import gradstats as gs
        >>> lengths = np.array([10, 15, 20, 30, 40, 60])
        >>> rollouts = gs.Rollouts.from_sequences(
        ...     [[5]] * 6, [[1] * length for length in lengths], rewards=[1.0, 0.0] * 3, prompt_ids=list("abcdef")
        ... )
        >>> norms = pd.DataFrame({"layer 0": lengths**1.0, "layer 1": lengths**1.6})  # exponents of 0.5 and 0.8
        >>> nothing = [np.zeros(length) for length in lengths]
        >>> measured = gs.Measurement(rollouts, norms, None, nothing, nothing, nothing, nothing)
        >>> gs.analyses.length_scaling_by_block(measured)[["block", "alpha"]].round(2).to_numpy().tolist()
        [['layer 0', 0.5], ['layer 1', 0.8], ['total', 0.76]]
    """
    by_block = measured.sq_norms_by_block
    columns = {str(name): by_block[name].to_numpy(dtype=float) for name in by_block}
    columns["total"] = np.asarray(measured.sq_norms, dtype=float)
    rows = []
    for name, sq_norms in columns.items():
        row = pd.DataFrame([{"n": len(sq_norms), "method": method}])
        if np.all(sq_norms > 0):
            row = fit_length_scaling(
                lengths=measured.lengths,
                sq_norms=sq_norms,
                groups=measured.rollouts.prompt_id,
                method=method,
                truncated=measured.rollouts.truncated,
            ).to_frame(confidence_level)
        row.insert(0, "block", name)
        row["share_of_sq_norm"] = sq_norms.sum() / columns["total"].sum()
        rows.append(row)
    frame = pd.concat(rows, ignore_index=True)
    frame.attrs["metric"] = metric_label(getattr(measured, "metadata", {}))
    return frame


def fit_of_points(points: pd.DataFrame, column: str = "sq_norm") -> LengthScalingFit:
    """Return the fit of the points of a run, whose ``.attrs`` state the method and the metric."""
    fit = fit_length_scaling(
        lengths=points["length"],
        sq_norms=points[column],
        groups=points["prompt_id"],
        method=points.attrs["method"],
        truncated=points.get("truncated"),
    )
    return replace(fit, metric=points.attrs["metric"])


def _fitted(points: pd.DataFrame) -> pd.DataFrame | None:
    return points if "method" in points.attrs else None


def _with_energy(points: pd.DataFrame) -> pd.DataFrame | None:
    return _fitted(points) if "energy" in points else None


def _level_of_points(points: pd.DataFrame) -> float:
    return points.attrs.get("confidence_level", CONFIDENCE_LEVEL)


def _draw_length_scaling(points: pd.DataFrame) -> None:
    plot_length_scaling(
        fit_of_points(points), published=points.attrs.get("published"), confidence_level=_level_of_points(points)
    )


def _draw_energies(points: pd.DataFrame) -> None:
    (first, second, *_), level = palette(), _level_of_points(points)
    ax = plot_length_scaling(fit_of_points(points), label=r"$\Vert S\Vert^2$", color=first, confidence_level=level)
    energies = fit_of_points(points, "energy")
    plot_length_scaling(energies, ax=ax, label=r"$\sum_t\Vert s_t\Vert^2$", color=second, confidence_level=level)
    ax.set_ylabel(in_metric(r"$\Vert S\Vert^2$ and token energy", points.attrs))


_FIT = "stats/length_scaling/alpha.py"
#: The columns of a fit.
FIT_COLUMNS = (
    Column("alpha", "length exponent α, half the slope", "α", estimated=True, file=_FIT),
    Column("alpha_stderr", "standard error of α by the interval's method", file=_FIT),
    Column("slope", "slope of log‖S‖² on log T, 2α", file=_FIT),
    Column("slope_stderr", "its standard error", file=_FIT),
    Column("intercept", "log‖S‖² at T = 1 on the line", file=_FIT),
    Column("n", "completions", file=_FIT),
    Column("n_prompts", "prompts", file=_FIT),
    Column("n_truncated", "completions cut off at the cap", file=_FIT),
    Column("method", "how the line was fitted", file=_FIT),
    Column("interval", "how the interval was made", file=_FIT),
    Column("confidence_level", "level of the interval", file=_FIT),
    Column(
        "r_squared",
        "share of the variance of log‖S‖² that the line explains",
        "R²",
        file="stats/length_scaling/regression.py",
    ),
)


_TABLE = "rollouts/schema.py"
_POINT_COLUMNS = (
    Column("prompt_id", "prompt of a completion", file=_TABLE),
    Column("sample_id", "its number among those of the prompt", file=_TABLE),
    Column("reward", "reward", file=_TABLE),
    Column("length", "tokens that count"),
    Column("sq_norm", "‖S‖², squared norm of the gradient of its log-probability", file="measurement/measurement.py"),
    Column("truncated", "whether it was cut off at the cap"),
    Column("energy", "summed energy of its tokens", file="stats/token_profiles.py"),
)


_WITHIN = ["alpha_within", "alpha_within_low", "alpha_within_high"]


def with_alpha_within(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a fit with α within prompts beside it, as its ``.attrs`` state it."""
    within = frame.attrs.get("within_prompt") or {}
    known = dict(zip(_WITHIN, (within.get(name) for name in ("alpha", "alpha_low", "alpha_high")), strict=True))
    return frame.assign(**known).astype(dict.fromkeys(_WITHIN, float))


def _shown(frame: pd.DataFrame) -> pd.DataFrame:
    """Return fits with α within prompts where it is known, and R² in two digits."""
    frame = frame if _WITHIN[0] in frame else with_alpha_within(frame)
    unknown = [] if frame[_WITHIN[0]].notna().to_numpy().any() else _WITHIN
    return frame.drop(columns=unknown).assign(r_squared=frame["r_squared"].round(2))


def _caption(frame: pd.DataFrame) -> str:
    kinds = " and ".join(
        dict.fromkeys(
            f"{method}, {interval} interval"
            for method, interval in zip(frame["method"], frame["interval"], strict=True)
        )
    )
    prompts = ", ".join(str(number) for number in dict.fromkeys(frame["n_prompts"]))
    levels = " or ".join(map(percent, sorted(set(frame["confidence_level"]))))
    return (
        f"Length exponent α with {levels} intervals ({kinds}): the norm of a "
        "completion's gradient grows like the power α of its length; a group baseline uses that within prompts. "
        f"n completions of {prompts} prompts."
    )


#: Columns of the fit that papers and pages leave out.
_ON_SCREENS = {"alpha_stderr": "standard error", "slope": "slope 2α"}
ANALYSIS = Analysis(
    name="alpha",
    ask=alpha_report,
    options=("method", "interval"),
    columns=tuple(
        replace(one, heading=_ON_SCREENS[one.name], places=("terminal",)) if one.name in _ON_SCREENS else one
        for one in chosen(
            (
                *FIT_COLUMNS,
                Column("run", "name of the run", file="report/analysis_tables.py"),
                Column("alpha_within", "α within prompts, that of a group baseline", estimated=True),
            ),
            {"alpha": "α", "alpha_within": "α within prompts", "r_squared": "R²", "n": "n"},
        )
    ),
    display_frame=_shown,
    row_name=lambda row: row.get("run", row["method"]),
    row_heading=lambda frame: "run" if "run" in frame else "method",
    caption=_caption,
    source=load_points,
    section="length_scaling",
    in_run=lambda measured, experiment: experiment.length_scaling.arguments(),
    further=(FurtherTable(POINTS, AlphaReport.points_frame, _POINT_COLUMNS),),
    figures=(
        AnalysisFigure(
            "length_scaling",
            "Squared gradient norm of each completion against its length, with the fitted power law.",
            _draw_length_scaling,
            table=POINTS,
            rows=_fitted,
        ),
        AnalysisFigure(
            "alpha_energy",
            "Squared gradient norm and summed token energy against length; the gap between them is correlation.",
            _draw_energies,
            table=POINTS,
            rows=_with_energy,
        ),
    ),
)
