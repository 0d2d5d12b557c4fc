"""What is checked: each table of coverage is one entry in CHECKS, and coverage.py draws the data sets and writes them.

A check names its cells, the intervals of one data set of a cell, and how a cell's intervals become rows of its table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from coverage_populations import (
    BATCH_LEVEL,
    DIFFICULTY,
    HEAVY,
    LOCAL,
    LOGNORMAL,
    MEAN_METHODS,
    METHODS,
    ONE_SLOPE,
    PER_PROMPT,
    REPEATED,
    SCENARIOS,
    Difficulty,
    Finite,
    dealt_truth,
    draw,
    line_of,
    population,
    true_alpha,
)
from jaxtyping import Float
from oracles.optimal_baselines import exact_minimiser, exact_optimal_baselines
from scipy import interpolate, stats
from scipy.special import log_softmax

import gradstats as gs
from gradstats import estimators
from gradstats.analyses.allocation import allocate
from gradstats.analyses.batch_size import batch_size
from gradstats.analyses.optimal_baselines import EXPONENTS, optimal_baselines
from gradstats.analyses.variance import compare
from gradstats.config.options import PROMPTS_PER_BATCH
from gradstats.estimators import Batch, Recipe, recipes, token_weightings
from gradstats.estimators.estimator import Weighting
from gradstats.measurement.measurement import WeightedGradients
from gradstats.reference import EnumeratedPolicy
from gradstats.rollouts.table import Rollouts
from gradstats.stats import fit_length_scaling, mundlak_test
from gradstats.stats.jackknife import Statistic, covariance_of
from gradstats.stats.length_scaling import alpha as alpha_fits
from gradstats.stats.on_policy import temperature_test
from gradstats.stats.variance.calibrated import Scored, calibrate
from gradstats.stats.variance.minimiser import minimiser_of
from gradstats.stats.variance.moments import prompt_moments, split_into_groups

LEVEL = 0.95
#: Of sums that are exact, rounding is not a miss.
ROUNDING = 1e-9

Record = dict[str, Any]
#: The records of the data set of a seed.
DataSet = Callable[[int], Iterable[Record]]


class Check(NamedTuple):
    """One table of figures/statistics.

    Attributes:
        table: its file, without the ending.
        cells: what is simulated, each a tuple that names a part of the table.
        data_set: takes a cell; returns what gives the records of each seed.
        rows: takes a cell's records as a frame, the number of data sets and the cell; returns rows of the table.
        identity: the columns that tell rows apart: a new row takes the place of the committed one.
        sets: data sets of a cell.
        float_format: of the file.
    """

    table: str
    cells: Sequence[tuple]
    data_set: Callable[..., DataSet]
    rows: Callable[..., pd.DataFrame]
    identity: tuple[str, ...]
    sets: int
    float_format: str | None = None


def interval(quantity: str, estimator: str, exact: float, low: float, high: float, value: float = np.nan) -> Record:
    """One interval of one data set, and whether it holds the exact value."""
    held = bool(low - ROUNDING <= exact <= high + ROUNDING)
    about = {"quantity": quantity, "estimator": estimator, "exact": exact, "held": held}
    return about | {"low": low, "high": high, "value": value}


def outcome(quantity: str, estimator: str, held: bool) -> Record:
    """A claim that one data set confirms or not."""
    return interval(quantity, estimator, np.nan, 0.0, 0.0, 0.0) | {"held": bool(held)}


def shares(frame: pd.DataFrame) -> pd.DataFrame:
    """By quantity and estimator: how often the interval is known, and how often it then holds the exact value."""
    known = np.isfinite(frame["low"]) | np.isfinite(frame["high"])
    frame = frame.assign(known=known, coverage=frame["held"].astype(float).where(known))
    rows: Any = frame.groupby(["quantity", "estimator"], sort=False)
    found = rows[["exact", "known", "coverage"]].mean().assign(exact=rows["exact"].first(), replications=rows.size())
    return found.reset_index()


# α


def methods_of(scenario: str) -> dict[str, tuple[str, ...]]:
    """Fits, and their intervals: with prompt effects where prompts repeat, one line by least squares with one slope."""
    if scenario == ONE_SLOPE:
        return {"ols": ("cluster",), "within_prompt": ("cluster",), "gls": ("t", "cluster"), "mundlak": ("cluster",)}
    every, mean = ("t", "hc3", "cluster", "bootstrap"), ("hc3", "cluster")
    if scenario == "prompts repeat":
        found = {"ols": every, "theil_sen": ("cluster",), "gamma": mean, "ppml": mean, "within_prompt": every}
        return found | {"between_prompt": every, "mundlak": ("cluster",)}
    return {"ols": every, "theil_sen": ("rank", "cluster"), "gamma": mean, "ppml": mean}


ALPHA_CELLS = [
    (n, scenario, method, kind)
    for n in REPEATED
    for scenario in SCENARIOS
    for method, kinds in methods_of(scenario).items()
    for kind in kinds
    # All pairs of a thousand, twice, two thousand times, take an hour.
    if not (method == "theil_sen" and kind == "cluster" and n == 1000 and scenario != "prompts repeat")
]


def slow(cell: tuple) -> bool:
    """Whether a cell takes minutes where the others take seconds."""
    return "theil_sen" in cell or "bootstrap" in cell


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


def alpha(n: int, scenario: str, method: str, kind: str) -> DataSet:
    """The interval of α by one method, or of the difference that Mundlak's test is of."""
    exact = true_alpha(scenario, method, n)

    def data_set(seed: int) -> Iterator[Record]:
        x, y, prompt = draw(scenario, method, n, np.random.default_rng([seed, n]))
        if method == "mundlak":
            test = mundlak_test(fit_length_scaling(lengths=np.exp(x), sq_norms=np.exp(y), groups=prompt))
            low, high = test.confidence_interval(LEVEL)
        else:
            line = alpha_fits.METHODS[method](x, y, prompt)
            ends = line.slope_interval(LEVEL, kind, 400, np.random.default_rng(seed))
            low, high = (end / 2.0 for end in ends)
        yield interval("alpha", method, exact, low, high)

    return data_set


