"""The report: one self-contained file that works in a browser without network access."""

import html
import json
import re
import shlex
import shutil
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from command_line import run
from conftest import screen
from saved_runs import ESTIMATORS, HOSTILE, save_answer, save_rollouts, save_run

from gradstats.analyses import registry
from gradstats.analyses.numbers import format_estimate
from gradstats.answers import Answer
from gradstats.estimators.display_names import in_words
from gradstats.report.figures import figures_of
from gradstats.report.glossary import TERMS, meaning_of
from gradstats.report.page import (
    MOST_OPEN_ROWS,
    breakable,
    inline_svg,
    interval_kept,
    questions_on_page,
    report_page,
    write_page,
    write_report,
)
from gradstats.report.run_tables import run_tables
from gradstats.report.saved_results import ENDS, read_results
from gradstats.report.verdict import verdicts
from gradstats.stats.variance.quantities import COMPARED

FOLDER_OF_FIGURES = Path(__file__).parents[2] / "figures"


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    folder = save_run(tmp_path_factory.mktemp("report") / "saved-run")
    return save_rollouts(folder, completion_text=[f"{HOSTILE} number {at}." for at in range(60)])


@pytest.fixture(scope="module")
def page(run_directory):
    return write_report(run_directory).read_text()


@pytest.fixture
def folder(run_directory, tmp_path):
    """A copy of the run, to be changed."""
    return shutil.copytree(run_directory, tmp_path / "run")


def section_of(folder, name):
    return next(one for one in questions_on_page(read_results(folder)) if one["id"] == name)


class Structure(HTMLParser):
    """Ids, references and nesting of a page."""

    VOID = ("meta", "link", "br", "wbr", "path", "use", "rect", "input")

    def __init__(self):
        super().__init__()
        self.ids, self.references, self.open, self.tags = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        given = dict(attributes)
        if "id" in given:
            self.ids.append(given["id"])
        for name, value in given.items():
            if name in ("href", "xlink:href") and value.startswith("#"):
                self.references.append(value[1:])
            self.references += re.findall(r"url\(#([^)]+)\)", value or "")
            if name in ("src", "href", "xlink:href"):
                assert value.startswith(("#", "data:")), (tag, value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_well_formed_and_points_at_nothing_outside(page):
    structure = Structure()
    structure.feed(page)
    assert structure.open == []
    assert len(set(structure.ids)) == len(structure.ids)
    assert set(structure.references) <= set(structure.ids)
    assert structure.tags.count("figure") == 9
    assert "@import" not in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)


def test_it_says_what_there_is_to_say(page, run_directory):
    for text in (
        "Not on-policy: &lt;script&gt;.", "Careful.", "a remark", "a note", "saved &lt;run&gt;",
        "&lt;b&gt;mine&lt;/b&gt;",
        f"gradstats run {run_directory}/experiment.yaml", "top_k: 0", "&#34;numpy&#34;: &#34;2&#34;", "n = 15 prompts",
    ):  # fmt: skip
        assert text in page, text
    alpha = json.loads((run_directory / "alpha.json").read_text())
    assert f"α = {format_estimate(*(alpha[name] for name in ('alpha', 'alpha_low', 'alpha_high')))}" in page


def test_two_builds_are_byte_identical(run_directory, page, tmp_path):
    assert write_report(run_directory, tmp_path / "again.html").read_text() == page


def test_broken_numbers_and_an_unwritable_place_are_said(tmp_path):
    folder = save_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="report.html cannot be written, since .*file is not a folder: choose another"):
        write_report(folder, tmp_path / "file" / "report.html")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(OSError, match="cannot be written to .*folder.html .*choose another with --out"):
        write_page("text", tmp_path / "folder.html")
    (folder / "alpha.json").write_text("{")
    with pytest.warns(UserWarning, match=r"alpha\.json cannot be read as JSON"):
        assert "The data allow no answer" in write_report(folder, svgs={}).read_text()


