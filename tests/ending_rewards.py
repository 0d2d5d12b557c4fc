"""Rewards that end the worker which asks for them (they are called in a process of its own), once or always."""

import os
import signal
import time
from pathlib import Path

from small_runs import vowels

#: The variable that names a folder for marks.
MARKS = "ENDING_REWARDS"


def _once(name, problem):
    """Whether this is the first call for the longest of the problems."""
    if problem.prompt != "ab " * 6:
        return False
    try:
        Path(os.environ[MARKS], name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def dies(completion, problem):
    os.kill(os.getppid(), signal.SIGKILL)


def dies_on_second_rank(completion, problem):
    if os.environ.get("RANK") == "1":
        os.kill(os.getppid(), signal.SIGKILL)
    return vowels(completion, problem)


def asks_to_stop(completion, problem):
    """Press Ctrl-C where the run was started, and be slow."""
    if _once("asked", problem):
        os.kill(int(os.environ["ENDING_REWARDS_PID"]), signal.SIGINT)
        time.sleep(2)
    return vowels(completion, problem)
