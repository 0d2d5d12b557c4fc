"""Variance within and between prompts, against loops."""

import numpy as np
import pandas as pd
import pytest
from comparison_batches import correlated_batch, quietly
from scipy import stats

from gradstats import estimators as est
from gradstats.plots.names import rows_of_one_unit
from gradstats.stats import compare
from gradstats.stats.variance.moments import prompt_moments, split_into_groups
from gradstats.stats.variance.quantities import VARIANCE_COMPONENTS


def test_variance_components_equal_loops():
    batch, scores = correlated_batch(n_prompts=12, size=8)
    result = quietly(compare, batch, ["rloo", "token_mean"], scores, group_size=4)
    frame = result.variance_components()
    pd.testing.assert_frame_equal(result.prompt_parts(), frame)  # the name in version 0.1
    for position, name in enumerate(["rloo", "token_mean"]):
        spreads = []
        for prompt in range(12):
            gradients = []
            for part in range(2):
                rows = np.arange(4) + 8 * prompt + 4 * part
                gradients.append(est.get(name).weights(batch.select(rows)) @ scores[rows])
            spreads.append(((np.array(gradients) - np.mean(gradients, axis=0)) ** 2).sum())
        assert frame["within_prompt"].iloc[position] == pytest.approx(np.mean(spreads), rel=1e-10)
        logs = np.log([(np.sum(spreads) - s) / 11 for s in spreads])
        margin = stats.t.ppf(0.975, 11) * np.sqrt(11 / 12 * ((logs - logs.mean()) ** 2).sum())
        # The lower end; the upper one is raised to that of lognormal samples.
        assert frame["within_prompt_low"].iloc[position] == pytest.approx(np.mean(spreads) * np.exp(-margin), rel=1e-8)
    total = frame["within_prompt"] + frame["between_prompt"]
    np.testing.assert_allclose(total, result.to_frame()["trace_cov"], rtol=1e-10)


@pytest.mark.parametrize("reference", ["rloo", "recipe"])
def test_variance_components_are_read_in_the_same_unit_as_the_comparison(reference):
    """Both frames of a comparison keep the rows in the unit of its reference, in a frame by themselves as well."""
    batch, scores = correlated_batch(n_prompts=12, size=8)
    recipe = est.Recipe("group_mean", scale="group_std", name="mine")  # no label of the registry names its unit
    chosen = {"rloo": est.get("rloo"), "recipe": recipe}
    result = quietly(compare, batch, list(chosen.values()), scores, group_size=4, reference=chosen[reference])
    components, compared = result.variance_components(0.9), result.to_frame(0.9)
    assert components.attrs.items() <= compared.attrs.items()
    assert components.attrs["reference"] == chosen[reference].label
    assert components.attrs["confidence_level"] == 0.9
    pd.testing.assert_series_equal(components["unit"], compared["unit"])
    for frame in (components, compared):
        assert rows_of_one_unit(frame, VARIANCE_COMPONENTS)[0]["estimator"].to_list() == [chosen[reference].label]


def test_variance_components_need_two_groups_of_a_prompt():
    batch, scores = correlated_batch(n_prompts=12, size=4)
    with pytest.raises(ValueError, match="every prompt has a single group.*at most half"):
        quietly(compare, batch, ["rloo"], scores).variance_components()


@pytest.mark.parametrize("group_size", [None, 2])
def test_moments_equal_loops_over_prompts(group_size):
    """E‖g‖², ‖E g‖² and the variance within prompts, and their values without each prompt."""
    rng = np.random.default_rng(0)
    prompts = np.repeat(np.arange(5), 4)
    groups = split_into_groups(prompts, np.arange(20), group_size)
    scores, weights, surplus = rng.normal(size=(20, 3)), rng.normal(size=20), rng.random(20)
    moments = prompt_moments(scores, weights, groups, surplus)

    def by_loops(kept):
        squares, means, within = [], [], []
        for prompt in kept:
            members = [np.flatnonzero(groups.group == g) for g in np.flatnonzero(groups.prompt == prompt)]
            gradients = [weights[rows] @ scores[rows] for rows in members]
            extra = [weights[rows] ** 2 @ surplus[rows] for rows in members]
            squares.append(np.mean([g @ g + e for g, e in zip(gradients, extra, strict=True)]))
            means.append(np.mean(gradients, axis=0))
            deviations = [g - means[-1] for g in gradients]
            if len(gradients) > 1:
                within.append(sum(d @ d for d in deviations) / (len(gradients) - 1) + np.mean(extra))
        pairs = [a @ b for i, a in enumerate(means) for j, b in enumerate(means) if i != j]
        return np.mean(squares), np.mean(pairs), np.mean(within) if within else np.nan

    names = ("second_moment", "signal") if group_size is None else ("second_moment", "signal", "within")
    assert (moments.within is None) == (group_size is None)
    for position, name in enumerate(names):
        statistic = getattr(moments, name)
        assert statistic.value == pytest.approx(by_loops(range(5))[position])
        without = [by_loops([p for p in range(5) if p != left])[position] for left in range(5)]
        np.testing.assert_allclose(statistic.replicates, without)


def test_groups_are_split_in_sample_order():
    groups = split_into_groups(np.array([0, 0, 1, 0, 1, 1, 0]), np.arange(7)[::-1], 2)
    np.testing.assert_array_equal(groups.rows, [6, 3, 1, 0, 5, 4])
    np.testing.assert_array_equal(groups.group, [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(groups.prompt, [0, 0, 1])
    assert groups.n_leftover == 1
