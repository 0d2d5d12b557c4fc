"""Draw what `train_with_estimators.py` found: reward against tokens, and each arm against RLOO.

Seeds are the replicates. Arms of a seed begin with the same weights and see the same problems in the same order, so
that differences from RLOO are paired by seed, with Student's t interval over the seeds; curves have the same interval
for each arm alone. Between steps, the reward of a step counts for the tokens that it drew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tyro
from jaxtyping import Float
from train_with_estimators import ARMS, WATCHED

from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.plots import estimator_appearance, save_figure, style
from gradstats.plots.marks import legend_below
from gradstats.plots.style import edge
from gradstats.plots.variance import draw_landmark, draw_row, forest_limits, plain_ticks, set_rows, wrap_label
from gradstats.report.sweeps import is_sweep, read_sweep
from gradstats.stats.jackknife import mean_statistic
from gradstats.system.environment import environment
from gradstats.system.files import read_json, write_csv, write_json

WINDOWS = 8  # of equally many tokens
#: Quantity of a training run → what its difference from RLOO is called.
QUANTITIES = {"training_reward": "mean reward over training", "held_out": "held-out success at the end"}


@dataclass(frozen=True)
class Trained:
    """One finished training run.

    Attributes:
        arm: of `ARMS`.
        seed: of problems and completions.
        steps: one row for each step, with `tokens` drawn so far and `mean_reward`.
        windows: mean reward in windows of equally many tokens.
        held_out: mean success on the held-out problems.
    """

    arm: str
    seed: int
    steps: pd.DataFrame
    windows: Float[np.ndarray, " windows"]
    held_out: float

    @property
    def training_reward(self) -> float:
        """The mean reward over all tokens."""
        return float(self.windows.mean())


def read_runs(folder: Path) -> tuple[dict[str, object], list[Trained]]:
    """Read the finished training runs of a folder: what they share, and the runs.

    Raises:
        SystemExit: when there are none.
    """
    found = [read_json(path) for path in sorted(folder.glob("*-seed-*.json"))]
    if not found:
        raise SystemExit(f"{folder} holds no finished training run: run train_with_estimators.py --out {folder}")
    training = found[0]["training"]
    runs = []
    for run in found:
        steps = pd.DataFrame(run["steps"])
        windows = reward_by_window(steps, training["tokens"])
        runs.append(Trained(run["arm"], run["seed"], steps, windows, float(np.mean(run["held_out"]))))
    return training, runs


def reward_by_window(steps: pd.DataFrame, tokens: int, windows: int = WINDOWS) -> Float[np.ndarray, " windows"]:
    """Return the mean reward in windows of equally many tokens; a step counts with the share of it that is inside."""
    ends = steps["tokens"].to_numpy(dtype=float)
    starts = np.concatenate([[0.0], ends[:-1]])
    edges = np.linspace(0.0, tokens, windows + 1)
    inside = np.minimum(ends[:, None], edges[1:]) - np.maximum(starts[:, None], edges[:-1])
    weights = np.maximum(inside, 0.0)
    return steps["mean_reward"].to_numpy(dtype=float) @ weights / weights.sum(axis=0)


def with_interval(values: Float[np.ndarray, " seeds"], name: str) -> dict[str, float]:
    """Return the mean over seeds with its interval, under a name; no interval for a single seed."""
    if len(values) < 2:
        found = (float(values.mean()) if len(values) else np.nan, np.nan, np.nan)
    else:
        found = mean_statistic(values).estimate().with_interval(CONFIDENCE_LEVEL)
    return dict(zip((name, f"{name}_low", f"{name}_high"), map(float, found), strict=True))


def curves(runs: Sequence[Trained], tokens: int) -> pd.DataFrame:
    """Return one row for each arm and window: the mean reward over the seeds, with its interval."""
    rows = []
    for arm, label in ARMS.items():
        of_seeds = np.array([run.windows for run in runs if run.arm == arm]).reshape(-1, WINDOWS)
        for place, values in enumerate(of_seeds.T if len(of_seeds) else ()):
            known = {"arm": arm, "estimator": label, "seeds": len(values), "tokens": (place + 0.5) * tokens / WINDOWS}
            rows.append(known | with_interval(values, "mean_reward"))
    return pd.DataFrame(rows)


def differences(runs: Sequence[Trained]) -> pd.DataFrame:
    """Return one row for each other arm and quantity: its difference from RLOO, paired by seed, with its interval."""
    rows = []
    for quantity in QUANTITIES:
        found = {(run.arm, run.seed): float(getattr(run, quantity)) for run in runs}
        for arm, label in ARMS.items():
            seeds = [seed for name, seed in found if name == arm and (WATCHED, seed) in found]
            if arm == WATCHED or not seeds:
                continue
            own, theirs = (np.array([found[name, seed] for seed in seeds]) for name in (arm, WATCHED))
            known = {"quantity": quantity, "arm": arm, "estimator": label, "seeds": len(seeds)}
            levels = {"level": own.mean(), "level_of_rloo": theirs.mean()}
            rows.append(known | levels | with_interval(own - theirs, "difference"))
    return pd.DataFrame(rows)


def measured_ratios(folder: Path) -> pd.DataFrame:
    """Return one row for each estimator: its matched ratio to RLOO along training, by the monitor.

    The logarithms of the ratios of the measured steps are averaged for each seed, and these means over the seeds.
    Measured steps whose ratio is not resolved are left out and counted.
    """
    records = [path for path in sorted(folder.glob("monitor-seed-*")) if is_sweep(path)]
    frames = [read_sweep(path).to_frame().assign(seed=path.name) for path in records]
    rows = []
    if not frames:
        return pd.DataFrame(rows)
    for label, of_label in pd.concat(frames, ignore_index=True).groupby("estimator", sort=False):
        logs = of_label.assign(log=np.log(of_label["matched_ratio"].where(of_label["matched_ratio"] > 0)))
        means = np.array([one["log"].mean() for _, one in logs.dropna(subset=["log"]).groupby("seed")], dtype=float)
        unresolved = int(np.isnan(logs["log"].to_numpy(dtype=float)).sum())
        known = {"estimator": label, "seeds": len(means), "measured": len(logs), "unresolved": unresolved}
        rows.append(known | {name: np.exp(log) for name, log in with_interval(means, "matched_ratio").items()})
    return pd.DataFrame(rows)


def draw_curves(table: pd.DataFrame, start: float, stem: Path) -> list[Path]:
    """Draw the mean reward of every arm against the tokens it drew, from the success of the checkpoint on."""
    with mpl.rc_context(style("icml", "half", height=2.4)):  # pyright: ignore[reportArgumentType]
        fig, ax = plt.subplots()
        arms = list(dict.fromkeys(table["arm"]))
        step = np.diff(np.unique(table["tokens"])).min() / 1000.0
        for place, arm in enumerate(arms):
            rows = table.loc[table["arm"] == arm]
            look = estimator_appearance(ARMS[arm])
            at = rows["tokens"].to_numpy() / 1000.0 + 0.12 * step * (place - (len(arms) - 1) / 2.0)
            ax.plot(at, rows["mean_reward"], linewidth=1.0, label=ARMS[arm], zorder=3, **look._asdict(), **edge())
            ax.vlines(at, rows["mean_reward_low"], rows["mean_reward_high"], color=look.color, linewidth=1.0, zorder=2)
        draw_landmark(ax, start, horizontal=True)
        ax.set(xlabel="thousand tokens drawn", ylabel="mean reward")
        ax.set_ylim(0.0, 1.0)
        legend_below(ax)
        paths = save_figure(fig, stem, source=table, overwrite=True)
        plt.close(fig)
    return paths


def draw_differences(table: pd.DataFrame, stem: Path) -> list[Path]:
    """Draw each arm's differences from RLOO as forests side by side."""
    with mpl.rc_context(style("icml", "half", height=1.5)):  # pyright: ignore[reportArgumentType]
        fig, axes = plt.subplots(1, len(QUANTITIES), sharey=True)
        ends = table[["difference", "difference_low", "difference_high"]].to_numpy(dtype=float).ravel()
        for ax, (quantity, words) in zip(axes, QUANTITIES.items(), strict=True):
            rows = table.loc[table["quantity"] == quantity]
            ax.set_xlim(*forest_limits(ends, logarithmic=False, landmark=0.0))
            draw_landmark(ax, 0.0)
            for place, row in enumerate(rows.to_dict("records")):
                look = estimator_appearance(str(row["estimator"]))
                estimate = (row["difference"], row["difference_low"], row["difference_high"])
                draw_row(ax, place, estimate, look.color, look.marker)
            set_rows(ax, [wrap_label(str(label)) for label in rows["estimator"]])
            plain_ticks(ax, logarithmic=False, most=4)
            ax.set_title(words, loc="left", fontsize="small")
            ax.set_xlabel("difference from rloo")
        paths = save_figure(fig, stem, source=table, overwrite=True)
        plt.close(fig)
    return paths


