"""From a file with ``vary`` to a folder of run directories, one for each cell."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from gradstats.config.experiment import Experiment
from gradstats.config.sweep import Cell, Sweep, load_sweep
from gradstats.estimators.needs import possible_weightings
from gradstats.report.saved_results import flat_settings, setting_named, write_recorded_experiment
from gradstats.report.sweeps import (
    DIFFERENCES,
    DIFFERENCES_TABLE,
    LISTED,
    TABLE,
    SweepList,
    SweepResult,
    read_sweep,
    read_sweep_list,
    write_sweep_list,
    write_sweep_results,
)
from gradstats.runs.claims import joined
from gradstats.runs.pipeline import has_results, run_experiment
from gradstats.runs.ranks import n_ranks
from gradstats.runs.tracking import require_tracker
from gradstats.runs.validate import check_names, require_execution
from gradstats.system.files import PARTIAL, atomic_path, holds_only, remove_partials
from gradstats.system.lock import LOCK, TURN, Company, only_writer, turn
from gradstats.system.outputs import OutputType, claim, csv_with, refuse_links
from gradstats.system.user_code import code_beside


def run_sweep(
    name_or_path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    out: str | os.PathLike[str] | None = None,
    trust: bool = False,
    progress: bool = True,
) -> SweepResult | None:
    """Run every cell of a sweep in a run directory of its own, and join what they found.

    Cells that draw the same completions share them: the shards are linked, or copied where the file system has no
    links. A cell that fails does not keep the others from being run. The same call resumes an interrupted sweep, and
    shares the work of one that is being run.

    Args:
        name_or_path: a file with ``vary``, see :func:`gradstats.config.sweep.load_sweep`.
        overrides: settings to change in all cells, as ``"prompts.n=60"``.
        out: the folder of the sweep; runs/NAME by default.
        trust: permit what needs permission, see :mod:`gradstats.config.trust`.
        progress: show progress bars.

    Returns:
        The results of all cells, as :func:`gradstats.read_sweep` reads them; None where another process still works on
        the sweep, and joins them.

    Raises:
        FileNotFoundError: when there is no such file.
        ValueError: when a setting is wrong, before anything is run; when the folder holds something else, or symbolic
            links; under ``torchrun``.
        RuntimeError: when a cell failed, after all others were run; names it and why.
    """
    if (ranks := n_ranks()) > 1:  # those that write nothing would not know when a cell has ended
        raise ValueError(
            "torchrun shares the model of one run, and this is a sweep, which starts ranks itself: run it without "
            f"torchrun, with execution.ranks_per_worker={ranks}"
        )
    sweep = load_sweep(name_or_path, overrides, trust=trust)
    check_cells(sweep)
    first = sweep.cells[0].experiment
    folder = Path(out) if out is not None else Path("runs") / sweep.name
    _refuse_other_folder(folder, sweep.name)
    folder.mkdir(parents=True, exist_ok=True)
    result = None

    def begin(company: Company) -> bool:
        earlier = read_sweep_list(folder).settings if (folder / LISTED).is_file() else ()
        refuse_links(folder, cells=[*(cell.name for cell in sweep.cells), *earlier])
        if company.alone:
            remove_partials(folder)
        _list_cells(folder, sweep)
        return not company.alone or company.was_written(folder / TABLE)

    with _cluster_of(first), joined(folder, begin) as (company, of_others):
        finished: list[Cell] = []
        failed: dict[str, Exception] = {}
        for cell in sweep.cells:
            path = folder / cell.name
            try:
                with turn(folder), code_beside(cell.experiment.folder):
                    _share(folder, cell, finished)
                there = of_others and has_results(cell.experiment, path)
                while not there and run_experiment(cell.experiment, path, progress=progress) is None:
                    there = has_results(cell.experiment, path)  # not where another process has yet to analyse it
                finished.append(cell)
            except (ValueError, OSError, RuntimeError, LookupError, ImportError, TypeError) as error:
                failed[cell.name] = error
        if company.becomes_only():
            result = read_sweep(folder, without=failed)
            write_sweep_results(result, first.figures)
    if failed:
        name, error = next(iter(failed.items()))
        raise RuntimeError(
            f"{len(failed)} of {len(sweep.cells)} cells failed, the first {name}: {error}; the others are finished, "
            "and the same command runs those that are missing"
        ) from error
    return result


def _cluster_of(first: Experiment) -> AbstractContextManager[object]:
    """Start ray for all cells, where it is asked for."""
    require_execution(first.execution)
    if first.execution.executor != "ray":
        return nullcontext()
    from gradstats.runs.ray_workers import connected

    return connected(first.execution, first.policy.device)


def _list_cells(folder: Path, sweep: Sweep) -> None:
    """Write which cells there are, those of earlier calls included, as long as they are there."""
    recorded = {cell.name: flat_settings(cell.experiment) for cell in sweep.cells}
    settings: dict[str, dict[str, object]] = {
        cell.name: {name: setting_named(recorded[cell.name], name) for name in cell.settings} for cell in sweep.cells
    }
    varied = list(sweep.varied)
    if (folder / LISTED).exists():
        earlier = read_sweep_list(folder)
        settings |= {
            name: there for name, there in earlier.settings.items() if name not in settings and (folder / name).is_dir()
        }
        varied = list(dict.fromkeys([*varied, *earlier.varied]))
    write_sweep_list(folder, SweepList(sweep.name, varied, settings))


def check_cells(sweep: Sweep) -> None:
    """Check every name in every cell."""
    for name in sweep.varied:
        if name.partition(".")[0] == "execution":
            raise ValueError(f"{name} varies, which changes nothing of what is found: choose it for all cells")
    for cell in sweep.cells:
        with code_beside(cell.experiment.folder):
            try:
                check_names(cell.experiment)
                require_tracker(cell.experiment.tracking)
                require_execution(cell.experiment.execution)
            except ValueError as error:
                raise ValueError(f"{cell.name}: {error}") from error


def draws_alike(*experiments: Experiment) -> bool:
    """Return whether experiments draw the same completions, whatever is measured of them."""
    drawing = [one.settled_settings("samples") for one in experiments]
    for settings, one in zip(drawing, experiments, strict=True):
        if one.sampling.temperature is not None:  # else the sampler takes that of the policy
            del settings["policy.temperature"]
    return all(settings == drawing[0] for settings in drawing)


def measured_by(one: Experiment) -> tuple[object, ...]:
    """Return what decides on the measurement of given completions."""
    possible = possible_weightings(one)
    return one.settled_settings(), possible, possible.off_policy and one.variance.target


def _share(folder: Path, cell: Cell, finished: Sequence[Cell]) -> None:
    """Begin a cell with the completions of one that draws the same, and with its measurement if that is alike.

    Only cells that this call has run are taken: their completions are known to be those of their settings.
    """
    path = folder / cell.name
    source = next((one for one in finished if draws_alike(one.experiment, cell.experiment)), None)
    if path.exists() or source is None:
        return
    ignored = shutil.ignore_patterns(LOCK, PARTIAL)
    alike = measured_by(source.experiment) == measured_by(cell.experiment)
    with only_writer(folder / source.name, wait=True), atomic_path(path) as partial:
        partial.mkdir()
        for name in ("rollouts", "measurement") if alike else ("rollouts",):
            shutil.copytree(folder / source.name / name, partial / name, copy_function=_link, ignore=ignored)
        write_recorded_experiment(partial / "experiment.yaml", cell.experiment.to_yaml())


def _link(source: str, target: str) -> str:
    """Give a file a second name: writers replace files whole, and so never change the content under the other name."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
    return target


def _refuse_other_folder(folder: Path, name: str) -> None:
    """Refuse a folder that holds something other than this sweep."""
    claim(folder / TABLE, csv_with(["cell"], "the table of a sweep"))
    claim(folder / DIFFERENCES, DIFFERENCES_TABLE)
    claim(folder, _SWEEP)
    if (folder / LISTED).is_file() and (there := read_sweep_list(folder)).name != name:
        raise ValueError(f"the folder {folder} holds the sweep {there.name!r}, not {name!r}: choose another (--out)")


def _is_sweep(folder: Path) -> bool:
    """Return whether a folder is that of a sweep, or holds nothing but what a killed process left."""
    return folder.is_dir() and (holds_only(folder, LOCK, TURN, PARTIAL) or (folder / LISTED).is_file())


_SWEEP = OutputType("that of a sweep", _is_sweep)
