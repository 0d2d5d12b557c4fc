"""What every plan states."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from gradstats.analyses import PromptPlan, registry
from gradstats.analyses.plan import plan_alpha
from gradstats.stats.prompt_plan import smallest


def plan(**changes):
    prompts = {"n_prompts": 100, "n_prompts_low": 60, "n_prompts_high": 240, "n_prompts_assured": 150}
    asked = {"half_width": 0.05, "stderr_of_one": 0.6}
    sizes = {"completions_per_prompt": 7.5, "tokens_per_completion": 200.0, "pilot_n_prompts": 30}
    about = {"goal": "α ± 0.05 (95% interval)", "aim": "give α ± 0.05", "asked": asked, "confidence_level": 0.95}
    return PromptPlan(**about | prompts | sizes | changes)


def test_completions_tokens_and_hours():
    given = plan()
    assert (given.n, given.n_assured, given.n_tokens) == (750, 1125, 225_000)
    assert math.isnan(given.hours)
    # A dry run of 1000 tokens that takes 24 + 40 seconds: 225 times as long is 4 hours.
    timed = given.with_throughput(SimpleNamespace(n_tokens=1000, sampling_seconds=24.0, measuring_seconds=40.0))
    assert timed.hours == pytest.approx(4.0)
    assert timed.to_frame()[["n", "n_assured", "n_tokens", "hours"]].iloc[0].tolist() == [750, 1125, 225_000, 4.0]
    assert timed.sentence() == (
        "150 prompts (1,125 completions, 220,000 tokens, 4 hours) give α ± 0.05 in 80% of studies."
    )


def test_the_range_is_behind_the_answer():
    assert plan().sentences() == [
        plan().sentence(),
        "Planned: α ± 0.05 (95% interval); from the pilot's 30 prompts, 60 to 240 may be needed.",
    ]
    # One number is printed: that which is enough in 80 % of studies; the one by the pilot's estimates is a column.
    text = f"{plan()!r} {' '.join(plan().sentences())}"
    assert ("150" in text, "100" in text) == (True, False)
    assert plan().to_frame()["n_prompts"].tolist() == [100]


def test_what_is_not_known_is_left_out():
    without = plan(pilot_n_prompts=None, tokens_per_completion=math.nan)
    assert without.sentences() == [
        "150 prompts (1,125 completions) give α ± 0.05 in 80% of studies.",
        "Planned: α ± 0.05 (95% interval).",
    ]
    endless = plan(n_prompts_high=math.inf, n_prompts_assured=math.inf)
    assert endless.n_assured == math.inf
    assert endless.sentences() == [
        "The pilot is too small to say how many prompts give α ± 0.05 in 80% of studies: at least 60.",
        "Planned: α ± 0.05 (95% interval); from the pilot's 30 prompts, 60 or more may be needed.",
    ]


@pytest.mark.parametrize("threshold", [1, 3, 4, 57, 10_000])
def test_the_smallest_number_is_found(threshold):
    assert smallest(lambda m: m >= threshold) == max(threshold, 3)
    assert smallest(lambda m: False) == np.inf


@pytest.mark.parametrize("level", [0.8, 0.9])
def test_the_answer_names_a_level_other_than_95_percent(level):
    planned = plan_alpha(half_width=0.1, noise=0.5, length_spread=0.6, confidence_level=level)
    said = registry.get("plan").answer_of(planned, level).sentence
    assert said.endswith(f"in 80% of studies; {level:.0%} intervals.")
