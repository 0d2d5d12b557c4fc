"""How often the 95 % intervals of ratios and traces cover on populations with differently shaped tails, cheaply.

Weights of group-level estimators do not depend on which other prompts are drawn, so that the gradients of a population
of prompts are formed once and a data set is a choice of rows. Prints the table that it fills.
"""

from __future__ import annotations

import numpy as np
import tyro
from jaxtyping import Float

from gradstats import estimators
from gradstats.estimators import Batch
from gradstats.stats.intervals import skewed_mean, studentised_ratio
from gradstats.stats.jackknife import Statistic, mean_statistic
from gradstats.stats.variance.moments import mean_over_pairs
from gradstats.stats.variance.quantities import simultaneous

LEVEL = 0.95
N_PROMPTS, DIMENSION = 12_000, 12
ESTIMATORS: tuple[str, ...] = ("rloo", "reinforce", "grpo", "token_mean", "length_weighted(alpha=0.8, loo=True)")
#: Population → completions a prompt; the standard deviation is SD in each, and others multiply log‖S‖².
#: "continuous" has the norms of "independent" and rewards of both signs instead of 0/1.
SD = 1.4
POPULATIONS = {"independent": 8, "half": 4, "shared": 8, "gamma": 4, "wrong": 4, "lengths": 8}
CONTINUOUS = {"continuous": 4}


def gradients_of(
    name: str, size: int, sd: float = SD, names: tuple[str, ...] = ESTIMATORS
) -> dict[str, Float[np.ndarray, "m d"]]:
    """Return the gradient of each prompt's group, under each estimator."""
    rng = np.random.default_rng(11)
    n, prompt = N_PROMPTS * size, np.repeat(np.arange(N_PROMPTS), size)
    difficulty = rng.beta(1.5, 1.5, N_PROMPTS)[prompt]
    rewards = (rng.random(n) < difficulty).astype(float)
    lengths = np.ceil(np.exp(rng.normal(4.5, 0.5, n) - 0.2 * rewards)).astype(int)
    own, common = rng.normal(size=n), rng.normal(size=N_PROMPTS)[prompt]
    if name == "gamma":  # ψ'(0.85) = 1.4²
        log_sq = np.log(rng.gamma(0.85, size=n))
    elif name == "lengths":
        lengths = np.where(rng.random(n) < 0.1, 12 * lengths, lengths)
        log_sq = 1.4 * (np.log(lengths) - np.log(lengths).mean()) + 0.6 * own
        log_sq *= 1.4 / log_sq.std()
    else:
        shapes = {
            "independent": 1.4 * own,
            "continuous": 1.4 * own,
            "half": own + 0.98 * common,
            "shared": 0.4 * own + 1.34 * common,
            "wrong": 1.3 * own - 1.04 * (rewards - 0.5),
        }
        log_sq = shapes[name]
    directions = rng.normal(size=(n, DIMENSION)) + 0.3 * rng.normal(size=(N_PROMPTS, DIMENSION))[prompt]
    directions += 0.1 * np.where(rewards == 1.0, 1.0, -difficulty / (1.0 - 0.999 * difficulty))[:, None]
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    scores = directions * np.exp(0.5 * sd / SD * log_sq)[:, None]
    if name in CONTINUOUS:
        rewards = np.clip(difficulty + 0.25 * rng.standard_t(4, size=n), -2.0, 3.0)
    batch = Batch(rewards, lengths, prompt, sq_norms=(scores**2).sum(axis=1))
    return {
        estimator: (estimators.get(estimator).weights(batch)[:, None] * scores).reshape(N_PROMPTS, size, -1).sum(axis=1)
        for estimator in names
    }


def trace_and_squares(gradients: Float[np.ndarray, "m d"]) -> tuple[Statistic, Float[np.ndarray, " m"]]:
    """Return tr Cov of one group a prompt, and the squared gradients."""
    squares = (gradients**2).sum(axis=1)
    value, replicates = mean_over_pairs(gradients, gradients)
    return mean_statistic(squares) - Statistic(float(value), replicates), squares


def row_of(name: str, n_prompts: int, replications: int, sd: float = SD, names: tuple[str, ...] = ESTIMATORS) -> str:
    """Simulate one population; its row of the table as Markdown. The first estimator is the reference."""
    gradients = gradients_of(name, (POPULATIONS | CONTINUOUS)[name], sd, names)
    truth = {each: float(((g - g.mean(axis=0)) ** 2).sum(axis=1).mean()) for each, g in gradients.items()}
    traces, ratios = (dict.fromkeys(each, 0) for each in (names, names[1:]))
    together, effective = 0, 0.0
    for seed in range(replications):
        drawn = np.random.default_rng([seed, n_prompts, 5]).integers(0, N_PROMPTS, n_prompts)
        found = {each: trace_and_squares(g[drawn]) for each, g in gradients.items()}
        reference, squares = found[names[0]]
        effective += squares.sum() ** 2 / (squares**2).sum() / replications
        for each, statistics in found.items():
            low, high = skewed_mean(*statistics).confidence_interval(LEVEL)
            traces[each] += low <= truth[each] <= high
        estimates = [studentised_ratio(found[each][0], reference) for each in ratios]
        true = [truth[each] / truth[names[0]] for each in ratios]
        for each, estimate, value in zip(ratios, estimates, true, strict=True):
            low, high = estimate.confidence_interval(LEVEL)
            ratios[each] += low <= value <= high
        ends = simultaneous(estimates, LEVEL)
        together += all(low <= value <= high for (low, high), value in zip(ends, true, strict=True))
    alone = ", ".join(f"{hits / replications:.3f}" for hits in ratios.values())
    spread = f"{min(traces.values()) / replications:.3f}–{max(traces.values()) / replications:.3f}"
    return f"| {name} | {sd:g} | {effective:.0f} | {alone} | {together / replications:.3f} | {spread} |"


def main(
    replications: int = 500,
    n_prompts: int = 100,
    populations: tuple[str, ...] = tuple(POPULATIONS),
    sds: tuple[float, ...] = (SD,),
    names: tuple[str, ...] = ESTIMATORS,
) -> None:
    """Simulate the populations one by one.

    Args:
        replications: data sets of each.
        n_prompts: of a data set.
        populations: which of them.
        sds: standard deviations of log‖S‖².
        names: estimators, the reference first.
    """
    for sd in sds:
        for name in populations:
            print(row_of(name, n_prompts, replications, sd, names), flush=True)


if __name__ == "__main__":
    tyro.cli(main)
