"""The interface of samplers."""

import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import tiny_model, tiny_tokenizer

from gradstats.config.sections import SamplingSection
from gradstats.config.validation import setting
from gradstats.policy.policy import Policy
from gradstats.prompts import Problem
from gradstats.sampling import Completion, Sampler, SamplerSettings
from gradstats.sampling.sample import sample
from gradstats.sampling.sampler import client_until, stop_token_ids, usual_stop_token
from gradstats.sampling.server_sampler import ServerSampler
from gradstats.sampling.transformers_sampler import ContinuousSampler, TransformersSampler
from gradstats.sampling.vllm_sampler import VllmSampler

openai = pytest.importorskip("openai")


HEADERS = b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n"


def drip(listening: socket.socket, pause: float, dripping_headers: bool) -> None:
    """Answer one request with a body of 200 bytes, one at a time, or with the headers one byte at a time."""
    connection, _ = listening.accept()
    connection.recv(65536)
    try:
        at_once, one_by_one = (b"", HEADERS + 200 * b"x") if dripping_headers else (HEADERS, 200 * b"x")
        connection.sendall(at_once)
        for byte in one_by_one:
            connection.sendall(bytes([byte]))
            time.sleep(pause)
    except OSError:  # the client has left
        pass
    finally:
        connection.close()


@pytest.mark.parametrize("dripping_headers", [False, True])
@pytest.mark.parametrize(("pause", "late"), [(0.2, True), (0.0, False)])
def test_a_dripping_answer_is_given_up(pause, late, dripping_headers):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=drip, args=(listening, pause, dripping_headers), daemon=True).start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        # Each wait for bytes is far below the timeout of the library.
        with client_until(openai.DefaultHttpxClient, 1.0 if late else 60.0) as client:
            start = time.monotonic()
            if late:
                with pytest.raises(Exception, match="the whole answer took longer"):
                    client.get(address)
                assert time.monotonic() - start < 7.0  # the headers alone take 8
            else:
                assert len(client.get(address).content) == 200


PROBLEMS = [Problem(f"p{k}", "ab" * k, "x", "exact") for k in range(1, 5)]


def test_a_sampler_of_ones_own_is_used_with_its_seeds(policy):
    class Constant:
        own_seeds = True
        seen: list[int] = []  # noqa: RUF012

        def describe(self):
            return {"engine": "constant"}

        def draw(self, prompts, settings, seeds, on_tokens):
            self.seen.extend(seeds)
            return [Completion([4, 1], [-1.0, float("nan")], "stop", "pieces") for _ in prompts]

    own = Constant()
    assert isinstance(own, Sampler)
    with pytest.warns(UserWarning, match="generation_config"):
        rollouts = sample(policy, PROBLEMS, group_size=2, max_new_tokens=4, sampler=own, reward="exact", progress=False)
    assert sorted(rollouts.frame["sampler_seed"]) == sorted(own.seen)
    assert rollouts.metadata["sampler"]["engine"] == "constant"
    assert np.isnan(rollouts.frame["sampler_logprobs"].iloc[0][1])


@pytest.mark.parametrize("stated", [None, 0.7])
def test_a_section_without_a_temperature_draws_at_the_policys(stated):
    section = SamplingSection(max_new_tokens=9, temperature=stated, top_p=0.9, top_k=7, min_p=0.05)
    settings = SamplerSettings.of(section, policy_temperature=0.6)
    assert settings == SamplerSettings(9, temperature=stated or 0.6, top_p=0.9, top_k=7, min_p=0.05)


def test_departures_are_from_the_policys_own_distribution():
    assert SamplerSettings(8, temperature=0.6).departures(0.6) == []
    assert SamplerSettings(8, top_k=5).departures(0.6) == ["temperature=1.0", "top_k=5"]
    assert SamplerSettings(8, temperature=0.5, min_p=0.1).greedy() == SamplerSettings(8, top_k=1)


@pytest.mark.parametrize("sampler", [TransformersSampler, ContinuousSampler, VllmSampler, ServerSampler])
def test_a_setting_that_an_engine_would_pass_over_is_refused(sampler):
    class Settings(SamplerSettings):
        novelty: float = setting(1.0, "what no engine knows.", "samples, reshapes, truncates")

    Settings(8, top_p=0.9, top_k=5, min_p=0.1, temperature=0.5).refuse_unknown_to(object.__new__(sampler))
    message = rf"novelty is 0\.9, which a {sampler.__name__} does not implement: leave it at 1\.0, or use"
    with pytest.raises(ValueError, match=message):
        Settings(8, novelty=0.9).refuse_unknown_to(object.__new__(sampler))
    Settings(8, novelty=0.9).refuse_unknown_to(object())  # a user's is given every setting


def test_every_setting_of_a_draw_is_one_of_the_policys_own_sampler():
    assert {*TransformersSampler.implements} == {*SamplingSection.fields_that("reshapes")}


def test_only_what_changes_the_distribution_is_overridden():
    config = {"temperature": 0.6, "top_k": 5, "max_length": 20, "eos_token_id": 1, "min_p": None}
    settings = SamplerSettings(8, top_k=5)
    assert settings.overridden(SimpleNamespace(to_diff_dict=lambda: config)) == {"temperature": 0.6}
    assert settings.overridden(None) == {}


@pytest.mark.parametrize(
    ("of_tokenizer", "of_config", "expected"),
    [
        (7, [5, 2], [2, 5, 7]),
        (None, 3, [3]),
        (0, None, [0]),  # token 0 is a token
    ],
)
def test_those_of_the_tokenizer_and_of_the_generation_config(of_tokenizer, of_config, expected):
    model = tiny_model("qwen2")
    model.generation_config.eos_token_id = of_config
    policy = Policy(model, SimpleNamespace(eos_token_id=of_tokenizer))
    assert stop_token_ids(policy) == expected
    assert usual_stop_token(policy) == (expected[0] if of_tokenizer is None and expected else of_tokenizer)


def test_the_token_that_closes_a_turn_of_the_template_ends_a_completion():
    model, tokenizer = tiny_model("qwen2"), tiny_tokenizer()
    turn = "<user>{{ m.content }}{% if m.role != 'user' %}<assistant>{% endif %}"
    tokenizer.chat_template = f"{{% for m in messages %}}{turn}{{% endfor %}}"
    of_template, of_tokenizer = 3, 1
    for of_model in (None, [of_template, 7]):
        model.generation_config.eos_token_id = of_model
        policy = Policy(model, tokenizer)
        assert stop_token_ids(policy) == sorted({of_template, of_tokenizer, *(of_model or ())})
        assert usual_stop_token(policy) == of_template
    model.generation_config.eos_token_id = 7
    assert usual_stop_token(Policy(model, tokenizer)) == of_tokenizer
