"""From a model to a table of token-level estimators, compared with one backward pass per token."""

import warnings

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model

import gradstats as gs
from gradstats.estimators import Batch

NAMES = ["rloo", "otb", "otb(energy=exact, loo=True)", "gae", "causal_optimal"]


def token_scores(model, rollouts):
    """Token scores (N, T, D) from one backward pass per token."""
    widest = int(rollouts.lengths.max())
    found = []
    for prompt, completion in zip(rollouts.tokens("prompt_tokens"), rollouts.tokens("completion_tokens"), strict=True):
        ids = torch.tensor([[*prompt, *completion]])
        rows = []
        for place in range(len(completion)):
            logprobs = model(ids).logits[0, len(prompt) + place - 1].log_softmax(dim=-1)
            gradients = torch.autograd.grad(logprobs[ids[0, len(prompt) + place]], list(model.parameters()))
            rows.append(torch.cat([gradient.flatten() for gradient in gradients]).numpy())
        found.append(np.pad(np.array(rows), ((0, widest - len(rows)), (0, 0))))
    return np.array(found)


@pytest.fixture(scope="module")
def case():
    rollouts = ragged_rollouts(12, seed=3, longest=7)
    model = tiny_model("qwen2")
    return model, rollouts, token_scores(model, rollouts)


def quietly(*arguments, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return gs.compare(*arguments, **keywords).to_frame()


@pytest.mark.parametrize(("token_exact", "tolerance"), [(8, 0.05), (2, 0.4)])
def test_a_table_from_the_engine_is_that_of_exact_token_scores(case, token_exact, tolerance):
    model, rollouts, scores = case
    measured = gs.measure(model, rollouts, token_probes=32, token_exact=token_exact, progress=False)
    values = [np.linspace(0.2, 0.6, length) for length in rollouts.lengths]
    table = quietly(measured, NAMES, values=values)
    energies = (scores**2).sum(axis=2)
    cross = np.einsum("ntd,nd->nt", scores, scores.sum(axis=1))
    batch = Batch.from_measurement(measured, values=values, token_energy=energies, token_cross=cross)
    exact = quietly(batch, NAMES, scores)
    kept = slice(0, 4) if token_exact == 2 else slice(None)
    np.testing.assert_allclose(table["trace_cov"][kept], exact["trace_cov"][kept], rtol=tolerance)
    np.testing.assert_allclose(table["ratio"][kept], exact["ratio"][kept], rtol=tolerance)


def test_proxies_of_a_model_are_judged(case):
    model, rollouts, scores = case
    measured = gs.measure(model, rollouts, token_probes=6, token_exact=8, progress=False)
    quality = gs.proxy_quality(measured)
    assert quality.share_exact == pytest.approx(1.0)
    energies = np.concatenate([(scores[row, :length] ** 2).sum(axis=1) for row, length in enumerate(rollouts.lengths)])
    np.testing.assert_allclose(quality.tokens["energy"], energies, rtol=1e-6)
