"""TRL's own advantages and losses against ours: what autograd of its loss weights each token's score by."""

import numpy as np
import pytest
import torch
from small_trainers import GROUP_SIZE, PROMPTS, drawn, odd_rewards, small_trainer

from gradstats.estimators import Batch, get, recipes
from gradstats.integrations.training_record import plain_label
from gradstats.integrations.trl import use_estimator
from gradstats.integrations.trl.contract import Generation, own_estimator

pytestmark = pytest.mark.filterwarnings("ignore")

SCALES = ("group", "batch", "none")
#: ``loss_type`` and what it is used with.
LOSSES = {
    "grpo": {}, "sapo": {}, "bnpo": {}, "dapo": {"delta": 1.15}, "vespo": {}, "cispo": {"epsilon_high": 1.2},
    "dr_grpo": {"off_policy_mask_threshold": 0.05}, "luspo": {"importance_sampling_level": "sequence", "epsilon": 0.05},
}  # fmt: skip


@pytest.fixture(scope="module")
def trainers(tmp_path_factory):
    """GRPOTrainers that draw the same completions, by ``loss_type``; about half of these are truncated."""
    return {
        name: small_trainer("GRPO", tmp_path_factory.mktemp(name), loss_type=name, max_completion_length=6, **given)
        for name, given in LOSSES.items()
    }


def weights_in_loss(trainer, output) -> tuple[np.ndarray, torch.Tensor]:
    """−∂ loss/∂ log π of every token, in float64, and these log π."""
    rng = np.random.default_rng(3)
    logprobs = torch.tensor(-rng.random(output["completion_ids"].shape), requires_grad=True)
    entropies = torch.zeros_like(logprobs)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs, entropies, None)
    trainer.current_gradient_accumulation_steps = 1
    (gradient,) = torch.autograd.grad(trainer._compute_loss(trainer.model, output), logprobs)
    return -gradient.numpy(), logprobs.detach()


def batch_of(seen: Generation, **fields) -> Batch:
    """The batch as TRL masks it."""
    found = seen.mask().numpy()
    groups = np.arange(len(found)) // GROUP_SIZE
    return Batch(seen.rewards().double().numpy(), found.sum(axis=1), groups, found, **fields)


#: Every loss with every scale, and truncated completions masked in every other of these pairs.
PAIRS = [
    (loss, scale, (row + column) % 2 == 0) for row, loss in enumerate(LOSSES) for column, scale in enumerate(SCALES)
]


@pytest.mark.parametrize(("loss_type", "scale", "masked"), PAIRS)
def test_every_token_has_the_weight_that_it_has_in_the_loss(trainers, monkeypatch, loss_type, scale, masked):
    trainer = trainers[loss_type]
    monkeypatch.setattr(trainer, "scale_rewards", scale)
    monkeypatch.setattr(trainer.args, "scale_rewards", scale)
    monkeypatch.setattr(trainer, "mask_truncated_completions", masked)
    output, seen = drawn(trainer)
    assert seen.mask().any(dim=1).all() != masked
    found, logprobs = weights_in_loss(trainer, output)
    batch = batch_of(seen)
    settings = LOSSES[loss_type] | {
        "scale_rewards": scale, "max_completion_length": 6, "per_device_train_batch_size": len(PROMPTS),
        "vllm_importance_sampling_correction": False,
    }  # fmt: skip
    recipe = recipes.get(f"trl:{loss_type}", **settings)
    np.testing.assert_allclose(recipe.token_weights(batch) / batch.n_groups, found, rtol=1e-5, atol=1e-8)

    own = get(own_estimator(trainer)).weights(batch)
    expected = np.where(batch.mask, own[:, None], 0.0)
    factor = (expected * found).sum() / (found * found).sum()
    np.testing.assert_allclose(expected, factor * found, rtol=3e-3, atol=1e-6)  # ε is 1e-6 and not 1e-4

    if masked:  # the same by the filter, from completions with their tokens
        rollouts = seen.rollouts()
        whole = batch.with_fields(
            mask=(mask := np.arange(6) < rollouts.frame["completion_tokens"].map(len).to_numpy()[:, None]),
            lengths=mask.sum(axis=1),
            truncated=rollouts.truncated,
        )
        filtered = recipes.get(f"trl:{loss_type}", **settings, mask_truncated_completions=True).token_weights(whole)
        np.testing.assert_allclose(filtered, recipe.token_weights(batch), rtol=1e-12, atol=1e-15)

    # off-policy, with TRL's default KL term and with that of GRPO
    rng = np.random.default_rng(4)
    old, reference = (logprobs + torch.tensor(rng.normal(0, 0.3, logprobs.shape)) for _ in range(2))
    monkeypatch.setattr(trainer, "beta", 0.1)
    output |= {"old_per_token_logps": old, "ref_per_token_logps": reference}
    fields = {"logprobs": logprobs, "old_logprobs": old, "ref_logprobs": reference}
    batch = batch_of(seen, **{name: value.numpy() for name, value in fields.items()})
    for weighted in (False,) if loss_type == "luspo" else (True, False):
        monkeypatch.setattr(trainer.args, "use_bias_correction_kl", weighted)
        found, _ = weights_in_loss(trainer, output)
        recipe = recipes.get(f"trl:{loss_type}", **settings, beta=0.1, use_bias_correction_kl=weighted)
        np.testing.assert_allclose(recipe.token_weights(batch) / batch.n_groups, found, rtol=1e-5, atol=1e-8)


