"""The populations that data sets are drawn from to see how often intervals cover: each has one entry in POPULATIONS.

Those named *difficulty* are infinite: easy, middling and hard prompts with 0/1 rewards, lengths that depend on success,
and norms and directions of which each prompt has a part of its own, that of the norms correlated with difficulty; the
norms are integrated out of their moments in closed form. Those named *lognormal* and *measured* are finite, so that
what is estimated is known exactly. Policies are enumerated. Scenarios of α are lines through simulated lengths.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from safetensors.numpy import load_file

from gradstats import estimators
from gradstats.estimators import Batch
from gradstats.reference import EnumeratedPolicy
from gradstats.stats import fit_length_scaling
from gradstats.stats.length_scaling.alpha import LengthScalingFit

MEASURED = Path(__file__).parent / "data" / "heavy_tailed_population.safetensors"
#: Rows whose batches are dealt.
BATCH_LEVEL = ("batch_mean", "james_stein", "constant(b=optimal)")
LOCAL = ("rloo", "reinforce", "grpo", "token_mean", "length_weighted(alpha=0.8, loo=True)", "recipe:grpo")
METHODS = {"alpha": "ols", "alpha within prompts": "within_prompt"}
PER_PROMPT = 8
PROMPTS_OF_A_POPULATION = 2000
DIMENSION = 48
#: Batches, and prompts of an infinite population, that its truth is averaged over.
BATCHES, PROMPTS = 4000, 60_000

#: Completions of one prompt at each total of sequences, where prompts repeat.
REPEATED = {30: 3, 100: 4, 1000: 8}
ALPHA_WITHIN, ALPHA_BETWEEN = 0.7, 0.9
SD_WITHIN, SD_BETWEEN = 0.4, 0.6
ONE_SLOPE = "prompts repeat, one slope"
SCENARIOS = ("equal noise", "noise varies with length", "prompts repeat", ONE_SLOPE)
#: Fits of the mean of ‖S‖², not of the mean of its logarithm.
MEAN_METHODS = ("gamma", "ppml")

Gradients = Float[np.ndarray, "m d"]
Truth = dict[tuple[str, str], float]
#: The expectation of a gradient, and of its square.
Moments = tuple[Float[np.ndarray, " d"], float]


def gradients_of(weights: Float[np.ndarray, " n"], batch: Batch, scores: Float[np.ndarray, "n d"]) -> Gradients:
    """The gradient of each prompt's group."""
    size = len(weights) // len(batch.group_sizes)
    return (weights[:, None] * scores).reshape(-1, size, scores.shape[1]).sum(axis=1)


def truth_of(population: "Population") -> Truth:
    """(estimator, quantity) → what it is, from the expectation of gradients and of their squares."""
    means, traces = {}, {}
    for name in LOCAL:
        means[name], square = population.moments(estimators.get(name).weights(population.whole()))
        traces[name] = square - float(means[name] @ means[name])
    unbiased, found = means["rloo"], {}
    for name, mean in means.items():
        known = estimators.get(name).expected_scale(PER_PROMPT)
        scale = float(mean @ unbiased / (unbiased @ unbiased)) if known is None else known
        bias_sq, turned = (float(((one - unbiased) ** 2).sum()) for one in (mean, mean / scale))
        values = {
            "trace_cov": traces[name],
            "ratio": traces[name] / traces["rloo"],
            "matched_ratio": traces[name] / traces["rloo"] / scale**2,
            "critical_batch": traces[name] / scale**2 / (unbiased @ unbiased),
            "cosine": mean @ unbiased / np.sqrt((mean @ mean) * (unbiased @ unbiased)),
            "bias_share": bias_sq / (bias_sq + traces[name] / 128),
            "matched_bias_share": turned / (turned + traces[name] / scale**2 / 128),
        }
        found |= {(name, quantity): float(value) for quantity, value in values.items()}
    return found


