"""Data sets whose columns and answer format are known."""

from __future__ import annotations

from pathlib import Path

from gradstats.prompts.problem import Settings

#: Id on the hub → settings of :func:`gradstats.load_prompts`.
KNOWN_SETS: dict[str, Settings] = {
    # Solutions are free text that ends with the answer.
    "microsoft/orca-math-word-problems-200k": {
        "split": "train",
        "prompt_column": "question",
        "answer_column": "answer",
        "answer_format": "last_number",
    },
    "openai/gsm8k": {
        "config": "main",
        "split": "test",
        "prompt_column": "question",
        "answer_column": "answer",
        "answer_format": "hashes",
    },
    "HuggingFaceH4/MATH-500": {
        "split": "test",
        "prompt_column": "problem",
        "answer_column": "answer",
        "id_column": "unique_id",
    },
    # Each problem is repeated about a hundred times; the prompt is a conversation of one message.
    "BytedTsinghua-SIA/DAPO-Math-17k": {
        "split": "train",
        "prompt_column": "prompt",
        "answer_column": "reward_model.ground_truth",
        "id_column": "extra_info.index",
        "drop_repeats": True,
    },
    "open-r1/DAPO-Math-17k-Processed": {
        "config": "all",
        "split": "train",
        "prompt_column": "prompt",
        "answer_column": "solution",
        "id_column": "extra_info.index",
    },
}

_OF_THE_HUB = ("config", "split")


def known_settings(name: str) -> Settings:
    """Return the settings of a known data set, by its id or folder name; empty for other data sets."""
    last = Path(name).name.lower()
    for known, settings in KNOWN_SETS.items():
        if name == known or (Path(name).is_dir() and last == known.rpartition("/")[2].lower()):
            return settings
    return {}


def columns_like(name: str) -> Settings:
    """Return the columns and answer format of a known data set, for a file or data set of the same shape.

    Raises:
        ValueError: for an unknown id; the known ones are listed.
    """
    if name not in KNOWN_SETS:
        raise ValueError(f"like is {name!r}: choose a data set whose columns are known: {', '.join(KNOWN_SETS)}")
    return {key: value for key, value in KNOWN_SETS[name].items() if key not in _OF_THE_HUB}
