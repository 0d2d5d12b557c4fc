"""Labels: a name with its parameters in brackets."""

from __future__ import annotations

import pytest

from gradstats.config.options import adam_section, estimate_section, read_display_names, read_label, written
from gradstats.config.sections import MeasurementSection


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


def test_labels_state_options():
    adam = adam_section("adam(eps=1e-6, step=10)")
    estimate = estimate_section("estimate(share=0.5, estimator=dr_grpo)")
    assert adam is not None
    assert (adam.eps, adam.step, adam.power, adam.beta2) == (1e-6, 10, 0.5, None)
    assert estimate is not None
    assert estimate.arguments() == {"estimator": "dr_grpo", "prompts_per_batch": 16}
    assert estimate.share == 0.5
    assert estimate_section("moments.safetensors") is None


def test_the_euclidean_metric_has_a_name_as_well():
    assert MeasurementSection(metric="euclidean").metric == "euclidean"
    with pytest.raises(ValueError, match=r"second_moments is 'a\.pt', which only a metric uses"):
        MeasurementSection(metric="euclidean", second_moments="a.pt")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "sgd"}, r"metric is 'sgd': the metric 'sgd' is unknown: choose euclidean, or adam"),
        ({"metric": "adam(epsilon=1)"}, r"metric is 'adam\(epsilon=1\)': the metric has no setting 'epsilon'"),
        ({"metric": "adam(eps=-1)"}, r"eps is -1: it must be a number of at least 0"),
        ({"metric": "adam(step=0)"}, r"step is 0: it must be an integer of at least 1"),
        (
            {"metric": "adam"},
            r"second_moments is None, and metric is 'adam': give a file of second moments, or estimate",
        ),
        ({"second_moments": "a.pt"}, r"second_moments is 'a\.pt', which only a metric uses: give metric adam"),
        ({"metric": "adam", "second_moments": "estimate(share=1)"}, r"share is 1: it must be a number in \(0, 1\)"),
        (
            {"metric": "adam(step=5)", "second_moments": "estimate"},
            r"second_moments is 'estimate': step of the metric is 5, .*need no correction: leave step out",
        ),
        ({"metric": "adam", "second_moments": "estimate(batch=1)"}, r"has no setting 'batch'"),
    ],
)
def test_wrong_options_are_one_sentence(settings, message):
    with pytest.raises(ValueError, match=message):
        MeasurementSection(**settings)
