"""Sampling from a server: requests, sources of tokens, and the error for each failure."""

import json
import math
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from command_line import run
from small_runs import leave_out_pictures, small_experiment

from gradstats.config.sections import SamplingSection
from gradstats.prompts import Problem
from gradstats.rollouts.table import read_rollouts
from gradstats.runs.directory import RunDirectory
from gradstats.runs.sampling_step import sample_shards
from gradstats.sampling import SamplerSettings
from gradstats.sampling.plan import open_sampler
from gradstats.sampling.sample import sample
from gradstats.sampling.server_sampler import DIALECTS, MalformedAnswerError, ServerSampler

Answer = Callable[[dict[str, Any], int], tuple[int, Any]]


class CompletionsServer:
    """Address of the server, and every completion request that it has received."""

    def __init__(self, answer: Answer, models: tuple[str, ...] | str, delay: float) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.most_at_once = 0
        self._under_way = 0
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listed = {"object": "list", "data": [{"id": name, "object": "model"} for name in models]}
                self.reply(200, models if isinstance(models, str) else listed)

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server._lock:
                    server.requests.append(request)
                    server.headers.append({name.lower(): value for name, value in self.headers.items()})
                    server.paths.append(self.path)
                    number = len(server.requests)
                    server._under_way += 1
                    server.most_at_once = max(server.most_at_once, server._under_way)
                try:
                    time.sleep(delay)
                    status, body = answer(request, number)
                finally:
                    with server._lock:
                        server._under_way -= 1
                self.reply(status, body)

            def reply(self, status: int, body: Any) -> None:
                data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                try:
                    self.send_response(status)
                    page = isinstance(body, str) and body.startswith("<")
                    self.send_header("Content-Type", "text/html" if page else "application/json")
                    if 300 <= status < 400:
                        self.send_header("Location", body)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:  # the client did not wait for it
                    pass

            def log_message(self, *words: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @contextmanager
    def running(self) -> Iterator["CompletionsServer"]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()


def serving(answer: Answer, models: tuple[str, ...] | str = ("tiny",), delay: float = 0.0) -> Any:
    """A context in which a :class:`CompletionsServer` runs.

    Args:
        answer: from a request and its number, counted from 1, to the status and body of the answer.
        models: what it lists, or the page that stands there.
        delay: seconds that each answer takes.
    """
    return CompletionsServer(answer, models, delay).running()


def completion(text: str, finish_reason: str = "stop", usage: dict[str, int] | None = None, **choice: Any) -> Any:
    """A well-formed response."""
    entry = {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None, **choice}
    body = {"id": "1", "object": "text_completion", "created": 0, "model": "tiny", "choices": [entry]}
    return body | ({} if usage is None else {"usage": usage})


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


def test_the_generation_config_of_transformers_serve_leaves_nothing_to_the_model():
    sent = json.loads(FIELDS["transformers serve"](SETTINGS, [1, 4])["extra_body"]["generation_config"])
    assert sent == {
        "do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2,
        "max_new_tokens": 9, "eos_token_id": [1, 4], "pad_token_id": 1,
    }  # fmt: skip
    without = json.loads(FIELDS["transformers serve"](SamplerSettings(9), [])["extra_body"]["generation_config"])
    assert (without["min_p"], without["eos_token_id"], without["pad_token_id"]) == (None, None, None)


pytest.importorskip("openai")
PROBLEMS = [Problem("one", "abc", "x", "exact"), Problem("two", "q", "y", "exact")]
PROMPT = [2, 4, 5, 6, 3]  # <user>abc<assistant>


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Retries without delays, in gradstats and in the client library."""
    monkeypatch.setattr("gradstats.sampling.server_sampler._LONGEST_PAUSE", 0.0)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.0)


def draw(policy, server, prompts=(PROMPT,), settings=None, seeds=(1, 2, 3, 4, 5, 6, 7, 8), **options):
    sampler = ServerSampler(policy, server.base_url, **({"max_retries": 2} | options))
    return sampler.draw(list(prompts), settings or SamplerSettings(8), seeds)


def drawn_from(policy, answer, **options):
    """The one completion that a server gives whose answers are all the same."""
    with serving(lambda request, number: (200, answer)) as server:
        (drawn,) = draw(policy, server, **options)
    return drawn


def pieces(text, logprob=-0.5):
    return {"tokens": list(text), "token_logprobs": [logprob] * len(text)}


def test_a_prompt_goes_as_the_templates_tokens_with_every_setting_stated(policy):
    with serving(lambda request, number: (200, completion("ab"))) as server:
        draw(policy, server, settings=SETTINGS, seeds=[77], logprobs_of="sampled")
    sent = server.requests[-1]
    assert sent["prompt"] == PROMPT
    stated = {
        "model": "tiny", "max_tokens": 9, "seed": 77, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
        "repetition_penalty": 1.2, "repeat_penalty": 1.2, "logprobs": 1,
    }  # fmt: skip
    assert {name: sent[name] for name in stated} == stated


def content(text, *logprobs, **fields):
    """Entries of llama.cpp's own form, of letters whose ids begin at 4."""
    return {
        "content": [
            {"id": ord(letter) - 93, "token": letter, "bytes": list(letter.encode()), "logprob": logprob} | fields
            for letter, logprob in zip(text, logprobs, strict=True)
        ]
    }


END = {"id": 1, "token": "", "bytes": [], "logprob": -3.0}
LISTED = {"token_logprobs": [-1.0, -2.0, -3.0], "tokens": []}
TRIPLES = {"output_token_logprobs": [[-1.0, 4, None], [-2.0, 5, "b"], [-3.0, 1, None]]}


@pytest.mark.parametrize(
    "answer",
    [
        completion("ab", token_ids=[4, 5, 1], prompt_token_ids=PROMPT, logprobs=LISTED),  # vLLM
        completion("ab", logprobs=LISTED | {"tokens": ["token_id:4", "token_id:5", "token_id:1"]}),  # an older one
        completion("ab", output_ids=[4, 5, 1], logprobs=LISTED),  # SGLang
        completion("ab", meta_info=TRIPLES | {"completion_tokens": 3}),
        completion("ab") | {"meta_info": [TRIPLES]},
        completion("ab") | {"output_ids": [[4, 5, 1]], "meta_info": TRIPLES},
        completion("ab", logprobs={"content": [*content("ab", -1.0, -2.0)["content"], END]}),  # llama.cpp
        {  # its own API, at a base_url without /v1
            "content": "ab", "tokens": [4, 5, 1], "stop_type": "eos", "tokens_evaluated": 5, "tokens_predicted": 3,
            "completion_probabilities": [*content("ab", -1.0, -2.0)["content"], END],
        },
    ],
)  # fmt: skip
def test_token_ids_and_log_probabilities_of_the_server_are_taken_as_they_are(policy, answer):
    drawn = drawn_from(policy, answer)
    assert (drawn.tokens, drawn.logprobs, drawn.finish_reason) == ([4, 5, 1], [-1.0, -2.0, -3.0], "stop")
    assert drawn.token_source == "engine"


def test_llama_cpp_is_asked_in_its_own_api_for_every_setting(policy):
    def answer(request, number):
        if "n_probs" not in request:
            return 200, completion("a", "length", logprobs=content("a", -1.0))
        likely = content("a", None, prob=0.25)["content"]
        return 200, {"content": "a", "tokens": [4], "stop_type": "limit", "completion_probabilities": likely}

    with serving(answer) as server:
        sampler = ServerSampler(policy, server.base_url)
        (drawn,) = sampler.draw([PROMPT], SETTINGS, [77])
    assert server.paths == ["/v1/completions", "/completion", "/completion"]
    assert sampler.describe()["dialect"] == "llama.cpp, prompt as token ids"
    stated = {
        "prompt": PROMPT, "max_tokens": 9, "seed": 77, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1,
        "repeat_penalty": 1.2, "return_tokens": True, "post_sampling_probs": True, "presence_penalty": 0.0,
    }  # fmt: skip
    assert {name: server.requests[-1][name] for name in stated} == stated
    assert (drawn.tokens, drawn.logprobs) == ([4], [math.log(0.25)])  # of the distribution that is drawn from


# ❝ is three bytes, of which the first two are one token; 🦄 is four, of which the first two are one.
QUOTE, UNICORN = "❝", "🦄"


def spelled(policy, *letters, count=None):
    """An answer in llama.cpp's form: each letter with the id of the last of its tokens alone."""
    entries, n_tokens = [], 0
    for letter in letters:
        ids = policy.tokenizer(letter)["input_ids"]
        n_tokens += len(ids)
        entries.append({"id": ids[-1], "token": letter, "bytes": list(letter.encode()), "logprob": -0.5})
    usage = {"prompt_tokens": len(BYTE_PROMPT), "completion_tokens": n_tokens if count is None else count}
    return completion("".join(letters), "length", usage | {"total_tokens": 0}, logprobs={"content": entries})


BYTE_PROMPT = [2, 3]


@pytest.mark.parametrize(
    ("letters", "missing", "source"),
    [
        (("x", "y"), 0, "engine"),
        (("x", QUOTE, "y"), 0, "text"),  # two tokens, as the server counts
        (("x", QUOTE, "y"), 1, "mismatch"),  # drawn as three
        (("x", "y"), 1, "mismatch"),  # the first byte of another letter was drawn last
        ((UNICORN, "ab"), -1, "mismatch"),
    ],
)
def test_letters_of_several_tokens_are_restored_and_counted(byte_policy, letters, missing, source):
    tokens = [token for letter in letters for token in byte_policy.tokenizer(letter)["input_ids"]]
    answer = spelled(byte_policy, *letters, count=len(tokens) + missing)
    drawn = drawn_from(byte_policy, answer, prompts=[BYTE_PROMPT])
    assert (drawn.tokens, drawn.token_source) == (tokens, source)
    if source == "mismatch":
        assert drawn.logprobs is None
    else:  # unknown where the server names the last of a letter's tokens alone
        assert np.isnan(drawn.logprobs).sum() == len(tokens) - sum(letter in "xy" for letter in letters)


def test_log_probabilities_stand_beside_their_tokens(byte_policy):
    tokens = [*byte_policy.tokenizer("x" + QUOTE + "y")["input_ids"], 4]  # cut off inside the next letter
    answer = spelled(byte_policy, "x", QUOTE, "y")["choices"][0]["logprobs"]["content"]
    answer = {"content": f"x{QUOTE}y", "tokens": tokens, "stop_type": "limit", "completion_probabilities": answer}
    drawn = drawn_from(byte_policy, answer, prompts=[BYTE_PROMPT])
    assert (drawn.tokens, drawn.token_source) == (tokens, "engine")
    np.testing.assert_array_equal(drawn.logprobs, [-0.5, math.nan, -0.5, -0.5, math.nan])


@pytest.mark.parametrize(
    ("text", "reported", "tokens", "source"),
    [
        ("ab", {"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0]}, [28, 29], "pieces"),
        ("ab", {"token_logprobs": [-1.0, -2.0], "text_offset": [9, 10]}, [28, 29], "pieces"),
        ("ab", {"tokens": ["ab"], "token_logprobs": [-1.0]}, None, "pieces"),
        ("ab", {"tokens": ["�", "�"], "token_logprobs": [-1.0, -2.0]}, None, "mismatch"),
        # Parts of letters: their number speaks for the tokenizer's ids, or against them.
        (QUOTE, {"tokens": ["�", "�"], "token_logprobs": [-1.0, -2.0]}, None, "text"),
        (QUOTE, {"tokens": ["�", "�", "�"], "token_logprobs": [-1.0] * 3}, None, "mismatch"),
        (QUOTE, {"tokens": [r"bytes:\xe2\x9d", r"bytes:\x9d"], "token_logprobs": [-1.0] * 2}, None, "text"),
    ],
)
def test_texts_of_tokens_decide_or_are_compared(byte_policy, text, reported, tokens, source):
    if tokens is not None:
        tokens = byte_policy.tokenizer.convert_tokens_to_ids(["a", "b"])
    drawn = drawn_from(byte_policy, completion(text, "length", logprobs=reported), prompts=[BYTE_PROMPT])
    expected = byte_policy.tokenizer(text)["input_ids"] if tokens is None else tokens
    assert (drawn.tokens, drawn.token_source) == (expected, source)
    assert drawn.logprobs == (reported["token_logprobs"] if source == "pieces" else None)


@pytest.mark.parametrize(("fields", "end"), [({"stop_reason": 39}, 39), ({"matched_stop": 39}, 39), ({}, 1)])
def test_the_token_that_ended_a_completion_is_the_one_that_the_server_names(policy, monkeypatch, fields, end):
    monkeypatch.setattr("gradstats.sampling.server_sampler.stop_token_ids", lambda policy: [1, 39])
    drawn = drawn_from(policy, completion("ab", **fields))
    assert drawn.tokens == [4, 5, end]


def test_the_text_of_each_token_decides_its_id_and_the_end_token_has_no_logprob(policy):
    drawn = drawn_from(policy, completion("ab", logprobs=pieces("ab")))
    assert drawn.tokens == [4, 5, 1]
    assert drawn.logprobs[:2] == [-0.5, -0.5]
    assert math.isnan(drawn.logprobs[2])
    assert drawn.token_source == "pieces"


@pytest.mark.parametrize(
    ("text", "reason", "count", "tokens", "source"),
    [
        ("ab", "length", 2, [4, 5], "text"),
        ("ab", "stop", 3, [4, 5, 1], "text"),  # the end token is counted
        ("ab", "stop", 2, [4, 5, 1], "text"),  # or it is not
        ("ab", "length", 1, [4, 5], "mismatch"),  # drawn as fewer tokens than the tokenizer makes of it
        ("aB", "length", 2, [4], "mismatch"),  # does not come back
        ("", "length", 2, [1], "mismatch"),  # special tokens alone, left out of the text
        ("abcdefghij", "length", 8, [*range(4, 14)], "mismatch"),  # more than were drawn, and than may be
    ],
)
def test_a_retokenised_text_is_checked(policy, text, reason, count, tokens, source):
    usage = {"prompt_tokens": 5, "completion_tokens": count, "total_tokens": 5 + count}
    drawn = drawn_from(policy, completion(text, reason, usage))
    assert (drawn.tokens, drawn.token_source, drawn.logprobs) == (tokens, source, None)


@pytest.mark.filterwarnings("ignore:the model's generation_config")
def test_completions_that_do_not_round_trip_are_counted_and_named(policy):
    def answer(request, number):
        return 200, completion("aB" if request["prompt"] == PROMPT else "ab", "length")

    with serving(answer) as server, pytest.warns(UserWarning, match="round-trip") as caught:
        rollouts = sample(
            policy, PROBLEMS, group_size=2, max_new_tokens=2, sampler="openai", base_url=server.base_url, progress=False
        )
    (said,) = [str(item.message) for item in caught if "round-trip" in str(item.message)]
    assert "4 of 4 completions were restored by tokenising their text" in said
    assert "2 certainly do (the first: prompt one, sample 0)" in said
    assert rollouts.frame["token_source"].tolist() == ["mismatch"] * 2 + ["text"] * 2
    assert rollouts.metadata["sampler"]["engine"] == "openai"
    assert "sampler_logprobs" not in rollouts.frame


def test_logprobs_of_another_distribution_than_the_drawn_one_are_not_kept(policy):
    settings = SamplerSettings(8, temperature=0.6)
    answer = completion("ab", logprobs=pieces("ab"))
    with serving(lambda request, number: (200, answer)) as server:
        with pytest.warns(UserWarning, match=r"temperature=0\.6.*are not kept: serve with vllm --logprobs-mode"):
            (dropped,) = draw(policy, server, settings=settings)
        (kept,) = draw(policy, server, settings=settings, logprobs_of="sampled")
    assert dropped.logprobs is None
    assert kept.logprobs[0] == -0.5


def test_requests_are_made_at_once_up_to_the_concurrency_and_answers_put_in_order(policy):
    letters = "abcdefgh"

    def answer(request, number):
        threading.Event().wait(random.Random(request["seed"]).random() * 0.1)
        return 200, completion(letters[request["seed"] - 1], "length")

    with serving(answer, delay=0.05) as server:
        drawn = draw(policy, server, prompts=[PROMPT] * 8, concurrency=3)
    assert [policy.tokenizer.decode(item.tokens) for item in drawn] == list(letters)
    assert server.most_at_once == 3


class Dialects:
    """A server that rejects unknown fields and accepts prompts as text or tokens."""

    def __init__(self, knows, tokens):
        self.knows, self.tokens = knows, tokens

    def __call__(self, request, number):
        unknown = set(request) - {"model", "prompt", "max_tokens", "seed", "temperature", "top_p", *self.knows}
        if unknown or isinstance(request["prompt"], str) == self.tokens:
            return 422, {"error": {"message": f"unexpected {sorted(unknown)}"}}
        return 200, completion("ab", "length")


EXTENDED = {"logprobs", "top_k", "min_p", "repetition_penalty", "repeat_penalty", "return_token_ids"}


@pytest.mark.parametrize(
    ("knows", "tokens", "name"),
    [
        (EXTENDED, True, "extended, prompt as token ids"),
        (EXTENDED, False, "extended, prompt as text"),
        ({"generation_config"}, False, "transformers serve"),
        ({"logprobs"}, True, "standard, prompt as token ids"),
        ({"logprobs"}, False, "standard, prompt as text"),
    ],
)
def test_the_servers_dialect_is_found(policy, knows, tokens, name):
    with serving(Dialects(knows, tokens)) as server:
        sampler = ServerSampler(policy, server.base_url, max_retries=0)
        sampler.draw([PROMPT], SamplerSettings(8), [1])
    assert sampler.describe()["dialect"] == name
    prompt = server.requests[-1]["prompt"]
    assert prompt == (PROMPT if tokens else "<user>abc<assistant>")


def test_a_server_without_a_field_for_a_setting_is_not_asked_to_guess(policy):
    lacking = r"have no top_k=5, min_p=0\.1, repetition_penalty=1\.2: leave them out, or serve .* with vLLM"
    with serving(Dialects({"logprobs"}, True)) as server:
        with pytest.raises(ValueError, match=f"only OpenAI's settings, which {lacking}"):
            draw(policy, server, settings=SETTINGS)
        draw(policy, server, settings=SamplerSettings(8).greedy(), logprobs_of="sampled")
    assert server.requests[-1]["temperature"] == 0.0


def failing(status, body, since=2):
    """A valid response to the first request, which determines the dialect, then another response."""
    return lambda request, number: (200, completion("ab")) if number < since else (status, body)


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (failing(500, {"error": {"message": "no memory"}}), ConnectionError, "answered 500, 3 times: .*no memory"),
        (failing(200, completion("x") | {"choices": []}), ConnectionError, "answered with 0 completions where 1 was"),
        (failing(200, {"oops": 1}), ConnectionError, "answered with no completions where 1 was requested, 3 times"),
        (failing(200, "{not json"), ConnectionError, "sent an answer that is not of the completions API"),
        (failing(200, completion("x", "content_filter")), ConnectionError, "finish_reason is 'content_filter'"),
        (failing(400, {"error": {"message": "prompt too long"}}), ValueError, "refuses the request: .*prompt too long"),
        (
            failing(200, completion("x", "stop", {"prompt_tokens": 6, "completion_tokens": 1, "total_tokens": 7})),
            ValueError,
            "counts 6 tokens in a prompt of 5: it uses a different tokenizer, or adds a start token",
        ),
        (
            failing(200, completion("ab", token_ids=[4, 5], prompt_token_ids=[2, 4, 5, 7, 3]), since=1),
            ValueError,
            "counts other tokens",
        ),
    ],
)
def test_each_failure_ends_in_its_sentence(policy, answer, kind, message):
    with serving(answer) as server, pytest.raises(kind, match=message):
        draw(policy, server)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"token_ids": [5, 5, 1]}, "with the text 'ab' and with token ids of another text .*'bb.*: it serves another"),
        ({"logprobs": pieces("bb")}, "with the text 'ab' and with token ids of another text .*'bb'"),
        ({"logprobs": content("bb", -1.0, -1.0, id=4)}, "the token id 4 for 'b', which is that of 'a'"),
        ({"logprobs": content("ab", -1.0, -1.0), "token_ids": [5, 4]}, "log-probabilities of other tokens than those"),
        ({"token_ids": [4, 5], "logprobs": {"token_logprobs": [math.nan, -1.0]}}, "the log-probability nan"),
        ({"token_ids": [4, 5], "logprobs": {"token_logprobs": ["-1", -1.0]}}, "the log-probability '-1'"),
        ({"logprobs": {"tokens": ["a", "b"], "token_logprobs": [-1.0]}}, "2 tokens and 1 log-probabilities"),
        ({"token_ids": ["a", 5]}, "the token id 'a'"),
        ({"token_ids": "ab"}, "'ab' where a list belongs"),
        ({"logprobs": content("ab", -1.0, -1.0, id=2**40)}, "the token id 1099511627776"),
        ({"token_ids": [4] * 30}, "30 tokens where at most 8 were requested"),
        ({"token_ids": [4, 5], "logprobs": {"token_logprobs": [0.5, -1.0]}}, "the log-probability 0.5"),
        ({"token_ids": [4, 5], "logprobs": {"token_logprobs": [-math.inf, -1.0]}}, "the log-probability -inf"),
    ],
)
def test_answers_that_contradict_themselves_are_refused(policy, choice, message):
    answer = completion("ab", "length", **choice)
    with serving(lambda request, number: (200, answer)) as server, pytest.raises(MalformedAnswerError, match=message):
        draw(policy, server, max_retries=0)


