"""What the commands print: sentences, tables and their cells."""

import codecs
import inspect
import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from rich.table import Table

from gradstats.analyses.variance import ANALYSIS as VARIANCE
from gradstats.cli import terminal
from gradstats.cli.commands import COMMANDS, OF_QUESTIONS, function_of
from gradstats.config.experiment import load_experiment
from gradstats.report.tables import Table as PaperTable
from gradstats.runs.cost import CostEstimate
from gradstats.stats.variance.quantities import QUANTITIES, shown_in


@pytest.fixture
def printed(monkeypatch, capsys):
    """Call a function of the module; what it prints to standard output, as text."""

    def call(function, *arguments, width=200, **options):
        monkeypatch.setattr(terminal, "console", Console(width=width, highlight=False, soft_wrap=True))
        function(*arguments, **options)
        return capsys.readouterr().out

    return call


def test_errors_and_remarks_are_text(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "_errors", Console(stderr=True, highlight=False, soft_wrap=True))
    terminal.fail("the value [bold]1[/]\n   is wrong")
    terminal.note("[x] is left out")
    assert capsys.readouterr() == ("", "gradstats: the value [bold]1[/] is wrong\nnote: [x] is left out\n")
    # Control characters could clear the screen, hide a line or turn the direction of reading.
    terminal.fail("the problems no longer hold \x1b[2Jp1\x07")
    terminal.note("\x9b31mp2\u202e\r is left out")
    err = capsys.readouterr().err
    assert err == ("gradstats: the problems no longer hold \\x1b[2Jp1\\x07\nnote: \\x9b31mp2\\u202e\\r is left out\n")


def test_in_a_terminal_an_error_is_folded_between_words(monkeypatch, capsys):
    wide = {"stderr": True, "highlight": False, "soft_wrap": True, "color_system": None}
    monkeypatch.setattr(terminal, "_errors", Console(force_terminal=True, width=80, **wide))
    words = " ".join(f"word{at} [x]" for at in range(30))
    terminal.fail(words)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()) == f"gradstats: {words}"


def test_warnings_of_the_library_become_remarks_once(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "_errors", Console(stderr=True, highlight=False, soft_wrap=True))
    with terminal.warnings_as_notes():
        for _ in range(2):
            warnings.warn("few prompts", UserWarning, stacklevel=1)
        warnings.warn("few prompts", UserWarning, stacklevel=1)  # from another line
        warnings.warn("NaN", RuntimeWarning, stacklevel=1)
        warnings.warn("of a dependency", DeprecationWarning, stacklevel=1)
    assert capsys.readouterr().err == "note: few prompts\nnote: NaN\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89.0, "89 s"), (90.0, "2 min"), (3600.0, "60 min"), (5400.0, "1.5 h"), (86400.0, "24.0 h")],
)
def test_durations(seconds, text):
    assert terminal._duration(seconds) == text


def variance_frame(group_sizes=(4, 4)):
    frame = pd.DataFrame({"estimator": ["rloo", "length_weighted(alpha=0.8, loo=True)"], "group_size": group_sizes})
    for place, name in enumerate(shown_in("terminal")):
        for end, shift in (("", 0.0), ("_low", -0.05), ("_high", 0.05)):
            frame[f"{name}{end}"] = [0.2 + place / 10 + shift, 0.3 + place / 10 + shift]
    frame.attrs |= {"n_prompts": 30, "reference": "rloo", "confidence_level": 0.9}
    return frame


def test_the_variance_table_has_a_column_for_each_quantity_of_the_terminal(printed):
    text = printed(terminal.show_answer_table, VARIANCE, variance_frame())
    assert all(QUANTITIES[name].heading.format(reference="rloo") in text for name in shown_in("terminal"))
    assert not [words for words in ("not resolved", "N = 4") if words in text]
    assert "length_weighted(alpha=0.8," in text  # the name is folded
    assert "rloo, N = 2" in printed(terminal.show_answer_table, VARIANCE, variance_frame((2, 4)))


