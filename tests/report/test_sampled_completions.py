"""A few completions of a few prompts, read from the shards of a run."""

from __future__ import annotations

import pandas as pd
import pytest
from saved_runs import HOSTILE, save_rollouts, save_run

from gradstats.report.prompts_on_page import MOST_CHARACTERS, MOST_COMPLETIONS, read_completions, spread_over
from gradstats.rollouts.table import Rollouts


def test_prompts_are_spread_from_the_first_to_the_last():
    names = [f"p{at}" for at in range(100)]
    chosen = spread_over(names, 12)
    assert (len(set(chosen)), chosen[0], chosen[-1]) == (12, "p0", "p99")
    assert spread_over(names[:3], 12) == names[:3]


def test_completions_of_one_prompt_come_from_all_shards(tmp_path):
    run = save_rollouts(save_run(tmp_path / "run"), shards=2)
    points = pd.read_csv(run / "tables" / "length_scaling.csv").set_index(["prompt_id", "sample_id"])
    shown = read_completions(run, ["p3", "p9", "of another run"])
    assert list(shown) == ["p3", "p9"]
    assert shown["p3"].text == "What is <p3>?"
    assert [completion.sample_id for completion in shown["p3"].completions] == [0, 1, 2, 3]
    for completion in shown["p9"].completions:
        row = points.loc[("p9", completion.sample_id)]
        assert (completion.reward, completion.length) == (row["reward"], row["length"])
        assert completion.text == f"It is p9 {completion.sample_id}."


def test_the_best_and_the_worst_are_among_the_few_that_are_shown(tmp_path):
    n = 10
    (tmp_path / "rollouts").mkdir()
    rollouts = Rollouts.from_sequences(
        [[1]] * n, [[2]] * n, [*[0.5] * 6, 1.0, 0.5, 0.1, 1.0], ["p"] * n,
        completion_text=[HOSTILE, *["x" * 99_999] * (n - 1)], finish_reason=["stop", *["length"] * (n - 1)],
    )  # fmt: skip
    rollouts.to_parquet(tmp_path / "rollouts" / "shard-00000.parquet")
    shown = read_completions(tmp_path, ["p"])["p"]
    assert [completion.sample_id for completion in shown.completions] == [0, 1, 6, 8]
    assert len(shown.completions) == MOST_COMPLETIONS
    first, second, *_ = shown.completions
    assert "\x1b" not in first.text
    assert "\u202e" not in first.text
    assert (first.truncated, second.truncated) == (False, True)
    assert len(second.text) < MOST_CHARACTERS + 50
    assert f"{99_999 - MOST_CHARACTERS} characters left out" in second.text
    assert shown.text == ""


def test_rollouts_without_texts_show_nothing_and_absent_ones_say_so(tmp_path):
    run = save_run(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="the folder run holds no rollouts"):
        read_completions(run, ["p1"])
    save_rollouts(run, completion_text=None)
    assert read_completions(run, ["p1"]) == {}
