"""The columns of a comparison, what each is called, and the row that one estimator has in them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Float

from gradstats.config.options import EUCLIDEAN
from gradstats.estimators.estimator import SEQUENCE_SUM
from gradstats.stats.jackknife import NOT_ESTIMATED, Estimate, Estimated, Interval, Statistic
from gradstats.stats.numbers import NO_LIMITS, Limits
from gradstats.stats.variance.estimates import (
    GradientStatistics,
    KeptShare,
    between_prompt,
    bias_share,
    cosine,
    kept_share,
    matched_bias_share,
    matched_ratio,
    matched_trace_cov,
    most_influential_prompt,
    n_effective_beside,
    n_effective_prompts,
    noise_to_signal,
    ratio,
    signal_sq,
    trace_cov,
    within_prompt,
)
from gradstats.stats.variance.moments import ComponentsOf, SignalComponents

#: Tables for a paper, the HTML page, the terminal, and the figure of several panels.
Place = Literal["paper", "page", "terminal", "panels"]


@dataclass(frozen=True)
class Quantity:
    """One column of a variance comparison, which has its ``_low`` and ``_high`` beside it.

    In headings and labels ``{reference}`` stands for the label of the reference estimator, and ``{target}`` for what
    bias and cosine are judged against; :func:`filled_in` puts in both.
    """

    name: str  # of the column
    heading: str  # in tables, on one line
    axis_label: str  # in a figure of its own
    panel_label: str  # under a panel a third as wide
    logarithmic: bool = False  # whether it is drawn on a log axis
    landmark: float | None = None  # a value to compare with, drawn as a dashed line
    limits: Limits = (
        NO_LIMITS  # the least and the greatest value that are possible; an unbiased estimate may lie beyond
    )
    has_unit: bool = False  # whether it carries the square of the gradient's unit, alone or relative to another's
    shown_in: tuple[Place, ...] = ()  # where it is a column or panel by default
    together_heading: str = ""  # of the intervals that hold for all rows at once, where there are any
    together_in: tuple[Place, ...] = ()  # where these are a column of their own


#: The values that variances and shares can have.
NOT_NEGATIVE: Limits = (0.0, math.inf)
SHARE: Limits = (0.0, 1.0)

#: What `gradstats.compare` estimates of every estimator, in the order of its frame.
COMPARED = (
    Quantity(
        name="trace_cov",
        heading="tr Cov",
        axis_label="tr Cov of a group's gradient",
        panel_label="tr Cov",
        limits=NOT_NEGATIVE,
        logarithmic=True,
        has_unit=True,
        shown_in=("paper", "page", "terminal"),
    ),
    Quantity(
        name="signal_sq",
        heading="‖E ĝ‖²",
        axis_label="squared norm of the expected gradient",
        panel_label="signal",
        limits=NOT_NEGATIVE,
        landmark=0.0,
        has_unit=True,
    ),
    Quantity(
        name="noise_to_signal",
        heading="critical batch",
        axis_label="critical batch (prompts)",
        panel_label="critical\nbatch",
        limits=NOT_NEGATIVE,
        logarithmic=True,
    ),
    Quantity(
        name="ratio",
        heading="ratio to {reference}",
        axis_label="variance relative to {reference}",
        panel_label="ratio to\n{reference}",
        limits=NOT_NEGATIVE,
        logarithmic=True,
        landmark=1.0,
        has_unit=True,
        shown_in=("paper", "page", "terminal"),
        together_heading="ratios of all rows",
        together_in=("page", "terminal"),
    ),
    Quantity(
        name="matched_ratio",
        heading="relative noise",
        axis_label="samples needed for equal noise,\nrelative to {reference}",
        panel_label="relative\nnoise\n({reference} = 1)",
        limits=NOT_NEGATIVE,
        logarithmic=True,
        landmark=1.0,
        shown_in=("paper", "page", "terminal", "panels"),
        together_heading="relative noise of all rows",
        together_in=("paper", "page", "terminal"),
    ),
    Quantity(
        name="cosine",
        heading="cosine",
        axis_label="cosine to the {target} gradient",
        panel_label="cosine\n({target})",
        limits=(-1.0, 1.0),
        shown_in=("paper", "page", "terminal", "panels"),
    ),
    Quantity(
        name="bias_share",
        heading="share of bias",
        axis_label="share of bias in the mean squared error,\nagainst the {target} gradient",
        panel_label="share\nof bias",
        limits=SHARE,
    ),
    Quantity(
        name="matched_bias_share",
        heading="bias",
        axis_label="share of bias in the mean squared error,\nat matched scale, against the {target} gradient",
        panel_label="bias",
        limits=SHARE,
        shown_in=("paper", "page", "terminal", "panels"),
    ),
    Quantity(
        name="kept_share",
        heading="groups kept",
        axis_label="share of groups with a gradient",
        panel_label="groups\nkept",
        limits=SHARE,
        shown_in=("paper", "page"),
    ),
)

#: The two components of ``trace_cov``, where prompts have several groups.
VARIANCE_COMPONENTS = (
    Quantity(
        name="within_prompt",
        heading="within-prompt variance",
        axis_label="within-prompt variance",
        panel_label="within\nprompts",
        limits=NOT_NEGATIVE,
        logarithmic=True,
        has_unit=True,
    ),
    Quantity(
        name="between_prompt",
        heading="between-prompt variance",
        axis_label="between-prompt variance",
        panel_label="between\nprompts",
        limits=NOT_NEGATIVE,
        landmark=0.0,
        has_unit=True,
    ),
)

#: The label of an axis that both components share.
COMPONENT_LABEL = "component of tr Cov"

QUANTITIES = {quantity.name: quantity for quantity in (*COMPARED, *VARIANCE_COMPONENTS)}


def limits_of(name: str) -> Limits:
    """Return the least and the greatest value that a column can have, as its quantity declares them."""
    return QUANTITIES[name].limits if name in QUANTITIES else NO_LIMITS


# A shrunken estimator has a low ratio without being better, and a ratio between two units is meaningless: only the
# variance at matched signal decides which estimator is lowest, and figures show it by default.
JUDGED = QUANTITIES["matched_ratio"]


def shown_in(place: Place) -> tuple[str, ...]:
    """Return the names of the quantities that a kind of table or figure shows by default, in order."""
    return tuple(quantity.name for quantity in QUANTITIES.values() if place in quantity.shown_in)


#: What a target is called in labels and headings.
TARGETS = {"on_policy": "on-policy", "importance": "importance-weighted"}


def filled_in(text: str, attrs: Mapping[Hashable, object], reference: str | None = None) -> str:
    """Put the names of reference and target into a heading or label."""
    name = attrs.get("reference", "the reference") if reference is None else reference
    return text.format(reference=name, target=TARGETS[str(attrs.get("target", "on_policy"))])


def axis_label(quantity: Quantity, attrs: Mapping[Hashable, object], reference: str | None = None) -> str:
    """Return the label of a quantity's axis, with the metric where it is not Euclidean."""
    return in_metric(filled_in(quantity.axis_label, attrs, reference), attrs)


