"""Redraw every figure under figures/ from the tables committed beside it; nothing is measured again.

Each folder holds what one experiment produced: ``length_scaling.csv`` and ``variance.csv`` (the tables behind the
figures), ``alpha.json``, and ``manifest.json`` (experiment, commit, versions, hardware, seeds). With ``--take RUN`` the
tables and the manifest of a finished run directory are copied in first.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import tyro

import gradstats
from gradstats.experiment import FiguresSection
from gradstats.pipeline import draw_length_scaling, draw_variance

HERE = Path(__file__).parent
RESULTS = ("alpha.json", "variance.csv", "manifest.json", "figures/length_scaling.csv")


def redraw(take: Path | None = None, venue: str = "icml") -> None:
    """Redraw the figures.

    Args:
        take: a finished run directory whose results are copied to figures/NAME first.
        venue: whose column width to use.
    """
    if take is not None:
        target = HERE / take.name
        target.mkdir(exist_ok=True)
        for name in RESULTS:
            shutil.copyfile(take / name, target / Path(name).name)
    look = FiguresSection(venue=venue)
    for folder in sorted(path.parent for path in HERE.glob("*/manifest.json")):
        points = pd.read_csv(folder / "length_scaling.csv", dtype={"prompt_id": str})
        fit = gradstats.fit_length_scaling(
            lengths=points["length"], sq_norms=points["sq_norm"], groups=points["prompt_id"]
        )
        table = pd.read_csv(folder / "variance.csv")
        paths = draw_length_scaling(fit, points, folder, look, published="gloeckle2026")
        for path in paths + draw_variance(table, folder, look):
            print(path.relative_to(HERE.parent))


if __name__ == "__main__":
    tyro.cli(redraw)
