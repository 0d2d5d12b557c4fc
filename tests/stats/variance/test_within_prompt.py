"""The variance between groups of one prompt, by hand."""

import numpy as np
import pytest
from gradients_by_hand import along, statistics_of

from gradstats.stats.variance.estimates import within_prompt


def test_it_is_the_mean_of_the_sample_variances_of_prompts():
    gradients = [[[1.0], [3.0]], [[0.0], [4.0]], [[2.0], [2.5]]]
    expected = np.mean([2.0, 8.0, 0.125])
    assert within_prompt(statistics_of(gradients)).value == pytest.approx(expected, rel=1e-13)


def test_single_groups_leave_it_unknown():
    assert np.isnan(within_prompt(statistics_of(along(1, 2, 3))).value)
