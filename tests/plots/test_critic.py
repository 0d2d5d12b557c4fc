"""The figure of a value head beside Monte-Carlo values."""

import numpy as np
import pandas as pd
import pytest

from gradstats.plots import plot_critic
from gradstats.stats.critic_quality import FAILED, RECOVERED


def frame():
    states = ["all", "step 0", "step 1 and later", RECOVERED, FAILED]
    columns = {"states": states, "n": 9, "n_prompts": 3}
    for name, values in (
        ("bias", [0.0, 0.1, -0.1, -0.2, 0.2]),
        ("explained_variance", [0.5, 0.2, 0.6, np.nan, np.nan]),
    ):
        columns |= {name: values, f"{name}_low": np.array(values) - 0.1, f"{name}_high": np.array(values) + 0.1}
    return pd.DataFrame(columns)


def test_each_set_of_states_has_its_place():
    bias, explained = plot_critic(frame())
    assert [tick.get_text() for tick in explained.get_xticklabels()] == ["0", "1+", "recovered", "not recovered"]
    drawn = [line.get_ydata() for line in bias.get_lines() if len(line.get_ydata()) == 2 and line.get_marker() in "oD"]
    assert [list(values) for values in drawn] == [[0.1, -0.1], [-0.2, 0.2]]
    assert bias.get_ylabel() == "bias of the head"


def test_what_is_not_resolved_is_said():
    unknown = frame().assign(explained_variance=np.nan)
    _, explained = plot_critic(unknown)
    assert [text.get_text() for text in explained.texts] == ["not resolved"]
    with pytest.raises(ValueError, match="lacks the column"):
        plot_critic(frame().drop(columns="bias_low"))


def test_a_value_without_interval_is_crossed():
    bias, explained = plot_critic(frame().assign(bias_low=np.nan, bias_high=np.nan))
    assert [line.get_marker() for line in bias.get_lines()].count("x") == 1
    assert [line.get_marker() for line in explained.get_lines()].count("x") == 0
    assert [text.get_text() for text in bias.get_figure().legends[0].get_texts()] == ["without interval"]
