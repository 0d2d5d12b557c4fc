"""Why a norm jumped: norms, expectation and spread against autograd and enumeration, and outliers that are named."""

from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
import torch

from gradstats.analyses import registry, spike
from gradstats.estimators import Batch
from gradstats.rollouts import Log
from gradstats.stats.batch_norm import variance_of_norm

PROMPTS, EACH = 6, 3


@pytest.fixture(scope="module")
def drawn():
    """Completions of two tokens from a table of logits, with rewards, and their log-probabilities under autograd."""
    rng = np.random.default_rng(1)
    logits = torch.tensor(rng.normal(size=(2, 5)), requires_grad=True)
    mixed = torch.tensor(rng.normal(size=(PROMPTS, 2, 5)))
    tokens, rewards = rng.integers(0, 5, (PROMPTS * EACH, 2)), rng.integers(0, 2, PROMPTS * EACH).astype(float)
    prompts = np.repeat(np.arange(PROMPTS), EACH)

    def logprobs():
        # All prompts share the parameters: those of prompt p are scaled by its features.
        scored = torch.log_softmax(logits * mixed, dim=-1)
        return scored[torch.tensor(prompts)[:, None], torch.arange(2), torch.tensor(tokens)].sum(1)

    scores = [torch.autograd.grad(logprobs()[at], logits)[0].ravel().numpy() for at in range(len(tokens))]
    return Batch(rewards, [2] * len(rewards), prompts), np.array(scores), logprobs, logits


def gradient(drawn, prompts, without=None):
    """The gradient of the mean over some prompts of rloo's objective, by autograd, perhaps without one completion."""
    batch, _, logprobs, logits = drawn
    of, rewards = batch.group_index, np.asarray(batch.rewards)
    others = (np.bincount(of, rewards)[of] - rewards) / (EACH - 1)
    weights = np.where(np.isin(of, prompts), (rewards - others) / EACH, 0.0) / len(prompts)
    weights[[] if without is None else without] = 0.0
    return torch.autograd.grad((torch.tensor(weights) * logprobs()).sum(), logits)[0]


def test_norms_shares_and_expectation_are_those_of_autograd(drawn):
    batch, scores, *_ = drawn
    found = spike(batch, scores, prompts_per_batch=2, top=99, max_grad_norm=0.1)
    chosen = [int(one.prompt) for one in found.by_prompt]
    norm = float((gradient(drawn, chosen) ** 2).sum())
    assert found.explained.squared_norm == pytest.approx(norm, rel=1e-12)
    assert found.explained.squared_norm == max(one.squared_norm for one in found.batches)
    assert found.explained.clipped_to == pytest.approx(0.1 / np.sqrt(norm))
    for one in found.rows:
        assert 1 - one.share == pytest.approx(float((gradient(drawn, chosen, one.completion) ** 2).sum()) / norm)
    for one in found.by_prompt:
        inside = np.flatnonzero(batch.group_index == int(one.prompt))
        assert 1 - one.share == pytest.approx(float((gradient(drawn, chosen, inside) ** 2).sum()) / norm)
    every = [float((gradient(drawn, list(pair)) ** 2).sum()) for pair in combinations(range(PROMPTS), 2)]
    assert found.explained.expected == pytest.approx(np.mean(every), rel=1e-12)
    other = min(found.batches, key=lambda one: one.squared_norm)
    assert spike(batch, scores, prompts_per_batch=2, batch=other.batch).explained == other.__class__(
        **{**vars(other), "clipped_to": pytest.approx(np.nan, nan_ok=True)}
    )


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_variance_of_a_norm_has_no_bias(size):
    """Over all samples of five prompts from three gradients, against all batches."""
    population = np.array([[1.0, 0.5], [-0.3, 2.0], [0.4, -1.1]])
    norms = [float((population[list(rows)].mean(0) ** 2).sum()) for rows in product(range(3), repeat=size)]
    found = []
    for rows in product(range(3), repeat=5):
        products = population[list(rows)] @ population[list(rows)].T
        found.append(variance_of_norm(np.diag(products), products, size))
    assert np.mean(found) == pytest.approx(np.var(norms), rel=1e-12)
    squares = np.array([1.0, 2.0, 4.0, 1.0])
    assert variance_of_norm(squares, np.diag(squares), size) == variance_of_norm(squares, None, size)
    assert np.isnan(variance_of_norm(squares[:3], None, size))


def test_sketches_add_nothing_to_the_variance_on_average():
    rng, dim = np.random.default_rng(0), 6
    gradients = rng.normal(size=(6, 30)) + 0.3
    exact = gradients @ gradients.T
    found = []
    for _ in range(4000):
        sketched = gradients @ (rng.normal(size=(30, dim)) / np.sqrt(dim))
        found.append(variance_of_norm(np.diag(exact), sketched @ sketched.T, 3, dim))
    truth = variance_of_norm(np.diag(exact), exact, 3)
    assert abs(np.mean(found) - truth) < 4 * np.std(found) / np.sqrt(len(found))
    plain = variance_of_norm(np.diag(exact), exact + np.outer(np.diag(exact), np.diag(exact)) ** 0.5 / dim, 3)
    assert abs(np.mean(found) - truth) < abs(plain - truth)