def alpha_rows(frame: pd.DataFrame, sets: int, n: int, scenario: str, method: str, kind: str) -> pd.DataFrame:
    """How often α is held, and half of the median width."""
    repeated = REPEATED[n] if scenario.startswith("prompts repeat") else 1
    row = {"scenario": scenario, "method": method, "interval": kind, "default": kind == "cluster", "n": n}
    row |= {"n_prompts": -(-n // repeated), "true_alpha": frame["exact"].iloc[0], "coverage": frame["held"].mean()}
    width = ((frame["high"] - frame["low"]) / 2.0).median()
    return pd.DataFrame([row | {"median_half_width": width, "replications": sets}])


def three_ends(x: np.ndarray, y: np.ndarray, prompt: np.ndarray, rng: np.random.Generator) -> dict[str, tuple]:
    """The intervals of α by ordinary least squares with three corrections for few prompts.

    CR2 with Satterthwaite degrees of freedom is the package's; CR3 is the jackknife over prompts with M − 1 degrees;
    the wild bootstrap multiplies residuals of whole prompts by ±1, 999 times, and takes the quantile of |t|.
    """
    line = alpha_fits.METHODS["ols"](x, y, prompt)
    design, n_prompts = np.column_stack([np.ones_like(x), x]), int(prompt.max()) + 1
    bread = np.linalg.inv(design.T @ design)
    coefficients = bread @ design.T @ y
    of_prompt = np.eye(n_prompts)[prompt]  # (n, M)
    grams = np.einsum("nm,ni,nj->mij", of_prompt, design, design)
    scores = of_prompt.T @ (design * (y - design @ coefficients)[:, None])
    slope = coefficients[1]
    # Without prompt g the coefficients move by −(XᵀX − X_gᵀX_g)⁻¹ X_gᵀe_g.
    moved = np.linalg.solve(design.T @ design - grams, scores[:, :, None])[:, 1, 0]
    jackknife = np.sqrt((n_prompts - 1) / n_prompts * (moved**2).sum())
    signs = rng.choice([-1.0, 1.0], (999, n_prompts))
    shifts = signs @ scores @ bread
    errors = np.sqrt(((scores @ bread[1]) ** 2).sum())
    redrawn = signs[:, :, None] * scores - np.einsum("mij,bj->bmi", grams, shifts)
    t = np.abs(shifts[:, 1]) / np.sqrt(((redrawn @ bread[1]) ** 2).sum(axis=1))
    halves = {
        "CR3": stats.t.ppf(0.5 + LEVEL / 2.0, n_prompts - 1) * jackknife,
        "wild": np.quantile(t, LEVEL) * errors,
    }
    found = {"CR2": line.slope_interval(LEVEL, "cluster", 0, rng)}
    found |= {name: (slope - half, slope + half) for name, half in halves.items()}
    return {name: (low / 2.0, high / 2.0) for name, (low, high) in found.items()}


def alpha_methods(name: str, n: int) -> DataSet:
    """Three intervals of α, of a population of *difficulty* with n prompts or of a scenario with n sequences."""
    exact = true_alpha(name, "ols", n) if name in SCENARIOS else population(name).truth["alpha", "alpha"]

    def data_set(seed: int) -> Iterator[Record]:
        rng = np.random.default_rng([seed, n])
        if name in SCENARIOS:
            x, y, prompt = draw(name, "ols", n, rng)
        else:
            batch, _ = population(name).draw(n, rng)
            x, y, prompt = np.log(batch.lengths), np.log(batch.sq_norms), batch.group_index
        for kind, ends in three_ends(x, y, prompt, np.random.default_rng(seed)).items():
            yield interval("alpha", kind, exact, *ends)

    return data_set


def alpha_methods_rows(frame: pd.DataFrame, sets: int, name: str, n: int) -> pd.DataFrame:
    """One row of coverage and half of the median width of each."""
    row: Record = {"population": name, "n": n}
    found: Any
    for kind, found in frame.groupby("estimator", sort=False):
        width = ((found["high"] - found["low"]) / 2.0).median()
        row |= {str(kind): found["held"].mean(), f"{kind} half-width": width}
    return pd.DataFrame([row | {"data_sets": sets}])


# Variances of light tails

# (completions per group, prompts)
VARIANCE_SIZES = ((2, 30), (2, 100), (3, 100), (4, 100), (4, 400))
ESTIMATORS = ("reinforce", "rloo", "grpo", "token_mean", "length_weighted(alpha=0.8, loo=True)")


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


def variance(group_size: int, n_prompts: int) -> DataSet:
    """The intervals of a comparison."""
    policy = population("light tails")
    moments = {name: policy.moments(estimators.get(name), group_size) for name in ESTIMATORS}
    rloo = moments["rloo"]
    exact = {
        name: {
            "trace_cov": moment.trace_cov,
            "ratio": moment.trace_cov / rloo.trace_cov,
            "signal_sq": moment.signal_sq,
            "noise_to_signal": moment.noise_to_signal,
            "matched_ratio": moment.matched_trace_cov / rloo.matched_trace_cov,
            "cosine": moment.cosine,
            "bias_share": moment.bias_share(PROMPTS_PER_BATCH),
            "matched_bias_share": moment.matched_bias_share(PROMPTS_PER_BATCH),
        }
        for name, moment in moments.items()
    }

    def data_set(seed: int) -> Iterator[Record]:
        batch, scores, _ = policy.sample(n_prompts, group_size, np.random.default_rng([seed, group_size]))
        rows = compare(batch, ESTIMATORS, scores).rows
        # Those of the table, without its simultaneous ones and its best set, which take as long.
        for quantity in exact["rloo"]:
            for name, row in zip(ESTIMATORS, rows, strict=True):
                _, low, high = getattr(row, quantity).with_interval(LEVEL)
                yield interval(quantity, name, exact[name][quantity], low, high)

    return data_set


def variance_rows(frame: pd.DataFrame, sets: int, group_size: int, n_prompts: int) -> pd.DataFrame:
    """How often each is held."""
    rows: Any = frame.groupby(["quantity", "estimator"], sort=False)
    found = rows["exact"].first().rename("truth").reset_index()
    found.insert(2, "group_size", group_size)
    found.insert(3, "n_prompts", n_prompts)
    return found.assign(coverage=rows["held"].mean().to_numpy(), replications=sets)


# Heavy tails

DEALS = 64
#: Batch-level rows, which take most of the time, are in one data set of so many.
EVERY = 3
#: Completions of a prompt that allocations are extrapolated to.
LARGER = (16, 32)


def heavy_tails(name: str, n_prompts: int) -> DataSet:
    """The intervals of a comparison, of critical batches and of α where a few prompts carry most of the variance."""
    drawn = population(name)
    truth = drawn.truth | dealt_truth(drawn, n_prompts)

    def data_set(seed: int) -> Iterator[Record]:
        batch, scores = drawn.draw(n_prompts, np.random.default_rng([seed, n_prompts]))
        names = LOCAL if seed % EVERY else (*LOCAL, *BATCH_LEVEL)
        table: Any = compare(batch, names, scores, n_resamples=DEALS, rng=seed).to_frame(LEVEL)
        batches = batch_size(batch, LOCAL, scores).to_frame(LEVEL)
        table.index, batches.index = pd.Index(names), pd.Index(LOCAL)
        worth = {"effective": float(table.loc["rloo", "n_effective_prompts"])}
        for (label, quantity), exact in truth.items():
            if label in METHODS:
                line = line_of(batch, METHODS[label])
                yield interval(quantity, "", exact, *line.confidence_interval(LEVEL), line.alpha) | worth
            elif label in names:
                row = batches.loc[label] if quantity == "critical_batch" else table.loc[label]
                value, low, high = (float(row[f"{quantity}{end}"]) for end in ("", "_low", "_high"))
                yield interval(quantity, label, exact, low, high, value) | worth
        for quantity, rows in (("ratio", names), ("matched_ratio", LOCAL)):
            ends = table.loc[list(rows), [f"{quantity}_simultaneous_{end}" for end in ("low", "high")]].to_numpy()
            held = [interval("", "", truth[row, quantity], *end)["held"] for row, end in zip(rows, ends, strict=True)]
            yield outcome(f"{quantity}_simultaneous", "all", all(held)) | worth
        best = min(LOCAL, key=lambda label: truth[label, "matched_ratio"])
        if np.isfinite(table.loc[best, "matched_ratio"]):
            yield outcome("in_best_set", best, table.loc[best, "in_best_set"]) | worth

    return data_set


def heavy_tails_rows(frame: pd.DataFrame, sets: int, name: str, n_prompts: int) -> pd.DataFrame:
    """How many intervals cover, have a value, have two ends as well, and their median relative width."""
    two_sided = pd.Series(np.isfinite(frame[["value", "low", "high"]]).all(axis=1))
    width = ((frame["high"] - frame["low"]) / frame["value"].abs()).where(two_sided & (frame["value"] != 0))
    frame = frame.assign(covered=frame["held"], shown=np.isfinite(frame["value"]), two_sided=two_sided, width=width)
    rows: Any = frame.assign(covered_two_sided=frame["held"] & two_sided).groupby(["estimator", "quantity"], sort=False)
    counts = rows[["covered", "shown", "two_sided", "covered_two_sided"]].sum()
    found = counts.assign(width=rows["width"].median(), effective=rows["effective"].mean(), data_sets=rows.size())
    found = found.reset_index()
    found.insert(0, "population", name)
    found.insert(1, "n_prompts", n_prompts)
    return found.assign(batch_level=found["estimator"].isin(BATCH_LEVEL))


def quadratic_form(population: Finite | Difficulty) -> Float[np.ndarray, "parts parts"]:
    """Return tr Cov as a form of the shares and the shift of a learned mixture."""
    batch = population.whole()
    beside = (batch.rewards - batch.rewards.mean()) / PER_PROMPT
    plain, by_length = (estimators.get(name).weights(batch) for name in ("rloo", "token_mean(loo=True)"))
    parts = [plain, by_length, beside, np.full(len(plain), -1.0 / PER_PROMPT)]

    def trace(weights: Float[np.ndarray, " n"]) -> float:
        mean, square = population.moments(weights)
        return square - float(mean @ mean)

    return np.array([[(trace(one + other) - trace(one - other)) / 4.0 for other in parts] for one in parts])


def learned(name: str, n_prompts: int) -> DataSet:
    """Whether the sentence on the best learned baseline claims a gain over RLOO, and whether it loses then.

    The truth of a learned baseline is the variance on the whole population with the parameters that were learned.
    """
    drawn = population(name)
    form = quadratic_form(drawn)

    def data_set(seed: int) -> Iterator[Record]:
        batch, scores = drawn.draw(n_prompts, np.random.default_rng([seed, n_prompts]))
        result = optimal_baselines(batch, scores, published=["rloo"])
        best = next(one for one in result.learned if one.label == result.best)
        given = best.parameters.mean(axis=0)
        if best.names == ("alpha",):
            weighted = estimators.length_weighted(alpha=float(given[0]), loo=True)
            mean, square = drawn.moments(weighted.weights(drawn.whole()))
            variance = square - float(mean @ mean)
        else:
            mixture = given if len(given) == len(form) else np.array([1.0, 0.0, 0.0, given[0]])
            variance = float(mixture @ form @ mixture)
        estimated = next(row for row in result.to_learned.rows if row.label == "rloo").ratio
        value, low, high = (1.0 / one if one else np.inf for one in estimated.with_interval(LEVEL))
        truth, claims = variance / form[0, 0], "saves" in result.sentence() and "at most" not in result.sentence()
        yield {
            "claims_gain": claims,
            "claims_gain_and_loses": bool(claims and truth >= 1.0),
            "true_ratio": truth,
            "estimated_ratio": value,
            "ratio_covered": interval("", "", truth, high, low)["held"],
        }

    return data_set


def learned_rows(frame: pd.DataFrame, sets: int, name: str, n_prompts: int) -> pd.DataFrame:
    """The mean of each."""
    about = {"population": name, "n_prompts": n_prompts, "data_sets": sets}
    return pd.DataFrame([about | dict(zip(frame, np.mean(frame.to_numpy(dtype=float), axis=0), strict=True))])


def allocated(name: str, n_prompts: int) -> DataSet:
    """The relative noise of RLOO in larger groups than were drawn."""
    drawn, noise = population(name), {}
    for size in (PER_PROMPT, *LARGER):
        mean, square = drawn.moments(estimators.get("rloo").weights(drawn.whole(size)), size)
        noise[size] = size * (square - float(mean @ mean))

    def data_set(seed: int) -> Iterator[Record]:
        batch, scores = drawn.draw(n_prompts, np.random.default_rng([seed, n_prompts]))
        found = allocate(batch, ("rloo",), scores, group_sizes=(PER_PROMPT, *LARGER)).to_frame(LEVEL)
        ends = found.set_index("group_size")[["relative_noise", "relative_noise_low", "relative_noise_high"]]
        for size in LARGER:
            value, low, high = ends.loc[size]
            one = interval("relative_noise", str(size), noise[size] / noise[PER_PROMPT], low, high, value)
            yield one | {"held": one["held"] and bool(value > 0)}

    return data_set


def allocated_rows(frame: pd.DataFrame, sets: int, name: str, n_prompts: int) -> pd.DataFrame:
    """One row of each size."""
    rows: Any = frame.groupby("estimator", sort=False)
    about = {"population": name, "n_prompts": n_prompts, "data_sets": sets, "group_size": list(LARGER)}
    return pd.DataFrame(about).assign(
        true_relative_noise=rows["exact"].first().to_numpy(), covered=rows["held"].mean().to_numpy()
    )


# Intervals calibrated by a proxy

CALIBRATED = ("rloo", "reinforce", "grpo")
#: Squared norms and noise → the proxy: excellent, independent of the norms, falling with them, fair, right but for the
#: tail.
PROXIES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "excellent": lambda squares, noise: squares * np.exp(0.1 * noise),
    "useless": lambda squares, noise: np.exp(1.5 * noise),
    "wrong": lambda squares, noise: 1.0 / squares,
    "fair": lambda squares, noise: squares * np.exp(0.7 * noise),
    "wrong in the tail": lambda squares, noise: np.minimum(squares, np.quantile(squares, 0.9)),
}


def calibrated(spread: float, proxy: str, n_measured: int, n: int) -> DataSet:
    """Intervals with a proxy of all n prompts, and without, of those that are measured; lengths are a candidate too."""
    drawn = population(f"proxied, sd {spread:g}")
    exact = {label: drawn.trace(label) for label in CALIBRATED}

    def data_set(seed: int) -> Iterator[Record]:
        rng = np.random.default_rng([seed, n_measured, n])
        batch, scores = drawn.draw(n, rng)
        q = PROXIES[proxy]((scores**2).sum(axis=1), rng.normal(size=len(scores)))
        scored = Scored(batch.groups, batch.rewards, batch.lengths, {"proxy": q})
        rows = np.arange(n_measured * PER_PROMPT)
        found = calibrate(batch.select(rows), CALIBRATED, scored, scores=scores[rows], rng=seed)
        for row in found.rows:
            for quantity, one in (("trace_cov", row.trace_cov), ("ratio", row.ratio)):
                if (row.label, quantity) == ("rloo", "ratio"):
                    continue
                true = exact[row.label] / (exact["rloo"] if quantity == "ratio" else 1.0)
                alone = one.measured.with_interval(LEVEL)
                with_proxy = one.with_interval(LEVEL) if one.helps else alone
                # Where few prompts carry the variance an interval may begin at 0.
                widths = [math.log(high / low) if low > 0.0 else math.inf for _, low, high in (with_proxy, alone)]
                finite = bool(np.isfinite(widths).all())
                yield {
                    "estimator": row.label,
                    "quantity": quantity,
                    "covered": bool(with_proxy[1] <= true <= with_proxy[2]),
                    "covered_without": bool(alone[1] <= true <= alone[2]),
                    "helps": bool(one.helps),
                    "finite": finite,
                    "width": widths[0] / widths[1] if finite else np.nan,
                    "factor": one.factor,
                    "error": np.log(with_proxy[0] / true) ** 2,
                    "error_without": np.log(alone[0] / true) ** 2,
                }

    return data_set


def calibrated_rows(frame: pd.DataFrame, sets: int, spread: float, proxy: str, n_measured: int, n: int) -> pd.DataFrame:
    """How often both cover, and how much shorter the intervals with a proxy are."""
    grouped: Any = frame.groupby(["estimator", "quantity"], sort=False)
    means: pd.DataFrame = grouped.mean().reset_index()
    means["worst_width"] = grouped["width"].max().to_numpy()
    means["factor_of_errors"] = means.pop("error_without") / means.pop("error")
    about = {"spread": spread, "proxy": proxy, "n_measured": n_measured, "n_prompts": n, "data_sets": sets}
    for at, (name, value) in enumerate(about.items()):
        means.insert(at, name, value)
    return means


# The best exponent of length weights, and other optima

GROUP = 3
GRIDS = {
    ("length_weighted(loo=True)", "alpha"): np.linspace(-1.0, 2.0, 13),
    ("asymmetric(loo=True)", "delta"): np.linspace(-1.0, 1.0, 9),
}
ORACLE = "norm_weighted(loo=True)"
SIZE_OF_ALLOCATION = 4
SIZES = (2, 4, 6)  # the last is extrapolated from groups of 2 and 4
ALLOCATED = ("rloo", "grpo", "token_mean(loo=True)")
TOKENS = 1000
EDGES = (0.0, 0.4, 1.0)


def curve_of(batch: Batch, scores: Float[np.ndarray, "n d"]) -> list[Statistic]:
    """Return tr Cov at each exponent, as optimal baselines estimate it."""
    groups = split_into_groups(batch.group_index, np.arange(len(scores)), None)
    found = [
        prompt_moments(scores, estimators.length_weighted(alpha=one, loo=True).weights(batch), groups)
        for one in EXPONENTS
    ]
    return [one.trace_cov for one in found]


def exponent_intervals(drawn: list[Statistic], exact: float) -> Iterator[Record]:
    """The interval of the package, and whether one by Student's quantile with M − 1 degrees of freedom holds."""
    lowest = minimiser_of(EXPONENTS, drawn)
    assert lowest is not None
    low, high = lowest.confidence_interval(LEVEL)
    yield interval("exponent", "coverage", exact, low, high) | {"below": bool(high < exact), "above": bool(low > exact)}
    slope = interpolate.CubicSpline(EXPONENTS, np.eye(len(EXPONENTS)))(exact, 1)
    t = slope @ np.array([one.value for one in drawn]) / np.sqrt(slope @ covariance_of(drawn) @ slope)
    yield outcome("exponent", "student", abs(t) <= stats.t.ppf(0.5 + LEVEL / 2.0, len(drawn[0].replicates) - 1))


def exponent(name: str, n_prompts: int) -> DataSet:
    """The best exponent of length weights."""
    drawn = population(name)
    if isinstance(drawn, EnumeratedPolicy):
        bounds = (float(EXPONENTS[0]), float(EXPONENTS[-1]))
        exact = exact_minimiser(drawn, "length_weighted(loo=True)", "alpha", bounds, GROUP).parameters["alpha"]
    else:
        lowest = minimiser_of(EXPONENTS, curve_of(*drawn.sample(np.arange(drawn.n_prompts))))
        assert lowest is not None
        exact = lowest.value

    def data_set(seed: int) -> Iterator[Record]:
        rng = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(seed, n_prompts)))
        if isinstance(drawn, EnumeratedPolicy):
            batch, scores, _ = drawn.sample(n_prompts, GROUP, rng=rng)
        else:
            batch, scores = drawn.draw(n_prompts, rng)
        return exponent_intervals(curve_of(batch, scores), exact)

    return data_set