def test_a_text_longer_than_its_tokens_can_be_is_not_tokenised(policy, monkeypatch):
    read: list[int] = []
    tokenise = type(policy.tokenizer).__call__
    monkeypatch.setattr(
        type(policy.tokenizer), "__call__", lambda self, text, **o: read.append(len(text)) or tokenise(self, text, **o)
    )
    with (
        serving(failing(200, completion("ab" * 500_000, "length"))) as server,
        pytest.raises(MalformedAnswerError, match="with a text of 1,000,000 characters, which 8 tokens cannot have"),
    ):
        draw(policy, server, max_retries=0)
    assert max(read) < 100


def test_a_seed_that_always_fails_is_left_for_another_which_is_recorded(policy):
    def answer(request, number):
        if request["seed"] == 3:  # always: what it draws is malformed
            return 200, completion("ab", "content_filter")
        return 200, completion("ab", token_ids=[4, 5])

    with (
        serving(answer) as server,
        pytest.warns(UserWarning, match=r"1 of 2 completions have other seeds than planned, .*malformed twice"),
    ):
        first, second = draw(policy, server, prompts=[PROMPT] * 2, seeds=[3, 4])
    sent = [request["seed"] for request in server.requests if request["max_tokens"] == 8]
    assert sent.count(3) == 2
    assert second.seed is None
    assert first.seed in sent
    assert first.seed not in (3, 4)


