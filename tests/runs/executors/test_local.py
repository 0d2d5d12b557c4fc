"""Parts in this process: one after another, each given to the caller before the next begins."""

import os
import signal
from dataclasses import dataclass, field

import pytest
import torch

from gradstats.config.sections import ExecutionSection
from gradstats.runs.executors import choice
from gradstats.runs.executors.choice import executor_of, require_executor
from gradstats.runs.executors.local import LocalExecutor, ask
from gradstats.runs.executors.rank_group import RankedExecutor
from gradstats.system.progress import progress_bar


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


@dataclass
class Numbers:
    """Work whose context is a list, to which parts append."""

    opened: list[list[str]] = field(default_factory=list)

    def open(self):
        self.opened.append([])
        return self.opened[-1]


def test_what_holds_memory_is_closed_before_the_next_step():
    class Engine:
        closed = False

        def open(self):
            return self

        def close(self):
            self.closed = True

    engine = Engine()
    with LocalExecutor().crew(engine):
        assert not engine.closed
    assert engine.closed


def squared(number):
    def part(context, report):
        context.append(f"{number} done")
        report.chunk(1, 5)
        return number**2

    return part


@pytest.mark.usefixtures("ctrl_c_counts")
def test_what_parts_need_is_loaded_once_and_a_value_arrives_before_the_next_part_begins():
    work = Numbers()
    with LocalExecutor().crew(work) as crew, progress_bar("squares", 3, shown=False) as report:
        for number, value in crew.work([4, 1, 7], squared, report):
            work.opened[0].append(f"{number} is {value}")
        assert ask(crew, squared(2), "a square") == 4
    assert work.opened == [["4 done", "4 is 16", "1 done", "1 is 1", "7 done", "7 is 49", "2 done"]]


@pytest.mark.usefixtures("ctrl_c_counts")
def test_a_first_ctrl_c_stops_after_the_current_part_and_a_second_at_once(capsys):
    def pressing(times):
        def part(number):
            def pressed(context, report):
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)
                return squared(number)(context, report)

            return pressed

        return part

    for times, finished in ((1, [(5, 25)]), (2, [])):
        kept = []
        with (
            LocalExecutor().crew(Numbers()) as crew,
            progress_bar("squares", 3, shown=False) as report,
            pytest.raises(KeyboardInterrupt),
        ):
            kept.extend(crew.work([5, 6], pressing(times), report, "batch"))
        assert kept == finished
    assert "stopping when the current batch is finished; Ctrl-C again" in " ".join(capsys.readouterr().err.split())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
