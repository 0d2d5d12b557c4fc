"""Error and time of three random projections of a linear layer's gradient, Σ_t g_t x_tᵀ, at equal size.

- ``CountSketch``: the projection that gradstats uses; the gradient is formed a few rows at a time and every coordinate
  is added to the sketch.
- ``TensorSketch`` (Pham & Pagh, 2013): sketches of g_t and x_t, convolved by FFT and summed over time; the gradient is
  never formed.
- ``Kronecker``: (G A)ᵀ (X B) with Gaussian A, B, a projection to √D × √D.

The error is the standard deviation over seeds of ⟨Cx, Cy⟩/(‖x‖‖y‖), the largest over pairs of gradients that are
equal, related (cosine of about one half) and unrelated, for gradients of one token (rank one) and of many (dense). The
time is that of the layer's share of a backward pass, including the product, relative to the plain weight gradient of
the same batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import tyro
from torch import Tensor

from gradstats.gradients import CountSketch
from gradstats.gradients.engines.reduction import OuterProducts
from gradstats.system.files import write_json

DIM = 16384
# inputs, outputs, tokens, sequences
LAYERS = {
    "SmolLM2-135M, feed-forward": (576, 1536, 128, 8),
    "SmolLM2-135M, head": (576, 49152, 128, 2),
    "R1-Distill-1.5B, feed-forward": (1536, 8960, 256, 2),
    "R1-Distill-1.5B, head": (1536, 151936, 256, 1),
}
# Inputs, outputs and tokens of a layer small enough for many seeds, and larger than the sketch.
ERROR_LAYER = (192, 384, 64)

Projection = Callable[[Tensor, Tensor, int], Tensor]


def count_sketch(inputs: Tensor, gradients: Tensor, seed: int) -> Tensor:
    """Sketch as the ghost engine does: slices of the product are added to the sketch and discarded."""
    sketch = CountSketch(DIM, seed)
    term = OuterProducts(inputs, gradients)
    total = inputs.new_zeros(len(inputs), DIM)
    for first, product in term.products(inputs.dtype):
        sketch.add_slice(total, "layer", term.size, first * inputs.shape[2], product.flatten(start_dim=1))
    return total


def tensor_sketch(inputs: Tensor, gradients: Tensor, seed: int) -> Tensor:
    """Convolve two CountSketches for each token, summed over time before the inverse transform."""
    spectra = []
    for place, factor in enumerate((gradients, inputs)):
        generator = torch.Generator().manual_seed(2 * seed + place)
        n = factor.shape[2]
        bucket = torch.randint(DIM, (n,), generator=generator)
        sign = torch.randint(2, (n,), generator=generator).to(factor.dtype).mul_(2).sub_(1)
        flat = (factor * sign).flatten(0, 1)
        hashed = flat.new_zeros(len(flat), DIM).index_add_(1, bucket, flat)
        spectra.append(torch.fft.rfft(hashed))
    product = (spectra[0] * spectra[1]).view(len(inputs), inputs.shape[1], -1).sum(dim=1)
    return torch.fft.irfft(product, n=DIM)


def kronecker(inputs: Tensor, gradients: Tensor, seed: int) -> Tensor:
    """Project both factors and form one small product."""
    generator = torch.Generator().manual_seed(seed)
    side = int(DIM**0.5)
    left = torch.randn(gradients.shape[2], side, generator=generator, dtype=inputs.dtype) / side**0.5
    right = torch.randn(inputs.shape[2], side, generator=generator, dtype=inputs.dtype) / side**0.5
    return torch.bmm((gradients @ left).transpose(1, 2), inputs @ right).flatten(start_dim=1)


PROJECTIONS: dict[str, Projection] = {
    "CountSketch": count_sketch,
    "TensorSketch": tensor_sketch,
    "Kronecker": kronecker,
}


def largest_error(projection: Projection, time_steps: int, n_seeds: int) -> float:
    """Largest standard deviation of a normalised inner product over equal, related and unrelated gradients."""
    inputs, outputs, _ = ERROR_LAYER
    generator = torch.Generator().manual_seed(12345)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x, g, fresh = normal(1, time_steps, inputs), normal(1, time_steps, outputs), normal(1, time_steps, outputs)
    # Pairs of one sequence with itself, with one of cosine about one half, and with an unrelated one.
    others = {"equal": (x, g), "related": (x, 0.5 * g + 0.75**0.5 * fresh), "unrelated": (normal(*x.shape), fresh)}
    pairs = {name: (torch.cat([x, a]), torch.cat([g, b])) for name, (a, b) in others.items()}
    worst = 0.0
    for both in pairs.values():
        exact = torch.einsum("bti,bto->bio", *both).flatten(1)
        scale = float(exact[0].norm() * exact[1].norm())
        products = []
        for seed in range(n_seeds):
            first, second = projection(*both, seed)
            products.append(float(first @ second) / scale)
        worst = max(worst, float(np.std(products)))
    return worst


def time_layer(name: str, repeats: int) -> dict[str, float]:
    """Median seconds of each projection of one layer and of the plain weight gradient, measured in turns."""
    inputs, outputs, steps, batch = LAYERS[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, steps, inputs, generator=generator)
    g = torch.randn(batch, steps, outputs, generator=generator)
    runs: dict[str, Callable[[], Any]] = {"plain": lambda: g.flatten(0, 1).T @ x.flatten(0, 1)}
    for method, projection in PROJECTIONS.items():
        runs[method] = lambda projection=projection: projection(x, g, 0)
    seconds: dict[str, list[float]] = {method: [] for method in runs}
    for repeat in range(-1, repeats):  # the first turn is a warm-up
        for method, run in runs.items():
            start = time.process_time()
            run()
            if repeat >= 0:
                seconds[method].append(time.process_time() - start)
    return {method: float(np.median(times)) for method, times in seconds.items()}


def benchmark(repeats: int = 5, n_seeds: int = 400, out: Path = Path("figures/sketches")) -> None:
    """Measure error and time, and write the table, the figure and the manifest.

    Args:
        repeats: timed repeats, after one warm-up.
        n_seeds: number of seeds over which an error is computed.
        out: folder of the results.
    """
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    import seaborn as sns

    from gradstats.plots import save_figure, style
    from gradstats.system.environment import environment

    torch.set_num_threads(1)
    kinds = {"rank one": 1, "dense": ERROR_LAYER[2]}
    errors = {
        method: {kind: largest_error(projection, steps, n_seeds) for kind, steps in kinds.items()}
        for method, projection in PROJECTIONS.items()
    }
    rows = []
    for layer in LAYERS:
        times = time_layer(layer, repeats)
        for method in PROJECTIONS:
            row: dict[str, Any] = {"layer": layer, "method": method, "processor_s": times[method]}
            row["ratio_to_weight_gradient"] = times[method] / times["plain"]
            row |= {f"error, {kind}": error for kind, error in errors[method].items()}
            rows.append(row)
            print(row, flush=True)
    table = pd.DataFrame(rows)
    rc_params: dict[str, Any] = style("icml", "full", height=1.7)
    with mpl.rc_context(rc_params):  # pyright: ignore[reportArgumentType]
        fig, axes = plt.subplots(1, 2, width_ratios=(1.0, 1.3))
        long = table.drop_duplicates("method").melt("method", [f"error, {kind}" for kind in kinds], "kind", "error")
        long["kind"] = long["kind"].str.removeprefix("error, ")
        sns.stripplot(long, x="error", y="kind", hue="method", palette="colorblind", jitter=False, ax=axes[0])
        sns.stripplot(
            table, x="ratio_to_weight_gradient", y="layer", hue="method", palette="colorblind", jitter=False, ax=axes[1]
        )
        axes[0].axvline(0.015, color="0.5", linewidth=0.8)
        for ax, label in zip(axes, ("std of a normalised inner product", "time / weight gradient"), strict=True):
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter("{x:g}")
            ax.xaxis.set_minor_formatter("")
            ax.set(xlabel=label, ylabel="")
        axes[0].get_legend().remove()
        axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        for path in save_figure(fig, out / "sketches", source=table, overwrite=True):
            print(path)
        plt.close(fig)
    settings = {"repeats": repeats, "n_seeds": n_seeds, "dim": DIM, "threads": 1}
    write_json(out / "manifest.json", {"benchmark": "benchmarks/sketches.py", **settings, **environment()})


if __name__ == "__main__":
    tyro.cli(benchmark)
