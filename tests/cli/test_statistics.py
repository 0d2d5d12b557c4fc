"""The statistics commands: fits, plans and further questions."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from command_line import run
from comparison_batches import quiet_compare

import gradstats
from gradstats import data


def test_alpha_gives_the_published_points_their_interval(monkeypatch, capsys, points):
    code, out, _ = run(monkeypatch, capsys, "alpha", points)
    assert code == 0
    assert "α = 0.7887  stderr 0.139  95% interval [0.474, 1.103]" in out
    assert "(method gamma), α = 0.829 [0.448, 1.211]; " in out
    _, out, _ = run(monkeypatch, capsys, "alpha", points, "--interval", "t")
    assert "α = 0.7887  stderr 0.153  95% interval [0.475, 1.102]" in out


def test_alpha_as_json_and_by_prompt(monkeypatch, capsys, points):
    code, out, _ = run(monkeypatch, capsys, "alpha", points, "--json", "--confidence-level", "0.9")
    summary = json.loads(out)
    assert code == 0
    assert summary["alpha"] == pytest.approx(0.7887, abs=5e-5)
    assert summary["confidence_level"] == 0.9
    assert 0.474 < summary["alpha_low"] < summary["alpha_high"] < 1.103
    frame = pd.read_csv(points)
    frame.assign(prompt_id=np.arange(29) // 3).to_csv(points, index=False)
    clustered = json.loads(run(monkeypatch, capsys, "alpha", points, "--json")[1])
    assert clustered["interval"] == "cluster"
    assert clustered["alpha"] == summary["alpha"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("length,norm\n1,2\n", "has no column 'sq_norm' (it has length, norm)"),
        ("length,sq_norm\n1,2\n2,x\n3,4\n", "the column 'sq_norm' of"),
        ("length,sq_norm\n1,2\n2,inf\n3,4\n", "has the sq_norm inf: give a finite number, or drop it"),
        ("length,sq_norm\n1,2\n-inf,3\n3,4\n", "has the length -inf: give a finite number, or drop it"),
        ("length,sq_norm,truncated\n1,2,no\n2,3,perhaps\n", "has truncated='perhaps': write true or false"),
        ("length,sq_norm\n5,2\n5,3\n6,4\n", "lengths hold 2 distinct value(s)"),
        ("", "cannot be read as CSV"),
    ],
)
def test_bad_points_end_in_one_sentence(monkeypatch, capsys, tmp_path, content, message):
    path = tmp_path / "points.csv"
    path.write_text(content)
    code, out, err = run(monkeypatch, capsys, "alpha", path)
    assert code == 1
    assert message in err
    assert "Traceback" not in out + err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("method", ["ols", "theil_sen", "gamma", "ppml", "gls", "within_prompt", "between_prompt"])
def test_alpha_by_every_method(monkeypatch, capsys, measured, method):
    fit = gradstats.fit_length_scaling(gradstats.read_measurement(measured), method=method)
    code, out, _ = run(monkeypatch, capsys, "alpha", measured, "--method", method)
    assert code == 0
    assert f"α = {fit.alpha:.4f}" in out
    assert "Consistent with on-policy sampling" in out
    assert "12 of 240 completions were cut off at the cap; without them: α =" in out
    assert "mlp" in out
    assert "75.0%" in out


def test_alpha_by_another_interval(monkeypatch, capsys, points):
    code, out, _ = run(monkeypatch, capsys, "alpha", points, "--interval", "hc3", "--json")
    summary = json.loads(out)
    fit = gradstats.fit_length_scaling(
        lengths=data.load("gloeckle2026").length, sq_norms=data.load("gloeckle2026").sq_norm
    )
    assert code == 0
    assert (summary["alpha_low"], summary["alpha_high"]) == pytest.approx(fit.confidence_interval(method="hc3"))
    assert summary["interval"] == "hc3"
    assert summary["mean_scaling"]["alpha"] == pytest.approx(0.829, abs=1e-3)
    code, _, err = run(monkeypatch, capsys, "alpha", points, "--interval", "rank")
    assert code == 1
    assert "method='rank' is not available here for a fit by 'ols': choose from t, hc3, cluster, bootstrap" in err


@pytest.mark.parametrize("words", [("False", "True"), ("no", "yes"), ("No ", "YES"), ("0", "1"), ("0.0", "1.0")])
def test_points_may_say_which_were_cut_off(monkeypatch, capsys, points, words):
    frame = pd.read_csv(points)
    cut_off = np.arange(len(frame)) < 4
    frame.assign(truncated=np.array(words)[cut_off.astype(int)]).to_csv(points, index=False)
    _, out, _ = run(monkeypatch, capsys, "alpha", points)
    assert "4 of 29 completions were cut off at the cap" in out


def test_plan(monkeypatch, capsys, points):
    code, out, _ = run(monkeypatch, capsys, "plan", points)
    assert code == 0
    assert out.startswith("α ± 0.05 (95% interval) takes 870 prompts [")
    _, out, _ = run(monkeypatch, capsys, "plan", "--noise", 1, "--length-spread", 0.5, "--half-width", 0.1, "--json")
    assert json.loads(out)["n"] == 387
    code, _, err = run(monkeypatch, capsys, "plan")
    assert code == 1
    assert "give either a pilot fit, or both noise= and length_spread=" in err


def test_variance_at_several_group_sizes(monkeypatch, capsys, measured, tmp_path):
    words = ("--estimators", "rloo", "group_mean", "--group-size", 2, 4, "--out", tmp_path / "v.csv")
    code, out, _ = run(monkeypatch, capsys, "variance", measured, *words)
    assert code == 0
    assert list(pd.read_csv(tmp_path / "v.csv")["group_size"]) == [2, 2, 4, 4]
    assert "rloo, N=2" in out


def test_bias_by_length_of_every_estimator(monkeypatch, capsys, measured, tmp_path):
    words = ("variance", measured, "--by-length", "2", "--estimators", "group_mean", "batch_mean")
    code, out, err = run(monkeypatch, capsys, *words, "--out", tmp_path / "bins.csv")
    assert code == 0
    frame = pd.read_csv(tmp_path / "bins.csv")
    assert frame["estimator"].tolist() == ["rloo", "rloo", "group_mean", "group_mean"]
    for row in frame.to_dict("records"):
        assert f"{row['estimator']}, {row['length_low']:g}–{row['length_high']:g} tokens" in out
    assert "scale kept" in out
    assert "batch_mean is a batch-level estimator, which is not split by length" in err
    code, _, err = run(monkeypatch, capsys, *words, "--max-grad-norm", "1")
    assert code == 1
    assert "max_grad_norm clips gradients of whole batches, which are not split by length" in err
    code, _, err = run(monkeypatch, capsys, "variance", measured, "--by-length", "0")
    assert code == 1
    assert "n_bins=0 must be at least 1" in err


def test_variance_by_block(monkeypatch, capsys, measured, tmp_path):
    words = ("--estimators", "rloo", "group_mean", "otb", "--blocks", "--out", tmp_path / "blocks.csv")
    code, _, err = run(monkeypatch, capsys, "variance", measured, *words)
    assert code == 1
    assert "holds no sketches by block: measure with block_sketches=True" in err
    known = gradstats.read_measurement(measured)
    parts = np.stack([np.sqrt(share) * known.sketches for share in (0.25, 0.75)], axis=1)
    replace(known, sketches_by_block=parts).save(tmp_path / "m")
    code, out, err = run(monkeypatch, capsys, "variance", tmp_path / "m", *words)
    assert code == 0
    assert "otb weights each token" in err
    for row in ("attention, rloo", "attention, group_mean", "mlp, rloo", "mlp, group_mean"):
        assert row in out
    frame = pd.read_csv(tmp_path / "blocks.csv")
    assert frame["block"].tolist() == ["attention", "attention", "mlp", "mlp"]
    whole = quiet_compare(known, ["rloo", "group_mean"]).to_frame()["trace_cov"].to_numpy()
    np.testing.assert_allclose(frame["trace_cov"], np.concatenate([0.25 * whole, 0.75 * whole]), rtol=1e-9)
    code, _, err = run(monkeypatch, capsys, "variance", measured, "--blocks", "--by-length", 2)
    assert code == 1
    assert "--by-length and --blocks are different tables: give one of them" in err


def test_the_questions(monkeypatch, capsys, measured):
    code, out, _ = run(monkeypatch, capsys, "group-size", measured, "rloo", "--group-size", 4)
    assert code == 0
    assert out.startswith("rloo at N = 4 is as noisy as rloo at N = 4 [4, 4]")
    code, out, _ = run(monkeypatch, capsys, "shift", measured, "length_weighted(alpha=0.8)")
    assert code == 0
    assert out.startswith("The baseline of length_weighted(alpha=0.8) lies -0.")
    code, out, _ = run(monkeypatch, capsys, "length-reward", measured.with_name("rollouts.parquet"))
    assert code == 0
    assert out.startswith("Longer answers to a prompt are less often right: the correlation")
    _, out, _ = run(monkeypatch, capsys, "length-reward", measured.with_name("rollouts.parquet"), "--json")
    assert json.loads(out)["n_prompts"] == 29  # in one prompt all are right


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["group-size", "rloo", "--group-size", 5], "no prompt has the 10 completions that two groups of 5 need"),
        (["group-size", "batch_mean"], "is a batch-level estimator"),
        (["shift", "pass_at_k"], "baseline: best of the others"),
        (["shift", "rlo"], "no estimator is called 'rlo'"),
    ],
)
def test_questions_without_an_answer_end_in_one_sentence(monkeypatch, capsys, measured, words, message):
    code, out, err = run(monkeypatch, capsys, words[0], measured, *words[1:])
    assert code == 1
    assert message in err
    assert "Traceback" not in out + err


def test_a_run_ends_with_the_on_policy_verdict_beside_alpha(monkeypatch, capsys, policy_folder, tmp_path):
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"prompt": "ab " * k, "answer": "x"}) for k in range(1, 6)))
    (tmp_path / "tiny.yaml").write_text(
        f"policy: {{name: {policy_folder}}}\nprompts: {{source: {tmp_path / 'p.jsonl'}}}\n"
        "sampling: {group_size: 2, max_new_tokens: 10, reward: exact}\nmeasurement: {sketch_dim: 64}\n"
    )
    words = ("run", tmp_path / "tiny.yaml", "--out", tmp_path / "run", "--no-progress")
    code, out, err = run(monkeypatch, capsys, *words)
    assert code == 0, err
    summary = json.loads((tmp_path / "run" / "alpha.json").read_text())
    assert "on-policy" in summary["sentences"][0]
    assert summary["sentences"][0] in out
    assert {"curvature", "without_truncated", "most_influential_prompt", "by_block", "mean_scaling"} <= set(summary)


def test_plans_of_ratios_and_signals(monkeypatch, capsys, measured):
    words = ("plan", measured, "--estimator", "reinforce", "--group-size", 4)
    code, out, _ = run(monkeypatch, capsys, *words, "--ratio", 1.5)
    assert code == 0
    assert out.startswith(
        "distinguishing a ratio of 1.5 of reinforce to rloo from 1 (95% interval, in 80% of studies) takes "
    )
    code, out, _ = run(monkeypatch, capsys, *words, "--quantity", "matched_ratio", "--ratio", 1.5)
    assert code == 0
    assert out.startswith("distinguishing a matched ratio of 1.5 of reinforce to rloo from 1 (95% interval, ")
    code, out, _ = run(monkeypatch, capsys, *words, "--signal")
    assert code == 0
    assert out.startswith("‖E ĝ‖² of reinforce resolved (95% interval above 0 in 80% of studies) takes ")
    for wrong, message in (
        (("plan", measured, "--estimator", "rloo"), "choose an estimator that is not a multiple of the reference"),
        (("plan", measured, "--ratio", 0.9), "--ratio and --signal need --estimator"),
        (("plan", "--estimator", "grpo"), "give a measurement folder or a run directory as the pilot of --estimator"),
        (("plan", measured, "--dry-run"), "--dry-run needs a run directory with an experiment.yaml"),
    ):
        code, _, err = run(monkeypatch, capsys, *wrong)
        assert code == 1
        assert message in err


def test_an_estimator_of_ones_own_uses_a_saved_column(monkeypatch, capsys, measured, tmp_path):
    known = gradstats.read_measurement(measured)
    salience = np.linspace(0.5, 1.5, len(known.rollouts))
    frame = known.rollouts.frame.assign(salience=salience)
    replace(known, rollouts=gradstats.Rollouts(frame, known.rollouts.metadata)).save(tmp_path / "measurement")
    (tmp_path / "salience.py").write_text(
        "def salient(batch, power=1.0):\n    return batch.columns['salience'] ** power * batch.rewards\n"
    )
    monkeypatch.chdir(tmp_path)
    out_file = tmp_path / "v.csv"
    words = ("--estimators", "rloo", "salience:salient(power=2)", "--out", out_file)
    code, _, err = run(monkeypatch, capsys, "variance", tmp_path / "measurement", *words)
    assert code == 0, err
    frame = pd.read_csv(out_file)
    assert frame["estimator"].tolist() == ["rloo", "salience:salient(power=2)"]
    batch = gradstats.estimators.Batch.from_measurement(gradstats.read_measurement(tmp_path / "measurement"))
    weights = salience**2 * batch.rewards / 8
    gradients = np.zeros((30, 32))
    np.add.at(gradients, batch.group_index, weights[:, None] * known.sketches)
    signal = (np.sum(gradients.sum(axis=0) ** 2) - np.sum(gradients**2)) / (30 * 29)
    assert frame["signal_sq"][1] == pytest.approx(signal, rel=1e-5)
