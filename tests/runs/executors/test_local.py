"""Parts in this process: one after another, each given to the caller before the next begins."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field

import pytest

from gradstats.runs.executors.local import LocalExecutor, ask
from gradstats.system.progress import progress_bar


@dataclass
class Numbers:
    """Work whose context is a list, to which parts append."""

    opened: list[list[str]] = field(default_factory=list)

    def open(self):
        self.opened.append([])
        return self.opened[-1]


def squared(number):
    def part(context, report):
        context.append(f"{number} done")
        report.chunk(1, 5)
        return number**2

    return part


@pytest.fixture(autouse=True)
def ctrl_c_counts():
    """In background jobs a shell lets processes ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_what_parts_need_is_loaded_once_and_a_value_arrives_before_the_next_part_begins():
    work = Numbers()
    with LocalExecutor().crew(work) as crew, progress_bar("squares", 3, shown=False) as report:
        for number, value in crew.work([4, 1, 7], squared, report):
            work.opened[0].append(f"{number} is {value}")
        assert ask(crew, squared(2), "a square") == 4
    assert work.opened == [["4 done", "4 is 16", "1 done", "1 is 1", "7 done", "7 is 49", "2 done"]]


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
