"""Digests of data and files, and the refusal of later formats."""

from __future__ import annotations

import hashlib

import pytest

from gradstats.system.files import FORMAT, changed_sentence, digest, file_digest, refuse_newer_format


def test_digests_are_sha256(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert file_digest(tmp_path / "file") == hashlib.sha256(b"abc").hexdigest()
    assert digest({"a": [1]}) == hashlib.sha256(b'{"a": [1]}').hexdigest()


def test_a_file_of_a_later_version_is_refused():
    refuse_newer_format("file", FORMAT)
    refuse_newer_format("file", b"1")
    for version in (FORMAT + 1, b"\xff", None, "two"):
        with pytest.raises(ValueError, match="read it with the version that wrote it, or a newer one"):
            refuse_newer_format("file", version)


def test_a_changed_file_is_named_with_the_remedy():
    assert changed_sentence("a/b") == (
        "a/b has changed since it was written, its checksum does not match: restore it from a copy, or remove it and "
        "repeat the command that wrote it"
    )
