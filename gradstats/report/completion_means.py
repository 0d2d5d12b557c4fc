"""How many completions a run has, how long they are and how they are rewarded on average."""

from __future__ import annotations

import numpy as np
import pandas as pd
from jaxtyping import Float

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.report.saved_results import SavedResults
from gradstats.stats.jackknife import mean_statistic

#: What follows the name of an estimate, and of the ends of its interval.
ENDS = ("", "_low", "_high")
#: Means over prompts → the column of the completions.
MEANS = {"mean_length": "length", "mean_reward": "reward"}


def completion_means(results: SavedResults) -> dict[str, float]:
    """Return the size of a run, and the mean length and reward of its completions with intervals; NaN where unknown.

    Means are those of the prompts' means, with Student's t interval over prompts at the level of the run's comparison.

    Returns:
        ``n_prompts``, ``n_completions``, ``truncated_share``, and ``mean_length`` and ``mean_reward``, each with
        ``_low`` and ``_high``.
    """
    points = results.points
    manifest = results.manifest
    n_completions = manifest.get("n_sequences", np.nan if points is None else len(points))
    truncated = manifest.get("n_truncated")
    known = {
        "n_prompts": manifest.get("n_prompts", np.nan),
        "n_completions": n_completions,
        "truncated_share": np.nan if truncated is None else truncated / n_completions,
    }
    level = float(str(results.settings.get("variance.confidence_level", CONFIDENCE_LEVEL)))
    for name, column in MEANS.items():
        values = (np.nan,) * 3
        if points is not None and column in points:
            each = prompt_means(points, column)
            if len(each) > 1:
                values = mean_statistic(each).estimate().with_interval(level)
        known |= dict(zip((f"{name}{end}" for end in ENDS), values, strict=True))
    return known


def prompt_means(points: pd.DataFrame, column: str) -> Float[np.ndarray, " prompts"]:
    """Return the mean of a column over the completions of each prompt, in the order of the prompts' names."""
    return np.array([rows[column].mean() for _, rows in points.groupby("prompt_id")], dtype=float)
