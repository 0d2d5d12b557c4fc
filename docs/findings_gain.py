"""The sections of findings.md on what is left to gain: baselines learned on the other prompts, and values of states."""

from __future__ import annotations

import math

from committed_numbers import Triple, for_all_rows, shown, table
from findings_runs import (
    NO_RUN,
    RLOO,
    RUNS,
    UNRESOLVED,
    Run,
    answer,
    committed,
    figure,
    first_figure,
    is_below,
    largest_groups,
    of_largest_groups,
    rows_of,
)

#: The run that compares most estimators.
ZOO = Run("embedded_zoo", "embedded-240")
#: Runs with values of states.
WITH_VALUES = (ZOO, *(run for run in RUNS if run.folder == "qwen_mawps"))
#: Tokens of the completions behind the Monte-Carlo values of ``ZOO``, over those of the completions compared: four
#: completions of every second sentence, and of every prompt, each expected to be as long as what followed.
TOKENS_OF_VALUES = 5.6
LEARNED = "tables/optimal_baselines"


def section_left() -> str:
    """State how much baselines gain that are learned on the other prompts, and at most."""
    rows, gains, most = [], [], []
    for run in committed():
        frame = table(run.folder, LEARNED)
        if frame is None:
            continue
        learned = frame[frame["kind"] == "learned"]
        best = learned.loc[learned["ratio_to_learned"].idxmin()]
        base = frame[frame["estimator"] == RLOO].iloc[0]
        noise, oracle = (inverse(for_all_rows(base, column)) for column in ("ratio_to_learned", "ratio"))
        gained = gain(noise) if is_below(noise) else f"at most {at_most(noise)}"
        rows.append((run.name, best["estimator"].removeprefix("learned "), shown(noise), shown(oracle), gained))
        gains.append(f"{gained} in {run.name}")
        most.append(100.0 * (1.0 - noise[1]))
    lowered = "are not shown to lower the noise:" if "".join(gains[:1]).startswith("at most") else "lower the noise by"
    at_all = f", at most {max(most):.1f} % in any run" if len(most) > 1 else ""
    return answer(
        f"**Baselines learned on other prompts, without values of states, {lowered} {gains[0]}{at_all}.** "
        "This is the best of three: the exponent of length weights, a shift of the group's mean, and a shifted mixture "
        "of group, token and batch means."
        if rows
        else NO_RUN,
        rows_of(("run", "best learned", "noise", "norm weights (oracle)", "gain"), rows) if rows else None,
        "Intervals hold for all baselines of a run at once, and take what was learned as given; other forms are not "
        "bounded. Repeat: `gradstats ask RUN optimal_baselines`.",
        first_figure("optimal_baselines", "Published baselines against learned ones"),
    )


def at_most(noise: Triple) -> str:
    """Write the largest gain that the interval of a relative noise allows, rounded up."""
    return f"{math.ceil(1000 * max(1.0 - noise[1], 0.0)) / 10:.1f} %"


def gain(noise: Triple) -> str:
    """Write what a relative noise gains, with its interval."""
    return " ".join([shown(tuple(100 * (1.0 - end) for end in (noise[0], noise[2], noise[1]))), "%"])


def inverse(ratio: Triple | None) -> Triple:
    """Return the inverse of a ratio with its interval."""
    value, low, high = ratio or (math.nan, math.nan, math.nan)
    return 1.0 / value, 1.0 / high, 1.0 / low if low > 0 else math.inf


def section_values() -> str:
    """State whether values of states do better than RLOO, with what they cost."""
    labels = ("gae", "recipe:ppo", "vine(k=4)")
    noise = {run.name: [of_all_rows(run, label) for label in labels] for run in WITH_VALUES if has_values(run)}
    heads = "; ".join(f"{shown(found[0], UNRESOLVED)} in {name}{unsure(found[0])}" for name, found in noise.items())
    alone = [
        f"By a single comparison it is {shown(one)} in {run.name}."
        for run in WITH_VALUES
        if run.name in noise and unsure(noise[run.name][0]) and not unsure(one := largest_groups(run, "gae"))
    ]
    vine = noise.get(ZOO.name, [None] * 3)[2]
    return answer(
        " ".join([f"**A value head fitted to other prompts has a noise of {heads}.**", *alone, cost_of_prefixes(vine)])
        if noise
        else NO_RUN,
        rows_of(
            ("noise, over RLOO", "fitted head (GAE, λ = 1)", "PPO", "Monte-Carlo values (VinePPO)"),
            [(name, *(shown(value, "—") for value in values)) for name, values in noise.items()],
        )
        if noise
        else None,
        f"{'Other intervals' if alone else 'Intervals'} hold for all rows of a run. The head, linear in the last "
        "hidden states, costs one forward pass. Repeat: `gradstats run qwen_mawps`, `gradstats run embedded_zoo`.",
        figure(ZOO.folder, "variance", f"Noise of each estimator ({ZOO.name})"),
    )


def unsure(noise: Triple | None) -> str:
    """Say that a noise is not resolved, where its interval holds 1."""
    return f" ({UNRESOLVED})" if noise is not None and noise[1] <= 1.0 <= noise[2] else ""


def has_values(run: Run) -> bool:
    """Return whether a run with values of states has been committed."""
    return table(run.folder, "variance") is not None


def of_all_rows(run: Run, label: str) -> Triple | None:
    """Return the relative noise of an estimator with the interval that holds for all rows of the run."""
    row = of_largest_groups(run, label)
    return None if row is None else for_all_rows(row, "matched_ratio")


def cost_of_prefixes(noise: Triple | None) -> str:
    """State what Monte-Carlo values of prefixes do to the noise, and with the tokens of their completions."""
    if noise is None:
        return ""
    return (
        f"In {ZOO.name}, Monte-Carlo values of every second sentence have a noise of {shown(noise)}, but "
        f"their completions, four of each, take an expected {TOKENS_OF_VALUES:g} times the tokens: at equal "
        f"tokens drawn it is {shown(at_equal_tokens(noise))}."
    )


def at_equal_tokens(noise: Triple | None) -> Triple | None:
    """Return the noise of Monte-Carlo values with the tokens of their completions counted."""
    return None if noise is None else tuple((1.0 + TOKENS_OF_VALUES) * end for end in noise)
