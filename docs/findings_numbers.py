"""What the templates of findings.md, its details and claims.md look up beside single numbers of committed answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from committed_numbers import (
    NAMES,
    Number,
    alpha,
    committed_path,
    number,
    of,
    published_alpha,
    ratio,
    record,
    rows,
    table,
)

from gradstats import data
from gradstats import estimators as est
from gradstats.analyses.numbers import minimiser_with_interval
from gradstats.reference import EnumeratedPolicy
from gradstats.report.saved_results import completion_means, read_results

#: Runs of real weights, and all whose α is compared, in the order of tables.
REAL = ("qwen_mawps", "qwen_gsm8k", "qwen_svamp", "qwen_1_5b", "qwen_1_5b_mawps", "smollm2")
RUNS = (*REAL, "embedded_resolved", "embedded")
#: Runs whose group sizes are compared.
SIZED = ("qwen_mawps", "qwen_gsm8k", "embedded_resolved", "embedded_resolved_layers")
#: Runs with curves along α and δ, and those with learned baselines.
WITH_CURVES = SIZED
LEARNED = ("qwen_mawps", "qwen_svamp", "embedded_resolved", "embedded_resolved_layers")
#: Runs whose signal is hardly resolved in small groups: their estimators are compared by variance alone.
VARIANCES = ("qwen_mawps_by_block", "qwen_svamp", "qwen_1_5b_mawps")
#: Checkpoints of reinforcement learning.
STEPS = (0, 10, 20, 30, 40)
EXPONENT, SHIFT = "curve_length_weighted_loo_true_alpha", "curve_asymmetric_loo_true_delta"
#: Tokens of the completions behind the Monte-Carlo values of ``embedded_zoo``, over those of the completions compared:
#: four completions of every second sentence, and of every prompt, each expected to be as long as what followed.
TOKENS_OF_VALUES = 5.6


def in_groups(run: str, label: str, group_size: int = 8) -> Number | None:
    """Return the relative noise of an estimator in groups of a size, from the first committed answer that has it.

    Of a run of :data:`VARIANCES` it is the ratio of variances.
    """
    column = "ratio" if run in VARIANCES else "matched_ratio"
    found = (
        of(folder, name, column, estimator=label, group_size=group_size)
        for folder, name in ((run, "variance"), ("group_sizes", run), (run, "group_sizes"))
        if committed_path(folder, f"{name}.csv").is_file()
    )
    return next((one for one in found if one is not None), None)


def in_blocks(run: str, label: str, group_size: int, blocks: tuple[str, ...]) -> list[Number]:
    """Return the variance of an estimator over RLOO's, of the gradient with respect to each of some blocks."""
    found = rows(run, "variance_by_block", estimator=label, group_size=group_size).set_index("block")
    return [number(found.loc[block], "ratio") for block in blocks]


def share_of(run: str, block: str) -> float:
    """Return the share of ‖S‖² that a block of parameters holds."""
    return float(rows(run, "alpha_by_block", block=block)["share_of_sq_norm"].iloc[0])


def fixed_below(run: str) -> list[str]:
    """Return the baselines without training or values of states below RLOO, corrected for comparing all rows."""
    labels = [label for label in table(run, "variance")["estimator"] if label not in ("gae", "recipe:ppo")]
    return [label for label in labels if (one := ratio(run, label, all_rows=True)) is not None and one.below(1)]


def at_equal_tokens(group_size: int) -> dict[str, Number]:
    """Return the noise of groups of a size over that of groups of 8, at equal tokens, by run."""
    where = {"estimator": "rloo", "group_size": group_size}
    return {run: one for run in SIZED if (one := of(run, "allocation", "relative_noise", **where)) is not None}


def sizes_below(group_size: int) -> list[str]:
    """Return the runs in which groups of a size are less noisy than groups of 8, at equal tokens."""
    return [run for run, one in at_equal_tokens(group_size).items() if one.below(1)]


