"""What findings.md and its details say of α: between models, lengths, prompts, blocks, temperatures and samplers."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import pandas as pd
from committed_numbers import (
    Triple,
    excludes,
    for_all_rows,
    lower_bound,
    numbers,
    published_exponent,
    shown,
    side,
    table,
    with_interval,
)
from findings_runs import (
    NO_RUN,
    RLOO,
    RUNS,
    UNRESOLVED,
    answer,
    apart,
    committed,
    figure,
    one_of,
    rows_of,
    simultaneous,
    widened,
)

from gradstats import data
from gradstats.stats import alpha_difference

TEMPERATURES = (
    ("embedded_temperature", "drawn and scored at"),
    ("embedded_temperature_scored_at_1", "scored at 1, drawn at"),
)
SAMPLER = "qwen_sampler"
LONG_TRACES = "alpha_over_lengths"
#: Two models on the same problems.
SAME_PROBLEMS = ("Qwen-0.5B on GSM8K", "Qwen-1.5B on GSM8K")
PUBLISHED = "published points"
CLAIMED = 0.8
#: Cell of that sweep → its letter in the table, and what it is.
ARMS = {
    "sampling.temperature=0.6,top_p=0.95,policy.temperature=1.0": ("A", "drawn at 0.6 and top-p 0.95, scored at 1"),
    "sampling.temperature=1.0,top_p=1.0,policy.temperature=1.0": ("B", "drawn and scored at 1"),
    "sampling.temperature=0.6,top_p=1.0,policy.temperature=0.6": ("C", "drawn and scored at 0.6"),
}
METRIC = "measurement.metric"
EUCLIDEAN, ADAM = "euclidean", "adam(eps=1e-5)"
METRICS = {EUCLIDEAN: "Euclidean", ADAM: "Adam, ε = 1e-5", "adam": "Adam, ε = 1e-8"}
QWEN_ADAM = "qwen_adam"
#: What `gradstats run` measures in Adam's metric, a run or a sweep.
IN_METRICS = {QWEN_ADAM: "Qwen-0.5B on MAWPS", "embedded_metric": "embedded"}
#: Of a run the one of the same completions in the Euclidean metric; a sweep has both.
EUCLIDEAN_RUNS = {QWEN_ADAM: "qwen_mawps"}
VARIED = "varied_metric"
QUANTITIES_OF_ARMS = {"alpha": "α", "mean_length": "mean tokens"}


def exponents() -> dict[str, Triple]:
    """Return α of each committed run."""
    found = {run.name: with_interval(numbers(run.folder, "alpha") or {}, "alpha") for run in committed()}
    return {name: alpha for name, alpha in found.items() if alpha is not None}


def section_alpha() -> str:
    """State whether α is one number."""
    alphas = exponents()
    if not alphas:
        return NO_RUN
    low, high = min(alphas, key=lambda name: alphas[name][0]), max(alphas, key=lambda name: alphas[name][0])
    excluded = [name for name, alpha in alphas.items() if excludes(alpha, CLAIMED)]
    rows, differences = [], {}
    for run in committed():
        found = numbers(run.folder, "alpha") or {}
        within = with_interval(found.get("within_prompt") or {}, "alpha")
        rows.append((run.name, shown(alphas[run.name]), shown(within, "—")))
        if (difference := with_interval(found.get("within_between") or {}, "difference")) is not None:
            differences[run.name] = difference
    differing = []
    for name, difference in differences.items():
        if excludes(difference := widened(difference, simultaneous(len(differences))), 0.0):
            larger = "between" if difference[0] > 0.0 else "within"
            differing.append(f"larger {larger} prompts in {name} (by {shown(difference)})")
    blocks = differing_blocks()
    first = committed()[0]
    unresolved = (
        "" if any(first.name in said for said in blocks) else f"Between blocks of {first.name} none is resolved. "
    )
    return answer(
        (f"**No: {blocks[0]}.** {unresolved}" if blocks else "**Not refuted.** ")
        + f"Runs have {alphas[low][0]:.2f} ({low}) to {alphas[high][0]:.2f} ({high}); {CLAIMED:g} lies outside the "
        f"interval in {one_of(excluded, len(alphas)) or 'no run'}. "
        + (f"It is {' and '.join(differing)}." if differing else ""),
        rows_of(("run", "α", "α within prompts"), rows),
        f"Repeat: `gradstats alpha RUN`. {lengths_sentence()}",
        figure(first.folder, "length_scaling", f"Squared norm of the score against length ({first.name})"),
    )


def lengths_sentence() -> str:
    """State α along traces that are longer than those of the runs."""
    if (frame := table(LONG_TRACES, "fits")) is None:
        return "A power law was fitted everywhere; it says nothing of other lengths."
    alphas = frame.set_index("fit")
    within = shown(with_interval(alphas.loc["within traces"], "alpha"))
    parts = alphas.loc[alphas.index.str.startswith("from "), "alpha"]
    points = table(LONG_TRACES, "along_traces")
    assert points is not None
    reached = points.groupby("prompt_id")["length"].max()
    longest = (reached == reached.max()).sum()
    return (
        f"[Along {len(reached)} long traces](../figures/{LONG_TRACES}/along_traces.png) of Qwen-0.5B, {longest} of "
        f"them of {reached.max():,} tokens, it is {within}, in segments {parts.min():.2f} to {parts.max():.2f}."
    )


class InMetric(NamedTuple):
    """What a run gives in one metric."""

    run: str
    size: str  # prompts × completions
    alpha: Triple
    layers: pd.DataFrame  # α of each layer and its share of the squared norms, by block
    noise: dict[str, Triple | None]  # relative, of each estimator
    critical: str  # batch, or its lower end

    @property
    def name(self) -> str:
        """The run and its size."""
        return f"{self.run}, {self.size}"


def by_metric(name: str) -> dict[str, InMetric]:
    """Return what a sweep over metrics, or two runs, give in each; nothing where it is not committed."""
    if name in EUCLIDEAN_RUNS:
        pairs = [of_run(run, metric) for run, metric in ((EUCLIDEAN_RUNS[name], EUCLIDEAN), (name, ADAM))]
        if None in pairs or table(VARIED, "differences") is None:
            return {}
        frame, blocks = (pd.concat(tables) for tables in zip(*filter(None, pairs), strict=True))
    else:
        frame, blocks = table(name, "sweep"), table(name, "blocks")
        if frame is None or blocks is None:
            return {}
    found = {}
    for metric in (one for one in METRICS if one in set(frame[METRIC])):
        rows = frame[frame[METRIC] == metric].set_index("estimator")
        layers = blocks[(blocks[METRIC] == metric) & blocks["block"].str.startswith("layers.")].set_index("block")
        alpha = with_interval(rows.loc[RLOO], "alpha")
        assert alpha is not None
        # Where a single prompt carries the variance, no comparison says anything.
        known = rows.loc[RLOO, "n_effective_prompts"] > 2.0
        noise = {str(label): with_interval(row, "matched_ratio") if known else None for label, row in rows.iterrows()}
        size = f"{rows.loc[RLOO, 'n_prompts']} × {rows.loc[RLOO, 'n_completions'] // rows.loc[RLOO, 'n_prompts']}"
        low = lower_bound(rows.loc[RLOO, "noise_to_signal_low"])
        critical = shown(with_interval(rows.loc[RLOO], "noise_to_signal"), low) if known else UNRESOLVED
        found[metric] = InMetric(IN_METRICS[name], size, alpha, layers, noise, critical)
    return found


def of_run(run: str, metric: str) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return the estimators and the blocks of a run, as a sweep over metrics has them; None where there is none."""
    rows, blocks = table(run, "variance"), table(run, "alpha_by_block")
    alpha, manifest = numbers(run, "alpha"), numbers(run, "manifest")
    if rows is None or blocks is None or alpha is None or manifest is None:
        return None
    known = {name: alpha[name] for name in ("alpha", "alpha_low", "alpha_high")}
    known |= {"n_prompts": manifest["n_prompts"], "n_completions": manifest["n_sequences"]}
    return rows.assign(**known, **{METRIC: metric}), blocks.assign(**{METRIC: metric})


