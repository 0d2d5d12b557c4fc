"""A key-value cache with room for further tokens: appending one copies that token, not everything before it."""

from __future__ import annotations

import torch
from transformers.cache_utils import DynamicLayer

ROOM = 64  # tokens for which a new buffer has room


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer, as views of the filled part of two buffers.

    ``DynamicLayer`` of transformers concatenates, so that each token copies the keys and values of all earlier ones:
    for a small model, this takes most of the sampling time. The buffers here are replaced every 64 tokens. Rows are
    taken out of the cache as from a ``DynamicLayer``.
    """

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Create empty buffers of the states' type."""
        super().lazy_initialization(key_states, value_states)
        self._buffers = [key_states[..., :0, :], value_states[..., :0, :]]
        self.keys, self.values = self._buffers

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: object, **_options: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append the states of further tokens and return those of all tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        self.keys = self._appended(0, self.keys, key_states)
        self.values = self._appended(1, self.values, value_states)
        return self.keys, self.values

    def _appended(self, which: int, held: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        before, after = held.shape[-2], held.shape[-2] + states.shape[-2]
        buffer = self._buffers[which]
        # Where rows were taken out, `held` is a copy that does not lie in the buffer.
        if held.data_ptr() != buffer.data_ptr() or held.shape[0] != buffer.shape[0] or after > buffer.shape[-2]:
            buffer = states.new_empty(*states.shape[:-2], after + ROOM, states.shape[-1])
            buffer[..., :before, :] = held
            self._buffers[which] = buffer
        buffer[..., before:after, :] = states
        return buffer[..., :after, :]
