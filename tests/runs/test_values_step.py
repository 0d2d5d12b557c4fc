"""State values and the reference policy of a run."""

import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
from command_line import run as command
from killed_runs import contents, kill_and_resume

import gradstats as gs
from gradstats.config.experiment import Experiment
from gradstats.config.sections import ExecutionSection
from gradstats.estimators import Batch
from gradstats.gradients import session
from gradstats.gradients.checks.self_check import SelfCheckError
from gradstats.gradients.engines.ghost import ghost_engine
from gradstats.measurement.measurement import Measurement, read_measurement
from gradstats.measurement.state_values import FITTED, read_state_values
from gradstats.report.saved_results import read_results
from gradstats.runs.directory import RunDirectory
from gradstats.runs.pipeline import regrade_run, run_experiment
from gradstats.runs.values_step import make_values


def experiment(**changes) -> Experiment:
    settings = {
        "policy": {"name": "embedded"},
        "prompts": {"source": "embedded", "n": 5},
        "sampling": {"group_size": 2, "max_new_tokens": 80, "batch_size": 4},
        "measurement": {"sketch_dim": 4096, "token_probes": 4, "engine": "ghost"},
        "reference_policy": {"revision": "step-1000"},
        "values": {"fitted": True, "n_folds": 2, "monte_carlo": 1, "steps": r"\. "},
        "variance": {"estimators": ["rloo", "gae(lam=0.9)", "vine", "recipe:grpo(kl=in_loss)"]},
        "figures": {"formats": []},
    }
    for name, value in changes.items():
        settings[name] = settings[name] | value if isinstance(value, dict) and value else value
    return Experiment(name="e", **settings)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    return path, run_experiment(experiment(), path, progress=False)


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    return tmp_path / "run"


def test_value_baselines_and_kl_terms_are_rows_of_a_run(finished):
    path, result = finished
    frame = result.comparison.to_frame()
    assert np.isfinite(frame["trace_cov"]).all()
    assert frame["trace_cov"].is_unique
    measured = read_measurement(path / "measurement")
    assert measured.ref_logprobs is not None
    for fitted, of_prefixes, mask in zip(measured.fitted_values, measured.values, measured.rollouts.masks, strict=True):
        assert np.isfinite(fitted[mask]).all()
        assert np.isfinite(of_prefixes[0])
        assert set(of_prefixes[np.isfinite(of_prefixes)]) <= {0.0, 1.0}
    assert any(np.isfinite(row[1:]).any() for row in measured.values)


def test_only_missing_values_are_made_and_they_come_out_the_same(run, monkeypatch):
    before = {path.name: read_state_values(path).values for path in (run / "values").glob("*.parquet")}
    assert set(before) == {FITTED, *(f"shard-0000{number}.parquet" for number in range(3))}
    (run / "values" / "shard-00001.parquet").unlink()
    with pytest.warns(UserWarning, match="are left out \\(not all of them were made\\)"):
        assert read_measurement(run / "measurement").values is None
    directory = RunDirectory.open(run, experiment())
    kept = (run / "values" / "shard-00000.parquet").stat().st_mtime_ns
    monkeypatch.setattr("gradstats.values.fit_values", None)  # not called again
    make_values(directory, progress=False)
    assert (run / "values" / "shard-00000.parquet").stat().st_mtime_ns == kept
    for name, values in before.items():
        for row, again in zip(values, read_state_values(run / "values" / name).values, strict=True):
            np.testing.assert_array_equal(row, again)


def test_other_settings_of_prefixes_are_refused_and_a_head_is_fitted_again(run):
    with pytest.raises(ValueError, match=r"were made with values\.monte_carlo=1, not 3: choose another directory"):
        make_values(RunDirectory.open(run, experiment(values={"monte_carlo": 3})), progress=False)
    before = read_state_values(run / "values" / FITTED)
    make_values(RunDirectory.open(run, experiment(values={"tokens_per_completion": 2})), progress=False)
    after = read_state_values(run / "values" / FITTED)
    assert after.metadata["made_from"] != before.metadata["made_from"]
    assert not np.array_equal(np.concatenate(after.values), np.concatenate(before.values))


def test_values_of_old_rewards_are_left_out_and_made_again(run):
    result = regrade_run(run, "exact", progress=False)
    assert any("had another reward when they were made" in note for note in result.run.remarks)
    assert result.measured.values is None
    make_values(RunDirectory(run, experiment(sampling={"reward": "exact"})), progress=False)
    measured = read_measurement(run / "measurement")
    assert measured.values is not None
    assert measured.fitted_values is not None


