"""The parts of the embedded policy's training script that decide how even its gradients are."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gradstats.prompts.embedded import generate_problems, parse_problem

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
EXPERIMENTS = str(Path(__file__).parents[2] / "experiments")


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, EXPERIMENTS)
    try:
        import train_embedded_policy
    finally:
        sys.path.remove(EXPERIMENTS)
    return train_embedded_policy


@pytest.fixture
def model(script):
    return script.build_model(script.build_tokenizer(), script.Recipe())


def head_sizes(model):
    """Root mean square of each head's query and key weights times the gain before them, layers × 2 × heads."""
    sizes = []
    for layer in model.model.layers:
        attention, gain = layer.self_attn, layer.input_layernorm.weight
        sizes.append(
            [
                (projection.weight * gain).reshape(6, 24 * 144).square().mean(1).sqrt().tolist()
                for projection in (attention.q_proj, attention.k_proj)
            ]
        )
    return np.array(sizes)


def test_muon_gives_the_update_of_torch_to_the_rounding_of_bfloat16(script):
    torch.manual_seed(0)
    shapes = [(24, 60), (60, 24), (32, 32)]
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [torch.nn.Parameter(weight.detach().clone()) for weight in ours]
    optimizers = [
        script.Muon(ours, lr=0.01, weight_decay=0.1),
        torch.optim.Muon(theirs, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    ]
    before = [weight.detach().clone() for weight in ours]
    for _ in range(3):
        for first, second in zip(ours, theirs, strict=True):
            first.grad = torch.randn(first.shape)
            second.grad = first.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for first, second, start in zip(ours, theirs, before, strict=True):
        moved = (second - start).norm()
        assert (first - second).norm() < 0.03 * moved
        assert moved > 0


def test_attention_is_limited_head_by_head_to_the_reach_and_not_before_the_last_restart(script, model):
    recipe = script.Recipe()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight.fill_(0.5)
            layer.self_attn.q_proj.weight[:24].mul_(100)  # the first head's queries
            layer.self_attn.q_proj.bias.fill_(1.0)
    start = head_sizes(model)
    assert start[:, 0, 0].min() > 1 > recipe.reach > start[:, :, 1:].max()

    script.limit_attention(model, recipe, recipe.restarts[-1] - 1)
    np.testing.assert_array_equal(head_sizes(model), start)

    script.limit_attention(model, recipe, recipe.restarts[-1] + recipe.limited // 2 - 1)
    limited = head_sizes(model)
    np.testing.assert_allclose(limited[:, 0, 0], recipe.reach * 5**0.5, rtol=1e-5)
    np.testing.assert_array_equal(limited[:, :, 1:], start[:, :, 1:])

    script.limit_attention(model, recipe, recipe.steps)
    np.testing.assert_allclose(head_sizes(model)[:, 0, 0], recipe.reach, rtol=1e-5)
    bias = model.model.layers[0].self_attn.q_proj.bias
    np.testing.assert_allclose(bias[:24].detach(), recipe.reach / start[0, 0, 0], rtol=1e-5)
    assert bool((bias[24:] == 1.0).all())


def test_noise_moves_layers_and_embeddings_for_one_pass_only_and_grows_to_its_size(script, model):
    recipe = script.Recipe()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    def size_at(step):
        with script.noisy_weights(model, recipe, step):
            moved = {name: weight.detach() - before[name] for name, weight in model.named_parameters()}
            assert not moved["lm_head.weight"].any()
            assert not moved["model.norm.weight"].any()
            return float(moved["model.embed_tokens.weight"].std())

    assert size_at(recipe.even) == 0.0
    assert size_at((recipe.even + recipe.restarts[0]) // 2) == pytest.approx(recipe.noise / 2, rel=0.02)
    assert size_at(recipe.restarts[1]) == pytest.approx(recipe.noise, rel=0.02)
    assert size_at(recipe.restarts[-1]) == pytest.approx(recipe.last_noise, rel=0.02)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name])


def test_misreading_makes_traces_wrong_without_a_rough_step_and_checks_are_right_at_last(script):
    careful = replace(script.Habits(), rough=(0.0, 0.0, 0.0), misread=(0.0, 0.0, 0.0))
    habits = {"careful": careful, "misreads": replace(careful, misread=script.Habits().misread)}
    problems = [parse_problem(problem.prompt) for problem in generate_problems(300, rng=0, split="train")]
    right = {}
    for name, chosen in habits.items():
        rng = np.random.default_rng(0)
        texts = [script.write_trace(story, rng, chosen)[0] for story in problems]
        right[name] = np.mean(
            [text.endswith(f" {story.counts[-1]}.") for text, story in zip(texts, problems, strict=True)]
        )
        if name == "careful":
            refuted = ("which is wrong", "that cannot be")
            assert not any(words in text for text in texts for words in refuted)
    assert right["careful"] == 1.0
    assert 0.6 < right["misreads"] < 0.9
