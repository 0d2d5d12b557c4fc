"""The command that writes a new experiment file."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.prompt import Prompt

from gradstats.cli import terminal
from gradstats.cli.options import Positional, SettingWords, described_by
from gradstats.config.sections import PolicySection, PromptsSection, SamplingSection
from gradstats.config.validation import Section

#: What is written where nothing was given, and the section has no default or one for larger models.
_POLICY = _PROBLEMS = "embedded"
_N_PROMPTS, _CAP = "32", "400"
_GROUP_SIZE = str(SamplingSection().group_size)

#: The questions, in their order: option, section and setting, and the answer that return alone gives.
_ASKED: tuple[tuple[str, type[Section], str, str, str], ...] = (
    ("policy", PolicySection, "policy", "name", _POLICY),
    ("prompts", PromptsSection, "prompts", "source", _PROBLEMS),
    ("n", PromptsSection, "prompts", "n", _N_PROMPTS),
    ("group_size", SamplingSection, "sampling", "group_size", _GROUP_SIZE),
    ("max_new_tokens", SamplingSection, "sampling", "max_new_tokens", _CAP),
    ("reward", SamplingSection, "sampling", "reward", ""),
)


def init(
    name: Positional[str] = "experiment",
    policy: Annotated[str | None, described_by(PolicySection, "name", by_default=_POLICY)] = None,
    prompts: Annotated[str | None, described_by(PromptsSection, "source", by_default=_PROBLEMS)] = None,
    n: Annotated[int | None, described_by(PromptsSection, "n", by_default=_N_PROMPTS)] = None,
    group_size: Annotated[int | None, described_by(SamplingSection, "group_size")] = None,
    max_new_tokens: Annotated[int | None, described_by(SamplingSection, "max_new_tokens", by_default=_CAP)] = None,
    reward: Annotated[str | None, described_by(SamplingSection, "reward")] = None,
    overrides: Annotated[SettingWords, tyro.conf.arg(name="set")] = (),
    ask: bool = True,
) -> None:
    """Write a new experiment file in which every setting is explained, and the schema with which editors complete it.

    Args:
        name: the file to write, with or without ``.yaml``.
        overrides: further settings, as in sampling.temperature=0.6 measurement.engine=ghost.
        ask: in a terminal, ask for what was not given as an option.
    """
    from gradstats.config.experiment import experiment_of, experiment_schema, with_settings
    from gradstats.config.template import SCHEMA_FILE, experiment_text
    from gradstats.runs.validate import check_names
    from gradstats.system.files import atomic_path, to_json
    from gradstats.system.user_code import code_beside

    path = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if path.exists():
        raise FileExistsError(f"{path} exists and is not replaced: choose another name")
    given = {
        "policy": policy, "prompts": prompts, "n": n, "group_size": group_size, "max_new_tokens": max_new_tokens,
        "reward": reward,
    }  # fmt: skip
    if ask and _is_terminal():
        given = {option: _asked(option, value) for option, value in given.items()}
    settings: dict[str, Any] = {"policy": {}, "prompts": {}, "sampling": {}}
    for option, _, section, setting, otherwise in _ASKED:
        value = otherwise if given[option] is None else given[option]
        if value != "":
            settings = with_settings(settings, [f"{section}.{setting}={value}"])
    settings = with_settings(settings, overrides)
    text = experiment_text(path.name, settings)
    experiment = experiment_of(path, settings)
    with code_beside(path.resolve().parent), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check_names(experiment)
        except ValueError as error:
            if not isinstance(error.__cause__, ImportError):
                raise
            # The function may be written after the file that names it.
            terminal.note(f"{error}; write it before the run")
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")
    schema = to_json(experiment_schema()) + "\n"
    beside = path.parent / SCHEMA_FILE
    if not beside.exists():
        with atomic_path(beside) as partial:
            partial.write_text(schema, encoding="utf-8")
    elif beside.read_text(encoding="utf-8", errors="replace") != schema:
        terminal.note(f"{beside} is not the schema of this version and was left: remove it to have it written anew")
    terminal.console.print(f"→ {path}", markup=False)
    terminal.console.print(f"next: gradstats run {path} --dry-run, then gradstats run {path}", markup=False)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _asked(option: str, given: object) -> object:
    """Return what was given, or ask for it."""
    _, section, _, setting, otherwise = next(row for row in _ASKED if row[0] == option)
    if given is not None:
        return given
    meaning = (section.model_fields[setting].description or "").removesuffix(".")
    return Prompt.ask(f"{terminal.escape(option.replace('_', ' '))} ({terminal.escape(meaning)})", default=otherwise)
