"""The shipped policy: it loads with plain transformers, does what its model card says, and lies near a real model."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gradstats as gs
import gradstats.data
from gradstats.analyses.profile import profile_policy
from gradstats.prompts.embedded import extract_answer, generate_problems, parse_problem

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

FOLDER = Path(gradstats.data.__file__).parent / "embedded_policy"
N_PROBLEMS, PER_PROBLEM = 32, 4
BANDS = {  # what counts as near a real model
    "mean_entropy": (0.2, 0.45),
    "log_residual_sd": (0.0, 0.6),
    "effective_share": (0.4, 1.0),
    "top16_share": (0.0, 0.85),
    "wrong_over_right": (1.2, 3.0),
}


@pytest.fixture(scope="module")
def card():
    return (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    return transformers.AutoModelForCausalLM.from_pretrained(FOLDER)


def sampled(n_problems, per_problem):
    """Completions of held-out problems."""
    policy, problems = gs.load_policy("embedded"), gs.load_prompts("embedded", n_problems, rng=11)
    return gs.sample(policy, problems, group_size=per_problem, max_new_tokens=400, rng=0, progress=False)


@pytest.fixture(scope="module")
def rollouts():
    return sampled(N_PROBLEMS, PER_PROBLEM)


@pytest.fixture(scope="module")
def texts(rollouts):
    return list(rollouts.frame["completion_text"])


def test_the_weights_have_4_to_8_megabytes_and_the_folder_holds_what_transformers_reads():
    files = [file for file in FOLDER.rglob("*") if file.is_file()]
    needed = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "README.md"}
    assert needed <= {file.name for file in files}
    assert 4_000_000 <= (FOLDER / "model.safetensors").stat().st_size <= 8_000_000
    assert sum(file.stat().st_size for file in files) <= 16_000_000


def test_it_is_a_float32_qwen2_of_1_to_2_million_parameters(model):
    assert model.config.model_type == "qwen2"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert 1_000_000 <= sum(parameter.numel() for parameter in model.parameters()) <= 2_000_000
    assert model.config.max_position_embeddings >= 1024


@pytest.mark.parametrize(
    "text",
    [
        "On Monday she buys 4 more, so 17 + 4 = 21 apples. The answer is 21.",
        "Monday,on  Monday sold! applesapples 123456 four-five",
        "Any text: naïve café → 7 ≠ 8,\n\n  two  spaces, don't!",
    ],
)
def test_text_survives_encoding_and_decoding(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_words_and_digits_are_one_token_each_with_the_space_before_them(tokenizer):
    text = "Start: 31. Monday she wins 7: roughly 31 plus 7 is 28."
    pieces = [
        "Start", ":", " 3", "1", ".", " Monday", " she", " wins", " 7", ":",
        " roughly", " 3", "1", " plus", " 7", " is", " 2", "8", ".",
    ]  # fmt: skip
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert [tokenizer.decode(token) for token in ids] == pieces


def test_end_and_padding_are_distinct_tokens_and_agree_with_the_model(tokenizer, model):
    assert tokenizer.eos_token == "<|end|>"
    assert tokenizer.pad_token == "<|pad|>"
    assert model.config.eos_token_id == tokenizer.eos_token_id != tokenizer.pad_token_id
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_chat_template_gives_the_trained_prompt(tokenizer):
    messages = [{"role": "user", "content": "Mia has 12 apples."}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|user|>Mia has 12 apples.<|assistant|>"
    tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)["input_ids"]
    assert [tokenizer.decode(token) for token in tokens] == [
        "<|user|>", "Mia", " has", " 1", "2", " apples", ".", "<|assistant|>",
    ]  # fmt: skip


def test_chat_template_refuses_roles_it_was_not_trained_on(tokenizer):
    with pytest.raises(Exception, match="knows the roles user and assistant only"):
        tokenizer.apply_chat_template([{"role": "system", "content": "Be brief."}])


def test_success_falls_with_difficulty_and_most_groups_are_mixed(rollouts):
    rewards = rollouts.rewards.reshape(N_PROBLEMS, PER_PROBLEM)
    steps = np.array([problem.difficulty for problem in generate_problems(N_PROBLEMS, rng=11)])
    assert 0.4 < rewards.mean() < 0.75
    assert rewards[steps == 2].mean() > rewards[steps >= 4].mean()
    shares = rewards.mean(axis=1)
    assert ((shares > 0) & (shares < 1)).mean() > 0.6


def test_lengths_span_a_factor_of_five(rollouts):
    assert rollouts.lengths.max() >= 5 * rollouts.lengths.min()
    assert 50 < np.median(rollouts.lengths) < 140
    assert rollouts.truncated.mean() < 0.05


def test_traces_vary_and_each_reaches_an_answer(rollouts, texts):
    answered = [extract_answer(text) is not None for text in texts]
    assert np.mean(answered) > 0.95
    for first in range(0, len(texts), PER_PROBLEM):
        assert len(set(texts[first : first + PER_PROBLEM])) >= PER_PROBLEM - 1
    for word in ("roughly", "Hmm", "Then", "apples", " - "):
        assert 0.01 < np.mean([word in text for text in texts]) < 0.99


def test_some_traces_recover_from_a_wrong_step(rollouts, texts):
    noticed = np.array(
        [bool(re.search(r"[Ss]o not|was off|was wrong|is wrong|that cannot be", text)) for text in texts]
    )
    assert noticed.mean() > 0.03
    assert rollouts.rewards[noticed].mean() > 0.15


def test_exact_steps_are_mostly_right(texts):
    found = [match for text in texts for match in re.findall(r"(\w+)?[,:]? (\d+) ([+-]) (\d+) = (\d+)", text)]
    exact = [
        int(a) + int(sign + b) == int(result)
        for word, a, sign, b, result in found
        if word not in ("roughly", "quickly", "head")
    ]
    assert len(exact) > 200
    assert np.mean(exact) > 0.85


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # the signal of 48 prompts is not resolved
def test_a_real_model_is_near():
    policy = gs.load_policy("embedded")
    profile = profile_policy(gs.measure(policy, sampled(48, 8), engine="ghost", sketch_dim=512, progress=False))
    assert profile.n_long >= 10
    for quantity, (least, largest) in BANDS.items():
        assert least <= getattr(profile, quantity) <= largest, quantity
    # As for a real model, subtracting no baseline is noisier, and wrong answers have the larger gradients.
    assert profile.variance_ratios["reinforce"] > 1.0
    assert 0.5 <= profile.optimal_constant_ratio <= 1.0


def test_the_card_states_the_same_bands_and_none_is_missed(card):
    found = re.findall(r"\| ([\d.]+) to ([\d.]+) \|[^|]*\|[^|]*\| ([\d.]+) \|", card)
    assert [(float(least), float(largest)) for least, largest, _ in found] == list(BANDS.values())
    assert all(float(least) <= float(value) <= float(largest) for least, largest, value in found)


def test_problems_of_the_card_are_of_this_kind(card):
    example = re.sub(r"\s+", " ", re.search(r"`(Mia has.*?)`", card, flags=re.DOTALL).group(1))
    assert parse_problem(example).counts[-1] == 11
    assert "The answer is 11." in card


def test_model_card_states_what_was_measured(card):
    success = float(re.search(r"right answers \| ([\d.]+)%", card).group(1))
    mixed = float(re.search(r"both right and wrong answers \| ([\d.]+)%", card).group(1))
    correlation, low, high = map(float, re.search(r"within a prompt \| (\S+) \[(\S+), (\S+)\]", card).groups())
    assert 30 <= success <= 80
    assert mixed >= 60
    assert -0.5 <= low <= correlation <= -0.1
    assert high < 0
    assert "by construction" in card
    assert "Apache-2.0" in card


def test_second_moments_are_there_for_every_parameter(model):
    path = FOLDER / "second_moments.safetensors"
    stored = safetensors_torch.load_file(path)
    assert {name: tensor.shape for name, tensor in stored.items()} == {
        name: parameter.shape for name, parameter in model.named_parameters()
    }
    assert all(bool((tensor >= 0).all()) and bool((tensor > 0).any()) for tensor in stored.values())
    with safetensors_torch.safe_open(path, "pt") as opened:
        assert set(opened.metadata()) >= {"step", "beta2", "eps"}


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
def model_of_embedded_training(script):
    return script.build_model(script.build_tokenizer(), script.Recipe())


def head_sizes(model_of_embedded_training):
    """Root mean square of each head's query and key weights times the gain before them, layers × 2 × heads."""
    sizes = []
    for layer in model_of_embedded_training.model.layers:
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


