"""The worker process: it is killed if it hangs and replaced if it dies, at the cost of one call."""

import os
import signal
import threading
import time

import pytest

from gradstats.rewards.grading import ReferenceAnswerError
from gradstats.system.worker import IsolatedError, IsolatedProcess, IsolatedTimeoutError
from gradstats.system.worker_main import answer

MATH = "gradstats.rewards.math_scorer:math_score"


@pytest.fixture
def process():
    made = IsolatedProcess()
    yield made
    made.close()


def test_a_process_that_hangs_costs_one_call(process):
    assert process.call(MATH, "it is 12", "12") == 1.0
    first = process._process
    # Stopped, it answers no signal of its own: what a computation that never returns to the interpreter looks like.
    os.kill(first.pid, signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(IsolatedTimeoutError, match=r"it did not end within 0\.5 s and was stopped"):
        process.call(MATH, "it is 12", "12", seconds=0.5)
    assert time.monotonic() - start < 10
    assert first.returncode == -signal.SIGKILL
    assert process.call(MATH, "it is 12", "12") == 1.0
    assert process._process.pid != first.pid


def test_a_process_that_died_is_replaced_and_the_call_made_again(process):
    process.call(MATH, "12", "12")
    os.kill(process._process.pid, signal.SIGKILL)
    assert process.call(MATH, "it is 13", "12") == 0.0


def test_what_a_call_raises_is_told_and_the_next_one_is_answered(process):
    with pytest.raises(IsolatedError, match="ValueError: math domain error|ValueError: expected a nonneg"):
        process.call("math:sqrt", -1.0)
    with pytest.raises(ReferenceAnswerError, match="cannot parse the reference answer '[$]'"):
        process.call("gradstats.rewards.math_scorer:check_reference", "$")
    with pytest.raises(IsolatedError, match="its process died"):
        process.call("os:_exit", 1)
    with pytest.raises(RuntimeError, match="the process that runs no_such_module does not start: No module named"):
        process.call("no_such_module:f")
    assert process.call("math:sqrt", 9.0) == 3.0


def test_what_a_function_prints_is_not_taken_for_its_answer(process):
    assert process.call("builtins:print", "3") is None
    assert process.call("math:sqrt", 9.0) == 3.0


def test_memory_runs_out_in_that_process_alone(process):
    with pytest.raises(IsolatedError, match="MemoryError|died"):
        process.call("builtins:bytearray", 8 * 1024**3)
    assert process.call("math:sqrt", 9.0) == 3.0


def test_string_hashes_have_one_seed(process):
    first = process.call("builtins:hash", "gradstats")
    process.close()
    assert process.call("builtins:hash", "gradstats") == first


def test_threads_share_one_process_without_mixing_answers(process):
    found = {}

    def ask(number):
        found[number] = process.call("math:sqrt", float(number))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: number**0.5 for number in range(20)}


def test_ctrl_c_in_the_middle_of_a_call_does_not_shift_answers(process):
    process.call("math:sqrt", 4.0)

    class Interrupting:
        def __init__(self, stream):
            self.stream = stream

        def readline(self):
            raise KeyboardInterrupt

        def __getattr__(self, name):
            return getattr(self.stream, name)

    process._process.stdout = Interrupting(process._process.stdout)
    with pytest.raises(KeyboardInterrupt):
        process.call("math:sqrt", 9.0)
    assert process.call("math:sqrt", 16.0) == 4.0
    assert process.call("math:sqrt", 25.0) == 5.0


def test_math_verifys_own_time_limit_is_told_from_a_wrong_answer(monkeypatch):
    from math_verify.errors import TimeoutException

    def slow(*_args, **_options):
        raise TimeoutException("Timeout")

    def told(completion):
        return answer({"call": MATH, "arguments": [completion, "12"]})

    timeout = "gradstats.rewards.grading:ScoringTimeoutError"
    assert told("it is 13") == {"value": 0.0}
    monkeypatch.setattr("gradstats.rewards.math_scorer.verify", slow)
    assert told("it is 13") == {"raised": timeout, "message": "a comparison by math-verify took over 5 s"}


@pytest.mark.slow
def test_a_tower_of_powers_runs_into_the_time_limit_and_the_next_completion_does_not(process):
    with pytest.raises(TimeoutError):
        process.call(MATH, r"\boxed{9^{9^{9}}}", "12")
    assert process.call(MATH, r"\boxed{12}", "12") == 1.0
