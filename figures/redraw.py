"""Redraw every figure under figures/ from the numbers committed beside it; nothing is measured again.

Each folder with a ``manifest.json`` and an ``alpha.json`` or ``variance.csv`` holds what one experiment produced: its
numbers (`NUMBERS`), the figures drawn from them, each with its table as CSV, and ``drawn_from.json``, which records the
hash of every number file at the time of drawing. ``--check`` says which figures are older than their numbers.
``--take-run RUN`` copies the numbers and the manifest of a finished run directory in first.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import tyro

from gradstats.config.sections import FiguresSection
from gradstats.report.figures import draw_run
from gradstats.report.saved_results import BREAKDOWNS, read_results
from gradstats.report.saved_tokens import FILES as TOKEN_FILES
from gradstats.system.files import write_json

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


def take(run: Path, root: Path = HERE) -> Path:
    """Copy a run's numbers, manifest and experiment to a folder of its name; returns the folder.

    Raises:
        FileNotFoundError: when the run has not been finished.
    """
    if not (run / "manifest.json").exists():
        raise FileNotFoundError(f"{run} is no finished run: it holds no manifest.json; `gradstats run` makes it")
    target = root / run.resolve().name
    target.mkdir(exist_ok=True)
    for name, source in TAKEN.items():
        if (run / source).exists():
            shutil.copyfile(run / source, target / name)
    return target


def redraw(folder: Path, venue: str = "icml") -> list[Path]:
    """Draw the figures of one folder and record what they were drawn from; returns the paths."""
    paths = draw_run(read_results(folder), folder, FiguresSection.model_validate({"venue": venue}))
    figures = sorted(path.name for path in paths if path.suffix in DRAWN)
    write_json(folder / STAMP, {"figures": figures, "venue": venue, "numbers": _hashes(folder)})
    return paths


def complaints(root: Path = HERE) -> list[str]:
    """What is wrong with the figures under a folder: older than their numbers, or without table, manifest or record."""
    found = []
    for folder in sorted({path.parent for path in root.rglob("*") if path.suffix in DRAWN}):
        if not (folder / "manifest.json").exists():
            found.append(
                f"{folder} has figures and no manifest.json: copy a run with `figures/redraw.py --take-run RUN`"
            )
            continue
        numbers = _hashes(folder)
        # A benchmark draws its own figure from the table it writes beside it: what is left to check is that it did.
        ours = bool(numbers) or (folder / STAMP).exists()
        stamp = json.loads((folder / STAMP).read_text()) if (folder / STAMP).exists() else {}
        changed = [name for name, digest in numbers.items() if stamp.get("numbers", {}).get(name) != digest]
        gone = sorted(set(stamp.get("numbers", {})) - set(numbers))
        if changed or gone:
            found.append(
                f"figures in {folder} are older than {', '.join(changed + gone)}: redraw them with `make figures`"
            )
        for path in sorted(path for path in folder.iterdir() if path.suffix in DRAWN):
            if ours and path.name not in stamp.get("figures", []):
                found.append(
                    f"{path} was not drawn from the numbers beside it: redraw with `make figures`, or remove it"
                )
            if not path.with_suffix(".csv").exists():
                found.append(
                    f"{path} has no table {path.with_suffix('.csv').name} beside it: redraw with `make figures`"
                )
    return found


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
        venue: whose column width to use.
        check: only say which figures are older than their numbers.
    """
    if check:
        found = complaints()
        print("\n".join(found) or "every figure is as new as its numbers")
        sys.exit(1 if found else 0)
    if take_run is not None:
        take(take_run)
    for folder in sorted(path.parent for path in HERE.glob("*/manifest.json") if _hashes(path.parent)):
        for path in redraw(folder, venue):
            print(path.relative_to(HERE.parent))


if __name__ == "__main__":
    tyro.cli(main)