def exponent_rows(frame: pd.DataFrame, sets: int, name: str, n_prompts: int) -> pd.DataFrame:
    """One row, with the side on which misses lie."""
    own, student = (frame.loc[frame["estimator"] == one] for one in ("coverage", "student"))
    size = GROUP if name not in LOGNORMAL else PER_PROMPT
    row = {"population": name, "group_size": size, "n_prompts": n_prompts, "exact": own["exact"].iloc[0]}
    row |= {"coverage": own["held"].mean(), "student": student["held"].mean()}
    sides = {side: own[side].astype(float).mean() for side in ("below", "above")}
    return pd.DataFrame([row | sides | {"replications": sets}])


class Part(NamedTuple):
    """A policy, the size of its groups, and the intervals of one data set."""

    policy: EnumeratedPolicy
    group_size: int
    intervals: Callable[[Batch, np.ndarray], Iterator[Record]]


def of_optima(n_prompts: int) -> Part:
    """Return the part on curves and optimal baselines."""
    policy, size = population("rewards at random"), GROUP
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
    oracle, rloo = (policy.moments(estimators.get(label), size).trace_cov for label in (ORACLE, "rloo"))
    best = min(one.trace_cov for one in learned.values())

    def intervals(batch: Batch, scores: np.ndarray) -> Iterator[Record]:
        for (label, parameter), grid in GRIDS.items():
            curve = gs.variance_curve(batch, label, parameter, grid, scores)
            yield interval("minimiser", label, lowest[label, parameter], *curve.confidence_interval(LEVEL))
        found = gs.optimal_baselines(batch, scores, published=["rloo"])
        frame = found.to_frame(LEVEL).set_index("estimator")
        for one in found.learned:
            exact = learned[one.label]  # pyright: ignore[reportArgumentType]
            if one.optimum is not None:
                (parameter,) = exact.parameters.values()
                yield interval("parameter", one.label, parameter, *one.confidence_interval(LEVEL))
            ends = frame.loc[one.label, ["ratio_low", "ratio_high"]].tolist()
            yield interval("ratio", one.label, exact.trace_cov / oracle, *ends)
        ends = frame.loc["rloo", ["ratio_to_learned_low", "ratio_to_learned_high"]].tolist()
        yield interval("ratio_to_learned", "rloo", rloo / best, *ends)

    return Part(policy, size, intervals)