@dataclass(frozen=True)
class Finite:
    """Prompts with eight completions each, in the order of prompts; samples are drawn with replacement."""

    rewards: Float[np.ndarray, " n"]
    lengths: Int[np.ndarray, " n"]
    scores: Float[np.ndarray, "n d"]

    def sample(self, prompts: Int[np.ndarray, " m"]) -> tuple[Batch, Float[np.ndarray, "n d"]]:
        """Some prompts, each as a prompt of its own however often it is drawn."""
        rows = (prompts[:, None] * PER_PROMPT + np.arange(PER_PROMPT)).ravel()
        labels, scores = np.repeat(np.arange(len(prompts)), PER_PROMPT), self.scores[rows]
        return Batch(self.rewards[rows], self.lengths[rows], labels, sq_norms=(scores**2).sum(axis=1)), scores

    def draw(self, n_prompts: int, rng: np.random.Generator) -> tuple[Batch, Float[np.ndarray, "n d"]]:
        """A data set."""
        return self.sample(rng.integers(0, self.n_prompts, n_prompts))

    @property
    def n_prompts(self) -> int:
        """Prompts of the population."""
        return len(self.rewards) // PER_PROMPT

    def whole(self, size: int = PER_PROMPT) -> Batch:
        """All of it."""
        return self.sample(np.arange(self.n_prompts))[0]

    def moments(self, weights: Float[np.ndarray, " n"], size: int = PER_PROMPT) -> Moments:
        """The expectation of the gradient with these weights of the whole, and of its square."""
        gradients = gradients_of(weights, self.whole(), self.scores)
        return gradients.mean(axis=0), float((gradients**2).sum(axis=1).mean())

    @cached_property
    def truth(self) -> Truth:
        """What it is of estimators that stay within their group, and of α."""
        found = {(quantity, quantity): line_of(self.whole(), method).alpha for quantity, method in METHODS.items()}
        return truth_of(self) | found


