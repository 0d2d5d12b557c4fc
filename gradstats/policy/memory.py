"""The memory of devices: how much there is, whether it ran out, and work that continues in smaller parts then."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import numpy as np
import torch

Result = TypeVar("Result")

_GIB = 2**30
# Of a GPU's memory, the share that others may hold, drivers among them, and the least that is planned with.
_SPARE, _LEAST = 0.2, 1 / 16
_SENTENCES = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_accelerator(device: torch.device) -> bool:
    """Return whether a device starts kernels and has memory of its own, unlike the CPU."""
    return device.type != "cpu"


def hardware_of(device: torch.device) -> str:
    """Return the name of an accelerator, or what instructions of the CPU torch uses."""
    if not is_accelerator(device):
        return torch.backends.cpu.get_cpu_capability()
    name = getattr(torch.get_device_module(device), "get_device_name", None)  # not all have it
    return device.type if name is None else name(device)


def _has_memory_of_its_own(device: torch.device) -> bool:
    """Return whether a device can be asked for its memory; others, such as mps, share that of the machine."""
    return is_accelerator(device) and hasattr(torch.get_device_module(device), "mem_get_info")


def total_memory_gib(device: torch.device) -> float:
    """Return the memory of an accelerator, or of the machine."""
    if _has_memory_of_its_own(device):
        return torch.get_device_module(device).mem_get_info(device)[1] / _GIB
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _GIB


def memory_of_others_gib(device: torch.device) -> float:
    """Return the memory of an accelerator that other processes hold; 0 of the machine, where it is not asked for."""
    if not _has_memory_of_its_own(device):
        return 0.0
    module = torch.get_device_module(device)
    free, total = module.mem_get_info(device)
    return max(0.0, (total - free - module.memory_reserved(device)) / _GIB)


#: How many processes plan with the memory of one accelerator, as far as they know of one another.
_SHARED_BY = ContextVar("shared_by", default=1)


@contextmanager
def memory_shared_by(n_processes: int) -> Iterator[None]:
    """Plan with as much of an accelerator as so many processes that may not have loaded anything yet leave of it."""
    token = _SHARED_BY.set(n_processes)
    try:
        yield
    finally:
        _SHARED_BY.reset(token)


def planned_memory_gib(device: torch.device) -> float:
    """Return the memory to plan with: all of a device, or a half, a quarter, … of an accelerator that others use.

    What others hold changes while a measurement runs: in steps of a half, one that is resumed beside as many others
    plans the same. Up to a fifth is left to others anyway.
    """
    planned = total = total_memory_gib(device)
    if not _has_memory_of_its_own(device):
        return planned
    others, share = memory_of_others_gib(device), total / _SHARED_BY.get()
    left = min(share, total if others <= _SPARE * total else total - others)
    while planned > max(left, _LEAST * total):
        planned /= 2
    return planned


def card_of(device: torch.device) -> str | None:
    """Return what distinguishes a GPU from all others, whatever its number in a process; None for other devices."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that memory ran out: on a GPU, in torch's CPU allocator, or in Python."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sentence in str(error) for sentence in _SENTENCES)


def why_out_of_memory(error: BaseException) -> str:
    """Return the first line of what the error says."""
    return (str(error) or type(error).__name__).splitlines()[0]  # Python's own has no text


def release_unused(device: torch.device) -> None:
    """Return to a device what torch keeps for later, so that a smaller piece of work finds it in one piece."""
    if is_accelerator(device):
        getattr(torch.get_device_module(device), "empty_cache", lambda: None)()


def in_parts_that_fit(
    rows: np.ndarray, work: Callable[[np.ndarray], Result], device: torch.device, what: str, remedy: str
) -> Iterator[tuple[np.ndarray, Result]]:
    """Yield rows with the result of working on them: all at once, or in halves of those for which memory runs out.

    Memory that does not suffice for one of them is an error.

    Args:
        rows: what to work on.
        work: computes the result of some of them.
        device: where.
        what: what they are called, in the plural.
        remedy: which setting divides them beforehand.
    """
    waiting = [rows]
    while waiting:
        some = waiting.pop()
        try:
            result = work(some)
        except Exception as error:
            if len(some) == 1 or not is_out_of_memory(error):
                raise
        else:
            yield some, result
            continue
        # Outside the handler, whose traceback would keep the tensors alive that did not fit.
        release_unused(device)
        half = len(some) // 2
        waiting += [some[half:], some[:half]]
        warnings.warn(
            f"memory ran out on {len(some)} {what} together: continuing with {half} ({remedy} divides them beforehand)",
            RuntimeWarning,
            stacklevel=2,
        )
