"""Labels: a name with its parameters in brackets."""

from __future__ import annotations

import pytest

from gradstats.config.labels import read_label


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
        "kimi(tau=print())",
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
