"""The number of threads that a small model runs with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gradstats.policy.policy import Policy

_SMALL = 10_000_000


@contextmanager
def suitable_threads(policy: Policy) -> Iterator[None]:
    """Run a small model on the CPU with one thread while the context is open.

    Its matrices are too small to be split: threads spend their time waiting for each other, and slow the run down
    several times where another process uses a core. Models above ten million parameters keep torch's setting.
    """
    kept = torch.get_num_threads()
    small = sum(parameter.numel() for parameter in policy.model.parameters()) < _SMALL
    if small and policy.device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(kept)
