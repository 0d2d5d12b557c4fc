"""A file that varies settings: its cells, their names, and what is refused."""

import pytest
import yaml

from gradstats.config.experiment import load_experiment, shipped_experiments
from gradstats.config.sweep import load_sweep
from gradstats.config.trust import UntrustedCodeError


def write(path, vary, **sections):
    data = {"policy": {"name": "embedded"}, "prompts": {"source": "embedded", "n": 4}} | sections
    path.write_text(yaml.safe_dump(data | ({} if vary is None else {"vary": vary}), sort_keys=False))
    return path


def cells_of(tmp_path, vary, *overrides, **sections):
    return load_sweep(write(tmp_path / "s.yaml", vary, **sections), overrides).cells


def test_a_mapping_is_a_grid(tmp_path):
    cells = cells_of(tmp_path, {"sampling.temperature": [0.6, 1.0], "sampling.group_size": [4, 8]})
    assert [(cell.experiment.sampling.temperature, cell.experiment.sampling.group_size) for cell in cells] == [
        (0.6, 4), (0.6, 8), (1.0, 4), (1.0, 8)
    ]  # fmt: skip
    assert [cell.name for cell in cells] == [
        "temperature=0.6,group_size=4", "temperature=0.6,group_size=8",
        "temperature=1.0,group_size=4", "temperature=1.0,group_size=8",
    ]  # fmt: skip
    assert cells[1].settings == {"sampling.temperature": 0.6, "sampling.group_size": 8}
    assert cells[0].experiment.name == "s temperature=0.6,group_size=4"


def test_a_list_is_the_cells_themselves(tmp_path):
    vary = [{"sampling.temperature": 0.6, "policy.temperature": 0.7}, {"sampling.temperature": 0.8}]
    first, second = cells_of(tmp_path, vary)
    assert (first.experiment.sampling.temperature, first.experiment.policy.temperature) == (0.6, 0.7)
    assert (second.experiment.sampling.temperature, second.experiment.policy.temperature) == (0.8, 1.0)
    assert first.name == "sampling.temperature=0.6,policy.temperature=0.7"
    assert second.name == "sampling.temperature=0.8"


def test_settings_in_one_name_take_the_same_value(tmp_path):
    cells = cells_of(tmp_path, {"policy.temperature, sampling.temperature": [0.6, 1.2]})
    assert [(cell.experiment.policy.temperature, cell.experiment.sampling.temperature) for cell in cells] == [
        (0.6, 0.6), (1.2, 1.2)
    ]  # fmt: skip
    assert [cell.name for cell in cells] == ["temperature=0.6", "temperature=1.2"]


def test_a_pattern_stands_for_the_folders_that_match_in_the_order_of_their_numbers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for step in (1000, 90, 500):
        (tmp_path / "out" / f"checkpoint-{step}").mkdir(parents=True)
    cells = cells_of(tmp_path, {"policy.name": "out/checkpoint-*"})
    assert [cell.experiment.policy.name for cell in cells] == [f"out/checkpoint-{step}" for step in (90, 500, 1000)]
    assert [cell.name for cell in cells] == [f"name=checkpoint-{step}" for step in (90, 500, 1000)]
    with pytest.raises(FileNotFoundError, match=r"no folder matches policy\.name='nothing-\*'"):
        cells_of(tmp_path, {"policy.name": ["embedded", "nothing-*"]})


def test_names_are_those_of_folders_and_differ(tmp_path):
    cells = cells_of(tmp_path, {"sampling.reward": ["math", "a/b", "a:b"]})
    assert [cell.name for cell in cells] == ["reward=math", "reward=a_b", "reward=a_b-2"]
    names = {cell.name for cell in cells_of(tmp_path, {"sampling.system_prompt": ["x" * 400 + end for end in "ab"]})}
    assert len(names) == 2
    assert max(map(len, names)) < 140


def test_code_beside_a_received_sweep_needs_permission(tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    path = write(tmp_path / "s.yaml", {"policy.name": "nothing-*"}, sampling={"reward": "evil:score"})
    with pytest.raises(UntrustedCodeError, match=r"sampling\.reward='evil:score'"):
        load_sweep(path)


def test_overrides_hold_for_all_cells_but_not_for_what_varies(tmp_path):
    vary = {"sampling.temperature": [0.6, 1.0]}
    assert [cell.experiment.prompts.n for cell in cells_of(tmp_path, vary, "prompts.n=2")] == [2, 2]
    with pytest.raises(ValueError, match=r"sampling\.temperature is set for all cells and varied by .*s\.yaml"):
        cells_of(tmp_path, vary, "sampling.temperature=1")
    assert len(cells_of(tmp_path, None, "vary={sampling.temperature: [1, 2, 3]}")) == 3


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        (None, r"s\.yaml varies nothing: give vary, as in vary: \{sampling\.temperature"),
        ([], "varies nothing"),
        ({"sampling.temperature": 0.6}, r"sampling\.temperature is 0\.6; give a list of values"),
        ({"sampling.temperature": []}, "give a list of values"),
        ({"sampling.heat": [1]}, "sampling has no setting 'heat'"),
        ({"sampling.temperature": [0.6, -1]}, r"sampling\.temperature is -1"),
        (
            {f"prompts.settings.{letter}": list(range(100)) for letter in "abcdef"},
            "stands for 1,.* give at most 10,000",
        ),
    ],
)
def test_what_cannot_be_varied_is_refused(tmp_path, vary, message):
    with pytest.raises(ValueError, match=message):
        cells_of(tmp_path, vary)
    with pytest.raises(ValueError, match="must be a name for a folder"):
        cells_of(tmp_path, {"prompts.n": [1, 2]}, name="")


def test_code_that_a_cell_names_needs_permission(tmp_path):
    path = write(tmp_path / "s.yaml", {"policy.trust_remote_code": [False, True]})
    with pytest.raises(UntrustedCodeError, match=r"policy\.trust_remote_code='True'"):
        load_sweep(path)
    assert len(load_sweep(path, trust=True).cells) == 2


def test_an_experiment_that_varies_settings_is_not_run_as_one(tmp_path):
    path = write(tmp_path / "s.yaml", {"sampling.temperature": [1.0]})
    with pytest.raises(ValueError, match=r"varies settings \(vary\): run it with `gradstats run"):
        load_experiment(path)
    with pytest.raises(FileNotFoundError, match="there is no sweep file absent, and none of that name comes with the"):
        load_sweep("absent")
    with pytest.raises(FileNotFoundError, match=r": did you mean embedded_mismatch\?"):
        load_sweep("embeded_mismatch")


@pytest.mark.parametrize("name", shipped_experiments(sweeps=True))
def test_shipped_sweeps_can_be_read(name):
    sweep = load_sweep(name)
    assert len(sweep.cells) >= 1
    assert sweep.cells[0].experiment.description
