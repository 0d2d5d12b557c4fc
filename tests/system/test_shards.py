"""Long calls keep their finished shards: the same call resumes from them, another is refused."""

import importlib
import json

import numpy as np
import pytest

import gradstats as gs
from gradstats.measurement.measurement import Measurement
from gradstats.rollouts.table import Rollouts
from gradstats.sampling.plan import SamplingPlan
from gradstats.system.shards import Shards


@pytest.fixture(scope="module")
def policy():
    return gs.load_policy("embedded")


# The package's own name for it is the function.
measuring = importlib.import_module("gradstats.gradients.measure")
SETTINGS = {"group_size": 2, "max_new_tokens": 12, "batch_size": 4, "progress": False}


def numbers(folder, settings):
    """Shards that hold a number each."""

    def read(path):
        return json.loads(path.read_text())

    def write(number, path):
        path.write_text(str(number))

    with Shards.resume(folder, settings, ".json", read, write) as shards:
        return shards


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


def test_an_interrupted_sampling_resumes_from_its_shards(policy, tmp_path, monkeypatch):
    problems = gs.load_prompts("embedded", n=6, rng=0)
    whole = gs.sample(policy, problems, rng=3, **SETTINGS)
    with monkeypatch.context() as patched:
        interrupted_at(patched, SamplingPlan, "draw", 3)
        with pytest.raises(KeyboardInterrupt):
            gs.sample(policy, problems, rng=3, keep_in=tmp_path / "shards", **SETTINGS)
    assert len(list((tmp_path / "shards").glob("shard-*.parquet"))) == 2
    with monkeypatch.context() as patched:
        calls = interrupted_at(patched, SamplingPlan, "draw", 99)
        again = gs.sample(policy, problems, rng=3, keep_in=tmp_path / "shards", **SETTINGS)
    assert len(calls) == 1
    assert again.frame["completion_tokens"].map(list).tolist() == whole.frame["completion_tokens"].map(list).tolist()
    np.testing.assert_array_equal(again.rewards, whole.rewards)
    with pytest.raises(ValueError, match="holds shards of an unfinished command with another seed: finish that"):
        gs.sample(policy, problems, rng=4, keep_in=tmp_path / "shards", **SETTINGS)


@pytest.mark.slow
def test_an_interrupted_measuring_resumes_from_its_shards(policy, tmp_path, monkeypatch):
    rollouts = gs.sample(policy, gs.load_prompts("embedded", n=5, rng=0), rng=0, **SETTINGS)
    monkeypatch.setattr(measuring, "SHARD_SIZE", 4)
    weights = {"half": [[0.5] * len(tokens) for tokens in rollouts.frame["completion_tokens"]]}
    options = {"sketch_dim": 4096, "token_weights": weights, "progress": False}
    whole = gs.measure(policy, rollouts, **options)
    with monkeypatch.context() as patched:
        interrupted_at(patched, measuring.MeasuringSession, "measure", 2)
        with pytest.raises(KeyboardInterrupt):
            gs.measure(policy, rollouts, keep_in=tmp_path / "shards", **options)
    again = gs.measure(policy, rollouts, keep_in=tmp_path / "shards", **options)
    np.testing.assert_allclose(again.sq_norms, whole.sq_norms, rtol=1e-4)
    np.testing.assert_allclose(again.weighted["half"].sq_norms, 0.25 * whole.sq_norms, rtol=1e-4)
    assert list(again.rollouts.prompt_id) == list(whole.rollouts.prompt_id)
    with pytest.raises(ValueError, match="with another sketch_dim: finish that command, or remove the folder"):
        gs.measure(policy, rollouts, keep_in=tmp_path / "shards", **(options | {"sketch_dim": 2048}))


@pytest.mark.parametrize(
    ("most_tokens", "shards"),
    [(50, [[0, 1, 2], [3], [4, 5, 6], [7, 8, 9]]), (10_000, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]])],
)
def test_a_shard_holds_few_sequences_and_few_tokens_of_several(monkeypatch, most_tokens, shards):
    monkeypatch.setattr(measuring, "SHARD_SIZE", 4)
    monkeypatch.setattr(measuring, "SHARD_TOKENS", most_tokens)
    lengths = [10, 10, 29, 60, 20, 28, 2, 2, 2, 2]
    tokens = [[1] * (length - 1) for length in lengths]
    rollouts = Rollouts.from_sequences(
        prompt_ids=list("aabbccddee"), prompt_tokens=[[1]] * 10, completion_tokens=tokens, rewards=np.zeros(10)
    )
    assert [rows.tolist() for rows in measuring.rows_of_shards(rollouts)] == shards