def main(results: Path = Path("runs/training"), out: Path = Path("figures/training")) -> None:
    """Summarise finished training runs; writes tables, two figures and a manifest, and prints the tables.

    Args:
        results: folder that `train_with_estimators.py` wrote.
        out: where tables and figures are written.
    """
    training, runs = read_runs(results)
    start = float(np.mean(read_json(results / "start.json")["held_out"]))
    tables = {
        "reward_curves": curves(runs, int(str(training["tokens"]))),
        "differences": differences(runs),
        "measured_ratios": measured_ratios(results),
        "held_out": pd.DataFrame([{"arm": run.arm, "seed": run.seed, "held_out": run.held_out} for run in runs]),
    }
    out.mkdir(parents=True, exist_ok=True)
    draw_curves(tables["reward_curves"], start, out / "reward_curves")
    if len(tables["differences"]):
        draw_differences(tables["differences"], out / "differences")
    for name in ("measured_ratios", "held_out"):
        write_csv(out / f"{name}.csv", tables[name])
    steps = pd.concat([run.steps.assign(arm=run.arm, seed=run.seed) for run in runs], ignore_index=True)
    write_csv(out / "steps.csv", steps, float_format="%.6g")
    about = {"experiment": "experiments/train_with_estimators.py", "training": training}
    write_json(out / "manifest.json", {**about, "held_out_at_the_start": start, **environment()})
    print(f"held-out success at the start: {start:.3f}\n")
    for name, table in tables.items():
        print(f"{name}\n{table.round(3).to_string(index=False)}\n")


if __name__ == "__main__":
    tyro.cli(main)
