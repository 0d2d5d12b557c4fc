"""The CountSketch: unbiased inner products, the stated variance, and the same vector with every engine."""

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model

import gradstats.gradients as gradients
from gradstats.gradients.sketches import (
    SKETCH_VERSIONS,
    CountSketch,
    HashedSigns,
    _mixed,
    default_sketch_version,
    hashed_counters,
    random_signs,
)

LIKE = torch.zeros(1, dtype=torch.float64)
SIZE = 2**20


@pytest.mark.parametrize(
    ("version", "signs", "starts"), [(1, "1001111000010010", [0, 3, 5, 3, 5]), (2, "1100101100011101", [7, 2, 0, 0, 1])]
)
def test_they_are_those_of_earlier_releases(version, signs, starts):
    random = random_signs(version, 3, "model.layers.0.mlp.up_proj.weight", 40, 8)
    found = random.between(0, 16, LIKE)
    assert "".join("1" if sign > 0 else "0" for sign in found) == signs
    assert random.starts == starts


def test_the_counters_are_hashed_by_splitmix64():
    """The first outputs of the reference implementation for the state 1234567, from its authors' code."""
    gamma = 0x9E3779B97F4A7C15
    state = torch.tensor([(1234567 + gamma * (number + 1)) % 2**64 for number in range(3)], dtype=torch.uint64)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [value % 2**64 for value in _mixed(state.view(torch.int64)).tolist()] == expected
    twice = _mixed(_mixed(torch.tensor([5])) ^ 9)
    assert torch.equal(hashed_counters(torch.tensor([0]), (5, 9)), twice)


@pytest.mark.parametrize("version", SKETCH_VERSIONS)
def test_any_span_and_any_coordinates_are_parts_of_the_whole(version):
    random = random_signs(version, 0, "w", 1000, 16)
    whole = random.between(0, 1000, LIKE)
    assert set(whole.tolist()) == {-1.0, 1.0}
    for first, last in ((0, 1), (63, 65), (64, 128), (5, 999), (999, 1000)):
        assert torch.equal(random.between(first, last, LIKE), whole[first:last])
        assert torch.equal(random.between(first, last, LIKE.float()).double(), whole[first:last])
    some = torch.tensor([[0, 999, 64], [63, 7, 7]])
    assert torch.equal(random.at(some).double(), whole[some])
    assert len(random.starts) == 63
    assert all(0 <= start < 16 for start in random.starts)


@pytest.mark.parametrize("version", SKETCH_VERSIONS)
def test_signs_are_balanced_and_uncorrelated(version):
    """Every mean of 2²⁰ products has the standard deviation 2⁻¹⁰; none of the 230 exceeds 4.5 of them."""
    names = [f"model.layers.{number}.weight" for number in range(4)]
    found = {(name, seed): random_signs(version, seed, name, SIZE, 64) for name in names for seed in (0, 1)}
    signs = {key: random.between(0, SIZE, LIKE) for key, random in found.items()}
    means = [float(one.mean()) for one in signs.values()]
    first = signs[names[0], 0]
    means += [float(first[lag:] @ first[:-lag]) / SIZE for lag in (*range(1, 130), 192, 256, 576, 4096)]
    keys = list(signs)
    means += [float(signs[one] @ signs[two]) / SIZE for i, one in enumerate(keys) for two in keys[:i]]
    # Products of three and four signs of one word, as in rectangles of a matrix.
    words = first.view(-1, 64)
    means += [float((words[:, :-a] * words[:, a:]).mean()) for a in (1, 8, 32)]
    means += [float((words[:, i] * words[:, i + 1] * words[:, i + 2]).mean()) / 8 for i in range(0, 60, 4)]
    means += [
        float((words[:-1, i] * words[1:, i] * words[:-1, i + 8] * words[1:, i + 8]).mean()) / 8 for i in range(40)
    ]
    assert np.abs(means).max() < 4.5 / np.sqrt(SIZE)
    assert np.std(means[:160]) == pytest.approx(1 / np.sqrt(SIZE), rel=0.2)


@pytest.mark.parametrize("version", SKETCH_VERSIONS)
def test_runs_start_in_every_bucket_equally_often(version):
    starts = np.array(random_signs(version, 0, "w", 64 * 40000, 64).starts)
    counts = np.bincount(starts, minlength=64)
    # χ² of 63 degrees of freedom, also of the difference between neighbours.
    for some in (counts, np.bincount((starts[1:] - starts[:-1]) % 64, minlength=64)):
        assert 30 < ((some - some.mean()) ** 2 / some.mean()).sum() < 110


