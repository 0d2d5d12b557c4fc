"""The named recipes: whole policy-gradient estimators, found by name; those of 2025 and 2026 are in ``losses.py``.

Every registered estimator that no row names is a recipe as well: its advantage alone, aggregated by
``sequence_sum``. Recipes differ in unit (scale and aggregation change it): compare noise-to-signal ratios.
"""

from __future__ import annotations

import inspect
from typing import Any, get_args

from gradstats.config.options import read_label, written
from gradstats.config.trust import names_code
from gradstats.estimators import registry
from gradstats.estimators.estimator import SEQUENCE_SUM, nearest, suggest
from gradstats.estimators.recipes.components import (
    COMPONENTS,
    DEFAULT_COMPONENTS,
    Kind,
    get_component,
    kind_of,
    parameter_names,
)
from gradstats.estimators.recipes.losses import LOSSES
from gradstats.estimators.recipes.recipe import CUSTOM, PREFIX, Recipe
from gradstats.estimators.recipes.trainers import build, labels, of_trainer
from gradstats.estimators.recipes.trainers import row as row_of_trainer
from gradstats.system.lazy_imports import pd

RECIPES: dict[str, dict[str, str]] = {
    "reinforce": {
        "display": "REINFORCE", "advantage": "reinforce",
        "published_kl": "none", "bias": "E[ĝ] = ∇J", "source": "Williams 1992",
    },
    "rloo": {
        "display": "RLOO", "advantage": "rloo",
        "published_kl": "in_reward(kind=k1)", "bias": "E[ĝ] = ∇J", "source": "Ahmadian et al. 2024, 2402.14740",
        "run_by": "verl, SkyRL",
    },
    "rloo_is": {
        "display": "RLOO-IS", "advantage": "rloo(off_policy=True)", "ratio": "sequence_product",
        "published_kl": "none", "bias": "E[ĝ] = ∇J, off-policy as well",
        "source": "importance sampling: Precup et al. 2000",
    },
    # Corrections of the mismatch between sampler and scored policy, of RLOO's plain sum. Other aggregations have a
    # denominator, in which IcePop counts rejected tokens, and MIS does not.
    "tis": {
        "display": "TIS", "advantage": "rloo", "correction": "truncate_tokens",
        "published_kl": "none", "bias": "off-policy biased: prefixes as they were drawn",
        "source": "Yao et al. 2025; verl: rollout_is=token",
        "run_by": "verl, TRL, SkyRL",
    },
    "sequence_tis": {
        "display": "Sequence TIS", "advantage": "rloo", "correction": "truncate_completions",
        "published_kl": "none", "bias": "off-policy biased: truncated ratios", "source": "verl: rollout_is=sequence",
        "run_by": "verl, TRL, SkyRL",
    },
    "icepop": {
        "display": "IcePop", "advantage": "rloo", "correction": "mask_tokens",
        "published_kl": "none", "bias": "off-policy biased: without the tokens out of bounds",
        "source": "Ring-1T 2510.18855; INTELLECT-3 2512.16144, eq. 1",
    },
    "mis": {
        "display": "MIS", "advantage": "rloo", "correction": "mask_tokens(low=0.5, high=2)",
        "mask": "reject_tokens(low=0.5, high=2)",
        "published_kl": "none", "bias": "off-policy biased: without the tokens out of bounds",
        "source": "slime",
        "run_by": "slime",
    },
    "geo_rs": {
        "display": "Geometric rejection", "advantage": "rloo", "mask": "reject_completions(low=0.999, high=1.001)",
        "published_kl": "none", "bias": "off-policy biased: ratios ignored",
        "source": "verl: rollout_rs=seq_mean_k1",
        "run_by": "verl, SkyRL",
    },
    "worst_token_rs": {
        # ½ log² ρ ≤ 0.25: every ratio of the completion between 0.49 and 2.03
        "display": "Worst-token rejection", "advantage": "rloo",
        "mask": "reject_completions(kind=k2, over=max, high=0.25)",
        "published_kl": "none", "bias": "off-policy biased: ratios ignored",
        "source": "verl: rollout_rs=seq_max_k2",
        "run_by": "verl",
    },
    "ppo": {
        "display": "PPO", "advantage": "gae", "ratio": "token_clip", "aggregation": "token_mean",
        "published_kl": "none", "bias": "biased: all tokens share one average",
        "source": "Schulman et al. 2017, 1707.06347",
        "run_by": "OpenRLHF by default, whiten=True",
    },
    "grpo": {
        "display": "GRPO", "advantage": "group_mean", "scale": "group_std", "ratio": "token_clip",
        "aggregation": "sequence_mean",
        "published_kl": "in_loss(kind=k3)", "bias": "biased: by group spread and 1/T",
        "source": "Shao et al. 2024, 2402.03300",
        "run_by": "slime by default; TRL, verl",
    },
    "dr_grpo": {
        "display": "Dr. GRPO", "advantage": "group_mean", "ratio": "token_clip", "aggregation": "constant",
        "published_kl": "none", "bias": "on-policy (N−1)/(N·L)·∇J", "source": "Liu et al. 2025, 2503.20783",
        "run_by": "TRL, verl, SkyRL",
    },
    "dapo": {
        "display": "DAPO", "advantage": "group_mean", "scale": "group_std", "ratio": "token_clip(eps_high=0.28)",
        "aggregation": "token_mean", "filter": "dynamic_sampling",
        "published_kl": "none", "bias": "biased: by group spread and 1/ΣT", "source": "Yu et al. 2025, 2503.14476",
        "run_by": "verl, TRL, SkyRL over the batch",
    },
    "dapo_top_entropy": {
        "display": "DAPO, top 20 % entropy", "advantage": "group_mean", "scale": "group_std",
        "ratio": "token_clip(eps_high=0.28)", "aggregation": "token_mean", "filter": "dynamic_sampling",
        "mask": "top_entropy",
        "published_kl": "none", "bias": "biased: by group spread, 1/ΣT, and without the other tokens",
        "source": "Wang et al. 2025, 2506.01939",
    },
    "gspo": {
        "display": "GSPO", "advantage": "group_mean", "scale": "group_std", "ratio": "sequence_clip",
        "aggregation": "sequence_mean",
        "published_kl": "left out of the objective for brevity", "bias": "biased: by group spread and 1/T",
        "source": "Zheng et al. 2025, 2507.18071",
        "run_by": "TRL, verl, SkyRL, OpenRLHF, slime",
    },
    "cispo": {
        "display": "CISPO", "advantage": "group_mean", "scale": "group_std", "ratio": "clipped_weight",
        "aggregation": "token_mean",
        "published_kl": "none", "bias": "biased: by group spread and 1/ΣT", "source": "MiniMax 2025, 2506.13585",
        "run_by": "verl, TRL, SkyRL, slime over the batch",
    },
    "kimi_k15": {
        "display": "Kimi k1.5", "advantage": "kimi", "ratio": "log_ratio_penalty",
        "published_kl": "to the sampler, in log_ratio_penalty",
        "bias": "biased: own-sample soft maximum, and the penalty off-policy", "source": "Kimi Team 2025, 2501.12599",
    },
    "opo": {
        "display": "OPO", "advantage": "token_mean",
        "published_kl": "none", "bias": "biased in scale and direction (own sample)",
        "source": "Hao et al. 2025, 2505.23585",
        "run_by": "verl",
    },
    "gmpo": {
        "display": "GMPO", "advantage": "group_mean", "scale": "group_std", "ratio": "geometric_clip",
        "aggregation": "sequence_mean",
        "published_kl": "none", "bias": "biased: by group spread and 1/T", "source": "Zhao et al. 2025, 2507.20673",
        "run_by": "verl",
    },
    "delta_l": {
        "display": "ΔL", "advantage": "group_mean", "scale": "group_std", "ratio": "token_clip",
        "aggregation": "delta_l",
        "published_kl": "none", "bias": "biased: by group spread and T^{−α}", "source": "2509.07558",
    },
}  # fmt: skip
#: All rows by name.
NAMED = RECIPES | LOSSES


