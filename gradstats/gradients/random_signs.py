r"""The random signs and buckets of a sketch, in two versions.

Version 1 draws them once with NumPy and keeps the signs, an eighth of a byte for each coordinate. Version 2 computes
them where they are needed, on the device of the gradients, from the coordinate's index alone: a hash of a 64-bit
counter gives the signs of 64 coordinates, and another the bucket in which a run of coordinates starts. The hash is the
finaliser of SplitMix64, applied twice with a key before each, so that parameters have unrelated streams.

Steele, Lea & Flood, "Fast splittable pseudorandom number generators" (2014); Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

#: The versions of the sketch; only sketches of the same version have comparable coordinates.
SKETCH_VERSIONS = (1, 2)
# Version 1 keeps at most this many signs, 32 MiB: above, version 2 is the default.
_MOST_KEPT_SIGNS = 2**28

# Constants of SplitMix64 as signed integers: 64-bit products wrap around in the same way.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
_SHIFTS = (30, 27, 31)


def default_sketch_version(n_parameters: int) -> int:
    """Return the version for new measurements: 1 as long as its signs take little memory, as in earlier releases."""
    return 1 if n_parameters <= _MOST_KEPT_SIGNS else 2


class RandomSigns(ABC):
    """The signs of one parameter's coordinates, and the buckets in which runs of them start.

    Attributes:
        starts: the starting bucket of each run of ``dim`` coordinates.
    """

    starts: list[int]

    @abstractmethod
    def between(self, first: int, last: int, like: Tensor) -> Tensor:
        """Return the signs ±1 of the coordinates first … last − 1, with the dtype and device of a tensor."""

    @abstractmethod
    def at(self, coordinates: Tensor) -> Tensor:
        """Return the signs ±1 of some coordinates, as integers of the same shape."""


class KeptSigns(RandomSigns):
    """Version 1: bits drawn by NumPy's default generator, eight to the byte, the first coordinate highest."""

    def __init__(self, seed: int, name: str, size: int, dim: int) -> None:
        words = np.frombuffer(hashlib.sha256(f"{name}:{size}".encode()).digest(), dtype=np.uint32)
        rng = np.random.default_rng([seed, *words.tolist()])
        self._bits = np.frombuffer(bytearray(rng.bytes(-(-size // 8))), dtype=np.uint8)
        self.starts = rng.integers(0, dim, size=-(-size // dim)).tolist()

    def between(self, first: int, last: int, like: Tensor) -> Tensor:
        """Return the signs of consecutive coordinates."""
        byte = first // 8
        # Packed, an eighth of a byte each: to another device less has to be transferred.
        octets = torch.from_numpy(self._bits[byte : -(-last // 8)]).to(like.device)
        return _looked_up(octets, like, highest_first=True)[first - 8 * byte : last - 8 * byte]

    def at(self, coordinates: Tensor) -> Tensor:
        """Return the signs of some coordinates."""
        bits = torch.from_numpy(self._bits).to(coordinates.device)
        return 2 * ((bits[coordinates // 8].long() >> (7 - coordinates % 8)) & 1) - 1


class HashedSigns(RandomSigns):
    """Version 2: coordinate k has the bit k mod 64, lowest first, of the hash of k // 64."""

    def __init__(self, seed: int, name: str, size: int, dim: int) -> None:
        digest = hashlib.sha256(f"sketch 2:{seed}:{name}:{size}".encode()).digest()
        words = np.frombuffer(digest, dtype="<i8").tolist()
        self._keys, of_starts = (words[0], words[1]), (words[2], words[3])
        hashed = hashed_counters(torch.arange(-(-size // dim)), of_starts)
        self.starts = ((hashed & (2**63 - 1)) % dim).tolist()

    def between(self, first: int, last: int, like: Tensor) -> Tensor:
        """Return the signs of consecutive coordinates."""
        word = first // 64
        counters = torch.arange(word, -(-last // 64), device=like.device)
        # On every machine that torch supports, the lowest byte of a word comes first.
        octets = hashed_counters(counters, self._keys).view(torch.uint8)
        signs = _looked_up(octets, like, highest_first=False)
        return signs[first - 64 * word : last - 64 * word]

    def at(self, coordinates: Tensor) -> Tensor:
        """Return the signs of some coordinates."""
        return 2 * ((hashed_counters(coordinates // 64, self._keys) >> (coordinates % 64)) & 1) - 1


@lru_cache(maxsize=4096)
def random_signs(version: int, seed: int, name: str, size: int, dim: int) -> RandomSigns:
    """Return the signs and buckets of a parameter, the same on every machine.

    Args:
        version: 1 or 2.
        seed: the sketch's seed.
        name: the parameter's name.
        size: number of its coordinates.
        dim: number of buckets.

    Raises:
        ValueError: for any other version.
    """
    kinds = dict(zip(SKETCH_VERSIONS, (KeptSigns, HashedSigns), strict=True))
    if version not in kinds:
        raise ValueError(f"sketch_version is {version}: this release knows {' and '.join(map(str, kinds))}")
    return kinds[version](seed, name, size, dim)


def hashed_counters(counters: Tensor, keys: tuple[int, int]) -> Tensor:
    """Return 64 random bits for each counter.

    Args:
        counters: integers from 0, of any shape.
        keys: two 64-bit integers, of which each pair gives another stream.
    """
    return _mixed(_mixed(counters * _GAMMA + keys[0]) ^ keys[1])


def _mixed(words: Tensor) -> Tensor:
    for shift, multiplier in zip(_SHIFTS[:2], _MULTIPLIERS, strict=True):
        words = (words ^ _shifted(words, shift)) * multiplier
    return words ^ _shifted(words, _SHIFTS[2])


def _shifted(words: Tensor, n: int) -> Tensor:
    """Shift 64-bit words to the right with zeros from the left; torch repeats the highest bit."""
    return (words >> n) & (2 ** (64 - n) - 1)


def _looked_up(octets: Tensor, like: Tensor, *, highest_first: bool) -> Tensor:
    """Return the signs of the bits of some bytes, with the dtype and device of a tensor."""
    table = _signs_of_octets(highest_first, like.dtype, like.device)
    if like.device.type == "cpu":  # NumPy takes less than half the time of torch's embedding here
        return torch.from_numpy(np.take(table.numpy(), octets.numpy(), axis=0)).flatten()
    return functional.embedding(octets.int(), table).flatten()


@lru_cache(maxsize=16)
def _signs_of_octets(highest_first: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(256, 8): the signs of the bits of each byte, in one order or the other."""
    places = torch.arange(8)
    bits = (torch.arange(256)[:, None] >> (places.flip(0) if highest_first else places)) & 1
    return (2 * bits - 1).to(device, dtype)