def of_allocations(n_prompts: int) -> Part:
    """Return the part on tokens."""
    policy = population("resolved signal")
    # At N = 2 the three are multiples of one another; a larger size than was measured is extrapolated for rloo alone.
    chosen = [("rloo", size) for size in SIZES] + [(label, SIZE_OF_ALLOCATION) for label in ALLOCATED[1:]]
    exact = {(label, size): policy.moments(estimators.get(label), size) for label, size in chosen}
    reference = SIZE_OF_ALLOCATION * exact["rloo", SIZE_OF_ALLOCATION].trace_cov

    def intervals(batch: Batch, scores: np.ndarray) -> Iterator[Record]:
        frame = gs.allocate(batch, ALLOCATED, scores, tokens=TOKENS, group_sizes=SIZES).to_frame(LEVEL)
        rows = frame.set_index(["estimator", "group_size"])
        for (label, size), moments in exact.items():
            noise, square = size * moments.matched_trace_cov, moments.coefficient**2
            values = {"relative_noise": noise / reference}
            if label == "rloo":  # otherwise groups of all completions of a prompt do not separate the two
                values |= {"within_prompt": moments.within_prompt / square}
                values |= {"between_prompt": moments.between_prompt / square}
            if (label, size) == ("rloo", SIZE_OF_ALLOCATION):
                del values["relative_noise"]  # 1 by definition
            for name, value in values.items():
                ends = (np.nan, np.nan)
                if (label, size) in rows.index:
                    ends = rows.loc[(label, size), [f"{name}_low", f"{name}_high"]].tolist()
                yield interval(name, f"{label}, N={size}", value, *ends)

    return Part(policy, SIZE_OF_ALLOCATION, intervals)


