"""How often 95 % intervals hold exact optima, allocations and scales of enumerated policies.

Three parts: the lowest point of a curve and what optimal baselines state; the noise of an allocation of tokens; the
scales of bins of success rates. Writes figures/statistics/coverage_optima.csv.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pandas as pd
import tyro

import gradstats as gs
from gradstats import estimators as est
from gradstats.reference import EnumeratedPolicy
from gradstats.system.files import write_csv

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))  # where oracles lie

from oracles.optimal_baselines import exact_minimiser, exact_optimal_baselines  # noqa: E402  # needs the path

TABLE = ROOT / "figures" / "statistics" / "coverage_optima.csv"
LEVEL = 0.95
GRIDS = {
    ("length_weighted(loo=True)", "alpha"): np.linspace(-1.0, 2.0, 13),
    ("asymmetric(loo=True)", "delta"): np.linspace(-1.0, 1.0, 9),
}
ORACLE = "norm_weighted(loo=True)"
SIZE_OF_OPTIMA, SIZE_OF_ALLOCATION = 3, 4
SIZES = (2, 4, 6)  # the last is extrapolated from groups of 2 and 4
ALLOCATED = ("rloo", "grpo", "token_mean(loo=True)")
TOKENS = 1000
EDGES = (0.0, 0.4, 1.0)


class Held(NamedTuple):
    """One interval of one data set."""

    quantity: str
    estimator: str
    exact: float
    low: float
    high: float


class Part(NamedTuple):
    """What is simulated: a policy, the size of its groups, and the intervals of one data set."""

    policy: EnumeratedPolicy
    group_size: int
    intervals: Callable[[est.Batch, np.ndarray], Iterator[Held]]


def little_signal() -> EnumeratedPolicy:
    """20 prompts with 15 trajectories each and rewards at random."""
    return EnumeratedPolicy(vocabulary=3, max_length=3, dimension=6, n_prompts=20, rng=1)


def resolved_signal() -> EnumeratedPolicy:
    """20 prompts with 15 trajectories each, of all success rates, whose gradients share a direction."""
    difficulty = np.random.default_rng(3).normal(scale=1.2, size=20)

    def features(prompt: int, prefix: tuple[int, ...]) -> np.ndarray:
        drawn = np.random.default_rng([prompt, *prefix, 7]).normal(size=(3, 2))
        drawn[:, 0] = (0.0, 1.0, -1.0)
        return drawn

    def reward(prompt: int, tokens: tuple[int, ...]) -> float:
        return float(tokens.count(1) - tokens.count(2) + difficulty[prompt] > 0.3)

    theta = np.array([0.2, 0.3])
    return EnumeratedPolicy(3, 3, n_prompts=20, features=features, reward=reward, theta=theta)


def optima(n_prompts: int) -> Part:
    """Return the part on curves and optimal baselines."""
    policy, size = little_signal(), SIZE_OF_OPTIMA
    lowest = {
        one: exact_minimiser(policy, *one, (grid[0], grid[-1]), size).parameters[one[1]] for one, grid in GRIDS.items()
    }
    learned = dict(
        zip(
            ("learned exponent", "learned shift", "learned mixture"),
            exact_optimal_baselines(policy, size, n_prompts),
            strict=True,
        )
    )
    oracle, rloo = (policy.moments(est.get(label), size).trace_cov for label in (ORACLE, "rloo"))
    best = min(one.trace_cov for one in learned.values())

    def intervals(batch: est.Batch, scores: np.ndarray) -> Iterator[Held]:
        for (label, parameter), grid in GRIDS.items():
            curve = gs.variance_curve(batch, label, parameter, grid, scores)
            yield Held("minimiser", label, lowest[label, parameter], *curve.confidence_interval(LEVEL))
        found = gs.optimal_baselines(batch, scores, published=["rloo"])
        frame = found.to_frame(LEVEL).set_index("estimator")
        for one in found.learned:
            exact = learned[one.label]  # pyright: ignore[reportArgumentType]
            if one.optimum is not None:
                (parameter,) = exact.parameters.values()
                yield Held("parameter", one.label, parameter, *one.confidence_interval(LEVEL))
            ends = frame.loc[one.label, ["ratio_low", "ratio_high"]].tolist()
            yield Held("ratio", one.label, exact.trace_cov / oracle, *ends)
        ends = frame.loc["rloo", ["ratio_to_learned_low", "ratio_to_learned_high"]].tolist()
        yield Held("ratio_to_learned", "rloo", rloo / best, *ends)

    return Part(policy, size, intervals)


def allocation(n_prompts: int) -> Part:
    """Return the part on tokens."""
    policy = resolved_signal()
    # At N = 2 the three are multiples of one another; a larger size than was measured is extrapolated for rloo alone.
    chosen = [("rloo", size) for size in SIZES] + [(label, SIZE_OF_ALLOCATION) for label in ALLOCATED[1:]]
    exact = {(label, size): policy.moments(est.get(label), size) for label, size in chosen}
    reference = SIZE_OF_ALLOCATION * exact["rloo", SIZE_OF_ALLOCATION].trace_cov
    length, signal = float(policy.probabilities @ policy.lengths), float(policy.gradient @ policy.gradient)

    def intervals(batch: est.Batch, scores: np.ndarray) -> Iterator[Held]:
        frame = gs.allocate(batch, ALLOCATED, scores, tokens=TOKENS, group_sizes=SIZES).to_frame(LEVEL)
        rows = frame.set_index(["estimator", "group_size"])
        for (label, size), moments in exact.items():
            noise, square = size * moments.matched_trace_cov, moments.coefficient**2
            values = {"relative_noise": noise / reference, "noise_to_signal": noise * length / (TOKENS * signal)}
            if label == "rloo":  # otherwise groups of all completions of a prompt do not separate the two
                values |= {"within_prompt": moments.within_prompt / square}
                values |= {"between_prompt": moments.between_prompt / square}
            if (label, size) == ("rloo", SIZE_OF_ALLOCATION):
                del values["relative_noise"]  # 1 by definition
            for name, value in values.items():
                ends = (np.nan, np.nan)
                if (label, size) in rows.index:
                    ends = rows.loc[(label, size), [f"{name}_low", f"{name}_high"]].tolist()
                yield Held(name, f"{label}, N={size}", value, *ends)

    return Part(policy, SIZE_OF_ALLOCATION, intervals)


def scales(n_prompts: int) -> Part:
    """Return the part on success rates."""
    policy = resolved_signal()
    rate = np.bincount(policy.prompts, policy.probabilities * policy.rewards) / policy.prompt_probabilities
    means = [
        np.stack([one.mean for one in policy.moments_by_prompt(est.get(label), SIZE_OF_ALLOCATION)])
        for label in ("grpo", "rloo")
    ]
    inside = [(rate >= low) & (rate < high) for low, high in pairwise(EDGES)]
    exact = []
    for one in inside:
        scaled, target = (mean[one].mean(axis=0) for mean in means)
        exact.append(float(scaled @ target / (target @ target)))

    def intervals(batch: est.Batch, scores: np.ndarray) -> Iterator[Held]:
        # The exact value before the first token is the prompt's success rate.
        assert batch.values is not None
        found = gs.variance_by_success(batch, ["grpo"], scores, success=batch.values[:, 0].round(12), bins=EDGES)
        for row, value in zip(found.to_frame(LEVEL).to_dict("records"), exact, strict=True):
            yield Held("scale", f"grpo, p in {row['success_low']:g}–{row['success_high']:g}", value,
                       row["scale_low"], row["scale_high"])  # fmt: skip

    return Part(policy, SIZE_OF_ALLOCATION, intervals)


PARTS: dict[str, tuple[Callable[[int], Part], tuple[int, ...]]] = {
    "optima": (optima, (100,)),
    "allocation": (allocation, (30, 100)),
    "scales": (scales, (30, 100)),
}


def coverage(part: str, n_prompts: int, replications: int, seed: int = 0) -> pd.DataFrame:
    """Return how often the intervals of one part hold the exact value, and are known.

    Args:
        part: ``"optima"``, ``"allocation"`` or ``"scales"``.
        n_prompts: groups of a data set.
        replications: data sets.
        seed: of their draws.
    """
    simulated = PARTS[part][0](n_prompts)
    found = []
    for number in range(replications):
        stream = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
        batch, scores, _ = simulated.policy.sample(n_prompts, simulated.group_size, rng=stream)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found += list(simulated.intervals(batch, scores))
    frame = pd.DataFrame(found)
    frame["known"] = np.isfinite(frame["low"]) | np.isfinite(frame["high"])
    frame["held"] = (frame["low"] - 1e-9 <= frame["exact"]) & (frame["exact"] <= frame["high"] + 1e-9)
    rows = []
    for key, group in frame.groupby(["quantity", "estimator"], sort=False):
        quantity, estimator = cast("tuple[str, str]", key)
        held = group.loc[group["known"], "held"]
        rows.append(
            {
                "part": part,
                "quantity": quantity,
                "estimator": estimator,
                "group_size": simulated.group_size,
                "n_prompts": n_prompts,
                "exact": group["exact"].iloc[0],
                "coverage": held.mean() if len(held) else np.nan,
                "known": group["known"].mean(),
                "replications": replications,
            }
        )
    return pd.DataFrame(rows)


def main(parts: tuple[str, ...] = tuple(PARTS), replications: int = 400) -> None:
    """Simulate and write the table.

    Args:
        parts: optima, allocation, scales; rows of the others stay as they are.
        replications: data sets of each size.
    """
    table = pd.read_csv(TABLE) if TABLE.exists() else pd.DataFrame()
    for part in parts:
        new = [coverage(part, n_prompts, replications) for n_prompts in PARTS[part][1]]
        kept = table[table["part"] != part] if len(table) else table
        table = pd.concat([kept, *new], ignore_index=True)
        print(pd.concat(new).to_string(), flush=True)
        order = {name: at for at, name in enumerate(PARTS)}
        table = table.iloc[np.argsort([order[one] for one in table["part"]], kind="stable")].reset_index(drop=True)
        write_csv(TABLE, table)


if __name__ == "__main__":
    tyro.cli(main)
