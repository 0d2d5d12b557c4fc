"""The CountSketch: unbiased inner products, the stated variance, and the same vector with every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model

import gradstats.gradients as gradients
from gradstats.gradients.sketches import SKETCH_VERSIONS, CountSketch
from gradstats.reference.naive_estimators import sequence_gradients


def sketch_of(vectors, dim, seed, version, name="weight"):
    out = torch.zeros(len(vectors), dim, dtype=torch.float64)
    CountSketch(dim, seed, version).add(out, name, vectors)
    return out


def vectors(kind):
    rng = np.random.default_rng(1)
    if kind == "dense":
        pair = rng.normal(size=(2, 300))
        pair[1] += pair[0]
    elif kind == "rank one":
        pair = np.stack([np.outer(rng.normal(size=15), rng.normal(size=20)).ravel() for _ in range(2)])
        pair[1] += 0.5 * pair[0]
    else:
        pair = np.zeros((2, 300))
        pair[0, [3, 200]] = 1.0, 2.0
        pair[1, [3, 250]] = 2.0, -1.0
    return torch.from_numpy(pair)


@pytest.mark.parametrize("version", SKETCH_VERSIONS)
@pytest.mark.parametrize("kind", ["dense", "rank one", "sparse"])
def test_inner_products_are_unbiased_with_at_most_the_stated_variance(kind, version):
    pair = vectors(kind)
    dim, draws = 32, 3000
    products = np.array([(s := sketch_of(pair, dim, seed, version))[0].dot(s[1]).item() for seed in range(draws)])
    exact = pair[0].dot(pair[1]).item()
    bound = (pair[0].square().sum() * pair[1].square().sum() + exact**2).item() / dim
    assert abs(products.mean() - exact) < 4 * products.std() / np.sqrt(draws)
    # The sample variance of 3000 draws lies within a few per cent of the true one.
    assert products.var() < 1.15 * bound
    assert products.var() > 0 if kind != "sparse" else products.var() >= 0


@pytest.mark.parametrize("version", SKETCH_VERSIONS)
def test_normalised_inner_products_scatter_by_one_over_root_dim(version):
    rng = np.random.default_rng(0)
    pair = torch.from_numpy(rng.normal(size=(2, 40000)))
    pair /= pair.norm(dim=1, keepdim=True)
    errors = [
        (s := sketch_of(pair, 1024, seed, version))[0].dot(s[1]).item() - pair[0].dot(pair[1]).item()
        for seed in range(200)
    ]
    assert np.std(errors) == pytest.approx(1 / np.sqrt(1024), rel=0.2)


@pytest.mark.parametrize("version", SKETCH_VERSIONS)
def test_the_vector_does_not_depend_on_engine_chunks_or_other_parameters(version):
    model = tiny_model("qwen2", tied=True)
    rollouts = ragged_rollouts(6)
    fixed = {"sketch_dim": 128, "sketch_version": version, "progress": False}
    reference = gradients.measure(model, rollouts, engine="loop", **fixed).sketches
    for options in (
        {"engine": "ghost"},
        {"engine": "ghost", "token_budget": 30},
        {"engine": "vmap"},
        {"engine": "vmap", "token_budget": 30},
        {"engine": "ghost", "blocks": "parameter"},
    ):
        sketches = gradients.measure(model, rollouts, **fixed, **options).sketches
        np.testing.assert_allclose(sketches, reference, rtol=1e-9, atol=1e-10)
    parts = [
        gradients.measure(model, rollouts, params=pattern, **fixed).sketches
        for pattern in (r"embed|norm", r"layers.*(mlp|self_attn)")
    ]
    names = [name for name, _ in model.named_parameters()]
    assert all(("embed" in name or "norm" in name) != ("mlp" in name or "self_attn" in name) for name in names)
    np.testing.assert_allclose(sum(parts), reference, rtol=1e-8, atol=1e-9)
    for change in ({"sketch_seed": 1}, {"sketch_version": 3 - version}):
        other = gradients.measure(model, rollouts, **fixed | change).sketches
        assert np.abs(other - reference).max() > 0.1 * np.abs(reference).max()


def test_sketches_of_gradients_give_their_inner_products():
    model = tiny_model("llama")
    rollouts = ragged_rollouts(4)
    flat = np.stack(
        [torch.cat([g.flatten() for g in per.values()]).numpy() for per in sequence_gradients(model, rollouts)]
    )
    exact = flat @ flat.T
    measured = gradients.measure(model, rollouts, engine="loop", sketch_dim=4096, progress=False)
    np.testing.assert_allclose(measured.sq_norms, exact.diagonal(), rtol=1e-9)
    np.testing.assert_allclose(measured.gram().diagonal(), exact.diagonal(), rtol=1e-9)
    scale = np.sqrt((np.outer(exact.diagonal(), exact.diagonal()) + exact**2) / 4096)
    assert np.abs((measured.gram() - exact) / scale).max() < 5


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


def test_a_dimension_below_one_is_refused():
    with pytest.raises(ValueError, match="sketch_dim is 0: it must be at least 1"):
        CountSketch(0)
