"""``gradstats log``: one screen, ``--json``, a page that is read back, and no torch."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from command_line import run

from gradstats.analyses import registry
from gradstats.analyses.plan import plan
from gradstats.answers import Answer
from gradstats.cli.answers import log_screen
from gradstats.measurement import Measurement
from gradstats.measurement.measurement import read_measurement
from gradstats.report.analysis_tables import short_table
from gradstats.report.saved_results import read_results
from gradstats.report.verdict import Verdict, sentence_of, verdicts
from gradstats.rollouts import Rollouts
from gradstats.rollouts.log import read_log


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A log as verl writes it, of four steps."""
    path, rng = tmp_path_factory.mktemp("log") / "rollouts-of-verl", np.random.default_rng(0)
    path.mkdir()
    for step in range(1, 5):
        rows = []
        for at in range(64):
            drawn = rng.normal(-2.0, 0.2, rng.integers(5, 40))
            row = {"input": f"question {at // 8}", "output": "x", "step": step, "rollout_log_probs": drawn.tolist()}
            row |= {"score": float(rng.random() < (at // 8) / 8), "response_mask": [1] * drawn.size}
            rows.append(row | {"old_log_probs": (drawn + rng.normal(0.0, 0.1, drawn.size)).tolist()})
        (path / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.filterwarnings("ignore")
def test_the_screen_the_json_and_the_page_are_of_the_same_answers(answered, folder, tmp_path):
    out = tmp_path / "answers"
    printed = answered("log", folder, "--out", out, width=80)
    screen = printed.splitlines()
    assert len(screen) <= 26  # with the path of the page
    assert max(map(len, screen[:-1])) <= 80
    assert screen[0].startswith("rollouts-of-verl   256 completions of 8 prompts in 32 groups over 4 steps")
    answers = read_results(out).answers
    assert [name for name in answers if name in registry.OF_LOGS] == [*registry.OF_LOGS]
    page = (out / "report.html").read_text("utf-8")
    said = " ".join(" ".join(line[9:] if at else line for at, line in enumerate(screen)).split())
    for name in registry.OF_LOGS:
        assert answers[name].sentence in said
        assert f'id="{name}"' in page
        assert (out / "figures" / f"{name}.pdf").is_file()
        assert Answer.read(out / "tables" / name) == answers[name]
    assert "<title>rollouts-of-verl – gradstats" in page
    assert 'id="manifest"' not in page
    assert "8, drawn" in printed
    assert 'id="alpha"' not in page  # nor sections of a run
    printed = answered("log", folder, "--json")
    found = json.loads(printed)
    assert list(found["answers"]) == [*registry.OF_LOGS]
    assert found["answers"]["drift"]["sentence"] == answers["drift"].sentence
    assert len(found["answers"]["silent_groups"]["rows"]) == len(answers["silent_groups"].frame)


@pytest.mark.filterwarnings("ignore")
def test_answers_are_saved_before_their_reader_may_leave(monkeypatch, capsys, folder, tmp_path):
    def leave(*_):
        raise BrokenPipeError

    monkeypatch.setattr("gradstats.cli.terminal.show", leave)
    run(monkeypatch, capsys, "log", folder, "--out", tmp_path / "answers")
    assert Answer.read(tmp_path / "answers" / "tables" / "log_noise").sentence


@pytest.mark.filterwarnings("ignore")
def test_all_rows_notes_and_figures_are_given_on_request(answered, folder, tmp_path):
    words = ["--all", "--notes", "--most-silent", "0.3", "--figures", tmp_path / "figures"]
    printed = answered("log", folder / "1.jsonl", *words)
    assert "7, counted" in printed
    assert "note: drift: the log holds one step" in " ".join(printed.split())
    assert "Fewer than 30%" in " ".join(printed.split())
    assert {path.stem for path in tmp_path.glob("figures/*.pdf")} == {*registry.OF_LOGS} - {"drift", "spike"}


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A log of 90 prompts × 4 completions with Σπ², and a measurement of the first 30."""
    folder, rng = tmp_path_factory.mktemp("measured"), np.random.default_rng(0)
    lengths, prompts = rng.integers(3, 30, 360), [f"p{at // 4}" for at in range(360)]
    rewards = rng.integers(0, 2, 360).astype(float)
    tokens = [rng.uniform(-2.0, -0.1, length) for length in lengths]
    rows = [
        {"prompt_id": prompt, "reward": reward, "rollout_log_probs": list(of), "sum_pi_squared": list(np.exp(2 * of))}
        for prompt, reward, of in zip(prompts, rewards, tokens, strict=True)
    ]
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    some = lengths[:120]
    rollouts = Rollouts.from_sequences([[1]] * 120, [[2] * n for n in some], rewards[:120], prompts[:120])
    logit = np.array([np.sum((1.0 - np.exp(of)) ** 2) for of in tokens[:120]])
    sketches = rng.normal(size=(120, 64)) * np.sqrt(logit / 64.0)[:, None]
    norms = pd.DataFrame({"all": (sketches**2).sum(axis=1)})
    scored = tokens[:120]
    Measurement(rollouts, norms, sketches, scored, scored, scored, scored).save(folder / "run")
    return path, folder / "run"


@pytest.mark.filterwarnings("ignore")
def test_the_noise_by_proxy_is_calibrated_by_a_run(answered, refused, logged, tmp_path):
    path, measured = logged
    printed = answered("log", path, "--json")
    alone = json.loads(printed)["answers"]["log_noise"]
    assert alone["sentence"].startswith("Noise of the output layer, by proxy (logit), at equal signal: ")
    assert {row["ratio"] for row in alone["rows"]} == {None}
    printed = answered("log", path, "--measured", measured, "--json")
    found = json.loads(printed)["answers"]["log_noise"]
    assert "With the proxy logit, 30 measured prompts of 90 are worth" in found["sentence"]
    for row in found["rows"]:
        assert min(abs(row["by_proxy"] - one["by_proxy"]) for one in alone["rows"]) < 1e-9
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert row["factor_trace_cov"] >= 1.0
    assert max(row["factor_trace_cov"] for row in found["rows"]) > 1.5
    printed = answered("log", path, "--measured", measured)
    assert "relative noise" in printed
    other = tmp_path / "other.jsonl"
    other.write_text(path.read_text().replace(': "p', ': "q'))
    said = refused("log", other, "--measured", measured)
    assert f"no prompt of the log other.jsonl is measured in {measured}: the log names prompts as 'q0', the run" in said


@pytest.mark.filterwarnings("ignore")
def test_a_partly_measured_run_leads_with_calibrated_ratios_and_plans_its_parts(logged):
    path, folder = logged
    measured = read_measurement(folder)
    log = read_log(path)
    columns = {"prompt_id": [log.prompts[one] for one in log.labels("prompt")], "reward": log.column("reward")}
    columns |= {"length": log.column("length"), "logit": log.column("proxy_logit")}
    columns |= {"surprisal": log.column("proxy_surprisal"), "entropy": log.column("proxy_surprisal")}
    measured = replace(measured, scored=pd.DataFrame(columns))
    declared = registry.get("variance")
    answer = declared.answer_of(declared.ask(measured, ["reinforce", "grpo"]), 0.95)
    first = verdicts(None, answer)[0]
    assert re.match("Of 90 prompts, 30 measured, relative noise calibrated by .*, rloo 1: reinforce ", first.text)
    assert "grpo" not in first.text  # no rule gives its scale
    assert sentence_of(answer).startswith(first.text)
    row = answer.further["variance_calibrated"].frame.set_index("estimator").loc["reinforce"]
    assert row["factor"] > 1.1
    assert f"(prompts × {row['factor']:.1f})" in first.text
    planned = plan(measured, estimator="reinforce", quantity="ratio", within=0.03)
    needed, sampled = (planned.asked[name] for name in ("n_measured", "n_sampled"))
    assert needed == pytest.approx(planned.n_prompts_assured / row["factor"], rel=0.02)  # the proxy is chosen for both
    assert sampled == 3 * needed
    assert f"{needed:,} measured prompts of {sampled:,} sampled" in planned.sentences()[-1]


def test_few_prompts_bound_no_ratio_from_above_and_the_row_drawn_is_always_shown(answered, tmp_path):
    rng, rows = np.random.default_rng(0), []
    for at in range(256):
        length = int(rng.integers(5, 40))
        row = {"prompt_id": f"p{at % 64 // 8}", "step": at // 64, "old_log_probs": list(-rng.uniform(0.1, 2.0, length))}
        rows.append(row | {"reward": 1 if at % 64 < 8 else int(rng.integers(0, 2))})
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = json.loads(answered("log", path, "--json"))["answers"]
    assert re.search(r"reinforce [\d.]+ \[≥ [\d.]+\]; rloo is 1", found["log_noise"]["sentence"])
    assert "tokens" in found["spike"]["sentence"]  # lengths are those of the log-probabilities
    verdicts = [Verdict("topic", "word " * 100)] * 4
    declared = registry.get("silent_groups")
    answer = declared.answer_of(declared.ask(read_log(path)), 0.95)
    lines = log_screen("few", verdicts, short_table(declared, answer.frame), ["closing"], 6)
    assert any(line.lstrip().startswith("8, drawn") for line in lines)


def test_wrong_folders_are_refused_before_the_log_is_read(refused, folder, tmp_path):
    assert "does not exist: give the files of a log" in refused("log", tmp_path / "none.parquet")
    assert f"silent_groups is asked of a log: gradstats log {folder}" in refused("ask", folder, "silent_groups")
