"""The folder of a monitored training run, and what is logged of a step."""

import dataclasses
import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from command_line import run

import gradstats as gs
from gradstats.config.experiment import Experiment
from gradstats.config.sections import PolicySection, PromptsSection, VarianceSection
from gradstats.integrations.training_record import TrainingRecord, WarnOnce, logged_values, plain_labels
from gradstats.measurement.measurement import Measurement
from gradstats.report.saved_results import read_results
from gradstats.rollouts.table import Rollouts


def test_each_reason_is_given_once():
    complaints = WarnOnce()
    with warnings.catch_warnings(record=True) as caught:
        complaints.say("step 3 was skipped", ValueError("no gradient\nat all"))
        complaints.say("step 4 was skipped", ValueError("no gradient"))
        complaints.say("step 5 was skipped", ZeroDivisionError())
    assert [str(one.message) for one in caught] == [
        "step 3 was skipped (no gradient); training continues",
        "step 5 was skipped (ZeroDivisionError); training continues",
    ]


@pytest.mark.filterwarnings("ignore")
def test_a_warning_is_not_an_error():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        WarnOnce().say("nothing happened", ValueError("why"))


def measured(n_prompts: int = 5, per_prompt: int = 4, seed: int = 0, longest: int = 30) -> Measurement:
    """Completions with sketches whose squared norms grow with length."""
    rng = np.random.default_rng(seed)
    n = n_prompts * per_prompt
    lengths = rng.integers(min(3, longest), longest + 1, n)
    rollouts = Rollouts.from_sequences(
        [[1]] * n,
        [[2] * length for length in lengths],
        rng.integers(0, 2, n).astype(float) + 0.01 * rng.normal(size=n),
        np.repeat(np.arange(n_prompts), per_prompt),
        metadata={"sampler": {"temperature": 1.0}},
    )
    sketches = rng.normal(size=(n, 16)) * np.sqrt(lengths)[:, None]
    per_token = [np.full(length, 0.7) for length in lengths]
    norms = pd.DataFrame({"all": (sketches**2).sum(axis=1)})
    policy = {"name": "small", "temperature": 1.0}
    about = {"policy": policy, "engine": "ghost", "self_check": {}, "sketch_dim": 16}
    logprobs = [-values for values in per_token]
    return Measurement(rollouts, norms, sketches, logprobs, per_token, per_token, per_token, about)


def record(folder, **options) -> TrainingRecord:
    experiment = Experiment(
        name="training",
        policy=PolicySection(name="small"),
        prompts=PromptsSection(source="trl"),
        variance=VarianceSection(estimators=["rloo", "reinforce"]),
    )
    return TrainingRecord(folder, experiment, **options)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training") / "watch"
    recording = record(folder, keep_measurements=True)
    return folder, [recording.add(f"step-{step:06d}", measured(seed=step), ["a remark"]) for step in (0, 10, 20)]


def test_the_folder_is_a_sweep_of_run_directories(recorded):
    folder, steps = recorded
    frame = gs.read_sweep(folder).to_frame()
    assert frame["policy.revision"].unique().tolist() == ["step-000000", "step-000010", "step-000020"]
    for step, (_, rows) in zip(steps, frame.groupby("cell"), strict=True):
        assert rows["ratio"].tolist() == pytest.approx(step.variance["ratio"].tolist())
        saved = read_results(step.path).answers
        pd.testing.assert_frame_equal(saved["variance"].frame, step.variance)
        assert saved["alpha"].frame["alpha"].tolist() == [step.alpha.fit.alpha]
        assert rows["mean_length"].iloc[0] == pytest.approx(step.measured.lengths.mean())
        assert rows["alpha"].iloc[0] == pytest.approx(step.alpha.fit.alpha)
    manifest = json.loads((folder / "step-000010" / "manifest.json").read_text())
    assert manifest["remarks"][0] == "a remark"
    again = gs.read_measurement(folder / "step-000010" / "measurement")
    np.testing.assert_allclose(again.sketches, steps[1].measured.sketches)
    assert len(gs.read_rollouts(folder / "step-000010" / "rollouts")) == 20


