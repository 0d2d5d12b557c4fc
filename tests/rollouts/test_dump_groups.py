"""Groups of a dump in which a prompt occurs more than once, against the groups that were drawn."""

import numpy as np
import pytest

from gradstats.rollouts.dump_groups import number_groups

RNG = np.random.default_rng(0)


def drawn(prompts, size, rng=RNG):
    """Rows of groups of a size, each of the prompt named: prompts, rewards, and which group each row belongs to."""
    rewards = rng.integers(0, 2, (len(prompts), size)).astype(float)
    rewards[:, 0], rewards[:, 1] = 1, 0  # no group without signal
    return [name for name in prompts for _ in range(size)], rewards, np.repeat(np.arange(len(prompts)), size)


def formulas(rewards):
    """The advantages of TRL and verl, written out."""
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    size = rewards.shape[1]
    return {
        "none": centred,
        "group": centred / (rewards.std(axis=1, ddof=1, keepdims=True) + 1e-4),
        "batch": centred / (rewards.std(ddof=1) + 1e-4),
        "verl": centred / (rewards.std(axis=1, ddof=1, keepdims=True) + 1e-6),
        "rloo": rewards - (rewards.sum(axis=1, keepdims=True) - rewards) / (size - 1),
        "rloo, whitened": centred / (centred.std() + 1e-4),
    }


def same_partition(prompts, numbers, groups):
    ours = list(zip(prompts, numbers, strict=True))
    pairs = set(zip(ours, groups.tolist(), strict=True))
    return len(pairs) == len(set(ours)) == len(set(groups.tolist()))


def number(prompts, rewards=None, *, steps=None, **options):
    n = len(prompts)
    rewards = np.zeros(n) if rewards is None else np.ravel(rewards)
    return number_groups(np.ones(n, int) if steps is None else steps, prompts, rewards, **({"names": {}} | options))


@pytest.mark.parametrize("formula", formulas(np.eye(2)))
@pytest.mark.parametrize("layout", ["aab", "aabbb", "aba"])
def test_the_advantages_tell_groups_apart(formula, layout):
    prompts, rewards, groups = drawn(layout, 4)
    numbers, said = number(prompts, rewards, advantages=formulas(rewards)[formula].ravel())
    assert same_partition(prompts, numbers, groups)
    assert "the same prompt was drawn for several groups in a step" in said[0]
    assert "told apart by the dump's advantages" in said[0]


def test_one_prompt_drawn_twice_is_told_by_its_advantages():
    rewards = np.array([[1.0, 0, 0, 0], [1, 1, 1, 0]])
    for name, advantages in formulas(rewards).items():
        numbers, _ = number(["a"] * 8, rewards, advantages=advantages.ravel())
        assert numbers == [0] * 4 + [1] * 4, name
    # As one group of eight.
    for name, advantages in formulas(rewards.reshape(1, 8)).items():
        assert number(["a"] * 8, rewards, advantages=advantages.ravel())[0] == [0] * 8, name


def test_two_groups_of_the_same_rewards_are_told_by_the_scale_or_doubted():
    rewards = np.array([[1.0, 0, 0, 0]] * 2)
    for scaled in ("group", "rloo"):
        assert number(["a"] * 8, rewards, advantages=formulas(rewards)[scaled].ravel())[0] == [0] * 4 + [1] * 4
    numbers, said = number(["a"] * 8, rewards, advantages=formulas(rewards)["none"].ravel())
    assert numbers == [0] * 8
    assert "groups of 8 and of 4 both give the dump's advantages, so the same prompt may have" in said[0]


def test_a_missing_reward_has_no_advantage():
    rewards = np.array([[1.0, 0, np.nan, 0], [1, 1, 1, 0]])
    advantages = np.array([2 / 3, -1 / 3, 0, -1 / 3, 0.25, 0.25, 0.25, -0.75])
    assert number(["a"] * 8, rewards, advantages=advantages)[0] == [0] * 4 + [1] * 4


def test_names_of_groups_come_first():
    labels = ["x", "y", "x", "y"]  # interleaved, which no other way can tell
    for names in ({"request_id": labels}, {"uid": [7, 8, 7, 8]}, {"uid": labels, "request_id": list("abcd")}):
        numbers, said = number(["a"] * 4, names=names)
        assert numbers == [0, 1, 0, 1]
        assert f"(1 prompts), which were told apart by {next(iter(names))}" in said[0]


def test_keys_of_completions_name_their_groups_as_verl_writes_them_and_steps_are_apart():
    assert number(["a"] * 4, names={"uid": ["u_1_0_0", "u_1_1_0", "u_2_0_0", "u_2_1_0"]})[0] == [0, 0, 1, 1]
    steps = np.array([1, 1, 2, 2, 2, 2])
    assert number(["a"] * 6, steps=steps, names={"uid": list("xxyyzz")})[0] == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": {"uid": ["x", None, "x"]}}, "uid has no label at completion 1, but None: give each completion"),
        ({"names": {"uid": [1, "1", 1]}}, r"uid mixes numbers and text \(1 and '1'\)"),
        ({"group_size": 0}, "group_size is 0: give the trainer's number of completions for a prompt"),
    ],
)
def test_missing_and_mixed_names_and_a_size_of_no_group_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        number(["a"] * 3, **options)


def test_the_size_of_groups_tells_them_apart_where_rows_are_in_order():
    prompts, rewards, groups = drawn("aab", 4)
    numbers, said = number(prompts, rewards, group_size=4)
    assert same_partition(prompts, numbers, groups)
    assert "told apart by group_size" in said[0]
    assert number(["a"] * 4, group_size=2)[0] == [0, 0, 1, 1]
    assert number(["a"] * 3, group_size=1)[0] == [0, 1, 2]


def test_the_size_of_most_groups_tells_a_repeated_prompt():
    prompts, rewards, groups = drawn("abbc", 4)
    numbers, said = number(prompts, rewards)
    assert same_partition(prompts, numbers, groups)
    assert "told apart by the order of rows" in said[0]


def test_a_doubt_is_said():
    # Rows in another order, as of verl's balanced batches.
    mixed = list("abacbcaa") + list("aa")
    numbers, said = number(mixed, group_size=2)
    assert numbers == [0] * 10
    assert "the same prompt seems to have been drawn for several groups (6 completions, where groups have 2)" in said[0]
    assert "keep uid or request_id in the dump (step 1)" in said[0]
    assert (
        "a prompt has 3 completions, which is not a multiple of group_size=2" in number(["a"] * 3, group_size=2)[1][0]
    )
    assert "all 4 completions are of the same prompt and read as one group" in number(["a"] * 4)[1][0]


@pytest.mark.parametrize(
    ("prompts", "options"),
    [
        ("aabbcc", {}),
        ("aab", {}),  # rows that were left out
        ("abc", {}),
        ("aaaa", {"group_size": 4}),
        ("aaabbb", {"names": {"request_id": list("pqrstu")}}),  # of completions
        ("aabb", {"names": {"uid": ["run"] * 4}}),  # one name for everything
        ("aabb", {"names": {"uid": [None] * 4}}),
    ],
)
def test_what_needs_no_doubt_is_not_doubted(prompts, options):
    assert number(list(prompts), **options) == ([0] * len(prompts), [])
