"""Files of one JSON object a line."""

from __future__ import annotations

import pytest

from gradstats.system.files import read_json_lines


def test_blank_lines_are_passed_over_and_numbers_are_those_of_the_file(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes('\ufeff{"a": 1}\n\n{"a": "b\u2028c"}\r\n'.encode())
    assert list(read_json_lines(path)) == [(1, {"a": 1}), (3, {"a": "b\u2028c"})]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a"', r"^line 2 of .*p\.jsonl is not JSON \(.*\): the file is truncated; drop the line$"),
        (b'{"a"\n{"a": 1}\n', r"^line 1 of .*p\.jsonl is not JSON \(.*\)$"),
        (b'{"a": 1}\n\n{"a": "\xff"}\n', r"^line 3 of .*p\.jsonl is not UTF-8 \(.*\): copy the file again$"),
        (b"[1]\n", r"^line 1 of .*p\.jsonl is not a JSON object: '\[1\]'$"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, content, message):
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_json_lines(path))