def difference_of_metrics(name: str, found: dict[str, InMetric]) -> Triple:
    """Return α in Adam's metric minus that in the Euclidean: of the same parameters, paired, where a table has it."""
    if name in EUCLIDEAN_RUNS:
        difference = with_interval(differences_by_block().loc["total"], "difference")
        assert difference is not None
        return difference
    return apart(found[ADAM].alpha, found[EUCLIDEAN].alpha)


def differences_by_block() -> pd.DataFrame:
    """Return α in Adam's metric minus that in the Euclidean of the blocks of Qwen-0.5B, in pairs."""
    frame = table(VARIED, "differences")
    assert frame is not None
    return frame.set_index("block")


def differing_layers(name: str, found: dict[str, InMetric]) -> list[str]:
    """Return the layers whose α differs: by intervals for all layers of the difference, or of both α's."""
    if name in EUCLIDEAN_RUNS:
        frame = differences_by_block()
        rows = [(block, for_all_rows(row, "difference")) for block, row in frame.iterrows()]
        return [str(block) for block, wide in rows if str(block).startswith("layers.") and excludes(wide, 0.0)]
    euclidean, adam = found[EUCLIDEAN].layers, found[ADAM].layers
    clear = []
    for block in euclidean.index.intersection(adam.index):
        one, other = (with_interval(layers.loc[block], "alpha") for layers in (adam, euclidean))
        assert one is not None
        assert other is not None
        if excludes(widened(apart(one, other), simultaneous(len(euclidean))), 0.0):
            clear.append(block)
    return clear


