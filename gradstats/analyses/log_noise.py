"""Which estimator is least noisy, by a proxy of squared gradients?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gradstats import estimators as families
from gradstats.analyses.declaration import Analysis, AnalysisFigure, level_of, most_completions
from gradstats.analyses.log_lengths import without_lengths
from gradstats.analyses.numbers import ROUNDING, displayable_interval, format_estimate
from gradstats.analyses.results import Result, Row, column, estimate
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.config.sections import DEFAULT_ESTIMATORS
from gradstats.estimators.by_label import get_all
from gradstats.estimators.estimator import Weighting
from gradstats.measurement.measurement import Measurement, read_measurement
from gradstats.plots.marks import WithFrame, as_frame, estimates_of, require_columns, with_ends
from gradstats.plots.style import ink
from gradstats.plots.variance import draw_landmark
from gradstats.rollouts.log import Log, read_log
from gradstats.stats.intervals import MonotoneFunction
from gradstats.stats.jackknife import Estimate, Estimated
from gradstats.stats.length_scaling.alpha import fit_length_scaling
from gradstats.stats.variance.calibrated import (
    ALPHA,
    LENGTH,
    Calibrated,
    Calibration,
    Scored,
    calibrate,
    proxy_noise,
    unweightable,
)
from gradstats.stats.variance.quantities import NOT_NEGATIVE
from gradstats.system.lazy_imports import pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: What uncalibrated numbers are.
BY_PROXY = "noise of the output layer, by proxy"
# The proxies of a log without a measurement, the surer first.
_PREFERRED = ("logit", "surprisal", "entropy", LENGTH)


@dataclass(frozen=True)
class NoiseByProxy(Row):
    """One estimator."""

    estimator: str = column("label of the estimator", short=True)
    scale: float = column(
        "its expected gradient over that of the reference; NaN where no rule gives it", file="estimators/estimator.py"
    )
    relative_noise: Estimated | None = estimate(
        "its calibrated ratio at equal signal, where the scale is known",
        "relative noise",
        short=True,
        limits=NOT_NEGATIVE,
    )
    ratio: Calibrated | None = estimate(
        "tr Cov relative to the reference's, calibrated", "ratio", short=True, limits=NOT_NEGATIVE
    )
    factor: float = column(
        "times as many measured prompts that its ratio is worth; 1 where it is that of the measurement alone",
        "prompts ×",
        short=True,
        file="stats/variance/calibrated.py",
    )
    by_proxy: Estimate = estimate(
        f"{BY_PROXY}, relative to the reference's", "ratio, by proxy", short=True, limits=NOT_NEGATIVE
    )
    relative_by_proxy: Estimated | None = estimate(
        "the same at equal signal, where the scale is known",
        "relative noise, by proxy",
        short=True,
        limits=NOT_NEGATIVE,
    )
    trace_cov: Calibrated | None = estimate("tr Cov of one group's gradient, calibrated", "tr Cov", limits=NOT_NEGATIVE)
    factor_trace_cov: float = column("the same of tr Cov", "prompts × (tr Cov)")
    coefficient: float = column("λ of its ratio; 0 where the proxy does not help", file="stats/variance/calibrated.py")


@dataclass(frozen=True, repr=False)
class LogNoise(Result):
    """The noise of estimators from a log; see :func:`log_noise`.

    Attributes:
        rows: one per estimator, in the order asked for.
        proxy: that ``by_proxy`` is of, and that calibrates.
        reference: of the ratios.
        group_size: completions of a group.
        calibration: with a measurement of some prompts; None without one.
        notes: what a reader has to know.
    """

    question: ClassVar[str] = "log_noise"
    row: ClassVar = NoiseByProxy
    stated: ClassVar = ("proxy", "reference", "group_size")

    rows: tuple[NoiseByProxy, ...]
    proxy: str
    reference: str
    group_size: int
    calibration: Calibration | None = None
    notes: tuple[str, ...] = ()

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State what the proxy says, as what it is, and what it adds to a measurement."""
        name = "relative_by_proxy" if self.calibration is None else "relative_noise"
        known: list[tuple[float, float, float, str]] = []
        for row in self.rows:
            one: Estimated | None = getattr(row, name)
            if one is not None:
                value, low, high = displayable_interval(*one.with_interval(confidence_level), NOT_NEGATIVE)
                if np.isfinite([value, low]).all() and (low < high or abs(value - 1.0) > ROUNDING):
                    known.append((value, low, high, row.estimator))
        ends = dict.fromkeys((min(known), max(known)) if known else ())
        said = ", ".join(
            f"{label} {format_estimate(value, low, high, limits=NOT_NEGATIVE)}" for value, low, high, label in ends
        )
        said = f"{said or 'none is resolved'}; {self.reference} is 1"
        if self.calibration is None:
            of_head = f"{BY_PROXY[0].upper()}{BY_PROXY[1:]} ({self.proxy}), at equal signal"
            return f"{of_head}: {said}; other layers may differ (--measured RUN)."
        return f"{self.calibration.sentence()} Relative noise: {said}."


