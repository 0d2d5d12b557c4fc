"""Are longer answers to a prompt more or less often right?"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import scipy
from jaxtyping import Bool, Float, Int

from gradstats.analyses.declaration import POINTS, Analysis, AnalysisFigure, Column
from gradstats.analyses.numbers import format_estimate, percent
from gradstats.analyses.results import Result
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators import Batch
from gradstats.plots.marks import WithFrame, as_frame, draw_nothing, points_look, require_columns
from gradstats.plots.names import wrapped_to_axis
from gradstats.plots.style import muted, palette, stroke
from gradstats.stats.jackknife import require_level
from gradstats.stats.protocols import Completions, MeasuredRollouts, prompt_numbers
from gradstats.system.lazy_imports import pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gradstats.rollouts.table import Rollouts


@dataclass(frozen=True, repr=False)
class LengthRewardCorrelation(Result):
    r"""The correlation of length and reward after subtracting each prompt's means.

    Attributes:
        correlation: Pearson's, :math:`\sum δT\,δR/\sqrt{\sum δT²\sum δR²}`, of the deviations in the
            prompts whose completions differ in both.
        stderr: of its Fisher transform, by delete-one-prompt jackknife.
        n_prompts: prompts whose completions differ in length and in reward.
        n: completions of those.
    """

    question: ClassVar[str] = "length_reward"

    correlation: float
    stderr: float
    n_prompts: int
    n: int

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval, symmetric on Fisher's scale."""
        level = require_level(confidence_level)
        margin = float(scipy.special.stdtrit(max(self.n_prompts - 1, 1), 0.5 + level / 2.0)) * self.stderr
        centre = np.arctanh(self.correlation)
        return float(np.tanh(centre - margin)), float(np.tanh(centre + margin))

    def to_frame(self, confidence_level: float = CONFIDENCE_LEVEL) -> pd.DataFrame:
        """Return one row: the correlation with its interval, and the number of prompts and completions behind it."""
        low, high = self.confidence_interval(confidence_level)
        row = {
            "correlation": self.correlation,
            "correlation_low": low,
            "correlation_high": high,
            "n_prompts": self.n_prompts,
            "n": self.n,
        }
        return pd.DataFrame([row])

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """Return the answer in words."""
        low, high = self.confidence_interval(confidence_level)
        if math.isnan(self.correlation):
            prompts = "1 prompt has" if self.n_prompts == 1 else f"{self.n_prompts} prompts have"
            return (
                f"The correlation of length and reward within prompts cannot be estimated: only {prompts} completions "
                "that differ in both."
            )
        estimate = format_estimate(self.correlation, low, high, limits=(-1.0, 1.0))
        basis = f"{percent(confidence_level)} interval, {self.n_prompts} prompts that vary in both"
        if low > 0 or high < 0:
            often = "more" if low > 0 else "less"
            return (
                f"Longer answers to a prompt are {often} often right: the correlation within prompts is "
                f"{estimate} ({basis})."
            )
        return (
            "Whether longer answers to a prompt are right more often is not resolved: the correlation within prompts "
            f"is {estimate} ({basis})."
        )


def length_reward_correlation(
    measured: MeasuredRollouts | Batch | Completions | None = None,
    *,
    lengths: npt.ArrayLike | None = None,
    rewards: npt.ArrayLike | None = None,
    groups: npt.ArrayLike | None = None,
) -> LengthRewardCorrelation:
    r"""Correlate length and reward within prompts.

    Between prompts the two are correlated because hard problems need long answers and are often failed, which is
    irrelevant to baselines: only the correlation among answers to one prompt shifts a length-weighted baseline away
    from the mean. It is :math:`\sum_m \sum_i δT_{mi} δR_{mi} / \sqrt{\sum δT² \sum δR²}` over the prompts m whose
    completions differ both in length and in reward; δ is the deviation from the prompt's mean.

    Args:
        measured: a measurement, a :class:`gradstats.estimators.Batch` or rollouts with ``.lengths``, ``.rewards`` and
            prompts.
        lengths: (n,) instead of ``measured``.
        rewards: (n,) instead of ``measured``.
        groups: (n,) prompt of each, instead of ``measured``.

    Returns:
        The correlation; NaN with a warning where fewer than 3 prompts vary in both.

    Raises:
        TypeError: without data.
        ValueError: for arrays of unequal length.

    Example:
        >>> import gradstats as gs
        >>> result = gs.length_reward_correlation(
        ...     lengths=[10, 30, 20, 60, 15, 45], rewards=[1, 0, 1, 0, 1, 0], groups=[0, 0, 1, 1, 2, 2]
        ... )
        >>> round(result.correlation, 3), result.n_prompts
        (-0.965, 3)
    """
    if measured is not None:
        table = measured.rollouts if isinstance(measured, MeasuredRollouts) else measured
        lengths, rewards = table.lengths, table.rewards
        groups = table.groups if isinstance(table, Batch) else table.prompt_id
    if lengths is None or rewards is None or groups is None:
        raise TypeError("give a measurement, or all of lengths=, rewards= and groups=")
    x, y = np.asarray(lengths, dtype=float), np.asarray(rewards, dtype=float)
    prompts = prompt_numbers(groups)
    if not len(x) == len(y) == len(prompts):
        raise ValueError(
            f"lengths, rewards and groups must have one entry per completion, got {len(x)}, {len(y)} and {len(prompts)}"
        )
    # A prompt whose rewards (or lengths) never vary has no product, only a sum of squares that would dilute the others.
    informative = _varies(x, prompts) & _varies(y, prompts)
    n_prompts, n = int(informative.sum()), int(np.sum(informative[prompts]))
    sums = _sums(x, y, prompts)[:, informative]
    total = sums.sum(axis=1)
    if n_prompts < 3:
        warnings.warn(
            f"completions differ in both length and reward for only {n_prompts} of the prompts, so the correlation "
            "is NaN: sample more prompts that are sometimes solved",
            UserWarning,
            stacklevel=2,
        )
        return LengthRewardCorrelation(float("nan"), float("nan"), n_prompts, n)
    value = float(_correlation(total))
    replicates = np.arctanh(_correlation(total[:, None] - sums))
    m = len(replicates)
    stderr = float(np.sqrt((m - 1.0) / m * np.sum((replicates - replicates.mean()) ** 2)))
    return LengthRewardCorrelation(value, stderr, n_prompts, n)


