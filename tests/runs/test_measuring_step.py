"""Which further weightings a run measures, and what they are."""

import itertools
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from small_runs import sampled_and_measured, small_experiment

import gradstats as gs
from gradstats.analyses import check_on_policy, sampler_gap
from gradstats.config.experiment import Experiment
from gradstats.config.sections import MeasurementSection
from gradstats.estimators import recipes, token_weightings
from gradstats.estimators.needs import PossibleWeightings, possible_weightings
from gradstats.estimators.ratios import NEGLIGIBLE_CHI_SQUARED
from gradstats.estimators.recipes.weightings import weighting_names
from gradstats.gradients import MeasuringSession
from gradstats.gradients.checks.self_check import CheckedSequences
from gradstats.measurement.disk_size import measured_bytes
from gradstats.measurement.measurement import read_measurement
from gradstats.policy.checkpoint import checkpoint_names
from gradstats.rollouts.table import Rollouts
from gradstats.runs.directory import RunDirectory
from gradstats.runs.measuring_step import _measured as measured_shard
from gradstats.runs.measuring_step import _needed_weightings as needed_weightings
from gradstats.runs.measuring_step import _spread_of_ratios as spread_of_ratios
from gradstats.runs.measuring_step import _weightings_of as weightings_of
from gradstats.runs.measuring_step import measure_shards
from gradstats.runs.pipeline import run_experiment
from gradstats.system.files import read_json

CLIP = ("token_clip[+]", "token_clip[-]")


def experiment(*labels: str, **settings) -> Experiment:
    return Experiment(
        **settings,
        name="e",
        policy={"name": "embedded"},
        prompts={"source": "embedded", "n": 6},
        variance={"estimators": list(labels)},
    )


def test_recipes_that_share_a_clip_share_its_weightings():
    possible = possible_weightings(experiment("rloo", "recipe:grpo", "recipe:dr_grpo", "recipe:gspo", "recipe:ppo"))
    assert possible == PossibleWeightings(CLIP)
    assert possible_weightings(experiment("rloo", "recipe:grpo(kl=in_loss)")) == PossibleWeightings()


def test_a_mask_by_entropy_needs_weightings_on_policy_as_well():
    masked = "recipe:dapo_top_entropy(threshold=0.5)"
    possible = possible_weightings(experiment("recipe:grpo", masked, "recipe:grpo(mask=reject_tokens(high=2))"))
    assert len(possible.off_policy) == 6
    assert possible.always == weighting_names(recipes.get(masked))


def test_a_kl_term_in_the_loss_needs_its_weightings_in_any_case():
    with_reference = experiment("recipe:grpo", "recipe:grpo(kl=in_loss)", reference_policy={"revision": "step-1000"})
    possible = possible_weightings(with_reference)
    assert set(possible.always) == set(possible.off_policy) > set(CLIP)
    assert possible_weightings(experiment("recipe:grpo", "recipe:grpo(kl=in_loss)")) == PossibleWeightings(CLIP)
    without_kl = experiment("recipe:grpo", reference_policy={"revision": "step-1000"})
    assert possible_weightings(without_kl) == PossibleWeightings(CLIP)


def test_advantages_from_state_values_are_measured_where_there_are_values_and_no_probes():
    labels = ("rloo", "gae(lam=1.0)", "recipe:ppo", "vine", "gae(lam=0.9)", "gae(whiten=True)", "otb")
    fitted = {"values": {"fitted": True}}
    possible = possible_weightings(experiment(*labels, **fitted))
    assert possible.advantages == ("gae", "gae(lam=0.9)")  # the advantage of PPO's recipe is the first
    assert possible.of_equal_ratios == possible.of_any_ratios == possible.advantages
    both = possible_weightings(experiment(*labels, values={"fitted": True, "monte_carlo": 2}))
    assert both.advantages == ("gae", "vine", "gae(lam=0.9)")
    assert possible_weightings(experiment(*labels)).advantages == ()
    assert possible_weightings(experiment(*labels, **fitted, measurement={"token_probes": 4})).advantages == ()
    beside = possible_weightings(experiment("gae", "recipe:grpo", **fitted))
    assert (beside.of_equal_ratios, beside.of_any_ratios) == (("gae",), (*CLIP, "gae"))


