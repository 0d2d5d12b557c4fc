"""Draw every picture under figures/ from the numbers committed there; nothing is measured again.

Each folder with a ``manifest.json`` and an ``alpha.json`` or ``variance.json`` holds what one experiment produced: its
answers as in a run directory, from which its pictures are drawn beside them. Git keeps those that README and docs show;
``drawn_from.json`` records a hash of the numbers of each folder at the time of drawing, and ``--check`` lists the
folders whose pictures are older. The folder ``zoo`` has no numbers of its own: it is drawn from two runs, and
``rows.md`` states what they leave open.
``--take-run RUN`` first copies the numbers and the manifest of a finished run directory, or of the folder of a sweep,
whose cells are joined in one table.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import pandas as pd
import tyro

from gradstats.analyses.alpha_by_block import plot_alpha_by_block
from gradstats.analyses.numbers import format_estimate
from gradstats.answers.answer import answer_paths, is_answer
from gradstats.config.sections import FiguresSection
from gradstats.estimators.recipes.losses import LOSSES
from gradstats.plots import plot_variance, save_figure
from gradstats.plots.marks import estimates_of
from gradstats.plots.save import sample_size_of, write_sample_size
from gradstats.plots.variance import short_rows
from gradstats.report.figures import chosen_rows, draw_overlay, draw_run, figures_of, styled
from gradstats.report.saved_results import SavedResults, read_results
from gradstats.report.sweeps import DIFFERENCES, LISTED, TABLE, draw_sweep, read_sweep, read_sweep_list
from gradstats.report.tables import markdown_escape
from gradstats.stats.variance.quantities import JUDGED
from gradstats.system.files import atomic_path, read_json, write_csv, write_json

HERE = Path(__file__).parent
RECORDS = ("manifest.json", "experiment.yaml")
#: α by block of parameters, of sweeps whose cells hold the same completions measured in several ways.
BLOCKS = "blocks.csv"
OF_SWEEPS = (TABLE, LISTED, BLOCKS)
PICTURE = {"formats": ["png"]}
STAMP = "drawn_from.json"
#: What the pages say of each run, also with the points of its fit; of group sizes, of tokens and of curves.
_ALONE = ("alpha", "variance")
_EACH = (*_ALONE, "length_scaling")
_SIZES = (*_EACH, "group_sizes", "allocation")
_TOKENS = ("tokens", "token_traces", "token_sample", "token_profiles")
_CURVES = ("curve_length_weighted_loo_true_alpha", "curve_asymmetric_loo_true_delta")
_LEARNED = (*_SIZES, *_CURVES, "alpha_by_block", "batch_size", "equivalent_group_size", "optimal_baselines")
#: Runs of which pages and pictures use these answers alone: others are not copied.
USED = {
    **dict.fromkeys(("embedded_zoo_stale", "qwen_mismatch", "qwen_stale"), _ALONE),
    "qwen_1_5b": (*_EACH, "alpha_by_block"),
    "qwen_adam": (*_ALONE, "alpha_by_block"),
    **dict.fromkeys(("embedded_resolved", "qwen_mawps"), (*_LEARNED, "success_bins")),
    "embedded": (*_LEARNED, "ratios", "ratio_clipping"),
    "embedded_layers": (*_ALONE, "optimal_baselines"),
    "embedded_values": (*_SIZES, *_TOKENS, "critic", "length_bins", "ratio_clipping"),
    "embedded_resolved_layers": (*_SIZES, *_CURVES, "optimal_baselines"),
    "embedded_tokens_layers": ("tokens", "token_profiles"),
    "qwen_mawps_tokens_layers": ("tokens",),
    "qwen_mawps_otb_layers": ("variance", "tokens", "log_noise"),
    "embedded_zoo": (*_SIZES, "alpha_by_block", "equivalent_group_size", "success_bins"),
    "embedded_zoo_layers": ("variance", "equivalent_group_size"),
    "qwen_gsm8k": (*_SIZES, *_CURVES),
    "qwen_mawps_tokens": (*_EACH, "tokens", "token_sample", "token_profiles"),
    **dict.fromkeys(
        ("qwen_mawps_by_block", "qwen_svamp"), (*_EACH, "alpha_by_block", "optimal_baselines", "variance_by_block")
    ),
    "qwen_1_5b_mawps": (*_EACH, "alpha_by_block", "variance_by_block", "proxies", "log_noise"),
    "smollm2": (*_EACH, "alpha_by_block", "group_sizes"),
}
#: The run that README shows, and under which names: the methods that trainers offer.
README_RUN, README_INCHES = "qwen_mawps", 4.2
README_METHODS = {
    "james_stein": "James–Stein",
    "rloo": "RLOO",
    "dr_grpo": "Dr. GRPO",
    "recipe:gspo": "GRPO = GSPO",
    "recipe:dapo": "DAPO",
    "batch_mean(loo=True)": "batch mean",
    "reinforce": "REINFORCE",
}
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
    **dict.fromkeys(("gdpo", "reward_ema", "beta_tracker"), "needs columns that the zoo's rollouts do not have"),
    "arca": "needs a policy with an adapter",
    **dict.fromkeys(("quantile", "ebpo", "kalman", *LOSSES), "added since the zoo was measured"),
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
    kept = USED.get(target.name)
    for path in numbers_in(run, kept):
        copy = target / path.relative_to(run)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)
        if kept is not None and path.suffix == ".json":
            leave_out_beside(copy, kept)
    return target


def leave_out_beside(state: Path, kept: Sequence[str]) -> None:
    """Make an answer name those of the tables beside it alone that are kept."""
    entries = read_json(state)
    beside = {name: at for name, at in entries["further"].items() if name in kept}
    if beside != entries["further"]:
        write_json(state, {**entries, "further": beside})


def numbers_in(folder: Path, names: Sequence[str] | None = None) -> list[Path]:
    """Return the files of the answers in a folder, or of those of these names."""
    states = [*folder.glob("*.json"), *(folder / "tables").glob("*.json")]
    answers = [state.with_suffix("") for state in states if is_answer(read_json(state))]
    return [path for stem in answers if names is None or stem.name in names for path in answer_paths(stem)]


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
    """Draw the pictures of one folder in the place of earlier ones; returns the paths."""
    with TemporaryDirectory() as drawn:
        # Their tables are left there: the answers hold the rows.
        pictures = [path for path in _drawn(folder, Path(drawn), venue) if path.suffix == ".png"]
        for old in folder.glob("*.png"):
            old.unlink()
        return [Path(shutil.copyfile(path, folder / path.name)) for path in pictures]


def _drawn(folder: Path, drawn: Path, venue: str) -> list[Path]:
    """Draw a run's figures, or at half the width those of a sweep, into another folder."""
    if not (folder / LISTED).exists():
        results = read_results(folder)
        if not figures_of(results):  # the pages use a table alone
            return []
        rows = results.figure_style.model_dump(include={"labels", "estimators", "order"})
        paths = draw_run(results, drawn, FiguresSection.model_validate({"venue": venue, **PICTURE, **rows}))
        return [*paths, *draw_methods(results, drawn, venue)] if folder.name == README_RUN else paths
    frame = pd.read_csv(folder / TABLE)
    frame.attrs = read_json(folder / "manifest.json")["of_table"]
    style = FiguresSection.model_validate({"venue": venue, "column": "half", **PICTURE})
    paths = draw_sweep(frame, read_sweep_list(folder).varied, drawn, style)
    return [*paths, *draw_blocks(folder, drawn, venue)]


