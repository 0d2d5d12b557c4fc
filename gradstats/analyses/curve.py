"""Which value of an estimator's parameter is best?"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from gradstats import estimators as families
from gradstats.analyses.declaration import (
    Analysis,
    AnalysisFigure,
    Column,
    chosen,
    clipping_of,
    level_of,
    missing_sketches,
    size_of_groups,
)
from gradstats.analyses.numbers import minimiser_with_interval, percent, percentage_at_most
from gradstats.analyses.results import RemarkedResult, at_level
from gradstats.analyses.variance import COLUMNS, VarianceComparison, compare
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators import Batch, Recipe
from gradstats.estimators.by_label import with_parameter
from gradstats.estimators.display_names import distinct_names
from gradstats.estimators.estimator import Weighting
from gradstats.plots.group_size import plot_group_size
from gradstats.plots.marks import (
    WithFrame,
    as_frame,
    draw_nothing,
    estimates_of,
    interval_keys,
    legend_below,
    legend_height,
    mark_without_interval,
    quantity_to_draw,
    require_columns,
    with_ends,
)
from gradstats.plots.names import LABELS, in_mathematics, reference_name
from gradstats.plots.style import edge, ink, muted, paper, stroke
from gradstats.plots.variance import plain_ticks
from gradstats.stats.intervals import carriers_of, studentised_ratio
from gradstats.stats.jackknife import UNKNOWN, Estimate, interval_columns
from gradstats.stats.length_scaling.alpha import LengthScalingFit, fit_length_scaling
from gradstats.stats.protocols import MeasuredGradients
from gradstats.stats.variance.minimiser import Minimiser, minimiser_of
from gradstats.stats.variance.quantities import (
    COMPARED,
    JUDGED,
    QUANTITIES,
    Quantity,
    axis_label,
    filled_in,
    in_metric,
    simultaneous,
)
from gradstats.system.lazy_imports import mpl, pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gradstats.measurement.measurement import Measurement

#: The parameter that is not an estimator's: completions per group. Along it an equal total of completions is judged.
_GROUP_SIZE, _PER_COMPLETION = "group_size", "per_completion"
#: Quantities whose simultaneous intervals a curve has beside those of a comparison.
_JUDGED_TOGETHER = ("cosine", "matched_bias_share")
#: Fits whose exponents are marked on a curve of length weights, and what each is called.
_FITTED_EXPONENTS = {"ols": "pooled", "within_prompt": "within prompts", "gamma": "of the mean"}


@dataclass(frozen=True, repr=False)
class VarianceCurve(RemarkedResult):
    r"""The variance :math:`V(β) = \mathrm{tr\,Cov}(ĝ_β)` of an estimator along a parameter, with its lowest point.

    Attributes:
        estimator: its label, as it was given.
        parameter: the parameter that is varied.
        values: (k,) its values, increasing.
        comparison: the estimator at each value, a row each, on the same completions.
        lowest: where the relative noise is lowest, at levels at which it is resolved at every value.
        fits: exponents that may be plugged in, by name, where the parameter is the exponent of length weights.
        remarks: what a reader of the curve has to know, one sentence each.
        per_completion: along ``group_size``, the noise at an equal total of completions over that at the largest size.
    """

    question: ClassVar[str] = "curve"

    printed_columns: ClassVar[tuple[str, ...]] = ("value", "trace_cov", "ratio", "matched_ratio", "cosine")

    estimator: str
    parameter: str
    values: Float[np.ndarray, " k"]
    comparison: VarianceComparison
    lowest: Minimiser | None = field(repr=False)
    fits: dict[str, LengthScalingFit] = field(default_factory=dict, repr=False)
    remarks: tuple[str, ...] = ()
    per_completion: tuple[Estimate, ...] = field(default=(), repr=False)

    def notes_at(self, confidence_level: float) -> tuple[str, ...]:
        """Return the remarks, and at which ends of the curve the interval of the minimiser is cut."""
        (low, high), lowest = self.confidence_interval(confidence_level), self.lowest_at(confidence_level)
        remarks = at_level(self.remarks, confidence_level)
        if lowest is None:
            why = "where the variance is lowest is not known, since it is not resolved at every value"
            return (*remarks, f"{why}: measure more prompts")
        if lowest.discrete or not low < high:
            return remarks
        ends = ((low, self.values[0], "first", "below"), (high, self.values[-1], "last", "above"))
        interval = f"the {percent(confidence_level)} interval of {self.parameter}"
        cut = [
            f"{interval} is cut at {end:g}, the {name} value: ask {away} it as well"
            for at, end, name, away in ends
            if at == end
        ]
        return (*remarks, *cut)

    def lowest_at(self, confidence_level: float) -> Minimiser | None:
        """Return where the relative noise is lowest; None where it is not resolved at every value at a level."""
        noises = [row.matched_ratio.with_interval(confidence_level)[0] for row in self.comparison.rows]
        return self.lowest if np.isfinite(noises).all() else None

    @property
    def minimiser(self) -> float:
        """The value at which the relative noise is lowest; NaN where it is not known at 95 %.

        For ``group_size`` it is the variance at an equal total of completions.
        """
        return self._minimiser_at(CONFIDENCE_LEVEL)

    def _minimiser_at(self, confidence_level: float) -> float:
        lowest = self.lowest_at(confidence_level)
        return np.nan if lowest is None else lowest.value

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval of the minimiser; :class:`gradstats.stats.variance.minimiser.Minimiser` defines it."""
        lowest = self.lowest_at(confidence_level)
        return (np.nan, np.nan) if lowest is None else lowest.confidence_interval(confidence_level)

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per value: ``value``, then the columns of :func:`gradstats.compare`, all with pointwise intervals.

        ``ratio``, ``matched_ratio``, ``cosine`` and ``matched_bias_share`` have simultaneous intervals as well
        (``ratio_simultaneous_low``, ``cosine_simultaneous_low``, ``matched_bias_share_simultaneous_low``, …), between
        which they lie at all values at once. ``.attrs`` hold what the comparison's do, ``curve`` and ``parameter``, the
        ``minimiser`` with its interval, and the rows of :meth:`fits_frame` as ``fits``. Along ``group_size`` the noise
        at an equal total of completions, over that at the largest size, is ``per_completion`` with its interval.

        Raises:
            ValueError: for a level outside (0, 1).
        """
        frame = self.comparison.to_frame(confidence_level)
        frame.insert(0, "value", self.values)
        if self.per_completion and self.lowest_at(confidence_level) is not None:
            intervals = [one.with_interval(confidence_level) for one in self.per_completion]
            frame[with_ends(_PER_COMPLETION)] = np.array(intervals)
        for name in _JUDGED_TOGETHER:
            ends = simultaneous([row.quantities[name] for row in self.comparison.rows], confidence_level)
            frame[f"{name}_simultaneous_low"], frame[f"{name}_simultaneous_high"] = np.array(ends).T
        frame.attrs |= {
            "curve": self.estimator,
            "parameter": self.parameter,
            **interval_columns(
                {"minimiser": (self._minimiser_at(confidence_level), *self.confidence_interval(confidence_level))}
            ),
            "fits": self.fits_frame(confidence_level).to_dict("records"),
            "notes": list(self.notes_at(confidence_level)),
        }
        return frame

    def fits_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """One row per fitted exponent: ``fit``, ``value`` and its interval, ``ratio_to_lowest`` and its interval.

        The last is the variance with this exponent plugged in over that at the minimiser.
        """
        rows, lowest = [], self.lowest_at(confidence_level)
        for name, fit in self.fits.items():
            low, high = fit.confidence_interval(confidence_level)
            ratio = UNKNOWN if lowest is None else lowest.relative_to_lowest(fit.alpha, confidence_level)
            rows.append((name, fit.alpha, low, high, *ratio))
        columns = ["fit", "value", "value_low", "value_high"]
        return pd.DataFrame(rows, columns=[*columns, *(f"ratio_to_lowest{end}" for end in ("", "_low", "_high"))])

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State where the relative noise is lowest, and what the fitted exponents cost at most.

        An end of the interval that is the first or last value is written with ≤ or ≥: the minimiser may lie beyond it.
        """
        lowest, value = self.lowest_at(confidence_level), self._minimiser_at(confidence_level)
        if not np.isfinite(value):
            if lowest is not None:  # clips that no ratio reaches, as on-policy
                return f"The variance of {self.estimator} does not depend on {self.parameter} on these completions."
            return f"Where {self.estimator} has its lowest variance along {self.parameter} is not known."
        low, high = self.confidence_interval(confidence_level)
        at = minimiser_with_interval(value, low, high, self.values)
        per_completion = " at an equal total of completions" if self.parameter == _GROUP_SIZE else ""
        text = f"{self.estimator} has the least relative noise{per_completion} at {self.parameter} = {at}"
        if lowest is not None and lowest.is_at_an_end:
            return f"{text}, an end of the range: it may be less beyond."
        costs = [float(cost) for cost in self.fits_frame(confidence_level)["ratio_to_lowest"].dropna()]
        if not costs:
            return f"{text}."
        return f"{text}; a fitted α takes up to {percentage_at_most(max(costs) - 1.0, 1)} more samples."


