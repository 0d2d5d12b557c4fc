"""Sketches: short random projections of gradients that keep inner products without bias."""

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

# Coordinates that are sketched at a time: on the CPU what its cache holds; elsewhere enough that few kernels are
# started, with some 24 bytes of temporary memory for each.
_SLICE, SLICE_ON_DEVICE = 2**18, 2**25
# Parameters of at most so many coordinates keep their signs. So few runs of a slice are added one by one everywhere.
_SMALL, _FEW_RUNS = 2**14, 2

# Constants of SplitMix64 as signed integers: 64-bit products wrap around in the same way.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
_SHIFTS = (30, 27, 31)


def default_sketch_version(n_parameters: int) -> int:
    """Return the version for new measurements: 1 as long as its signs take little memory, as in earlier releases."""
    return 1 if n_parameters <= _MOST_KEPT_SIGNS else 2


class RandomSigns(ABC):
    """The signs of one parameter's coordinates, and the buckets in which runs of them start."""

    starts: list[int]  # the starting bucket of each run of dim coordinates
    size: int

    _starts: Tensor | None = None
    _whole: Tensor | None = None

    def starts_on(self, device: torch.device) -> Tensor:
        """Return the starting buckets on a device, where they are copied to once."""
        if self._starts is None or self._starts.device != device:
            self._starts = torch.tensor(self.starts, device=device)
        return self._starts

    def between(self, first: int, last: int, like: Tensor) -> Tensor:
        """Return the signs ±1 of the coordinates first … last − 1, with the dtype and device of a tensor."""
        if self.size > _SMALL:
            return self._made(first, last, like)
        if self._whole is None or (self._whole.dtype, self._whole.device) != (like.dtype, like.device):
            self._whole = self._made(0, self.size, like)
        return self._whole[first:last]

    @abstractmethod
    def _made(self, first: int, last: int, like: Tensor) -> Tensor:
        """Make the signs of the coordinates first … last − 1."""

    @abstractmethod
    def at(self, coordinates: Tensor) -> Tensor:
        """Return the signs ±1 of some coordinates, as integers of the same shape."""


