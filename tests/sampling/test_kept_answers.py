"""Answers that arrived before a failure are written down and found again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from gradstats.sampling.kept_answers import keeping_answers
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
    path, server = tmp_path / ".answers-00000.json", Server()

    def fail():
        with keeping_answers(server, path):
            server.kept.update(ANSWERS)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fail()
    assert server.kept == {}
    with keeping_answers(server, path):
        assert server.kept["b"] == ANSWERS["b"]
        assert server.kept["a"].logprobs[0] == -0.5
        assert math.isnan(server.kept["a"].logprobs[1])
    assert list(tmp_path.iterdir()) == []
    path.write_text("{")
    with pytest.raises(ValueError, match=r"answers-00000\.json cannot be read as JSON"):
        _open(server, path)
    for wrong in ({}, {"answers": [1]}, {"answers": {"a": {"tokens": [1], "sql": ""}}}):
        write_json(path, wrong)
        with pytest.raises(ValueError, match=r"answers-00000\.json does not contain server responses: remove it"):
            _open(server, path)


def _open(server, path):
    with keeping_answers(server, path):
        raise AssertionError("never reached")


def test_other_samplers_are_left_alone(tmp_path):
    with pytest.raises(ConnectionError), keeping_answers(Engine(), tmp_path / "file"):
        raise ConnectionError
    assert list(tmp_path.iterdir()) == []
