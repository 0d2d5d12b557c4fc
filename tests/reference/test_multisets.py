"""Multisets of draws, against listing every ordered draw."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gradstats.reference.enumerated import multisets, refuse_too_many


@pytest.mark.parametrize("group_size", [1, 2, 4])
def test_against_ordered_draws(group_size: int):
    shares = np.array([0.0, 0.2, 0.5, 0.3])
    choices = np.array([1, 2, 3])
    expected: dict[tuple[int, ...], float] = {}
    for draw in itertools.product(choices, repeat=group_size):
        key = tuple(sorted(int(member) for member in draw))
        expected[key] = expected.get(key, 0.0) + float(np.prod(shares[list(draw)]))
    with np.errstate(divide="ignore"):
        groups, chances = multisets(choices, np.log(shares), group_size)
    listed = {tuple(group): chance for group, chance in zip(groups.tolist(), chances.tolist(), strict=True)}
    assert listed == pytest.approx(expected)
    assert sum(chances) == pytest.approx(1)


def test_too_many():
    with pytest.raises(ValueError, match="500001 groups are too many to enumerate"):
        refuse_too_many(500_001, "groups")
