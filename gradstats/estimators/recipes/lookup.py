"""The named recipes: whole policy-gradient estimators, found by name.

Every registered estimator that no row names is a recipe as well: its advantage alone, aggregated by
``sequence_sum``. Recipes differ in unit (scale and aggregation change it): compare noise-to-signal ratios.
"""

from __future__ import annotations

import inspect
from typing import Any, get_args

import pandas as pd

from gradstats.config.labels import read_label
from gradstats.estimators import registry
from gradstats.estimators.estimator import SEQUENCE_SUM
from gradstats.estimators.parameters import suggest
from gradstats.estimators.recipes.components import COMPONENTS, DEFAULT_COMPONENTS, Kind, get_component, parameter_names
from gradstats.estimators.recipes.named import RECIPES
from gradstats.estimators.recipes.recipe import Recipe


def get(name: str | Recipe, **overrides: Any) -> Recipe:
    """Find a recipe by name, and change it where wanted.

    Args:
        name: a name of :func:`names`; a Recipe is returned as it is when nothing is overridden.
        **overrides: another component (``aggregation="token_mean"``, ``kl="in_loss(beta=0.01)"``), or
            parameters, which go to every component that takes one of that name (``eps_high=0.28``, ``tau=1.0``).

    Returns:
        The recipe.

    Raises:
        KeyError: for an unknown recipe or component, with the nearest known one.
        TypeError: for a parameter that no component takes, or one that is required and missing.

    Example:
        >>> from gradstats.estimators import Batch, recipes
        >>> recipes.get("dr_grpo")
        dr_grpo[group_mean · token_clip · constant]
        >>> mean_over_tokens = recipes.get("dr_grpo", aggregation="token_mean", eps_high=0.28)
        >>> mean_over_tokens
        dr_grpo[group_mean · token_clip(eps_high=0.28) · token_mean]
        >>> mean_over_tokens.weights(Batch(rewards=[1, 0], lengths=[3, 5], groups=["a", "a"]))
        array([ 0.0625, -0.0625])
    """
    if isinstance(name, Recipe):
        if overrides:
            raise TypeError(
                f"overrides change a recipe that is found by name: build a variant of {name.name} with Recipe(…)"
            )
        return name
    row = _row(name)
    chosen = {"advantage": row["advantage"]} | {
        kind: row.get(kind, default) for kind, default in DEFAULT_COMPONENTS.items()
    }
    chosen |= {kind: overrides.pop(kind) for kind in list(overrides) if kind in chosen}
    takers = {kind: _parameters_of(kind, value) for kind, value in chosen.items() if isinstance(value, str)}
    for parameter in overrides:
        if not any(parameter in taken for taken in takers.values()):
            known = sorted({*chosen, *(taken for names in takers.values() for taken in names)})
            raise TypeError(f"recipe {name} has no component or parameter {parameter!r}: {suggest(parameter, known)}")
    built = {}
    for kind, value in chosen.items():
        parameters = {key: overrides[key] for key in takers.get(kind, []) if key in overrides}
        if kind == "advantage":
            built[kind] = registry.get(value, **parameters)
        else:
            built[kind] = get_component(kind, value, **parameters)  # type: ignore[arg-type]  # kinds of DEFAULT_COMPONENTS
    return Recipe(**built, name=name)


def names() -> list[str]:
    """The names of all recipes: the rows of :data:`RECIPES`, then every other estimator by itself."""
    alone = {row["advantage"] for row in RECIPES.values() if not set(row) & set(DEFAULT_COMPONENTS)}
    return [*RECIPES, *(name for name in registry.names() if name not in RECIPES and name not in alone)]


def table() -> pd.DataFrame:
    """All recipes, one row each.

    Returns:
        A frame with the columns ``name``, ``baseline``, ``scale``, ``ratio + clip``, ``aggregation``, ``needs``
        (fields of the Batch), ``bias`` (what E[ĝ] is) and ``source``.

    Example:
        >>> from gradstats.estimators import recipes
        >>> frame = recipes.table().set_index("name")
        >>> frame.loc["grpo", ["baseline", "scale", "ratio + clip", "aggregation"]].to_list()
        ['group mean', 'group_std', 'token_clip', 'sequence_mean']
    """
    baselines = registry.table().set_index("name")
    rows = []
    for name in names():
        row = _row(name)
        baseline = baselines.loc[read_label(row["advantage"])[0]]
        ratio = row.get("ratio", DEFAULT_COMPONENTS["ratio"]) + (f", {row['filter']}" if "filter" in row else "")
        needs = baseline["needs"]
        if "ratio" in row:
            needs += ", logprobs and old_logprobs off-policy"
        rows.append(
            {
                "name": name,
                "baseline": baseline["baseline"],
                "scale": row.get("scale", baseline["scale"]),
                "ratio + clip": ratio,
                "aggregation": row.get("aggregation", DEFAULT_COMPONENTS["aggregation"]),
                "needs": needs,
                "bias": row.get("bias", baseline["bias"]),
                "source": row.get("source", baseline["source"]),
            }
        )
    return pd.DataFrame(rows)


def unit_of_label(label: str) -> str:
    """What the gradient of an estimator is measured in, from the label that tables and files give it.

    Args:
        label: of a baseline, ``"kimi(tau=0.5)"``, or of a recipe, ``"grpo[group_mean · group_std · sequence_mean]"``.

    Returns:
        The unit; that of a plain sum for a label under which nothing is registered.
    """
    name, bracket, inside = label.partition("[")
    try:
        if bracket:
            advantage, *components = inside.rstrip("]").split(" · ")
            return Recipe(advantage, **{_kind_of(label): label for label in components}, name=name).unit
        base, parameters = read_label(name)
        definition = registry.get_definition(base)
    except (KeyError, TypeError, ValueError):
        return SEQUENCE_SUM
    return definition.unit({**registry.default_parameters(definition), **parameters})


def _kind_of(component: str) -> str:
    """The kind of a component that does something: names are unique among those."""
    base, _ = read_label(component)
    for kind, known in COMPONENTS.items():
        if base in known:
            return kind
    raise KeyError(f"no component is called {base!r}")


def _row(name: str) -> dict[str, str]:
    if name in RECIPES:
        return RECIPES[name]
    if name in registry.DEFINITIONS:
        return {"advantage": name}
    raise KeyError(f"no recipe is called {name!r}: {suggest(name, names())}")


def _parameters_of(kind: str, label: str) -> list[str]:
    base, _ = read_label(label)
    if kind in get_args(Kind):
        return parameter_names(kind, base)  # type: ignore[arg-type]  # checked on the line before
    return list(inspect.signature(registry.get_definition(base).function).parameters)[1:]
