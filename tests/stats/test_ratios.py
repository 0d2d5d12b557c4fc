"""The spread of ratios against loops that leave each prompt out, and against an enumerated pair of policies."""

import numpy as np
import pytest
from scipy import stats

from gradstats.stats.jackknife import Estimate
from gradstats.stats.ratios import ratio_spread

RNG = np.random.default_rng(0)
PROMPTS = np.repeat(np.arange(12), [1, 3, 2, 4, 2, 2, 1, 3, 2, 2, 4, 2])
LOGS = RNG.normal(0, 0.4, PROMPTS.size) + RNG.normal(0, 0.3, 12)[PROMPTS]
LENGTHS = RNG.integers(5, 20, PROMPTS.size)


def naive(logs: np.ndarray) -> dict[str, float]:
    ratios = np.exp(logs)
    return {
        "mean": ratios.mean(),
        "variance": (ratios**2).mean() - ratios.mean() ** 2,
        "chi_squared": ((ratios - 1) ** 2).mean(),
        "effective_sample_size": ratios.sum() ** 2 / (ratios**2).sum(),
    }


@pytest.mark.parametrize("name", ["mean", "variance", "chi_squared", "effective_sample_size"])
def test_against_leaving_each_prompt_out(name: str):
    estimate: Estimate = getattr(ratio_spread("product", LOGS, PROMPTS, LENGTHS), name)
    assert estimate.value == pytest.approx(naive(LOGS)[name], rel=1e-12)
    kept = [np.flatnonzero(PROMPTS - m) for m in range(12)]
    replicates = np.array([naive(LOGS[rows])[name] for rows in kept])
    if name == "effective_sample_size":  # of all ratios: the share that each replicate gives, times n
        replicates *= [PROMPTS.size / rows.size for rows in kept]
    if name != "mean":
        replicates = np.log(replicates)
    stderr = np.sqrt(11 / 12 * np.sum((replicates - replicates.mean()) ** 2))
    assert estimate.stderr == pytest.approx(stderr, rel=1e-9)
    margin = stats.t.ppf(0.975, 11) * stderr
    centre = estimate.value
    expected = (centre - margin, centre + margin) if name == "mean" else centre * np.exp([-margin, margin])
    assert estimate.confidence_interval(0.95) == pytest.approx(tuple(expected), rel=1e-9)


def test_ratios_of_one():
    spread = ratio_spread("product", np.zeros(6), np.repeat([0, 1, 2], 2), np.full(6, 4))
    row = spread.record(0.95)
    assert [row[name] for name in ("mean", "mean_low", "mean_high")] == [1, 1, 1]
    assert [row[name] for name in ("chi_squared", "chi_squared_low", "chi_squared_high", "variance")] == [0, 0, 0, 0]
    assert [row[f"effective_sample_size{end}"] for end in ("", "_low", "_high")] == pytest.approx([6, 6, 6])


def test_the_effective_size_is_at_most_the_number_of_ratios():
    spread = ratio_spread("token", 0.2 * LOGS, PROMPTS, LENGTHS)
    low, high = spread.effective_size_interval(0.999999)
    assert low < spread.effective_sample_size.value < high == PROMPTS.size


def test_the_effective_size_survives_ratios_that_overflow():
    shifted = ratio_spread("product", LOGS + 2000.0, PROMPTS, LENGTHS)
    plain = ratio_spread("product", LOGS, PROMPTS, LENGTHS)
    assert shifted.effective_sample_size.value == pytest.approx(plain.effective_sample_size.value, rel=1e-9)
    assert not np.isfinite(shifted.chi_squared.value)
    assert np.isnan(shifted.record(0.95)["chi_squared_low"])


def test_one_prompt_has_no_interval():
    spread = ratio_spread("product", LOGS[:3], np.zeros(3, dtype=int), LENGTHS[:3])
    assert spread.mean.value == pytest.approx(np.exp(LOGS[:3]).mean())
    assert np.isnan(spread.mean.confidence_interval(0.95)).all()
