"""Put the tables of coverage into docs/statistics.md, from the files in figures/statistics.

Run ``python benchmarks/coverage_page.py`` after one of the benchmarks that write these files.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from gradstats.system.files import atomic_path

FOLDER = Path(__file__).parents[1] / "figures" / "statistics"
PAGE = Path(__file__).parents[1] / "docs" / "statistics.md"
#: Coverage outside is printed in bold.
BAND = (0.92, 0.98)
#: The population of the file whose rows the page sums up in words, and those that add nothing to another.
LIGHTEST = "lognormal, sd 0.8"
LIKE_ANOTHER = ("lognormal, sd 1.4, shared", "difficulty, sd 0.5, signal 1", "difficulty, sd 1.5, signal 30")


def alpha_table(table: pd.DataFrame) -> str:
    """Coverage of α by scenario and method, one column an interval and one number a size of the data, as Markdown."""
    lines = [
        "| | method | `cluster` (default) | `t` | `hc3` |",
        "|---|---|---|---|---|",
    ]
    shown = table.loc[~table["method"].isin(["ppml", "theil_sen"])]
    shown = shown.loc[shown["scenario"] != "prompts repeat, one slope"]
    for scenario, method in shown[["scenario", "method"]].drop_duplicates().to_numpy().tolist():
        rows = shown.query("scenario == @scenario and method == @method").sort_values("n")
        cells = [
            ", ".join(map(_marked, rows.loc[rows["interval"] == interval, "coverage"])) or "–"
            for interval in ("cluster", "t", "hc3")
        ]
        lines.append(f"| {scenario} | `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def heavy_tails_table(table: pd.DataFrame) -> str:
    """The range over estimators of each quantity's coverage, by population, as Markdown; first that of more prompts.

    The column *open* is the share of intervals of ``trace_cov`` without an upper end.
    """
    table = table.assign(coverage=table["covered"] / table["data_sets"], open=1.0 - table["two_sided"] / table["shown"])
    # What is relative to the reference is exact for the reference itself.
    alone = table["quantity"].isin(["trace_cov", "critical_batch", "alpha"])
    left_out = table["population"].isin([LIGHTEST, *LIKE_ANOTHER])
    shown = table.loc[(alone | (table["estimator"] != "rloo")) & ~left_out]
    columns = {"`trace_cov`": ("trace_cov", "coverage"), "open": ("trace_cov", "open")}
    columns |= {"`ratio`": ("ratio", "coverage"), "critical batch": ("critical_batch", "coverage")}
    columns |= {f"`{name}`": (name, "coverage") for name in ("matched_ratio", "cosine", "bias_share")}
    columns |= {"α": ("alpha", "coverage")}
    lines = [f"| population | data sets | effective | {' | '.join(columns)} |", "|---|---|---|" + "---|" * len(columns)]
    for population, rows in shown.groupby("population", sort=False):
        by_size = [rows.loc[rows["n_prompts"] == size] for size in sorted(set(rows["n_prompts"]), reverse=True)]
        cells = [", ".join(f"{of_size[of].iloc[0]:.0f}" for of_size in by_size) for of in ("data_sets", "effective")]
        for quantity, of in columns.values():
            of_quantity = [one.loc[(one["quantity"] == quantity) & ~one["batch_level"], of] for one in by_size]
            cells.append(", ".join(map(_range, of_quantity)))
        lines.append(f"| {population} | {' | '.join(cells)} |")
    return "\n".join(lines)


def off_policy_table(table: pd.DataFrame) -> str:
    """The range over recipes of each quantity's coverage off-policy, by number of groups, as Markdown."""
    quantities = list(dict.fromkeys(table["quantity"]))
    lines = [
        f"| groups | {' | '.join(f'`{quantity}`' for quantity in quantities)} |",
        "|---|" + "---|" * len(quantities),
    ]
    for n, rows in table.groupby("n_prompts"):
        cells = [_range(rows.loc[rows["quantity"] == quantity, "coverage"]) for quantity in quantities]
        lines.append(f"| {n} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _range(coverage: pd.Series) -> str:
    if coverage.empty:
        return "–"
    ends = [f"{coverage.min():.2f}", f"{coverage.max():.2f}"]
    return "–".join(dict.fromkeys(ends))


def _marked(coverage: float) -> str:
    text = f"{coverage:.3f}"
    return text if BAND[0] <= coverage <= BAND[1] else f"**{text}**"


def page_with_tables(page: str) -> str:
    """The page with each table between its markers."""
    tables = {
        "coverage_alpha": alpha_table,
        "coverage_heavy_tails": heavy_tails_table,
        "coverage_off_policy": off_policy_table,
    }
    for name, write_table in tables.items():
        before, rest = page.split(f"<!-- {name} -->\n")
        after = rest.split(f"<!-- /{name} -->")[1]
        table = write_table(pd.read_csv(FOLDER / f"{name}.csv"))
        page = f"{before}<!-- {name} -->\n{table}\n<!-- /{name} -->{after}"
    return page


def main() -> None:
    """Rewrite the page."""
    with atomic_path(PAGE) as partial:
        partial.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
