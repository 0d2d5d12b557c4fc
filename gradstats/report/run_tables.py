"""Every table of a run, from its saved numbers, as LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from gradstats.config.defaults import CONFIDENCE_LEVEL
from gradstats.config.sections import FiguresSection
from gradstats.report.critic_table import critic_table
from gradstats.report.curves import baselines_table, curve_table
from gradstats.report.figures import chosen_rows
from gradstats.report.frame_in_words import frame_in_words
from gradstats.report.latex_layout import Layout
from gradstats.report.length_table import LENGTH_HEADINGS, length_table
from gradstats.report.ratio_tables import CLIPPING_HEADINGS, RATIO_HEADINGS, clipping_table, columns_of, ratio_table
from gradstats.report.saved_frames import CRITIC, OPTIMAL_BASELINES
from gradstats.report.saved_results import SavedResults
from gradstats.report.share_tables import ALLOCATION_HEADINGS, SUCCESS_HEADINGS, allocation_table, success_table
from gradstats.report.tables import Table, alpha_table
from gradstats.report.variance_table import COMPARED_ROWS, VARIANCE_COLUMNS, variance_table
from gradstats.stats.tokens.proxy_quality import PROXY_QUANTITIES
from gradstats.stats.variance.quantities import JUDGED
from gradstats.system.outputs import MARK, is_marked, refuse_foreign, write_marked

_EQUIVALENT = {"equivalent_group_size": "equivalent group size", "tokens_saved": "tokens saved"}
_BLOCKS = {"alpha": "α", "share_of_sq_norm": "share of squared norm"}


def run_tables(run: SavedResults, style: FiguresSection | None = None, *, by_value: bool = False) -> dict[str, Table]:
    """Return every table that a run has the numbers for: name of its file → table.

    Those whose columns an earlier version did not estimate are left out. Estimators are named as in figures.

    Args:
        run: the run.
        style: which estimators are listed, and under which names; the experiment's figures by default.
        by_value: sort the comparison by its matched ratio, lowest first.
    """
    style = run.figure_style if style is None else style
    tables: dict[str, Table] = {}
    if run.variance is not None and (frame := _chosen(run.variance, style)) is not None:
        if by_value and JUDGED.name in frame:
            frame = frame.sort_values(JUDGED.name, kind="stable", ignore_index=True)
        frame.attrs[COMPARED_ROWS] = len(run.variance)
        tables["variance"] = variance_table(frame)
    if run.fit is not None:
        tables["alpha"] = alpha_table({style.labels.get(run.name, run.name): run.fit}, confidence_level=_level(run))
    for name, (needed, make) in _BREAKDOWNS.items():
        frame = run.breakdowns.get(name)
        if frame is not None and _has(frame, needed) and (frame := _chosen(frame, style)) is not None:
            tables[name] = replace(make(run, frame), names=needed, source=frame)
    sizes = run.breakdowns.get("group_sizes")
    if sizes is not None and (sizes := _chosen(sizes, style)) is not None:
        about = {} if run.variance is None else run.variance.attrs
        sizes.attrs |= {name: value for name, value in about.items() if name not in ("n_groups", "lowest_beyond_doubt")}
        known = [name for name in VARIANCE_COLUMNS if _has(sizes, {name: name})]
        tables["group_sizes"] = replace(variance_table(sizes, columns=known), label="tab:group-sizes")
    if run.by_block is not None:
        tables["alpha_by_block"] = _block_table(run, run.by_block)
    if run.tokens is not None:
        tables["proxy_quality"] = _proxy_table(run, run.tokens.proxies)
    for name, frame in run.added.items():
        if (chosen := _chosen(frame, style)) is not None:
            tables[name] = _added_table(name, chosen)
    return tables


def left_out(table: Table, layout: Layout) -> list[str]:
    """Return the headings of the columns for which a layout has no room."""
    shown = set(table.headings_at(layout))
    return [heading for heading in table.columns if heading not in shown]


def layout_for(table: Table, layout: Layout) -> Layout:
    """Return a layout that asks only for columns that a table has; for those that fit where it has none of them."""
    known = tuple(name for name in layout.columns if table.names.get(name, name) in table.columns)
    return replace(layout, columns=known)


def write_run_tables(tables: Mapping[str, Table], folder: Path, layout: Layout) -> list[Path]:
    """Write tables as LaTeX, ``NAME.tex``; returns the paths.

    Args:
        tables: name → table.
        folder: where they are written.
        layout: venue, width, alignment, and the columns of those tables that have them.

    Raises:
        ValueError: when a column is in none of the tables, or when columns do not fit; nothing is written then.
        FileExistsError: when a file lies there that is not an earlier table.
    """
    for column in layout.columns:
        if not any(layout_for(table, replace(layout, columns=(column,))).columns for table in tables.values()):
            has = sorted({name for table in tables.values() for name in (table.names or table.columns)})
            raise ValueError(f"--columns {column}: no table of the run has such a column, only {', '.join(has)}")
    paths = {name: folder / f"{name}.tex" for name in tables}
    texts = {name: table.to_latex(layout_for(table, layout)) for name, table in tables.items()}
    for path in paths.values():
        refuse_foreign(path, "a table", is_marked)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_marked(paths[name], f"% {MARK}\n{text}", "a table")
    return list(paths.values())


def _level(run: SavedResults) -> float:
    return float(str(run.settings.get("variance.confidence_level", CONFIDENCE_LEVEL)))


def _chosen(frame: pd.DataFrame, style: FiguresSection) -> pd.DataFrame | None:
    """Return the rows of the estimators to list, with the names that they are given; None where there are none."""
    chosen = chosen_rows(frame, style)
    return None if chosen is None or chosen.empty else chosen


def _has(frame: pd.DataFrame, names: Mapping[str, str]) -> bool:
    return all(f"{name}{end}" in frame for name in names for end in ("", "_low", "_high"))


def _with_attrs(run: SavedResults, frame: pd.DataFrame, **attrs: object) -> pd.DataFrame:
    """Return a table read from CSV with the attributes that it was made with, and with estimators in words."""
    frame = frame.copy()
    frame.attrs |= {"confidence_level": _level(run), **attrs}
    return frame_in_words(frame)


def _allocation(run: SavedResults, frame: pd.DataFrame) -> Table:
    measured = frame.loc[~frame["extrapolated"].astype(bool)]
    tokens = np.nan if run.points is None else float(np.sum(run.points["length"].to_numpy(dtype=float)))
    return allocation_table(
        _with_attrs(run, frame, tokens=tokens, reference="rloo", reference_size=f"{measured['group_size'].max():g}")
    )


def _success(run: SavedResults, frame: pd.DataFrame) -> Table:
    sizes = set(frame["group_size"]) if "group_size" in frame else set()
    return success_table(_with_attrs(run, frame, group_size=sizes.pop() if len(sizes) == 1 else None))


def _equivalent(run: SavedResults, frame: pd.DataFrame) -> Table:
    caption = (
        f"Group size at which RLOO has the same noise, and share of tokens saved against RLOO in groups of the same "
        f"size, {_level(run):.0%} intervals over {_prompts(frame)}."
    )
    sizes = set(frame["group_size"])
    if len(sizes) == 1:
        caption += f" Each estimator with N = {sizes.pop():g} completions per prompt."
    rows = _labelled(frame_in_words(frame), "estimator", "group_size", ", N = {:g}")
    return Table(caption, "estimator", rows, columns_of(frame, _EQUIVALENT), frame, label="tab:equivalent")


def _prompts(frame: pd.DataFrame) -> str:
    return f"n = {frame['n_prompts'].iloc[0]} prompts" if "n_prompts" in frame else "prompts"


def _block_table(run: SavedResults, frame: pd.DataFrame) -> Table:
    level = float(frame["confidence_level"].iloc[0]) if "confidence_level" in frame else _level(run)
    columns = columns_of(frame, {"alpha": _BLOCKS["alpha"]})
    if "share_of_sq_norm" in frame:
        shares = frame["share_of_sq_norm"].to_numpy(dtype=float).tolist()
        columns[_BLOCKS["share_of_sq_norm"]] = [(share, np.nan, np.nan) for share in shares]
    caption = (
        f"Length exponent α of each block of parameters, {level:.0%} intervals, and its share of the squared norm. n = "
        f"{frame['n'].iloc[0]} completions of {frame['n_prompts'].iloc[0]} prompts."
    )
    rows = tuple(map(str, frame["block"]))
    return Table(caption, "block", rows, columns, frame, label="tab:alpha-by-block", names=_BLOCKS)


def _proxy_table(run: SavedResults, frame: pd.DataFrame) -> Table:
    names = {name: heading for name, heading in PROXY_QUANTITIES.items() if _has(frame, {name: heading})}
    caption = f"Forward-only proxies of token energies against measured ones, {_level(run):.0%} intervals."
    rows = tuple(map(str, frame["proxy"]))
    return Table(caption, "proxy", rows, columns_of(frame, names), frame, label="tab:proxies", names=names)


def _added_table(name: str, frame: pd.DataFrame) -> Table:
    named = frame_in_words(frame)
    if name == OPTIMAL_BASELINES:
        table = baselines_table(named)
    else:
        table = critic_table(named) if name == CRITIC else curve_table(named)
    return replace(table, source=frame)


def _labelled(frame: pd.DataFrame, label: str, size: str, form: str) -> tuple[str, ...]:
    several: Sequence[object] = sorted(set(frame[size]))
    return tuple(
        f"{row[label]}{form.format(row[size]) if len(several) > 1 else ''}" for row in frame.to_dict("records")
    )


#: Tables in addition to the comparison: name → the columns that they need with their headings, and what makes them.
_BREAKDOWNS: dict[str, tuple[dict[str, str], Callable[[SavedResults, pd.DataFrame], Table]]] = {
    "equivalent_group_size": (_EQUIVALENT, _equivalent),
    "allocation": (ALLOCATION_HEADINGS, _allocation),
    "length_bins": (LENGTH_HEADINGS, lambda run, frame: length_table(_with_attrs(run, frame))),
    "success_bins": (SUCCESS_HEADINGS, _success),
    "ratios": (RATIO_HEADINGS, lambda run, frame: ratio_table(_with_attrs(run, frame))),
    "ratio_clipping": (CLIPPING_HEADINGS, lambda run, frame: clipping_table(_with_attrs(run, frame))),
}
