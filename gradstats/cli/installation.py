"""The commands about the installation: the check of the engines, versions and hardware, and lists of names."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

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
    """Check the gradient engines on a model and device; alone, print versions and hardware, for a bug report.

    The exit code is 1 when an engine fails.

    Args:
        rollouts: sequences to check with; three of random tokens by default.
        dtypes: dtypes in which to check the model; deviations between dtypes are relative to the first, the widest.
    """
    if policy is None:
        show_environment(as_json)
        return
    import gradstats
    from gradstats.gradients import check_engines
    from gradstats.rollouts.table import read_rollouts

    model = policy_section(policy, policy_settings, device=device)
    loaded = gradstats.load_policy(model.name, **model.arguments())
    sequences = None if rollouts is None else read_rollouts(rollouts, partial=partial)
    frame = check_engines(loaded, sequences, dtypes=dtypes, params=params)
    if as_json:
        terminal.print_json(frame, passed=frame.attrs["passed"])
    else:
        terminal.show_check(frame, loaded)
    if not frame.attrs["passed"]:
        sys.exit(1)


def list_things(
    what: Positional[
        Literal["experiments", "sweeps", "estimators", "recipes", "data", "rewards", "terms", "quantities", "schema"]
    ] = "experiments",
    everything: All = False,
    as_json: AsJson = False,
) -> None:
    """List experiments, sweeps, estimators, recipes, data sets, rewards, terms or quantities; or print the schema.

    Args:
        what: the kind of thing; ``terms`` are the words of tables and messages, explained; ``quantities`` are the
            columns of every table, with the files that define them; ``schema`` is the JSON schema with which editors
            complete an experiment file.
    """
    if what == "schema":
        from gradstats.config.experiment import experiment_schema

        print(to_json(experiment_schema()))
    elif what == "quantities":
        _show_quantities(everything, as_json)
    elif as_json:
        import pandas as pd

        terminal.print_json(pd.DataFrame(_columns(what)))
    else:
        show_list(what, everything)


def show_environment(as_json: bool) -> None:
    """Print versions and hardware, and which trainers are known."""
    from gradstats.integrations.installed import integrations
    from gradstats.system.environment import environment

    found = environment() | {"integrations": integrations()}
    if as_json:
        print(to_json(found))
        return
    for name, value in found.items():
        parts = [f"{key} {one}" for key, one in value.items()] if isinstance(value, dict) else [str(value)]
        terminal.show(textwrap.wrap(f"{name}: {', '.join(parts)}", 80, subsequent_indent="  ", break_on_hyphens=False))


def show_list(what: str, everything: bool = False) -> None:
    """Print the names of one kind of thing, each on a line with what it is; on request with all that is known of it."""
    columns = _columns(what)
    if what == "terms":
        for term, meaning in zip(*columns.values(), strict=True):
            terminal.show([term, *textwrap.wrap(meaning, 76, initial_indent="  ", subsequent_indent="  "), ""])
        return
    if not everything:
        names, *others = columns.values()
        terminal.show(_lines(names, others[_SHORT.get(what, 0)]))
        return
    first, *others = columns
    table = Table(Column(first, no_wrap=True), *(Column(name, overflow="fold") for name in others), show_lines=True)
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*map(terminal.escape, cells))
    terminal.console.print(table)


def _lines(names: Sequence[str], meanings: Sequence[str]) -> list[str]:
    """Return a line of 80 columns for each name, with the beginning of what it means."""
    from gradstats.report.verdict import shortened

    width = max(map(cell_len, names))
    texts = [" ".join(meaning.split()) for meaning in meanings]
    return [f"{name:<{width}}  {shortened(text, 78 - width)}" for name, text in zip(names, texts, strict=True)]


def _show_quantities(everything: bool, as_json: bool) -> None:
    """Print every printed or saved column with its table, one line each; on request with the file that defines it."""
    from gradstats.report.columns import INDEX

    listed = [
        (column.name, table, column.file, column.meaning) for table, columns in INDEX.items() for column in columns
    ]
    if as_json:
        import pandas as pd

        terminal.print_json(pd.DataFrame(listed, columns=["name", "table", "file", "meaning"]))
        return
    if not everything:
        terminal.show(_lines([f"{table}: {name}" for name, table, _, _ in listed], [row[-1] for row in listed]))
        return
    widths = [max(len(row[place]) for row in listed) for place in range(3)]
    for *names, meaning in listed:
        print("  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)), meaning, sep="  ")


# Of kinds of things with several columns, the one behind the name that says most.
_SHORT = {"estimators": -1, "recipes": -1}


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
        if terminal.console.width < terminal.WIDE:  # all columns would have seven characters each
            shown = {"estimators": ["name", "baseline", "bias"], "recipes": ["label", "components", "bias"]}
            table = table[shown[what]]
        return {str(column): [str(cell) for cell in table[column]] for column in table}
    if what == "data":
        from gradstats import data

        names = data.names()
        return {"data set": names, "source": [data.load(name).attrs["source"] for name in names]}
    if what == "terms":
        from gradstats.report.glossary import TERMS

        return {"term": list(TERMS), "meaning": list(TERMS.values())}
    from gradstats.rewards.registry import REWARDS

    return {
        "reward": list(REWARDS),
        "what it does": [(function.__doc__ or "").splitlines()[0] for function in REWARDS.values()],
    }