def test_commands_read_it(recorded, monkeypatch, capsys):
    folder, _ = recorded
    last = folder / "step-000020"
    for words in (
        ("export", folder, "--only", "figures", "--formats", "svg"),
        ("variance", last),
        ("ask", last, "curve", "asymmetric", "delta=-1:1:3"),
        ("report", last),
    ):
        code, _, err = run(monkeypatch, capsys, *words)
        assert code == 0, err
    assert (folder / "sweep.csv").exists()
    assert "training step" in (folder / "figures" / "policy_revision.svg").read_text()
    assert set(read_results(last).answers) == {"variance", "alpha", "length_scaling", "curve_asymmetric_delta"}
    code, _, err = run(monkeypatch, capsys, "report", folder)
    assert (code, "name one of its runs, as in gradstats report" in err, "step-000020" in err) == (1, True, True)


def test_a_training_run_that_resumes_keeps_the_steps_before(tmp_path):
    first = record(tmp_path / "watch")
    for step in (0, 10, 20):
        first.add(f"step-{step:06d}", measured(seed=step))
    record(tmp_path / "watch").add("step-000010", measured(seed=7))
    assert list(gs.read_sweep(tmp_path / "watch").results) == ["step-000000", "step-000010"]


class TestLoggedValues:
    def test_are_those_of_the_record(self, recorded):
        step = recorded[1][1]
        values = {
            name.removeprefix("gradstats/"): value for name, value in logged_values(step, {"seconds": 1.5}).items()
        }
        frame = step.variance.set_index("estimator")
        expected = {
            f"{label}/{name}": frame.loc[label, name]
            for label in ("rloo", "reinforce")
            for name in ("ratio", "ratio_low", "ratio_high", "matched_ratio", "kept_share")
        }
        expected |= {"trace_cov_low": frame.loc["rloo", "trace_cov_low"], "seconds": 1.5, "n_sequences": 20}
        expected |= {"alpha": step.alpha.fit.alpha, "alpha_high": step.alpha.high}
        expected |= {"mean_reward": step.measured.rollouts.rewards.mean()}
        assert {name: values[name] for name in expected} == expected
        assert all(map(math.isfinite, values.values()))

    def test_are_few_with_plain_keys_unless_all_are_asked_for(self, recorded):
        step, further, label = recorded[1][1], {"alignment": 0.4, "batch_prompts": 16.0}, "norm_weighted(loo=True)"
        renamed = step.variance.replace({"estimator": {"reinforce": label}})
        values = logged_values(dataclasses.replace(step, variance=renamed), further, [label, "missing"])
        ratios = [f"gradstats/norm_weighted-loo/ratio{end}" for end in ("", "_low", "_high")]
        assert list(values) == ["gradstats/alignment", "gradstats/alpha", *ratios]
        assert values[ratios[1]] == renamed["ratio_low"].iloc[1]

    def test_have_different_keys_for_different_labels(self):
        labels = ["asymmetric(delta=-0.1, loo=True)", "a(b=c(d=1), e=2)", "a(b=c(d=1, e=2))"]
        keys = ["asymmetric-delta--0.1-loo", "a-b-c-d-1-e-2", "a-b-c-d-1-e-2-2"]
        assert list(plain_labels(labels).values()) == keys

    def test_leave_out_what_is_not_resolved(self, recorded):
        step = recorded[1][0]
        table = step.variance.set_index("estimator")
        assert math.isnan(table.loc["rloo", "noise_to_signal"])  # no gradient but noise
        assert not [key for key in logged_values(step, {}) if "noise_to_signal" in key]

    def test_leave_out_alpha_alone_where_lengths_are_equal(self, tmp_path):
        step = record(tmp_path / "watch").add("step-000000", measured(n_prompts=2, longest=3))
        assert step.alpha is None
        assert any(remark.startswith("left out: length scaling: ") for remark in step.remarks)
        values = logged_values(step, {})
        assert not [key for key in values if "alpha" in key]
        assert values["gradstats/reinforce/ratio"] > 0
        assert "gradstats/on_policy" not in values  # two prompts

    def test_say_that_samples_are_off_policy(self, tmp_path):
        one = measured()
        one.rollouts.metadata["sampler"]["temperature"] = 0.5
        values = logged_values(record(tmp_path / "watch").add("step-000000", one), {})
        assert values["gradstats/on_policy"] == 0.0
