"""The sections of findings.md on what is left to gain: baselines learned on the other prompts, and values of states."""

from __future__ import annotations

import math

from committed_numbers import Triple, cell, shown, table, with_interval
from findings_runs import (
    NO_RUN,
    RLOO,
    UNRESOLVED,
    Run,
    answer,
    committed,
    figure,
    first_figure,
    is_below,
    rows_of,
)

#: The run that compares most estimators.
ZOO = Run("embedded_zoo", "embedded, 240 × 8")
#: Runs with values of states.
WITH_VALUES = (ZOO, Run("qwen_values", "Qwen-0.5B on MAWPS"))
#: Tokens of the completions behind the Monte-Carlo values of ``ZOO``, over those of the completions compared: four
#: completions of every second sentence, and of every prompt, each expected to be as long as what followed.
TOKENS_OF_VALUES = 5.6
LEARNED = "tables/optimal_baselines"
#: A gain that the page calls little.
SMALL = 0.1


def section_left() -> str:
    """State how much a baseline without values of states could still gain."""
    rows, least = [], {}
    for run in committed():
        frame = table(run.folder, LEARNED)
        if frame is None:
            continue
        learned = frame[frame["kind"] == "learned"]
        best = learned.loc[learned["ratio_to_learned"].idxmin()]
        base = frame[frame["estimator"] == RLOO].iloc[0]
        noise = inverse(with_ends(base, "ratio_to_learned", "_simultaneous"))
        least[run.name] = noise
        oracle = with_interval(base, "matched_ratio")
        rows.append(
            (
                run.name,
                f"{best['estimator'].removeprefix('learned ')}",
                shown(noise),
                UNRESOLVED if oracle is None else shown(inverse(oracle)),
                at_most(noise),
            )
        )
    if not rows:
        return NO_RUN
    gains = [f"{shown(noise)} in {name}" for name, noise in least.items() if is_below(noise)]
    most = max(1.0 - noise[1] for noise in least.values())
    bounds = ", ".join(f"{at_most(noise)} in {name}" for name, noise in least.items())
    return answer(
        f"**{'Little' if most < SMALL else 'Something'}, without values of states: at most {bounds}.** This is by the "
        "best of three baselines learned for each prompt on the other prompts: the exponent of length weights, a shift "
        "of the group's mean, and a shifted mixture of means of group and batch. Resolved: "
        f"{'; '.join(gains) or 'nothing'}.",
        rows_of(("run", "best learned", "noise", "norm weights (oracle)", "left to gain, at most"), rows),
        "Intervals hold for all baselines of a run at once; baselines of other forms are not bounded. Repeat: "
        "`gradstats ask RUN optimal_baselines`.",
        first_figure("optimal_baselines", "Published baselines against learned ones"),
    )


def at_most(noise: Triple) -> str:
    """Write the largest gain that the interval of a relative noise allows."""
    return f"{100 * max(1.0 - noise[1], 0.0):.1f} %"


def with_ends(row, column: str, which: str) -> Triple:
    """Return a value of a row with the ends of one of its intervals."""
    return row[column], row[f"{column}{which}_low"], row[f"{column}{which}_high"]


def inverse(ratio: Triple) -> Triple:
    """Return the inverse of a ratio with its interval."""
    value, low, high = ratio
    return 1.0 / value, 1.0 / high, 1.0 / low if low > 0 else math.inf


def section_values() -> str:
    """State whether values of states do better than RLOO, with what they cost."""
    labels = ("gae", "recipe:ppo", "vine(k=4)")
    runs = [run for run in WITH_VALUES if table(run.folder, "variance") is not None]
    noise = {run.name: [cell(run.folder, "variance", label, "matched_ratio") for label in labels] for run in runs}
    if not runs:
        return NO_RUN
    heads = [(name, found[0]) for name, found in noise.items()]
    vine = noise.get(ZOO.name, [None] * 3)[2]
    cost = (
        ""
        if vine is None
        else f" Monte-Carlo values have {shown(vine)}, but take {TOKENS_OF_VALUES:g} times the tokens of the "
        f"completions: at equal tokens {vine[0] * (1 + TOKENS_OF_VALUES):.1f} times the noise of RLOO."
    )
    found = "; ".join(f"{shown(value, UNRESOLVED)} in {name}" for name, value in heads)
    return answer(
        f"**A value head fitted to other prompts: {found}.**{cost}",
        rows_of(
            ("noise, over RLOO", "fitted head (GAE, λ = 1)", "PPO", "Monte-Carlo values (VinePPO)"),
            [(name, *(shown(value, "—") for value in values)) for name, values in noise.items()],
        ),
        "The head is linear in the last hidden states, and costs one forward pass. Repeat: `gradstats run "
        "qwen_values`, `gradstats run embedded_zoo`.",
        figure("qwen_values", "variance", "Noise with a value head (Qwen-0.5B on MAWPS)")
        or figure("embedded_zoo", "variance", "Noise of each estimator (embedded, 240 × 8)"),
    )
