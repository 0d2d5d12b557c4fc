"""Names in an experiment are checked before anything is loaded or sampled."""

from __future__ import annotations

import pytest

from gradstats.config.experiment import Experiment
from gradstats.runs.cost import estimate_cost
from gradstats.runs.pipeline import run_experiment


@pytest.mark.parametrize("call", ["run", "dry run"])
@pytest.mark.parametrize(
    ("variance", "message"),
    [
        ({"estimators": ["rloo", "group_maen"]}, r"^variance\.estimators: .*'group_maen'.*group_mean"),
        ({"reference": "rlo"}, r"^variance\.reference: .*'rlo'.*rloo"),
        ({"estimators": ["length_weighted(alpa=1)"]}, r"^variance\.estimators: .*alpa"),
    ],
)
def test_a_misspelt_estimator_fails_before_the_policy_is_looked_for(tmp_path, call, variance, message):
    experiment = Experiment(
        name="e", policy={"name": "./absent"}, prompts={"source": "embedded", "n": 2}, variance=variance
    )
    with pytest.raises(ValueError, match=message):
        estimate_cost(experiment) if call == "dry run" else run_experiment(experiment, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
