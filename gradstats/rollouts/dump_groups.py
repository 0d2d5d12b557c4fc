"""The groups of a trainer's dump: completions that were drawn for one prompt together.

A data set may hold a prompt twice, and a step may draw it twice: then the same text belongs to several groups, each
with a baseline of its own. They are told apart by what the dump says.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from gradstats.rollouts.schema import refuse_unclear_labels

#: Columns that may name groups, the surer first. Some trainers write one value for each completion instead.
GROUP_COLUMNS = ("uid", "request_id")
# Constants that trainers add to standard deviations.
_EPSILONS = (1e-4, 1e-6)


def number_groups(
    steps: np.ndarray,
    prompts: Sequence[str],
    rewards: np.ndarray,
    *,
    names: Mapping[str, Sequence[object]],
    advantages: np.ndarray | None = None,
    group_size: int | None = None,
) -> tuple[list[int], list[str]]:
    """Return for each row the number of its group among those of its prompt and step, from 0.

    In this order: by a column of ``names`` whose values join rows of one prompt; by ``group_size``, or the size with
    which ``advantages`` follow from the rewards, or that of most prompts, where the rows lie in blocks of that size;
    else all rows of a prompt in a step are one group.

    Returns:
        The numbers, and sentences on prompts that occur more than once and on doubts.

    Raises:
        ValueError: for a group size below 1, and labels that are missing or of mixed types.
    """
    if group_size is not None and group_size < 1:
        raise ValueError(
            f"group_size is {group_size}: give the trainer's number of completions for a prompt, at least 1"
        )
    given = {name: list(names[name]) for name in GROUP_COLUMNS if name in names}
    given = {name: labels for name, labels in given.items() if any(label is not None for label in labels)}
    for name, labels in given.items():
        refuse_unclear_labels(name, labels)
    numbers = [0] * len(prompts)
    told: Counter[str] = Counter()
    doubts: dict[str, int] = {}
    for step in np.unique(steps):
        rows = np.flatnonzero(steps == step).tolist()
        asked = [prompts[row] for row in rows]
        if len(set(asked)) == len(asked):
            continue
        by, labels = _named(asked, {name: [str(column[row]) for row in rows] for name, column in given.items()})
        if by is None:
            own = None if advantages is None else advantages[rows]
            by, labels, doubt = _blocks(asked, rewards[rows], own, group_size)
            if doubt is not None:
                doubts.setdefault(doubt, int(step))
        seen: defaultdict[str, dict[str | int, int]] = defaultdict(dict)
        for row, prompt, label in zip(rows, asked, labels, strict=True):
            numbers[row] = seen[prompt].setdefault(label, len(seen[prompt]))
        if repeated := sum(len(groups) > 1 for groups in seen.values()):
            told[str(by)] += repeated
    sentences = [
        f"the same prompt was drawn for several groups in a step ({count} prompts), which were told apart by {by}"
        for by, count in told.items()
    ]
    return numbers, [*sentences, *(f"{doubt} (step {step})" for doubt, step in doubts.items())]


def _named(prompts: list[str], names: Mapping[str, list[str]]) -> tuple[str | None, list[str]]:
    """Return the name and values of the first column that names groups; None where there is none."""
    for name, labels in names.items():
        # verl 0.9 writes a key for each completion, group_rollout_output.
        shortened = [label.rsplit("_", 2)[0] for label in labels]
        for values in (labels, shortened):
            one_prompt = len(set(zip(values, prompts, strict=True))) == len(set(values))
            if one_prompt and len(set(values)) < len(values):
                return name, values
    return None, []


def _blocks(
    prompts: list[str], rewards: np.ndarray, advantages: np.ndarray | None, group_size: int | None
) -> tuple[str | None, list[int], str | None]:
    """Return how groups were told apart, a label for each row of a step, and a doubt."""
    counts = Counter(prompts)
    largest = max(counts.values())
    sizes = [size for size in range(2, largest + 1) if _in_blocks(prompts, size)]
    by, size, doubt = "", group_size, None
    if group_size is not None:
        by = "group_size"
        if wrong := next((count for count in counts.values() if count % group_size), None):
            doubt = f"a prompt has {wrong} completions, which is not a multiple of group_size={group_size}"
    elif advantages is not None and np.isfinite(advantages).all():
        fitting = [some for some in sizes if _follow(advantages, rewards, some, exactly=True)]
        fitting = fitting or [some for some in sizes if _follow(advantages, rewards, some, exactly=False)]
        if fitting:
            by, size = "the dump's advantages", fitting[-1]
            if len(fitting) > 1 and len(counts) == 1:
                doubt = (
                    f"groups of {fitting[-1]} and of {fitting[-2]} both give the dump's advantages, so the same prompt "
                    f"may have been drawn for several groups: read as groups of {fitting[-1]}; give group_size"
                )
    if size is None and len(counts) > 1:
        often = Counter(counts.values())
        most = min(number for number, times in often.items() if times == max(often.values()))
        if most > 1 and any(count >= 2 * most and count % most == 0 for count in counts.values()):
            by, size = "the order of rows", most
    elif size is None and largest >= 4:
        doubt = (
            f"all {largest} completions are of the same prompt and read as one group, since nothing says whether it "
            "was drawn several times: give group_size, the trainer's number of completions for a prompt"
        )
    if size is None or size >= largest:
        return None, [0] * len(prompts), doubt
    if size == 1 or size in sizes:
        return by, [number // size for number in range(len(prompts))], doubt
    doubt = doubt or (
        f"the same prompt seems to have been drawn for several groups ({largest} completions, where groups have {size})"
        ", and the dump does not tell them apart: they are read as one group, whose baseline is not the trainer's; "
        "keep uid or request_id in the dump"
    )
    return None, [0] * len(prompts), doubt


def _in_blocks(prompts: list[str], size: int) -> bool:
    """Whether rows lie in blocks of a size, each of one prompt."""
    blocks = [prompts[start : start + size] for start in range(0, len(prompts), size)]
    return len(prompts) % size == 0 and all(len(set(block)) == 1 for block in blocks)


def _follow(advantages: np.ndarray, rewards: np.ndarray, size: int, *, exactly: bool) -> bool:
    """Whether advantages are those of a trainer's formula with groups of a size.

    Rewards minus the group's mean, as they are, divided by the group's or the batch's standard deviation, or minus the
    mean of the others (RLOO); if not ``exactly``, with any factor that all groups share. A missing reward has
    advantage 0.
    """
    blocks = rewards.reshape(-1, size)
    known = np.isfinite(blocks)
    if not known.any(axis=1).all():
        return False
    count = known.sum(axis=1, keepdims=True)
    mean = np.where(known, blocks, 0).sum(axis=1, keepdims=True) / count
    centred = np.where(known, blocks - mean, 0)
    deviation = np.sqrt((centred**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1))
    batch = float(np.nanstd(rewards, ddof=1))
    scales = [np.ones_like(deviation), count / np.maximum(count - 1, 1)]
    scales += [1 / (some + epsilon) for some in (deviation, np.full_like(deviation, batch)) for epsilon in _EPSILONS]
    given = advantages.reshape(-1, size)
    if not exactly:
        square = float((centred**2).sum())
        scales = [np.full_like(deviation, max(float((centred * given).sum()) / square, 0) if square else 1)]
    tolerance = 1e-3 * max(float(np.abs(given).max()), math.ulp(1.0))
    return any(np.allclose(centred * scale, given, rtol=0, atol=tolerance) for scale in scales)
