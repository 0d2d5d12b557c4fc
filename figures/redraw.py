"""Redraw every figure under figures/ from the numbers committed beside it; nothing is measured again.

Each folder with a ``manifest.json`` and an ``alpha.json`` or ``variance.json`` holds what one experiment produced: its
answers as in a run directory, the figures drawn from them, each with its table as CSV, and ``drawn_from.json``, which
records the hash of every file of numbers at the time of drawing. ``--check`` lists the figures that are older than
their numbers.
The folder ``zoo`` has no numbers of its own: it is drawn from two runs, and ``rows.md`` states what they leave open.
``--take-run RUN`` first copies the numbers and the manifest of a finished run directory, or of the folder of a sweep,
whose cells are joined in one table.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import pandas as pd
import tyro

from gradstats.analyses.alpha_by_block import plot_alpha_by_block
from gradstats.analyses.numbers import format_estimate
from gradstats.answers.answer import answer_paths, is_answer
from gradstats.config.sections import FiguresSection
from gradstats.plots import save_figure
from gradstats.plots.save import sample_size_of, write_sample_size
from gradstats.report.figures import draw_overlay, draw_run, styled
from gradstats.report.saved_results import SavedResults, read_results
from gradstats.report.sweeps import DIFFERENCES, LISTED, TABLE, draw_sweep, read_sweep, read_sweep_list
from gradstats.report.tables import markdown_escape
from gradstats.system.files import atomic_path, read_json, write_csv, write_json

HERE = Path(__file__).parent
RECORDS = ("manifest.json", "experiment.yaml")
#: α by block of parameters, of sweeps whose cells hold the same completions measured in several ways.
BLOCKS = "blocks.csv"
OF_SWEEPS = (TABLE, LISTED, BLOCKS)
DRAWN = (".pdf", ".png", ".svg", ".pgf")
STAMP = "drawn_from.json"
#: The runs of the published methods: on-policy, and drawn by an earlier checkpoint.
ZOO = {"embedded_zoo": "on-policy", "embedded_zoo_stale": "eight optimizer steps stale"}
ZOO_ROWS = "rows.md"
#: Registered estimators and recipes without a row in the zoo, and why.
LEFT_OUT = {
    "otb_turns": "completions of one turn make it equal to otb",
    "causal_optimal": "its baseline is estimated from token energies, for which the zoo has too few token probes "
    "(on-policy in figures/embedded_tokens)",
    "discounted": "γ^{T−t} times the weights of a group baseline; the published methods have γ = 1, where it is that "
    "baseline",
    "group_mean": "the gradient of rloo times (N − 1)/N, so of equal relative noise",
    "kimi": "the advantage of recipe:kimi_k15",
    **dict.fromkeys(
        ("tis", "sequence_tis", "icepop", "mis", "geo_rs", "worst_token_rs"),
        "corrects a mismatch of sampler and trainer (figures/embedded_mismatch)",
    ),
}


def take(run: Path, root: Path = HERE) -> Path:
    """Copy a run's numbers, manifest and experiment to a folder of its name; returns the folder.

    Raises:
        FileNotFoundError: if the run is not finished, or a cell of the sweep is not.
    """
    if (run / LISTED).exists():
        return take_sweep(run, root)
    if not (run / "manifest.json").exists():
        raise FileNotFoundError(f"{run} is not a finished run: it has no manifest.json; `gradstats run` writes it")
    target = root / run.resolve().name
    target.mkdir(exist_ok=True)
    for name in RECORDS:
        if (run / name).exists():
            shutil.copyfile(run / name, target / name)
    for path in numbers_in(target):
        path.unlink()
    for path in numbers_in(run):
        (target / path.relative_to(run)).parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target / path.relative_to(run))
    return target


def numbers_in(folder: Path) -> list[Path]:
    """Return the files of the answers in a folder."""
    states = [*folder.glob("*.json"), *(folder / "tables").glob("*.json")]
    answers = [state.with_suffix("") for state in states if is_answer(read_json(state))]
    return [path for stem in answers for path in answer_paths(stem)]


def take_sweep(sweep: Path, root: Path = HERE) -> Path:
    """Join the cells of a sweep in one table in a folder of its name, with their manifests; returns the folder.

    Raises:
        FileNotFoundError: if a cell is not finished.
    """
    result = read_sweep(sweep)
    # The manifest is what a cell writes last.
    if missing := [cell for cell in result.settings if not (sweep / cell / "manifest.json").exists()]:
        raise FileNotFoundError(f"{sweep} has no results of {', '.join(missing)} yet: repeat `gradstats run`")
    target, frame = root / sweep.resolve().name, result.to_frame()
    target.mkdir(exist_ok=True)
    write_csv(target / TABLE, frame)
    (target / DIFFERENCES).unlink(missing_ok=True)
    if not (differences := result.differences()).empty:
        write_csv(target / DIFFERENCES, differences)
    shutil.copyfile(sweep / LISTED, target / LISTED)
    if any(name.startswith("measurement.") for name in result.varied):
        write_csv(target / BLOCKS, result.blocks_frame())
    cells = {cell: results.manifest for cell, results in result.results.items()}
    write_json(target / "manifest.json", {"of_table": frame.attrs, "cells": cells})
    return target


def redraw(folder: Path, venue: str = "icml") -> list[Path]:
    """Draw the figures of one folder and record what they were drawn from; returns the paths."""
    stamp, numbers = folder / STAMP, numbers_in(folder)
    for name in read_json(stamp)["figures"] if stamp.exists() else []:  # an earlier version did not mark its figures
        for old in (folder / Path(name).name, folder / f"{Path(name).stem}.csv"):
            if old not in numbers:
                old.unlink(missing_ok=True)
    paths = []
    with TemporaryDirectory() as drawn:
        for path in _drawn(folder, Path(drawn), venue):
            if folder / path.name not in numbers:  # the numbers that figures are drawn from stay as they are
                shutil.copyfile(path, folder / path.name)
            paths.append(folder / path.name)
    figures = sorted(path.name for path in paths if path.suffix in DRAWN)
    write_json(folder / STAMP, {"figures": figures, "venue": venue, "numbers": _hashes(folder)})
    return paths


def _drawn(folder: Path, drawn: Path, venue: str) -> list[Path]:
    """Draw a run's figures, or at half the width those of a sweep, into another folder."""
    if not (folder / LISTED).exists():
        results = read_results(folder)
        rows = results.figure_style.model_dump(include={"labels", "estimators", "order"})
        return draw_run(results, drawn, FiguresSection.model_validate({"venue": venue, **rows}))
    frame = pd.read_csv(folder / TABLE)
    frame.attrs = read_json(folder / "manifest.json")["of_table"]
    style = FiguresSection.model_validate({"venue": venue, "column": "half"})
    paths = draw_sweep(frame, read_sweep_list(folder).varied, drawn, style)
    return [*paths, *draw_blocks(folder, drawn, venue)]