class StoredSigns(RandomSigns):
    """Version 1: bits drawn by NumPy's default generator, eight to the byte, the first coordinate highest."""

    def __init__(self, seed: int, name: str, size: int, dim: int) -> None:
        self.size = size
        words = np.frombuffer(hashlib.sha256(f"{name}:{size}".encode()).digest(), dtype=np.uint32)
        rng = np.random.default_rng([seed, *words.tolist()])
        bits = torch.frombuffer(bytearray(rng.bytes(-(-size // 8))), dtype=torch.uint8)
        self._bits = {bits.device: bits}  # packed, those of all parameters take 32 MiB at most on each device
        self.starts = rng.integers(0, dim, size=-(-size // dim)).tolist()

    def _bits_on(self, device: torch.device) -> Tensor:
        if device not in self._bits:
            self._bits[device] = self._bits[torch.device("cpu")].to(device)
        return self._bits[device]

    def _made(self, first: int, last: int, like: Tensor) -> Tensor:
        byte = first // 8
        octets = self._bits_on(like.device)[byte : -(-last // 8)]
        return _looked_up(octets, like, highest_first=True)[first - 8 * byte : last - 8 * byte]

    def at(self, coordinates: Tensor) -> Tensor:
        """Return the signs of some coordinates."""
        bits = self._bits_on(coordinates.device)
        return 2 * ((bits[coordinates // 8].long() >> (7 - coordinates % 8)) & 1) - 1


class HashedSigns(RandomSigns):
    """Version 2: coordinate k has the bit k mod 64, lowest first, of the hash of k // 64."""

    def __init__(self, seed: int, name: str, size: int, dim: int) -> None:
        self.size = size
        digest = hashlib.sha256(f"sketch 2:{seed}:{name}:{size}".encode()).digest()
        words = np.frombuffer(digest, dtype="<i8").tolist()
        self._keys, of_starts = (words[0], words[1]), (words[2], words[3])
        hashed = hashed_counters(torch.arange(-(-size // dim)), of_starts)
        self.starts = ((hashed & (2**63 - 1)) % dim).tolist()

    def _made(self, first: int, last: int, like: Tensor) -> Tensor:
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
    """Return the signs and buckets of a parameter, the same on every machine."""
    kinds = dict(zip(SKETCH_VERSIONS, (StoredSigns, HashedSigns), strict=True))
    if version not in kinds:
        raise ValueError(f"sketch_version is {version}: this release knows {' and '.join(map(str, kinds))}")
    return kinds[version](seed, name, size, dim)


def hashed_counters(counters: Tensor, keys: tuple[int, int]) -> Tensor:
    """Return 64 random bits for each counter."""
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


class CountSketch:
    r"""A seeded CountSketch of a gradient that is given parameter by parameter.

    Coordinate :math:`k` of the gradient is multiplied by a random sign :math:`\sigma_k` and added to bucket
    :math:`h(k)` of the :math:`D` buckets. Inner products are unbiased,
    :math:`\mathbb E\langle Cx, Cy\rangle = \langle x, y\rangle`, with variance

    .. math:: \operatorname{Var}\langle Cx, Cy\rangle
        \le \frac{\lVert x\rVert^2 \lVert y\rVert^2 + \langle x, y\rangle^2}{D},

    so the standard deviation of a normalised inner product is at most :math:`\sqrt{2/D}`, 1.1 % at
    :math:`D = 16384`.

    Buckets are drawn run by run: each run of :math:`D` consecutive coordinates of a parameter goes to the buckets
    in their order, from a random start. Two coordinates of one run never share a bucket and two of different runs do
    with probability :math:`1/D`, so with independent signs the bound above holds, and the sketch is a stream of
    additions instead of a scatter. Signs and starts depend only on the version, the seed, the parameter's name and its
    size: every engine, device, chunking, order and choice of other parameters gives the same vector.

    Charikar, Chen & Farach-Colton, "Finding frequent items in data streams" (2002); Weinberger et al., "Feature
    hashing for large scale multitask learning" (2009).

    Args:
        dim: :math:`D`, the number of buckets.
        seed: seed of signs and buckets.
        version: how signs and buckets are generated, see :mod:`gradstats.gradients.sketches`; 1 or 2. Sketches of
            different versions are as unrelated as those of different seeds.
        by_block: whether engines keep the sketch of each block of parameters, of which the whole is the sum.

    Raises:
        ValueError: when ``dim`` is not positive.
    """

    def __init__(self, dim: int, seed: int = 0, version: int = 2, by_block: bool = False) -> None:
        if dim < 1:
            raise ValueError(f"sketch_dim is {dim}: it must be at least 1 (or None for no sketches)")
        self.dim = dim
        self.seed = seed
        self.version = version
        self.by_block = by_block

    def signs(self, name: str, size: int) -> RandomSigns:
        """Return the signs and buckets of a parameter with ``size`` coordinates."""
        return random_signs(self.version, self.seed, name, size, self.dim)

    def add(self, sketches: Tensor, name: str, gradients: Tensor) -> None:
        """Add one parameter's gradients (batch, *shape) to running sketches (batch, dim), in place."""
        flat = gradients.flatten(start_dim=1)
        # Signs are generated when needed; slices of a few runs keep them small.
        some = _SLICE if flat.device.type == "cpu" else SLICE_ON_DEVICE // len(flat)
        step = self.dim * max(1, some // self.dim)
        for first in range(0, flat.shape[1], step):
            self.add_slice(sketches, name, flat.shape[1], first, flat[:, first : first + step])

    def add_slice(self, sketches: Tensor, name: str, size: int, first: int, values: Tensor) -> None:
        """Add consecutive coordinates of one parameter's gradients to running sketches (batch, dim), in place.

        The values (batch, n) are the gradients' coordinates ``first`` … ``first + n − 1`` of ``size``.
        """
        random, last = self.signs(name, size), first + values.shape[1]
        signs, starts = random.between(first, last, sketches), random.starts
        values = values.to(sketches.dtype)
        runs = range(first // self.dim, -(-last // self.dim))
        # On a CPU a gather takes 3 to 14 times as long as the runs one by one, which its cache holds.
        if sketches.device.type != "cpu" and len(runs) > _FEW_RUNS:
            self._add_runs(sketches, random, first, values * signs)
            return
        for run in runs:
            begin, end = max(first, run * self.dim), min(last, (run + 1) * self.dim)
            bucket = (starts[run] + begin - run * self.dim) % self.dim
            middle = min(end, begin + self.dim - bucket)
            for left, right, target in ((begin, middle, bucket), (middle, end, 0)):
                if left < right:
                    span = slice(left - first, right - first)
                    sketches[:, target : target + right - left].addcmul_(values[:, span], signs[span])

    def _add_runs(self, sketches: Tensor, random: RandomSigns, first: int, signed: Tensor) -> None:
        """Add consecutive coordinates, signs included, in a few kernels: whole runs, rotated by a gather, and summed.

        Bucket d of a run that starts at bucket s holds its coordinate (d − s) mod D. A gather adds nothing at random
        places, so the order of the sum, and its bytes, are the same each time.
        """
        last = first + signed.shape[1]
        run, end = first // self.dim, -(-last // self.dim)
        if (first, last) != (run * self.dim, end * self.dim):
            signed = functional.pad(signed, (first - run * self.dim, end * self.dim - last))
        starts = random.starts_on(sketches.device)[run:end, None]
        index = (torch.arange(self.dim, device=sketches.device) - starts) % self.dim
        runs = signed.view(len(signed), -1, self.dim)
        sketches += runs.gather(2, index.expand(runs.shape)).sum(dim=1)

    def add_rows(
        self, sketches: Tensor, name: str, size: int, batch_index: Tensor, row_index: Tensor, rows: Tensor
    ) -> None:
        """Add a few rows of one parameter's gradients to running sketches (batch, dim), in place.

        Each of the rows (n, columns) belongs to one gradient of the batch and is one row of the parameter, by two
        indices (n,); ``size`` is the number of the parameter's coordinates.
        """
        random = self.signs(name, size)
        begins = random.starts_on(sketches.device)
        columns = rows.shape[1]
        offsets = torch.arange(columns, device=sketches.device)
        some = _SLICE if sketches.device.type == "cpu" else SLICE_ON_DEVICE
        step = max(1, some // columns)
        for first in range(0, len(rows), step):
            span = slice(first, first + step)
            coordinate = row_index[span, None] * columns + offsets
            bucket = (begins[coordinate // self.dim] + coordinate % self.dim) % self.dim
            target = batch_index[span, None] * self.dim + bucket
            signed = rows[span].to(sketches.dtype) * random.at(coordinate)
            sketches.view(-1).index_add_(0, target.flatten(), signed.flatten())
