"""The command that runs a sweep, and what it prints."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich import box
from rich.table import Table

from gradstats.cli import terminal
from gradstats.cli.options import (
    Address,
    AsJson,
    Executor,
    GpusPerWorker,
    Positional,
    Progress,
    RanksPerWorker,
    SettingWords,
    Threads,
    Workers,
    with_execution,
)

if TYPE_CHECKING:
    import pandas as pd

    from gradstats.report.sweeps import SweepResult

# Of at most this many cells every pair is printed.
_FEW = 4


def sweep(
    experiment: Positional[str],
    out: Path | None = None,
    dry_run: bool = False,
    overrides: Annotated[SettingWords, tyro.conf.arg(name="set")] = (),
    trust: bool = False,
    executor: Executor = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = None,
    ranks_per_worker: RanksPerWorker = None,
    threads: Threads = None,
    address: Address = None,
    progress: Progress = True,
    as_json: AsJson = False,
) -> None:
    """Run an experiment file with ``vary`` once for each cell, and join what the cells found. Resumes like ``run``.

    Args:
        experiment: a file with ``vary``, or the name of a sweep that comes with the project (``list sweeps``).
        out: the folder of the run directories; runs/NAME by default.
        dry_run: only print the cells, and for each what would be sampled and measured.
        overrides: settings to change in all cells, as in prompts.n=60.
        trust: as for ``gradstats run``.
    """
    from gradstats.config.sweep import load_sweep
    from gradstats.runs.sweep import check_cells, draws_alike, run_sweep

    overrides = with_execution(
        overrides,
        executor=executor,
        workers=workers,
        gpus_per_worker=gpus_per_worker,
        ranks_per_worker=ranks_per_worker,
        threads=threads,
        address=address,
    )
    loaded = load_sweep(experiment, overrides, trust=trust)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_cells(loaded)
    if dry_run:
        from gradstats.runs.cost import estimate_cost

        for at, cell in enumerate(loaded.cells):
            earlier = [one.name for one in loaded.cells[:at] if draws_alike(one.experiment, cell.experiment)]
            cost = estimate_cost(cell.experiment, progress=progress)
            terminal.show_cost(cell.experiment, cost, cell.experiment.execution.workers)
            if earlier:
                terminal.note(f"{cell.name} takes the completions of {earlier[0]}: it samples nothing")
        return
    result = run_sweep(experiment, overrides, out=out, trust=trust, progress=progress)
    if as_json:
        differences = result.differences().to_dict("records")
        terminal.print_json(result.to_frame(), missing=list(result.missing), differences=differences)
    else:
        show_sweep(result)


def show_sweep(result: SweepResult) -> None:
    """Print what the cells of a sweep found, and which have no results."""
    from gradstats.report.sweeps import DIFFERENCES, TABLE
    from gradstats.stats.variance.quantities import JUDGED, filled_in

    frame = result.to_frame()
    for columns, rows in (
        (("alpha", "mean_length", "mean_reward"), frame.drop_duplicates("cell")),
        ((JUDGED.name,), frame.dropna(subset="estimator") if JUDGED.name in frame else frame.iloc[:0]),
    ):
        if not len(rows):
            continue
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        of_estimators = columns == (JUDGED.name,)
        names = ["cell", "estimator"] if of_estimators else ["cell"]
        for name in names:
            table.add_column(name, overflow="fold")
        for name in columns:
            heading = filled_in(JUDGED.heading, frame.attrs) if of_estimators else _heading(name)
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows.to_dict("records"):
            table.add_row(
                *(_folded(row[name]) for name in names),
                *(terminal.with_interval(row, name) for name in columns),
            )
        terminal.console.print(table)
    differences = result.differences()
    show_differences(differences)
    for cell in result.missing:
        terminal.note(f"{cell} has no results yet: the same command runs it")
    tables = TABLE if differences.empty else f"{TABLE}, {DIFFERENCES}"
    terminal.console.print(f"written: {terminal.escape(str(result.path))}: {tables}, and a run directory for each cell")


def _heading(quantity: str) -> str:
    return "α" if quantity == "alpha" else quantity.replace("_", " ")


def _folded(name: object) -> str:
    """Return a name for a cell of a printed table, broken after its first comma."""
    return terminal.escape(str(name)).replace(",", ",\n", 1)


def show_differences(differences: pd.DataFrame) -> None:
    """Print how far cells with the same prompts lie apart; of many cells, only from the first one."""
    if differences.empty:
        return
    cells = list(dict.fromkeys([*differences["minus"], *differences["cell"]]))
    kept = differences["minus"].isin(cells if len(cells) <= _FEW else cells[:1])
    table = Table(title="differences, paired over prompts", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("cell", "minus", "of"):
        table.add_column(heading, overflow="fold")
    table.add_column("difference", justify="right", no_wrap=True)
    for row in differences.loc[kept].to_dict("records"):
        names = (_folded(row["cell"]), _folded(row["minus"]), _heading(row["quantity"]))
        table.add_row(*names, terminal.with_interval(row, "difference"))
    terminal.console.print(table)