def test_attention_is_limited_head_by_head_to_the_reach_and_not_before_the_last_restart(
    script, model_of_embedded_training
):
    recipe = script.Recipe()
    with torch.no_grad():
        for layer in model_of_embedded_training.model.layers:
            layer.input_layernorm.weight.fill_(0.5)
            layer.self_attn.q_proj.weight[:24].mul_(100)  # the first head's queries
            layer.self_attn.q_proj.bias.fill_(1.0)
    start = head_sizes(model_of_embedded_training)
    assert start[:, 0, 0].min() > 1 > recipe.reach > start[:, :, 1:].max()

    script.limit_attention(model_of_embedded_training, recipe, recipe.restarts[-1] - 1)
    np.testing.assert_array_equal(head_sizes(model_of_embedded_training), start)

    script.limit_attention(model_of_embedded_training, recipe, recipe.restarts[-1] + recipe.limited // 2 - 1)
    limited = head_sizes(model_of_embedded_training)
    np.testing.assert_allclose(limited[:, 0, 0], recipe.reach * 5**0.5, rtol=1e-5)
    np.testing.assert_array_equal(limited[:, :, 1:], start[:, :, 1:])

    script.limit_attention(model_of_embedded_training, recipe, recipe.steps)
    np.testing.assert_allclose(head_sizes(model_of_embedded_training)[:, 0, 0], recipe.reach, rtol=1e-5)
    bias = model_of_embedded_training.model.layers[0].self_attn.q_proj.bias
    np.testing.assert_allclose(bias[:24].detach(), recipe.reach / start[0, 0, 0], rtol=1e-5)
    assert bool((bias[24:] == 1.0).all())


def test_noise_moves_layers_and_embeddings_for_one_pass_only_and_grows_to_its_size(script, model_of_embedded_training):
    recipe = script.Recipe()
    before = {name: weight.detach().clone() for name, weight in model_of_embedded_training.named_parameters()}

    def size_at(step):
        with script.noisy_weights(model_of_embedded_training, recipe, step):
            moved = {
                name: weight.detach() - before[name] for name, weight in model_of_embedded_training.named_parameters()
            }
            assert not moved["lm_head.weight"].any()
            assert not moved["model.norm.weight"].any()
            return float(moved["model.embed_tokens.weight"].std())

    assert size_at(recipe.even) == 0.0
    assert size_at((recipe.even + recipe.restarts[0]) // 2) == pytest.approx(recipe.noise / 2, rel=0.02)
    assert size_at(recipe.restarts[1]) == pytest.approx(recipe.noise, rel=0.02)
    assert size_at(recipe.restarts[-1]) == pytest.approx(recipe.last_noise, rel=0.02)
    for name, weight in model_of_embedded_training.named_parameters():
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
