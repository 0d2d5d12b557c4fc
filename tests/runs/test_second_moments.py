"""Second moments that are estimated from rollouts."""

import numpy as np
import pytest
import torch
from command_line import run
from conftest import ragged_rollouts
from gradient_models import any_model
from oracles.naive_estimators import sequence_gradients
from small_runs import sampled_and_measured, small_experiment

import gradstats as gs
from gradstats.config.experiment import Experiment
from gradstats.gradients.checks.self_check import checked_rows
from gradstats.gradients.metric import prompt_digests
from gradstats.gradients.second_moments import set_aside
from gradstats.runs.pipeline import run_experiment
from gradstats.runs.validate import check_names

OPTIONS = {"prompts_per_batch": 2, "progress": False}


def test_the_estimate_is_the_mean_square_of_batch_gradients():
    """Five prompts of two completions: two batches of two prompts, under leave-one-out weights by hand."""
    model, rollouts = any_model("gpt2", True), ragged_rollouts(10)
    metric = gs.estimate_second_moments(model, rollouts, "rloo", **OPTIONS)
    scores, rewards = sequence_gradients(model, rollouts), rollouts.rewards
    for name, values in metric.second_moments.items():
        batches = []
        for first in (0, 4):
            rows = range(first, first + 4)
            others = {row: row + 1 if row % 2 == 0 else row - 1 for row in rows}
            batches.append(sum((rewards[row] - rewards[others[row]]) / 2 * scores[row][name] for row in rows) / 2)
        expected = torch.stack(batches).square().mean(dim=0)
        np.testing.assert_allclose(values, expected, rtol=1e-8, atol=1e-20, err_msg=name)
    assert metric.prompts == set(prompt_digests(rollouts.select(range(8))))
    assert metric.source == "the mean square of 2 batch gradients of 2 prompts under rloo"
    with pytest.raises(ValueError, match="estimated from 4 of the prompts that are to be measured"):
        gs.measure(model, rollouts, metric=metric, progress=False)
    measured = gs.measure(model, rollouts.select([8, 9]), metric=metric, sketch_dim=None, progress=False)
    assert measured.metadata["metric"]["moments"] == metric.digest()


def test_estimators_of_tokens_and_of_batches():
    model, rollouts = any_model("gpt2"), ragged_rollouts(8, masked=True)
    plain = gs.estimate_second_moments(model, rollouts, "group_mean", **OPTIONS)
    for label in ("otb", "recipe:dr_grpo", "batch_mean(loo=True)"):
        other = gs.estimate_second_moments(model, rollouts, label, metric="adam(eps=1e-4)", params="h\\.", **OPTIONS)
        assert other.eps == 1e-4
        assert all("h." in name for name in other.second_moments)
        assert other.digest() != plain.digest()


def test_what_cannot_be_estimated():
    model, rollouts = any_model("qwen2"), ragged_rollouts(4)
    with pytest.raises(ValueError, match="prompts_per_batch is 3, and there are 2 prompts to estimate second moments"):
        gs.estimate_second_moments(model, rollouts, prompts_per_batch=3, progress=False)
    with pytest.raises(ValueError, match="metric is 'euclidean', which has no second moments"):
        gs.estimate_second_moments(model, rollouts, metric="euclidean", **OPTIONS)
    with pytest.raises(ValueError, match=r"step of the metric is 5, .*need no correction: leave step out"):
        gs.estimate_second_moments(model, rollouts, metric="adam(step=5)", **OPTIONS)
    with pytest.raises(ValueError, match="sq_norms"):
        gs.estimate_second_moments(model, rollouts, "norm_weighted", **OPTIONS)


@pytest.mark.parametrize(("share", "n_set_aside"), [(0.25, 4), (0.5, 8), (0.3, 4), (0.99, 15)])
def test_prompts_that_are_set_aside_are_spread_over_all(share, n_set_aside):
    rollouts = ragged_rollouts(32)
    aside = set_aside(rollouts, share)
    names = rollouts.prompt_id
    assert len(set(names[aside])) == n_set_aside
    assert not set(names[aside]) & set(names[~aside])
    places = np.flatnonzero(aside[::2])
    assert np.ptp(np.diff(places)) <= 1


def experiment_in_metric(policy_folder, tmp_path, second_moments, **changes):
    measurement = {"metric": "adam(eps=1e-6)", "second_moments": second_moments}
    sampling = {"batch_size": 4} | changes.pop("sampling", {})
    return small_experiment(policy_folder, tmp_path / "p.jsonl", measurement=measurement, sampling=sampling, **changes)


