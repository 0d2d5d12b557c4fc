"""Templates filled in and written."""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError

from gradstats.report.page import rendered, write_page


def test_text_is_escaped_and_an_unknown_name_is_an_error():
    shown = {"names": ["<a>"], "title": "<b>", "runs": [], "remarks": ["<i>"], "tables": [], "figures": []}
    shown |= {"differing": [], "without_figure": 0}
    page = rendered("gallery.html.j2", **shown)
    assert "<h1>&lt;b&gt;</h1>" in page
    assert "<li>&lt;i&gt;</li>" in page
    with pytest.raises(UndefinedError, match="remarks"):
        rendered("gallery.html.j2", **{name: value for name, value in shown.items() if name != "remarks"})


def test_a_page_that_cannot_be_written_says_what_to_do(tmp_path):
    assert write_page("text\n", tmp_path / "page.html").read_bytes() == b"text\n"
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(OSError, match="cannot be written to .*folder.html .*choose another with --out"):
        write_page("text", tmp_path / "folder.html")
