"""YAML that is refused: repeated keys, and documents that explode."""

from __future__ import annotations

import itertools

import pytest
import yaml

from gradstats.config.experiment import read_yaml

BOMB = "\n".join(["a: &a [1, 1]", *(f"{b}: &{b} [*{a}, *{a}]" for a, b in itertools.pairwise("abcdefghijklmnopqr"))])


def test_aliases_and_merges_of_reasonable_size_are_read():
    assert read_yaml("a: &x {b: 1}\nc: *x\nd: {<<: *x, b: 2}") == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 2}}
    assert read_yaml("") is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3", "the key 'a' is given 2 times: give it once"),
        ("s: {x: 1, y: 2, x: 3}", "the key 'x' is given 2 times"),
        (BOMB, "its aliases expand to more than 100,000 values"),
        ("a: &a [*a]", "its aliases expand to more than"),
        ("[" * 5000, "nested too deeply"),
        ("a: 2026-02-31", "a value cannot be read"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: [", "expected"),
    ],
)
def test_what_is_refused_is_said(text, sentence):
    with pytest.raises(yaml.YAMLError, match=sentence):
        read_yaml(text)
