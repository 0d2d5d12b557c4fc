"""The cost of a proxy to the optimal token baseline."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from probed_policies import drawn_tokens

import gradstats as gs
from gradstats.estimators import Batch
from gradstats.stats.proxy_quality import otb_ratio


def ratio_of(measured, values):
    return otb_ratio(measured, "mine", values, Batch.from_measurement(measured), None, 0)


def test_it_is_the_ratio_of_a_comparison():
    measured, batch, scores = drawn_tokens(n_groups=60)
    logit = [
        1.0 - 2.0 * np.exp(logprobs) + squares
        for logprobs, squares in zip(measured.logprobs, measured.sum_pi_squared, strict=True)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        table = gs.compare(batch, ["otb(loo=True)"], scores, reference="otb(energy=exact, loo=True)").to_frame()
    assert ratio_of(measured, logit).value == pytest.approx(table["ratio"][0], rel=1e-6)


def test_without_sketches_or_groups_it_is_nan():
    measured = drawn_tokens()[0]
    values = list(measured.token_energy)
    assert np.isnan(ratio_of(replace(measured, sketches=None), values).value)
    alone = measured.select(slice(0, None, 3))
    assert np.isnan(ratio_of(alone, values[::3]).value)
