"""Gradients under token weights: norms, sketches and inner products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from conftest import ragged_rollouts, tiny_model
from measured_by_hand import measured_by_hand

import gradstats.gradients as gradients
from gradstats.measurement.measurement import WeightedGradients, sketched_gram


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
