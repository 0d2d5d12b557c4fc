"""The fields of a request in each dialect."""

from __future__ import annotations

import json

import pytest

from gradstats.sampling import SamplerSettings
from gradstats.sampling.server_sampler import DIALECTS

SETTINGS = SamplerSettings(9, temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2)
FIELDS = {dialect.name: dialect.fields for dialect in DIALECTS}


def test_token_ids_come_before_text_and_all_settings_before_a_subset():
    assert [(dialect.name.split(",")[0], dialect.takes_tokens) for dialect in DIALECTS] == [
        ("extended", True),
        ("extended", False),
        ("transformers serve", False),
        ("standard", True),
        ("standard", False),
    ]


def test_the_extended_dialect_states_every_setting_under_the_names_of_vllm_and_of_llama_cpp():
    fields = FIELDS["extended, prompt as token ids"](SETTINGS, [1])
    extra = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "repeat_penalty": 1.2, "return_token_ids": True}
    assert fields == {"temperature": 0.7, "top_p": 0.9, "logprobs": 1, "extra_body": extra}


def test_the_generation_config_of_transformers_serve_leaves_nothing_to_the_model():
    sent = json.loads(FIELDS["transformers serve"](SETTINGS, [1, 4])["extra_body"]["generation_config"])
    assert sent == {
        "do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2,
        "max_new_tokens": 9, "eos_token_id": [1, 4], "pad_token_id": 1,
    }  # fmt: skip
    without = json.loads(FIELDS["transformers serve"](SamplerSettings(9), [])["extra_body"]["generation_config"])
    assert (without["min_p"], without["eos_token_id"], without["pad_token_id"]) == (None, None, None)


def test_the_standard_dialect_refuses_each_setting_that_it_lacks():
    standard = FIELDS["standard, prompt as text"]
    assert standard(SamplerSettings(9, temperature=0.7, top_p=0.9), []) == {
        "temperature": 0.7,
        "top_p": 0.9,
        "logprobs": 1,
    }
    assert standard(SamplerSettings(9, temperature=0.7).greedy(), []) == {"temperature": 0.0, "logprobs": 1}
    message = r"which have no top_k=5, min_p=0\.1, repetition_penalty=1\.2: leave them out, or serve .* with vLLM"
    with pytest.raises(ValueError, match=message):
        standard(SETTINGS, [])
