"""How often 95 % intervals hold the truth where completions come from an older policy, for every recipe of the zoo.

Independent data sets of an enumerated policy with θ_old ≠ θ; cosine, matched bias and variance of each recipe against
exact enumeration. Writes figures/statistics/coverage_off_policy.csv and prints what falls short. A data set takes about
a second of processor time. ``--sketch-dim`` compares some of the recipes from a measurement instead, whose completions
and weightings are known by a random projection, and writes their rows to coverage_off_policy_sketched.csv.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypedDict

import numpy as np
import pandas as pd
import tyro
from jaxtyping import Float

from gradstats.analyses.variance import compare
from gradstats.estimators import Batch, Recipe, recipes, token_weightings
from gradstats.estimators.estimator import Weighting
from gradstats.measurement.measurement import WeightedGradients
from gradstats.reference import EnumeratedPolicy
from gradstats.rollouts.table import Rollouts
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
#: Recipes that are compared from sketches as well: plain sums, clips of completions, and measured weightings.
SKETCHED = ("rloo", "rloo_is", "gspo", "grpo", "dapo", "cispo")
SKETCHED_TABLE = "coverage_off_policy_sketched.csv"


class DataSet(TypedDict):
    """Which intervals of one data set hold the exact value."""

    n_prompts: int
    seed: int
    number: int
    sketch_dim: int | None
    ranked: bool
    held: dict[str, dict[str, bool | None]]


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


def exact_values(chosen: Sequence[Weighting]) -> dict[str, dict[str, float]]:
    """Return the exact value of each quantity by label, from enumeration."""
    drawn, exact = policy(), {}
    for estimator in chosen:
        moments = drawn.moments(estimator, GROUP_SIZE)
        matched = moments.matched_bias_share(PROMPTS_PER_BATCH)
        exact[estimator.label] = dict(zip(QUANTITIES, (moments.trace_cov, moments.cosine, matched), strict=True))
    return exact


def sketched(
    batch: Batch,
    token_scores: Float[np.ndarray, "n t d"],
    chosen: Sequence[Weighting],
    sketch_dim: int,
    rng: np.random.Generator,
) -> Any:
    """Return what measuring the completions leaves: exact norms, and projections of sums and of weightings."""
    widths = batch.lengths
    rollouts = Rollouts.from_sequences(
        [[1]] * len(widths),
        [list(range(width)) for width in widths],
        batch.rewards,
        [f"{group:06d}" for group in batch.groups],
    )
    known = ("logprobs", "old_logprobs", "entropy")
    ragged = {
        name: [row[:width] for row, width in zip(values, widths, strict=True)]
        for name in known
        if (values := getattr(batch, name)) is not None
    }
    projection = rng.normal(size=(token_scores.shape[-1], sketch_dim)) / np.sqrt(sketch_dim)
    whole = np.where(batch.mask[:, :, None], token_scores, 0.0).sum(axis=1)
    measured: Any = SimpleNamespace(
        rollouts=rollouts, lengths=widths, sq_norms=(whole**2).sum(axis=1), sketches=whole @ projection, **ragged
    )
    measured.weighted = {}
    for name, weights in token_weightings(list(chosen), measured).items():
        vectors = np.stack([row @ scores[: len(row)] for row, scores in zip(weights, token_scores, strict=True)])
        squares = pd.DataFrame({"all": (vectors**2).sum(axis=1)})
        measured.weighted[name] = WeightedGradients(squares, vectors @ projection)
    return measured


def data_set(
    n_prompts: int,
    seed: int,
    number: int,
    chosen: Sequence[Weighting],
    exact: dict[str, dict[str, float]],
    sketch_dim: int | None = None,
) -> DataSet:
    """Draw one data set and compare; ``held`` is None for an interval that is not known."""
    stream = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
    batch, _, token_scores = policy().sample(n_prompts, GROUP_SIZE, rng=stream)
    compared = [*chosen, *(one for one in RANKED if one.label not in exact)]
    given: tuple[Any, np.ndarray | None] = (batch, token_scores)
    if sketch_dim is not None:
        given = (sketched(batch, token_scores, compared, sketch_dim, stream), None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame = compare(
            given[0],
            compared,
            given[1],
            prompts_per_batch=PROMPTS_PER_BATCH,
            target="importance",
        ).to_frame(LEVEL)
    by_label = frame.set_index("estimator")
    held: dict[str, dict[str, bool | None]] = {label: {} for label in exact}
    for label, values in exact.items():
        for name, value in values.items():
            low, high = by_label.loc[label, f"{name}_low"], by_label.loc[label, f"{name}_high"]
            known = np.isfinite(low) or np.isfinite(high)
            # The target's own cosine and bias are exact: rounding is no miss.
            held[label][name] = bool(low - 1e-9 <= value <= high + 1e-9) if known else None
    ranked = bool(by_label.loc[PLAIN.label, "cosine"] < by_label.loc[TOKEN_RATIOS.label, "cosine"])
    return {
        "n_prompts": n_prompts,
        "seed": seed,
        "number": number,
        "sketch_dim": sketch_dim,
        "ranked": ranked,
        "held": held,
    }


def summary(data_sets: Sequence[DataSet], exact: dict[str, dict[str, float]]) -> pd.DataFrame:
    """Return one row for each recipe, quantity and size: how often the interval holds the exact value, and is known.

    ``.attrs["ranked"]`` is the share of data sets in which token ratios have a higher cosine than plain RLOO; those in
    which one of the two has no value do not count among them.
    """
    rows = []
    for n_prompts in sorted({one["n_prompts"] for one in data_sets}):
        same = [one["held"] for one in data_sets if one["n_prompts"] == n_prompts]
        for label, values in exact.items():
            for name, value in values.items():
                held = [found for one in same if (found := one[label][name]) is not None]
                rows.append(
                    {
                        "estimator": label,
                        "quantity": name,
                        "n_prompts": n_prompts,
                        "exact": value,
                        "known": len(held) / len(same),
                        "coverage": float(np.mean(held)) if held else np.nan,
                        "replications": len(same),
                    }
                )
    table = pd.DataFrame(rows)
    table.attrs["ranked"] = float(np.mean([one["ranked"] for one in data_sets]))
    return table


def coverage(
    n_prompts: int,
    replications: int,
    seed: int = 0,
    estimators: Sequence[Weighting] | None = None,
    sketch_dim: int | None = None,
) -> pd.DataFrame:
    """Simulate, and return :func:`summary`.

    Args:
        n_prompts: groups in each data set.
        replications: data sets.
        seed: of their draws.
        estimators: whose rows; the whole zoo by default.
        sketch_dim: dimension of the projection that scores are known by; None for the scores themselves.
    """
    chosen = list(estimators or zoo())
    exact = exact_values(chosen)
    return summary(
        [data_set(n_prompts, seed, number, chosen, exact, sketch_dim) for number in range(replications)], exact
    )


def main(
    prompts: tuple[int, ...] = (100, 400),
    replications: int = 1000,
    seed: int = 0,
    only: tuple[str, ...] = (),
    finished: Path = Path("runs/coverage_off_policy.jsonl"),
    sketch_dim: int | None = None,
) -> None:
    """Simulate, write the table and print the rows that fall short.

    Args:
        prompts: groups in a data set.
        replications: data sets of each size; an interrupted call resumes, and a smaller number writes the table of
            the finished ones.
        seed: of the draws.
        only: labels of the zoo to simulate; the table is then printed and nothing is written.
        finished: the finished data sets, one line each; remove it after a change to estimators or intervals.
        sketch_dim: dimension of a random projection to compare the recipes of `SKETCHED` from, in place of the whole
            zoo from the scores themselves. Rows of other sizes and dimensions stay in the table; ``finished`` is not
            used.
    """
    if sketch_dim is not None:
        named = [recipes.get(name) for name in SKETCHED]
        tables = [coverage(size, replications, seed, named, sketch_dim) for size in prompts]
        table = with_rows_replaced(pd.concat(tables).assign(sketch_dim=sketch_dim))
        write_csv(FOLDER / SKETCHED_TABLE, table)
        print(table.to_string())
        return
    if unknown := set(only) - {one.label for one in zoo()}:
        raise ValueError(f"only={unknown} is not in the zoo: {', '.join(one.label for one in zoo())}")
    chosen = [one for one in zoo() if not only or one.label in only]
    exact = exact_values(chosen)
    data_sets = _read(finished) if not only else []
    done = {(one["n_prompts"], one["seed"], one["number"]) for one in data_sets}
    # Sizes in turn, so that what an interrupted call leaves is balanced.
    for number, n_prompts in ((number, n) for number in range(replications) for n in prompts):
        if (n_prompts, seed, number) not in done:
            data_sets.append(data_set(n_prompts, seed, number, chosen, exact))
            if not only:
                finished.parent.mkdir(parents=True, exist_ok=True)
                with finished.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(data_sets[-1]) + "\n")
    table = summary([one for one in data_sets if one["n_prompts"] in prompts and one["seed"] == seed], exact)
    if not only:
        write_csv(FOLDER / "coverage_off_policy.csv", table)
    print(table.to_string())
    for n_prompts in prompts:
        ranked = np.mean([one["ranked"] for one in data_sets if (one["n_prompts"], one["seed"]) == (n_prompts, seed)])
        print(f"{n_prompts} groups: token ratios rank above plain RLOO in {ranked:.1%} of data sets")
    short = table[table["coverage"] < 0.92 - 2 * np.sqrt(LEVEL * (1 - LEVEL) / table["replications"])]
    print("short of 0.92:", short[["estimator", "quantity", "n_prompts", "coverage"]])


def with_rows_replaced(table: pd.DataFrame) -> pd.DataFrame:
    """Return the committed rows of other sizes and dimensions with these."""
    path, cell = FOLDER / SKETCHED_TABLE, ["sketch_dim", "n_prompts"]
    if path.exists():
        earlier = pd.read_csv(path)
        sizes = (pd.MultiIndex.from_frame(pd.DataFrame(one[cell])) for one in (earlier, table))
        done = next(sizes).isin(next(sizes))
        table = pd.concat([pd.DataFrame(earlier[~done]), table])
    return table.sort_values(cell, kind="stable", ignore_index=True)


def _read(finished: Path) -> list[DataSet]:
    """Return the finished data sets; a last line that was cut short is dropped."""
    text = finished.read_text(encoding="utf-8") if finished.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        finished.write_text(whole, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


if __name__ == "__main__":
    tyro.cli(main)
