"""The plug-in of verl, in verl itself: registered when verl is imported, and equal to verl's own estimators."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points

import numpy as np
import pytest
from verl_batches import PROMPTS, verl_batch

pytest.importorskip("verl", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def core_algos():
    from verl.trainer.ppo import core_algos

    return core_algos


def in_a_process(program: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | variables,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_verl_registers_the_estimators():
    assert "gradstats.integrations.verl" in {entry.value for entry in entry_points(group="verl.plugins")}
    program = (
        "import json, verl\n"
        "from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as registry\n"
        "print(json.dumps([name for name in registry if name.startswith('gradstats')]))\n"
        "print(registry['gradstats'].estimator.label)"
    )
    names, label = in_a_process(program, GRADSTATS_ESTIMATOR="length_weighted(alpha=0.8, loo=True)").splitlines()[-2:]
    from gradstats.integrations.verl_advantages import known_labels

    assert set(json.loads(names)) == {"gradstats", *(f"gradstats/{name}" for name in known_labels())}
    assert label == "length_weighted(alpha=0.8, loo=True)"


def test_env_says_so():
    from gradstats.integrations.installed import registered_with_verl
    from gradstats.integrations.verl_advantages import known_labels

    assert registered_with_verl() == f"{len(known_labels())} estimators are registered"


@pytest.mark.parametrize(
    ("label", "own", "settings"),
    [
        ("rloo", "rloo", {}),
        ("group_mean", "grpo", {"norm_adv_by_std_in_grpo": False}),
        ("grpo(eps=1e-6)", "grpo", {}),
        ("token_mean", "opo", {}),
    ],
)
def test_advantages_are_those_of_verl(core_algos, label, own, settings):
    from gradstats.integrations.verl_advantages import chosen

    rewards, mask = verl_batch()
    theirs, _ = core_algos.get_adv_estimator_fn(own)(
        token_level_rewards=rewards.clone(), response_mask=mask, index=PROMPTS, **settings
    )
    ours, _ = chosen(label)(token_level_rewards=rewards, response_mask=mask, index=PROMPTS)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=2e-6)


def test_the_trainer_calls_it(core_algos):
    ray_trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer", exc_type=ImportError)
    from verl import DataProto

    rewards, mask = verl_batch()
    found = {}
    for name in ("gradstats/rloo", "rloo"):
        data = DataProto.from_dict(
            tensors={"token_level_rewards": rewards.clone(), "response_mask": mask}, non_tensors={"uid": PROMPTS}
        )
        found[name] = ray_trainer.compute_advantage(data, name).batch["advantages"].numpy()
    np.testing.assert_allclose(found["gradstats/rloo"], found["rloo"], atol=2e-6)
    assert np.abs(found["rloo"]).max() > 0
