"""Log-probabilities, their gradients, and the statistics of the forward pass."""

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model

import gradstats.gradients as gradients
from gradstats.gradients.objective import Objective, TokenLogprobs, default_memory_gib, make_chunk, plan_chunks
from gradstats.policy.memory import total_memory_gib
from gradstats.policy.policy import Policy
from gradstats.rollouts.table import Rollouts


def test_chunks_hold_like_lengths_within_the_budget():
    rollouts = ragged_rollouts(40, longest=50)
    policy, times = Policy(tiny_model("qwen2", dtype=torch.float32)), rollouts.times
    selection = gradients.select_parameters(policy.model)

    def plan(*given, **options):
        return plan_chunks(rollouts, policy, selection, *given, **options)

    chunks = plan(token_budget=120)
    assert sorted(row for chunk in chunks for row in chunk) == list(range(40))
    assert all(len(chunk) * times[chunk].max() <= 120 for chunk in chunks)
    ordered = [times[row] for chunk in chunks for row in chunk]
    assert ordered == sorted(ordered)
    assert max(1 - times[chunk].mean() / times[chunk].max() for chunk in chunks) <= 0.1  # padding
    assert len(chunks) < 20
    room = 2 * 4 * selection.n_parameters / 1024**3  # of one gradient
    most = [max(map(len, plan(memory_gib=n * room, gradients_held=held))) for n, held in ((3.5, 1), (6.5, 3), (3.5, 0))]
    assert most[:2] == [3, 2]
    assert most[2] > 3
    assert sorted(row for chunk in plan(rows=np.array([3, 17, 5])) for row in chunk) == [3, 5, 17]


def test_on_an_accelerator_logits_that_go_in_slices_do_not_limit_a_chunk(monkeypatch):
    rollouts, model = ragged_rollouts(40, longest=50), tiny_model("qwen2", dtype=torch.float32)
    policy, selection = Policy(model), gradients.select_parameters(model)

    def most(**options):
        return max(map(len, plan_chunks(rollouts, policy, selection, memory_gib=1e-5, **options)))

    assert most(gradients_held=0) == 1
    monkeypatch.setattr("gradstats.gradients.objective.is_accelerator", lambda device: True)
    assert most(gradients_held=0) > 3
    assert most(gradients_held=1) == 1  # of vmap, all logits of a chunk are held
    assert default_memory_gib(policy.device) == pytest.approx(total_memory_gib(policy.device) / 4)


def test_a_chunk_holds_right_padded_sequences_and_their_weights():
    masks = [[True, True], [True, False, True]]
    rollouts = Rollouts.from_sequences(
        [[7, 8, 9], [5]], [[1, 2], [3, 4, 6]], [0.0, 1.0], ["a", "b"], completion_mask=masks
    )
    weights = [np.array([0.5, -2.0]), np.array([3.0, 4.0, 5.0])]
    chunk = make_chunk(rollouts, [1, 0], torch.device("cpu"), torch.bfloat16, [weights])
    assert chunk.input_ids.tolist() == [[5, 3, 4, 6, 0], [7, 8, 9, 1, 2]]
    assert chunk.weights.tolist() == [[[1, 0, 1, 0], [0, 0, 1, 1]], [[3, 0, 5, 0], [0, 0, 0.5, -2]]]
    assert chunk.weights.dtype == torch.float32
    assert (chunk.n_tokens, chunk.kept, chunk.starts, chunk.lengths) == (10, 4, [0, 2], [3, 2])
    first, second = chunk.ragged(torch.arange(8.0).view(2, 4))
    assert (first.tolist(), second.tolist()) == ([0, 1, 2], [6, 7])


def test_gradients_of_the_logits_are_one_hot_minus_the_probabilities_over_the_temperature(monkeypatch):
    # Two positions a slice, so that a sequence takes several.
    slices = [(row, slice(start, min(start + 2, 5))) for row in range(2) for start in (0, 2, 4)]
    monkeypatch.setattr("gradstats.gradients.objective._slices", lambda logits, kept: iter(slices))
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 6, 7, generator=rng, dtype=torch.float64, requires_grad=True)
    drawn = torch.randint(0, 7, (2, 5), generator=rng)
    weights = torch.tensor([[1.0, 0, -2, 0, 0], [0.5, 1, 1, 0, 3]], dtype=torch.float64)
    logprobs, entropy, sum_pi_squared = TokenLogprobs.apply(logits, drawn, 0.7)
    pi = torch.softmax(logits.detach()[:, :-1] / 0.7, dim=-1)
    torch.testing.assert_close(logprobs.detach(), pi.gather(2, drawn[..., None])[..., 0].log())
    torch.testing.assert_close(entropy, torch.special.entr(pi).sum(-1))
    torch.testing.assert_close(sum_pi_squared, pi.square().sum(-1))
    (gradient,) = torch.autograd.grad(logprobs, logits, weights)
    expected = torch.zeros_like(gradient)
    expected[:, :-1] = weights[..., None] * (torch.nn.functional.one_hot(drawn, 7) - pi) / 0.7
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("traced", [True, False])
def test_the_objective_is_the_log_probability_of_the_last_tokens(traced):
    model, ids = tiny_model("gpt2"), torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad(), Objective(model, 1.6, traced=traced) as objective:
        logprobs, statistics = objective(model, ids, 2)
    with torch.no_grad():
        expected = (model(ids).logits[0, 2:4] / 1.6).log_softmax(-1)[[0, 1], [8, 9]]
    torch.testing.assert_close(logprobs[0], expected)
    torch.testing.assert_close(statistics.logprobs[0], expected)
    assert not model.lm_head._forward_pre_hooks