def test_a_run_sets_prompts_aside_for_the_estimate(policy_folder, tmp_path):
    estimate = "estimate(prompts_per_batch=1, share=0.5, estimator=reinforce)"
    experiment = experiment_in_metric(policy_folder, tmp_path, estimate)
    measured = sampled_and_measured(experiment, tmp_path / "run")
    drawn = gs.read_rollouts(tmp_path / "run")
    aside = set_aside(drawn, 0.5)
    assert sorted(set(measured.rollouts.prompt_id)) == sorted(set(drawn.prompt_id[~aside]))
    policy = gs.load_policy(policy_folder)
    metric = gs.estimate_second_moments(
        policy, drawn.select(aside), "reinforce", prompts_per_batch=1, metric="adam(eps=1e-6)", progress=False
    )
    expected = gs.measure(policy, drawn.select(~aside), metric=metric, sketch_dim=64, progress=False)
    assert measured.metadata["metric"] == expected.metadata["metric"]
    np.testing.assert_allclose(np.sort(measured.sq_norms), np.sort(expected.sq_norms), rtol=1e-4)
    # Prompts that the run gains later are measured in the same metric, all of them.
    grown = experiment_in_metric(policy_folder, tmp_path, estimate, prompts={"n": 8})
    again = sampled_and_measured(grown, tmp_path / "run")
    assert again.metadata["metric"] == measured.metadata["metric"]
    assert len(set(again.rollouts.prompt_id)) == len(set(measured.rollouts.prompt_id)) + 4


@pytest.mark.parametrize("estimates", ["gradients.second_moments.mean_square_gradients", "values.fit_values"])
def test_threads_of_a_run_are_those_of_what_it_estimates(policy_folder, tmp_path, monkeypatch, estimates):
    def stop(*given, **options):
        raise InterruptedError(torch.get_num_threads())

    monkeypatch.setattr(f"gradstats.{estimates}", stop)
    experiment = experiment_in_metric(policy_folder, tmp_path, "estimate(prompts_per_batch=1, share=0.5)")
    further = {"execution": {"threads": 3}, "values": {"fitted": True, "n_folds": 2}}
    with pytest.raises(InterruptedError, match="3"):
        run_experiment(Experiment.model_validate(experiment.model_dump() | further), tmp_path / "run", progress=False)


def test_a_run_whose_shards_would_be_empty_is_refused(policy_folder, tmp_path):
    experiment = experiment_in_metric(
        policy_folder, tmp_path, "estimate(prompts_per_batch=1, share=0.5)", sampling={"batch_size": 2}
    )
    with pytest.raises(ValueError, match=r"2 of the 4 shards of .* hold only prompts that are set aside .*batch_size"):
        sampled_and_measured(experiment, tmp_path / "run")


@pytest.mark.parametrize("place", [0, -1])
def test_moments_of_a_prompt_that_is_measured_are_refused_before_the_first_shard(policy_folder, tmp_path, place):
    """Not by the self-check alone, which sees three completions."""
    plain = small_experiment(policy_folder, tmp_path / "p.jsonl", prompts={"n": 8}, sampling={"batch_size": 4})
    drawn = sampled_and_measured(plain, tmp_path / "drawn").rollouts
    unchecked = [name for name in drawn.prompt_id if name not in drawn.select(checked_rows(drawn)).prompt_id]
    one = drawn.select(drawn.prompt_id == unchecked[place])
    policy = gs.load_policy(policy_folder)
    gs.estimate_second_moments(policy, one, prompts_per_batch=1, progress=False).save(tmp_path / "one.safetensors")
    experiment = experiment_in_metric(policy_folder, tmp_path, str(tmp_path / "one.safetensors"), prompts={"n": 8})
    message = rf"estimated from 1 of the prompts that are to be measured \({unchecked[place]}\)"
    with pytest.raises(ValueError, match=message):
        sampled_and_measured(experiment, tmp_path / "run")
    assert not list(tmp_path.glob("run/measurement/shard-*"))


@pytest.mark.parametrize(
    ("second_moments", "message"),
    [
        ("missing.pt", r"second_moments is 'missing\.pt', and there is no such file"),
        ("estimate(estimator=rlo, prompts_per_batch=1)", r"measurement\.second_moments: .*rlo"),
        (
            "estimate(estimator=norm_weighted, prompts_per_batch=1)",
            r"norm_weighted needs sq_norms, which is not known before gradients",
        ),
        ("estimate(prompts_per_batch=3)", r"a share of 0\.25 of 4 prompts does not fill a batch of 3"),
    ],
)
def test_names_are_checked_before_anything_is_sampled(policy_folder, tmp_path, second_moments, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        check_names(experiment_in_metric(policy_folder, tmp_path, second_moments))


def test_the_command_line_measures_in_a_metric(monkeypatch, capsys, policy_folder, tmp_path):
    table = ragged_rollouts(8)
    table.to_parquet(tmp_path / "rollouts.parquet")
    words = (
        "measure",
        policy_folder,
        "--rollouts",
        tmp_path / "rollouts.parquet",
        "--out",
        tmp_path / "out",
        "--no-progress",
    )
    metric = (
        "--metric",
        "adam",
        "--second-moments",
        "estimate(prompts_per_batch=2, share=0.5)",
        "--sketch-dim",
        "None",
    )
    code, out, err = run(monkeypatch, capsys, *words, *metric)
    assert (code, err) == (0, "")
    assert "4 sequences measured with ghost" in out
    measured = gs.read_measurement(tmp_path / "out")
    assert measured.metadata["metric"]["source"] == "the mean square of 1 batch gradients of 2 prompts under rloo"
    code, _, err = run(monkeypatch, capsys, *words, "--sketch-dim", "None")
    assert code == 1
    assert "metric" in err
