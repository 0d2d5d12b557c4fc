"""How far the cells of a sweep lie apart, paired over the prompts that they share."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product

import numpy as np
import pandas as pd

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.report.completion_means import MEANS, prompt_means
from gradstats.report.saved_results import SavedResults
from gradstats.stats.jackknife import Interval, mean_statistic
from gradstats.stats.length_scaling.alpha_difference import alpha_difference

COLUMNS = ("cell", "minus", "quantity", "difference", "difference_low", "difference_high", "n_prompts")
_LEAST_PROMPTS = 3
# Of more cells, only the differences from the first are returned: pairs grow with the square.
_MOST_CELLS = 12


def paired_differences(cells: Mapping[str, SavedResults]) -> pd.DataFrame:
    r"""Return the differences between each two cells that answer the same prompts.

    A mean (``mean_length``, ``mean_reward``) is that over prompts of a prompt's mean, and its difference has Student's
    t interval over prompts of the differences prompt by prompt. The difference of α is that of
    :func:`gradstats.alpha_difference`, where both lines are fitted by least squares.

    Args:
        cells: name → saved results.

    Returns:
        One row for each pair and quantity: ``cell``, ``minus`` (the cell subtracted), ``quantity``, ``difference`` with
        ``_low`` and ``_high`` at the level of the first cell's comparison, and ``n_prompts``. Pairs with other prompts,
        or fewer than 3, have no rows; of more than 12 cells, only the differences from the first are returned.
    """
    known = {cell: results for cell, results in cells.items() if results.points is not None}
    prompts = {cell: _prompts(results) for cell, results in known.items()}
    names = list(known)
    pairs = combinations(names, 2) if len(names) <= _MOST_CELLS else product(names[:1], names[1:])
    rows = []
    for one, other in pairs:
        if len(prompts[one]) < _LEAST_PROMPTS or prompts[one] != prompts[other]:
            continue
        first, second = known[one], known[other]
        level = float(str(first.settings.get("variance.confidence_level", CONFIDENCE_LEVEL)))
        # Later cells less earlier ones: a sweep's settings usually rise.
        for quantity, found in _differences(second, first, level).items():
            rows.append(dict(zip(COLUMNS, (other, one, quantity, *found, len(prompts[one])), strict=True)))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _prompts(results: SavedResults) -> frozenset[str]:
    return frozenset() if results.points is None else frozenset(map(str, results.points["prompt_id"]))


def _differences(one: SavedResults, other: SavedResults, level: float) -> dict[str, Interval]:
    """Return quantity → difference with its interval, of two cells with the same prompts."""
    points = [results.points for results in (one, other) if results.points is not None]
    found: dict[str, Interval] = {}
    if all(results.alpha is not None and results.alpha.get("method", "ols") == "ols" for results in (one, other)):
        try:
            alpha = alpha_difference(*points)
        except ValueError:  # too few different lengths, as in a cell whose α could not be fitted
            pass
        else:
            found["alpha"] = (alpha.difference, *alpha.confidence_interval(level))
    for name, column in MEANS.items():
        if all(column in frame for frame in points):
            means = [prompt_means(frame, column) for frame in points]
            if np.isfinite(means).all():
                found[name] = mean_statistic(means[0] - means[1]).estimate().with_interval(level)
    return found
