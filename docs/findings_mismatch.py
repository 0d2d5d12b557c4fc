"""What findings.md says of a mismatch between the sampler and the scored policy: its corrections, noise and bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd
from committed_numbers import Triple, numbers, shown, table, with_interval
from findings_runs import NO_RUN, RLOO, UNRESOLVED, answer, figure, is_below, rows_of

from gradstats.estimators.display_names import in_words
from gradstats.stats.variance.estimates import FEW_PROMPTS as ENOUGH_PROMPTS


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
#: The cells of the sweep, and how the page names the difference.
MISMATCHES = {
    "dtype=bfloat16": "bfloat16",
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
        few = carried < of_all / 2
        compared = {label: in_words(label) for label in CORRECTIONS if label != RLOO}
        compared |= {} if few else {REFERENCE: "the plain ratio"}
        over = [
            f"{shown(with_interval(rows.loc[label], 'ratio'))} with {name}"
            for label, name in compared.items()
            if label in rows.index
        ]
        size = f"{manifest['n_prompts']} × {manifest['n_sequences'] // manifest['n_prompts']}"
        said.append(
            f"{cause} ({size}) leave {effective_share(manifest):.0%} of the completions effective"
            + (f", and {carried:.0f} effective prompts carry the plain ratio, which is not compared" if few else "")
            + f"; over no correction the raw variance is {', '.join(over)} (`gradstats run {run}`)."
        )
    return f"In Qwen-0.5B on MAWPS, {' '.join(said)}" if said else "Larger models are not measured."


def section_mismatch() -> str:
    """State what corrections of the mismatch of sampler and scored policy do to noise and bias."""
    if not (settings := mismatches()):
        return NO_RUN
    names = {label: "no correction" if label == RLOO else in_words(label) for label in CORRECTIONS}

    def of(label: str, quantity: str) -> list[Triple | None]:
        known = [label in one.rows.index and one.carried for one in settings]
        return [
            with_interval(one.rows.loc[label], quantity) if has else None
            for one, has in zip(settings, known, strict=True)
        ]

    noise = {label: of(label, "matched_ratio") for label in CORRECTIONS}
    biases = {label: of(label, "matched_bias_share") for label in CORRECTIONS}
    lower, higher = (
        [
            f"{names[label]} ({', '.join(where)})"
            for label, values in noise.items()
            if label not in LIKE_OTHERS
            and (where := [one.name for one, value in zip(settings, values, strict=True) if holds(value)])
        ]
        for holds in (is_below, lambda value: value is not None and value[1] > 1.0)
    )
    biased = [names[label] for label, values in biases.items() if any(one is not None and one[1] > 0 for one in values)]
    said = f"{'; '.join(lower)} below" if lower else "nothing is below"
    said += f" the plain ratio of whole completions, which is unbiased; {'; '.join(higher) or 'nothing'} above"
    said += f"; biased: {', '.join(biased)}." if biased else "; no bias is resolved."
    known = [value for value in noise["recipe:tis"] if value is not None]
    ends = " to ".join(shown(extreme(known, key=lambda value: value[0])) for extreme in (min, max)) if known else ""
    unbound = [one.name for one in settings if one.largest < BOUND]
    few = [
        f"{row['n_effective_prompts']:.0f} effective prompts carry {names[label].lower()} ({one.name})"
        for one in settings
        for label, row in one.rows.iterrows()
        if label in names and label not in LIKE_OTHERS and one.carried and row["n_effective_prompts"] < ENOUGH_PROMPTS
    ]
    few += [f"one prompt carries the ratio of completions ({one.name})" for one in settings if not one.carried]
    return answer(
        f"**{'In part' if lower else 'Not measurably'}: TIS has a noise of {ends or UNRESOLVED}.** "
        f"By intervals, {said}",
        rows_of(
            ("noise, over RLOO with the ratio", *(one.name for one in settings)),
            [
                ("effective completions", *(f"{one.effective:.0%}" for one in settings)),
                *(
                    (names[label], *(shown(value, UNRESOLVED) for value in values))
                    for label, values in noise.items()
                    if label not in LIKE_OTHERS
                ),
            ],
        ),
        (f"No ratio of a token reaches TIS's bound of {BOUND:g} in {', '.join(unbound)}. " if unbound else "")
        + (f"{'; '.join(few)}. " if few else "")
        + f"Repeat: `gradstats run {SWEEP}`.",
        on_a_larger_model(),
        figure(SWEEP, "cell", "Noise of each correction (embedded)"),
    )