def turned(found: dict[str, InMetric]) -> list[str]:
    """Return the estimators on one side of RLOO in the Euclidean metric and on the other in Adam's."""
    plain, adam = found[EUCLIDEAN].noise, found[ADAM].noise
    return [label for label in plain if label in adam and side(plain[label]) * side(adam[label]) < 0]


def section_metric() -> str:
    """State what Adam's metric changes: α, the share of the layers, and the noise of baselines."""
    measured = {name: found for name in IN_METRICS if (found := by_metric(name))}
    if not measured:
        return NO_RUN
    rows, differing, alike, layers, turning = [], [], [], [], []
    for name, found in measured.items():
        euclidean, adam = found[EUCLIDEAN], found[ADAM]
        if excludes(difference := difference_of_metrics(name, found), 0.0):
            of = f"layers of {euclidean.run}" if name in EUCLIDEAN_RUNS else euclidean.run
            differing.append(f"{shown(difference)} in {of}")
        else:
            alike.append(euclidean.run)
        if clear := differing_layers(name, found):
            layers.append(f"{len(clear)} of {len(adam.layers)} layers of {euclidean.run}")
            if name in EUCLIDEAN_RUNS:
                within = with_interval(differences_by_block().loc["total, within prompts"], "difference")
                layers[-1] += f" (together, within prompts, by {shown(within)})" if excludes(within, 0.0) else ""
        turning += [f"{label} ({euclidean.run})" for label in turned(found)]
        for metric, one in found.items():
            alphas = one.layers["alpha"]
            rows.append(
                (
                    one.run,
                    METRICS[metric],
                    shown(one.alpha),
                    f"{alphas.median():.2f} ({alphas.min():.2f}–{alphas.max():.2f})",
                    f"{one.layers['share_of_sq_norm'].sum():.0%}",
                    one.critical,
                )
            )
    sizes = dict.fromkeys(one.size for found in measured.values() for one in found.values())
    drawn = next((name for name in measured if name not in EUCLIDEAN_RUNS), "")
    said = f"Yes: α in Adam's minus α in the Euclidean is {', '.join(differing)}" if differing else "Not measurably"
    said += f"; not resolved in {'; '.join(alike)}" if differing and alike else ""
    return answer(
        f"**{said}.** Adam divides coordinates by √v̂ + ε, here ε = 1e-5, which changes the weight of the blocks; "
        + (f"α differs in {', '.join(layers)}. " if layers else "α of no layer is shown to differ. ")
        + (f"The ranking turns for {', '.join(turning)}." if turning else "No estimator is shown to cross RLOO."),
        rows_of(("run", "metric", "α", "α of layers, median (range)", "‖S‖² in layers", "critical batch"), rows),
        f"Completions: {' or '.join(sizes)}. In embedded v̂ is that of its training; at ε = 1e-8 tokens that it "
        f"hardly saw hold all ‖S‖².{moments_sentence()} Repeat: "
        f"{', '.join(f'`gradstats run {name}`' for name in measured)}.",
        figure(drawn, "alpha_by_block", f"α of each block of parameters in each metric ({IN_METRICS.get(drawn)})"),
    )


