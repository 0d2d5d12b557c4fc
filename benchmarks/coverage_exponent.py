"""How often the 95 % interval of the best exponent of length weights holds it.

Populations are the two enumerated policies of coverage_optima.py, in groups of 3, and the lognormal ones of
coverage_heavy_tails.py, with 8 completions of each prompt. Beside the interval of the package stands the one whose
quantile is Student's with M − 1 degrees of freedom. Writes figures/statistics/coverage_exponent.csv.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pandas as pd
import tyro
from jaxtyping import Float
from scipy import interpolate, stats

from gradstats import estimators as est
from gradstats.analyses.optimal_baselines import EXPONENTS
from gradstats.estimators import Batch
from gradstats.stats.jackknife import Statistic, covariance_of
from gradstats.stats.variance.minimiser import minimiser_of
from gradstats.stats.variance.moments import prompt_moments, split_into_groups
from gradstats.system.files import write_csv

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))  # where oracles lie

from oracles.optimal_baselines import exact_minimiser  # noqa: E402  # needs the path

TABLE = ROOT / "figures" / "statistics" / "coverage_exponent.csv"
LEVEL = 0.95
SIZES = (30, 100)
GROUP = 3

Data = tuple[Batch, Float[np.ndarray, "n d"]]


class Population(NamedTuple):
    """Where data sets are drawn from.

    Attributes:
        name: what it is called in the table.
        group_size: completions of a prompt.
        exact: its best exponent.
        draw: takes a number of prompts and a generator.
    """

    name: str
    group_size: int
    exact: float
    draw: Callable[[int, np.random.Generator], Data]


def variances(batch: Batch, scores: Float[np.ndarray, "n d"]) -> list[Statistic]:
    """Return tr Cov at each exponent, as optimal baselines estimate it."""
    groups = split_into_groups(batch.group_index, np.arange(len(scores)), None)
    found = [
        prompt_moments(scores, est.length_weighted(alpha=one, loo=True).weights(batch), groups) for one in EXPONENTS
    ]
    return [one.trace_cov for one in found]


def populations() -> Iterator[Population]:
    """Yield each population."""
    from coverage_heavy_tails import PER_PROMPT, lognormal_population
    from coverage_optima import little_signal, resolved_signal

    for name, policy in (("rewards at random", little_signal()), ("resolved signal", resolved_signal())):
        bounds = (float(EXPONENTS[0]), float(EXPONENTS[-1]))
        exact = exact_minimiser(policy, "length_weighted(loo=True)", "alpha", bounds, GROUP).parameters["alpha"]

        def from_policy(n: int, rng: np.random.Generator, policy=policy) -> Data:
            batch, scores, _ = policy.sample(n, GROUP, rng=rng)
            return batch, scores

        yield Population(name, GROUP, exact, from_policy)
    for sd, shared in ((0.8, 0.0), (1.4, 0.0), (1.4, 0.9), (2.0, 0.0)):
        whole = lognormal_population(sd, shared)
        lowest = minimiser_of(EXPONENTS, variances(*whole.sample(np.arange(whole.n_prompts))))
        assert lowest is not None

        def from_prompts(n: int, rng: np.random.Generator, whole=whole) -> Data:
            return whole.sample(rng.integers(0, whole.n_prompts, n))

        yield Population(whole.name, PER_PROMPT, lowest.value, from_prompts)


def held(drawn: list[Statistic], exact: float) -> dict[str, bool]:
    """Return whether the interval holds the exact exponent, on which side it lies if not, and what Student's does."""
    lowest = minimiser_of(EXPONENTS, drawn)
    assert lowest is not None
    low, high = lowest.confidence_interval(LEVEL)
    slope = interpolate.CubicSpline(EXPONENTS, np.eye(len(EXPONENTS)))(exact, 1)
    t = slope @ np.array([one.value for one in drawn]) / np.sqrt(slope @ covariance_of(drawn) @ slope)
    student = float(stats.t.ppf(0.5 + LEVEL / 2.0, len(drawn[0].replicates) - 1))
    return {"coverage": low <= exact <= high, "student": abs(t) <= student, "below": high < exact, "above": low > exact}


def coverage(population: Population, n_prompts: int, replications: int, seed: int = 0) -> dict[str, float | str]:
    """Return the row of one population and number of prompts.

    Args:
        population: where data sets are drawn from.
        n_prompts: M.
        replications: data sets.
        seed: of their draws.
    """
    found = []
    for number in range(replications):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number, n_prompts)))
        found.append(held(variances(*population.draw(n_prompts, rng)), population.exact))
    shares = cast("dict[str, float]", pd.DataFrame(found).mean().to_dict())
    about = {"population": population.name, "group_size": population.group_size, "n_prompts": n_prompts}
    return about | {"exact": population.exact} | shares | {"replications": replications}


def main(replications: int = 300) -> None:
    """Simulate, and write the table after each row.

    Args:
        replications: data sets of each population and number of prompts.
    """
    rows: list[dict[str, float | str]] = []
    for population in populations():
        for n_prompts in SIZES:
            rows.append(coverage(population, n_prompts, replications))
            print(rows[-1], flush=True)
            write_csv(TABLE, pd.DataFrame(rows))


if __name__ == "__main__":
    tyro.cli(main)
