"""How often the 95 % intervals cover the truth: of α on simulated lengths, of variances on an enumerated policy.

Writes figures/statistics/coverage_alpha.csv and coverage_variance.csv; coverage_page.py puts them into
docs/statistics.md.
``tests/stats/test_coverage.py`` checks the same simulations against their bands.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tyro

from gradstats.analyses.variance import compare
from gradstats.config.options import PROMPTS_PER_BATCH
from gradstats.reference import EnumeratedPolicy
from gradstats.stats import fit_length_scaling, mundlak_test
from gradstats.stats.length_scaling.alpha import METHODS
from gradstats.system.files import atomic_path

FOLDER = Path(__file__).parents[1] / "figures" / "statistics"
LEVEL = 0.95
# Completions of one prompt at each total, where prompts repeat.
PER_PROMPT = {30: 3, 100: 4, 1000: 8}
ALPHA_WITHIN, ALPHA_BETWEEN = 0.7, 0.9
SD_WITHIN, SD_BETWEEN = 0.4, 0.6
ONE_SLOPE = "prompts repeat, one slope"
SCENARIOS = ("equal noise", "noise varies with length", "prompts repeat", ONE_SLOPE)
INTERVALS = {
    "ols": ("t", "hc3", "cluster", "bootstrap"),
    "theil_sen": ("rank", "cluster"),
    "gamma": ("hc3", "cluster"),
    "ppml": ("hc3", "cluster"),
    "within_prompt": ("t", "hc3", "cluster", "bootstrap"),
    "between_prompt": ("t", "hc3", "cluster", "bootstrap"),
    "gls": ("t", "cluster"),
    "mundlak": ("cluster",),
}
#: Fits of the mean of ‖S‖², not of the mean of its logarithm.
MEAN_METHODS = ("gamma", "ppml")
# (completions per group, prompts)
VARIANCE_SIZES = ((2, 30), (2, 100), (3, 100), (4, 100), (4, 400))
ESTIMATORS = ("reinforce", "rloo", "grpo", "token_mean", "length_weighted(alpha=0.8, loo=True)")


def methods_of(scenario: str) -> list[str]:
    """Fits with prompt effects need prompts that repeat; one line by generalised least squares, one slope."""
    if scenario == ONE_SLOPE:
        return ["ols", "within_prompt", "gls", "mundlak"]
    if scenario == "prompts repeat":
        return [method for method in INTERVALS if method != "gls"]
    return ["ols", "theil_sen", *MEAN_METHODS]


def offered_by(scenario: str, method: str, n: int) -> list[str]:
    """The intervals that are simulated."""
    if scenario == ONE_SLOPE:
        return ["t", "cluster"] if method == "gls" else ["cluster"]
    if method == "theil_sen" and scenario == "prompts repeat":
        return ["cluster"]
    if method == "theil_sen" and n == 1000:  # all pairs of a thousand, twice, two thousand times: an hour
        return ["rank"]
    return list(INTERVALS[method])


def slow(method: str, interval: str) -> bool:
    """Whether a simulation takes minutes where the others take seconds."""
    return method == "theil_sen" or interval == "bootstrap"


def claimed(scenario: str, method: str, interval: str) -> bool:
    """Whether an interval is claimed to cover: whether its assumptions hold in the scenario.

    No interval of a fit of the mean is: it rests on single norms, and noise as large as here makes the normal
    approximation poor even at a thousand sequences.
    """
    if method in MEAN_METHODS:
        return False
    if scenario == "equal noise":
        return True
    if scenario == "noise varies with length":
        return interval not in ("t", "rank")
    return interval in ("cluster", "bootstrap") or (method == "between_prompt" and interval == "hc3")


def may_cover_more(row: dict[str, Any]) -> bool:
    """Whether the interval of a variance quantity may cover more often than the band allows.

    The intervals of traces and ratios are the widest of several, open where few completions carry the noise, as that
    of noise over signal is; those of directions are conservative while the signal is hardly resolved. With thirty pairs
    that of the signal is too wide as well, because the jackknife counts the remaining part of the U-statistic twice
    where the signal is nearly zero.
    """
    wide = {"trace_cov", "noise_to_signal", "ratio", "matched_ratio", "cosine", "bias_share", "matched_bias_share"}
    if (row["group_size"], row["n_prompts"]) == (2, 30):
        wide |= {"signal_sq"}
    return row["quantity"] in wide


def true_alpha(scenario: str, method: str, n: int) -> float:
    """The α a fit estimates: half the slope of the line that its method describes, in the population.

    Mundlak's test estimates the difference of α between and within prompts.
    """
    if method == "mundlak":
        return true_alpha(scenario, "between_prompt", n) - true_alpha(scenario, "within_prompt", n)
    if scenario != "prompts repeat":
        return ALPHA_BETWEEN
    within, between = SD_WITHIN**2, SD_BETWEEN**2
    if method == "within_prompt":
        return ALPHA_WITHIN
    if method == "between_prompt":  # the means over k completions keep 1/k of the variation within prompts
        within = within / PER_PROMPT[n]
    return (ALPHA_WITHIN * within + ALPHA_BETWEEN * between) / (within + between)


def draw(scenario: str, method: str, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log T, log‖S‖² and the prompt of n sequences."""
    repeat = PER_PROMPT[n] if scenario.startswith("prompts repeat") else 1
    m = -(-n // repeat)
    prompt = np.repeat(np.arange(m), repeat)[:n]
    centre = rng.normal(0.0, SD_BETWEEN, m)[prompt]
    deviation = rng.normal(0.0, SD_WITHIN, n)
    x = centre + deviation
    scale = np.ones(n) if scenario == "equal noise" else 0.4 + 0.6 * np.abs(x)
    noise = scale * (0.6 * rng.normal(size=m)[prompt] + 0.7 * rng.normal(size=n))
    if method in MEAN_METHODS:  # here the mean of ‖S‖² follows a power law, not the mean of its logarithm
        noise = noise - scale**2 * (0.6**2 + 0.7**2) / 2.0
    within = ALPHA_WITHIN if scenario == "prompts repeat" else ALPHA_BETWEEN
    return x + 4.5, 2.0 * ALPHA_BETWEEN * centre + 2.0 * within * deviation + noise, prompt


def alpha_intervals(
    method: str, x: np.ndarray, y: np.ndarray, prompt: np.ndarray, kinds: list[str], seed: int
) -> dict[str, tuple[float, float]]:
    """The intervals of α by one method, or of the difference that Mundlak's test is of."""
    if method == "mundlak":
        test = mundlak_test(fit_length_scaling(lengths=np.exp(x), sq_norms=np.exp(y), groups=prompt))
        return {"cluster": test.confidence_interval(LEVEL)}
    line = METHODS[method](x, y, prompt)
    ends = {kind: line.slope_interval(LEVEL, kind, 400, np.random.default_rng(seed)) for kind in kinds}
    return {kind: (low / 2.0, high / 2.0) for kind, (low, high) in ends.items()}


def alpha_coverage(scenario: str, method: str, n: int, replications: int, quick: bool = False) -> pd.DataFrame:
    """Share of intervals that cover the true α, one row an interval kind; without the slow ones if quick."""
    truth = true_alpha(scenario, method, n)
    offered = [kind for kind in offered_by(scenario, method, n) if not (quick and slow(method, kind))]
    hits = dict.fromkeys(offered, 0)
    widths = {kind: [] for kind in offered}
    prompt = np.zeros(1, dtype=int)
    for seed in range(replications if offered else 0):
        x, y, prompt = draw(scenario, method, n, np.random.default_rng([seed, n]))
        for kind, (low, high) in alpha_intervals(method, x, y, prompt, offered, seed).items():
            hits[kind] += low <= truth <= high
            widths[kind].append((high - low) / 2.0)
    return pd.DataFrame(
        {
            "scenario": scenario,
            "method": method,
            "interval": kind,
            "default": kind == "cluster",
            "n": n,
            "n_prompts": int(prompt.max()) + 1,
            "true_alpha": truth,
            "coverage": hits[kind] / replications,
            "median_half_width": float(np.median(widths[kind])),
            "replications": replications,
        }
        for kind in offered
    )


def policy() -> EnumeratedPolicy:
    """Twenty prompts of fifteen trajectories, of 1 to 3 tokens."""
    return EnumeratedPolicy(vocabulary=3, max_length=3, dimension=6, n_prompts=20, rng=3)


def variance_coverage(group_size: int, n_prompts: int, replications: int) -> pd.DataFrame:
    """Share of intervals that cover the enumerated truth, one row per estimator and quantity."""
    from gradstats import estimators

    exact_policy = policy()
    moments = {name: exact_policy.moments(estimators.get(name), group_size) for name in ESTIMATORS}
    truth = {
        name: {
            "trace_cov": moment.trace_cov,
            "ratio": moment.trace_cov / moments["rloo"].trace_cov,
            "signal_sq": moment.signal_sq,
            "noise_to_signal": moment.noise_to_signal,
            "matched_ratio": moment.matched_trace_cov / moments["rloo"].matched_trace_cov,
            "cosine": moment.cosine,
            "bias_share": moment.bias_share(PROMPTS_PER_BATCH),
            "matched_bias_share": moment.matched_bias_share(PROMPTS_PER_BATCH),
        }
        for name, moment in moments.items()
    }
    quantities = list(truth["rloo"])
    hits = pd.DataFrame(0, index=list(ESTIMATORS), columns=quantities)
    for seed in range(replications):
        batch, scores, _ = exact_policy.sample(n_prompts, group_size, np.random.default_rng([seed, group_size]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            rows = compare(batch, ESTIMATORS, scores).rows
        for name, row in zip(ESTIMATORS, rows, strict=True):
            # Those of the table, without its simultaneous ones and its best set, which take as long.
            for quantity in quantities:
                _, low, high = getattr(row, quantity).with_interval(LEVEL)
                hits.loc[name, quantity] += low - 1e-9 <= truth[name][quantity] <= high + 1e-9
    return pd.DataFrame(
        {
            "quantity": quantity,
            "estimator": name,
            "group_size": group_size,
            "n_prompts": n_prompts,
            "truth": truth[name][quantity],
            "coverage": hits.loc[name, quantity] / replications,
            "replications": replications,
        }
        for quantity in quantities
        for name in ESTIMATORS
    )


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """The rows by number of sequences, scenario, method and interval, as they are simulated."""
    cells = [
        (n, scenario, method, interval)
        for n in PER_PROMPT
        for scenario in SCENARIOS
        for method in methods_of(scenario)
        for interval in offered_by(scenario, method, n)
    ]
    columns = ["n", "scenario", "method", "interval"]
    return pd.DataFrame(cells, columns=columns).merge(table, on=columns).reindex(columns=table.columns)


def main(what: str = "all", replications: int = 2000, keep_slow: bool = False) -> None:
    """Run the simulations (half an hour on one core).

    Args:
        what: alpha, variance, or all.
        replications: data sets simulated for each row.
        keep_slow: for alpha, take the rows of the bootstrap and of Theil–Sen from the file as it is (minutes).
    """
    if what in ("alpha", "all"):
        tables = [
            alpha_coverage(scenario, method, n, replications, quick=keep_slow)
            for n in PER_PROMPT
            for scenario in SCENARIOS
            for method in methods_of(scenario)
        ]
        if keep_slow:
            saved = pd.read_csv(FOLDER / "coverage_alpha.csv")
            kept = [slow(row["method"], row["interval"]) for row in saved.to_dict("records")]
            tables.append(saved.loc[kept])
        _write(
            [in_order(pd.concat([table for table in tables if len(table)], ignore_index=True))], "coverage_alpha.csv"
        )
    if what in ("variance", "all"):
        _write([variance_coverage(*size, replications) for size in VARIANCE_SIZES], "coverage_variance.csv")


def _write(tables: list[pd.DataFrame], name: str) -> None:
    with atomic_path(FOLDER / name) as partial:
        pd.concat(tables, ignore_index=True).to_csv(partial, index=False, float_format="%.4g", lineterminator="\n")
    print(FOLDER / name)


if __name__ == "__main__":
    tyro.cli(main)
