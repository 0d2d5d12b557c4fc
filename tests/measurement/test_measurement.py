"""A measurement's fields, selections, joins and files, without a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from measured_by_hand import measured_by_hand

from gradstats.measurement import Measurement, read_measurement


def assert_same(one: Measurement, other: Measurement) -> None:
    assert one.rollouts.frame.equals(other.rollouts.frame)
    pd.testing.assert_frame_equal(one.sq_norms_by_block, other.sq_norms_by_block)
    np.testing.assert_array_equal(one.sketches, other.sketches)
    for name, gradients in one.weighted.items():
        pd.testing.assert_frame_equal(gradients.sq_norms_by_block, other.weighted[name].sq_norms_by_block)
        np.testing.assert_array_equal(gradients.sketches, other.weighted[name].sketches)
    fields, others = (each.per_token_fields() | each.heavy_fields() for each in (one, other))
    assert list(fields) == list(others)
    for name, rows in fields.items():
        for row, same in zip(rows, others[name], strict=True):
            np.testing.assert_array_equal(row, same)
    assert one.metadata == other.metadata


@pytest.mark.parametrize("tokens", [True, False])
def test_what_is_saved_is_read(tmp_path, tokens):
    measured = measured_by_hand(tokens=tokens)
    measured.save(tmp_path / "m")
    assert_same(read_measurement(tmp_path / "m"), measured)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "measurement.json",
        "rollouts.parquet",
        "tensors.safetensors",
    ]


def test_selected_rows_joined_again_are_the_whole(tmp_path):
    measured = measured_by_hand()
    halves = [measured.select([0, 1]), measured.select(slice(2, None))]
    whole = Measurement.concatenate(halves)
    assert whole.metadata.pop("not_finite") == []
    assert_same(whole, measured)
    for number, half in enumerate(halves):
        half.save(tmp_path / f"shard-{number}")
    whole = read_measurement(tmp_path)
    assert whole.metadata.pop("not_finite") == []
    assert_same(whole, measured)
    assert measured.select([3, 1]).sq_norms.tolist() == measured.sq_norms[[3, 1]].tolist()


def test_a_gram_matrix_is_exact_on_its_diagonal():
    measured = measured_by_hand()
    gram = measured.gram()
    np.testing.assert_allclose(np.diag(gram), measured.sq_norms)
    np.testing.assert_allclose(gram[0, 1], measured.sketches[0].astype(float) @ measured.sketches[1])
    np.testing.assert_allclose(np.diag(measured.weighted["half"].gram()), measured.weighted["half"].sq_norms)
    with pytest.raises(ValueError, match="holds no sketches: measure with sketch_dim"):
        replace(measured, sketches=None).gram()


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
    assert (without.n_token_probes, without.token_scores(), without.token_energy, without.token_cross) == (
        0,
        None,
        None,
        None,
    )


def test_energies_without_probes_are_nan_with_a_warning():
    measured = replace(measured_by_hand(), token_projections=None)
    with pytest.warns(RuntimeWarning, match="token energies are NaN .* since token_probes is 0: measure with"):
        assert np.isnan(measured.token_energy[-1]).any()


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


def test_measurements_of_other_settings_are_not_joined():
    measured = measured_by_hand()
    other = replace(measured, metadata={"sketch_dim": 16})
    with pytest.raises(ValueError, match=r"differ in sketch_dim \(16, 8\): measure them with the same settings"):
        Measurement.concatenate([measured, other])
    with pytest.raises(ValueError, match="differ in token_projections: measure them with the same settings"):
        Measurement.concatenate([measured, replace(measured, token_projections=None)])
    with pytest.raises(ValueError, match="there are no measurements to concatenate"):
        Measurement.concatenate([])
