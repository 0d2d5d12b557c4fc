"""The disk space of a measurement: an upper bound of its files, and the refusal of what does not fit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from conftest import ragged_rollouts
from measured_by_hand import measured_by_hand

from gradstats.config.sections import MeasurementSection
from gradstats.measurement.disk_size import bytes_of_sequences, measured_bytes, require_space


def test_sequences_are_counted_by_their_lengths():
    rollouts, section = ragged_rollouts(7), MeasurementSection(sketch_dim=32, token_probes=2, token_exact=0.5)
    lengths = [len(tokens) for tokens in rollouts.frame["completion_tokens"]]
    assert measured_bytes(rollouts, section) == sum(bytes_of_sequences(length, 1, section) for length in lengths)
    narrow = section.model_copy(update={"token_dtype": "float16"})
    assert measured_bytes(rollouts, narrow) < measured_bytes(rollouts, section)


def test_it_is_an_upper_bound_of_the_tensors(tmp_path):
    measured = measured_by_hand(n=40)
    measured.save(tmp_path / "m")
    section = MeasurementSection(sketch_dim=8, token_probes=3, token_exact=2)
    header = 4096
    weighted = len(measured) * (3 * 8 * 4 + 2 * 8)
    tensors = (tmp_path / "m" / "tensors.safetensors").stat().st_size
    assert tensors < measured_bytes(measured.rollouts, section, 2) + weighted + 2 * 8 * len(measured) + header
    added = measured_bytes(measured.rollouts, section, 2) - measured_bytes(measured.rollouts, section)
    assert added == measured.sketches_by_block.nbytes


def test_what_does_not_fit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**30))
    require_space(tmp_path / "not" / "yet", 2**30)
    with pytest.raises(OSError, match=r"takes up to 2,048\.0 MiB, and .* has 1,024\.0 MiB left: measure with fewer"):
        require_space(tmp_path, 2**31)
