"""Ratios that are not known or overflow."""

from __future__ import annotations

import numpy as np
import pytest

from gradstats.estimators import Batch, get
from gradstats.stats.variance.inputs import choose_target, refuse_unusable_ratios, uses_ratios


@pytest.mark.parametrize(
    ("label", "uses"),
    [
        ("rloo", False),
        ("recipe:dr_grpo(ratio=none)", False),
        ("recipe:grpo", True),
        ("recipe:gspo", True),
        ("rloo(off_policy=True)", True),
        ("norm_weighted(off_policy=True)", True),
        ("recipe:reinforce(mask=reject_tokens(high=0.5))", True),
    ],
)
def test_which_weights_depend_on_ratios(label, uses):
    assert uses_ratios(get(label)) is uses


def batch(gap: float) -> Batch:
    """Eight completions of 3 tokens, the sampler's log-probabilities of completion 5 lower by the gap a token."""
    old = np.full((8, 3), -1.0)
    old[5] -= gap
    return Batch(np.arange(8) % 2, [3] * 8, np.repeat([0, 1], 4), logprobs=np.full((8, 3), -1.0), old_logprobs=old)


def test_a_ratio_that_overflows_names_estimator_and_completion():
    far = batch(800.0)
    choice = choose_target("auto", far)
    refuse_unusable_ratios([get("rloo")], far, choice)
    with pytest.raises(ValueError, match=r"^recipe:gspo: the ratio π/π_old of completion 5 is e\^800, which overflows"):
        refuse_unusable_ratios([get("rloo"), get("recipe:gspo")], far, choice)
    near = batch(0.1)
    refuse_unusable_ratios([get("recipe:gspo")], near, choose_target("auto", near))


def test_unknown_ratios_are_refused_off_policy_only():
    unknown = batch(0.0).with_fields(old_logprobs=None)
    refuse_unusable_ratios([get("recipe:grpo")], unknown, choose_target("auto", unknown))
    with pytest.raises(ValueError, match=r"recipe:grpo weights by the ratios .* drawn with temperature=0\.6 by a"):
        refuse_unusable_ratios([get("recipe:grpo")], unknown, choose_target("auto", unknown, ["temperature=0.6"]))
    asked = choose_target("on_policy", unknown, ["temperature=0.6"])
    refuse_unusable_ratios([get("recipe:grpo")], unknown, asked)
