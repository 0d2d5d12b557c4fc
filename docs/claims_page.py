"""Write claims.md: claims of the literature, the command that checks each, and what the committed runs say.

Run ``python docs/claims_page.py`` after the tables in ``figures/`` or an exact result have changed. Every number and
every verdict of the page is computed here from those tables, or by enumeration.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from claims_metric import by_metric, metric_sentences
from committed_numbers import (
    NOT_RUN,
    OWN_SAMPLE,
    UNDECIDED,
    WEIGHTED,
    Triple,
    cell,
    numbers,
    published_exponent,
    shown,
    table,
    with_interval,
)
from findings_runs import committed
from findings_tokens import token_tables

from gradstats import estimators as est
from gradstats.reference import EnumeratedPolicy
from gradstats.stats.variance.minimiser import written_interval

PAGE = Path(__file__).with_name("claims.md")

HEAD = """# Claims, and what the policies at hand say

Each row is a claim of the literature, the command that checks it on any finished run, the figure that the command
draws, what came out on the committed runs, and the sentence that these numbers allow. Intervals are 95 % intervals over
prompts; a statement about several rows at once uses the simultaneous ones. The runs are small: the embedded policy has
about a million parameters, and SmolLM2-135M and Qwen2.5-Coder (0.5B, 1.5B) were measured with dequantised 4-bit
weights. They show how a claim is checked, and where it fails for a reason that does not depend on size; they do not
decide it for large models.

