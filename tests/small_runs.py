"""A run of a random model on a few problems, and rewards for it."""

import json
from collections.abc import Iterator

import pytest
from matplotlib.figure import Figure

from gradstats.analyses import registry
from gradstats.config.experiment import Experiment
from gradstats.measurement.measurement import Measurement, read_measurement
from gradstats.report import figures
from gradstats.runs.directory import RunDirectory
from gradstats.runs.measuring_step import measure_shards
from gradstats.runs.sampling_step import sample_shards


def small_experiment(policy: str, file, /, n_problems: int = 8, **changes) -> Experiment:
    """An experiment with a small file of problems; ``changes`` are fields of its sections."""
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
        "figures": {"formats": []},  # drawing is four fifths of the time of so small a run
    }
    for section, fields in changes.items():
        data[section] = data[section] | fields
    return Experiment.model_validate(data)


def leave_out_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing where no file of a figure is asked for: the pictures of the page are most of the time of a run."""
    drawn = figures.run_figures

    def blank(run, style) -> Iterator[tuple[figures.RunFigure, Figure]]:
        if style.formats:
            yield from drawn(run, style)
            return
        for one in figures.figures_of(run, style):
            yield one, Figure(figsize=(1, 1))

    monkeypatch.setattr(figures, "run_figures", blank)
    monkeypatch.setattr(figures, "_svg", lambda figure: '<svg width="2pt" height="1pt"></svg>')


def only_two_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw two figures of each run, beside those that commands add; all of them are drawn in tests/report."""
    all_figures, of_runs = figures.figures_of, {one.name for one in registry.all_analyses() if one.in_run is not None}

    def two(run, style=None):
        listed = all_figures(run, style)
        names = {
            "variance",
            "length_scaling",
            *(name for name, one in run.answers.items() if one.question not in of_runs),
        }
        return [one for one in listed if one.name in names]

    monkeypatch.setattr(figures, "figures_of", two)


def sampled_and_measured(experiment: Experiment, path) -> Measurement:
    """The steps of a run before the analysis."""
    run = RunDirectory.open(path, experiment)
    sample_shards(run, progress=False)
    measure_shards(run, progress=False)
    return read_measurement(run.measurement)


def even(completion, problem):
    """Whether the number of characters is even."""
    return float(len(completion) % 2 == 0)


def odd(completion, problem):
    return 1.0 - even(completion, problem)


def vowels(completion, problem):
    """Reward 1 if the completion contains a vowel."""
    return float(any(letter in "aeiou" for letter in completion))


def consonants(completion, problem):
    """Reward equal to the share of consonants."""
    return sum(letter.isalpha() and letter not in "aeiou" for letter in completion) / 12


def picky(completion, problem):
    """Raises an error if the completion contains a digit."""
    if any(letter.isdigit() for letter in completion):
        raise ValueError("a digit")
    return 1.0
