"""Which completions are drawn together, and what is refused before the first is drawn."""

import math
import sys
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import pytest
from small_draws import PROBLEMS, likeliest

import gradstats
from gradstats.config.sections import SamplingSection
from gradstats.policy.policy import load_policy
from gradstats.prompts import Problem
from gradstats.sampling.plan import (
    SamplingPlan,
    answers_path,
    draw_keeping_answers,
    open_sampler,
    read_answers,
)
from gradstats.sampling.sample import sample
from gradstats.sampling.sampler import Completion
from gradstats.system.files import write_json


def test_absent_libraries_are_named(policy, monkeypatch):
    for name, base_url in (("vllm", None), ("openai", "http://x/v1")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=rf"pip install 'gradstats\[{name}\]'"):
            open_sampler(policy, SamplingSection(sampler=name, base_url=base_url)).describe()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("openai", None, {}), "base_url is missing: give the server's address"),
        (("transformers", "http://x/v1", {}), "base_url is 'http://x/v1', but sampler is 'transformers'"),
        (("sglang", None, {}), "sampler is 'sglang': choose one of transformers, continuous, vllm, openai"),
        (("openai", "http://x/v1", {"threads": 3}), "sampler_options .* do not suit the sampler 'openai': .*threads"),
        (("openai", "http://x/v1", {"concurrency": 0}), "concurrency is 0: it must be at least 1"),
        (("openai", "http://x/v1", {"timeout_seconds": 0.0}), "timeout_seconds is 0.0: it must be above 0"),
        (("openai", "http://x/v1", {"max_retries": -1}), "max_retries is -1: it must be 0 or more"),
        (("openai", "http://x/v1", {"logprobs_of": "me"}), "logprobs_of is 'me': it must be model or sampled"),
        (("openai", "http://x/v1", {"base_url": "http://y/v1"}), "that of sampler_options 'http://y/v1': give one"),
    ],
)
def test_wrong_options_are_named(policy, arguments, message):
    pytest.importorskip("openai")
    name, base_url, options = arguments
    with pytest.raises(ValueError, match=message):
        open_sampler(policy, SamplingSection(sampler=name, base_url=base_url, sampler_options=options))


def test_weights_with_nan_are_not_sampled_from(policy_folder):
    policy = load_policy(policy_folder)
    policy.model.model.norm.weight.data[0] = float("nan")
    with pytest.raises(ValueError, match=r"hold NaN or infinity \(model\.norm\.weight\): load an intact checkpoint"):
        open_sampler(policy, SamplingSection())


@dataclass
class Server:
    """A sampler that keeps answers."""

    kept: dict[str, Completion] = field(default_factory=dict)


ANSWERS = {"a": Completion([1, 2], [-0.5, math.nan], "stop"), "b": Completion([3], None, "length", "text")}


def test_answers_survive_a_failure_and_are_removed_after_success(tmp_path):
    path, server = answers_path(tmp_path, 0), Server()

    def fail():
        server.kept.update(ANSWERS)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError, match="gone"):
        draw_keeping_answers(server, path, fail)
    assert server.kept == {}
    kept = draw_keeping_answers(server, path, lambda: dict(server.kept))
    assert kept["b"] == ANSWERS["b"]
    assert kept["a"].logprobs[0] == -0.5
    assert math.isnan(kept["a"].logprobs[1])
    assert server.kept == {}
    assert list(tmp_path.iterdir()) == []
    path.write_text("{")
    with pytest.raises(ValueError, match=r"answers-00000\.json cannot be read as JSON"):
        read_answers(path)
    for wrong in ({}, {"answers": [1]}, {"answers": {"a": {"tokens": [1], "sql": ""}}}):
        write_json(path, wrong)
        with pytest.raises(ValueError, match=r"answers-00000\.json does not contain server responses: remove it"):
            read_answers(path)


def test_without_an_answer_that_is_kept_a_failure_leaves_no_file(tmp_path):
    def fail():
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError, match="refused"):
        draw_keeping_answers(Server(), answers_path(tmp_path, 0), fail)
    assert list(tmp_path.iterdir()) == []


