"""How often 95 % intervals calibrated by a proxy cover, and how much shorter they are than those of the measurement.

Prompts with 0/1 rewards, wrong answers longer, and lognormal squared norms, half of whose spread a prompt shares: a
finite population, of which data sets are drawn with replacement and a part of the prompts is measured, so that the
truth is exact. Proxies are excellent, fair, useless (as heavy-tailed as the norms, and independent of them), wrong (the
larger the smaller the gradient), or right but for the tail; lengths are always a candidate beside them. Writes
figures/statistics/coverage_calibrated.csv.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tyro
from jaxtyping import Float, Int

from gradstats import estimators
from gradstats.estimators import Batch
from gradstats.stats.variance.calibrated import Scored, calibrate
from gradstats.system.files import write_csv

TABLE = Path(__file__).parents[1] / "figures" / "statistics" / "coverage_calibrated.csv"
LEVEL = 0.95
LABELS = ("rloo", "reinforce", "grpo")
PROMPTS, PER_PROMPT, DIMENSION = 10_000, 8, 8

Squares = Float[np.ndarray, " n"]
#: Squared norms, their cut of the tail, and noise → the proxy.
PROXIES: dict[str, Callable[[Squares, Squares], Squares]] = {
    "excellent": lambda squares, noise: squares * np.exp(0.1 * noise),
    "useless": lambda squares, noise: np.exp(1.5 * noise),
    "wrong": lambda squares, noise: 1.0 / squares,
    "fair": lambda squares, noise: squares * np.exp(0.7 * noise),
    "wrong in the tail": lambda squares, noise: np.minimum(squares, np.quantile(squares, 0.9)),
}
#: Spread of log‖S‖² about its line, proxy, measured prompts, and all prompts.
CASES = [(1.5, proxy, 40, 400) for proxy in PROXIES] + [(0.5, proxy, 100, 1000) for proxy in PROXIES]


@cache
def population(spread: float) -> tuple[Batch, Float[np.ndarray, "n d"]]:
    """All completions and their scores; ``spread`` is the standard deviation of log‖S‖² about its line."""
    rng = np.random.default_rng(3)
    prompt = np.repeat(np.arange(PROMPTS), PER_PROMPT)
    level = rng.beta(1.5, 1.5, PROMPTS)[prompt]
    rewards = (rng.random(len(prompt)) < level).astype(float)
    lengths = np.ceil(np.exp(rng.normal(4.5, 0.4, len(prompt)) - 0.3 * rewards)).astype(int)
    noise = np.sqrt(0.5) * (rng.normal(size=PROMPTS)[prompt] + rng.normal(size=len(prompt)))
    directions = rng.normal(size=(len(prompt), DIMENSION)) + 0.3 * rng.normal(size=(PROMPTS, DIMENSION))[prompt]
    directions[:, 0] += 0.5 * (rewards - level)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    scores = directions * np.exp(0.5 * (1.4 * np.log(lengths) + spread * noise))[:, None]
    return Batch(rewards, lengths, prompt), scores


@cache
def truth(spread: float) -> dict[str, float]:
    """Return tr Cov of each estimator in the population."""
    batch, scores = population(spread)
    found = {}
    for label in LABELS:
        gradients = (
            (estimators.get(label).weights(batch)[:, None] * scores).reshape(PROMPTS, PER_PROMPT, -1).sum(axis=1)
        )
        found[label] = float((gradients**2).sum(axis=1).mean() - (gradients.mean(axis=0) ** 2).sum())
    return found


def drawn(
    spread: float, proxy: str, n: int, rng: np.random.Generator
) -> tuple[Batch, Float[np.ndarray, "n d"], Scored]:
    """A data set of some prompts."""
    batch, scores = population(spread)
    chosen: Int[np.ndarray, " m"] = rng.integers(0, PROMPTS, n)
    rows = (chosen[:, None] * PER_PROMPT + np.arange(PER_PROMPT)).ravel()
    prompts, scores = np.repeat(np.arange(n), PER_PROMPT), scores[rows]
    q = PROXIES[proxy]((scores**2).sum(axis=1), rng.normal(size=len(rows)))
    rewards, lengths = batch.rewards[rows], batch.lengths[rows]
    return Batch(rewards, lengths, prompts), scores, Scored(prompts, rewards, lengths, {"proxy": q})


def one_data_set(spread: float, proxy: str, n_measured: int, n: int, seed: int) -> list[dict[str, Any]]:
    """Which intervals cover, with the proxy and without, and their widths."""
    batch, scores, scored = drawn(spread, proxy, n, np.random.default_rng([seed, n_measured, n]))
    rows = np.arange(n_measured * PER_PROMPT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = calibrate(batch.select(rows), LABELS, scored, scores=scores[rows], rng=seed)
    exact, records = truth(spread), []
    for row in found.rows:
        for quantity, one, is_exact in (
            ("trace_cov", row.trace_cov, False),
            ("ratio", row.ratio, row.label == "rloo"),
        ):
            if is_exact:
                continue
            true = exact[row.label] / (exact["rloo"] if quantity == "ratio" else 1.0)
            alone = one.measured.with_interval(LEVEL)
            found_with = one.with_interval(LEVEL) if one.helps else alone
            widths = [np.log(high / low) for _, low, high in (found_with, alone)]
            finite = bool(np.isfinite(widths).all())
            records.append(
                {
                    "estimator": row.label,
                    "quantity": quantity,
                    "covered": found_with[1] <= true <= found_with[2],
                    "covered_without": alone[1] <= true <= alone[2],
                    "helps": one.helps,
                    "finite": finite,
                    "width": widths[0] / widths[1] if finite else np.nan,
                    "factor": one.factor,
                    "error": np.log(found_with[0] / true) ** 2,
                    "error_without": np.log(alone[0] / true) ** 2,
                }
            )
    return records


def simulate(spread: float, proxy: str, n_measured: int, n: int, sets: int) -> pd.DataFrame:
    """The row of each interval of one population, proxy and size."""
    frame = pd.DataFrame([one for seed in range(sets) for one in one_data_set(spread, proxy, n_measured, n, seed)])
    grouped = frame.groupby(["estimator", "quantity"], sort=False)
    means = grouped.mean().reset_index()
    means["worst_width"] = grouped["width"].max().to_numpy()
    means["factor_of_errors"] = means.pop("error_without") / means.pop("error")
    about = {"spread": spread, "proxy": proxy, "n_measured": n_measured, "n_prompts": n, "data_sets": sets}
    for at, (name, value) in enumerate(about.items()):
        means.insert(at, name, value)
    return means


def main(sets: int = 1000) -> None:
    """Simulate every case, and write the table after each: an interrupted run leaves the cases that are done.

    Args:
        sets: data sets of each case.
    """
    found = []
    for case in CASES:
        found.append(simulate(*case, sets))
        print(found[-1].to_string(index=False, float_format="{:.3f}".format), flush=True)
        write_csv(TABLE, pd.concat(found))


if __name__ == "__main__":
    tyro.cli(main)
