"""A run of a random model on a few problems, and rewards for it."""

from __future__ import annotations

import json

from gradstats.config.experiment import Experiment
from gradstats.measurement.measurement import Measurement
from gradstats.measurement.storage import read_measurement
from gradstats.runs.directory import RunDirectory
from gradstats.runs.measuring_step import measure_shards
from gradstats.runs.sampling_step import sample_shards


def small_experiment(policy: str, file, /, n_problems: int = 8, **changes) -> Experiment:
    """An experiment on a file of problems that is written for it; ``changes`` are fields of its sections."""
    file.write_text(
        "\n".join(json.dumps({"prompt": "ab " * k, "answer": "x", "key": f"k{k}"}) for k in range(1, n_problems + 1))
    )
    data = {
        "name": "small",
        "policy": {"name": policy},
        "prompts": {"source": str(file), "n": 4, "settings": {"id_column": "key"}},
        "sampling": {"group_size": 2, "max_new_tokens": 12, "batch_size": 3, "reward": "small_runs:vowels"},
        "measurement": {"sketch_dim": 64},
        "variance": {"estimators": ["reinforce", "rloo"]},
    }
    for section, fields in changes.items():
        data[section] = data[section] | fields
    return Experiment.model_validate(data)


def sampled_and_measured(experiment: Experiment, path) -> Measurement:
    """What a run does before it analyses."""
    run = RunDirectory.open(path, experiment)
    sample_shards(run, progress=False)
    measure_shards(run, progress=False)
    return read_measurement(run.measurement)


def vowels(completion, problem):
    """1 where the completion has a vowel."""
    return float(any(letter in "aeiou" for letter in completion))


def consonants(completion, problem):
    """The share of consonants."""
    return sum(letter.isalpha() and letter not in "aeiou" for letter in completion) / 12


def picky(completion, problem):
    """Raises where there is a digit."""
    if any(letter.isdigit() for letter in completion):
        raise ValueError("a digit")
    return 1.0