This page is written by `docs/claims_page.py` from the tables in `figures/`; a test compares the two.
"""


class Claim(NamedTuple):
    """One row: what is claimed and by whom, how it is checked, and functions that say what came out."""

    claim: str
    source: str
    command: str
    figure: str
    found: Callable[[], str]
    sentence: Callable[[], str]


def against_one(triple: Triple | None, below: str, above: str, neither: str) -> str:
    """Choose a verdict by where an interval lies relative to 1."""
    if triple is None:
        return UNDECIDED
    _, low, high = triple
    return below if high < 1.0 else above if low > 1.0 else neither


def exponents() -> dict[str, Triple]:
    """Return α of each run of findings.md."""
    found = {run.name: with_interval(numbers(run.folder, "alpha") or {}, "alpha") for run in committed()}
    return {name: alpha for name, alpha in found.items() if alpha is not None}


def exponents_against(value: float) -> str:
    """State in which runs the interval of α does not hold a value."""
    alphas = exponents()
    below = [name for name, alpha in alphas.items() if alpha[2] < value]
    above = [name for name, alpha in alphas.items() if alpha[1] > value]
    said = [
        f"lies {how} {value:g} in {', '.join(names)}" for how, names in (("below", below), ("above", above)) if names
    ]
    if not said:
        return f"No interval of α excludes {value:g}."
    if held := [name for name in alphas if name not in (*below, *above)]:
        said.append(f"holds it in {', '.join(held)}")
    return f"The interval of α {', and '.join(said)}."


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


def own_sample() -> str:
    """State what the published form of the weights does, in which the own sample is part of the baseline."""
    ratio, share = (
        cell("embedded_resolved", "variance", OWN_SAMPLE, column, 8)
        for column in ("matched_ratio", "matched_bias_share")
    )
    return against_one(
        ratio,
        f"In the published form, own sample included, they lower it at matched signal, {shown(ratio)}, with a bias of "
        f"{shown(share)} of the squared error of a batch of 128 prompts.",
        f"In the published form, own sample included, they raise it too, {shown(ratio)}.",
        "In the published form, own sample included, no difference is resolved.",
    )


CLAIMS = [
    Claim(
        "The squared norm of a completion's score grows as $T^{2\\alpha}$ with α near 0.8",
        "Gloeckle 2026",
        "gradstats alpha RUN",
        "[α](../figures/embedded_resolved/length_scaling.png)",
        lambda: (
            f"published points {shown(published_exponent())}; "
            + "; ".join(f"{name} {shown(alpha)}" for name, alpha in exponents().items())
        ),
        lambda: (
            f"{exponents_against(0.8)} The completions are shorter than the published ones, and many were "
            "cut off on GSM8K ([findings](findings.md) has α without those). The published points alone leave a wide "
            "interval: state α with its interval for the policy that is trained, and within prompts, where a group "
            "baseline uses it."
        ),
    ),
    Claim(
        "Weighting the group mean by $T^{2\\alpha}$ lowers the variance",
        "Gloeckle 2026",
        'gradstats ask RUN curve "length_weighted(loo=True)" alpha=0:2:41',
        "[curve](../figures/embedded/curve_length_weighted_loo_true_alpha.png)",
        lambda: (
            "tr Cov over that of `rloo` at α = 0.8: "
            f"{shown(cell('embedded_resolved', 'variance', WEIGHTED, 'ratio'))} on 2000 prompts, "
            f"{shown(cell('embedded', 'variance', WEIGHTED, 'ratio'))} on 96, "
            f"{shown(cell('qwen_mawps', 'variance', WEIGHTED, 'ratio'))} on 48 of MAWPS and "
            f"{shown(cell('qwen_gsm8k', 'variance', WEIGHTED, 'ratio'))} on 24 of GSM8K with Qwen2.5-Coder-0.5B; the "
            f"ratio is lowest at α = {best_exponent()} on 96"
        ),
        lambda: against_one(
            cell("embedded_resolved", "variance", WEIGHTED, "ratio"),
            "At α = 0.8 the weights lower the variance on the embedded policy.",
            "At α = 0.8, with the own sample left out, the weights raise the variance on the embedded policy, which "
            "2000 prompts resolve. " + own_sample(),
            "At α = 0.8 no difference is resolved on the embedded policy.",
        ),
    ),
    Claim(
        "The mean of the group with the own sample in it biases the gradient",
        "Liu et al. 2025, 2503.20783; Kool et al. 2019",
        "gradstats variance RUN --estimators group_mean rloo",
        "[variance](../figures/embedded_resolved/variance.png)",
        lambda: (
            "`group_mean` over `rloo` with 8 completions: "
            f"{shown(cell('embedded_resolved', 'variance', 'group_mean', 'ratio'))}, at matched signal "
            f"{shown(cell('embedded_resolved', 'variance', 'group_mean', 'matched_ratio'))}"
        ),
        lambda: (
            "It is a known factor (N−1)/N and nothing else: the lower variance is that of a smaller learning rate, and "
            "at matched signal there is no difference."
        ),
    ),
    Claim(
        "Dividing by the group's standard deviation favours prompts that are nearly always, or nearly never, solved",
        "Liu et al. 2025, 2503.20783",
        "gradstats ask RUN success_bins rloo grpo",
        "[shares](../figures/embedded_resolved/success_shares.png)",
        lambda: (
            f"by enumeration at N = 8: the gradient of a prompt is multiplied by {std_factor(0.1):.2f} at p = 0.1 or "
            f"0.9 and by {std_factor(0.5):.2f} at p = 0.5"
        ),
        lambda: (
            "True for every policy: the factors follow from the rewards alone, and change the objective, not the noise."
        ),
    ),
    Claim(
        "The logit proxy $1 - 2\\pi + \\sum\\pi^2$ stands for the energy of a token's score",
        "2602.07078",
        "gradstats tokens RUN",
        "[proxy](../figures/embedded_tokens/proxy.png)",
        lambda: (
            "rank correlation with measured energies, and typical error factor: "
            + "; ".join(
                f"{run.name_with_tokens} {shown(of_logit(frame, 'rank_correlation'))}, "
                f"{shown(of_logit(frame, 'factor'))}"
                for run, frame in token_tables("proxy_quality")
            )
        ),
        lambda: (
            "A high rank correlation leaves room for errors of single tokens, which the factor shows: measure both on "
            "the policy in question."
        ),
    ),
    Claim(
        "The optimal token baseline lowers the variance, so that 4 completions do for 32",
        "2602.07078",
        'gradstats ask RUN allocation rloo "otb(loo=True)" --tokens 100000 --group-sizes 4 8 32',
        "[variance](../figures/embedded_tokens/variance.png)",
        lambda: (
            "`otb(loo=True)` over `rloo` in groups of 4: "
            f"{shown(cell('embedded_tokens', 'variance', 'otb(loo=True)', 'ratio'))}; with 8 completions: "
            f"{shown(cell('embedded_tokens_8', 'variance', 'otb(loo=True)', 'ratio'))}"
        ),
        lambda: against_one(
            cell("embedded_tokens", "variance", "otb(loo=True)", "ratio"),
            "On this policy it lowers the variance in groups of 4.",
            "On this policy it raises the variance in groups of 4.",
            "The run does not resolve a difference, let alone a factor of eight.",
        ),
    ),
    Claim(
        "Value networks judge intermediate states poorly; Monte-Carlo values of prefixes do better",
        "Kazemnejad et al. 2024, 2410.01679",
        'gradstats variance RUN --estimators "vine(k=4)" gae; gradstats ask RUN critic',
        "[variance](../figures/zoo/zoo.png), [critic](../figures/embedded_values/critic.png)",
        lambda: (
            f"over `rloo`, `vine(k=4)` {shown(cell('embedded_zoo', 'variance', 'vine(k=4)', 'ratio'))} and `gae` with "
            f"a value head {shown(cell('embedded_zoo', 'variance', 'gae', 'ratio'))}, the completions of prefixes not "
            f"counted; bias of a head {shown(critic('bias'))}, explained variance {shown(critic('explained_variance'))}"
        ),
        lambda: (
            against_one(
                cell("embedded_zoo", "variance", "vine(k=4)", "ratio"),
                "On this policy values of prefixes lower the variance. ",
                "On this policy values of prefixes raise the variance. ",
                "Whether values of prefixes lower the variance is not resolved. ",
            )
            + (
                "Whether the head explains any of the variance of the values is not resolved."
                if not (explained := critic("explained_variance")) or explained[1] <= 0
                else "The head explains part of the variance of the values."
            )
        ),
    ),
    Claim(
        "The variance of the gradient, in Euclidean parameter space, is the noise that training meets",
        "implicit in every variance table; Kingma & Ba 2015 for Adam",
        "gradstats sweep embedded_metric",
        "[α by block](../figures/embedded_metric/alpha_by_block.png), "
        "[ratios](../figures/embedded_metric/measurement_metric.png)",
        lambda: by_metric(),
        lambda: metric_sentences(),
    ),
    *(
        Claim(
            claim,
            source,
            f"gradstats sweep {name}",
            f"[sweep](../figures/{name}/{setting}.png)",
            lambda name=name, column=column, word=word: swept(name, column, word),
            lambda name=name, column=column, word=word, but=but: sweep_verdict(name, column, word) + but,
        )
        for claim, source, name, setting, column, word, but in (
            (
                "α is a property of the policy, whatever temperature it is drawn at",
                "Gloeckle 2026, who does not state the temperature",
                "embedded_temperature_scored_at_1",
                "sampling_temperature",
                "alpha",
                "exponent",
                "",
            ),
            (
                "The variance explodes with the horizon",
                "common belief",
                "embedded_cap",
                "sampling_max_new_tokens",
                "trace_cov",
                "variance",
                "",
            ),
            (
                "Completions become longer over training",
                "DeepSeek-AI 2025, 2501.12948",
                "embedded_training",
                "policy_revision",
                "mean_length",
                "mean length",
                " Its training is imitation, so that this says nothing about reinforcement learning.",
            ),
        )
    ),
]


def best_exponent() -> str:
    """Write the exponent of the length weights at which the variance is lowest, with its interval."""
    curve = "tables/curve_length_weighted_loo_true_alpha"
    found, along = numbers("embedded", curve), table("embedded", curve)
    if found is None or along is None:
        return NOT_RUN
    values = along["value"]
    return f"{found['minimiser']:.3g} {written_interval(found['minimiser_low'], found['minimiser_high'], values)}"


def of_logit(frame: pd.DataFrame, column: str) -> Triple | None:
    """Return a measure of the logit proxy from the table of all proxies."""
    return with_interval(frame[frame["proxy"] == "logit"].iloc[0], column)


def critic(column: str) -> Triple | None:
    """Return a measure of the value head over all states."""
    frame = table("embedded_values", "critic")
    return None if frame is None else with_interval(frame.iloc[0], column)


def ends_of(name: str, column: str) -> list[tuple[str, Triple]]:
    """Return a quantity of ``rloo`` in the first and the last cell of a sweep, each with the cell's name."""
    frame = table(name, "sweep")
    if frame is None:
        return []
    known = frame[frame["estimator"] == "rloo"].dropna(subset=[column])
    ends = [known.iloc[0], known.iloc[-1]] if len(known) > 1 else []
    return [(row["cell"], (row[column], row[f"{column}_low"], row[f"{column}_high"])) for row in ends]


def swept(name: str, column: str, word: str) -> str:
    """Write a quantity at both ends of a sweep."""
    return "; ".join(f"{cell}: {word} {shown(triple)}" for cell, triple in ends_of(name, column)) or NOT_RUN


def sweep_verdict(name: str, column: str, word: str) -> str:
    """Return whether a quantity differs between the ends of a sweep, by intervals that do not overlap."""
    ends = [triple for _, triple in ends_of(name, column)]
    if not ends:
        return UNDECIDED
    (_, low, high), (_, last_low, last_high) = ends
    if last_low > high:
        return f"On this policy the {word} rises between the ends of the sweep."
    if last_high < low:
        return f"On this policy the {word} falls between the ends of the sweep."
    return f"No difference of the {word} is resolved between the ends of the sweep."


def render() -> str:
    """Return the whole page."""
    lines = ["| claim | source | command | figure | what came out | careful sentence |", "|---|---|---|---|---|---|"]
    for one in CLAIMS:
        figure = one.figure if one.figure.startswith("[") else f"`{one.figure}`"
        cells = (one.claim, one.source, f"`{one.command}`", figure, one.found(), one.sentence())
        lines.append(f"| {' | '.join(cells)} |")
    return HEAD + "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
