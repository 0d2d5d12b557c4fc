"""What estimators and components share."""

from __future__ import annotations

from gradstats import estimators as est
from gradstats.estimators.recipes.components import get_component


def test_objects_of_the_same_definition_and_parameters_are_equal():
    for make in (est.asymmetric, lambda delta: get_component("ratio", "token_clip", eps_high=delta)):
        assert len({make(delta=0.3), make(delta=0.3), make(delta=0.4)}) == 2
    assert est.rloo() != est.group_mean()


def test_labels_name_what_differs_from_the_defaults():
    clip = get_component("ratio", "token_clip", eps_high=0.28)
    assert (clip.name, clip.label, repr(clip)) == ("token_clip", "token_clip(eps_high=0.28)", clip.label)
    assert (est.grpo().label, est.grpo().unit, est.grpo().across_groups) == ("grpo", "sequence_sum / group_std", False)
    assert est.reinforce_pp().across_groups
