"""The columns of a comparison: what each is called in tables and figures, and what values it can have."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Literal

from gradstats.config.options import EUCLIDEAN

#: The least and the greatest value that a quantity can have.
Limits = tuple[float, float]

NO_LIMITS: Limits = (-math.inf, math.inf)
#: The values that variances and shares can have.
NOT_NEGATIVE: Limits = (0.0, math.inf)
SHARE: Limits = (0.0, 1.0)

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
    limits: Limits = NO_LIMITS  # the least and the greatest possible value; an unbiased estimate may lie beyond
    has_unit: bool = False  # whether it carries the square of the gradient's unit, alone or relative to another's
    shown_in: tuple[Place, ...] = ()  # where it is a column or panel by default
    together_heading: str = ""  # of the intervals that hold for all rows at once, where there are any
    together_in: tuple[Place, ...] = ()  # where these are a column of their own


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
# relative noise decides which estimator is lowest, and figures show it by default.
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
