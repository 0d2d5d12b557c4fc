"""The exponents of blocks of parameters, and of summed token energies."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from power_laws import curved_power_law

from gradstats.stats import fit_energy_scaling, fit_length_scaling, length_scaling_by_block


def measured():
    lengths, sq_norms, groups = curved_power_law()
    rollouts = SimpleNamespace(prompt_id=groups.astype(str), truncated=np.zeros(len(groups), dtype=bool))
    blocks = pd.DataFrame({"attention": 0.25 * sq_norms, "mlp": 0.75 * sq_norms, "frozen": 0.0 * sq_norms})
    energy = [np.full(int(length), 3.0) for length in lengths]
    return SimpleNamespace(
        rollouts=rollouts, lengths=lengths, sq_norms=sq_norms, sq_norms_by_block=blocks, token_energy=energy
    )


def test_blocks():
    data = measured()
    frame = length_scaling_by_block(data)
    whole = fit_length_scaling(lengths=data.lengths, sq_norms=data.sq_norms, groups=data.rollouts.prompt_id)
    assert list(frame["block"]) == ["attention", "mlp", "frozen", "total"]
    np.testing.assert_allclose(frame["alpha"].iloc[[0, 1, 3]], whole.alpha)
    assert np.isnan(frame["alpha"].iloc[2])
    np.testing.assert_allclose(frame["share_of_sq_norm"], [0.25, 0.75, 0.0, 1.0])


def test_energy_that_is_the_same_at_every_token_has_exponent_one_half():
    assert fit_energy_scaling(measured()).alpha == pytest.approx(0.5)
    without = measured()
    without.token_energy = None
    with pytest.raises(ValueError, match="no token energies: measure with token_probes"):
        fit_energy_scaling(without)