def draw_methods(run: SavedResults, drawn: Path, venue: str = "icml") -> list[Path]:
    """Draw the relative noise of the methods that README shows, with their numbers at the right; returns the paths."""
    style = FiguresSection.model_validate(
        {"venue": venue, **PICTURE, "estimators": list(README_METHODS), "labels": README_METHODS}
    )
    table = chosen_rows(run.variance, style)
    assert table is not None
    rows = short_rows(table, JUDGED.name).drawn
    with styled(style) as current_figure:
        plt.rcParams["figure.figsize"] = (README_INCHES, README_INCHES)  # the rows decide on the height
        ax = plot_variance(rows, reference="RLOO", stretched=True)
        for place, estimate in zip(ax.get_yticks(), estimates_of(rows, JUDGED.name), strict=True):
            text = format_estimate(*estimate)
            ax.annotate(text, (1.03, place), xycoords=("axes fraction", "data"), va="center", fontsize="small")
        return save_figure(current_figure(), drawn / "methods", style.formats)


def draw_blocks(folder: Path, drawn: Path, venue: str = "icml") -> list[Path]:
    """Draw α of each block with its share of ‖S‖², side by side for the cells of a sweep; returns the paths.

    Nothing is drawn of a sweep without :data:`BLOCKS`.
    """
    if not (folder / BLOCKS).exists():
        return []
    frame = pd.read_csv(folder / BLOCKS)
    varied = read_sweep_list(folder).varied[0]
    cells = {str(rows[varied].iloc[0]): rows for _, rows in frame.groupby("cell", sort=False)}
    style = FiguresSection.model_validate({"venue": venue, "column": "full", **PICTURE})
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
        style = FiguresSection.model_validate({"venue": venue, "column": "full", **PICTURE})
        draw_overlay(results, Path(drawn), style, list(ZOO.values()))
        picture = Path(shutil.copyfile(Path(drawn) / "variance.png", folder / "zoo.png"))
    with atomic_path(folder / ZOO_ROWS) as partial:
        partial.write_text(zoo_rows(pd.concat([zoo_frame(run) for run in results])), encoding="utf-8")
    write_json(folder / "manifest.json", {"runs": list(ZOO)})
    return [picture, folder / ZOO_ROWS]


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


