"""Processor time of drawing every figure of a run, laid out once for all formats and once for each.

Writes figures/statistics/figures_speed.csv. A small run of the embedded policy is made first; both ways then draw its
figures in turns in one process with one thread, after a warm-up. ``report`` also makes the SVG of the page, as a run
does. Ratios are medians over the turns.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import tyro

TABLE = Path(__file__).parents[1] / "figures" / "statistics" / "figures_speed.csv"
FORMATS = ("pdf", "png")


def main(turns: int = 5, run: Path | None = None, table: Path = TABLE) -> None:
    """Draw the figures of a run in turns, and write the table.

    Args:
        turns: of each way, after one warm-up.
        run: the directory of a finished run, in place of one that is made here.
        table: the file that is written.
    """
    import torch

    from gradstats.config.experiment import load_experiment
    from gradstats.plots import save
    from gradstats.report import figures
    from gradstats.report.saved_results import read_results
    from gradstats.runs.pipeline import run_experiment
    from gradstats.system.files import write_csv

    torch.set_num_threads(1)
    once = save.laid_out
    with tempfile.TemporaryDirectory() as temporary:
        if run is None:
            run = Path(temporary) / "run"
            run_experiment(load_experiment("embedded", ["prompts.n=24"]), run, progress=False)
        results = read_results(run)
        style = results.figure_style.model_copy(update={"formats": FORMATS})
        seconds: dict[str, list[float]] = {"once": [], "each": []}
        for turn in range(-1, turns):
            for way, laid_out in (("once", once), ("each", lambda figure: nullcontext())):
                save.laid_out = figures.laid_out = laid_out  # pyright: ignore[reportAttributeAccessIssue]
                start = time.process_time()
                drawn = figures.draw_run_for_report(results, Path(temporary) / way, style)
                if turn >= 0:
                    seconds[way].append(time.process_time() - start)
        n_figures = len(drawn.svgs)
    ratios = np.divide(seconds["once"], seconds["each"])
    row = {"formats": " ".join((*FORMATS, "report")), "n_figures": n_figures, "turns": turns}
    row |= {"cpu_seconds": np.median(seconds["once"]), "cpu_seconds_each": np.median(seconds["each"])}
    row |= {"over_each": np.median(ratios), "over_each_min": ratios.min(), "over_each_max": ratios.max()}
    print(row)
    write_csv(table, pd.DataFrame([row]).round(3))


if __name__ == "__main__":
    tyro.cli(main)