def between_prompts(run: str, group_size: int) -> Number:
    """Return the percentage of RLOO's variance that lies between prompts; the variance is taken as known."""
    row = rows(run, "group_sizes", estimator="rloo", group_size=group_size).iloc[0]
    return number(row, "between_prompt").times(100.0 / row["trace_cov"])


def best_size(run: str) -> Number:
    r"""Return the completions of a prompt at which RLOO is least noisy, :math:`1 + \sqrt{v_2/b}` (2603.01162).

    :math:`2 w(2) = v_1 + v_2` and :math:`4 w(4) = v_1 + v_2/3` give :math:`v_2`. The committed tables lack its joint
    error with b: the interval has the farthest corners of two that hold together, of :math:`v_2` as if groups of 2 and
    of 4 were independent, which is too wide for the same completions.
    """
    found = table(run, "allocation").query("estimator == 'rloo'").set_index("group_size")
    pairs, fours = (number(found.loc[size], "within_prompt").times(1.5 * size) for size in (2, 4))
    cost, between = pairs.minus(fours).widened(2), number(found.loc[4], "between_prompt").widened(2)
    resolved = between.low > 0.0
    ends = (cost.value / between.value, cost.low / between.high, cost.high / between.low if resolved else math.inf)
    value, low, high = (1.0 + math.sqrt(max(end, 0.0)) for end in ends)
    return Number(value if resolved else math.nan, low, high)


def effective_prompts(run: str, label: str = "rloo") -> float:
    """Return how many equally noisy prompts an estimator's variance rests on in the largest groups; NaN without."""
    found = rows(run, "variance", estimator=label).sort_values("group_size", kind="stable")
    return float(found["n_effective_prompts"].iloc[-1]) if "n_effective_prompts" in found and len(found) else math.nan


def effective_along(sweep: str) -> tuple[float, float]:
    """Return the least and the most effective prompts of RLOO in the cells of a sweep."""
    found = rows(sweep, "sweep", estimator="rloo")["n_effective_prompts"]
    return float(found.min()), float(found.max())


def fewer_than(count: int) -> list[str]:
    """Return the runs in which fewer effective prompts carry the variance of groups."""
    others = ("embedded_zoo", "embedded_layers", "embedded_tokens", "qwen_mawps_otb_layers")
    return [run for run in (*RUNS, *others) if effective_prompts(run) < count]


def described(run: str) -> dict[str, Any]:
    """Return what the table of runs states of one."""
    results = read_results(committed_path(run, "."))
    return {
        "hours": hours_of(results.manifest),
        "effective": effective_prompts(run),
        **completion_means(results),
    }


def hours_of(manifest: Mapping[str, Any]) -> str:
    """Write the hours of sampling and measuring, a lower bound where a step that was interrupted left no record.

    Parts of a run were made at the same time, those of an earlier, smaller run as well.
    """
    steps = ("sampling", "measuring")
    calls = [part["timings"] for part in manifest.get("parts", ())] or [manifest["timings"]]
    taken = [sum(timings.get(step, 0.0) for step in steps) for timings in calls]
    seconds, known = max(taken), all(step in timings for timings in calls for step in steps)
    if manifest.get("parts") and len(manifest.get("rounds", ())) > 1:
        # The parts of the earlier run are not recorded: it took at least this long, as many of equal length.
        seconds += (sum(manifest["timings"].get(step, 0.0) for step in steps) - sum(taken)) / len(calls)
        known = False
    return f"{'' if known else '≥ '}{seconds / 3600:.2f}" if seconds else "—"


def computed_hours() -> dict[str, float]:
    """Return hours on two cores of what no run measured: those of a committed run, in proportion.

    They are proportional to the completions, their lengths and the model's parameters.
    """
    run, repeated = (record(name, "manifest") for name in ("qwen_1_5b", "qwen_mawps"))
    length, of_repeated = (described(name)["mean_length"] for name in ("qwen_1_5b", "qwen_mawps"))
    hours_of_token = (run["timings"]["sampling"] + run["timings"]["measuring"]) / run["n_sequences"] / length / 3600
    seven = repeated["n_sequences"] * of_repeated * hours_of_token * 7.6e9 / run["policy"]["n_parameters"]
    return {"published": 30 * data.load("gloeckle2026")["length"].mean() * hours_of_token, "7B": seven}


