"""What one rank does with what arrives, in a group of one."""

from __future__ import annotations

import pickle
import warnings
from multiprocessing.connection import Pipe

import pytest
import torch
from ranked_parts import Alone, Context, Pair, Total
from torch import distributed

from gradstats.runs.executors.rank_process import Opening, Progress, SentReport, answer, done, opened
from gradstats.runs.executors.ray_worker import Surroundings, error_of


@pytest.fixture
def here(monkeypatch):
    """What a rank takes over from this process."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("gradstats.system.user_code._folders", [])  # which it takes over for good
    return Surroundings.here(torch.get_num_threads(), without_gpu=False)


@pytest.mark.filterwarnings("ignore:opened")
def test_a_rank_joins_its_group_and_opens_the_work_with_the_budget_that_is_left(here, tmp_path):
    opening = Opening(pickle.dumps(Pair(tmp_path)), 0, 1, str(tmp_path / "store"), here, 50)
    try:
        context = opened(opening)
        assert (distributed.get_world_size(), context.token_budget) == (1, 50)
        own, other = Pipe()
        assert done(pickle.dumps(Total(4)), context, SentReport(other, 0)) == 4
        assert own.recv() == Progress("chunk", (2, 7))
    finally:
        distributed.destroy_process_group()


def test_later_ranks_report_nothing_and_leave_out_what_needs_no_weights():
    own, other = Pipe()
    report = SentReport(other, 1)
    report.tokens(5)
    assert not own.poll()
    part = pickle.dumps(Alone())
    assert done(part, Context(1), report)[0] == 1
    assert done(part, Context(1, in_step=False), report) is None
    assert done(part, Context(0, in_step=False), SentReport(other, 0))[0] == 0


def test_an_answer_holds_the_value_and_the_warnings_of_the_first_rank_or_an_error():
    def warns():
        warnings.warn("as expected", RuntimeWarning, stacklevel=1)
        return 7

    first, second = answer(warns, 0), answer(warns, 1)
    assert (pickle.loads(first.pickled), first.remarks, first.failed) == (7, [(True, "as expected")], False)
    assert (pickle.loads(second.pickled), second.remarks) == (None, [])
    assert 0 < second.processor_seconds < 10
    failed = answer(lambda: 1 / 0, 1)
    assert failed.failed
    assert isinstance(error_of(failed.pickled), ZeroDivisionError)
