"""The frame behind a table, with its estimators named as figures name them."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pandas as pd

from gradstats.estimators.display_names import GREEK, distinct_names
from gradstats.estimators.recipes.recipe import PREFIX
from gradstats.plots.names import LABELS

# Entries of attrs that hold labels of estimators, as the reference of ratios.
_ENTRIES = ("reference", "best_learned", "curve")
_LETTER = re.compile(rf"\b({'|'.join(GREEK)})\b")


def frame_in_words(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame whose estimators are named in words, or as its ``.attrs["labels"]`` says.

    Those of the columns ``estimator`` and ``recipe`` are, and those of the entries of ``.attrs`` that captions and
    headings print, as the reference of ratios. No two estimators of a column share a name. Parameters that vary, or
    that were learned, are written as letters.

    Args:
        frame: with labels, as it is saved.
    """
    entries = {name: str(frame.attrs[name]) for name in _ENTRIES if isinstance(frame.attrs.get(name), str)}
    estimators = list(map(str, frame["estimator"])) if "estimator" in frame else []
    chosen = frame.attrs.get(LABELS)
    names = distinct_names([*estimators, *entries.values()], chosen)
    named = frame.copy()
    if estimators:
        named["estimator"] = [names[label] for label in estimators]
    if "recipe" in frame:
        # Names of recipes, which label a recipe behind its prefix.
        labels = [PREFIX + str(label).removeprefix(PREFIX) for label in frame["recipe"]]
        recipes = distinct_names(labels, chosen)
        named["recipe"] = [recipes[label] for label in labels]
    if "parameters" in frame:
        named["parameters"] = list(_in_letters(frame["parameters"].fillna("").astype(str)))
    named.attrs = frame.attrs | {name: names[label] for name, label in entries.items()}
    if isinstance(frame.attrs.get("parameter"), str):
        (named.attrs["parameter"],) = _in_letters([frame.attrs["parameter"].replace("_", " ")])
    return named


def _in_letters(texts: Iterable[str]) -> Iterable[str]:
    """Yield texts with Greek letters, and with minus signs before numbers."""
    return (re.sub(r"(?<!\w)-(?=\d)", "−", _LETTER.sub(lambda found: GREEK[found[0]], text)) for text in texts)
