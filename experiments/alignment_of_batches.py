"""Compare the alignment that `batch_size` predicts with that of real batches, on-policy and with stale completions.

2,000 prompts of the embedded policy with 8 completions each are measured twice: drawn by the scored weights, and by the
checkpoint eight optimizer steps before. In each of several random splits one half of the prompts gives the target and
the prediction with its intervals, and the other half batches of 4 to 512 prompts, whose alignment with that target is
computed directly (‖G‖² less what the noise of its mean adds). ``python experiments/alignment_of_batches.py`` samples
and measures what is not there yet (about 25 minutes each on a busy core); the rest takes a few minutes.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tyro
from jaxtyping import Float, Int

import gradstats as gs
from gradstats import estimators
from gradstats.analyses.batch_size import batch_size
from gradstats.config.experiment import find_experiment, read_experiment
from gradstats.plots import estimator_appearance, save_figure, style
from gradstats.plots.marks import legend_below
from gradstats.plots.variance import plain_ticks
from gradstats.runs.pipeline import run_experiment
from gradstats.stats.variance.alignment import alignment_at
from gradstats.stats.variance.inputs import pooled, prepared_inputs, target_of
from gradstats.stats.variance.moments import split_into_groups
from gradstats.system.environment import environment
from gradstats.system.files import write_json

#: Kind of completions → settings that differ from those of experiments/embedded_resolved.yaml.
KINDS: dict[str, list[str]] = {"on-policy": [], "eight steps stale": ["behaviour_policy.revision=step-5492"]}
LABELS = ("rloo", "reinforce", "grpo")
#: The columns from which the alignment of any batch and the ends of its interval follow.
ENDS = (
    ("critical_batch", "alignment_limit"),
    ("critical_batch_high", "alignment_limit_low"),
    ("critical_batch_low", "alignment_limit_high"),
)
SIZES = (4, 8, 16, 32, 64, 128, 256, 512)


def measurement_of(kind: str, runs: Path) -> gs.Measurement:
    """The measurement of one kind of completions, made where it is not there yet."""
    folder = runs / kind.replace(" ", "_").replace("-", "_")
    if not (folder / "manifest.json").exists():
        settings = [*KINDS[kind], f"variance.estimators=[{','.join(LABELS)}]"]
        run_experiment(read_experiment(find_experiment("embedded_resolved"), settings), folder)
    return gs.read_measurement(folder)


def gradients_of(measured: gs.Measurement) -> tuple[dict[str, Float[np.ndarray, "m d"]], Float[np.ndarray, "m d"]]:
    """The gradient of each prompt by each estimator and by the target, in shared coordinates."""
    chosen = [estimators.get(label) for label in LABELS]
    inputs, prepared, judged = prepared_inputs(measured, chosen, None, None, "auto")
    groups = split_into_groups(inputs.batch.group_index, inputs.order, None)
    pool = pooled(inputs, groups, prepared, np.random.default_rng(0), judged)
    found = {label: pool.local(one).moments for label, one in zip(LABELS, prepared, strict=True)}
    target = target_of(pool, judged).moments
    assert target is not None
    return {label: one.means for label, one in found.items() if one is not None}, target.means


def observed(
    gradients: Float[np.ndarray, "m d"], target: Float[np.ndarray, "m d"], batches: Int[np.ndarray, "k b"]
) -> float:
    """The alignment of batches of some prompts with the mean of the target over others."""
    goal, m = target.mean(axis=0), len(target)
    goal_sq = float(goal @ goal) - float(((target - goal) ** 2).sum()) / (m * (m - 1.0))
    means = np.stack([gradients[batch].mean(axis=0) for batch in batches])
    return float((means @ goal).mean() ** 2 / ((means**2).sum(axis=1).mean() * goal_sq))


def alignments(kind: str, runs: Path, n_splits: int) -> pd.DataFrame:
    """Predicted and observed alignments, a row for each estimator and size: means over splits."""
    measured = measurement_of(kind, runs)
    gradients, target = gradients_of(measured)
    # Numbers of prompts as in `gradients_of`: those of the sorted labels.
    prompt = np.unique(np.asarray(measured.rollouts.prompt_id), return_inverse=True)[1]
    records = []
    for split in range(n_splits):
        order = np.random.default_rng(split).permutation(len(target))
        first, second = order[: len(order) // 2], order[len(order) // 2 :]
        half = measured.select(np.flatnonzero(np.isin(prompt, first)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predicted = batch_size(half, LABELS).to_frame().set_index("estimator")
        for size in SIZES:
            batches = second[: len(second) // size * size].reshape(-1, size)
            for label in LABELS:
                value, low, high = (
                    alignment_at(predicted.loc[label, critical], predicted.loc[label, limit], size)
                    for critical, limit in ENDS
                )
                found = observed(gradients[label], target[first], batches)
                row = {"predicted": value, "predicted_low": low, "predicted_high": high, "observed": found}
                records.append({"completions": kind, "estimator": label, "prompts": size, "split": split} | row)
    frame = pd.DataFrame(records)
    grouped = frame.groupby(["completions", "estimator", "prompts"], sort=False)
    means = pd.DataFrame(grouped[["predicted", "predicted_low", "predicted_high", "observed"]].mean())
    lowest, highest = (grouped["observed"].quantile(at) for at in (0.1, 0.9))
    return means.assign(observed_low=lowest, observed_high=highest).reset_index()


def draw(frame: pd.DataFrame) -> None:
    """Draw predictions with their bands, and what was observed with the range of eight of ten splits."""
    width, height = plt.rcParams["figure.figsize"]
    _, axes = plt.subplots(1, len(KINDS), figsize=(width, height + 0.5), sharey=True)
    for ax, kind in zip(axes, KINDS, strict=True):
        for label in LABELS:
            rows = frame.loc[(frame["completions"] == kind) & (frame["estimator"] == label)]
            color, marker = estimator_appearance(label)
            at = rows["prompts"].to_numpy(dtype=float)
            ax.fill_between(at, rows["predicted_low"], rows["predicted_high"], color=color, alpha=0.2, linewidth=0)
            ax.plot(at, rows["predicted"], color=color)
            ax.vlines(at, rows["observed_low"], rows["observed_high"], color=color)
            ax.plot(at, rows["observed"], color=color, marker=marker, linestyle="none", label=label)
        ax.set_xscale("log")
        ax.set_ylim(0.0, 1.0)
        ax.set_title(kind)
        ax.set_xlabel("prompts per batch")
        plain_ticks(ax, logarithmic=True, most=4)
    axes[0].set_ylabel("alignment")
    legend_below(axes[0])


def main(runs: Path = Path("runs/alignment"), out: Path = Path("figures/batch_size"), n_splits: int = 12) -> None:
    """Measure what is missing, and write alignment.csv with its figure.

    Args:
        runs: folder of the two runs.
        out: folder of table and figure.
        n_splits: random splits of the prompts in halves.
    """
    out.mkdir(parents=True, exist_ok=True)
    frame = pd.concat([alignments(kind, runs, n_splits) for kind in KINDS], ignore_index=True)
    with mpl.rc_context(style("iclr")):  # pyright: ignore[reportArgumentType]
        draw(frame)
        save_figure(plt.gcf(), out / "alignment", source=frame, overwrite=True)
    plt.close("all")
    write_json(out / "manifest.json", {"script": Path(__file__).name, "n_splits": n_splits, **environment()})


if __name__ == "__main__":
    tyro.cli(main)
