"""What claims.md says of the metric: shares of blocks, α and ratios, Euclidean and in Adam's."""

from __future__ import annotations

from committed_numbers import NOT_RUN, UNDECIDED, WEIGHTED, Triple, shown, table

METRICS = ("euclidean", "adam(eps=1e-5)")
ESTIMATORS_IN_METRICS = (
    "reinforce",
    "constant(b=optimal)",
    "token_mean(loo=True)",
    WEIGHTED,
    "length_weighted(alpha=within_prompt, loo=True)",
    "norm_weighted(loo=True)",
    "grpo",
)


def of_metrics(label: str, column: str) -> list[Triple]:
    """Return a quantity of an estimator in the Euclidean metric and in Adam's; nothing where it is not committed."""
    frame = table("embedded_metric", "sweep")
    if frame is None:
        return []
    rows = frame[frame["estimator"] == label].set_index("measurement.metric")
    found = [rows.loc[metric] for metric in METRICS if metric in rows.index]
    return [(row[column], row[f"{column}_low"], row[f"{column}_high"]) for row in found] if len(found) == 2 else []


def share_of_blocks(pattern: str) -> list[float]:
    """Return the share of Σ‖S‖² of the blocks whose names match, in the Euclidean metric and in Adam's."""
    frame = table("embedded_metric", "blocks")
    if frame is None:
        return []
    chosen = frame[frame["block"].str.contains(pattern)].groupby("measurement.metric")["share_of_sq_norm"].sum()
    return [float(chosen[metric]) for metric in METRICS]


def by_metric() -> str:
    """Write shares of blocks, α and ratios in both metrics."""
    head, layers, alpha = share_of_blocks("^head$"), share_of_blocks("^layers"), of_metrics("rloo", "alpha")
    if not head or not alpha:
        return NOT_RUN
    ratios = "; ".join(
        f"`{label}` over `rloo` {' and '.join(map(shown, triples))}"
        for label in ("reinforce", WEIGHTED, "norm_weighted(loo=True)")
        if (triples := of_metrics(label, "matched_ratio"))
    )
    return (
        f"Euclidean and `{METRICS[1]}` with the second moments of its training: the head holds {head[0]:.0%} and "
        f"{head[1]:.0%} of Σ‖S‖², the layers {layers[0]:.0%} and {layers[1]:.0%}; "
        f"α {' and '.join(map(shown, alpha))}; {ratios}{with_own_epsilon()}"
    )


def with_own_epsilon() -> str:
    """Write how many prompts carry the variance with Adam's own ε, for which the larger one was chosen instead."""
    frame = table("embedded_metric", "sweep")
    assert frame is not None
    rows = frame[(frame["estimator"] == "rloo") & (frame["measurement.metric"] == "adam")]
    return "".join(
        f". With Adam's own ε of 1e-8, the first that was tried, the variance of `rloo` is worth that of "
        f"{worth:.1f} of {n} prompts, and ratios are not resolved"
        for worth, n in zip(rows["n_effective_prompts"], rows["n_prompts"], strict=True)
    )


def metric_sentences() -> str:
    """State in three sentences what Adam's metric changes: the blocks, α, and the ranking of baselines."""
    head, alpha = share_of_blocks("^head$"), of_metrics("rloo", "alpha")
    if not head or not alpha:
        return UNDECIDED
    moved = "less" if head[1] < head[0] else "more"
    first = f"On this policy, Adam's division gives the head {moved} of the norm than the Euclidean metric does."
    (_, low, high), (_, adam_low, adam_high) = alpha
    apart = "is larger" if adam_low > high else "is smaller" if adam_high < low else "is not resolved to differ"
    second = f"The length exponent {apart} in Adam's metric."
    turned = [
        label
        for label in ESTIMATORS_IN_METRICS
        if (triples := of_metrics(label, "matched_ratio")) and _side(triples[0]) * _side(triples[1]) < 0
    ]
    third = (
        f"The verdict against `rloo` turns for {', '.join(f'`{label}`' for label in turned)}."
        if turned
        else "No baseline that is resolved on one side of `rloo` in one metric is resolved on the other in the other."
    )
    return f"{first} {second} {third}"


def _side(triple: Triple) -> int:
    """Return on which side of 1 an interval lies, 0 where it holds 1 or is not known."""
    return int(triple[1] > 1.0) - int(triple[2] < 1.0)
