"""What results look like when they are printed, at Python's prompt and in a notebook."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from measured_by_hand import measured_by_hand
from power_laws import noisy_power_law

import gradstats as gs
from gradstats.analyses.printed import ReprMixin, estimates_with_intervals, printed_sentences


@dataclass(frozen=True, repr=False)
class Answer(ReprMixin):
    """A result of many rows."""

    n: int = 3
    notes: tuple[str, ...] = ("a < b",)

    def to_frame(self) -> pd.DataFrame:
        values = np.arange(self.n) / 2
        return pd.DataFrame({"row": range(self.n), "x": values, "x_low": values - 1, "x_high": values + 1, "y": "left"})

    def sentence(self) -> str:
        return "So it is."


class Narrow(Answer):
    """Shows some columns, in its own order."""

    printed_columns = ("x", "row", "absent")


def test_a_result_prints_its_intervals_sentence_and_notes():
    assert [" ".join(line.split()) for line in str(Answer()).splitlines()] == [
        "row x y",
        "0 0 [−1.0, 1.0] left",
        "1 0.5 [−0.5, 1.5] left",
        "2 1.0 [0, 2.0] left",
        "So it is.",
        "note: a < b",
    ]
    assert repr(Answer()) == str(Answer())
    assert str(Narrow()).splitlines()[0].split() == ["x", "row"]


def test_a_long_result_says_how_much_is_left_out():
    printed = str(Answer(n=23))
    assert "… and 3 further rows: see to_frame()" in printed
    assert len(printed.splitlines()) == 1 + 20 + 1 + 2
    shown = Answer()._repr_html_()  # as in a notebook, with escaped sentences
    assert shown.startswith("<table")
    assert "<td>0.5 [−0.5, 1.5]</td>" in shown
    assert "<p>note: a &lt; b</p>" in shown


def test_ends_without_an_estimate_are_an_interval():
    ends = {"length_low": [3, 5], "length_high": [4, 9]}
    frame = pd.DataFrame({**ends, "value": [1.0, 2.0], "low": [0.0, 1.0], "high": 3.0})
    written = estimates_with_intervals(frame).to_dict("list")
    assert written == {"length": ["[3, 4]", "[5, 9]"], "value": ["1.0 [0, 3.0]", "2.0 [1.0, 3.0]"]}


@pytest.mark.parametrize("ask", [lambda fit: fit, gs.stats.mundlak_test, gs.stats.curvature_test])
def test_results_of_statistics_print_their_fields(ask):
    lengths, sq_norms, groups = noisy_power_law(24, 4)
    result = ask(gs.fit_length_scaling(lengths=lengths, sq_norms=sq_norms, groups=groups))
    assert re.search(r"\d \[−?[\d.,]+, −?[\d.,]+\]", str(result))
    assert "Estimate(" not in str(result)
    assert not hasattr(result, "_repr_html_")


def test_measurements_and_rollouts_are_a_line():
    measured = measured_by_hand()
    assert re.fullmatch(
        r"<Measurement of 5 completions of \d prompts, mean reward [\d.]+, lengths \d+–\d+; .*>", repr(measured)
    )
    assert re.fullmatch(r"<Rollouts: 5 completions of \d prompts, .*>", repr(measured.rollouts))


def test_a_result_that_passes_a_verdict_prints_it():
    given = SimpleNamespace(verdict=lambda: "Consistent.", notes=["few"])
    assert printed_sentences(given) == ["Consistent.", "note: few"]
