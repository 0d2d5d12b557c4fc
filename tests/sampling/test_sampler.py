"""The interface of samplers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import gradstats
from gradstats.policy.policy import load_policy
from gradstats.prompts import Problem
from gradstats.rollouts.table import Rollouts
from gradstats.sampling import Completion, Sampler
from gradstats.sampling.sample import sample

PROBLEMS = [Problem(f"p{k}", "ab" * k, "x", "exact") for k in range(1, 5)]


@pytest.fixture(scope="module")
def policy(policy_folder):
    return load_policy(policy_folder)


def test_a_sampler_of_ones_own_is_used_with_its_seeds(policy):
    class Constant:
        own_seeds = True
        seen: list[int] = []  # noqa: RUF012

        def describe(self):
            return {"engine": "constant"}

        def draw(self, prompts, settings, seeds, on_tokens):
            self.seen.extend(seeds)
            return [Completion([4, 1], [-1.0, float("nan")], "stop", "pieces") for _ in prompts]

    own = Constant()
    assert isinstance(own, Sampler)
    with pytest.warns(UserWarning, match="generation_config"):
        rollouts = sample(policy, PROBLEMS, group_size=2, max_new_tokens=4, sampler=own, reward="exact", progress=False)
    assert sorted(rollouts.frame["sampler_seed"]) == sorted(own.seen)
    assert rollouts.metadata["sampler"]["engine"] == "constant"
    assert np.isnan(rollouts.frame["sampler_logprobs"].iloc[0][1])


def test_recipes_that_need_every_logprob_are_told_that_one_is_missing(policy):
    logprobs = [[-1.0, float("nan")]]
    table = Rollouts.from_sequences([[2]], [[4, 5]], [1.0], ["p"], sampler_logprobs=logprobs)
    measured = gradstats.measure(policy, table, sketch_dim=None, progress=False)
    batch = gradstats.estimators.Batch.from_measurement(measured)
    assert batch.old_logprobs is None
    assert pd.notna(batch.logprobs).all()
