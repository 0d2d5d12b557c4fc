"""Small models of every architecture of transformers that is measured."""

import torch
from conftest import VOCABULARY
from gradient_models import randomised
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from gradstats.system.environment import installed

#: Whether transformers is the oldest version that is allowed, some models of which cannot do what newer ones can.
OLDEST_TRANSFORMERS = (installed("transformers") or "").startswith("5.10.")
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
HEADS = {"head_dim": 8}
LOCAL = {"sliding_window": 4}
EMBD = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
LOW_RANK = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 8}
LATENT = LOW_RANK | {"head_dim": 4}
FOUR = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
FOUR_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_group": 2, "topk_group": 1}
DEEPSEEK = LATENT | ROUTED | {"first_k_dense_replace": 1, "n_shared_experts": 1}
MIXED = {"layer_types": ["linear_attention", "full_attention"]}
DELTA_HEADS = {"linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_num_key_heads": 2}
DELTA = MIXED | DELTA_HEADS | {"linear_conv_kernel_dim": 3, "linear_num_value_heads": 4}
SELECTIVE = {"state_size": 4, "conv_kernel": 3, "expand": 2, "time_step_rank": 3}
STATES = {"mamba_d_state": 4, "mamba_d_conv": 3}
MAMBA2 = STATES | {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_chunk_size": 4}
FOUR_LAYERS = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 1,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 4,
}

