"""The memory of devices that are shared, and work that continues in smaller parts when memory runs out."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gradstats.policy.memory import hardware_of, in_parts_that_fit, planned_memory_gib
from gradstats.runs.cost import _left_by_others

CPU = torch.device("cpu")
OUT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def parts(n, fit, error=OUT):
    def work(rows):
        if len(rows) > fit:
            raise error
        return rows.sum()

    return list(in_parts_that_fit(np.arange(n), work, CPU, "sequences", "a smaller token_budget"))


def test_everything_is_done_at_once_where_it_fits():
    ((rows, total),) = parts(7, 7)
    assert (rows.tolist(), total) == ([*range(7)], 21)


def test_halves_keep_the_order_and_leave_nothing_out():
    with pytest.warns(RuntimeWarning, match=r"memory ran out on \d sequences together: continuing with \d \(a smaller"):
        found = parts(7, 2)
    assert [row for rows, _ in found for row in rows] == [*range(7)]
    assert max(len(rows) for rows, _ in found) == 2
    assert sum(total for _, total in found) == 21


@pytest.mark.filterwarnings("ignore:memory ran out")
def test_a_single_one_that_does_not_fit_and_other_errors_are_raised():
    with pytest.raises(torch.OutOfMemoryError):
        parts(4, 0)
    with pytest.raises(ValueError, match="shapes"):
        parts(4, 2, ValueError("shapes do not match"))


@pytest.mark.parametrize(("others", "planned"), [(0, 80), (16, 80), (17, 40), (40, 40), (41, 20), (80, 5)])
def test_a_gpu_that_others_use_counts_as_the_part_that_they_leave(monkeypatch, others, planned):
    """Of 80 GiB this process holds 10, its weights for example, which are no one else's."""
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 * 2**30), raising=False
    )
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: min(10, 80 - others) * 2**30)
    monkeypatch.setattr(
        torch.cuda, "mem_get_info", lambda device: ((80 - others - min(10, 80 - others)) * 2**30, 80 * 2**30)
    )
    assert planned_memory_gib(torch.device("cuda", 0)) == planned
    said = f"other processes hold {others} of the 80 GiB of the GPU: planned with {planned} GiB"
    assert _left_by_others(torch.device("cuda", 0)) == (said if planned < 80 else "")


def test_the_hardware_is_named_whatever_the_accelerator(monkeypatch):
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda device: f"Max 1550, {device.index}")
    assert hardware_of(torch.device("xpu", 1)) == "Max 1550, 1"
    assert hardware_of(torch.device("mps")) == "mps"  # which has no names
    assert hardware_of(CPU) == torch.backends.cpu.get_cpu_capability()