@pytest.fixture(scope="module")
def stale():
    """Completions of an earlier checkpoint and of the final weights, to be scored by the latter."""
    problems = gs.load_prompts("embedded", n=2, rng=0)
    revision = checkpoint_names()[0]
    earlier = gs.load_policy("embedded", revision=revision)
    options = {"group_size": 2, "max_new_tokens": 24, "rng": 0, "progress": False}
    policy = gs.load_policy("embedded")
    session = MeasuringSession.open(
        policy, gs.sample(policy, problems, **options), MeasurementSection(engine="ghost", sketch_dim=4096)
    )
    return session, gs.sample(earlier, problems, **options), gs.sample(policy, problems, **options)


def unrecorded(rollouts: Rollouts) -> Rollouts:
    """Return rollouts that do not record who drew them, so that their ratios alone tell."""
    return Rollouts(rollouts.frame, {})


def needed(session, tables, possible, target, scored=None):
    """The weightings of a run of these shards; ``scored`` receives the sizes of those that were scored."""

    def spreads():
        for table in tables:
            yield spread_of_ratios(session, table)
            if scored is not None:
                scored.append(len(table))

    return needed_weightings(tables, possible, target, session.metadata, spreads())


def test_all_shards_decide_and_not_the_first_alone(stale):
    session, off_policy, on_policy = stale[0], unrecorded(stale[1]), unrecorded(stale[2])
    possible = PossibleWeightings(CLIP)
    assert needed(session, [off_policy], possible, "auto") == CLIP
    assert needed(session, [on_policy], possible, "auto") == ()
    assert needed(session, [on_policy, off_policy], possible, "auto") == CLIP
    assert needed(session, [on_policy, off_policy], possible, "on_policy") == CLIP
    seen: list[int] = []
    assert needed(session, [on_policy, on_policy], possible, "auto", seen) == ()
    assert seen == [len(on_policy)] * 2
    assert needed(session, [off_policy, on_policy], possible, "auto", seen) == CLIP
    assert len(seen) == 2  # the first shard settles it
    assert needed(session, [off_policy], PossibleWeightings(), "auto") == ()
    assert needed(session, [on_policy], PossibleWeightings(CLIP, CLIP[:1]), "auto") == CLIP[:1]


#: A policy whose weights are known.
KNOWN = {"name": "policy", "digests": {"weights": "0a"}}


@pytest.mark.parametrize(
    ("drawn_by", "scored_by", "first", "others", "n_scored", "names"),
    [
        (KNOWN, KNOWN, 1e-7, 1e-7, 1, ()),
        (KNOWN, KNOWN, NEGLIGIBLE_CHI_SQUARED / 50, 1e-7, 3, ()),
        (KNOWN, KNOWN, NEGLIGIBLE_CHI_SQUARED / 50, 3 * NEGLIGIBLE_CHI_SQUARED, 2, CLIP),
        ({"name": "policy"}, KNOWN, 1e-7, 1e-7, 3, ()),
        ({"name": "policy"}, {"name": "policy"}, 1e-7, 2 * NEGLIGIBLE_CHI_SQUARED, 3, CLIP),
    ],
)
def test_of_completions_that_the_policy_drew_the_first_shard_suffices(
    drawn_by, scored_by, first, others, n_scored, names
):
    """A forward pass over all completions in each part of a run would take a third of the time of measuring."""
    rollouts = Rollouts.from_sequences([[1]], [[2]], [0.0], ["p"], sampler_logprobs=[[0.0]])
    table = Rollouts(rollouts.frame, {"policy": drawn_by})
    seen: list[float] = []

    def spreads():
        for spread in (first, others, others):
            seen.append(spread)
            yield spread

    found = needed_weightings([table] * 3, PossibleWeightings(CLIP), "auto", {"policy": scored_by}, spreads())
    assert (found, len(seen)) == (names, n_scored)


