"""``gradstats init``: a file that runs, from options or from answers, and nothing replaced."""

from __future__ import annotations

import pytest
from command_line import run

from gradstats.config.experiment import experiment_schema, load_experiment
from gradstats.system.files import to_json


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_options_and_settings_given_are_those_of_the_file(tmp_path, monkeypatch, capsys):
    words = ("--n", 6, "--group-size", 2, "--reward", "exact", "--set", "measurement.engine=ghost", "prompts.seed=3")
    code, out, _ = run(monkeypatch, capsys, "init", "mine", *words)
    assert code == 0
    assert "gradstats run mine.yaml --dry-run" in out
    made = load_experiment(tmp_path / "mine.yaml")
    assert (made.name, made.policy.name, made.prompts.source) == ("mine", "embedded", "embedded")
    assert (made.prompts.n, made.prompts.seed, made.sampling.group_size, made.sampling.reward) == (6, 3, 2, "exact")
    assert (made.sampling.max_new_tokens, made.measurement.engine) == (400, "ghost")
    assert (tmp_path / "experiment.schema.json").read_text() == to_json(experiment_schema()) + "\n"


def test_a_terminal_is_asked_for_what_was_not_given(tmp_path, monkeypatch, capsys):
    asked = []

    def answer(question, default):
        asked.append(question)
        return "5" if question.startswith("group size") else default

    monkeypatch.setattr("gradstats.cli.running.Prompt.ask", answer)
    monkeypatch.setattr("gradstats.cli.running._is_terminal", lambda: True)
    run(monkeypatch, capsys, "init", "mine.yaml", "--n", 7)
    made = load_experiment(tmp_path / "mine.yaml")
    assert (made.prompts.n, made.sampling.group_size, made.sampling.reward) == (7, 5, None)
    assert [question.split(" (")[0] for question in asked] == [
        "policy", "prompts", "group size", "max new tokens", "reward"
    ]  # fmt: skip
    asked.clear()
    run(monkeypatch, capsys, "init", "other", "--no-ask")
    assert asked == []


def test_nothing_is_replaced(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.yaml").write_text("mine")
    (tmp_path / "experiment.schema.json").write_text("{}")
    code, _, err = run(monkeypatch, capsys, "init", "mine")
    assert code == 1
    assert "mine.yaml exists and is not replaced: choose another name" in err
    code, _, err = run(monkeypatch, capsys, "init", "new")
    assert code == 0
    assert "experiment.schema.json is not the schema of this version and was left" in err
    assert (tmp_path / "mine.yaml").read_text() == "mine"
    assert (tmp_path / "experiment.schema.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--reward", "exakt"), "did you mean 'exact'"),
        (("--set", "sampling.group_sise=3"), "sampling has no setting 'group_sise': did you mean 'group_size'?"),
        (("--n", "0"), "prompts.n is 0: it must be an integer of at least 1"),
    ],
)
def test_a_wrong_setting_is_refused_and_nothing_written(tmp_path, monkeypatch, capsys, words, message):
    code, _, err = run(monkeypatch, capsys, "init", "mine", *words)
    assert code == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_a_function_that_is_not_written_yet_is_remarked_on(tmp_path, monkeypatch, capsys):
    code, _, err = run(monkeypatch, capsys, "init", "mine", "--reward", "parts/later.py:score")
    assert code == 0
    assert "there is no file parts/later.py" in err
    assert "write it before the run" in err
    assert load_experiment(tmp_path / "mine.yaml").sampling.reward == "parts/later.py:score"
