"""The plug-in of verl, in verl itself: registered when verl is imported, and equal to verl's own estimators."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points

import numpy as np
import pytest
import torch
from verl_batches import PROMPTS, verl_batch

from gradstats import estimators as families
from gradstats.estimators import Batch, recipes

pytest.importorskip("verl", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def core_algos():
    from verl.trainer.ppo import core_algos

    return core_algos


def in_a_process(program: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | variables,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_verl_registers_the_estimators():
    assert "gradstats.integrations.verl" in {entry.value for entry in entry_points(group="verl.plugins")}
    program = (
        "import json, verl\n"
        "from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as registry\n"
        "print(json.dumps([name for name in registry if name.startswith('gradstats')]))\n"
        "print(registry['gradstats'].estimator.label)"
    )
    names, label = in_a_process(program, GRADSTATS_ESTIMATOR="length_weighted(alpha=0.8, loo=True)").splitlines()[-2:]
    from gradstats.integrations.verl_advantages import known_labels

    assert set(json.loads(names)) == {"gradstats", *(f"gradstats/{name}" for name in known_labels())}
    assert label == "length_weighted(alpha=0.8, loo=True)"


def test_env_says_so():
    from gradstats.integrations.installed import registered_with_verl
    from gradstats.integrations.verl_advantages import known_labels

    assert registered_with_verl() == f"{len(known_labels())} estimators are registered"


#: Of 7 completions, some without a token that counts or alone in their group, and groups of other sizes.
BATCHES = {
    "as drawn": ((), PROMPTS),
    "masked": ((2, 3, 5), PROMPTS),
    "a group masked": ((0, 2, 4), PROMPTS),
    "a completion of each group left": ((0, 2, 1, 3, 5), PROMPTS),
    "a group of one": ((), np.array([*"pqqrrrr"], dtype=object)),
    "groups of one alone": ((), np.array([*"abcdefg"], dtype=object)),
    "a group of one that is masked": ((0, 3), np.array([*"pqqrrrr"], dtype=object)),
}


ESTIMATORS = [
    ("rloo", "rloo", {}),
    ("rloo", "rloo_vectorized", {}),
    ("group_mean", "grpo", {"norm_adv_by_std_in_grpo": False}),
    ("recipe:dr_grpo", "grpo", {"norm_adv_by_std_in_grpo": False}),
    ("grpo(eps=1e-6)", "grpo", {}),
    ("recipe:grpo", "grpo", {}),
    ("recipe:dapo", "grpo", {}),
    ("token_mean", "opo", {}),
    ("reinforce_pp_baseline", "reinforce_plus_plus_baseline", {}),
    ("pass_at_k(normalize=True)", "grpo_passk", {"config": {"norm_adv_by_std_in_grpo": True}}),
]
#: Those of verl that refuse a group of one, or give it advantage 0.
PAIRS = ("rloo_vectorized", "grpo_passk")


@pytest.mark.parametrize(
    ("label", "own", "settings", "case"),
    [(*row, case) for row in ESTIMATORS for case in BATCHES if "one" not in case.split() or row[1] not in PAIRS],
)
def test_advantages_are_those_of_verl(core_algos, label, own, settings, case):
    from gradstats.integrations.verl_advantages import chosen

    rewards, mask = verl_batch()
    masked, prompts = BATCHES[case]
    mask[list(masked)] = 0
    theirs, _ = core_algos.get_adv_estimator_fn(own)(
        token_level_rewards=rewards.clone(), response_mask=mask, index=prompts, **settings
    )
    ours, _ = chosen(label)(token_level_rewards=rewards, response_mask=mask, index=prompts)
    # Of a group that is masked as a whole, OPO in verl has NaN.
    np.testing.assert_allclose(ours.numpy(), np.where(mask == 0, 0.0, theirs.numpy()), atol=2e-6)


@pytest.mark.parametrize("masked", [(), (2, 3), (0, 1, 4)], ids=["whole", "one of each", "uneven"])
@pytest.mark.parametrize(
    ("mode", "aggregation"),
    [
        ("token-mean", "token_mean(scope=batch)"),
        ("seq-mean-token-sum", "sequence_sum"),
        ("seq-mean-token-mean", "sequence_mean"),
        ("seq-mean-token-sum-norm", "constant"),
    ],
)
def test_aggregations_are_those_of_verl(core_algos, mode, aggregation, masked):
    """The modes that average over completions leave out those without a token: there they differ by that factor."""
    mask = np.arange(9) < np.array([3, 9, 2, 5, 4, 6])[:, None]
    mask[list(masked)] = False
    batch = Batch([1, 0, 3, 2, 2, 5], mask.sum(axis=1), [*"pqpqpq"], mask)
    recipe = recipes.get("custom", advantage="group_mean", aggregation=aggregation)
    advantages = torch.tensor(families.get("group_mean").advantages(batch))[:, None]
    logprobs = torch.zeros(mask.shape, dtype=torch.float64, requires_grad=True)
    loss = core_algos.agg_loss(-advantages * logprobs, torch.tensor(mask, dtype=torch.float64), mode)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    factor = 1.0 if mode == "token-mean" else (6 - len(masked)) / 6
    np.testing.assert_allclose(recipe.token_weights(batch) / 2, -gradient.numpy() * factor, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        ("kl", "in_loss(beta=1, kind=k1)"),
        ("mse", "in_loss(beta=1, kind=k2, by_ratio=False)"),
        ("low_var_kl", "in_loss(beta=1, kind=k3)"),
        ("kl+", "in_loss(beta=1, kind=k2, by_ratio=False)"),
        ("low_var_kl+", "in_loss(beta=1, kind=k2, by_ratio=False)"),
    ],
)
def test_kl_terms_are_those_of_verl(core_algos, kind, label):
    rng = np.random.default_rng(0)
    new, old, reference = (-rng.random((4, 5)) for _ in range(3))
    batch = Batch([1] * 4, [5] * 4, ["p"] * 4, logprobs=new, old_logprobs=old, ref_logprobs=reference)
    logprobs = torch.tensor(new, requires_grad=True)
    (slope,) = torch.autograd.grad(core_algos.kl_penalty(logprobs, torch.tensor(reference), kind).sum(), logprobs)
    found = recipes.get("custom", advantage="group_mean", kl=label).token_weights(batch)
    np.testing.assert_allclose(found * 4, -slope.numpy(), rtol=1e-12)


def test_the_trainer_calls_it(core_algos):
    ray_trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer", exc_type=ImportError)
    from verl import DataProto

    rewards, mask = verl_batch()
    found = {}
    for name in ("gradstats/rloo", "rloo"):
        data = DataProto.from_dict(
            tensors={"token_level_rewards": rewards.clone(), "response_mask": mask}, non_tensors={"uid": PROMPTS}
        )
        found[name] = ray_trainer.compute_advantage(data, name).batch["advantages"].numpy()
    np.testing.assert_allclose(found["gradstats/rloo"], found["rloo"], atol=2e-6)
    assert np.abs(found["rloo"]).max() > 0


#: What verl's configuration of an actor may hold, beside its defaults, for each ``loss_mode``.
LOSS_MODES = {
    "vanilla": {"clip_ratio_high": 0.3, "clip_ratio_c": 1.4}, "dppo_tv": {"clip_ratio_high": 0.05},
    "dppo_kl": {"clip_ratio_low": 0.01, "clip_ratio_high": 0.01}, "gspo": {"clip_ratio_low": 0.05}, "sapo": {},
    "geo_mean": {}, "cispo": {}, "gpg": {}, "dro": {"dro_beta": 0.3}, "kl_cov": {"kl_cov_ratio": 0.2},
    "clip_cov": {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.1, "clip_cov_ub": 0.9},
}  # fmt: skip
LOSS_AGG_MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


@pytest.mark.parametrize("loss_agg_mode", LOSS_AGG_MODES)
@pytest.mark.parametrize("loss_mode", LOSS_MODES)
def test_a_label_in_verls_words_weights_tokens_as_verls_loss(core_algos, loss_mode: str, loss_agg_mode: str):
    from verl.workers.config import ActorConfig, PolicyLossConfig

    given = LOSS_MODES[loss_mode]
    of_loss = {key: value for key, value in given.items() if not key.startswith("clip_ratio")}
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(loss_mode=loss_mode, **of_loss),
        **{key: value for key, value in given.items() if key not in of_loss},
    )
    rewards, mask = verl_batch()
    advantages, _ = core_algos.compute_grpo_outcome_advantage(rewards.double(), mask, PROMPTS)
    rng = np.random.default_rng(0)
    old = torch.tensor(np.log(rng.uniform(0.1, 0.6, mask.shape)))
    logprobs = (old + torch.tensor(rng.normal(0, 0.3, mask.shape))).clamp(max=-0.1).requires_grad_()
    loss, _ = core_algos.get_policy_loss_fn(loss_mode)(old, logprobs, advantages, mask, loss_agg_mode, config)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    batch = Batch(
        rewards.double().sum(dim=1).numpy(), mask.sum(dim=1).numpy(), PROMPTS.astype(str), mask.numpy(),
        logprobs=logprobs.detach().numpy(), old_logprobs=old.numpy(),
    )  # fmt: skip
    recipe = recipes.get("verl:grpo", loss_mode=loss_mode, loss_agg_mode=loss_agg_mode, **given)
    mean_over_groups = recipe.token_weights(batch) / batch.n_groups
    if not recipe.across_groups or "token_mean" not in recipe.composition:  # verl's mean is over completions
        mean_over_groups *= (batch.group_sizes[batch.group_index] * batch.n_groups / len(mask))[:, None]
    np.testing.assert_allclose(mean_over_groups, -gradient.numpy() * mask.numpy(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "gpg", "opo", "grpo_passk"])
def test_a_label_in_verls_words_has_verls_advantages(core_algos, name: str):
    rewards, mask = verl_batch(2)
    prompts = np.append(PROMPTS[:-1], "alone" if name != "grpo_passk" else "q").astype(object)
    found, _ = core_algos.get_adv_estimator_fn(name)(
        token_level_rewards=rewards.double(), response_mask=mask, index=prompts, config={}
    )
    batch = Batch(rewards.double().sum(dim=1).numpy(), mask.sum(dim=1).numpy(), prompts.astype(str), mask.numpy())
    expected = recipes.get(f"verl:{name}").advantages(batch)[:, None] * mask.numpy()
    np.testing.assert_allclose(expected, found.numpy(), rtol=1e-5, atol=1e-6)


def test_several_rewards_are_normalised_as_in_verl(core_algos):
    rewards, _ = verl_batch()
    lengths = np.arange(3, 10)
    mask = torch.tensor(np.arange(9) < lengths[:, None], dtype=torch.float64)
    keys = {"accuracy": [1.0, 0, 0, 1, 1, 0, 1], "format": [0.5, 0, 1, 1, 0, 0.5, 0]}
    found, _ = core_algos.compute_gdpo_outcome_advantage(
        rewards.double(),
        mask,
        PROMPTS,
        non_tensor_batch=keys,
        batch={"prompts": mask[:, :0], "attention_mask": mask.long()},
        config={"gdpo_reward_keys": list(keys), "gdpo_reward_weights": [1.0, 0.5]},
    )
    batch = Batch(np.zeros(7), lengths, PROMPTS.astype(str), mask.numpy(), columns=keys)
    label = recipes.get("verl:gdpo", gdpo_reward_keys=", ".join(keys), gdpo_reward_weights="1, 0.5")
    expected = label.advantages(batch)
    np.testing.assert_allclose(expected[:, None] * mask.numpy(), found.numpy(), rtol=1e-5, atol=1e-6)
