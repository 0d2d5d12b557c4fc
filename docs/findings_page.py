"""Write findings.md: what the committed runs answer, in the manner of the results section of a paper.

Run ``python docs/findings_page.py`` after the tables in ``figures/`` have changed. Every number and every verdict of
the page is computed here from those tables; a question that no committed run answers says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from committed_numbers import OWN_SAMPLE, WEIGHTED, Triple, committed_path, numbers, shown, table, with_interval
from findings_alpha import section_alpha
from findings_runs import (
    GRPO,
    MEMORY,
    RLOO,
    UNRESOLVED,
    Run,
    answer,
    committed,
    excludes,
    first_figure,
    hours_of,
    rows_of,
    simultaneous,
    verdict_of,
    where,
    widened,
)
from findings_tokens import section_concentration, section_proxy

from gradstats import data
from gradstats.estimators.display_names import in_words
from gradstats.report.saved_results import completion_means, read_results
from gradstats.stats.variance.estimates import FEW_PROMPTS as ENOUGH_PROMPTS
from gradstats.stats.variance.minimiser import written_interval

PAGE = Path(__file__).with_name("findings.md")
EXPONENT, SHIFT = "curve_length_weighted_loo_true_alpha", "curve_asymmetric_loo_true_delta"
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

What holds for all of it: these are models of at most {largest} parameters, each on problems of one kind, with the
number of prompts in the table. They show what holds for these policies, and do not decide for other models. In a column
of intervals, a number without one is an identity.
"""


def render() -> str:
    """Return the whole page."""
    largest = max(numbers(run.folder, "manifest")["policy"]["n_parameters"] for run in committed())
    parts = [HEAD.format(largest=f"{largest / 1e9:.2g} billion" if largest > 1e8 else f"{largest / 1e6:.2g} million")]
    parts.append(section_runs())
    for title, section in SECTIONS:
        parts.append(f"## {title}\n\n{section()}\n")
    parts.append(f"## What was not run\n\n{not_run()}\n")
    return "\n".join(parts)


def section_runs() -> str:
    """Describe the runs."""
    rows, few = [], []
    for run in committed():
        results = read_results(committed_path(run.folder, "."))
        manifest, means = results.manifest, completion_means(results)
        effective = effective_prompts(run)
        if math.isnan(effective) and manifest["n_prompts"] < ENOUGH_PROMPTS:
            few.append(f"{run.name} (at most {manifest['n_prompts']})")
        elif effective < ENOUGH_PROMPTS:
            few.append(f"{run.name} ({effective:.0f})")
        rows.append(
            (
                f"[{run.name}](../figures/{run.folder}/manifest.json)",
                f"{float(format(manifest['policy']['n_parameters'] / 1e6, '.3g')):g}",
                f"{manifest['policy']['temperature']:g}",
                f"{manifest['n_prompts']} × {manifest['n_sequences'] // manifest['n_prompts']}",
                "—" if math.isnan(effective) else f"{effective:.0f}",
                shown(with_interval(means, "mean_reward")),
                shown(with_interval(means, "mean_length")),
                f"{means['truncated_share']:.1%}",
                f"{hours_of(manifest):.2f}",
                MEMORY.get(run.folder, "—"),
                f"`gradstats run {run.folder}`",
            )
        )
    header = (
        "run",
        "10⁶ parameters",
        "temperature",
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
        f"Variances rest on an effective number of fewer than {ENOUGH_PROMPTS} prompts in "
        f"{', '.join(few)}: intervals of variances may be too narrow there ([statistics](statistics.md))."
    )
    untied = UNTIED if any("qwen" in run.folder for run in committed()) else None
    return answer(rows_of(header, rows), weak if few else None, COSTS, untied) + "\n"


def effective_prompts(run: Run) -> float:
    """Return the number of equally noisy prompts that the variance of RLOO rests on; NaN where it is not compared."""
    frame = table(run.folder, "variance")
    rows = pd.DataFrame() if frame is None or "n_effective_prompts" not in frame else frame[frame["estimator"] == RLOO]
    return float(rows["n_effective_prompts"].iloc[-1]) if len(rows) else math.nan


