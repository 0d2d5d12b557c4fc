"""Labels: a name with its parameters in brackets."""

from __future__ import annotations

import pytest

from gradstats.config.options import read_display_names, read_label, written


@pytest.mark.parametrize(
    ("label", "name", "parameters"),
    [
        ("rloo", "rloo", {}),
        ("rloo()", "rloo", {}),
        ("kimi(tau=0.5)", "kimi", {"tau": 0.5}),
        ("kimi (tau = -1e-3, loo=True)", "kimi", {"tau": -1e-3, "loo": True}),
        ("constant(b=optimal)", "constant", {"b": "optimal"}),
        ("constant(b='optimal')", "constant", {"b": "optimal"}),
        ("token_clip(dual_clip=None)", "token_clip", {"dual_clip": None}),
        ("recipe:grpo(kl=in_loss(beta=0.1), loo=True)", "recipe:grpo", {"kl": "in_loss(beta=0.1)", "loo": True}),
        ("module:function(a=[1, 2], b='x(y)')", "module:function", {"a": [1, 2], "b": "x(y)"}),
    ],
)
def test_a_label_is_read_as_name_and_parameters(label, name, parameters):
    assert read_label(label) == (name, parameters)


@pytest.mark.parametrize(
    "label",
    [
        "kimi(0.5)",
        "kimi(tau=",
        "kimi(tau=1, tau=2)",
        "kimi(tau=1 + x)",
        "kimi(tau=1)x",
        "kimi(tau=1)(loo=True)",
        "kimi(**tau)",
        "kimi(tau={[]: 1})",
    ],
)
def test_what_cannot_be_read_is_refused(label):
    with pytest.raises(ValueError, match=r"^cannot read .*: write it as name\(parameter=value, …\)$") as caught:
        read_label(label)
    assert repr(label) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1 + 0.2, "0.3"),
        (True, "True"),
        ("optimal", "optimal"),
        ("in_loss(beta=0.1)", "in_loss(beta=0.1)"),
        ("mine:f", "'mine:f'"),
        ("1", "'1'"),
        ("None", "'None'"),
        ("a, b=2", "'a, b=2'"),
    ],
)
def test_a_written_value_is_read_back(value, text):
    assert written(value) == text
    assert read_label(f"f(x={text})")[1]["x"] == pytest.approx(value) if isinstance(value, float) else value


def test_display_names_end_their_label_outside_its_brackets():
    words = ["length_weighted(alpha=0.8, loo=True)=ours, $\\alpha = 0.8$", "rloo = RLOO"]
    assert read_display_names(words) == {
        "length_weighted(alpha=0.8, loo=True)": "ours, $\\alpha = 0.8$",
        "rloo": "RLOO",
    }


@pytest.mark.parametrize("word", ["rloo", "=RLOO", "rloo=", "otb(loo=True)"])
def test_display_names_without_a_label_or_a_name_are_refused(word):
    with pytest.raises(ValueError, match="write it as label=name"):
        read_display_names([word])
