"""The variance table of a page: the ranking column first, and what each column means."""

from __future__ import annotations

import pandas as pd
import pytest
from saved_runs import save_run

from gradstats.estimators.display_names import in_words
from gradstats.report.glossary import TERM_OF_COLUMN, TERMS
from gradstats.report.page import breakable, column_definition, variance_on_page
from gradstats.report.saved_results import read_results
from gradstats.stats.variance.quantities import COMPARED


@pytest.fixture
def frame(tmp_path):
    frame = read_results(save_run(tmp_path / "run")).variance
    together = {"matched_ratio_simultaneous_low": 0.5, "matched_ratio_simultaneous_high": 1.25}
    return frame.assign(**together, in_best_set=[True, False, pd.NA, False])


def test_the_matched_ratio_and_what_is_drawn_from_it_are_beside_the_names(frame):
    table = variance_on_page(frame)
    assert [column["name"] for column in table["columns"]][:5] == [
        "estimator", "matched_ratio", "matched_ratio_simultaneous", "in_best_set", "trace_cov",
    ]  # fmt: skip
    first, *_, last = table["rows"]
    assert [cell["html"] for cell in first["cells"][1:3]] == ["0.50 to 1.25", "yes"]
    assert first["cells"][0]["bold"]
    assert not last["cells"][0]["bold"]
    assert all(len(row["cells"]) == len(table["columns"]) - 1 for row in table["rows"])
    assert table["rows"][2]["cells"][2] == {"html": "–", "key": "", "bold": False}


def test_a_table_without_a_best_set_has_no_such_column(frame):
    table = variance_on_page(frame.drop(columns=["in_best_set"]))
    assert "in_best_set" not in [column["name"] for column in table["columns"]]
    assert not table["has_best_set"]
    assert variance_on_page(None) is None


def test_every_column_is_defined_in_the_words_of_the_glossary_with_its_file(frame):
    definitions = {column["name"]: column for column in variance_on_page(frame)["columns"]}
    assert definitions["matched_ratio"]["meaning"] == TERMS["matched ratio"]
    assert definitions["matched_ratio"]["file"] == "gradstats/stats/variance/matched_ratio.py"
    assert definitions["ratio"]["heading"] == "ratio to RLOO"
    assert set(TERM_OF_COLUMN.values()) <= set(TERMS)
    for quantity in COMPARED:
        assert column_definition(quantity.name, quantity.heading)["meaning"].endswith(".")


def test_names_are_escaped_and_break_where_words_end():
    assert breakable("α = 0.8, b") == "α\u00a0=\u00a00.8,<wbr> b"
    assert breakable("<b>(a=1, b)") == "&lt;b&gt;(<wbr>a=<wbr>1,<wbr> b)"


def test_rows_are_named_in_words_and_keep_their_labels(frame):
    labels = frame["estimator"].tolist()
    table = variance_on_page(frame, {labels[1]: "<ours>"})
    assert [row["label"] for row in table["rows"]] == labels
    assert [table["rows"][0]["name"], table["rows"][1]["html"]] == [in_words(labels[0]), "&lt;ours&gt;"]
    assert table["reference"] == "RLOO"


def test_notes_name_estimators_as_the_rows_do(frame):
    frame.attrs["notes"] = [
        "rloo, my_rloo and rloo(off_policy=True) differ from length_weighted(alpha=0.8, loo=True): see rloo: 1"
    ]
    assert variance_on_page(frame)["notes"] == [
        "RLOO, my_rloo and rloo(off_policy=True) differ from length-weighted, α = 0.8, leave-one-out: see RLOO: 1"
    ]