def in_metric(label: str, attrs: Mapping[Hashable, object]) -> str:
    """Return the label of an axis with the metric that a frame's ``attrs`` record, where it is not Euclidean."""
    return label if attrs.get("metric", EUCLIDEAN) == EUCLIDEAN else f"{label}\n(Adam's metric)"


def with_ends(intervals: dict[str, Interval]) -> dict[str, float]:
    """Return columns of a frame: each name, and with ``_low`` and ``_high``."""
    return {
        f"{name}{end}": number
        for name, interval in intervals.items()
        for end, number in zip(("", "_low", "_high"), interval, strict=True)
    }


@dataclass(frozen=True)
class EstimatorVariance:
    """What was estimated about one estimator's gradient, as :mod:`gradstats.stats.variance.estimates` defines it."""

    label: str
    kept_share: KeptShare
    group_size: int | None = None  # None when prompts have different numbers of completions and all were used
    unit: str = SEQUENCE_SUM  # of the gradient
    components: str = ""  # what the estimator is composed of, whatever its label
    known_coefficient: float | None = None  # the expected gradient over the reference's, where both are known exactly
    n_effective_prompts: float = np.nan
    n_effective_beside: float = np.inf  # of reference or target, whichever is worth fewer
    most_influential: int | None = None  # the number of the prompt; None without a gradient
    n_deals: int | None = None  # None where prompts are not dealt into batches
    share_of_deals: float = 0.0  # of the squared standard error of trace_cov or ratio that more deals would remove
    clipped_share: float = np.nan  # of dealt batches; NaN without a norm that clips
    signal_parts: ComponentsOf | None = field(default=None, repr=False, compare=False)  # None at batch level
    trace_cov: Estimate = NOT_ESTIMATED
    signal_sq: Estimate = NOT_ESTIMATED
    noise_to_signal: Estimated = NOT_ESTIMATED
    ratio: Estimate = NOT_ESTIMATED
    matched_ratio: Estimated = NOT_ESTIMATED
    cosine: Estimated = NOT_ESTIMATED
    bias_share: Estimated = NOT_ESTIMATED
    matched_bias_share: Estimated = NOT_ESTIMATED
    within_prompt: Estimate = NOT_ESTIMATED
    between_prompt: Estimate = NOT_ESTIMATED
    # tr Cov at matched signal, up to a factor that all rows of a comparison share; None where the signal is not known.
    at_matched_signal: Statistic | None = field(default=None, repr=False, compare=False)
    # What all of these are functions of; a comparison does not keep it.
    gradient: GradientStatistics | None = field(default=None, repr=False, compare=False)

    @property
    def signal_components(self) -> SignalComponents | None:
        """The parts of the variance of ‖E g‖²; None at batch level and for fewer than 4 prompts."""
        return None if self.signal_parts is None else self.signal_parts.found

    def intervals(self, confidence_level: float) -> dict[str, Interval]:
        """Return quantity → (estimate, low, high) at a level, with NaN for what the data do not resolve."""
        return {one.name: getattr(self, one.name).with_interval(confidence_level) for one in COMPARED}

    def component_intervals(self, confidence_level: float) -> dict[str, Interval]:
        """Return variance component → (estimate, low, high) at a level."""
        return {one.name: getattr(self, one.name).with_interval(confidence_level) for one in VARIANCE_COMPONENTS}

    def resolved(self, confidence_level: float) -> bool:
        """Return whether the interval of ‖E g‖² lies above 0."""
        return bool(self.signal_sq.confidence_interval(confidence_level)[0] > 0)


