"""The name of an estimator in words, as figures and tables of a paper print it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gradstats.config.options import read_label
from gradstats.config.trust import names_code
from gradstats.estimators import registry
from gradstats.estimators.recipes.named import NAMED
from gradstats.estimators.recipes.recipe import PREFIX
from gradstats.estimators.recipes.trainers import of_trainer

#: Names of parameters that are written as a letter.
GREEK = {"alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "tau": "τ", "lam": "λ", "eps": "ε"}


def in_words(label: str) -> str:
    """Name an estimator in words; a label of the user's own code, or of nothing registered, stays as it is.

    >>> in_words("length_weighted(alpha=0.8, loo=True)"), in_words("recipe:dapo(loo=True)")
    ('length-weighted, α = 0.8, leave-one-out', 'DAPO, leave-one-out')
    """
    if names_code(label):
        return label
    try:
        base, parameters = read_label(label.removeprefix(PREFIX))
    except ValueError:
        return label
    method = NAMED.get(base, {}).get("display") if label.startswith(PREFIX) else None
    if of_trainer(base):
        method = base.replace("trl:", "TRL's ").replace("verl:", "verl's ")
    name = method or (registry.DEFINITIONS[base].display if base in registry.DEFINITIONS else "")
    if not name:
        return label
    return ", ".join([name, *(_parameter(key, value) for key, value in parameters.items())])


def _parameter(key: str, value: object) -> str:
    words = str(value).replace("_", " ")
    if key == "loo":
        return "leave-one-out" if value else "own sample"
    if key == "scope":
        return f"over the {words}"
    if key == "energy":
        return f"{words} energy"
    if key in ("advantage", "baseline"):
        return f"{in_words(str(value))} {key}"
    first, _, rest = key.partition("_")
    name = " ".join([GREEK[first], *([rest] if rest else [])]) if first in GREEK else key.replace("_", " ")
    name = {"off policy": "off-policy"}.get(name, name)
    if isinstance(value, bool):
        return name if value else f"no {name}"
    if isinstance(value, int | float):
        return f"{name} = {value:g}".replace("-", "−")
    # An exponent that is fitted, a constant that is optimised.
    return f"{words.replace(' ', '-')} {name}" if name in (*GREEK.values(), "b") else f"{name} = {words}"


def distinct_names(labels: Iterable[str], chosen: Mapping[str, str] | None = None) -> dict[str, str]:
    """Name several estimators, so that no two share a name: those that would are named by their labels."""
    names = {label: in_words(label) for label in labels}
    uses = Counter(names.values())
    names = {label: name if uses[name] == 1 else label for label, name in names.items()}
    return names | {label: name for label, name in (chosen or {}).items() if label in names}


def uses_own_sample(label: str) -> bool:
    """Return whether a completion's own reward enters its baseline: a registered baseline without ``loo=True``.

    False for a published method as a whole, for the user's own code, and for a label under which nothing is registered.
    """
    if names_code(label) or of_trainer(label):
        return False
    try:
        base, parameters = read_label(label.removeprefix(PREFIX))
        if label.startswith(PREFIX) and "display" in NAMED.get(base, {}):
            return False
        defaults = registry.default_parameters(registry.get_definition(base))
    except (KeyError, ValueError):
        return False
    return {**defaults, **parameters}.get("loo") is False
