"""What the tests of samplers share."""

import pytest
import torch
from conftest import SIZES, tiny_tokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from gradstats.policy.policy import Policy, load_policy


@pytest.fixture(scope="session")
def policy(policy_folder) -> Policy:
    return load_policy(policy_folder)


@pytest.fixture(scope="session")
def byte_policy() -> Policy:
    """A random Qwen2 model of bytes, some pairs of bytes and four special tokens: letters take up to four tokens."""
    letters = ByteLevel.alphabet()
    pairs = [("Ġ", "a"), ("a", "b"), ("b", "c"), ("ð", "Ł"), ("â", "Ŀ")]
    vocabulary = ["<pad>", "<eos>", "<user>", "<assistant>", *sorted(letters), *("".join(pair) for pair in pairs)]
    tokenizer = Qwen2Tokenizer(
        vocab={token: number for number, token in enumerate(vocabulary)},
        merges=pairs,
        unk_token="<pad>",
        pad_token="<pad>",
        eos_token="<eos>",
        additional_special_tokens=["<user>", "<assistant>"],
    )
    tokenizer.chat_template = tiny_tokenizer().chat_template
    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = SIZES | {"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 512}
        config = Qwen2Config(
            vocab_size=len(vocabulary), **sizes, tie_word_embeddings=False, eos_token_id=1, pad_token_id=0
        )
        model = Qwen2ForCausalLM(config).eval()
        with torch.no_grad():  # far from uniform
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return Policy(model, tokenizer, name="bytes")
