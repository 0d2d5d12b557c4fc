"""The differentiated parameters, and the blocks by which their gradients are reported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from gradstats.config.measurement import MeasurementSection
from gradstats.measurement.layers import split_layer
from gradstats.policy.policy import Policy
from gradstats.policy.sharding import reshard

Blocks = str | Mapping[str, str]

_KINDS = (
    ("embedding", re.compile(r"embed|\bwte\b|\bwpe\b")),
    ("head", re.compile(r"lm_head|embed_out")),
    ("norm", re.compile(r"norm|\bln_\w+|layernorm")),
    ("attention", re.compile(r"attn|attention")),
    ("mlp", re.compile(r"mlp|feed_forward|ffn|experts")),
)


@dataclass(frozen=True)
class ParameterSelection:
    """The differentiated parameters of a model, each in one named block.

    Attributes:
        parameters: name → tensor, in the model's order; tied weights appear once, under their first name.
        block_names: the blocks, in the order in which they first appear.
        block_index: for each parameter, the position of its block in ``block_names``.
        other_names: the further names of tied weights → the name in ``parameters``.
        preconditioner: for each parameter, P of its shape, by which its gradients are multiplied before anything is
            computed from them, see :class:`gradstats.AdamMetric`; empty in the Euclidean metric.
    """

    parameters: dict[str, torch.Tensor]
    block_names: tuple[str, ...]
    block_index: dict[str, int]
    other_names: Mapping[str, str] = field(default_factory=dict)
    preconditioner: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def name_of(self, name: str) -> str | None:
        """Return the selected parameter that has a name in the model, under its first name; None for any other."""
        name = self.other_names.get(name, name)
        return name if name in self.parameters else None

    @property
    def n_parameters(self) -> int:
        """Number of differentiated scalars."""
        return sum(parameter.numel() for parameter in self.parameters.values())


def select_parameters(model: nn.Module, params: str | None = None, blocks: Blocks = "layer") -> ParameterSelection:
    """Choose parameters by a regular expression and name their blocks.

    Args:
        model: the model.
        params: a regular expression that parameter names have to contain; every parameter that requires a gradient
            when None.
        blocks: "layer" (embedding, layers.0, layers.1, …, final norm, head), "kind" (embedding, attention, mlp,
            norm, head), "parameter" (one block each), or a mapping from regular expressions to block names, of which
            the first match counts; parameters without a match are in the block "other".

    Returns:
        The parameters and their blocks.

    Raises:
        ValueError: when no parameter matches (some existing names are listed), or ``blocks`` is unknown.
    """
    reshard(model)
    trainable: dict[str, torch.Tensor] = {
        name: tensor for name, tensor in model.named_parameters() if tensor.requires_grad
    }
    try:
        chosen = {name: tensor for name, tensor in trainable.items() if params is None or re.search(params, name)}
    except re.error as error:
        raise ValueError(f"params is {params!r}, which is not a regular expression: {error}") from error
    if not chosen:
        some = ", ".join(list(trainable)[:4]) or "none: every parameter is frozen (requires_grad=False)"
        raise ValueError(f"params={params!r} matches no trainable parameter; some that exist: {some}")
    names = {name: _block(name, blocks) for name in chosen}
    ordered = tuple(dict.fromkeys(names.values()))
    first_names = {id(tensor): name for name, tensor in chosen.items()}
    other_names = {
        name: first_names[id(tensor)]
        for name, tensor in model.named_parameters(remove_duplicate=False)
        if id(tensor) in first_names and name not in chosen
    }
    return ParameterSelection(
        chosen, ordered, {name: ordered.index(block) for name, block in names.items()}, other_names
    )


def n_block_sketches(policy: Policy, section: MeasurementSection) -> int:
    """Return how many blocks a measurement keeps sketches of, beside those of the whole."""
    if not section.block_sketches:
        return 0
    return len(select_parameters(policy.model, section.params, section.blocks).block_names)


def _block(name: str, blocks: Blocks) -> str:
    if isinstance(blocks, Mapping):
        return next((label for pattern, label in blocks.items() if re.search(pattern, name)), "other")
    if blocks == "parameter":
        return name
    if blocks == "kind":
        return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")
    if blocks == "layer":
        layer = split_layer(name)
        if layer:
            return f"layers.{layer[0]}"
        kind = next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")
        return "final norm" if kind == "norm" else kind
    raise ValueError(
        f'blocks is {blocks!r}: choose "layer", "kind", "parameter", or give a mapping of patterns to names'
    )