PLAIN = """
    llama qwen2 phi phi3 gpt_neox gpt_neox_japanese falcon olmo olmo2 starcoder2 smollm3 granite arcee diffllama doge
    apertus bitnet persimmon biogpt nanochat hrm_text
"""
OF_HEADS = """
    qwen3 gemma glm glm4 nemotron helium ernie4_5 seed_oss hunyuan_v1_dense cwm jais2 ministral3
"""
LOCAL_HEADS = "gemma2 gemma3_text cohere2 vaultgemma ministral"
DENSE = {
    **{name: {} for name in PLAIN.split()},
    **dict.fromkeys(OF_HEADS.split(), HEADS),
    **dict.fromkeys(LOCAL_HEADS.split(), HEADS | LOCAL),
    **dict.fromkeys(["mistral", "olmo3", "exaone4"], LOCAL),
    **dict.fromkeys(["gpt2", "gpt_bigcode", "openai-gpt"], EMBD),
    **dict.fromkeys(["youtu", "minicpm3"], LATENT),
    "gpt_neo": {"num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gptj": EMBD | {"rotary_dim": 4},
    "codegen": EMBD | {"num_attention_heads": 4, "n_head": 4, "rotary_dim": 4},
    "ctrl": EMBD | {"dff": 24},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": 16},
    "bloom": {"n_head": 2, "n_layer": 2},
    "mpt": {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 64, "expansion_ratio": 2},
    "cohere": {"use_qk_norm": True},
    "stablelm": {"use_qkv_bias": True, "qk_layernorm": True},
    "modernbert-decoder": {"local_attention": 4},
}
MIXTURES = {
    "mixtral": FOUR_LOCAL,
    "qwen2_moe": FOUR | {"shared_expert_intermediate_size": 12, "decoder_sparse_step": 1},
    "qwen3_moe": FOUR | HEADS | {"decoder_sparse_step": 1},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "flex_olmo": {"num_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v2": DEEPSEEK | {"topk_method": "greedy"},
    "deepseek_v3": DEEPSEEK,
    # Few heads would give many scores of exactly 0, and which of these come first depends on the padding.
    "deepseek_v32": DEEPSEEK | {"index_n_heads": 32, "index_head_dim": 8, "index_topk": 4},
    "gpt_oss": FOUR_LOCAL | HEADS | LOCAL,
    "granitemoe": FOUR_LOCAL,
    "granitemoeshared": FOUR_LOCAL | {"shared_intermediate_size": 12},
    "phimoe": FOUR_LOCAL,
    "jetmoe": FOUR_LOCAL | {"kv_channels": 8, "num_key_value_heads": 1},
    "dbrx": {
        "d_model": 16,
        "n_heads": 2,
        "n_layers": 2,
        "max_seq_len": 64,
        "attn_config": {"kv_n_heads": 1, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 8, "moe_num_experts": 4, "moe_top_k": 2},
    },
    **dict.fromkeys(["glm4_moe", "dots1", "solar_open"], DEEPSEEK | HEADS),
    "glm4_moe_lite": DEEPSEEK,
    "exaone_moe": DEEPSEEK | HEADS | LOCAL | {"num_experts": 4},
    "ernie4_5_moe": {
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 8,
        "moe_num_shared_experts": 1,
        "moe_layer_start_index": 0,
    },
    "hunyuan_v1_moe": HEADS | {"num_experts": 4, "moe_topk": 2},
    "minimax_m2": FOUR_LOCAL | HEADS,
    "afmoe": FOUR | HEADS | LOCAL | {"num_dense_layers": 1},
    "longcat_flash": DEEPSEEK
    | {"num_layers": 1, "ffn_hidden_size": 24, "expert_ffn_hidden_size": 8, "zero_expert_num": 1, "moe_topk": 2},
    "llama4_text": FOUR_LOCAL | HEADS | {"intermediate_size_mlp": 24, "interleave_moe_layer_step": 1},
    **dict.fromkeys(["cohere2_moe", "laguna"], FOUR | HEADS),
}
HYBRIDS = {
    "mamba": SELECTIVE,
    "falcon_mamba": SELECTIVE,
    "mamba2": {
        "state_size": 4,
        "conv_kernel": 3,
        "expand": 2,
        "n_groups": 2,
        "chunk_size": 4,
        "num_heads": 4,
        "head_dim": 8,
    },
    "falcon_h1": HEADS | MAMBA2 | {"mamba_d_ssm": 32},
    "bamba": MAMBA2 | {"attn_layer_indices": [1]},
    "granitemoehybrid": MAMBA2 | FOUR_LOCAL | {"shared_intermediate_size": 8, "layer_types": ["mamba", "attention"]},
    "jamba": STATES
    | {"num_experts": 2, "num_experts_per_tok": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
    | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 3, "use_mamba_kernels": False},
    "zamba": STATES
    | {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "mamba_dt_rank": 4}
    | {"n_mamba_heads": 2, "use_mamba_kernels": False},
    "zamba2": STATES
    | {"num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"], "mamba_ngroups": 2}
    | {"n_mamba_heads": 4, "chunk_size": 4, "adapter_rank": 3, "num_mem_blocks": 1, "use_mamba_kernels": False},
    "nemotron_h": HEADS
    | {"layers_block_type": ["mamba", "attention", "moe"], "num_hidden_layers": 3, "mamba_num_heads": 4}
    | {"mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 4, "conv_kernel": 3, "chunk_size": 4}
    | ROUTED
    | {"moe_shared_expert_intermediate_size": 8, "n_group": 1},
    "qwen3_next": DELTA | FOUR | HEADS | {"shared_expert_intermediate_size": 8, "decoder_sparse_step": 1},
    "qwen3_5_text": DELTA | HEADS,
    "qwen3_5_moe_text": DELTA | FOUR | HEADS | {"shared_expert_intermediate_size": 8},
    "olmo_hybrid": DELTA | {"linear_num_value_heads": 2},
    "minimax": FOUR_LOCAL | HEADS | MIXED | {"block_size": 4},
    "lfm2": {"conv_L_cache": 3, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    "lfm2_moe": FOUR | {"conv_L_cache": 3, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "recurrent_gemma": {
        "lru_width": 16,
        "attention_window_size": 8,
        "conv1d_width": 3,
        "block_types": ["recurrent", "attention"],
    },
    "rwkv": {"attention_hidden_size": 16, "context_length": 64},
    "xlstm": {"num_heads": 2, "chunk_size": 4, "num_blocks": 2},
    "gemma3n_text": HEADS
    | LOCAL
    | FOUR_LAYERS
    | {"laurel_rank": 3, "altup_num_inputs": 2, "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0]},
    "gemma4_text": HEADS | LOCAL | FOUR_LAYERS | {"global_head_dim": 8},
}
EVERY = DENSE | MIXTURES | HYBRIDS


#: Mixtures with each way in which transformers holds experts.
KINDS_OF_EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3", "gpt_oss")


def small_model(architecture: str, options: dict | None = None, experts: str | None = None) -> nn.Module:
    """A random model in float64, where the grouped matrix product of experts does not exist; options are further."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        settings = SMALL | EVERY[architecture] | (options or {})
        model = randomised(AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **settings)))
    if experts is not None or getattr(model.config, "_experts_implementation", None) == "grouped_mm":
        model.set_experts_implementation(experts or "eager")
    return model
