"""Sampling: explicit settings, reproducibility, rewards and the order of rows."""

import warnings
from importlib import import_module
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from small_draws import PROBLEMS, draw

from gradstats.rollouts.table import Rollouts, read_rollouts
from gradstats.sampling.plan import SamplingPlan
from gradstats.sampling.sample import draw_batches, sample
from gradstats.system.shards import Shards


class Plan(SamplingPlan):
    """Three batches of two completions, whose reward is the number of the batch."""

    def __init__(self):
        object.__setattr__(self, "rows", [[(batch, 0), (batch, 1)] for batch in range(3)])
        object.__setattr__(self, "drawn", [])
        object.__setattr__(self, "sampler", SimpleNamespace(own_seeds=True, describe=dict, draw=list))

    def draw(self, batch, on_tokens=lambda count: None):
        self.drawn.append(batch)
        on_tokens(4)
        return Rollouts.from_sequences([[1]] * 2, [[2, 3]] * 2, [float(batch)] * 2, [f"p{batch}"] * 2)


@pytest.fixture
def shards(tmp_path):
    with Shards.resume(tmp_path / "shards", {}, ".parquet", read_rollouts, Rollouts.to_parquet) as shards:
        yield shards


def rewards(batches):
    return [rollouts.rewards.tolist() for rollouts in batches]


def test_the_bar_starts_at_the_completions_that_were_finished_before(shards, monkeypatch):
    counted = []

    class Bar:
        def __init__(self, label, total, *, done, shown):
            counted.append((label, total, done, shown))

        def __enter__(self):
            return SimpleNamespace(
                tokens=lambda count: counted.append(count),
                completions=lambda rewards, lengths, before=False: counted.append((rewards.tolist(), before)),
            )

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(import_module("gradstats.sampling.sample"), "progress_bar", Bar)  # a function has its name
    shards.write(Plan().draw(0), shards.path(0))
    draw_batches(Plan(), shards, progress=False)
    assert counted == [("sampling", 6, 2, False), ([0, 0], True), 4, ([1, 1], False), 4, ([2, 2], False)]


def test_the_models_generation_config_is_reported_and_not_followed(policy):
    with pytest.warns(UserWarning, match="generation_config specifies .*temperature=0.6.* it is not followed"):
        rollouts = sample(policy, PROBLEMS, group_size=1, max_new_tokens=3, progress=False)
    ignored = rollouts.metadata["generation_config_not_followed"]
    assert ignored == {"temperature": 0.6, "top_p": 0.95, "top_k": 3, "repetition_penalty": 1.1}
    assert policy.model.generation_config.temperature == 0.6
    stated = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
    assert rollouts.metadata["sampler"].items() >= stated.items()


def test_settings_that_agree_with_the_model_are_not_warned_about(policy):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample(
            policy, PROBLEMS, group_size=1, max_new_tokens=3, progress=False,
            temperature=0.6, top_p=0.95, top_k=3, repetition_penalty=1.1,
        )  # fmt: skip


def test_same_seed_same_completions_and_the_callers_generator_is_left_alone(policy):
    state = torch.random.get_rng_state()
    first, second, other = draw(policy, rng=5), draw(policy, rng=5), draw(policy, rng=6)
    pd.testing.assert_frame_equal(first.frame, second.frame)
    assert first.frame["completion_tokens"].tolist() != other.frame["completion_tokens"].tolist()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_rows_come_back_by_problem_and_sample(policy):
    rollouts = draw(policy, batch_size=5)
    assert rollouts.prompt_id.tolist() == [name for name in ("long", "short", "mid") for _ in range(4)]
    assert rollouts.sample_id.tolist() == [0, 1, 2, 3] * 3


def test_rewards_are_given_the_decoded_completion(policy):
    seen = []

    def reward(completion, problem):
        seen.append((completion, problem.prompt_id))
        return len(completion) / 7

    rollouts = draw(policy, reward=reward)
    assert rollouts.frame["completion_text"].map(len).div(7).tolist() == rollouts.rewards.tolist()
    assert len(seen) == 12
    for text, tokens in zip(rollouts.frame["completion_text"], rollouts.frame["completion_tokens"], strict=True):
        special = {0, 1, 2, 3}
        assert len(text) == sum(token not in special for token in tokens if token < 41)
