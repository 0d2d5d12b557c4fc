"""How often the remaining 95 % intervals cover, and how often a planned size is enough, on policies that are known.

Groups of three are drawn from the enumerated policy of coverage.py, two of each prompt where variance is split within
and between prompts; tokens for the excluded temperatures from softmax distributions; lengths and norms for plans of α
as in coverage.py. Writes figures/statistics/coverage_others.csv.
"""

from __future__ import annotations

import itertools
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pandas as pd
import tyro
from coverage import FOLDER, LEVEL, ONE_SLOPE, draw, policy
from scipy.special import log_softmax

from gradstats import estimators
from gradstats.analyses import (
    batch_size,
    equivalent_group_size,
    implied_shift,
    length_reward_correlation,
    plan_alpha,
    plan_signal,
)
from gradstats.analyses.variance import compare
from gradstats.reference import EnumeratedPolicy
from gradstats.stats import fit_length_scaling
from gradstats.stats.on_policy import temperature_test
from gradstats.system.files import atomic_path

SIZE = 3
SPLIT = ("reinforce", "rloo", "grpo", "token_mean")
EQUIVALENT = ("token_mean(loo=True)", "length_weighted(alpha=0.8, loo=True)", "reinforce")
BATCHED, BATCH_PROMPTS = ("rloo", "reinforce", "grpo"), 64
BATCH_SIZES = (100, 400)
SHIFTED = ("token_mean", "length_weighted(alpha=0.8)")
HALF_WIDTH, PILOT_PROMPTS, PER_PROMPT = 0.05, 30, 4
SIGNAL_PILOT, MOST_PROMPTS = 400, 6000

#: What is estimated, and of which estimator; whether the interval of one data set holds the truth.
Hits = Iterator[tuple[str, str, bool]]


def every_group(exact: EnumeratedPolicy) -> dict[tuple[str, str], float]:
    """Return what needs the expectation over all groups of three: shifts, kept share, length–reward correlation."""
    rows, chance = [], []
    for prompt in range(exact.n_prompts):
        own = np.flatnonzero(exact.prompts == prompt)
        share = exact.probabilities[own] / exact.probabilities[own].sum()
        for group in itertools.product(range(len(own)), repeat=SIZE):
            rows.append(own[list(group)])
            chance.append(float(np.prod(share[list(group)])) / exact.n_prompts)
    places, chances = np.array(rows), np.array(chance)
    lengths, rewards = exact.lengths[places].astype(float), exact.rewards[places]
    x, y = (values - values.mean(axis=1, keepdims=True) for values in (lengths, rewards))
    both = chances * ((np.ptp(lengths, axis=1) > 0) & (np.ptp(rewards, axis=1) > 0))
    products = [float(both @ (a * b).sum(axis=1)) for a, b in ((x, y), (x, x), (y, y))]
    truth = {("kept_share", "rloo"): float(chances @ (np.ptp(rewards, axis=1) > 0))}
    truth["length_reward", ""] = products[0] / np.sqrt(products[1] * products[2])
    for name, power in zip(SHIFTED, (1.0, 1.6), strict=True):
        weights = lengths**power
        baseline = (weights * rewards).sum(axis=1) / weights.sum(axis=1)
        truth["implied_shift", name] = float(chances @ (baseline - rewards.mean(axis=1)))
    return truth


def truths(exact: EnumeratedPolicy) -> dict[tuple[str, str], float]:
    """Return (quantity, estimator) → its value under the enumerated policy."""
    truth = every_group(exact)
    moments = {name: exact.moments(estimators.get(name), SIZE) for name in (*SPLIT, *EQUIVALENT)}
    squared = float(exact.gradient @ exact.gradient)
    for name in BATCHED:
        critical, limit = moments[name].matched_trace_cov / squared, moments[name].cosine ** 2
        truth["critical_batch", name] = critical
        truth["alignment", name] = 1.0 / (1.0 / limit + critical / BATCH_PROMPTS)
    for name in SPLIT:
        truth["within_prompt", name] = moments[name].within_prompt
        truth["between_prompt", name] = moments[name].between_prompt
    # N w(N) of RLOO is v1 + v2/(N − 1).
    at_two, at_three = (n * exact.moments(estimators.get("rloo"), n).within_prompt for n in (2, 3))
    second = 2.0 * (at_two - at_three)
    first = at_two - second
    for name in EQUIVALENT:
        scale = moments[name].coefficient ** -2
        inverse = (SIZE * scale * moments[name].within_prompt - first) / second
        truth["equivalent_group_size", name] = 1.0 + 1.0 / inverse if inverse > 0 else np.inf
        truth["tokens_saved", name] = 1.0 - scale * moments[name].trace_cov / moments["rloo"].trace_cov
    return truth


