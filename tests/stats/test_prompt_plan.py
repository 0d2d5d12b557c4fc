"""What every plan states."""

import math
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
        "α ± 0.05 (95% interval) takes 100 prompts [60, 240] similar to the pilot's 30; 150 (1,125 completions, "
        "220,000 tokens, 4 hours) are enough in 80% of studies."
    )


def test_what_is_not_known_is_left_out():
    assert plan(pilot_n_prompts=None, tokens_per_completion=math.nan).sentence() == (
        "α ± 0.05 (95% interval) takes 100 prompts; 150 (1,125 completions) are enough in 80% of studies."
    )
    endless = plan(n_prompts_high=math.inf, n_prompts_assured=math.inf)
    assert endless.n_assured == math.inf
    assert endless.sentence() == (
        "α ± 0.05 (95% interval) takes 100 prompts [60, ∞] similar to the pilot's 30; the pilot is too small to name a "
        "size that is enough in 80% of studies."
    )


@pytest.mark.parametrize("threshold", [1, 3, 4, 57, 10_000])
def test_the_smallest_number_is_found(threshold):
    assert smallest(lambda m: m >= threshold) == max(threshold, 3)
    assert smallest(lambda m: False) == np.inf
