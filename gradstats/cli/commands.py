"""The commands by name, and how their errors are shown; ``--help`` is immediate, since each imports what it uses."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable

import tyro

from gradstats.cli import terminal
from gradstats.cli.asking import ask, ask_words
from gradstats.cli.installation import check, env, list_things
from gradstats.cli.options import REGISTRY
from gradstats.cli.reporting import figures, report, tables
from gradstats.cli.running import init, measure, regrade, run, sample, sweep
from gradstats.cli.statistics import (
    alpha,
    group_size,
    length_reward,
    plan,
    profile,
    ratios,
    shift,
    tokens,
    variance,
)

# RuntimeError covers the self-check and torch's out-of-memory error, whose messages state the remedy.
EXPECTED = (ValueError, OSError, LookupError, ImportError, TypeError, RuntimeError)


def unexpected(error: Exception) -> str:
    """Return one sentence on an unexpected failure: a damaged file on which a library failed, or a bug."""
    if isinstance(error, MemoryError):
        return "memory ran out: use fewer or shorter sequences, or a machine with more memory"
    return (
        f"{type(error).__name__}: {error}: unexpected, a file may be damaged; GRADSTATS_TRACEBACK=1 prints where it "
        "happened, for a bug report"
    )


_STDOUT = 1  # file descriptor
_VERSION = "--version"
_SUMMARY = f"Measure the variance of policy gradients of reasoning language models. {_VERSION} prints the version."

COMMANDS: dict[str, Callable[..., None]] = {
    "init": init,
    "run": run,
    "sweep": sweep,
    "sample": sample,
    "regrade": regrade,
    "measure": measure,
    "alpha": alpha,
    "variance": variance,
    "ask": ask,
    "tokens": tokens,
    "ratios": ratios,
    "plan": plan,
    "group-size": group_size,
    "shift": shift,
    "length-reward": length_reward,
    "profile": profile,
    "figures": figures,
    "tables": tables,
    "report": report,
    "check": check,
    "list": list_things,
    "env": env,
}


def main() -> None:
    """Run the ``gradstats`` command.

    A failure that the user can correct (wrong settings, missing files, a full disk) ends with a one-sentence message
    and exit code 1; set GRADSTATS_TRACEBACK=1 to see the traceback.
    """
    if sys.argv[1:] == [_VERSION]:
        from gradstats.system.environment import __version__

        print(f"gradstats {__version__}")
        return
    try:
        with terminal.warnings_as_notes():
            if sys.argv[1:2] == ["ask"]:  # whose options are those of the question
                ask_words(sys.argv[2:])
            else:
                tyro.extras.subcommand_cli_from_dict(
                    COMMANDS, prog="gradstats", description=_SUMMARY, registry=REGISTRY
                )
        sys.stdout.flush()
    except KeyboardInterrupt:
        terminal.fail("interrupted; finished work is kept, and the same command resumes from there")
        sys.exit(130)
    except EXPECTED as error:
        if isinstance(error, BrokenPipeError) and _reader_left():
            sys.exit(0)
        if os.environ.get("GRADSTATS_TRACEBACK"):
            raise
        terminal.fail(str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error))
        sys.exit(1)
    except Exception as error:
        if os.environ.get("GRADSTATS_TRACEBACK"):
            raise
        terminal.fail(unexpected(error))
        sys.exit(1)


def _reader_left() -> bool:
    """Return whether standard output is a closed pipe, as after ``| head``; remaining output is then dropped."""
    poll = select.poll()
    poll.register(_STDOUT, select.POLLOUT)
    left = any(event & select.POLLERR for _, event in poll.poll(0))
    if left:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)  # Python flushes once more when it exits
    return left
