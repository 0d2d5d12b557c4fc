"""The section of the page on prompts: success on each, and a few completions to read."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Collection, Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gradstats.analyses.numbers import format_estimate, percent
from gradstats.config.options import counted
from gradstats.report.saved_results import SavedResults, completion_means
from gradstats.rollouts.table import read_rollout_shards

# Line ends and tabs are shown as such.
_KEPT = "\n\t"
# Marks that turn the direction of the text after them, up to the end of the page.
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_CONTROL_PICTURES = 0x2400


def visible(text: str) -> str:
    r"""Return a text with characters that cannot be seen, or that change how others are shown, written out.

    Control characters become their pictures (``␛``, ``␀``), others their code (``\u202e``). Nothing is escaped for
    HTML.

    >>> visible("a\x1b[31m\x00\u202e\n")
    'a␛[31m␀\\u202e\n'
    """
    return "".join(character if _is_shown(character) else _written_out(character) for character in text)


def shortened(text: str, most: int) -> tuple[str, int]:
    r"""Return the beginning and the end of a long text, and how many characters between them are left out.

    Two thirds are the beginning, one third is the end, where answers stand.

    >>> shortened("abcdefghi", 6)
    ('abcd\n[… 3 characters left out …]\nhi', 3)
    """
    left_out = len(text) - most
    if left_out <= 0:
        return text, 0
    end = most // 3
    return f"{text[: most - end]}\n[… {left_out} characters left out …]\n{text[len(text) - end :]}", left_out


def _is_shown(character: str) -> bool:
    if character in _KEPT:
        return True
    return character not in _TURNING and unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")


def _written_out(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    return "␡" if code == 0x7F else f"\\u{code:04x}"


#: What a page holds at most: prompts with completions, completions of each, characters of each text.
_MOST_PROMPTS, MOST_COMPLETIONS, MOST_CHARACTERS = 40, 4, 1500
_SHOWN = ("prompt_id", "sample_id", "reward", "length", "truncated", "prompt_text", "completion_text")


def _spread_over(prompts: list[str], most: int = _MOST_PROMPTS) -> list[str]:
    """Return at most so many prompts of an ordered list, evenly spaced from the first to the last.

    >>> _spread_over(["a", "b", "c", "d", "e"], 3)
    ['a', 'c', 'e']
    """
    if len(prompts) <= most:
        return prompts
    return [prompts[at] for at in np.linspace(0, len(prompts) - 1, most).round().astype(int)]


def read_completions(run: Path, prompts: Collection[str]) -> dict[str, dict[str, Any]]:
    """Read a few completions of some prompts from a run directory, shard by shard.

    Returns:
        Prompt → its ``text``, empty where it was not recorded, and ``completions``, of each a dictionary: the first
        with the highest reward, the first with the lowest, then in their order.
    """
    if not (run / "rollouts").is_dir():
        raise FileNotFoundError(f"the folder {run.name} holds no rollouts")
    kept = []
    with warnings.catch_warnings():
        # Whoever measures or analyses files without checksums is told; here they are only shown.
        warnings.filterwarnings("ignore", message="these files were written by an earlier version")
        for shard in read_rollout_shards(run / "rollouts"):
            frame = shard.frame.assign(length=shard.lengths, truncated=shard.truncated)
            kept.append(frame.loc[frame["prompt_id"].isin(list(prompts)), [name for name in _SHOWN if name in frame]])
    rows = pd.concat(kept, ignore_index=True)
    if "completion_text" not in rows:
        return {}
    # A run that grew has completions of one prompt in several shards.
    return {str(prompt): _shown(of_prompt) for prompt, of_prompt in rows.groupby("prompt_id", sort=False)}


def _shown(rows: pd.DataFrame) -> dict[str, Any]:
    rows = rows.sort_values("sample_id", kind="stable", ignore_index=True)
    rewards = rows["reward"].to_numpy(dtype=float)
    first = dict.fromkeys([int(rewards.argmax()), int(rewards.argmin()), *range(len(rows))])
    picked = rows.iloc[sorted(list(first)[:MOST_COMPLETIONS])]
    picked = picked.assign(text=[_shown_text(text) for text in picked["completion_text"]])
    names = ["sample_id", "reward", "length", "truncated", "text"]
    text = _shown_text(rows["prompt_text"].iloc[0]) if "prompt_text" in rows else ""
    return {"text": text, "completions": picked[names].to_dict("records")}


def _shown_text(text: object) -> str:
    return visible(shortened(text, MOST_CHARACTERS)[0]) if isinstance(text, str) else ""


#: Rows of the table of prompts; of more prompts, as many are listed.
MOST_ROWS = 300


def success_per_prompt(points: pd.DataFrame) -> pd.DataFrame:
    """Return one row per prompt, from the lowest mean reward to the highest."""
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


def prompts_on_page(run: SavedResults) -> dict[str, Any] | None:
    """Return what the template shows of the prompts; None for a run whose completions have no reward on record."""
    if run.points is None or "reward" not in run.points:
        return None
    table = success_per_prompt(run.points)
    table["prompt_id"] = table["prompt_id"].astype(str)
    binary = bool(run.points["reward"].isin([0.0, 1.0]).all())
    listed = _spread_over(table["prompt_id"].tolist(), MOST_ROWS)
    shown, about_texts = _texts(run, listed)
    rows = [
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


def _texts(run: SavedResults, listed: list[str]) -> tuple[dict[str, dict[str, Any]], str]:
    """Return what is shown of prompts, and a sentence on what that is, or on why there is nothing."""
    chosen = _spread_over(listed)
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
    mean = format_estimate(means["mean_reward"], means["mean_reward_low"], means["mean_reward_high"])
    known = np.isfinite(means["mean_reward"])
    reward = f"Mean reward {mean} ({percent(run.confidence_level)} interval over prompts), " if known else ""
    highest, n = table["highest"].to_numpy(dtype=float), table["n"].to_numpy(dtype=int)
    equal = table["lowest"].to_numpy(dtype=float) == highest
    of_n = counted(len(table), "prompt")
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
