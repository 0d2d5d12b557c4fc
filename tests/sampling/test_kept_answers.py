"""Answers that arrived before a failure are written down and found again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from gradstats.sampling.plan import answers_path, draw_keeping_answers, draw_with_answers, read_answers
from gradstats.sampling.sampler import Completion
from gradstats.system.files import write_json


class Engine:
    """A sampler that keeps nothing."""

    own_seeds = True

    def describe(self):
        return {"engine": "none"}

    def draw(self, prompts, settings, seeds, on_tokens):
        raise NotImplementedError


@dataclass
class Server(Engine):
    """One that keeps answers."""

    kept: dict[str, Completion] = field(default_factory=dict)


ANSWERS = {"a": Completion([1, 2], [-0.5, math.nan], "stop"), "b": Completion([3], None, "length", "text")}


def test_answers_survive_a_failure_and_are_removed_after_success(tmp_path):
    path, server = answers_path(tmp_path, 0), Server()

    def fail():
        server.kept.update(ANSWERS)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        draw_keeping_answers(server, path, fail)
    assert server.kept == {}
    kept = draw_keeping_answers(server, path, lambda: dict(server.kept))
    assert kept["b"] == ANSWERS["b"]
    assert kept["a"].logprobs[0] == -0.5
    assert math.isnan(kept["a"].logprobs[1])
    assert server.kept == {}
    assert list(tmp_path.iterdir()) == []
    path.write_text("{")
    with pytest.raises(ValueError, match=r"answers-00000\.json cannot be read as JSON"):
        read_answers(path)
    for wrong in ({}, {"answers": [1]}, {"answers": {"a": {"tokens": [1], "sql": ""}}}):
        write_json(path, wrong)
        with pytest.raises(ValueError, match=r"answers-00000\.json does not contain server responses: remove it"):
            read_answers(path)


def test_other_samplers_are_left_alone(tmp_path):
    def fail():
        raise ConnectionError

    with pytest.raises(ConnectionError):
        draw_keeping_answers(Engine(), answers_path(tmp_path, 0), fail)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_fails_before_an_answer_raises_its_error():
    def fail():
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError, match="refused"):
        draw_with_answers(Server(), {}, fail)
