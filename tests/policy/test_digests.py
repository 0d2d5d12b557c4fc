"""Digests of weights, adapters and tokenizers, and weights that are not those of the architecture."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from conftest import ragged_rollouts, tiny_tokenizer
from safetensors.torch import load_file, save_file

from gradstats.gradients import measure
from gradstats.policy.checkpoint import PolicyMismatchError, refuse_other_policy, tokenizer_digest, weights_digest
from gradstats.policy.policy import load_policy
from gradstats.rollouts.table import Rollouts


@pytest.fixture
def folder(policy_folder, tmp_path) -> Path:
    return Path(shutil.copytree(policy_folder, tmp_path / "copy"))


def change(folder: Path, alter) -> None:
    weights = load_file(folder / "model.safetensors")
    alter(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_one_changed_weight_changes_the_digest_and_the_dtype_does_not(policy_folder, folder):
    before = load_policy(policy_folder).digests
    assert load_policy(folder).digests == before
    assert load_policy(folder, dtype="bfloat16").describe()["digests"] == before
    change(folder, lambda weights: weights["model.norm.weight"][0].add_(1e-3))
    after = load_policy(folder).digests
    assert after["weights"] != before["weights"]
    assert after["tokenizer"] == before["tokenizer"]


def test_the_tokenizer_counts_with_its_template():
    assert tokenizer_digest(tiny_tokenizer()) == tokenizer_digest(tiny_tokenizer())
    assert tokenizer_digest(tiny_tokenizer()) != tokenizer_digest(tiny_tokenizer(chat_template=False))


def test_checkpoints_of_the_embedded_policy_differ():
    assert load_policy("embedded").digests != load_policy("embedded", revision="step-1000").digests


def test_a_folder_without_weights_has_no_digest(tmp_path):
    assert weights_digest(tmp_path) is None


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda w: w.pop("model.layers.0.mlp.up_proj.weight"), r"lack model\.layers\.0\.mlp\.up_proj\.weight \(1 of"),
        (lambda w: w.update({"model.layers.7.x.weight": torch.zeros(3)}), r"hold model\.layers\.7\.x\.weight \(1 of"),
        (
            lambda w: w.update({"model.layers.0.mlp.up_proj.weight": torch.zeros(3, 3)}),
            r"hold another shape of model\.layers\.0\.mlp\.up_proj\.weight \(1 of",
        ),
    ],
)
def test_weights_of_another_architecture_are_refused(folder, alter, message):
    change(folder, alter)
    with pytest.raises(ValueError, match=message):
        load_policy(folder)


@pytest.mark.parametrize(
    ("recorded", "now", "part"),
    [
        ({"weights": "a", "tokenizer": "t"}, {"weights": "b", "tokenizer": "t"}, "weights"),
        ({"weights": "a", "tokenizer": "t"}, {"weights": "a", "tokenizer": "u"}, "tokenizer"),
        ({"weights": "a", "tokenizer": "t"}, {"weights": "a", "tokenizer": "t", "adapter": "x"}, "adapter"),
        ({"weights": "a", "adapter": "x"}, {"weights": "a"}, "adapter"),
    ],
)
def test_rollouts_of_another_policy_are_refused(recorded, now, part):
    with pytest.raises(
        PolicyMismatchError, match=f"the rollouts were drawn from a policy that differs in its {part} .*: restore"
    ):
        refuse_other_policy({"digests": recorded}, now, "the rollouts", "restore")


def test_what_has_no_digests_is_not_compared():
    for recorded, now in ((None, {"weights": "a"}), ({}, {"weights": "a"}), ({"digests": {"weights": "a"}}, {})):
        refuse_other_policy(recorded, now, "the rollouts", "restore")


def test_measuring_with_other_weights_needs_permission(folder):
    rollouts = Rollouts(ragged_rollouts(4).frame, {"policy": load_policy(folder).describe()})
    measure(load_policy(folder, dtype="float64"), rollouts, sketch_dim=16, progress=False)
    change(folder, lambda weights: weights["model.norm.weight"][0].add_(1e-3))
    changed = load_policy(folder)
    with pytest.raises(PolicyMismatchError, match="differs in its weights .* --allow-policy-mismatch"):
        measure(changed, rollouts, sketch_dim=16, progress=False)
    assert len(measure(changed, rollouts, sketch_dim=16, allow_policy_mismatch=True, progress=False)) == 4