def moments_sentence() -> str:
    """State what the second moments of Qwen-0.5B are, and what another ε and other moments change."""
    manifest = numbers(QWEN_ADAM, "manifest")
    if manifest is None:
        return ""
    said = f" In Qwen-0.5B, of which layers alone are measured, it is {manifest['metric']['source']}, none measured"
    points, moments, about = table(VARIED, "points"), table(VARIED, "moments"), numbers(VARIED, "manifest")
    if points is None or moments is None or about is None:
        return f"{said}."
    changes = []
    for name, which in (
        ("other metric", f"ε = {about['metrics']['other metric']['eps']:g}".replace("e-0", "e-")),
        ("other second moments", f"v̂ of {about['metrics']['other second moments']['source']}"),
    ):
        moved = alpha_difference(*(points[points["metric"] == one] for one in (name, "of the run")))
        triple = (moved.difference, *moved.confidence_interval())
        changes.append(f"by {shown(triple)} with {which}{'' if excludes(triple, 0.0) else ' (not resolved)'}")
    above = 1.0 - moments.set_index("part")["below_1e-05"]
    return (
        f"{said}: √v̂ exceeds 1e-5 in {above['layers']:.1%} of coordinates of layers, {above['lm_head.weight']:.0%} of "
        f"the head. In {points['prompt_id'].nunique()} prompts, paired, α changes {', '.join(changes)}."
    )


def differing_blocks() -> list[str]:
    """Return the runs in which the block of largest α lies above that of least α, by simultaneous intervals."""
    clear = []
    for run in committed():
        if (blocks := table(run.folder, "alpha_by_block")) is None:
            continue
        blocks = blocks[blocks["share_of_sq_norm"] >= 1e-3]
        # Bonferroni over the blocks, since the two ends were chosen among all of them.
        wider = simultaneous(len(blocks))
        low, high = blocks.loc[blocks["alpha"].idxmin()], blocks.loc[blocks["alpha"].idxmax()]
        gap = high["alpha"] - low["alpha"]
        if gap > wider * (high["alpha"] - high["alpha_low"] + low["alpha_high"] - low["alpha"]):
            ends = (f"{shown(with_interval(row, 'alpha'))} in `{row['block']}`" for row in (low, high))
            clear.append(f"in {run.name} it is {' and '.join(ends)}")
    return clear


def largest_difference(sweep: str) -> tuple[tuple[float, float, Triple | None, int], dict[float, float]]:
    """Return the two temperatures between which α differs most, by how much, of how many pairs; and α of each."""
    cells, frame = table(sweep, "sweep"), table(sweep, "cell_differences")
    if cells is None or frame is None:
        return (0.0, 0.0, None, 0), {}
    rows = cells[cells["estimator"] == RLOO]
    temperatures = dict(zip(rows["cell"], rows["sampling.temperature"], strict=True))
    alphas = dict(zip(rows["sampling.temperature"], rows["alpha"], strict=True))
    frame = frame[frame["quantity"] == "alpha"]
    row = frame.loc[frame["difference"].abs().idxmax()]
    return (temperatures[row["cell"]], temperatures[row["minus"]], with_interval(row, "difference"), len(frame)), alphas


def details_of_alpha() -> str:
    """State the differences of α that the runs do not resolve, and those that qualify the ones they do."""
    return answer(
        *differences_of_models(),
        curvature_sentence(),
        uncut_sentence(),
        temperatures_sentence(),
        *sampler_parts(),
    )


def differences_of_models() -> tuple[str, ...]:
    """Compare α between models, each by its run with the narrowest interval, and with the published points."""
    pooled = exponents()
    chosen: dict[str, str] = {}
    for run in committed():
        manifest = numbers(run.folder, "manifest")
        assert manifest is not None
        policy = manifest["policy"]["name"]
        kept = chosen.setdefault(policy, run.name)
        if width(pooled[run.name]) < width(pooled[kept]):
            chosen[policy] = run.name
    alphas = {name: pooled[name] for name in chosen.values()} | {PUBLISHED: published_exponent()}
    differences = {pair: apart(alphas[pair[0]], alphas[pair[1]]) for pair in combinations(alphas, 2)}
    resolved = [difference for difference in differences.values() if excludes(difference, 0.0)]
    same = alpha_difference(*(points_of(run) for run in SAME_PROBLEMS))
    lengths = data.load("gloeckle2026")["length"]
    return (
        "Between models, each by its run with the narrowest interval: "
        + (f"α differs in {len(resolved)} of {len(differences)} pairs." if resolved else "no difference is resolved.")
        + f" The {PUBLISHED} of R1-Distill-Qwen-1.5B give {shown(alphas[PUBLISHED])}, of {lengths.min():.0f} to "
        f"{lengths.max():.0f} tokens: "
        "longer than these runs'.",
        rows_of(
            ("difference of α", "estimate"),
            [
                (f"{' − '.join(SAME_PROBLEMS)}, paired", shown((same.difference, *same.confidence_interval()))),
                *(
                    (f"{one} − {other}", shown(difference))
                    for (one, other), difference in differences.items()
                    if other == PUBLISHED or excludes(difference, 0.0)
                ),
            ],
        ),
    )


