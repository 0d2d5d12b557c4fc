"""Frames with estimators in words: columns, attrs, recipes by name, letters of parameters."""

from __future__ import annotations

import pandas as pd

from gradstats.plots.names import LABELS
from gradstats.report.analysis_tables import frame_in_words


def test_columns_and_what_captions_print_are_named_alike():
    frame = pd.DataFrame({"estimator": ["rloo", "mine:f(x=1)", "otb(loo=True)"], "ratio": [1.0, 2.0, 3.0]})
    frame.attrs = {"reference": "rloo", "best_learned": "otb(loo=True)", "n": 3}
    named = frame_in_words(frame)
    assert named["estimator"].tolist() == ["RLOO", "mine:f(x=1)", "OTB, leave-one-out"]
    assert named.attrs == {"reference": "RLOO", "best_learned": "OTB, leave-one-out", "n": 3}
    assert frame["estimator"][0] == frame.attrs["reference"] == "rloo"
    frame.attrs[LABELS] = {"otb(loo=True)": "ours"}
    assert frame_in_words(frame).attrs["best_learned"] == frame_in_words(frame)["estimator"][2] == "ours"


def test_recipes_are_methods_as_a_whole():
    frame = pd.DataFrame({"recipe": ["grpo", "recipe:dapo(loo=True)", "norm_weighted"]})
    assert frame_in_words(frame)["recipe"].tolist() == ["GRPO", "DAPO, leave-one-out", "norm-weighted"]


def test_parameters_are_letters():
    frame = pd.DataFrame({"estimator": ["learned exponent", "rloo"], "parameters": ["alpha 0.43 [-0.07, 0.68]", None]})
    frame.attrs["parameter"] = "alpha"
    named = frame_in_words(frame)
    assert named["parameters"].tolist() == ["α 0.43 [−0.07, 0.68]", ""]
    assert named.attrs["parameter"] == "α"
    frame.attrs["parameter"] = "group_size"
    assert frame_in_words(frame).attrs["parameter"] == "group size"
