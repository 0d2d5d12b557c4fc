"""How often 95 % intervals cover where a few prompts carry most of the variance.

One loop over a table of populations. Those named *difficulty* are infinite: easy, middling and hard prompts with 0/1
rewards, lengths that depend on success, and norms and directions of which each prompt has a part of its own, that of
the norms correlated with difficulty; the norms are integrated out of their moments in closed form. The others are
finite, so that what is estimated is known exactly: lognormal norms, whose spread may be shared by a prompt, and the
measured prompts of benchmarks/data. Batch-level rows, which take most of the time, enter every third data set.

Every block of data sets is a file under build/coverage, which an interrupted run resumes from. Prints the table and
writes figures/statistics/coverage_heavy_tails.csv, which ``python benchmarks/coverage_page.py`` puts into
docs/statistics.md.
"""

import os
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import tyro
from jaxtyping import Float, Int
from safetensors.numpy import load_file

from gradstats import estimators
from gradstats.analyses.allocation import allocate
from gradstats.analyses.batch_size import batch_size
from gradstats.analyses.optimal_baselines import optimal_baselines
from gradstats.analyses.variance import compare
from gradstats.estimators import Batch
from gradstats.stats import fit_length_scaling
from gradstats.stats.length_scaling.alpha import LengthScalingFit
from gradstats.system.files import write_csv

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "figures" / "statistics" / "coverage_heavy_tails.csv"
LEARNED, ALLOCATED = TABLE.with_stem("coverage_learned"), TABLE.with_stem("coverage_allocated")
BLOCKS = ROOT / "build" / "coverage"
MEASURED = ROOT / "benchmarks" / "data" / "heavy_tailed_population.safetensors"
#: Rows whose batches are dealt.
BATCH_LEVEL = ("batch_mean", "james_stein", "constant(b=optimal)")
LOCAL = ("rloo", "reinforce", "grpo", "token_mean", "length_weighted(alpha=0.8, loo=True)", "recipe:grpo")
METHODS = {"alpha": "ols", "alpha within prompts": "within_prompt"}
LEVEL = 0.95
DEALS = 64
BLOCK = 50
#: Batch-level rows are in one data set of so many.
EVERY = 3
PER_PROMPT = 8
#: Completions of a prompt that allocations are extrapolated to.
LARGER = (16, 32)
PROMPTS_OF_A_POPULATION = 2000
DIMENSION = 48
#: Batches, and prompts of an infinite population, that its truth is averaged over.
BATCHES, PROMPTS = 4000, 60_000

Gradients = Float[np.ndarray, "m d"]
Truth = dict[tuple[str, str], float]
#: The expectation of a gradient, and of its square.
Moments = tuple[Float[np.ndarray, " d"], float]


def gradients_of(weights: Float[np.ndarray, " n"], batch: Batch, scores: Float[np.ndarray, "n d"]) -> Gradients:
    """The gradient of each prompt's group."""
    size = len(weights) // len(batch.group_sizes)
    return (weights[:, None] * scores).reshape(-1, size, scores.shape[1]).sum(axis=1)


def truth_of(population: "Population") -> Truth:
    """(estimator, quantity) → what it is, from the expectation of gradients and of their squares."""
    means, traces = {}, {}
    for name in LOCAL:
        means[name], square = population.moments(estimators.get(name).weights(population.whole()))
        traces[name] = square - float(means[name] @ means[name])
    unbiased, found = means["rloo"], {}
    for name, mean in means.items():
        known = estimators.get(name).expected_scale(PER_PROMPT)
        scale = float(mean @ unbiased / (unbiased @ unbiased)) if known is None else known
        bias_sq, turned = (float(((one - unbiased) ** 2).sum()) for one in (mean, mean / scale))
        values = {
            "trace_cov": traces[name],
            "ratio": traces[name] / traces["rloo"],
            "matched_ratio": traces[name] / traces["rloo"] / scale**2,
            "critical_batch": traces[name] / scale**2 / (unbiased @ unbiased),
            "cosine": mean @ unbiased / np.sqrt((mean @ mean) * (unbiased @ unbiased)),
            "bias_share": bias_sq / (bias_sq + traces[name] / 128),
            "matched_bias_share": turned / (turned + traces[name] / scale**2 / 128),
        }
        found |= {(name, quantity): float(value) for quantity, value in values.items()}
    return found


