"""Surprise over entropy along completions."""

import pytest
from probed_policies import drawn_tokens

from gradstats.stats import surprise_along


def test_surprise_along_counts_excess_of_surprise():
    measured, batch, _ = drawn_tokens()
    expected = -batch.logprobs[:, 2:][batch.mask[:, 2:]].mean()
    assert surprise_along(measured).values[2] == pytest.approx(expected, rel=1e-9)
