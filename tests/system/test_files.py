"""Files that exist whole or not at all."""

import hashlib
import json

import numpy as np
import pandas as pd
import pytest

from gradstats.system.files import (
    FORMAT,
    atomic_path,
    digest,
    file_digest,
    read_csv,
    read_json,
    read_json_lines,
    refuse_newer_format,
    remove_partials,
    remove_path,
    to_json,
    write_csv,
    write_json,
)


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


def test_a_writer_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "deep" / "numbers.txt"
    with atomic_path(path) as partial:
        partial.write_text("1")

    def fail_half_way():
        with atomic_path(path) as partial:
            partial.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail_half_way()
    assert path.read_text() == "1"
    assert [file.name for file in path.parent.iterdir()] == ["numbers.txt"]


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    for name in ("old", "new"):
        with atomic_path(tmp_path / "folder", replace_folder=True) as partial:
            partial.mkdir()
            (partial / name).write_text("")
    assert [file.name for file in (tmp_path / "folder").iterdir()] == ["new"]


def test_leftovers_of_killed_writers_are_removed_and_nothing_else(tmp_path):
    (tmp_path / ".shard.7.partial").mkdir()
    (tmp_path / ".numbers.csv.7.partial").write_text("")
    (tmp_path / "kept.partial").write_text("")
    remove_partials(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["kept.partial"]
    remove_path(tmp_path / "kept.partial")
    remove_path(tmp_path / "kept.partial")
    assert not list(tmp_path.iterdir())


def test_json_has_null_where_a_number_is_not_finite(tmp_path):
    data = {"a": np.float64("nan"), "b": [np.int64(2), float("inf"), (1.5,)], "c": {"d": "x", 3: None}}
    assert json.loads(to_json(data)) == {"a": None, "b": [2, None, [1.5]], "c": {"d": "x", "3": None}}
    write_json(tmp_path / "data.json", data)
    assert read_json(tmp_path / "data.json") == json.loads(to_json(data))


def test_a_table_is_written_whole_without_its_index(tmp_path):
    path = tmp_path / "tables" / "numbers.csv"
    write_csv(path, pd.DataFrame({"name": ["a", "b"], "value": [1 / 3, np.nan]}, index=[7, 8]))
    assert path.read_bytes() == b"name,value\na,0.3333333333333333\nb,\n"
    write_csv(path, pd.DataFrame({"value": [1 / 3]}), float_format="%.3g")
    assert path.read_bytes() == b"value\n0.333\n"
    assert [file.name for file in path.parent.iterdir()] == ["numbers.csv"]


def test_a_damaged_json_file_is_refused_by_name(tmp_path):
    path = tmp_path / "data.json"
    write_json(path, {"a": 1.25, "b": [1]})
    text = path.read_text()
    path.write_text(text.replace("1.25", "1.75"))
    with pytest.raises(ValueError, match=r"data.json has changed since it was written, its checksum does not match:"):
        read_json(path)
    path.write_text(text.replace('"checksum"', '"chdcksum"'))
    with pytest.raises(ValueError, match="has changed since it was written"):
        read_json(path)
    path.write_text('{"a": 1.75}')  # of an earlier version
    assert read_json(path) == {"a": 1.75}
    for wrong in ("[1]", "3", '"x"', "null"):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="where names and values are expected"):
            read_json(path)
    for wrong in ("", "{", "[" * 100_000):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="cannot be read as JSON"):
            read_json(path)


def test_names_of_prompts_stay_what_they_are(tmp_path):
    names = ["NA", "null", "nan", "", "007", "=1+1", "-5", "@x", "'quoted'"]
    write_csv(tmp_path / "a.csv", pd.DataFrame({"prompt_id": names, "value": range(len(names))}))
    assert read_csv(tmp_path / "a.csv")["prompt_id"].tolist() == names
    cells = [line.split(",")[0] for line in (tmp_path / "a.csv").read_text().splitlines()[1:]]
    assert cells[5:] == ["'=1+1", "-5", "'@x", "'quoted'"]


def is_thesis(path):
    file = path / "thesis.tex" if path.is_dir() else path
    return file.read_text() == "years of work"


@pytest.mark.parametrize("what", ["file", "folder"])
@pytest.mark.parametrize("there", ["nothing", "an earlier result"])
@pytest.mark.parametrize("appears", ["file", "folder"])
def test_what_appears_at_the_name_meanwhile_is_not_replaced(tmp_path, what, there, appears):
    path = tmp_path / "result"

    def write(partial, text):
        if what == "folder":
            partial.mkdir()
            (partial / "numbers").write_text(text)
        else:
            partial.write_text(text)

    if there == "an earlier result":
        with atomic_path(path) as partial:
            write(partial, "old")

    def replace_while_another_writes():
        with atomic_path(path, replace_folder=True) as partial:
            write(partial, "new")
            remove_path(path)
            if appears == "folder":
                path.mkdir()
            (path / "thesis.tex" if appears == "folder" else path).write_text("years of work")

    with pytest.raises(FileExistsError, match="was created or changed by another process while it was being written"):
        replace_while_another_writes()
    assert is_thesis(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_never_replaced_unasked(tmp_path):
    (tmp_path / "thesis").mkdir()
    for path, sentence in ((tmp_path / "thesis", "is a folder and is not replaced"), ("/dev/null", "is a device")):
        with pytest.raises(FileExistsError, match=sentence), atomic_path(path):
            raise AssertionError("never reached")
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    with atomic_path(tmp_path / "link") as partial:
        partial.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


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
