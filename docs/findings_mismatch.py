"""What findings.md says of a mismatch between the sampler and the scored policy: its corrections, noise and bias."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd
from committed_numbers import Triple, for_all_rows, numbers, shown, table, upper_bound, with_interval
from findings_runs import NO_RUN, RLOO, UNRESOLVED, answer, figure, is_below, rows_of, simultaneous, widened

from gradstats.estimators.display_names import in_words
from gradstats.stats.variance.quantities import FEW_PROMPTS as ENOUGH_PROMPTS


class Mismatch(NamedTuple):
    """One way in which the sampler differed from the scored policy."""

    name: str
    rows: pd.DataFrame  # of the estimators, by label
    effective: float  # share of the completions, by the ratios
    largest: float  # ratio of a token

    @property
    def carried(self) -> bool:
        """Whether more than a single prompt carries the variance of what is compared with."""
        return bool(self.rows.loc[REFERENCE, "n_effective_prompts"] > 2.0)


SWEEP = "embedded_mismatch"
#: The mildest, which has a sentence in place of a column.
INT8 = "INT8 weights"
#: The cells of the sweep, and how the page names the difference.
MISMATCHES = {
    "dtype=bfloat16": "bfloat16",
    "name=models_embedded-int8": INT8,
    "name=models_embedded-fp8": "FP8 weights",
    "name=models_embedded-int4": "INT4 weights",
    "revision=step-5492": "8 steps earlier",
}
#: Mismatches of a larger model, each with what differed.
LARGER = {"qwen_mismatch": "FP8 weights", "qwen_stale": "4 steps of AdamW at a rate of 1e-6"}
CORRECTIONS = (
    RLOO,
    *(f"recipe:{name}" for name in ("tis", "icepop", "mis", "sequence_tis", "geo_rs", "worst_token_rs")),
)
#: RLOO with the ratio of whole completions.
REFERENCE = "recipe:rloo_is"
#: A ratio is named where the ends of its interval are less than this factor apart.
WIDEST = 10.0
#: At which TIS truncates the ratio of a token.
BOUND = 2.0
#: As TIS, but for the third digit, and as no correction.
LIKE_OTHERS = ("recipe:icepop", "recipe:mis", "recipe:worst_token_rs")


def mismatches() -> list[Mismatch]:
    """Return the committed ones."""
    frame, manifest = table(SWEEP, "sweep"), numbers(SWEEP, "manifest")
    if frame is None or manifest is None:
        return []
    found = []
    for cell, name in MISMATCHES.items():
        rows, about = frame[frame["cell"] == cell], manifest["cells"].get(cell)
        if about is None or rows.empty:
            continue
        largest = max(one["token_ratio"] for one in about["sampler_gap"]["quantiles"])
        found.append(Mismatch(name, rows.set_index("estimator"), effective_share(about), largest))
    return found


def effective_share(manifest: Mapping[str, Any]) -> float:
    """Return the effective completions of a run, by the ratios, as a share of all."""
    gap = {one["quantity"]: one["estimate"] for one in manifest["sampler_gap"]["quantities"]}
    return gap["effective_sample_size"] / manifest["n_sequences"]


def on_a_larger_model() -> str:
    """State what mismatches are on a larger model, and what corrections do to the variance without one."""
    said = []
    for run, cause in LARGER.items():
        frame, manifest = table(run, "variance"), numbers(run, "manifest")
        if frame is None or manifest is None:
            continue
        rows = frame.set_index("estimator")
        carried, of_all = rows.loc[[REFERENCE, RLOO], "n_effective_prompts"]
        compared = {label: in_words(label) for label in CORRECTIONS if label != RLOO}
        over, wide = [], []
        if carried < of_all / 2:
            over.append(f"the plain ratio not compared ({carried:.0f} effective prompts)")
        else:
            compared[REFERENCE] = "the plain ratio"
        for label in (label for label in compared if label in rows.index):
            ratio = with_interval(rows.loc[label], "ratio")
            narrow = ratio is not None and ratio[2] < WIDEST * ratio[1]
            (over if narrow else wide).append(f"{compared[label]} {shown(ratio)}" if narrow else compared[label])
        over += [f"{' and '.join(wide)} too wide to state"] if wide else []
        said.append(
            f"{cause} ({of_all:.0f} effective prompts, {effective_share(manifest):.0%} of completions effective): "
            f"{', '.join(over)} (`gradstats run {run}`)"
        )
    if not said:
        return "Larger models are not measured."
    return f"In Qwen-0.5B on MAWPS, raw variance over no correction: {'; '.join(said)}."


def section_mismatch() -> str:
    """State what corrections of the mismatch of sampler and scored policy do to noise and bias."""
    if not (settings := mismatches()):
        return NO_RUN
    names = {label: "no correction" if label == RLOO else in_words(label) for label in CORRECTIONS}

    def of(label: str, quantity: str, read: Callable[..., Triple | None] = with_interval) -> list[Triple | None]:
        known = [label in one.rows.index and one.carried for one in settings]
        return [read(one.rows.loc[label], quantity) if has else None for one, has in zip(settings, known, strict=True)]

    noise = {label: of(label, "matched_ratio") for label in CORRECTIONS}
    biases = {label: of(label, "matched_bias_share") for label in CORRECTIONS}
    lower, higher = (
        [
            f"{names[label]} ({', '.join(where)})"
            for label in CORRECTIONS
            if label not in LIKE_OTHERS
            and (values := of(label, "matched_ratio", for_all_rows))
            and (where := [one.name for one, value in zip(settings, values, strict=True) if holds(value)])
        ]
        for holds in (is_below, lambda value: value is not None and value[1] > 1.0)
    )
    # Of all corrections and mismatches at once, since any of them may be named.
    factor = simultaneous(sum(one is not None for values in biases.values() for one in values) or 1)
    pays = any(not one.startswith(names[RLOO]) for one in lower)
    biased = [
        names[label]
        for label, values in biases.items()
        if any(one is not None and min(one[1], widened(one, factor)[1]) > 0.0 for one in values)
    ]
    bounds = {
        label: max((one[2] for one in values if one is not None), default=0.0) for label, values in biases.items()
    }
    worst = max(bounds, key=lambda label: bounds[label])
    said = f"{'; '.join(lower)} below" if lower else "nothing is below"
    said += f" that ratio, which is unbiased; {'; '.join(higher) or 'nothing'} above"
    said += (
        f"; biased: {', '.join(biased)}."
        if biased
        else f"; no bias is resolved ({upper_bound(bounds[RLOO])} of the squared error without a correction"
        f"{f', {upper_bound(bounds[worst])} with {names[worst]}' if worst != RLOO else ''})."
    )
    known = [
        (tis, none, one.name)
        for tis, none, one in zip(
            of("recipe:tis", "matched_ratio", for_all_rows),
            of(RLOO, "matched_ratio", for_all_rows),
            settings,
            strict=True,
        )
        if tis is not None
    ]
    farthest = ""
    if known:
        tis, none, name = max(known, key=lambda one: abs(one[0][0] - 1.0))
        farthest = (
            f": over that of the ratio of whole completions, the noise is {shown(tis)} with TIS and "
            f"{shown(none, UNRESOLVED)} without a correction ({name})"
        )
    beyond = [one.name for one in settings if one.largest >= BOUND]
    few = [
        f"{row['n_effective_prompts']:.0f} effective prompts carry {names[label].lower()} ({one.name})"
        for one in settings
        for label, row in one.rows.iterrows()
        if label in names and label not in LIKE_OTHERS and one.carried and row["n_effective_prompts"] < ENOUGH_PROMPTS
    ]
    few += [f"one prompt carries the ratio of completions ({one.name})" for one in settings if not one.carried]
    columns = [at for at, one in enumerate(settings) if one.name != INT8]
    mild = [
        abs(values[at][0] - 1.0)
        for label, values in noise.items()
        for at in range(len(settings))
        if label not in LIKE_OTHERS and at not in columns and values[at] is not None
    ]
    return answer(
        f"**{'In part' if pays else 'Not measurably'}{farthest}.** By intervals for all rows of a mismatch, {said}",
        rows_of(
            ("noise, over RLOO with the ratio", *(settings[at].name for at in columns)),
            [
                ("effective completions", *(f"{settings[at].effective:.0%}" for at in columns)),
                *(
                    (names[label], *(shown(values[at], UNRESOLVED) for at in columns))
                    for label, values in noise.items()
                    if label not in LIKE_OTHERS
                ),
            ],
        ),
        (f"With {INT8} estimates lie within {math.ceil(round(1e3 * max(mild), 6)) / 1e3:g} of 1. " if mild else "")
        + f"The table's intervals hold for one row. TIS truncates ratios of tokens at {BOUND:g}, which these reach in "
        f"{' and '.join(beyond) + ' only' if beyond else 'none'}. "
        + (f"{'; '.join(few)}. " if few else "")
        + f"Repeat: `gradstats run {SWEEP}`.",
        on_a_larger_model(),
        figure(SWEEP, "cell", "Noise of each correction (embedded)"),
    )