def names() -> list[str]:
    """Return the names of all recipes: the rows of :data:`NAMED`, then every other estimator by itself."""
    alone = {row["advantage"] for row in NAMED.values() if not set(row) & set(DEFAULT_COMPONENTS)}
    return [*NAMED, *(name for name in registry.names() if name not in NAMED and name not in alone)]


def get(name: str | Recipe, **overrides: Any) -> Recipe:
    """Find a recipe by name, with optional changes.

    Args:
        name: a name of :func:`names`, with or without the prefix "recipe:", and optionally with overrides in
            brackets, as in ``"recipe:dapo(loo=True)"``; ``"recipe:custom(advantage=rloo, …)"`` composes a new one;
            ``"trl:dapo"`` and ``"verl:grpo"`` have the trainer's parameters. A Recipe is returned as it is when
            nothing is overridden.
        **overrides: another component (``aggregation="token_mean"``, ``kl="in_loss(beta=0.01)"``), or
            parameters, which go to every component that takes one of that name (``eps_high=0.28``, ``tau=1.0``).

    Returns:
        The recipe.

    Raises:
        KeyError: for an unknown recipe or component, with the nearest known one.
        TypeError: for a parameter that no component takes, or one that is required and missing.
        ValueError: for a parameter outside its range; the recipe and the component are named.

    Example:
        >>> from gradstats.estimators import Batch, recipes
        >>> recipes.get("dr_grpo")
        recipe:dr_grpo [group_mean · token_clip · constant]
        >>> mean_over_tokens = recipes.get("dr_grpo", aggregation="token_mean", eps_high=0.28)
        >>> mean_over_tokens.label
        'recipe:dr_grpo(aggregation=token_mean, eps_high=0.28)'
        >>> mean_over_tokens.weights(Batch(rewards=[1, 0], lengths=[3, 5], groups=["a", "a"]))
        array([ 0.0625, -0.0625])
    """
    if isinstance(name, Recipe):
        if overrides:
            raise TypeError(
                f"overrides change a recipe that is found by name: build a variant of {name.name} with Recipe(…)"
            )
        return name
    base, from_label = read_label(name.removeprefix(PREFIX))
    if of_trainer(base):
        changed = _label(base, from_label | overrides).removeprefix(PREFIX)
        return build(base, from_label | overrides, changed if overrides else name)
    label = _label(base, from_label | overrides) if overrides else PREFIX + name.removeprefix(PREFIX)
    overrides = from_label | overrides
    row = _row(base, overrides)
    chosen = {"advantage": row["advantage"]} | {
        kind: row.get(kind, default) for kind, default in DEFAULT_COMPONENTS.items()
    }
    chosen |= {kind: overrides.pop(kind) for kind in list(overrides) if kind in chosen}
    takers = {kind: _parameters_of(kind, value) for kind, value in chosen.items() if isinstance(value, str)}
    _check_overrides(base, chosen, takers, overrides)
    built = {}
    for kind, value in chosen.items():
        parameters = {key: overrides[key] for key in takers.get(kind, {}) if key in overrides}
        try:
            if kind == "advantage":
                built[kind] = registry.get_estimator(value, **parameters)
            else:
                built[kind] = get_component(kind, value, **parameters)  # type: ignore[arg-type]  # kinds of DEFAULT_COMPONENTS
        except (TypeError, ValueError) as error:
            raise type(error)(f"{label}: {error}") from None
    return Recipe(**built, name=base, written=label)