def test_what_holds_for_all_rows_at_once_is_in_the_table(printed):
    frame = variance_frame()
    for name, (low, high) in {"ratio": (0.61, 0.92), "matched_ratio": (0.73, 0.84)}.items():
        frame[f"{name}_simultaneous_low"], frame[f"{name}_simultaneous_high"] = [1.0, low], [1.0, high]
    frame["in_best_set"] = [None, True]
    text = printed(terminal.show_answer_table, VARIANCE, frame, width=240)
    lines = {line.split()[0]: line.strip() for line in text.splitlines() if line.strip()}
    headings, cells = lines["estimator"], lines["length_weighted(alpha=0.8,"]
    assert headings.index("ratio to rloo") < headings.index("ratios of all rows") < headings.index("relative noise")
    assert cells.index("[0.61, 0.92]") < cells.index("[0.730, 0.840]")
    assert [line.split()[-1] for line in (headings, cells, lines["rloo"])] == ["set", "yes", "–"]
    assert "\n–: not resolved or not defined on these data; see the notes\n" in text
    narrow = printed(terminal.show_answer_table, VARIANCE, frame, width=80).splitlines()
    assert max(map(len, narrow)) <= 80
    assert sum(line.split()[:1] == ["estimator"] for line in narrow) == 4  # of seven columns


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ((0.95, 0.95), "  1 note: --notes"),
        ((0.5, 0.8), "  50% (α) and 80% intervals    1 note: --notes"),
        ((0.995, 0.995), "  99.5% intervals    1 note: --notes"),
    ],
)
def test_levels_that_are_not_the_usual_one_stand_on_the_first_screen(levels, said):
    levels = dict(zip(("α", ""), levels, strict=True))
    assert terminal.hidden_content_hint(1, notes=False, everything=True, levels=levels) == [said]


def test_the_cost_of_a_run(printed):
    experiment = load_experiment("embedded", ["sampling.max_new_tokens=1200"])
    cost = CostEstimate(
        n_prompts=1500, n_sequences=12000, n_tokens=14_400_000, n_batches=188, n_parameters=1_234_567,
        sampling_seconds=80.0, measuring_seconds=7200.0, memory_gib=1.25, disk_gib=0.5,
    )  # fmt: skip
    by_workers = replace(cost, loading_seconds=60.0, devices="of 10 GPUs")
    for made, parts in (
        (
            (cost,),
            "would sample 12,000 completions of 1,500 prompts, at most 1,200 tokens each, in 188 shards"
            "; 1,234,567 parameters; sampling 80 s; measuring 2.0 h; memory, estimated 1.2 GiB; disk 0.50 GiB",
        ),
        # 60 s, and 19 of 188 shards, the share of the slowest.
        (
            (by_workers, 10),
            "sampling by 10 such workers 68 s; measuring by 10 such workers 13 min; memory of each, estimated; "
            "of 10 GPUs",
        ),
    ):
        text = printed(terminal.show_cost, experiment, *made)
        assert max(map(len, text.splitlines())) <= 80
        said = " ".join(text.replace("│", " ").split())
        assert [part for part in parts.split("; ") if part not in said] == []
        assert ("workers" in said) == (len(made) > 1)


@pytest.mark.parametrize(
    ("verdicts", "passed", "where", "sentence"),
    [
        (("ok", "ok"), True, "out", "All engines agree with autograd: largest relative difference 2·10⁻⁷ in float32."),
        (("ok", "fails"), False, "err", "gradstats: the check fails (ghost): measure with an engine that passes, or"),
        (("skipped", "skipped"), False, "err", "gradstats: nothing could be checked, for the reasons below"),
    ],
)
def test_the_verdict_of_a_check(monkeypatch, capsys, verdicts, passed, where, sentence):
    for name, stderr in (("console", False), ("_errors", True)):
        monkeypatch.setattr(terminal, name, Console(width=200, stderr=stderr, highlight=False, soft_wrap=True))
    columns = {"dtype": "float32", "check": "norms", "engine": ["vmap", "ghost"], "deviation": [1.5e-7, np.nan]}
    frame = pd.DataFrame(columns | {"tolerance": 1e-4, "verdict": verdicts, "note": ["", "a remark"]})
    frame.attrs["passed"] = passed
    terminal.show_check(frame, SimpleNamespace(name="embedded", device="cpu"))
    captured = capsys.readouterr()
    assert sentence in getattr(captured, where)
    assert "note: a remark" in captured.err
    assert "1.5·10⁻⁷" in captured.out
    assert captured.out.startswith("All engines") is passed  # the verdict comes first
    assert "embedded on cpu: relative differences of ‖S‖²" in captured.out


