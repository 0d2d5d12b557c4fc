"""Tables that break down a run's variance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from gradstats import Rollouts, equivalent_group_size, variance_by_length
from gradstats.config.experiment import VarianceSection
from gradstats.runs.analysis import length_bins, variance_breakdowns


@dataclass
class Measured:
    """The fields of a measurement that a comparison reads."""

    rollouts: Rollouts
    sketches: np.ndarray
    sq_norms: np.ndarray


def measured(per_prompt, n_prompts=40, seed=0):
    rng = np.random.default_rng(seed)
    n = n_prompts * per_prompt
    rewards = (rng.random(n) < 0.5).astype(float)
    scores = rng.standard_normal((n, 64)) + 0.2 * rewards[:, None]
    rollouts = Rollouts.from_sequences(
        [[1]] * n,
        [[2] * length for length in rng.integers(3, 30, n)],
        rewards,
        [f"p{i // per_prompt}" for i in range(n)],
    )
    return Measured(rollouts, scores, np.einsum("nd,nd->n", scores, scores))


SECTION = VarianceSection(estimators=["rloo", "group_mean", "batch_mean", "token_mean(loo=True)"])


def test_tables_of_eight_completions():
    pool = measured(8)
    found = variance_breakdowns(pool, SECTION)
    assert list(found) == ["group_sizes", "equivalent_group_size", "allocation", "length_bins", "success_bins"]
    sizes = found["group_sizes"]
    # A batch-level estimator has no group size.
    assert set(sizes["estimator"]) == {"rloo", "group_mean", "token_mean(loo=True)"}
    assert sorted(set(sizes["group_size"])) == [2, 4, 8]
    assert sizes["within_prompt"].notna().tolist() == (sizes["group_size"] < 8).tolist()
    assert sizes.columns.is_unique
    assert sizes.columns[-6:].to_list() == [
        f"{name}{end}" for name in ("within_prompt", "between_prompt") for end in ("", "_low", "_high")
    ]
    assert sizes.attrs["reference"] == "rloo"
    equal = found["equivalent_group_size"].set_index("estimator")
    alone = equivalent_group_size(pool, "token_mean(loo=True)", 4)
    assert equal.loc["token_mean(loo=True)", "equivalent_group_size"] == pytest.approx(alone.value)
    assert equal.loc["rloo", "equivalent_group_size"] == pytest.approx(4.0)


def test_the_bins_of_length_are_of_every_estimator_that_can_be_split():
    """The reference comes first; each bin of a baseline's own-sample mean keeps (N−1)/N of the gradient."""
    pool = measured(4, n_prompts=400)
    section = VarianceSection(estimators=["group_mean", "batch_mean", "otb", "rloo"])
    frame, notes = length_bins(pool, section, n_bins=2)
    assert frame["estimator"].tolist() == ["rloo", "rloo", "group_mean", "group_mean"]
    assert frame["scale"].tolist() == pytest.approx([1.0, 1.0, 0.75, 0.75])
    assert notes[0] == "batch_mean is a batch-level estimator, which is not split by length"
    assert notes[1].startswith("otb needs")
    alone = variance_by_length(pool, "group_mean", n_bins=2, group_size=2).to_frame()
    halves, _ = length_bins(pool, section, n_bins=2, group_size=2)
    assert halves["trace_cov"].tolist()[2:] == pytest.approx(alone["trace_cov"].tolist())


def test_gradients_are_split_by_success_once_for_each_unit():
    labels = ["reinforce", "rloo", "recipe:grpo", "recipe:gspo", "recipe:dr_grpo(max_tokens=50)", "batch_mean", "gae"]
    frame = variance_breakdowns(measured(8), VarianceSection(estimators=labels, reference="rloo"))["success_bins"]
    # recipe:gspo has the unit of recipe:grpo; batch_mean is batch-level, and gae needs values.
    assert list(dict.fromkeys(frame["estimator"])) == ["rloo", "recipe:grpo", "recipe:dr_grpo(max_tokens=50)"]
    for _, rows in frame.groupby("estimator"):
        assert rows["success_low"].is_monotonic_increasing
        assert rows["share_of_variance"].sum() == pytest.approx(1.0)
    assert set(frame["group_size"]) == {4.0}


def test_what_the_data_do_not_allow_is_missing():
    assert list(variance_breakdowns(measured(2), SECTION)) == ["group_sizes", "allocation", "length_bins"]
    assert list(variance_breakdowns(measured(1), SECTION)) == ["length_bins"]
