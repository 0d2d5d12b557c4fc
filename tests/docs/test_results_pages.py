"""docs/findings.md, its details and claims.md say what the committed answers give, and are not written otherwise."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from jinja2 import UndefinedError

import gradstats as gs
from gradstats.config.experiment import find_experiment, load_experiment
from gradstats.values.monte_carlo import step_starts

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def pages(docs_module):
    return docs_module("results_pages")


@pytest.fixture
def committed(docs_module):
    return docs_module("committed_numbers")


@pytest.fixture
def derived(docs_module):
    return docs_module("findings_numbers")


@pytest.fixture
def other_figures(committed, monkeypatch, tmp_path):
    """A function: run, table, what changes its frame → the pages read this instead of what is committed."""

    def changed(run, name, change):
        folder = tmp_path / "figures"
        folder.mkdir()
        for path in committed.FIGURES.iterdir():
            if path.name == run:
                shutil.copytree(path, folder / run)
            elif path.is_dir():
                (folder / path.name).symlink_to(path)
        monkeypatch.setattr(committed, "FIGURES", folder)
        path = committed.committed_path(run, f"{name}.csv")
        change(frame := pd.read_csv(path))
        frame.to_csv(path, index=False)

    return changed


@pytest.mark.parametrize("name", ["findings.md", "findings_details.md", "claims.md"])
def test_a_page_is_current(pages, name):
    assert name in pages.PAGES
    assert pages.render(name) == (DOCS / name).read_text("utf-8"), "run: python docs/results_pages.py"


def test_no_template_holds_a_number_with_an_interval(pages):
    for name in pages.PAGES:
        text = (DOCS / f"{name}.jinja").read_text("utf-8")
        assert [line for line in text.splitlines() if "[0." in line or "[1." in line] == []


def test_sections_of_findings_begin_with_the_answer_and_have_one_table_and_one_figure():
    short, *sections, runs = (DOCS / "findings.md").read_text("utf-8").split("\n## ")
    assert runs.startswith("The runs\n")
    for section in sections:
        title, first, *rest = section.split("\n\n")
        assert first.startswith("**"), title
        assert " ".join(first.split("**")[1].split()) in " ".join(short.split())
        assert sum(block.startswith("|") for block in rest) == sum(block.startswith("![") for block in rest) == 1, title


@pytest.mark.filterwarnings("ignore:variance is left out")
def test_a_word_that_no_longer_fits_its_interval_is_named_with_its_sentence(pages, other_figures, monkeypatch):
    def change(frame):
        frame.loc[frame["estimator"] == "gae", "matched_ratio_simultaneous_high"] = 0.99
        frame.loc[frame["estimator"] == "reinforce", "matched_ratio_low"] = 0.9

    other_figures("qwen_mawps", "variance", change)
    with pytest.raises(ValueError, match=r"findings.md.jinja no longer says what was measured") as error:
        pages.render("findings.md")
    said = str(error.value).splitlines()[1:]
    assert said[0] == '- REINFORCE is noisier in both. ("noisier in both" no longer holds)'
    assert re.fullmatch(r"- \*\*Not .* a noise of (1\.\d+ \[0\.\d+, 0\.9900\])\. \(\1 excludes 1\)", said[1])
    assert len(said) == 2
    monkeypatch.setattr(pages, "DOCS", DOCS.parent / "absent")  # nothing is written
    with pytest.raises(SystemExit, match="REINFORCE is noisier"):
        pages.main()


@pytest.mark.filterwarnings("ignore:variance is left out")
@pytest.mark.parametrize(
    ("run", "name", "row", "low", "high", "column", "verdict"),
    [
        ("embedded_zoo", "equivalent_group_size", {"group_size": 4}, 2.0, 40.0, "equivalent_group_size", "fails"),
        ("qwen_mawps", "group_sizes", {"group_size": 4}, -1e3, 1e5, "between_prompt", "holds"),
        ("qwen_mawps", "allocation", {"group_size": 2}, 0.9, 2.0, "relative_noise", "fails"),
        ("embedded_resolved", "allocation", {"group_size": 4}, -1.0, 9.0, "between_prompt", "holds"),
        ("qwen_mawps", "variance", {"estimator": "james_stein"}, 0.85, 0.99, "matched_ratio", "fails in groups of 8"),
        ("embedded_resolved", "success_bins", {"success_low": 0.5}, 0.5, 0.6, "share_of_gradient", "not resolved"),
        ("embedded_resolved", "success_bins", {"success_low": 0.5}, 0.1, 0.2, "share_of_gradient", "not resolved"),
    ],
)
def test_a_verdict_on_a_claim_that_changes_is_named(pages, other_figures, run, name, row, low, high, column, verdict):
    def change(frame):
        of_row = pd.concat([frame[key] == value for key, value in row.items()], axis=1).all(axis=1)
        frame.loc[of_row, [column, f"{column}_low", f"{column}_high"]] = (low + high) / 2.0, low, high

    other_figures(run, name, change)
    with pytest.raises(ValueError, match=rf'"{verdict}" no longer holds'):
        pages.render("claims.md")


def test_the_best_group_size_follows_from_the_variances(derived, monkeypatch):
    """With v₁ = 10 and v₂ = 90, w(2) = 50 and w(4) = 10; b = 0.9 makes 1 + √(v₂/b) = 11."""
    sharp = {
        f"{part}{end}": [one, other]
        for part, one, other in (("within_prompt", 50.0, 10.0), ("between_prompt", 0.9, 0.9))
        for end in ("", "_low", "_high")
    }
    frame = pd.DataFrame({"estimator": "rloo", "group_size": [2, 4], **sharp})
    monkeypatch.setattr(derived, "table", lambda run, name: frame)
    assert derived.best_size("run") == pytest.approx((11.0, 11.0, 11.0))
    frame["between_prompt_low"], frame["between_prompt_high"] = -1.0, 0.9
    assert derived.best_size("run") == pytest.approx((math.nan, 11.0, math.inf), nan_ok=True)


def test_numbers_by_enumeration(derived):
    assert derived.cosine_by_enumeration("rloo") == pytest.approx(1.0)
    factors = [derived.std_factor(rate) for rate in (0.1, 0.9, 0.5)]
    assert factors == pytest.approx([2.18, 2.18, 1.74], abs=0.005)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("It is {{ low | below(1) }}, {{ high | above(1) }}, {{ even | holding(1) }} here.", ""),
        ("First. It is {{ even | below(1) }} here. Last.", "- It is 1.00 [0.90, 1.10] here. (1.00 [0.90, 1.10] is not"),
        ("It is {{ low | above(1) }}.", "- It is 0.80 [0.70, 0.90]. (0.80 [0.70, 0.90] is not above 1)"),
        ("It is {{ low | holding(1) }}.", "- It is 0.80 [0.70, 0.90]. (0.80 [0.70, 0.90] excludes 1)"),
        ("By {{ even.excess | above(0) }} %.", "- By 0 [−10, 10] %. (0 [−10, 10] is not above 0)"),
        ('So {{ "all" | provided([low, even] | all_below(1)) }} do.', '- So all do. ("all" no longer holds)'),
        ("It is {{ ratio('qwen_mawps', 'absent') }}.", "- It is None. (a number is not among the committed answers)"),
    ],
)
def test_sentences_are_held_to_their_numbers(pages, committed, tmp_path, monkeypatch, text, said):
    number = committed.Number
    for name, one in {"low": (0.8, 0.7, 0.9), "high": (1.2, 1.1, 1.3), "even": (1.0, 0.9, 1.1)}.items():
        monkeypatch.setattr(committed, name, number(*one), raising=False)
    (tmp_path / "page.md.jinja").write_text(text, "utf-8")
    if not said:
        assert (
            pages.render("page.md", tmp_path) == "It is 0.80 [0.70, 0.90], 1.20 [1.10, 1.30], 1.00 [0.90, 1.10] here.\n"
        )
        return
    with pytest.raises(ValueError, match="no longer says") as error:
        pages.render("page.md", tmp_path)
    assert str(error.value).splitlines()[1].startswith(said)


def test_a_name_that_is_not_there_is_an_error(pages, tmp_path):
    (tmp_path / "page.md.jinja").write_text("It is {{ rati('qwen_mawps', 'rloo') }}.", "utf-8")
    with pytest.raises(UndefinedError, match="'rati' is undefined"):
        pages.render("page.md", tmp_path)


@pytest.mark.parametrize(
    ("number", "text", "bounded", "alone"),
    [
        ((0.574, 0.473, 0.676), "0.57 [0.47, 0.68]", None, "0.57"),
        ((170.2, 160.4, 181.3), "170 [160, 181]", None, "170"),
        ((0.3621, -0.0019, 0.727), "0.36 [0.00, 0.73]", None, "0.36"),
        ((-0.02, -0.03, -0.01), "−0.020 [−0.030, −0.010]", None, "−0.020"),
        ((10.3, 3.86, math.inf), "10.3 [≥ 3.8]", None, "10.3"),
        ((0.766, 0.766, 0.766), "0.766", None, "0.766"),
        ((math.nan, 295.7, math.inf), "not resolved", "≥ 290", "≥ 290"),
        ((math.nan, 2.39, math.inf), "not resolved", "≥ 2.3", "≥ 2.3"),
        ((math.nan, 0.0, math.inf), "not resolved", None, "not resolved"),
    ],
)
def test_two_digits_of_the_half_width_decide_and_bounds_are_rounded_outwards(committed, number, text, bounded, alone):
    one = committed.Number(*number)
    assert (str(one), one.bounded, one.alone) == (text, bounded or text, alone)


def test_what_is_printed_decides(committed):
    number = committed.Number
    assert number(0.973, 0.948, 0.9949).below(1)
    for not_below in ((0.973, 0.948, 0.9998), (1.0, 1.0, 1.0), (math.nan, 1.5, math.inf)):
        assert not number(*not_below).below(1)
    assert number(1.2, 1.06, 1.3).above(1)
    assert number(0.01, 0.0, 0.00431).at_most == "≤ 0.0044"


def test_differences_of_independent_runs_and_of_several_at_once(committed):
    number = committed.Number
    one, skewed = number(1.0, 0.7, 1.1).minus(number(0.0, -0.1, 0.4)), number(0.5, 0.4, 0.8)
    assert one == pytest.approx((1.0, 0.5, 1.0 + 0.2**0.5 * 0.1**0.5))
    assert number(0.5, 0.4, 0.6).widened(20) == pytest.approx((0.5, 0.346, 0.654), abs=5e-4)  # z of 1 − 0.025/20: 3.02
    assert skewed.inverse() == (2.0, 1.25, 2.5)
    assert skewed.saved == pytest.approx((50.0, 20.0, 60.0))


def test_hours_of_a_run_are_a_lower_bound_where_a_step_left_no_record(derived):
    parts = [{"timings": {"sampling": 1800.0, "measuring": 3600.0}}, {"timings": {"measuring": 4500.0}}]
    assert derived.hours_of({"parts": parts, "timings": {}}) == "≥ 1.50"
    assert derived.hours_of({"timings": {"sampling": 900.0, "measuring": 900.0, "analysis": 9.0}}) == "0.50"
    # Of a run that grew, the parts are those of its last calls.
    parts = [{"timings": {"sampling": 900.0, "measuring": 900.0}}, {"timings": {"sampling": 800.0, "measuring": 700.0}}]
    grown = {"parts": parts, "rounds": [{}, {}]}
    assert derived.hours_of({**grown, "timings": {"sampling": 3500.0, "measuring": 3400.0}}) == "≥ 1.00"
    assert derived.hours_of({"rounds": [{}, {}], "timings": {"sampling": 1800.0, "measuring": 3600.0}}) == "1.50"


@pytest.mark.slow  # a minute
def test_the_tokens_behind_values_of_prefixes_are_those_of_the_run_s_settings(derived):
    chosen = load_experiment(find_experiment("embedded_zoo"))
    problems = gs.load_prompts("embedded", chosen.prompts.n, rng=chosen.prompts.seed)[:40]
    policy = gs.load_policy("embedded")
    tokens = gs.sample(policy, problems, **chosen.sampling.arguments(), progress=False).tokens("completion_tokens")
    starts = [step_starts(policy, row.tolist(), chosen.values.steps)[1:] for row in tokens]
    left = sum(len(row) - start for row, of_row in zip(tokens, starts, strict=True) for start in of_row)
    total = sum(map(len, tokens))
    times = chosen.values.monte_carlo * (left / total + 1 / chosen.sampling.group_size)
    assert pytest.approx(times, rel=0.1) == derived.TOKENS_OF_VALUES
