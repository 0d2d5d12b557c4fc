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
    assert (load_experiment(path).sampling.reward, load_experiment(path).folder) == ("mine:score", path.parent)


def test_modules_beside_a_run_directorys_copy_are_found_only_with_permission(tmp_path):
    path = written(tmp_path / "run", in_run=True)
    assert [load_experiment(path, trust=trust).folder for trust in (False, True)] == [None, path.parent]


def test_a_link_into_a_run_directory_is_one_and_looking_at_a_file_needs_no_permission(tmp_path):
    path = written(tmp_path / "run", in_run=True, sampling={"reward": "theirs:score"})
    (tmp_path / "mine.yaml").symlink_to(path)
    with pytest.raises(UntrustedCodeError, match="theirs:score"):
        load_experiment(tmp_path / "mine.yaml")
    assert read_experiment(path).sampling.reward == "theirs:score"


def test_what_the_command_line_names_or_replaces_needs_none(tmp_path):
    path = written(tmp_path / "run", in_run=True, sampling={"reward": "theirs:score"})
    assert load_experiment(path, ["sampling.reward=mine:score"]).sampling.reward == "mine:score"
    assert load_experiment(path, ["sampling.reward=math"]).sampling.reward == "math"
    assert load_experiment_file(path, ignored=["sampling.reward"]).sampling.reward == "theirs:score"


@pytest.mark.parametrize(
    "label", ["rloo", "recipe:grpo", "kimi(tau=0.5)", "reasoning_gym(threshold=0.5)", "delta=-1:0.5:4"]
)
def test_what_is_built_in_is_not_code(label):
    assert not names_code(label)


SERVED = {"sampler": "openai", "base_url": "http://their.example:8000/v1"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampling": SERVED}, r"send prompts, and the key in OPENAI_API_KEY, to their\.example:8000"),
        (
            {"sampling": {"sampler": "openai", "sampler_options": {"base_url": SERVED["base_url"]}}},
            r"to their\.example:8000",
        ),
        ({"sampling": {"sampler": "openai", "sampler_options": {"api_key_env": "HF_TOKEN"}}}, "the secret in HF_TOKEN"),
        ({"tracking": "wandb"}, "log settings and results with your account at wandb"),
        ({"execution": {"executor": "ray", "address": "ray://their.example:1"}}, "work to the cluster at ray://their"),
        ({"sampling": SERVED | {"reward": "mine:score"}}, r"names code .*--trust .*also send .*their\.example:8000"),
    ],
)
def test_what_a_run_directory_would_send_somewhere_needs_permission(changes, said, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    path = written(tmp_path / "run", in_run=True, **changes)
    with pytest.raises(UntrustedCodeError, match=said):
        load_experiment(path)
    assert load_experiment(path, trust=True)
    if "reward" not in str(changes):
        own = written(tmp_path / "own", in_run=False, **changes)
        assert load_experiment(own)
    given = [f"{section}={yaml.safe_dump(value, default_flow_style=True).strip().removesuffix('...')}"
             for section, value in changes.items()]  # fmt: skip
    assert load_experiment(path, given)


def test_the_remedy_names_the_setting_and_the_users_own_address_needs_none(tmp_path, monkeypatch):
    path = written(tmp_path / "run", in_run=True, sampling=SERVED)
    named = r"\(--set sampling\.base_url=http://their\.example:8000/v1\), or add --trust"
    with pytest.raises(UntrustedCodeError, match=f"a run directory may come from someone else.*{named}"):
        load_experiment(path)
    assert load_experiment(path, ["sampling.base_url=http://mine/v1"]).sampling.base_url == "http://mine/v1"
    assert load_experiment_file(path, ignored=["sampling.base_url"])
    monkeypatch.setenv("OPENAI_BASE_URL", "http://their.example:8000/v1/")
    assert load_experiment(path)


@pytest.mark.parametrize(
    "sampling",
    [
        {"sampler_options": {"api_key": "sk-1"}},
        {"sampler_options": {"hf_token": "sk-1"}},
        {"base_url": "http://me:sk-1@localhost/v1"},
        {"base_url": "http://localhost/v1?api_key=sk-1"},
        {"sampler_options": {"base_url": "http://sk-1@localhost/v1"}},
    ],
)
def test_a_credential_among_the_settings_is_refused_without_being_repeated(sampling, tmp_path):
    path = written(tmp_path / "own", in_run=False, sampling={"sampler": "openai"} | sampling)
    with pytest.raises(ValueError, match=r"sampling\.\w+ (has|holds) .*written to files: .*OPENAI_API_KEY") as caught:
        load_experiment(path)
    assert "sk-1" not in str(caught.value)
    assert load_experiment(path, ["sampling={sampler_options: {api_key_env: LAB_KEY}, sampler: openai}"])
