"""Holm's adjustment against statsmodels."""

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from gradstats.stats.on_policy import holm


@pytest.mark.parametrize("pvalues", [[0.01, 0.04, 0.03], [0.5, 0.6], [1e-9, 0.02, 0.02, 0.9], [0.3]])
def test_adjusted_values_are_those_of_statsmodels(pvalues):
    np.testing.assert_allclose(holm(pvalues), multipletests(pvalues, method="holm")[1], rtol=1e-12)


def test_by_hand():
    """3·0.01; then 2·0.03; then 0.04, which may not fall below 0.06."""
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert len(holm([])) == 0