def test_what_was_made_from_other_values_is_not_shown(run, monkeypatch, capsys):
    curves = ["gae", "lam=0,1"], ["asymmetric(loo=True)", "delta=0,0.1"]
    for words in (["critic"], *(["curve", *curve] for curve in curves)):
        code, _, err = command(monkeypatch, capsys, "ask", run, *words)
        assert code == 0, err
    added = {"critic", "curve_gae_lam", "curve_asymmetric_loo_true_delta"}
    assert added <= set(read_results(run).answers)
    result = run_experiment(experiment(), run, progress=False)
    assert added <= set(read_results(run).answers)
    assert not [note for note in result.run.remarks if "left out" in note]
    with pytest.warns(UserWarning, match="is left out"):
        result = run_experiment(experiment(values={"tokens_per_completion": 2}), run, progress=False)
    left_out = [note for note in result.run.remarks if "is left out, since the run had other state values" in note]
    assert {note.partition(" ")[0] for note in left_out} == {"critic", "curve_gae_lam"}
    with pytest.warns(UserWarning, match="is left out"):
        assert added & set(read_results(run).answers) == {"curve_asymmetric_loo_true_delta"}


def test_a_run_keeps_its_reference_and_its_sampler(run):
    with pytest.raises(ValueError, match=r"was made with reference_policy\.revision='step-1000', not None"):
        RunDirectory.open(run, experiment(reference_policy={}))


@pytest.fixture(scope="module")
def without_probes(tmp_path_factory):
    """A run that measures the advantages from its values."""
    path = tmp_path_factory.mktemp("runs") / "run"
    estimators = ["rloo", "gae(lam=0.9)", "vine", "recipe:ppo"]
    given = experiment(
        measurement={"token_probes": 0, "token_exact": 24},
        sampling={"max_new_tokens": 24, "reward": "small_runs:even"},
        reference_policy={},
        variance={"estimators": estimators},
    )
    return path, given, run_experiment(given, path, progress=False)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_measures_advantages_from_state_values_without_probes(without_probes):
    path, given, result = without_probes
    frame = result.comparison.to_frame().set_index("estimator")
    measured = read_measurement(path / "measurement")
    assert list(measured.weighted) == ["gae(lam=0.9)", "vine", "gae"]
    batch = Batch.from_measurement(measured)
    tokens = np.zeros((*batch.mask.shape, measured.heavy_sketches[0].shape[1]))
    for row, places, sketches in zip(tokens, measured.heavy_positions, measured.heavy_sketches, strict=True):
        row[places] = sketches
    exact = gs.compare(batch, given.variance.estimators, scores=tokens, scores_are_sketches=True).to_frame()
    np.testing.assert_allclose(frame["trace_cov"], exact.set_index("estimator")["trace_cov"], rtol=0.05)
    assert frame["trace_cov"].is_unique


def test_advantages_of_other_rewards_are_not_compared(without_probes, tmp_path):
    path, given, _ = without_probes
    run = shutil.copytree(path, tmp_path / "run")
    regrade_run(run, "small_runs:odd", progress=False)
    again = given.model_copy(update={"sampling": given.sampling.model_copy(update={"reward": "small_runs:odd"})})
    result = run_experiment(again, run, progress=False)
    assert any("weights of gae(lam=0.9) are not multiples of the advantages" in note for note in result.run.remarks)
    rows = result.comparison.to_frame().set_index("estimator")["trace_cov"]
    # With 1 - R in place of R Monte-Carlo advantages change their sign alone, and those of the fitted head do not.
    assert rows.isna().tolist() == [False, True, False, True]


def test_other_values_are_refused_before_more_is_measured(without_probes, tmp_path):
    path, given, _ = without_probes
    run = shutil.copytree(path, tmp_path / "run")
    shutil.rmtree(run / "measurement" / "shard-00001")
    other = given.model_copy(update={"values": given.values.model_copy(update={"tokens_per_completion": 2})})
    with pytest.raises(ValueError, match=r"state values of .*run have changed since gae.* was measured.*: put back"):
        run_experiment(other, run, progress=False)
    assert np.isfinite(run_experiment(given, run, progress=False).comparison.to_frame()["trace_cov"]).all()


@pytest.fixture
def with_another(without_probes, tmp_path):
    """A copy of that run, and its experiment with one more advantage."""
    path, given, _ = without_probes
    estimators = [*given.variance.estimators, "gae(lam=0.5)"]
    more = given.model_copy(update={"variance": given.variance.model_copy(update={"estimators": estimators})})
    return shutil.copytree(path, tmp_path / "run"), more


