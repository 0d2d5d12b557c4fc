"""Token-level estimators that act on whole completions: recognised exactly, with the same gradients."""

from __future__ import annotations

import numpy as np
import pytest

from gradstats import estimators as est
from gradstats.estimators import Batch
from gradstats.estimators.ratios import AlongCompletions, along_completions
from gradstats.stats import compare

RNG = np.random.default_rng(0)
GROUPS = np.repeat(np.arange(12), 4)
MASK = np.arange(5) < RNG.integers(1, 6, 48)[:, None]
BATCH = Batch(
    RNG.integers(0, 2, 48).astype(float),
    MASK.sum(axis=1),
    GROUPS,
    MASK,
    greedy_rewards=RNG.integers(0, 2, 12).astype(float)[GROUPS],
    values=RNG.normal(size=MASK.shape),
)


def test_remax_of_completions_is_remax_of_tokens():
    tokens = np.where(MASK[:, :, None], RNG.normal(size=(*MASK.shape, 7)), 0.0)
    with pytest.warns(UserWarning, match="prompts"):
        whole = compare(BATCH, ["remax"], tokens.sum(axis=1), reference="reinforce").to_frame()
    with pytest.warns(UserWarning, match="prompts"):
        apart = compare(BATCH, ["remax"], tokens, reference="reinforce").to_frame()
    np.testing.assert_allclose(whole["trace_cov"], apart["trace_cov"])
    np.testing.assert_allclose(whole["ratio_high"], apart["ratio_high"])
    assert whole["estimator"].tolist() == ["remax"]


def test_what_differs_along_a_completion_or_lacks_a_field_stays_as_it_is():
    for estimator in (est.gae(), est.otb(), est.rloo()):
        assert along_completions(estimator, BATCH) is estimator
    returns = BATCH.with_fields(token_rewards=RNG.normal(size=MASK.shape))
    assert along_completions(est.remax(), returns).level == "token"
    with pytest.raises(ValueError, match="remax weights the tokens of a completion differently"):
        AlongCompletions(est.remax()).weights(returns)
