"""TRL's trainers on a random two-layer model of five words, and rewards that a test can compute."""

from pathlib import Path

import datasets
import numpy as np
import tokenizers
import torch
import transformers
import trl

from gradstats.integrations.trl.contract import Generation, intercept

GROUP_SIZE = 4
WORDS = ["<pad>", "<end>", "one", "two", "three", "four", "five", "six", "seven", "eight"]


def small_tokenizer() -> transformers.PreTrainedTokenizerFast:
    words = {word: number for number, word in enumerate(WORDS)}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="one"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<end>")


def small_model(dropout: float = 0.0) -> transformers.Qwen2ForCausalLM:
    torch.manual_seed(0)
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=len(WORDS), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, eos_token_id=1, pad_token_id=0, bos_token_id=1, attention_dropout=dropout,
            max_position_embeddings=64,
        )
    )  # fmt: skip


def odd_rewards(completion_ids: list[list[int]], **_: object) -> list[float]:
    """Rewards whose sums and thirds are rounded in float32."""
    return [0.1 * sum(ids) / len(ids) + 0.037 * len(ids) for ids in completion_ids]


def small_trainer(kind: str, folder: Path, *, model: torch.nn.Module | None = None, rewards=odd_rewards, **settings):
    given = {
        "output_dir": str(folder), "report_to": [], "use_cpu": True, "per_device_train_batch_size": 3 * GROUP_SIZE,
        "num_generations": GROUP_SIZE, "max_completion_length": 8, "beta": 0.0, "bf16": False, "max_steps": 2,
        "learning_rate": 1e-2, "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "seed": 3,
    } | settings  # fmt: skip
    further = {name: given.pop(name, None) for name in ("peft_config", "callbacks")}
    return getattr(trl, f"{kind}Trainer")(
        model=small_model() if model is None else model,
        args=getattr(trl, f"{kind}Config")(**given),
        processing_class=small_tokenizer(),
        reward_funcs=rewards,
        train_dataset=datasets.Dataset.from_dict({"prompt": ["one", "two three", "three", "four", "five six", "six"]}),
        **further,
    )


PROMPTS = [{"prompt": prompt} for prompt in ("one", "two three", "six") for _ in range(GROUP_SIZE)]


def drawn(trainer) -> tuple[dict[str, torch.Tensor], Generation]:
    """One batch, the same for all trainers, and the batch as it was before something was replaced."""
    seen: list[Generation] = []
    wrapped = trainer._calculate_rewards, trainer._generate_and_score_completions
    intercept(trainer, seen.append)
    trainer.model.train()
    torch.manual_seed(5)
    output = trainer._generate_and_score_completions(PROMPTS)
    trainer._calculate_rewards, trainer._generate_and_score_completions = wrapped
    return output, seen[0]


def weights_of(trainer) -> dict[str, torch.Tensor]:
    """The trained parameters, after a training run."""
    return {name: tensor.detach().clone() for name, tensor in trainer.model.named_parameters()}


def trained(trainer) -> dict[str, torch.Tensor]:
    trainer.train()
    return weights_of(trainer)


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        np.testing.assert_array_equal(tensor.float().numpy(), other[name].float().numpy(), err_msg=name)


def logged(trainer) -> list[dict[str, float]]:
    """What the monitor logged, one dictionary for each step at which it logged something."""
    rows = [
        {key.removeprefix("gradstats/"): value for key, value in row.items() if key.startswith("gradstats/")}
        for row in trainer.state.log_history
    ]
    return [row for row in rows if row]
