"""Advantages computed by TRL's trainers on random groups, compared with those of gradstats."""

import numpy as np
import pytest

from gradstats import estimators as est
from gradstats.estimators import Batch

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
GROUP_SIZE, GROUPS = 4, 3


@pytest.fixture(scope="module")
def trl():
    pytest.importorskip("datasets")
    return pytest.importorskip("trl")


@pytest.fixture(scope="module")
def model_and_tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = {word: number for number, word in enumerate(["<pad>", "<end>", "one", "two", "three"])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="one"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<end>")
    config = transformers.Qwen2Config(
        vocab_size=5, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, eos_token_id=1, pad_token_id=0, bos_token_id=1,
    )  # fmt: skip
    return transformers.Qwen2ForCausalLM(config), tokenizer


def trainer_advantages(trl, kind: str, model_and_tokenizer, rewards: np.ndarray, folder, **settings) -> np.ndarray:
    import datasets

    model, tokenizer = model_and_tokenizer
    config = getattr(trl, f"{kind}Config")(
        output_dir=str(folder), report_to=[], use_cpu=True, per_device_train_batch_size=rewards.size,
        num_generations=GROUP_SIZE, max_completion_length=4, beta=0.0, bf16=False, **settings,
    )  # fmt: skip
    trainer = getattr(trl, f"{kind}Trainer")(
        model=model,
        args=config,
        processing_class=tokenizer,
        reward_funcs=lambda prompts, completions, **columns: rewards.tolist(),
        train_dataset=datasets.Dataset.from_dict({"prompt": ["one", "two", "three"]}),
    )
    inputs = [{"prompt": word} for word in ("one", "two", "three") for _ in range(GROUP_SIZE)]
    output = trainer._generate_and_score_completions(inputs)
    return output["advantages"].numpy().astype(np.float64)


CASES = [
    ("GRPO", {}, est.grpo(eps=1e-4)),
    ("GRPO", {"scale_rewards": "none", "loss_type": "dr_grpo"}, est.dr_grpo()),
    ("RLOO", {}, est.rloo()),
]


@pytest.mark.parametrize(("kind", "settings", "estimator"), CASES, ids=["grpo", "dr_grpo", "rloo"])
def test_advantages_match(trl, model_and_tokenizer, tmp_path, kind: str, settings: dict, estimator):
    rng = np.random.default_rng(0)
    rewards = np.concatenate([rng.normal(size=GROUP_SIZE), rng.integers(0, 2, size=GROUP_SIZE), np.ones(GROUP_SIZE)])
    of_trl = trainer_advantages(trl, kind, model_and_tokenizer, rewards, tmp_path, **settings)
    batch = Batch(rewards, np.ones(rewards.size, dtype=int), np.repeat(np.arange(GROUPS), GROUP_SIZE))
    np.testing.assert_allclose(of_trl, estimator.advantages(batch), atol=1e-5)
