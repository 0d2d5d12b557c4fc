"""The experiment on batch sizes in training: exact policies against the reference, its fits and what it resumes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose

from gradstats import estimators as est
from gradstats.system.files import read_json, write_json

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "figures" / "batch_size_training"


@pytest.fixture(scope="module")
def task(script):
    return script.Task(seed=5, n_prompts=3)


@pytest.fixture(scope="module")
def theta(task):
    return np.random.default_rng(0).normal(scale=2.0, size=(2, task.dimension))


def test_reward_gradient_and_values_are_those_of_the_reference(task, theta):
    log_pi = task.log_pi(theta)
    probabilities = task.probabilities(log_pi)
    for run in range(2):
        policy = task.enumerated(theta[run])
        assert_allclose(task.expected_reward(log_pi)[run], policy.probabilities @ policy.rewards)
        assert_allclose(task.true_gradient(log_pi)[run], policy.gradient, atol=1e-12)
        row = {one: at for at, one in enumerate(zip(policy.prompts, policy.trajectories, strict=True))}
        for prompt in range(3):
            at = [row[prompt, sequence] for sequence in task.sequences]
            assert_allclose(probabilities[run, prompt], 3 * policy.probabilities[at])
            assert_allclose(task.values(probabilities)[run, prompt], policy.values[at])


@pytest.mark.parametrize("label", ["reinforce", "rloo", "gae"])
def test_drawn_groups_have_the_moments_of_the_reference(script, task, theta, label):
    arm, n = script.Arm(label, 2), 20_000
    log_pi = task.log_pi(theta[:1])
    many = np.repeat(log_pi, n, axis=0)
    groups = task.draw(many, arm, 1, np.random.default_rng(1))
    gradients = groups.gradient(task, many)
    exact = task.enumerated(theta[0]).moments(est.get(label), 2)
    error = np.sqrt(exact.trace_cov / n)
    assert np.linalg.norm(gradients.mean(axis=0) - exact.true_gradient) < 3 * error
    assert gradients.var(axis=0).sum() == pytest.approx(exact.trace_cov, rel=0.05)
    assert groups.n_tokens(task).mean() == pytest.approx(
        2 * (task.probabilities(log_pi)[0].mean(axis=0) @ task.lengths), rel=0.02
    )
    # A batch is the mean of its groups.
    four = task.draw(many[:5000], arm, 4, np.random.default_rng(2)).gradient(task, many[:5000])
    assert four.var(axis=0).sum() == pytest.approx(exact.trace_cov / 4, rel=0.08)


def test_exact_noise_is_that_of_the_reference(script, task, theta):
    log_pi, rng = task.log_pi(theta[:1]), np.random.default_rng(4)
    found, other = script.exact_noise(task, script.Arm("rloo", 2), log_pi, (0.0, 1.0), rng)
    exact = task.enumerated(theta[0]).moments(est.get("rloo"), 2)
    assert found == pytest.approx(exact.trace_cov / (exact.true_gradient @ exact.true_gradient), rel=0.05)
    assert other != pytest.approx(found, rel=0.05)


def test_a_monitored_run_learns_and_logs_the_trainers_batch(script, task, monkeypatch):
    monkeypatch.setattr(script, "WATCHED_STEPS", 11)
    frame = script.watched_run(task)
    assert frame["over_steps"].tolist() == [*[1.0] * 4, *np.arange(5.0, 11.0), 10.0]
    assert (frame["batch_prompts"] == script.WATCHED_BATCH).all()
    assert frame.loc[frame["critical_batch_exact"].notna(), "step"].tolist() == [0, 10]
    assert frame["reward"].iloc[-3:].mean() > frame["reward"].iloc[:3].mean()
    last = frame.iloc[-1]
    assert last["critical_batch_low"] < last["critical_batch_exact"]
    assert last["best_saving_low"] - 0.05 < last["best_saving_exact"] < last["best_saving_high"] + 0.05
    assert 0.0 < last["silent_tokens"] < 1.0


@pytest.mark.parametrize(("name", "of_torch"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)])
def test_optimizers_are_those_of_torch_with_a_rate_for_each_run(script, name, of_torch):
    rates, gradients = np.array([0.1, 0.3]), np.random.default_rng(0).normal(size=(4, 2, 3))
    ours = script.Optimizer(name, rates, 3)
    for gradient in gradients:
        ours.step(gradient)
    for run, rate in enumerate(rates):
        parameter = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        options = {"betas": script.Optimizer.betas, "eps": script.Optimizer.eps} if name == "adam" else {}
        theirs = of_torch([parameter], lr=rate, **options)
        for gradient in gradients:
            parameter.grad = -torch.from_numpy(gradient[run])
            theirs.step()
        assert_allclose(ours.theta[run], parameter.detach().numpy())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_runs_end_at_the_target_and_do_not_disturb_one_another(script, task, optimizer):
    rates, target = np.array([0.2, 2.0, 0.9]), script.target_of(task)
    together = script.train(task, optimizer, rates, target, 3000)[:, 0]
    alone = [script.train(task, optimizer, rates[at : at + 1], target, 3000)[0, 0] for at in range(3)]
    assert_allclose(together, alone)
    assert together[0] > together[2] > together[1]
    # The rewards before and after the crossing enclose the target.
    moving = script.Optimizer(optimizer, rates[:1], task.dimension)
    rewards = []
    for _ in range(int(together[0]) + 2):
        rewards.append(task.expected_reward(task.log_pi(moving.theta))[0])
        moving.step(task.true_gradient(task.log_pi(moving.theta)))
    before, after = rewards[-2:]
    assert before < target <= after
    assert together[0] % 1.0 == pytest.approx((target - before) / (after - before))
    assert np.isnan(script.train(task, optimizer, rates, target, 1)[0]).all()


def test_tokens_are_those_of_the_steps(script, task):
    arm = script.Arm("rloo", 2)
    steps, tokens = script.train(task, "sgd", np.full(40, 1.0), script.target_of(task), 3000, arm, 4).T
    per_step = tokens / steps
    assert np.all((per_step > 4 * 2 * 1.0) & (per_step < 4 * 2 * 3.0))
    assert per_step.std() > 0


def test_the_common_curve_is_found_and_the_right_unit_has_no_spread(script):
    units = pd.DataFrame({name: [10.0, 40.0] for name in script.UNITS})
    units["exact_adam"] = [30.0, 30.0]
    units.index = pd.MultiIndex.from_tuples([("a", 4), ("b", 4)])
    arms = [("sgd", "tuned", label, 4, n) for label in "ab" for n in (2, 8, 32)]
    frame = pd.DataFrame(arms, columns=["optimizer", "rate", "estimator", "group_size", "prompts"])
    frame["steps"] = 3.0 * (1.0 + 0.5 * frame["estimator"].map({"a": 10.0, "b": 40.0}) / frame["prompts"])
    frame = frame.assign(steps_low=frame["steps"] / 1.1**1.96, steps_high=frame["steps"] * 1.1**1.96)
    found = script.spreads(frame, units).set_index("unit")
    right, columns = found.loc["critical_batch"], ["spread", "largest", "least_steps", "factor_of_unit"]
    assert_allclose(right[columns].astype(float), [1.0, 1.0, 3.0, 0.5], rtol=1e-4)
    assert found.loc["prompts", "spread"] > 1.4
    assert_allclose(found["of_chance"], 1.1, rtol=1e-4)
    assert_allclose(found.loc["prompts", "spread"], found.loc["exact_adam", "spread"])


def test_medians_count_what_does_not_arrive(script):
    values = np.array([*range(1, 60), np.nan])
    # Of 60 order statistics the 22nd and the 39th: 21 or fewer heads in 60 throws have a probability below 0.025.
    assert script.median(values, "steps") == {"steps": 30.5, "steps_low": 22.0, "steps_high": 39.0}
    assert np.isnan(script.median(np.array([1.0, np.nan, np.nan]), "steps")["steps"])


@pytest.fixture
def prepared(script, tmp_path, monkeypatch):
    """A folder with critical batches and noiseless rates, and an experiment of one arm."""
    monkeypatch.setattr(script, "ARMS", script.ARMS[1:2])
    known = {"estimator": "rloo", "group_size": 4, **dict.fromkeys(script.UNITS, 30.0)}
    pd.DataFrame([known, known | {"critical_batch": 50.0}]).to_csv(tmp_path / "critical_batch.csv")
    for optimizer in script.OPTIMIZERS:
        write_json(tmp_path / f"noiseless-{optimizer}.json", {"rate": 6.0, "steps": 3.0})
    return tmp_path


def test_finished_arms_are_not_trained_again(script, prepared, monkeypatch):
    monkeypatch.setattr(script, "BATCHES", (64, 256))
    monkeypatch.setattr(script, "CHOOSING", 2)
    monkeypatch.setattr(script, "REPORTED", 4)
    trained, rates, train_arm = [], {}, script.train_arm

    def fail_at_the_second(task, optimizer, arm, n_prompts, *rest):
        if len(trained) == 1:
            raise KeyboardInterrupt
        trained.append((optimizer, n_prompts))
        return train_arm(task, optimizer, arm, n_prompts, *rest)

    monkeypatch.setattr(script, "train_arm", fail_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        script.train_arms(prepared, 1)
    first = read_json(prepared / "sgd-rloo-4-64.json")
    assert trained == [("sgd", 64)]
    assert len(first["theory"]["steps"]) == 4
    assert first["tuned"]["learning_rate"] == pytest.approx(first["factor"] * first["theory"]["learning_rate"])
    monkeypatch.setattr(script, "train_arm", lambda *given: rates.update({given[1:4:2]: given[4]}) or {})
    script.train_arms(prepared, 1)
    assert list(rates) == [("sgd", 256), ("adam", 64), ("adam", 256)]
    # The rate follows theory: the unit is the mean of 30 and 50 prompts.
    assert rates["sgd", 256] == pytest.approx(6.0 / (1.0 + 40.0 / 256.0))
    assert rates["adam", 64] == pytest.approx(6.0 / (1.0 + 40.0 / 64.0) ** 0.5)


def test_the_page_states_what_the_committed_tables_say(script):
    tables = [pd.read_csv(COMMITTED / f"{name}.csv") for name in ("spread", "savings")]
    page = " ".join((ROOT / "docs" / "training.md").read_text("utf-8").split())
    assert [sentence for sentence in script.sentences(*tables) if sentence not in page] == []
