"""Estimators in the form of verl: equal to this package's own, whatever the mask, and what happens on bad batches."""

import warnings

import numpy as np
import pytest
import torch
from verl_batches import PROMPTS, verl_batch

from gradstats import estimators as families
from gradstats.estimators.batch import Batch
from gradstats.integrations.verl_advantages import advantage_functions, chosen, known_labels


@pytest.mark.parametrize("label", [*known_labels(), "length_weighted(alpha=0.8, loo=True)", "kimi(tau=0.5)"])
def test_advantages_are_those_of_the_estimator(label):
    rewards, mask = verl_batch()
    advantages, returns = chosen(label)(token_level_rewards=rewards, response_mask=mask, index=PROMPTS, config=None)
    counted = mask.numpy().astype(bool)
    batch = Batch(rewards.double().sum(1).numpy(), counted.sum(1), PROMPTS.astype(str), mask=counted)
    expected = families.get(label).advantages(batch)
    expected = expected if expected.ndim == 2 else expected[:, None] * np.ones(9)
    np.testing.assert_allclose(advantages.numpy(), np.where(counted, expected, 0.0), rtol=1e-6, atol=1e-7)
    assert advantages.dtype == rewards.dtype
    assert torch.equal(advantages, returns)
    assert advantages.data_ptr() != returns.data_ptr()


class TestBadBatches:
    def test_completions_without_a_reward_are_left_out_and_counted(self):
        rewards, mask = verl_batch()
        rewards[3, 0], mask[5] = float("nan"), 0
        function = chosen("rloo")
        advantages, _ = function(rewards, mask, PROMPTS)
        keep = [0, 1, 2, 4, 5, 6]
        alone, _ = chosen("rloo")(rewards[keep], mask[keep], PROMPTS[keep])
        np.testing.assert_array_equal(advantages[keep], alone)
        assert not advantages[[3, 5]].any()
        assert function.n_left_out == 1

    def test_those_without_a_token_that_counts_vote(self):
        rewards = torch.tensor([[0.0, 0, 4], [0, 0, 1], [0, 0, 3]])
        mask = torch.tensor([[0, 0, 0], [1, 0, 1], [1, 1, 1]])
        advantages, _ = chosen("rloo")(rewards, mask, np.array(["p"] * 3, dtype=object))
        np.testing.assert_allclose(advantages, [[0, 0, 0], [-2.5, 0, -2.5], [0.5, 0.5, 0.5]])

    @pytest.mark.parametrize(
        ("prompts", "message"),
        [
            (["a", None, "a"], "groups has no label at completion 1, but None"),
            ([1.0, float("nan"), 1.0], "groups has no label at completion 1, but nan"),
            ([1, "1", 1], r"groups mixes numbers and text \(1 and '1'\)"),
        ],
    )
    def test_prompts_that_cannot_be_told_apart(self, prompts, message):
        with pytest.raises(ValueError, match=message):
            chosen("rloo")(torch.ones(3, 2), torch.ones(3, 2), np.array(prompts, dtype=object))

    def test_the_first_batch_fails_and_a_later_one_is_skipped(self):
        rewards, mask = verl_batch()
        nothing = torch.full_like(rewards, float("nan"))
        function = chosen("rloo")
        with pytest.raises(ValueError, match="no completion has a finite reward and a token that counts"):
            function(nothing, mask, PROMPTS)
        function(rewards, mask, PROMPTS)
        with pytest.warns(RuntimeWarning, match=r"rloo: a batch has advantages of 0 .*training continues"):
            advantages, _ = function(nothing, mask, PROMPTS)
        assert not advantages.any()
        assert (function.n_computed, function.n_skipped) == (1, 1)

    def test_a_batch_without_prompts_is_refused(self):
        with pytest.raises(ValueError, match=r"rloo needs the prompt of each completion \(uid\)"):
            chosen("rloo")(*verl_batch())


class TestGroupsOfOne:
    """As in verl, a completion that is alone gets its reward."""

    REWARDS, MASK = torch.tensor([[0, 1.0], [0, 0.5], [0, 0.25], [0, 0.75]]), torch.ones(4, 2)
    SINGLE = ("rloo", "grpo", "group_mean", "token_mean", "recipe:grpo", "recipe:dapo", "dr_grpo", "recipe:rloo")

    @pytest.mark.parametrize("label", SINGLE)
    def test_beside_others(self, label):
        function = chosen(label)
        advantages, _ = function(self.REWARDS, self.MASK, np.array([*"abbb"], dtype=object))
        assert advantages[0].tolist() == [1.0, 1.0]
        three, _ = chosen(label)(self.REWARDS[1:], self.MASK[1:], np.array([*"bbb"], dtype=object))
        np.testing.assert_array_equal(advantages[1:], three)
        assert function.estimator.label == label

    @pytest.mark.parametrize("label", SINGLE)
    def test_alone_are_said_once(self, label):
        function = chosen(label)
        with pytest.warns(
            RuntimeWarning, match=r"every prompt has one completion.*set actor_rollout_ref\.rollout\.n=2"
        ):
            advantages, _ = function(self.REWARDS, self.MASK, np.array([*"abcd"], dtype=object))
        np.testing.assert_array_equal(advantages[:, 0], self.REWARDS.sum(1))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            function(self.REWARDS, self.MASK, np.array([*"abcd"], dtype=object))

    @pytest.mark.parametrize("label", ["reinforce", "batch_mean", "reinforce_pp", "constant(b=0.5)"])
    def test_are_nothing_to_say_where_prompts_are_not_compared(self, label):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            chosen(label)(self.REWARDS, self.MASK, np.array([*"abcd"], dtype=object))

    def test_follow_a_rule_that_is_stated(self):
        advantages, _ = chosen("rloo(singleton=zero)")(self.REWARDS, self.MASK, np.array([*"abbb"], dtype=object))
        assert not advantages[0].any()


class TestNames:
    def test_what_verl_can_compute_is_registered(self):
        names = set(advantage_functions({}))
        assert {"gradstats/rloo", "gradstats/grpo", "gradstats/recipe:dapo", "gradstats/asymmetric"} <= names
        assert "gradstats" not in names
        label = "length_weighted(alpha=0.8, loo=True)"
        assert advantage_functions({"GRADSTATS_ESTIMATOR": label})["gradstats"].estimator.label == label
        assert not {"gradstats/otb", "gradstats/norm_weighted", "gradstats/gae", "gradstats/remax"} & names

    @pytest.mark.parametrize(
        ("label", "message"),
        [
            ("rlo", "GRADSTATS_ESTIMATOR is 'rlo': .*rloo"),
            ("otb", "GRADSTATS_ESTIMATOR is 'otb': otb needs logprobs, which verl does not pass on"),
            ("length_weighted", "'length_weighted': .*needs a value for alpha"),
        ],
    )
    def test_a_label_that_cannot_be_used_is_said_when_it_is_called(self, label, message):
        function = advantage_functions({"GRADSTATS_ESTIMATOR": label})["gradstats"]
        with pytest.raises(ValueError, match=message):
            function(token_level_rewards=None, response_mask=None, index=None)
