"""How often 95 % intervals hold the truth where completions come from an older policy, for every recipe of the zoo.

Independent data sets of an enumerated policy with θ_old ≠ θ; cosine, matched bias and variance of each recipe against
exact enumeration. Writes figures/statistics/coverage_off_policy.csv and prints what falls short.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import tyro

from gradstats.estimators import Recipe, recipes
from gradstats.estimators.estimator import Weighting
from gradstats.reference import EnumeratedPolicy
from gradstats.stats import compare
from gradstats.system.files import write_csv

FOLDER = Path(__file__).parents[1] / "figures" / "statistics"
LEVEL = 0.95
QUANTITIES = ("trace_cov", "cosine", "matched_bias_share")
GROUP_SIZE = 3
PROMPTS_PER_BATCH = 128
PLAIN = recipes.get("rloo")
# PPO's surrogate with clips that no ratio reaches.
TOKEN_RATIOS = Recipe("rloo", ratio="token_clip(eps_low=0.99, eps_high=100)", name="token_ratios")
RANKED = (PLAIN, TOKEN_RATIOS)
ENTROPY = 0.9  # nats


def policy() -> EnumeratedPolicy:
    """Token ratios between 0.38 and 1.49, χ² = 0.15, and plain RLOO at cosine 0.66 to ∇J."""
    rng = np.random.default_rng(244)
    theta = rng.normal(scale=0.5, size=4)
    return EnumeratedPolicy(3, 4, n_prompts=2, theta=theta, old_theta=theta + 0.2 * rng.normal(size=4), rng=144)


def zoo() -> list[Weighting]:
    """Every published recipe as published, and the off-policy ones."""
    named = [
        recipes.get(name)
        for name in (
            "reinforce", "rloo", "rloo_is", "ppo", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "opo", "gmpo", "delta_l",
        )
    ]  # fmt: skip
    # The published mask by share of the batch has no group; the threshold keeps 28 % of the tokens.
    named.append(recipes.get("dapo_top_entropy", threshold=ENTROPY))
    truncated = Recipe("rloo", ratio="sequence_product(truncate=1.2)", name="truncated")
    return [*named, recipes.get("kimi_k15", tau=0.5), TOKEN_RATIOS, truncated]


def coverage(
    n_prompts: int, replications: int, seed: int = 0, estimators: Sequence[Weighting] | None = None
) -> pd.DataFrame:
    """One row for each recipe and quantity: how often the interval holds the exact value, and how often it is known.

    ``.attrs["ranked"]`` is the share of data sets in which token ratios have a higher cosine than plain RLOO.

    Args:
        n_prompts: groups in each data set.
        replications: data sets.
        seed: of their draws.
        estimators: whose rows; the whole zoo by default.
    """
    drawn, chosen = policy(), list(estimators or zoo())
    exact = {}
    for estimator in chosen:
        moments = drawn.moments(estimator, GROUP_SIZE)
        matched = moments.matched_bias_share(PROMPTS_PER_BATCH)
        exact[estimator.label] = dict(zip(QUANTITIES, (moments.trace_cov, moments.cosine, matched), strict=True))
    hits: dict[tuple[str, str], list[bool]] = {(label, name): [] for label in exact for name in QUANTITIES}
    ranked = []
    for stream in np.random.default_rng(seed).spawn(replications):
        batch, _, token_scores = drawn.sample(n_prompts, GROUP_SIZE, rng=stream)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            frame = compare(
                batch,
                [*chosen, *(one for one in RANKED if one.label not in exact)],
                token_scores,
                prompts_per_batch=PROMPTS_PER_BATCH,
                target="importance",
            ).to_frame(LEVEL)
        by_label = frame.set_index("estimator")
        ranked.append(bool(by_label.loc[PLAIN.label, "cosine"] < by_label.loc[TOKEN_RATIOS.label, "cosine"]))
        for (label, name), held in hits.items():
            low, high = by_label.loc[label, f"{name}_low"], by_label.loc[label, f"{name}_high"]
            if np.isfinite(low) or np.isfinite(high):
                # The target's own cosine and bias are exact: rounding is no miss.
                held.append(bool(low - 1e-9 <= exact[label][name] <= high + 1e-9))
    print(f"{n_prompts} groups: token ratios rank above plain RLOO in {np.mean(ranked):.1%} of data sets")
    rows = [
        {
            "estimator": label,
            "quantity": name,
            "n_prompts": n_prompts,
            "exact": exact[label][name],
            "known": len(held) / replications,
            "coverage": float(np.mean(held)) if held else np.nan,
            "replications": replications,
        }
        for (label, name), held in hits.items()
    ]
    table = pd.DataFrame(rows)
    table.attrs["ranked"] = float(np.mean(ranked))
    return table


def main(
    prompts: tuple[int, ...] = (100, 400), replications: int = 1000, seed: int = 0, only: tuple[str, ...] = ()
) -> None:
    """Simulate, write the table and print the rows that fall short.

    Args:
        prompts: groups in a data set.
        replications: data sets of each size.
        seed: of the draws.
        only: labels of the zoo to simulate; the table is then printed and not written.
    """
    if unknown := set(only) - {one.label for one in zoo()}:
        raise ValueError(f"only={unknown} is not in the zoo: {', '.join(one.label for one in zoo())}")
    chosen = [one for one in zoo() if not only or one.label in only]
    table = pd.concat([coverage(n, replications, seed, chosen) for n in prompts], ignore_index=True)
    if not only:
        write_csv(FOLDER / "coverage_off_policy.csv", table)
    print(table.to_string())
    error = 2 * np.sqrt(LEVEL * (1 - LEVEL) / replications)
    short = table[table["coverage"] < 0.92 - error]
    print("short of 0.92:", short[["estimator", "quantity", "n_prompts", "coverage"]])


if __name__ == "__main__":
    tyro.cli(main)
