"""Options of a metric and of the estimate of its second moments, written as ``adam(eps=1e-6)``."""

from __future__ import annotations

from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Lt
from pydantic import Field

from gradstats.config.labels import read_label
from gradstats.config.validation import Section

#: What estimates the second moments from the rollouts themselves.
ESTIMATE = "estimate"
ADAM = "adam"
#: The label of the Euclidean metric.
EUCLIDEAN = "euclidean"


class AdamSection(Section):
    """Arguments of :class:`gradstats.AdamMetric`; None where the file of second moments may state the value."""

    title: ClassVar[str] = "the metric"

    eps: Annotated[float, Ge(0)] | None = Field(default=None, description="ε; that of the file, or 1e-8.")
    power: Annotated[float, Ge(0)] = Field(default=0.5, description="the power of the second moments.")
    step: Annotated[int, Ge(1)] | None = Field(
        default=None, description="steps after which uncorrected moments were taken; that of the file, or none."
    )
    beta2: Annotated[float, Gt(0), Lt(1)] | None = Field(default=None, description="β₂; that of the file, or 0.999.")


class EstimateSection(Section):
    """How second moments are estimated: arguments of :func:`gradstats.estimate_second_moments`, and which prompts."""

    title: ClassVar[str] = "the estimate of second moments"
    not_arguments: ClassVar[frozenset[str]] = frozenset({"share"})

    estimator: str = Field(default="rloo", description="label of the estimator whose batch gradients are squared.")
    prompts_per_batch: Annotated[int, Ge(1)] = Field(default=16, description="prompts of a batch.")
    share: Annotated[float, Gt(0), Lt(1)] = Field(
        default=0.25, description="share of the prompts that are set aside for the estimate, and not measured."
    )


def adam_section(metric: str | None) -> AdamSection | None:
    """Return the options of a label such as ``"adam(eps=1e-6)"``; None for the Euclidean metric, named or by default.

    Raises:
        ValueError: for another name, or options that it does not have.

    >>> adam_section("adam(power=0.25)").power
    0.25
    >>> adam_section("euclidean") is adam_section(None) is None
    True
    """
    if metric in (None, EUCLIDEAN):
        return None
    name, options = read_label(metric)
    if name != ADAM:
        raise ValueError(f"the metric {name!r} is unknown: choose euclidean, or adam, as in adam(eps=1e-8)")
    return AdamSection(**options)


def refuse_correction(adam: AdamSection) -> None:
    """Refuse a number of steps for second moments that are estimated, which start from no moments of 0.

    Raises:
        ValueError: where a step is given.
    """
    if adam.step is not None:
        raise ValueError(
            f"step of the metric is {adam.step}, and second moments that are estimated need no correction: leave step "
            "out"
        )


def estimate_section(second_moments: str | None) -> EstimateSection | None:
    """Return the options of ``"estimate(…)"``; None where the second moments come from a file.

    Raises:
        ValueError: for options that it does not have.

    >>> estimate_section("estimate(prompts_per_batch=4)").prompts_per_batch
    4
    >>> estimate_section("checkpoint/optimizer.pt") is None
    True
    """
    if second_moments is None or second_moments.partition("(")[0].strip() != ESTIMATE:
        return None
    return EstimateSection(**read_label(second_moments)[1])
