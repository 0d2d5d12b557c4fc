"""Which exceptions mean that memory ran out."""

from __future__ import annotations

import pytest
import torch

from gradstats.gradients.memory import is_out_of_memory


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("the caller ran out of memory"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_allocators_are_recognised_by_their_errors(error, expected):
    assert is_out_of_memory(error) is expected


def test_an_allocation_larger_than_any_memory_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