@pytest.mark.filterwarnings("ignore:token scores are measured with eager attention")
def test_a_deviation_of_the_self_check_does_not_refuse_finished_shards(policy, tmp_path, monkeypatch):
    """What the self-checks report may differ in the last digits from call to call."""
    rollouts = gs.sample(policy, gs.load_prompts("embedded", n=1, rng=0), rng=0, **SETTINGS)
    options = {"sketch_dim": None, "token_probes": 2, "progress": False, "keep_in": tmp_path / "shards"}
    gs.measure(policy, rollouts, **options)
    opened = measuring.MeasuringSession.open

    def deviating(*given, **settings):
        session = opened(*given, **settings)
        session.metadata["token_self_check"] = {"deviation": 1e-7}
        return session

    monkeypatch.setattr(measuring.MeasuringSession, "open", deviating)
    assert len(gs.measure(policy, rollouts, **options)) == len(rollouts)


def test_shards_of_rollouts_with_another_mask_are_refused(policy, tmp_path):
    rollouts = gs.sample(policy, gs.load_prompts("embedded", n=1, rng=0), rng=0, **SETTINGS)
    options = {"sketch_dim": None, "progress": False, "keep_in": tmp_path / "shards"}
    lengths = [len(tokens) for tokens in rollouts.frame["completion_tokens"]]
    masks = [[True] * length for length in lengths]
    gs.measure(policy, gs.Rollouts(rollouts.frame.assign(completion_mask=masks), rollouts.metadata), **options)
    other = [[True] + [False] * (length - 1) for length in lengths]
    with pytest.raises(ValueError, match="with another rollouts"):
        gs.measure(policy, gs.Rollouts(rollouts.frame.assign(completion_mask=other), rollouts.metadata), **options)


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="is not empty and does not contain a command's shards: choose another folder"):
        numbers(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_sequences_that_were_not_finite_in_any_shard_are_listed_when_shards_are_joined(policy):
    rollouts = gs.sample(policy, gs.load_prompts("embedded", n=2, rng=0), rng=0, **SETTINGS)
    shards = [gs.measure(policy, rollouts.select([row]), sketch_dim=None, progress=False) for row in (0, 1)]
    for shard, lost in zip(shards, ([["a", 0]], [["b", 1]]), strict=True):
        shard.metadata["not_finite"] = lost
    assert Measurement.concatenate(shards).metadata["not_finite"] == [["a", 0], ["b", 1]]


def test_only_missing_shards_are_made(tmp_path):
    shards, made = numbers(tmp_path, {"a": 1}), []

    def make(number):
        assert len(made) > 2 or shards.finished(4) == made  # each is written before the next is made
        made.append(number)
        if len(made) == 3:
            raise KeyboardInterrupt
        return number

    with pytest.raises(KeyboardInterrupt):
        shards.make_missing(4, make)
    shards.path(0).unlink()
    assert shards.finished(4) == [1]
    numbers(tmp_path, {"a": 1}).make_missing(4, make)
    assert made == [0, 1, 2, 0, 2, 3]
    assert shards.read_all(4) == [0, 1, 2, 3]


def test_shards_of_other_settings_are_refused(tmp_path):
    numbers(tmp_path, {"a": 1, "b": float("nan")})
    numbers(tmp_path, {"a": 1, "b": float("nan")})
    for other, named in (({"a": 2, "b": None}, "a"), ({"a": 1, "b": None, "c": 3}, "c")):
        with pytest.raises(ValueError, match=f"with another {named}: finish that command, or remove the folder"):
            numbers(tmp_path, other)


def test_shards_are_known_in_whatever_order_settings_are_written(tmp_path):
    def opened(settings):
        with Shards.resume(tmp_path / "shards", settings, ".json", json.loads, str, stamped=True) as shards:
            return shards.origin

    first = opened({"seed": 0, "engine": "ghost"})
    assert first
    assert opened({"engine": "ghost", "seed": 0}) == first
