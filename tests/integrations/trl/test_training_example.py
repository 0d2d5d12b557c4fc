"""The worked example: every arm is trained once, interrupted runs go on, and the curves compare equal tokens."""

import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import gradstats as gs
from gradstats.system.files import read_json, write_json

pytestmark = pytest.mark.filterwarnings("ignore")
EXPERIMENTS = str(Path(__file__).parents[3] / "experiments")


@pytest.fixture(scope="module", autouse=True)
def _beside_the_scripts():
    sys.path.insert(0, EXPERIMENTS)
    yield
    sys.path.remove(EXPERIMENTS)


@pytest.fixture
def small():
    from train_with_estimators import Training

    return Training(
        tokens=40, prompts=2, group_size=2, max_new_tokens=10, monitor_every=1, held_out=3, held_out_completions=2
    )


def test_an_arm_draws_its_tokens_is_watched_and_moves_the_policy(small, tmp_path):
    from train_with_estimators import WATCHED, held_out_rates, train_arm

    result = train_arm(WATCHED, 0, small, tmp_path / "monitor")
    tokens = [step["tokens"] for step in result["steps"]]
    assert len(tokens) == 1 or tokens[-2] < small.tokens
    assert tokens[-1] >= small.tokens
    assert all(step["grad_norm"] >= 0 for step in result["steps"])
    start = gs.load_policy("embedded", revision=small.revision, progress=False)
    assert len(result["held_out"]) == len(held_out_rates(start, small)) == small.held_out
    record = gs.read_sweep(tmp_path / "monitor")
    assert list(record.settings) == [f"step-{step:06d}" for step in range(len(tokens))]


def test_finished_arms_are_skipped_and_other_settings_refused(small, tmp_path, monkeypatch):
    import train_with_estimators as script

    trained = []

    def fail_at_the_third(arm, seed, training, monitored):
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append((arm, seed))
        return {"arm": arm, "seed": seed}

    monkeypatch.setattr(script, "train_arm", fail_at_the_third)
    monkeypatch.setattr(script, "held_out_rates", lambda policy, training: [0.5])
    with pytest.raises(KeyboardInterrupt):
        script.main(tmp_path, 2, ("rloo", "asymre"), small)
    assert trained == [("rloo", 0), ("asymre", 0)]
    assert not list(tmp_path.glob("*seed-1*"))
    monkeypatch.setattr(script, "train_arm", lambda arm, seed, *_: {"arm": arm, "seed": seed, "again": True})
    script.main(tmp_path, 2, ("rloo", "asymre"), small)
    found = {path.stem: read_json(path).get("again", False) for path in tmp_path.glob("*-seed-*.json")}
    assert found == {"rloo-seed-0": False, "asymre-seed-0": False, "rloo-seed-1": True, "asymre-seed-1": True}
    with pytest.raises(SystemExit, match="was trained with tokens=40: give the same, or another --out"):
        script.main(tmp_path, 2, ("rloo",), script.Training(tokens=50))
    with pytest.raises(SystemExit, match="unknown arm grpo"):
        script.main(tmp_path, 2, ("grpo",), small)


def made_up(folder: Path, rewards: dict[tuple[str, int], list[float]], small) -> None:
    """Results of training runs whose steps draw 10 tokens each."""
    training = asdict(small) | {"tokens": 40}
    write_json(folder / "start.json", {"training": training, "held_out": [0.0, 1.0]})
    for (arm, seed), means in rewards.items():
        steps = [{"tokens": 10 * (at + 1), "mean_reward": mean} for at, mean in enumerate(means)]
        held_out = [means[-1], means[-1]]
        run = {"arm": arm, "seed": seed, "training": training, "steps": steps, "held_out": held_out}
        write_json(folder / f"{arm}-seed-{seed}.json", run)


def test_windows_hold_equal_tokens_and_share_the_steps_that_cross_them():
    import pandas as pd
    from training_curves import reward_by_window

    steps = pd.DataFrame({"tokens": [30, 60, 120], "mean_reward": [0.0, 1.0, 0.5]})
    # 0–40: 30 tokens of 0 and 10 of 1; 40–80: 20 of 1 and 20 of ½; 80–120: ½.
    np.testing.assert_allclose(reward_by_window(steps, 120, 3), [0.25, 0.75, 0.5])
    # What was drawn beyond the share of tokens does not count.
    np.testing.assert_allclose(reward_by_window(steps, 60, 2), [0.0, 1.0])


def test_differences_are_paired_by_seed_and_intervals_are_of_students_t(small, tmp_path):
    from scipy import stats
    from training_curves import differences, main, read_runs

    levels = {"rloo": 0.0, "asymre": 0.1, "reinforce": -0.2}
    odd = {0: 0.3, 1: 0.5, 2: 0.6}
    own = {"rloo": [0.0, 0.0, 0.0], "asymre": [0.01, -0.02, 0.04], "reinforce": [0.0, 0.0, 0.0]}
    rewards = {(arm, seed): [odd[seed] + levels[arm] + own[arm][seed]] * 4 for arm in levels for seed in odd}
    rewards["length_weighted", 7] = [0.5] * 4  # no RLOO with this seed
    made_up(tmp_path, rewards, small)
    _, runs = read_runs(tmp_path)
    table = differences(runs).set_index(["quantity", "arm"])
    found = table.loc["training_reward", "asymre"]
    values = 0.1 + np.array(own["asymre"])
    margin = stats.t.ppf(0.975, 2) * values.std(ddof=1) / 3**0.5
    np.testing.assert_allclose(
        found[["difference", "difference_low", "difference_high"]].astype(float),
        [values.mean(), values.mean() - margin, values.mean() + margin],
    )
    np.testing.assert_allclose(table.loc["held_out", "reinforce"]["difference"], -0.2)
    assert "length_weighted" not in table.index.get_level_values("arm")

    main(tmp_path, tmp_path / "figures")
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"reward_curves.pdf", "reward_curves.csv", "differences.png", "held_out.csv", "manifest.json"} <= names


def test_no_finished_run_is_refused(tmp_path):
    from training_curves import read_runs

    with pytest.raises(SystemExit, match="no finished training run: run train_with_estimators.py"):
        read_runs(tmp_path)