def _row(name: str, overrides: dict[str, Any]) -> dict[str, str]:
    if name in NAMED:
        return NAMED[name]
    if name in registry.DEFINITIONS:
        return {"advantage": name}
    if name == CUSTOM:
        if "advantage" not in overrides:
            raise TypeError(f"{PREFIX}{CUSTOM} needs a value for advantage: write {PREFIX}{CUSTOM}(advantage=rloo, …)")
        return {"advantage": overrides["advantage"]}
    near = nearest(name, names())
    hint = f"did you mean {PREFIX + near!r}?" if near else f"`gradstats list recipes` shows all {len(names())}"
    raise KeyError(f"no recipe is called {name!r}: {hint}")


def _parameters_of(kind: str, label: str) -> dict[str, bool]:
    """Return the parameters of a component or advantage, and whether each is required."""
    base, _ = read_label(label)
    if kind in get_args(Kind):
        return parameter_names(kind, base)  # type: ignore[arg-type]  # checked on the line before
    declared = list(inspect.signature(registry.get_definition(base).function).parameters.values())[1:]
    return {parameter.name: parameter.default is parameter.empty for parameter in declared}


def _label(base: str, overrides: dict[str, Any]) -> str:
    """Return the label of a recipe with overrides, which may be objects."""
    texts = [
        f"{key}={written(getattr(value, 'composition', getattr(value, 'label', value)))}"
        for key, value in overrides.items()
    ]
    return f"{PREFIX}{base}({', '.join(texts)})"


