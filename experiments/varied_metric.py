"""Completions of a run in Adam's metric, measured again with another ε and with other second moments.

Every metric sees the same completions, so that a difference of α is known far better than either α. Repeated, the
command goes on where it was stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import tyro
from torch import Tensor

import gradstats as gs
from gradstats.analyses import alpha_by_block
from gradstats.config.experiment import read_experiment
from gradstats.stats import alpha_difference
from gradstats.system.environment import environment
from gradstats.system.files import write_csv, write_json

EPSILONS = (1e-8, 1e-5)
#: Columns that two measurements of the same completions share.
SAME = ["prompt_id", "sample_id", "completion_tokens"]


def main(
    run: Path = Path("runs/qwen_adam"),
    metric: str = "adam(eps=1e-8)",
    second_moments: Path = Path("models/qwen-4-epochs/second_moments.safetensors"),
    euclidean: Path = Path("runs/qwen_mawps"),
    prompts: int = 32,
    out: Path = Path("figures/varied_metric"),
) -> None:
    """Measure them in each metric and write the squared norms by completion, and α by block.

    Of all completions of the run α is compared with that in the Euclidean metric, block by block, in pairs.

    Args:
        run: the directory of a finished run whose metric is adam.
        metric: another metric, with the second moments of the run.
        second_moments: other second moments, with the metric of the run; a safetensors file.
        euclidean: a run that measured the same completions, and these parameters, in the Euclidean metric.
        prompts: of the run, chosen at random, with all their completions.
        out: the folder to write.
    """
    experiment, measured = read_experiment(run / "experiment.yaml"), gs.read_measurement(run)
    plain = gs.read_measurement(euclidean)
    if plain.metadata["metric"] is not None or measured.metadata["metric"] is None:
        raise SystemExit(f"{run} is to be measured in Adam's metric, and --euclidean {euclidean} in the Euclidean")
    if not plain.rollouts.frame[SAME].equals(measured.rollouts.frame[SAME]):
        raise SystemExit(f"--euclidean {euclidean} holds other completions than {run}: both measure the same ones")
    if missing := set(measured.sq_norms_by_block) - set(plain.sq_norms_by_block):
        raise SystemExit(f"--euclidean {euclidean} did not measure {', '.join(sorted(missing))}, as {run} did")
    differences = paired_differences(measured, plain)
    names = sorted(set(measured.rollouts.prompt_id))
    if not 2 <= prompts <= len(names):
        raise SystemExit(f"--prompts is {prompts}: {run} has {len(names)}, and an interval takes at least 2")
    chosen = np.random.default_rng(0).permutation(names)[:prompts]
    measured = measured.select(np.flatnonzero(np.isin(measured.rollouts.prompt_id, chosen)))
    policy = gs.load_policy(experiment.policy.name, **experiment.policy.arguments())
    in_metrics = {"of the run": measured}
    varied = {"other metric": {"metric": metric}, "other second moments": {"second_moments": str(second_moments)}}
    for number, (name, changed) in enumerate(varied.items(), start=1):
        section = experiment.measurement.model_copy(update={**changed, "sketch_dim": None})
        kept = run.with_name(f"{run.name}_varied_{number}")
        in_metrics[name] = gs.measure(policy, measured.rollouts, **section.arguments(), keep_in=kept)
    of_run = measured.rollouts.frame[["prompt_id", "sample_id"]].assign(length=measured.lengths)
    points = {name: of_run.assign(metric=name, sq_norm=one.sq_norms) for name, one in in_metrics.items()}
    blocks = [alpha_by_block(one).to_frame().assign(metric=name) for name, one in in_metrics.items()]
    files = (str(experiment.measurement.second_moments), str(second_moments))
    moments = [gs.AdamMetric.read(file, policy.model).second_moments for file in files]
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "differences.csv", differences)
    write_csv(out / "points.csv", pd.concat(points.values()))
    write_csv(out / "blocks.csv", pd.concat(blocks))
    write_csv(out / "moments.csv", compared(*moments))
    metrics = {name: one.metadata["metric"] for name, one in in_metrics.items()}
    about = {"run": run.name, "n_prompts": prompts, "metrics": metrics, "environment": environment()}
    write_json(out / "manifest.json", about)
    for name in varied:
        print(f"{name}: {alpha_difference(points[name], points['of the run'])}")


def paired_differences(one: gs.Measurement, other: gs.Measurement) -> pd.DataFrame:
    """Return α of a measurement minus that of another of the same completions, by block of the first.

    Below the blocks stand all of these together, and these within prompts: of deviations from the prompt's mean logs.
    Intervals hold at 95 %, and at 95 % for all blocks at once (Bonferroni).
    """
    norms = [each.sq_norms_by_block[list(one.sq_norms_by_block)] for each in (one, other)]
    pairs = {block: [frame[block] for frame in norms] for block in norms[0]}
    pairs["total"] = [frame.sum(axis=1) for frame in norms]
    rows = []
    for name in (*pairs, "total, within prompts"):
        points = [
            pd.DataFrame({"prompt_id": one.rollouts.prompt_id, "length": one.lengths, "sq_norm": np.asarray(values)})
            for values in pairs.get(name, pairs["total"])
        ]
        if name not in pairs:
            logs = [frame.set_index("prompt_id").astype(float).apply(np.log) for frame in points]
            inside = [frame - frame.groupby("prompt_id").transform("mean") for frame in logs]
            points = [frame.apply(np.exp).reset_index() for frame in inside]
        found = alpha_difference(*points)
        ends = [*found.confidence_interval(), *found.confidence_interval(1.0 - 0.05 / len(norms[0].columns))]
        columns = ("low", "high", "simultaneous_low", "simultaneous_high")
        row = {f"difference_{column}": end for column, end in zip(columns, ends, strict=True)}
        rows.append({"block": name, "difference": found.difference, **row})
    return pd.DataFrame(rows)


def compared(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> pd.DataFrame:
    """Return, of each part of a policy, how many coordinates have a root of v̂ below each ε, in both, and r of log v̂."""
    parts: dict[str, list[str]] = {}
    for name in one:
        parts.setdefault("layers" if ".layers." in name else name, []).append(name)
    rows = []
    for part, names in parts.items():
        count, sums, below = 0, np.zeros(5), np.zeros((2, len(EPSILONS)))
        for name in names:
            pair = [moments[name].double().flatten() for moments in (one, other)]
            below += [[float((values < eps**2).sum()) for eps in EPSILONS] for values in pair]
            x, y = (values[(pair[0] > 0) & (pair[1] > 0)].log() for values in pair)
            sums += [float(total) for total in (x.sum(), y.sum(), x @ x, y @ y, x @ y)]
            count += len(x)
        size = sum(one[name].numel() for name in names)
        means, squares = sums[:2] / count, sums[2:] / count
        spread = np.sqrt((squares[0] - means[0] ** 2) * (squares[1] - means[1] ** 2))
        row = {"part": part, "coordinates": size, "correlation": (squares[2] - means.prod()) / spread}
        for number, eps in enumerate(EPSILONS):
            row |= dict(zip((f"below_{eps:g}", f"other_below_{eps:g}"), below[:, number] / size, strict=True))
        rows.append(row)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    tyro.cli(main)