def variance_curve(
    measured_or_batch: Batch | MeasuredGradients,
    estimator: str | Weighting,
    parameter: str,
    values: npt.ArrayLike,
    scores: npt.ArrayLike | None = None,
    *,
    state_values: npt.ArrayLike | None = None,
    **options: Any,
) -> VarianceCurve:
    r"""Follow variance, cosine and bias of an estimator along one of its parameters, on the same completions.

    With β the parameter the variance is :math:`V(β) = \mathrm{tr\,Cov}(ĝ_β)`.
    Every row is that of :func:`gradstats.compare` for the estimator at this value: ratios and differences are paired.
    The minimiser of the relative noise has an interval from a delete-one-prompt jackknife
    (:class:`gradstats.stats.variance.minimiser.Minimiser`). For ``alpha`` of ``length_weighted`` the exponents of
    three fits stand beside it, each with what plugging it in costs: the pooled line, the line within prompts, and that
    of the mean :math:`E[‖S‖² | T]`.

    Args:
        measured_or_batch: a measurement, or a :class:`gradstats.estimators.Batch` with ``scores``.
        estimator: a label, where the parameter may be missing, as in ``"length_weighted(loo=True)"``, or an estimator
            or recipe.
        parameter: the parameter's name: ``alpha`` of ``length_weighted``, ``delta`` of ``asymmetric``, ``tau`` of
            ``kimi``, ``lam`` of ``gae``, ``eps_high`` of a recipe. ``"clip_width"`` sets ``eps_low`` and
            ``eps_high``; ``"group_size"`` varies the completions per group, which is the order k of ``pass_at_k``,
            and the minimiser is then that of the variance at an equal total of completions.
        values: at least two different values of it, in any order; a command reads alpha=0:2:41 (first, last, how many)
            or ``group_size=2,4,8``.
        scores: as for :func:`gradstats.compare`.
        state_values: the field ``values`` of the measurement's batch, for ``gae``.
        **options: the other arguments of :func:`gradstats.compare`.

    Returns:
        A :class:`VarianceCurve`.

    Raises:
        TypeError: for an estimator without this parameter, otherwise as :func:`gradstats.compare`.
        ValueError: for fewer than two different values, several group sizes beside another parameter, values that the
            parameter does not accept, otherwise as :func:`gradstats.compare`.

    Example:
        >>> import numpy as np
        >>> import gradstats as gs
        >>> rng = np.random.default_rng(0)
        >>> rewards, lengths = rng.integers(0, 2, 400), rng.integers(10, 100, 400)
        >>> batch = gs.estimators.Batch(rewards, lengths, np.repeat(np.arange(100), 4))
        >>> scores = (rewards[:, None] + rng.normal(size=(400, 8))) * np.sqrt(lengths)[:, None]
        >>> curve = gs.variance_curve(batch, "asymmetric(loo=True)", "delta", np.linspace(-0.5, 0.5, 11), scores)
        >>> low, high = curve.confidence_interval()
        >>> bool(low < curve.minimiser < high)
        True
    """
    grid = np.unique(np.asarray(values, dtype=np.float64))
    if len(grid) < 2 or not np.isfinite(grid).all():
        raise ValueError(f"values of {parameter} must be at least two different finite numbers, got {grid.tolist()}")
    if state_values is not None:
        options["values"] = state_values
    label = estimator if isinstance(estimator, str) else estimator.label
    if parameter == _GROUP_SIZE:
        chosen: list[Weighting] = [families.get(estimator)]
        options[_GROUP_SIZE] = [_whole(value) for value in grid]
    else:
        if np.size(np.asarray(options.get(_GROUP_SIZE))) > 1:
            raise ValueError(f"a curve along {parameter} has one group size, got {options[_GROUP_SIZE]}: choose one")
        chosen = [with_parameter(estimator, parameter, value) for value in grid]
    with warnings.catch_warnings():  # the notes of the curve say the same
        warnings.simplefilter("ignore", UserWarning)
        comparison = compare(measured_or_batch, chosen, scores, **options)
    variances = [row.at_matched_signal for row in comparison.rows]
    if parameter == _GROUP_SIZE:
        variances = [None if one is None else one.scaled(size) for one, size in zip(variances, grid, strict=True)]
    lowest = minimiser_of(grid, variances, discrete=_counts(chosen, parameter))
    per_completion: list[Estimate] = []
    if parameter == _GROUP_SIZE and lowest is not None:
        carriers = min(carriers_of(row.trace_cov) for row in comparison.rows)
        per_completion = [studentised_ratio(one, lowest.variances[-1], carriers) for one in lowest.variances]
    advantage = chosen[0].advantage if isinstance(chosen[0], Recipe) else chosen[0]
    by_length = parameter == "alpha" and advantage.name == "length_weighted"
    fits = _fitted_exponents(measured_or_batch, scores) if by_length else {}
    return VarianceCurve(label, parameter, grid, comparison, lowest, fits, comparison.remarks, tuple(per_completion))


