"""A single flipped bit in any file of a finished run is refused or changes no number."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from bit_flips import files_of, numbers_of, outcome


@pytest.mark.filterwarnings("ignore:these files were written by an earlier version")
def test_no_flipped_bit_changes_a_number_silently(finished, tmp_path):
    path = shutil.copytree(finished.run.path, tmp_path / "run")
    rng, expected, counts = np.random.default_rng(0), numbers_of(path), {"refused": 0, "harmless": 0}
    for file in files_of(path):
        for bit in rng.integers(8 * file.stat().st_size, size=2).tolist():
            what = outcome(path, file, bit, expected)
            assert what != "silent", (file.relative_to(path), bit)
            counts[what] += 1
    assert counts["refused"] > counts["harmless"]