def test_the_order_in_which_shards_are_scored_does_not_matter():
    """0.1 + 0.2 + 0.3 is above 0.6 in one order and not in the other, unless it is rounded once."""
    rollouts = Rollouts.from_sequences([[1]], [[2]], [0.0], ["p"], sampler_logprobs=[[0.0]])
    limit = NEGLIGIBLE_CHI_SQUARED * 3
    spreads = [limit / 6, limit / 3, limit / 2]
    for order in itertools.permutations(spreads):
        assert needed_weightings([rollouts] * 3, PossibleWeightings(CLIP), "auto", {}, order) == ()
    more = [limit / 6, limit / 3, limit / 1.9]
    for order in itertools.permutations(more):
        assert needed_weightings([rollouts] * 3, PossibleWeightings(CLIP), "auto", {}, order) == CLIP


def test_what_a_comparison_keeps_ratios_for_decides(stale):
    session, _, on_policy = stale
    possible = PossibleWeightings(CLIP)
    assert needed(session, [on_policy], possible, "importance") == CLIP
    warmer = Rollouts(on_policy.frame, {**on_policy.metadata, "sampler": {"temperature": 0.99}})
    assert needed(session, [warmer], possible, "auto") == CLIP  # the settings differ, and χ² is negligible
    assert needed(session, [warmer], possible, "on_policy") == ()
    unknown = Rollouts(on_policy.frame.drop(columns="sampler_logprobs"), on_policy.metadata)
    assert needed(session, [unknown], possible, "importance") == ()


def test_weightings_give_what_a_second_measurement_gives(stale):
    session, off_policy, _ = stale
    assert weightings_of(session, off_policy, ()) is None
    measured = session.measure(off_policy)
    scored = session.token_statistics(off_policy)
    for name in ("logprobs", "entropy", "sum_pi_squared"):
        for found, known in zip(scored[name], getattr(measured, name), strict=True):
            np.testing.assert_allclose(found, known, rtol=1e-5, atol=1e-6)
    labels = ["recipe:grpo", "recipe:dapo_top_entropy(threshold=0.3)"]
    expected = token_weightings(labels, measured)
    assert len(expected) == 4
    for name, rows in weightings_of(session, off_policy, expected).items():
        for row, known in zip(rows, expected[name], strict=True):
            np.testing.assert_allclose(row, known, rtol=1e-4)


def test_token_weights_are_kept_of_advantages_alone(stale):
    session, off_policy, _ = stale
    values = [np.linspace(0.0, 1.0, len(mask)) for mask in off_policy.masks]
    report = SimpleNamespace(chunk=lambda *_: None)
    names = (CLIP[0], "gae")
    measured = measured_shard(session, off_policy, names, {"fitted_values": values}, None, report)
    assert {name: one.weights is None for name, one in measured.weighted.items()} == {CLIP[0]: True, "gae": False}
    for row, value, reward in zip(measured.weighted["gae"].weights, values, off_policy.rewards, strict=True):
        np.testing.assert_allclose(row, (reward - value) / 2)  # of two completions


