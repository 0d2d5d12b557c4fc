"""Samplers by name, their options, and libraries that are not installed."""

from __future__ import annotations

import sys

import pytest

from gradstats.policy.policy import load_policy
from gradstats.sampling.plan import open_sampler


@pytest.fixture(scope="module")
def policy(policy_folder):
    return load_policy(policy_folder)


def test_absent_libraries_are_named(policy, monkeypatch):
    for name, library in (("vllm", "vllm"), ("openai", "openai")):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(ImportError, match=rf"pip install 'gradstats\[{name}\]'"):
            open_sampler(name, policy, "http://x/v1" if name == "openai" else None).describe()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("openai", None, {}), "base_url is missing: give the server's address"),
        (("transformers", "http://x/v1", {}), "base_url is 'http://x/v1', but sampler is 'transformers'"),
        (("sglang", None, {}), "sampler is 'sglang': choose one of transformers, continuous, vllm, openai"),
        (("openai", "http://x/v1", {"threads": 3}), "sampler_options .* do not suit the sampler 'openai': .*threads"),
        (("openai", "http://x/v1", {"concurrency": 0}), "concurrency is 0: it must be at least 1"),
        (("openai", "http://x/v1", {"timeout_seconds": 0.0}), "timeout_seconds is 0.0: it must be above 0"),
        (("openai", "http://x/v1", {"max_retries": -1}), "max_retries is -1: it must be 0 or more"),
        (("openai", "http://x/v1", {"logprobs_of": "me"}), "logprobs_of is 'me': it must be model or sampled"),
    ],
)
def test_wrong_options_are_named(policy, arguments, message):
    pytest.importorskip("openai")
    name, base_url, options = arguments
    with pytest.raises(ValueError, match=message):
        open_sampler(name, policy, base_url, options)


def test_weights_with_nan_are_not_sampled_from(policy_folder):
    policy = load_policy(policy_folder)
    policy.model.model.norm.weight.data[0] = float("nan")
    with pytest.raises(ValueError, match=r"hold NaN or infinity \(model\.norm\.weight\): load an intact checkpoint"):
        open_sampler("transformers", policy)
