"""Runs that measure some of their prompts: a random sample, which grows, and proxies of all others."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from small_runs import sampled_and_measured as run
from small_runs import small_experiment

import gradstats as gs
from gradstats.analyses import registry
from gradstats.measurement import scored
from gradstats.measurement.measurement import read_measurement
from gradstats.measurement.scored import measured_order
from gradstats.rollouts.table import read_rollouts
from gradstats.runs import claims, measuring_step
from gradstats.runs.directory import RunDirectory
from gradstats.runs.measuring_step import measure_shards, measured_prompts
from gradstats.runs.watching import _unfinished
from gradstats.stats.variance.calibrated import Scored, calibrate
from gradstats.system.shards import IncompleteRunError


@pytest.fixture(scope="module")
def small(policy_folder, tmp_path_factory):
    """An experiment of 24 problems, of which some are measured."""
    file = tmp_path_factory.mktemp("part") / "problems.jsonl"

    def made(n_prompts, n=24, **changes):
        wanted = {"prompts": {"n": n}, "measurement": {"n_prompts": n_prompts}, "sampling": {"batch_size": 5}}
        experiment = small_experiment(policy_folder, file, **wanted | changes)
        texts = ["ab " * (1 + k % 7) + "c " * (k // 7) for k in range(26)]
        rows = [{"prompt": text, "answer": "x", "key": f"k{k}"} for k, text in enumerate(texts)]
        file.write_text("\n".join(map(json.dumps, rows)))
        return experiment

    return made


@pytest.fixture(scope="module")
def whole(small, tmp_path_factory):
    """The same measured as a whole."""
    return run(small(None), tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def begun(small, tmp_path_factory):
    """A run that has measured 20 of its 24 prompts."""
    path = tmp_path_factory.mktemp("begun") / "run"
    run(small(20), path)
    return path


@pytest.fixture
def n_measured(monkeypatch):
    """How many completions each call measures."""
    seen: list[int] = []
    session = gs.gradients.MeasuringSession
    measure = session.measure
    monkeypatch.setattr(
        session, "measure", lambda self, rollouts, *given: seen.append(len(rollouts)) or measure(self, rollouts, *given)
    )
    return seen


def keyed(measured, values):
    """Values of completions by prompt and number."""
    names = zip(measured.rollouts.prompt_id.tolist(), measured.rollouts.sample_id.tolist(), strict=True)
    return dict(zip(names, np.asarray(values).tolist(), strict=True))


def assert_scored(measured, whole):
    """Measured completions have the norms, and all completions the proxies and rewards, of the whole."""
    expected = keyed(whole, whole.sq_norms)
    for name, value in keyed(measured, measured.sq_norms).items():
        assert value == pytest.approx(expected[name], rel=1e-5)
    columns = {**whole.proxies, "reward": whole.rollouts.rewards, "length": whole.lengths}
    scored = measured.scored.set_index(["prompt_id", "sample_id"])
    assert len(scored) == len(whole)
    for column in ("logit", "surprisal", "entropy", "reward", "length"):
        known = keyed(whole, columns[column])
        assert scored[column].tolist() == pytest.approx([known[name] for name in scored.index], rel=1e-5)


def test_some_prompts_are_measured_and_all_are_scored(begun, whole, small):
    measured = read_measurement(begun)
    chosen = measured_prompts(RunDirectory(begun, small(20)))
    assert set(measured.rollouts.prompt_id) == chosen
    assert len(chosen) == 20
    assert chosen == {*measured_order([sorted(set(whole.rollouts.prompt_id))], small(20).prompts.seed)[:20]}
    assert measured.rollouts.prompt_id.tolist() == [one for one in whole.rollouts.prompt_id.tolist() if one in chosen]
    assert_scored(measured, whole)


@pytest.mark.parametrize("n_prompts", [22, None])
def test_a_larger_part_measures_only_what_is_missing(begun, whole, small, tmp_path, n_measured, n_prompts):
    path, before = shutil.copytree(begun, tmp_path / "run"), read_measurement(begun)
    grown = run(small(n_prompts), path)
    assert sum(n_measured) == len(grown) - len(before) == (len(whole) if n_prompts is None else 44) - 40
    old, new = keyed(before, before.sq_norms), keyed(grown, grown.sq_norms)
    assert {name: new[name] for name in old} == old
    if n_prompts is None:
        assert grown.scored is None
        assert grown.rollouts.prompt_id.tolist() == whole.rollouts.prompt_id.tolist()
    else:
        assert_scored(grown, whole)
    kept = {file: file.read_bytes() for file in (path / "measurement").rglob("*") if file.is_file()}
    run(small(n_prompts), path)
    assert all(file.read_bytes() == content for file, content in kept.items())
    with pytest.raises(ValueError, match=r"made with measurement\.n_prompts=.* can grow but not shrink"):
        RunDirectory.open(path, small(20))


def test_prompts_that_a_run_adds_are_scored(begun, small, tmp_path):
    path = shutil.copytree(begun, tmp_path / "run")
    before = read_measurement(begun)
    grown = run(small(20, n=26), path)
    assert keyed(grown, grown.sq_norms) == keyed(before, before.sq_norms)
    assert set(grown.scored["prompt_id"]) == set(read_rollouts(path).prompt_id)
    assert grown.scored["prompt_id"].nunique() == 26


@pytest.mark.parametrize(("where", "name", "after"), [(claims.Board, "take", 1), (scored.ForwardProxies, "of", 0)])
def test_an_interrupted_growth_is_incomplete_and_resumes_to_the_same_bytes(
    begun, small, tmp_path, monkeypatch, n_measured, where, name, after
):
    """Before a shard is claimed, and when its completions are measured but the proxies of the others not written."""
    paths = [shutil.copytree(begun, tmp_path / name) for name in ("whole", "killed")]
    run(small(22), paths[0])
    assert sum(n_measured) == 4
    original, calls = getattr(where, name), count()

    def killed(*given):
        if next(calls) == after:
            raise RuntimeError("killed")
        return original(*given)

    with monkeypatch.context() as patched:
        patched.setattr(where, name, killed)
        with pytest.raises(RuntimeError, match="killed"):
            measure_shards(RunDirectory.open(paths[1], small(22)), progress=False)
    with pytest.raises(IncompleteRunError, match="shards are missing"):
        read_measurement(paths[1])
    run(small(22), paths[1])
    assert sum(n_measured) == 8  # nothing twice
    for file in sorted((paths[0] / "measurement").rglob("*")):
        if file.name.endswith(("safetensors", "parquet")):
            assert file.read_bytes() == (paths[1] / file.relative_to(paths[0])).read_bytes(), file


def test_a_process_of_a_smaller_part_that_worked_on_it_meanwhile_is_noticed(begun, whole, small, tmp_path, monkeypatch):
    path, make = shutil.copytree(begun, tmp_path / "run"), measuring_step.make_missing

    def together(*given):
        make(*given)
        shutil.copytree(begun / "measurement" / "scored", path / "measurement" / "scored", dirs_exist_ok=True)

    with monkeypatch.context() as patched:
        patched.setattr(measuring_step, "make_missing", together)
        with pytest.raises(ValueError, match=r"a process with another measurement\.n_prompts has worked on .*: repeat"):
            run(small(22), path)
    grown = run(small(22), path)
    assert len(grown) == 44
    assert_scored(grown, whole)


def test_the_process_that_watches_workers_counts_the_shards_of_a_part(begun, small, tmp_path):
    path = shutil.copytree(begun, tmp_path / "run", ignore=shutil.ignore_patterns("measurement"))
    name, shards, missing, total = _unfinished(RunDirectory(path, small(20)))
    assert (name, shards.folder, sum(missing.values()), total) == ("measuring", path / "measurement" / "scored", 48, 48)
    assert _unfinished(RunDirectory(begun, small(20))) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"measurement": {"n_prompts": 25}}, r"measurement\.n_prompts is 25, and prompts\.n is 24: sample more"),
        ({"measurement": {"n_prompts": 19}}, r"measurement\.n_prompts .*20"),
        (
            {"measurement": {"token_probes": 4}},
            r"n_prompts is 20, and measurement\.token_probes takes",
        ),
        (
            {"measurement": {"token_exact": 0.5}},
            r"n_prompts is 20, and measurement\.token_exact takes",
        ),
        ({"values": {"fitted": True}}, r"n_prompts is 20, and values\.fitted takes all prompts"),
        ({"values": {"monte_carlo": 2}}, r"n_prompts is 20, and values\.monte_carlo takes all prompts"),
        (
            {"measurement": {"metric": "adam", "second_moments": "estimate(prompts_per_batch=2)"}},
            r"n_prompts is 20, and measurement\.second_moments takes all prompts",
        ),
    ],
)
def test_settings_that_do_not_go_together(small, changes, message):
    settings = small(20).model_dump()
    for section, fields in changes.items():
        settings[section] |= fields
    with pytest.raises(ValueError, match=message):
        type(small(20))(**settings)


@pytest.mark.filterwarnings("ignore::UserWarning")  # the prompts are few
def test_variances_are_calibrated_by_the_proxies_of_all(begun):
    measured = read_measurement(begun)
    analysis = registry.get("variance")
    found = analysis.ask(measured, ["reinforce", "norm_weighted(loo=True)"], rng=3)
    answer = analysis.answer_of(found, 0.9)
    table = answer.further["variance_calibrated"]
    scored = measured.scored
    proxies = {name: scored[name].to_numpy() for name in ("logit", "surprisal", "entropy")}
    given = (scored[name].to_numpy() for name in ("prompt_id", "reward", "length"))
    expected = calibrate(measured, ["reinforce"], Scored(*given, proxies), group_size=2, rng=3)
    assert table.frame["estimator"].tolist() == ["reinforce"]  # norms are not known of every completion
    row = table.frame.iloc[0]
    assert tuple(row[["ratio", "ratio_low", "ratio_high"]]) == expected.rows[0].ratio.with_interval(0.9)
    assert (table.about["n_measured"], table.about["n_prompts"]) == (20, 24)
    assert answer.notes[0] == expected.sentence()
    assert "variance_calibrated" not in analysis.answer_of(analysis.ask(replace(measured, scored=None)), 0.9).further