def _whole(value: float) -> int:
    if not float(value).is_integer():
        raise ValueError(f"{_GROUP_SIZE}={value:g} must be a whole number of completions")
    return index(int(value))


def _counts(chosen: Sequence[Weighting], parameter: str) -> bool:
    """Return whether a parameter counts something, so that there is nothing between its values."""
    parameters = getattr(chosen[0], "parameters", {})
    return parameter == _GROUP_SIZE or isinstance(parameters.get(parameter), int)


def _fitted_exponents(
    measured_or_batch: Batch | MeasuredGradients, scores: npt.ArrayLike | None
) -> dict[str, LengthScalingFit]:
    """Return the exponents of :data:`_FITTED_EXPONENTS` that these completions allow, by name."""
    batch = measured_or_batch if isinstance(measured_or_batch, Batch) else Batch.from_measurement(measured_or_batch)
    sq_norms = batch.sq_norms
    if sq_norms is None:
        values = np.asarray(scores, dtype=np.float64)
        whole = values if values.ndim == 2 else np.where(batch.mask[:, :, None], values, 0.0).sum(axis=1)
        sq_norms = np.einsum("nd,nd->n", whole, whole)
    fits = {}
    for method, name in _FITTED_EXPONENTS.items():
        try:
            fits[name] = fit_length_scaling(
                lengths=batch.lengths, sq_norms=sq_norms, groups=batch.groups, method=method
            )
        except ValueError:  # too few lengths, one completion a prompt, or a norm of 0: there is no such fit
            continue
    return fits


