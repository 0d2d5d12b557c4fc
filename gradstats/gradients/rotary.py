"""Rotary position embeddings whose factors depend on the length of the padded batch.

With longrope, a batch longer than the original context uses the long factors for all its positions; with dynamic NTK
scaling, the factors grow with the length of the batch beyond the original context. Sequences that go through the model
together must therefore have the factors of the chunk's length, which :func:`length_classes` decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from gradstats.gradients.engines.unsupported import UnsupportedModuleError, describe
from gradstats.rollouts.table import Rollouts


@dataclass(frozen=True)
class _LengthDependence:
    """How the factors of one rotary embedding, or of one of its kinds of layers, depend on the length.

    Attributes:
        path: name of the module in the model.
        module: the module.
        prefix: of its attributes for one kind of layers; empty where all layers share them.
        dynamic: whether each length beyond ``limit`` has factors of its own; otherwise all of them share the long ones.
        limit: the largest length with the original factors.
    """

    path: str
    module: Any
    prefix: str
    dynamic: bool
    limit: int


def length_classes(models: Sequence[nn.Module], times: np.ndarray) -> list[tuple[int, ...]]:
    """Return what the rotary factors of sequences depend on: sequences of one class may be padded together.

    Args:
        models: the models that they go through.
        times: (sequences,), number of tokens, prompts included.

    Returns:
        For each sequence, one number for each rotary embedding whose factors depend on the length; empty for most
        models.
    """
    dependences = [one for model in models for one in _dependences(model)]
    return [tuple(_class(one, int(time)) for one in dependences) for time in times]


def same_class(model: nn.Module, rollouts: Rollouts, rows: Sequence[int]) -> list[list[int]]:
    """Split rows of the rollouts into those that may be padded together."""
    found: dict[tuple[int, ...], list[int]] = {}
    for row, kind in zip(rows, length_classes([model], rollouts.times[list(rows)]), strict=True):
        found.setdefault(kind, []).append(row)
    return list(found.values())


def refuse_mixed_lengths(model: nn.Module, times: Sequence[int]) -> None:
    """Refuse sequences of which one would get other rotary factors in a chunk than alone.

    Args:
        model: the model.
        times: number of tokens of each sequence of the chunk, prompts included.

    Raises:
        UnsupportedModuleError: naming the rotary embedding.
    """
    longest = max(times)
    for one in _dependences(model):
        for time in times:
            if _class(one, time) != _class(one, longest):
                raise UnsupportedModuleError(
                    f"sequences of {time} and {longest} tokens cannot go through the model together, since the factors "
                    f"of {describe(one.path, one.module)} depend on the length: put them into chunks of their own"
                )


def forget_lengths(model: nn.Module) -> None:
    """Restore the original factors, which a longer sequence has replaced: results must not depend on earlier ones."""
    for one in _dependences(model):
        name = f"{one.prefix}max_seq_len_cached"
        if one.dynamic and int(getattr(one.module, name, one.limit)) != one.limit:
            original = getattr(one.module, f"{one.prefix}original_inv_freq")
            now = getattr(one.module, f"{one.prefix}inv_freq")
            one.module.register_buffer(f"{one.prefix}inv_freq", original.to(now.device), persistent=False)
            setattr(one.module, name, one.limit)


def _class(one: _LengthDependence, time: int) -> int:
    return 0 if time <= one.limit else time if one.dynamic else 1


def _dependences(model: nn.Module) -> Iterator[_LengthDependence]:
    for path, module in model.named_modules():
        kinds: object = module.__dict__.get("rope_type")
        if isinstance(kinds, str):
            kinds = {"": kinds}
        if not isinstance(kinds, dict):
            continue
        rotary: Any = module
        for layers, kind in kinds.items():
            prefix = f"{layers}_" if layers else ""
            if "dynamic" in kind:
                yield _LengthDependence(path, module, prefix, True, int(rotary.original_max_seq_len))
            elif kind == "longrope":
                settings = rotary.config.rope_parameters
                limit = (settings[layers] if layers else settings)["original_max_position_embeddings"]
                yield _LengthDependence(path, module, prefix, False, int(limit))
