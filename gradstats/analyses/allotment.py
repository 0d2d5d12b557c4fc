"""Rules that give some prompts of a batch more completions than others, and the noise that they leave."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from gradstats import estimators as families
from gradstats.stats.intervals import studentised_ratio
from gradstats.stats.jackknife import Estimate, mean_statistic
from gradstats.stats.variance.pools import PooledCompletions
from gradstats.stats.variance.quantities import fewest_carriers

#: Groups of each prompt that an allotment is predicted from and judged on: two for either.
GROUPS_NEEDED = 4
# The budget is raised by this share to find what a group is worth.
_MORE = 0.1
# Degrees of freedom of the variance of all prompts, beside a prompt's own.
_PRIOR = 4.0


@dataclass(frozen=True)
class Half:
    """What one half of each prompt's completions says."""

    within: Float[np.ndarray, " prompts"]  # unbiased variance of the gradient between groups of the prompt
    successes: Float[np.ndarray, " prompts"]
    completions: Int[np.ndarray, " prompts"]


def proportional(spread: Float[np.ndarray, " prompts"], groups: float) -> Float[np.ndarray, " prompts"]:
    r"""Allot so many groups a prompt on average, at least one to each, beyond which in proportion to ``spread``.

    With spreads :math:`σ_i` these :math:`k_i = \max(1, cσ_i)` have the least :math:`\sum σ_i²/k_i`; without the bound
    it is Neyman's :math:`(\sum σ_i)²/\sum k_i`.

    >>> proportional(np.array([1.0, 1.0, 2.0, 0.0]), 4.0).tolist()
    [3.75, 3.75, 7.5, 1.0]
    """
    shares, bounded = np.ones(len(spread)), spread <= 0.0
    while not bounded.all():
        free = (groups * len(spread) - bounded.sum()) * spread / spread[~bounded].sum()
        shares = np.where(bounded, 1.0, free)
        if not (shares < 1.0).any():
            return shares
        bounded = bounded | (shares < 1.0)
    return np.full(len(spread), groups)


def by_variance(half: Half, groups: float, size: int) -> Float[np.ndarray, " prompts"]:
    """Neyman's rule: in proportion to the standard deviation of the prompt's own gradient.

    That of two groups is known to a factor of several, and as it is the rule would be worse than none: it counts
    beside the mean of all prompts as one degree of freedom for each group after the first does beside four.
    """
    known = half.completions / size - 1.0
    variance = (known * half.within + _PRIOR * half.within.mean()) / (known + _PRIOR)
    return proportional(np.sqrt(np.maximum(variance, 0.0)), groups)


def by_success(half: Half, groups: float, size: int) -> Float[np.ndarray, " prompts"]:
    r"""VIP's rule, 2602.01601: in proportion to :math:`\sqrt{p(1-p)}` of the predicted success rate.

    Gradients' norms are taken equal. Its Gaussian process over embeddings is replaced by the posterior mean of p.
    """
    success = (half.successes + 1.0) / (half.completions + 2.0)
    return proportional(np.sqrt(success * (1.0 - success)), groups)


def by_hits(half: Half, groups: float, size: int) -> Float[np.ndarray, " prompts"]:
    r"""HORA's rule, 2605.07114: most prompts with a success among what is allotted beyond the first group.

    With r of n successes and a uniform prior, b further completions have none with probability
    :math:`\prod_{t<b}\frac{n-r+1+t}{n+2+t}`; each group goes where it lowers the sum of these most.
    """
    failures = half.completions - half.successes

    def miss(prompt: int, missed: float, drawn: int) -> float:
        further = drawn + np.arange(size)
        return missed * float(np.prod((failures[prompt] + 1.0 + further) / (half.completions[prompt] + 2.0 + further)))

    allotted = np.ones(len(failures))
    gains = [(miss(one, 1.0, 0) - 1.0, one, 1.0) for one in range(len(failures))]
    heapq.heapify(gains)
    for _ in range(round((groups - 1.0) * len(failures))):
        gain, one, missed = gains[0]
        allotted[one] += 1.0
        missed += gain
        further = miss(one, missed, size * (int(allotted[one]) - 1))
        heapq.heapreplace(gains, (further - missed, one, missed))
    return allotted


#: Rules by the name that an answer shows; those after the first take rewards of 0 and 1.
RULES: dict[str, Callable[[Half, float, int], Float[np.ndarray, " prompts"]]] = {
    "Neyman": by_variance,
    "VIP": by_success,
    "HORA": by_hits,
}


def halves_of(pool: PooledCompletions) -> tuple[Half, Half]:
    r"""Return what each half of the groups of every prompt says of it.

    Of K groups, :math:`x = \frac1K\sum_{k∈A}‖g_k‖²` and the variance w over all K with the others' gradients 0 give
    :math:`‖\sum_{k∈A}g_k‖² = K²x - K(K-1)w`, and with it the variance between the groups in A.
    """
    groups, rloo = pool.groups, families.get("rloo")
    of_each = groups.groups_per_prompt
    first = np.cumsum(of_each) - of_each
    inside = (np.arange(groups.n_groups) - first[groups.prompt] < (of_each // 2)[groups.prompt])[groups.group]
    prompt = groups.prompt[groups.group]
    found = []
    for mask, parts in zip((inside, ~inside), pool.with_parts(rloo, [inside, ~inside])[1], strict=True):
        completions = np.bincount(prompt[mask])
        kept = completions / groups.sizes[0]
        within = np.zeros(len(of_each))
        if parts is not None and parts.within is not None:
            squares = of_each * parts.second_moment.pseudo_values
            whole = of_each * (squares - (of_each - 1.0) * parts.within.pseudo_values)
            within = (squares - whole / kept) / (kept - 1.0)
        found.append(Half(within, np.bincount(prompt[mask], pool.batch.rewards[mask]), completions))
    return found[0], found[1]


def noise_of_rules(pool: PooledCompletions) -> dict[str, Estimate]:
    r"""Estimate the noise within prompts of ``rloo``, relative to equal groups, with as many completions in all.

    Of prompt i with variance :math:`w_i` between groups of the pool's size, :math:`k_i` groups leave
    :math:`\sum w_i/k_i`, k on average as measured, every prompt one at least, fractions of groups allowed. What decides
    :math:`k_i` and what measures :math:`w_i` are different halves of the prompt's completions, both ways; the same ones
    would overstate the gain. A prediction from all of them would be better.

    Intervals are over prompts, :func:`studentised_ratio` of the two means. A prompt that takes more groups leaves fewer
    to others, at what a group is worth there; the error of sketched norms is not counted.
    """
    halves, size = halves_of(pool), int(pool.groups.sizes[0])
    groups = float(pool.groups.groups_per_prompt.mean())
    moments = pool.local(families.get("rloo")).moments
    assert moments is not None  # every prompt has several groups
    carriers = fewest_carriers(moments)
    equal = mean_statistic((halves[0].within + halves[1].within) / 2.0)
    binary = bool(np.isin(pool.batch.rewards, (0.0, 1.0)).all())
    found = {}
    for name, rule in list(RULES.items())[: None if binary else 1]:
        relative = np.zeros(len(equal.replicates))
        for decides, judges in (halves, halves[::-1]):
            allotted, more = (rule(decides, budget, size) for budget in (groups, groups * (1.0 + _MORE)))
            noise = groups * judges.within / allotted
            worth = np.sum(noise - groups * judges.within / more) / np.sum(more - allotted)
            relative += (noise + worth * (allotted - groups)) / 2.0
        found[name] = studentised_ratio(mean_statistic(relative), equal, carriers)
    return found