@dataclass(frozen=True)
class Finite:
    """Prompts with eight completions each, in the order of prompts; samples are drawn with replacement."""

    name: str
    rewards: Float[np.ndarray, " n"]
    lengths: Int[np.ndarray, " n"]
    scores: Float[np.ndarray, "n d"]

    def sample(self, prompts: Int[np.ndarray, " m"]) -> tuple[Batch, Float[np.ndarray, "n d"]]:
        """Some prompts, each as a prompt of its own however often it is drawn."""
        rows = (prompts[:, None] * PER_PROMPT + np.arange(PER_PROMPT)).ravel()
        labels, scores = np.repeat(np.arange(len(prompts)), PER_PROMPT), self.scores[rows]
        return Batch(self.rewards[rows], self.lengths[rows], labels, sq_norms=(scores**2).sum(axis=1)), scores

    def draw(self, n_prompts: int, rng: np.random.Generator) -> tuple[Batch, Float[np.ndarray, "n d"]]:
        """A data set."""
        return self.sample(rng.integers(0, self.n_prompts, n_prompts))

    @property
    def n_prompts(self) -> int:
        """Prompts of the population."""
        return len(self.rewards) // PER_PROMPT

    def whole(self, size: int = PER_PROMPT) -> Batch:
        """All of it."""
        return self.sample(np.arange(self.n_prompts))[0]

    def moments(self, weights: Float[np.ndarray, " n"], size: int = PER_PROMPT) -> Moments:
        """The expectation of the gradient with these weights of the whole, and of its square."""
        gradients = gradients_of(weights, self.whole(), self.scores)
        return gradients.mean(axis=0), float((gradients**2).sum(axis=1).mean())

    @cached_property
    def truth(self) -> Truth:
        """What it is of estimators that stay within their group, and of α."""
        found = {(quantity, quantity): line_of(self.whole(), method).alpha for quantity, method in METHODS.items()}
        return truth_of(self) | found


