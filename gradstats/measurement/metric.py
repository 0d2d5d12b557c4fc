"""The metric of a measurement: which norm its squared norms, sketches and inner products are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradstats.config.labels import written
from gradstats.config.metrics import EUCLIDEAN


def metric_label(metadata: Mapping[str, Any]) -> str:
    """Return the label of the metric that a measurement's metadata records; without a record it is Euclidean.

    Two measurements are comparable if and only if their labels are equal: Adam's contains a digest of the second
    moments.

    Example:
        >>> metric_label({})
        'euclidean'
        >>> adam = {"name": "adam", "eps": 1e-8, "power": 0.5, "step": None, "beta2": 0.999, "moments": "1a2b"}
        >>> metric_label({"metric": adam})
        'adam(eps=1e-08, power=0.5, moments=1a2b)'
    """
    described = metadata.get("metric")
    if described is None:
        return EUCLIDEAN
    names = (
        ["eps", "power", "moments"] if described.get("step") is None else ["eps", "power", "step", "beta2", "moments"]
    )
    inside = ", ".join(f"{name}={_value(described[name])}" for name in names)
    return f"{described['name']}({inside})"


def metric_sentence(metadata: Mapping[str, Any]) -> str:
    """Return what the metric of a measurement is, as a sentence without its full stop; empty for the Euclidean one.

    Example:
        >>> adam = {"name": "adam", "eps": 1e-8, "power": 0.5, "step": None, "beta2": 0.999, "moments": "1a2b"}
        >>> metric_sentence({"metric": adam | {"source": "optimizer.pt"}})
        'norms and inner products are those of P·S with P = 1/(v̂^0.5 + 1e-08), v̂ from optimizer.pt'
    """
    described = metadata.get("metric")
    if described is None:
        return ""
    power, eps = _value(described["power"]), _value(described["eps"])
    source = described.get("source")
    return f"norms and inner products are those of P·S with P = 1/(v̂^{power} + {eps})" + (
        f", v̂ from {source}" if source else ""
    )


def _value(value: object) -> str:
    return value if isinstance(value, str) else written(value)
