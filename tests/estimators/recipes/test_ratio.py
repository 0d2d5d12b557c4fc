"""Ratios and clips against their naive twins, by hand, and their expectation off-policy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from off_policy_pair import expected_off_policy, policy_pair

from gradstats.estimators import Batch, Recipe


def test_token_clip_by_hand():
    rho = np.array([[1.1, 1.25, 1.35, 0.7], [1.1, 0.75, 3.5, 0.9]])
    old = -np.ones((2, 4))
    batch = Batch([1, 0], [4, 4], ["a", "a"], logprobs=np.log(rho) + old, old_logprobs=old)  # A = 1 and −1, N = 2
    for label, expected in {
        "token_clip": [[1.1, 0, 0, 0.7], [-1.1, 0, -3.5, -0.9]],
        "token_clip(eps_high=0.28)": [[1.1, 1.25, 0, 0.7], [-1.1, 0, -3.5, -0.9]],
        "token_clip(dual_clip=3)": [[1.1, 0, 0, 0.7], [-1.1, 0, 0, -0.9]],
    }.items():
        assert_allclose(2 * Recipe("rloo", ratio=label).weights(batch), expected)


def test_the_sequence_product_is_unbiased_off_policy_and_its_clip_is_not():
    scored, sampler = policy_pair()
    for label in ("rloo", "rloo(off_policy=True)", "norm_weighted(loo=True, off_policy=True)"):
        expected = expected_off_policy(scored, sampler, Recipe(label, ratio="sequence_product"), 2)
        assert_allclose(expected, scored.gradient, atol=1e-12)
    clipped = ("sequence_product(eps_high=0.2, eps_low=0.2)", "sequence_product(truncate=1.5)")
    for biased in ("none", "token_clip", *clipped):
        expected = expected_off_policy(scored, sampler, Recipe("rloo", ratio=biased), 2)
        assert np.abs(expected - scored.gradient).max() > 1e-3


def test_a_clipped_product_may_overflow_and_an_unclipped_one_is_refused():
    batch = Batch([1, 0], [1, 1], ["a", "a"], logprobs=[[-1.0], [-1.0]], old_logprobs=[[-900.0], [-1.0]])
    clip = Recipe("rloo", ratio="sequence_product(eps_high=0.2, eps_low=0.2)")
    assert_allclose(clip.weights(batch), [0, -0.5])
    assert_allclose(Recipe("rloo", ratio="sequence_product(truncate=5)").weights(batch), [2.5, -0.5])
    for ratio in ("sequence_product", "token_clip"):
        with pytest.raises(ValueError, match=r"completion 0 is e\^899, which overflows"):
            Recipe("rloo", ratio=ratio).weights(batch)
    with pytest.raises(ValueError, match="either clips .* or truncates"):
        Recipe("rloo", ratio="sequence_product(truncate=5, eps_low=0.1)").weights(batch)
