"""What a measuring run leaves behind: storage, joining, state values, and its size on the disk."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from conftest import ragged_rollouts, tiny_model
from measured_by_hand import assert_identical, measured_by_hand

import gradstats.gradients as gradients
from gradstats.config.sections import MeasurementSection
from gradstats.measurement import Measurement, WeightedGradients, read_measurement
from gradstats.measurement.disk_size import bytes_of_sequences, measured_bytes, require_space
from gradstats.measurement.measurement import metric_label, metric_sentence, sketched_gram, split_layer
from gradstats.measurement.state_values import StateValues, read_state_values, stored_values
from gradstats.rollouts.table import Rollouts


def measure(model, rollouts, **options) -> Measurement:
    return gradients.measure(tiny_model(model), rollouts, progress=False, **options)


ADAM = {
    "name": "adam", "eps": 1e-8, "power": 0.5, "step": 100, "beta2": 0.95, "moments": "1a2b", "source": "optimizer.pt",
}  # fmt: skip


def test_a_label_states_what_the_numbers_depend_on_and_a_sentence_the_source():
    assert metric_label({}) == metric_label({"metric": None}) == "euclidean"
    assert metric_label({"metric": ADAM}) == "adam(eps=1e-08, power=0.5, step=100, beta2=0.95, moments=1a2b)"
    changes = ({}, {"moments": "3c"}, {"eps": 0.0}, {"step": None})
    assert len({metric_label({"metric": ADAM | change}) for change in changes}) == 4
    # beta2 enters with a number of steps only, and a file may be called otherwise
    without = ADAM | {"step": None}
    assert metric_label({"metric": without}) == metric_label({"metric": without | {"beta2": 0.9, "source": "other.pt"}})
    assert metric_sentence({}) == ""
    assert metric_sentence({"metric": ADAM}).endswith("P = 1/(v̂^0.5 + 1e-08), v̂ from optimizer.pt")
    assert metric_sentence({"metric": ADAM | {"source": ""}}).endswith("+ 1e-08)")


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.11.self_attn.q_proj.weight", (11, "self_attn.q_proj.weight")),
        ("transformer.h.0.ln_1.weight", (0, "ln_1.weight")),
        ("encoder.layer.2.block.7.dense.bias", (2, "block.7.dense.bias")),
        ("layers.3", (3, "")),
        ("model.embed_tokens.weight", None),
        ("layers", None),
    ],
)
def test_the_first_number_after_a_list_of_layers_counts(name, layer):
    assert split_layer(name) == layer


def test_norms_are_summed_over_blocks_and_rows_selected_with_their_sketches():
    norms = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [0.5, 0.25, 0.125]})
    gradients = WeightedGradients(norms, np.array([[1.0, 0.0], [1.0, 2.0], [0.0, -3.0]]))
    assert gradients.gram().tolist() == [[1.5, 1, 0], [1, 2.25, -6], [0, -6, 3.125]]
    some = gradients.select(np.array([2, 0]))
    assert some.gram().tolist() == [[3.125, 0], [0, 1.5]]
    assert some.sq_norms_by_block.index.tolist() == [0, 1]
    with pytest.raises(ValueError, match="no sketches by block: measure with --set measurement.block_sketches=true"):
        gradients.of_block("a")
    with pytest.raises(ValueError, match="holds no sketches, .*: measure with --set measurement.sketch_dim"):
        WeightedGradients(norms, None).select(np.array([1])).gram()
    # in half precision they are summed in float64
    half = np.full((2, 70_000), 2.0, dtype=np.float16)
    assert sketched_gram(half, np.array([1.0, 4.0])).tolist() == [[1, 280_000], [280_000, 4]]
    measured = measured_by_hand()
    block = measured.gradients.of_block("layer 1")
    assert block.sq_norms.tolist() == measured.sq_norms_by_block["layer 1"].tolist()
    np.testing.assert_array_equal(block.sketches, measured.sketches_by_block[:, 1])
    gram, sketches = measured.gram(), measured.sketches.astype(float)
    np.testing.assert_allclose(gram, sketches @ sketches.T + np.diag(measured.sq_norms - (sketches**2).sum(axis=1)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sketches": np.zeros((4, 8))}, "sketches has 4 rows for 5 rollouts"),
        ({"logprobs": [np.zeros(1)] * 5}, "logprobs does not have one value per completion token"),
        ({"heavy_positions": None}, "heavy_sq_norms does not have one row per position in heavy_positions"),
    ],
)
def test_fields_of_other_lengths_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(measured_by_hand(), **change)


def test_token_energies_are_exact_on_heavy_tokens_and_a_mean_of_squares_elsewhere():
    measured = measured_by_hand()
    energy, cross = measured.token_energy, measured.token_cross
    for row, heavy in enumerate(measured.heavy_positions):
        light = np.setdiff1d(np.arange(measured.lengths[row]), heavy)
        squares = np.square(measured.token_projections[row].astype(float)).mean(axis=1)
        np.testing.assert_allclose(energy[row][light], squares[light])
        np.testing.assert_allclose(energy[row][heavy], measured.heavy_sq_norms[row])
        np.testing.assert_allclose(measured.cumulative_energy[row], np.cumsum(energy[row]))
        assert np.isfinite(cross[row]).all()
    without = measured_by_hand(tokens=False)
    assert without.n_token_probes == 0
    assert without.token_scores() is without.token_energy is without.token_cross is None


def test_too_few_probes_give_nan_and_say_so():
    measured = measured_by_hand()
    none = replace(measured, token_projections=None)
    with pytest.warns(
        RuntimeWarning, match="token energies are NaN .* since token_probes is 0: .*measurement.token_probes=32"
    ):
        energy = none.token_energy
    # the longest completions have light tokens, and two tokens of each were measured exactly
    assert [np.isfinite(values).sum() for values in energy] == [min(2, length) for length in measured.lengths]
    one = replace(measured, token_projections=[rows[:, :1] for rows in measured.token_projections])
    assert all(np.isfinite(values).all() for values in one.token_energy)
    with pytest.warns(RuntimeWarning, match="standard errors of cumulative energies are NaN"):
        stderr = one.cumulative_energy_stderr
    light = [scores.light.cumsum() > 0 for scores in one.token_scores()]
    assert all(np.array_equal(np.isnan(found), where) for found, where in zip(stderr, light, strict=True))


def test_selected_rows_joined_again_are_the_whole(tmp_path):
    measured = measured_by_hand()
    halves = [measured.select([0, 1]), measured.select(slice(2, None))]
    for number, half in enumerate(halves):
        half.save(tmp_path / f"shard-{number}")
    (tmp_path / ".shard-3.77.partial").mkdir()
    for whole in (Measurement.concatenate(halves), read_measurement(tmp_path)):
        assert whole.metadata.pop("not_finite") == []
        assert_identical(whole, measured)
    replace(halves[1], proxies={}).save(tmp_path / "shard-1")  # as an earlier release wrote it
    assert read_measurement(tmp_path).proxies == {}
    assert measured.select([3, 1]).sq_norms.tolist() == measured.sq_norms[[3, 1]].tolist()
    with pytest.raises(ValueError, match="there are no measurements to concatenate"):
        Measurement.concatenate([])


@pytest.mark.parametrize(
    ("setting", "values", "field"),
    [
        ("token_seed", (0, 1), "token_projections"),
        ("sketch_seed", (0, 1), "sketches"),
        ("sketch_version", (1, 2), "sketches"),
    ],
)
def test_measurements_of_other_random_directions_are_not_joined(setting, values, field):
    options = {"token_probes": 2, "sketch_dim": 8}
    one, other = (measure("gpt2", ragged_rollouts(2), **options, **{setting: value}) for value in values)
    assert not np.allclose(getattr(one, field)[1], getattr(other, field)[1])
    with pytest.raises(ValueError, match=rf"measurements differ in {setting} \({values[0]}, {values[1]}\)"):
        Measurement.concatenate([one, other])


@pytest.mark.parametrize(("sketch_dim", "version", "joined"), [(8, 1, True), (8, 2, False), (None, 2, True)])
def test_sketches_without_a_version_are_those_of_version_1(sketch_dim, version, joined):
    whole = measure("qwen2", ragged_rollouts(3), sketch_dim=sketch_dim, sketch_version=version)
    one, other = whole.select([0]), whole.select([1, 2])
    old = replace(other, metadata={name: entry for name, entry in one.metadata.items() if name != "sketch_version"})
    with nullcontext() if joined else pytest.raises(ValueError, match="differ in sketch_version"):
        assert len(Measurement.concatenate([one, old])) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metadata": {"sketch_dim": 16}}, r"sketch_dim \(16, 8\)"),
        ({"metadata": {"sketch_dim": 8, "metric": ADAM}}, r"metric \(adam\(eps=.*moments=1a2b\), euclidean\)"),
        ({"token_projections": None}, "token_projections"),
        ({"sketches_by_block": None}, "sketches by block"),
        ({"weighted": {}}, "the names of their token_weights"),
        ({"ref_logprobs": measured_by_hand().logprobs}, "ref_logprobs"),
        ({"values": measured_by_hand().logprobs}, "values"),
    ],
)
def test_measurements_that_lack_something_or_of_other_settings_are_not_joined(change, message):
    measured = measured_by_hand()
    with pytest.raises(ValueError, match=rf"measurements differ in {message}: measure them with the same settings"):
        Measurement.concatenate([measured, replace(measured, **change)])


@pytest.mark.parametrize("tokens", [True, False])
def test_what_is_saved_is_read(tmp_path, tokens):
    measured = measured_by_hand(tokens=tokens)
    measured = replace(measured, ref_logprobs=[2 * row for row in measured.logprobs])
    measured.save(tmp_path / "m")
    assert_identical(read_measurement(tmp_path / "m"), measured)
    files = {"measurement.json", "rollouts.parquet", "tensors.safetensors"}
    assert {path.name for path in (tmp_path / "m").iterdir()} == files


def test_large_sketches_stay_in_their_file(tmp_path, monkeypatch):
    measured = measured_by_hand(tokens=False)
    single = replace(measured, sketches=measured.sketches.astype(np.float32))
    single.save(tmp_path / "m")
    monkeypatch.setattr("gradstats.measurement.measurement._MAPPED_BYTES", 0)
    again = read_measurement(tmp_path / "m")
    assert isinstance(again.sketches, np.memmap)
    assert_identical(again, single)
    again.sketches[0] = 7.0  # in memory alone
    np.testing.assert_array_equal(read_measurement(tmp_path / "m").sketches, single.sketches)


def test_only_a_measurement_that_keeps_what_is_derived_gives_it_again():
    measured = measured_by_hand(tokens=False)
    assert measured.derived("list", list) is not measured.derived("list", list)
    kept = measured.keeping_derived()
    assert kept.derived("list", list) is kept.derived("list", list)
    for changed in (replace(kept, metadata={}), kept.select([0])):
        assert changed.derived("list", list) is not kept.derived("list", list)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_token_scores_read_back(tmp_path, dtype):
    measured = measured_by_hand()
    measured.save(tmp_path / "m", token_dtype=dtype)
    read = read_measurement(tmp_path / "m")
    accuracy = {"rtol": 2 * np.finfo(dtype).eps, "atol": 1e-6}
    for row, projections in enumerate(read.token_projections):
        assert projections.dtype == dtype
        np.testing.assert_allclose(projections, measured.token_projections[row], **accuracy)
        np.testing.assert_array_equal(read.heavy_positions[row], measured.heavy_positions[row])
        np.testing.assert_array_equal(read.heavy_sq_norms[row], measured.heavy_sq_norms[row])
        np.testing.assert_allclose(read.heavy_sketches[row], measured.heavy_sketches[row], **accuracy)
    np.testing.assert_array_equal(read.select([2, 0]).token_projections[0], read.token_projections[2])
    with pytest.raises(ValueError, match='token_dtype is \'float64\': choose "float32" or "float16"'):
        measured.save(tmp_path / "other", token_dtype="float64")
    if dtype == "float16":
        measured.token_projections[1][0] = 1e5
        with pytest.raises(ValueError, match=r"token_projections reach 1e\+05, too large for float16"):
            measured.save(tmp_path / "other", token_dtype=dtype)


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    """A limit on the size of files is what a test can have for a full disk."""
    resource = pytest.importorskip("resource")
    measured = replace(measured_by_hand(5), sketches=np.ones((5, 50_000), dtype=np.float32))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"the measurement cannot be written to .*whole \(.*\): free some space"):
            measured.save(tmp_path / "whole")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_broken_or_missing_measurements_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no measurement"):
        read_measurement(tmp_path)
    measured_by_hand().save(tmp_path / "m")
    tensors = tmp_path / "m" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-8])
    with pytest.raises(ValueError, match="cannot be read .*: remove it and measure again"):
        read_measurement(tmp_path / "m")


ROLLOUTS = Rollouts.from_sequences([[5], [5]], [[1, 2], [3]], rewards=[1.0, 0.0], prompt_ids=["a", "b"])
VALUES = StateValues.of(ROLLOUTS, [np.zeros(2), np.zeros(1)], {})


def test_values_are_read_as_they_were_written_and_find_their_completions(tmp_path):
    values = StateValues.of(ROLLOUTS, [np.array([0.5, np.nan]), np.array([0.25])], {"k": 2})
    values.to_parquet(tmp_path / "values.parquet")
    found = read_state_values(tmp_path / "values.parquet")
    assert found.metadata == {"k": 2}
    for row, expected in zip(found.for_rollouts(ROLLOUTS.select([1, 0])), ([0.25], [0.5, np.nan]), strict=True):
        np.testing.assert_array_equal(row, expected)
    both = StateValues.concatenate([found, found])
    assert len(both.values) == len(both.completions) == 4


@pytest.mark.parametrize(
    ("completions", "rewards", "prompts", "message"),
    [
        ([[1, 2], [3]], [1.0, 1.0], ["a", "b"], "completion 0 of prompt 'b' had another reward"),
        ([[1, 2, 3]], [1.0], ["a"], "completion 0 of prompt 'a' has another number of tokens"),
        ([[1]], [1.0], ["c"], "completion 0 of prompt 'c' has none"),
    ],
)
def test_other_completions_are_refused(completions, rewards, prompts, message):
    others = Rollouts.from_sequences([[5]] * len(prompts), completions, rewards=rewards, prompt_ids=prompts)
    with pytest.raises(ValueError, match=message):
        VALUES.for_rollouts(others)


def test_a_changed_file_another_one_and_shards_without_their_plan_do_not_serve(tmp_path):
    path, shards = tmp_path / "values.parquet", tmp_path / "shards"
    VALUES.to_parquet(path)
    damaged = bytearray(path.read_bytes())
    damaged[60] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="values\\.parquet"):
        read_state_values(path)
    ROLLOUTS.to_parquet(tmp_path / "rollouts.parquet")
    with pytest.raises(ValueError, match="holds no state values"):
        read_state_values(tmp_path / "rollouts.parquet")
    shards.mkdir()
    VALUES.to_parquet(shards / "shard-00000.parquet")
    reason = r"are left out \(their plan\.json is missing\): `gradstats run` makes them again"
    with pytest.warns(UserWarning, match=reason):
        assert stored_values(shards, ROLLOUTS) == {}


def test_sequences_are_counted_by_their_lengths():
    rollouts, section = ragged_rollouts(7), MeasurementSection(sketch_dim=32, token_probes=2, token_exact=0.5)
    lengths = [len(tokens) for tokens in rollouts.frame["completion_tokens"]]
    assert measured_bytes(rollouts, section) == sum(bytes_of_sequences(length, 1, section) for length in lengths)
    narrow = section.model_copy(update={"token_dtype": "float16"})
    assert measured_bytes(rollouts, narrow) < measured_bytes(rollouts, section)


def test_it_is_an_upper_bound_of_the_tensors(tmp_path):
    measured = measured_by_hand(n=40)
    measured.save(tmp_path / "m")
    section = MeasurementSection(sketch_dim=8, token_probes=3, token_exact=2)
    header, norms = 4096, 4 * 8 * len(measured)
    tensors = (tmp_path / "m" / "tensors.safetensors").stat().st_size
    assert tensors < measured_bytes(measured.rollouts, section, 2, 1) + norms + header
    added = measured_bytes(measured.rollouts, section, 2) - measured_bytes(measured.rollouts, section)
    assert added == measured.sketches_by_block.nbytes
    (weighted,) = measured.weighted.values()
    added = measured_bytes(measured.rollouts, section, 2, 1) - measured_bytes(measured.rollouts, section, 2)
    weights = 8 * sum(map(len, weighted.weights))
    assert added == weighted.sketches.nbytes + weighted.sketches_by_block.nbytes + weights


def test_what_does_not_fit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**30))
    require_space(tmp_path / "not" / "yet", 2**30)
    with pytest.raises(OSError, match=r"takes up to 2,048\.0 MiB, and .* has 1,024\.0 MiB left: measure with fewer"):
        require_space(tmp_path, 2**31)
