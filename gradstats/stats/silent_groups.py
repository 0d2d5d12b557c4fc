"""Groups whose rewards are all equal: exactly at every smaller size, by a beta distribution at larger ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from gradstats.stats.jackknife import Interval, require_level

#: Rewards that differ by less than this share of the largest are equal.
ROUNDING = 1e-6
# Bounds of the concentration a + b of a beta distribution, and of a group size.
_CONCENTRATIONS, _LARGEST = (1e-8, 1e8), 1e9
_HALVINGS = 60


@dataclass(frozen=True)
class EqualRewards:
    """The completions of groups by equal rewards: an entry for each reward of each group."""

    group: Int[np.ndarray, " k"]  # number of the group
    size: Int[np.ndarray, " k"]  # completions with this reward
    of: Int[np.ndarray, " k"]  # completions of the group
    reward: Float[np.ndarray, " k"]
    length: Float[np.ndarray, " k"]  # mean length of these completions
    rounded: Bool[np.ndarray, " k"]  # whether their rewards differ, though by no more than rounding

    def chances(self, largest: int) -> Iterator[Float[np.ndarray, " k"]]:
        r"""Yield the chance that all of N completions drawn from a group have this reward, for N = 2, …, ``largest``.

        Without replacement it is :math:`\binom{c}{N}/\binom{n}{N}`, so that the sum over the rewards of a group is the
        share of its subsets of N that are silent; NaN where the group has fewer than N.
        """
        chance = self.size / self.of
        for number in range(2, largest + 1):
            of = self.of - number + 1
            chance = np.where(of > 0, chance * np.maximum(self.size - number + 1, 0) / np.maximum(of, 1), np.nan)
            yield chance


def equal_rewards(
    rewards: Float[np.ndarray, " n"], groups: Int[np.ndarray, " n"], lengths: Float[np.ndarray, " n"]
) -> EqualRewards:
    """Collect the completions of each group by their rewards, which are equal within :data:`ROUNDING`."""
    order = np.lexsort((rewards, groups))
    group, reward = groups[order], rewards[order]
    tolerance = ROUNDING * float(np.abs(rewards).max(initial=0.0))
    step = np.diff(reward)
    begins = np.r_[True, (np.diff(group) != 0) | (step > tolerance)]
    number = np.cumsum(begins) - 1
    sizes = np.bincount(number)
    differing = np.r_[False, (step != 0) & ~begins[1:]]
    owner = group[begins]
    return EqualRewards(
        group=owner,
        size=sizes,
        of=np.bincount(group)[owner],
        reward=reward[begins],
        length=np.bincount(number, lengths[order]) / sizes,
        rounded=np.bincount(number, differing) > 0,
    )


def beta_silent(
    mean: Float[np.ndarray, "*r"], concentration: Float[np.ndarray, "*r"], size: Float[np.ndarray, "*r"] | float
) -> Float[np.ndarray, "*r"]:
    r"""Return :math:`E[p^N + (1-p)^N]` of :math:`p \sim \mathrm{Beta}(a, b)`, a = μκ and b = (1 − μ)κ.

    It is :math:`B(a+N, b)/B(a, b) + B(a, b+N)/B(a, b)`: the share of silent groups of N among prompts whose rates of
    success follow that distribution.
    """
    of_all = scipy.special.gammaln(concentration + size) - scipy.special.gammaln(concentration)
    total = np.zeros(np.broadcast_shapes(np.shape(mean), np.shape(concentration), np.shape(size)))
    for share in (mean, 1.0 - mean):
        part = share * concentration
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            term = np.exp(scipy.special.gammaln(part + size) - scipy.special.gammaln(part) - of_all)
        total = total + np.where(part > 0, term, 0.0)
    return total


def beta_concentration(
    mean: Float[np.ndarray, " r"], silent: Float[np.ndarray, " r"], size: int
) -> Float[np.ndarray, " r"]:
    """Return the concentration with which a beta distribution of a mean has a share of silent groups of a size."""
    low, high = (np.full(len(mean), np.log(end)) for end in _CONCENTRATIONS)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        too_many = beta_silent(mean, np.exp(middle), float(size)) > silent  # the share falls with the concentration
        low, high = np.where(too_many, middle, low), np.where(too_many, high, middle)
    return np.exp((low + high) / 2.0)


def beta_size(
    mean: Float[np.ndarray, " r"], concentration: Float[np.ndarray, " r"], most_silent: float
) -> Float[np.ndarray, " r"]:
    """Return the smallest group size with fewer silent groups than a share; infinite beyond :data:`_LARGEST`."""
    low, high = np.zeros(len(mean)), np.full(len(mean), np.log(_LARGEST))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        too_many = beta_silent(mean, concentration, np.exp(middle)) >= most_silent
        low, high = np.where(too_many, middle, low), np.where(too_many, high, middle)
    size = np.ceil(np.exp(high) - 1e-6)
    return np.where(beta_silent(mean, concentration, _LARGEST) >= most_silent, np.inf, size)


def least_size(
    silent: Float[np.ndarray, " r"], before: Float[np.ndarray, " r"], size: int, most_silent: float
) -> Float[np.ndarray, " r"]:
    r"""Return a group size below which no distribution of rates of success has so few silent groups.

    :math:`s(N) = E\sum_v p_v^N` over the rewards v is log-convex, so that from ``size`` on it falls at most by the
    factor s(N)/s(N−1) with each further completion.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        further = np.log(most_silent / silent) / np.log(silent / before)
    return np.where(silent < before, size + np.ceil(further - 1e-9), np.inf)


@dataclass(frozen=True)
class Resampled:
    """An estimate with the percentiles of its values in resamples of prompts, or itself where it lies beyond them."""

    value: float
    draws: Float[np.ndarray, " r"]

    def with_interval(self, confidence_level: float) -> Interval:
        """Return ``(value, low, high)``; an end may be infinite."""
        tail = (1.0 - require_level(confidence_level)) / 2.0
        if np.isnan(self.draws).any() or len(self.draws) == 0:
            return self.value, np.nan, np.nan
        ordered = np.sort(self.draws)
        last = len(ordered) - 1
        low, high = ordered[int(np.floor(tail * last))], ordered[int(np.ceil((1.0 - tail) * last))]
        return self.value, float(min(low, self.value)), float(max(high, self.value))


def resampled_means(
    sums: Float[np.ndarray, "prompts k"], n_resamples: int, rng: np.random.Generator
) -> Float[np.ndarray, "resamples k"]:
    """Return the means of k sums over prompts, in resamples of the prompts with replacement.

    Prompts with equal sums are drawn together, as a multinomial.
    """
    rows, counts = np.unique(sums, axis=0, return_counts=True)
    n = len(sums)
    draws = [rng.multinomial(n, counts / n) @ rows / n for _ in range(n_resamples)]
    return np.array(draws).reshape(n_resamples, sums.shape[1])
