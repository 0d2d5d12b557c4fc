r"""A small autoregressive policy with every trajectory enumerated, for exact moments of any estimator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb

import numpy as np
from jaxtyping import Float, Int
from scipy.special import gammaln, log_softmax

from gradstats.estimators import Batch
from gradstats.estimators.estimator import Weighting


def _share(bias_sq: float, variance: float) -> float:
    return bias_sq / (bias_sq + variance) if bias_sq + variance > 0 else float("nan")


@dataclass(frozen=True, eq=False)
class GradientMoments:
    r"""The moments of ĝ up to the second.

    Attributes:
        mean: E[ĝ], (D,).
        trace_cov: tr Cov ĝ, ``within_prompt`` plus ``between_prompt``.
        within_prompt: the mean over prompts of tr Cov(ĝ | prompt).
        between_prompt: tr Cov of E[ĝ | prompt] over prompts.
        true_gradient: ∇J, (D,).
    """

    mean: Float[np.ndarray, "d"]
    trace_cov: float
    within_prompt: float
    between_prompt: float
    true_gradient: Float[np.ndarray, "d"]

    @property
    def signal_sq(self) -> float:
        """‖E ĝ‖²."""
        return float(self.mean @ self.mean)

    @property
    def bias(self) -> Float[np.ndarray, "d"]:
        """E[ĝ] − ∇J."""
        return self.mean - self.true_gradient

    @property
    def noise_to_signal(self) -> float:
        """The critical batch: ``matched_trace_cov`` over ‖∇J‖²; NaN where ĝ does not project on ∇J."""
        target_sq = float(self.true_gradient @ self.true_gradient)
        return self.matched_trace_cov / target_sq if target_sq > 0 else float("nan")

    @property
    def cosine(self) -> float:
        """The cosine between E[ĝ] and ∇J; NaN when either is zero."""
        length = float(np.linalg.norm(self.mean) * np.linalg.norm(self.true_gradient))
        return float(self.mean @ self.true_gradient) / length if length > 0 else float("nan")

    @property
    def coefficient(self) -> float:
        """The part of ∇J that E[ĝ] keeps, c = ⟨E[ĝ], ∇J⟩/‖∇J‖²; NaN when ∇J is zero."""
        target_sq = float(self.true_gradient @ self.true_gradient)
        return float(self.mean @ self.true_gradient) / target_sq if target_sq > 0 else float("nan")

    @property
    def matched_trace_cov(self) -> float:
        """Tr Cov(ĝ)/c², after scaling ĝ so that E[ĝ] projects on ∇J with coefficient 1; NaN if it cannot."""
        return self.trace_cov / self.coefficient**2 if self.coefficient != 0 else float("nan")

    def bias_share(self, prompts_per_batch: int) -> float:
        """Return the share of bias in the mean squared error of the mean of so many groups."""
        return _share(float(self.bias @ self.bias), self.trace_cov / prompts_per_batch)

    def matched_bias_share(self, prompts_per_batch: int) -> float:
        """Return the same of ĝ/c, in which the scale of ĝ does not matter; NaN where c = 0."""
        if self.coefficient == 0:
            return float("nan")
        turned = self.mean / self.coefficient - self.true_gradient
        return _share(float(turned @ turned), self.matched_trace_cov / prompts_per_batch)


def _gradient_moments(
    gradients: Float[np.ndarray, "k d"],
    probabilities: Float[np.ndarray, "k"],
    prompts: Int[np.ndarray, "k"],
    true_gradient: Float[np.ndarray, "d"],
) -> GradientMoments:
    """Return the moments of a gradient that takes the value ``gradients[k]`` with ``probabilities[k]``."""
    mean = probabilities @ gradients
    mass = np.bincount(prompts, weights=probabilities)
    totals = np.zeros((mass.size, gradients.shape[1]))
    np.add.at(totals, prompts, probabilities[:, None] * gradients)
    prompt_means = totals / mass[:, None]
    within = float(probabilities @ ((gradients - prompt_means[prompts]) ** 2).sum(axis=1))
    between = float(mass @ ((prompt_means - mean) ** 2).sum(axis=1))
    return GradientMoments(mean, within + between, within, between, true_gradient)


#: Groups or batches that are enumerated at most.
_MAX_GROUPS = 500_000


def multisets(
    choices: Int[np.ndarray, " k"], log_shares: Float[np.ndarray, " all"], group_size: int
) -> tuple[Int[np.ndarray, "groups n"], Float[np.ndarray, " groups"]]:
    """Return all multisets of N members, and the probability that N independent draws give each."""
    refuse_too_many(comb(choices.size + group_size - 1, group_size), "groups")
    groups = np.array(list(combinations_with_replacement(choices, group_size)), dtype=np.int64)
    # N!/Π c!, with Π c! accumulated member by member: a repeat multiplies by its place in the run of equals
    run = np.ones_like(groups)
    for member in range(1, group_size):
        repeated = groups[:, member] == groups[:, member - 1]
        run[:, member] = np.where(repeated, run[:, member - 1] + 1, 1)
    log_orders = gammaln(group_size + 1) - np.log(run).sum(axis=1)
    return groups, np.exp(log_shares[groups].sum(axis=1) + log_orders)


def refuse_too_many(count: int, what: str) -> None:
    """Raise a ValueError when more are to be enumerated than the limit."""
    if count > _MAX_GROUPS:
        raise ValueError(
            f"{count} {what} are too many to enumerate (limit {_MAX_GROUPS}): choose a smaller group_size, "
            "vocabulary or max_length"
        )


#: The token that ends a trajectory.
END = 0
#: Groups whose gradients are formed together.
_CHUNK = 20_000

_Prefix = tuple[int, ...]


class EnumeratedPolicy:
    r"""π(v | prompt, prefix) ∝ exp(φ(prompt, prefix, v)·θ), small enough to list all its trajectories.

    Token 0 ends a trajectory and counts as one of its tokens; at ``max_length`` tokens it ends anyway. All
    positions share the D parameters θ, so that token scores :math:`s_t = φ(y_t) - \sum_v π(v)φ(v)` correlate. A prompt
    is drawn first, from ``prompt_probabilities``, then a group of completions of it: the prompt is the
    independent unit, and J = E[R] over both draws. Everything is float64.

    With ``old_theta`` completions are drawn from the same model at the old parameters, and scored at θ: every
    expectation of an estimator is then over the old policy, and ∇J still that of the scored one.

    Limits: :meth:`moments` enumerates all multisets of N trajectories of a prompt, C(K+N−1, N) for K
    trajectories, and refuses more than 500 000 for a prompt: K = 31 (the defaults) allows N ≤ 5, K = 5 N ≤ 56.

    Attributes:
        prompts: the prompt of each trajectory, (K,), K over all prompts.
        trajectories: the tokens of each, tuples.
        probabilities: of prompt and trajectory together under the scored policy, (K,); they sum to 1.
        sampling_probabilities: the same under the policy that is drawn from; equal to them without ``old_theta``.
        ratios: :math:`ρ = π/π_\mathrm{old}` of whole trajectories, (K,).
        rewards: (K,).
        lengths: (K,).
        mask: (K, T).
        token_scores: :math:`s_t`, (K, T, D), 0 past the end.
        sequence_scores: :math:`S = \sum_t s_t`, (K, D).
        logprobs: :math:`\log π(y_t)`, (K, T).
        old_logprobs: :math:`\log π_\mathrm{old}(y_t)`, (K, T).
        sum_pi_squared: :math:`\sum_v π(v)²` at each position, (K, T).
        entropy: :math:`-\sum_v π(v)\log π(v)` at each position, in nats, (K, T).
        values: the exact value E[R | prefix] before each token, (K, T).
        greedy_rewards: the reward of the prompt's greedy trajectory, (K,).
        gradient: ∇J, (D,).

    Example:
        >>> from gradstats.estimators import rloo
        >>> policy = EnumeratedPolicy(vocabulary=2, max_length=3, rng=0)
        >>> float(abs(policy.moments(rloo(), group_size=4).bias).max()) < 1e-12
        True
    """

    def __init__(
        self,
        vocabulary: int = 3,
        max_length: int = 4,
        dimension: int = 4,
        n_prompts: int = 1,
        reward: Callable[[int, _Prefix], float] | None = None,
        features: Callable[[int, _Prefix], Float[np.ndarray, "v d"]] | None = None,
        theta: Float[np.ndarray, "d"] | None = None,
        old_theta: Float[np.ndarray, "c"] | None = None,
        prompt_probabilities: Float[np.ndarray, "p"] | None = None,
        rng: int | np.random.Generator | None = 0,
    ) -> None:
        """List every trajectory.

        Args:
            vocabulary: number of tokens, the end token included; at least 2.
            max_length: cap on the number of tokens.
            dimension: D, the number of shared parameters; without ``features``.
            n_prompts: number of prompts.
            reward: (prompt, tokens) → R; by default a fair coin for each trajectory.
            features: (prompt, prefix) → φ, (vocabulary, D); by default standard Gaussian.
            theta: θ, (D,), which is scored; by default Gaussian with standard deviation ½.
            old_theta: the parameters that completions are drawn with, (D,); by default θ.
            prompt_probabilities: (n_prompts,); by default uniform.
            rng: seed of these random draws.

        Raises:
            ValueError: for a vocabulary below 2, lengths or counts below 1, or probabilities that do not fit.
        """
        if vocabulary < 2:
            raise ValueError(f"vocabulary must be at least 2 (the end token and another), got {vocabulary}")
        if min(max_length, dimension, n_prompts) < 1:
            raise ValueError("max_length, dimension and n_prompts must be at least 1")
        generator = np.random.default_rng(rng)
        if prompt_probabilities is None:
            prompt_probabilities = np.full(n_prompts, 1 / n_prompts)
        self.prompt_probabilities = np.asarray(prompt_probabilities, dtype=np.float64)
        if self.prompt_probabilities.shape != (n_prompts,) or not np.isclose(self.prompt_probabilities.sum(), 1):
            raise ValueError(f"prompt_probabilities must be {n_prompts} numbers that sum to 1")
        self.n_prompts, self.max_length, self.vocabulary = n_prompts, max_length, vocabulary
        self._features = features or (lambda prompt, prefix: generator.normal(size=(vocabulary, dimension)))
        self._reward = reward or (lambda prompt, tokens: float(generator.integers(2)))
        first = self._features(0, ())
        self.theta = generator.normal(scale=0.5, size=first.shape[1]) if theta is None else np.asarray(theta)
        self.off_policy = old_theta is not None
        self.old_theta = self.theta if old_theta is None else np.asarray(old_theta)
        if self.old_theta.shape != self.theta.shape:
            raise ValueError(f"old_theta has shape {self.old_theta.shape}, but theta has {self.theta.shape}")
        self._nodes: dict[tuple[int, _Prefix], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._enumerate()

    def _node(self, prompt: int, prefix: _Prefix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log π (V,), the scores of every token (V, D) and log π_old (V,) after a prefix, computed once."""
        if (prompt, prefix) not in self._nodes:
            features = np.asarray(self._features(prompt, prefix), dtype=np.float64)
            log_pi = log_softmax(features @ self.theta)
            old_log_pi = log_softmax(features @ self.old_theta)
            self._nodes[prompt, prefix] = log_pi, features - np.exp(log_pi) @ features, old_log_pi
        return self._nodes[prompt, prefix]

    def _walk(self, prompt: int, prefix: _Prefix) -> Iterator[_Prefix]:
        """Yield all trajectories that begin with a prefix, depth first."""
        for token in range(self.vocabulary):
            longer = (*prefix, token)
            if token == END or len(longer) == self.max_length:
                yield longer
            else:
                yield from self._walk(prompt, longer)

    def _enumerate(self) -> None:
        pairs = [(m, tokens) for m in range(self.n_prompts) for tokens in self._walk(m, ())]
        self.prompts = np.array([prompt for prompt, _ in pairs])
        self.trajectories = tuple(tokens for _, tokens in pairs)
        self.lengths = np.array([len(tokens) for tokens in self.trajectories])
        self.mask = np.arange(self.max_length) < self.lengths[:, None]
        k, width, dimension = len(pairs), self.max_length, self.theta.size
        self.logprobs, self.old_logprobs = np.zeros((k, width)), np.zeros((k, width))
        self.sum_pi_squared, self.entropy = np.zeros((k, width)), np.zeros((k, width))
        self.token_scores = np.zeros((k, width, dimension))
        for row, (prompt, tokens) in enumerate(pairs):
            for t, token in enumerate(tokens):
                log_pi, scores, old_log_pi = self._node(prompt, tokens[:t])
                self.logprobs[row, t], self.old_logprobs[row, t] = log_pi[token], old_log_pi[token]
                self.sum_pi_squared[row, t] = np.exp(2 * log_pi).sum()
                self.entropy[row, t] = -np.exp(log_pi) @ log_pi
                self.token_scores[row, t] = scores[token]
        self.sequence_scores = self.token_scores.sum(axis=1)
        self.rewards = np.array([float(self._reward(prompt, tokens)) for prompt, tokens in pairs])
        of_prompt = self.prompt_probabilities[self.prompts]
        self.probabilities = of_prompt * np.exp(self.logprobs.sum(axis=1))
        self.sampling_probabilities = of_prompt * np.exp(self.old_logprobs.sum(axis=1))
        self.ratios = np.exp((self.logprobs - self.old_logprobs).sum(axis=1))
        self.gradient = (self.probabilities * self.rewards) @ self.sequence_scores
        self.values = self._exact_values(pairs)
        self.greedy_rewards = self._greedy()[self.prompts]

    def _exact_values(self, pairs: list[tuple[int, _Prefix]]) -> Float[np.ndarray, "k t"]:
        mass: dict[tuple[int, _Prefix], float] = {}
        reward: dict[tuple[int, _Prefix], float] = {}
        for row, (prompt, tokens) in enumerate(pairs):
            for t in range(len(tokens)):
                key = (prompt, tokens[:t])
                mass[key] = mass.get(key, 0.0) + self.probabilities[row]
                reward[key] = reward.get(key, 0.0) + self.probabilities[row] * self.rewards[row]
        values = np.zeros(self.mask.shape)
        for row, (prompt, tokens) in enumerate(pairs):
            for t in range(len(tokens)):
                values[row, t] = reward[prompt, tokens[:t]] / mass[prompt, tokens[:t]]
        return values

    def _greedy(self) -> Float[np.ndarray, "p"]:
        rows = {pair: row for row, pair in enumerate(zip(self.prompts, self.trajectories, strict=True))}
        rewards = np.empty(self.n_prompts)
        for prompt in range(self.n_prompts):
            prefix: _Prefix = ()
            while (prompt, prefix) not in rows:
                prefix = (*prefix, int(np.argmax(self._node(prompt, prefix)[0])))
            rewards[prompt] = self.rewards[rows[prompt, prefix]]
        return rewards

    @property
    def sq_norms(self) -> Float[np.ndarray, "k"]:
        """‖S‖² of each trajectory."""
        return (self.sequence_scores**2).sum(axis=1)

    @property
    def token_energy(self) -> Float[np.ndarray, "k t"]:
        """:math:`‖s_t‖²` of each token."""
        return (self.token_scores**2).sum(axis=2)

    @property
    def token_cross(self) -> Float[np.ndarray, "k t"]:
        r""":math:`\langle s_t, S\rangle` of each token."""
        return np.einsum("ktd,kd->kt", self.token_scores, self.sequence_scores)

    @property
    def expected_sq_norm(self) -> float:
        """E‖S‖² under the scored policy."""
        return float(self.probabilities @ self.sq_norms)

    @property
    def optimal_constant(self) -> float:
        """b* = E[ρ²R‖S‖²]/E[ρ²‖S‖²] over what is drawn, which minimises tr Cov(ρ(R − b)S); ρ = 1 on-policy."""
        energy = self.sampling_probabilities * self.ratios**2 * self.sq_norms
        return float(energy @ self.rewards / energy.sum())

    @property
    def chi_squared(self) -> float:
        """χ² = E[ρ²] − 1 of whole trajectories, over what is drawn."""
        return float(self.sampling_probabilities @ self.ratios**2) - 1.0

    def batch(self, rows: Int[np.ndarray, "n"], groups: np.ndarray) -> Batch:
        """Return the Batch of the given trajectories, with every field that is known exactly.

        Args:
            rows: positions in ``trajectories``.
            groups: the group of each.
        """
        return Batch(
            rewards=self.rewards[rows],
            lengths=self.lengths[rows],
            groups=groups,
            mask=self.mask[rows],
            logprobs=self.logprobs[rows],
            old_logprobs=self.old_logprobs[rows] if self.off_policy else None,
            sum_pi_squared=self.sum_pi_squared[rows],
            entropy=self.entropy[rows],
            values=self.values[rows],
            greedy_rewards=self.greedy_rewards[rows],
            sq_norms=self.sq_norms[rows],
            token_energy=self.token_energy[rows],
            token_cross=self.token_cross[rows],
        )

    def sample(
        self, n_groups: int, group_size: int, rng: int | np.random.Generator | None = None
    ) -> tuple[Batch, Float[np.ndarray, "n d"], Float[np.ndarray, "n t d"]]:
        """Draw groups: for each a prompt, then its completions, at the old parameters where there are any.

        Args:
            n_groups: how many prompts are drawn, with replacement from the policy's; each draw is one group
                of the batch, labelled 0, 1, ….
            group_size: completions per group.
            rng: seed or generator.

        Returns:
            The batch, its sequence scores and its token scores.
        """
        generator = np.random.default_rng(rng)
        drawn = generator.choice(self.n_prompts, size=n_groups, p=self.prompt_probabilities)
        rows = np.empty((n_groups, group_size), dtype=np.int64)
        for prompt in range(self.n_prompts):
            choices = np.flatnonzero(self.prompts == prompt)
            share = self.sampling_probabilities[choices] / self.sampling_probabilities[choices].sum()
            here = drawn == prompt
            rows[here] = generator.choice(choices, size=(int(here.sum()), group_size), p=share)
        flat = rows.reshape(-1)
        batch = self.batch(flat, np.repeat(np.arange(n_groups), group_size))
        return batch, self.sequence_scores[flat], self.token_scores[flat]

    def moments(self, estimator: Weighting, group_size: int) -> GradientMoments:
        """Return the exact mean and tr Cov of one group's gradient, by enumeration of all groups.

        Args:
            estimator: group-level and symmetric in the members of a group, as all registered ones are.
            group_size: N.

        Raises:
            ValueError: for a batch-level estimator, or too many groups to enumerate.
        """
        if estimator.across_groups:
            raise ValueError(f"{estimator.label} is a batch-level estimator: use batch_moments")
        gradients, probabilities, prompts = [], [], []
        for prompt in range(self.n_prompts):
            groups, chance = self._groups(prompt, group_size)
            chunks = np.array_split(groups, -(-len(groups) // _CHUNK))
            gradients += [self._gradients(estimator, chunk) for chunk in chunks]
            probabilities.append(self.prompt_probabilities[prompt] * chance)
            prompts.append(np.full(len(chance), prompt))
        return _gradient_moments(
            np.concatenate(gradients), np.concatenate(probabilities), np.concatenate(prompts), self.gradient
        )

    def moments_by_prompt(self, estimator: Weighting, group_size: int) -> list[GradientMoments]:
        """Return the exact moments given each prompt, judged against the gradient of that prompt's expected reward.

        Args:
            estimator: as in :meth:`moments`.
            group_size: N.
        """
        found = []
        for prompt in range(self.n_prompts):
            groups, chance = self._groups(prompt, group_size)
            here = self.prompts == prompt
            gradient = (self.probabilities * self.rewards)[here] @ self.sequence_scores[here]
            one_unit = np.zeros(len(groups), dtype=np.int64)
            of_prompt = gradient / self.prompt_probabilities[prompt]
            found.append(_gradient_moments(self._gradients(estimator, groups), chance, one_unit, of_prompt))
        return found

    def batch_moments(
        self, estimator: Weighting, group_size: int, n_groups: int, max_grad_norm: float | None = None
    ) -> GradientMoments:
        """Return the exact moments of a batch's gradient, the mean over its groups, for any estimator.

        Args:
            estimator: symmetric in the members of a group and in the groups; it may be batch-level.
            group_size: N.
            n_groups: groups in the batch, each of an independently drawn prompt.
            max_grad_norm: c of the clipped gradient ĝ·min(1, c/‖ĝ‖), whose moments are then returned.

        Raises:
            ValueError: for more than 500 000 batches.
        """
        listed = [self._groups(prompt, group_size) for prompt in range(self.n_prompts)]
        groups = np.concatenate([members for members, _ in listed])
        chances = np.concatenate([p * chance for p, (_, chance) in zip(self.prompt_probabilities, listed, strict=True)])
        refuse_too_many(comb(len(groups) + n_groups - 1, n_groups), "batches")
        with np.errstate(divide="ignore"):  # a prompt may have probability 0
            log_chances = np.log(chances)
        # The order of a batch's groups does not matter, as that of a group's completions does not.
        chosen, probabilities = multisets(np.arange(len(groups)), log_chances, n_groups)
        if estimator.across_groups:
            labels = np.repeat(np.arange(n_groups), group_size)
            rows = groups[chosen].reshape(len(chosen), -1)
            sums = [self._sum(estimator.weights(self.batch(picked, labels)), picked, 1) for picked in rows]
            gradients = np.concatenate(sums) / n_groups
        else:
            gradients = self._gradients(estimator, groups)[chosen].mean(axis=1)
        if max_grad_norm is not None:
            norms = np.linalg.norm(gradients, axis=1, keepdims=True)
            gradients *= np.minimum(1.0, max_grad_norm / np.where(norms > 0, norms, 1.0))
        one_unit = np.zeros(len(chosen), dtype=np.int64)
        return _gradient_moments(gradients, probabilities, one_unit, self.gradient)

    def weighted_moments(self, weights: Float[np.ndarray, "k"] | Float[np.ndarray, "k t"]) -> GradientMoments:
        r"""Return the exact moments of :math:`\sum_t w_t s_t` over single trajectories, for given weights of each.

        Args:
            weights: (K,) or (K, T): R − b for a constant baseline, :math:`R - B_t` for one that depends on t.
        """
        rows = np.arange(len(self.rewards))
        gradients = self._sum(weights, rows, len(rows))
        return _gradient_moments(gradients, self.sampling_probabilities, self.prompts, self.gradient)

    def _groups(self, prompt: int, group_size: int) -> tuple[Int[np.ndarray, "g n"], Float[np.ndarray, "g"]]:
        """Return all multisets of trajectories of a prompt, and the probability of each."""
        return multisets(np.flatnonzero(self.prompts == prompt), self.old_logprobs.sum(axis=1), group_size)

    def _gradients(self, estimator: Weighting, groups: Int[np.ndarray, "g n"]) -> Float[np.ndarray, "g d"]:
        labels = np.repeat(np.arange(len(groups)), groups.shape[1])
        rows = groups.reshape(-1)
        return self._sum(estimator.weights(self.batch(rows, labels)), rows, len(groups))

    def _sum(self, weights: np.ndarray, rows: Int[np.ndarray, "n"], n_groups: int) -> Float[np.ndarray, "g d"]:
        """Return Σ w s over each of ``n_groups`` equal runs of rows."""
        if weights.ndim == 1:
            terms = weights[:, None] * self.sequence_scores[rows]
        else:
            terms = np.einsum("nt,ntd->nd", weights, self.token_scores[rows])
        return terms.reshape(n_groups, -1, terms.shape[1]).sum(axis=1)