#: Quantities below each other in the figure of a run, and the share of its height that each takes.
_CURVE_PANELS = {JUDGED.name: 2.0, "cosine": 1.0, "matched_bias_share": 1.0}
# The raw variance, which stands beside the matched one.
_RAW = "ratio"
# Lines are told apart in grey: by dashes, and by markers where they end.
_DASHES = ((0, (4, 1.5)), (0, (1, 1)), (0, (4, 1.5, 1, 1.5)))
# Shares of the height of axes: where the minimiser stands, and what is kept free for it.
_MINIMISER_AT, _ROOM_BELOW = 0.08, 0.14
# Inches of a panel whose share is 1, and of the axis below.
_PANEL, _AXIS = 0.75, 0.45


def plot_variance_curve(table: WithFrame | pd.DataFrame, *, ax: Axes | None = None, value: str = JUDGED.name) -> Axes:
    """Draw one quantity along a parameter, with its pointwise band and, thin, the simultaneous one.

    The raw variance is a dotted line beside the relative noise. Where the frame has a minimiser, a diamond with its
    interval marks it on the horizontal axis, an arrow an end of the interval that is the first or last value, beyond
    which it may lie. Vertical lines mark the exponents that fits give.

    Args:
        table: a :class:`gradstats.analyses.VarianceCurve` or its frame.
        ax: where to draw; None makes a figure, higher for more entries in the legend below.
        value: the quantity, one of :func:`gradstats.compare`'s.

    Returns:
        The axes.

    Raises:
        ValueError: for an unknown value, or a frame without its columns.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    quantity = quantity_to_draw(value, COMPARED)
    require_columns(frame, ["value", *with_ends(value)], "draw what variance_curve() gives")
    own, keys = ax is None, interval_keys(frame, [value])
    if ax is None:
        width, height = mpl.rcParams["figure.figsize"]
        _, ax = plt.subplots(
            figsize=(width, height + legend_height(list(_labels(frame).values()), keys)), layout="constrained"
        )
    _draw(ax, frame, quantity)
    _draw_parameters(ax, frame)
    plain_ticks(ax, ax.get_yscale() == "log", most=4, vertical=True)
    ax.set_xlabel(_parameter(frame))
    if own:
        legend_below(ax, keys)
    return ax


def plot_variance_curve_panels(table: WithFrame | pd.DataFrame) -> list[Axes]:
    """Draw variance, cosine and bias below each other along a parameter, on a figure of its own.

    Args:
        table: as for :func:`plot_variance_curve`.

    Returns:
        The axes, from the top.

    Raises:
        ValueError: as :func:`plot_variance_curve`.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    width = mpl.rcParams["figure.figsize"][0]
    height = (_PANEL * sum(_CURVE_PANELS.values()) + _AXIS) * mpl.rcParams["font.size"] / 8.0
    keys = interval_keys(frame, list(_CURVE_PANELS))
    height += legend_height(list(_labels(frame).values()), keys)
    _, grid = plt.subplots(
        len(_CURVE_PANELS),
        1,
        figsize=(width, height),
        sharex=True,
        height_ratios=list(_CURVE_PANELS.values()),
        layout="constrained",
    )
    for ax, name in zip(grid, _CURVE_PANELS, strict=True):
        plot_variance_curve(frame, ax=ax, value=name)
        label = filled_in(quantity_to_draw(name, COMPARED).panel_label, frame.attrs, reference_name(frame))
        ax.set_ylabel(in_mathematics(in_metric(label, frame.attrs) if ax is grid[0] else label))
        ax.set_xlabel("")
    grid[-1].set_xlabel(_parameter(frame))
    legend_below(grid[0], keys)
    return list(grid)


