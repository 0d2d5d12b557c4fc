"""Per-sequence gradients reduced to squared norms by block and to sketches, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gradstats.gradients.engines.reduction import Reduction, reduce_gradients, sq_norms, stack_weightings
from gradstats.gradients.objective import Chunk, TokenStatistics
from gradstats.gradients.parameters import ParameterSelection
from gradstats.gradients.sketches import CountSketch

SELECTION = ParameterSelection(
    {"a": torch.zeros(3, 4), "b": torch.zeros(5), "c": torch.zeros(2)}, ("x", "y"), {"a": 0, "b": 1, "c": 0}
)


def random_gradients(batch=2, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(batch, *tensor.shape, generator=rng, dtype=torch.float64)
        for name, tensor in SELECTION.parameters.items()
    }


def test_norms_are_summed_over_the_parameters_of_a_block():
    gradients = random_gradients()
    norms, sketches = reduce_gradients(gradients, SELECTION, None)
    a, b, c = (np.square(values.flatten(1).numpy()).sum(axis=1) for values in gradients.values())
    np.testing.assert_allclose(norms, np.stack([a + c, b], axis=1), rtol=1e-12)
    assert sketches is None


def test_sketches_are_linear_in_the_gradients_and_add_up_over_parameters():
    gradients, sketch = random_gradients(), CountSketch(16, 3)
    _, whole = reduce_gradients(gradients, SELECTION, sketch)
    assert whole.shape == (2, 16)
    one_by_one = [reduce_gradients({name: values}, SELECTION, sketch)[1] for name, values in gradients.items()]
    np.testing.assert_allclose(whole, sum(one_by_one), rtol=1e-12)
    doubled = {name: -2 * values for name, values in gradients.items()}
    np.testing.assert_allclose(reduce_gradients(doubled, SELECTION, sketch)[1], -2 * whole, rtol=1e-12)


def test_the_sketches_of_blocks_are_those_of_their_parameters_and_sum_to_the_whole():
    gradients = random_gradients()
    _, parts = reduce_gradients(gradients, SELECTION, CountSketch(16, 3, by_block=True))
    assert parts.shape == (2, 2, 16)
    for number, names in enumerate(("ac", "b")):
        of_block = {name: gradients[name] for name in names}
        np.testing.assert_array_equal(parts[:, number], reduce_gradients(of_block, SELECTION, CountSketch(16, 3))[1])
    np.testing.assert_allclose(
        parts.sum(axis=1), reduce_gradients(gradients, SELECTION, CountSketch(16, 3))[1], rtol=1e-12, atol=1e-12
    )
    row = Reduction(SELECTION, CountSketch(16, 3, by_block=True), 2, torch.float64, torch.device("cpu"))
    row.add_row("b", 1, gradients["b"][1])
    np.testing.assert_array_equal(row.result()[1][1, 1], parts[1, 1])
    assert not row.result()[1][:, 0].any()


def test_half_precision_is_accumulated_in_float32():
    values = torch.full((1, 70_000), 2.0, dtype=torch.float16)  # the sum of squares, 280000, is above float16's largest
    np.testing.assert_allclose(sq_norms(values), 280_000, rtol=1e-6)
    reduction = Reduction(SELECTION, CountSketch(8, 0), 1, torch.float16, torch.device("cpu"))
    assert reduction.dtype == reduction.sketches_of("a").dtype == torch.float32
    assert reduction.size_of("a") == 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 3, 4096, 4097, 20_000_001])
def test_squared_norms_of_large_gradients_are_not_lost_to_rounding(size, dtype):
    values = torch.randn(1, size, generator=torch.Generator().manual_seed(0)).to(dtype)
    np.testing.assert_allclose(sq_norms(values), values.double().square().sum(dim=1), rtol=3e-6)


def test_weightings_are_stacked_in_front():
    rows = np.array([4, 7])
    chunk = Chunk(rows, torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 2, 3), [0, 0], [3, 3])
    statistics = TokenStatistics(*(torch.zeros(2, 3) for _ in TokenStatistics._fields))
    first, second = (reduce_gradients(random_gradients(seed=seed), SELECTION, CountSketch(8, 0)) for seed in (0, 1))
    result = stack_weightings(chunk, [first, second], statistics)
    np.testing.assert_array_equal(result.sq_norms_by_block, [first[0], second[0]])
    np.testing.assert_array_equal(result.sketches, [first[1], second[1]])
    assert stack_weightings(chunk, [(first[0], None)], statistics).sketches is None
    assert result.sketches_by_block is None
    _, parts = reduce_gradients(random_gradients(), SELECTION, CountSketch(8, 0, by_block=True))
    by_block = stack_weightings(chunk, [(first[0], parts)], statistics)
    np.testing.assert_array_equal(by_block.sketches_by_block, [parts])
    np.testing.assert_allclose(by_block.sketches, [first[1]], rtol=1e-12, atol=1e-12)
