"""Another estimator's advantages in place of the trainer's own."""

import numpy as np
import pytest
import torch
from small_trainers import assert_same_bits, drawn, odd_rewards, small_trainer, trained

import gradstats as gs
from gradstats import estimators as families
from gradstats.integrations.trl import use_estimator

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("quick_collections")]


def one_missing(completion_ids, **_):
    return [None if place == 5 else value for place, value in enumerate(odd_rewards(completion_ids))]


@pytest.mark.parametrize(("label", "masked"), [("group_mean", True), ("recipe:dr_grpo", False)])
def test_the_group_mean_trains_as_without_scale_bit_for_bit(tmp_path, masked, label):
    settings = {"gradient_checkpointing": False, "mask_truncated_completions": masked, "rewards": one_missing}
    own = trained(small_trainer("GRPO", tmp_path, scale_rewards="none", **settings))
    other = small_trainer("GRPO", tmp_path, **settings)
    used = use_estimator(other, label)
    assert_same_bits(own, trained(other))
    assert (used.n_replaced, used.n_kept) == (2, 0)


@pytest.mark.parametrize(
    "label", ["length_weighted(alpha=0.8, loo=True)", "norm_weighted(loo=True)", "otb", "constant(b=optimal)"]
)
def test_advantages_equal_those_of_a_measurement(tmp_path, label):
    trainer = small_trainer("GRPO", tmp_path, rewards=one_missing, temperature=0.8)
    used = use_estimator(trainer, label)
    output, seen = drawn(trainer)
    rollouts = seen.rollouts()
    assert rollouts is not None
    policy = gs.Policy(trainer.model.eval(), temperature=0.8)
    measured = gs.measure(policy, rollouts, progress=False)
    expected = families.get(label).advantages(families.Batch.from_measurement(measured))
    found = output["advantages"].numpy()
    assert used.n_replaced == 1
    assert found[5].max() == 0.0  # no reward
    kept = np.delete(found, 5, axis=0)
    if label == "otb":
        assert found.shape == output["completion_ids"].shape
        kept = kept[:, : expected.shape[1]]
    np.testing.assert_allclose(kept, expected, rtol=1e-3, atol=1e-5)


def test_advantages_of_tokens_reach_the_loss(tmp_path):
    trainer = small_trainer("GRPO", tmp_path, loss_type="dr_grpo", gradient_checkpointing=False)
    use_estimator(trainer, "otb")
    output, _ = drawn(trainer)
    advantages = output["advantages"]
    assert advantages.std(dim=1).max() > 1e-3
    trainer.current_gradient_accumulation_steps = 1
    model = trainer.model.train()
    names, tensors = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(trainer._compute_loss(model, output), tensors)

    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    attended = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    places = (attended.cumsum(dim=1) - 1).clamp(min=0)
    n = output["completion_ids"].shape[1]
    log_pi = model(ids, attention_mask=attended, position_ids=places).logits[:, -n - 1 : -1].log_softmax(dim=-1)
    taken = log_pi.gather(-1, output["completion_ids"][..., None])[..., 0]
    counted = (taken * advantages * output["completion_mask"]).sum()
    expected = torch.autograd.grad(-counted / (len(ids) * trainer.max_completion_length), tensors)
    for name, one, other in zip(names, found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("error", "why"), [(ValueError("no such luck"), "no such luck"), (SystemExit(3), "3")])
def test_the_trainers_own_advantages_stay_where_the_estimator_fails(tmp_path, monkeypatch, error, why):
    own, _ = drawn(small_trainer("GRPO", tmp_path))
    trainer = small_trainer("GRPO", tmp_path)
    used = use_estimator(trainer, "reinforce")
    monkeypatch.setattr(type(used.estimator), "advantages", lambda *_: (_ for _ in ()).throw(error))
    with pytest.warns(RuntimeWarning, match=rf"step 0 keeps the trainer's own advantages \(.*{why}\); training"):
        found, _ = drawn(trainer)
    assert torch.equal(own["advantages"], found["advantages"])
    np.testing.assert_array_equal(trainer._logs["advantages"], found["advantages"])
    assert (used.n_replaced, used.n_kept) == (0, 1)
    metrics = trainer._metrics["train"]
    assert (metrics["gradstats/reinforce/in_use"], metrics["gradstats/kept"]) == ([0.0], [1.0])


@pytest.mark.parametrize(
    ("kind", "settings", "label", "message"),
    [
        ("RLOO", {}, "otb", "one advantage for each token, and RLOOTrainer takes one for each completion"),
        ("RLOO", {}, "rloo", r"KL penalty \(beta=0.1\) into rewards that it does not hand on"),
        ("GRPO", {"loss_type": "vespo"}, "otb", 'which loss_type="vespo" cannot use'),
        ("GRPO", {}, "gae(gamma=1.0, lam=0.9)", "needs values, which a trainer does not have: in a study"),
        ("GRPO", {}, "causal_optimal", "needs token_energy, which a trainer does not have: set token_probes"),
        ("GRPO", {}, "rloo", "takes its advantages from rloo already"),
    ],
)
def test_refusals_name_the_setting(tmp_path, kind, settings, label, message):
    trainer = small_trainer(kind, tmp_path, **settings)
    trainer.beta = 0.1 if "beta" in message else 0.0  # a trainer with a penalty loads its reference by name
    if "already" in message:
        use_estimator(trainer, label)
    with pytest.raises(ValueError, match=message):
        use_estimator(trainer, label)