@dataclass(frozen=True)
class Difficulty:
    r"""An infinite population whose :math:`\log‖S‖ = 0.6\log T + sd\,(u + e)/\sqrt2`, u and e of unit size.

    The part u is of the prompt, :math:`0.6h + 0.8z` with its difficulty h.

    Attributes:
        sd: of log‖S‖ about its line.
        signal: how far directions lean towards one axis with the advantage; 4 gives critical batches of 5 to 36.
    """

    sd: float
    signal: float

    def directions(
        self, n_prompts: int, rng: np.random.Generator, size: int = PER_PROMPT
    ) -> tuple[Batch, Gradients, Float[np.ndarray, " m"]]:
        """All but the norms: rewards and lengths, unit vectors, and the difficulty of each prompt."""
        prompt = np.repeat(np.arange(n_prompts), size)
        n, level = len(prompt), np.array([0.9, 0.5, 0.1])[rng.choice(3, n_prompts, p=[0.4, 0.3, 0.3])]
        rate = np.clip(level + rng.normal(0.0, 0.04, n_prompts), 0.01, 0.99)
        rewards = (rng.random(n) < rate[prompt]).astype(float)
        log_length = rng.normal(4.6, 0.45, n) - 0.35 * rewards + 0.3 * rng.normal(size=n_prompts)[prompt]
        units = rng.normal(size=(n, DIMENSION)) + 0.5 * rng.normal(size=(n_prompts, DIMENSION))[prompt]
        units[:, 0] += 0.15 * np.sqrt(DIMENSION) * self.signal * (rewards - rate[prompt])
        units /= np.linalg.norm(units, axis=1, keepdims=True)
        batch = Batch(rewards, np.ceil(np.exp(log_length)).astype(int), prompt, sq_norms=np.ones(n))
        return batch, units, (0.5 - rate) / 0.33

    def draw(self, n_prompts: int, rng: np.random.Generator) -> tuple[Batch, Float[np.ndarray, "n d"]]:
        """A data set."""
        batch, units, hard = self.directions(n_prompts, rng)
        shared = 0.6 * hard + 0.8 * rng.normal(size=n_prompts)
        noise = np.sqrt(0.5) * (shared[batch.group_index] + rng.normal(size=len(units)))
        norms = batch.lengths**0.6 * np.exp(self.sd * noise)
        return batch.with_fields(sq_norms=norms**2), units * norms[:, None]

    @cache  # noqa: B019  a population lives as long as the simulation
    def parts(self, size: int) -> tuple[Batch, Gradients, Float[np.ndarray, " m"]]:
        """Many prompts without their norms, that the truth is averaged over."""
        return self.directions(PROMPTS * PER_PROMPT // size, np.random.default_rng(99), size)

    def whole(self, size: int = PER_PROMPT) -> Batch:
        """Their completions."""
        return self.parts(size)[0]

    def moments(self, weights: Float[np.ndarray, " n"], size: int = PER_PROMPT) -> Moments:
        r"""The expectation of the gradient with these weights, and of its square.

        With :math:`E e^{aZ} = e^{a²/2}` for the normal parts of the norms.
        """
        batch, units, hard = self.parts(size)
        own, half = 0.5 * self.sd**2, np.sqrt(0.5) * self.sd
        lifted = np.exp(0.6 * half * hard + 0.64 * own / 2.0)  # E e^{sd·u/√2} of each prompt
        lifted_sq = np.exp(1.2 * half * hard + 0.64 * own * 2.0)  # of its square
        each = gradients_of(weights, batch, units * (batch.lengths**0.6)[:, None])
        diagonal = (weights**2 * batch.lengths**1.2).reshape(-1, size).sum(axis=1)
        pairs = (each**2).sum(axis=1) - diagonal
        square = float(np.mean(lifted_sq * (diagonal * np.exp(2.0 * own) + pairs * np.exp(own))))
        return (each * lifted[:, None]).mean(axis=0) * np.exp(own / 2.0), square

    @cached_property
    def truth(self) -> Truth:
        """What it is of estimators that stay within their group, and of α."""
        batch, _, hard = self.parts(PER_PROMPT)
        log_length = np.log(batch.lengths)
        slope = np.cov(log_length, hard[batch.group_index])[0, 1] / np.var(log_length)
        alpha = 0.6 + 0.6 * np.sqrt(0.5) * self.sd * slope
        return truth_of(self) | {("alpha", "alpha"): float(alpha), ("alpha within prompts",) * 2: 0.6}


Population = Finite | Difficulty


def line_of(batch: Batch, method: str) -> LengthScalingFit:
    """The fit of α by one method."""
    return fit_length_scaling(
        lengths=batch.lengths.astype(float), sq_norms=batch.sq_norms, groups=batch.group_index, method=method
    )


def dealt_truth(population: Population, n_prompts: int) -> Truth:
    """The traces and ratios of batch-level estimators in batches as a comparison of so many prompts deals them.

    The mean over 4000 batches; its error is about 2 %.
    """
    size, rng = max(1, n_prompts // 4), np.random.default_rng(7)
    draws = [population.draw(size, rng) for _ in range(BATCHES)]
    local = np.array([estimators.get("rloo").weights(batch) @ scores / size for batch, scores in draws])
    found = {}
    for name in BATCH_LEVEL:
        dealt = np.array([estimators.get(name).weights(batch) @ scores / size for batch, scores in draws])
        # The ratio of the two on the same batches is far less noisy than either.
        found[name, "ratio"] = float(dealt.var(axis=0).sum() / local.var(axis=0).sum())
        found[name, "trace_cov"] = found[name, "ratio"] * population.truth["rloo", "trace_cov"]
    return found


def lognormal_population(sd: float, shared: float = 0.0) -> Finite:
    """Prompts of different difficulty, wrong answers longer, and lognormal squared norms about T^1.4.

    Args:
        sd: standard deviation of log‖S‖² about its line.
        shared: the share of its square that the completions of a prompt have in common.
    """
    rng = np.random.default_rng(int(10 * sd))
    n = PROMPTS_OF_A_POPULATION * PER_PROMPT
    prompt = np.repeat(np.arange(PROMPTS_OF_A_POPULATION), PER_PROMPT)
    difficulty = rng.beta(1.5, 1.5, PROMPTS_OF_A_POPULATION)[prompt]
    rewards = (rng.random(n) < difficulty).astype(float)
    lengths = np.ceil(np.exp(rng.normal(4.5, 0.4, n) - 0.2 * rewards)).astype(int)
    common = np.random.default_rng(1).normal(size=PROMPTS_OF_A_POPULATION)[prompt]
    log_sq = 1.4 * np.log(lengths) + sd * (np.sqrt(1.0 - shared) * rng.normal(size=n) + np.sqrt(shared) * common)
    directions = rng.normal(size=(n, DIMENSION)) + 0.3 * rng.normal(size=(PROMPTS_OF_A_POPULATION, DIMENSION))[prompt]
    directions += 0.35 * np.where(rewards == 1.0, 1.0, -difficulty / (1.0 - 0.999 * difficulty))[:, None] / 4.0
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return Finite(rewards, lengths, directions * np.exp(0.5 * log_sq)[:, None])


def heavy_tailed_population() -> tuple[Batch, Float[np.ndarray, "n n"]]:
    """The completions of benchmarks/data, with the inner products of their scores, few of which hold most of Σ‖S‖²."""
    arrays = load_file(MEASURED)
    gram = arrays["gram"].astype(np.float64)
    return Batch(arrays["rewards"], arrays["lengths"], arrays["groups"], sq_norms=np.diag(gram)), gram


def measured_population() -> Finite:
    """The 96 prompts of benchmarks/data, as vectors with their Gram matrix."""
    batch, gram = heavy_tailed_population()
    values, vectors = np.linalg.eigh(gram)
    scores = vectors * np.sqrt(np.maximum(values, 0.0))
    order = np.argsort(batch.group_index, kind="stable")
    return Finite(batch.rewards[order], batch.lengths[order], scores[order])


def true_alpha(scenario: str, method: str, n: int) -> float:
    """The α a fit estimates: half the slope of the line that its method describes, in the population.

    Mundlak's test estimates the difference of α between and within prompts.
    """
    if method == "mundlak":
        return true_alpha(scenario, "between_prompt", n) - true_alpha(scenario, "within_prompt", n)
    if scenario != "prompts repeat":
        return ALPHA_BETWEEN
    within, between = SD_WITHIN**2, SD_BETWEEN**2
    if method == "within_prompt":
        return ALPHA_WITHIN
    if method == "between_prompt":  # the means over k completions keep 1/k of the variation within prompts
        within = within / REPEATED[n]
    return (ALPHA_WITHIN * within + ALPHA_BETWEEN * between) / (within + between)


def draw(scenario: str, method: str, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log T, log‖S‖² and the prompt of n sequences."""
    repeat = REPEATED[n] if scenario.startswith("prompts repeat") else 1
    m = -(-n // repeat)
    prompt = np.repeat(np.arange(m), repeat)[:n]
    centre = rng.normal(0.0, SD_BETWEEN, m)[prompt]
    deviation = rng.normal(0.0, SD_WITHIN, n)
    x = centre + deviation
    scale = np.ones(n) if scenario == "equal noise" else 0.4 + 0.6 * np.abs(x)
    noise = scale * (0.6 * rng.normal(size=m)[prompt] + 0.7 * rng.normal(size=n))
    if method in MEAN_METHODS:  # here the mean of ‖S‖² follows a power law, not the mean of its logarithm
        noise = noise - scale**2 * (0.6**2 + 0.7**2) / 2.0
    within = ALPHA_WITHIN if scenario == "prompts repeat" else ALPHA_BETWEEN
    return x + 4.5, 2.0 * ALPHA_BETWEEN * centre + 2.0 * within * deviation + noise, prompt


def light_tails() -> EnumeratedPolicy:
    """Twenty prompts of fifteen trajectories, of 1 to 3 tokens."""
    return EnumeratedPolicy(vocabulary=3, max_length=3, dimension=6, n_prompts=20, rng=3)


def little_signal() -> EnumeratedPolicy:
    """20 prompts with 15 trajectories each and rewards at random."""
    return EnumeratedPolicy(vocabulary=3, max_length=3, dimension=6, n_prompts=20, rng=1)


def resolved_signal() -> EnumeratedPolicy:
    """20 prompts with 15 trajectories each, of all success rates, whose gradients share a direction."""
    difficulty = np.random.default_rng(3).normal(scale=1.2, size=20)

    def features(prompt: int, prefix: tuple[int, ...]) -> np.ndarray:
        drawn = np.random.default_rng([prompt, *prefix, 7]).normal(size=(3, 2))
        drawn[:, 0] = (0.0, 1.0, -1.0)
        return drawn

    def reward(prompt: int, tokens: tuple[int, ...]) -> float:
        return float(tokens.count(1) - tokens.count(2) + difficulty[prompt] > 0.3)

    theta = np.array([0.2, 0.3])
    return EnumeratedPolicy(3, 3, n_prompts=20, features=features, reward=reward, theta=theta)


def older_policy() -> EnumeratedPolicy:
    """Token ratios between 0.38 and 1.49, χ² = 0.15, and plain RLOO at cosine 0.66 to ∇J."""
    rng = np.random.default_rng(244)
    theta = rng.normal(scale=0.5, size=4)
    return EnumeratedPolicy(3, 4, n_prompts=2, theta=theta, old_theta=theta + 0.2 * rng.normal(size=4), rng=144)


@dataclass(frozen=True)
class Proxied:
    """Prompts with 0/1 rewards, wrong answers longer; lognormal squared norms, half of whose spread a prompt shares.

    Attributes:
        spread: the standard deviation of log‖S‖² about its line.
    """

    spread: float
    n_prompts = 10_000

    @cached_property
    def whole(self) -> tuple[Batch, Float[np.ndarray, "n d"]]:
        """All completions and their scores."""
        rng, m, dimension = np.random.default_rng(3), self.n_prompts, 8
        prompt = np.repeat(np.arange(m), PER_PROMPT)
        level = rng.beta(1.5, 1.5, m)[prompt]
        rewards = (rng.random(len(prompt)) < level).astype(float)
        lengths = np.ceil(np.exp(rng.normal(4.5, 0.4, len(prompt)) - 0.3 * rewards)).astype(int)
        noise = np.sqrt(0.5) * (rng.normal(size=m)[prompt] + rng.normal(size=len(prompt)))
        directions = rng.normal(size=(len(prompt), dimension)) + 0.3 * rng.normal(size=(m, dimension))[prompt]
        directions[:, 0] += 0.5 * (rewards - level)
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        scores = directions * np.exp(0.5 * (1.4 * np.log(lengths) + self.spread * noise))[:, None]
        return Batch(rewards, lengths, prompt), scores

    def trace(self, label: str) -> float:
        """Return tr Cov of an estimator in the population."""
        batch, scores = self.whole
        gradients = gradients_of(estimators.get(label).weights(batch), batch, scores)
        return float((gradients**2).sum(axis=1).mean() - (gradients.mean(axis=0) ** 2).sum())

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Batch, Float[np.ndarray, "n d"]]:
        """A data set of some prompts."""
        (batch, scores), chosen = self.whole, rng.integers(0, self.n_prompts, n)
        rows = (chosen[:, None] * PER_PROMPT + np.arange(PER_PROMPT)).ravel()
        prompts = np.repeat(np.arange(n), PER_PROMPT)
        return Batch(batch.rewards[rows], batch.lengths[rows], prompts), scores[rows]


#: Every population, in the order of the tables.
POPULATIONS: dict[str, Callable[[], Any]] = {
    "lognormal, sd 0.8": partial(lognormal_population, 0.8),
    "lognormal, sd 1.4": partial(lognormal_population, 1.4),
    "lognormal, sd 1.4, shared": partial(lognormal_population, 1.4, 0.9),
    "lognormal, sd 2": partial(lognormal_population, 2.0),
    "measured, sd 2.0": measured_population,
    "difficulty, sd 0.5": partial(Difficulty, 0.5, 4.0),
    "difficulty, sd 1": partial(Difficulty, 1.0, 4.0),
    "difficulty, sd 1.5": partial(Difficulty, 1.5, 4.0),
    "difficulty, sd 0.5, signal 1": partial(Difficulty, 0.5, 1.0),
    "difficulty, sd 1.5, signal 30": partial(Difficulty, 1.5, 30.0),
    "light tails": light_tails,
    "rewards at random": little_signal,
    "resolved signal": resolved_signal,
    "older policy": older_policy,
    "proxied, sd 1.5": partial(Proxied, 1.5),
    "proxied, sd 0.5": partial(Proxied, 0.5),
}
LOGNORMAL, DIFFICULTY = (
    [name for name in POPULATIONS if name.startswith(kind)] for kind in ("lognormal", "difficulty")
)
HEAVY = [*LOGNORMAL, "measured, sd 2.0", *DIFFICULTY]


@cache
def population(name: str) -> Any:
    """One of them, whose truth is found once."""
    return POPULATIONS[name]()
