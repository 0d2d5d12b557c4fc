"""Work that continues in smaller parts when memory runs out."""

import numpy as np
import pytest
import torch

from gradstats.policy.memory import in_parts_that_fit

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
