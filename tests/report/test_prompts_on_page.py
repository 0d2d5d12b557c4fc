"""The section of the page on prompts: success on each, and completions to read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from saved_runs import HOSTILE, save_rollouts, save_run

from gradstats.report import prompts_on_page as module
from gradstats.report.page import report_page
from gradstats.report.prompts_on_page import prompts_on_page, success_per_prompt
from gradstats.report.saved_results import read_results


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
    assert run.points is not None
    section = prompts_on_page(run)
    assert section is not None
    right = run.points.groupby("prompt_id")["reward"].sum()
    assert {row["name"]: row["success"] for row in section["rows"]} == {
        prompt: f"{int(count)} of 4" for prompt, count in right.items()
    }
    assert "95% interval over prompts [" in section["sentence"]
    assert "60 completions of 15 prompts." in section["sentence"]
    equal = int(right.isin([0, 4]).sum())
    assert f"On {equal} of them all completions have the same reward ({int((right == 4).sum())}" in section["sentence"]
    assert all(row["shown"] is not None and len(row["shown"].completions) == 4 for row in section["rows"])


def test_other_rewards_are_given_as_their_mean(tmp_path):
    run = read_results(save_run(tmp_path / "run"))
    assert run.points is not None
    points = run.points.assign(reward=np.where(run.points["prompt_id"] == "p3", -0.25, 0.5))
    section = prompts_on_page(replace(run, points=points))
    assert section is not None
    assert not section["binary"]
    assert [section["rows"][at]["success"] for at in (0, 1)] == ["−0.25", "0.5"]


def test_of_many_prompts_some_are_listed_and_fewer_shown_and_the_page_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 8)
    run = read_results(save_rollouts(save_run(tmp_path / "run")))
    section = prompts_on_page(run)
    assert section is not None
    assert len(section["rows"]) == 8
    assert section["left_out"].startswith("8 of 15 prompts are listed, evenly spaced")
    keys = [float(row["key"]) for row in section["rows"]]
    assert keys == sorted(keys)


def test_why_there_are_no_completions_is_said(tmp_path):
    folder = save_run(tmp_path / "run")
    section = prompts_on_page(read_results(folder))
    assert section is not None
    assert section["about_texts"] == "The completions cannot be shown: the folder run holds no rollouts."
    save_rollouts(folder, completion_text=None)
    assert "their texts were not recorded" in prompts_on_page(read_results(folder))["about_texts"]
    shard = folder / "rollouts" / "shard-00000.parquet"
    shard.write_bytes(shard.read_bytes()[:-9])
    assert "cannot be shown: the rollouts" in prompts_on_page(read_results(folder))["about_texts"]
    (folder / "tables" / "length_scaling.csv").unlink()
    assert prompts_on_page(read_results(folder)) is None


def test_markup_of_a_model_is_text_on_the_page(tmp_path):
    folder = save_rollouts(save_run(tmp_path / "run"), completion_text=[HOSTILE] * 60, prompt_text=[HOSTILE] * 60)
    page = report_page(read_results(folder), svgs={})
    assert "<img" not in page
    assert page.count("</script>") == 1
    assert page.count("&lt;/div&gt;&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt; ␛[31mred␀ \\u202etext") >= 60
    assert not set(page) & set("\x00\x1b\u202e")