def along(run: Run, curve: str) -> tuple[dict, pd.DataFrame] | None:
    """Return a committed curve of a run."""
    found, points = numbers(run.folder, f"tables/{curve}"), table(run.folder, f"tables/{curve}")
    return None if found is None or points is None else (found, points)


def lowest(found: dict, points: pd.DataFrame) -> str:
    """Write where a curve is lowest."""
    return (
        f"{found['minimiser']:.3g} {written_interval(found['minimiser_low'], found['minimiser_high'], points['value'])}"
    )


def section_exponent() -> str:
    """State whether α makes a better baseline."""
    rows, gains, losses, published, halves = [], [], [], [], []
    for run in committed():
        at_published, at_half = largest_groups(run, WEIGHTED), largest_groups(run, "token_mean(loo=True)")
        at_fitted = largest_groups(run, "length_weighted(alpha=within_prompt, loo=True)")
        curve = along(run, EXPONENT)
        if at_published is None and curve is None:
            continue
        inner = None if curve is None else {fit["fit"]: fit for fit in curve[0]["fits"]}["within prompts"]
        rows.append(
            (
                run.name,
                "—" if curve is None else lowest(*curve),
                "—" if inner is None else shown(with_interval(inner, "value")),
                "—" if inner is None else shown(with_interval(inner, "ratio_to_lowest"), UNRESOLVED),
                *(shown(ratio, "—") for ratio in (at_fitted, at_half, at_published)),
            )
        )
        gains += [] if at_fitted is None else [(run.name, at_fitted)]
        losses += [] if inner is None else [(run.name, with_interval(inner, "ratio_to_lowest"))]
        published += [] if at_published is None else [(run.name, at_published)]
        halves += [] if at_half is None else [(run.name, at_half)]
    header = (
        "run",
        "exponent of lowest variance",
        "α within prompts",
        "variance at α over the lowest",
        "over RLOO, at α",
        "over RLOO, at 0.5",
        "over RLOO, at 0.8",
    )
    return answer(
        f"With the own sample left out, the length weights at the fitted α {verdict_of(gains)}; at the exponent 0.5, "
        f"the token mean, they {verdict_of(halves)}; at 0.8 they {verdict_of(published)}. Against the best exponent, "
        f"{where(losses, 1.0, 'the fitted α costs something', 'no loss is resolved')}.",
        rows_of(header, rows),
        own_sample_included(),
        "What this does not show: the best exponent is chosen on the completions whose variance is compared. At the "
        "fitted α each prompt is weighted by the exponent of the other prompts.",
        'Commands: `gradstats ask RUN curve "length_weighted(loo=True)" alpha=0:2:41`, '
        f'`gradstats variance RUN --estimators rloo "token_mean(loo=True)" "{WEIGHTED}" '
        '"length_weighted(alpha=within_prompt, loo=True)"`.',
        first_figure(EXPONENT, "Variance of the length-weighted baseline along its exponent"),
    )


def own_sample_included() -> str | None:
    """State what the length weights do in the published form, in which the own sample is part of the baseline."""
    said = []
    for run in committed():
        ratio = largest_groups(run, OWN_SAMPLE)
        share = largest_groups(run, OWN_SAMPLE, "matched_bias_share")
        if ratio is not None and share is not None:
            said.append(f"{shown(ratio)} over RLOO and a share of bias of {shown(share)} in {run.name}")
    if not said:
        return None
    return (
        "In the published form, with the own sample in the baseline, the expected gradient is another one: at 0.8, "
        f"{'; '.join(said)}. The share is that in the squared error of a batch of 128 prompts."
    )


def largest_groups(run: Run, label: str, column: str = "matched_ratio") -> Triple | None:
    """Return a quantity of an estimator in the largest groups of a run; None where it is not resolved."""
    frame = table(run.folder, "variance")
    if frame is None:
        return None
    chosen = frame[(frame["estimator"] == label) & (frame["group_size"] == frame["group_size"].max())]
    return None if chosen.empty else with_interval(chosen.iloc[0], column)


