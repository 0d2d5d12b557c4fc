"""Measurements of several shards joined into one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import ragged_rollouts, tiny_model
from gradient_models import random_weightings
from measured_by_hand import assert_identical, measured_by_hand

import gradstats.gradients as gradients
from gradstats.config.sections import MeasurementSection
from gradstats.measurement import Measurement, read_measurement


def test_measurements_of_other_directions_are_not_joined():
    rollouts = ragged_rollouts(2)
    parts = [
        gradients.measure(
            tiny_model("gpt2"), rollouts, token_probes=2, token_seed=seed, sketch_dim=None, progress=False
        )
        for seed in (0, 1)
    ]
    assert not np.allclose(parts[0].token_projections[1], parts[1].token_projections[1])
    with pytest.raises(ValueError, match="measurements differ in token_seed"):
        Measurement.concatenate(parts)


def test_measurements_of_different_weightings_or_references_are_not_joined():
    rollouts = ragged_rollouts(3)
    session = gradients.MeasuringSession.open(tiny_model("qwen2"), rollouts, MeasurementSection(sketch_dim=None))
    plain = session.measure(rollouts)
    weighted = session.measure(rollouts, token_weights=random_weightings(rollouts))
    with pytest.raises(ValueError, match="differ in the names of their token_weights"):
        Measurement.concatenate([plain, weighted])
    with pytest.raises(ValueError, match="differ in ref_logprobs"):
        Measurement.concatenate([plain, replace(plain, ref_logprobs=plain.logprobs)])


def test_sketches_by_block_are_joined_and_not_with_measurements_without():
    measured = measured_by_hand()
    joined = Measurement.concatenate([measured.select([0, 1]), measured.select([2, 3, 4])])
    assert_identical(replace(joined, metadata=measured.metadata), measured)
    with pytest.raises(ValueError, match="measurements differ in sketches by block"):
        Measurement.concatenate([measured, replace(measured, sketches_by_block=None)])


@pytest.mark.parametrize(("setting", "values"), [("sketch_seed", (0, 1)), ("sketch_version", (1, 2))])
def test_measurements_of_different_sketches_are_not_joined(setting, values):
    common = {"sketch_dim": 8, "progress": False}
    parts = [
        gradients.measure(tiny_model("qwen2"), ragged_rollouts(3), **common, **{setting: value}) for value in values
    ]
    with pytest.raises(ValueError, match=rf"measurements differ in {setting} \({values[0]}, {values[1]}\)"):
        Measurement.concatenate(parts)


def test_sketches_without_a_version_are_those_of_version_1():
    measured = [
        gradients.measure(
            tiny_model("qwen2"), ragged_rollouts(3), sketch_dim=dim, sketch_version=version, progress=False
        )
        for dim, version in ((8, 1), (8, 2), (None, 2))
    ]
    for number, whole in enumerate(measured):
        one, other = whole.select([0]), whole.select([1, 2])
        old = replace(other, metadata={name: entry for name, entry in one.metadata.items() if name != "sketch_version"})
        if number == 1:
            with pytest.raises(ValueError, match="differ in sketch_version"):
                Measurement.concatenate([one, old])
        else:
            assert len(Measurement.concatenate([one, old])) == 3


def test_selected_rows_joined_again_are_the_whole(tmp_path):
    measured = measured_by_hand()
    halves = [measured.select([0, 1]), measured.select(slice(2, None))]
    whole = Measurement.concatenate(halves)
    assert whole.metadata.pop("not_finite") == []
    assert_identical(whole, measured)
    for number, half in enumerate(halves):
        half.save(tmp_path / f"shard-{number}")
    whole = read_measurement(tmp_path)
    assert whole.metadata.pop("not_finite") == []
    assert_identical(whole, measured)
    assert measured.select([3, 1]).sq_norms.tolist() == measured.sq_norms[[3, 1]].tolist()


def test_measurements_of_other_settings_are_not_joined():
    measured = measured_by_hand()
    other = replace(measured, metadata={"sketch_dim": 16})
    with pytest.raises(ValueError, match=r"differ in sketch_dim \(16, 8\): measure them with the same settings"):
        Measurement.concatenate([measured, other])
    with pytest.raises(ValueError, match="differ in token_projections: measure them with the same settings"):
        Measurement.concatenate([measured, replace(measured, token_projections=None)])
    with pytest.raises(ValueError, match="there are no measurements to concatenate"):
        Measurement.concatenate([])
