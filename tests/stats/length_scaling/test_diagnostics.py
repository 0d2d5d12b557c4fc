"""Curvature, influence, blocks and energies."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from gradstats.stats import (
    alpha_without_each_prompt,
    curvature_test,
    fit_energy_scaling,
    fit_length_scaling,
    length_scaling_by_block,
)


def sample(bend=0.0, n_prompts=40, per_prompt=3, seed=0):
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_prompts), per_prompt)
    lengths = np.ceil(np.exp(rng.normal(4.5, 0.7, len(groups))))
    x = np.log(lengths)
    noise = rng.normal(0, 0.3, n_prompts)[groups] + rng.normal(0, 0.4, len(groups))
    return lengths, np.exp(1.6 * x + bend * (x - 4.5) ** 2 + noise), groups


def test_curvature_equals_the_quadratic_regression():
    lengths, sq_norms, _ = sample()
    x = np.log(lengths) - np.log(lengths).mean()
    oracle = sm.OLS(np.log(sq_norms), np.column_stack([np.ones_like(x), x, x**2])).fit(cov_type="HC2")
    test = curvature_test(fit_length_scaling(lengths=lengths, sq_norms=sq_norms))
    assert test.curvature == pytest.approx(oracle.params[2], rel=1e-9)
    assert test.stderr == pytest.approx(oracle.bse[2], rel=1e-9)
    low, high = test.confidence_interval()
    assert low < test.curvature < high
    assert tuple(test.to_frame()[["curvature_low", "curvature_high"]].iloc[0]) == (low, high)


def test_a_bend_is_found_and_a_power_law_is_not_one():
    found = []
    for bend in (0.0, 0.8):
        lengths, sq_norms, groups = sample(bend)
        found.append(curvature_test(fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups)))
    assert found[0].pvalue > 0.01
    assert found[1].pvalue < 1e-4


def test_curvature_needs_lengths_and_prompts():
    with pytest.raises(ValueError, match="at least 4 distinct lengths and 3 prompts, got 3 and 3"):
        curvature_test(fit_length_scaling(lengths=[1, 2, 3], sq_norms=[1, 2, 3]))


def test_influence_is_refitting_without_each_prompt():
    lengths, sq_norms, groups = sample(n_prompts=8)
    sq_norms[groups == 5] *= np.array([1e-5, 1.0, 1e5])[np.argsort(np.argsort(lengths[groups == 5]))]
    fit = fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups)
    frame = alpha_without_each_prompt(fit)
    assert frame["prompt"].iloc[0] == 5
    assert sorted(frame["prompt"]) == list(range(8))
    rest = groups != 5
    alone = fit_length_scaling(lengths=lengths[rest], sq_norms=sq_norms[rest], groups=groups[rest])
    assert frame["alpha"].iloc[0] == pytest.approx(alone.alpha)
    assert frame["change"].iloc[0] == pytest.approx(alone.alpha - fit.alpha)


def measured():
    lengths, sq_norms, groups = sample()
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
