"""Estimators in the form of verl: equal to this package's own, whatever the mask, and what happens on bad batches."""

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


def test_rloo_by_hand():
    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.5, 0.0]])
    mask = torch.tensor([[1, 1], [1, 1], [1, 0]])
    advantages, _ = chosen("rloo")(rewards, mask, np.array(["a", "a", "a"], dtype=object))
    np.testing.assert_allclose(advantages, [[0.75, 0.75], [-0.75, -0.75], [0.0, 0.0]])


class TestBadBatches:
    def test_unusable_completions_are_left_out_and_counted(self):
        rewards, mask = verl_batch()
        rewards[3, 0], mask[5] = float("nan"), 0
        function = chosen("rloo")
        advantages, _ = function(rewards, mask, PROMPTS)
        keep = [0, 1, 2, 4, 6]
        alone, _ = chosen("rloo")(rewards[keep], mask[keep], PROMPTS[keep])
        np.testing.assert_array_equal(advantages[keep], alone)
        assert not advantages[[3, 5]].any()
        assert function.n_left_out == 2

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


class TestNames:
    def test_what_verl_can_compute_is_registered(self):
        names = set(advantage_functions({}))
        assert {"gradstats/rloo", "gradstats/grpo", "gradstats/recipe:dapo", "gradstats/asymmetric"} <= names
        assert "gradstats" not in names
        assert not {"gradstats/otb", "gradstats/norm_weighted", "gradstats/gae", "gradstats/remax"} & names

    def test_the_variable_gives_parameters(self):
        label = "length_weighted(alpha=0.8, loo=True)"
        function = advantage_functions({"GRADSTATS_ESTIMATOR": label})["gradstats"]
        assert function.estimator.label == label

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
