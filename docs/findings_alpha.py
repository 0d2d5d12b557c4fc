"""The section of findings.md on α: between models, lengths, prompts, blocks, temperatures and samplers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import pandas as pd
from committed_numbers import Triple, committed_path, numbers, published_exponent, shown, table, with_interval
from findings_runs import (
    NO_RUN,
    RLOO,
    RUNS,
    UNRESOLVED,
    answer,
    apart,
    committed,
    excludes,
    figure,
    rows_of,
    simultaneous,
    where,
    widened,
)

from gradstats import data
from gradstats.report.saved_results import read_results
from gradstats.stats import alpha_difference

TEMPERATURES = (
    ("embedded_temperature", "drawn and scored at"),
    ("embedded_temperature_scored_at_1", "scored at 1, drawn at"),
)
SAMPLER = "qwen_sampler"
#: Two models on the same problems.
SAME_PROBLEMS = ("Qwen2.5-Coder-0.5B on GSM8K", "Qwen2.5-Coder-1.5B on GSM8K")
PUBLISHED = "published points of R1-Distill-Qwen-1.5B"
#: Cell of that sweep → what it is called here.
ARMS = {
    "sampling.temperature=0.6,top_p=0.95,policy.temperature=1.0": "drawn at 0.6 and top-p 0.95, scored at 1",
    "sampling.temperature=1.0,top_p=1.0,policy.temperature=1.0": "drawn and scored at 1",
    "sampling.temperature=0.6,top_p=1.0,policy.temperature=0.6": "drawn and scored at 0.6",
}
#: The arm with the settings of the first run of :data:`RUNS`.
SAME_SETTINGS = "sampling.temperature=1.0,top_p=1.0,policy.temperature=1.0"
QUANTITIES_OF_ARMS = {"alpha": "α", "mean_length": "mean tokens", "mean_reward": "mean reward"}


def section_alpha() -> str:
    """Compare α between models, blocks and temperatures, within and between prompts."""
    rows, pooled, policies, within, curved, whole = [], {}, {}, [], [], []
    for run in committed():
        found = numbers(run.folder, "alpha")
        assert found is not None
        pooled[run.name] = (found["alpha"], found["alpha_low"], found["alpha_high"])
        policies[run.name] = read_results(committed_path(run.folder, ".")).manifest["policy"]["name"]
        curved.append((run.name, with_interval(found.get("curvature") or {}, "curvature")))
        uncut = with_interval(found.get("without_truncated") or {}, "alpha")
        if uncut is not None and found["n_truncated"] > 0.05 * found["n"]:
            whole.append(f"{run.name} {shown(uncut)}, instead of {shown(pooled[run.name])}")
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
        "α of the mean ‖S‖² at each length",
        "block of least α",
        "block of largest α",
    )
    first = committed()[0]
    return answer(
        rows_of(header, rows),
        *differences_of_models(pooled, policies),
        "Within the lengths of a run, by half the change of the slope per unit of log T: " + curvature_sentence(curved),
        f"Within against between prompts: {where(within, 0.0, 'the two differ', 'no difference is resolved')}.",
        f"Between blocks of parameters that hold at least 0.1 % of the squared norm: {blocks_sentence()} Blocks share "
        "their completions and are compared as if they did not, which resolves less.",
        "Between temperatures, paired over prompts: " + temperatures_sentence(),
        f"Without the completions that were cut off, where they are more than 5 %: {'; '.join(whole)}."
        if whole
        else None,
        *sampler_parts(),
        "What this does not show: a power law was fitted everywhere, and says nothing of lengths outside the sample. "
        "Where problems, lengths or temperatures differ as well as models, so may α for either reason.",
        f"Commands: `gradstats alpha RUN`, {', '.join(f'`gradstats sweep {name}`' for name, _ in TEMPERATURES)}.",
        figure(first.folder, "length_scaling", f"Squared norm of the score against length, {first.name}"),
    )


def differences_of_models(pooled: Mapping[str, Triple], policies: Mapping[str, str]) -> tuple[str, ...]:
    """Compare α between models, each by its run with the narrowest interval, and with the published points."""
    chosen: dict[str, str] = {}
    for name, (_, low, high) in pooled.items():
        kept = chosen.setdefault(policies[name], name)
        if high - low < pooled[kept][2] - pooled[kept][1]:
            chosen[policies[name]] = name
    alphas = {name: pooled[name] for name in chosen.values()} | {PUBLISHED: published_exponent()}
    differences = {pair: apart(alphas[pair[0]], alphas[pair[1]]) for pair in combinations(alphas, 2)}
    resolved = [difference for difference in differences.values() if excludes(difference, 0.0)]
    lengths = data.load("gloeckle2026")["length"]
    same = alpha_difference(*(points_of(run) for run in SAME_PROBLEMS))
    paired = (same.difference, *same.confidence_interval())
    return (
        "Between models, each by its run with the narrowest interval, with runs on other problems taken for "
        "independent: "
        + (f"α differs in {len(resolved)} of {len(differences)} pairs." if resolved else "no difference is resolved.")
        + f" The {PUBLISHED} give {shown(alphas[PUBLISHED])}.",
        rows_of(
            ("difference of α", "estimate"),
            [
                (f"{' − '.join(SAME_PROBLEMS)}, paired over problems", shown(paired)),
                *((f"{one} − {other}", shown(difference)) for (one, other), difference in differences.items()),
            ],
        ),
        f"The published completions have {lengths.min():.0f} to {lengths.max():.0f} tokens and are longer than any "
        "here, so that their differences are between lengths as well as between models.",
    )


def points_of(name: str) -> pd.DataFrame:
    """Return the completions of a run by the name that the page gives it."""
    (folder,) = (run.folder for run in RUNS if run.name == name)
    points = table(folder, "length_scaling")
    assert points is not None
    return points


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
    ordered = large(blocks).sort_values("alpha")
    ends = (ordered.iloc[0], ordered.iloc[-1])
    first, last = (f"`{row['block']}` {shown(with_interval(row, 'alpha'))}" for row in ends)
    return first, last


def large(blocks: pd.DataFrame) -> pd.DataFrame:
    """Return the blocks that hold at least a thousandth of the squared norm."""
    return blocks[blocks["share_of_sq_norm"] >= 1e-3]


def blocks_sentence() -> str:
    """State in which runs the block of largest α lies above that of least α, by simultaneous intervals."""
    clear, known = [], []
    for run in committed():
        blocks = table(run.folder, "alpha_by_block")
        if blocks is None:
            continue
        blocks = large(blocks)
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
    """State the two temperatures of each sweep between which α differs most, paired over prompts."""
    said = []
    for name, how in TEMPERATURES:
        sweep, frame = table(name, "sweep"), table(name, "cell_differences")
        if sweep is None or frame is None:
            continue
        rows = sweep[sweep["estimator"] == RLOO]
        alphas = {row["cell"]: with_interval(row, "alpha") for _, row in rows.iterrows()}
        temperatures = dict(zip(rows["cell"], rows["sampling.temperature"], strict=True))
        frame = frame[frame["quantity"] == "alpha"]
        row = frame.loc[frame["difference"].abs().idxmax()]
        far = with_interval(row, "difference")
        assert far is not None
        resolved = excludes(far, 0.0), excludes(widened(far, simultaneous(len(frame))), 0.0)
        verdict = UNRESOLVED if not resolved[0] else "by single intervals, not by those for all pairs at once"
        verdict = "also by intervals for all pairs at once" if resolved[1] else verdict
        one, other = row["cell"], row["minus"]
        said.append(
            f"embedded policy {how} {temperatures[other]:g} and {temperatures[one]:g}, the largest of {len(frame)} "
            f"differences: {shown(alphas[other])} and {shown(alphas[one])}, difference {shown(far)} ({verdict})"
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
