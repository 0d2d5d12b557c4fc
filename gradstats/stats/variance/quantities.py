"""The table of estimated quantities: what each is called, how it is drawn, and whether it has a unit.

Headings, axis labels, scales and landmarks of every table and figure are read from here. Each quantity is defined in
the file of its name beside this one, is estimated for a row of the comparison by :mod:`gradstats.stats.variance.row`,
and appears everywhere once it has its entry below.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Literal

from gradstats.config.metrics import EUCLIDEAN

Place = Literal["paper", "page", "terminal", "panels"]


@dataclass(frozen=True)
class Quantity:
    """One column of a variance comparison, which has its ``_low`` and ``_high`` beside it.

    In headings and labels ``{reference}`` stands for the label of the reference estimator, and ``{target}`` for what
    bias and cosine are judged against; :func:`filled_in` puts in both.

    Attributes:
        name: of the column.
        heading: in tables, on one line.
        axis_label: in a figure of its own.
        panel_label: under a panel a third as wide.
        logarithmic: whether it is drawn on a log axis.
        landmark: a value to compare with, drawn as a dashed line.
        has_unit: whether it carries the square of the gradient's unit, alone or relative to another estimator's.
        shown_in: where it is a column or panel by default: tables for a paper, the HTML page, the terminal, the figure
            of several panels.
        together_heading: of the intervals that hold for all rows at once, where there are any.
        together_in: where these are a column of their own.
    """

    name: str
    heading: str
    axis_label: str
    panel_label: str
    logarithmic: bool = False
    landmark: float | None = None
    has_unit: bool = False
    shown_in: tuple[Place, ...] = ()
    together_heading: str = ""
    together_in: tuple[Place, ...] = ()


#: What `gradstats.compare` estimates of every estimator, in the order of its frame.
COMPARED = (
    Quantity(
        name="trace_cov",
        heading="tr Cov",
        axis_label="tr Cov of a group's gradient",
        panel_label="tr Cov",
        logarithmic=True,
        has_unit=True,
        shown_in=("paper", "page", "terminal"),
    ),
    Quantity(
        name="signal_sq",
        heading="‖E ĝ‖²",
        axis_label="squared norm of the expected gradient",
        panel_label="signal",
        landmark=0.0,
        has_unit=True,
    ),
    Quantity(
        name="noise_to_signal",
        heading="noise to signal",
        axis_label="noise to signal (groups)",
        panel_label="noise\nto signal",
        logarithmic=True,
        shown_in=("page",),
    ),
    Quantity(
        name="ratio",
        heading="ratio to {reference}",
        axis_label="variance relative to {reference}",
        panel_label="ratio to\n{reference}",
        logarithmic=True,
        landmark=1.0,
        has_unit=True,
        shown_in=("paper", "page", "terminal"),
        together_heading="all ratios",
        together_in=("page", "terminal"),
    ),
    Quantity(
        name="matched_ratio",
        heading="matched ratio",
        axis_label="variance relative to {reference},\nat matched signal",
        panel_label="matched\nratio to\n{reference}",
        logarithmic=True,
        landmark=1.0,
        shown_in=("paper", "page", "terminal", "panels"),
        together_heading="all matched ratios",
        together_in=("paper", "page", "terminal"),
    ),
    Quantity(
        name="cosine",
        heading="cosine",
        axis_label="cosine to the {target} gradient",
        panel_label="cosine\n({target})",
        shown_in=("paper", "page", "terminal", "panels"),
    ),
    Quantity(
        name="bias_share",
        heading="share of bias",
        axis_label="share of bias in the mean squared error,\nagainst the {target} gradient",
        panel_label="share\nof bias",
    ),
    Quantity(
        name="matched_bias_share",
        heading="matched bias",
        axis_label="share of bias in the mean squared error,\nat matched scale, against the {target} gradient",
        panel_label="matched\nbias",
        shown_in=("paper", "page", "terminal", "panels"),
    ),
    Quantity(
        name="kept_share",
        heading="groups kept",
        axis_label="share of groups with a gradient",
        panel_label="groups\nkept",
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
        logarithmic=True,
        has_unit=True,
    ),
    Quantity(
        name="between_prompt",
        heading="between-prompt variance",
        axis_label="between-prompt variance",
        panel_label="between\nprompts",
        landmark=0.0,
        has_unit=True,
    ),
)

#: The label of an axis that both components share.
COMPONENT_LABEL = "component of tr Cov"

QUANTITIES = {quantity.name: quantity for quantity in (*COMPARED, *VARIANCE_COMPONENTS)}

#: What a target is called in labels and headings.
TARGETS = {"on_policy": "on-policy", "importance": "importance-weighted"}


def filled_in(text: str, attrs: Mapping[Hashable, object], reference: str | None = None) -> str:
    """Put the names of reference and target into a heading or label.

    Args:
        text: with ``{reference}`` and ``{target}``.
        attrs: of the frame of a comparison; a frame of an earlier version was judged on-policy.
        reference: the name of the reference, if it is not that in ``attrs``.
    """
    name = attrs.get("reference", "the reference") if reference is None else reference
    return text.format(reference=name, target=TARGETS[str(attrs.get("target", "on_policy"))])


def axis_label(quantity: Quantity, attrs: Mapping[Hashable, object], reference: str | None = None) -> str:
    """Return the label of a quantity's axis, with the metric where it is not Euclidean.

    Args:
        quantity: what the axis shows.
        attrs: of the frame of a comparison.
        reference: as for :func:`filled_in`.
    """
    return in_metric(filled_in(quantity.axis_label, attrs, reference), attrs)


def in_metric(label: str, attrs: Mapping[Hashable, object]) -> str:
    """Return the label of an axis with the metric that a frame's ``attrs`` record, where it is not Euclidean."""
    return label if attrs.get("metric", EUCLIDEAN) == EUCLIDEAN else f"{label}\n(Adam's metric)"


# A shrunken estimator has a low ratio without being better, and a ratio between two units is meaningless: only the
# variance at matched signal decides which estimator is lowest, and figures show it by default.
JUDGED = QUANTITIES["matched_ratio"]


def shown_in(place: Place) -> tuple[str, ...]:
    """Return the names of the quantities that a kind of table or figure shows by default, in order."""
    return tuple(quantity.name for quantity in QUANTITIES.values() if place in quantity.shown_in)
