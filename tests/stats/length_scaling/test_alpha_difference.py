"""The difference of two length exponents, paired over prompts."""

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import gradstats as gs

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
    found = gs.alpha_difference(one, other)
    for alpha, frame in ((found.alpha, one), (found.other_alpha, other)):
        fit = gs.fit_length_scaling(lengths=frame["length"], sq_norms=frame["sq_norm"], groups=frame["prompt_id"])
        assert alpha == pytest.approx(fit.alpha, rel=1e-10)
    assert found.difference == pytest.approx(found.alpha - found.other_alpha, rel=1e-9)
    swapped = gs.alpha_difference(other, one)
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
    found = gs.alpha_difference(one, other)
    assert -found.difference == pytest.approx(model.params[3] / 2, rel=1e-8)
    assert found.stderr == pytest.approx(model.bse[3] / 2, rel=2e-3)


def test_pairing_narrows_the_interval_where_prompts_matter():
    rng = np.random.default_rng(2)
    prompts = rng.standard_normal(40)
    one, other = sample(rng, prompts, 0.5, alone=0.05), sample(rng, prompts, 0.5, alone=0.05)
    paired = gs.alpha_difference(one, other)
    apart = gs.alpha_difference(one, other.assign(prompt_id=other["prompt_id"] + 1000))
    assert paired.difference == pytest.approx(apart.difference, rel=1e-9)
    assert (paired.n_prompts, apart.n_prompts) == (40, 80)
    assert paired.stderr < 0.8 * apart.stderr


def test_its_intervals_cover():
    """Prompts with slopes and lengths of their own, 24 prompts × 4 completions, as in the sweep of samplers."""
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        prompts = rng.standard_t(4, 24)
        low, high = gs.alpha_difference(
            sample(rng, prompts, 0.7, shift=-0.2), sample(rng, prompts, 0.5)
        ).confidence_interval()
        covered += low <= 0.2 <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_a_sample_does_not_differ_from_itself():
    """Its difference and error are those of rounding, whose ratio says nothing."""
    rng = np.random.default_rng(4)
    frame = sample(rng, rng.standard_normal(200), 0.5)
    found = gs.alpha_difference(frame, frame)
    assert (found.difference, found.stderr, found.pvalue) == (0.0, 0.0, 1.0)
    assert found.confidence_interval() == (0.0, 0.0)


def test_prompts_are_the_same_whether_their_ids_were_read_as_numbers_or_text():
    rng = np.random.default_rng(5)
    prompts = rng.standard_normal(12)
    one, other = sample(rng, prompts, 0.5), sample(rng, prompts, 0.7)
    as_text = gs.alpha_difference(one, other.assign(prompt_id=other["prompt_id"].astype(str)))
    assert as_text == gs.alpha_difference(one, other)
    assert as_text.n_prompts == 12


def test_what_cannot_be_compared_is_refused():
    rng = np.random.default_rng(0)
    frame = sample(rng, rng.standard_normal(5), 0.5)
    with pytest.raises(KeyError, match="other has no column 'sq_norm'"):
        gs.alpha_difference(frame, frame.drop(columns="sq_norm"))
    with pytest.raises(ValueError, match="sq_norms must be finite and positive"):
        gs.alpha_difference(frame.assign(sq_norm=0.0), frame)
    with pytest.raises(ValueError, match=r"lengths hold 1 distinct value\(s\)"):
        gs.alpha_difference(frame, frame.assign(length=7))