def draw_blocks(folder: Path, drawn: Path, venue: str = "icml") -> list[Path]:
    """Draw α of each block with its share of ‖S‖², side by side for the cells of a sweep; returns the paths.

    Nothing is drawn of a sweep without :data:`BLOCKS`.
    """
    if not (folder / BLOCKS).exists():
        return []
    frame = pd.read_csv(folder / BLOCKS)
    varied = read_sweep_list(folder).varied[0]
    cells = {str(rows[varied].iloc[0]): rows for _, rows in frame.groupby("cell", sort=False)}
    style = FiguresSection.model_validate({"venue": venue, "column": "full"})
    with styled(style) as current_figure:
        width = plt.rcParams["figure.figsize"][0]
        _, axes = plt.subplots(1, len(cells), figsize=(width, 0.6 + 0.22 * frame["block"].nunique()), squeeze=False)
        for ax, (value, rows) in zip(axes[0], cells.items(), strict=True):
            shares = [
                f"{name} ({share:.0%})" for name, share in zip(rows["block"], rows["share_of_sq_norm"], strict=True)
            ]
            named = [name if name == "total" else text for name, text in zip(rows["block"], shares, strict=True)]
            plot_alpha_by_block(rows.assign(block=named), ax=ax)
            ax.set_title(f"{varied.rpartition('.')[2]} {value}", fontsize="medium")
        write_sample_size(current_figure(), sample_size_of(pd.read_csv(folder / TABLE)))
        return save_figure(current_figure(), drawn / "alpha_by_block", style.formats, source=frame)


def redraw_zoo(root: Path = HERE, venue: str = "icml") -> list[Path]:
    """Draw the published methods on-policy and stale on the same axes, once both runs are here; returns the paths.

    What is not resolved, and what is left out, is written beside the figure.
    """
    runs = [root / name for name in ZOO]
    if not all((run / "variance.json").exists() for run in runs):
        return []
    folder = root / "zoo"
    folder.mkdir(exist_ok=True)
    results = [read_results(run) for run in runs]
    with TemporaryDirectory() as drawn:
        style = FiguresSection.model_validate({"venue": venue, "column": "full"})
        drawn_paths = draw_overlay(results, Path(drawn), style, list(ZOO.values()))
        paths = [folder / f"zoo{path.suffix}" for path in drawn_paths if path.stem == "variance"]
        for path in paths:
            shutil.copyfile(Path(drawn) / f"variance{path.suffix}", path)
    with atomic_path(folder / ZOO_ROWS) as partial:
        partial.write_text(zoo_rows(pd.concat([zoo_frame(run) for run in results])), encoding="utf-8")
    write_json(folder / "manifest.json", {"runs": list(ZOO)})
    figures = sorted(path.name for path in paths if path.suffix in DRAWN)
    write_json(folder / STAMP, {"figures": figures, "venue": venue, "numbers": _sources(folder)})
    return [*paths, folder / ZOO_ROWS]


