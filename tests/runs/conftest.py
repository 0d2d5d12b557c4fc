"""A tiny experiment and a finished run of it, which the tests of the steps share."""

import json

import pytest
from small_runs import leave_out_pictures, only_two_figures

from gradstats.config.experiment import Experiment
from gradstats.config.sections import FiguresSection
from gradstats.measurement.measurement import read_measurement
from gradstats.runs.analysis import RunResult
from gradstats.runs.pipeline import run_experiment


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
def large(experiment, tmp_path_factory) -> Experiment:
    """The same of 24 prompts, in eight shards."""
    prompts = tmp_path_factory.mktemp("prompts") / "many.jsonl"
    texts = [f"{'ab ' * (1 + k % 6)}{'abcd'[k // 6]}" for k in range(24)]
    prompts.write_text("\n".join(json.dumps({"prompt": text, "answer": "x"}) for text in texts))
    settings = experiment.model_dump() | {"prompts": {"source": str(prompts)}}
    return Experiment.model_validate(settings | {"sampling": settings["sampling"] | {"batch_size": 12}})


@pytest.fixture(scope="session")
def finished_large(large, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        leave_out_pictures(patched)
        return run_experiment(large, tmp_path_factory.mktemp("runs") / "large", progress=False)


@pytest.fixture(scope="session")
def finished(experiment, tmp_path_factory):
    return run_experiment(experiment, tmp_path_factory.mktemp("runs") / "whole", progress=False)


@pytest.fixture
def no_analysis(monkeypatch):
    """Leave out fits and figures, which take most of the time."""
    monkeypatch.setattr(
        "gradstats.runs.pipeline.analyse",
        lambda run, progress=True: RunResult(
            run, read_measurement(run.measurement), alpha=None, comparison=None, paths=[]
        ),
    )


@pytest.fixture(scope="session")
def drawing(experiment) -> Experiment:
    """The same experiment with figures."""
    return experiment.model_copy(update={"figures": FiguresSection(formats=["png"])})


@pytest.fixture(scope="session")
def drawn(drawing, tmp_path_factory):
    """A finished run with figures."""
    with pytest.MonkeyPatch.context() as patched:
        only_two_figures(patched)
        return run_experiment(drawing, tmp_path_factory.mktemp("runs") / "drawn", progress=False)


@pytest.fixture(autouse=True)
def few_pictures(request, monkeypatch):
    """Draw two figures where a test asks for some, and leave the pages without any elsewhere: they take most time."""
    draws = {"drawing", "drawn"} & set(request.fixturenames)
    (only_two_figures if draws else leave_out_pictures)(monkeypatch)
