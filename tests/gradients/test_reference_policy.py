"""Log-probabilities of the same tokens under a reference policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_config, tiny_model
from transformers import AutoModelForCausalLM

import gradstats.gradients as gradients
from gradstats.estimators.batch import Batch
from gradstats.policy.policy import Policy


@pytest.mark.parametrize("bare", [True, False])
def test_reference_logprobs_equal_a_direct_computation(bare):
    model, reference = tiny_model("qwen2"), tiny_model("llama", tied=True)
    rollouts = ragged_rollouts(5)
    given, temperature = (reference, 0.7) if bare else (Policy(reference, temperature=1.6), 1.6)
    measured = gradients.measure(
        Policy(model, temperature=0.7), rollouts, reference_policy=given, sketch_dim=None, progress=False
    )
    for row in range(5):
        prompt, completion = (list(rollouts.frame[name].iloc[row]) for name in ("prompt_tokens", "completion_tokens"))
        with torch.no_grad():
            logits = reference(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        expected = (logits / temperature).log_softmax(-1)[torch.arange(len(completion)), torch.tensor(completion)]
        np.testing.assert_allclose(measured.ref_logprobs[row], expected, rtol=1e-9)
    batch = Batch.from_measurement(measured)
    np.testing.assert_allclose(batch.ref_logprobs[1, : len(measured.ref_logprobs[1])], measured.ref_logprobs[1])


def test_a_reference_of_another_vocabulary_is_refused(rollouts):
    config = tiny_config("llama")
    config.vocab_size = 50
    other = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match="has a vocabulary of 50, but Qwen2ForCausalLM one of 41"):
        gradients.measure(tiny_model("qwen2"), rollouts, reference_policy=other, progress=False)
    with pytest.raises(TypeError, match="policy is a str"):
        gradients.measure(tiny_model("qwen2"), rollouts, reference_policy="embedded", progress=False)
