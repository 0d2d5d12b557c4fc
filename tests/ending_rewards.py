"""Rewards that end their process, or its memory, once or always; ENDING_REWARDS names a folder for marks."""

import os
import signal
import sys
import time
from pathlib import Path

from small_runs import vowels

MARKS = "ENDING_REWARDS"


def _once(name, problem):
    """Whether this is the first call for the last of the problems."""
    if "ab " * 6 != problem.prompt:
        return False
    try:
        Path(os.environ[MARKS], name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def dies_once(completion, problem):
    if _once("died", problem):
        os.kill(os.getpid(), signal.SIGKILL)
    return vowels(completion, problem)


def dies(completion, problem):
    os.kill(os.getpid(), signal.SIGKILL)


def exits(completion, problem):
    sys.exit("the grader is not there")


def dies_on_second_rank(completion, problem):
    if os.environ.get("RANK") == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return vowels(completion, problem)


def asks_to_stop(completion, problem):
    """Press Ctrl-C where the run was started, at the first completion, and be slow."""
    if _once("asked", problem):
        os.kill(int(os.environ["ENDING_REWARDS_PID"]), signal.SIGINT)
        time.sleep(2)
    return vowels(completion, problem)
