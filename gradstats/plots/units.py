"""Which estimators share a unit: scaling and aggregation change what a gradient is measured in."""

from __future__ import annotations

from collections.abc import Iterable

# Quantities that carry the square of the gradient's unit, alone or relative to another estimator's.
IN_UNITS = ("trace_cov", "signal_sq", "ratio", "within_prompt", "between_prompt")
# Parts of a recipe that change the unit; every baseline compared as a baseline has none of them.
_SCALES = ("group_std", "batch_std", "group_mean")
_AGGREGATIONS = ("sequence_mean", "token_mean", "constant")


def estimator_unit(label: str) -> str:
    """What an estimator's gradient is measured in: the scale and the aggregation that its label names.

    Args:
        label: of a baseline, ``"rloo"``, or of a recipe, ``"grpo[group_mean · group_std · sequence_mean]"``.
    """
    _, bracket, inside = label.partition("[")
    if not bracket:
        return "sequence_sum"
    # The first part is the advantage, whose name may be that of a scale.
    names = [part.partition("(")[0].strip() for part in inside.rstrip("]").split(" · ")[1:]]
    changed = [name for name in names if name in (*_SCALES, *_AGGREGATIONS)]
    return " · ".join(changed) or "sequence_sum"


def refuse_mixed_units(labels: Iterable[str], value: str) -> None:
    """Refuse to draw quantities of different units on one axis.

    Raises:
        ValueError: naming two estimators, their units, and a quantity that has none.
    """
    if value not in IN_UNITS:
        return
    units: dict[str, str] = {}
    for label in map(str, labels):
        units.setdefault(estimator_unit(label), label)
    if len(units) > 1:
        told = "; ".join(f"{label} in {unit}" for unit, label in list(units.items())[:2])
        raise ValueError(
            f"estimators of different units cannot share an axis of {value} ({told}): scaling and aggregation change "
            "the unit of a gradient; draw value='noise_to_signal' or 'cosine', which have none"
        )
