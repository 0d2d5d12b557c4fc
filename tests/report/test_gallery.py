"""Several runs on one page: α and the ratios of all, with links to the page of each."""

import re

import pytest
from command_line import run
from conftest import screen
from saved_runs import ESTIMATORS, change_frame, forget, save_answer, save_run, saved_answer

from gradstats.analyses.numbers import format_estimate
from gradstats.report.gallery import gallery_page, write_gallery
from gradstats.report.saved_results import read_results
from gradstats.system.files import read_json


@pytest.fixture
def folders(tmp_path):
    other = {"policy": {"name": "models/<a model with a long name>"}}
    return [save_run(tmp_path / "runs" / "one", name="one"), save_run(tmp_path / "runs" / "two #2", "two", 1, **other)]


def test_every_run_has_its_alpha_and_every_estimator_its_ratios(folders, tmp_path):
    corrected = {"matched_ratio_simultaneous_low": 0.5, "matched_ratio_simultaneous_high": [1.0, 1.2, 0.9, 1.1]}
    for folder in folders:
        change_frame(folder, "variance", lambda frame: frame.assign(**corrected))
    page = write_gallery(folders, tmp_path / "gallery.html").read_text()
    for folder in folders:
        alpha = read_json(folder / "alpha.json")
        numbers = (alpha["alpha"], alpha["alpha_low"], alpha["alpha_high"])
        assert f'<td data-key="{numbers[0]!r}">{format_estimate(*numbers, markup="html")}</td>' in page
    assert page.count('0.93 <span class="ends">[0.74, 1.21]</span>') == 4
    assert page.count("<strong>") == 2
    assert '<button type="button">one</button>' in page
    assert "&lt;a model with a long name&gt;" in page
    assert "&lt;b&gt;mine&lt;/b&gt;" in page
    assert 'The runs differ in policy.name (<a href="#differences">their values</a>).' in page
    assert '<td class="value">models/p</td><td class="value">models/&lt;a model with a long name&gt;</td>' in page
    assert "Ratios are to RLOO, on the completions of the same run." in page
    assert "Intervals are at the level of 95%" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)


def test_links_lead_to_the_pages_that_exist(folders, tmp_path):
    (folders[1] / "report.html").write_text("written by gradstats")
    page = write_gallery(folders, tmp_path / "gallery.html").read_text()
    assert re.findall(r'<a href="(runs[^"]*)">', page) == ["runs/two%20%232/report.html"] * 2


def test_an_estimator_of_one_run_only_leaves_a_cell_empty(folders, tmp_path):
    change_frame(folders[1], "variance", lambda frame: frame[frame["estimator"] != "reinforce"])
    forget(folders[0], "alpha")
    page = gallery_page([read_results(folder) for folder in folders], tmp_path)
    assert page.count('<td data-key=""></td>') == 2
    assert '<td data-key="">–</td>' in page


def test_other_references_and_shared_names_are_said(folders, tmp_path):
    save_answer(folders[1], saved_answer(folders[1], "variance"), reference="reinforce")
    runs = [read_results(folder) for folder in folders]
    page = gallery_page(runs, tmp_path)
    assert "Ratios are to different references and do not compare across runs (one: RLOO, two: REINFORCE)." in page
    twice = gallery_page([runs[0], read_results(save_run(tmp_path / "elsewhere", name="one"))], tmp_path)
    assert 'data-key="elsewhere"' in twice
    hostile = gallery_page([read_results(save_run(tmp_path / "hostile", name="<b>a_b"))], tmp_path)
    assert hostile.count("&lt;b&gt;a_<wbr>b") == 4
    assert "<b>" not in hostile


def test_nothing_foreign_is_replaced_and_several_runs_need_the_gallery(folders, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(FileExistsError, match="is not a report that gradstats wrote"):
        write_gallery(folders, tmp_path / "mine.html")
    with pytest.raises(ValueError, match="name at least one run directory"):
        write_gallery([], tmp_path / "gallery.html")
    code, _, err = run(monkeypatch, capsys, "report", *folders)
    assert (code, "gradstats report --gallery RUN RUN" in " ".join(err.split())) == (1, True)


def test_the_first_figure_of_each_run_stands_below_its_alpha(folders, tmp_path, monkeypatch):
    monkeypatch.setattr("gradstats.report.gallery.MOST_FIGURES", 1)
    (folders[0] / "report.html").write_text("written by gradstats")
    page = write_gallery(folders, tmp_path / "gallery.html").read_text()
    (figure,) = re.findall(r"<figure>.*?</figure>", page, flags=re.DOTALL)
    alpha = read_json(folders[0] / "alpha.json")
    number = format_estimate(alpha["alpha"], alpha["alpha_low"], alpha["alpha_high"], markup="html")
    assert f'<h3><a href="runs/one/report.html">one</a>: α = {number}</h3>' in figure
    assert 'aria-label="one: Samples that each estimator needs for equal noise' in figure
    assert "Of the first 1 runs" in page


@pytest.fixture(scope="module")
def wide(tmp_path_factory, browser):
    """A gallery of five runs with long names, in the browser."""
    folder = tmp_path_factory.mktemp("wide")
    runs = [save_run(folder / str(at), f"a-model-with-a-long-name-{at}_of_a_family", at) for at in range(5)]
    browser.get(write_gallery(runs, folder / "gallery.html").as_uri())
    return browser


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_tables_scroll_in_their_boxes_beside_the_names_and_the_page_does_not(wide, width):
    with screen(wide, width, mobile=width < 500):
        assert wide.execute_script("return document.documentElement.scrollWidth") <= width
        boxes = wide.execute_script(
            "return [...document.querySelectorAll('.scroll')].map(box => {"
            "box.scrollLeft = 100; const names = box.querySelector('tbody th').getBoundingClientRect();"
            "const found = [box.scrollLeft, names.left - box.getBoundingClientRect().left,"
            "names.width / box.clientWidth]; box.scrollLeft = 0; return found})"
        )
        assert len(boxes) == 3
        for scrolled, offset, share in boxes:
            assert (scrolled > 0 or width > 1000, abs(offset) < 1, share < 0.5) == (True, True, True)
        drawn = wide.execute_script(
            "return [...document.querySelectorAll('figure svg')].map(svg => {"
            "const box = svg.getBoundingClientRect(); return [box.left, box.right, box.height]})"
        )
    assert len(drawn) == 5
    assert all(left >= 0 and right <= width and height > 80 for left, right, height in drawn)
    assert wide.get_log("browser") == []


@pytest.mark.browser
def test_columns_sort_and_colours_follow_the_reader(wide):
    first = "const table = document.querySelector('#matched_ratio table');"
    wide.execute_script(f"{first} table.tHead.rows[0].cells[1].querySelector('button').click()")
    assert wide.execute_script(f"{first} return [...table.tBodies[0].rows].map(row => row.cells[0].title)") == [
        ESTIMATORS[2], ESTIMATORS[0], ESTIMATORS[1], ESTIMATORS[3],
    ]  # fmt: skip
    colours = "return ['body', 'tbody th'].map(one => getComputedStyle(document.querySelector(one)).backgroundColor)"
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    wide.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
    assert wide.execute_script(colours) == ["rgb(21, 24, 28)"] * 2
    # Paper is white, and a table has its width.
    wide.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": dark})
    with screen(wide, 718, height=1000):
        assert wide.execute_script(colours) == ["rgb(255, 255, 255)"] * 2
        widths = "return [...document.querySelectorAll('table')].map(table => table.getBoundingClientRect().right)"
        assert max(wide.execute_script(widths)) <= 718
    wide.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
