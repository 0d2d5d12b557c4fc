"""Frames for every plot function: ordinary, empty, one row, without intervals, thirty estimators, long names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from gradstats import analyses, plots
from gradstats.plots.names import KNOWN
from gradstats.stats.variance.quantities import COMPARED, limits_of

LONG = "an_estimator_of_my_own_with_a_long_name(alpha=0.8, loo=True, prior=12.5)"
SHAPES = ("ordinary", "empty", "one row", "nan intervals", "thirty", "long names")
QUANTITIES = tuple(quantity.name for quantity in COMPARED)


def names(shape: str, usual: int = 5) -> list[str]:
    """Row names of a frame of the given shape."""
    many = [*KNOWN, *(f"mine_{at}" for at in range(30 - len(KNOWN)))]
    long = [LONG, "length_weighted(alpha=0.8, loo=True)", "rloo"]
    return {"empty": [], "one row": ["rloo"], "thirty": many, "long names": long}.get(shape, list(KNOWN[:usual]))


def with_intervals(frame: pd.DataFrame, columns: tuple[str, ...], shape: str, scale: float = 1.0) -> pd.DataFrame:
    """Adds quantities with their ends."""
    rng = np.random.default_rng(0)
    for column in columns:
        centre = scale * np.exp(rng.normal(0, 0.5, len(frame)))
        if limits_of(column)[1] == 1.0:  # in which the upper end lies too
            centre *= 0.7 / max(centre, default=1.0)
        frame[column], frame[f"{column}_low"], frame[f"{column}_high"] = centre, 0.8 * centre, 1.3 * centre
        if shape == "nan intervals" and len(frame):
            frame[f"{column}_low"] = frame[f"{column}_high"] = np.nan
            frame.loc[0, column] = np.nan
    return frame


def variance(shape: str) -> pd.DataFrame:
    """A frame as returned by compare()."""
    frame = with_intervals(pd.DataFrame({"estimator": names(shape), "group_size": 4}), QUANTITIES, shape)
    frame.attrs["reference"] = "rloo"
    return frame


def curves(shape: str) -> pd.DataFrame:
    """A frame as returned by variance_curve(), with a minimiser and three fitted exponents."""
    count = {"empty": 0, "one row": 1, "thirty": 30}.get(shape, 7)
    frame = with_intervals(pd.DataFrame({"value": np.linspace(0.0, 2.0, count)}), QUANTITIES, shape)
    for quantity in ("matched_ratio", "cosine", "matched_bias_share"):
        frame[f"{quantity}_simultaneous_low"] = 0.9 * frame[f"{quantity}_low"]
        frame[f"{quantity}_simultaneous_high"] = 1.1 * frame[f"{quantity}_high"]
    fits = [
        {"fit": name, "value": at} for name, at in (("pooled", 1.09), ("within prompts", 1.75), ("of the mean", 1.1))
    ]
    lowest = {"minimiser": None if shape == "nan intervals" else 0.8, "minimiser_low": 0.5, "minimiser_high": 1.3}
    curve = LONG if shape == "long names" else "length_weighted(loo=True)"
    about = {"curve": curve, "parameter": "alpha", "reference": "rloo", "fits": [] if shape == "empty" else fits}
    frame.attrs |= about | lowest
    return frame


def group_sizes(shape: str) -> pd.DataFrame:
    """Tables of several group sizes."""
    sizes = [8] if shape == "one row" else [2, 4, 8]
    frames = [pd.DataFrame({"estimator": names(shape), "group_size": size}) for size in sizes]
    frame = with_intervals(pd.concat(frames, ignore_index=True), ("trace_cov", "matched_ratio"), shape)
    frame.attrs["reference"] = "rloo"
    columns = ["trace_cov", "trace_cov_low", "trace_cov_high"]
    frame[columns] = frame[columns].div(frame["group_size"] / 100.0, axis=0)
    return frame


def prompt_parts(shape: str) -> pd.DataFrame:
    """A frame as returned by variance_components(); of several rows one between-prompt component is negative."""
    frame = pd.DataFrame({"estimator": names(shape), "group_size": 4})
    frame = with_intervals(frame, ("within_prompt", "between_prompt"), shape, 100.0)
    columns = ["between_prompt", "between_prompt_low", "between_prompt_high"]
    frame[columns] = 0.3 * frame[columns] - (0.0 if shape == "one row" else 40.0)
    return frame


def of_blocks(found: list[str], shape: str) -> pd.DataFrame:
    frame = with_intervals(pd.DataFrame({"block": found}), ("alpha",), shape, 0.6)
    return frame.assign(share_of_sq_norm=np.linspace(0.001, 0.1, len(frame)))


def blocks(shape: str) -> pd.DataFrame:
    """A frame as returned by length_scaling_by_block()."""
    usual = ["embedding", *(f"layers.{at}" for at in range(4)), "final norm", "total"]
    long = [f"model.layers.{at}.self_attn.a_projection_with_a_long_name.weight" for at in range(3)]
    many = ["embedding", *(f"layers.{at}" for at in range(28)), "total"]
    found = {"empty": [], "one row": ["total"], "thirty": many, "long names": long}
    return of_blocks(found.get(shape, usual), shape)


def parameter_blocks(shape: str) -> pd.DataFrame:
    """The same with one block per parameter."""
    kinds = [*(f"self_attn.{letter}_proj" for letter in "qko"), "mlp.up_proj", "mlp.down_proj", "input_layernorm"]
    layers = {"thirty": 30, "one row": 1}.get(shape, 4)
    found = [f"model.layers.{layer}.{kind}.weight" for layer in range(layers) for kind in kinds]
    found = ["model.embed_tokens.weight", *found, "total"]
    if shape == "long names":
        found = [name.replace("mlp", "mlp.an_expert_with_a_name_of_some_length") for name in found]
    return of_blocks(found[: {"empty": 0, "one row": 1}.get(shape, len(found))], shape)


def tokens(shape: str) -> pd.DataFrame:
    """Token energies along traces."""
    rng, n = np.random.default_rng(0), 1 if shape == "one row" else 120
    found = {"thirty": [f"t{at}" for at in range(30)], "long names": [LONG, LONG + "2"], "one row": ["t"], "empty": []}
    frames = [
        pd.DataFrame({"sequence": name, "position": np.arange(n), "energy": rng.lognormal(0, 2, n)})
        for name in found.get(shape, ["a", "b", "c"])
    ]
    frame = pd.concat(frames or [pd.DataFrame({"sequence": [], "position": [], "energy": []})], ignore_index=True)
    known = np.nan if shape == "nan intervals" else 1.0
    return frame.assign(energy_low=0.5 * known * frame["energy"], energy_high=1.5 * known * frame["energy"])


def proxies(shape: str) -> pd.DataFrame:
    """A proxy and the measured energies."""
    rng = np.random.default_rng(0)
    n = {"empty": 0, "one row": 1, "thirty": 5000}.get(shape, 200)
    truth = rng.lognormal(0, 2, n)
    frame = pd.DataFrame({"proxy": truth**0.8 * rng.lognormal(0, 0.4, n), "truth": truth})
    frame.attrs |= {"proxy": r"$1 - 2\pi + \sum\pi^2$", "truth": r"$\Vert s_t\Vert^2$", "rank_correlation": 0.93}
    if shape == "nan intervals":
        frame.loc[:3, "proxy"] = [np.nan, 0.0, -1.0, np.nan]
    if shape == "long names":
        frame.attrs["truth"] = r"squared norm of each token's score, $\Vert s_t\Vert^2$, exact"
    return frame


def profile(shape: str, axis: str, quantity: str) -> pd.DataFrame:
    """A token profile whose bins double in width."""
    last = 2 ** np.arange({"empty": 0, "one row": 1, "thirty": 12}.get(shape, 6))
    first = last // 2 + 1 if axis == "distance" else last
    frame = pd.DataFrame({f"{axis}_first": first, f"{axis}_last": last, "n_prompts": 40})
    return with_intervals(frame, (quantity,), shape, 0.3)


def concentrations(shape: str) -> pd.DataFrame:
    """A frame as returned by concentration()."""
    return profile(shape, "tokens", "share")


def correlations(shape: str) -> pd.DataFrame:
    """A frame as returned by token_correlation()."""
    return profile(shape, "distance", "correlation")


def completions(shape: str) -> pd.DataFrame:
    """One row per completion."""
    rng = np.random.default_rng(0)
    n = {"empty": 0, "one row": 1, "thirty": 4000}.get(shape, 96)
    frame = pd.DataFrame({"prompt_id": [f"p{at // 4}" for at in range(n)], "length": rng.integers(5, 300, n)})
    frame["reward"] = rng.integers(0, 2, n).astype(float)
    return frame


def length_bins(shape: str) -> pd.DataFrame:
    """Noise to signal by bins of length."""
    edges, frames = np.array([10, 20, 40, 80, 160, 320]), []
    for name in names(shape, 2):
        frame = pd.DataFrame({"estimator": name, "length_low": edges[:-1], "length_high": edges[1:]})
        frames.append(with_intervals(frame, ("noise_to_signal",), shape, 1000.0))
    if not frames:
        return with_intervals(pd.DataFrame({"length_low": [], "length_high": []}), ("noise_to_signal",), shape)
    frame = pd.concat(frames, ignore_index=True)
    frame.loc[0, ["noise_to_signal", "noise_to_signal_high"]] = [np.nan, np.inf]
    return frame.head(1) if shape == "one row" else frame


def shares(shape: str) -> pd.DataFrame:
    """Shares of the expected gradient by success rate; one estimator's is not resolved."""
    bins = {"success_low": [0.0, 0.25, 0.5], "success_high": [0.25, 0.5, 0.99]}
    frames = [
        with_intervals(pd.DataFrame({"estimator": name, **bins}), ("share_of_gradient",), shape, 0.3)
        for name in names(shape, 3)
    ]
    if not frames:
        empty = pd.DataFrame({"estimator": [], "success_low": [], "success_high": []})
        return with_intervals(empty, ("share_of_gradient",), shape)
    frame = pd.concat(frames, ignore_index=True)
    unresolved = frame["estimator"] == "group_mean"
    frame.loc[unresolved, ["share_of_gradient", "share_of_gradient_low", "share_of_gradient_high"]] = np.nan
    return frame.head(1) if shape == "one row" else frame


