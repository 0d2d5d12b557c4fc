"""The memory of devices that are shared, and work that continues in smaller parts when memory runs out."""

import numpy as np
import pytest
import torch

from gradstats.policy.memory import (
    hardware_of,
    in_parts_that_fit,
    memory_shared_by,
    planned_memory_gib,
    total_memory_gib,
)
from gradstats.runs.cost import _left_by_others

CPU = torch.device("cpu")
OUT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def parts(n, fit, error=OUT):
    def work(rows):
        if len(rows) > fit:
            raise error
        return rows.sum()

    return list(in_parts_that_fit(np.arange(n), work, CPU, "sequences", "a smaller token_budget"))


def test_halves_keep_the_order_and_leave_nothing_out():
    ((rows, total),) = parts(7, 7)  # everything at once where it fits
    assert (rows.tolist(), total) == ([*range(7)], 21)
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


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
@pytest.mark.parametrize(
    ("others", "n_processes", "planned"),
    [(0, 1, 80), (16, 1, 80), (17, 1, 40), (40, 1, 40), (41, 1, 20), (80, 1, 5), (0, 2, 40), (16, 3, 20), (41, 2, 20)],
)
def test_an_accelerator_that_others_use_counts_as_the_part_that_they_leave(
    monkeypatch, kind, others, n_processes, planned
):
    """Of 80 GiB this process holds 10, its weights for example, which are no one else's."""
    device, own = torch.device(kind, 0), min(10, 80 - others)
    module = torch.get_device_module(device)
    monkeypatch.setattr(module, "memory_reserved", lambda device: own * 2**30)
    monkeypatch.setattr(module, "mem_get_info", lambda device: ((80 - others - own) * 2**30, 80 * 2**30))
    with memory_shared_by(n_processes):
        assert planned_memory_gib(device) == planned
    if n_processes == 1:
        said = f"other processes hold {others} of the 80 GiB of the GPU: planned with {planned} GiB"
        assert _left_by_others(device) == (said if planned < 80 else "")


def test_a_device_without_memory_of_its_own_has_that_of_the_machine():
    with memory_shared_by(2):
        assert {planned_memory_gib(torch.device(kind)) for kind in ("cpu", "mps")} == {total_memory_gib(CPU)}


def test_the_hardware_is_named_whatever_the_accelerator(monkeypatch):
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda device: f"Max 1550, {device.index}")
    assert hardware_of(torch.device("xpu", 1)) == "Max 1550, 1"
    assert hardware_of(torch.device("mps")) == "mps"  # which has no names
    assert hardware_of(CPU) == torch.backends.cpu.get_cpu_capability()
