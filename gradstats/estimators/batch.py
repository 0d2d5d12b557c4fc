"""The Batch: the data that an estimator uses, validated once."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Int

from gradstats.config.options import MEASURE_PROBES, how_to_set
from gradstats.rollouts.schema import ADAPTER_RESIDUAL, LARGEST_REWARD, SCHEMA, refuse_unclear_labels
from gradstats.system.lazy_imports import pd

#: Fields with one value per token.
_BATCH_TOKEN_FIELDS = (
    "token_rewards", "logprobs", "old_logprobs", "proximal_logprobs", "ref_logprobs", "entropy", "sum_pi_squared",
    "values", "fitted_values", "token_energy", "token_cross", "importance",
)  # fmt: skip
#: Prefix of a required field that is a user-defined column, as in "column:salience".
COLUMN = "column:"
#: What to do where a field is missing.
HOW_TO_GET = {
    "token_rewards": "give one reward per completion token (Batch(token_rewards=…))",
    "logprobs": "measure the policy, or pass the log-probabilities of the scored policy",
    "old_logprobs": "record the sampler's log-probabilities when sampling",
    "proximal_logprobs": "give the rollouts the trainer's own log-probabilities (the column proximal_logprobs)",
    "ref_logprobs": "measure with --set reference_policy.name=models/sft --out … (in Python reference_policy=…)",
    "entropy": "measure the policy (it is the entropy of π at every position)",
    "sum_pi_squared": "measure the policy (it is Σ_v π(v)² at every position)",
    "values": "pass the value of the state before each token (a value head's, or means of completions); in a run, set "
    "values.fitted, or values.monte_carlo for vine",
    "greedy_rewards": f"sample with {how_to_set('sampling.greedy', True)}, which adds one greedy completion per "
    "prompt, or pass its reward",
    "truncated": "record why each completion ended (the column finish_reason of the rollouts), or pass truncated=…",
    "sq_norms": "measure the squared gradient norm ‖S_i‖² of each completion",
    "token_energy": MEASURE_PROBES,
    "token_cross": f"{MEASURE_PROBES}; it is ⟨s_t, S⟩ at every position",
    "importance": "pass ρ = π/π_old at every position",
    f"{COLUMN}{ADAPTER_RESIDUAL}": "measure a policy with an adapter with "
    f"{how_to_set('measurement.adapter_residual', True)}",
}


def how_to_get(need: str) -> str:
    """Return how to provide a field or column that an estimator needs."""
    if need.startswith(COLUMN) and need not in HOW_TO_GET:
        name = need.removeprefix(COLUMN)
        return f"give the rollouts' frame a column {name!r}, or the batch columns={{{name!r}: …}}"
    return HOW_TO_GET[need]


@runtime_checkable
class CompletionTable(Protocol):
    """The part of :class:`gradstats.Rollouts` that a Batch uses."""

    @property
    def frame(self) -> pd.DataFrame:
        """One row per completion."""
        ...

    @property
    def rewards(self) -> np.ndarray:
        """R_i, (N,)."""
        ...

    @property
    def prompt_id(self) -> np.ndarray:
        """The prompt of each completion, (N,)."""
        ...

    @property
    def masks(self) -> list[np.ndarray]:
        """Which tokens of each completion count."""
        ...

    def tokens(self, column: str) -> list[np.ndarray]:
        """Return a column that holds one value per token."""
        ...


@runtime_checkable
class MeasuredCompletions(Protocol):
    """Completions with whatever was measured on them, such as a :class:`gradstats.Measurement`."""

    @property
    def rollouts(self) -> CompletionTable:
        """The completions."""
        ...


def _rewards_field(
    rewards: npt.ArrayLike, greedy_rewards: npt.ArrayLike | None
) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"] | None]:
    """Return both, (N,), those that are equal up to rounding made equal: 0.1 + 0.2 and 0.3.

    Groups of equal rewards have no gradient. Equal are neighbours that differ by at most 8 units in the last place, of
    themselves in the precision that they are given in, or of the largest in double precision (0.3 − 0.2 − 0.1 is 0).
    """
    given = [("rewards", rewards), *([] if greedy_rewards is None else [("greedy_rewards", greedy_rewards)])]
    arrays = [_sequence_field(name, value, None) for name, value in given]
    for (name, _), array in zip(given, arrays, strict=True):
        largest = np.abs(array).argmax()
        if abs(array[largest]) > LARGEST_REWARD:
            raise ValueError(
                f"{name} holds {array[largest]:g} at completion {largest}, beyond ±{LARGEST_REWARD:g}, where squares "
                "are not finite: scale the rewards"
            )
    values, index, counts = np.unique(np.concatenate(arrays), return_inverse=True, return_counts=True)
    sizes = np.abs(values)
    precision = max(_precision(value) for _, value in given)
    apart = 8 * np.maximum(precision * np.maximum(sizes[1:], sizes[:-1]), np.finfo(np.float64).eps * sizes.max())
    alike = np.concatenate([[0], np.cumsum(np.diff(values) > apart)])
    # Of values that are alike 0 stands for all, else the most frequent.
    order = np.lexsort((-counts, values != 0, alike))
    equal = values[order][np.unique(alike, return_index=True)[1]][alike][index.reshape(-1)]
    n = arrays[0].size
    return equal[:n], None if greedy_rewards is None else equal[n:]


def _precision(value: npt.ArrayLike) -> float:
    dtype = np.asarray(value).dtype
    return float(np.finfo(dtype if np.issubdtype(dtype, np.floating) else np.float64).eps)


def _sequence_field(name: str, value: npt.ArrayLike, n: int | None) -> Float[np.ndarray, "n"]:
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


def _checked_lengths(value: npt.ArrayLike, n: int, masked: bool) -> Int[np.ndarray, "n"]:
    """Return numbers of counted tokens, at least 1 each; 0 only where a mask says which tokens count."""
    array = np.asarray(value)
    if array.shape != (n,):
        raise ValueError(f"lengths has shape {array.shape}, but rewards has shape ({n},)")
    if not np.all(np.isfinite(array)) or np.any(array != np.floor(array)):
        raise ValueError("lengths must be whole numbers of tokens")
    bad = np.flatnonzero(array < (0 if masked else 1))
    if bad.size:
        raise ValueError(
            f"lengths must be at least 1, got {array[bad[0]]} at completion {bad[0]}: drop empty completions, or give "
            "a mask in which those that were masked have no token"
        )
    return array.astype(np.int64)


def checked_groups(value: npt.ArrayLike, n: int) -> np.ndarray:
    """Return one group per completion."""
    refuse_unclear_labels("groups", value)
    array = np.asarray(value)
    if array.shape != (n,):
        remedy = "give one group per completion"
        raise ValueError(f"groups has shape {array.shape}, but rewards has shape ({n},): {remedy}")
    return array


def width(per_token: Mapping[str, npt.ArrayLike | None], lengths: np.ndarray) -> int:
    """Return T: the width of the first token field given, or the greatest length."""
    widths = [np.shape(value)[1] for value in per_token.values() if value is not None and np.ndim(value) == 2]
    return widths[0] if widths else max(int(lengths.max()), 1)


def _checked_mask(value: npt.ArrayLike | None, lengths: np.ndarray, width: int) -> Bool[np.ndarray, "n t"]:
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


#: What to do about an infinite value of a field.
_REMEDIES = {
    ("old_logprobs", -math.inf): (
        "the sampler cannot have drawn a token of probability 0: record the log-probabilities of the distribution that "
        "was drawn from, after top-k and top-p, or leave the completion out (rollouts.select, or drop its row)"
    ),
    ("logprobs", -math.inf): (
        "the scored policy gives a drawn token probability 0, where its gradient does not exist: score in float32, or "
        "leave the completion out (rollouts.select, or drop its row)"
    ),
    ("ref_logprobs", -math.inf): (
        "the reference policy gives a drawn token probability 0, where the KL term is infinite: score it in float32, "
        "or leave the completion out (rollouts.select, or drop its row)"
    ),
}


def _token_field(name: str, value: npt.ArrayLike, mask: np.ndarray) -> Float[np.ndarray, "n t"]:
    """Return one finite number per counted token, 0 elsewhere."""
    array = np.array(value, dtype=np.float64)
    if array.shape != mask.shape:
        raise ValueError(f"{name} has shape {array.shape}, but the mask has shape {mask.shape}")
    allowed = np.isfinite(array) | (np.isnan(array) if name == "values" else False)
    bad = np.argwhere(mask & ~allowed)
    if bad.size:
        row, column = bad[0]
        remedy = _REMEDIES.get(
            (name, float(array[row, column])), "give those tokens a value, or leave the completion out"
        )
        raise ValueError(
            f"{name} holds {len(bad)} values that are not finite at counted tokens "
            f"(the first, {array[row, column]}, at completion {row}, position {column}): {remedy}"
        )
    return np.where(mask, array, 0.0)


def _checked_column(name: str, value: npt.ArrayLike, mask: Bool[np.ndarray, "n t"]) -> np.ndarray:
    """Return a user-defined column: one entry per completion, of any kind, or one number per token."""
    array = _one_entry_each(value)
    if array.shape == mask.shape:
        return np.where(mask, array.astype(np.float64), 0.0)
    if array.shape != (len(mask),):
        raise ValueError(
            f"columns[{name!r}] has shape {array.shape}: give one entry per completion, ({len(mask)},), or one number "
            f"per token, {mask.shape}"
        )
    return array


def _one_entry_each(value: npt.ArrayLike) -> np.ndarray:
    """Return an array; of lists of several lengths, such as histories of rewards, an entry holds the list."""
    try:
        return np.asarray(value)
    except ValueError:
        rows = list(value)  # type: ignore[call-overload]  # it was iterated just now
        array = np.empty(len(rows), dtype=object)
        array[:] = rows
        return array


@dataclass(frozen=True, eq=False, init=False)
class Batch:
    r"""N completions with their rewards, in any order, and whatever was measured on them.

    Lists are converted to arrays. Token fields are right-padded to a common width T; values at masked-out
    positions are never read and are stored as 0.

    Attributes:
        rewards: :math:`R_i`, shape (N,). NaN or infinite rewards are refused rather than left out: dropping a
            completion changes the size of its group, and with it the estimator that is being studied.
        lengths: :math:`T_i`, the number of counted tokens, shape (N,), at least 1 each. With a mask it may be 0, of a
            completion that a trainer masks: its weight is 0, while its reward stays in means and deviations of its
            group, and it counts where completions are counted; weights by length, norm or token do not see it.
        groups: the prompt of each completion, integers or strings, shape (N,); they may be
            interleaved and of different sizes.
        mask: (N, T), True where a token counts; holes are allowed, and each row sums to ``lengths``.
            Without it the first :math:`T_i` positions count.
        token_rewards: :math:`r_{i,t}`, (N, T). Without it :math:`R_i` sits on the last counted token.
        logprobs: :math:`\log π(y_t)` under the scored policy, (N, T).
        old_logprobs: :math:`\log π_\mathrm{old}(y_t)` under the policy that sampled, (N, T).
        proximal_logprobs: :math:`\log π_\mathrm{prox}(y_t)` under the trainer's policy as the step began, (N, T), which
            a correction compares with the sampler (``old_logprobs``); without it that is the scored policy.
        ref_logprobs: :math:`\log π_\mathrm{ref}(y_t)` under the reference of a KL term, (N, T).
        entropy: the entropy of that distribution at each position, in nats, (N, T).
        sum_pi_squared: :math:`\sum_v π(v)²` at each position, of the same distribution as ``logprobs``, (N, T).
        values: :math:`V(s_t)`, the value of the state *before* token t, (N, T). NaN marks positions inside a step
            (only ``vine`` accepts them).
        fitted_values: the same by a fitted head, at every counted token, (N, T), for estimators that need a value there
            where ``values`` are means of completions.
        greedy_rewards: the reward of the greedy completion of the same prompt, (N,).
        truncated: whether the completion was cut off at the cap of new tokens, (N,).
        sq_norms: :math:`‖S_i‖²`, (N,).
        token_energy: :math:`‖s_{i,t}‖²`, (N, T). Unbiased estimates may be negative.
        token_cross: :math:`\langle s_{i,t}, S_i\rangle`, (N, T).
        importance: :math:`ρ_{i,t}`, (N, T), used by ``otb`` when present.
        columns: user-defined columns by name, (N,) of anything or (N, T) of numbers, for user-defined estimators;
            :meth:`from_measurement` takes the columns that the rollouts have in addition to the standard ones.

    Raises:
        ValueError: on shapes that disagree, an empty batch, lengths below 1 without a mask, masks that disagree with
            the lengths, values that are not finite, and groups that are missing (None, NaN) or mix numbers and text.

    Example:
        >>> from gradstats.estimators import Batch
        >>> batch = Batch(rewards=[1, 0, 1], lengths=[2, 3, 1], groups=["a", "a", "b"])
        >>> batch.group_sizes
        array([2, 1])
        >>> batch.mask
        array([[ True,  True, False],
               [ True,  True,  True],
               [ True, False, False]])
    """

    rewards: Float[np.ndarray, "n"]
    lengths: Int[np.ndarray, "n"]
    groups: np.ndarray
    mask: Bool[np.ndarray, "n t"]
    token_rewards: Float[np.ndarray, "n t"] | None
    logprobs: Float[np.ndarray, "n t"] | None
    old_logprobs: Float[np.ndarray, "n t"] | None
    proximal_logprobs: Float[np.ndarray, "n t"] | None
    ref_logprobs: Float[np.ndarray, "n t"] | None
    entropy: Float[np.ndarray, "n t"] | None
    sum_pi_squared: Float[np.ndarray, "n t"] | None
    values: Float[np.ndarray, "n t"] | None
    fitted_values: Float[np.ndarray, "n t"] | None
    greedy_rewards: Float[np.ndarray, "n"] | None
    truncated: Bool[np.ndarray, "n"] | None
    sq_norms: Float[np.ndarray, "n"] | None
    token_energy: Float[np.ndarray, "n t"] | None
    token_cross: Float[np.ndarray, "n t"] | None
    importance: Float[np.ndarray, "n t"] | None
    columns: Mapping[str, np.ndarray]
    group_labels: np.ndarray = field(init=False, repr=False)
    group_index: Int[np.ndarray, "n"] = field(init=False, repr=False)

    def __init__(
        self,
        rewards: npt.ArrayLike,
        lengths: npt.ArrayLike,
        groups: npt.ArrayLike,
        mask: npt.ArrayLike | None = None,
        token_rewards: npt.ArrayLike | None = None,
        logprobs: npt.ArrayLike | None = None,
        old_logprobs: npt.ArrayLike | None = None,
        ref_logprobs: npt.ArrayLike | None = None,
        sum_pi_squared: npt.ArrayLike | None = None,
        values: npt.ArrayLike | None = None,
        greedy_rewards: npt.ArrayLike | None = None,
        sq_norms: npt.ArrayLike | None = None,
        token_energy: npt.ArrayLike | None = None,
        token_cross: npt.ArrayLike | None = None,
        importance: npt.ArrayLike | None = None,
        entropy: npt.ArrayLike | None = None,
        truncated: npt.ArrayLike | None = None,
        columns: Mapping[str, npt.ArrayLike] | None = None,
        fitted_values: npt.ArrayLike | None = None,
        proximal_logprobs: npt.ArrayLike | None = None,
    ) -> None:
        per_token = {
            "token_rewards": token_rewards, "logprobs": logprobs, "old_logprobs": old_logprobs,
            "proximal_logprobs": proximal_logprobs, "ref_logprobs": ref_logprobs, "entropy": entropy,
            "sum_pi_squared": sum_pi_squared, "values": values, "fitted_values": fitted_values,
            "token_energy": token_energy, "token_cross": token_cross, "importance": importance,
        }  # fmt: skip
        reward_array, greedy_array = _rewards_field(rewards, greedy_rewards)
        n = reward_array.size
        length_array = _checked_lengths(lengths, n, mask is not None)
        group_array = checked_groups(groups, n)
        mask_array = _checked_mask(mask, length_array, width(per_token, length_array))
        labels, index = np.unique(group_array, return_inverse=True)
        checked: dict[str, np.ndarray | dict[str, np.ndarray] | None] = {
            "rewards": reward_array,
            "lengths": length_array,
            "groups": group_array,
            "mask": mask_array,
            "group_labels": labels,
            "group_index": index.reshape(-1),
            "truncated": None if truncated is None else _sequence_field("truncated", truncated, n) != 0,
            "columns": {name: _checked_column(name, value, mask_array) for name, value in dict(columns or {}).items()},
        }
        if proximal_logprobs is not None and old_logprobs is None:
            raise ValueError(
                "proximal_logprobs is given without old_logprobs, which it is compared with: give those of the "
                "sampler, the same where the trainer's policy drew the completions"
            )
        for name, value in per_token.items():
            checked[name] = None if value is None else _token_field(name, value, mask_array)
        for name, value in (("greedy_rewards", greedy_array), ("sq_norms", sq_norms)):
            checked[name] = None if value is None else _sequence_field(name, value, n)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_measurement(
        cls,
        measured: MeasuredCompletions,
        **given: npt.ArrayLike | Sequence[np.ndarray] | Mapping[str, npt.ArrayLike] | None,
    ) -> Batch:
        """Build the batch of a measurement: its rollouts' rewards and prompts, and every field it measured.

        Args:
            measured: anything with ``.rollouts`` and, where measured, ``.sq_norms`` and the ragged ``.logprobs``,
                ``.old_logprobs``, ``.proximal_logprobs``, ``.ref_logprobs``, ``.entropy``, ``.sum_pi_squared``,
                ``.token_energy``, ``.token_cross``, ``.values``, ``.fitted_values``: one array per completion, one
                value per token.
            **given: further fields of the Batch (``greedy_rewards``, ``values``, …), which replace measured ones;
                token fields as (N, T) or as one array per completion.

        Returns:
            The batch, its completions in the order of the rollouts.

        Raises:
            TypeError: for a field that a Batch does not have, or a path in place of a measurement.
            ValueError: when a ragged field does not have one value per token.
        """
        if isinstance(measured, str | os.PathLike):
            raise TypeError(f"{str(measured)!r} is a path: give the measurement, gradstats.read_measurement(path)")
        rollouts = measured.rollouts
        masks = rollouts.masks
        mask = _pad_ragged("mask", masks, masks).astype(bool)
        collected: dict[str, npt.ArrayLike | Sequence[np.ndarray] | Mapping[str, npt.ArrayLike] | None] = {
            "rewards": rollouts.rewards,
            "lengths": mask.sum(axis=1),
            "groups": rollouts.prompt_id,
            "mask": mask,
            "sq_norms": getattr(measured, "sq_norms", None),
        }
        if "token_rewards" in rollouts.frame:
            collected["token_rewards"] = _pad_ragged("token_rewards", rollouts.tokens("token_rewards"), masks)
        for name in _BATCH_TOKEN_FIELDS:
            rows = _measured_rows(measured, name)
            if rows is not None and (name != "old_logprobs" or _all_known(rows, masks)):
                collected[name] = _pad_ragged(name, rows, masks)
        if "old_logprobs" not in collected:  # nothing to compare the trainer's with
            collected.pop("proximal_logprobs", None)
        if "greedy_reward" in rollouts.frame:
            collected["greedy_rewards"] = rollouts.frame["greedy_reward"].to_numpy(dtype=np.float64)
        if "finish_reason" in rollouts.frame:
            collected["truncated"] = (rollouts.frame["finish_reason"] == "length").to_numpy()
        collected["columns"] = {
            str(name): _pad_ragged(str(name), [np.asarray(row) for row in column], masks)
            if _is_ragged(column, masks)
            else column.to_numpy()
            for name, column in rollouts.frame.items()
            if name not in SCHEMA
        }
        known = {entry.name for entry in fields(cls) if entry.init}
        for name, value in given.items():
            if name not in known:
                raise TypeError(f"{name!r} is not a field of a Batch: choose from {', '.join(sorted(known))}")
            if name == "values":  # those given replace measured ones of either kind
                collected.pop("fitted_values", None)
            if name in _BATCH_TOKEN_FIELDS and isinstance(value, Sequence) and np.ndim(value[0]) == 1:
                value = _pad_ragged(name, [np.asarray(row) for row in value], masks)
            collected[name] = value
        return cls(**collected)  # pyright: ignore[reportArgumentType]  # the constructor checks every field

    @property
    def n_groups(self) -> int:
        """The number of groups; ``group_index`` numbers them in the order of ``group_labels``."""
        return self.group_labels.size

    @property
    def group_sizes(self) -> Int[np.ndarray, "groups"]:
        """The number of completions of each group."""
        return np.bincount(self.group_index, minlength=self.n_groups)

    def has(self, need: str) -> bool:
        """Return whether a field, or a column named as "column:salience", is present."""
        if need.startswith(COLUMN):
            return need.removeprefix(COLUMN) in self.columns
        if need == "values" and self.fitted_values is not None:
            return True
        return self.__dict__.get(need, need) is not None  # token fields of a selection may not be there yet

    def require(self, needs: Iterable[str], name: object) -> None:
        """Raise unless every field that an estimator needs is present.

        Args:
            needs: names of Batch fields, and of columns as in "column:salience".
            name: the estimator that needs them, or its name, for the message.

        Raises:
            ValueError: naming each missing field and how to get it.
        """
        missing = [need for need in needs if not self.has(need)]
        if missing:
            remedies = "; ".join(f"{need}: {how_to_get(need)}" for need in missing)
            raise ValueError(f"{name} needs {' and '.join(missing)}, which this batch lacks ({remedies})")

    def select(self, keep: np.ndarray) -> Batch:
        """Return the batch of the completions picked by a boolean mask or an array of indices.

        Args:
            keep: (N,) booleans or integer positions, in the order wanted.

        Returns:
            A new Batch.

        Raises:
            ValueError: when no completion is picked.
        """
        # Checked fields are not checked again: comparisons draw thousands of batches from one.
        # Token fields, which may be large, are selected when they are asked for.
        chosen: dict[str, np.ndarray | None] = {
            entry.name: None if (value := getattr(self, entry.name)) is None else value[keep]
            for entry in fields(self)
            if entry.init and entry.name != "columns" and entry.name not in _BATCH_TOKEN_FIELDS
        }
        if not self.rewards[keep].size:
            raise ValueError("keep picks no completion: a batch needs at least one")
        present, index = np.unique(self.group_index[keep], return_inverse=True)
        chosen |= {"group_labels": self.group_labels[present], "group_index": index.reshape(-1)}
        selected = object.__new__(Batch)
        for name, value in chosen.items():
            object.__setattr__(selected, name, value)
        object.__setattr__(selected, "columns", {name: value[keep] for name, value in self.columns.items()})
        for name in _BATCH_TOKEN_FIELDS:
            if self.__dict__.get(name, name) is None:
                object.__setattr__(selected, name, None)
        object.__setattr__(selected, "_selected_from", (self, keep))
        return selected

    def __getattr__(self, name: str) -> np.ndarray | None:
        """Return a token field of selected completions, which is kept from then on."""
        if name not in _BATCH_TOKEN_FIELDS or "_selected_from" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        whole, keep = self.__dict__["_selected_from"]
        of_all = getattr(whole, name)
        value = None if of_all is None else of_all[keep]
        object.__setattr__(self, name, value)
        return value

    def regrouped(self, groups: np.ndarray) -> Batch:
        """Return the same completions in other groups, (N,); nothing else is checked again."""
        labels, index = np.unique(checked_groups(groups, len(self.rewards)), return_inverse=True)
        result = copy(self)
        for name, value in (("groups", groups), ("group_labels", labels), ("group_index", index.reshape(-1))):
            object.__setattr__(result, name, value)
        return result

    def with_fields(self, **changes: npt.ArrayLike | Mapping[str, npt.ArrayLike] | None) -> Batch:
        """Return a copy with some fields replaced; the copy is checked like a new Batch."""
        return replace(self, **changes)


def _measured_rows(measured: MeasuredCompletions, name: str) -> Sequence[np.ndarray] | None:
    """Return a ragged field of a measurement; None where it was not measured, or not at every token."""
    with warnings.catch_warnings():  # energies of some tokens only: the rest are NaN, which the measurement reports
        warnings.simplefilter("ignore", RuntimeWarning)
        rows = getattr(measured, name, None)
    partial = (
        name in ("token_energy", "token_cross") and rows is not None and not all(np.isfinite(row).all() for row in rows)
    )
    return None if partial else rows


def _all_known(rows: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> bool:
    """Return whether the log-probability of every counted token was recorded; some samplers leave out the last."""
    return all(not np.isnan(row[mask]).any() for row, mask in zip(rows, masks, strict=True))


def _pad_ragged(name: str, rows: Sequence[np.ndarray], masks: Sequence[np.ndarray]) -> Float[np.ndarray, "n t"]:
    """Return rows of one value per token as one right-padded array."""
    widths = [len(mask) for mask in masks]
    if [len(row) for row in rows] != widths:
        raise ValueError(f"the measurement's {name} does not have one value per completion token")
    padded = np.zeros((len(widths), max(widths)))
    padded[np.arange(max(widths)) < np.array(widths)[:, None]] = np.concatenate(rows)
    return padded


def _is_ragged(column: Iterable[object], masks: Sequence[np.ndarray]) -> bool:
    """Return whether a column holds a list of one number per token for every completion."""
    return all(
        isinstance(row, list | tuple | np.ndarray)
        and len(row) == len(mask)
        and np.issubdtype(np.asarray(row).dtype, np.number)
        for row, mask in zip(column, masks, strict=True)
    )
