"""The executor that the settings choose, or why none can follow them."""

from __future__ import annotations

import pytest
import torch

from gradstats.config.sections import ExecutionSection
from gradstats.runs.executors import local as choice
from gradstats.runs.executors.local import LocalExecutor, executor_of, require_executor
from gradstats.runs.executors.rank_group import RankedExecutor


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"workers": 4}, "workers is 4"), ({"gpus_per_worker": 1}, "gpus_per_worker is 1"), ({"address": "auto"}, "auto")],
)
def test_workers_need_an_executor_that_has_some(settings, named):
    section = ExecutionSection(**settings)
    with pytest.raises(
        ValueError, match=f"{named}, but the executor local works in this process: choose --executor ray"
    ):
        require_executor(section)


def test_each_rank_of_a_worker_needs_a_gpu_of_its_own():
    message = "gpus_per_worker is 1, but each of the 4 ranks of a worker needs a GPU of its own: set it to 4"
    with pytest.raises(ValueError, match=message):
        require_executor(ExecutionSection(executor="ray", gpus_per_worker=1, ranks_per_worker=4))


def test_workers_can_be_groups_of_ranks():
    with executor_of(ExecutionSection(ranks_per_worker=2, threads=1)) as executor:
        described = executor.describe()
        assert {"executor": "local", "threads": 1, "ranks_per_worker": 2}.items() <= described.items()
        apart = executor.counted_apart()
    assert isinstance(apart, RankedExecutor)
    assert apart.spent.n_parts == 0


def test_ray_is_an_extra(monkeypatch):
    monkeypatch.setattr(choice, "installed", lambda name: None)
    with (
        pytest.raises(ImportError, match=r"ray, which is not installed: pip install 'gradstats\[ray\]'"),
        executor_of(ExecutionSection(executor="ray")),
    ):
        pass


def test_this_process_uses_the_threads_that_were_asked_for_while_it_works():
    class Threads:
        def open(self):
            return torch.get_num_threads()

    before = torch.get_num_threads()
    with executor_of(ExecutionSection(threads=before + 1)) as executor:
        assert isinstance(executor, LocalExecutor)
        with executor.crew(Threads()) as crew:
            assert crew.context == before + 1
        described = executor.describe()
        assert (described["executor"], described["threads"]) == ("local", before + 1)
        assert described["processor_seconds"]["parts"] == 0
    assert torch.get_num_threads() == before