def _check_overrides(
    base: str, chosen: dict[str, Any], takers: dict[str, dict[str, bool]], overrides: dict[str, Any]
) -> None:
    """Refuse parameters that no component takes, and required ones that are missing."""
    for parameter in overrides:
        if not any(parameter in taken for taken in takers.values()):
            known = sorted({*chosen, *(taken for names in takers.values() for taken in names)})
            raise TypeError(f"{PREFIX}{base} has no component or parameter {parameter!r}: {suggest(parameter, known)}")
    missing = _missing(chosen, takers, overrides)
    if missing:
        raise TypeError(
            f"{PREFIX}{base} needs a value for {' and '.join(missing)}: write it as {_to_be_filled(base, missing)}"
        )


def _missing(chosen: dict[str, Any], takers: dict[str, dict[str, bool]], overrides: dict[str, Any]) -> list[str]:
    """Return the required parameters of a recipe's components that have no value yet."""
    found = []
    for kind, taken in takers.items():
        _, given = read_label(chosen[kind])
        found += [name for name, required in taken.items() if required and name not in {**given, **overrides}]
    return list(dict.fromkeys(found))


def _to_be_filled(base: str, missing: list[str]) -> str:
    """Return the label of a recipe with a place for each value that it needs."""
    return f"{PREFIX}{base}({', '.join(f'{name}=…' for name in missing)})" if missing else PREFIX + base


def table() -> pd.DataFrame:
    """Return a table of all recipes, one row each.

    Returns:
        A frame with the columns ``name``, ``baseline``, ``advantage unit`` (whether a completion or each token has its
        own advantage, and what it is divided by), ``ratio and clip unit``, ``length handling`` (the aggregation),
        ``KL placement`` (with the term of the paper where the recipe leaves it out), ``filter``, ``run by`` (trainers
        that have it), ``needs`` (fields of the Batch), ``bias`` (what E[ĝ] is) and ``source``.

    Example:
        >>> from gradstats.estimators import recipes
        >>> frame = recipes.table().set_index("name")
        >>> frame.loc["grpo", ["baseline", "advantage unit", "ratio and clip unit", "length handling"]].to_list()
        ['group mean', 'completion, / group_std', 'token: token_clip', 'sequence_mean']
    """
    return _table({name: _row(name, {}) for name in names()})