def of_gradients(exact: EnumeratedPolicy, truth: dict[tuple[str, str], float], n_prompts: int, seed: int) -> Hits:
    """Check everything that the enumerated policy says, on one data set."""
    batch, scores, _ = exact.sample(n_prompts, 2 * SIZE, np.random.default_rng([seed, n_prompts, 1]))
    compared = compare(batch, SPLIT, scores, group_size=SIZE)
    parts = compared.variance_components(LEVEL).set_index("estimator")
    kept = compared.to_frame(LEVEL).set_index("estimator")
    equivalent = {}
    # Few prompts may not show that larger groups of rloo are less noisy, and the question is then refused.
    with suppress(ValueError):
        for name in EQUIVALENT:
            frame = equivalent_group_size(batch, name, SIZE, scores).to_frame(LEVEL)
            equivalent[name] = frame.set_index("estimator")
    single, _, _ = exact.sample(n_prompts, SIZE, np.random.default_rng([seed, n_prompts, 2]))
    for (quantity, name), value in truth.items():
        if quantity in ("within_prompt", "between_prompt"):
            low, high = parts.loc[name, [f"{quantity}_low", f"{quantity}_high"]]
        elif quantity == "kept_share":
            low, high = kept.loc[name, ["kept_share_low", "kept_share_high"]]
        elif quantity in ("equivalent_group_size", "tokens_saved"):
            if name not in equivalent:
                continue
            low, high = equivalent[name].loc[name, [f"{quantity}_low", f"{quantity}_high"]]
        elif quantity in ("critical_batch", "alignment"):
            continue
        elif quantity == "implied_shift":
            low, high = implied_shift(single, name).confidence_interval(LEVEL)
        else:
            low, high = length_reward_correlation(single).confidence_interval(LEVEL)
        yield quantity, name, bool(low <= value <= high)


def of_batches(exact: EnumeratedPolicy, truth: dict[tuple[str, str], float], n_prompts: int, seed: int) -> Hits:
    """Check the critical batch and the alignment of a batch: of all data sets, and of those that show a value."""
    batch, scores, _ = exact.sample(n_prompts, SIZE, np.random.default_rng([seed, n_prompts, 6]))
    frame = batch_size(batch, BATCHED, scores, prompts=BATCH_PROMPTS).to_frame(LEVEL)
    for row in frame.to_dict("records"):
        for quantity in ("critical_batch", "alignment"):
            value, name = truth[quantity, row["estimator"]], row["estimator"]
            covered = bool(row[f"{quantity}_low"] <= value <= row[f"{quantity}_high"])
            yield quantity, name, covered
            if np.isfinite(row[quantity]):
                yield "critical_batch and alignment, where a value is shown", name, covered


def of_temperatures(n_prompts: int, seed: int) -> Hits:
    """Check that the temperature tokens were drawn at is not excluded: the scored one, and four fifths of it."""
    rng = np.random.default_rng([seed, n_prompts, 3])
    for temperature in (1.0, 0.8):
        excess, prompts = [], np.repeat(np.arange(n_prompts), 8)
        for _ in range(n_prompts):
            # Most tokens have little choice; positions differ, and the answers to a prompt share theirs.
            logits = rng.normal(size=(40, 20)) * rng.choice([1.0, 4.0, 10.0], (40, 1))
            scored, drawn = log_softmax(logits, axis=1), log_softmax(logits / temperature, axis=1)
            entropy = -(np.exp(scored) * scored).sum(axis=1)
            uniform = rng.random((8, 40, 1))
            tokens = (uniform > np.exp(drawn).cumsum(axis=1)).sum(axis=2).clip(max=19)
            surprisal = -scored[np.arange(40), tokens]
            excess += [row[: rng.integers(10, 41)] for row in surprisal - entropy]
        low, high = temperature_test(excess, prompts).compatible(LEVEL)
        yield "temperatures", f"drawn at {temperature:g}", bool(low <= temperature <= high)


