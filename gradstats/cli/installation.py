"""The commands about the installation: the check of the engines, versions and hardware, and lists of names."""

from __future__ import annotations

import re
import sys
import textwrap
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal, get_args

import tyro
from rich.cells import cell_len
from rich.table import Column, Table

from gradstats.cli import terminal
from gradstats.cli.options import (
    All,
    AsJson,
    Partial,
    PolicyDevice,
    PolicyName,
    PolicySettings,
    Positional,
    described_by,
    policy_section,
)
from gradstats.config.options import CHECKED_TYPES, WeightType
from gradstats.config.sections import MeasurementSection
from gradstats.system.files import to_json


def check(
    policy: Positional[PolicyName | None] = None,
    rollouts: Path | None = None,
    dtypes: tuple[WeightType, ...] = CHECKED_TYPES,
    params: Annotated[str | None, described_by(MeasurementSection, "params")] = None,
    device: PolicyDevice = None,
    policy_settings: PolicySettings = (),
    partial: Partial = False,
    as_json: AsJson = False,
) -> None:
    """Check the gradient engines on a model and device; alone, say what works here and what is missing.

    The exit code is 1 when an engine fails.

    Args:
        rollouts: sequences to check with; three of random tokens by default.
        dtypes: dtypes in which to check the model; deviations between dtypes are relative to the first, the widest.
    """
    if policy is None:
        _show_environment(as_json)
        return
    import gradstats
    from gradstats.gradients import check_engines
    from gradstats.rollouts.table import read_rollouts

    model = policy_section(policy, policy_settings, device=device)
    loaded = gradstats.load_policy(model.name, **model.arguments())
    sequences = None if rollouts is None else read_rollouts(rollouts, partial=partial)
    frame = check_engines(loaded, sequences, dtypes=dtypes, params=params)
    if as_json:
        terminal.print_json({"rows": frame.to_dict("records"), "passed": frame.attrs["passed"]})
    else:
        terminal.show_check(frame, loaded)
    if not frame.attrs["passed"]:
        sys.exit(1)


Kind = Literal["experiments", "sweeps", "estimators", "recipes", "data", "rewards", "terms", "quantities", "schema"]
_FOLLOWED = "a name follows, as in list estimators rloo"
_FIRST: Kind = "experiments"  # what is listed where no kind is named


def list_things(
    what: Positional[Annotated[str, tyro.conf.arg(metavar="KIND")]] = _FIRST,
    name: Positional[Annotated[str | None, tyro.conf.arg(metavar="[NAME]")]] = None,
    everything: All = False,
    as_json: AsJson = False,
) -> None:
    """List experiments, sweeps, estimators, recipes, data sets, rewards, terms or quantities; or print the schema.

    Args:
        what: the kind of thing: experiments, sweeps, estimators, recipes, data, rewards, terms, quantities or schema.
            ``terms`` are the words of tables and messages, explained; ``quantities`` are the
            columns of every table, with the files that define them; ``schema`` is the JSON schema with which editors
            complete an experiment file.
        name: all that is known of one of them, or of those whose name contains this; of quantities also a table.

    Raises:
        KeyError: for something else, with the nearest kind, and for an unknown name.
    """
    kinds = get_args(Kind)
    if what not in kinds:
        nearest = get_close_matches(what, kinds, 1, 0.5)
        proposed = f"did you mean {nearest[0]}? " if nearest else ""
        raise KeyError(f"{what!r} cannot be listed: {proposed}choose from {', '.join(kinds)}; {_FOLLOWED}")
    if what == "schema":
        from gradstats.config.experiment import experiment_schema

        print(to_json(experiment_schema()))
        return
    columns = _columns(what)
    if name is not None:
        columns = _named(columns, name, what)
    if as_json:
        import pandas as pd

        terminal.print_json({"rows": pd.DataFrame(columns).to_dict("records")})
    elif everything and name is None:
        _show_all(what, columns)
    elif name is None or name in columns.get("table", ()):  # the columns of one table have a line each
        terminal.show(_overview(what, columns))
    else:
        _show_entries(columns)


