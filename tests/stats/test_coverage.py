"""Coverage of 95 % intervals in simulated data sets: of α, and of variances against exact enumeration.

The band is 92 to 98 %, for the coverage itself; what 2000 replications show may lie outside by two standard errors of
a share (0.012 below, 0.006 above), what 400 show by 2.5 (0.034 and 0.018). Intervals are held to it where what they
assume is so.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest


def benchmark(name):
    """The module of that name in benchmarks/."""
    path = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_simulation", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


simulation, page_of_tables = benchmark("coverage"), benchmark("coverage_page")

REPLICATIONS = 2000
#: Data sets of a row in the slow tests, and at least in the file of variances.
FEW = 400
FLOOR = 0.92 - 2.0 * np.sqrt(0.92 * 0.08 / REPLICATIONS)
CEILING = 0.98 + 2.0 * np.sqrt(0.98 * 0.02 / REPLICATIONS)


def band_of(replications):
    """Where the coverage in so many data sets lies, within 2.5 standard errors of the band."""
    ends = ((0.92, -1.0), (0.98, 1.0))
    return [at + side * 2.5 * np.sqrt(at * (1.0 - at) / replications) for at, side in ends]


def test_a_large_sample_agrees_with_the_enumeration():
    """A large sample from the enumerated policy is covered by narrow 99.9 % intervals."""
    from gradstats import estimators
    from gradstats.stats import compare

    policy = simulation.policy()
    batch, scores, _ = policy.sample(6000, 3, 0)
    names = ["reinforce", "rloo", "grpo", "token_mean"]
    frame = compare(batch, names, scores).to_frame(0.999)
    for position, name in enumerate(names):
        exact = policy.moments(estimators.get(name), 3)
        for quantity in ("trace_cov", "signal_sq", "noise_to_signal", "cosine"):
            low, high = frame[f"{quantity}_low"].iloc[position], frame[f"{quantity}_high"].iloc[position]
            assert low - 1e-9 <= getattr(exact, quantity) <= high + 1e-9, (name, quantity)  # an exact 1 is rounded
        assert frame["trace_cov_high"].iloc[position] < 1.3 * frame["trace_cov_low"].iloc[position]


def test_the_heavy_tailed_population_is_what_its_description_says():
    batch, gram = simulation.heavy_tailed_population()
    assert batch.sq_norms.sum() ** 2 / np.sum(batch.sq_norms**2) == pytest.approx(29.5, abs=0.05)
    assert np.log(batch.sq_norms).std() == pytest.approx(2.03, abs=0.005)
    np.testing.assert_array_equal(batch.group_sizes, np.full(96, 8))
    assert set(batch.rewards) == {0.0, 1.0}
    np.testing.assert_array_equal(gram, gram.T)
    assert gram.shape == (768, 768)


def test_few_replications_run():
    frame = simulation.alpha_coverage("prompts repeat", "ols", 30, 3)
    assert list(frame["interval"]) == ["t", "hc3", "cluster", "bootstrap"]
    assert list(frame["default"]) == [False, False, True, False]
    assert list(simulation.alpha_coverage("prompts repeat", "ols", 30, 3, quick=True)["interval"]) == list(
        frame["interval"].iloc[:3]
    )
    mundlak = simulation.alpha_coverage("prompts repeat", "mundlak", 30, 3)
    assert mundlak["true_alpha"].item() == pytest.approx(0.8742 - 0.7, abs=1e-4)
    assert simulation.alpha_coverage(simulation.ONE_SLOPE, "mundlak", 30, 3)["true_alpha"].item() == 0.0
    assert len(simulation.variance_coverage(2, 30, 2)) == 40  # eight quantities of five estimators


@pytest.mark.slow
@pytest.mark.parametrize("n", [30, 100, 1000])
@pytest.mark.parametrize("scenario", simulation.SCENARIOS)
def test_intervals_of_alpha_cover(scenario, n):
    """Without the bootstrap and Theil–Sen, which take minutes; the file has them."""
    floor, ceiling = band_of(FEW)
    for method in simulation.methods_of(scenario):
        for row in simulation.alpha_coverage(scenario, method, n, FEW, quick=True).to_dict("records"):
            if simulation.claimed(scenario, method, row["interval"]):
                assert floor <= row["coverage"] <= ceiling, row


@pytest.mark.slow
@pytest.mark.parametrize(("group_size", "n_prompts"), simulation.VARIANCE_SIZES)
def test_intervals_of_variances_cover(group_size, n_prompts):
    floor, ceiling = band_of(FEW)
    for row in simulation.variance_coverage(group_size, n_prompts, FEW).to_dict("records"):
        assert row["coverage"] >= floor, row
        assert simulation.may_cover_more(row) or row["coverage"] <= ceiling, row


def test_the_tables_of_the_page_are_those_of_the_files():
    page = page_of_tables.PAGE.read_text(encoding="utf-8")
    assert page_of_tables.page_with_tables(page) == page
    assert "| `cluster` (default) |" in page


def test_the_committed_coverage_is_what_is_claimed():
    """The files hold every case within the bands that the slow tests hold the code to."""
    alpha = pd.read_csv(simulation.FOLDER / "coverage_alpha.csv")
    assert set(alpha["replications"]) == {REPLICATIONS}
    assert set(alpha["n"]) == {30, 100, 1000}
    for row in alpha.to_dict("records"):
        if simulation.claimed(row["scenario"], row["method"], row["interval"]):
            assert FLOOR <= row["coverage"] <= CEILING, row
    variance = pd.read_csv(simulation.FOLDER / "coverage_variance.csv")
    assert set(zip(variance["group_size"], variance["n_prompts"], strict=True)) == set(simulation.VARIANCE_SIZES)
    (replications,) = set(variance["replications"])
    assert replications >= FEW
    floor, ceiling = band_of(replications)
    for row in variance.to_dict("records"):
        assert row["coverage"] >= floor, row
        assert simulation.may_cover_more(row) or row["coverage"] <= ceiling, row


def test_the_remaining_intervals_cover_as_the_page_says():
    """No row below what "where it fails" states, and every column named there."""
    others = pd.read_csv(simulation.FOLDER / "coverage_others.csv")
    planned = others["quantity"].str.startswith("plan")
    assert others.loc[~planned, "coverage"].min() >= 0.85
    enough = others.loc[~planned & (others["n_prompts"] == 100) & (others["quantity"] != "equivalent_group_size")]
    assert (enough["coverage"] >= 0.92).all()
    assert others.loc[planned, "coverage"].min() >= 0.8 - 2.0 * np.sqrt(0.8 * 0.2 / 300)
    listed = page_of_tables.PAGE.read_text(encoding="utf-8").split("## Every interval")[1].split("## Example")[0]
    from gradstats.stats.variance.quantities import COMPARED, VARIANCE_COMPONENTS

    for name in [*(one.name for one in (*COMPARED, *VARIANCE_COMPONENTS)), "tokens_saved", "equivalent_group_size"]:
        assert f"`{name}`" in listed, name
