"""The squared norm of the mean score."""

from types import SimpleNamespace

import numpy as np
import pytest

from gradstats.stats.on_policy import mean_score_sq


def measured(sketches):
    return SimpleNamespace(
        rollouts=None, logprobs=[], entropy=[], metadata={}, lengths=None, sq_norms=None, sketches=sketches
    )


def test_it_is_the_mean_inner_product_of_different_prompts():
    rng = np.random.default_rng(0)
    sketches, prompts = rng.normal(size=(9, 5)), np.repeat(np.arange(3), 3)
    means = np.stack([sketches[prompts == prompt].mean(axis=0) for prompt in range(3)])
    products = means @ means.T
    expected = (products.sum() - np.trace(products)) / 6.0
    estimate = mean_score_sq(measured(sketches), prompts, np.random.default_rng(1))
    assert estimate.value == pytest.approx(expected)


def test_without_sketches_it_is_nan():
    assert np.isnan(mean_score_sq(measured(None), np.arange(3), np.random.default_rng(0)).value)
