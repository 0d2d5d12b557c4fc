"""Which further weightings a run measures, and what they are."""

from __future__ import annotations

import numpy as np
import pytest

import gradstats as gs
from gradstats.config.experiment import Experiment
from gradstats.config.sections import MeasurementSection
from gradstats.estimators import token_weightings
from gradstats.gradients import MeasuringSession
from gradstats.runs.further_weightings import needed_weightings, possible_weightings, weightings_of


def experiment(*labels: str) -> Experiment:
    return Experiment(
        name="e",
        policy={"name": "embedded"},
        prompts={"source": "embedded", "n": 2},
        variance={"estimators": list(labels)},
    )


def test_recipes_that_share_a_clip_share_its_weightings():
    possible = possible_weightings(experiment("rloo", "recipe:grpo", "recipe:dr_grpo", "recipe:gspo", "recipe:ppo"))
    assert possible == ("token_clip[+]", "token_clip[-]")
    assert possible_weightings(experiment("rloo", "recipe:grpo(kl=in_loss)")) == ()


@pytest.fixture(scope="module")
def stale():
    """Completions of an earlier checkpoint, to be scored by the final weights."""
    problems = gs.load_prompts("embedded", n=2, rng=0)
    revision = gs.policy.embedded.checkpoint_names()[0]
    earlier = gs.load_policy("embedded", revision=revision)
    options = {"group_size": 2, "max_new_tokens": 24, "rng": 0, "progress": False}
    policy = gs.load_policy("embedded")
    return policy, gs.sample(earlier, problems, **options), gs.sample(policy, problems, **options)


def test_they_are_measured_only_off_policy_and_give_what_a_second_measurement_gives(stale):
    policy, off_policy, on_policy = stale
    section = MeasurementSection(engine="ghost", sketch_dim=64)
    names = ("token_clip[+]", "token_clip[-]")
    session = MeasuringSession.open(policy, off_policy, section)
    assert needed_weightings(session, off_policy, names) == names
    assert needed_weightings(session, on_policy, names) == ()
    assert needed_weightings(session, off_policy, ()) == ()
    assert weightings_of(session, off_policy, ()) is None
    measured = session.measure(off_policy)
    for scored, known in zip(session.logprobs(off_policy), measured.logprobs, strict=True):
        np.testing.assert_allclose(scored, known, rtol=1e-5, atol=1e-6)
    expected = token_weightings(["recipe:grpo"], measured)
    for name, rows in weightings_of(session, off_policy, names).items():
        for row, known in zip(rows, expected[name], strict=True):
            np.testing.assert_allclose(row, known, rtol=1e-4)
