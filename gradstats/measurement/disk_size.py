"""The disk space that a measurement takes, and the refusal to begin one that does not fit."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np

from gradstats.config.experiment import MeasurementSection
from gradstats.rollouts.table import Rollouts

GIB = 1024**3
_MIB = 1024**2
# Four statistics of each token in float64, its id and its sampler's log-probability.
_BYTES_PER_TOKEN = 4 * 8 + 8
_BYTES_PER_SKETCH_ENTRY, _BYTES_PER_WEIGHT = 4, 8


def measured_bytes(rollouts: Rollouts, section: MeasurementSection, n_blocks: int = 0, n_weightings: int = 0) -> int:
    """Return an upper bound of the disk space that a measurement takes, in bytes; see :func:`bytes_of_sequences`."""
    lengths = rollouts.frame["completion_tokens"].map(len).to_numpy()
    counted = zip(*np.unique(lengths, return_counts=True), strict=True)
    return sum(bytes_of_sequences(int(length), int(n), section, n_blocks, n_weightings) for length, n in counted)


def bytes_of_sequences(
    length: int, n: int, section: MeasurementSection, n_blocks: int = 0, n_weightings: int = 0
) -> int:
    """Return an upper bound of the disk space that ``n`` sequences of ``length`` tokens take, in bytes, without norms.

    Sketches are kept of the whole and of ``n_blocks``, and the same again, with its weights of tokens, of each of
    ``n_weightings`` further weightings.
    """
    sketch_dim, probes, exact = section.sketch_dim or 0, section.token_probes, section.token_exact
    # The heaviest tokens that hold a share of a sum are at most that share of all tokens.
    heavy = min(length, math.ceil(exact * length) if 0 < exact < 1 else int(exact))
    item = np.dtype(section.token_dtype).itemsize
    return n * (
        length * (_BYTES_PER_TOKEN + probes * item + n_weightings * _BYTES_PER_WEIGHT)
        + sketch_dim * (1 + n_blocks) * (1 + n_weightings) * _BYTES_PER_SKETCH_ENTRY
        + heavy * (sketch_dim * item + 16)
    )


def require_space(folder: Path, n_bytes: int) -> None:
    """Refuse to begin a measurement that does not fit on the disk."""
    folder = folder.resolve()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if n_bytes > free:
        raise OSError(
            f"the measurement takes up to {n_bytes / _MIB:,.1f} MiB, and {existing} has {free / _MIB:,.1f} MiB left: "
            "measure with fewer token_probes or token_exact, a smaller sketch_dim, or elsewhere"
        )