def test_tables_have_80_columns_where_the_output_is_redirected(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    long = "one sentence that does not fit into eighty columns beside another, and that must not be broken into lines"
    for columns, at_most in ((None, 80), ("400", 400)):
        if columns is not None:
            monkeypatch.setenv("COLUMNS", columns)
        table = Table("term", "meaning")
        table.add_row("α", long)
        terminal._PipedConsole(soft_wrap=True).print(table)
        lines = capsys.readouterr().out.splitlines()
        assert any(long in line for line in lines) == (columns is not None)
        assert max(map(len, lines)) <= at_most


def test_what_was_written_is_one_line_for_each_folder_and_where_to_start(printed):
    files = ("alpha.json", "figures/variance.pdf", "figures/variance.png", "report.html")
    paths = [Path("runs/demo", file) for file in files]
    assert printed(terminal.show_paths, paths).splitlines() == [
        "written:",
        "  runs/demo: alpha.json, report.html",
        "  runs/demo/figures: variance.pdf|png",
        "start with runs/demo/report.html",
    ]
    assert "start with" not in printed(terminal.show_paths, paths[:-1])


#: Commands whose answer is a file or a folder, or which print JSON in any case.
WITHOUT = {"init", "sample", "measure", "regrade", "export", "report", *OF_QUESTIONS}


def test_every_command_that_answers_has_the_option():
    have = {name for name in COMMANDS if "as_json" in inspect.signature(function_of(name)).parameters}
    assert have == set(COMMANDS) - WITHOUT


@pytest.mark.parametrize("what", ["estimators", "terms", "quantities", "experiments", "rewards"])
def test_a_list_is_rows(answered, what):
    assert min(map(len, json.loads(answered("list", what, "--json"))["rows"][:3])) > 1


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("ascii", ["list", "terms"]),
        ("cp1252", ["variance", "--help"]),
        ("latin-1", ["run", "nowhere/ῶ±漢.yaml"]),
    ],
)
def test_a_terminal_that_lacks_a_character_shows_something_for_it(encoding, words):
    found = subprocess.run(
        [sys.executable, "-m", "gradstats", *words],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    shown, said = found.stdout.decode(encoding), found.stderr.decode(encoding)
    assert "codec can't encode" not in said
    assert found.returncode == (1 if words[0] == "run" else 0), said
    if words[0] == "run":
        assert "nowhere/omega±?.yaml" in said
    if words[-1] == "terms":
        assert "alpha within prompts" in shown


def test_characters_have_substitutes_in_ascii():
    codecs.register_error("gradstats.substitute", terminal._substitute)
    text = "α ∈ Σ: ‖S‖² − 1 ≤ 2 ± 3 → é …"
    assert text.encode("ascii", "gradstats.substitute") == b"alpha ? sigma: ||S||2 - 1 <= 2 +/- 3 -> e ..."
    assert text.encode("latin-1", "gradstats.substitute").decode("latin-1").endswith("² - 1 <= 2 ± 3 -> é ...")


def test_the_name_of_a_row_is_not_broken_within_its_number(printed):
    names = [f"length_weighted(alpha={alpha}, loo=True), 0.25 (n = 12)" for alpha in (0.5, 0.81, 0.812, 0.8123)]
    columns = {"share of gradient": [(0.5, 0.25, 0.75)] * 4, "share of variance": [(0.5, 0.25, 0.75)] * 4}
    table = PaperTable("", "estimator", tuple(names), columns, pd.DataFrame())
    for width in range(60, 100):
        text = printed(terminal.show_table, table, width=width)
        assert text.count("(n = 12)") == 4 * text.count("estimator"), text
