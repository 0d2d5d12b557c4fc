"""Regular expressions that a user gives end, or are refused."""

import time

import pytest

from gradstats.system import patterns
from gradstats.system.patterns import matches, search

NAMES = ["model.layers.0.mlp.up_proj.weight", "model.layers.11.self_attn.q_proj.weight", "a" * 40 + "!"]


@pytest.mark.parametrize(
    "pattern", [r"layers\.\d+\.mlp", r"(\w+\.)+q_proj", r"(a|b)*!", r"(.)\1{5}", r".*.*.*.*.*mlp", ""]
)
def test_in_a_process_of_its_own_a_pattern_matches_as_here(pattern):
    assert matches(pattern, NAMES, "params") == search(pattern, NAMES)


@pytest.mark.parametrize(
    "pattern", [r"(a+)+$", r"(a|a)*$", r"(?:a?){40}a{40}$", r"(a*)*b", r"(\w+\s?)*\d$", r"(?:(?:a+)+)+$"]
)
def test_a_pattern_that_never_ends_is_refused(pattern, monkeypatch):
    monkeypatch.setattr(patterns, "SECONDS", 1.0)
    start = time.monotonic()
    with pytest.raises(ValueError, match=r"params is '.*', a regular expression that does not end within 1 s: write"):
        matches(pattern, NAMES, "params")
    assert time.monotonic() - start < 20.0


@pytest.mark.parametrize("pattern", ["(", "a{99999999999}", "[z-a]"])
def test_what_is_no_regular_expression_is_named(pattern):
    with pytest.raises(ValueError, match="params is .*, which is not a regular expression: "):
        matches(pattern, NAMES, "params")