def test_any_batch_can_be_drawn_alone(policy):
    def plan():
        return SamplingPlan.make(
            policy, PROBLEMS, SamplingSection(group_size=4, max_new_tokens=8, seed=3, batch_size=5, reward="exact")
        )

    whole = plan()
    in_order = [whole.draw(batch) for batch in range(whole.n_batches)]
    backwards = plan()
    for batch in reversed(range(backwards.n_batches)):
        pd.testing.assert_frame_equal(backwards.draw(batch).frame, in_order[batch].frame)
    assert [len(part) for part in in_order] == [5, 5, 2]


@pytest.mark.usefixtures("unchecked")
def test_only_the_sampler_of_transformers_passes_through_the_weights_of_the_policy(policy):
    plan = SamplingPlan.make(policy, PROBLEMS, SamplingSection(max_new_tokens=4, reward="exact"))
    assert plan.in_step
    assert not replace(plan, sampler=object()).in_step


NO_ROOM = r"max_new_tokens is 60, .* 9 tokens of prompt 'long' .* context of 64: lower it to 55 or less, or drop the 2"
TOO_MANY = r"group_size is 10+, which makes 30+ completions of 3 prompts: .* at most 10000000"


@pytest.mark.parametrize(
    ("problems", "options", "message"),
    [
        (PROBLEMS, {"max_new_tokens": 60}, NO_ROOM),
        ([Problem("huge", "ab " * 30, "x"), PROBLEMS[1]], {"max_new_tokens": 4}, "context of 64: drop the 1 longest"),
        (PROBLEMS, {"max_new_tokens": 8, "group_size": 10**30}, TOO_MANY),
        ([], {}, "problems is empty"),
        ([PROBLEMS[0], PROBLEMS[0]], {}, "problems repeat a prompt_id"),
    ],
)
def test_prompts_that_cannot_be_sampled_are_refused(policy, problems, options, message):
    with pytest.raises(ValueError, match=message):
        sample(policy, problems, reward="exact", progress=False, **options)


@pytest.mark.usefixtures("unchecked")
def test_the_default_cap_is_what_the_context_leaves(policy):
    with pytest.warns(UserWarning, match="^max_new_tokens=1500, the default, exceeds .* is lowered to 55$"):
        plan = SamplingPlan.make(policy, PROBLEMS, SamplingSection(reward="exact"))
    assert plan.settings.max_new_tokens == 55
    assert plan.metadata["sampler"]["max_new_tokens"] == 55


RISING = [Problem(f"p{k}", "ab" * k, "x", "exact") for k in range(1, 5)]


def length_reward(completion, problem):
    return len(completion) + len(problem.prompt) / 10


@pytest.mark.filterwarnings("ignore:the model's generation_config", "ignore:cosine, shares of bias")
def test_greedy_completions_reach_remax_from_sampling_to_comparison(policy, tmp_path):
    rollouts = sample(
        policy, RISING, group_size=3, max_new_tokens=6, temperature=1.3, batch_size=4, reward=length_reward,
        greedy=True, progress=False,
    )  # fmt: skip
    frame = rollouts.frame.groupby("prompt_id").first()
    for problem in RISING:
        row = frame.loc[problem.prompt_id]
        text = policy.tokenizer.decode(likeliest(policy, row["prompt_tokens"], 6), skip_special_tokens=True)
        assert row["greedy_text"] == text
        assert row["greedy_reward"] == length_reward(text, problem)
    assert rollouts.frame.groupby("prompt_id")["greedy_reward"].nunique().eq(1).all()
    rollouts.to_parquet(tmp_path / "r.parquet")
    measured = gradstats.measure(policy, gradstats.read_rollouts(tmp_path / "r.parquet"), sketch_dim=64, progress=False)
    batch = gradstats.estimators.Batch.from_measurement(measured)
    np.testing.assert_array_equal(batch.greedy_rewards, rollouts.frame["greedy_reward"])
    with pytest.warns(UserWarning, match="prompts"):
        table = gradstats.compare(measured, ["reinforce", "remax"], reference="reinforce").to_frame()
    assert np.isfinite(table.set_index("estimator").loc["remax", "trace_cov"])


@pytest.mark.filterwarnings("ignore:the model's generation_config", "ignore:cosine, shares of bias")
def test_greedy_completions_leave_the_sampled_ones_alone(policy):
    options = {"group_size": 4, "max_new_tokens": 6, "batch_size": 8, "reward": length_reward, "progress": False}
    plain, greedy = sample(policy, RISING, **options), sample(policy, RISING, greedy=True, **options)
    assert greedy.frame.drop(columns=["greedy_text", "greedy_reward"]).equals(plain.frame)