def without_groups(log: Log) -> str:
    """Return why estimators cannot be asked about; "" where they can."""
    if why := without_lengths(log):
        return why
    if not np.isfinite(log.column("length")).all():
        return "the lengths of some completions are unknown: name another column with length"
    return "" if log.group_size > 1 else "most prompts have a single completion: estimators compare those of a group"


def log_noise(
    log: Log,
    estimators: Sequence[str | Weighting] = DEFAULT_ESTIMATORS,
    *,
    reference: str = "rloo",
    measured: str | os.PathLike[str] | Measurement | None = None,
) -> LogNoise:
    r"""Compare the noise of estimators from a log, by a proxy of squared gradients, calibrated by a measurement.

    By proxy the noise of a group is :math:`\sum_i w_i² q_i`, with :math:`q = \sum_t(1 - 2π_t + \sum_v π_v²)` where the
    log has Σπ², else surprisal, entropy or length: norms of the output layer alone, without the products of different
    completions. With a measurement of some of the prompts it is a control variate for what was measured
    (:func:`gradstats.stats.variance.calibrated.calibrate`), and the proxy is chosen by cross-validation. At equal
    signal means divided by the square of the scale, where it is known, of completions drawn from the scored policy.

    Args:
        log: of :func:`gradstats.read_log`.
        estimators: labels; those that rewards, lengths and groups do not weight are left out with a note.
        reference: estimator that ratios are taken to.
        measured: a measurement, or the folder of a run, of some of the log's prompts.

    Returns:
        A :class:`LogNoise`.

    Raises:
        ValueError: for a log without lengths or groups, and where no prompt of the log is measured.

    Example:
        >>> import pandas as pd
        >>> import gradstats as gs
        >>> columns = {"step": 1, "prompt": [0] * 4 + [1] * 4, "group": [0] * 4 + [1] * 4}
        >>> columns |= {"reward": [1, 0, 0, 1, 1, 0, 1, 1], "length": [3, 9, 7, 4, 3, 8, 4, 6]}
        >>> log = gs.rollouts.Log(pd.DataFrame(columns), "made up")
        >>> found = gs.analyses.log_noise(log, ["reinforce", "group_mean"])
        >>> [round(row.by_proxy.value, 2) for row in found.rows]
        [1.02, 0.56]
    """
    if why := without_groups(log):
        raise ValueError(why)
    chosen, refused = get_all(estimators), unweightable(estimators)
    notes = [f"{label} {why}" for label, why in refused.items()]
    chosen = [one for one in chosen if one.label not in refused]
    base = families.get(reference)
    size, alpha, prompts = log.group_size, ALPHA, log.labels("prompt").astype(str)
    calibration = None
    if measured is not None:
        run = measured if isinstance(measured, Measurement) else read_measurement(measured)
        prompts = _matched(log, run, str(measured))
        alpha = fit_length_scaling(run).alpha
        size = min(size, most_completions(run))
    lengths = np.maximum(log.column("length"), 1.0)
    proxies = {name: log.column(f"proxy_{name}") for name in _PREFERRED if f"proxy_{name}" in log.frame}
    scored = Scored(prompts, log.column("reward"), lengths, proxies, log.labels("group"), alpha)
    if unknown := [name for name in proxies if name not in scored.known()]:
        notes.append(f"the proxies {', '.join(unknown)} are not known of every completion and are left out")
    if measured is not None:
        calibration = calibrate(run, chosen, scored, group_size=size, reference=reference)
        by_proxy = calibration.by_proxy
        if not _same_completions(log, run, prompts):
            notes.append(
                "the run drew other completions of its prompts than the log holds, so that a proxy explains only what "
                "prompts have in common: measuring the log's own completions (gradstats measure --rollouts) tells more"
            )
        if (apart := calibration.n_measured - calibration.n_matched) > 0:
            notes.append(
                f"{apart} of {calibration.n_measured} measured prompts are not in the log: they are measured alone"
            )
    else:
        by_proxy = proxy_noise(scored, [*chosen, base], size)
    if by_proxy.n_leftover:
        notes.append(f"{by_proxy.n_leftover:,} completions filled no group of {size} and have no weight here")
    proxy = calibration.proxy if calibration else ""
    proxy = proxy or next(name for name in _PREFERRED if name in by_proxy.names)
    rows = []
    for number, one in enumerate(chosen):
        scale, of_base = one.expected_scale(size), base.expected_scale(size)
        scale = scale / of_base if scale and of_base else np.nan
        ratio = by_proxy.ratio(number, -1, proxy)
        known: dict[str, Any] = dict.fromkeys(("relative_noise", "ratio", "trace_cov"))
        known |= dict.fromkeys(("factor", "factor_trace_cov", "coefficient"), np.nan)
        if calibration is not None:
            row = calibration.rows[number]
            known = {"trace_cov": row.trace_cov, "factor_trace_cov": row.trace_cov.factor}
            known |= {"ratio": row.ratio, "factor": row.ratio.factor, "coefficient": row.ratio.coefficient}
            known |= {"relative_noise": _at_equal_signal(row.ratio, scale)}
        relative = _at_equal_signal(ratio, scale)
        rows.append(NoiseByProxy(one.label, scale, by_proxy=ratio, relative_by_proxy=relative, **known))
    if own := [row.estimator for row in rows if np.isnan(row.scale)]:
        notes.append(f"{', '.join(own)}: no rule gives the scale, so that the ratio alone is known")
    return LogNoise(tuple(rows), proxy, base.label, size, calibration, (*log.notes, *notes))