def _draw(ax: Axes, frame: pd.DataFrame, quantity: Quantity) -> None:
    name = quantity.name
    at = frame["value"].to_numpy(dtype=float)
    centre, low, high = estimates_of(frame, name).T
    if not np.isfinite(centre).any():
        draw_nothing(ax, "not resolved")
    labels = _labels(frame)
    marker = "o" if len(frame) <= 12 else ""
    label = labels["matched"] if name == JUDGED.name else None
    ax.plot(at, centre, color=ink(), marker=marker, label=label, zorder=4)
    ax.fill_between(at, low, high, color=muted(0.29), linewidth=0, zorder=2)
    mark_without_interval(ax, at, centre, low, high)
    together = [f"{name}_simultaneous_{end}" for end in ("low", "high")]
    if set(together) <= set(frame):
        for end in together:
            ax.plot(at, frame[end].to_numpy(dtype=float), color=ink(), linewidth=stroke(0.5), zorder=3)
    if name == JUDGED.name and _RAW in frame and not np.allclose(frame[_RAW], centre, rtol=1e-9, equal_nan=True):
        ax.plot(at, frame[_RAW].to_numpy(dtype=float), color=muted(0.75), linestyle=":", label=labels["raw"], zorder=3)
    logarithmic = quantity.logarithmic and bool((centre > 0).any())
    if logarithmic:
        ax.set_yscale("log")
    if quantity.landmark is not None and len(frame):
        ax.axhline(quantity.landmark, color=muted(), linewidth=stroke(0.6), linestyle="--", zorder=1)
    ax.set_ylabel(in_mathematics(axis_label(quantity, frame.attrs, reference_name(frame))))


