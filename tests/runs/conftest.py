"""A tiny experiment and a finished run of it, which the tests of the steps share."""

from __future__ import annotations

import json

import matplotlib as mpl
import pytest
from small_runs import leave_out_pictures

from gradstats.config.experiment import Experiment
from gradstats.config.sections import FiguresSection
from gradstats.runs.pipeline import run_experiment

mpl.use("Agg")


@pytest.fixture(scope="session")
def experiment(policy_folder, tmp_path_factory) -> Experiment:
    prompts = tmp_path_factory.mktemp("prompts") / "problems.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": "ab " * k, "answer": "x"}) for k in range(1, 7)))
    return Experiment(
        name="tiny",
        policy={"name": policy_folder},
        prompts={"source": str(prompts)},
        sampling={"group_size": 4, "max_new_tokens": 16, "batch_size": 6, "reward": "small_runs:vowels"},
        measurement={"sketch_dim": 256},
        variance={"estimators": ["reinforce", "rloo", "length_weighted(alpha=0.8, loo=True)"]},
        figures={"formats": []},  # drawing is four fifths of the time of so small a run
    )


@pytest.fixture(scope="session")
def finished(experiment, tmp_path_factory):
    return run_experiment(experiment, tmp_path_factory.mktemp("runs") / "whole", progress=False)


@pytest.fixture(scope="session")
def drawing(experiment) -> Experiment:
    """The same experiment with figures."""
    return experiment.model_copy(update={"figures": FiguresSection(formats=["png"])})


@pytest.fixture(scope="session")
def drawn(drawing, tmp_path_factory):
    """A finished run with figures."""
    return run_experiment(drawing, tmp_path_factory.mktemp("runs") / "drawn", progress=False)


@pytest.fixture(autouse=True)
def pages_without_pictures(request, monkeypatch):
    """Leave the pictures out of the pages of tests that ask for no figures: they are most of the time of such a run."""
    if not {"drawing", "drawn"} & set(request.fixturenames):
        leave_out_pictures(monkeypatch)