def _matched(log: Log, run: Measurement, name: str) -> np.ndarray:
    """Return the name of each completion's prompt: that of the measurement where it is measured, else its number."""
    columns = [one for one in ("prompt_id", "prompt_text") if one in run.rollouts.frame]
    frame = pd.DataFrame(run.rollouts.frame[columns]).drop_duplicates("prompt_id")
    found = [log.numbers_of(list(map(str, frame[one]))) for one in columns]
    numbers = max(found, key=lambda one: int(np.sum(one >= 0)))
    if (numbers < 0).all():
        named = f"as {log.prompts[0]!r}" if log.prompts else "not at all"
        raise ValueError(
            f"no prompt of the log {log.name} is measured in {name}: the log names prompts {named}, the run as "
            f"{frame['prompt_id'].iloc[0]!r}; measure prompts of the log, or name the column of names (--prompt)"
        )
    names = np.array([f"{number} of the log" for number in range(int(log.labels("prompt").max()) + 1)], dtype=object)
    names[numbers[numbers >= 0]] = frame["prompt_id"].astype(str).to_numpy()[numbers >= 0]
    return names[log.labels("prompt")]


def _same_completions(log: Log, run: Measurement, prompts: np.ndarray) -> bool:
    """Whether the lengths of the completions that the run measured are among those that the log has of its prompts."""
    drawn = set(zip(prompts.tolist(), log.column("length").tolist(), log.column("reward").tolist(), strict=True))
    ids, lengths, rewards = run.rollouts.prompt_id, run.lengths, run.rollouts.rewards
    measured = set(zip(map(str, ids), map(float, lengths), map(float, rewards), strict=True))
    return len(measured & drawn) > 0.5 * len(measured)


def _at_equal_signal(ratio: Estimated, scale: float) -> MonotoneFunction | None:
    return None if np.isnan(scale) else MonotoneFunction(lambda one: one / scale**2, (ratio,))


def plot_log_noise(table: WithFrame | pd.DataFrame) -> Axes:
    """Draw the noise of estimators relative to the reference: dots as calibrated, diamonds by proxy alone.

    Args:
        table: a :class:`LogNoise`, or its frame.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    require_columns(frame, ["estimator", *with_ends("by_proxy"), *with_ends("ratio")], "draw what log_noise() gives")
    _, ax = plt.subplots()
    at = np.arange(len(frame), dtype=float)
    for name, marker, shift in (("by_proxy", "D", 0.12), ("ratio", "o", -0.12)):
        value, low, high = estimates_of(frame, name).T
        ax.hlines(at + shift, low, high, color=ink())
        ax.plot(value, at + shift, marker=marker, linestyle="none", color=ink())
    ax.set_yticks(at, list(frame["estimator"]))
    ax.invert_yaxis()
    ax.set_xscale("log")
    draw_landmark(ax, 1.0)
    ax.set_xlabel(f"noise relative to {frame.attrs.get('reference', 'the reference')}, each at its own scale")
    return ax


def _caption(frame: pd.DataFrame) -> str:
    said = f"Noise of groups of {frame.attrs['group_size']} relative to {frame.attrs['reference']}'s, with "
    said += f"{level_of(frame)}intervals over prompts. By proxy ({frame.attrs['proxy']}): {BY_PROXY}."
    calibrated = " Ratios are measured, with the proxy of all prompts as control variate where it helps."
    return said + (calibrated if bool(frame["ratio"].notna().to_numpy().any()) else "")


ANALYSIS = Analysis(
    name="log_noise",
    ask=log_noise,
    source=read_log,
    unavailable_because=without_groups,  # pyright: ignore[reportArgumentType]
    options=("estimators", "reference", "measured"),
    columns=NoiseByProxy.columns(),
    row_heading="estimator",
    caption=_caption,
    figures=(
        AnalysisFigure(
            "log_noise",
            "Noise of estimators relative to the reference: diamonds by proxy, dots as measured and calibrated.",
            plot_log_noise,
        ),
    ),
)