def _draw_parameters(ax: Axes, frame: pd.DataFrame) -> None:
    """Mark the minimiser with its interval, and exponents that were fitted."""
    labels = _labels(frame)
    first = labels["matched"] in ax.get_legend_handles_labels()[1]  # of several panels one has the entries
    for dashes, fit in zip(_DASHES, _fits(frame), strict=False):
        text = labels[str(fit["fit"])] if first else None
        ax.axvline(float(fit["value"]), color=muted(0.7), linestyle=dashes, linewidth=stroke(0.9), label=text, zorder=1)
    if "lowest" in labels:
        lowest, low, high = (float(frame.attrs[f"minimiser{end}"]) for end in ("", "_low", "_high"))
        along = ax.get_xaxis_transform()
        _make_room_below(ax)
        ax.plot(
            [low, high], [_MINIMISER_AT, _MINIMISER_AT], color=ink(), linewidth=stroke(2.0), transform=along, zorder=5
        )
        start, stop = _range(frame)
        for end, marker, is_cut in ((low, "<", low <= start), (high, ">", high >= stop)):
            if is_cut:
                ax.plot([end], [_MINIMISER_AT], marker=marker, color=ink(), linestyle="", transform=along, zorder=5)
        ax.plot(
            [lowest], [_MINIMISER_AT], marker="D", linestyle="", color=paper(), transform=along, zorder=6,
            label=labels["lowest"] if first else None, **{**edge(), "markeredgewidth": stroke(0.9)},
        )  # fmt: skip


def _make_room_below(ax: Axes) -> None:
    """Lower the end of the vertical axis, so that the minimiser stands between the axis and the curve."""
    low, high = ax.get_ylim()
    share = _ROOM_BELOW / (1.0 - _ROOM_BELOW)
    ax.set_ylim(low * (low / high) ** share if ax.get_yscale() == "log" else low - share * (high - low), high)


def _labels(frame: pd.DataFrame) -> dict[str, str]:
    """Return the entries of the legend, by what they stand for."""
    curve = str(frame.attrs.get("curve", "the estimator"))
    labels = {
        "matched": distinct_names([curve], frame.attrs.get(LABELS))[curve],
        "raw": "without matching (no interval)",
    }
    lowest, low, high = (frame.attrs.get(f"minimiser{end}") for end in ("", "_low", "_high"))
    if lowest is not None and low is not None and high is not None and np.isfinite([lowest, low, high]).all():
        labels["lowest"] = f"lowest: {minimiser_with_interval(lowest, low, high, _range(frame))}"
    for fit in _fits(frame):
        labels[str(fit["fit"])] = f"α {fit['fit']}: {float(fit['value']):.2f}"
    return labels


def _range(frame: pd.DataFrame) -> tuple[float, float]:
    """Return the first and the last value of the parameter."""
    if "value" not in frame or not len(frame):  # refused or left empty where it is drawn
        return -np.inf, np.inf
    at = frame["value"].to_numpy(dtype=float)
    return float(at.min()), float(at.max())


def _fits(frame: pd.DataFrame) -> Sequence[Mapping[str, float | str]]:
    return frame.attrs.get("fits", [])


