"""Does training obey the critical batch? Steps to a reward against prompts per batch, by estimator and optimizer.

Enumerated policies of 32 prompts that share their parameters (`Task`) are trained: reward, gradient and noise are
known at every step, and all runs of an arm train at once. An arm is an optimizer, an estimator and a batch, and every
run begins with the uniform policy. Its learning rate is the one that is best for noiseless steps, times 1/(1 + B*/B)
for SGD, and its square root for Adam: McCandlish et al. (1812.06162) derive the first and find powers between ½ and 1
for Adam. As a control every arm is also trained at the best of a grid around that rate, chosen in runs of their own.
The critical batch B* is what `batch_size` measures on 1,000 prompts at four places along a noiseless run, evenly spaced
in steps. Their mean is the unit, since each stretch of noiseless steps takes 1 + B*/B times as many noisy ones. One run
of SGD is monitored, as the monitor in TRL's trainers does, beside what holds at its steps.

A step along Pĝ, with Adam's P, reaches 1/(1 + B*/B) of the improvement of a noiseless one with the B* in P^{1/2} where
the curvature is in proportion to 1/P, and with that in P where it is the same in all directions.

``python experiments/batch_sizes_in_training.py`` trains the arms that are missing in the folder of runs, and writes
tables and figures of those that are complete. It takes minutes.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tyro
from jaxtyping import Float, Int
from scipy.optimize import least_squares
from scipy.special import log_softmax, ndtri
from scipy.stats import binom

import gradstats as gs
from gradstats import estimators
from gradstats.analyses.batch_size import batch_size
from gradstats.config.options import CONFIDENCE_LEVEL
from gradstats.estimators import Batch
from gradstats.integrations.moving_batch import MovingBatch, silent_shares
from gradstats.plots import estimator_appearance, save_figure, style
from gradstats.plots.marks import draw_series, estimates_of, legend_below, with_ends
from gradstats.plots.names import variants
from gradstats.plots.style import muted, stroke
from gradstats.plots.variance import plain_ticks
from gradstats.reference.enumerated import EnumeratedPolicy
from gradstats.system.environment import environment
from gradstats.system.files import read_json, write_csv, write_json


@dataclass(frozen=True)
class Arm:
    """An estimator with its group size, as a legend names it."""

    label: str
    group_size: int

    @property
    def name(self) -> str:
        """The estimator and its completions."""
        return f"{self.label}, {self.group_size} completions"


ARMS = (Arm("reinforce", 4), Arm("rloo", 4), Arm("rloo", 16), Arm("gae", 4))
#: The arm that savings are relative to, and the largest batch in their mean.
REFERENCE, FEW = ARMS[1], 16
BATCHES = (2, 4, 8, 16, 32, 64, 128, 256)
OPTIMIZERS = ("sgd", "adam")
#: Random tasks, by seed; figures show the first.
TASKS = (1, 2, 3, 4, 5)
#: Where runs end, as a share of the way from the start to what long training reaches.
WAY = 0.7
#: Learning rate of the noiseless run along which the critical batch is measured: slow, so that it is smooth.
SLOW = 20.0
#: Runs of each arm that choose a rate, and that are reported.
CHOOSING, REPORTED = 10, 40
#: Learning rates of the control, in units of the rate that theory gives.
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
#: Places along a noiseless run at which the critical batch is measured, and prompts of each measurement.
PLACES, MEASURED = 4, 1000
#: The run of SGD that is monitored: what it learns from and what the monitor compares; prompts, steps and rate.
WATCHED, WATCHED_LABELS = REFERENCE, ("rloo", "reinforce", "gae")
WATCHED_BATCH, WATCHED_STEPS, WATCHED_RATE = 128, 80, 5.0
#: Prompts of the alignment that is measured there.
SHOWN_BATCH = 32
#: Columns of the critical batch: as measured, and as it is, in parameter space and in Adam's geometry.
UNITS = ("critical_batch", "exact", "exact_half_adam", "exact_adam")
#: Learning rates: that of theory, and the best of a grid around it.
KINDS = ("theory", "tuned")
#: Power of 1/(1 + B*/B) in the learning rate.
POWERS = {"sgd": 1.0, "adam": 0.5}


class Task:
    """Softmax policies over all sequences of up to three tokens, for prompts that share their parameters.

    The arrays of every method begin with the runs, each at parameters of its own. A reward is 1 for eight of
    the 15 sequences, chosen in part by a hidden policy of the same family: prompts agree in part on what to learn.

    Attributes:
        features: of every token after every prefix of every prompt, (prompts, prefixes, tokens, D).
        rewards: of every sequence of every prompt, (prompts, sequences).
        slots: prefix times the number of tokens plus token, of every token of every sequence, (sequences, 3).
        lengths: of the sequences.
    """

    vocabulary, longest, dimension, rewarded = 3, 3, 16, 8

    def __init__(self, seed: int, n_prompts: int = 32) -> None:
        """Draw features and rewards."""
        rng = np.random.default_rng(seed)
        prefixes: list[tuple[int, ...]] = [()]
        for prefix in prefixes:
            if len(prefix) < self.longest - 1:
                prefixes += [(*prefix, token) for token in range(1, self.vocabulary)]
        self.prefixes = {prefix: place for place, prefix in enumerate(prefixes)}
        self.sequences: list[tuple[int, ...]] = [
            (*prefix, token)
            for prefix in prefixes
            for token in range(self.vocabulary)
            if token == 0 or len(prefix) == self.longest - 1
        ]
        self.lengths = np.array([len(sequence) for sequence in self.sequences])
        self.mask = np.arange(self.longest) < self.lengths[:, None]
        self.slots = np.zeros(self.mask.shape, dtype=int)
        for row, sequence in enumerate(self.sequences):
            for t, token in enumerate(sequence):
                self.slots[row, t] = self.prefixes[sequence[:t]] * self.vocabulary + token
        # Sequences × slots: which tokens after which prefixes a sequence consists of.
        self.holds = np.zeros((len(self.sequences), len(prefixes) * self.vocabulary))
        np.put_along_axis(self.holds, self.slots, self.mask.astype(float), axis=1)
        self.holds[:, 0] = [sequence[0] == 0 for sequence in self.sequences]  # slot 0 also stands for no token
        shape = (n_prompts, len(prefixes), self.vocabulary, self.dimension)
        # Directions of different importance, so that Adam's geometry is another one.
        scales = np.arange(1.0, self.dimension + 1.0) ** -0.5
        self.features = rng.normal(size=shape) * scales / np.linalg.norm(scales)
        liked = log_softmax(self.features @ rng.normal(size=self.dimension), axis=-1).reshape(n_prompts, -1)
        liked = liked @ self.holds.T
        # Twice as much of the reward is each prompt's own as is shared, so that the best policy is not deterministic.
        ranks = np.argsort(np.argsort(-liked / liked.std() - 2.0 * rng.normal(size=liked.shape), axis=1), axis=1)
        self.rewards = (ranks < self.rewarded).astype(float)
        self._flat = self.features.reshape(-1, self.dimension)

    def log_pi(self, theta: Float[np.ndarray, "r d"]) -> Float[np.ndarray, "r p prefixes v"]:
        """Return the log-probability of every token after every prefix."""
        return log_softmax((theta @ self._flat.T).reshape(len(theta), *self.features.shape[:3]), axis=-1)

    def probabilities(self, log_pi: Float[np.ndarray, "r p prefixes v"]) -> Float[np.ndarray, "r p k"]:
        """Return the probability of every sequence of a prompt."""
        return np.exp(log_pi.reshape(*log_pi.shape[:2], -1) @ self.holds.T)

    def values(self, probabilities: Float[np.ndarray, "r p k"]) -> Float[np.ndarray, "r p k t"]:
        """Return the expected reward before each token of every sequence."""
        # Sequences × prefixes: which begin with which.
        begins = self.holds.reshape(len(self.sequences), -1, self.vocabulary).sum(axis=2)
        reached = probabilities @ begins
        of_prefix = np.divide((probabilities * self.rewards) @ begins, reached, where=reached > 0, out=0.0 * reached)
        return of_prefix[:, :, self.slots // self.vocabulary] * self.mask

    def gradient(
        self, weights: Float[np.ndarray, "r p slots"], log_pi: Float[np.ndarray, "r p prefixes v"]
    ) -> Float[np.ndarray, "r d"]:
        """Return the sum of token scores with the given weights."""
        weights = weights.reshape(log_pi.shape)
        return (weights - np.exp(log_pi) * weights.sum(axis=-1, keepdims=True)).reshape(len(weights), -1) @ self._flat

    def true_gradient(self, log_pi: Float[np.ndarray, "r p prefixes v"]) -> Float[np.ndarray, "r d"]:
        """Return the gradient of the expected reward."""
        weighted = self.probabilities(log_pi) * self.rewards
        return self.gradient(weighted @ self.holds, log_pi) / len(self.rewards)

    def expected_reward(self, log_pi: Float[np.ndarray, "r p prefixes v"]) -> Float[np.ndarray, " r"]:
        """Return the expected reward, over prompts and sequences."""
        return (self.probabilities(log_pi) * self.rewards).sum(axis=-1).mean(axis=-1)

    def enumerated(self, theta: Float[np.ndarray, " d"]) -> EnumeratedPolicy:
        """Return the policy at some parameters as the reference knows it."""
        rows = {sequence: row for row, sequence in enumerate(self.sequences)}
        return EnumeratedPolicy(
            self.vocabulary,
            self.longest,
            n_prompts=len(self.features),
            features=lambda prompt, prefix: self.features[prompt, self.prefixes[prefix]],
            reward=lambda prompt, sequence: float(self.rewards[prompt, rows[sequence]]),
            theta=theta,
        )

    def draw(
        self,
        log_pi: Float[np.ndarray, "r p prefixes v"],
        arm: Arm,
        n_prompts: int,
        rng: np.random.Generator,
    ) -> Groups:
        """Draw a batch of groups for each run."""
        probabilities = self.probabilities(log_pi)
        runs = np.arange(len(log_pi))[:, None]
        prompts = rng.integers(len(self.rewards), size=(len(log_pi), n_prompts))
        up_to = probabilities.cumsum(axis=-1)[runs, prompts, None, :-1]
        rows = (rng.random((*prompts.shape, arm.group_size, 1)) > up_to).sum(axis=-1)
        values = None
        if "values" in estimators.get(arm.label).needs:
            values = self.values(probabilities)[runs[..., None], prompts[..., None], rows].reshape(-1, self.longest)
        flat = rows.reshape(-1)
        batch = Batch(
            rewards=self.rewards[prompts[..., None], rows].reshape(-1),
            lengths=self.lengths[flat],
            groups=np.repeat(np.arange(prompts.size), arm.group_size),
            mask=self.mask[flat],
            values=values,
        )
        weights = estimators.get(arm.label).weights(batch)
        weights = (weights if weights.ndim == 2 else weights[:, None]) * self.mask[flat]
        return Groups(prompts, rows, weights.reshape(*rows.shape, -1))


@dataclass(frozen=True)
class Groups:
    """Groups of sequences for each run, and what an estimator makes of them.

    Attributes:
        prompts: of each group, (runs, groups).
        rows: the sequences, (runs, groups, completions).
        weights: of their tokens, (runs, groups, completions, 3).
    """

    prompts: Int[np.ndarray, "r b"]
    rows: Int[np.ndarray, "r b n"]
    weights: Float[np.ndarray, "r b n t"]

    def gradient(self, task: Task, log_pi: Float[np.ndarray, "r p prefixes v"]) -> Float[np.ndarray, "r d"]:
        """Return the mean of the gradients of each run's groups."""
        n_prompts, n_slots = len(task.rewards), task.holds.shape[1]
        at = np.arange(len(log_pi))[:, None] * n_prompts + self.prompts
        slots = at[..., None, None] * n_slots + task.slots[self.rows]
        summed = np.bincount(slots.reshape(-1), self.weights.reshape(-1), len(log_pi) * n_prompts * n_slots)
        return task.gradient(summed.reshape(len(log_pi), n_prompts, n_slots), log_pi) / self.prompts.shape[1]

    def n_tokens(self, task: Task) -> Int[np.ndarray, " r"]:
        """Return the tokens of each run."""
        return task.lengths[self.rows].sum(axis=(1, 2))


