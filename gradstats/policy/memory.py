"""The memory of devices: how much there is, whether it ran out, and work that continues in smaller parts then."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
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


def total_memory_gib(device: torch.device) -> float:
    """Return the memory of a GPU, or of the machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / _GIB
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _GIB


def memory_of_others_gib(device: torch.device) -> float:
    """Return the memory of a GPU that other processes hold; 0 of other devices, where it is not asked for."""
    if device.type != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info(device)
    return max(0.0, (total - free - torch.cuda.memory_reserved(device)) / _GIB)


def planned_memory_gib(device: torch.device) -> float:
    """Return the memory to plan with: all of a device, or of a GPU that is shared a half, a quarter, … that is free.

    What others hold changes while a measurement runs: in steps of a half, one that is resumed beside as many others
    plans the same. Up to a fifth is left to others anyway.
    """
    planned = total = total_memory_gib(device)
    others = memory_of_others_gib(device)
    while others > _SPARE * total and planned > max(total - others, _LEAST * total):
        planned /= 2
    return planned


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that memory ran out: on a GPU, in torch's CPU allocator, or in Python."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sentence in str(error) for sentence in _SENTENCES)


def why_out_of_memory(error: BaseException) -> str:
    """Return the first line of what the error says."""
    return (str(error) or type(error).__name__).splitlines()[0]  # Python's own has no text


def release_unused(device: torch.device) -> None:
    """Return to a GPU what torch keeps for later, so that a smaller piece of work finds it in one piece."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


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
