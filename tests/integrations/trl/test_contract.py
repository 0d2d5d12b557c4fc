"""One generated batch: rewards of all processes, completions of one."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import trl
from small_trainers import small_trainer

from gradstats import estimators as families
from gradstats.config.sections import SamplingSection
from gradstats.integrations.installed import is_known
from gradstats.integrations.trl.contract import (
    Generation,
    check_trainer,
    intercept,
    own_estimator,
    sampler_settings,
)
from gradstats.system.environment import installed


@pytest.fixture(scope="module")
def trainers(tmp_path_factory):
    return {kind: small_trainer(kind, tmp_path_factory.mktemp(kind)) for kind in ("GRPO", "RLOO")}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_this_version_is_known(trainers, kind):
    assert installed("trl") == trl.__version__
    assert is_known("trl", trl.__version__)
    check_trainer(trainers[kind])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("unchecked")
def test_another_object_is_refused():
    with pytest.raises(TypeError, match="is a SimpleNamespace: attach to TRL's GRPOTrainer or RLOOTrainer"):
        check_trainer(SimpleNamespace())  # pyright: ignore[reportArgumentType]


def of_accelerator(**plugin):
    return SimpleNamespace(process_index=0, state=SimpleNamespace(**plugin))


#: What differs in a trainer → why it is refused.
UNSUITED = [
    (
        {"_calculate_rewards": lambda inputs, prompts: None},
        rf"takes inputs, prompts and not inputs, .*TRL {trl.__version__} is",
    ),
    ({"_metrics": None}, rf"RLOOTrainer has no _metrics: TRL {trl.__version__}"),
    ({"accelerator": of_accelerator(deepspeed_plugin=SimpleNamespace(zero_stage=3))}, "under DeepSpeed ZeRO-3 no"),
    ({"accelerator": of_accelerator(fsdp_plugin=SimpleNamespace())}, "under FSDP no process holds whole parameters"),
    ({"multi_objective_aggregation": "normalize_then_sum"}, 'train with "sum_then_normalize"'),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("differing", "message"), UNSUITED)
def test_a_trainer_that_differs_is_refused(trainers, monkeypatch, differing, message):
    ((name, value),) = differing.items()
    trainer = trainers["RLOO" if name == "_metrics" else "GRPO"]
    if value is None:
        monkeypatch.delattr(trainer, name)
    else:
        monkeypatch.setattr(trainer, name, value, raising=False)
    with pytest.raises((TypeError, ValueError), match=message):
        check_trainer(trainer)


def generation(process_index: int = 0, weights=(1.0,), rewards=None, clip=None, **output) -> Generation:
    """Three completions of each of two processes, in two groups of three: the groups of process 1 end inside."""
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(process_index=process_index),
        num_generations=3,
        reward_weights=torch.tensor(weights),
        reward_clip_range=clip,
        processing_class=SimpleNamespace(pad_token_id=0),
        eos_token_ids=[1],
        temperature=0.8,
        args=SimpleNamespace(generation_kwargs={"top_k": 7}, top_p=0.9, top_k=0, min_p=None, repetition_penalty=1.0),
    )
    tensors = {
        "prompt_ids": torch.tensor([[0, 5], [4, 5], [0, 6]]),
        "prompt_mask": torch.tensor([[0, 1], [1, 1], [0, 1]]),
        "completion_ids": torch.tensor([[7, 8, 1, 0], [7, 7, 7, 7], [9, 1, 0, 0]]),
        "completion_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]]),
    } | output
    rewards = torch.arange(6.0)[:, None] if rewards is None else torch.tensor(rewards)
    return Generation(trainer, tensors, rewards)  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("unchecked")
def test_padding_is_left_out():
    rollouts = generation().rollouts()
    assert rollouts.frame["prompt_tokens"].tolist() == [[5], [4, 5], [6]]
    assert rollouts.frame["completion_tokens"].tolist() == [[7, 8, 1], [7, 7, 7, 7], [9, 1]]
    assert rollouts.frame["finish_reason"].tolist() == ["stop", "length", "stop"]
    expected = {"temperature": 0.8, "top_p": 0.9, "top_k": 7, "min_p": None, "repetition_penalty": 1.0}
    assert rollouts.metadata["sampler"] == dict.fromkeys(SamplingSection.fields_that("reshapes")) | expected


@pytest.mark.usefixtures("unchecked")
def test_a_group_of_two_processes_keeps_its_number():
    first, second = generation(0), generation(1)
    first.trainer.num_generations = second.trainer.num_generations = 2
    assert first.n_groups == second.n_groups == 3
    assert [*first.rollouts().prompt_id, *second.rollouts().prompt_id] == ["0", "0", "1", "1", "2", "2"]
    assert [*first.rollouts().sample_id, *second.rollouts().sample_id] == [0, 1, 0, 1, 0, 1]
    assert [*first.rollouts().rewards, *second.rollouts().rewards] == [0, 1, 2, 3, 4, 5]
    assert second.rollouts([0]) is None
    assert second.rollouts([1]).rewards.tolist() == [3.0]


@pytest.mark.usefixtures("unchecked")
def test_rewards_are_weighted_and_clipped():
    nan = float("nan")
    rewards = [[1.0, 2.0], [nan, 3.0], [nan, nan], [0.0, 0.0], [9.0, 9.0], [1.0, 1.0]]
    found = generation(weights=(0.5, 2.0), rewards=rewards, clip=(-1.0, 5.0))
    np.testing.assert_array_equal(found.rewards(), np.float32([4.5, 5.0, nan, 0.0, 5.0, 2.5]))
    assert found.usable().tolist() == [True, True, False]
    assert len(found.rollouts()) == 2


@pytest.mark.usefixtures("unchecked")
def test_the_output_of_tools_does_not_count():
    mask = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]])
    drawn, old = -torch.arange(12.0).reshape(3, 4), -torch.arange(12.0, 24.0).reshape(3, 4)
    found = generation(tool_mask=mask, sampling_per_token_logps=drawn, old_per_token_logps=old)
    rollouts = found.rollouts()
    masks = [list(map(bool, row)) for row in rollouts.frame["completion_mask"]]
    assert masks == [[True, False, True], [False] * 4, [True, True]]
    assert rollouts.frame["sampler_logprobs"].tolist()[::2] == [[-0.0, -1.0, -2.0], [-8.0, -9.0]]
    assert rollouts.frame["proximal_logprobs"].tolist()[::2] == [[-12.0, -13.0, -14.0], [-20.0, -21.0]]
    assert rollouts.lengths.tolist() == [2, 0, 2]
    own = generation(tool_mask=mask, old_per_token_logps=old).rollouts()
    assert own.frame["sampler_logprobs"].tolist() == own.frame["proximal_logprobs"].tolist()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("tools", [{}, {"tool_mask": torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]])}])
def test_a_truncated_completion_that_is_masked_keeps_its_tokens_and_its_reward(tools):
    """TRL empties its masks; its completion ends in no padding, and may be shorter than the longest."""
    ids = torch.tensor([[7, 8, 1, 0], [7, 0, 7, 0], [9, 1, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 0, 0]])
    rollouts = generation(completion_ids=ids, completion_mask=mask, **tools).rollouts()
    assert rollouts.frame["completion_tokens"].tolist() == [[7, 8, 1], [7, 0, 7], [9, 1]]
    assert rollouts.lengths.tolist() == [2 if tools else 3, 0, 2]
    assert rollouts.rewards.tolist() == [0.0, 1.0, 2.0]
    assert rollouts.truncated.tolist() == [False, True, False]


class Trainer(SimpleNamespace):
    """A trainer by its name alone."""


@pytest.mark.usefixtures("unchecked")
class TestOwnEstimator:
    """Its advantages are the trainer's, and it divides by length as the loss does."""

    @pytest.mark.parametrize("loss_type", ["grpo", "sapo", "dapo", "bnpo", "dr_grpo", "cispo", "luspo", "vespo", None])
    @pytest.mark.parametrize("scale", ["group", True, "batch", "none", False])
    def test_of_the_trainer(self, loss_type, scale):
        scaled = scale in ("group", True)
        expected = "grpo" if scaled else "group_mean"
        if loss_type in ("grpo", "sapo"):
            expected = "recipe:grpo(ratio=none)" if scaled else "recipe:grpo(scale=none, ratio=none)"
        trainer = Trainer(loss_type=loss_type, args=SimpleNamespace(scale_rewards=scale))
        assert own_estimator(trainer) == expected  # pyright: ignore[reportArgumentType]
        families.get(expected)

    @pytest.mark.parametrize(
        ("used", "plain", "by_length"),
        [
            ("length_weighted(alpha=0.8, loo=True)", None, "length_weighted(alpha=0.8, loo=True) · sequence_mean"),
            ("recipe:dr_grpo", "group_mean", "group_mean · sequence_mean"),
            ("recipe:dapo", "group_mean · group_std · sequence_sum", "group_mean · group_std · sequence_mean"),
            (
                "recipe:grpo(kl=in_reward, reward=soft_overlong, max=8, cache=4)",
                "group_mean · group_std · sequence_sum · in_reward · soft_overlong(max=8, cache=4)",
                "group_mean · group_std · sequence_mean · in_reward · soft_overlong(max=8, cache=4)",
            ),
            (
                "recipe:grpo(kl=in_loss, filter=dynamic_sampling)",
                "group_mean · group_std · sequence_sum",
                "group_mean · group_std · sequence_mean",
            ),
        ],
    )
    def test_of_one_in_use(self, used, plain, by_length):
        expected = {"dapo": plain or used, "grpo": by_length}
        for loss_type, composition in expected.items():
            trainer = Trainer(loss_type=loss_type, gradstats_estimator=SimpleNamespace(estimator=families.get(used)))
            label = own_estimator(trainer)  # pyright: ignore[reportArgumentType]
            assert families.get(label).composition == composition


@pytest.mark.filterwarnings("ignore")
def test_only_training_batches_are_handed_over(tmp_path):
    trainer = small_trainer("GRPO", tmp_path)
    seen: list[Generation] = []
    intercept(trainer, seen.append)
    inputs = [{"prompt": "one"}] * 12
    trainer.model.eval()
    trainer._generate_and_score_completions(inputs)
    assert not seen
    trainer.model.train()
    trainer._generate_and_score_completions(inputs)
    assert len(seen) == 1
    assert seen[0].rewards_per_function.shape == (12, 1)
    assert sampler_settings(trainer)["temperature"] == 1.0
