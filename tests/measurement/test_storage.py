"""The folder of a measurement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import ragged_rollouts, tiny_model
from gradient_models import assert_same, random_weightings
from measured_by_hand import assert_identical, measured_by_hand

import gradstats.gradients as gradients
from gradstats.config.sections import MeasurementSection
from gradstats.measurement import read_measurement


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