class Optimizer:
    """Ascent by plain SGD or by Adam, for several runs with a learning rate each."""

    betas, eps = (0.9, 0.99), 1e-8

    def __init__(self, name: str, rates: Float[np.ndarray, " r"], dimension: int) -> None:
        """Begin at parameters of zero."""
        self.name, self.rates, self.steps = name, rates[:, None], 0
        self.theta, self.first, self.second = np.zeros((3, len(rates), dimension))

    def step(self, gradient: Float[np.ndarray, "r d"]) -> None:
        """Move the parameters of every run."""
        self.steps += 1
        if self.name == "adam":
            (one, two), t = self.betas, self.steps
            self.first = one * self.first + (1.0 - one) * gradient
            self.second = two * self.second + (1.0 - two) * gradient**2
            gradient = self.first / (1.0 - one**t) / (np.sqrt(self.second / (1.0 - two**t)) + self.eps)
        self.theta = self.theta + self.rates * gradient

    def keep(self, runs: np.ndarray) -> None:
        """Go on with some of the runs."""
        self.rates, self.theta = self.rates[runs], self.theta[runs]
        self.first, self.second = self.first[runs], self.second[runs]


def train(
    task: Task,
    optimizer: str,
    rates: Float[np.ndarray, " r"],
    target: float,
    most_steps: int,
    arm: Arm | None = None,
    n_prompts: int = 0,
    seed: int = 0,
) -> Float[np.ndarray, "r 2"]:
    """Train until the expected reward reaches a target; returns steps and tokens, NaN for runs that do not.

    Steps are interpolated between the last two. Without an arm the gradient is the true one.
    """
    rng, moving = np.random.default_rng(seed), Optimizer(optimizer, rates, task.dimension)
    left, found = np.arange(len(rates)), np.full((len(rates), 2), np.nan)
    before, tokens, drawn = np.zeros(len(rates)), np.zeros(len(rates)), np.zeros(len(rates))
    for step in range(most_steps + 1):
        log_pi = task.log_pi(moving.theta)
        reward = task.expected_reward(log_pi)
        reached = reward >= target
        share = 1.0 - (target - before[reached]) / (reward[reached] - before[reached])
        steps = np.stack([step - share, tokens[reached] - share * drawn[reached]], axis=1)
        found[left[reached]] = steps
        moving.keep(~reached)
        left, log_pi = left[~reached], log_pi[~reached]
        tokens, before = tokens[~reached], reward[~reached]
        if not len(left):
            break
        if arm is None:
            moving.step(task.true_gradient(log_pi))
            drawn = np.zeros(len(left))
        else:
            groups = task.draw(log_pi, arm, n_prompts, rng)
            moving.step(groups.gradient(task, log_pi))
            drawn = groups.n_tokens(task)
        tokens = tokens + drawn
    return found