def _varies(values: Float[np.ndarray, " n"], prompts: Int[np.ndarray, " n"]) -> Bool[np.ndarray, " m"]:
    """Return whether a prompt's values differ; a sum of squared deviations need not be exactly 0 where they do not."""
    lowest, highest = np.full((2, int(prompts.max()) + 1), np.inf) * [[1.0], [-1.0]]
    np.minimum.at(lowest, prompts, values)
    np.maximum.at(highest, prompts, values)
    return highest > lowest


def _sums(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], prompts: Int[np.ndarray, " n"]
) -> Float[np.ndarray, "3 m"]:
    """Return each prompt's sums of squares and products of deviations from its means."""
    sizes = np.bincount(prompts)
    dx = x - (np.bincount(prompts, weights=x) / sizes)[prompts]
    dy = y - (np.bincount(prompts, weights=y) / sizes)[prompts]
    return np.stack([np.bincount(prompts, weights=product) for product in (dx * dx, dy * dy, dx * dy)])


def _correlation(sums: Float[np.ndarray, "3 *m"]) -> np.ndarray | np.floating:
    """Return Σdx·dy/√(Σdx² Σdy²)."""
    return sums[2] / np.sqrt(sums[0] * sums[1])


def plot_length_reward(
    table: WithFrame | pd.DataFrame, *, ax: Axes | None = None, correlation: LengthRewardCorrelation | None = None
) -> Axes:
    """Draw reward against length within prompts: each completion relative to the means of its own prompt.

    Between prompts the two are correlated because hard problems need long answers and are often failed; only the
    correlation within prompts shifts a length-weighted baseline.

    Args:
        table: one row per completion, columns ``prompt_id``, ``length`` and ``reward``.
        ax: where to draw; None makes a figure.
        correlation: a :class:`gradstats.analyses.LengthRewardCorrelation` to write above the axes.

    Returns:
        The axes.

    Raises:
        ValueError: for a frame without its columns.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    require_columns(frame, ["prompt_id", "length", "reward"], "give one row per completion")
    if ax is None:
        _, ax = plt.subplots(layout="constrained")
    ax.set_xlabel(wrapped_to_axis("length less its prompt's mean (tokens)", 0.8))
    ax.set_ylabel("reward less its prompt's mean")
    if frame.empty:
        draw_nothing(ax, "no completions")
        return ax
    by_prompt = frame.groupby("prompt_id")
    x = (frame["length"] - by_prompt["length"].transform("mean")).to_numpy(dtype=float)
    y = (frame["reward"] - by_prompt["reward"].transform("mean")).to_numpy(dtype=float)
    ax.axhline(0.0, color=muted(), linewidth=stroke(0.6), zorder=1)
    ax.axvline(0.0, color=muted(), linewidth=stroke(0.6), zorder=1)
    ax.scatter(x, y, color=palette()[0], zorder=2, **points_look(len(frame)))
    if correlation is not None and np.isfinite(correlation.correlation):
        low, high = correlation.confidence_interval()
        title = f"correlation {correlation.correlation:.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
        ax.set_title(title, loc="left", fontsize="small")
    return ax


def _points_that_vary(points: pd.DataFrame) -> pd.DataFrame | None:
    """Return the points where the answers to some prompt differ in length and in reward; None otherwise."""
    if "reward" not in points:
        return None
    varying = points.groupby("prompt_id")[["length", "reward"]].nunique() > 1
    return points if varying.to_numpy().all(axis=1).any() else None


def _draw(points: pd.DataFrame) -> Axes:
    with warnings.catch_warnings():  # too few informative prompts: the figure then gives no number
        warnings.simplefilter("ignore")
        correlation = length_reward_correlation(
            lengths=points["length"], rewards=points["reward"], groups=points["prompt_id"]
        )
    return plot_length_reward(points, correlation=correlation)


def _rollouts(path: Path, *, partial: bool = False) -> Rollouts:
    """A rollouts file or a run directory."""  # noqa: D401
    from gradstats.rollouts.table import read_rollouts

    return read_rollouts(path, partial=partial)


ANALYSIS = Analysis(
    name="length_reward",
    ask=length_reward_correlation,
    options=(),
    columns=(
        Column("correlation", "of length and reward within prompts", estimated=True),
        Column("n_prompts", "prompts whose completions vary in both"),
        Column("n", "completions of those"),
    ),
    source=_rollouts,
    figures=(
        AnalysisFigure(
            "length_reward",
            "Reward against length, both relative to the mean of the same prompt.",
            _draw,
            table=POINTS,
            rows=_points_that_vary,
        ),
    ),
)