PAGE = "<!doctype html><title>Welcome</title>"


def test_a_web_page_at_the_address_is_named(policy):
    message = "answered with a web page: base_url is the address of its API, which most servers have at http://.*/v1$"
    with serving(lambda request, number: (200, PAGE)) as server, pytest.raises(ValueError, match=message):
        draw(policy, server, model="tiny")
    answer = (200, completion("ab"))
    with serving(lambda request, number: answer, PAGE) as server, pytest.raises(ValueError, match=message):
        draw(policy, server)
    with serving(lambda request, number: answer, '{"data": 3}') as server:
        with pytest.raises(MalformedAnswerError, match=r"does not list its models \(.*'data': 3.*name the one to use"):
            draw(policy, server)
        draw(policy, server, model="tiny")
    with serving(lambda request, number: (404, PAGE)) as server:
        root = server.base_url.removesuffix("/v1")
        with pytest.raises(ValueError, match="refuses the request: .*; most servers have base_url end in /v1"):
            ServerSampler(policy, root, model="tiny", max_retries=0).describe()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_neither_prompts_nor_the_key_follow_a_redirect(policy, monkeypatch, status):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    with serving(lambda request, number: (200, completion("ab"))) as other:
        there = f"{other.base_url}/completions"
        with (
            serving(lambda request, number: (status, there)) as server,
            pytest.raises(ValueError, match=f"redirects to '{there}', where neither prompts nor a key are sent"),
        ):
            draw(policy, server)
        assert server.headers[0]["authorization"] == "Bearer sk-mine"
        assert not other.requests