def width(interval: Triple) -> float:
    """Return the width of an interval."""
    return interval[2] - interval[1]


def points_of(name: str) -> pd.DataFrame:
    """Return the completions of a run by the name that the page gives it."""
    (folder,) = (run.folder for run in RUNS if run.name == name)
    points = table(folder, "length_scaling")
    assert points is not None
    return points


def curvature_sentence() -> str:
    """State in which runs the slope of the line changes with length."""
    curved = {
        run.name: with_interval((numbers(run.folder, "alpha") or {}).get("curvature") or {}, "curvature")
        for run in committed()
    }
    bent = [f"{name} ({shown(curve)})" for name, curve in curved.items() if excludes(curve, 0.0)]
    if not bent:
        return "No change of the slope with length is resolved."
    return f"The line in log T is curved in {' and '.join(bent)}: α changes by this for each unit of log T."


def uncut_sentence() -> str:
    """State α without the completions that were cut off, where they are more than a twentieth."""
    said = []
    for run in committed():
        found = numbers(run.folder, "alpha") or {}
        uncut = with_interval(found.get("without_truncated") or {}, "alpha")
        if uncut is not None and found["n_truncated"] > 0.05 * found["n"]:
            said.append(f"{run.name} {shown(uncut)}")
    return f"α without completions that were cut off: {'; '.join(said)}." if said else ""


def temperatures_sentence() -> str:
    """State the largest difference of α in each sweep over temperatures, chosen among all and judged accordingly."""
    said = []
    for name, how in TEMPERATURES:
        (one, other, difference, pairs), _ = largest_difference(name)
        if difference is not None:
            verdict = f", {UNRESOLVED}"
            if excludes(difference, 0.0):
                together = excludes(widened(difference, simultaneous(pairs)), 0.0)
                verdict = "" if together else ", but not by intervals for all pairs"
            said.append(f"{how} {one:g}, against {other:g}: {shown(difference)}{verdict} (`gradstats run {name}`)")
    return f"Largest difference between temperatures of the embedded policy: {'; '.join(said)}." if said else NO_RUN


def sampler_parts() -> tuple[str, ...]:
    """Describe the arms of the sampler confound, and their differences."""
    frame, differences = table(SAMPLER, "sweep"), table(SAMPLER, "cell_differences")
    if frame is None or differences is None:
        return ()
    arms = frame[frame["estimator"] == RLOO]
    rows = [
        (": ".join(ARMS[row["cell"]]), *(shown(with_interval(row, name)) for name in QUANTITIES_OF_ARMS))
        for _, row in arms.iterrows()
    ]
    alphas: dict[str, Triple] = {}
    for (cell, minus), found in differences.groupby(["cell", "minus"], sort=False):
        values = {row["quantity"]: with_interval(row, "difference") for _, row in found.iterrows()}
        pair = f"{ARMS[cell][0]} − {ARMS[minus][0]}"
        rows.append((pair, *(shown(values.get(name), "—") for name in QUANTITIES_OF_ARMS)))
        if (alpha := values.get("alpha")) is not None:
            alphas[pair] = alpha
    clear = [pair for pair, alpha in alphas.items() if excludes(alpha, 0.0)]
    together = [pair for pair in clear if excludes(widened(alphas[pair], simultaneous(len(alphas))), 0.0)]
    verdict = f"α differs in {'; '.join(clear)}" if clear else "no difference of α is resolved"
    if clear and not together:
        verdict += ", but not by intervals for all pairs at once"
    n = arms.iloc[0]
    return (
        f"The sampler as a confound, on {n['n_prompts']} × {n['n_completions'] // n['n_prompts']} completions of the "
        f"same "
        f"problems (`gradstats run {SAMPLER}`; differences are paired): {verdict}.",
        rows_of(("arm", *QUANTITIES_OF_ARMS.values()), rows),
    )