def zoo_frame(run: SavedResults) -> pd.DataFrame:
    """Return the variance table of one run with the columns ``run`` and ``note``, why a row has no values."""
    answer = run.answers["variance"]
    frame, notes = answer.frame, answer.notes
    return frame.assign(
        run=ZOO[run.path.name],
        note=[
            " ".join(note for note in notes if "NaN" in note and (label in note or "are NaN, since" in note))
            for label in frame["estimator"]
        ],
    )


def zoo_rows(frame: pd.DataFrame) -> str:
    """Write down what the zoo does not resolve, and what it leaves out, as Markdown.

    Args:
        frame: the variance tables of the runs with a column ``run`` and the notes about each row in ``note``.
    """
    lines = [
        "# Rows of the zoo that are open, and rows that it leaves out",
        "",
        "Written by `make figures`. The zoo shows noise relative to `rloo`, at equal signal. A row is not",
        "resolved where its 95 % interval has no upper end, or where there is no value at all.",
        "",
        "## Not resolved",
        "",
        "| estimator | run | relative noise | why |",
        "| --- | --- | --- | --- |",
    ]
    for row in frame.to_dict("records"):
        if not math.isfinite(row["matched_ratio_high"]):
            known = format_estimate(math.nan, row["matched_ratio_low"], math.inf)
            why = row["note"] or "‖E ĝ‖² is not resolved above 0, or the scale of E[ĝ] is not"
            lines.append(f"| `{row['estimator']}` | {row['run']} | {known} | {markdown_escape(why)} |")
    lines += ["", "## Left out", "", "| estimator | why |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| `{name}` | {why} |" for name, why in LEFT_OUT.items()), ""])


def complaints(root: Path = HERE) -> list[str]:
    """List figures under a folder that are older than their numbers or lack a table, a manifest or a record."""
    problems = []
    for folder in sorted({path.parent for path in root.rglob("*") if path.suffix in DRAWN}):
        if not (folder / "manifest.json").exists():
            problems.append(
                f"{folder} has figures and no manifest.json: copy a run with `figures/redraw.py --take-run RUN`"
            )
            continue
        numbers = _sources(folder)
        # The figure of a benchmark is drawn by the benchmark, so only its table is checked.
        drawn_here = bool(numbers) or (folder / STAMP).exists()
        stamp = read_json(folder / STAMP) if (folder / STAMP).exists() else {}
        changed = [name for name, digest in numbers.items() if stamp.get("numbers", {}).get(name) != digest]
        gone = sorted(set(stamp.get("numbers", {})) - set(numbers))
        if changed or gone:
            problems.append(
                f"figures in {folder} are older than {', '.join(changed + gone)}: redraw them with `make figures`"
            )
        for path in sorted(path for path in folder.iterdir() if path.suffix in DRAWN):
            if drawn_here and path.name not in stamp.get("figures", []):
                problems.append(
                    f"{path} was not drawn from the numbers in its folder: redraw with `make figures`, or remove it"
                )
            if not path.with_suffix(".csv").exists():
                problems.append(f"{path} has no table {path.with_suffix('.csv').name}: redraw with `make figures`")
    return problems


def _hashes(folder: Path) -> dict[str, str]:
    paths = [*numbers_in(folder), *(folder / name for name in OF_SWEEPS if (folder / name).exists())]
    names = sorted(path.relative_to(folder).as_posix() for path in paths)
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def _sources(folder: Path) -> dict[str, str]:
    """Return the hash of every file of numbers that a folder's figures are drawn from."""
    if folder.name != "zoo":
        return _hashes(folder)
    names = ("variance.csv", "variance.json")
    found = {f"{run}/{name}": _hashes(folder.parent / run).get(name) for run in ZOO for name in names}
    return {name: digest for name, digest in found.items() if digest is not None}


def main(take_run: Path | None = None, venue: str = "icml", check: bool = False) -> None:
    """Redraw the figures.

    Args:
        take_run: a finished run directory whose numbers are copied to figures/NAME first.
        venue: the venue whose column width is used.
        check: only list the figures that are older than their numbers.
    """
    if check:
        problems = complaints()
        print("\n".join(problems) or "every figure is up to date")
        sys.exit(1 if problems else 0)
    if take_run is not None:
        take(take_run)
    folders = sorted(path.parent for path in HERE.glob("*/manifest.json"))
    for folder in (one for one in folders if numbers_in(one) or (one / LISTED).exists()):
        for path in redraw(folder, venue):
            print(path.relative_to(HERE.parent))
    for path in redraw_zoo(HERE, venue):
        print(path.relative_to(HERE.parent))


if __name__ == "__main__":
    tyro.cli(main)
