"""Recognise an out-of-memory error, whichever allocator raised it."""

from __future__ import annotations

import torch

_SENTENCES = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that memory ran out: on a GPU, in torch's CPU allocator, or in Python."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sentence in str(error) for sentence in _SENTENCES)
