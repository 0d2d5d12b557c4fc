"""A real llama.cpp server on this machine, which serves the weights that are scored."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

import gradstats as gs
from gradstats.policy.policy import Policy
from gradstats.prompts import Problem

pytestmark = pytest.mark.slow

# It serves until its input ends, and so never outlives the test.
SERVER = """
import sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = sys.argv[1], 1024, 4
params.cpuparams.n_threads = 1
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


def write_gguf(policy: Policy, path: Path) -> None:
    """Write a Qwen2 policy in float32, with its tokenizer."""
    config, tokenizer = policy.model.config, policy.tokenizer
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    tokens = tokenizer.convert_ids_to_tokens(range(config.vocab_size))
    special = set(tokenizer.all_special_ids)
    types = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in range(len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, weight in policy.model.state_dict().items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), weight.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


MERGES = [("Ġ", "a"), ("a", "b"), ("b", "c"), ("ð", "Ł"), ("â", "Ŀ")]


@pytest.fixture(scope="module")
def address(byte_policy, tmp_path_factory) -> Iterator[str]:
    """The address of a server of ``byte_policy`` on 127.0.0.1."""
    folder = tmp_path_factory.mktemp("served")
    write_gguf(byte_policy, folder / "bytes.gguf")
    log = (folder / "log.txt").open("w+")
    command = [sys.executable, "-c", SERVER, str(folder / "bytes.gguf")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as server:
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), Path(log.name).read_text()[-2000:]
        yield address
        server.stdin.close()
        assert server.wait(60) == 0
    log.close()


PROBLEMS = [Problem(f"p{k}", text, "x", "exact") for k, text in enumerate(("abc", "❝ cab ❞", "🦄", "a b c a b c"))]


def sampled(policy, base_url, **options):
    return gs.sample(
        policy, PROBLEMS, group_size=4, max_new_tokens=24, rng=0, sampler="openai", base_url=base_url, progress=False,
        **options,
    )  # fmt: skip


@pytest.mark.parametrize(("path", "temperature"), [("/v1", 1.0), ("", 1.0), ("/v1", 0.5)])
def test_every_drawn_token_is_recorded_with_its_log_probability(byte_policy, address, path, temperature):
    """Of the distribution that is drawn from."""
    rollouts = sampled(byte_policy, f"{address}{path}", temperature=temperature)
    assert rollouts.metadata["sampler"]["dialect"] == "llama.cpp, prompt as token ids"
    assert rollouts.frame["token_source"].unique().tolist() == ["engine"]
    assert rollouts.lengths[rollouts.truncated].tolist() == [24] * int(rollouts.truncated.sum())
    again = rollouts.frame["completion_text"].map(byte_policy.tokenizer).map(lambda encoded: encoded["input_ids"])
    assert sum(list(a) != list(b) for a, b in zip(again, rollouts.frame["completion_tokens"], strict=True)) > 8
    policy = Policy(byte_policy.model, byte_policy.tokenizer, name="bytes", temperature=temperature)
    measured = gs.measure(policy, rollouts, sketch_dim=64)
    reported = np.concatenate(rollouts.frame["sampler_logprobs"].tolist())
    scored = np.concatenate([np.asarray(row) for row in measured.logprobs])
    assert np.isfinite(reported).mean() > 0.2
    np.testing.assert_allclose(reported, np.where(np.isnan(reported), np.nan, scored), atol=2e-4)
    assert not gs.sampler_gap(measured).off_policy


def test_the_same_seed_draws_the_same_completions(byte_policy, address):
    first, second = (sampled(byte_policy, f"{address}/v1").frame for _ in range(2))
    pairs = zip(first["completion_tokens"], second["completion_tokens"], strict=True)
    assert sum(list(a) == list(b) for a, b in pairs) >= 14  # batches differ, and with them the last bits
