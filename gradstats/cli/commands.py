"""The commands by name, and how their errors are shown; ``--help`` is immediate: a command is imported when named."""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from pkgutil import resolve_name

from gradstats.analyses import registry
from gradstats.cli import terminal

# RuntimeError covers the self-check and torch's out-of-memory error, whose messages state the remedy.
_EXPECTED = (ValueError, OSError, LookupError, ImportError, TypeError, RuntimeError)


def unexpected(error: Exception) -> str:
    """Return one sentence on an unexpected failure: a damaged file on which a library failed, or a bug."""
    if isinstance(error, MemoryError):
        return "memory ran out: use fewer or shorter sequences, or a machine with more memory"
    return (
        f"{type(error).__name__}: {error}: unexpected, a file may be damaged; GRADSTATS_TRACEBACK=1 prints where it "
        "happened, for a bug report"
    )


_STDOUT = 1  # file descriptor
_VERSION, _COMPLETION = "--version", "--print-completion"
#: The shells that can complete the words of a command.
SHELLS = ("bash", "zsh", "fish")
_SUMMARY = "gradstats: the variance of policy gradients of reasoning language models"

#: Commands whose options are those of a question; but for the first, each is a question with its name filled in.
OF_QUESTIONS = ("ask", "alpha", "variance", "plan")
#: What each group of commands is for → its commands: name → function in its file, and the question that it answers.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "make": {
        "init": ("running:init", "what should be measured? writes an experiment file"),
        "run": ("running:run", "sample, measure, compare and draw; also every cell of a sweep"),
        "sample": ("running:sample", "only the completions"),
        "measure": ("running:measure", "only the gradients of completions, also of a trainer's"),
        "regrade": ("running:regrade", "what changes with another reward?"),
    },
    "ask": {
        "alpha": ("ask:ask_question", "how do gradients grow with length?"),
        "variance": ("ask:ask_question", "which estimator takes the fewest samples?"),
        "log": ("log:log", "what does a trainer's log say, without a model?"),
        "ask": ("ask:ask", "every other question: gradstats ask lists them"),
        "plan": ("ask:ask_question", "how many prompts are needed?"),
    },
    "show": {
        "report": ("reporting:report", "one page on a run; on several with --gallery"),
        "export": ("reporting:export", "figures and LaTeX tables for a paper, several runs together"),
    },
    "look": {
        "list": ("installation:list_things", "experiments, estimators, data, rewards, terms, quantities"),
        "check": ("installation:check", "is this installation sound? are the gradients right?"),
        "certify": ("certify:certify", "what does a trainer's own code estimate, exactly?"),
    },
}
COMMANDS = {name: function for group in GROUPS.values() for name, (function, _) in group.items()}


def function_of(command: str) -> Callable[..., None]:
    """Return the function of a command, whose file is imported with what it needs."""
    return resolve_name(f"gradstats.cli.{COMMANDS[command]}")


def _overview() -> list[str]:
    """Return the lines of the help screen: the commands in groups, each with the question that it answers."""
    width = max(len(name) for group in GROUPS.values() for name in group)
    lines = [_SUMMARY, "", "usage: gradstats COMMAND …    gradstats COMMAND --help shows its options", ""]
    for group, commands in GROUPS.items():
        heads = [group, *[""] * (len(commands) - 1)]
        lines += [
            f"  {head:<6}{name:<{width}}  {question}"
            for head, (name, (_, question)) in zip(heads, commands.items(), strict=True)
        ]
        lines.append("")
    lines.append("start with: gradstats run embedded, then gradstats report runs/embedded")
    return [*lines, f"tab completion: gradstats {_COMPLETION} {'|'.join(SHELLS)}"]


def dispatch(words: Sequence[str]) -> None:
    """Run the command that words name.

    Raises:
        KeyError: for an unknown command, with the nearest one.
    """
    if not words or words[0] in ("-h", "--help"):
        terminal.show(_overview())
    elif words[0] == _COMPLETION:
        from gradstats.cli.completion import print_completion

        if (shell := " ".join(words[1:])) not in SHELLS:
            raise ValueError(f"{_COMPLETION} is {shell!r}: choose one of {', '.join(SHELLS)}")
        own = {name: function_of(name) for name in COMMANDS if name not in OF_QUESTIONS}
        print_completion(shell, own, OF_QUESTIONS)
    elif words[0] == "ask":
        function_of("ask")(words[1:])
    elif words[0] in OF_QUESTIONS:
        function_of(words[0])(*words[:1], words[1:])
    elif words[0] in COMMANDS:
        from gradstats.cli.options import run_command

        run_command(function_of(words[0]), f"gradstats {words[0]}", words[1:])
    else:
        nearest = get_close_matches(words[0], COMMANDS, 1, 0.5)
        proposed = f"did you mean {nearest[0]}? " if nearest else ""
        if registry.is_known(words[0]):
            proposed = f"it is a question, gradstats ask RUN {words[0]}; "
        raise KeyError(f"there is no command {words[0]!r}: {proposed}`gradstats --help` lists them all")


def main() -> None:
    """Run the ``gradstats`` command.

    A failure that the user can correct (wrong settings, missing files, a full disk) ends with a one-sentence message
    and exit code 1; set GRADSTATS_TRACEBACK=1 to see the traceback.
    """
    terminal.substitute_characters()
    if sys.argv[1:] == [_VERSION]:
        from gradstats.system.environment import __version__

        print(f"gradstats {__version__}")
        return
    try:
        with terminal.warnings_as_notes():
            dispatch(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        terminal.fail("interrupted; finished work is kept, and the same command resumes from there")
        sys.exit(130)
    except _EXPECTED as error:
        if isinstance(error, BrokenPipeError) and _reader_left():
            sys.exit(0)
        if os.environ.get("GRADSTATS_TRACEBACK"):
            raise
        message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        has_proposal = isinstance(error, KeyError) or "did you mean" in message
        proposed = "" if has_proposal else _nearest_path(message, sys.argv[2:])
        terminal.fail(message + proposed)
        sys.exit(1)
    except Exception as error:
        if os.environ.get("GRADSTATS_TRACEBACK"):
            raise
        terminal.fail(unexpected(error))
        sys.exit(1)


def _nearest_path(message: str, words: Sequence[str]) -> str:
    """Propose the nearest path to one that was given, that a message names and that does not exist."""
    for word in words:
        path = Path(word)
        named = re.search(rf"(?<![\w/]){re.escape(str(path))}(?![\w/])", message)
        of_function = Path(word.rpartition(":")[0]).is_file()
        if named and path.name and not (path.exists() or of_function) and path.parent.is_dir():
            beside = [one.name for one in path.parent.iterdir()]
            for name in get_close_matches(path.name, beside, 1, 0.7):
                return f"; did you mean {path.with_name(name)}?"
    return ""


def _reader_left() -> bool:
    """Return whether standard output is a closed pipe, as after ``| head``; remaining output is then dropped."""
    poll = select.poll()
    poll.register(_STDOUT, select.POLLOUT)
    left = any(event & select.POLLERR for _, event in poll.poll(0))
    if left:
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)  # Python flushes once more when it exits
    return left
