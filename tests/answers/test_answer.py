"""An answer is saved and read back as one thing, equal to the bit."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradstats.answers.answer import DIGITS, Answer
from gradstats.system.files import read_json, write_json

FRAME = pd.DataFrame(
    {
        "estimator": ["rloo", "=1+1", 'é, "Σ"\nα'],
        "ratio": [1.0, np.nan, np.inf],
        "ratio_low": [0.1, 1e-300, -np.inf],
        "n": [1, 2, 3],
        "resolved": [True, False, True],
        "in_best_set": [None, True, False],
        "prompt": ["007", None, ""],
    }
)
ABOUT = {
    "level": 0.5,
    "sizes": (2, np.nan, {"most": np.inf}),
    "seed": np.int64(3),
    "norms": np.arange(2.0),
    "none": None,
}


def same(one: Answer, other: Answer) -> None:
    assert one == other
    pd.testing.assert_frame_equal(one.frame, other.frame, check_exact=True)
    assert repr(one.about) == repr(other.about)  # NaN is not equal to itself
    assert (one.question, one.sentence, one.notes) == (other.question, other.sentence, other.notes)
    assert one.frame.attrs.keys() == one.about.keys()
    for name in one.further:
        same(one.further[name], other.further[name])


def test_it_is_read_back_with_the_tables_beside_it(tmp_path):
    beside = {"clipping": Answer("clipping", FRAME.head(0), {"level": 0.9})}
    answer = Answer("ratios", FRAME, ABOUT, "α is 0.6.", ("one", "two"), beside)
    paths = answer.save(tmp_path / "ratios", further_in=tmp_path / "tables")
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        "ratios.csv", "ratios.json", "tables/clipping.csv", "tables/clipping.json",
    ]  # fmt: skip
    same(answer, Answer.read(tmp_path / "ratios"))
    assert answer.about["sizes"][2]["most"] == math.inf


text = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=6)
number = st.floats(allow_nan=True, allow_infinity=True)
value = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
cells = {
    "float": number,
    "int": st.integers(-(2**60), 2**60),
    "bool": st.booleans(),
    "text": text,
    "mixed": st.none() | st.booleans() | text | number,
}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_it_holds_is_read_back_to_the_bit(tmp_path_factory, data):
    n_rows = data.draw(st.integers(0, 4))
    kinds = data.draw(st.lists(st.sampled_from(sorted(cells)), min_size=1, max_size=4))
    frame = pd.DataFrame(
        {
            f"{kind} {at}": pd.Series(
                data.draw(st.lists(cells[kind], min_size=n_rows, max_size=n_rows)),
                dtype={"float": "float64", "int": "int64", "bool": "bool", "text": "str", "mixed": "object"}[kind],
            )
            for at, kind in enumerate(kinds)
        }
    )
    about = {f"about {name}": entry for name, entry in data.draw(st.dictionaries(text, value, max_size=3)).items()}
    answer = Answer("mine", frame, about, data.draw(text), tuple(data.draw(st.lists(text, max_size=2))))
    stem = tmp_path_factory.mktemp("answer") / "mine"
    answer.save(stem)
    same(answer, Answer.read(stem))


@pytest.mark.parametrize("text", ["\r0", "a\r\nb", '"\r', "\n"])
def test_line_ends_in_a_label_are_no_rows(tmp_path, text):
    answer = Answer("mine", pd.DataFrame({"first": [1.0, 2.0], "label": ["", text]}))
    answer.save(tmp_path / "mine")
    same(answer, Answer.read(tmp_path / "mine"))


def test_a_long_table_keeps_so_many_digits_in_memory_and_in_files(tmp_path):
    answer = Answer("tokens", pd.DataFrame({"energy": [1 / 3, 2e10 / 3]}), {DIGITS: 7})
    assert answer.frame["energy"].tolist() == [0.3333333, 6666667000.0]
    answer.save(tmp_path / "tokens")
    assert (tmp_path / "tokens.csv").read_text() == "energy\n0.3333333\n6.666667e+09\n"
    same(answer, Answer.read(tmp_path / "tokens"))


def test_what_files_cannot_hold_is_refused():
    with pytest.raises(TypeError, match="object.*which no answer can hold"):
        Answer("mine", FRAME, {"what": object()})
    with pytest.raises(TypeError, match=r"column 'when' has the type datetime64.*which no answer can hold"):
        Answer("mine", pd.DataFrame({"when": pd.to_datetime(["2026-01-01"])}))
    with pytest.raises(ValueError, match="about has an entry 'notes', which is a part of every answer: rename it"):
        Answer("mine", FRAME, {"notes": []})


def test_a_changed_or_missing_file_is_named(tmp_path):
    answer = Answer("mine", FRAME, ABOUT)
    table, state = answer.save(tmp_path / "mine")
    text = table.read_text()
    table.write_text(text.replace("1.0", "2.0", 1))
    with pytest.raises(ValueError, match=r"mine\.csv has changed since it was written"):
        Answer.read(tmp_path / "mine")
    table.unlink()
    with pytest.raises(FileNotFoundError, match=r"mine\.csv is missing: repeat the command that wrote mine"):
        Answer.read(tmp_path / "mine")
    table.write_text(text)
    state.write_text(state.read_text().replace("0.5", "0.6"))
    with pytest.raises(ValueError, match=r"mine\.json has changed since it was written"):
        Answer.read(tmp_path / "mine")
    write_json(state, {"level": 0.5})
    with pytest.raises(ValueError, match=r"mine\.json is not a part of an answer"):
        Answer.read(tmp_path / "mine")


def test_another_answer_is_replaced_only_where_that_is_asked_for(tmp_path):
    Answer("mine", FRAME, ABOUT).save(tmp_path / "mine")
    Answer("mine", FRAME, ABOUT).save(tmp_path / "mine", overwrite=False)
    with pytest.raises(
        FileExistsError, match="holds a finished result with another level: replace it with --overwrite"
    ):
        Answer("mine", FRAME, {**ABOUT, "level": 0.9}).save(tmp_path / "mine", overwrite=False)
    Answer("mine", FRAME, {"asked": {"bins": 2, "size": 4}}).save(tmp_path / "asked")
    with pytest.raises(FileExistsError, match="holds a finished result with size = 4, not 8: replace it with"):
        Answer("mine", FRAME, {"asked": {"bins": 2, "size": 8}}).save(tmp_path / "asked", overwrite=False)
    with pytest.raises(FileExistsError, match="holds a finished result with other numbers"):
        Answer("mine", FRAME.assign(n=[1, 2, 4]), ABOUT).save(tmp_path / "mine", overwrite=False)
    Answer("mine", FRAME.assign(n=[1, 2, 4]), ABOUT).save(tmp_path / "mine")
    assert Answer.read(tmp_path / "mine").frame["n"].tolist() == [1, 2, 4]


@pytest.mark.parametrize("name", ["mine.csv", "mine.json", "beside.csv"])
def test_a_foreign_file_is_not_replaced_and_nothing_is_written(tmp_path, name):
    (tmp_path / name).write_text("{}" if name.endswith("json") else "a,b\n1,2\n")
    answer = Answer("mine", FRAME, ABOUT, further={"beside": Answer("beside", FRAME)})
    with pytest.raises(FileExistsError, match=rf"{name} exists and is not an answer that gradstats wrote"):
        answer.save(tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_a_killed_process_leaves_is_replaced(tmp_path):
    answer = Answer("mine", FRAME, ABOUT)
    table, state = answer.save(tmp_path / "mine")
    state.unlink()
    answer.save(tmp_path / "mine")
    assert "question" in read_json(state)
    same(answer, Answer.read(tmp_path / "mine"))
    assert table.exists()
