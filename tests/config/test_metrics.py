"""Options of a metric: labels, what they lack, and what they exclude."""

from __future__ import annotations

import pytest

from gradstats.config.options import adam_section, estimate_section
from gradstats.config.sections import MeasurementSection


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