def best_noiseless(task: Task, optimizer: str, target: float) -> tuple[float, float]:
    """Return the smallest rate at which noiseless steps are within a tenth of the fewest, and their number."""
    rates = 10.0 ** np.arange(-1.0, 3.4, 0.1)
    steps = train(task, optimizer, rates, target, 2000)[:, 0]
    chosen = np.flatnonzero(steps <= 1.1 * np.nanmin(steps))[0]
    return float(rates[chosen]), float(steps[chosen])


def places_along(task: Task, target: float, rate: float) -> list[Float[np.ndarray, " d"]]:
    """Return the parameters at `PLACES` evenly spaced steps of slow noiseless SGD, from the start to the target."""
    moving, path = Optimizer("sgd", np.array([rate]), task.dimension), []
    while not path or task.expected_reward(task.log_pi(moving.theta))[0] < target:
        path.append(moving.theta[0])
        moving.step(task.true_gradient(task.log_pi(moving.theta)))
    return [path[round(at)] for at in np.linspace(0, len(path) - 1, PLACES)]


def critical_batches(task: Task, target: float, rate: float) -> pd.DataFrame:
    """Return what is measured at the places along a noiseless run, and what holds there, a row for each arm and place.

    What holds is the noise of 20,000 groups against the true gradient: in parameter space, and in those of Adam's
    steps, P^{1/2} and P of the diagonal P that the second moments of a group's gradient give.
    """
    records = []
    for place, theta in enumerate(places_along(task, target, rate)):
        log_pi, policy = task.log_pi(theta[None]), task.enumerated(theta)
        for number, arm in enumerate(ARMS):
            rng = np.random.default_rng([place, number])
            batch, scores, token_scores = policy.sample(MEASURED, arm.group_size, rng)
            scores = token_scores if estimators.get(arm.label).level == "token" else scores
            row = batch_size(batch, [arm.label], scores, prompts=SHOWN_BATCH, rng=0).to_frame().iloc[0]
            known = {"place": place, "estimator": arm.label, "group_size": arm.group_size}
            known |= {"reward": float(task.expected_reward(log_pi)[0])}
            measured = {column: row[column] for name in ("critical_batch", "alignment") for column in with_ends(name)}
            exact = exact_noise(task, arm, log_pi, (0.0, 0.5, 1.0), rng)
            records.append(known | measured | dict(zip(UNITS[1:], exact, strict=True)))
    return pd.DataFrame(records)