def test_token_scores_travel_through_a_run_that_stops_half_way(experiment, tmp_path, monkeypatch):
    settings = {"sketch_dim": 64, "token_probes": 4, "token_exact": 0.5, "token_seed": 2}
    sampling = experiment.sampling.model_copy(update={"group_size": 2})
    section = experiment.measurement.model_copy(update=settings)
    resolved = experiment.model_copy(update={"measurement": section, "sampling": sampling})
    whole = run_experiment(resolved, tmp_path / "whole", progress=False)
    assert {scores.n_probes for scores in whole.measured.token_scores()} == {4}
    assert any("W_T has a median relative standard error of" in sentence for sentence in whole.run.remarks)
    assert any("measured with eager attention" in sentence for sentence in whole.run.remarks)

    measure, calls = MeasuringSession.measure, []

    def stops(self, *arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(self, *arguments, **options)

    monkeypatch.setattr(MeasuringSession, "measure", stops)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(resolved, tmp_path / "halved", progress=False)
    resumed = run_experiment(resolved, tmp_path / "halved", progress=False)
    for name in ("token_projections", "heavy_positions", "heavy_sq_norms", "heavy_sketches"):
        for after, expected in zip(getattr(resumed.measured, name), getattr(whole.measured, name), strict=True):
            np.testing.assert_array_equal(after, expected)


def test_a_measurement_that_does_not_fit_on_the_disk_is_refused_before_it_begins(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**10))
    monkeypatch.setattr(MeasuringSession, "open", lambda *_, **__: pytest.fail("the measurement has begun"))
    with pytest.raises(OSError, match=r"takes up to [\d.]+ MiB, and .*measurement has 0\.0 MiB left: measure with"):
        run_experiment(experiment, tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    ("section", "further"),
    [
        ("measurement", {"block_sketches": True}),
        ("variance", {"estimators": ["rloo", "recipe:dapo_top_entropy(threshold=0.5)"]}),
    ],
)
def test_what_is_kept_beside_the_whole_must_fit_on_the_disk_as_well(
    experiment, finished, tmp_path, monkeypatch, section, further
):
    larger = experiment.model_copy(update={section: getattr(experiment, section).model_copy(update=further)})
    alone = measured_bytes(finished.measured.rollouts, larger.measurement)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=alone))
    monkeypatch.setattr(MeasuringSession, "measure", lambda *_, **__: pytest.fail("the measurement has begun"))
    with pytest.raises(OSError, match=r"takes up to [\d.]+ MiB, and .*measurement has"):
        run_experiment(larger, tmp_path / "run", progress=False)


def test_only_the_missing_shard_is_measured_again(experiment, finished, tmp_path, monkeypatch):
    shutil.copytree(finished.run.path, tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run", experiment)
    shutil.rmtree(run.measurement / "shard-00001")
    (run.measurement / "complete.json").unlink()
    measure, measured = MeasuringSession.measure, []
    monkeypatch.setattr("gradstats.gradients.session.default_sketch_version", lambda n_parameters: 2)
    monkeypatch.setattr(CheckedSequences, "make", lambda *_: pytest.fail("the self-check is repeated"))
    monkeypatch.setattr(
        MeasuringSession, "measure", lambda self, table, *args: (measured.append(table), measure(self, table, *args))[1]
    )
    measure_shards(run, progress=False)
    assert [len(table) for table in measured] == [6]
    assert read_json(run.measurement / "complete.json") == {"n_shards": 4}
    assert read_measurement(run.measurement / "shard-00001").metadata["sketch_version"] == 1  # that of the others
    expected, found = finished.measured, read_measurement(run.measurement)
    np.testing.assert_allclose(found.sq_norms, expected.sq_norms, rtol=1e-6)
    np.testing.assert_array_equal(found.sketches, expected.sketches)


def test_rollouts_of_a_declared_behaviour_policy_are_measured_and_others_refused(tmp_path):
    """The digests of the weights differ, which only the declaration permits."""
    changes = {
        "prompts": {"source": "embedded", "n": 3, "settings": {}},
        "sampling": {"max_new_tokens": 8, "reward": "embedded", "batch_size": 6},
        "measurement": {"sketch_dim": 4096},
    }
    same = small_experiment("embedded", tmp_path / "p.jsonl", **changes)
    earlier = checkpoint_names()[0]
    experiment = same.model_copy(update={"behaviour_policy": {"revision": earlier}})
    measured = sampled_and_measured(experiment, tmp_path / "run")
    drawn_by, scored = measured.rollouts.metadata["policy"], measured.metadata["policy"]
    assert drawn_by["revision"] == earlier != scored["revision"]
    assert drawn_by["digests"]["weights"] != scored["digests"]["weights"]
    assert check_on_policy(measured).verdict().startswith("Not on-policy: the tokens were drawn by another policy, as")
    assert f"drawn by another policy, as recorded (revision={earlier})" in sampler_gap(measured).sentence()
    shutil.rmtree(tmp_path / "run" / "measurement")
    undeclared = RunDirectory(tmp_path / "run", same)
    with pytest.raises(ValueError, match="weights"):
        measure_shards(undeclared, progress=False)
