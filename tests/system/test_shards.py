"""Long calls keep what is finished: the same call goes on from it, another is refused."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import gradstats as gs
from gradstats.measurement.measurement import Measurement
from gradstats.sampling.plan import SamplingPlan
from gradstats.system.shards import KeptParts


@pytest.fixture(scope="module")
def policy():
    return gs.load_policy("embedded")


# The package's own name for it is the function.
measuring = importlib.import_module("gradstats.gradients.measure")
SETTINGS = {"group_size": 2, "max_new_tokens": 12, "batch_size": 4, "progress": False}


def interrupted_at(monkeypatch, owner, name, call):
    """Let a method raise KeyboardInterrupt at its n-th call."""
    real, calls = getattr(owner, name), []

    def method(*given, **options):
        calls.append(None)
        if len(calls) == call:
            raise KeyboardInterrupt
        return real(*given, **options)

    monkeypatch.setattr(owner, name, method)
    return calls


def test_an_interrupted_sampling_goes_on_where_it_was(policy, tmp_path, monkeypatch):
    problems = gs.load_prompts("embedded", n=6, rng=0)
    whole = gs.sample(policy, problems, rng=3, **SETTINGS)
    with monkeypatch.context() as patched:
        interrupted_at(patched, SamplingPlan, "draw", 3)
        with pytest.raises(KeyboardInterrupt):
            gs.sample(policy, problems, rng=3, keep_in=tmp_path / "parts", **SETTINGS)
    assert len(list((tmp_path / "parts").glob("part-*.parquet"))) == 2
    with monkeypatch.context() as patched:
        calls = interrupted_at(patched, SamplingPlan, "draw", 99)
        again = gs.sample(policy, problems, rng=3, keep_in=tmp_path / "parts", **SETTINGS)
    assert len(calls) == 1
    assert again.frame["completion_tokens"].map(list).tolist() == whole.frame["completion_tokens"].map(list).tolist()
    np.testing.assert_array_equal(again.rewards, whole.rewards)
    with pytest.raises(ValueError, match="holds parts of an unfinished command with another seed: finish that one"):
        gs.sample(policy, problems, rng=4, keep_in=tmp_path / "parts", **SETTINGS)


def test_an_interrupted_measuring_goes_on_where_it_was(policy, tmp_path, monkeypatch):
    rollouts = gs.sample(policy, gs.load_prompts("embedded", n=5, rng=0), rng=0, **SETTINGS)
    monkeypatch.setattr(measuring, "PART", 4)
    weights = {"half": [[0.5] * len(tokens) for tokens in rollouts.frame["completion_tokens"]]}
    options = {"sketch_dim": 64, "token_weights": weights, "progress": False}
    whole = gs.measure(policy, rollouts, **options)
    with monkeypatch.context() as patched:
        interrupted_at(patched, measuring.MeasuringSession, "measure", 2)
        with pytest.raises(KeyboardInterrupt):
            gs.measure(policy, rollouts, keep_in=tmp_path / "parts", **options)
    again = gs.measure(policy, rollouts, keep_in=tmp_path / "parts", **options)
    np.testing.assert_allclose(again.sq_norms, whole.sq_norms, rtol=1e-4)
    np.testing.assert_allclose(again.weighted["half"].sq_norms, 0.25 * whole.sq_norms, rtol=1e-4)
    assert list(again.rollouts.prompt_id) == list(whole.rollouts.prompt_id)
    with pytest.raises(ValueError, match="with another sketch_dim: finish that one, or remove the folder"):
        gs.measure(policy, rollouts, keep_in=tmp_path / "parts", **(options | {"sketch_dim": 32}))


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="is not empty and holds no parts of a command: choose another folder"):
        KeptParts(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_was_not_finite_anywhere_is_kept_when_parts_are_joined(policy):
    rollouts = gs.sample(policy, gs.load_prompts("embedded", n=2, rng=0), rng=0, **SETTINGS)
    parts = [gs.measure(policy, rollouts.select([row]), sketch_dim=None, progress=False) for row in (0, 1)]
    for part, lost in zip(parts, ([["a", 0]], [["b", 1]]), strict=True):
        part.metadata["not_finite"] = lost
    assert Measurement.concatenate(parts).metadata["not_finite"] == [["a", 0], ["b", 1]]
