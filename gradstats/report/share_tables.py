"""Tables of gradients by success rate and by block of parameters, and of noise at an equal number of tokens."""

from __future__ import annotations

import pandas as pd

from gradstats.plots.allocation import n_prompts_label
from gradstats.plots.shares import bin_label
from gradstats.report.ratio_tables import columns_of
from gradstats.report.tables import Table
from gradstats.stats.variance.gradient_shares import SHARES

SUCCESS_HEADINGS = {
    "scale": "scale",
    "kept_scale": "scale of kept groups",
    **SHARES,
    "kept_share": "groups kept",
    "spread_share": "groups with spread",
}
BLOCK_HEADINGS = {"trace_cov": "variance", "ratio": "ratio"}
ALLOCATION_HEADINGS = {
    "noise_to_signal": "noise to signal",
    "relative_noise": "relative noise",
    "tokens_saved": "tokens saved",
    "within_prompt": "within prompts",
    "between_prompt": "between prompts",
}


def success_table(frame: pd.DataFrame) -> Table:
    """Return the table of ``SuccessBins.to_frame()``."""
    size = frame.attrs.get("group_size")
    groups = "groups" if size is None else f"groups of {size} completions"
    origin = "as given" if frame.attrs.get("success") == "given" else "of the other half of the completions"
    caption = (
        f"Gradient by success rate of the prompt ({origin}), {groups}, {_level(frame)}intervals over prompts. Scale: "
        "factor of the prompts' expected gradient on that of the target; shares sum to 1."
    )
    rows = [
        f"{row['estimator']}, {bin_label(row['success_low'], row['success_high'])} (n = {row['n_prompts']:,})"
        for row in frame.to_dict("records")
    ]
    columns = columns_of(frame, SUCCESS_HEADINGS)
    return Table(caption, "estimator, success rate", tuple(rows), columns, frame, label="tab:success")


def block_table(frame: pd.DataFrame) -> Table:
    """Return the table of ``VarianceByBlock.to_frame()``."""
    caption = (
        "Variance of the gradient with respect to each block of parameters, and its ratio to that of "
        f"{frame.attrs['reference']} on the same block, {_level(frame)}intervals over prompts."
    )
    several = len(set(frame["group_size"])) > 1
    rows = [
        f"{row['block']}, {row['estimator']}{', N={:g}'.format(row['group_size']) if several else ''}"
        for row in frame.to_dict("records")
    ]
    columns = columns_of(frame, BLOCK_HEADINGS)
    return Table(caption, "block, estimator", tuple(rows), columns, frame, label="tab:variance-by-block")


def allocation_table(frame: pd.DataFrame) -> Table:
    """Return the table of ``Allocation.to_frame()``; extrapolated sizes carry a star."""
    about = frame.attrs
    rows = [
        f"{row['estimator']}, {row['group_size']:g}{'*' if row['extrapolated'] else ''} × "
        f"{n_prompts_label(row['n_prompts'])}"
        for row in frame.to_dict("records")
    ]
    caption = (
        f"Noise of a gradient of {about['tokens']:,.0f} completion tokens, at the scale of the target, "
        f"{_level(frame)}intervals over prompts; relative to {about['reference']} with {about['reference_size']} "
        "completions per prompt. Stars: extrapolated sizes."
    )
    columns = columns_of(frame, ALLOCATION_HEADINGS)
    return Table(caption, "estimator, completions × prompts", tuple(rows), columns, frame, label="tab:allocation")


def _level(frame: pd.DataFrame) -> str:
    return f"{frame.attrs['confidence_level']:.0%} " if "confidence_level" in frame.attrs else ""