def sources(root: Path = HERE) -> dict[str, str]:
    """Return folder → hash of the numbers that its pictures are drawn from, of folders that have some."""
    folders = sorted(path.parent for path in root.glob("*/manifest.json"))
    names = {folder.name: numbers_in(folder) or _of_sweep(folder) for folder in folders}
    names["zoo"] = [root / run / name for run in ZOO for name in ("variance.csv", "variance.json")]
    return {name: _hash(root, paths) for name, paths in names.items() if paths and all(one.exists() for one in paths)}


def _of_sweep(folder: Path) -> list[Path]:
    """Return the files of numbers of a sweep."""
    return [folder / name for name in OF_SWEEPS if (folder / name).exists()] if (folder / LISTED).exists() else []


def _hash(root: Path, paths: list[Path]) -> str:
    """Return the hash of files with their names."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def complaints(root: Path = HERE) -> list[str]:
    """List folders under one whose pictures are older than their numbers."""
    drawn = read_json(root / STAMP) if (root / STAMP).exists() else {}
    return [
        f"pictures in {root / name} are older than its numbers: redraw them with `make figures`"
        for name, digest in sources(root).items()
        if drawn.get(name) != digest and any((root / name).glob("*.png"))
    ]


def main(take_run: tuple[Path, ...] = (), venue: str = "icml", check: bool = False) -> None:
    """Redraw the figures.

    Args:
        take_run: finished run directories whose numbers are copied to figures/NAME first.
        venue: the venue whose column width is used.
        check: only list the pictures that are older than their numbers.
    """
    if check:
        problems = complaints()
        print("\n".join(problems) or "every picture is up to date")
        sys.exit(1 if problems else 0)
    for run in take_run:
        take(run)
    for path in redraw_all(HERE, venue):
        print(path.relative_to(HERE.parent))


def redraw_all(root: Path = HERE, venue: str = "icml") -> Iterator[Path]:
    """Draw the pictures of all folders and record what they were drawn from; yields the paths."""
    for name in sources(root):
        yield from redraw_zoo(root, venue) if name == "zoo" else redraw(root / name, venue)
    write_json(root / STAMP, sources(root))


if __name__ == "__main__":
    tyro.cli(main)