def _show_environment(as_json: bool) -> None:
    """Say what works here and what is missing, and print versions and hardware."""
    import torch

    from gradstats.integrations.installed import integrations
    from gradstats.system.environment import EXTRAS, environment, missing_extras

    lacking = missing_extras()
    found = environment() | {"integrations": integrations()}
    if as_json:
        print(to_json(found | {"missing": lacking}))
        return
    on = "a GPU" if torch.cuda.is_available() else "the CPU, where large models are slow"
    terminal.show_sentence(f"gradstats samples, measures and analyses here, on {on}.")
    lines = [f"  missing  {EXTRAS[extra]}: pip install 'gradstats[{extra}]'" for extra in lacking]
    terminal.show([*lines, "  engines  compared with autograd by gradstats check POLICY", ""])
    for name, value in found.items():
        parts = [f"{key} {one}" for key, one in value.items()] if isinstance(value, dict) else [str(value)]
        terminal.show(textwrap.wrap(f"{name}: {', '.join(parts)}", 80, subsequent_indent="  ", break_on_hyphens=False))


def _named(columns: dict[str, list[str]], name: str, what: str) -> dict[str, list[str]]:
    """Return the rows of a name, or else those whose name contains it.

    Raises:
        KeyError: where there is none, with the nearest name.
    """
    keys = [columns[key] for key in _NAMES.get(what, tuple(columns)[:1])]
    exactly = ([at for at, cell in enumerate(cells) if cell == name] for cells in keys)
    # A term is also found by the name of its column.
    spoken = [name.lower(), *([name.lower().replace("_", " ")] if what == "terms" else [])]
    partly = ([at for at, cell in enumerate(cells) if any(one in cell.lower() for one in spoken)] for cells in keys)
    found = next(filter(None, (*exactly, *partly)), None)
    if found is None:
        nearest = get_close_matches(name, [cell for cells in keys for cell in cells], 1, 0.4)
        proposed = f"did you mean {nearest[0]}? " if nearest else ""
        raise KeyError(f"none of the {what} is called {name!r}: {proposed}`gradstats list {what}` shows them")
    return {key: [cells[at] for at in found] for key, cells in columns.items()}


def _show_entries(columns: dict[str, list[str]]) -> None:
    """Print each name with all that is known of it below."""
    others = list(columns)[1:]
    for name, *cells in zip(*columns.values(), strict=True):
        terminal.show([name])
        for heading, cell in zip(others, cells, strict=True):
            text = " ".join(cell.split())
            said = text if len(others) == 1 else f"{heading}: {text}"
            terminal.show(textwrap.wrap(said, 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))


def _show_all(what: str, columns: dict[str, list[str]]) -> None:
    """Print a table of all that is known; words with what they mean below, and columns of tables on a line each."""
    if what == "terms":
        _show_entries(columns)
        return
    if what == "quantities":
        *names, meanings = columns.values()
        widths = [max(map(len, cells)) for cells in names]
        for *cells, meaning in zip(*names, meanings, strict=True):
            print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), meaning, sep="  ")
        return
    if terminal.console.width < terminal.WIDE:  # all columns would have seven characters each
        columns = {name: columns[name] for name in _NARROW.get(what, columns)}
    first, *others = columns
    table = Table(Column(first, no_wrap=True), *(Column(name, overflow="fold") for name in others), show_lines=True)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*map(terminal.escape, cells))
    terminal.console.print(table)