@pytest.mark.slow
def test_a_finished_run_measures_the_advantages_that_it_lacks_and_nothing_else(
    with_another, without_probes, tmp_path, monkeypatch
):
    run, more = with_another
    measured_together = []

    def counted(policy, chunk, *rest):
        measured_together.append(len(chunk.weights))
        return ghost_engine(policy, chunk, *rest)

    monkeypatch.setitem(session.ENGINES, "ghost", counted)
    again = run_experiment(more, run, progress=False).measured
    assert set(measured_together) == {1}
    monkeypatch.undo()
    assert list(again.weighted) == ["gae(lam=0.9)", "vine", "gae", "gae(lam=0.5)"]
    anew = run_experiment(more, tmp_path / "anew", progress=False).measured
    for before, ours in ((without_probes[2].measured, ["gae(lam=0.9)"]), (anew, anew.weighted)):
        np.testing.assert_array_equal(before.sketches, again.sketches)
        for one, other in zip(before.heavy_sketches, again.heavy_sketches, strict=True):
            np.testing.assert_array_equal(one, other)
        for name in ours:
            np.testing.assert_allclose(before.weighted[name].sketches, again.weighted[name].sketches, atol=1e-4)
            np.testing.assert_allclose(before.weighted[name].sq_norms, again.weighted[name].sq_norms, rtol=1e-4)
            for one, other in zip(before.weighted[name].weights, again.weighted[name].weights, strict=True):
                np.testing.assert_array_equal(one, other)
    assert (run / "measurement" / "complete.json").exists()


def test_an_interrupted_addition_is_resumed_and_can_be_read_before(with_another, monkeypatch):
    run, more = with_another
    save, written = Measurement.save, []

    def interrupted(self, folder, *given, **settings):
        if written:
            raise KeyboardInterrupt
        written.append(folder)
        save(self, folder, *given, **settings)

    monkeypatch.setattr(Measurement, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(more, run, progress=False)
    monkeypatch.setattr(Measurement, "save", save)
    assert list(read_measurement(run).weighted) == ["gae(lam=0.9)", "vine", "gae"]
    finished = {path.name: path.stat().st_mtime_ns for path in written}
    result = run_experiment(more, run, progress=False)
    assert {name: (run / "measurement" / name).stat().st_mtime_ns for name in finished} == finished
    assert np.isfinite(result.comparison.to_frame()["trace_cov"]).all()


def test_a_wrong_addition_fails_its_check(with_another, monkeypatch):
    run, more = with_another

    def wrong(policy, chunk, *rest):
        result = ghost_engine(policy, chunk, *rest)
        return replace(result, sq_norms_by_parameter=1.1 * result.sq_norms_by_parameter)

    monkeypatch.setitem(session.ENGINES, "ghost", wrong)
    with pytest.raises(SelfCheckError):
        run_experiment(more, run, progress=False)


def test_a_run_that_grows_keeps_the_advantages_that_it_has_measured(without_probes, tmp_path):
    path, given, before = without_probes
    run = shutil.copytree(path, tmp_path / "run")
    grown = given.model_copy(update={"prompts": given.prompts.model_copy(update={"n": 7})})
    result = run_experiment(grown, run, progress=False)
    assert np.isfinite(result.comparison.to_frame()["trace_cov"]).all()
    rows = [
        row for row, key in enumerate(result.measured.rollouts.prompt_id) if key in before.measured.rollouts.prompt_id
    ]
    assert len(rows) == len(before.measured) < len(result.measured)
    for row, known in zip(result.measured.select(rows).fitted_values, before.measured.fitted_values, strict=True):
        np.testing.assert_array_equal(row, known)
    # Other settings of the head, or other rewards, fit all values anew.
    other = grown.model_copy(update={"values": given.values.model_copy(update={"tokens_per_completion": 2})})
    again = run_experiment(other, run, progress=False)
    assert again.comparison.to_frame().set_index("estimator")["trace_cov"].isna().tolist() == [False, True, False, True]


@pytest.mark.slow
def test_workers_of_ray_make_the_values_of_one_process(finished, run):
    pytest.importorskip("ray")
    made = sorted((run / "values").glob("shard-*.parquet"))
    assert len(made) > 1
    for path in made:
        path.unlink()
    section = ExecutionSection(executor="ray", workers=2)
    run_experiment(experiment().model_copy(update={"execution": section}), run, progress=False)
    assert contents(run) == contents(finished[0])
    assert RunDirectory(run, experiment()).read_manifest()["execution"]["executor"] == "ray"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.timeout(1200)
def test_a_run_that_is_killed_while_it_makes_values_resumes_to_the_same_bytes(finished, tmp_path):
    whole = contents(finished[0])
    ended = kill_and_resume(experiment(), tmp_path, ["half:values/fitted", "written:values/shard-00001"])
    assert [codes for _, *codes in ended] == [[str(-signal.SIGKILL), "0"]] * 2
    for name, *_ in ended:
        assert contents(tmp_path / "runs" / name) == whole, name