class Learned(NamedTuple):
    """The baseline of least noise among those that are learned on other prompts."""

    name: str
    noise: Number

    @property
    def gain(self) -> Number:
        """What it gains over RLOO, in percent."""
        return self.noise.saved


def learned(run: str, group_size: int = 8) -> Learned | None:
    """Return what is left to gain in a run, corrected for comparing all baselines; None where it was not asked."""
    answer = (run, "optimal_baselines") if group_size == 8 else ("group_sizes", f"{run}_learned_{group_size}")
    if not committed_path(answer[0], f"{answer[1]}.csv").is_file():
        return None
    frame = table(*answer)
    of_learned = frame[frame["kind"] == "learned"]
    best = of_learned.loc[of_learned["ratio_to_learned"].idxmin(), "estimator"].removeprefix("learned ")
    base = frame[frame["estimator"] == "rloo"].iloc[0]
    return Learned(best, number(base, "ratio_to_learned", True).inverse())


class Curve(NamedTuple):
    """A curve of noise along a parameter: where it is lowest, as written and as a number, and where it surely is."""

    lowest: str
    minimiser: Number
    at: float
    noise: Number


def curve(run: str, name: str) -> Curve:
    """Return a curve; it is surely low where the upper end is lowest of the intervals for all values at once."""
    points, minimiser = table(run, name), number(record(run, name), "minimiser")
    row = points.loc[points["matched_ratio_simultaneous_high"].idxmin()]
    lowest = minimiser_with_interval(*minimiser, points["value"].to_numpy())
    return Curve(lowest, minimiser, row["value"], number(row, "matched_ratio", all_rows=True))


def lower_along(name: str) -> list[str]:
    """Return the runs in which a curve is somewhere below RLOO, corrected for comparing all its values."""
    return [run for run in WITH_CURVES if curve(run, name).noise.below(1)]


def at_least(cosine: Number) -> str:
    """Write a cosine, whose estimate may exceed 1 where its interval reaches it, by the lower end, rounded down."""
    return str(cosine) if cosine.high < 1.0 else f"≥ {math.floor(cosine.low * 1e4) / 1e4:.4g}"


def bias(share: Number) -> str:
    """Write a share of bias, by its upper end where none is resolved."""
    return str(share) if math.isnan(share.value) or share.low > 0.0 else share.at_most


def shares_of_bias(label: str) -> dict[str, Number]:
    """Return the bias of an estimator as a share of the squared error, in the runs that resolve it or bound it."""
    found = {run: ratio(run, label, "matched_bias_share") for run in (*RUNS, "embedded_resolved_layers")}
    return {run: share for run, share in found.items() if share is not None and not math.isnan(share.value)}


def biased_rows(label: str) -> Iterator[tuple[str, str, str]]:
    """Yield each run with the cosine and the bias of an estimator, as they are written."""
    for run, share in shares_of_bias(label).items():
        yield run, at_least(ratio(run, label, "cosine")), bias(share)


def alphas() -> dict[str, Number]:
    """Return α of each run of real weights."""
    return {run: alpha(run) for run in REAL}


def alphas_off(value: float) -> list[str]:
    """Return the runs of real weights whose interval of α does not hold a value."""
    return [run for run, one in alphas().items() if one.excludes(value)]


class Blocks(NamedTuple):
    """The blocks of least and of largest α of a run, and whether they lie apart."""

    low: pd.Series
    high: pd.Series
    apart: bool


