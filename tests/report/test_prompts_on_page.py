"""The section of the page on prompts: success on each, and completions to read."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from saved_runs import HOSTILE, forget, save_rollouts, save_run

from gradstats.analyses.declaration import POINTS
from gradstats.answers import Answer
from gradstats.report import prompts_on_page as module
from gradstats.report.page import report_page
from gradstats.report.prompts_on_page import (
    MOST_CHARACTERS,
    MOST_COMPLETIONS,
    prompts_on_page,
    read_completions,
    shortened,
    success_per_prompt,
    visible,
)
from gradstats.report.saved_results import read_results
from gradstats.rollouts.table import Rollouts


def test_success_is_counted_per_prompt_from_the_lowest():
    points = pd.DataFrame(
        {
            "prompt_id": ["b", "b", "a", "a", "c"],
            "reward": [1.0, 1.0, 0.0, 1.0, 0.0],
            "length": [10, 30, 5, 6, 7],
            "truncated": [True, False, False, False, True],
        }
    )
    table = success_per_prompt(points)
    assert table["prompt_id"].tolist() == ["c", "a", "b"]
    assert table["n"].tolist() == [1, 2, 2]
    assert table["mean_reward"].tolist() == [0.0, 0.5, 1.0]
    assert table["mean_length"].tolist() == [7.0, 5.5, 20.0]
    assert table["n_truncated"].tolist() == [1, 0, 1]
    assert success_per_prompt(points.drop(columns="truncated"))["n_truncated"].tolist() == [0, 0, 0]


def test_every_prompt_has_its_success_and_the_sentence_its_interval(tmp_path):
    run = read_results(save_rollouts(save_run(tmp_path / "run")))
    section = prompts_on_page(run)
    right = run.points.groupby("prompt_id")["reward"].sum()
    assert {row["name"]: row["success"] for row in section["rows"]} == {
        prompt: f"{int(count)} of 4" for prompt, count in right.items()
    }
    assert re.match(r"Mean reward [\d.]+ \[[\d.]+, [\d.]+\] \(95% interval over prompts\), ", section["sentence"])
    assert "60 completions of 15 prompts." in section["sentence"]
    equal = int(right.isin([0, 4]).sum())
    assert f"On {equal} of them all completions have the same reward ({int((right == 4).sum())}" in section["sentence"]
    assert all(row["shown"] is not None and len(row["shown"]["completions"]) == 4 for row in section["rows"])


def test_other_rewards_are_given_as_their_mean(tmp_path):
    run = read_results(save_run(tmp_path / "run"))
    points = run.points.assign(reward=np.where(run.points["prompt_id"] == "p3", -0.25, 0.5))
    section = prompts_on_page(replace(run, answers=run.answers | {POINTS: Answer(POINTS, points)}))
    assert not section["binary"]
    assert [section["rows"][at]["success"] for at in (0, 1)] == ["−0.25", "0.5"]


def test_of_many_prompts_some_are_listed_and_fewer_shown_and_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 8)
    run = read_results(save_rollouts(save_run(tmp_path / "run")))
    section = prompts_on_page(run)
    assert len(section["rows"]) == 8
    assert section["left_out"].startswith("8 of 15 prompts are listed, evenly spaced")
    keys = [float(row["key"]) for row in section["rows"]]
    assert keys == sorted(keys)


def test_why_there_are_no_completions_is_said(tmp_path):
    folder = save_run(tmp_path / "run")
    section = prompts_on_page(read_results(folder))
    assert section["about_texts"] == "The completions cannot be shown: the folder run holds no rollouts."
    save_rollouts(folder, completion_text=None)
    assert "their texts were not recorded" in prompts_on_page(read_results(folder))["about_texts"]
    shard = folder / "rollouts" / "shard-00000.parquet"
    shard.write_bytes(shard.read_bytes()[:-9])
    assert "cannot be shown: the rollouts" in prompts_on_page(read_results(folder))["about_texts"]
    forget(folder, "alpha", "length_scaling")
    assert prompts_on_page(read_results(folder)) is None


def test_markup_of_a_model_is_text_on_the_page(tmp_path):
    folder = save_rollouts(save_run(tmp_path / "run"), completion_text=[HOSTILE] * 60, prompt_text=[HOSTILE] * 60)
    page = report_page(read_results(folder), svgs={})
    assert "<img" not in page
    assert page.count("</script>") == 1
    assert page.count("&lt;/div&gt;&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt; ␛[31mred␀ \\u202etext") >= 60
    assert not set(page) & set("\x00\x1b\u202e")


def test_completions_of_one_prompt_come_from_all_shards(tmp_path):
    run = save_rollouts(save_run(tmp_path / "run"), shards=2)
    points = pd.read_csv(run / "tables" / "length_scaling.csv").set_index(["prompt_id", "sample_id"])
    shown = read_completions(run, ["p3", "p9", "of another run"])
    assert list(shown) == ["p3", "p9"]
    assert shown["p3"]["text"] == "What is <p3>?"
    assert [completion["sample_id"] for completion in shown["p3"]["completions"]] == [0, 1, 2, 3]
    for completion in shown["p9"]["completions"]:
        row = points.loc[("p9", completion["sample_id"])]
        assert (completion["reward"], completion["length"]) == (row["reward"], row["length"])
        assert completion["text"] == f"It is p9 {completion['sample_id']}."


def test_the_best_and_the_worst_are_among_the_few_that_are_shown(tmp_path):
    n = 10
    (tmp_path / "rollouts").mkdir()
    rollouts = Rollouts.from_sequences(
        [[1]] * n, [[2]] * n, [*[0.5] * 6, 1.0, 0.5, 0.1, 1.0], ["p"] * n,
        completion_text=[HOSTILE, *["x" * 99_999] * (n - 1)], finish_reason=["stop", *["length"] * (n - 1)],
    )  # fmt: skip
    rollouts.to_parquet(tmp_path / "rollouts" / "shard-00000.parquet")
    shown = read_completions(tmp_path, ["p"])["p"]
    assert [completion["sample_id"] for completion in shown["completions"]] == [0, 1, 6, 8]
    assert len(shown["completions"]) == MOST_COMPLETIONS
    first, second, *_ = shown["completions"]
    assert "\x1b" not in first["text"]
    assert "\u202e" not in first["text"]
    assert (first["truncated"], second["truncated"]) == (False, True)
    assert len(second["text"]) < MOST_CHARACTERS + 50
    assert f"{99_999 - MOST_CHARACTERS} characters left out" in second["text"]
    assert shown["text"] == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nπ – 答え 👩‍🔬", "a\tb\nπ – 答え 👩‍🔬"),
        ("\x00\x1b[2J\r\x7f\x85", "␀␛[2J␍␡\\u0085"),
        ("1\u202e2\u2067\u2028", "1\\u202e2\\u2067\\u2028"),
        ("\ud800", "\\ud800"),
        ("<b>&", "<b>&"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text, shown):
    assert visible(text) == shown
    visible(text).encode()


def test_of_a_long_text_the_beginning_and_the_end_are_kept():
    assert shortened("a" * 9, 9) == ("a" * 9, 0)
    text, left_out = shortened("a" * 60 + "b" * 1000 + "c" * 30, 90)
    assert left_out == 1000
    assert text == "a" * 60 + "\n[… 1000 characters left out …]\n" + "c" * 30
