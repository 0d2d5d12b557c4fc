"""The checkpoints of the embedded policy's training run, and the second moments of its gradients."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import gradstats as gs
from gradstats.policy.checkpoint import EMBEDDED_FOLDER, checkpoint_names, second_moments


@pytest.fixture(scope="module")
def final():
    return {name: parameter.detach() for name, parameter in gs.load_policy("embedded").model.named_parameters()}


def distance(parameters, others):
    return sum(float((parameter - others[name]).square().sum()) for name, parameter in parameters.items()) ** 0.5


def test_checkpoints_come_closer_to_the_final_weights(final):
    names = checkpoint_names()
    assert len(names) >= 3
    distances = []
    for name in names:
        policy = gs.load_policy("embedded", revision=name)
        assert policy.revision == name
        stored = load_file(EMBEDDED_FOLDER / "checkpoints" / f"{name}.safetensors")
        loaded = {key: parameter.detach() for key, parameter in policy.model.named_parameters()}
        assert all(torch.equal(parameter, stored[key].float()) for key, parameter in loaded.items())
        distances.append(distance(loaded, final))
    assert distances == sorted(distances, reverse=True)
    norm = distance(final, {name: 0 * parameter for name, parameter in final.items()})
    assert distances[-1] < 0.1 * norm < distances[0]


def test_an_unknown_revision_names_the_known_ones():
    with pytest.raises(
        ValueError, match=rf'revision is "?\'main\'"?, but .* has the revisions {checkpoint_names()[0]}, '
    ):
        gs.load_policy("embedded", revision="main")


def test_second_moments_belong_to_the_parameters(final):
    moments, about = second_moments()
    assert {name: moment.shape for name, moment in moments.items()} == {
        name: parameter.shape for name, parameter in final.items()
    }
    assert all(bool((moment >= 0).all()) and float(moment.sum()) > 0 for moment in moments.values())
    assert about["step"] > 1000
    assert 0.9 < about["beta2"] < 1
    assert about["eps"] > 0
