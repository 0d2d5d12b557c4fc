"""Profiles of policies from the command line: of finished runs, of policies, side by side."""

from __future__ import annotations

import json
import warnings

import pandas as pd
import pytest
from command_line import run
from small_runs import sampled_and_measured, small_experiment

import gradstats as gs
from gradstats.stats import profile_policy

SAMPLING = ("--group-size", 4, "--max-new-tokens", 30, "--reward", "small_runs:vowels", "--seed", 3, "--no-progress")


@pytest.fixture(scope="module")
def runs(policy_folder, tmp_path_factory):
    """Two run directories of the same name in different folders, measured and not analysed."""
    folder = tmp_path_factory.mktemp("profiled")
    paths = [folder / "one" / "run", folder / "two" / "run"]
    for seed, path in enumerate(paths):
        path.parent.mkdir()
        sampling = {"group_size": 4, "max_new_tokens": 30, "seed": seed}
        experiment = small_experiment(policy_folder, path.with_name("p.jsonl"), prompts={"n": 8}, sampling=sampling)
        sampled_and_measured(experiment, path)
    return paths


def profile_of(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of completions that are too few and too short
        return profile_policy(gs.read_measurement(path / "measurement"))


def values(rows, policy):
    return {row["quantity"]: row["value"] for row in rows if row["policy"] == policy}


def test_a_run_is_profiled_without_its_model(monkeypatch, capsys, runs):
    monkeypatch.setattr("gradstats.policy.load_policy", lambda *_, **__: pytest.fail("the policy was loaded"))
    code, out, err = run(monkeypatch, capsys, "profile", runs[0])
    assert code == 0, err
    assert "quantity" in out
    assert f"{profile_of(runs[0]).mean_entropy:.3g}" in out
    assert "α, within prompts" in out


def test_two_runs_stand_side_by_side(monkeypatch, capsys, runs, tmp_path):
    words = ("profile", *runs, "--json", "--confidence-level", 0.8)
    code, out, err = run(monkeypatch, capsys, *words)
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert len({row["policy"] for row in rows}) == 2
    for path in runs:
        profile = profile_of(path)
        name = next(row["policy"] for row in rows if row["policy"].endswith(f"{path.parent.name}/run"))
        shown = values(rows, name)
        assert shown["n_sequences"] == 32
        assert shown["mean_entropy"] == pytest.approx(profile.mean_entropy)
        low, high = profile.pooled.confidence_interval(0.8)
        (alpha,) = [row for row in rows if (row["policy"], row["quantity"]) == (name, "alpha_pooled")]
        assert (alpha["low"], alpha["high"]) == pytest.approx((low, high))


def test_the_table_is_written_in_three_formats(monkeypatch, capsys, runs, tmp_path):
    code, out, err = run(monkeypatch, capsys, "profile", runs[0], "--out", tmp_path / "profile")
    assert code == 0, err
    assert {path.name for path in tmp_path.iterdir()} == {"profile.tex", "profile.md", "profile.csv"}
    assert all(f"→ {path}" in out for path in tmp_path.iterdir())
    frame = pd.read_csv(tmp_path / "profile.csv")
    assert set(frame["policy"]) == {"run"}
    assert len(frame) == len(profile_of(runs[0]).to_frame())


def test_a_policy_is_sampled_and_measured_first(monkeypatch, capsys, policy_folder, runs):
    words = ("profile", policy_folder, "--prompts", runs[0].with_name("p.jsonl"), "--n", 5, *SAMPLING)
    code, out, err = run(monkeypatch, capsys, *words, "--json")
    assert code == 0, err
    (name,) = {row["policy"] for row in json.loads(out)["rows"]}
    assert policy_folder.endswith(name)
    assert values(json.loads(out)["rows"], name)["n_sequences"] == 20


def test_a_profile_needs_a_source(monkeypatch, capsys):
    code, out, err = run(monkeypatch, capsys, "profile")
    assert code == 1
    assert "name at least one run directory or policy: gradstats profile RUN_OR_POLICY" in err
    assert "Traceback" not in out + err