def test_version_2_keeps_nothing_of_a_parameter_s_size():
    random = HashedSigns(0, "w", 10**13, 2**34)
    kept = [value for value in vars(random).values() if isinstance(value, (np.ndarray, torch.Tensor))]
    assert kept == []
    assert len(random.starts) == -(-(10**13) // 2**34)
    far = random.between(10**13 - 100, 10**13, LIKE)
    assert torch.equal(far, random.at(torch.arange(10**13 - 100, 10**13)).double())


def test_large_models_take_version_2(rollouts):
    assert [default_sketch_version(size) for size in (135 * 10**6, 2**28, 2**28 + 1, 7 * 10**10)] == [1, 1, 2, 2]
    measured = gradients.measure(tiny_model("llama"), rollouts, sketch_dim=64, progress=False)
    assert measured.metadata["sketch_version"] == 1


def test_an_unknown_version_and_a_dimension_below_one_are_refused():
    with pytest.raises(ValueError, match="sketch_version is 3: this release knows 1 and 2"):
        CountSketch(8, version=3).signs("w", 8)
    with pytest.raises(ValueError, match="sketch_dim is 0: it must be at least 1"):
        CountSketch(0)


def sketch_of(vectors, dim, seed, version, name="weight"):
    out = torch.zeros(len(vectors), dim, dtype=torch.float64)
    CountSketch(dim, seed, version).add(out, name, vectors)
    return out


def vectors(kind):
    rng = np.random.default_rng(1)
    pair = np.zeros((2, 300))
    if kind == "dense":
        pair = rng.normal(size=(2, 300))
        pair[1] += pair[0]
    elif kind == "rank one":
        pair = np.stack([np.outer(rng.normal(size=15), rng.normal(size=20)).ravel() for _ in range(2)])
        pair[1] += 0.5 * pair[0]
    else:
        pair[0, [3, 200]], pair[1, [3, 250]] = (1.0, 2.0), (2.0, -1.0)
    return torch.from_numpy(pair)


@pytest.mark.parametrize("version", SKETCH_VERSIONS)
@pytest.mark.parametrize("kind", ["dense", "rank one", "sparse"])
def test_inner_products_are_unbiased_with_at_most_the_stated_variance(kind, version):
    pair = vectors(kind)
    dim, draws = 32, 1000
    products = np.array([(s := sketch_of(pair, dim, seed, version))[0].dot(s[1]).item() for seed in range(draws)])
    exact = pair[0].dot(pair[1]).item()
    bound = (pair[0].square().sum() * pair[1].square().sum() + exact**2).item() / dim
    assert abs(products.mean() - exact) < 4 * products.std() / np.sqrt(draws)
    # The sample variance of 1000 draws lies within some per cent of the true one.
    assert products.var() < 1.2 * bound
    assert products.var() > 0 if kind != "sparse" else products.var() >= 0


@pytest.mark.parametrize("version", SKETCH_VERSIONS)
def test_the_vector_does_not_depend_on_engine_chunks_or_other_parameters(version):
    model, rollouts = tiny_model("qwen2", tied=True), ragged_rollouts(6)

    def sketches(**options):
        settings = {"sketch_dim": 128, "sketch_version": version, "progress": False} | options
        return gradients.measure(model, rollouts, **settings).sketches

    reference = sketches(engine="loop")
    for options in ({"token_budget": 30}, {"engine": "vmap"}, {"engine": "ghost", "blocks": "parameter"}):
        np.testing.assert_allclose(sketches(**options), reference, rtol=1e-9, atol=1e-10)
    parts = sum(sketches(params=pattern) for pattern in (r"embed|norm", r"layers.*(mlp|self_attn)"))
    np.testing.assert_allclose(parts, reference, rtol=1e-8, atol=1e-9)
    for change in ({"sketch_seed": 1}, {"sketch_version": 3 - version}):
        assert np.abs(sketches(**change) - reference).max() > 0.1 * np.abs(reference).max()


@pytest.mark.parametrize("version", SKETCH_VERSIONS)
def test_slices_and_rows_add_up_to_the_whole(version):
    rng = np.random.default_rng(2)
    whole = torch.from_numpy(rng.normal(size=(2, 30, 7)))
    sketch = CountSketch(16, 5, version)
    expected = torch.zeros(2, 16, dtype=torch.float64)
    sketch.add(expected, "weight", whole)
    found = torch.zeros_like(expected)
    for first, last in ((0, 3), (3, 101), (101, 102), (102, 210)):
        sketch.add_slice(found, "weight", 210, first, whole.flatten(1)[:, first:last])
    torch.testing.assert_close(found, expected)
    found = torch.zeros_like(expected)
    batch_index, row_index = torch.meshgrid(torch.arange(2), torch.arange(30), indexing="ij")
    shuffled = torch.from_numpy(rng.permutation(60))
    rows = whole.flatten(0, 1)[shuffled]
    sketch.add_rows(found, "weight", 210, batch_index.flatten()[shuffled], row_index.flatten()[shuffled], rows)
    torch.testing.assert_close(found, expected)


# An accelerator adds the runs of a slice by one gather; the CPU is as exact a place to compare the two as any.
@pytest.mark.parametrize("version", SKETCH_VERSIONS)
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize(
    ("dim", "size", "first", "last"),
    [(16, 1000, 0, 1000), (16, 1000, 5, 999), (16, 1000, 23, 24), (7, 20011, 20, 20011), (64, 30, 3, 30), (1, 9, 2, 7)],
)
def test_runs_that_are_gathered_give_the_same_as_one_by_one(version, dtype, allowed, dim, size, first, last):
    sketch, random = CountSketch(dim, 5, version), random_signs(version, 5, "w", size, dim)
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(3, last - first))).to(dtype)
    one_by_one, gathered = torch.ones(2, 3, dim, dtype=dtype)
    sketch.add_slice(one_by_one, "w", size, first, values)
    sketch._add_runs(gathered, random, first, values * random.between(first, last, values))
    torch.testing.assert_close(gathered, one_by_one, rtol=allowed, atol=allowed * float(values.abs().sum()))
    assert not torch.equal(one_by_one, torch.ones(3, dim, dtype=dtype))