def _overview(what: str, columns: dict[str, list[str]]) -> list[str]:
    """Return the names: each with the beginning of what it means, or all together where they are too many."""
    from gradstats.report.verdict import NO_BREAK

    kinds = list(dict.fromkeys(columns[_MANY[what]])) if what in _MANY else []
    if len(kinds) > 1:
        text = " · ".join(name.replace(" ", NO_BREAK) for name in kinds)
        lines = [line.replace(NO_BREAK, " ") for line in textwrap.wrap(text, 80, break_on_hyphens=False)]
        return [*lines, "", f"gradstats list {what} NAME explains one of them; all: --all"]
    first, second, *_ = columns
    names, width = columns[first], max(map(cell_len, columns[first]))
    lines = []
    for name, meaning in zip(names, columns[_SHORT.get(what, second)], strict=True):
        text = " ".join(meaning.split())
        text = _clauses(text, 78 - width) if what in _SHORT else re.split(r"(?<=\.) |[:;] ", text)[0]
        lines += textwrap.wrap(
            text, 80, initial_indent=f"{name:<{width}}  ", subsequent_indent=" " * (width + 2), break_on_hyphens=False
        )
    if what != _FIRST:
        return lines
    others = ", ".join(kind for kind in get_args(Kind) if kind != what)
    return [*lines, "", *textwrap.wrap(f"gradstats list KIND lists others: {others}", 80)]


def _clauses(text: str, width: int) -> str:
    """Return as many whole clauses of a text as fit a width; of one that does not, what stands before its colon.

    >>> _clauses("E[ĝ] = ∇J, since the values come from independent completions", 40)
    'E[ĝ] = ∇J'
    """
    for marks in ("[,;] ", ": "):
        ends = [found.start() for found in re.finditer(marks, text)] + [len(text)]
        if fitting := [end for end in ends if end <= width]:
            return text[: fitting[-1]]
    return text


# Of kinds of things of which there are too many for a line each, the column that is shown; of quantities their table.
_MANY = {"terms": "term", "quantities": "table", "estimators": "name", "recipes": "label"}
# The columns in which a name is looked up one after the other, where it is not the first alone.
_NAMES = {"quantities": ("table", "name")}
# The columns of a narrow terminal, where all are too many.
_NARROW = {"estimators": ("name", "baseline", "bias"), "recipes": ("label", "components", "run by")}
# Of kinds of things with several columns, the one that says most.
_SHORT = {"quantities": "meaning"}


def _columns(what: str) -> dict[str, list[str]]:
    if what == "experiments":
        from gradstats.config.experiment import load_experiment, shipped_experiments

        names = list(shipped_experiments())
        return {"experiment": names, "what it does": [load_experiment(name).description for name in names]}
    if what == "sweeps":
        from gradstats.config.experiment import shipped_experiments
        from gradstats.config.sweep import load_sweep

        names = list(shipped_experiments(sweeps=True))
        return {"sweep": names, "what it does": [load_sweep(name).cells[0].experiment.description for name in names]}
    if what in ("estimators", "recipes"):
        from gradstats import estimators
        from gradstats.estimators.registry import to_be_filled

        table = estimators.table() if what == "estimators" else estimators.recipes.published()
        if what == "estimators":  # as they must be written
            table["name"] = [to_be_filled(name) for name in table["name"]]
        return {str(column): [str(cell) for cell in table[column]] for column in table}
    if what == "data":
        from gradstats import data

        names = data.names()
        return {"data set": names, "source": [data.load(name).attrs["source"] for name in names]}
    if what == "quantities":
        from gradstats.report.columns import INDEX

        listed = [(one.name, table, one.file, one.meaning) for table, columns in INDEX.items() for one in columns]
        return {name: [row[at] for row in listed] for at, name in enumerate(("name", "table", "file", "meaning"))}
    if what == "terms":
        from gradstats.report.glossary import TERMS

        return {"term": list(TERMS), "meaning": list(TERMS.values())}
    from gradstats.rewards.registry import REWARDS

    return {
        "reward": list(REWARDS),
        "what it does": [(function.__doc__ or "").splitlines()[0] for function in REWARDS.values()],
    }
