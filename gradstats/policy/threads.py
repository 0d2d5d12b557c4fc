"""How many threads a small model is run with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gradstats.policy.policy import Policy

_SMALL = 10_000_000


@contextmanager
def suitable_threads(policy: Policy) -> Iterator[None]:
    """Run a small model on the CPU with one thread while the context is open.

    Its matrices are too small to share out: threads spend their time waiting for each other, and where another process
    wants a core they slow the run down several times over. Models above ten million parameters keep torch's setting.
    """
    kept = torch.get_num_threads()
    small = sum(parameter.numel() for parameter in policy.model.parameters()) < _SMALL
    if small and policy.device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(kept)
