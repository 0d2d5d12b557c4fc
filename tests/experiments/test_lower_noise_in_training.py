"""Training by estimator: what stale completions are drawn with, and the tables of runs that have ended."""

import math
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

ROOT = Path(__file__).parents[2]


def test_completions_are_drawn_with_older_weights_and_the_present_ones_return(script):
    model = torch.nn.Linear(1, 1, bias=False)
    trainer = SimpleNamespace(_generate_and_score_completions=lambda inputs: model.weight.item())
    script.draw_with_older_weights(trainer, model, lag=2)
    drawn_with = []
    for step in range(5):
        model.weight.data.fill_(float(step))
        drawn_with.append(trainer._generate_and_score_completions([]))
        assert model.weight.item() == step
    assert drawn_with == [0.0, 0.0, 0.0, 1.0, 2.0]


def test_tables_pair_the_runs_of_a_seed_and_predict_from_step_0(script, tmp_path):
    def save(arm, seed, reached):
        rewards = [0.5] * reached + [1.0] * 30  # the mean of 8 is 0.875 after 6 more
        frame = pd.DataFrame({"step": range(1, len(rewards) + 1), "reward": rewards, "length": 60.0, "seconds": 1.0})
        frame.to_csv(tmp_path / f"{arm.name}_{seed}.csv", index=False)

    reference, james_stein, _, fours = script.ON_POLICY
    for seed, (one, other) in enumerate([(34, 14), (34, 4)]):
        save(reference, seed, one)
        save(james_stein, seed, other)
    save(script.BY_AGE[0], 0, 0)
    noise = {reference.name: 96.0, james_stein.name: 32.0, "reinforce_2": 224.0, fours.name: 0.0}
    critical = pd.DataFrame({"arm": noise.keys(), "noise_to_signal": noise.values()})
    critical.to_csv(script.measured_paths(tmp_path)["layers"], index=False)
    tables = script.results(tmp_path)
    steps = tables["steps"].set_index("arm")
    assert steps.loc[reference.name, ["pairs", "steps", "ratio"]].tolist() == [2, 40, 1]
    assert steps.loc[james_stein.name, "ratio"] == pytest.approx(math.sqrt(20 / 40 * 10 / 40))
    assert steps.loc[fours.name, "pairs"] == 0
    # √(1 + B*/B) of 32 prompts, and of 16, over that of the reference, 2.
    assert steps["predicted_layers"].tolist() == pytest.approx([1.0, math.sqrt(2) / 2, math.sqrt(8) / 2, 0.5])
    assert tables["by_age"]["last"].tolist() == [1.0]


def test_the_page_states_the_committed_steps_and_its_verdict(script):
    steps = pd.read_csv(ROOT / "figures" / "lower_noise_training" / "steps.csv")
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    assert [row for row in script.rows(steps) if row not in page] == []
    arms = steps.set_index("arm").drop(script.REFERENCE.name)
    assert (arms["pairs"] == script.SEEDS).all()
    assert arms["predicted_layers"].between(arms["ratio_low"], arms["ratio_high"]).all()
    assert arms.loc["reinforce_2", "predicted_all"] > arms.loc["reinforce_2", "ratio_high"]


def test_the_page_states_the_committed_rewards_by_age_and_their_verdict(script):
    rewards = pd.read_csv(ROOT / "figures" / "lower_noise_training" / "by_age.csv")
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    assert [row for row in script.rows_by_age(rewards) if row not in page] == []
    ends = {name: seeds["last"] for name, seeds in rewards.groupby("arm")}
    shifted, centred, raised, present = (ends[arm.name] for arm in script.BY_AGE)
    assert {len(seeds) for seeds in ends.values()} == {script.SEEDS}
    assert min(shifted.min(), present.min()) > 0.8 > max(centred.max(), raised.max())