def of_scales(n_prompts: int) -> Part:
    """Return the part on success rates."""
    policy = population("resolved signal")
    rate = np.bincount(policy.prompts, policy.probabilities * policy.rewards) / policy.prompt_probabilities
    means = [
        np.stack([one.mean for one in policy.moments_by_prompt(estimators.get(label), SIZE_OF_ALLOCATION)])
        for label in ("grpo", "rloo")
    ]
    inside = [(rate >= low) & (rate < high) for low, high in pairwise(EDGES)]
    exact = []
    for one in inside:
        scaled, target = (mean[one].mean(axis=0) for mean in means)
        exact.append(float(scaled @ target / (target @ target)))

    def intervals(batch: Batch, scores: np.ndarray) -> Iterator[Record]:
        # The exact value before the first token is the prompt's success rate.
        assert batch.values is not None
        found = gs.variance_by_success(batch, ["grpo"], scores, success=batch.values[:, 0].round(12), bins=EDGES)
        for row, value in zip(found.to_frame(LEVEL).to_dict("records"), exact, strict=True):
            yield interval("scale", f"grpo, p in {row['success_low']:g}–{row['success_high']:g}", value,
                       row["scale_low"], row["scale_high"])  # fmt: skip

    return Part(policy, SIZE_OF_ALLOCATION, intervals)


