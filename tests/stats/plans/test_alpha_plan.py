"""The number of sequences that a precision takes."""

import numpy as np
import pytest

from gradstats import data
from gradstats.stats import fit_length_scaling, plan_alpha


def test_the_published_points_call_for_hundreds_of_sequences():
    points = data.load("gloeckle2026")
    pilot = fit_length_scaling(lengths=points["length"], sq_norms=points["sq_norm"])
    plan = plan_alpha(pilot, 0.05)
    assert 850 <= plan.n <= 900
    assert plan.n == plan.n_prompts
    assert plan_alpha(pilot, 0.1).n == pytest.approx(plan.n / 4, rel=0.02)
    assert plan.to_frame()["n"].item() == plan.n


def test_a_plan_is_kept():
    def points(n, seed):
        rng = np.random.default_rng(seed)
        x = rng.normal(4, 0.7, n)
        return {"lengths": np.exp(x), "sq_norms": np.exp(1.6 * x + rng.normal(0, 1.0, n))}

    plan = plan_alpha(fit_length_scaling(**points(400, 0)), 0.05)
    low, high = fit_length_scaling(**points(plan.n, 1)).confidence_interval()
    assert (high - low) / 2 == pytest.approx(0.05, rel=0.15)


def test_a_plan_from_noise_and_spread_of_lengths():
    """se(α) = σ/(2 s √n): 1.0/(2·0.5·√n)·1.96 ≤ 0.1 from n = 385 on."""
    plan = plan_alpha(half_width=0.1, noise=1.0, length_spread=0.5)
    assert plan.n == plan.n_prompts == 387
    assert plan.pilot_n_prompts is None
    assert plan.sentence().startswith("α ± 0.1 (95% interval) takes 387 prompts; ")
    assert plan_alpha(half_width=0.1, noise=2.0, length_spread=1.0).n == 387


def test_plan_refusals():
    with pytest.raises(TypeError, match="pilot is a dict: give a fit, for example gs.fit_length_scaling"):
        plan_alpha({"alpha": 0.8})
    pilot = fit_length_scaling(lengths=[1, 2, 3, 4], sq_norms=[1, 2, 4, 3])
    with pytest.raises(ValueError, match="half_width=0 must be positive"):
        plan_alpha(pilot, 0.0)
    exact = fit_length_scaling(lengths=[1, 2, 3, 4], sq_norms=[1, 1, 1, 1])
    with pytest.raises(ValueError, match="the pilot has no standard error"):
        plan_alpha(exact, 0.05)
    with pytest.raises(TypeError, match="either a pilot fit, or both noise= and length_spread="):
        plan_alpha()
    with pytest.raises(TypeError, match="give both noise= and length_spread="):
        plan_alpha(noise=1.0)
    with pytest.raises(ValueError, match="noise=-1 must be positive, for example 1"):
        plan_alpha(noise=-1.0, length_spread=0.5)


def test_the_level_of_the_planned_interval_must_be_a_probability():
    with pytest.raises(ValueError, match="^confidence_level=1 must lie between 0 and 1"):
        plan_alpha(half_width=0.1, noise=1.0, length_spread=0.5, confidence_level=1.0)
