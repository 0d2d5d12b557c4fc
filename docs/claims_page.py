"""Write claims.md: claims of the literature, what the committed runs say of each, and the command that repeats it.

Run ``python docs/claims_page.py`` after the tables in ``figures/`` or an exact result have changed. Every number and
every verdict of the page is computed here from those tables, or by enumeration.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from committed_numbers import (
    BY_LENGTH,
    NOT_RUN,
    OWN_SAMPLE,
    WEIGHTED,
    Triple,
    cell,
    excludes,
    published_exponent,
    shown,
    table,
    with_interval,
)
from findings_alpha import (
    ADAM,
    CLAIMED,
    EUCLIDEAN,
    IN_METRICS,
    by_metric,
    difference_of_metrics,
    exponents,
    turned,
)
from findings_gain import ZOO, at_equal_tokens
from findings_mismatch import BOUND, mismatches
from findings_runs import RUNS
from findings_tokens import token_tables

from gradstats import estimators as est
from gradstats.reference import EnumeratedPolicy

PAGE = Path(__file__).with_name("claims.md")
HOLDS, FAILS, OPEN = "holds", "fails", "not resolved"
#: What runs are called whose figures are shown.
NAMES = {run.folder: run.name for run in (*RUNS, ZOO)} | {"zoo": ZOO.name}
#: Completions without a token baseline that 4 with it are said to be worth.
CLAIMED_SIZE = 32

HEAD = """# Claims