def of_alpha_plan(_: int, seed: int) -> Hits:
    """Plan from a pilot of 30 prompts, and see whether the assured size gives the half-width."""
    rng = np.random.default_rng([seed, 4])

    def fitted(n_prompts: int):
        n = n_prompts * PER_PROMPT
        # 100 sequences are four a prompt in that scenario; more prompts of four are several of these.
        parts = [draw(ONE_SLOPE, "ols", 100, rng) for _ in range(-(-n // 100))]
        x, y = (np.concatenate([part[at] for part in parts])[:n] for at in (0, 1))
        return fit_length_scaling(lengths=np.exp(x), sq_norms=np.exp(y), groups=np.arange(n) // PER_PROMPT)

    planned = plan_alpha(fitted(PILOT_PROMPTS), HALF_WIDTH).n_prompts_assured
    if np.isfinite(planned):
        low, high = fitted(int(planned)).confidence_interval(LEVEL)
        yield "plan of α", "assured size is enough", bool((high - low) / 2.0 <= HALF_WIDTH)


def of_signal_plan(exact: EnumeratedPolicy, seed: int) -> Hits:
    """Plan for the signal of rloo from 400 groups, and see whether the assured size resolves it."""
    rng = np.random.default_rng([seed, 5])

    def compared(n_prompts: int):
        batch, scores, _ = exact.sample(n_prompts, SIZE, rng)
        return compare(batch, ["rloo"], scores)

    planned = plan_signal(compared(SIGNAL_PILOT), "rloo").n_prompts_assured
    if planned <= MOST_PROMPTS:
        yield "plan of a signal", "assured size is enough", compared(int(planned)).rows[0].resolved(LEVEL)


def main(replications: int = 300, sizes: tuple[int, ...] = (30, 100)) -> None:
    """Simulate.

    Args:
        replications: data sets of each row.
        sizes: prompts of a data set.
    """
    exact = policy()
    truth = truths(exact)
    of_size: list[Callable[[int, int], Hits]] = [
        lambda n_prompts, seed: of_gradients(exact, truth, n_prompts, seed),
        of_temperatures,
    ]
    planned: list[Callable[[int, int], Hits]] = [of_alpha_plan, lambda _, seed: of_signal_plan(exact, seed)]
    batches: list[Callable[[int, int], Hits]] = [lambda n_prompts, seed: of_batches(exact, truth, n_prompts, seed)]
    hits: dict[tuple[str, str, int], list[bool]] = defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for seed in range(replications):
            every = (
                (sizes[0], planned),
                *((size, of_size) for size in sizes),
                *((size, batches) for size in BATCH_SIZES),
            )
            for n_prompts, checks in every:
                for check in checks:
                    for quantity, name, covered in check(n_prompts, seed):
                        pilot = {"plan of α": PILOT_PROMPTS, "plan of a signal": SIGNAL_PILOT}
                        hits[quantity, name, pilot.get(quantity, n_prompts)].append(covered)
    rows = [(*key, truth.get(key[:2], np.nan), np.mean(found), len(found)) for key, found in hits.items()]
    columns = ["quantity", "of", "n_prompts", "truth", "coverage", "replications"]
    table = pd.DataFrame(rows, columns=columns).sort_values(["quantity", "of", "n_prompts"])
    path = FOLDER / "coverage_others.csv"
    with atomic_path(path) as partial:
        table.to_csv(partial, index=False, float_format="%.4g", lineterminator="\n")
    print(path)


if __name__ == "__main__":
    tyro.cli(main)
