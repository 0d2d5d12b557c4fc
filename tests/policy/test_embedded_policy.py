"""The shipped policy: it loads with plain transformers, does what its model card says, and lies near a real model."""

import importlib
import re
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


def test_it_is_a_small_float32_qwen2_in_a_folder_that_transformers_reads(model):
    files = [file for file in FOLDER.rglob("*") if file.is_file()]
    needed = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "README.md"}
    assert needed <= {file.name for file in files}
    assert 4_000_000 <= (FOLDER / "model.safetensors").stat().st_size <= 8_000_000
    assert sum(file.stat().st_size for file in files) <= 16_000_000
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
    pieces = ["Start", ":", " 3", "1", ".", " Monday", " she", " wins", " 7", ":", " roughly", " plus", " 2", "8", "."]
    ids = tokenizer.encode("".join(pieces), add_special_tokens=False)
    assert [tokenizer.decode(token) for token in ids] == pieces


def test_end_and_padding_are_distinct_tokens_and_agree_with_the_model(tokenizer, model):
    assert tokenizer.eos_token == "<|end|>"
    assert tokenizer.pad_token == "<|pad|>"
    assert model.config.eos_token_id == tokenizer.eos_token_id != tokenizer.pad_token_id
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_chat_template_gives_the_trained_prompt_and_no_other_roles(tokenizer):
    messages = [{"role": "user", "content": "Mia has 12 apples."}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == "<|user|>Mia has 12 apples.<|assistant|>"
    tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)["input_ids"]
    pieces = ["<|user|>", "Mia", " has", " 1", "2", " apples", ".", "<|assistant|>"]
    assert [tokenizer.decode(token) for token in tokens] == pieces
    with pytest.raises(Exception, match="knows the roles user and assistant only"):
        tokenizer.apply_chat_template([{"role": "system", "content": "Be brief."}])


def test_success_falls_with_difficulty_and_most_groups_are_mixed(rollouts):
    rewards = rollouts.rewards.reshape(N_PROBLEMS, PER_PROBLEM)
    steps = np.array([problem.difficulty for problem in generate_problems(N_PROBLEMS, rng=11)])
    assert 0.4 < rewards.mean() < 0.75
    assert rewards[steps == 2].mean() > rewards[steps >= 4].mean()
    shares = rewards.mean(axis=1)
    assert ((shares > 0) & (shares < 1)).mean() > 0.6
    assert rollouts.lengths.max() >= 5 * rollouts.lengths.min()
    assert 50 < np.median(rollouts.lengths) < 140
    assert rollouts.truncated.mean() < 0.05


def test_traces_vary_recover_from_wrong_steps_and_reach_an_answer(rollouts):
    texts = list(rollouts.frame["completion_text"])
    assert np.mean([extract_answer(text) is not None for text in texts]) > 0.95
    for first in range(0, len(texts), PER_PROBLEM):
        assert len(set(texts[first : first + PER_PROBLEM])) >= PER_PROBLEM - 1
    for word in ("roughly", "Hmm", "Then", "apples", " - "):
        assert 0.01 < np.mean([word in text for text in texts]) < 0.99
    refuted = re.compile(r"[Ss]o not|was off|was wrong|is wrong|that cannot be")
    noticed = np.array([bool(refuted.search(text)) for text in texts])
    assert noticed.mean() > 0.03
    assert rollouts.rewards[noticed].mean() > 0.15
    found = [match for text in texts for match in re.findall(r"(\w+)?[,:]? (\d+) ([+-]) (\d+) = (\d+)", text)]
    exact = [one for one in found if one[0] not in ("roughly", "quickly", "head")]
    assert len(exact) > 200
    assert np.mean([int(a) + int(sign + b) == int(result) for _, a, sign, b, result in exact]) > 0.85


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


def test_model_card_states_what_was_measured(card):
    example = re.sub(r"\s+", " ", re.search(r"`(Mia has.*?)`", card, flags=re.DOTALL).group(1))
    assert parse_problem(example).counts[-1] == 11
    success = float(re.search(r"right answers \| ([\d.]+)%", card).group(1))
    mixed = float(re.search(r"both right and wrong answers \| ([\d.]+)%", card).group(1))
    correlation, low, high = map(float, re.search(r"within a prompt \| (\S+) \[(\S+), (\S+)\]", card).groups())
    assert 30 <= success <= 80
    assert mixed >= 60
    assert -0.5 <= low <= correlation <= -0.1
    assert high < 0
    assert all(words in card for words in ("The answer is 11.", "by construction", "Apache-2.0"))


def test_second_moments_are_there_for_every_parameter(model):
    path = FOLDER / "second_moments.safetensors"
    stored = safetensors_torch.load_file(path)
    assert {name: tensor.shape for name, tensor in stored.items()} == {
        name: parameter.shape for name, parameter in model.named_parameters()
    }
    assert all(bool((tensor >= 0).all()) and bool((tensor > 0).any()) for tensor in stored.values())
    with safetensors_torch.safe_open(path, "pt") as opened:
        assert set(opened.metadata()) >= {"step", "beta2", "eps"}


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


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments"))
        return importlib.import_module("train_embedded_policy")


def test_noise_moves_layers_and_embeddings_for_one_pass_only_and_grows_to_its_size(script):
    recipe = script.Recipe()
    model = script.build_model(script.build_tokenizer(), recipe)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for step, size in (
        (recipe.even, 0.0),
        ((recipe.even + recipe.restarts[0]) // 2, recipe.noise / 2),
        (recipe.restarts[1], recipe.noise),
        (recipe.restarts[-1], recipe.last_noise),
    ):
        with script.noisy_weights(model, recipe, step):
            moved = {name: weight.detach() - before[name] for name, weight in model.named_parameters()}
        assert not torch.cat([moved["lm_head.weight"].flatten(), moved["model.norm.weight"]]).any()
        assert float(moved["model.embed_tokens.weight"].std()) == pytest.approx(size, rel=0.02)
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_attention_is_limited_head_by_head_to_the_reach_and_not_before_the_last_restart(script):
    recipe = script.Recipe()
    model = script.build_model(script.build_tokenizer(), recipe)
    layer = model.model.layers[0]
    queries = layer.self_attn.q_proj
    with torch.no_grad():
        queries.weight[:24].mul_(100)  # the first head's queries
        queries.bias.fill_(1.0)
    start = queries.weight.detach().clone()

    def size():
        return float((queries.weight[:24] * layer.input_layernorm.weight).detach().square().mean().sqrt())

    first = size()
    for step, limited in (
        (recipe.restarts[-1] - 1, first),
        (recipe.restarts[-1] + recipe.limited // 2 - 1, recipe.reach * 5**0.5),
        (recipe.steps, recipe.reach),
    ):
        script.limit_attention(model, recipe, step)
        assert size() == pytest.approx(limited, rel=1e-5)
    assert torch.equal(queries.weight[24:], start[24:])
    np.testing.assert_allclose(queries.bias[:24].detach(), recipe.reach / first, rtol=1e-5)
    assert bool((queries.bias[24:] == 1.0).all())


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
