"""The experiment on long traces: conversations of a tiny model, what is resumed, masked, scored and measured."""

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import tiny_tokenizer
from numpy.testing import assert_allclose
from transformers import AutoModelForCausalLM, PhiConfig

import gradstats as gs
from gradstats.policy.policy import Policy
from gradstats.system.files import read_json

LENGTHS = (4, 8, 16, 32)
PROBLEMS = ["one and 1", "two and 2", "three and 3", "four and 4"] * 12


@pytest.fixture
def short(script, monkeypatch):
    """The script with traces of 32 tokens, saved every 50 steps."""
    monkeypatch.setattr(script, "LENGTHS", LENGTHS)
    monkeypatch.setattr(script, "_SAVED_EVERY", 50)
    return script


@pytest.fixture(scope="module")
def policy():
    """A random model that ends an answer after some ten tokens."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    config = PhiConfig(vocab_size=len(tokenizer), max_position_embeddings=2048, **sizes)
    model = AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        model.lm_head.bias[tokenizer.convert_tokens_to_ids("<|im_end|>")] += 1.5
    return Policy(model, tokenizer, "tiny")


@pytest.fixture(scope="module")
def rows(script, policy, tmp_path_factory):
    """The beginnings of three traces, two of them sampled together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "LENGTHS", LENGTHS)
        rollouts = script.sampled(policy, PROBLEMS, 3, 2, 2, tmp_path_factory.mktemp("unbroken"))
    return rollouts.frame


def ids(rows, name):
    return [list(map(int, tokens)) for tokens in rows[name]]


def test_beginnings_hold_the_numbers_of_the_models_tokens(rows):
    assert rows["prompt_id"].tolist() == np.repeat([f"trace {number}" for number in range(3)], len(LENGTHS)).tolist()
    assert [sum(mask) for mask in rows["completion_mask"]] == list(LENGTHS) * 3
    assert all(mask[0] and mask[-1] for mask in rows["completion_mask"])
    for _, trace in rows.groupby("prompt_id"):
        *shorter, longest = ids(trace, "completion_tokens")
        assert all(longest[: len(one)] == one for one in shorter)
        assert len(set(map(tuple, ids(trace, "prompt_tokens")))) == 1


def test_exactly_the_users_tokens_are_masked(script, policy, rows):
    end = policy.tokenizer.convert_tokens_to_ids("<|im_end|>")
    turns = 0
    for number, (_, trace) in enumerate(rows.groupby("prompt_id")):
        order = np.random.default_rng(number).permutation(len(PROBLEMS))
        asked = [
            policy.tokenizer.encode(f"\n<|im_start|>user\n{PROBLEMS[at]}<|im_end|>\n<|im_start|>assistant\n")
            for at in order
        ]
        opening = policy.tokenizer.encode(f"<|im_start|>system\n{script.SYSTEM}<|im_end|>")
        assert ids(trace, "prompt_tokens")[-1] == opening + asked.pop(0)
        tokens, mask = ids(trace, "completion_tokens")[-1], list(trace["completion_mask"].iloc[-1])
        expected: list[bool] = []
        while len(expected) < len(tokens):
            expected.append(True)
            if tokens[len(expected) - 1] == end and len(expected) < len(tokens):
                turn = asked.pop(0)
                assert tokens[len(expected) : len(expected) + len(turn)] == turn
                expected += [False] * len(turn)
                turns += 1
        assert mask == expected
    assert turns >= 3


def test_log_probabilities_are_those_of_the_whole_sequence(policy, rows):
    tokens = (ids(rows, "prompt_tokens"), ids(rows, "completion_tokens"))
    known = (rows["sampler_logprobs"], rows["completion_mask"])
    for prompt, completion, recorded, mask in zip(*tokens, *known, strict=True):
        with torch.no_grad():
            logits = policy.model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        exact = logits.log_softmax(dim=-1).gather(1, torch.tensor(completion)[:, None])[:, 0].numpy()
        assert_allclose(np.array(recorded)[list(mask)], exact[list(mask)], atol=1e-5)


def test_a_stopped_run_goes_on_with_the_same_tokens(short, policy, rows, tmp_path, monkeypatch):
    step, stops, steps = short.Conversations._next, [130, 60, 210], []

    def stopping(self, *given):
        steps.append(len(self.tokens[0]))
        if stops and len(steps) == stops[0]:
            stops.pop(0)
            raise KeyboardInterrupt
        return step(self, *given)

    monkeypatch.setattr(short.Conversations, "_next", stopping)
    begun = []
    for _ in range(3):
        steps.clear()
        with pytest.raises(KeyboardInterrupt):
            short.sampled(policy, PROBLEMS, 3, 2, 2, tmp_path)
        begun.append(steps[0])
    # Each run begins where the last one saved, not where it was stopped.
    assert begun == [0, 100, 150]
    again = short.sampled(policy, PROBLEMS, 3, 2, 2, tmp_path).frame
    for name in ("prompt_tokens", "completion_tokens"):
        assert ids(again, name) == ids(rows, name)
    for name in ("completion_mask", "sampler_logprobs"):
        assert all(np.allclose(list(one), list(other)) for one, other in zip(again[name], rows[name], strict=True))


def test_some_traces_end_at_the_length_before_the_last(short, policy, rows, tmp_path):
    found = short.sampled(policy, PROBLEMS, 3, 2, 1, tmp_path).frame
    reached = found["completion_mask"].map(sum).groupby(found["prompt_id"]).max()
    # Those of the second pair are one.
    assert reached.to_dict() == {"trace 0": 32, "trace 1": 16, "trace 2": 32}
    same = found["completion_mask"].map(sum) <= 16
    expected = rows[rows["completion_mask"].map(sum) <= 16]
    assert ids(found[same], "completion_tokens") == ids(expected, "completion_tokens")


def test_the_whole_experiment_reports_alpha_within_traces(short, policy, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(gs, "load_policy", lambda _name: policy)
    pd.DataFrame({"input": PROBLEMS}).to_json(tmp_path / "problems.jsonl", orient="records", lines=True)
    short.main(tmp_path / "problems.jsonl", "tiny", 3, 2, 2, tmp_path / "runs", tmp_path / "out")
    points = pd.read_csv(tmp_path / "out" / "along_traces.csv")
    assert points["length"].tolist() == list(LENGTHS) * 3
    found = pd.read_csv(tmp_path / "out" / "fits.csv").set_index("fit")["alpha"]
    # ‖S‖² ∝ T^(2α) with an intercept for each trace.
    logs = np.log(points[["length", "sq_norm"]].to_numpy()).reshape(3, len(LENGTHS), 2)
    centred = logs - logs.mean(axis=1, keepdims=True)
    slope = (centred[..., 0] * centred[..., 1]).sum() / (centred[..., 0] ** 2).sum()
    assert found["within traces"] == pytest.approx(slope / 2)
    assert found["from 8 to 16"] == pytest.approx(np.mean(logs[:, 2, 1] - logs[:, 1, 1]) / (2 * np.log(2)))
    assert read_json(tmp_path / "out" / "manifest.json")["n_traces"] == 3
    # Traces that are kept are measured again, and not drawn.
    monkeypatch.setattr(short, "sampled", None)
    first = (tmp_path / "out" / "along_traces.csv").read_bytes()
    short.main(tmp_path / "problems.jsonl", "tiny", 3, 2, 2, tmp_path / "runs", tmp_path / "out")
    assert (tmp_path / "out" / "along_traces.csv").read_bytes() == first