def extreme_blocks(run: str) -> Blocks:
    """Return the two, apart by intervals for all blocks, since both ends were chosen among all of them."""
    blocks = table(run, "alpha_by_block")
    blocks = blocks[blocks["share_of_sq_norm"] >= 1e-3]
    low, high = (blocks.loc[found] for found in (blocks["alpha"].idxmin(), blocks["alpha"].idxmax()))
    one, other = (number(row, "alpha").widened(len(blocks)) for row in (low, high))
    return Blocks(low, high, one.high < other.low)


def lengths_of_traces() -> list[int]:
    """Return the largest length of each long trace."""
    return table("alpha_over_lengths", "along_traces").groupby("prompt_id")["length"].max().tolist()


class InMetric(NamedTuple):
    """What a run gives in one metric."""

    alpha: Number
    layers: pd.DataFrame  # α of each layer and its share of the squared norms, by block
    noise: dict[str, Number]  # relative, of each estimator


def in_metric(run: str, metric: str = "") -> InMetric:
    """Return what a run gives, or a sweep over metrics in one of them."""
    if metric:
        column = {"measurement.metric": metric}
        frame, blocks = rows(run, "sweep", **column), rows(run, "blocks", **column)
        of_run = number(frame.iloc[0], "alpha")
    else:
        frame, blocks = table(run, "variance"), table(run, "alpha_by_block")
        of_run = number(record(run, "alpha"), "alpha")
    frame, layers = frame.set_index("estimator"), blocks[blocks["block"].str.startswith("layers.")].set_index("block")
    rloo = frame.loc["rloo"]
    # Where a single prompt carries the variance, no comparison says anything.
    known = rloo["n_effective_prompts"] > 2.0
    unknown = Number(math.nan, math.nan, math.nan)
    noise = {str(label): number(row, "matched_ratio") if known else unknown for label, row in frame.iterrows()}
    return InMetric(of_run, layers, noise)


def turned(euclidean: InMetric, adam: InMetric) -> list[str]:
    """Return the estimators on one side of RLOO in the Euclidean metric and on the other in Adam's."""
    pairs = {label: (one, adam.noise[label]) for label, one in euclidean.noise.items() if label in adam.noise}
    return [
        label
        for label, (one, other) in pairs.items()
        if (one.below(1) and other.above(1)) or (one.above(1) and other.below(1))
    ]


def paired_layers_apart() -> list[str]:
    """Return the layers of Qwen-0.5B whose α differs between metrics, in pairs and by intervals for all layers."""
    found = (
        (str(row["block"]), number(row, "difference", True))
        for _, row in table("varied_metric", "differences").iterrows()
    )
    return [block for block, difference in found if block.startswith("layers.") and difference.excludes(0)]


def at_step(
    step: int, column: str, label: str = "rloo", all_rows: bool = False, sweep: str = "embedded_reinforced"
) -> Number | None:
    """Return a quantity of an estimator at a checkpoint of reinforcement learning, of all parameters or the layers."""
    return of(sweep, "sweep", column, all_rows, estimator=label, cell=f"name=checkpoint-{step}")


def sides_along_training(sweep: str) -> list[dict[str, list[int]]]:
    """Return the estimators below and above RLOO, corrected for comparing all rows of a step, and the steps."""
    labels = table(sweep, "sweep")["estimator"].unique()
    found = {
        label: {step: at_step(step, "matched_ratio", label, all_rows=True, sweep=sweep) for step in STEPS}
        for label in labels
        if label not in ("rloo", "reinforce")
    }
    return on_both_sides(found)


def on_both_sides(found: dict[str, dict[Any, Number]]) -> list[dict[str, list[Any]]]:
    """Return the labels whose noise is below 1 and above 1, and where: at a step, or in a mismatch."""
    below = {label: [place for place, one in of_label.items() if one.below(1)] for label, of_label in found.items()}
    above = {label: [place for place, one in of_label.items() if one.above(1)] for label, of_label in found.items()}
    return [{label: places for label, places in one.items() if places} for one in (below, above)]