Claims of the literature, and what committed runs say. Numbers are relative noise unless named; brackets are
95 % intervals over prompts. The policies are [small](findings.md#the-runs), and decide nothing for large models.
"""


class Claim(NamedTuple):
    """One row: what is claimed and by whom, a function that gives verdict and number, and what repeats it."""

    claim: str
    source: str
    found: Callable[[], tuple[str, str]]
    command: str
    figure: str


def below_one(triple: Triple | None) -> str:
    """Return the verdict on the claim that a relative noise is below 1."""
    if triple is None or not excludes(triple, 1.0):
        return OPEN
    return HOLDS if triple[0] < 1.0 else FAILS


def of_exponent() -> tuple[str, str]:
    """State in how many runs the interval of α does not hold the published value."""
    alphas = exponents()
    off = [alpha for alpha in alphas.values() if excludes(alpha, CLAIMED)]
    values = [alpha[0] for alpha in alphas.values()]
    return FAILS if off else OPEN, (
        f"α {min(values):.2f}–{max(values):.2f}, in {len(off)} of {len(alphas)} runs off {CLAIMED:g}; "
        f"published points {shown(published_exponent())}"
        if values
        else NOT_RUN
    )


def of_length_weights() -> tuple[str, str]:
    """State what the length weights do, with the own sample left out and in the published form."""
    left_out = cell("embedded_resolved", "variance", WEIGHTED, "matched_ratio", 8)
    ratio, share = (
        cell("embedded_resolved", "variance", OWN_SAMPLE, column, 8)
        for column in ("matched_ratio", "matched_bias_share")
    )
    return below_one(ratio), (
        f"α = 0.8, as published: {shown(ratio)}, bias {shown(share)}; own sample left out: {shown(left_out)}"
    )


def of_own_sample() -> tuple[str, str]:
    """State what the own sample in the mean of the group does."""
    raw, matched = (cell("embedded_resolved", "variance", "group_mean", name, 8) for name in ("ratio", "matched_ratio"))
    known = matched is not None and np.isclose(matched[0], 1.0)  # a multiple of RLOO, up to rounding
    return HOLDS if known else FAILS if excludes(matched, 1.0) else OPEN, (
        f"raw variance {shown(raw)} of RLOO's; noise {shown(matched)}"
    )


def of_standardising() -> tuple[str, str]:
    """State the factors of the division by the standard deviation, which are exact."""
    edge, middle = std_factor(0.1), std_factor(0.5)
    frame, moved = table("embedded_resolved", "success_shares"), ""
    if frame is not None:
        shares = frame.pivot(index="success_low", columns="estimator", values="share_of_gradient")
        most = math.ceil(1e4 * (shares["grpo"] - shares["rloo"]).abs().max()) / 1e4
        moved = f"; in groups of 4 no bin of success rates gains or loses more than {most:g} of the gradient"
    return HOLDS if edge > middle else FAILS, (
        f"exact, N = 8: factor {edge:.2f} at p = 0.1 and 0.9, {middle:.2f} at 0.5{moved}"
    )


def of_lengths() -> tuple[str, str]:
    """State what division of each completion by its own length does, without and with the standard deviation."""
    share, cosine, ratio = (
        cell("embedded_resolved", "variance", BY_LENGTH, name, 8)
        for name in ("matched_bias_share", "cosine", "matched_ratio")
    )
    published = cell("embedded_resolved", "variance", "recipe:gspo", "matched_bias_share", 8)
    if share is None:
        return OPEN, NOT_RUN
    return HOLDS if share[1] > 0 else OPEN, (
        f"bias {shown(share)} of the squared error, cosine {shown(cosine)}; noise {shown(ratio)}; "
        f"as in GRPO and GSPO, bias {shown(published)}"
    )


def std_factor(success: float, group_size: int = 8) -> float:
    """Return the factor by which GRPO's standard deviation changes the gradient of prompts of one success rate."""
    theta = np.array([np.log(success / (1.0 - success))])
    policy = EnumeratedPolicy(
        vocabulary=2,
        max_length=1,
        features=lambda prompt, prefix: np.array([[0.0], [1.0]]),
        theta=theta,
        reward=lambda prompt, tokens: float(tokens == (1,)),
    )
    return float(policy.moments(est.grpo(), group_size).mean[0] / policy.gradient[0])


def of_proxy() -> tuple[str, str]:
    """State how well the logit proxy stands for energies."""
    rows = [frame[frame["proxy"] == "logit"].iloc[0] for _, frame in token_tables("tokens")]
    if not rows:
        return OPEN, NOT_RUN
    ranks = all(row["rank_correlation_low"] > 0.9 for row in rows)
    sizes = all(row["factor_high"] < 1.1 for row in rows)
    said = " and ".join(
        f"{shown(with_interval(row, 'rank_correlation'))}, {shown(with_interval(row, 'factor'))}" for row in rows
    )
    alone = "for ranks alone: " if ranks and not sizes else ""
    return HOLDS if ranks and sizes else FAILS, f"{alone}rank correlation, error factor: {said}"


def of_token_baseline() -> tuple[str, str]:
    """State what group size 4 completions with the optimal token baseline are worth."""
    size = cell("embedded_zoo", "equivalent_group_size", "otb(loo=True)", "equivalent_group_size", 4)
    noise = cell("embedded_zoo", "variance", "otb(loo=True)", "matched_ratio")
    verdict = OPEN if not excludes(size, CLAIMED_SIZE) else HOLDS if size[0] > CLAIMED_SIZE else FAILS
    return verdict, f"of noise alone: 4 are worth {shown(size)} of RLOO's; in groups of 8, noise {shown(noise)}"


def of_values() -> tuple[str, str]:
    """State what values of prefixes and of a head do."""
    vine, gae = (cell("embedded_zoo", "variance", label, "matched_ratio") for label in ("vine(k=4)", "gae"))
    better = vine is not None and gae is not None and vine[2] < gae[1]
    return HOLDS if better else OPEN, (
        f"per completion `vine(k=4)` {shown(vine)}, at equal tokens drawn {shown(at_equal_tokens(vine))}; `gae` of a "
        f"linear head {shown(gae)}"
    )


def of_metric() -> tuple[str, str]:
    """State what Adam's metric changes: α, and the ranking of baselines."""
    said, alike, turning = [], True, []
    for name in IN_METRICS:
        if not (found := by_metric(name)):
            continue
        difference = difference_of_metrics(name, found)
        alike &= not excludes(difference, 0.0)
        turning += turned(found)
        said.append(f"{shown(difference)} ({found[EUCLIDEAN].name})")
    if not said:
        return OPEN, NOT_RUN
    ranking = f"the ranking turns for {', '.join(turning)}" if turning else "no estimator is shown to cross RLOO"
    return FAILS if turning or not alike else OPEN, f"α in `{ADAM}` minus Euclidean: {'; '.join([*said, ranking])}"


def of_correction() -> tuple[str, str]:
    """State what truncated ratios of tokens do to the noise where sampler and trainer differ."""
    found = {
        one.name: triple
        for one in mismatches()
        if one.carried and (triple := with_interval(one.rows.loc["recipe:tis"], "matched_ratio")) is not None
    }
    if not found:
        return OPEN, NOT_RUN
    verdicts = {below_one(triple) for triple in found.values()}
    capped = any(one.largest >= BOUND for one in mismatches() if one.name in found)
    return verdicts.pop() if len(verdicts) == 1 else OPEN, "; ".join(
        [
            *(f"{shown(triple, OPEN)} {name}" for name, triple in found.items()),
            *([] if capped else ["no ratio is capped"]),
        ]
    )


def of_horizon() -> tuple[str, str]:
    """State how the variance grows with the cap on tokens, judged where it cuts off less than a tenth."""
    frame = table("embedded_cap", "sweep")
    if frame is None:
        return OPEN, NOT_RUN
    rows = frame[frame["estimator"] == "rloo"]
    kept = rows[rows["truncated_share"] < 0.1]
    short, long = (with_interval(kept.iloc[end], "trace_cov") for end in (0, -1))
    caps = [f"{row['sampling.max_new_tokens']} tokens (mean {row['mean_length']:.0f})" for _, row in kept.iterrows()]
    assert short is not None
    assert long is not None
    return HOLDS if long[1] > short[2] else FAILS if long[2] < short[1] else OPEN, (
        f"tr Cov {shown(short)} at a cap of {caps[0]}, {shown(long)} at {caps[-1]}"
    )


def of_sweep(name: str, column: str, claimed: int, word: str) -> tuple[str, str]:
    """Return the verdict on a claim that a quantity rises (1) or stays (0) along a sweep, by the ends of the sweep."""
    frame = table(name, "sweep")
    if frame is None:
        return OPEN, NOT_RUN
    known = frame[frame["estimator"] == "rloo"].dropna(subset=[column])
    ends = [(row["cell"], with_interval(row, column)) for _, row in known.iloc[[0, -1]].iterrows()]
    (_, first), (_, last) = ends
    assert first is not None
    assert last is not None
    change = int(last[1] > first[2]) - int(last[2] < first[1])
    verdict = OPEN if change == 0 else HOLDS if change == claimed else FAILS
    return verdict, f"{word} " + "; ".join(f"{shown(triple)} at {setting(cell_name)}" for cell_name, triple in ends)


def setting(cell_name: str) -> str:
    """Return what the page calls a cell."""
    return cell_name.replace("name=checkpoint-", "step ").replace("=", " ")


CLAIMS = [
    Claim(
        "‖S‖² grows as $T^{2\\alpha}$ with α near 0.8",
        "Gloeckle 2026",
        of_exponent,
        "gradstats alpha RUN",
        "embedded_resolved/length_scaling.png",
    ),
    Claim(
        "Weighting the group mean by $T^{2\\alpha}$ lowers the noise",
        "Gloeckle 2026",
        of_length_weights,
        'gradstats ask RUN curve "length_weighted(loo=True)" alpha=0:2:41',
        "embedded_resolved/curve_length_weighted_loo_true_alpha.png",
    ),
    Claim(
        "The own sample in the group's mean changes the scale of the gradient and nothing else",
        "Liu et al. 2025, 2503.20783; Kool et al. 2019",
        of_own_sample,
        "gradstats variance RUN --estimators group_mean rloo",
        "embedded_resolved/variance.png",
    ),
    Claim(
        "Dividing by the group's standard deviation favours prompts that are nearly always or never solved",
        "Liu et al. 2025, 2503.20783",
        of_standardising,
        "gradstats ask RUN success_bins rloo grpo",
        "embedded_resolved/success_shares.png",
    ),
    Claim(
        "Dividing each completion by its length biases the gradient",
        "Liu et al. 2025, 2503.20783",
        of_lengths,
        f'gradstats variance RUN --estimators "{BY_LENGTH}" rloo',
        "embedded_resolved/variance_bias.png",
    ),
    Claim(
        "The logit proxy $1 - 2\\pi + \\sum\\pi^2$ stands for the energy of a token",
        "2602.07078",
        of_proxy,
        "gradstats ask RUN tokens",
        "embedded_tokens/proxy.png",
    ),
    Claim(
        f"With the optimal token baseline 4 completions do for {CLAIMED_SIZE}",
        "2602.07078",
        of_token_baseline,
        'gradstats ask RUN group_sizes rloo "otb(loo=True)"',
        "embedded_zoo/group_sizes.png",
    ),
    Claim(
        "Monte-Carlo values of prefixes do better than a value network",
        "Kazemnejad et al. 2024, 2410.01679",
        of_values,
        'gradstats variance RUN --estimators "vine(k=4)" gae',
        "zoo/zoo.png",
    ),
    Claim(
        "α in the Euclidean metric is that in Adam's",
        "implicit; Kingma & Ba 2015",
        of_metric,
        "gradstats run embedded_metric",
        "embedded_metric/measurement_metric.png",
    ),
    Claim(
        "Ratios of tokens, capped at 2 (TIS), in place of the ratio of the completion lower the noise of a mismatch",
        "Yao et al. 2025",
        of_correction,
        "gradstats run embedded_mismatch",
        "embedded_mismatch/cell.png",
    ),
    Claim(
        "α does not depend on the sampling temperature",
        "Gloeckle 2026 states none",
        lambda: of_sweep("embedded_temperature_scored_at_1", "alpha", 0, "α"),
        "gradstats run embedded_temperature_scored_at_1",
        "embedded_temperature_scored_at_1/sampling_temperature.png",
    ),
    Claim(
        "The variance grows with the horizon",
        "common belief",
        of_horizon,
        "gradstats run embedded_cap",
        "embedded_cap/sampling_max_new_tokens.png",
    ),
    Claim(
        "Completions become longer over reinforcement learning",
        "DeepSeek-AI 2025, 2501.12948",
        lambda: of_sweep("embedded_reinforced", "mean_length", 1, "tokens"),
        "gradstats run embedded_reinforced",
        "embedded_reinforced/policy_name.png",
    ),
]


def render() -> str:
    """Return the whole page."""
    lines = ["| claim | verdict | number | command |", "|---|---|---|---|"]
    for one in CLAIMS:
        verdict, number = one.found()
        run = NAMES.get(one.figure.split("/")[0])
        figure = f"[figure{f', {run}' if run else ''}](../figures/{one.figure})"
        lines.append(f"| {one.claim} ({one.source}) | **{verdict}** | {number} ({figure}) | `{one.command}` |")
    return HEAD + "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
