"""Measurements of several shards joined into one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import ragged_rollouts, tiny_model
from gradient_models import random_weightings
from measured_by_hand import assert_identical, measured_by_hand

import gradstats.gradients as gradients
from gradstats.config.sections import MeasurementSection
from gradstats.measurement import Measurement, read_measurement
from gradstats.measurement.measurement import (
    WeightedGradients,
    metric_label,
    metric_sentence,
    sketched_gram,
    split_layer,
)


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


ADAM = {
    "name": "adam",
    "eps": 1e-8,
    "power": 0.5,
    "step": 100,
    "beta2": 0.95,
    "moments": "1a2b",
    "source": "optimizer.pt",
}


def test_a_label_states_what_the_numbers_depend_on():
    assert metric_label({"metric": ADAM}) == "adam(eps=1e-08, power=0.5, step=100, beta2=0.95, moments=1a2b)"
    labels = {
        metric_label({"metric": ADAM | change}) for change in ({}, {"moments": "3c"}, {"eps": 0.0}, {"step": None})
    }
    assert len(labels) == 4
    # beta2 enters with a number of steps only, and a file may be called otherwise
    without = ADAM | {"step": None}
    assert metric_label({"metric": without}) == metric_label({"metric": without | {"beta2": 0.9, "source": "other.pt"}})


def test_measurements_without_a_record_are_euclidean():
    assert metric_label({}) == metric_label({"metric": None}) == "euclidean"
    assert metric_sentence({}) == ""


def test_the_sentence_names_the_source():
    assert metric_sentence({"metric": ADAM}).endswith("P = 1/(v̂^0.5 + 1e-08), v̂ from optimizer.pt")
    assert metric_sentence({"metric": ADAM | {"source": ""}}).endswith("+ 1e-08)")


def test_too_few_probes_give_nan_and_say_so(rollouts):
    options = {"sketch_dim": None, "progress": False}
    none = gradients.measure(tiny_model("gpt2"), rollouts, token_exact=1, **options)
    with pytest.warns(RuntimeWarning, match="token energies are NaN .* measure with token_probes=32"):
        energy = none.token_energy
    assert [int(np.isfinite(values).sum()) for values in energy] == [1] * 5
    one = gradients.measure(tiny_model("gpt2"), rollouts, token_probes=1, **options)
    assert all(np.isfinite(values).all() for values in one.token_energy)
    with pytest.warns(RuntimeWarning, match="standard errors of cumulative energies are NaN"):
        assert all(np.isnan(values).all() for values in one.cumulative_energy_stderr)


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


def test_a_gram_matrix_needs_sketches():
    measured = gradients.measure(tiny_model("qwen2"), ragged_rollouts(3), sketch_dim=None, progress=False)
    with pytest.raises(ValueError, match="holds no sketches: measure with sketch_dim"):
        measured.gram()


def test_a_gram_matrix_is_exact_on_its_diagonal():
    measured = measured_by_hand()
    gram = measured.gram()
    np.testing.assert_allclose(np.diag(gram), measured.sq_norms)
    np.testing.assert_allclose(gram[0, 1], measured.sketches[0].astype(float) @ measured.sketches[1])
    np.testing.assert_allclose(np.diag(measured.weighted["half"].gram()), measured.weighted["half"].sq_norms)
    with pytest.raises(ValueError, match="holds no sketches: measure with sketch_dim"):
        replace(measured, sketches=None).gram()


def test_norms_are_summed_over_blocks_and_rows_selected_with_their_sketches():
    norms = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [0.5, 0.25, 0.125]})
    gradients = WeightedGradients(norms, np.array([[1.0, 0.0], [1.0, 2.0], [0.0, -3.0]]))
    assert len(gradients) == 3
    assert gradients.sq_norms.tolist() == [1.5, 2.25, 3.125]
    assert gradients.gram().tolist() == [[1.5, 1, 0], [1, 2.25, -6], [0, -6, 3.125]]
    some = gradients.select(np.array([2, 0]))
    assert some.gram().tolist() == [[3.125, 0], [0, 1.5]]
    assert some.sq_norms_by_block.index.tolist() == [0, 1]
    assert WeightedGradients(norms, None).select(np.array([1])).sketches is None


def test_one_block_alone():
    measured = measured_by_hand()
    block = measured.gradients.of_block("layer 1")
    assert block.sq_norms.tolist() == measured.sq_norms_by_block["layer 1"].tolist()
    np.testing.assert_array_equal(block.sketches, measured.sketches_by_block[:, 1])
    whole = WeightedGradients.concatenate([measured.gradients.select(np.array(rows)) for rows in ([0, 1], [2, 3, 4])])
    np.testing.assert_array_equal(whole.sketches_by_block, measured.sketches_by_block)
    with pytest.raises(ValueError, match="holds no sketches by block: measure with block_sketches=True"):
        WeightedGradients(measured.sq_norms_by_block, measured.sketches).of_block("layer 1")


def test_inner_products_of_sketches_in_half_precision_are_summed_in_float64():
    sketches = np.full((2, 70_000), 2.0, dtype=np.float16)
    assert sketched_gram(sketches, np.array([1.0, 4.0])).tolist() == [[1, 280_000], [280_000, 4]]
