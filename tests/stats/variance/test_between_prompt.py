"""The variance between prompts, by hand."""

import numpy as np
import pytest
from gradients_by_hand import along, statistics_of

from gradstats.stats.variance.estimates import between_prompt, trace_cov, within_prompt


def test_it_is_the_variance_of_means_less_what_groups_contribute():
    gradients = [[[1.0], [3.0]], [[0.0], [4.0]], [[8.0], [8.5]]]
    expected = np.var([2.0, 2.0, 8.25], ddof=1) - np.mean([2.0, 8.0, 0.125]) / 2
    statistics = statistics_of(gradients)
    assert between_prompt(statistics).value == pytest.approx(expected, rel=1e-12)
    assert between_prompt(statistics).value + within_prompt(statistics).value == pytest.approx(
        trace_cov(statistics).value, rel=1e-12
    )


def test_it_may_be_negative():
    assert between_prompt(statistics_of([[[1.0], [3.0]], [[3.0], [1.0]], [[0.0], [4.0]]])).value < 0


def test_single_groups_leave_it_unknown():
    assert np.isnan(between_prompt(statistics_of(along(1, 2, 3))).value)
