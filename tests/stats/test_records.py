"""Rows of a frame as dictionaries."""

import pandas as pd

from gradstats.stats.printed import records


def test_each_row_is_a_dictionary_with_text_keys():
    assert records(pd.DataFrame({"name": ["a", "b"], 1: [0.5, 2.0]})) == [
        {"name": "a", "1": 0.5},
        {"name": "b", "1": 2.0},
    ]
