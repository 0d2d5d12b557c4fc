"""What the cells of a sweep found, against a setting that varies: small panels of one width."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from gradstats.plots.marks import (
    WithFrame,
    as_frame,
    draw_intervals,
    estimates_of,
    interval_keys,
    legend_below,
    legend_height,
    require_columns,
)
from gradstats.plots.names import (
    Appearance,
    estimator_appearance,
    in_mathematics,
    names_in,
    reference_name,
    variants,
    wrapped_to_axis,
)
from gradstats.plots.style import edge, ink, stroke
from gradstats.plots.variance import draw_landmark, plain_ticks
from gradstats.stats.variance.quantities import JUDGED, QUANTITIES, filled_in
from gradstats.system.lazy_imports import mpl, pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: What is drawn of a cell, and its axis label.
_OF_CELLS = {"alpha": "α", "mean_length": "mean length (tokens)", "mean_reward": "mean reward"}
#: What is drawn of the reference, along a training run; the second is the critical batch size.
_OF_REFERENCE = ("trace_cov", "noise_to_signal")
#: What is drawn of each estimator, and is 1 for the reference.
_OF_ESTIMATORS = (JUDGED.name,)
#: The column that names the cells.
CELL = "cell"
_STYLES = ("-", "--", ":", "-.")
_ROW_INCHES = 1.35
# The names of checkpoints of training runs: step-1000, runs/a/checkpoint-50.
_TRAINING_STEP = re.compile(r"(?:.*[/\\])?(?:step|checkpoint)-(\d+)")
_MOST_TICKS = 6
# A ratio is not drawn where an end of its interval is further than this from it, nor such an end of another quantity.
_FARTHEST = 1e3


@dataclass(frozen=True)
class _Axis:
    """The horizontal axis: a setting, its values in order, where they stand, and what is written there."""

    setting: str
    label: str
    values: list[float] | list[str]
    places: Float[np.ndarray, " k"]
    numeric: bool

    def places_of(self, rows: pd.DataFrame) -> Float[np.ndarray, " rows"]:
        """Return where the values of some rows stand."""
        values = rows[self.setting] if self.numeric else rows[self.setting].astype(str)
        return self.places[[list(self.values).index(value) for value in values]]


def varying_settings(frame: pd.DataFrame, varied: Sequence[str]) -> list[str]:
    """Return the settings that take several values, without those that another one decides.

    Of several that always change together, the first that all cells state is returned. Where each of them alone joins
    no two cells, as in a list of cells that differ in several settings, or none is stated by all cells, it is
    ``["cell"]``, the column that names them.
    """
    several = [name for name in varied if len(set(_texts(frame, name))) > 1]
    several.sort(key=lambda name: bool(frame[name].isna().any()))
    found = [
        name
        for place, name in enumerate(several)
        if not any(
            _decides(frame, other, name) and (at < place or not _decides(frame, name, other))
            for at, other in enumerate(several)
            if at != place
        )
    ]
    if found and all(bool(frame[name].isna().any()) for name in found):
        return [CELL]
    joined = any(_joins_cells(frame, name, [other for other in found if other != name]) for name in found)
    return found if joined or not found else [CELL]


def plot_sweep(
    table: WithFrame | pd.DataFrame,
    setting: str,
    *,
    varied: Sequence[str] = (),
    estimators: Sequence[str] | None = None,
) -> list[Axes]:
    """Draw α, mean length, mean reward and the relative noise of estimators against a setting, with intervals.

    Mean length and reward are left out where they are equal in all cells, as where the same completions are measured.
    Numbers stand at their values, on a log scale where the largest is at least four times the smallest, other settings
    side by side. A setting whose values name checkpoints of a training run (``step-1000``, ``RUN/checkpoint-50``) is
    drawn against the training step, with the variance and the noise-to-signal of the reference. A relative
    noise that is not known within a factor of 1,000 is left out, as the legend states. A triangle stands at the
    bound of a quantity that is known from one side only. Where further settings vary, cells that agree in them are
    joined by a line of the same style, as the legend states. Cells that no setting orders (``setting="cell"``) stand
    side by side under numbers, which the legend explains.

    Args:
        table: a sweep, or its frame.
        setting: the column on the horizontal axis, such as ``"sampling.temperature"``.
        varied: the columns of all settings that vary.
        estimators: labels of those to draw; all but the reference by default.

    Returns:
        The axes of the panels.

    Raises:
        ValueError: for a frame without its columns, or an estimator without a row.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    require_columns(frame, ["cell", setting, "alpha", "estimator"], "draw what gradstats.read_sweep() gives")
    drawn = _drawn(frame, estimators)
    steps = training_steps(_texts(frame, setting))
    if steps is not None:
        frame = frame.assign(**{setting: steps})
    others = [name for name in varying_settings(frame, varied) if not _decides(frame, setting, name)]
    lines = _lines(frame, others)
    styles = _styles(lines) if setting != CELL else ["none"]  # unlike cells are joined by no line
    axis = _axis_of(frame, setting, training=steps is not None)
    panels = [name for name in _OF_CELLS if _is_found(frame, name)]
    if steps is not None:
        panels += [name for name in _OF_REFERENCE if name in frame and np.isfinite(frame[f"{name}_low"]).any()]
    panels += [name for name in _OF_ESTIMATORS if drawn and name in frame]
    rows = -(-len(panels) // 2)
    names, keys = names_in(frame), interval_keys(frame, panels)
    # The axis has no room for the names of cells.
    cells = enumerate(axis.values, start=1) if setting == CELL else ()
    numbered = [f"{at}: {str(cell).replace(',', ', ')}" for at, cell in cells]
    if any(_unresolved(estimates_of(frame, name)).any() for name in panels if name in _OF_ESTIMATORS):
        numbered.append(f"not drawn: not known within a factor of {_FARTHEST:,.0f}")
    labels = [*(names[name] for name in drawn), *(label for label, _ in lines if label), *numbered]
    height = rows * _ROW_INCHES * mpl.rcParams["font.size"] / 8.0 + legend_height(labels, keys)
    _, grid = plt.subplots(
        rows, 2, figsize=(mpl.rcParams["figure.figsize"][0], height), squeeze=False, layout="constrained"
    )
    axes = list(grid.ravel())
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    for ax, name in zip(axes, panels, strict=False):
        for style, (_, cells) in zip(styles, lines, strict=True):
            series = _series(cells, name, drawn)
            for place, ((_, part), look) in enumerate(zip(series, _looks([one for one, _ in series]), strict=True)):
                _draw(ax, part, axis, name, look | {"linestyle": style}, place - (len(series) - 1) / 2.0)
        _finish(ax, frame, axis, name)
    for style, (label, _) in zip(_styles(lines), lines, strict=True):
        if label:
            axes[0].plot([], [], color=ink(), linestyle=style, linewidth=stroke(1.0), label=label)
    for label, look in zip(drawn, _looks(drawn), strict=True):
        axes[0].plot([], [], linewidth=stroke(1.0), label=names[label], **look, **edge())
    for label in numbered:
        axes[0].plot([], [], linestyle="none", label=label)
    legend_below(axes[0], keys)
    return axes[: len(panels)]


def _is_found(frame: pd.DataFrame, name: str) -> bool:
    """Whether a quantity of the cells is known, and differs between them, as it does not on the same completions."""
    cells = frame.drop_duplicates(CELL)
    values = set(cells[name].dropna())
    return len(values) > 1 or (len(values) == 1 and (len(cells) == 1 or name == "alpha"))


def _drawn(frame: pd.DataFrame, estimators: Sequence[str] | None) -> list[str]:
    """Return the labels of the estimators to draw; by default all but the reference."""
    known = [str(name) for name in dict.fromkeys(frame["estimator"].dropna())]
    if estimators is not None:
        missing = [name for name in estimators if name not in known]
        if missing:
            raise ValueError(f"estimators: no cell has a row of {missing[0]!r}: choose from {', '.join(known)}")
        return list(estimators)
    if JUDGED.name not in frame:
        return []
    return [name for name in known if name != frame.attrs.get("reference")]


def training_steps(names: Sequence[str]) -> list[int] | None:
    """Return the training steps that names of checkpoints state, as ``step-1000`` does; None where one states none.

    >>> training_steps(["step-1000", "runs/a/checkpoint-50"]), training_steps(["step-1000", "main"])
    ([1000, 50], None)
    """
    found = [_TRAINING_STEP.fullmatch(name) for name in names]
    return [int(match[1]) for match in found if match] if all(found) else None


def _series(cells: pd.DataFrame, name: str, drawn: Sequence[str]) -> list[tuple[str, pd.DataFrame]]:
    """Return what is drawn of some cells in a panel: estimator, or nothing, and its rows."""
    if name in _OF_CELLS:
        return [("", cells.drop_duplicates("cell"))]
    if name in _OF_REFERENCE:
        return [("", pd.DataFrame(cells.loc[cells["estimator"] == cells.attrs.get("reference")]))]
    return [(label, pd.DataFrame(cells.loc[cells["estimator"] == label])) for label in drawn]


def _texts(frame: pd.DataFrame, name: str) -> list[str]:
    return [str(value) for value in frame[name]]


def _decides(frame: pd.DataFrame, one: str, other: str) -> bool:
    """Whether cells that agree in one setting agree in another."""
    pairs = set(zip(_texts(frame, one), _texts(frame, other), strict=True))
    return len(pairs) == len({first for first, _ in pairs})


def _joins_cells(frame: pd.DataFrame, setting: str, others: Sequence[str]) -> bool:
    """Whether two cells differ in a setting and agree in the others, so that a line joins them."""
    lines = (cells for _, cells in _lines(frame, [name for name in others if not _decides(frame, setting, name)]))
    return any(len(set(_texts(cells, setting))) > 1 for cells in lines)


def _lines(frame: pd.DataFrame, others: Sequence[str]) -> list[tuple[str, pd.DataFrame]]:
    """Return the cells that a line joins, with what they have in common."""
    if not others:
        return [("", frame)]
    # A cell that does not state a setting has NaN there, which pandas keeps when it converts to text.
    keys = pd.Series([", ".join(texts) for texts in zip(*(_texts(frame, name) for name in others), strict=True)])
    keys.index = frame.index
    names = ", ".join(map(_words, others))
    return [(f"{names} {key}", pd.DataFrame(frame.loc[keys == key])) for key in dict.fromkeys(keys)]


def _words(setting: str) -> str:
    """Return the name of a setting for an axis: ``"sampling.max_new_tokens"`` → ``"sampling max new tokens"``."""
    return setting.replace(".", " ").replace("_", " ")


def _styles(lines: Sequence[object]) -> list[str]:
    return [_STYLES[at % len(_STYLES)] for at in range(len(lines))]


def _looks(labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return colour, marker and its filling for estimators, whose label is empty where a cell has one value."""
    looks = []
    for label, kind in zip(labels, variants(labels), strict=True):
        appearance = estimator_appearance(label) if label else Appearance(ink(), "o")
        filling = {"fillstyle": kind.fillstyle, "markerfacecoloralt": mpl.rcParams["axes.facecolor"]}
        looks.append(appearance._asdict() | filling)
    return looks


def _draw(ax: Axes, rows: pd.DataFrame, axis: _Axis, name: str, look: dict[str, Any], place: float) -> None:
    if axis.numeric:
        rows = rows.sort_values(by=axis.setting)
    at = axis.places_of(rows) + 0.06 * np.ptp(axis.places) / max(len(axis.places) - 1, 1) * place
    estimates = estimates_of(rows, name)
    if name in _OF_ESTIMATORS:
        estimates = np.where(_unresolved(estimates)[:, None], np.nan, estimates)
    centre, low, high = estimates.T
    ax.plot(at, centre, linewidth=stroke(1.0), zorder=3, **look, **edge())
    if name in _OF_REFERENCE:  # a logarithmic axis has no room for an end at 1e-260 or 1e250
        low = np.where(low < centre / _FARTHEST, centre / _FARTHEST, low)
        high = np.where(high > centre * _FARTHEST, np.inf, high)
    draw_intervals(ax, at, centre, low, high, look["color"])


def _unresolved(estimates: Float[np.ndarray, "n 3"]) -> Bool[np.ndarray, " n"]:
    """Whether each ratio may be far from its estimate: a point there would say nothing, and stretch the axis."""
    centre, low, high = estimates.T
    return (high > _FARTHEST * centre) | (low < centre / _FARTHEST)


def _axis_of(frame: pd.DataFrame, setting: str, *, training: bool) -> _Axis:
    """Return the axis of a setting; a log scale where the largest is 4 times the smallest, but for training steps."""
    label = "training step" if training else _words(setting)
    if not pd.api.types.is_numeric_dtype(frame[setting]) or pd.api.types.is_bool_dtype(frame[setting]):
        names = list(dict.fromkeys(frame[setting].astype(str)))
        return _Axis(setting, label, names, np.arange(len(names), dtype=float), numeric=False)
    values = sorted(frame[setting].unique().tolist())
    places = np.asarray(values, dtype=float)
    logarithmic = not training and 0 < 4 * places[0] <= places[-1]
    return _Axis(setting, label, values, np.log(places) if logarithmic else places, numeric=True)


def _finish(ax: Axes, frame: pd.DataFrame, axis: _Axis, name: str) -> None:
    """Set the scales, ticks and labels of a panel."""
    import matplotlib.pyplot as plt

    logarithmic = name not in _OF_CELLS  # ratios and variances
    if logarithmic:
        ax.set_yscale("log")
    if name in _OF_ESTIMATORS:
        draw_landmark(ax, 1.0, horizontal=True)
    plain_ticks(ax, logarithmic=logarithmic, most=3, vertical=True)  # panels are low
    # Of many values only some are written.
    chosen = slice(None, None, -(-len(axis.values) // _MOST_TICKS) if axis.numeric else 1)
    ax.set_xticks(axis.places[chosen])
    names = [f"{value:g}" if axis.numeric else str(value) for value in axis.values[chosen]]
    if axis.setting == CELL:
        names = [str(at) for at in range(1, len(names) + 1)]
    ax.set_xticklabels(names, rotation=0 if axis.numeric or axis.setting == CELL else 30)
    ax.xaxis.set_minor_locator(plt.NullLocator())
    ax.set_xlabel(wrapped_to_axis(axis.label, 0.35))
    margin = 0.12 * (np.ptp(axis.places) or 1.0) if axis.numeric else 0.5
    ax.set_xlim(axis.places[0] - margin, axis.places[-1] + margin)
    reference = reference_name(frame)
    label = _OF_CELLS.get(name) or filled_in(QUANTITIES[name].panel_label, frame.attrs, reference).replace("\n", " ")
    if name in _OF_REFERENCE:
        label = f"{label} of {reference}"
    ax.set_title(in_mathematics(label), loc="left", fontsize="small")
