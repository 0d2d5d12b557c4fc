"""What every plan states."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gradstats.stats.plans import AlphaPlan
from gradstats.stats.prompt_plan import smallest


def plan(**changes):
    return AlphaPlan(
        **{
            "half_width": 0.05,
            "stderr_of_one": 0.6,
            "confidence_level": 0.95,
            "n_prompts": 100,
            "n_prompts_low": 60,
            "n_prompts_high": 240,
            "n_prompts_assured": 150,
            "completions_per_prompt": 7.5,
            "tokens_per_completion": 200.0,
            "pilot_n_prompts": 30,
            **changes,
        }
    )


def test_completions_tokens_and_hours():
    given = plan()
    assert (given.n, given.n_assured, given.n_tokens) == (750, 1125, 225_000)
    assert math.isnan(given.hours)
    # A dry run of 1000 tokens that takes 24 + 40 seconds: 225 times as long is 4 hours.
    timed = given.at_speed(SimpleNamespace(n_tokens=1000, sampling_seconds=24.0, measuring_seconds=40.0))
    assert timed.hours == pytest.approx(4.0)
    assert timed.to_frame()[["n", "n_assured", "n_tokens", "hours"]].iloc[0].tolist() == [750, 1125, 225_000, 4.0]
    assert timed.sentence() == (
        "α ± 0.05 (95% interval) takes 100 prompts [60, 240] like these; 150 (1,125 completions, "
        "220,000 tokens, 4 hours) are enough in 80% of studies."
    )


def test_what_is_not_known_is_left_out():
    assert plan(pilot_n_prompts=None, tokens_per_completion=math.nan).sentence() == (
        "α ± 0.05 (95% interval) takes 100 prompts; 150 (1,125 completions) are enough in 80% of studies."
    )
    endless = plan(n_prompts_high=math.inf, n_prompts_assured=math.inf)
    assert endless.n_assured == math.inf
    assert endless.sentence() == (
        "α ± 0.05 (95% interval) takes 100 prompts [≥ 60] like these; the pilot is too small to name a "
        "size that is enough in 80% of studies."
    )


def test_the_answer_on_one_line():
    given = plan()
    assert given.line() == "α ± 0.05 takes 150 prompts like these (1,100 completions, 220,000 tokens)"
    assert len(given.line()) <= 80
    assert replace(given, pilot_n_prompts=None).line().startswith("α ± 0.05 takes 150 prompts (")
    endless = plan(n_prompts_high=math.inf, n_prompts_assured=math.inf)
    assert endless.line() == "α ± 0.05 takes at least 60 prompts like these; the pilot is too small to say how many"


@pytest.mark.parametrize("threshold", [1, 3, 4, 57, 10_000])
def test_the_smallest_number_is_found(threshold):
    assert smallest(lambda m: m >= threshold) == max(threshold, 3)
    assert smallest(lambda m: False) == np.inf