@dataclass(frozen=True)
class Difficulty:
    r"""An infinite population whose :math:`\log‖S‖ = 0.6\log T + sd\,(u + e)/\sqrt2`, u and e of unit size.

    The part u is of the prompt, :math:`0.6h + 0.8z` with its difficulty h.

    Attributes:
        sd: of log‖S‖ about its line.
        signal: how far directions lean towards one axis with the advantage; 4 gives critical batches of 5 to 36.
    """

    sd: float
    signal: float

    @property
    def name(self) -> str:
        """As in the table."""
        return f"difficulty, sd {self.sd:g}" + ("" if self.signal == 4.0 else f", signal {self.signal:g}")

    def directions(
        self, n_prompts: int, rng: np.random.Generator, size: int = PER_PROMPT
    ) -> tuple[Batch, Gradients, Float[np.ndarray, " m"]]:
        """All but the norms: rewards and lengths, unit vectors, and the difficulty of each prompt."""
        prompt = np.repeat(np.arange(n_prompts), size)
        n, level = len(prompt), np.array([0.9, 0.5, 0.1])[rng.choice(3, n_prompts, p=[0.4, 0.3, 0.3])]
        rate = np.clip(level + rng.normal(0.0, 0.04, n_prompts), 0.01, 0.99)
        rewards = (rng.random(n) < rate[prompt]).astype(float)
        log_length = rng.normal(4.6, 0.45, n) - 0.35 * rewards + 0.3 * rng.normal(size=n_prompts)[prompt]
        units = rng.normal(size=(n, DIMENSION)) + 0.5 * rng.normal(size=(n_prompts, DIMENSION))[prompt]
        units[:, 0] += 0.15 * np.sqrt(DIMENSION) * self.signal * (rewards - rate[prompt])
        units /= np.linalg.norm(units, axis=1, keepdims=True)
        batch = Batch(rewards, np.ceil(np.exp(log_length)).astype(int), prompt, sq_norms=np.ones(n))
        return batch, units, (0.5 - rate) / 0.33

    def draw(self, n_prompts: int, rng: np.random.Generator) -> tuple[Batch, Float[np.ndarray, "n d"]]:
        """A data set."""
        batch, units, hard = self.directions(n_prompts, rng)
        shared = 0.6 * hard + 0.8 * rng.normal(size=n_prompts)
        noise = np.sqrt(0.5) * (shared[batch.group_index] + rng.normal(size=len(units)))
        norms = batch.lengths**0.6 * np.exp(self.sd * noise)
        return batch.with_fields(sq_norms=norms**2), units * norms[:, None]

    @cache  # noqa: B019  a population lives as long as the simulation
    def parts(self, size: int) -> tuple[Batch, Gradients, Float[np.ndarray, " m"]]:
        """Many prompts without their norms, that the truth is averaged over."""
        return self.directions(PROMPTS * PER_PROMPT // size, np.random.default_rng(99), size)

    def whole(self, size: int = PER_PROMPT) -> Batch:
        """Their completions."""
        return self.parts(size)[0]

    def moments(self, weights: Float[np.ndarray, " n"], size: int = PER_PROMPT) -> Moments:
        r"""The expectation of the gradient with these weights, and of its square.

        With :math:`E e^{aZ} = e^{a²/2}` for the normal parts of the norms.
        """
        batch, units, hard = self.parts(size)
        own, half = 0.5 * self.sd**2, np.sqrt(0.5) * self.sd
        lifted = np.exp(0.6 * half * hard + 0.64 * own / 2.0)  # E e^{sd·u/√2} of each prompt
        lifted_sq = np.exp(1.2 * half * hard + 0.64 * own * 2.0)  # of its square
        each = gradients_of(weights, batch, units * (batch.lengths**0.6)[:, None])
        diagonal = (weights**2 * batch.lengths**1.2).reshape(-1, size).sum(axis=1)
        pairs = (each**2).sum(axis=1) - diagonal
        square = float(np.mean(lifted_sq * (diagonal * np.exp(2.0 * own) + pairs * np.exp(own))))
        return (each * lifted[:, None]).mean(axis=0) * np.exp(own / 2.0), square

    @cached_property
    def truth(self) -> Truth:
        """What it is of estimators that stay within their group, and of α."""
        batch, _, hard = self.parts(PER_PROMPT)
        log_length = np.log(batch.lengths)
        slope = np.cov(log_length, hard[batch.group_index])[0, 1] / np.var(log_length)
        alpha = 0.6 + 0.6 * np.sqrt(0.5) * self.sd * slope
        return truth_of(self) | {("alpha", "alpha"): float(alpha), ("alpha within prompts",) * 2: 0.6}


Population = Finite | Difficulty


def line_of(batch: Batch, method: str) -> LengthScalingFit:
    """The fit of α by one method."""
    return fit_length_scaling(
        lengths=batch.lengths.astype(float), sq_norms=batch.sq_norms, groups=batch.group_index, method=method
    )


def dealt_truth(population: Population, n_prompts: int) -> Truth:
    """The traces and ratios of batch-level estimators in batches as a comparison of so many prompts deals them.

    The mean over 4000 batches; its error is about 2 %.
    """
    size, rng = max(1, n_prompts // 4), np.random.default_rng(7)
    draws = [population.draw(size, rng) for _ in range(BATCHES)]
    local = np.array([estimators.get("rloo").weights(batch) @ scores / size for batch, scores in draws])
    found = {}
    for name in BATCH_LEVEL:
        dealt = np.array([estimators.get(name).weights(batch) @ scores / size for batch, scores in draws])
        # The ratio of the two on the same batches is far less noisy than either.
        found[name, "ratio"] = float(dealt.var(axis=0).sum() / local.var(axis=0).sum())
        found[name, "trace_cov"] = found[name, "ratio"] * population.truth["rloo", "trace_cov"]
    return found


def lognormal_population(sd: float, shared: float = 0.0) -> Finite:
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
    return Finite(name, rewards, lengths, directions * np.exp(0.5 * log_sq)[:, None])


def heavy_tailed_population() -> tuple[Batch, Float[np.ndarray, "n n"]]:
    """The completions of benchmarks/data, with the inner products of their scores, few of which hold most of Σ‖S‖²."""
    arrays = load_file(MEASURED)
    gram = arrays["gram"].astype(np.float64)
    return Batch(arrays["rewards"], arrays["lengths"], arrays["groups"], sq_norms=np.diag(gram)), gram


def measured_population() -> Finite:
    """The 96 prompts of benchmarks/data, as vectors with their Gram matrix."""
    batch, gram = heavy_tailed_population()
    values, vectors = np.linalg.eigh(gram)
    scores = vectors * np.sqrt(np.maximum(values, 0.0))
    order = np.argsort(batch.group_index, kind="stable")
    return Finite("measured, sd 2.0", batch.rewards[order], batch.lengths[order], scores[order])


#: Every population, in the order of the table.
POPULATIONS: tuple[Callable[[], Population], ...] = (
    *(partial(lognormal_population, sd, shared) for sd, shared in ((0.8, 0.0), (1.4, 0.0), (1.4, 0.9), (2.0, 0.0))),
    measured_population,
    *(partial(Difficulty, sd, signal) for sd, signal in ((0.5, 4.0), (1.0, 4.0), (1.5, 4.0), (0.5, 1.0), (1.5, 30.0))),
)


@cache
def population_of(number: int) -> Population:
    """One of them, whose truth is found once."""
    return POPULATIONS[number]()


def one_data_set(population: Population, truth: Truth, n_prompts: int, seed: int) -> pd.DataFrame:
    """The intervals of one data set: which cover, which have a value and two ends, and their widths."""
    batch, scores = population.draw(n_prompts, np.random.default_rng([seed, n_prompts]))
    names = LOCAL if seed % EVERY else (*LOCAL, *BATCH_LEVEL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table: Any = compare(batch, names, scores, n_resamples=DEALS, rng=seed).to_frame(LEVEL)
        batches = batch_size(batch, LOCAL, scores).to_frame(LEVEL)
    table.index, batches.index = pd.Index(names), pd.Index(LOCAL)
    records = []

    def add(estimator: str, quantity: str, value: float, low: float, high: float, exact: float) -> None:
        held, two_sided = low - 1e-9 <= exact <= high + 1e-9, bool(np.isfinite([value, low, high]).all())
        width = (high - low) / abs(value) if two_sided and value else np.nan
        records.append((estimator, quantity, held, np.isfinite(value), two_sided, held and two_sided, width))

    for (name, quantity), exact in truth.items():
        if name in METHODS:
            line = line_of(batch, METHODS[name])
            add("", quantity, line.alpha, *line.confidence_interval(LEVEL), exact)
        elif name in names:
            row = batches.loc[name] if quantity == "critical_batch" else table.loc[name]
            value, low, high = (float(row[f"{quantity}{end}"]) for end in ("", "_low", "_high"))
            add(name, quantity, value, low, high, exact)
    for quantity, rows in (("ratio", names), ("matched_ratio", LOCAL)):
        ends = table.loc[list(rows), [f"{quantity}_simultaneous_{end}" for end in ("low", "high")]].to_numpy()
        exact = np.array([truth[name, quantity] for name in rows])
        held = bool(((ends[:, 0] - 1e-9 <= exact) & (exact <= ends[:, 1] + 1e-9)).all())
        records.append(("all", f"{quantity}_simultaneous", held, True, True, held, np.nan))
    best = min(LOCAL, key=lambda name: truth[name, "matched_ratio"])
    if np.isfinite(table.loc[best, "matched_ratio"]):
        inside = bool(table.loc[best, "in_best_set"])
        records.append((best, "in_best_set", inside, True, True, inside, np.nan))
    columns = ["estimator", "quantity", "covered", "shown", "two_sided", "covered_two_sided", "width"]
    worth = float(table.loc["rloo", "n_effective_prompts"])
    return pd.DataFrame(records, columns=columns).assign(effective=worth)


def quadratic_form(population: Population) -> Float[np.ndarray, "parts parts"]:
    """Return tr Cov as a form of the shares and the shift of a learned mixture."""
    batch = population.whole()
    beside = (batch.rewards - batch.rewards.mean()) / PER_PROMPT
    plain, by_length = (estimators.get(name).weights(batch) for name in ("rloo", "token_mean(loo=True)"))
    parts = [plain, by_length, beside, np.full(len(plain), -1.0 / PER_PROMPT)]

    def trace(weights: Float[np.ndarray, " n"]) -> float:
        mean, square = population.moments(weights)
        return square - float(mean @ mean)

    return np.array([[(trace(one + other) - trace(one - other)) / 4.0 for other in parts] for one in parts])


def learned_row(population: Population, n_prompts: int, sets: int) -> dict[str, Any]:
    """How often the sentence on the best learned baseline claims a gain over RLOO, and how often it loses then.

    The truth of a learned baseline is the variance on the whole population with the parameters that were learned.
    """
    form, found = quadratic_form(population), []
    for seed in range(sets):
        batch, scores = population.draw(n_prompts, np.random.default_rng([seed, n_prompts]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = optimal_baselines(batch, scores, published=["rloo"])
        best = next(one for one in result.learned if one.label == result.best)
        given = best.parameters.mean(axis=0)
        if best.names == ("alpha",):
            weighted = estimators.length_weighted(alpha=float(given[0]), loo=True)
            mean, square = population.moments(weighted.weights(population.whole()))
            variance = square - float(mean @ mean)
        else:
            shares = given if len(given) == len(form) else np.array([1.0, 0.0, 0.0, given[0]])
            variance = float(shares @ form @ shares)
        estimated = next(row for row in result.to_learned.rows if row.label == "rloo").ratio
        value, low, high = (1.0 / one if one else np.inf for one in estimated.with_interval(LEVEL))
        truth, claims = variance / form[0, 0], "saves" in result.sentence() and "at most" not in result.sentence()
        found.append((claims, claims and truth >= 1.0, truth, value, high - 1e-9 <= truth <= low + 1e-9))
    claimed, wrong, truth, value, held = np.mean(found, axis=0)
    return {
        "population": population.name,
        "n_prompts": n_prompts,
        "data_sets": sets,
        "claims_gain": claimed,
        "claims_gain_and_loses": wrong,
        "true_ratio": truth,
        "estimated_ratio": value,
        "ratio_covered": held,
    }


def allocation_rows(population: Difficulty, n_prompts: int, sets: int) -> list[dict[str, Any]]:
    """How often the relative noise of RLOO in larger groups than were drawn covers what it is."""
    noise = {}
    for size in (PER_PROMPT, *LARGER):
        mean, square = population.moments(estimators.get("rloo").weights(population.whole(size)), size)
        noise[size] = size * (square - float(mean @ mean))
    held = []
    for seed in range(sets):
        batch, scores = population.draw(n_prompts, np.random.default_rng([seed, n_prompts]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = allocate(batch, ("rloo",), scores, group_sizes=(PER_PROMPT, *LARGER)).to_frame(LEVEL)
        ends = found.set_index("group_size")[["relative_noise", "relative_noise_low", "relative_noise_high"]]
        held.append([low <= noise[size] / noise[PER_PROMPT] <= high and value > 0
                     for size in LARGER for value, low, high in [ends.loc[size]]])  # fmt: skip
    return [
        {
            "population": population.name,
            "n_prompts": n_prompts,
            "data_sets": sets,
            "group_size": size,
            "true_relative_noise": noise[size] / noise[PER_PROMPT],
            "covered": share,
        }
        for size, share in zip(LARGER, np.mean(held, axis=0), strict=True)
    ]


def simulate(case: tuple[int, int], sets: int) -> pd.DataFrame:
    """The row of each interval of one population and number of prompts, from files of blocks where there are any."""
    number, n_prompts = case
    population, truth, blocks = population_of(number), {}, []
    for first in range(0, sets, BLOCK):
        path = BLOCKS / f"{population.name}, {n_prompts}, {first}.csv"
        if not path.exists():
            truth = truth or population.truth | dealt_truth(population, n_prompts)
            block = [one_data_set(population, truth, n_prompts, seed) for seed in range(first, first + BLOCK)]
            write_csv(path, pd.concat(block))
        blocks.append(pd.read_csv(path, keep_default_na=False, na_values={"width": [""]}))
    # pandas declares that such sums may be scalars.
    rows: Any = pd.concat(blocks).groupby(["estimator", "quantity"], sort=False)
    counts = rows[["covered", "shown", "two_sided", "covered_two_sided"]].sum()
    found = counts.assign(width=rows["width"].median(), effective=rows["effective"].mean(), data_sets=rows.size())
    about = {"population": population.name, "n_prompts": n_prompts}
    return found.reset_index().assign(**about, batch_level=lambda frame: frame["estimator"].isin(BATCH_LEVEL))


def main(
    what: Literal["intervals", "learned"] = "intervals",
    sets: int = 400,
    sizes: tuple[int, ...] = (100, 30),
    processes: int = 2,
    write: bool = True,
) -> None:
    """Simulate every population, with ``what="learned"`` what is learned or extrapolated from it.

    Args:
        what: intervals of a comparison, or learned baselines and allocations to larger groups.
        sets: data sets of each population and number of prompts, in blocks of 50.
        sizes: prompts of a data set.
        processes: populations at a time, at low priority.
        write: the file, beside the table that is printed.
    """
    if what == "learned":
        drawn = [population_of(number) for number in range(len(POPULATIONS))]
        learned = [learned_row(one, size, sets) for size in sizes for one in drawn]
        larger = [allocation_rows(one, size, sets) for size in sizes for one in drawn if isinstance(one, Difficulty)]
        write_csv(LEARNED, pd.DataFrame(learned), float_format="%.6g")
        write_csv(ALLOCATED, pd.DataFrame([row for rows in larger for row in rows]), float_format="%.6g")
        return
    BLOCKS.mkdir(parents=True, exist_ok=True)
    cases = [(number, size) for size in sizes for number in range(len(POPULATIONS))]
    with ProcessPoolExecutor(processes, initializer=partial(os.nice, 10)) as pool:
        table: Any = pd.concat(pool.map(partial(simulate, sets=sets), cases))
    keys = ["population", "n_prompts", "estimator", "quantity"]
    table = table[[*keys, *(name for name in table if name not in keys)]]
    if write:
        write_csv(TABLE, table, float_format="%.6g")
    share = table["covered"] / table["data_sets"]
    both = table["covered_two_sided"] / table["two_sided"].where(table["two_sided"] > 0)
    shown = table.assign(
        coverage=share, error=np.sqrt(share * (1.0 - share) / table["data_sets"]), coverage_two_sided=both
    ).drop(columns=["covered", "covered_two_sided"])
    print(shown.to_string(index=False, float_format="{:.3f}".format))


if __name__ == "__main__":
    tyro.cli(main)
