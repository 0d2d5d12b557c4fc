"""What is used of TRL's trainers, per version."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trl
from small_trainers import small_trainer

from gradstats.integrations.installed import is_known
from gradstats.integrations.trl.contract import check_trainer
from gradstats.system.environment import installed

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def trainers(tmp_path_factory):
    return {kind: small_trainer(kind, tmp_path_factory.mktemp(kind)) for kind in ("GRPO", "RLOO")}


@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_this_version_is_known(trainers, kind):
    assert installed("trl") == trl.__version__
    assert is_known("trl", trl.__version__)
    check_trainer(trainers[kind])


def test_another_object_is_refused():
    with pytest.raises(TypeError, match="is a SimpleNamespace: attach to TRL's GRPOTrainer or RLOOTrainer"):
        check_trainer(SimpleNamespace())  # pyright: ignore[reportArgumentType]


def test_another_signature_is_refused_with_the_version(trainers, monkeypatch):
    monkeypatch.setattr(trainers["GRPO"], "_calculate_rewards", lambda inputs, prompts: None, raising=False)
    with pytest.raises(TypeError, match=rf"takes inputs, prompts and not inputs, .*TRL {trl.__version__} is installed"):
        check_trainer(trainers["GRPO"])


def test_a_missing_attribute_is_refused_with_the_version(trainers, monkeypatch):
    monkeypatch.delattr(trainers["RLOO"], "_metrics")
    with pytest.raises(TypeError, match=rf"RLOOTrainer has no _metrics: TRL {trl.__version__}"):
        check_trainer(trainers["RLOO"])


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (SimpleNamespace(deepspeed_plugin=SimpleNamespace(zero_stage=3)), "under DeepSpeed ZeRO-3 no process"),
        (SimpleNamespace(fsdp_plugin=SimpleNamespace()), "under FSDP no process holds whole parameters"),
    ],
)
def test_partitioned_parameters_are_refused(trainers, monkeypatch, state, message):
    monkeypatch.setattr(trainers["GRPO"].accelerator, "state", state)
    with pytest.raises(ValueError, match=message):
        check_trainer(trainers["GRPO"])


def test_rewards_that_are_normalised_one_by_one_are_refused(trainers, monkeypatch):
    monkeypatch.setattr(trainers["GRPO"], "multi_objective_aggregation", "normalize_then_sum")
    with pytest.raises(ValueError, match='train with "sum_then_normalize"'):
        check_trainer(trainers["GRPO"])