class Mismatch(NamedTuple):
    """One way in which the sampler differed from the scored policy."""

    rows: pd.DataFrame  # of the estimators, by label
    effective: float  # share of the completions, by the ratios
    largest: float  # ratio of a token

    @property
    def carried(self) -> bool:
        """Whether more than a single prompt carries the variance of what is compared with."""
        return bool(self.rows.loc["recipe:rloo_is", "n_effective_prompts"] > 2.0)

    def of(self, label: str, column: str = "matched_ratio", all_rows: bool = False) -> Number:
        """Return a number of a correction, not resolved where a single prompt carries what it is compared with."""
        unknown = Number(math.nan, math.nan, math.nan)
        return number(self.rows.loc[label], column, all_rows) if self.carried else unknown


#: The cells of the sweep over mismatches, and how the page names the difference.
MISMATCHES = {
    "dtype=bfloat16": "bfloat16",
    "name=models_embedded-int8": "INT8 weights",
    "name=models_embedded-fp8": "FP8 weights",
    "name=models_embedded-int4": "INT4 weights",
    "revision=step-5492": "8 steps earlier",
}
#: Corrections but for three: two are as TIS, but for the third digit, and one as no correction.
CORRECTIONS = {
    "rloo": "no correction",
    "recipe:tis": "TIS",
    "recipe:sequence_tis": "Sequence TIS",
    "recipe:geo_rs": "Geometric rejection",
}


def mismatches(sweep: str = "embedded_mismatch") -> dict[str, Mismatch]:
    """Return what a sweep over mismatches gives, by the name of the difference."""
    frame, cells = table(sweep, "sweep"), record(sweep, "manifest")["cells"]
    return {
        name: Mismatch(
            frame[frame["cell"] == cell].set_index("estimator"),
            effective_share(cells[cell]),
            max(one["token_ratio"] for one in cells[cell]["sampler_gap"]["quantiles"]),
        )
        for cell, name in MISMATCHES.items()
    }


def effective_share(manifest: dict[str, Any]) -> float:
    """Return the effective completions of a run, by the ratios, as a share of all."""
    gap = {one["quantity"]: one["estimate"] for one in manifest["sampler_gap"]["quantities"]}
    return gap["effective_sample_size"] / manifest["n_sequences"]


def sides(found: dict[str, Mismatch]) -> list[dict[str, list[str]]]:
    """Return the corrections below and above the ratio of completions, corrected for comparing all rows, and where."""
    return on_both_sides(
        {label: {name: one.of(label, all_rows=True) for name, one in found.items()} for label in CORRECTIONS}
    )


def biases(found: dict[str, Mismatch]) -> dict[str, list[Number]]:
    """Return the bias of each correction as a share of the squared error; lower ends hold for all of them at once."""
    labels = (*CORRECTIONS, "recipe:icepop", "recipe:mis", "recipe:worst_token_rs")
    shares = {label: [one.of(label, "matched_bias_share") for one in found.values() if one.carried] for label in labels}
    known = {label: [one for one in of_label if not math.isnan(one.value)] for label, of_label in shares.items()}
    count = sum(map(len, known.values()))
    return {
        label: [one._replace(low=min(one.low, one.widened(count).low)) for one in of_label]
        for label, of_label in known.items()
    }


def of_correction(found: dict[str, Mismatch], label: str) -> list[Number]:
    """Return the noise of a correction in each mismatch in which it is compared."""
    return [one.of(label) for one in found.values() if one.carried]


def reaching(found: dict[str, Mismatch], bound: float) -> list[str]:
    """Return the mismatches in which the ratio of a token reaches a bound."""
    return [name for name, one in found.items() if one.largest >= bound]


def held(run: str, tokens: int) -> Number | None:
    """Return the share of a completion's energy that its heaviest tokens hold."""
    found = rows(run, "token_profiles", profile="concentration", first=tokens, last=tokens)
    return None if found.empty else Number(*found[["value", "low", "high"]].iloc[0])