def allocation(shape: str) -> pd.DataFrame:
    """The noise at equal tokens; of the first estimator a size is extrapolated."""
    found = names(shape, 3)
    frames = []
    for at, name in enumerate(found):
        sizes = [4] if shape == "one row" else [2, 4, 8, *([32] if at == 0 else [])]
        frame = pd.DataFrame({"estimator": name, "group_size": sizes})
        frames.append(frame.assign(n_prompts=1000.0 / frame["group_size"], extrapolated=frame["group_size"] > 8))
    empty = pd.DataFrame({"estimator": [], "group_size": [], "n_prompts": [], "extrapolated": []})
    frame = pd.concat(frames, ignore_index=True) if frames else empty
    return with_intervals(frame, ("relative_noise",), shape)


def batch_sizes(shape: str) -> pd.DataFrame:
    """The critical batch of estimators without bias; that of one estimator may not be resolved."""
    frame = with_intervals(pd.DataFrame({"estimator": names(shape, 3)}), ("critical_batch",), shape)
    one = {f"alignment_limit{end}": 1.0 for end in ("", "_low", "_high")}
    return frame.assign(prompts=64.0, tokens=51200.0, **one)


# Each plot function with the frame it is given.
CASES: dict[str, tuple[Callable[..., Any], Callable[[str], pd.DataFrame]]] = {
    "variance": (plots.plot_variance, variance),
    "variance_panels": (plots.plot_variance_panels, variance),
    "curve": (analyses.plot_variance_curve, curves),
    "curve_panels": (analyses.plot_variance_curve_panels, curves),
    "group_size": (plots.plot_group_size, group_sizes),
    "prompt_parts": (plots.plot_prompt_parts, prompt_parts),
    "alpha_by_block": (analyses.plot_alpha_by_block, blocks),
    "block_heatmap": (analyses.plot_block_heatmap, parameter_blocks),
    "token_energy": (plots.plot_token_energy, tokens),
    "proxy": (plots.plot_proxy, proxies),
    "concentration": (plots.plot_concentration, concentrations),
    "token_correlation": (plots.plot_token_correlation, correlations),
    "length_reward": (analyses.plot_length_reward, completions),
    "length_bins": (plots.plot_length_bins, length_bins),
    "allocation": (analyses.plot_allocation, allocation),
    "batch_size": (analyses.plot_batch_size, batch_sizes),
    "shares": (plots.plot_shares, shares),
}