def test_ids_of_a_figure_are_its_own_and_its_inks_the_pages():
    drawing = '<path id="a" style="stroke: #222222"/><use xlink:href="#a"/>'
    svg = f'<?xml?><svg width="72pt" height="36pt" viewBox="0 0 72 36">{drawing}</svg>'
    changed = inline_svg(svg, "one", 'a "title"')
    parts = (
        'id="one-a"',
        'xlink:href="#one-a"',
        "stroke: currentColor",
        'aria-label="a &quot;title&quot;"',
        ": 72 / 36",
    )
    assert [part for part in parts if part not in changed] == []
    assert "72pt" not in changed


@pytest.fixture
def opened(browser, run_directory, page):
    browser.set_window_size(1200, 900)
    browser.get((run_directory / "report.html").as_uri())
    return browser


def wait_until(happened, seconds=20):
    """A busy browser does what it is told a little later."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline


def sort_by(browser, column):
    browser.execute_script("document.querySelectorAll('#variance-table thead button')[arguments[0]].click()", column)
    cells = browser.execute_script(
        "return [...document.querySelectorAll('#variance-table tbody tr')].map(r => r.cells[arguments[0]].dataset.key)",
        column,
    )
    states = browser.execute_script(
        "return [...document.querySelectorAll('#variance-table thead th')].map(h => h.getAttribute('aria-sort'))"
    )
    return cells, states


@pytest.mark.browser
def test_no_console_errors_and_no_requests(opened):
    asked = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    # The browser's own start page asks for things too: only what this document asked for counts.
    sent = [event["params"] for event in asked if event["method"] == "Network.requestWillBeSent"]
    urls = [sending["request"]["url"] for sending in sent if sending["documentURL"] == opened.current_url]
    assert [url for url in urls if not url.startswith("data:")] == [opened.current_url]
    assert opened.get_log("browser") == []


@pytest.mark.browser
def test_the_table_sorts_both_ways_with_unresolved_rows_last(opened):
    headings = opened.execute_script(
        "return [...document.querySelectorAll('#variance-table thead th')].map(th => th.textContent)"
    )
    matched = headings.index("relative noise")
    for direction, sorted_cells in (
        ("ascending", ["0.93", "1.0", "1.3", ""]),
        ("descending", ["1.3", "1.0", "0.93", ""]),
    ):
        cells, states = sort_by(opened, matched)
        assert (cells, states[matched], states.count("none")) == (sorted_cells, direction, len(states) - 1)
    status = opened.find_element("css selector", "#variance [role=status]").get_attribute("textContent")
    assert status.startswith("sorted by relative noise")
    names, _ = sort_by(opened, 0)
    assert sorted(names) == sorted(map(in_words, ESTIMATORS))


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 390, 1280])
def test_figures_are_visible_nothing_is_wider_than_the_screen_and_the_verdict_comes_first(opened, width):
    with screen(opened, width, height=844):
        boxes = opened.execute_script(
            "return [...document.querySelectorAll('figure svg')].map(s => {const b = s.getBoundingClientRect();"
            "return [b.width, b.height, s.querySelectorAll('path').length]})"
        )
        assert len(boxes) == 9
        assert all(w > 0.7 * min(width, 400) and h > 80 and paths > 20 for w, h, paths in boxes)
        assert opened.execute_script("return document.documentElement.scrollWidth") <= width
        bottom = opened.execute_script("return document.querySelector('.verdicts').getBoundingClientRect().bottom")
        assert 0 < bottom < 844 or width < 390


def test_it_opens_with_the_verdicts_of_the_terminal_and_has_a_section_for_each_question(page, run_directory):
    run = read_results(run_directory)
    said = verdicts(run.answers["alpha"], run.answers["variance"], in_words)
    assert page.index(said[0].text) < page.index("<nav") < page.index('id="variance"')
    sections = questions_on_page(run)
    assert [one["id"] for one in sections][:2] == ["variance", "alpha"]
    for one in sections:
        assert page.count(f'<a href="#{one["id"]}">') == page.count(f'<section id="{one["id"]}"') == 1


def test_a_section_shows_what_the_run_recorded_of_its_answer(folder):
    bins = Answer.read(folder / "tables" / "success_bins")
    frame = bins.frame
    for name in registry.get("success_bins").shown_in("page"):
        frame = frame.assign(**{f"{name}{end}": 0.5 for end in ENDS})
    said, notes = "Easy prompts of rloo <dominate>.", ("counted twice",)
    bins = replace(bins, frame=frame, sentence=said, notes=notes, about={**bins.about, "asked": {"bins": 2}})
    save_answer(folder, bins)
    section = section_of(folder, "success_bins")
    assert section["answer"] == "Easy prompts of RLOO <dominate>."
    assert section["notes"] == list(notes)
    names = [row[0] for row in section["rows"]]  # all have the same numbers
    assert len(names) == frame["success_low"].nunique()
    assert all(name.startswith("RLOO = REINFORCE") for name in names)
    assert section["command"] == f"gradstats ask {folder} success_bins --bins 2"
    assert "Easy prompts of RLOO &lt;dominate&gt;." in write_report(folder, svgs={}).read_text()
    save_answer(folder, bins, settled=True)
    section = section_of(folder, "success_bins")
    assert (section["answer"], section["rows"]) == ("Easy prompts of RLOO <dominate>.", [])


def test_the_section_on_estimators_opens_with_noise_and_bias(folder):
    answer = Answer.read(folder / "variance")
    frame = answer.frame
    ends = [f"matched_ratio{end}" for end in ("", "_low", "_high")]
    frame.loc[3, ends] = frame.loc[0, ends] = 1.0  # equal by construction
    frame.loc[3, "ratio"] = frame.loc[0, "ratio"]
    save_answer(folder, replace(answer, frame=frame))
    section = questions_on_page(read_results(folder))[0]
    assert section["headings"] == ["estimator", "relative noise", "bias"]
    assert [row[0] for row in section["rows"]] == [
        in_words(ESTIMATORS[2]),
        f"RLOO = {in_words(ESTIMATORS[3])}",
        "REINFORCE",
    ]
    assert section["rows"][1][1] == "1"
    assert section["answer"] == "No estimator is shown to beat RLOO."
    page = write_report(folder, svgs={}).read_text()
    assert page.index(f"<td>{interval_kept(section['rows'][2][1])}</td>") < page.index("All rows and columns</summary>")
    assert page.index("All rows and columns</summary>") < page.index('id="variance-table"')


@pytest.mark.parametrize("run", ["embedded", "qwen_1_5b"])
def test_a_committed_run_has_its_tables(run):
    results = read_results(FOLDER_OF_FIGURES / run)
    sections = {one["id"]: one for one in questions_on_page(results)}
    for name in ("variance", "alpha_by_block"):
        assert sections[name]["rows"], name
    assert len(sections["alpha_by_block"]["rows"]) == len(results.table("alpha_by_block"))
    assert sections["alpha_by_block"]["answer"].startswith("α lies between ")
    assert sections["alpha_by_block"]["headings"] == ["block", "α", "share of squared norm"]
    if run != "qwen_1_5b":  # which keeps no ratios
        assert sections["ratios"]["rows"] == []  # of 1 and 0, which the answer says
        assert sections["ratios"]["answer"].startswith("Sampler and scorer agree")
    for one in sections.values():
        assert all(len(row) == len(one["headings"]) for row in one["rows"])


def test_commands_work_where_the_page_was_written(run_directory, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(run_directory, tmp_path / "runs" / "my run")
    for place, given, states_where in ((tmp_path, "runs/my run", True), (folder, ".", True), (tmp_path, folder, False)):
        monkeypatch.chdir(place)
        page = html.unescape(write_report(given, svgs={}).read_text())
        commands = [shlex.split(one) for one in re.findall(r"<code>(gradstats .*)</code>", page)]
        assert len(commands) > 5
        for _, name, *words in commands:
            source = Path(words[0])
            assert source.is_file() if name == "run" else (source / "experiment.yaml").is_file(), words
        assert ("Commands work in the folder where this page was written." in page) == states_where
    (report,) = [words for words in commands if words[1] == "report"]
    assert run(monkeypatch, capsys, *report[1:])[0] == 0


def test_a_note_on_several_answers_stands_on_the_page_once_above_them(folder):
    both, one = "the samples count as one policy", "of allocation alone"
    for name, notes in (("success_bins", (both,)), ("allocation", (both, one))):
        save_answer(folder, replace(Answer.read(folder / "tables" / name), notes=notes))
    page = write_report(folder, svgs={}).read_text()
    assert page.count(both) == page.count(one) == 1
    assert page.index("1 note qualifies several answers") < page.index(both) < page.index('<section id="variance"')
    assert page.index('<section id="allocation"') < page.index(one)


def test_of_a_long_table_the_first_rows_are_open_and_all_of_them_folded():
    results = read_results(FOLDER_OF_FIGURES / "embedded")
    sections = {one["id"]: one for one in questions_on_page(results)}
    page = report_page(results, svgs={})
    for name, is_long in (("allocation", True), ("alpha_by_block", False)):
        one, section = sections[name], page[page.index(f'<section id="{name}"') :].partition("</section>")[0]
        opened, _, folded = section.partition("<summary>All rows and columns</summary>")
        assert opened.count('<th scope="row"') == min(MOST_OPEN_ROWS, len(one["rows"]))
        assert folded.count('<th scope="row"') == (len(one["table"]["rows"]) if is_long else 0)
        assert (len(one["rows"]) > MOST_OPEN_ROWS) == is_long


def test_how_large_a_batch_should_be_is_said_where_the_run_answers_it(folder):
    frame = pd.DataFrame({"estimator": ["rloo"], "prompts": 64.0, "tokens": 6400.0, "group_size": 8.0})
    for name, value in {"critical_batch": 62.0, "alignment_limit": 1.0, "relative_prompts": 0.5}.items():
        frame[name], frame[f"{name}_low"], frame[f"{name}_high"] = value, 36.0, 114.0
    save_answer(folder, Answer("batch_size", frame, {"reference": "rloo", "confidence_level": 0.95}))
    page = write_report(folder, svgs={}).read_text()
    assert "<dd>The noise of RLOO equals its signal in a step of 62 [36, 114] prompts.</dd>" in page


def test_a_heading_states_what_was_asked_and_leaves_options_to_the_command(tmp_path):
    name = "curve_length_weighted_loo_true_alpha"
    folder = shutil.copytree(FOLDER_OF_FIGURES / "embedded", tmp_path / "run")
    command = f"gradstats ask {folder} curve 'length_weighted(loo=True)' alpha=0:2:41"
    assert section_of(folder, name)["command"] == command
    assert section_of(folder, "allocation")["command"] == f"gradstats ask {folder} allocation --tokens 50563"
    curve = Answer.read(folder / "tables" / name)
    curve.about["asked"]["reference"] = "reinforce"
    curve.save(folder / "tables" / name, overwrite=True)
    section = section_of(folder, name)
    # What was asked more than once states of what, in words.
    assert section["question"].endswith("? (length-weighted, leave-one-out alpha=0:2:41)")
    assert section["command"] == f"{command} --reference reinforce"


def test_a_long_answer_is_read_with_the_notes(folder):
    long = "One row after the other. " * 20
    answer = Answer.read(folder / "tables" / "allocation")
    save_answer(folder, replace(answer, sentence=long), asked={"tokens": 4800.0})
    section = section_of(folder, "allocation")
    assert (section["answer"], section["notes"]) == ("", [long])
    assert section["command"] == f"gradstats ask {folder} allocation --tokens 4800"


def test_six_figures_at_most_are_open():
    run = read_results(FOLDER_OF_FIGURES / "embedded")
    drawn = [figure.name for figure in figures_of(run)]
    sections = [one for one in questions_on_page(run, drawn) if one["figures"]]
    assert [one["n_open"] for one in sections] == [1] * 6 + [0] * (len(sections) - 6)
    assert len(sections) > 6


@pytest.mark.browser
def test_on_a_phone_the_ranking_column_is_beside_the_names(opened):
    with screen(opened, 390, mobile=True):
        for table, ranking in (("variance-table", "relative noise"), ("prompt-table", "success")):
            heading, right, scrolls = opened.execute_script(
                "const table = document.getElementById(arguments[0]); const head = table.tHead.rows[0].cells[1];"
                "for (let at = table; at; at = at.parentElement) if (at.tagName === 'DETAILS') at.open = true;"
                "const box = table.closest('.scroll');"
                "return [head.textContent, head.getBoundingClientRect().right, box.scrollWidth > box.clientWidth]",
                table,
            )
            assert (heading, right <= 390) == (ranking, True)
            assert scrolls or table == "prompt-table"
        # What answers first fits; what does not has a shadow at the edge beyond which there is more.
        short, shadows = opened.execute_script(
            "const boxes = [...document.querySelectorAll('.scroll')];"
            "return [boxes.filter(box => box.querySelector('.small')).map(box => box.scrollWidth - box.clientWidth),"
            "boxes.map(box => getComputedStyle(box).backgroundAttachment)]"
        )
        assert max(short) <= 0
        assert set(shadows) == {"local, local, scroll, scroll"}


@pytest.mark.browser
def test_completions_are_found_by_their_words_and_run_no_code(opened):
    def search(words):
        return opened.execute_script(
            "const find = document.getElementById('find'); find.value = arguments[0];"
            "find.dispatchEvent(new Event('input'));"
            "const shown = [...document.querySelectorAll('details.prompt:not([hidden])')];"
            "return [shown.length, shown.filter(one => one.open).length,"
            "document.querySelectorAll('details.prompt:not([hidden]) .completion:not([hidden])').length,"
            "document.getElementById('found').textContent]",
            words,
        )

    assert search("NUMBER 17.") == [1, 1, 1, "found in 1 of 15 prompts"]
    assert search("what is <p3>") == [1, 1, 4, "found in 1 of 15 prompts"]
    assert search("<img src=x") == [15, 15, 60, "found in 15 of 15 prompts"]
    assert search("nowhere") == [0, 0, 0, "found in 0 of 15 prompts"]
    assert search("") == [15, 0, 60, ""]
    assert opened.execute_script("return document.images.length") == 0
    assert opened.get_log("browser") == []


@pytest.mark.browser
def test_a_link_from_the_table_opens_the_prompt(opened):
    folded = "return document.getElementById('prompt-4').open"
    assert not opened.execute_script(folded)
    opened.execute_script("document.querySelector('#prompt-table a[href=\"#prompt-4\"]').click()")
    wait_until(lambda: opened.execute_script(folded))


@pytest.mark.browser
def test_a_figure_is_enlarged_and_put_back(opened):
    def box():
        return opened.execute_script("return document.querySelector('.stage svg').getBoundingClientRect().width")

    def enlarged():  # the page may still be running its own script
        opened.execute_script("document.querySelector('button.zoom').click()")
        return opened.execute_script("return document.getElementById('zoom').open")

    wait_until(enlarged)
    before = box()
    opened.execute_script("document.querySelector('[data-zoom=\"1.25\"]').click()")
    assert box() == pytest.approx(1.25 * before, rel=0.01)
    opened.execute_script("document.getElementById('close').click()")
    wait_until(lambda: opened.execute_script("return document.querySelectorAll('.drawing svg').length") >= 4)
    assert opened.get_log("browser") == []


def told_to_a_screen_reader(opened):
    """Return role and name of everything that is told."""
    tree = opened.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    return {
        (node.get("role", {}).get("value"), node.get("name", {}).get("value")) for node in tree if not node["ignored"]
    }


@pytest.mark.browser
def test_what_a_screen_reader_is_told(opened):
    def named_pictures():
        return [name for role, name in told_to_a_screen_reader(opened) if role in ("image", "img") and name]

    wait_until(lambda: len(named_pictures()) >= 6)
    told = told_to_a_screen_reader(opened)
    assert {"main", "navigation", "table", "columnheader", "rowheader"} <= {role for role, _ in told}
    assert ("region", "Which estimator takes the fewest samples?") in told
    assert "Length exponent" not in named_pictures()
    assert len(named_pictures()) == 6  # the others are folded


@pytest.fixture
def compared(tmp_path):
    """The section on the comparison, of a run whose answer on it is changed."""
    folder = save_run(tmp_path / "run", figures={"labels": {ESTIMATORS[1]: "<ours>"}})
    answer = Answer.read(folder / "variance")
    together = {"matched_ratio_simultaneous_low": 0.5, "matched_ratio_simultaneous_high": [0.95, *[1.25] * 3]}
    note = "rloo, my_rloo and rloo(off_policy=True) differ from length_weighted(alpha=0.8, loo=True): see rloo: 1"
    frame = answer.frame.assign(**together, in_best_set=[True, False, None, False])
    save_answer(folder, replace(answer, frame=frame, notes=(note,)))
    return questions_on_page(read_results(folder))[0]


def test_the_matched_ratio_and_what_is_drawn_from_it_are_beside_the_names(compared):
    table = compared["table"]
    headings = [column["heading"] for column in table["columns"]]
    assert headings[:5] == ["estimator", "relative noise", "relative noise of all rows", "best set", "tr Cov"]
    first, *_, last = table["rows"]
    assert [text for text, _ in first["cells"][1:3]] == ["[0.50, 0.95]", "yes"]
    assert "<strong>" in first["cells"][0][0]
    assert "<strong>" not in last["cells"][0][0]
    assert all(len(row["cells"]) == len(table["columns"]) - 1 for row in table["rows"])
    assert [row["cells"][2] for row in table["rows"]] == [("yes", "0"), ("no", "1"), ("–", ""), ("no", "1")]
    assert (
        "Relative noise of all rows: between these ends all 4 estimators compared lie at once." in compared["caption"]
    )
    assert "Bold: shown to be below 1" in compared["caption"]


def test_every_column_is_defined_in_the_words_of_the_glossary_with_its_file(compared):
    defined = {column["heading"]: column for column in compared["table"]["columns"]}
    assert defined["relative noise"]["meaning"] == TERMS["relative noise, matched ratio"]
    assert defined["relative noise"]["file"] == "gradstats/stats/variance/quantities.py"
    assert "ratio to RLOO" in defined
    assert all(column["meaning"].endswith(".") for column in defined.values())
    for quantity in COMPARED:
        assert meaning_of(quantity.name) == meaning_of(quantity.name, quantity.meaning) == TERMS[quantity.term]


def test_names_are_escaped_and_break_where_words_end():
    assert breakable("α = 0.8, b") == "α\u00a0=\u00a00.8,<wbr> b"
    assert breakable("<b>(a=1, b)") == "&lt;b&gt;(<wbr>a=<wbr>1,<wbr> b)"


def test_rows_are_named_in_words_and_keep_their_labels_and_notes_name_them_so(compared):
    rows = compared["table"]["rows"]
    assert [row["label"] for row in rows] == list(ESTIMATORS)
    assert [rows[0]["name"], rows[1]["name"]] == [in_words(ESTIMATORS[0]), "<ours>"]
    assert compared["notes"] == [
        "RLOO, my_rloo and rloo(off_policy=True) differ from length-weighted, α = 0.8, leave-one-out: see RLOO: 1"
    ]


def test_a_group_size_stays_on_the_line_of_its_letter(tmp_path):
    folder = save_run(tmp_path / "run")
    sizes = Answer.read(folder / "tables" / "group_sizes")
    save_answer(folder, replace(sizes, question="variance"))
    run = read_results(folder)
    section = report_page(run, svgs={}).partition('<section id="variance"')[2].partition("</section>")[0]
    assert section.count(" N\u00a0=\u00a02") >= 4
    assert "<wbr> N = 2" not in section
    table = run_tables(run.answers, run.name, run.figure_style)["variance"]
    assert "RLOO, N~=~2 &" in table.to_latex()
    assert "RLOO, N = 2 |" in table.to_markdown()