def test_a_planted_outlier_is_named():
    rng = np.random.default_rng(0)
    batch = Batch(rng.integers(0, 2, 160), rng.integers(50, 90, 160), np.repeat([f"p{at}" for at in range(40)], 4))
    scores = rng.normal(size=(160, 50))
    row = int(np.flatnonzero(np.bincount(batch.group_index, batch.rewards)[batch.group_index] == 2)[3])
    scores[row] *= 12
    found = spike(batch, scores, prompts_per_batch=8, max_grad_norm=0.5)
    first, said = found.rows[0], found.sentence()
    assert (first.prompt, first.completion, first.length) == (batch.groups[row], row, batch.lengths[row])
    assert found.by_prompt[0].prompt == batch.groups[row]
    assert first.share > 0.6
    assert found.explained.deviations > 10  # by the other prompts; by all 1.9
    assert said.startswith("The largest of 5 batches of 8 prompts has ‖ĝ‖² = ")
    assert " (rloo); signal" in said
    declared, answer = registry.get("spike"), registry.get("spike").answer_of(found, 0.95)
    captions = [declared.caption(answer.frame), declared.further[0].caption(answer.further["spike_prompts"].frame)]
    assert all(f"batch {found.number} (rloo)" in one for one in captions)
    assert f"Completion {row} of prompt {batch.groups[row]} makes" in said
    assert "standard deviations above; clipping leaves" in said
    whole = spike(batch, scores, prompts_per_batch=40)
    assert np.isnan(whole.explained.deviations)
    assert "only other steps say" in whole.notes[-1]
    beside = spike(batch, scores, prompts_per_batch=40, others=[0.1, 0.2, 0.3])
    assert beside.explained.deviations == pytest.approx((whole.explained.squared_norm - 0.2) / 0.1)
    assert "and other steps put it" in beside.sentence()


@pytest.mark.parametrize("proxy", ["proxy_logit", "length", ""])
def test_a_log_is_explained_by_proxy(proxy):
    rng = np.random.default_rng(0)
    step, prompt = (one.ravel() for one in np.meshgrid(np.arange(12), np.repeat(np.arange(10), 4), indexing="ij"))
    reward, length = rng.integers(0, 2, step.size).astype(float), rng.integers(20, 60, step.size).astype(float)
    reward[300:304], length[301] = (0, 1, 0, 0), 900.0
    frame = pd.DataFrame({"step": step, "prompt": prompt, "group": 10 * step + prompt, "reward": reward})
    weight = np.ones(len(frame))
    if proxy:
        weight = length * (0.3 if proxy == "proxy_logit" else 1.0)
        frame = frame.assign(length=length, **({"proxy_logit": weight} if proxy == "proxy_logit" else {}))
    found = spike(Log(frame, "made up", prompts=[f"question {at}" for at in range(10)]))
    means = frame.groupby("group")["reward"].transform("mean")
    frame = frame.assign(square=((frame["reward"] - means) / 3) ** 2 * weight)
    by_step = frame.groupby("step")["square"].sum() / 10**2
    assert [one.squared_norm for one in found.batches] == pytest.approx(by_step.tolist())
    of_group = frame.groupby("group")["square"].sum()
    assert found.explained.expected == pytest.approx(of_group.mean() / 10)
    assert found.explained.spread == pytest.approx(of_group.std() / 10**1.5)
    assert found.number == by_step.idxmax()
    if proxy:
        assert (found.number, found.rows[0].completion, found.rows[0].prompt) == (7, 302, "question 5")
        assert " is the largest of 12: " in found.sentence()
    assert {"proxy_logit": "noise of the output layer", "length": "proxy (advantage² × tokens)"}.get(
        proxy, "proxy (advantage²)"
    ) in str(found.sentence())
    given = Log(frame.assign(advantage=-3.0), "made up")
    assert spike(given).rows[0].prompt.startswith("prompt ")
    assert spike(given).explained.expected == pytest.approx((9 * weight / 16).sum() / 120 / 10)


REFUSED = [
    ({"prompts_per_batch": 9}, "prompts_per_batch=9 must be between 1 and the 6 prompts"),
    ({"batch": 7}, "batch=7 is not a batch here: choose one from 0 to"),
    ({"top": 0}, "top=0 must be at least 1"),
    ({"max_grad_norm": 0.0}, "max_grad_norm=0.0 must be above 0"),
    ({"estimator": "reinforce_pp"}, "is a batch-level estimator"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_what_cannot_be_asked_is_refused(given, message, drawn):
    with pytest.raises(ValueError, match=message):
        spike(*drawn[:2], **given)


def test_without_any_gradient_it_is_said(drawn):
    given, scores, *_ = drawn
    silent = given.with_fields(rewards=np.asarray(given.rewards) * (given.group_index < 1))
    found = spike(silent, scores, prompts_per_batch=1, max_grad_norm=1.0)
    other = next(one.batch for one in found.batches if not one.squared_norm)
    asked = spike(silent, scores, prompts_per_batch=1, batch=other)
    assert ["Completion" in one.sentence() for one in (found, asked)] == [True, False]
    with pytest.raises(ValueError, match="rloo has no gradient here: every weight is 0"):
        spike(given.with_fields(rewards=np.ones(18)), scores)
    frame = pd.DataFrame({"step": [0, 0, 1, 1], "prompt": 0, "group": [0, 0, 1, 1], "reward": 1.0})
    with pytest.raises(ValueError, match="no group of the log has a gradient"):
        spike(Log(frame, "equal"))