def section_centre() -> str:
    """State whether the mean of the group is the right centre."""
    rows, shifts, gains = [], [], []
    for run in committed():
        if (curve := along(run, SHIFT)) is None:
            continue
        found, points = curve
        # The intervals hold for all δ at once, so that the surest of them may be chosen.
        surest = points.loc[points["matched_ratio_simultaneous_high"].idxmin()]
        ratio = tuple(surest[f"matched_ratio{end}"] for end in ("", "_simultaneous_low", "_simultaneous_high"))
        none = surest["value"] == 0.0
        rows.append(
            (run.name, lowest(found, points), *(("—", "—") if none else (f"{surest['value']:g}", shown(ratio))))
        )
        shifts.append((run.name, with_interval(found, "minimiser")))
        gains.append((run.name, ratio))
    return answer(
        "The baseline is the mean of the other completions of the group plus δ; δ = 0 is RLOO. That the best centre is "
        f"off the mean of the group is {where(shifts, 0.0, 'resolved', 'not resolved')}. By intervals that hold for "
        f"all δ at once, {where(gains, 1.0, 'a shift lowers the variance', 'no shift lowers the variance')}.",
        rows_of(("run", "δ of lowest variance", "δ of the surest gain", "over RLOO, there (for all δ at once)"), rows),
        "What this does not show: it holds for the success rates of these prompts, and rests on few of them in the "
        "Qwen runs (first table). Where no shift is surely better than none, there is no ratio.",
        'Command: `gradstats ask RUN curve "asymmetric(loo=True)" delta=-0.5:0.5:41`.',
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
                f"at most {math.ceil(share[2] * 1e5) / 1e5:.2g}"
                if share is not None and bounded
                else shown(share, UNRESOLVED),
                shown(with_interval(row, "matched_ratio"), UNRESOLVED),
            )
        )
        costs.append((run.name, with_interval(row, "matched_ratio")))
        if share is not None and not bounded:
            clear.append(run.name)
    turned = f"resolved in {', '.join(clear)}" if clear else "not resolved in any run"
    return answer(
        f"That the division by the standard deviation of the group turns the expected gradient is {turned}; the bounds "
        "are in the table. By enumeration it weights a prompt of success 0.1 or 0.9 more than one of 0.5 "
        "([claims](claims.md)), which can turn the gradient. At matched signal, against RLOO, GRPO's weights "
        f"{verdict_of(costs)}.",
        rows_of(("run", "N", "cosine with the true gradient", "share of bias at matched signal", "over RLOO"), rows),
        "The share of bias is that in the squared error of a batch of 128 prompts.",
        "What this does not show: whether the changed objective trains better or worse.",
        "Command: `gradstats variance RUN --estimators rloo grpo`.",
    )


def at_least(cosine: Triple | None) -> str:
    """Write a cosine, whose estimate may exceed 1 where its interval reaches it, by the lower end, rounded down."""
    if cosine is None or cosine[2] < 1.0:
        return shown(cosine, UNRESOLVED)
    return f"at least {math.floor(cosine[1] * 1e4) / 1e4:.4g}"


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
        "N is half the completions of a prompt, so that ratios are not those of the sections above; and where the "
        "variance of RLOO at a fixed total changes slowly with N, a percent of variance is worth much of N.",
        "What this does not show: only variance is compared, not bias.",
        "Command: `gradstats group-size RUN LABEL`.",
        first_figure("group_sizes", "Variance against group size", "equivalent_group_size"),
    )


def not_run() -> str:
    """State what no run did, and what the published setting would cost by the run of the same architecture."""
    manifest = numbers("qwen_1_5b", "manifest")
    assert manifest is not None
    seconds = sum(manifest["timings"][step] for step in ("sampling", "measuring")) / manifest["n_sequences"]
    length = completion_means(read_results(committed_path("qwen_1_5b", ".")))["mean_length"]
    lengths = data.load("gloeckle2026")["length"]
    hours = 30 * seconds * lengths.mean() / length / 3600
    return answer(
        "No run used a GPU, weights in full precision (`--set policy.name=Qwen/Qwen2.5-Coder-0.5B-Instruct` and the "
        "like), or the weights of the published points. Their setting, `gradstats run alpha_r1_distill`, would take "
        f"about {hours:.1f} hours on two cores, if time is proportional to length: a completion of {length:.0f} tokens "
        f"took {seconds:.0f} seconds in `qwen_1_5b`, the published ones have {lengths.mean():.0f} tokens. Not measured."
    )


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
