"""The difference of two length exponents, paired over prompts."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from power_laws import curved_power_law, dense_cr2, noisy_power_law

import gradstats as gs
from gradstats.analyses.alpha import within_and_between
from gradstats.stats import curvature_test, fit_energy_scaling, fit_length_scaling, mundlak_test

BETWEEN = 0.6  # standard deviation of what a prompt adds to log ‖S‖² of both samples


def sample(rng, prompts, alpha, each=4, shift=0.0, alone=0.3):
    """Completions of prompts, some of which have larger norms, in both samples."""
    rows = np.repeat(np.arange(len(prompts)), each)
    lengths = np.exp(rng.normal(4.5 + shift, 0.7, len(rows)))
    noise = BETWEEN * prompts[rows] * (np.log(lengths) - 4.5) + alone * rng.standard_normal(len(rows))
    return pd.DataFrame({"prompt_id": rows, "length": lengths, "sq_norm": np.exp(2 * alpha * np.log(lengths) + noise)})


def test_exponents_are_those_of_least_squares_and_the_pair_may_be_swapped():
    rng = np.random.default_rng(0)
    prompts = rng.standard_normal(20)
    one, other = sample(rng, prompts, 0.5), sample(rng, prompts, 0.9, each=3, shift=0.4)
    found = gs.stats.alpha_difference(one, other)
    for alpha, frame in ((found.alpha, one), (found.other_alpha, other)):
        fit = gs.fit_length_scaling(lengths=frame["length"], sq_norms=frame["sq_norm"], groups=frame["prompt_id"])
        assert alpha == pytest.approx(fit.alpha, rel=1e-10)
    assert found.difference == pytest.approx(found.alpha - found.other_alpha, rel=1e-9)
    swapped = gs.stats.alpha_difference(other, one)
    assert (swapped.difference, swapped.stderr) == pytest.approx((-found.difference, found.stderr), rel=1e-9)
    assert found.n_prompts == 20
    assert found.to_frame()["difference_low"].item() == found.confidence_interval()[0]


def test_its_error_is_cluster_robust_with_the_prompts_of_both():
    """CR0 of the stacked regression by statsmodels; with many prompts the correction of CR2 vanishes."""
    rng = np.random.default_rng(1)
    prompts = rng.standard_normal(3000)
    one, other = sample(rng, prompts, 0.5), sample(rng, prompts, 0.5)
    both = pd.concat([one.assign(second=0.0), other.assign(second=1.0)])
    x, second = np.log(both["length"].to_numpy()), both["second"].to_numpy()
    design = np.column_stack([np.ones(len(x)), second, x, second * x])
    model = sm.OLS(np.log(both["sq_norm"].to_numpy()), design).fit(
        cov_type="cluster", cov_kwds={"groups": both["prompt_id"].to_numpy(), "use_correction": False}
    )
    found = gs.stats.alpha_difference(one, other)
    assert -found.difference == pytest.approx(model.params[3] / 2, rel=1e-8)
    assert found.stderr == pytest.approx(model.bse[3] / 2, rel=2e-3)


def test_its_intervals_cover():
    """Prompts with slopes and lengths of their own, 24 prompts × 4 completions, as in the sweep of samplers."""
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        prompts = rng.standard_t(4, 24)
        low, high = gs.stats.alpha_difference(
            sample(rng, prompts, 0.7, shift=-0.2), sample(rng, prompts, 0.5)
        ).confidence_interval()
        covered += low <= 0.2 <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_a_sample_does_not_differ_from_itself():
    """Its difference and error are those of rounding, whose ratio says nothing."""
    rng = np.random.default_rng(4)
    frame = sample(rng, rng.standard_normal(200), 0.5)
    as_text = frame.assign(prompt_id=frame["prompt_id"].astype(str))  # ids may be read as numbers or text
    found = gs.stats.alpha_difference(frame, as_text)
    assert (found.difference, found.stderr, found.pvalue, found.n_prompts) == (0.0, 0.0, 1.0, 200)
    assert found.confidence_interval() == (0.0, 0.0)


def test_what_cannot_be_compared_is_refused():
    rng = np.random.default_rng(0)
    frame = sample(rng, rng.standard_normal(5), 0.5)
    with pytest.raises(KeyError, match="other has no column 'sq_norm'"):
        gs.stats.alpha_difference(frame, frame.drop(columns="sq_norm"))
    with pytest.raises(ValueError, match="sq_norms must be finite and positive"):
        gs.stats.alpha_difference(frame.assign(sq_norm=0.0), frame)
    with pytest.raises(ValueError, match=r"lengths hold 1 distinct value\(s\)"):
        gs.stats.alpha_difference(frame, frame.assign(length=7))


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
    frame = gs.analyses.length_scaling_by_block(data)
    whole = fit_length_scaling(lengths=data.lengths, sq_norms=data.sq_norms, groups=data.rollouts.prompt_id)
    assert list(frame["block"]) == ["attention", "mlp", "frozen", "total"]
    np.testing.assert_allclose(frame["alpha"].iloc[[0, 1, 3]], whole.alpha)
    assert np.isnan(frame["alpha"].iloc[2])
    np.testing.assert_allclose(frame["share_of_sq_norm"], [0.25, 0.75, 0.0, 1.0])


def test_energy_that_is_the_same_at_every_token_has_exponent_one_half():
    assert fit_energy_scaling(measured()).alpha == pytest.approx(0.5)
    without = measured()
    without.token_energy = None
    with pytest.raises(ValueError, match="no token energies: measure with --set measurement.token_probes=32"):
        fit_energy_scaling(without)


def test_curvature_equals_the_quadratic_regression():
    lengths, sq_norms, _ = curved_power_law()
    x = np.log(lengths) - np.log(lengths).mean()
    oracle = sm.OLS(np.log(sq_norms), np.column_stack([np.ones_like(x), x, x**2])).fit(cov_type="HC2")
    test = curvature_test(fit_length_scaling(lengths=lengths, sq_norms=sq_norms))
    assert (test.curvature, test.stderr) == pytest.approx((oracle.params[2], oracle.bse[2]), rel=1e-9)
    low, high = test.confidence_interval()
    assert low < test.curvature < high
    assert tuple(test.to_frame()[["curvature_low", "curvature_high"]].iloc[0]) == (low, high)
    with pytest.raises(ValueError, match="at least 4 distinct lengths and 3 prompts, got 3 and 3"):
        curvature_test(fit_length_scaling(lengths=[1, 2, 3], sq_norms=[1, 2, 3]))


def test_its_slopes_are_those_within_and_between_prompts():
    lengths, sq_norms, groups = noisy_power_law(15, 4)
    keywords = {"lengths": lengths, "sq_norms": sq_norms, "groups": groups}
    test = mundlak_test(fit_length_scaling(**keywords))
    within, between = (fit_length_scaling(**keywords, method=f"{part}_prompt").alpha for part in ("within", "between"))
    assert (test.alpha_within, test.alpha_between) == pytest.approx((within, between), rel=1e-10)
    assert test.difference == pytest.approx(between - within, rel=1e-9)


def test_its_error_is_cr2_of_the_coefficient_on_the_means():
    """The regression on log T and its prompt mean, of groups of uneven size."""
    kept = np.random.default_rng(0).random(48) < 0.8
    lengths, sq_norms, groups = (values[kept] for values in noisy_power_law(12, 4))
    x, y = np.log(lengths), np.log(sq_norms)
    design = np.column_stack([np.ones(len(x)), x, [x[groups == group].mean() for group in groups]])
    stderr, degrees = dense_cr2(design, y, groups, np.array([0.0, 0.0, 1.0]))
    test = mundlak_test(fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups))
    assert test.difference == pytest.approx(sm.OLS(y, design).fit().params[2] / 2, rel=1e-9)
    assert (test.stderr, test.degrees) == pytest.approx((stderr / 2, degrees), rel=1e-8)
    low, high = test.confidence_interval(1.0 - test.pvalue)
    assert min(abs(low), abs(high)) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("lengths", "groups", "message"),
    [
        ([5, 9, 12, 30], None, r"at least 3 prompts with completions of different lengths.*0 prompt\(s\) have"),
        ([5, 9, 20] * 4, np.repeat(np.arange(4), 3), "and prompts that differ in length"),
    ],
)
def test_it_needs_prompts_that_vary(lengths, groups, message):
    fit = fit_length_scaling(lengths=lengths, sq_norms=np.arange(1.0, len(lengths) + 1), groups=groups)
    with pytest.raises(ValueError, match=message):
        mundlak_test(fit)


@pytest.mark.parametrize(("within", "differs"), [(0.4, True), (0.9, False)])
def test_it_finds_a_difference_and_says_so_only_then(within, differs):
    rng, groups = np.random.default_rng(0), np.repeat(np.arange(60), 5)
    centre, deviation = rng.normal(4.5, 0.8, 60)[groups], rng.normal(0, 0.5, 300)
    sq_norms = np.exp(1.8 * centre + 2 * within * deviation + rng.normal(0, 0.3, 300))
    test = mundlak_test(fit_length_scaling(lengths=np.exp(centre + deviation), sq_norms=sq_norms, groups=groups))
    said = within_and_between(test)
    assert (test.pvalue < 1e-6, test.pvalue > 0.05) == (differs, not differs)
    significant = "] (95% interval) is significant, so that α of all completions mixes the two"
    assert (significant if differs else "] (95% interval) is not resolved") in said
    assert said.startswith("Longer answers to the same prompt give α = 0.4") or not differs
    assert within_and_between(test, 0.8).count("80%") == 1
    assert test.to_frame()["difference_low"].item() == test.confidence_interval()[0]
