"""What a shell needs to complete commands, questions, options and their choices: ``--print-completion bash``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Union

import tyro

from gradstats.analyses import registry
from gradstats.cli.ask import options_of
from gradstats.cli.options import REGISTRY

# Where nothing fits, words are files: run directories and experiment files.
_ALSO_FILES = """
_gradstats() {
  _tyro_gradstats
  [ -n "${COMPREPLY[0]}" ] || COMPREPLY=()
}
complete -o default -F _gradstats gradstats
"""


def print_completion(shell: str, functions: Mapping[str, Callable[..., None]], of_questions: Sequence[str]) -> None:
    """Print the script with which a shell completes the words of ``gradstats``.

    Args:
        shell: bash, zsh or fish.
        functions: name → function of each command with options of its own.
        of_questions: the commands with the options of a question; ``ask`` has those of all.
    """
    questions = {name: options_of(registry.get(name), {}) for name in registry.names()}
    commands = {**functions, **{name: questions.get(name) or _ask(questions) for name in of_questions}}
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands,
            prog="gradstats",
            args=["--tyro-print-completion", shell],
            config=(tyro.conf.OmitSubcommandPrefixes,),
            registry=REGISTRY,
        )
    except SystemExit:  # when the script is printed
        print(_ALSO_FILES if shell == "bash" else "")


def _ask(questions: Mapping[str, type]) -> Any:
    """Return what stands for the command that takes a question and its options."""

    def ask(question: Any) -> None: ...

    members = tuple(Annotated[one, tyro.conf.subcommand(name=name)] for name, one in questions.items())
    ask.__annotations__["question"] = Union[members]  # noqa: UP007
    return ask
