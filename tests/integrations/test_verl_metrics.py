"""Metrics of a batch as verl holds it, against loops over completions."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from verl_batches import PROMPTS, verl_batch

from gradstats.integrations.verl_metrics import batch_metrics, with_batch_metrics


def data(**further):
    """Interleaved groups of three and four, of which that of ``p`` has equal rewards."""
    rewards, mask = verl_batch()
    for row in np.flatnonzero(PROMPTS == "p"):
        rewards[row] = torch.where(rewards[row] != 0, 1.0, 0.0) if rewards[row].any() else rewards[row]
        rewards[row, -1], rewards[row, :-1] = 0.5, 0.0
    return SimpleNamespace(
        batch={"token_level_rewards": rewards, "response_mask": mask, **further}, non_tensor_batch={"uid": PROMPTS}
    )


def test_metrics_are_those_of_a_loop_over_completions():
    rng = np.random.default_rng(0)
    logprobs, advantages = torch.tensor(-rng.random((7, 9))), torch.tensor(rng.normal(size=(7, 9)))
    logprobs[0, -1] = -torch.inf if data().batch["response_mask"][0, -1] == 0 else logprobs[0, -1]
    found = batch_metrics(data(old_log_probs=logprobs.float(), advantages=advantages))
    mask = data().batch["response_mask"].numpy()
    assert found["gradstats/silent_groups"] == 0.5
    assert found["gradstats/silent_tokens"] == pytest.approx(mask[PROMPTS == "p"].sum() / mask.sum())
    of_tokens = [
        float(advantages[row, at]) ** 2 * -float(logprobs[row, at]) for row, at in zip(*np.nonzero(mask), strict=True)
    ]
    assert found["gradstats/head_noise_proxy"] == pytest.approx(sum(of_tokens) / 7)
    assert not [key for key in found if set(key) & set(",() ")]


def test_they_are_added_to_those_of_the_trainer():
    metrics = with_batch_metrics(lambda batch, use_critic: {"critic/score/mean": float(use_critic)})
    found = metrics(batch=data(), use_critic=True)
    assert set(found) == {"critic/score/mean", "gradstats/silent_groups", "gradstats/silent_tokens"}
    with pytest.raises(ValueError, match="the batch has no uid: call batch_metrics after verl has computed advantages"):
        batch_metrics(SimpleNamespace(batch=data().batch, non_tensor_batch={}))
