"""Write findings.md: what the committed runs answer, in the manner of the results section of a paper.

Run ``python docs/findings_page.py`` after the tables in ``figures/`` have changed. Every number and every verdict of
the page is computed here from those tables; a question that no committed run answers says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import pandas as pd
from committed_numbers import Triple, committed_path, numbers, shown, table, with_interval
from scipy import stats

from gradstats.estimators.display_names import in_words
from gradstats.report.completion_means import completion_means
from gradstats.report.saved_results import read_results
from gradstats.stats.variance.minimiser import written_interval

PAGE = Path(__file__).with_name("findings.md")
UNRESOLVED = "not resolved"
NO_RUN = "No committed run answers this."


class Run(NamedTuple):
    """A committed run: its folder, what the page calls it, and the folder of its token scores."""

    folder: str
    name: str
    tokens: str | None = None

    @property
    def committed(self) -> bool:
        """State whether the run has been finished and committed."""
        return committed_path(self.folder, "alpha.json").exists()

    @property
    def name_with_tokens(self) -> str:
        """Name the run with token scores, whose prompts may be fewer."""
        manifest = numbers(self.tokens or "", "manifest")
        assert manifest is not None
        return re.sub(r"\d+ prompts(?=\)$)", f"{manifest['n_prompts']} prompts", self.name)


#: In the order of the tables; the first committed one has its figures on the page.
RUNS = (
    Run("qwen_mawps", "Qwen2.5-Coder-0.5B on MAWPS", "qwen_mawps_tokens"),
    Run("qwen_gsm8k", "Qwen2.5-Coder-0.5B on GSM8K"),
    Run("qwen_1_5b", "Qwen2.5-Coder-1.5B on GSM8K"),
    Run("smollm2", "SmolLM2-135M on sums"),
    Run("embedded_resolved", "embedded policy (2000 prompts)"),
    Run("embedded", "embedded policy (96 prompts)", "embedded_tokens"),
)
#: Folder → most memory of each process, GiB, as the system counted it.
MEMORY = {"qwen_mawps": "2 × 7.6"}
TEMPERATURES = (
    ("embedded_temperature", "drawn and scored at"),
    ("embedded_temperature_scored_at_1", "scored at 1, drawn at"),
)
SAMPLER = "qwen_sampler"
#: Cell of that sweep → what it is called here.
ARMS = {
    "sampling.temperature=0.6,top_p=0.95,policy.temperature=1.0": "drawn at 0.6 and top-p 0.95, scored at 1",
    "sampling.temperature=1.0,top_p=1.0,policy.temperature=1.0": "drawn and scored at 1",
    "sampling.temperature=0.6,top_p=1.0,policy.temperature=0.6": "drawn and scored at 0.6",
}
#: The arm with the settings of the first run of :data:`RUNS`.
SAME_SETTINGS = "sampling.temperature=1.0,top_p=1.0,policy.temperature=1.0"
QUANTITIES_OF_ARMS = {"alpha": "α", "mean_length": "mean tokens", "mean_reward": "mean reward"}
EXPONENT, SHIFT = "curve_length_weighted_loo_true_alpha", "curve_asymmetric_loo_true_delta"
GRPO, RLOO = "grpo", "rloo"
WEIGHTED = "length_weighted(alpha=0.8, loo=True)"

ENOUGH_PROMPTS = 50
COSTS = (
    "Hours are those of sampling and measuring on two cores; where memory is given for two processes, the run was made "
    "as two parts (`--part 1/2`, `--part 2/2`) of one thread each. Memory is the most that the system counted for a "
    "process (GNU time), and the one quantity of this page that no table holds."
)
UNTIED = (
    "The 4-bit files of Qwen2.5-Coder hold the output matrix apart from the embedding, in other precisions, and both "
    "are parameters here; in the full-precision weights of the 0.5B and 1.5B models they are one matrix."
)

HEAD = """# Findings

