"""How often the 95 % intervals of a variance comparison cover where a few prompts carry most of the variance.

Data sets are drawn from finite populations of prompts, with replacement, so that what is estimated is known exactly:
four with lognormal norms (standard deviation of log‖S‖² about its line 0.8, 1.4 and 2.0, and 1.4 of which nine tenths
of the variance are shared by the completions of a prompt), and the measured one of benchmarks/data. Batch-level rows
enter every third data set. Writes figures/statistics/coverage_heavy_tails.csv after every block of data sets and
resumes from it;
``python benchmarks/coverage_page.py`` puts it into docs/statistics.md.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tyro
from coverage import heavy_tailed_population
from coverage_page import BATCH_LEVEL
from jaxtyping import Float, Int

from gradstats.analyses.variance import compare
from gradstats.estimators import Batch
from gradstats.system.files import atomic_path

TABLE = Path(__file__).parents[1] / "figures" / "statistics" / "coverage_heavy_tails.csv"
LOCAL = ("rloo", "reinforce", "grpo", "token_mean", "length_weighted(alpha=0.8, loo=True)")
ESTIMATORS = (*LOCAL, *BATCH_LEVEL)
QUANTITIES = ("trace_cov", "ratio", "noise_to_signal", "matched_ratio", "cosine", "bias_share")
LEVEL = 0.95
DEALS = 64
BLOCK = 20
#: Batch-level rows, which take most of the time, are in one data set of so many.
EVERY = 3
PER_PROMPT = 8
PROMPTS_OF_A_POPULATION = 2000
DIMENSION = 48


@dataclass(frozen=True)
class Population:
    """Prompts with eight completions each, in the order of prompts.

    Attributes:
        name: of the population.
        rewards: (P·8,)
        lengths: (P·8,)
        scores: (P·8, D).
    """

    name: str
    rewards: Float[np.ndarray, " n"]
    lengths: Int[np.ndarray, " n"]
    scores: Float[np.ndarray, "n d"]

    def sample(self, prompts: Int[np.ndarray, " m"]) -> tuple[Batch, Float[np.ndarray, "m d"]]:
        """Some prompts, each as a prompt of its own however often it is drawn."""
        rows = (prompts[:, None] * PER_PROMPT + np.arange(PER_PROMPT)).ravel()
        labels = np.repeat(np.arange(len(prompts)), PER_PROMPT)
        scores = self.scores[rows]
        return Batch(self.rewards[rows], self.lengths[rows], labels, sq_norms=(scores**2).sum(axis=1)), scores

    @property
    def n_prompts(self) -> int:
        """P."""
        return len(self.rewards) // PER_PROMPT

    @cached_property
    def truth(self) -> dict[tuple[str, str], float]:
        """(estimator, quantity) → what it is in the population, of estimators that stay within their group."""
        from gradstats import estimators

        batch, scores = self.sample(np.arange(self.n_prompts))
        gradients = {}
        for name in LOCAL:
            weights = estimators.get(name).weights(batch)
            gradients[name] = (weights[:, None] * scores).reshape(self.n_prompts, PER_PROMPT, -1).sum(axis=1)
        means = {name: values.mean(axis=0) for name, values in gradients.items()}
        traces = {name: ((values - means[name]) ** 2).sum(axis=1).mean() for name, values in gradients.items()}
        unbiased = means["rloo"]
        found = {}
        for name in LOCAL:
            mean, trace = means[name], traces[name]
            coefficient = mean @ unbiased / (unbiased @ unbiased)
            bias_sq = float(((mean - unbiased) ** 2).sum())
            values = (
                trace,
                trace / traces["rloo"],
                trace / (mean @ mean),
                trace / traces["rloo"] / coefficient**2,
                mean @ unbiased / np.sqrt((mean @ mean) * (unbiased @ unbiased)),
                bias_sq / (bias_sq + trace / 128),
            )
            found |= {(name, quantity): float(value) for quantity, value in zip(QUANTITIES, values, strict=True)}
        return found

    def dealt_truth(self, n_prompts: int) -> dict[tuple[str, str], float]:
        """The traces and ratios of batch-level estimators in batches as a comparison of so many prompts deals them.

        Batches are drawn with replacement, as data sets are: the mean over 4000 of them, whose error is about 2 %.
        """
        from gradstats import estimators

        size, rng, found = max(1, n_prompts // 4), np.random.default_rng(7), {}
        draws = [rng.integers(0, self.n_prompts, size) for _ in range(4000)]
        for name in BATCH_LEVEL:
            chosen, gradients, local = estimators.get(name), [], []
            for prompts in draws:
                batch, scores = self.sample(prompts)
                gradients.append(chosen.weights(batch) @ scores / size)
                local.append(estimators.get("rloo").weights(batch) @ scores / size)
            trace, beside = (size * np.var(np.array(each), axis=0).sum() for each in (gradients, local))
            # The ratio of the two on the same batches is far less noisy than either.
            found[name, "ratio"] = float(trace / beside)
            found[name, "trace_cov"] = float(trace / beside * self.truth["rloo", "trace_cov"])
        return found


def lognormal_population(sd: float, shared: float = 0.0) -> Population:
    """Prompts of different difficulty, wrong answers longer, and lognormal squared norms about T^1.4.

    Args:
        sd: standard deviation of log‖S‖² about its line.
        shared: the share of its square that the completions of a prompt have in common.
    """
    rng = np.random.default_rng(int(10 * sd))
    n = PROMPTS_OF_A_POPULATION * PER_PROMPT
    prompt = np.repeat(np.arange(PROMPTS_OF_A_POPULATION), PER_PROMPT)
    difficulty = rng.beta(1.5, 1.5, PROMPTS_OF_A_POPULATION)[prompt]
    rewards = (rng.random(n) < difficulty).astype(float)
    lengths = np.ceil(np.exp(rng.normal(4.5, 0.4, n) - 0.2 * rewards)).astype(int)
    common = np.random.default_rng(1).normal(size=PROMPTS_OF_A_POPULATION)[prompt]
    log_sq = 1.4 * np.log(lengths) + sd * (np.sqrt(1.0 - shared) * rng.normal(size=n) + np.sqrt(shared) * common)
    directions = rng.normal(size=(n, DIMENSION)) + 0.3 * rng.normal(size=(PROMPTS_OF_A_POPULATION, DIMENSION))[prompt]
    directions += 0.35 * np.where(rewards == 1.0, 1.0, -difficulty / (1.0 - 0.999 * difficulty))[:, None] / 4.0
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    name = f"lognormal, sd {sd:g}" + (", shared" if shared else "")
    return Population(name, rewards, lengths, directions * np.exp(0.5 * log_sq)[:, None])


def measured_population() -> Population:
    """The 96 prompts of benchmarks/data, as vectors with their Gram matrix."""
    batch, gram = heavy_tailed_population()
    values, vectors = np.linalg.eigh(gram)
    scores = vectors * np.sqrt(np.maximum(values, 0.0))
    order = np.argsort(batch.group_index, kind="stable")
    return Population("measured, sd 2.0", batch.rewards[order], batch.lengths[order], scores[order])


def populations() -> list[Population]:
    """Every population, lightest tails first."""
    cases = ((0.8, 0.0), (1.4, 0.0), (1.4, 0.9), (2.0, 0.0))
    return [*(lognormal_population(sd, shared) for sd, shared in cases), measured_population()]


Truth = dict[tuple[str, str], float]


def one_data_set(population: Population, truth: Truth, n_prompts: int, seed: int) -> pd.DataFrame:
    """Which intervals of one data set cover, and whether they are bounded."""
    rng = np.random.default_rng([seed, n_prompts])
    batch, scores = population.sample(rng.integers(0, population.n_prompts, n_prompts))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = LOCAL if seed % EVERY else ESTIMATORS
        table = compare(batch, names, scores, n_resamples=DEALS, rng=seed).to_frame(LEVEL)
    table.index = pd.Index(names)
    records = []
    truth = {(name, quantity): value for (name, quantity), value in truth.items() if name in names}
    for (name, quantity), value in truth.items():
        records.append((name, quantity, _covers(table, name, quantity, value), np.isfinite(table.loc[name, quantity])))
    held = [
        _covers(table, name, "ratio_simultaneous", value)
        for (name, quantity), value in truth.items()
        if quantity == "ratio"
    ]
    matched = [_covers(table, name, "matched_ratio_simultaneous", truth[name, "matched_ratio"]) for name in LOCAL]
    records += [("all", "ratio_simultaneous", all(held), True)]
    records += [("all", "matched_ratio_simultaneous", all(matched), True)]
    best = min(LOCAL, key=lambda name: truth[name, "matched_ratio"])
    if np.isfinite(table.loc[best, "matched_ratio"]):
        records.append((best, "in_best_set", bool(table.loc[best, "in_best_set"]), True))
    worth = float(table.loc["rloo", "n_effective_prompts"])
    frame = pd.DataFrame(records, columns=["estimator", "quantity", "covered", "bounded"])
    return frame.assign(effective=worth, data_sets=1)


def _covers(table: pd.DataFrame, name: str, quantity: str, value: float) -> bool:
    low, high = table.loc[name, f"{quantity}_low"], table.loc[name, f"{quantity}_high"]
    return bool(low - 1e-9 <= value <= high + 1e-9)


def main(minutes: float = 6.0, replications: int = 300, sizes: tuple[int, ...] = (100, 30)) -> None:
    """Simulate, block by block over all populations, until the time or the replications are reached.

    Args:
        minutes: processor time.
        replications: data sets of each population and number of prompts.
        sizes: prompts of a data set.
    """
    cases = [(population, size) for size in sizes for population in populations()]
    truths = {}
    total = pd.read_csv(TABLE) if TABLE.exists() else pd.DataFrame()
    while time.process_time() < 60.0 * minutes:
        advanced = False
        for population, size in cases:
            key = (population.name, size)
            done = 0
            if len(total):
                mine = (total["population"] == population.name) & (total["n_prompts"] == size)
                done = int(total["data_sets"].to_numpy(dtype=float)[mine.to_numpy()].max(initial=0.0))
            if done >= replications or time.process_time() > 60.0 * minutes:
                continue
            if key not in truths:
                truths[key] = population.truth | population.dealt_truth(size)
            block = pd.concat([one_data_set(population, truths[key], size, seed) for seed in range(done, done + BLOCK)])
            block.insert(0, "population", population.name)
            block.insert(1, "n_prompts", size)
            columns = ["population", "n_prompts", "estimator", "quantity"]
            # pandas declares that such sums may be scalars.
            grouped: Any = pd.concat([total, block]).groupby(columns, sort=False)
            total = grouped.sum(numeric_only=True).reset_index()
            with atomic_path(TABLE) as partial:
                total.to_csv(partial, index=False, float_format="%.6g", lineterminator="\n")
            advanced = True
        if not advanced:
            break
    print(TABLE)


if __name__ == "__main__":
    tyro.cli(main)
