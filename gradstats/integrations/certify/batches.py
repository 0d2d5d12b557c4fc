"""Every batch that two enumerated prompts can give, with its probability, as a trainer holds it or a label reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gradstats.estimators import Batch
from gradstats.reference.enumerated import EnumeratedPolicy, GradientMoments, multisets

#: Deviations up to this share of the largest weight are rounding.
ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Completions:
    """A batch as a trainer holds it, its rows sorted by group: prompts' completions of B rows and T columns, float64.

    Attributes:
        rewards: (B,).
        greedy_rewards: of the greedy completion of the same prompt, (B,).
        groups: the prompt's place in the batch, (B,).
        tokens: which columns a completion fills, (B, T).
        mask: which tokens count, (B, T): fewer than ``tokens`` where a completion is masked as truncated.
        logprobs: log π of the trained policy, (B, T).
        old_logprobs: log π of the sampler, (B, T); equal on-policy.
        ref_logprobs: log π of a reference policy, (B, T).
        entropy: of the trained policy at each token, (B, T).
        sum_pi_squared: Σ_v π(v)² there, (B, T).
        old_sum_pi_squared: that of the sampler, (B, T).
        values: the expected reward before each token, (B, T).
    """

    rewards: Float[Tensor, "b"]
    greedy_rewards: Float[Tensor, "b"]
    groups: np.ndarray
    tokens: Bool[Tensor, "b t"]
    mask: Bool[Tensor, "b t"]
    logprobs: Float[Tensor, "b t"]
    old_logprobs: Float[Tensor, "b t"]
    ref_logprobs: Float[Tensor, "b t"]
    entropy: Float[Tensor, "b t"]
    sum_pi_squared: Float[Tensor, "b t"]
    old_sum_pi_squared: Float[Tensor, "b t"]
    values: Float[Tensor, "b t"]

    def each(self, change: Callable[[Tensor], Tensor]) -> Completions:
        """Return the batch with every array of tokens changed in the same way."""
        of_rows = ("rewards", "greedy_rewards", "groups")
        of_tokens = [one.name for one in fields(self) if one.name not in of_rows]
        return replace(self, **{name: change(getattr(self, name)) for name in of_tokens})

    def rows(self, chosen: np.ndarray) -> Completions:
        """Return some of the rows, in the order given."""
        places = torch.as_tensor(chosen)
        picked = self.each(lambda values: values[places])
        of_rows = {"rewards": self.rewards[places], "greedy_rewards": self.greedy_rewards[places]}
        return replace(picked, groups=self.groups[chosen], **of_rows)


#: Completions of each prompt in a batch.
GROUP_SIZE = 3
#: The rewards of the completions of each prompt: of different spread, so that dividing by it shows.
_REWARDS = (
    {(0,): 0.0, (1, 0): 1.0, (1, 1, 0): 0.2, (1, 1, 1): 0.55},
    {(0,): 1.0, (1, 0): 0.8, (1, 1, 0): 0.7, (1, 1, 1): 0.0},
)
_THETA = np.array([0.4, -0.3, 0.2, 0.1, -0.2])
_OLDER = np.array([0.45, -0.36, -0.54, 0.54, 0.36])  # what the older sampler lacks of these
#: Batches that invariances are tried on.
_N_TRIED = 2


@cache
def policy(sampler: str, max_length: int = 3) -> EnumeratedPolicy:
    """Return the policy of two prompts with four completions each, drawn from itself or from an older one.

    With ``max_length=1`` it has one prompt, and four completions of one token. ``"before"`` is the older one itself.
    """
    theta = _THETA - _OLDER if sampler == "before" else _THETA
    older = _THETA - _OLDER if sampler == "older" else None
    if max_length == 1:
        return EnumeratedPolicy(
            vocabulary=4, max_length=1, reward=lambda *_: 0.0, dimension=5, theta=theta, old_theta=older
        )
    return EnumeratedPolicy(
        vocabulary=2, max_length=3, dimension=5, n_prompts=2, theta=theta, old_theta=older,
        reward=lambda prompt, tokens: _REWARDS[prompt][tokens],
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Batches:
    """All batches of one group of each prompt of a policy, with their probabilities."""

    policy: EnumeratedPolicy
    rows: Int[np.ndarray, "m b"]
    probabilities: Float[np.ndarray, "m"]
    reference: EnumeratedPolicy  # whose log-probabilities a KL term refers to

    @classmethod
    @cache
    def of(cls, sampler: str, ordered: bool = False, max_length: int = 3) -> Batches:
        """List the batches of a sampler: groups as multisets, or in every order."""
        made = policy(sampler, max_length)
        log_shares = made.old_logprobs.sum(axis=1)
        listed = []
        for prompt in range(made.n_prompts):
            choices = np.flatnonzero(made.prompts == prompt)
            if ordered:
                groups = np.array(list(product(choices, repeat=GROUP_SIZE)))
                listed.append((groups, np.exp(log_shares[groups].sum(axis=1))))
            else:
                listed.append(multisets(choices, log_shares, GROUP_SIZE))
        places = np.array(list(product(*(range(len(chance)) for _, chance in listed))))
        rows = np.concatenate([groups[at] for (groups, _), at in zip(listed, places.T, strict=True)], axis=1)
        probabilities = np.prod([chance[at] for (_, chance), at in zip(listed, places.T, strict=True)], axis=0)
        return cls(made, rows, probabilities, policy("older", max_length))

    @property
    def groups(self) -> Int[np.ndarray, "b"]:
        """The group of each row of a batch."""
        return np.repeat(np.arange(self.policy.n_prompts), GROUP_SIZE)

    @property
    def tried(self) -> Int[np.ndarray, "k"]:
        """The likeliest batches whose rewards differ within a group, and whose groups differ in length."""
        by_group = self.rows.reshape(len(self.rows), -1, GROUP_SIZE)
        lengths = self.policy.lengths[by_group].sum(axis=2)
        differ = (np.diff(np.sort(self.policy.rewards[by_group]), axis=2) > 0).all(axis=(1, 2))
        differ &= lengths[:, 0] != lengths[:, -1]
        return np.argsort(np.where(differ, -self.probabilities, 0.0), kind="stable")[:_N_TRIED]

    @cache  # noqa: B019 # there are four of them
    def completions(self, number: int) -> Completions:
        """Return a batch as a trainer holds it."""
        rows, made = self.rows[number], self.policy
        mask, reference = torch.from_numpy(made.mask[rows]), torch.from_numpy(self.reference.old_logprobs[rows])
        names = ("rewards", "greedy_rewards", "logprobs", "old_logprobs", "entropy", "sum_pi_squared", "values")
        known = {name: torch.from_numpy(getattr(made, name)[rows]) for name in names}
        drawn_by = policy("before", made.max_length) if made.off_policy else made
        known["old_sum_pi_squared"] = torch.from_numpy(drawn_by.sum_pi_squared[rows])
        return Completions(groups=self.groups, tokens=mask, mask=mask, ref_logprobs=reference, **known)

    def moments(self, weights: Float[np.ndarray, "m b t"]) -> GradientMoments:
        """Return the exact moments of the gradient of a batch with these weights of its tokens' scores."""
        gradients = np.einsum("mbt,mbtd->md", weights, self.policy.token_scores[self.rows])
        mean = self.probabilities @ gradients
        variance = float(self.probabilities @ ((gradients - mean) ** 2).sum(axis=1))
        return GradientMoments(mean, variance, variance, 0.0, self.policy.gradient)

    def batch(self, numbers: Int[np.ndarray, "k"]) -> Batch:
        """Return some batches as one of this package, in which no two share a group."""
        rows = self.rows[numbers]
        groups = self.groups + np.arange(len(rows))[:, None] * self.policy.n_prompts
        of_policy = self.policy.batch(rows.reshape(-1), groups.reshape(-1))
        return of_policy.with_fields(ref_logprobs=self.reference.old_logprobs[rows.reshape(-1)])
