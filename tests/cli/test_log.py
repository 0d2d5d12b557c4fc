"""``gradstats log``: one screen, ``--json``, a page that is read back, and no torch."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from gradstats.analyses import registry
from gradstats.answers import Answer
from gradstats.measurement import Measurement
from gradstats.report.saved_results import read_results
from gradstats.rollouts import Rollouts


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


def test_wrong_folders_are_refused_before_the_log_is_read(refused, folder, tmp_path):
    assert "does not exist: give the files of a log" in refused("log", tmp_path / "none.parquet")
    assert f"silent_groups is asked of a log: gradstats log {folder}" in refused("ask", folder, "silent_groups")


def test_no_torch_is_loaded(folder):
    code = (
        "import sys; sys.argv[1:] = ['log', sys.argv[1]]\n"
        "from gradstats.cli.commands import main\nmain()\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