def _parameter(frame: pd.DataFrame) -> str:
    name = str(frame.attrs.get("parameter", "parameter"))
    return {"alpha": r"exponent $\alpha$", "delta": r"shift $\delta$", "tau": r"$\tau$", "lam": r"$\lambda$"}.get(
        name, name.replace("_", " ")
    )


def draw_curve(frame: pd.DataFrame) -> object:
    """Draw a curve: variance at an equal total of completions for group sizes, otherwise all its panels."""
    if frame.attrs.get("parameter") == _GROUP_SIZE:
        label = str(frame.attrs.get("curve", "estimator"))
        return plot_group_size(frame.assign(estimator=label, group_size=frame["value"]), value="trace_cov")
    return plot_variance_curve_panels(frame)


def _figure_caption(frame: pd.DataFrame) -> str:
    about = frame.attrs
    return (
        f"Variance, cosine and bias of {about.get('curve')} along {about.get('parameter')}: {level_of(frame)}pointwise "
        "bands (grey) and simultaneous ones (thin lines); the diamond is the lowest point with its interval."
    )


def _caption(frame: pd.DataFrame) -> str:
    about, size = frame.attrs, size_of_groups(frame)
    groups = f"groups{size} completions" if size else "groups of several sizes"
    return (
        f"{about.get('curve')} along {about.get('parameter')}, {groups}, "
        f"with pointwise {level_of(frame)}intervals over {about.get('n_prompts')} prompts.{clipping_of(frame)}"
    )


def _row_name(row: dict[str, Any]) -> str:
    return f"{row['value']:.4g}".replace("-", "−")


def parameter_values(text: str) -> tuple[str, np.ndarray]:
    """Read a parameter and its values: ``alpha=0:2:41``, first, last and how many, or ``k=1,2,4``.

    Raises:
        ValueError: for anything else.

    Example:
        >>> parameter_values("alpha=0:1:3")
        ('alpha', array([0. , 0.5, 1. ]))
    """
    name, _, given = text.partition("=")
    try:
        if ":" in given:
            first, last, count = given.split(":")
            values = np.linspace(float(first), float(last), int(count)).round(12)  # of −0.3, …, 0.1 the 0 is 0
        else:
            values = np.array([float(value) for value in given.split(",")])
    except ValueError:
        values = np.array([])
    if not name.isidentifier() or len(values) < 2:
        raise ValueError(
            f"{text!r} cannot be read as a parameter with values: write alpha=0:2:41 (first, last, how many), or "
            "group_size=2,4,8"
        )
    return name, values


def _ask_curve(measured: Measurement, estimator: str, values: str, **options: Any) -> VarianceCurve:
    """Follow an estimator along a parameter, as :func:`gradstats.variance_curve` does.

    Args:
        measured: a measurement.
        estimator: a label, where the parameter may be missing, as in "length_weighted(loo=True)".
        values: the parameter and its values: alpha=0:2:41 (first, last, how many), or group_size=2,4,8.
        **options: those of the comparison.
    """
    parameter, numbers = parameter_values(values)
    return variance_curve(measured, estimator, parameter, numbers, **options)


_SHOWN = {name: QUANTITIES[name].heading for name in (_RAW, *_CURVE_PANELS)}
ANALYSIS = Analysis(
    name="curve",
    ask=_ask_curve,
    unavailable_because=missing_sketches,
    options=(
        "estimator", "values", "group_size", "reference", "target", "prompts_per_batch", "n_resamples",
        "max_grad_norm", "rng",
    ),
    columns=(
        Column("value", "of the parameter"),
        Column(
            _PER_COMPLETION,
            "noise at an equal total of completions over that at the largest size",
            "noise at equal completions",
            estimated=True,
            short=True,
        ),
        *chosen(COLUMNS, _SHOWN, short=(JUDGED.name, "matched_bias_share")),
        Column("cosine_simultaneous", "that holds at all values at once"),
        Column("matched_bias_share_simultaneous", "that holds at all values at once"),
    ),
    row_heading=lambda frame: str(frame.attrs.get("parameter")),
    row_name=_row_name,
    caption=_caption,
    figures=(AnalysisFigure("curve", _figure_caption, draw_curve),),
)  # fmt: skip
