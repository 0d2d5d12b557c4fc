"""The number of prompts that resolves the expected gradient."""

import numpy as np
import pytest
from comparison_batches import quiet_compare, sized_batch
from scipy import stats

from gradstats.stats import plan_signal


def test_the_size_solves_its_equation():
    batch, scores = sized_batch(n_prompts=60)
    compared = quiet_compare(batch, ["reinforce", "rloo"], scores, group_size=4)
    plan = plan_signal(compared, "reinforce")
    z, z_80 = stats.norm.ppf([0.975, 0.8])

    def margin(m):
        return z * np.sqrt(4 * plan.linear / m + 4 * plan.quadratic / m**2) + z_80 * np.sqrt(
            4 * plan.linear / m + 2 * plan.quadratic / m**2
        )

    assert margin(plan.n_prompts) <= plan.signal_sq < margin(plan.n_prompts - 1) or plan.n_prompts == 3
    assert plan.n_prompts_low <= plan.n_prompts <= plan.n_prompts_assured <= plan.n_prompts_high
    assert plan.completions_per_prompt == 8
    assert plan.tokens_per_completion == pytest.approx(batch.lengths.mean())
    assert plan.sentence().startswith("‖E ĝ‖² of reinforce resolved (95% interval above 0 in 80% of studies) takes")


def test_a_signal_that_may_be_zero_has_no_upper_end():
    batch, scores = sized_batch(n_prompts=20)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], 20)
    compared = quiet_compare(batch, ["reinforce", "rloo"], scores * signs[batch.group_index][:, None], group_size=8)
    plan = plan_signal(compared, "rloo")
    assert plan.n_prompts_high == np.inf
    assert "∞" in plan.sentence()


def test_refusals():
    batch, scores = sized_batch(n_prompts=20)
    compared = quiet_compare(batch, ["rloo", "reinforce"], scores, group_size=4)
    with pytest.raises(ValueError, match="estimator='grpo' is not in the pilot: choose from rloo, reinforce"):
        plan_signal(compared, "grpo")
    several = quiet_compare(batch, ["rloo", "reinforce"], scores, group_size=[2, 4])
    with pytest.raises(ValueError, match="several group sizes: compare at one group size"):
        plan_signal(several, "rloo")
    silent = quiet_compare(
        batch.with_fields(rewards=np.ones(len(batch.rewards))), ["reinforce", "rloo"], scores, reference="reinforce"
    )
    with pytest.raises(ValueError, match="no interval of ‖E g‖² for 'rloo' from at least 4 prompts"):
        plan_signal(silent, "rloo")
    batch_level = quiet_compare(batch, ["batch_mean", "rloo"], scores, group_size=4)
    with pytest.raises(ValueError, match="no interval of ‖E g‖² for 'batch_mean'.*choose a group-level estimator"):
        plan_signal(batch_level, "batch_mean")
