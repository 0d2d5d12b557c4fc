"""The checks that the fields of a :class:`gradstats.estimators.Batch` pass, and the layout of its token fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

#: What to do about an infinite value of a field.
REMEDIES = {
    ("old_logprobs", -np.inf): (
        "the sampler cannot have drawn a token of probability 0: record the log-probabilities of the distribution that "
        "was drawn from, after top-k and top-p, or leave the completion out (rollouts.select, or drop its row)"
    ),
    ("logprobs", -np.inf): (
        "the scored policy gives a drawn token probability 0, where its gradient does not exist: score in float32, or "
        "leave the completion out (rollouts.select, or drop its row)"
    ),
    ("ref_logprobs", -np.inf): (
        "the reference policy gives a drawn token probability 0, where the KL term is infinite: score it in float32, "
        "or leave the completion out (rollouts.select, or drop its row)"
    ),
}


def pad_ragged(name: str, rows: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> Float[np.ndarray, "n t"]:
    """Return rows of one value per token as one right-padded array."""
    widths = [len(mask) for mask in masks]
    if [len(row) for row in rows] != widths:
        raise ValueError(f"the measurement's {name} does not have one value per completion token")
    padded = np.zeros((len(widths), max(widths)))
    padded[np.arange(max(widths)) < np.array(widths)[:, None]] = np.concatenate(rows)
    return padded


def sequence_field(name: str, value: ArrayLike, n: int | None) -> Float[np.ndarray, "n"]:
    """Return one finite number per completion, (N,); N is not checked where it is None."""
    array = np.array(value, dtype=np.float64)
    if array.ndim != 1 or (n is not None and array.size != n):
        raise ValueError(f"{name} has shape {array.shape}, expected ({'N' if n is None else n},)")
    if array.size == 0:
        raise ValueError(f"{name} is empty: a batch needs at least one completion")
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        remedy = "leave these completions out of both batch and gradients, or give them a value"
        first = f"the first, {array[bad[0]]}, at completion {bad[0]}"
        raise ValueError(f"{name} holds {bad.size} values that are not finite ({first}): {remedy}")
    return array


def checked_groups(value: ArrayLike, n: int) -> np.ndarray:
    """Return one group per completion."""
    array = np.asarray(value)
    if array.shape != (n,):
        remedy = "give one group per completion"
        raise ValueError(f"groups has shape {array.shape}, but rewards has shape ({n},): {remedy}")
    return array


def is_ragged(column: Iterable[object], masks: Sequence[np.ndarray]) -> bool:
    """Return whether a column holds a list of one number per token for every completion."""
    return all(
        isinstance(row, list | tuple | np.ndarray)
        and len(row) == len(mask)
        and np.issubdtype(np.asarray(row).dtype, np.number)
        for row, mask in zip(column, masks, strict=True)
    )


def checked_column(name: str, value: ArrayLike, mask: Bool[np.ndarray, "n t"]) -> np.ndarray:
    """Return a column of the user's own: one entry per completion, of any kind, or one number per token.

    Raises:
        ValueError: for another shape.
    """
    array = np.asarray(value)
    if array.shape == mask.shape:
        return np.where(mask, array.astype(np.float64), 0.0)
    if array.shape != (len(mask),):
        raise ValueError(
            f"columns[{name!r}] has shape {array.shape}: give one entry per completion, ({len(mask)},), or one number "
            f"per token, {mask.shape}"
        )
    return array


def width(per_token: Mapping[str, ArrayLike | None], lengths: np.ndarray) -> int:
    """Return T: the width of the first token field given, or the greatest length."""
    widths = [np.shape(value)[1] for value in per_token.values() if value is not None and np.ndim(value) == 2]
    return widths[0] if widths else int(lengths.max())


def checked_lengths(value: ArrayLike, n: int) -> Int[np.ndarray, "n"]:
    """Return numbers of counted tokens, at least 1 each."""
    array = np.asarray(value)
    if array.shape != (n,):
        raise ValueError(f"lengths has shape {array.shape}, but rewards has shape ({n},)")
    if not np.all(np.isfinite(array)) or np.any(array != np.floor(array)):
        raise ValueError("lengths must be whole numbers of tokens")
    bad = np.flatnonzero(array < 1)
    if bad.size:
        raise ValueError(
            f"lengths must be at least 1, got {array[bad[0]]} at completion {bad[0]}: drop empty completions"
        )
    return array.astype(np.int64)


def checked_mask(value: ArrayLike | None, lengths: np.ndarray, width: int) -> Bool[np.ndarray, "n t"]:
    """Return which tokens count; without a mask the first of each completion."""
    if value is None:
        if width < lengths.max():
            raise ValueError(f"lengths reaches {lengths.max()}, but the token fields are only {width} wide: pad them")
        return np.arange(width) < lengths[:, None]
    mask = np.asarray(value)
    if mask.ndim != 2 or len(mask) != lengths.size:
        raise ValueError(f"mask has shape {mask.shape}, expected ({lengths.size}, T)")
    if mask.dtype != bool and not np.all((mask == 0) | (mask == 1)):
        raise ValueError("mask must hold only True and False (or 1 and 0)")
    mask = mask.astype(bool)
    bad = np.flatnonzero(mask.sum(axis=1) != lengths)
    if bad.size:
        first = bad[0]
        raise ValueError(
            f"mask counts {mask[first].sum()} tokens at completion {first}, but lengths is "
            f"{lengths[first]} there: lengths must be the sum of the mask"
        )
    return mask


def token_field(name: str, value: ArrayLike, mask: np.ndarray) -> Float[np.ndarray, "n t"]:
    """Return one finite number per counted token, 0 elsewhere."""
    array = np.array(value, dtype=np.float64)
    if array.shape != mask.shape:
        raise ValueError(f"{name} has shape {array.shape}, but the mask has shape {mask.shape}")
    allowed = np.isfinite(array) | (np.isnan(array) if name == "values" else False)
    bad = np.argwhere(mask & ~allowed)
    if bad.size:
        row, column = bad[0]
        remedy = REMEDIES.get(
            (name, float(array[row, column])), "give those tokens a value, or leave the completion out"
        )
        raise ValueError(
            f"{name} holds {len(bad)} values that are not finite at counted tokens "
            f"(the first, {array[row, column]}, at completion {row}, position {column}): {remedy}"
        )
    return np.where(mask, array, 0.0)