def test_the_key_is_the_environments_or_that_of_the_variable_that_is_named(policy, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    monkeypatch.setenv("LAB_KEY", "sk-lab")
    with serving(lambda request, number: (200, completion("ab"))) as server:
        draw(policy, server)
        draw(policy, server, api_key_env="LAB_KEY")
        draw(policy, server, api_key="sk-given")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        ServerSampler(policy, "").draw([PROMPT], SamplerSettings(8), [1])
    sent = [headers["authorization"].removeprefix("Bearer ") for headers in server.headers]
    assert list(dict.fromkeys(sent)) == ["sk-mine", "sk-lab", "sk-given"]
    assert sent[-1] == "sk-mine"
    assert "sk-given" not in repr(ServerSampler(policy, "http://localhost/v1", api_key="sk-given"))
    with pytest.raises(ValueError, match="api_key_env is 'NOT_SET', which is not in the environment: export the key"):
        ServerSampler(policy, "http://localhost/v1", api_key_env="NOT_SET")
    with pytest.raises(ValueError, match="base_url holds a password or key") as caught:
        ServerSampler(policy, "http://me:sk-1@localhost/v1")
    assert "sk-1" not in str(caught.value)


def test_a_failure_that_passes_is_repeated(policy):
    answers = {2: (500, {"error": "busy"}), 3: (200, completion("x") | {"choices": []}), 4: (429, {"error": "slowly"})}
    with serving(lambda request, number: answers.get(number, (200, completion("ab")))) as server:
        (drawn,) = draw(policy, server)
    assert (drawn.tokens, len(server.requests)) == ([4, 5, 1], 5)


def test_a_server_that_does_not_answer_in_time(policy):
    message = r"did not answer within 0\.2 s, 2 times: ask for fewer completions at once"
    with serving(failing(200, completion("ab")), delay=1.0) as server, pytest.raises(TimeoutError, match=message):
        draw(policy, server, timeout_seconds=0.2, max_retries=1)


def test_no_server(policy):
    section = SamplingSection(sampler="openai", base_url="http://127.0.0.1:9/v1", sampler_options={"max_retries": 0})
    with pytest.raises(ConnectionError, match="no server can be reached at http://127.0.0.1:9/v1 .*: start it"):
        open_sampler(policy, section).describe()


def test_several_models_have_to_be_told_apart(policy):
    with serving(lambda request, number: (200, completion("ab")), models=("a", "b")) as server:
        with pytest.raises(ValueError, match="lists a, b: name the one to use"):
            draw(policy, server)
        draw(policy, server, model="b")
    assert server.requests[-1]["model"] == "b"


def served(policy, tmp_path, server, **sampling):
    """An experiment whose completions come from a server."""
    given = {"max_new_tokens": 8, "reward": "exact", "sampler": "openai", "base_url": server.base_url}
    return small_experiment(policy.name, tmp_path / "problems.jsonl", 4, sampling=given | sampling)


def test_what_was_finished_before_a_failure_is_kept_and_gone_on_from(policy, tmp_path):
    broken, answered = {"from": 5}, []  # the first two complete a shard, the third is of the next

    def answer(request, number):
        if number >= broken["from"]:
            return 500, {"error": {"message": "gone"}}
        if request["max_tokens"] > 1:  # else it finds the dialect
            answered.append((request["seed"], str(request["prompt"])))
        return 200, completion("abcdefgh"[: 1 + request["seed"] % 8], "length")

    with serving(answer) as server:
        options = {"max_retries": 0, "concurrency": 1}
        experiment = served(policy, tmp_path, server, batch_size=2, sampler_options=options)
        broken_off = RunDirectory.open(tmp_path / "run", experiment)
        with pytest.raises(ConnectionError, match="answered 500, 1 times: .*gone.*finished shards are kept"):
            sample_shards(broken_off, progress=False)
        kept = {path.name: path.read_bytes() for path in broken_off.rollouts.glob("*.parquet")}
        assert list(kept) == ["shard-00000.parquet"]
        assert [path.name for path in broken_off.rollouts.glob(".answers*")] == [".answers-00001.json"]
        broken["from"] = 10**6
        sample_shards(broken_off, progress=False)
        assert len(answered) == len(set(answered)) == 8  # no answer is asked for twice
        assert not list(broken_off.rollouts.glob(".answers*"))
        assert {name: (broken_off.rollouts / name).read_bytes() for name in kept} == kept
        whole = RunDirectory.open(tmp_path / "whole", experiment)
        sample_shards(whole, progress=False)
    tables = [read_rollouts(folder.rollouts).frame for folder in (broken_off, whole)]
    assert tables[0].equals(tables[1])
    assert np.unique(tables[0]["token_source"]).tolist() == ["text"]


def test_a_run_takes_a_server(policy, tmp_path, monkeypatch, capsys):
    def answer(request, number):
        text = "abcdefgh"[: 1 + request["seed"] % 8]
        return 200, completion(text, "length", logprobs=pieces(text))

    with serving(answer) as server:
        (tmp_path / "served.yaml").write_text(served(policy, tmp_path, server).to_yaml())
        leave_out_pictures(monkeypatch)
        code, _, err = run(monkeypatch, capsys, "run", tmp_path / "served.yaml", "--out", tmp_path / "run")
        assert code == 0, err
        # What is received sends the key nowhere, and says where it would have gone.
        monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
        received = shutil.copytree(tmp_path / "run", tmp_path / "received")
        n_requests, host = len(server.headers), server.base_url.removeprefix("http://").removesuffix("/v1")
        grown = ["run", received / "experiment.yaml", "--out", received, "--set", "sampling.group_size=3"]
        code, _, err = run(monkeypatch, capsys, *grown)
        assert code != 0
        assert f"send prompts, and the key in OPENAI_API_KEY, to {host}" in " ".join(err.split())
        assert len(server.headers) == n_requests
        assert run(monkeypatch, capsys, "regrade", received)[0] == 0
        assert len(server.headers) == n_requests
        code, _, err = run(monkeypatch, capsys, *grown, "--trust")
        assert code == 0, err
        assert server.headers[-1]["authorization"] == "Bearer sk-mine"
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"sk-mine" in path.read_bytes()]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["token_sources"] == {"pieces": 8}
    # The stand-in's log-probabilities are not the policy's.
    assert manifest["sampler_gap"]["off_policy"] is True
    (remark,) = [line for line in manifest["remarks"] if line.startswith("The samples are off-policy")]
    assert "check weights, precision and quantisation" in remark