PARTS = {"optima": of_optima, "allocation": of_allocations, "scales": of_scales}


def optima(part: str, n_prompts: int) -> DataSet:
    """The lowest point of a curve and what optimal baselines state; the noise of an allocation; scales by success."""
    simulated = PARTS[part](n_prompts)

    def data_set(seed: int) -> Iterator[Record]:
        stream = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(seed,)))
        batch, scores, _ = simulated.policy.sample(n_prompts, simulated.group_size, rng=stream)
        return simulated.intervals(batch, scores)

    return data_set


def optima_rows(frame: pd.DataFrame, sets: int, part: str, n_prompts: int) -> pd.DataFrame:
    """How often each interval is known and holds."""
    found: Any = shares(frame).assign(part=part, n_prompts=n_prompts, replications=sets)
    found["group_size"] = GROUP if part == "optima" else SIZE_OF_ALLOCATION
    columns = ["part", "quantity", "estimator", "group_size", "n_prompts", "exact", "coverage", "known"]
    return found[[*columns, "replications"]]


# Off-policy

QUANTITIES = ("trace_cov", "cosine", "matched_bias_share")
# PPO's surrogate with clips that no ratio reaches.
TOKEN_RATIOS = Recipe("rloo", ratio="token_clip(eps_low=0.99, eps_high=100)", name="token_ratios")
PLAIN = recipes.get("rloo")
ENTROPY = 0.9  # nats
#: Recipes that are compared from sketches as well: plain sums, clips of completions, and measured weightings.
SKETCHED = ("rloo", "rloo_is", "gspo", "grpo", "dapo", "cispo")


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