What the runs committed in `figures/` answer, written by `docs/findings_page.py` from their tables. Intervals are 95 %
intervals over prompts, and a difference is stated only where its interval excludes zero. Variances are at matched
signal, relative to RLOO ([statistics](statistics.md) defines both). `RUN` stands for the run's directory; `make
findings` repeats the runs, and resumes what was interrupted.

What holds for all of it: these are models of at most {largest} parameters each on problems of one kind, with the number
of prompts in the table. They show what holds for these policies, and how large a run has to be to know; they do not
decide for other models.
"""


def committed() -> list[Run]:
    """Return the runs that have been committed."""
    return [run for run in RUNS if run.committed]


def render() -> str:
    """Return the whole page."""
    largest = max(numbers(run.folder, "manifest")["policy"]["n_parameters"] for run in committed())
    parts = [HEAD.format(largest=f"{largest / 1e9:.2g} billion" if largest > 1e8 else f"{largest / 1e6:.2g} million")]
    parts.append(section_runs())
    for title, section in SECTIONS:
        parts.append(f"## {title}\n\n{section()}\n")
    parts.append(f"## What was not run\n\n{not_run()}\n")
    return "\n".join(parts)


def rows_of(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table; nothing but a sentence where it has no rows."""
    written = ["| " + " | ".join(row) + " |" for row in rows]
    if not written:
        return NO_RUN
    return "\n".join(["| " + " | ".join(header) + " |", "|" + "---|" * len(header), *written])


def answer(*parts: str | None) -> str:
    """Join the parts of a section: tables as they are, prose in lines of a page's width."""
    written = (
        part if part.startswith(("|", "![")) else fill(part, 120, break_long_words=False, break_on_hyphens=False)
        for part in parts
        if part
    )
    return "\n\n".join(written)


def figure(run: str, name: str, caption: str) -> str:
    """Write a figure of a run, with what it shows; nothing where it is not committed."""
    path = committed_path(run, f"{name}.png")
    return f"![{caption}](../figures/{run}/{name}.png)\n\n*{caption}.*" if path.exists() else ""


def apart(one: Triple, other: Triple) -> Triple:
    """Return the difference of two numbers from independent runs: half-widths of the intervals add in quadrature."""
    difference = one[0] - other[0]
    low = difference - math.hypot(one[0] - one[1], other[2] - other[0])
    high = difference + math.hypot(one[2] - one[0], other[0] - other[1])
    return difference, low, high


def simultaneous(count: int) -> float:
    """Return the factor by which 95 % intervals of normal estimates widen to hold for several at once (Bonferroni)."""
    return float(stats.norm.ppf(1.0 - 0.025 / count) / stats.norm.ppf(0.975))


def widened(triple: Triple, factor: float) -> Triple:
    """Return a number with an interval that is wider by a factor on both sides."""
    value, low, high = triple
    return value, value - factor * (value - low), value + factor * (high - value)


def excludes(triple: Triple | None, value: float) -> bool:
    """Return whether an interval is known and does not hold a value."""
    return triple is not None and not triple[1] <= value <= triple[2]


def section_runs() -> str:
    """Describe the runs."""
    rows, few = [], []
    for run in committed():
        results = read_results(committed_path(run.folder, "."))
        manifest, means = results.manifest, completion_means(results)
        # Parts of a run were made at the same time.
        calls = [part["timings"] for part in manifest.get("parts", ())] or [manifest["timings"]]
        hours = max(sum(timings[step] for step in ("sampling", "measuring")) for timings in calls) / 3600
        effective = effective_prompts(run)
        few += [f"{run.name} ({effective:.0f})"] if effective < ENOUGH_PROMPTS else []
        rows.append(
            (
                f"[{run.name}](../figures/{run.folder}/manifest.json)",
                f"{manifest['policy']['n_parameters'] / 1e6:.3g}",
                f"{manifest['n_prompts']} × {manifest['n_sequences'] // manifest['n_prompts']}",
                "—" if math.isnan(effective) else f"{effective:.0f}",
                shown(with_interval(means, "mean_reward")),
                shown(with_interval(means, "mean_length")),
                f"{means['truncated_share']:.1%}",
                f"{hours:.2f}",
                MEMORY.get(run.folder, "—"),
                f"`gradstats run {run.folder}`",
            )
        )
    header = (
        "run",
        "10⁶ parameters",
        "prompts × completions",
        "effective prompts",
        "mean reward",
        "mean tokens",
        "cut off",
        "hours",
        "memory, GiB",
        "command",
    )
    weak = (
        f"The variance of RLOO rests on an effective number of fewer than {ENOUGH_PROMPTS} prompts in "
        f"{', '.join(few)}: intervals of variances may be too narrow there ([statistics](statistics.md))."
    )
    untied = UNTIED if any("qwen" in run.folder for run in committed()) else None
    return answer(rows_of(header, rows), weak if few else None, COSTS, untied) + "\n"


def effective_prompts(run: Run) -> float:
    """Return the number of equally noisy prompts that the variance of RLOO rests on; NaN where it is not compared."""
    frame = table(run.folder, "variance")
    rows = pd.DataFrame() if frame is None or "n_effective_prompts" not in frame else frame[frame["estimator"] == RLOO]
    return float(rows["n_effective_prompts"].iloc[-1]) if len(rows) else math.nan


def section_alpha() -> str:
    """Compare α between models, blocks and temperatures, within and between prompts."""
    rows, pooled, policies, within, curved = [], {}, {}, [], []
    for run in committed():
        found = numbers(run.folder, "alpha")
        assert found is not None
        pooled[run.name] = (found["alpha"], found["alpha_low"], found["alpha_high"])
        policies[run.name] = read_results(committed_path(run.folder, ".")).manifest["policy"]["name"]
        curved.append((run.name, with_interval(found.get("curvature") or {}, "curvature")))
        difference = with_interval(found.get("within_between") or {}, "difference")
        if difference is not None:
            within.append((run.name, difference))
        rows.append(
            (
                run.name,
                shown(pooled[run.name]),
                shown(with_interval(found.get("within_prompt") or {}, "alpha"), "—"),
                shown(difference, "—"),
                shown(with_interval(found.get("mean_scaling") or {}, "alpha"), "—"),
                *ends_of_blocks(table(run.folder, "alpha_by_block")),
            )
        )
    header = (
        "run",
        "α",
        "within prompts",
        "between − within",
        "of the mean norm",
        "block of least α",
        "block of largest α",
    )
    pairs = [(one, other) for one, other in combinations(pooled, 2) if policies[one] != policies[other]]
    differences = {f"{one} − {other}": apart(pooled[one], pooled[other]) for one, other in pairs}
    resolved = [pair for pair, difference in differences.items() if excludes(difference, 0.0)]
    first = committed()[0]
    return answer(
        rows_of(header, rows),
        "Between models, with runs taken for independent: "
        + (f"α differs in {len(resolved)} of {len(pairs)} pairs. " if resolved else "no difference is resolved. ")
        + "; ".join(f"{pair} {shown(difference)}" for pair, difference in differences.items())
        + ".",
        f"Within the lengths of a run, by half the change of the slope per unit of log T: {curvature_sentence(curved)} "
        f"Within against between prompts: {where(within, 0.0, 'the two differ', 'no difference is resolved')}. "
        f"Between blocks of parameters: {blocks_sentence()} Between temperatures, with cells taken for independent "
        f"although they share their prompts: {temperatures_sentence()}",
        *sampler_parts(),
        "What this does not show: a power law was fitted everywhere, and says nothing of lengths outside the sample. "
        "Where problems differ as well as models, so may α for either reason.",
        f"Commands: `gradstats alpha RUN`, {', '.join(f'`gradstats sweep {name}`' for name, _ in TEMPERATURES)}.",
        figure(first.folder, "length_scaling", f"Squared norm of the score against length, {first.name}"),
    )


def curvature_sentence(found: Sequence[tuple[str, Triple | None]]) -> str:
    """State in which runs the slope of the line changes with length."""
    said = []
    for how, above in (("steepens", True), ("flattens", False)):
        bent = [
            f"{name} ({shown(curve)})"
            for name, curve in found
            if curve and excludes(curve, 0.0) and (curve[0] > 0.0) == above
        ]
        sentence = f"the line {how} with length in {', '.join(bent)}, so that α is an average there."
        said += [sentence] if bent else []
    return " ".join(said) or "no change of the slope with length is resolved."


def ends_of_blocks(blocks: pd.DataFrame | None) -> tuple[str, str]:
    """Write the blocks of least and of largest α."""
    if blocks is None:
        return "—", "—"
    ordered = blocks.sort_values("alpha")
    ends = (ordered.iloc[0], ordered.iloc[-1])
    first, last = (f"`{row['block']}` {shown(with_interval(row, 'alpha'))}" for row in ends)
    return first, last


def blocks_sentence() -> str:
    """State in which runs the block of largest α lies above that of least α, by simultaneous intervals."""
    clear, known = [], []
    for run in committed():
        blocks = table(run.folder, "alpha_by_block")
        if blocks is None:
            continue
        known.append(run.name)
        # Bonferroni over the blocks, since the two ends were chosen among all of them.
        wider = simultaneous(len(blocks))
        low, high = blocks.loc[blocks["alpha"].idxmin()], blocks.loc[blocks["alpha"].idxmax()]
        gap = high["alpha"] - low["alpha"]
        if gap > wider * (high["alpha"] - high["alpha_low"] + low["alpha_high"] - low["alpha"]):
            clear.append(run.name)
    if not known:
        return NO_RUN
    if not clear:
        return "in no run are the largest and the least resolved to differ."
    return f"the largest exceeds the least, by intervals that hold for all blocks at once, in {', '.join(clear)}."


def temperatures_sentence() -> str:
    """State the two temperatures of each sweep between which α differs most, as for cells with prompts of their own."""
    said = []
    for name, how in TEMPERATURES:
        frame = table(name, "sweep")
        if frame is not None:
            rows = frame[frame["estimator"] == RLOO]
            alphas = {row["sampling.temperature"]: with_interval(row, "alpha") for _, row in rows.iterrows()}
            pairs = list(combinations(sorted(alphas), 2))
            differences = {(low, high): apart(alphas[high], alphas[low]) for low, high in pairs}
            low, high = max(pairs, key=lambda pair: abs(differences[pair][0]))
            far = differences[low, high]
            resolved = excludes(far, 0.0), excludes(widened(far, simultaneous(len(pairs))), 0.0)
            verdict = UNRESOLVED if not resolved[0] else "by single intervals, not by those for all pairs at once"
            verdict = "also by intervals for all pairs at once" if resolved[1] else verdict
            said.append(
                f"embedded policy {how} {low:g} and {high:g}, the largest of {len(pairs)} differences: "
                f"{shown(alphas[low])} and {shown(alphas[high])}, difference {shown(far)} ({verdict})"
            )
    return ("; ".join(said) + ".") if said else NO_RUN


def sampler_parts() -> tuple[str, ...]:
    """Describe the arms of the sampler confound, and their differences."""
    frame = table(SAMPLER, "sweep")
    if frame is None:
        return ()
    arms = frame[frame["estimator"] == "rloo"]
    rows = [
        (
            ARMS[row["cell"]],
            f"{row['n_prompts']} × {row['n_completions'] // row['n_prompts']}",
            *(shown(with_interval(row, column)) for column in ("alpha", "mean_length", "mean_reward")),
        )
        for _, row in arms.iterrows()
    ]
    alphas = {row["cell"]: with_interval(row, "alpha") for _, row in arms.iterrows()}
    return (
        "The sampler as a confound: the same problems, drawn and scored in three ways.",
        rows_of(("arm", "prompts × completions", "α", "mean tokens", "mean reward"), rows),
        *differences_of_arms(),
        repeated_with_other_draws(alphas),
        f"Command: `gradstats sweep {SAMPLER}`.",
    )


def repeated_with_other_draws(arms: Mapping[str, Triple | None]) -> str:
    """Set α of the arm with the settings of another run beside that of the run, which drew other completions."""
    cell, (run, *_) = SAME_SETTINGS, RUNS
    alpha = with_interval(numbers(run.folder, "alpha") or {}, "alpha")
    again = arms.get(cell)
    if alpha is None or again is None:
        return ""
    verdict = "overlap" if again[1] <= alpha[2] and alpha[1] <= again[2] else "do not overlap"
    return (
        f"The arm “{ARMS[cell]}” has the settings of {run.name} and other draws, on fewer prompts: α "
        f"{shown(again)} and {shown(alpha)}; the intervals {verdict}."
    )


def differences_of_arms() -> tuple[str, ...]:
    """State how far the arms of the sampler confound lie apart, paired over prompts."""
    frame = table(SAMPLER, "cell_differences")
    if frame is None:
        return ()
    rows, alphas = [], {}
    for (cell, minus), found in frame.groupby(["cell", "minus"], sort=False):
        values = {row["quantity"]: with_interval(row, "difference") for _, row in found.iterrows()}
        pair = f"{ARMS[cell]} − {ARMS[minus]}"
        rows.append((pair, *(shown(values.get(name), "—") for name in QUANTITIES_OF_ARMS)))
        if (alpha := values.get("alpha")) is not None:
            alphas[pair] = alpha
    factor = simultaneous(len(alphas))
    clear = [pair for pair, alpha in alphas.items() if excludes(alpha, 0.0)]
    together = [pair for pair in clear if excludes(widened(alphas[pair], factor), 0.0)]
    return (
        "Differences between the arms, paired over prompts:",
        rows_of(("difference", *QUANTITIES_OF_ARMS.values()), rows),
        (
            f"By single intervals α differs in: {'; '.join(clear)}. By intervals that hold for all pairs at once, in "
            f"{'; '.join(together) or 'none'}."
            if clear
            else "No difference of α between the arms is resolved."
        ),
    )


def where(found: Sequence[tuple[str, Triple]], value: float, yes: str, no: str) -> str:
    """State in which runs an interval excludes a value."""
    if not found:
        return NO_RUN
    clear = [name for name, triple in found if excludes(triple, value)]
    return f"{yes} in {', '.join(clear)}" if clear else no


def along(run: Run, curve: str) -> tuple[dict, pd.DataFrame] | None:
    """Return a committed curve of a run."""
    found, points = numbers(run.folder, f"tables/{curve}"), table(run.folder, f"tables/{curve}")
    return None if found is None or points is None else (found, points)


def at(points: pd.DataFrame, value: float, *, chosen: bool = False) -> Triple | None:
    """Return the variance at matched signal, relative to RLOO, at the value of a curve nearest to the given one.

    The interval of a value that was chosen along the curve is that which holds at all its values at once.
    """
    row = points.loc[(points["value"] - value).abs().idxmin()]
    found = with_interval(row, "matched_ratio")
    if found is None or not chosen:
        return found
    return found[0], row["matched_ratio_simultaneous_low"], row["matched_ratio_simultaneous_high"]


def lowest(found: dict, points: pd.DataFrame) -> str:
    """Write where a curve is lowest."""
    return (
        f"{found['minimiser']:.3g} {written_interval(found['minimiser_low'], found['minimiser_high'], points['value'])}"
    )


def section_exponent() -> str:
    """State whether α makes a better baseline."""
    rows, gains, losses, published = [], [], [], []
    for run in committed():
        of_table = largest_groups(run, WEIGHTED)
        if (curve := along(run, EXPONENT)) is None:
            if of_table is not None:
                rows.append((run.name, "—", "—", "—", "—", shown(of_table)))
                published.append((run.name, of_table))
            continue
        found, points = curve
        fits = {fit["fit"]: fit for fit in found["fits"]}
        inner = fits.get("within prompts") or fits["pooled"]
        rows.append(
            (
                run.name,
                lowest(found, points),
                shown(with_interval(inner, "value")),
                shown(with_interval(inner, "ratio_to_lowest"), UNRESOLVED),
                shown(at(points, inner["value"]), UNRESOLVED),
                shown(at(points, 0.8), UNRESOLVED),
            )
        )
        gains.append((run.name, at(points, inner["value"])))
        losses.append((run.name, with_interval(inner, "ratio_to_lowest")))
        published.append((run.name, at(points, 0.8)))
    header = (
        "run",
        "exponent of lowest variance",
        "α within prompts",
        "variance at α over the lowest",
        "over RLOO, at α",
        "over RLOO, at 0.8",
    )
    return answer(
        rows_of(header, rows),
        f"Against RLOO, the length weights at the fitted α {verdict_of(gains)}. Against the best exponent, "
        f"{where(losses, 1.0, 'the fitted α costs something', 'no loss is resolved')}. "
        f"At α = 0.8 the length weights {verdict_of(published)}.",
        "What this does not show: α is fitted on the completions whose variance is compared, which favours "
        "it slightly. A ratio at an exponent between two values of the curve is that at the nearer one.",
        'Commands: `gradstats curve RUN "length_weighted(loo=True)" alpha=0:2:41`; without a curve, '
        f'`gradstats variance RUN --estimators rloo "{WEIGHTED}"`.',
        first_figure(EXPONENT, "Variance of the length-weighted baseline along its exponent"),
    )


def largest_groups(run: Run, label: str, column: str = "matched_ratio") -> Triple | None:
    """Return a quantity of an estimator in the largest groups of a run; None where it is not resolved."""
    frame = table(run.folder, "variance")
    if frame is None:
        return None
    chosen = frame[(frame["estimator"] == label) & (frame["group_size"] == frame["group_size"].max())]
    return None if chosen.empty else with_interval(chosen.iloc[0], column)


def verdict_of(ratios: Sequence[tuple[str, Triple | None]]) -> str:
    """State in which runs a ratio lies below, above, or on neither side of 1."""
    if not ratios:
        return "are not measured in a committed run"
    below = [name for name, ratio in ratios if excludes(ratio, 1.0) and ratio is not None and ratio[0] < 1.0]
    above = [name for name, ratio in ratios if excludes(ratio, 1.0) and ratio is not None and ratio[0] > 1.0]
    said = []
    if below:
        said.append(f"lower the variance in {', '.join(below)}")
    if above:
        said.append(f"raise {'it' if below else 'the variance'} in {', '.join(above)}")
    if len(below) + len(above) < len(ratios):
        rest = [name for name, _ in ratios if name not in (*below, *above)]
        said.append(f"make no difference that is resolved in {', '.join(rest)}")
    return "; ".join(said)


def first_figure(name: str, caption: str, beside: str | None = None) -> str:
    """Show a figure of the first committed run that has it, and the table beside it where one is named."""
    runs = (run for run in committed() if beside is None or table(run.folder, beside) is not None)
    return next((drawn for run in runs if (drawn := figure(run.folder, name, f"{caption}, {run.name}"))), "")


def section_centre() -> str:
    """State whether the mean of the group is the right centre."""
    rows, shifts, gains = [], [], []
    for run in committed():
        if (curve := along(run, SHIFT)) is None:
            continue
        found, points = curve
        best = at(points, found["minimiser"], chosen=True)
        rows.append((run.name, lowest(found, points), shown(best, UNRESOLVED)))
        shifts.append((run.name, with_interval(found, "minimiser")))
        gains.append((run.name, best))
    return answer(
        "The baseline is the mean of the other completions of the group plus δ; δ = 0 is RLOO.",
        rows_of(("run", "δ of lowest variance", "over RLOO, there (for all δ at once)"), rows),
        "That the best centre is off the mean of the group is "
        f"{where(shifts, 0.0, 'resolved', 'not resolved')}. Shifts by that much {verdict_of(gains)}.",
        "What this does not show: the best δ is chosen on the completions whose variance is compared, which "
        "the intervals for all δ at once allow for and the estimate does not; and it holds for the success rates of "
        "these prompts.",
        'Command: `gradstats curve RUN "asymmetric(loo=True)" delta=-0.5:0.5:41`.',
        first_figure(SHIFT, "Variance along the shift of the centre"),
    )


def section_standardising() -> str:
    """State whether division by the standard deviation of the group biases."""
    rows, clear, costs = [], [], []
    for run in committed():
        frame = table(run.folder, "variance")
        assert frame is not None
        chosen = frame[(frame["estimator"] == GRPO) & (frame["group_size"] == frame["group_size"].max())]
        if chosen.empty:
            continue
        row = chosen.iloc[0]
        share = with_interval(row, "matched_bias_share")
        bounded = share is not None and share[1] <= 0.0
        rows.append(
            (
                run.name,
                str(row["group_size"]),
                at_least(with_interval(row, "cosine")),
                f"at most {share[2]:.2g}" if share is not None and bounded else shown(share, UNRESOLVED),
                shown(with_interval(row, "matched_ratio"), UNRESOLVED),
            )
        )
        costs.append((run.name, with_interval(row, "matched_ratio")))
        if share is not None and not bounded:
            clear.append(run.name)
    turned = f"resolved in {', '.join(clear)}" if clear else "not resolved in any run"
    return answer(
        rows_of(("run", "N", "cosine with the true gradient", "share of bias at matched signal", "over RLOO"), rows),
        "The share of bias is that in the squared error of a batch of 128 prompts. That the division by the standard "
        f"deviation of the group turns the expected gradient is {turned}. By enumeration it does on every policy whose "
        "prompts differ in success, since those near 0 and 1 count more ([claims](claims.md)). At matched signal, "
        f"against RLOO, GRPO's weights {verdict_of(costs)}.",
        "What this does not show: whether the changed objective trains better or worse.",
        "Command: `gradstats variance RUN --estimators rloo grpo`.",
    )


def at_least(cosine: Triple | None) -> str:
    """Write a cosine, whose estimate may exceed 1 where its interval reaches it, by the lower end."""
    return f"at least {cosine[1]:.4g}" if cosine is not None and cosine[2] >= 1.0 else shown(cosine, UNRESOLVED)


def section_concentration() -> str:
    """State how many tokens carry the energy."""
    rows = []
    for run, frame in token_tables("concentration"):
        frame = frame[frame["tokens_first"] == frame["tokens_last"]]
        counts = [count for count in (1, 4, 16) if count in set(frame["tokens_first"])]
        manifest = numbers(run.tokens or "", "manifest")
        assert manifest is not None
        rows.append(
            (
                run.name_with_tokens,
                f"{manifest['n_prompts']} × {manifest['n_sequences'] // manifest['n_prompts']}",
                *(
                    shown(with_interval(frame[frame["tokens_first"] == count].iloc[0], "share"))
                    if count in counts
                    else "—"
                    for count in (1, 4, 16)
                ),
            )
        )
    return answer(
        "Share of a completion's Σ‖s_t‖² that its heaviest tokens hold.",
        rows_of(("run", "prompts × completions", "heaviest token", "heaviest 4", "heaviest 16"), rows),
        "What this does not show: energies are squared norms of single tokens; what tokens add to each other's "
        "gradient is in their inner products.",
        commands_of_tokens(),
        first_token_figure("concentration", "Share of the energy in the heaviest tokens"),
    )


def commands_of_tokens() -> str:
    """Write the commands whose tables the sections on tokens show."""
    written = [f"`gradstats tokens runs/{run.tokens}`" for run, _ in token_tables("concentration")]
    return f"Command: {', '.join(written) or '`gradstats tokens RUN`'}."


def token_tables(name: str) -> list[tuple[Run, pd.DataFrame]]:
    """Return a table of each committed run with token scores."""
    found = ((run, table(run.tokens, name)) for run in RUNS if run.tokens)
    return [(run, frame) for run, frame in found if frame is not None]


def first_token_figure(name: str, caption: str) -> str:
    """Show a figure of the first committed run with token scores."""
    for run, _ in token_tables(name):
        return figure(run.tokens or "", name, f"{caption}, {run.name_with_tokens}")
    return ""


def section_proxy() -> str:
    """State whether the logit proxy is good enough."""
    rows, verdicts = [], []
    for run, frame in token_tables("proxy_quality"):
        row = frame[frame["proxy"] == "logit"].iloc[0]
        otb = with_interval(row, "otb_ratio")
        rows.append(
            (
                run.name_with_tokens,
                shown(with_interval(row, "rank_correlation")),
                shown(with_interval(row, "factor")),
                shown(otb, UNRESOLVED),
            )
        )
        verdicts.append((run.name_with_tokens, otb))
    header = (
        "run",
        "rank correlation with ‖s_t‖²",
        "typical error factor",
        "OTB with the proxy over OTB with energies",
    )
    return answer(
        rows_of(header, rows),
        f"Against weights from measured energies, those from the proxy {verdict_of(verdicts)}." if verdicts else None,
        "What this does not show: that OTB itself pays, which is a row of [claims](claims.md).",
        commands_of_tokens(),
        first_token_figure("proxy", "Logit proxy against measured energy of tokens"),
    )


def section_group_size() -> str:
    """State what group size each baseline is worth."""
    tables = {
        run.name: frame for run in committed() if (frame := table(run.folder, "equivalent_group_size")) is not None
    }
    labels = list(dict.fromkeys(label for frame in tables.values() for label in frame["estimator"] if label != "rloo"))
    sizes = {name: frame["group_size"].max() for name, frame in tables.items()}
    rows: list[tuple[str, ...]] = []
    off: dict[str, list[str]] = {}
    for label in labels:
        cells = []
        for name, frame in tables.items():
            chosen = frame[(frame["estimator"] == label) & (frame["group_size"] == sizes[name])]
            found = None if chosen.empty else with_interval(chosen.iloc[0], "equivalent_group_size")
            cells.append("—" if chosen.empty else shown(found, UNRESOLVED))
            if found is not None and excludes(widened(found, simultaneous(len(labels))), sizes[name]):
                worth = "less" if found[0] < sizes[name] else "more"
                off.setdefault(name, []).append(f"{in_words(label)} ({worth})")
        rows.append((in_words(label), *cells))
    header = ("baseline", *(f"{name}, N = {sizes[name]}" for name in tables))
    return answer(
        "The group size at which RLOO, at the same total of completions, has the variance of each baseline with N "
        "completions a prompt.",
        rows_of(header, rows if tables else []),
        "Worth another group size than N, by intervals that hold for all baselines of a run at once: "
        + "; ".join(f"{name}: {', '.join(worths)}" for name, worths in off.items())
        + "."
        if off
        else None,
        "What this does not show: only variance is compared, not bias.",
        "Command: `gradstats group-size RUN LABEL`.",
        first_figure("group_sizes", "Variance against group size", "equivalent_group_size"),
    )


#: Experiment, what it would answer, and how long it takes on two cores with the source of that figure.
PLANNED = (
    ("qwen_mawps", "`gradstats run qwen_mawps`", "about 40 minutes"),
    ("qwen_sampler", "`gradstats sweep qwen_sampler`", "about 45 minutes"),
    (
        "qwen_1_5b",
        "`gradstats run qwen_1_5b`",
        "9 minutes to draw; not measured: in float32 the `ghost` engine failed its self-check (‖S‖² deviates by 0.0012 "
        "from an ordinary backward pass, where 0.001 is allowed), and `vmap`, the next one, took more than the 23 GiB "
        "of the machine. `--set measurement.engine=loop` needs 17 GiB and about 20 minutes",
    ),
    (
        "qwen_mawps_tokens",
        "`gradstats run qwen_mawps_tokens`",
        "about 30 minutes: 16 backward passes and 32 forward derivatives for each of 16 completions; not measured",
    ),
    (
        "qwen_gsm8k",
        "`gradstats run qwen_gsm8k`",
        "about 30 minutes: a completion of `qwen_mawps` cost 9.9 processor seconds, and those of GSM8K are longer",
    ),
)


def not_run() -> str:
    """List the experiments without committed results."""
    rows = [
        (command, cost) for folder, command, cost in PLANNED if not committed_path(folder, "manifest.json").exists()
    ]
    return rows_of(("command", "cost on two cores, an estimate"), rows) if rows else "Nothing of what was planned."


SECTIONS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("Is α one number?", section_alpha),
    ("Does plugging α into a baseline help?", section_exponent),
    ("Is the mean of the group the right centre?", section_centre),
    ("Does standardising bias the gradient?", section_standardising),
    ("How many tokens carry the energy?", section_concentration),
    ("Is the logit proxy good enough?", section_proxy),
    ("What group size is each baseline worth?", section_group_size),
)

if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
