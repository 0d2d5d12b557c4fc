"""The live model as a policy, and afterwards as it was."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest
import torch
from small_trainers import small_trainer

from gradstats.integrations.trl.monitor import live_policy, step_name

pytestmark = pytest.mark.filterwarnings("ignore")


def test_modes_and_random_numbers_are_restored(tmp_path):
    trainer = small_trainer("GRPO", tmp_path, temperature=0.7)
    trainer.model.train()
    trainer.model.model.layers[0].eval()  # frozen by the user
    modes = [module.training for module in trainer.model.modules()]
    states = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()]  # noqa: NPY002
    with live_policy(trainer) as policy:
        torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
        assert not any(module.training for module in policy.model.modules())
        assert (policy.temperature, policy.revision) == (0.7, "step-000000")
    assert [module.training for module in trainer.model.modules()] == modes
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    np.testing.assert_array_equal(states[2], np.random.get_state()[1])  # noqa: NPY002


def test_autocast_is_stepped_around_and_put_back_after_an_error(tmp_path):
    trainer = small_trainer("GRPO", tmp_path, bf16=True, gradient_checkpointing=False)
    model = trainer.accelerator.prepare_model(trainer.model)
    wrapped = vars(model)["forward"]
    ids = torch.tensor([[2, 3, 4]])
    exact = vars(model)["_original_forward"](ids).logits
    assert not torch.equal(model(ids).logits, exact)
    with contextlib.suppress(KeyError), live_policy(trainer) as policy:
        assert torch.equal(policy.model(ids).logits, exact)
        raise KeyError
    assert vars(model)["forward"] is wrapped


def test_step_names_are_in_order():
    assert [step_name(0), step_name(50), step_name(123456)] == ["step-000000", "step-000050", "step-123456"]
