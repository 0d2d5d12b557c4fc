"""Size of a run, mean length and mean reward of its completions."""

from __future__ import annotations

import numpy as np
import pytest
from saved_runs import save_run
from scipy import stats

from gradstats.report.saved_results import completion_means, read_results
from gradstats.system.files import read_json, write_json


def test_means_over_prompts_have_students_interval(tmp_path):
    folder = save_run(tmp_path / "run")
    sizes = {"n_prompts": 15, "n_sequences": 60, "n_truncated": 3}
    write_json(folder / "manifest.json", read_json(folder / "manifest.json") | sizes)
    run = read_results(folder)
    assert run.points is not None
    means = completion_means(run)
    assert (means["n_prompts"], means["n_completions"], means["truncated_share"]) == (15, 60, 0.05)
    each = run.points.groupby("prompt_id")["reward"].mean().to_numpy()
    half = stats.t.ppf(0.975, 14) * each.std(ddof=1) / np.sqrt(15)
    assert means["mean_reward"] == pytest.approx(each.mean())
    assert means["mean_reward_low"] == pytest.approx(each.mean() - half)
    assert means["mean_reward_high"] == pytest.approx(each.mean() + half)


def test_what_is_not_recorded_is_nan(tmp_path):
    folder = save_run(tmp_path / "run")
    (folder / "tables" / "length_scaling.csv").unlink()
    means = completion_means(read_results(folder))
    assert all(np.isnan(value) for value in means.values())