def off_policy(n_prompts: int, sketch_dim: int | None = None) -> DataSet:
    """The intervals of recipes where completions come from an older policy; with a dimension, from sketches of it."""
    policy, exact = population("older policy"), {}
    chosen = zoo() if sketch_dim is None else [recipes.get(name) for name in SKETCHED]
    for one in chosen:
        moments = policy.moments(one, GROUP)
        values = (moments.trace_cov, moments.cosine, moments.matched_bias_share(PROMPTS_PER_BATCH))
        exact[one.label] = dict(zip(QUANTITIES, values, strict=True))
    compared = [*chosen, *(one for one in (PLAIN, TOKEN_RATIOS) if one.label not in exact)]

    def data_set(seed: int) -> Iterator[Record]:
        stream = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(seed,)))
        batch, _, token_scores = policy.sample(n_prompts, GROUP, rng=stream)
        given: tuple[Any, np.ndarray | None] = (batch, token_scores)
        if sketch_dim is not None:
            given = (sketched(batch, token_scores, compared, sketch_dim, stream), None)
        found = compare(
            given[0], compared, given[1], prompts_per_batch=PROMPTS_PER_BATCH, target="importance"
        ).to_frame(LEVEL)
        by_label = found.set_index("estimator")
        for label, values in exact.items():
            for name, value in values.items():
                yield interval(name, label, value, *by_label.loc[label, [f"{name}_low", f"{name}_high"]])
        plain, ratios = (by_label.loc[one.label, "cosine"] for one in (PLAIN, TOKEN_RATIOS))
        yield outcome("token ratios rank above plain RLOO", "", plain < ratios)

    return data_set


def off_policy_rows(frame: pd.DataFrame, sets: int, n_prompts: int, sketch_dim: int | None = None) -> pd.DataFrame:
    """How often each interval is known and holds; the ranking of token ratios stays with the records."""
    found: Any = shares(frame.loc[frame["quantity"].isin(QUANTITIES)]).assign(n_prompts=n_prompts)
    columns = ["estimator", "quantity", "n_prompts", "exact", "known", "coverage", "replications"]
    return found[columns] if sketch_dim is None else found[columns].assign(sketch_dim=sketch_dim)


# The remaining intervals, and plans

SIZE = 3
SPLIT = ("reinforce", "rloo", "grpo", "token_mean")
EQUIVALENT = ("token_mean(loo=True)", "length_weighted(alpha=0.8, loo=True)", "reinforce")
BATCHED, BATCH_PROMPTS = ("rloo", "reinforce", "grpo"), 64
SHIFTED = ("token_mean", "length_weighted(alpha=0.8)")
HALF_WIDTH, COMPLETIONS, MOST_PROMPTS = 0.05, 4, 6000


def _every_group(exact: EnumeratedPolicy) -> dict[tuple[str, str], float]:
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


@cache
def truths() -> dict[tuple[str, str], float]:
    """Return (quantity, estimator) → its value under the enumerated policy."""
    exact = population("light tails")
    truth = _every_group(exact)
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


def of_gradients(n_prompts: int, seed: int) -> Iterator[Record]:
    """Everything that the enumerated policy says, on one data set."""
    exact = population("light tails")
    batch, scores, _ = exact.sample(n_prompts, 2 * SIZE, np.random.default_rng([seed, n_prompts, 1]))
    compared = compare(batch, SPLIT, scores, group_size=SIZE)
    parts = compared.variance_components(LEVEL).set_index("estimator")
    kept = compared.to_frame(LEVEL).set_index("estimator")
    equivalent = {}
    # Few prompts may not show that larger groups of rloo are less noisy, and the question is then refused.
    with suppress(ValueError):
        for name in EQUIVALENT:
            frame = gs.equivalent_group_size(batch, name, SIZE, scores).to_frame(LEVEL)
            equivalent[name] = frame.set_index("estimator")
    single, _, _ = exact.sample(n_prompts, SIZE, np.random.default_rng([seed, n_prompts, 2]))
    for (quantity, name), value in truths().items():
        if quantity in ("critical_batch", "alignment") or (quantity in OF_SIZE and name not in equivalent):
            continue
        if quantity == "implied_shift":
            low, high = gs.implied_shift(single, name).confidence_interval(LEVEL)
        elif quantity == "length_reward":
            low, high = gs.length_reward_correlation(single).confidence_interval(LEVEL)
        else:
            table = equivalent[name] if quantity in OF_SIZE else kept if quantity == "kept_share" else parts
            low, high = table.loc[name, [f"{quantity}_low", f"{quantity}_high"]]
        yield interval(quantity, name, value, low, high)


OF_SIZE = ("equivalent_group_size", "tokens_saved")


def of_batches(n_prompts: int, seed: int) -> Iterator[Record]:
    """The critical batch and the alignment of a batch: of all data sets, and of those that show a value."""
    batch, scores, _ = population("light tails").sample(n_prompts, SIZE, np.random.default_rng([seed, n_prompts, 6]))
    frame = batch_size(batch, BATCHED, scores, prompts=BATCH_PROMPTS).to_frame(LEVEL)
    for row in frame.to_dict("records"):
        for quantity in ("critical_batch", "alignment"):
            name = row["estimator"]
            one = interval(quantity, name, truths()[quantity, name], row[f"{quantity}_low"], row[f"{quantity}_high"])
            yield one
            if np.isfinite(row[quantity]):
                yield outcome("critical_batch and alignment, where a value is shown", name, one["held"])


def of_temperatures(n_prompts: int, seed: int) -> Iterator[Record]:
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
        yield outcome("temperatures", f"drawn at {temperature:g}", low <= temperature <= high)


