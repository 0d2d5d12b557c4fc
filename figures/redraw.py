"""Redraw every figure under figures/ from the numbers committed beside it; nothing is measured again.

Each folder with a ``manifest.json`` and an ``alpha.json`` or ``variance.csv`` holds what one experiment produced: its
numbers (`NUMBERS`), the figures drawn from them, each with its table as CSV, and ``drawn_from.json``, which records the
hash of every file of numbers at the time of drawing. ``--check`` lists the figures that are older than their numbers.
``--take-run RUN`` first copies the numbers and the manifest of a finished run directory.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import tyro

from gradstats.config.sections import FiguresSection
from gradstats.report.figures import draw_run
from gradstats.report.overlay import draw_overlay
from gradstats.report.saved_results import BREAKDOWNS, read_results
from gradstats.report.saved_tokens import FILES as TOKEN_FILES
from gradstats.system.files import read_json, write_json

HERE = Path(__file__).parent
# Where a run directory keeps each file, and its name here.
NUMBERS = {
    "alpha.json": "alpha.json",
    "variance.csv": "variance.csv",
    "variance.json": "variance.json",
    **{f"{name}.csv": f"tables/{name}.csv" for name in ("length_scaling", *BREAKDOWNS)},
    **{name: name for name in TOKEN_FILES},
}
TAKEN = NUMBERS | {"manifest.json": "manifest.json", "experiment.yaml": "experiment.yaml"}
DRAWN = (".pdf", ".png", ".svg", ".pgf")
STAMP = "drawn_from.json"
#: The runs of the published methods: on-policy, and drawn by an earlier checkpoint.
ZOO = {"embedded_zoo": "on-policy", "embedded_zoo_stale": "eight optimizer steps stale"}


def take(run: Path, root: Path = HERE) -> Path:
    """Copy a run's numbers, manifest and experiment to a folder of its name; returns the folder.

    Raises:
        FileNotFoundError: if the run is not finished.
    """
    if not (run / "manifest.json").exists():
        raise FileNotFoundError(f"{run} is not a finished run: it has no manifest.json; `gradstats run` writes it")
    target = root / run.resolve().name
    target.mkdir(exist_ok=True)
    for name, source in TAKEN.items():
        if (run / source).exists():
            shutil.copyfile(run / source, target / name)
    return target


def redraw(folder: Path, venue: str = "icml") -> list[Path]:
    """Draw the figures of one folder and record what they were drawn from; returns the paths."""
    stamp = folder / STAMP
    for name in read_json(stamp)["figures"] if stamp.exists() else []:  # an earlier version did not mark its figures
        table = f"{Path(name).stem}.csv"
        for old in (Path(name).name, *([] if table in NUMBERS else [table])):
            (folder / old).unlink(missing_ok=True)
    paths = []
    with TemporaryDirectory() as drawn:
        for path in draw_run(read_results(folder), Path(drawn), FiguresSection.model_validate({"venue": venue})):
            if path.name not in NUMBERS:  # the numbers that figures are drawn from stay as they are
                shutil.copyfile(path, folder / path.name)
            paths.append(folder / path.name)
    figures = sorted(path.name for path in paths if path.suffix in DRAWN)
    write_json(folder / STAMP, {"figures": figures, "venue": venue, "numbers": _hashes(folder)})
    return paths


def redraw_zoo(root: Path = HERE, venue: str = "icml") -> list[Path]:
    """Draw the published methods on-policy and stale on the same axes, once both runs are here; returns the paths."""
    runs = [root / name for name in ZOO]
    if not all((run / "variance.csv").exists() for run in runs):
        return []
    folder = root / "zoo"
    folder.mkdir(exist_ok=True)
    with TemporaryDirectory() as drawn:
        style = FiguresSection.model_validate({"venue": venue})
        drawn_paths = draw_overlay([read_results(run) for run in runs], Path(drawn), style, list(ZOO.values()))
        paths = [folder / f"zoo{path.suffix}" for path in drawn_paths if path.stem == "variance"]
        for path in paths:
            shutil.copyfile(Path(drawn) / f"variance{path.suffix}", path)
    write_json(folder / "manifest.json", {"runs": list(ZOO), "numbers": {run.name: _hashes(run) for run in runs}})
    figures = sorted(path.name for path in paths if path.suffix in DRAWN)
    write_json(folder / STAMP, {"figures": figures, "venue": venue, "numbers": {}})
    return paths


def complaints(root: Path = HERE) -> list[str]:
    """List figures under a folder that are older than their numbers or lack a table, a manifest or a record."""
    problems = []
    for folder in sorted({path.parent for path in root.rglob("*") if path.suffix in DRAWN}):
        if not (folder / "manifest.json").exists():
            problems.append(
                f"{folder} has figures and no manifest.json: copy a run with `figures/redraw.py --take-run RUN`"
            )
            continue
        numbers = _hashes(folder)
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
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in sorted(NUMBERS)
        if (folder / name).exists()
    }


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
    for folder in sorted(path.parent for path in HERE.glob("*/manifest.json") if _hashes(path.parent)):
        for path in redraw(folder, venue):
            print(path.relative_to(HERE.parent))
    for path in redraw_zoo(HERE, venue):
        print(path.relative_to(HERE.parent))


if __name__ == "__main__":
    tyro.cli(main)