def proxy(run: str, name: str, quantity: str) -> Number | None:
    """Return how well a proxy stands for the energies of tokens."""
    return of(run, "tokens", quantity, proxy=name)


def proxies(runs: tuple[str, ...], name: str, quantity: str) -> list[Number]:
    """Return how well a proxy stands for the energies of tokens in each run."""
    return [one for run in runs if (one := proxy(run, name, quantity)) is not None]


def model_differences() -> tuple[int, dict[str, Number]]:
    """Return how many differences of α between models are resolved, and those from the published points.

    Each model stands by its run with the narrowest interval. The count is corrected for comparing all pairs.
    """
    chosen: dict[str, str] = {}
    for run in RUNS:
        kept = chosen.setdefault(record(run, "manifest")["policy"]["name"], run)
        widths = [(one.high - one.low) for one in (alpha(run), alpha(kept)) if one]
        if widths[0] < widths[1]:
            chosen[record(run, "manifest")["policy"]["name"]] = run
    alphas = {NAMES[run]: alpha(run) for run in chosen.values()} | {"": published_alpha()}
    pairs = [one.minus(other) for one, other in combinations(alphas.values(), 2) if one and other]
    published = {name: one.minus(alphas[""]) for name, one in alphas.items() if name}
    return sum(one.widened(len(pairs)).excludes(0) for one in pairs), published


def curved() -> list[str]:
    """Return the runs in which the slope of the line changes with length."""
    found = {run: alpha(run, "curvature", "curvature") for run in RUNS}
    return [run for run, one in found.items() if one is not None and one.excludes(0)]


def of_cell(sweep: str, cell: str, column: str) -> Number | None:
    """Return a quantity of RLOO in a cell of a sweep."""
    return of(sweep, "sweep", column, estimator="rloo", cell=cell)


def between_cells(sweep: str, cell: str, minus: str, quantity: str) -> Number | None:
    """Return the difference of a quantity between two cells of a sweep, in pairs."""
    return of(sweep, "cell_differences", "difference", cell=cell, minus=minus, quantity=quantity)


def std_factor(success: float, group_size: int = 8) -> float:
    """Return the factor by which GRPO's standard deviation changes the gradient of prompts of one success rate."""
    policy = EnumeratedPolicy(
        vocabulary=2,
        max_length=1,
        features=lambda prompt, prefix: np.array([[0.0], [1.0]]),
        theta=np.array([np.log(success / (1.0 - success))]),
        reward=lambda prompt, tokens: float(tokens == (1,)),
    )
    return float(policy.moments(est.grpo(), group_size).mean[0] / policy.gradient[0])


def most_moved_by_deviation() -> float:
    """Return the largest share of the gradient that a bin of success rates gains or loses with GRPO, rounded up."""
    shares = table("embedded_resolved", "success_bins").pivot(
        index="success_low", columns="estimator", values="share_of_gradient"
    )
    return math.ceil(1e4 * (shares["grpo"] - shares["rloo"]).abs().max()) / 1e4


def cosine_by_enumeration(label: str, group_size: int = 4) -> float:
    """Return the cosine between an estimator's exact expected gradient and ∇J, on a policy that is enumerated."""
    policy = EnumeratedPolicy()
    expected = policy.moments(est.get(label), group_size).mean
    return float(expected @ policy.gradient / (np.linalg.norm(expected) * np.linalg.norm(policy.gradient)))


def in_success_bins(run: str, column: str) -> tuple[Number, list[Number]]:
    """Return a share of RLOO over the share of prompts, of those of success ½ and of every other bin of success."""
    bins = rows(run, "success_bins", estimator="rloo").set_index("success_low")
    of_prompts = bins["n_prompts"] / bins["n_prompts"].sum()
    found = {low: number(row, column).times(1.0 / of_prompts[low]) for low, row in bins.iterrows()}
    return found.pop(0.5), list(found.values())