def of_alpha_plan(pilot_prompts: int, seed: int) -> Iterator[Record]:
    """Plan from a pilot, and see whether the assured size gives the half-width."""
    rng = np.random.default_rng([seed, 4])

    def fitted(n_prompts: int):
        n = n_prompts * COMPLETIONS
        # 100 sequences are four a prompt in that scenario; more prompts of four are several of these.
        parts = [draw(ONE_SLOPE, "ols", 100, rng) for _ in range(-(-n // 100))]
        x, y = (np.concatenate([part[at] for part in parts])[:n] for at in (0, 1))
        return fit_length_scaling(lengths=np.exp(x), sq_norms=np.exp(y), groups=np.arange(n) // COMPLETIONS)

    planned = gs.plan_alpha(fitted(pilot_prompts), HALF_WIDTH).n_prompts_assured
    if np.isfinite(planned):
        low, high = fitted(int(planned)).confidence_interval(LEVEL)
        yield outcome("plan of α", "assured size is enough", (high - low) / 2.0 <= HALF_WIDTH)


def of_signal_plan(pilot_prompts: int, seed: int) -> Iterator[Record]:
    """Plan for the signal of rloo from a pilot, and see whether the assured size resolves it."""
    rng = np.random.default_rng([seed, 5])

    def compared(n_prompts: int):
        batch, scores, _ = population("light tails").sample(n_prompts, SIZE, rng)
        return compare(batch, ["rloo"], scores)

    planned = gs.plan_signal(compared(pilot_prompts), "rloo").n_prompts_assured
    if planned <= MOST_PROMPTS:
        yield outcome("plan of a signal", "assured size is enough", compared(int(planned)).rows[0].resolved(LEVEL))


OTHERS: dict[str, tuple[Callable[[int, int], Iterator[Record]], tuple[int, ...]]] = {
    "gradients": (of_gradients, (30, 100)),
    "temperatures": (of_temperatures, (30, 100)),
    "batches": (of_batches, (100, 400)),
    "plan of alpha": (of_alpha_plan, (30,)),
    "plan of a signal": (of_signal_plan, (400,)),
}


def others(part: str, n_prompts: int) -> DataSet:
    """One part of the remaining intervals."""
    return lambda seed: OTHERS[part][0](n_prompts, seed)


def others_rows(frame: pd.DataFrame, sets: int, part: str, n_prompts: int) -> pd.DataFrame:
    """How often each is held; a plan that asks for too many prompts, and a question that is refused, has no record."""
    rows: Any = frame.groupby(["quantity", "estimator"], sort=False)
    found = rows["exact"].first().rename("truth").reset_index().rename(columns={"estimator": "of"})
    found.insert(2, "n_prompts", n_prompts)
    return found.assign(coverage=rows["held"].mean().to_numpy(), replications=rows.size().to_numpy())


HEAVY_CELLS = [(name, size) for size in (100, 30) for name in HEAVY]
EXPONENT_CELLS = [(name, size) for name in ("rewards at random", "resolved signal", *LOGNORMAL) for size in (30, 100)]
CALIBRATED_CELLS = [(sd, proxy, *size) for sd, *size in ((1.5, 40, 400), (0.5, 100, 1000)) for proxy in PROXIES]
SPREADS = ("difficulty, sd 0.5", "difficulty, sd 1", "difficulty, sd 1.5")
METHODS_CELLS = [(name, n) for n in (30, 100) for name in (*SPREADS, "noise varies with length", "prompts repeat")]
OPTIMA_CELLS = [("optima", 100), *((part, size) for part in ("allocation", "scales") for size in (30, 100))]
OTHERS_CELLS = [(part, size) for part, (_, sizes) in OTHERS.items() for size in sizes]
OF_ROW, OF_POPULATION = ("quantity", "estimator", "n_prompts"), ("population", "n_prompts")

#: Every table, by the name that ``--only`` takes.
CHECKS = {
    check.table.removeprefix("coverage_"): check
    for check in (
        Check("coverage_alpha", ALPHA_CELLS, alpha, alpha_rows, ("n", "scenario", "method", "interval"), 2000, "%.4g"),
        Check("coverage_alpha_methods", METHODS_CELLS, alpha_methods, alpha_methods_rows, ("population", "n"), 600,
              "%.4g"),
        Check("coverage_variance", VARIANCE_SIZES, variance, variance_rows, (*OF_ROW, "group_size"), 400, "%.4g"),
        Check("coverage_heavy_tails", HEAVY_CELLS, heavy_tails, heavy_tails_rows,
              (*OF_POPULATION, "estimator", "quantity"), 400, "%.6g"),
        Check("coverage_learned", HEAVY_CELLS, learned, learned_rows, OF_POPULATION, 60, "%.6g"),
        Check("coverage_allocated", [cell for cell in HEAVY_CELLS if cell[0] in DIFFICULTY], allocated, allocated_rows,
              (*OF_POPULATION, "group_size"), 60, "%.6g"),
        Check("coverage_calibrated", CALIBRATED_CELLS, calibrated, calibrated_rows,
              ("spread", "proxy", "estimator", "quantity"), 1000),
        Check("coverage_exponent", EXPONENT_CELLS, exponent, exponent_rows, OF_POPULATION, 300),
        Check("coverage_optima", OPTIMA_CELLS, optima, optima_rows, ("part", *OF_ROW), 400),
        Check("coverage_off_policy", [(100,), (400,)], off_policy, off_policy_rows, OF_ROW, 1000),
        Check("coverage_off_policy_sketched", [(100, 64), (400, 64), (100, 4096)], off_policy, off_policy_rows,
              (*OF_ROW, "sketch_dim"), 150),
        Check("coverage_others", OTHERS_CELLS, others, others_rows, ("quantity", "of", "n_prompts"), 300, "%.4g"),
    )
}  # fmt: skip
