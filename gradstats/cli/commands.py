"""The commands by name. Each calls the public API and imports it only when it runs, so that ``--help`` is immediate."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable

import tyro

from gradstats.cli import terminal
from gradstats.cli.breakdowns import allocate, by_success
from gradstats.cli.critic import critic
from gradstats.cli.curves import curve, optimal_baselines
from gradstats.cli.installation import check, env, list_things
from gradstats.cli.options import REGISTRY
from gradstats.cli.profiling import profile
from gradstats.cli.ratios import ratios
from gradstats.cli.reporting import figures, report, tables
from gradstats.cli.running import measure, regrade, run, sample
from gradstats.cli.starting import init
from gradstats.cli.statistics import alpha, group_size, length_reward, plan, shift, tokens, variance
from gradstats.cli.sweeping import sweep

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
    "curve": curve,
    "optimal-baselines": optimal_baselines,
    "by-success": by_success,
    "allocate": allocate,
    "critic": critic,
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
    from gradstats.cli.errors import EXPECTED, unexpected

    if sys.argv[1:] == [_VERSION]:
        from gradstats.system.environment import __version__

        print(f"gradstats {__version__}")
        return
    try:
        with terminal.warnings_as_notes():
            tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="gradstats", description=_SUMMARY, registry=REGISTRY)
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