def silent_row(label: str, kept: Float[np.ndarray, " prompts"]) -> EstimatorVariance:
    """Return the row of an estimator without a gradient: NaN but for the share of groups kept."""
    return EstimatorVariance(label, kept_share(kept))


def row_of(label: str, gradient: GradientStatistics) -> EstimatorVariance:
    """Return every quantity of one estimator."""
    return EstimatorVariance(
        label=label,
        known_coefficient=gradient.known_coefficient,
        n_effective_prompts=n_effective_prompts(gradient),
        n_effective_beside=n_effective_beside(gradient),
        most_influential=most_influential_prompt(gradient),
        share_of_deals=_share_of_deals(gradient),
        trace_cov=trace_cov(gradient),
        signal_sq=signal_sq(gradient),
        noise_to_signal=noise_to_signal(gradient),
        ratio=ratio(gradient),
        matched_ratio=matched_ratio(gradient),
        cosine=cosine(gradient),
        bias_share=bias_share(gradient),
        matched_bias_share=matched_bias_share(gradient),
        kept_share=kept_share(gradient.kept),
        within_prompt=within_prompt(gradient),
        between_prompt=between_prompt(gradient),
        at_matched_signal=matched_trace_cov(gradient),
        gradient=gradient,
    )


def _share_of_deals(gradient: GradientStatistics) -> float:
    statistics = [gradient.trace_cov]
    if gradient.reference is not None:
        relative = gradient.trace_cov.in_units_of_itself() - gradient.reference.trace_cov.in_units_of_itself()
        statistics.append(relative)
    shares = [one.variance_over_deals / one.variance() for one in statistics if one.variance_over_deals > 0]
    return float(max(shares, default=0.0))