def _table(named: dict[str, dict[str, str]]) -> pd.DataFrame:
    rows = []
    for name, row in named.items():
        definition = registry.get_definition(read_label(row["advantage"])[0])
        fields = list(definition.needs(registry.default_parameters(definition)))
        components = [COMPONENTS[kind][read_label(row[kind])[0]] for kind in DEFAULT_COMPONENTS if kind in row]
        needs = ", ".join([*fields, *(need for one in components for need in one.needs)]) or "rewards"
        if any(one.of_ratios or one.kind == "ratio" for one in components):
            needs += ", logprobs and old_logprobs off-policy"
        scale = row.get("scale", definition.scale)
        level = {"sequence": "completion", "token": "token"}[definition.level]
        rows.append(
            {
                "name": name,
                "baseline": definition.baseline,
                "advantage unit": level if scale == "–" else f"{level}, / {scale}",
                "ratio and clip unit": _ratio_unit(row),
                "length handling": _length_handling(row),
                "KL placement": _kl_placement(row),
                "filter": _filters(row),
                "run by": row.get("run_by", "–"),
                "needs": needs,
                "bias": row.get("bias", definition.bias),
                "source": row.get("source", definition.source),
            }
        )
    return pd.DataFrame(rows)


def _ratio_unit(row: dict[str, str]) -> str:
    """Return ratio and correction with what they apply to, as in "token: token_clip(eps_high=0.28)"."""
    kinds: tuple[Kind, ...] = ("ratio", "correction")
    found = []
    for kind in kinds:
        if label := row.get(kind):
            of_token = COMPONENTS[kind][read_label(label)[0]].level == "token"
            found.append(f"{'token' if of_token else 'completion'}: {label}")
    return "; ".join(found) or "none"


def _length_handling(row: dict[str, str]) -> str:
    """Return the aggregation, with what a mean over tokens is taken over: "token_mean over the group"."""
    label = row.get("aggregation", DEFAULT_COMPONENTS["aggregation"])
    base, given = read_label(label)
    return f"{base} over the {given.get('scope', 'group')}" if base == "token_mean" else label


def _kl_placement(row: dict[str, str]) -> str:
    """Return where the recipe has a KL term, with that of its paper where it is another."""
    own = row.get("kl", DEFAULT_COMPONENTS["kl"])
    published = row.get("published_kl", own)
    return own if published == own else f"{own} (published: {published})"


def _filters(row: dict[str, str]) -> str:
    """Return what the recipe leaves out of the loss: groups or completions, and tokens."""
    stated = [row[kind] for kind in ("filter", "mask") if kind in row]
    return "; ".join(stated) or DEFAULT_COMPONENTS["filter"]


def published() -> pd.DataFrame:
    """Return the rows of :func:`table` that are published methods as a whole, with their ``label`` and ``components``,
    and below them the losses of TRL and the advantages of verl under their own names, at the trainer's defaults.

    A label has … in place of a value that it needs.

    Example:
        >>> from gradstats.estimators import recipes
        >>> recipes.published().set_index("label").loc["recipe:dr_grpo", "components"]
        'group_mean · token_clip · constant'
    """
    rows = {_label_of(name): row for name, row in NAMED.items()} | {label: row_of_trainer(label) for label in labels()}
    frame = _table(rows).rename(columns={"name": "label"})
    kinds = ("advantage", *DEFAULT_COMPONENTS)
    frame.insert(1, "components", [" · ".join(row[kind] for kind in kinds if kind in row) for row in rows.values()])
    return frame


def _label_of(name: str) -> str:
    """Return the label of a named recipe as it must be written, as in ``"recipe:kimi_k15(tau=…)"``."""
    row = {kind: value for kind, value in NAMED[name].items() if kind in ("advantage", *DEFAULT_COMPONENTS)}
    return _to_be_filled(name, _missing(row, {kind: _parameters_of(kind, value) for kind, value in row.items()}, {}))


def unit_of_label(label: str) -> str:
    """Return the unit of an estimator's gradient, from the label that tables and files give it."""
    if names_code(label):
        return SEQUENCE_SUM
    name, bracket, inside = label.partition("[")
    try:
        if bracket:
            advantage, *components = inside.rstrip("]").split(" · ")
            return Recipe(advantage, **{kind_of(label): label for label in components}, name=name).unit
        if label.startswith(PREFIX) or of_trainer(label):
            return get(label).unit
        base, parameters = read_label(name)
        definition = registry.get_definition(base)
    except (KeyError, TypeError, ValueError):
        return SEQUENCE_SUM
    return definition.unit({**registry.default_parameters(definition), **parameters})
