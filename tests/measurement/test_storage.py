"""The folder of a measurement."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ragged_rollouts, tiny_model
from gradient_models import assert_same, random_weightings
from measured_by_hand import assert_identical, measured_by_hand

import gradstats.gradients as gradients
from gradstats.config.experiment import MeasurementSection
from gradstats.measurement import read_measurement
from gradstats.measurement.disk_size import bytes_of_sequences, measured_bytes, require_space
from gradstats.measurement.state_values import StateValues, read_state_values, stored_values
from gradstats.rollouts.table import Rollouts


def test_sequences_are_counted_by_their_lengths():
    rollouts, section = ragged_rollouts(7), MeasurementSection(sketch_dim=32, token_probes=2, token_exact=0.5)
    lengths = [len(tokens) for tokens in rollouts.frame["completion_tokens"]]
    assert measured_bytes(rollouts, section) == sum(bytes_of_sequences(length, 1, section) for length in lengths)
    narrow = section.model_copy(update={"token_dtype": "float16"})
    assert measured_bytes(rollouts, narrow) < measured_bytes(rollouts, section)


def test_it_is_an_upper_bound_of_the_tensors(tmp_path):
    measured = measured_by_hand(n=40)
    measured.select(slice(None)).save(tmp_path / "m")
    section = MeasurementSection(sketch_dim=8, token_probes=3, token_exact=2)
    header = 4096
    weighted = len(measured) * (3 * 8 * 4 + 2 * 8)
    tensors = (tmp_path / "m" / "tensors.safetensors").stat().st_size
    assert tensors < measured_bytes(measured.rollouts, section, 2) + weighted + 2 * 8 * len(measured) + header
    added = measured_bytes(measured.rollouts, section, 2) - measured_bytes(measured.rollouts, section)
    assert added == measured.sketches_by_block.nbytes


def test_what_does_not_fit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**30))
    require_space(tmp_path / "not" / "yet", 2**30)
    with pytest.raises(OSError, match=r"takes up to 2,048\.0 MiB, and .* has 1,024\.0 MiB left: measure with fewer"):
        require_space(tmp_path, 2**31)


def table(rewards=(1.0, 0.0)):
    return Rollouts.from_sequences([[5], [5]], [[1, 2], [3]], rewards=list(rewards), prompt_ids=["a", "b"])


def test_values_are_read_as_they_were_written_and_find_their_completions(tmp_path):
    values = StateValues.of(table(), [np.array([0.5, np.nan]), np.array([0.25])], {"k": 2})
    values.to_parquet(tmp_path / "values.parquet")
    found = read_state_values(tmp_path / "values.parquet")
    assert found.metadata == {"k": 2}
    for row, expected in zip(found.for_rollouts(table().select([1, 0])), ([0.25], [0.5, np.nan]), strict=True):
        np.testing.assert_array_equal(row, expected)
    both = StateValues.concatenate([found, found])
    assert len(both.values) == len(both.completions) == 4


def test_other_completions_are_refused(tmp_path):
    values = StateValues.of(table(), [np.zeros(2), np.zeros(1)], {})
    with pytest.raises(ValueError, match="completion 0 of prompt 'b' had another reward"):
        values.for_rollouts(table((1.0, 1.0)))
    longer = Rollouts.from_sequences([[5]], [[1, 2, 3]], rewards=[1.0], prompt_ids=["a"])
    with pytest.raises(ValueError, match="another number of tokens"):
        values.for_rollouts(longer)
    with pytest.raises(ValueError, match="completion 0 of prompt 'c' has none"):
        values.for_rollouts(Rollouts.from_sequences([[5]], [[1]], rewards=[1.0], prompt_ids=["c"]))


def test_a_changed_file_is_refused(tmp_path):
    path = tmp_path / "values.parquet"
    StateValues.of(table(), [np.zeros(2), np.zeros(1)], {}).to_parquet(path)
    damaged = bytearray(path.read_bytes())
    damaged[60] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="values\\.parquet"):
        read_state_values(path)
    table().to_parquet(tmp_path / "rollouts.parquet")
    with pytest.raises(ValueError, match="holds no state values"):
        read_state_values(tmp_path / "rollouts.parquet")


def test_shards_without_their_plan_are_left_out_with_a_warning(tmp_path):
    rollouts = table()
    values = StateValues.of(rollouts, [np.zeros(2), np.zeros(1)], {})
    values.to_parquet(tmp_path / "shard-00000.parquet")
    with pytest.warns(
        UserWarning, match=r"are left out \(their plan\.json is missing\): `gradstats run` makes them again"
    ):
        assert stored_values(tmp_path, rollouts) == {}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_token_scores_read_back(tmp_path, dtype):
    rollouts = ragged_rollouts(4, masked=True)
    measured = gradients.measure(
        tiny_model("gpt2"), rollouts, token_probes=6, token_exact=2, sketch_dim=32, progress=False
    )
    measured.save(tmp_path / "m", token_dtype=dtype)
    read = read_measurement(tmp_path / "m")
    accuracy = {"rtol": 2 * np.finfo(dtype).eps, "atol": 1e-6}
    for row in range(4):
        assert read.token_projections[row].dtype == dtype
        np.testing.assert_allclose(read.token_projections[row], measured.token_projections[row], **accuracy)
        np.testing.assert_array_equal(read.heavy_positions[row], measured.heavy_positions[row])
        np.testing.assert_array_equal(read.heavy_sq_norms[row], measured.heavy_sq_norms[row])
        np.testing.assert_allclose(read.heavy_sketches[row], measured.heavy_sketches[row], **accuracy)
    some = read.select([2, 0])
    np.testing.assert_array_equal(some.token_projections[0], read.token_projections[2])
    np.testing.assert_array_equal(some.sketches[1], read.sketches[0])
    assert some.rollouts.sample_id.tolist() == read.rollouts.sample_id[[2, 0]].tolist()
    with pytest.raises(ValueError, match='token_dtype is \'float64\': choose "float32" or "float16"'):
        measured.save(tmp_path / "other", token_dtype="float64")
    if dtype == "float16":
        measured.token_projections[1][0] = 1e5
        with pytest.raises(ValueError, match=r"token_projections reach 1e\+05, too large for float16"):
            measured.save(tmp_path / "other", token_dtype=dtype)


def test_a_measurement_reads_back_as_it_was(tmp_path):
    rollouts = ragged_rollouts(5, masked=True)
    measured = gradients.measure(
        tiny_model("qwen2"),
        rollouts,
        sketch_dim=32,
        token_weights=random_weightings(rollouts),
        reference_policy=tiny_model("llama"),
        progress=False,
    )
    measured.save(tmp_path / "whole")
    read = read_measurement(tmp_path / "whole")
    assert_same(read, measured)
    assert read.metadata == measured.metadata


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


def test_a_folder_of_shards_reads_as_one_measurement(tmp_path):
    rollouts = ragged_rollouts(6)
    weightings, reference = random_weightings(rollouts), tiny_model("llama")
    whole = gradients.measure(
        tiny_model("qwen2"),
        rollouts,
        sketch_dim=32,
        token_weights=weightings,
        reference_policy=reference,
        progress=False,
    )
    session = gradients.MeasuringSession.open(
        tiny_model("qwen2"), rollouts, MeasurementSection(sketch_dim=32), reference_policy=reference
    )
    for number, rows in enumerate(([0, 1], [2, 3, 4], [5])):
        some = {name: [weights[row] for row in rows] for name, weights in weightings.items()}
        session.measure(rollouts.select(rows), token_weights=some).save(tmp_path / f"shard-{number}")
    (tmp_path / ".shard-3.77.partial").mkdir()
    assert_same(read_measurement(tmp_path), whole)


def test_broken_or_missing_measurements_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no measurement"):
        read_measurement(tmp_path)
    measured = gradients.measure(tiny_model("qwen2"), ragged_rollouts(3), sketch_dim=8, progress=False)
    measured.save(tmp_path / "m")
    tensors = tmp_path / "m" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-8])
    with pytest.raises(ValueError, match="cannot be read .*: remove it and measure again"):
        read_measurement(tmp_path / "m")


@pytest.mark.parametrize("tokens", [True, False])
def test_what_is_saved_is_read(tmp_path, tokens):
    measured = measured_by_hand(tokens=tokens)
    measured.save(tmp_path / "m")
    assert_identical(read_measurement(tmp_path / "m"), measured)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "measurement.json",
        "rollouts.parquet",
        "tensors.safetensors",
    ]