def exact_noise(
    task: Task,
    arm: Arm,
    log_pi: Float[np.ndarray, "1 p prefixes v"],
    powers: tuple[float, ...],
    rng: np.random.Generator,
) -> list[float]:
    """Return noise over signal from 20,000 groups and the true gradient, in the geometry of each power of P²."""
    true, many = task.true_gradient(log_pi)[0], np.repeat(log_pi, 500, axis=0)
    gradients = np.concatenate([task.draw(many, arm, 1, rng).gradient(task, many) for _ in range(40)])
    noise, second = ((gradients - true) ** 2).mean(axis=0), (gradients**2).mean(axis=0)
    return [float((noise * second**-power).sum() / (true**2 * second**-power).sum()) for power in powers]


def watched_run(task: Task) -> pd.DataFrame:
    """Return what a monitor logs at every step of a run, and at every tenth what holds there."""
    moving = Optimizer("sgd", np.array([WATCHED_RATE]), task.dimension)
    logs, rng = MovingBatch(), np.random.default_rng(0)
    records = []
    for step in range(WATCHED_STEPS):
        log_pi = task.log_pi(moving.theta)
        batch, scores, token_scores = task.enumerated(moving.theta[0]).sample(WATCHED_BATCH, WATCHED.group_size, rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of signals that a step alone does not resolve
            compared = gs.compare(batch, WATCHED_LABELS, token_scores)
            own = compared.rows[WATCHED_LABELS.index(WATCHED.label)]
        known = {"step": step, "reward": float(batch.rewards.mean())}
        known |= silent_shares(batch.rewards, batch.lengths, batch.group_index)
        known |= logs.add(compared.to_frame(), own, WATCHED_BATCH)
        if step % 10 == 0:
            one, best = (
                exact_noise(task, Arm(label, WATCHED.group_size), log_pi, (0.0,), np.random.default_rng(step))[0]
                for label in (WATCHED.label, WATCHED_LABELS[-1])
            )
            known |= {"critical_batch_exact": one, "alignment_exact": 1.0 / (1.0 + one / WATCHED_BATCH)}
            known |= {"best_saving_exact": 1.0 - best / one}
        records.append(known)
        moving.step((estimators.get(WATCHED.label).weights(batch) @ scores)[None] / WATCHED_BATCH)
    return pd.DataFrame(records)


def target_of(task: Task) -> float:
    """Return the expected reward at which runs end."""
    moving, rewards = Optimizer("sgd", np.array([SLOW]), task.dimension), []
    for _ in range(600):
        log_pi = task.log_pi(moving.theta)
        rewards.append(float(task.expected_reward(log_pi)[0]))
        moving.step(task.true_gradient(log_pi))
    return rewards[0] + WAY * (rewards[-1] - rewards[0])


def train_arms(folder: Path, seed: int) -> None:
    """Measure the critical batches of a task and train every arm that has no result yet."""
    folder.mkdir(parents=True, exist_ok=True)
    task = Task(seed)
    target = target_of(task)
    if not (folder / "critical_batch.csv").exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of prompts that carry much of the variance
            write_csv(folder / "critical_batch.csv", critical_batches(task, target, SLOW))
    units = units_of(pd.read_csv(folder / "critical_batch.csv"))["critical_batch"]
    for optimizer in OPTIMIZERS:
        path = folder / f"noiseless-{optimizer}.json"
        if not path.exists():
            rate, steps = best_noiseless(task, optimizer, target)
            write_json(path, {"target": target, "rate": rate, "steps": steps})
        noiseless = read_json(path)
        for arm, n_prompts in product(ARMS, BATCHES):
            path = folder / f"{optimizer}-{arm.label}-{arm.group_size}-{n_prompts}.json"
            if not path.exists():
                slower = 1.0 + units[arm.label, arm.group_size] / n_prompts
                rate = noiseless["rate"] / slower ** POWERS[optimizer]
                most_steps = round(10.0 * noiseless["steps"] * slower) + 50
                write_json(path, train_arm(task, optimizer, arm, n_prompts, rate, target, most_steps))
                print(path, flush=True)


def train_arm(
    task: Task, optimizer: str, arm: Arm, n_prompts: int, rate: float, target: float, most_steps: int
) -> dict[str, object]:
    """Train an arm at theory's rate, and at the rate of the grid that takes the fewest steps in runs of their own."""
    grid = np.array(FACTORS)
    tried = train(task, optimizer, np.repeat(rate * grid, CHOOSING), target, most_steps, arm, n_prompts, seed=1)
    # A run that does not arrive counts with all its steps.
    tried = np.where(np.isnan(tried[:, 0]), most_steps, tried[:, 0]).reshape(len(grid), -1)
    factor = float(grid[np.log(tried).mean(axis=1).argmin()])
    rates = {"theory": rate, "tuned": rate * factor}
    found = train(task, optimizer, np.repeat(list(rates.values()), REPORTED), target, most_steps, arm, n_prompts)
    runs = dict(zip(rates, found.reshape(2, REPORTED, 2), strict=True))
    about = {"optimizer": optimizer, "estimator": arm.label, "group_size": arm.group_size, "prompts": n_prompts}
    results: dict[str, object] = {
        kind: {"learning_rate": rates[kind], "steps": of_kind[:, 0].tolist(), "tokens": of_kind[:, 1].tolist()}
        for kind, of_kind in runs.items()
    }
    return about | {"factor": factor, "most_steps": most_steps} | results


def units_of(measured: pd.DataFrame) -> pd.DataFrame:
    """Return each arm's critical batch, the mean over the places along a run."""
    return pd.DataFrame(measured.groupby(["estimator", "group_size"], sort=False)[list(UNITS)].mean())


def median(values: Float[np.ndarray, " runs"], name: str) -> dict[str, float]:
    """Return the median over runs with the interval of its order statistics; runs without a value count as infinite."""
    ordered, n = np.sort(np.nan_to_num(values, nan=np.inf)), len(values)
    below = int(binom.ppf((1.0 - CONFIDENCE_LEVEL) / 2.0, n, 0.5))
    found = (float(np.median(ordered)), ordered[max(below - 1, 0)], ordered[min(n - below, n - 1)])
    return dict(zip(with_ends(name), (one if np.isfinite(one) else np.nan for one in found), strict=True))


def exact_steps(folder: Path, seed: int, units: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each trained arm of a task at each kind of rate: steps and tokens with their intervals."""
    records = []
    for optimizer, arm, n_prompts in product(OPTIMIZERS, ARMS, BATCHES):
        path = folder / f"{optimizer}-{arm.label}-{arm.group_size}-{n_prompts}.json"
        if not path.exists():
            continue
        trained, unit = read_json(path), float(units.loc[(arm.label, arm.group_size), "critical_batch"])
        known = {"task": seed, "optimizer": optimizer, "estimator": arm.label, "group_size": arm.group_size}
        known |= {"prompts": n_prompts}
        for kind in KINDS:
            runs = {name: np.array(trained[kind][name], dtype=float) for name in ("steps", "tokens")}
            about = {"rate": kind, "learning_rate": trained[kind]["learning_rate"], "factor": trained["factor"]}
            reached = int(np.isfinite(runs["steps"]).sum())
            about |= {"runs": len(runs["steps"]), "reached": reached, "in_units": n_prompts / unit}
            records.append(known | about | median(runs["steps"], "steps") | median(runs["tokens"], "tokens"))
    return pd.DataFrame(records)


def spreads(steps: pd.DataFrame, units: pd.DataFrame) -> pd.DataFrame:
    """Return how far the curves of the estimators are from one curve, by the unit of the batch.

    The curve is S_min (1 + κ u/B) with the unit u of each estimator, fitted to the logarithms of the steps; ``spread``
    is the exponential of the root mean square residual and ``largest`` that of the largest: factors of the steps.
    ``of_chance`` is the spread that the intervals of the steps account for.
    """
    records = []
    for optimizer, kind in product(OPTIMIZERS, KINDS):
        rows = steps.loc[(steps["optimizer"] == optimizer) & (steps["rate"] == kind) & steps["steps"].notna()]
        if rows.empty:
            continue
        of_rows = units.loc[list(zip(rows["estimator"], rows["group_size"], strict=True))]
        widths = np.log((rows["steps_high"] / rows["steps_low"]).to_numpy(dtype=float))
        of_chance = np.exp(np.sqrt(np.mean((widths / (2.0 * ndtri(0.5 + CONFIDENCE_LEVEL / 2.0))) ** 2)))
        together = np.full(len(rows), np.exp(np.log(units["critical_batch"]).mean()))
        for unit, values in {"prompts": together, **{name: of_rows[name].to_numpy() for name in UNITS}}.items():
            x, y = values / rows["prompts"].to_numpy(), np.log(rows["steps"].to_numpy())
            (least, factor), residuals = common_curve(x, y)
            known = {"optimizer": optimizer, "rate": kind, "unit": unit, "arms": len(rows)}
            found = {"spread": np.exp(np.sqrt((residuals**2).mean())), "largest": np.exp(np.abs(residuals).max())}
            fitted = {"least_steps": least, "factor_of_unit": factor}
            records.append(known | found | {"of_chance": of_chance} | fitted)
    return pd.DataFrame(records)


def common_curve(
    x: Float[np.ndarray, " n"], log_steps: Float[np.ndarray, " n"]
) -> tuple[tuple[float, float], Float[np.ndarray, " n"]]:
    """Fit log S = log S_min + log(1 + κ x); returns S_min and κ, and the residuals."""

    def residuals(logs: Float[np.ndarray, " 2"]) -> Float[np.ndarray, " n"]:
        return log_steps - logs[0] - np.log1p(np.exp(logs[1]) * x)

    fitted = least_squares(residuals, [log_steps.min(), 0.0])
    least, factor = np.exp(fitted.x)
    return (float(least), float(factor)), residuals(fitted.x)


def savings(steps: pd.DataFrame, units: pd.DataFrame) -> pd.DataFrame:
    """Return steps and tokens of each arm over those of `rloo` with 4 completions, and the steps that are predicted.

    They are geometric means over the batches of up to 16 prompts, at the rate of theory.
    """
    few = steps.loc[(steps["rate"] == KINDS[0]) & (steps["prompts"] <= FEW)]
    records = []
    for optimizer, rows in few.groupby("optimizer", sort=False):
        of_arms = np.log(rows.set_index(["estimator", "group_size", "prompts"])[["steps", "tokens"]].sort_index())
        for arm in ARMS:
            if arm == REFERENCE:
                continue
            own, theirs = (of_arms.loc[(one.label, one.group_size)] for one in (arm, REFERENCE))
            steps_over, tokens_over = np.exp((own - theirs).mean())
            predicted = [
                np.log1p(units.loc[(one.label, one.group_size), "critical_batch"] / own.index.to_numpy(dtype=float))
                for one in (arm, REFERENCE)
            ]
            known = {"optimizer": optimizer, "estimator": arm.label, "group_size": arm.group_size}
            ratios = {"observed": steps_over, "predicted": np.exp((predicted[0] - predicted[1]).mean())}
            records.append(known | ratios | {"tokens": tokens_over})
    return pd.DataFrame(records)


def sentences(spread: pd.DataFrame, saved: pd.DataFrame) -> list[str]:
    """Return what the tables of all tasks say, geometric means over tasks, as docs/training.md states it."""

    def over_tasks(table: pd.DataFrame, name: str, **where: object) -> str:
        rows = np.logical_and.reduce([table[column] == value for column, value in where.items()])
        return f"{np.exp(np.log(table.loc[rows, name]).mean()):.2f}"

    def row(title: str, name: str, unit: str, rate: str = KINDS[0]) -> str:
        cells = [over_tasks(spread, name, rate=rate, unit=unit, optimizer=optimizer) for optimizer in OPTIMIZERS]
        return f"| {' | '.join([title, *cells])} |"

    def span(name: str, optimizer: str) -> str:
        rows = (spread["optimizer"] == optimizer) & (spread["rate"] == KINDS[0]) & (spread["unit"] == UNITS[0])
        return f"{spread.loc[rows, name].min():.2f} to {spread.loc[rows, name].max():.2f}"

    found = [
        row("batches in prompts", "spread", "prompts"),
        row("in measured critical batches", "spread", UNITS[0]),
        row("by chance", "of_chance", UNITS[0]),
        row("tuned rates, in prompts", "spread", "prompts", KINDS[1]),
        row("tuned rates, in critical batches", "spread", UNITS[0], KINDS[1]),
        row("by chance", "of_chance", UNITS[0], KINDS[1]),
        f"among tasks it is {span('factor_of_unit', 'sgd')} with SGD and {span('factor_of_unit', 'adam')} with Adam.",
    ]
    for arm in ARMS:
        if arm != REFERENCE:
            of_arm = {"estimator": arm.label, "group_size": arm.group_size}
            seen = [over_tasks(saved, "observed", **of_arm, optimizer=optimizer) for optimizer in OPTIMIZERS]
            cells = [f"`{arm.label}`, {arm.group_size}", *seen, over_tasks(saved, "predicted", **of_arm)]
            found.append(f"| {' | '.join([*cells, over_tasks(saved, 'tokens', **of_arm, optimizer='sgd')])} |")
    return found


def draw_steps(steps: pd.DataFrame, spread: pd.DataFrame) -> None:
    """Draw steps of the first task against prompts and against critical batches, a column for each optimizer.

    Lines and intervals are of theory's rates, open marks of tuned ones; the dashed line is the fitted curve.
    """
    steps, spread = (frame.loc[frame["task"] == TASKS[0]] for frame in (steps, spread))
    width = plt.rcParams["figure.figsize"][0]
    _, axes = plt.subplots(2, len(OPTIMIZERS), figsize=(width, 4.4), sharey=True, sharex="row")
    kinds = variants([arm.label for arm in ARMS])
    for column, optimizer in enumerate(OPTIMIZERS):
        for row, x in enumerate(("prompts", "in_units")):
            ax = axes[row, column]
            ax.set(xscale="log", yscale="log")
            for arm, kind in zip(ARMS, kinds, strict=True):
                of_arm = steps.loc[
                    (steps["optimizer"] == optimizer)
                    & (steps["estimator"] == arm.label)
                    & (steps["group_size"] == arm.group_size)
                ]
                look = estimator_appearance(arm.label)
                theory, tuned = (of_arm.loc[of_arm["rate"] == name] for name in KINDS)
                label = arm.name if row == column == 0 else None
                draw_series(ax, theory[x].to_numpy(), estimates_of(theory, "steps"), look, kind, label)
                face = {"markerfacecolor": "none", "markeredgecolor": look.color}
                ax.plot(tuned[x], tuned["steps"], linestyle="none", marker=look.marker, zorder=2, **face)
            of_curve = (spread["optimizer"] == optimizer) & (spread["rate"] == KINDS[0]) & (spread["unit"] == UNITS[0])
            for fit in spread.loc[of_curve].to_dict("records") if x == "in_units" else ():
                left, right = ax.get_xlim()
                at = np.geomspace(left, right, 100)
                curve = fit["least_steps"] * (1.0 + fit["factor_of_unit"] / at)
                ax.plot(at, curve, color=muted(), linestyle=(0, (4, 2)), linewidth=stroke(0.8), zorder=1)
            plain_ticks(ax, logarithmic=True, most=4)
            plain_ticks(ax, logarithmic=True, most=4, vertical=True)
            ax.set_xlabel("prompts per batch" if x == "prompts" else "batch in measured critical batches")
        axes[0, column].set_title({"sgd": "SGD", "adam": "Adam"}[optimizer])
    for ax in axes[:, 0]:
        ax.set_ylabel("steps to the target")
    legend_below(axes[0, 0])


def draw_watched(watched: pd.DataFrame) -> None:
    """Draw what the monitor logs against the step, bands of its intervals, and what holds, dashed."""
    width = plt.rcParams["figure.figsize"][0]
    _, axes = plt.subplots(2, 2, figsize=(width, 3.6), sharex=True)
    step, own = watched["step"].to_numpy(), estimator_appearance(WATCHED.label).color
    labels = {
        "critical_batch": "critical batch in prompts",
        "alignment": f"alignment of {WATCHED_BATCH} prompts",
        "best_saving": "prompts saved by the best",
    }
    for ax, (name, label) in zip(axes.flat, labels.items(), strict=False):
        value, low, high = estimates_of(watched, name).T
        if name == "critical_batch":  # an end that is not logged lies above the axis
            above = 3.0 * np.nanmax(value)
            high = np.where(np.isfinite(low), np.nan_to_num(np.minimum(high, above), nan=above), np.nan)
            ax.set(yscale="log", ylim=(np.nanmin(low) / 1.5, above))
            plain_ticks(ax, logarithmic=True, vertical=True)
        ax.fill_between(step, low, high, color=own, alpha=0.25, linewidth=0)
        ax.plot(step, value, color=own, linewidth=stroke(1.2), label="moving estimate")
        known = watched.loc[watched[f"{name}_exact"].notna()]
        ax.plot(known["step"], known[f"{name}_exact"], color=muted(), linestyle=(0, (4, 2)), label="exact")
        ax.set_ylabel(label)
    axes[0, 1].set_ylim(0.0, 1.0)
    axes[1, 1].plot(step, watched["reward"], color=muted(), linewidth=stroke(1.0), label="mean reward")
    axes[1, 1].plot(step, watched["silent_tokens"], color=own, linewidth=stroke(1.0), label="tokens without signal")
    axes[1, 1].set(ylim=(0.0, 1.0), ylabel="share of the batch")
    axes[0, 0].legend()
    axes[1, 1].legend()
    for ax in axes[1]:
        ax.set_xlabel("training step")


def main(runs: Path = Path("runs/batch_sizes"), out: Path = Path("figures/batch_size_training")) -> None:
    """Train what is missing, and write tables and figures.

    Args:
        runs: folder of the results of each arm; the same command resumes there.
        out: folder of tables and figures.
    """
    runs.mkdir(parents=True, exist_ok=True)
    for seed in TASKS:
        train_arms(runs / f"task-{seed}", seed)
    if not (runs / "monitored.csv").exists():
        write_csv(runs / "monitored.csv", watched_run(Task(TASKS[0])))
    write_results(runs, out)


def write_results(runs: Path, out: Path) -> None:
    """Write tables and figures of the arms that are complete."""
    out.mkdir(parents=True, exist_ok=True)
    of_tasks = [
        folder for folder in (runs / f"task-{seed}" for seed in TASKS) if (folder / "critical_batch.csv").exists()
    ]
    measured, steps, spread, saved, noiseless = [], [], [], [], {}
    for folder in of_tasks:
        seed = int(folder.name.removeprefix("task-"))
        measured.append(pd.read_csv(folder / "critical_batch.csv").assign(task=seed))
        units = units_of(measured[-1])
        steps.append(exact_steps(folder, seed, units))
        spread.append(spreads(steps[-1], units).assign(task=seed))
        saved.append(savings(steps[-1], units).assign(task=seed))
        noiseless[folder.name] = {path.stem: read_json(path) for path in sorted(folder.glob("noiseless-*.json"))}
    tables = [pd.concat(frames, ignore_index=True) for frames in (measured, steps, spread, saved)]
    for name, table in (("critical_batch", tables[0]), ("spread", tables[2]), ("savings", tables[3])):
        write_csv(out / f"{name}.csv", table)
    print("\n".join(sentences(*tables[2:])))
    monitored = pd.read_csv(runs / "monitored.csv")
    pictures = {"steps": (draw_steps, (tables[1], tables[2])), "monitored": (draw_watched, (monitored,))}
    with mpl.rc_context(style("iclr")):  # pyright: ignore[reportArgumentType]
        for name, (draw, tables) in pictures.items():
            draw(*tables)
            save_figure(plt.gcf(), out / name, source=tables[0], overwrite=True)
            plt.close("all")
    about = {"script": Path(__file__).name, "noiseless": noiseless}
    write_json(out / "manifest.json", about | environment())


if __name__ == "__main__":
    tyro.cli(main)
