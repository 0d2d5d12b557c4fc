"""What a file may make the program run: nothing without permission."""

from pathlib import Path

import pytest
import yaml

from gradstats.config.experiment import load_experiment, load_experiment_file, read_experiment
from gradstats.config.trust import UntrustedCodeError, names_code

PLAIN = {"policy": {"name": "embedded"}, "prompts": {"source": "embedded", "n": 2}}


def written(folder: Path, *, in_run: bool, **changes) -> Path:
    folder.mkdir(exist_ok=True)
    if in_run:
        (folder / "rollouts").mkdir()
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump(PLAIN | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"sampling": {"reward": "cProfile:run"}}, r"sampling\.reward='cProfile:run'"),
        ({"sampling": {"reward": ["math=1", "mine:score(a=1)=0.5"]}}, r"sampling\.reward='mine:score\(a=1\)=0\.5'"),
        ({"sampling": {"reward": {"mine:score": 1.0}}}, r"sampling\.reward='mine:score'"),
        ({"sampling": {"reward": "1mine:score"}}, "1mine:score"),
        ({"sampling": {"reward": "mïne:score"}}, "mïne:score"),
        ({"sampling": {"reward": " mine :score"}}, " mine :score"),
        ({"prompts": {"source": "mine:problems"}}, r"prompts\.source='mine:problems'"),
        ({"variance": {"estimators": ["rloo", "mine:f(tau=1)"]}}, r"variance='mine:f\(tau=1\)'"),
        ({"variance": {"estimators": ["recipe:grpo(advantage='mine:f')"]}}, "recipe:grpo"),
        ({"variance": {"reference": "mine:f"}}, "mine:f"),
        ({"sampling": {"sampler": "vllm", "sampler_options": {"worker_cls": "mine.Worker"}}}, r"mine\.Worker"),
        ({"policy": {"name": "x", "trust_remote_code": True}}, r"policy\.trust_remote_code='True'"),
        ({"policy": {"name": "x", "allow_pickle": "yes"}}, r"policy\.allow_pickle='yes'"),
        ({"sampling": {"sampler_options": {"trust_remote_code": True}}}, r"sampling\.trust_remote_code='True'"),
        # Before any other fault of the file is reported:
        ({"sampling": {"reward": "mine:score", "unknown": 1}, "figures": 3}, "mine:score"),
    ],
)
def test_what_a_run_directory_names_needs_permission(changes, named, tmp_path):
    path = written(tmp_path / "run", in_run=True, **changes)
    with pytest.raises(UntrustedCodeError, match=f"names code that would run .*{named}.*add --trust"):
        load_experiment(path)


@pytest.mark.parametrize("name", ["trust_remote_code", "allow_pickle"])
def test_model_code_and_pickles_need_permission_in_any_file(name, tmp_path):
    path = written(tmp_path / "own", in_run=False, policy={"name": "embedded", name: True})
    with pytest.raises(UntrustedCodeError, match=f"policy.{name}='True'.*may come from someone else.*--trust"):
        load_experiment(path)
    assert getattr(load_experiment(path, trust=True).policy, name) is True
    # On the command line it is the user who asks for it.
    assert getattr(load_experiment(path, [f"policy.{name}=true"]).policy, name) is True
    assert getattr(load_experiment(path, [f"policy.{name}=false"]).policy, name) is False


def test_functions_in_the_users_own_file_need_none(tmp_path):
    path = written(tmp_path / "own", in_run=False, sampling={"reward": "mine:score"})
    experiment = load_experiment(path)
    assert experiment.sampling.reward == "mine:score"
    assert experiment.folder == path.parent


def test_what_the_command_line_names_or_replaces_needs_none(tmp_path):
    path = written(tmp_path / "run", in_run=True, sampling={"reward": "theirs:score"})
    assert load_experiment(path, ["sampling.reward=mine:score"]).sampling.reward == "mine:score"
    assert load_experiment(path, ["sampling.reward=math"]).sampling.reward == "math"
    assert load_experiment_file(path, ignored=["sampling.reward"]).sampling.reward == "theirs:score"


def test_modules_beside_a_run_directorys_copy_are_found_only_with_permission(tmp_path):
    path = written(tmp_path / "run", in_run=True)
    assert load_experiment(path).folder is None
    assert load_experiment(path, trust=True).folder == path.parent


def test_a_link_into_a_run_directory_is_one(tmp_path):
    path = written(tmp_path / "run", in_run=True, sampling={"reward": "theirs:score"})
    link = tmp_path / "mine.yaml"
    link.symlink_to(path)
    with pytest.raises(UntrustedCodeError, match="theirs:score"):
        load_experiment(link)


def test_looking_at_a_file_needs_no_permission(tmp_path):
    path = written(tmp_path / "run", in_run=True, sampling={"reward": "theirs:score"})
    assert read_experiment(path).sampling.reward == "theirs:score"


@pytest.mark.parametrize("label", ["rloo", "recipe:grpo", "kimi(tau=0.5)", "reasoning_gym(threshold=0.5)"])
def test_what_is_built_in_is_not_code(label):
    assert not names_code(label)
