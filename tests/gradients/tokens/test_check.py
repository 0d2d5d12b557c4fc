"""The check of the projections before token scores are measured."""

from __future__ import annotations

import pytest
from conftest import ragged_rollouts, tiny_model

import gradstats.gradients as gradients
from gradstats.gradients.tokens import scores as check
from gradstats.gradients.tokens.scores import check_projections
from gradstats.policy.policy import Policy


def test_a_weight_read_outside_its_module_is_refused_by_the_self_check(rollouts):
    model = tiny_model("gpt2")
    mlp, other = model.transformer.h[0].mlp, model.transformer.h[1].mlp
    forward = mlp.forward
    mlp.forward = lambda states: forward(states) + states @ other.c_fc.weight @ other.c_proj.weight
    with pytest.raises(gradients.SelfCheckError, match="token_probes fail their self-check"):
        gradients.measure(model, rollouts, engine="loop", token_probes=2, sketch_dim=None, progress=False)


def test_a_sound_model_deviates_by_rounding_and_a_wrong_projection_by_its_error(monkeypatch):
    model, rollouts = tiny_model("gpt2"), ragged_rollouts(4, masked=True)
    policy, selection = Policy(model, temperature=0.7), gradients.select_parameters(model)
    assert check_projections(policy, rollouts, selection, 3) < 1e-10
    project = check.project_tokens
    monkeypatch.setattr(check, "project_tokens", lambda *args: project(*args) * 1.01)
    with pytest.raises(
        gradients.SelfCheckError, match=r"within \d\.\d\de-0[12] of the gradient's norm, where 1e-05 is"
    ):
        check_projections(policy, rollouts, selection, 3)
