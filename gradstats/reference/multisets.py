"""All groups of independent draws from a finite distribution, and how probable each is."""

from __future__ import annotations

from itertools import combinations_with_replacement
from math import comb

import numpy as np
from jaxtyping import Float, Int
from scipy.special import gammaln

MAX_GROUPS = 500_000


def multisets(
    choices: Int[np.ndarray, " k"], log_shares: Float[np.ndarray, " all"], group_size: int
) -> tuple[Int[np.ndarray, "groups n"], Float[np.ndarray, " groups"]]:
    """Return all multisets of N members, and the probability that N independent draws give each.

    Args:
        choices: what is drawn, as positions in ``log_shares``.
        log_shares: the log-probability of each.
        group_size: N.

    Raises:
        ValueError: for more than 500 000 multisets.
    """
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
    if count > MAX_GROUPS:
        raise ValueError(
            f"{count} {what} are too many to enumerate (limit {MAX_GROUPS}): choose a smaller group_size, "
            "vocabulary or max_length"
        )