IN_USE = [
    ("GRPO", {}, "grpo(eps=1e-4)"),
    ("GRPO", {}, "recipe:grpo(scale=group_std(eps=1e-4))"),
    ("GRPO", {"scale_rewards": "batch"}, "recipe:custom(advantage=group_mean, scale=batch_std(eps=1e-4))"),
    ("GRPO", {"scale_rewards": "none"}, "group_mean"),
    ("GRPO", {"scale_rewards": "none"}, "recipe:dr_grpo"),
    ("RLOO", {}, "rloo"),
]
#: Completions without a reward: none, and all of a group but one.
MISSING = [(), (0, 1, 2)]


@pytest.mark.parametrize(
    ("kind", "settings", "label", "missing", "masked"),
    [(*one, missing, (row + at) % 2 == 0) for row, one in enumerate(IN_USE) for at, missing in enumerate(MISSING)],
)
def test_the_trainers_own_estimator_in_use_gives_its_own_advantages(tmp_path, kind, settings, label, missing, masked):
    def some(completion_ids, **_):
        return [None if place in missing else value for place, value in enumerate(odd_rewards(completion_ids))]

    def half(completion_ids, **_):  # one of two reward functions has no value for some
        return [None if place % 3 else float(len(ids)) for place, ids in enumerate(completion_ids)]

    rewards = [some, half] if not missing else [some]
    settings = {"mask_truncated_completions": masked, "max_completion_length": 6, **settings}
    own, seen = drawn(small_trainer(kind, tmp_path, rewards=rewards, **settings))
    trainer = small_trainer(kind, tmp_path, rewards=rewards, **settings)
    used = use_estimator(trainer, label)
    found, _ = drawn(trainer)
    live = seen.mask().any(dim=1)
    assert live.all() != masked
    np.testing.assert_allclose(found["advantages"][live], own["advantages"][live], rtol=1e-4, atol=2e-6)
    assert (used.n_replaced, used.n_kept) == (1, 0)


@pytest.mark.parametrize("label", ["length_weighted(alpha=0.8, loo=True)", "group_mean", "otb"])
def test_what_is_logged_is_what_is_learnt_from(tmp_path, label):
    trainer = small_trainer("GRPO", tmp_path, mask_truncated_completions=True, max_completion_length=6)
    use_estimator(trainer, label)
    for _ in range(2):  # the table holds one batch
        output, seen = drawn(trainer)
        advantages = output["advantages"]
        if advantages.ndim == 2:
            advantages = advantages.sum(dim=1) / seen.mask().sum(dim=1).clamp(min=1)
        np.testing.assert_allclose(trainer._logs["advantages"], advantages, rtol=1e-6, atol=1e-7)
    metrics = trainer._metrics["train"]
    assert metrics[f"gradstats/{plain_label(label)}/in_use"] == [1.0, 1.0]
    assert metrics["gradstats/kept"] == [0.0, 0.0]


def test_the_completions_of_a_process_without_a_token_that_counts_vote(tmp_path):
    """Its groups reach into the other process."""
    output, seen = drawn(small_trainer("GRPO", tmp_path, mask_truncated_completions=True))
    empty = {name: output[name] * 0 if name == "completion_mask" else output[name] for name in output}
    rollouts = Generation(seen.trainer, empty, seen.rewards_per_function).rollouts()
    assert rollouts is not None
    assert len(rollouts) == len(PROMPTS)
    assert not rollouts.lengths.any()
    assert rollouts.rewards.tolist() == seen.rewards().tolist()
