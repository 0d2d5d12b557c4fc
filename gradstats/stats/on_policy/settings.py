"""Recorded settings of sampler and scorer, and where they differ."""

from __future__ import annotations

import math
from collections.abc import Mapping

SAMPLER_SETTINGS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# What leaves the distribution as it is; servers write "no top-k" in several ways.
NEUTRAL: dict[str, tuple[float, ...]] = {
    "top_p": (1.0,),
    "top_k": (0.0, -1.0),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
}


def departures_of(sampler: Mapping[str, object], scorer_temperature: float | None) -> list[str]:
    """List recorded settings with which a sampler does not draw from the scored distribution.

    A setting that was not recorded, or recorded as None, is not a departure.
    """
    neutral = dict(NEUTRAL)
    if scorer_temperature is not None:
        neutral["temperature"] = (scorer_temperature,)
    return [f"{name}={sampler[name]}" for name, values in neutral.items() if not _is_one_of(sampler.get(name), values)]


def other_policy_of(drawn_by: object, scored: Mapping[str, object]) -> list[str]:
    """List what was recorded of the policy that drew the tokens and differs from the scored one, as ``name=value``.

    The same weights may go by two names; a revision or an adapter is another policy.
    """
    if not isinstance(drawn_by, Mapping):
        return []
    return [
        f"{name}={drawn_by[name]}"
        for name in ("revision", "adapter")
        if name in drawn_by and name in scored and drawn_by[name] != scored[name]
    ]


def _is_one_of(value: object, values: tuple[float, ...]) -> bool:
    return value is None or (
        isinstance(value, int | float) and any(math.isclose(value, one, rel_tol=1e-6) for one in values)
    )
