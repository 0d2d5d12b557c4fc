"""Write findings.md and findings_details.md: what the committed runs answer, and what they leave open.

Run ``python docs/findings_page.py`` after the tables in ``figures/`` have changed. Every number and every verdict of
the pages is computed here from those tables; a question that no committed run answers says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from committed_numbers import (
    BY_LENGTH,
    OWN_SAMPLE,
    WEIGHTED,
    Triple,
    committed_path,
    excludes,
    for_all_rows,
    lower_bound,
    numbers,
    shown,
    side,
    table,
    upper_bound,
    with_interval,
)
from findings_alpha import CLAIMED, QWEN_ADAM, details_of_alpha, section_alpha, section_metric
from findings_gain import ZOO, section_left, section_values
from findings_mismatch import section_mismatch
from findings_runs import (
    GRPO,
    NO_RUN,
    RLOO,
    UNRESOLVED,
    Run,
    answer,
    committed,
    figure,
    first_figure,
    hours_of,
    is_below,
    largest_groups,
    lines,
    of_largest_groups,
    one_of,
    rows_of,
)
from findings_tokens import section_concentration, section_proxy

from gradstats import data
from gradstats.analyses.numbers import format_number, minimiser_with_interval
from gradstats.config.options import PROMPTS_PER_BATCH
from gradstats.estimators.display_names import in_words
from gradstats.report.saved_results import completion_means, read_results
from gradstats.stats.variance.quantities import FEW_PROMPTS as ENOUGH_PROMPTS

PAGE = Path(__file__).with_name("findings.md")
DETAILS = Path(__file__).with_name("findings_details.md")
EXPONENT, SHIFT = "curve_length_weighted_loo_true_alpha", "curve_asymmetric_loo_true_delta"
FITTED = "length_weighted(alpha=within_prompt, loo=True)"
#: Rows of the table of relative noise.
COMPARED = (
    "reinforce",
    "constant(b=optimal)",
    "batch_mean(loo=True)",
    "james_stein",
    "token_mean(loo=True)",
    WEIGHTED,
    "norm_weighted(loo=True)",
    GRPO,
    "recipe:gspo",
    "recipe:dapo",
)
#: Methods that are the same estimator where every ratio is 1 and there is no KL term.
SAME_ON_POLICY = {"recipe:gspo": "GRPO, GSPO", "recipe:dapo": "DAPO, CISPO"}
#: A column of the table beside the runs.
IN_ADAM = Run(QWEN_ADAM, "Qwen-0.5B's layers, Adam's metric")
#: Runs of fewer effective prompts are no column of that table.
FEWEST_PROMPTS = 15
#: A noise above it is hardly below RLOO's.
SOME = 0.95
#: Rows that are unbiased and not fitted to the gradients that are compared.
UNBIASED = COMPARED[2:6]
HEAD = """# Findings

