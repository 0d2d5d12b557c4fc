"""How good are the values of a value head?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float

from gradstats.analyses.declaration import Analysis, AnalysisFigure
from gradstats.analyses.numbers import format_estimate, percent, percentage
from gradstats.analyses.results import RemarkedResult, Row, column, estimate
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators.baselines.grouping import pack
from gradstats.estimators.batch import Batch, MeasuredCompletions
from gradstats.plots.marks import (
    WithFrame,
    as_frame,
    draw_intervals,
    draw_nothing,
    estimates_of,
    interval_keys,
    legend_below,
    require_columns,
    with_ends,
)
from gradstats.plots.names import wrapped_to_axis
from gradstats.plots.style import ink, paper
from gradstats.plots.variance import draw_landmark
from gradstats.stats.intervals import FiellerRatio, fieller_ratio
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, Statistic, mean_statistic
from gradstats.system.lazy_imports import mpl, pd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Rows of the states after a wrong step, of completions that end right and of those that end wrong.
RECOVERED, FAILED = "after a wrong step, recovered", "after a wrong step, not recovered"


@dataclass(frozen=True)
class ExplainedVariance:
    """The share of the variance of the true values that the head explains: 1 less what it leaves."""

    unexplained: FiellerRatio | None  # None where it is not defined

    def with_interval(self, confidence_level: float) -> tuple[float, float, float]:
        """Return the share and the ends of its interval."""
        left = self.unexplained
        if left is None or not left.is_bounded(confidence_level) or not left.denominator > 0:
            return np.nan, np.nan, np.nan
        low, high = left.within(confidence_level, -np.inf, np.inf)
        return 1.0 - left.value, 1.0 - high, 1.0 - low


@dataclass(frozen=True)
class CriticRow(Row):
    """The values of some states."""

    states: str = column("at which the values are compared")
    n: int = column("how many")
    n_prompts: int = column("prompts that have such states")
    value: Estimate = estimate("mean value of the head", "mean value of the head")
    monte_carlo: Estimate = estimate("mean Monte-Carlo value", "mean Monte-Carlo value")
    bias: Estimate = estimate("bias", "bias")
    explained_variance: ExplainedVariance = estimate("explained variance", "explained variance")


@dataclass(frozen=True, repr=False)
class CriticQuality(RemarkedResult):
    r"""A value head beside Monte-Carlo values: :math:`E(V - V^*)` and the variance of V* that V explains, by step.

    See :func:`critic_quality`.

    Attributes:
        rows: all states, then by step, then after a wrong step.
        low: Monte-Carlo value at or below which a step counts as wrong.
    """

    question: ClassVar[str] = "critic"

    row: ClassVar = CriticRow
    stated: ClassVar = ("low",)

    rows: tuple[CriticRow, ...]
    low: float

    def notes_at(self, confidence_level: float) -> tuple[str, ...]:
        """Return what could not be estimated at a level, and why."""
        few = [
            f"{row.states}: {row.n_prompts} prompts have such states, too few for intervals"
            for row in self.rows
            if row.n_prompts < 3
        ]
        unresolved = [
            f"{row.states}: the variance of the true values is not resolved at {percent(confidence_level)}, so the "
            "share explained is not known"
            for row in self.rows
            if row.explained_variance.unexplained is not None
            and np.isnan(row.explained_variance.with_interval(confidence_level)[0])
        ]
        return (*few, *unresolved)

    def confidence_interval(self, confidence_level: float = CONFIDENCE_LEVEL) -> tuple[float, float]:
        """Return the interval of the bias over all states."""
        return self.rows[0].bias.confidence_interval(confidence_level)

    def sentence(self, confidence_level: float = CONFIDENCE_LEVEL) -> str:
        """State the bias of the head over all states, and the share of the variance of the values that it explains."""
        every = self.rows[0]
        off = format_estimate(*every.bias.with_interval(confidence_level))
        bias = f"The values of the head are off by {off} on average"
        share = every.explained_variance.with_interval(confidence_level)
        if not np.isfinite(share[0]):
            return f"{bias}; how much of the variance of the true values it explains is not resolved."
        return f"{bias} and explain {percentage(*share)} of the variance of the true values."


def _without_values(batch_or_measured: object) -> str:
    """Return which values are missing, and what makes them; "" where there are both."""
    for name, remedy in (
        ("values", "--set values.monte_carlo=4 (in Python gradstats.values.monte_carlo_values)"),
        ("fitted_values", "gradstats.values.fit_values, or values.fitted in a run"),
    ):
        if getattr(batch_or_measured, name, None) is None:
            return f"critic_quality needs {name}: make them with {remedy}"
    return ""


def critic_quality(
    measured_or_batch: Batch | MeasuredCompletions,
    *,
    values: npt.ArrayLike | Sequence[np.ndarray] | None = None,
    fitted_values: npt.ArrayLike | Sequence[np.ndarray] | None = None,
    last_step: int = 5,
    low: float = 0.25,
) -> CriticQuality:
    r"""Compare the values V of a fitted head with Monte-Carlo values at the states where steps begin.

    The Monte-Carlo value M of a state is the mean reward of fresh completions from it, an unbiased estimate of the true
    value V*. The reward R of the completion that passes through the state is another one, independent of M given the
    state. So

    - ``bias`` is the mean of :math:`V - M`, of which the expectation is that of :math:`V - V^*`;
    - ``explained_variance`` is :math:`1 - E(V - V^*)^2/\mathrm{Var}(V^*)`, where
      :math:`E(V - M)(V - R) = E(V - V^*)^2` and :math:`\mathrm{Cov}(M, R) = \mathrm{Var}(V^*)`: the noise of M and R
      does not count as an error of the head. It is 1 for the true values, 0 for their mean, and negative for what is
      worse than a constant.

    States are taken together by the number of the step that begins there, which does not depend on what follows.

    **Wrong steps.** VinePPO (Kazemnejad et al. 2024, 2410.01679) finds that value networks judge later states poorly. A
    step counts as wrong where it leads from a Monte-Carlo value above ``low`` to one of at most ``low``. The last two
    rows hold the states after the first wrong step of a completion, where it ended with a reward above ``low`` and
    where it did not. The value at which the wrong step was found is left out, since a low one may be chance; the later
    ones are unaffected by that choice. These rows depend on the outcome, so that they have no explained variance; a
    head that knows averages only is too low where completions recover and too high where they do not, the true values
    are neither.

    Intervals are jackknife intervals over prompts, and Fieller sets for the explained variance, which is NaN where the
    variance of the true values is not resolved.

    Args:
        measured_or_batch: a measurement or a :class:`gradstats.estimators.Batch` with both kinds of values.
        values: the Monte-Carlo values, NaN inside steps, as
            :func:`gradstats.values.monte_carlo_values` returns them; those
            of the measurement by default.
        fitted_values: the values of the head at every token, as in :class:`gradstats.values.FittedValues`; those of the
            measurement by default.
        last_step: the last step with a row of its own together with all later ones; steps are numbered from 0.
        low: the Monte-Carlo value at or below which a step counts as wrong.

    Returns:
        A :class:`CriticQuality`.

    Raises:
        ValueError: where one kind of values is missing, rewards are given by token, or ``last_step`` is negative.

    Example:
        >>> import numpy as np
        >>> import gradstats as gs
        >>> rng = np.random.default_rng(0)
        >>> true = rng.choice([0.2, 0.8], 1000)  # one state a prompt
        >>> batch = gs.estimators.Batch(
        ...     rng.random(1000) < true, np.ones(1000, dtype=int), np.arange(1000),
        ...     values=rng.binomial(4, true)[:, None] / 4, fitted_values=true[:, None] - 0.1,
        ... )
        >>> row = gs.analyses.critic_quality(batch).rows[0]
        >>> round(row.bias.value, 1), round(row.explained_variance.with_interval(0.95)[0], 1)
        (-0.1, 0.9)
    """
    if last_step < 0:
        raise ValueError(f"last_step={last_step} must be at least 0: steps are numbered from 0")
    given = {name: one for name, one in (("values", values), ("fitted_values", fitted_values)) if one is not None}
    if isinstance(measured_or_batch, Batch):
        batch = measured_or_batch.with_fields(**given) if given else measured_or_batch  # pyright: ignore[reportArgumentType]
    else:
        batch = Batch.from_measurement(measured_or_batch, **_with_measured_values(measured_or_batch, given))  # pyright: ignore[reportArgumentType]
    if why := _without_values(batch):
        raise ValueError(why)
    if batch.token_rewards is not None:
        raise ValueError("critic_quality needs one reward per completion, and these have rewards by token")
    assert batch.values is not None
    assert batch.fitted_values is not None
    monte_carlo, fitted = pack(batch.values, batch.mask), pack(batch.fitted_values, batch.mask)
    begins = ~np.isnan(monte_carlo) & (np.arange(monte_carlo.shape[1]) < batch.lengths[:, None])
    step = np.cumsum(begins, axis=1) - 1
    after, right = _after_wrong_step(monte_carlo, begins, low), (batch.rewards > low)[:, None]
    sets = [("all", begins)]
    for number in range(min(last_step, int(step.max(where=begins, initial=0))) + 1):
        more = number == last_step and bool((step[begins] > number).any())
        chosen = begins & ((step >= number) if more else (step == number))
        sets.append((f"step {number} and later" if more else f"step {number}", chosen))
    outcomes = [(RECOVERED, after & right), (FAILED, after & ~right)]
    rows = [_row(name, chosen, fitted, monte_carlo, batch, True) for name, chosen in sets]
    rows += [_row(name, chosen, fitted, monte_carlo, batch, False) for name, chosen in outcomes]
    return CriticQuality(tuple(rows), low)


def _with_measured_values(measured: MeasuredCompletions, given: dict[str, object]) -> dict[str, object]:
    """Return both kinds of values: given Monte-Carlo values leave those of the measured head as they are."""
    head = getattr(measured, "fitted_values", None)
    kept = {"fitted_values": head} if head is not None else {}
    return {**{name: one for name, one in given.items() if name == "values"}, **kept, **given}


def _after_wrong_step(
    monte_carlo: Float[np.ndarray, "n t"], begins: Bool[np.ndarray, "n t"], low: float
) -> Bool[np.ndarray, "n t"]:
    """Return the states after that to which the first wrong step of a completion leads."""
    above = np.maximum.accumulate(begins & (np.nan_to_num(monte_carlo) > low), axis=1)
    was_above = np.pad(above[:, :-1], ((0, 0), (1, 0)))
    fallen = begins & was_above & (np.nan_to_num(monte_carlo, nan=np.inf) <= low)
    found = np.maximum.accumulate(fallen, axis=1)
    return begins & np.pad(found[:, :-1], ((0, 0), (1, 0)))


def _row(
    name: str,
    chosen: Bool[np.ndarray, "n t"],
    fitted: Float[np.ndarray, "n t"],
    monte_carlo: Float[np.ndarray, "n t"],
    batch: Batch,
    by_state: bool,
) -> CriticRow:
    row, place = np.nonzero(chosen)
    prompts = np.unique(batch.group_index[row], return_inverse=True)[1]
    n_prompts = len(set(prompts.tolist()))
    if n_prompts < 3:
        return CriticRow(
            name, len(row), n_prompts, NOT_ESTIMATED, NOT_ESTIMATED, NOT_ESTIMATED, ExplainedVariance(None)
        )
    v, m, r = fitted[row, place], monte_carlo[row, place], batch.rewards[row]
    count = mean_statistic(np.bincount(prompts).astype(np.float64))

    def mean(terms: Float[np.ndarray, " states"]) -> Statistic:
        return mean_statistic(np.bincount(prompts, terms)) / count

    unexplained = None
    if by_state:
        unexplained = fieller_ratio(mean((v - m) * (v - r)), mean(m * r) - mean(m) * mean(r))
    return CriticRow(
        name,
        len(row),
        n_prompts,
        mean(v).estimate(),
        mean(m).estimate(),
        mean(v - m).estimate(),
        ExplainedVariance(unexplained),
    )


_PANELS = {"bias": "bias of the head", "explained_variance": "explained variance"}
_AFTER = {RECOVERED: "recovered", FAILED: "not recovered"}


def plot_critic(table: WithFrame | pd.DataFrame) -> list[Axes]:
    """Draw the bias and the explained variance of a value head by step, and its bias after a wrong step.

    Args:
        table: a :class:`gradstats.analyses.CriticQuality`, or its frame.

    Returns:
        The axes, bias first.

    Raises:
        ValueError: for a frame without its columns.
    """
    import matplotlib.pyplot as plt

    frame = as_frame(table)
    columns = ["states", *(column for name in _PANELS for column in with_ends(name))]
    require_columns(frame, columns, "draw what critic_quality() gives")
    width, height = mpl.rcParams["figure.figsize"]
    keys = interval_keys(frame, list(_PANELS))
    _, both = plt.subplots(
        2, 1, figsize=(width, 1.55 * height + (0.2 if keys else 0.0)), sharex=True, layout="constrained"
    )
    axes = [ax for ax in np.ravel(both) if isinstance(ax, plt.Axes)]
    drawn = frame.loc[frame["states"] != "all"].reset_index(drop=True)
    after = drawn["states"].isin(list(_AFTER))
    at = np.arange(len(drawn)) + 0.5 * after.to_numpy(dtype=float)
    for ax, (name, label) in zip(axes, _PANELS.items(), strict=True):
        value, low, high = estimates_of(drawn, name).T
        known = np.isfinite(value)
        if not known.any():
            draw_nothing(ax, "not resolved")
        draw_intervals(ax, at, value, low, high, ink())
        for some, marker, fill in ((known & ~after, "o", ink()), (known & after, "D", paper())):
            ax.plot(at[some], value[some], marker=marker, linestyle="none", color=ink(), markerfacecolor=fill, zorder=3)
        draw_landmark(ax, 0.0, horizontal=True)
        ax.set_ylabel(label)
    names = [
        _AFTER.get(str(states), str(states).removeprefix("step ").replace(" and later", "+"))
        for states in drawn["states"]
    ]
    axes[-1].set_xticks(at, names)
    for tick, turned in zip(axes[-1].get_xticklabels(), after, strict=True):
        if turned:
            tick.set(rotation=30, ha="right", rotation_mode="anchor")
    label = "step that begins at the state" + (", or after a wrong step" if after.any() else "")
    axes[-1].set_xlabel(wrapped_to_axis(label, 0.85))
    legend_below(axes[0], keys)
    return axes


def _caption(frame: pd.DataFrame) -> str:
    about = frame.attrs
    return (
        f"Values of the head against Monte-Carlo values where steps begin, with {percent(about['confidence_level'])} "
        f"intervals over prompts. A step is wrong where the Monte-Carlo value falls to at most {about['low']:g}."
    )


def _row_name(row: dict[str, Any]) -> str:
    return f"{row['states']} (n = {row['n']:,})"


ANALYSIS = Analysis(
    name="critic",
    ask=critic_quality,
    unavailable_because=_without_values,
    options=("last_step", "low"),
    columns=CriticRow.columns(),
    row_heading="states",
    row_name=_row_name,
    caption=_caption,
    figures=(
        AnalysisFigure(
            "critic",
            "Bias and explained variance of the value head where steps begin, against Monte-Carlo values; open "
            "diamonds: after a wrong step, by the outcome.",
            plot_critic,
        ),
    ),
)
