"""The section of the page on prompts: success on each, and a few completions to read."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, TypedDict

import numpy as np
import pandas as pd

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.report.completion_means import completion_means
from gradstats.report.numbers import number_with_interval
from gradstats.report.sampled_completions import (
    MOST_CHARACTERS,
    MOST_COMPLETIONS,
    ShownPrompt,
    read_completions,
    spread_over,
)
from gradstats.report.saved_results import SavedResults
from gradstats.report.shown_text import visible

#: Rows of the table of prompts; of more prompts, as many are listed.
MOST_ROWS = 300


class PromptRow(TypedDict):
    """One prompt of the table, with what is shown of it."""

    name: str
    success: str
    key: str
    n: int
    length: str
    cut: str
    shown: ShownPrompt | None


class PromptsOnPage(TypedDict):
    """What the template shows of the prompts."""

    sentence: str
    rows: list[PromptRow]
    left_out: str
    about_texts: str
    has_texts: bool
    binary: bool
    records_cut: bool


def success_per_prompt(points: pd.DataFrame) -> pd.DataFrame:
    """Return one row per prompt, from the lowest mean reward to the highest.

    Args:
        points: one row per completion: ``prompt_id``, ``reward``, ``length`` and, where known, ``truncated``.

    Returns:
        Columns ``prompt_id``, ``n``, ``mean_reward``, ``lowest``, ``highest``, ``mean_length``, ``n_truncated``.
    """
    cut = points["truncated"] if "truncated" in points else pd.Series(False, index=points.index)
    prompts = points.assign(cut=cut.fillna(False).astype(bool)).groupby("prompt_id", sort=True)
    table = prompts.agg(
        n=("reward", "size"),
        mean_reward=("reward", "mean"),
        lowest=("reward", "min"),
        highest=("reward", "max"),
        mean_length=("length", "mean"),
        n_truncated=("cut", "sum"),
    )
    return table.reset_index().sort_values("mean_reward", kind="stable", ignore_index=True)


def prompts_on_page(run: SavedResults) -> PromptsOnPage | None:
    """Return the section on prompts, or None for a run whose completions have no reward on record."""
    if run.points is None or "reward" not in run.points:
        return None
    table = success_per_prompt(run.points)
    table["prompt_id"] = table["prompt_id"].astype(str)
    binary = bool(run.points["reward"].isin([0.0, 1.0]).all())
    listed = spread_over(table["prompt_id"].tolist(), MOST_ROWS)
    shown, about_texts = _texts(run, listed)
    rows: list[PromptRow] = [
        {
            "name": visible(str(row["prompt_id"])),
            "success": _success(row, binary),
            "key": repr(float(row["mean_reward"])),
            "n": int(row["n"]),
            "length": f"{row['mean_length']:.0f}",
            "cut": str(int(row["n_truncated"])),
            "shown": shown.get(str(row["prompt_id"])),
        }
        for row in table.loc[table["prompt_id"].isin(listed)].to_dict("records")
    ]
    every = len(listed) == len(table)
    spread = "evenly spaced from the lowest to the highest mean reward"
    return {
        "sentence": _sentence(run, table),
        "rows": rows,
        "left_out": "" if every else f"{len(listed)} of {len(table)} prompts are listed, {spread}.",
        "about_texts": about_texts,
        "has_texts": bool(shown),
        "binary": binary,
        "records_cut": "truncated" in run.points,
    }


def _texts(run: SavedResults, listed: list[str]) -> tuple[dict[str, ShownPrompt], str]:
    """Return what is shown of prompts, and a sentence on what that is, or on why there is nothing."""
    chosen = spread_over(listed)
    try:
        shown = read_completions(run.path, chosen)
    except (OSError, ValueError) as error:
        return {}, f"The completions cannot be shown: {str(error).rstrip('.')}."
    if not shown:
        return {}, "The completions cannot be shown: their texts were not recorded."
    of = f"{len(shown)} of " if len(shown) < len(listed) else ""
    return shown, (
        f"{of}{len(listed)} prompts, from the lowest mean reward to the highest, with at most {MOST_COMPLETIONS} "
        f"completions each: the first with the highest reward, the first with the lowest, and further ones in their "
        f"order. Of texts above {MOST_CHARACTERS} characters the middle is left out. The others are in rollouts/."
    )


def _sentence(run: SavedResults, table: pd.DataFrame) -> str:
    means = completion_means(run)
    level = float(str(run.settings.get("variance.confidence_level", CONFIDENCE_LEVEL)))
    mean = number_with_interval(means["mean_reward"], means["mean_reward_low"], means["mean_reward_high"])
    ends = f"[{means['mean_reward_low']:.3f}, {means['mean_reward_high']:.3f}]"
    known = np.isfinite(means["mean_reward"])
    reward = f"Mean reward {mean} ({level:.0%} interval over prompts {ends}), " if known else ""
    highest, n = table["highest"].to_numpy(dtype=float), table["n"].to_numpy(dtype=int)
    equal = table["lowest"].to_numpy(dtype=float) == highest
    of_n = f"{len(table)} prompts" if len(table) != 1 else "1 prompt"
    best = np.count_nonzero(equal & (highest == highest.max()))
    return (
        f"{reward}{n.sum()} completions of {of_n}. On {np.count_nonzero(equal)} of them all completions have "
        f"the same reward ({best} of these the highest of the run)."
    )


def _success(row: Mapping[Hashable, Any], binary: bool) -> str:
    """Return how many completions of a prompt are right, or their mean reward where it is not a matter of yes or no."""
    if binary:
        return f"{round(float(row['mean_reward']) * int(row['n']))} of {int(row['n'])}"
    return f"{row['mean_reward']:.3g}".replace("-", "−")
