"""Per-sequence gradients reduced to squared norms by parameter and to sketches, against NumPy."""

import numpy as np
import pytest
import torch

from gradstats.gradients.engines.reduction import (
    OuterProducts,
    Reduction,
    contract,
    gram_strips,
    reduce_gradients,
    sq_norms,
    stack_weightings,
)
from gradstats.gradients.objective import Chunk, TokenStatistics
from gradstats.gradients.parameters import ParameterSelection
from gradstats.gradients.sketches import CountSketch


@pytest.mark.parametrize("time", [1, 5, 128, 300])
@pytest.mark.parametrize("transposed", [False, True])
def test_gram_form_product_form_and_autograd_agree(time, transposed):
    rng = torch.Generator().manual_seed(time)
    inputs = torch.randn(3, time, 2100, generator=rng, dtype=torch.float64)
    term = OuterProducts(inputs, torch.randn(3, time, 7, generator=rng, dtype=torch.float64), transposed)
    whole = torch.einsum("btr,btc->brc", term.left, term.right)
    expected = whole.square().sum(dim=(1, 2))
    gram = contract(gram_strips(term.gradients, torch.float64), gram_strips(term.inputs, torch.float64))
    torch.testing.assert_close(gram, expected, rtol=1e-11, atol=0)
    pieces = [(first, product.clone()) for first, product in term.products(torch.float64)]
    torch.testing.assert_close(torch.cat([product for _, product in pieces], dim=1), whole)
    assert [first for first, _ in pieces] == np.cumsum([0, *(p.shape[1] for _, p in pieces[:-1])]).tolist()


@pytest.mark.parametrize(
    ("time", "inputs", "outputs", "shared", "gram"),
    [
        (128, 576, 1536, 1, True),
        (2048, 576, 192, 1, False),
        (512, 24, 40, 1, False),
        (512, 576, 576, 1, False),
        (512, 576, 576, 3, True),  # together with the keys' and values' layers, which share the inputs
    ],
)
def test_the_cheaper_form_is_chosen(time, inputs, outputs, shared, gram):
    term = OuterProducts(torch.zeros(1, time, inputs), torch.zeros(1, time, outputs))
    assert term.prefers_gram(shared=shared) is gram


@pytest.mark.parametrize(("first", "last", "kept"), [(0, 9, 9), (2, 9, 7), (0, 6, 6), (2, 6, 4), (0, 0, 9)])
def test_times_without_a_gradient_are_cut_off_at_both_ends(first, last, kept):
    rng = torch.Generator().manual_seed(0)
    gradients = torch.zeros(2, 9, 4, dtype=torch.float64)
    # The second sequence is shorter, and a time in the middle has no gradient in either.
    gradients[0, first:last] = torch.randn(last - first, 4, generator=rng, dtype=torch.float64)
    gradients[1, first : max(first, last - 1)] = 1.0
    gradients[:, 4:5] = 0.0
    term = OuterProducts(torch.randn(2, 9, 3, generator=rng, dtype=torch.float64), gradients)
    cut = term.without_idle_ends()
    assert cut.inputs.shape[1] == cut.gradients.shape[1] == kept
    torch.testing.assert_close(cut.left.mT @ cut.right, term.left.mT @ term.right)


SELECTION = ParameterSelection(
    {"a": torch.zeros(3, 4), "b": torch.zeros(5), "c": torch.zeros(2)}, ("x", "y"), {"a": 0, "b": 1, "c": 0}
)


def random_gradients(batch=2, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(batch, *tensor.shape, generator=rng, dtype=torch.float64)
        for name, tensor in SELECTION.parameters.items()
    }


def test_norms_are_those_of_each_parameter_and_add_up_over_blocks_as_do_sketches():
    gradients, sketch = random_gradients(), CountSketch(16, 3)
    norms, whole = reduce_gradients(gradients, SELECTION, sketch)
    a, b, c = (np.square(values.flatten(1).numpy()).sum(axis=1) for values in gradients.values())
    np.testing.assert_allclose(norms, np.stack([a, b, c], axis=1), rtol=1e-12)
    np.testing.assert_allclose(SELECTION.by_block(norms[None]), [np.stack([a + c, b], axis=1)], rtol=1e-12)
    one_by_one = [reduce_gradients({name: values}, SELECTION, sketch)[1] for name, values in gradients.items()]
    np.testing.assert_allclose(whole, sum(one_by_one), rtol=1e-12)
    doubled = {name: -2 * values for name, values in gradients.items()}
    np.testing.assert_allclose(reduce_gradients(doubled, SELECTION, sketch)[1], -2 * whole, rtol=1e-12)
    assert reduce_gradients(gradients, SELECTION, None)[1] is None


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0, 3, 4096, 4097, 20_000_001])
def test_squared_norms_of_large_gradients_are_not_lost_to_rounding(size, dtype):
    values = torch.randn(1, size, generator=torch.Generator().manual_seed(0)).to(dtype)
    np.testing.assert_allclose(sq_norms(values), values.double().square().sum(dim=1), rtol=3e-6)
    half = torch.full((1, 70_000), 2.0, dtype=torch.float16)  # the sum of squares is above float16's largest
    np.testing.assert_allclose(sq_norms(half), 280_000, rtol=1e-6)
    reduction = Reduction(SELECTION, CountSketch(8, 0), 1, torch.float16, torch.device("cpu"))
    assert reduction.dtype == reduction.sketches_of("a").dtype == torch.float32


def test_weightings_are_stacked_in_front():
    rows = np.array([4, 7])
    chunk = Chunk(rows, torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 2, 3), [0, 0], [3, 3])
    statistics = TokenStatistics(*(torch.zeros(2, 3) for _ in TokenStatistics._fields))
    first, second = (reduce_gradients(random_gradients(seed=seed), SELECTION, CountSketch(8, 0)) for seed in (0, 1))
    result = stack_weightings(chunk, [first, second], statistics)
    np.testing.assert_array_equal(result.sq_norms_by_parameter, [first[0], second[0]])
    np.testing.assert_array_equal(result.sketches, [first[1], second[1]])
    assert stack_weightings(chunk, [(first[0], None)], statistics).sketches is None
    assert result.sketches_by_block is None
    _, parts = reduce_gradients(random_gradients(), SELECTION, CountSketch(8, 0, by_block=True))
    by_block = stack_weightings(chunk, [(first[0], parts)], statistics)
    np.testing.assert_array_equal(by_block.sketches_by_block, [parts])
    np.testing.assert_allclose(by_block.sketches, [first[1]], rtol=1e-12, atol=1e-12)
