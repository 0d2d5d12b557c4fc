"""The columns of a table of rollouts, and the checks that every table passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized

import numpy as np
import pandas as pd
import pyarrow as pa

#: Column name → Arrow type and whether the column is required.
SCHEMA: dict[str, tuple[pa.DataType, bool]] = {
    "prompt_id": (pa.string(), True),
    "sample_id": (pa.int64(), True),
    "prompt_tokens": (pa.list_(pa.int32()), True),
    "completion_tokens": (pa.list_(pa.int32()), True),
    "completion_mask": (pa.list_(pa.bool_()), False),
    "reward": (pa.float64(), True),
    "token_rewards": (pa.list_(pa.float64()), False),
    "sampler_logprobs": (pa.list_(pa.float32()), False),
    "finish_reason": (pa.string(), False),
    "prompt_text": (pa.string(), False),
    "completion_text": (pa.string(), False),
    "sampler_seed": (pa.int64(), False),
    "token_source": (pa.string(), False),
    "greedy_reward": (pa.float64(), False),
    "greedy_text": (pa.string(), False),
}

#: The columns of token ids.
TOKEN_COLUMNS = ("prompt_tokens", "completion_tokens")
_MOST_IDS = 2**31
_PER_TOKEN = ("completion_mask", "token_rewards", "sampler_logprobs")
# A log-probability that an engine computed in low precision may lie a little above 0.
_MOST_LOGPROB = 0.01
_FINISH_REASONS = ("stop", "length")
#: Where a completion's token ids come from: the engine itself; the text of each token; the whole text, re-tokenised;
#: or the whole text, where its new tokens do not decode to it (or are not as many as the engine says it drew).
TOKEN_SOURCES = ("engine", "pieces", "text", "mismatch")


def validate(frame: pd.DataFrame) -> None:
    """Refuse a table that is not one of completions, naming the first row that is wrong.

    Args:
        frame: one row per completion.

    Raises:
        ValueError: as for :class:`gradstats.Rollouts`.
    """
    for name, (_, required) in SCHEMA.items():
        if required and name not in frame:
            raise ValueError(f"the rollouts have no column {name!r}; they have {', '.join(map(str, frame)) or 'none'}")
    if not len(frame):
        raise ValueError("the rollouts are empty: at least one completion is needed")
    lengths = frame["completion_tokens"].map(len).to_numpy()
    _refuse(frame, lengths == 0, "has no completion tokens: drop empty completions before building the table")
    _refuse(
        frame,
        frame["prompt_tokens"].map(len).to_numpy() == 0,
        "has no prompt tokens: give at least one (a start token)",
    )
    rewards = frame["reward"].to_numpy(dtype=np.float64)
    _refuse(frame, ~np.isfinite(rewards), "has a reward that is not finite: grade it, or drop the row")
    for name in _PER_TOKEN:
        if name in frame:
            _refuse(
                frame,
                frame[name].map(_length).to_numpy() != lengths,
                f"has a {name} of another length than its completion_tokens",
            )
    if "sampler_logprobs" in frame:
        likeliest = frame["sampler_logprobs"].map(_largest).to_numpy()
        _refuse(frame, likeliest > _MOST_LOGPROB, "has a sampler_logprobs above 0: give natural log-probabilities")
    if "completion_mask" in frame:
        counted = frame["completion_mask"].map(sum).to_numpy()
        _refuse(frame, counted == 0, "has a completion_mask with no True: no token of it counts, drop the row")
    if "finish_reason" in frame:
        known = frame["finish_reason"].isin(_FINISH_REASONS).to_numpy()
        _refuse(frame, ~known, f"has a finish_reason that is none of {', '.join(_FINISH_REASONS)}")
    if "token_source" in frame:
        known = frame["token_source"].isin(TOKEN_SOURCES).to_numpy()
        _refuse(frame, ~known, f"has a token_source that is none of {', '.join(TOKEN_SOURCES)}")
    if "greedy_reward" in frame:
        greedy = frame["greedy_reward"].to_numpy(dtype=np.float64)
        _refuse(frame, ~np.isfinite(greedy), "has a greedy_reward that is not finite: grade it, or drop the column")
    repeated = frame.duplicated(["prompt_id", "sample_id"]).to_numpy()
    _refuse(frame, repeated, "repeats its sample_id: number the completions of a prompt from 0")


def token_ids(name: str, rows: Iterable[Iterable[object]]) -> list[list[int]]:
    """Return token ids as integers.

    Args:
        name: of their column, for the message.
        rows: the ids of each completion.

    Raises:
        ValueError: for the first that is not a whole number from 0 to 2³¹ − 1; nothing is rounded.
    """
    ids = []
    for number, row in enumerate(rows):
        given = list(row)
        try:
            whole = [int(token) for token in given]  # pyright: ignore[reportArgumentType]
        except (TypeError, ValueError, OverflowError):
            whole = []
        if whole != given or (whole and not 0 <= min(whole) <= max(whole) < _MOST_IDS):
            wrong = next(token for token in given if not _is_token_id(token))
            raise ValueError(
                f"{name} of row {number} hold {wrong!r}, which is not a token id: ids are whole numbers from 0 to "
                f"{_MOST_IDS - 1}"
            )
        ids.append(whole)
    return ids


def _is_token_id(token: object) -> bool:
    try:
        whole = int(token)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):
        return False
    return bool(whole == token) and 0 <= whole < _MOST_IDS


def _length(values: Sized | None) -> int:
    return -1 if values is None else len(values)


def _largest(values: Sequence[float]) -> float:
    """Return the largest of some numbers; NaN, which stands for an unknown one, is below every other."""
    return float(np.fmax.reduce(np.asarray(values, dtype=np.float64), initial=-np.inf))


def _refuse(frame: pd.DataFrame, wrong: np.ndarray, what: str) -> None:
    """Raise for the first row that is wrong, naming it, with how many more there are."""
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        more = f" ({int(wrong.sum()) - 1} more rows have the same problem)" if wrong.sum() > 1 else ""
        name = f"prompt_id {frame['prompt_id'].iloc[row]!r}, sample_id {frame['sample_id'].iloc[row]}"
        raise ValueError(f"row {row} ({name}) {what}{more}")
