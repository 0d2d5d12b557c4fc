"""Tables of importance ratios and of what recipes clip."""

from __future__ import annotations

import math

import pandas as pd

from gradstats.report.numbers import Triple
from gradstats.report.tables import Table

#: Squared deviations of ratios below this are those of float32.
_ROUNDING = 1e-9
_KINDS = {"token": "token", "product": "completion", "geometric_mean": "geometric mean"}
#: Headings of the columns, by name.
RATIO_HEADINGS = {
    "mean": "mean",
    "variance": "variance",
    "chi_squared": "χ²",
    "effective_sample_size": "effective sample size",
}
CLIPPING_HEADINGS = {
    "clipped_tokens": "tokens clipped",
    "clipped_completions": "completions clipped",
    "removed_share": "squared norm removed",
}


def ratio_table(frame: pd.DataFrame) -> Table:
    """Return the table of ``RatioDiagnostics.to_frame()``, all completions first."""
    rows = []
    for row in frame.to_dict("records"):
        lengths = f"{row['length_low']:g}–{row['length_high']:g} tokens"
        what = lengths if row["by_length"] else "all"
        rows.append(f"{_KINDS[str(row['ratio'])]}, {what} (n = {row['n']:,})")
    level = frame.attrs["confidence_level"]
    caption = (
        f"Importance ratios of the scored to the sampling policy, with {level:.0%} intervals over prompts; "
        "χ² is the mean of (ρ − 1)²."
    )
    columns = columns_of(frame, RATIO_HEADINGS)
    # Sampler and scorer are one policy: what is left is the rounding of log-probabilities.
    one_policy = [high < _ROUNDING for _, _, high in columns[RATIO_HEADINGS["chi_squared"]]]
    columns[RATIO_HEADINGS["mean"]] = [
        (round(value, 4), math.nan, math.nan) if equal else (value, low, high)
        for equal, (value, low, high) in zip(one_policy, columns[RATIO_HEADINGS["mean"]], strict=True)
    ]
    for name in ("variance", "chi_squared"):
        triples = columns[RATIO_HEADINGS[name]]
        columns[RATIO_HEADINGS[name]] = [
            (math.nan, math.nan, _ROUNDING) if high < _ROUNDING else (value, low, high) for value, low, high in triples
        ]
    return Table(caption, "ratio", tuple(rows), columns, frame, label="tab:ratios")


def clipping_table(frame: pd.DataFrame) -> Table:
    """Return the table of ``RatioDiagnostics.clipping_frame()``."""
    level = frame.attrs["confidence_level"]
    caption = (
        f"Effect of each recipe's clip, with {level:.0%} intervals over prompts. The squared norm is that of "
        "completions for clips of completions, and of tokens for clips of tokens."
    )
    if "unknown" in set(frame["removed_of"]):
        caption += (
            " Dashes: energies of tokens were not measured (token_probes), which this share of their clips needs."
        )
    rows = tuple(str(name) for name in frame["recipe"])
    return Table(caption, "recipe", rows, columns_of(frame, CLIPPING_HEADINGS), frame, label="tab:clipping")


def columns_of(frame: pd.DataFrame, headings: dict[str, str]) -> dict[str, list[Triple]]:
    """Return what a table's columns hold: heading → (value, low, high) of each row, given column → heading."""
    return {
        heading: [
            (float(value), float(low), float(high))
            for value, low, high in frame[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False)
        ]
        for name, heading in headings.items()
    }