Noise is an estimator's variance at equal signal, over RLOO's: below 1 is better ([definitions](read_results.md)).
Brackets are 95 % intervals over prompts; a difference is stated only where its interval resolves it
([details](findings_details.md)). [The runs](#the-runs) are of Qwen2.5-Coder, SmolLM2 and *embedded*, a policy of a
million parameters: a number in a name counts prompts; problems of *-96* and *-240* take 2–4 steps, others 2–3.
"""
DETAILS_HEAD = """# Findings: details

Differences of α, beside [findings](findings.md).
"""


def render() -> str:
    """Return the page: the verdict of each section, linked to it, and the sections."""
    answers = {title: section() for title, section in SECTIONS}
    short = (lines(f"- [{title}](#{anchor(title)}) {verdict(said)}", "  ") for title, said in answers.items())
    sections = (f"## {title}\n\n{said}\n" for title, said in (answers | {"The runs": section_runs()}).items())
    return "\n".join([HEAD, *short, "", *sections])


def anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub and Sphinx form it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def verdict(said: str) -> str:
    """Return the answer that a section begins with, in bold."""
    found = re.match(r"\*\*(.+?)\*\*", said, re.DOTALL)
    return " ".join((found[1] if found else said.split("\n\n")[0]).split())


def render_details() -> str:
    """Return the page of what is left open."""
    return "\n".join([DETAILS_HEAD, *(f"## {title}\n\n{section()}\n" for title, section in DETAILS_SECTIONS)])


def section_runs() -> str:
    """Describe the runs."""
    rows, few = [], []
    for run in (*committed(), *((ZOO,) if table(ZOO.folder, "variance") is not None else ())):
        results = read_results(committed_path(run.folder, "."))
        manifest, means, effective = results.manifest, completion_means(results), effective_prompts(run)
        if effective < ENOUGH_PROMPTS:
            few.append(run.name)
        rows.append(
            (
                f"[{run.name}](../figures/{run.folder}/manifest.json)",
                f"{manifest['n_prompts']} × {manifest['n_sequences'] // manifest['n_prompts']}",
                "—" if math.isnan(effective) else f"{effective:.0f}",
                f"{means['mean_reward']:.2f}",
                f"{means['mean_length']:.0f} ({means['truncated_share']:.0%})",
                hours_of(manifest),
            )
        )
    most = max(numbers(run.folder, "manifest")["policy"]["n_parameters"] for run in committed())
    largest = f"{most / 1e9:.2g} billion" if most > 1e8 else f"{most / 1e6:.2g} million"
    header = (
        "run",
        "prompts × completions",
        "effective prompts",
        "mean reward",
        "mean tokens (cut off)",
        "hours on two cores",
    )
    return answer(
        rows_of(header, rows),
        f"These models, of at most {largest} parameters, on problems of one kind each, do not decide for others. "
        "Qwen is Qwen2.5-Coder-Instruct, SmolLM2 the 135M-Instruct, both from 4-bit files, "
        "dequantised. "
        + (
            f"In {one_of(few, len(rows))} fewer than {ENOUGH_PROMPTS} effective prompts carry the variance: "
            "intervals of noise from so few may be too narrow."
            if few
            else ""
        ),
        "Repeat: `make findings`, given `data/`.",
        rows_of(("not measured", "command", "hours, computed"), unmeasured()),
    )


def effective_prompts(run: Run) -> float:
    """Return the number of equally noisy prompts that the variance of RLOO rests on; NaN where it is not compared."""
    frame = table(run.folder, "variance")
    rows = pd.DataFrame() if frame is None or "n_effective_prompts" not in frame else frame[frame["estimator"] == RLOO]
    return float(rows["n_effective_prompts"].iloc[-1]) if len(rows) else math.nan


def section_noise() -> str:
    """State which estimator needs the fewest samples."""
    runs = compared()
    below: dict[str, dict[str, Triple]] = {label: {} for label in UNBIASED}
    for run in runs:
        for label, ratio in surely_below(run).items():
            below[label][run.name] = ratio
    most = max(map(len, below.values()))
    best, *alike = sorted(
        (label for label in UNBIASED if len(below[label]) == most), key=lambda label: list(below[label].values())
    )
    others = [
        f"{named(label)} {shown(ratio)} in {name}"
        for label, found in below.items()
        if label != best
        for name, ratio in found.items()
    ]
    verdict = "RLOO, as far as is resolved"
    if most:
        first, ratio = next(iter(below[best].items()))
        verdict = (
            f"Of baselines without learning or values {named(best)} {'' if alike else 'alone '}lies below RLOO in "
            f"{one_of(list(below[best]), len(runs))}: its noise is {shown(ratio)}"
            f"{f' in {first}' if len(below[best]) > 1 else ''}"
        )
    reinforce = {run.name: largest_groups(run, "reinforce") for run in runs}
    worse = [name for name, ratio in reinforce.items() if ratio is not None and ratio[1] > 1.0]
    columns = [*runs, *([IN_ADAM] if table(IN_ADAM.folder, "variance") is not None else [])]
    return answer(
        f"**{verdict}.** "
        + (f"Also below RLOO by intervals for all rows of a run: {'; '.join(others)}. " if others else "")
        + f"REINFORCE is noisier in {one_of(worse, len(runs)) or 'none'}."
        if runs
        else NO_RUN,
        rows_of(
            ("relative noise", *(run.name for run in columns)),
            [
                (named(label), *(shown(largest_groups(run, label), absent(run, label)) for run in columns))
                for label in COMPARED
            ],
        )
        if runs
        else None,
        "The table's intervals hold for one row. The best constant and norm weights are fitted to "
        "the gradients that are compared. On-policy Dr. GRPO is a multiple of RLOO, and GRPO (without its KL term) is "
        f"GSPO. Left out: embedded-96, like {ZOO.name}, and runs of fewer than {FEWEST_PROMPTS} effective prompts. "
        f"{to_resolve(runs)}Repeat: `gradstats variance RUN`.",
        first_figure("variance", "Relative noise of each estimator"),
    )


def compared() -> list[Run]:
    """Return the runs of at least 8 completions a prompt and enough effective prompts, but for one like ``ZOO``."""
    runs = [run for run in (*committed(), ZOO) if run.folder != "embedded"]
    frames = ((run, table(run.folder, "variance")) for run in runs if not effective_prompts(run) < FEWEST_PROMPTS)
    return [run for run, frame in frames if frame is not None and frame["group_size"].max() >= MEASURED_SIZE]


def surely_below(run: Run) -> dict[str, Triple]:
    """Return the unbiased rows that lie below RLOO by intervals that hold for all rows of the run."""
    rows = {label: of_largest_groups(run, label) for label in UNBIASED}
    found = {label: None if row is None else for_all_rows(row, "matched_ratio") for label, row in rows.items()}
    return {label: ratio for label, ratio in found.items() if ratio is not None and is_below(ratio)}


def to_resolve(runs: list[Run]) -> str:
    """State how many prompts would give every row of the first run a value, where one has none."""
    needed = (numbers(runs[0].folder, "variance") or {}).get("prompts_to_resolve") if runs else None
    return f"Values for all rows of {runs[0].name} take an estimated {needed:,} prompts. " if needed else ""


def named(label: str) -> str:
    """Return what the table calls an estimator."""
    return SAME_ON_POLICY.get(label, in_words(label))


def absent(run: Run, label: str) -> str:
    """Write why an estimator has no relative noise in a run: it is not resolved, or was not compared."""
    frame = table(run.folder, "variance")
    return UNRESOLVED if frame is not None and label in set(frame["estimator"]) else "—"


def along(run: Run, curve: str) -> tuple[dict, pd.DataFrame] | None:
    """Return a committed curve of a run."""
    found, points = numbers(run.folder, f"tables/{curve}"), table(run.folder, f"tables/{curve}")
    return None if found is None or points is None else (found, points)


def lowest(found: dict, points: pd.DataFrame) -> str:
    """Write where a curve is lowest."""
    ends = (found[f"minimiser{end}"] for end in ("", "_low", "_high"))
    return minimiser_with_interval(*ends, points["value"].to_numpy())


def surest(points: pd.DataFrame) -> tuple[float, Triple]:
    """Return the value of a curve whose noise has the lowest upper end, by intervals that hold for all values at once.

    Since they do, it may be chosen among all of them.
    """
    row = points.loc[points["matched_ratio_simultaneous_high"].idxmin()]
    ratio = for_all_rows(row, "matched_ratio")
    assert ratio is not None
    return row["value"], ratio


def section_exponent() -> str:
    """State whether α makes a better baseline."""
    rows, lower, higher, published, least = [], [], [], [], 1.0
    for run in committed():
        at_fitted, at_published = (largest_groups(run, label) for label in (FITTED, WEIGHTED))
        curve = along(run, EXPONENT)
        if excludes(at_published, 1.0):
            (higher if at_published[0] > 1.0 else published).append(f"{shown(at_published)} in {run.name}")
        if curve is not None or at_fitted is not None:
            best = "—" if curve is None else lowest(*curve)
            rows.append((run.name, best, shown(at_fitted, "—")))
        if curve is not None:
            exponent, ratio = surest(curve[1])
            if is_below(ratio):
                lower.append(f"{shown(ratio)} at α = {format_number(exponent)} in {run.name}")
                least = min(least, ratio[0])
    said = "Not measurably"
    if lower:
        much = "Yes" if least < SOME else "Hardly"
        said = f"{much}: the noise is {', '.join(lower)}, by intervals for all exponents"
    at_claimed = [
        f"Without the own sample, the published {CLAIMED:g} {verb} it, to {', '.join(found)}."
        for verb, found in (("lowers", published), ("raises", higher))
        if found
    ]
    own = [shown(ratio) for run in committed() if excludes(ratio := largest_groups(run, OWN_SAMPLE), 1.0)]
    at_claimed += [f"With it: {', '.join(own)}, [biased](claims.md)."] if at_claimed and own else []
    return answer(
        " ".join([f"**{said}.**", *at_claimed]),
        rows_of(("run", "best exponent", "noise at α within prompts"), rows),
        'Repeat: `gradstats ask RUN curve "length_weighted(loo=True)" alpha=0:2:41`. The best exponent is chosen on '
        "the completions that are compared.",
        first_figure(EXPONENT, "Noise of the length-weighted baseline along its exponent"),
    )


def section_centre() -> str:
    """State whether the mean of the group is the right centre."""
    rows, off, gains = [], [], []
    for run in committed():
        if (curve := along(run, SHIFT)) is None:
            continue
        found, points = curve
        shift, ratio = surest(points)
        gain = ("—", "—") if shift == 0.0 else (format_number(shift), shown(ratio))
        rows.append((run.name, lowest(found, points), *gain))
        off += [run.name] if excludes(with_interval(found, "minimiser"), 0.0) else []
        gains += [f"{shown(ratio)} at δ = {format_number(shift)} in {run.name}"] if is_below(ratio) else []
    return answer(
        (
            (
                f"**Nearly: with a shift δ its noise is {gains[0]}.**"
                if gains
                else f"**{'Nearly' if off else 'Yes'}, as far as is resolved.**"
            )
            + " The baseline is the mean of the other completions plus δ; the best δ "
            + (f"differs from 0 in {one_of(off, len(rows))}." if off else "is not shown to differ from 0.")
        )
        if rows
        else NO_RUN,
        rows_of(("run", "best δ", "δ of lowest upper end", "noise there (interval for all δ)"), rows) if rows else None,
        'Repeat: `gradstats ask RUN curve "asymmetric(loo=True)" delta=-0.5:0.5:41`. It holds for the success rates of '
        "these prompts.",
        first_figure(SHIFT, "Noise along the shift of the centre"),
    )


#: What weights divide by, beside the mean that they subtract.
DIVIDED_BY = {
    BY_LENGTH: "each completion's length",
    "recipe:custom(advantage=rloo, aggregation=token_mean)": "the tokens of the group",
    GRPO: "the standard deviation of the group",
    "recipe:gspo": "deviation and length (GRPO, GSPO)",
    "recipe:dapo": "deviation and tokens (DAPO, CISPO)",
}


def section_division() -> str:
    """State whether division by lengths, or by the group's standard deviation, biases the gradient."""
    rows, clear, none, cost = [], [], [], ""
    for label, name in DIVIDED_BY.items():
        bounds = []
        for run in committed():
            cosine, share, ratio = (
                largest_groups(run, label, column) for column in ("cosine", "matched_bias_share", "matched_ratio")
            )
            if (cosine, share) == (None, None):
                continue
            rows.append((name, run.name, at_least(cosine), bounded_bias(share)))
            bounds += [] if share is None else [share]
            if share is None or share[1] <= 0.0:
                continue
            clear.append(f"{name} {shown(share)} in {run.name}")
            if label == "recipe:gspo" and ratio is not None:
                cost += cost_of_bias(run.name, ratio, share)
        if bounds and all(share[1] <= 0.0 for share in bounds):
            none.append(f"{name} {bounded_bias(max(bounds, key=lambda one: one[2]))}")
    said = "Not measurably"
    if clear:
        said = f"Some do; bias is this share of the squared error of {PROMPTS_PER_BATCH} prompts: {clear[0]}"
    return answer(
        f"**{said}.** "
        + (f"Also {'; '.join(clear[1:])}. " if clear[1:] else "")
        + f"Not resolved: {'; '.join(none) or 'none'}."
        if rows
        else NO_RUN,
        rows_of(("divided by", "run", "cosine", "bias"), rows),
        f"{cost}Repeat: `gradstats variance RUN`.",
        figure("embedded_resolved", "variance_bias", "Noise and bias of each estimator (embedded-2000)"),
    )


def cost_of_bias(run: str, noise: Triple, share: Triple) -> str:
    """Compare the squared error of GRPO, bias included, with RLOO's: at 128 prompts, and where the two are equal."""
    ends = ((0, 0), (1, 1), (2, 2))
    error = [noise[n] / (1.0 - share[b]) for n, b in ends]
    said = (
        f"In {run}, bias included, the squared error of GRPO, GSPO is {error[0]:.2f} ({error[1]:.2f} to {error[2]:.2f}"
        f") of RLOO's at {PROMPTS_PER_BATCH} prompts"
    )
    if noise[1] > 0.0 and noise[2] < 1.0:
        equal = [equal_error(noise[n], share[b]) for n, b in ends]
        said += f"; the two are equal at {equal[0]:.0f} prompts ({equal[2]:.0f} to {equal[1]:.0f})"
    return f"{said}, by the ends of both intervals. "


def equal_error(noise: float, share: float, batch: float = PROMPTS_PER_BATCH) -> float:
    r"""Return the prompts at which an estimator of less noise and some bias has the squared error of an unbiased one.

    With n the relative noise and b the share of the bias in the squared error of B prompts, that of B′ prompts is, in
    units of the variance of the other estimator, :math:`n/B' + nb/((1-b)B)`, and equals :math:`1/B'` at
    :math:`B' = B(1-n)(1-b)/(nb)`.
    """
    return batch * (1.0 - noise) * (1.0 - share) / (noise * share)


def at_least(cosine: Triple | None) -> str:
    """Write a cosine, whose estimate may exceed 1 where its interval reaches it, by the lower end, rounded down."""
    if cosine is None or cosine[2] < 1.0:
        return shown(cosine, UNRESOLVED)
    return f"≥ {math.floor(cosine[1] * 1e4) / 1e4:.4g}"


#: Checkpoints of reinforcement learning, and what is followed along them: its column, row, and name in a table.
TRAINING = "embedded_reinforced"
FOLLOWED = (
    ("mean_reward", RLOO, "mean reward"),
    ("alpha", RLOO, "α"),
    ("matched_ratio", "reinforce", "noise of REINFORCE"),
    ("trace_cov", RLOO, "variance of RLOO"),
    ("noise_to_signal", RLOO, "critical batch"),
)


def section_training() -> str:
    """State what changes along reinforcement learning."""
    frame, differences = table(TRAINING, "sweep"), table(TRAINING, "cell_differences")
    if frame is None or differences is None:
        return NO_RUN
    cells = list(dict.fromkeys(frame["cell"]))
    steps = [re.sub(r".*-", "", cell) for cell in cells]
    paired = differences[(differences["cell"] == cells[-1]) & (differences["minus"] == cells[0])].set_index("quantity")
    columns, changes = {}, {}
    for column, label, name in FOLLOWED:
        rows = [row for _, row in frame[frame["estimator"] == label].iterrows()]
        # A critical batch that is not resolved has a lower end alone.
        bounds = (lower_bound(row[f"{column}_low"]) for row in rows)
        columns[name] = [shown(with_interval(row, column), bound) for row, bound in zip(rows, bounds, strict=True)]
        first, last = rows[0], rows[-1]
        apart = last[f"{column}_low"] > first[f"{column}_high"] or last[f"{column}_high"] < first[f"{column}_low"]
        if column in paired.index:
            apart = excludes(with_interval(paired.loc[column], "difference"), 0.0)
        if apart and column != "mean_reward":
            changes[name] = " to ".join(re.sub(r" \[.*", "", columns[name][end]) for end in (0, -1))
            if column in paired.index:
                changes[name] += f" (by {shown(with_interval(paired.loc[column], 'difference'))}, paired)"
    said = ", ".join(f"{name} from {change}" for name, change in changes.items())
    others = [row for _, row in frame[~frame["estimator"].isin([RLOO, "reinforce"])].iterrows()]
    below, above = {}, {}
    for row in others:
        for found, apart in (
            (below, row["matched_ratio_simultaneous_high"] < 1.0),
            (above, row["matched_ratio_simultaneous_low"] > 1.0),
        ):
            if apart:
                found.setdefault(in_words(row["estimator"]), []).append(steps[cells.index(row["cell"])])
    listed = ["; ".join(f"{name} (step {', '.join(at)})" for name, at in found.items()) for found in (below, above)]
    return answer(
        f"**{f'Yes: {said}' if changes else 'Not measurably'}.** The embedded policy learned by RLOO for {steps[-1]} "
        f"steps. Below RLOO: {listed[0] or 'nothing'}. Above it, by intervals for all rows of a "
        f"step at once: {listed[1] or 'nothing'}.",
        rows_of(("step", *columns), zip(steps, *columns.values(), strict=True)),
        f"This is one training run. Repeat: `gradstats run {TRAINING}`.",
        figure(TRAINING, "policy_name", "Along reinforcement learning (embedded)"),
    )


def bounded_bias(share: Triple | None) -> str:
    """Write a share of bias, by its upper end where none is resolved."""
    if share is None or share[1] > 0.0:
        return shown(share, UNRESOLVED)
    return upper_bound(share[2])


#: The measured size of a group, and others, of which those above are extrapolated.
MEASURED_SIZE, OTHER_SIZES = 8, (2, 4, 16, 32)


def section_completions() -> str:
    """State which number of completions of a prompt has the least noise at equal tokens."""
    found: dict[str, dict[int, Triple]] = {}
    for run in compared():
        frame = table(run.folder, "allocation")
        if frame is None or MEASURED_SIZE not in set(frame["group_size"]):
            continue
        rows = frame[frame["estimator"] == RLOO].set_index("group_size")
        noise = {size: with_interval(rows.loc[size], "relative_noise") for size in OTHER_SIZES if size in rows.index}
        found[run.name] = {size: ratio for size, ratio in noise.items() if ratio is not None}
    if not found:
        return NO_RUN
    everywhere, others, clear = [], [], {}
    for size in OTHER_SIZES:
        ratios = {name: of_run[size] for name, of_run in found.items() if size in of_run}
        apart = {name: shown(ratio) for name, ratio in ratios.items() if side(ratio)}
        sides = {side(ratio) for ratio in ratios.values()}
        if apart and len(apart) == len(ratios) > 1 and len(sides) == 1:
            ends = [f"{end(ratio[0] for ratio in ratios.values()):.2f}" for end in (min, max)]
            everywhere.append(f"{size} have {' to '.join(ends)}")
            clear[size] = sides.pop()
        elif apart:
            others.append(f"{size} have {' and '.join(f'{ratio} in {name}' for name, ratio in apart.items())}")
        elif ratios:
            others.append(f"{size} differ measurably in no run")
    more = any(size > MEASURED_SIZE and lower < 0 for size, lower in clear.items())
    fewer = any(size < MEASURED_SIZE and higher < 0 for size, higher in clear.items())
    some = any(size > MEASURED_SIZE and side(ratio) < 0 for of_run in found.values() for size, ratio in of_run.items())
    best = "More than {}" if more else "Fewer than {}" if fewer else "{} or more" if some else "About {}"
    best = best.format(MEASURED_SIZE)
    return answer(
        f"**{best}: at equal tokens, in all {len(found)} runs, {' times, '.join(everywhere)} times "
        "their noise.**" + (f" By single comparisons, {'; '.join(others)}." if others else "")
        if everywhere
        else f"**Not settled.** By single comparisons, {'; '.join(others)}.",
        rows_of(
            (f"noise of RLOO at equal tokens, over {MEASURED_SIZE} completions", *map(str, OTHER_SIZES)),
            [
                (name, *(shown(of_run[size], "—") if size in of_run else "—" for size in OTHER_SIZES))
                for name, of_run in found.items()
            ],
        ),
        "16 and 32 are computed, not sampled. Tokens of prompts are not counted. Runs as in the first table. "
        "Repeat: `gradstats ask RUN allocation`.",
        first_figure("allocation", "Noise at equal tokens against completions of a prompt"),
    )


def unmeasured() -> list[tuple[str, str, str]]:
    """Return what no run measured, the command that would, and the hours on two cores.

    Hours are those of a committed run, in proportion to the completions, their lengths and the model's parameters.
    """
    run, repeated = (numbers(name, "manifest") for name in ("qwen_1_5b", "qwen_mawps"))
    if run is None or repeated is None:
        return []
    length, of_repeated = (
        completion_means(read_results(committed_path(name, ".")))["mean_length"] for name in ("qwen_1_5b", "qwen_mawps")
    )
    hours_of_token = (run["timings"]["sampling"] + run["timings"]["measuring"]) / run["n_sequences"] / length / 3600
    published = 30 * data.load("gloeckle2026")["length"].mean() * hours_of_token
    seven = repeated["n_sequences"] * of_repeated * hours_of_token * 7.6e9 / run["policy"]["n_parameters"]
    return [
        ("R1-Distill-Qwen-1.5B, as published", "`gradstats run alpha_r1_distill`", f"{published:.1f}"),
        ("7B", "`gradstats run qwen_mawps --set policy.name=Qwen/Qwen2.5-7B-Instruct`", f"{seven:.0f}"),
        ("CUDA", "`gradstats run qwen_mawps --set policy.device=cuda`", "—"),
        (
            "long traces on a GPU",
            "`python -P experiments/alpha_over_lengths.py`, which takes CUDA where there is one",
            "—",
        ),
    ]


SECTIONS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("Which estimator is least noisy?", section_noise),
    ("How much is left to gain?", section_left),
    ("Do values of states pay?", section_values),
    ("How many completions of a prompt?", section_completions),
    ("Is α one number?", section_alpha),
    ("Does α depend on the metric?", section_metric),
    ("Does α make a better baseline?", section_exponent),
    ("Is the group mean the right centre?", section_centre),
    ("Do divisors bias the gradient?", section_division),
    ("Do these results change along training?", section_training),
    ("Does correcting a mismatch pay?", section_mismatch),
    ("How many tokens carry the energy?", section_concentration),
    ("Is the logit proxy good enough?", section_proxy),
)
DETAILS_SECTIONS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("α between models, lengths and samplers", details_of_alpha),
)

if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    DETAILS.write_text(render_details(), encoding="utf-8")
