"""The influence of single prompts on α."""

import numpy as np
import pytest
from power_laws import curved_power_law

from gradstats.stats import alpha_without_each_prompt, fit_length_scaling


def test_influence_is_refitting_without_each_prompt():
    lengths, sq_norms, groups = curved_power_law(n_prompts=8)
    sq_norms[groups == 5] *= np.array([1e-5, 1.0, 1e5])[np.argsort(np.argsort(lengths[groups == 5]))]
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups)
    frame = alpha_without_each_prompt(fit)
    assert frame["prompt"].iloc[0] == 5
    assert sorted(frame["prompt"]) == list(range(8))
    rest = groups != 5
    alone = fit_length_scaling(lengths=lengths[rest], sq_norms=sq_norms[rest], groups=groups[rest])
    assert frame["alpha"].iloc[0] == pytest.approx(alone.alpha)
    assert frame["change"].iloc[0] == pytest.approx(alone.alpha - fit.alpha)
