"""Problems of reasoning-gym, where it is installed: seeded, graded by their own scorers, the same in every process."""

import random

import pytest

from gradstats.prompts.load import load_prompts
from gradstats.rewards.grading import Grader
from gradstats.rewards.registry import get_reward
from gradstats.system.worker import PROCESS

DATASETS = pytest.importorskip("reasoning_gym.factory").DATASETS


def test_problems_are_seeded_and_more_of_them_only_add():
    few, again, more = (load_prompts("chain_sum", n, rng=4, min_terms=3) for n in (3, 3, 5))
    assert few == again
    assert [(p.prompt_id, p.prompt, p.answer) for p in more[:3]] == [(p.prompt_id, p.prompt, p.answer) for p in few]
    assert few != load_prompts("reasoning-gym/chain_sum", 3, rng=5, min_terms=3)


def test_settings_of_a_task_may_be_lists():
    (problem,) = load_prompts("reasoning-gym/basic_arithmetic", 1, operators=["+"])
    assert get_reward("reasoning_gym")(f"it is {problem.answer}", problem) == 1.0
    assert get_reward("reasoning_gym")("it is 99999", problem) == 0.0


def test_unknown_tasks_and_settings_are_named():
    with pytest.raises(ValueError, match="reasoning-gym has no task 'chain_sums'; nearest: chain_sum"):
        load_prompts("reasoning-gym/chain_sums", 2)
    with pytest.raises(ValueError, match="the reasoning-gym task 'chain_sum' refuses the settings .*colour"):
        load_prompts("chain_sum", 2, colour="red")
    with pytest.raises(ValueError, match="n is missing: 'chain_sum' generates its problems"):
        load_prompts("chain_sum")


def test_problems_are_the_same_in_every_process():
    """Besides their seed, these tasks depend on the order of sets or on Python's global generator."""
    tasks = ("isomorphic_strings", "list_functions", "polynomial_multiplication", "ransom_note", "word_ladder")
    first = {task: load_prompts(task, 3, rng=1) for task in tasks}
    PROCESS.close()
    random.seed(99)
    assert {task: load_prompts(task, 3, rng=1) for task in tasks} == first


# Their scorers do not give full marks to the data set's own answer, or need settings to make anything at all.
NOT_FULL_MARKS = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
NOT_ALONE = {"composite"}
# True or False is guessed from whether the text contains a word.
LENIENT = {"game_of_life_halting"}


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(set(DATASETS) - NOT_ALONE))
def test_every_task_gives_problems_and_grades_them(task):
    problems = load_prompts(f"reasoning-gym/{task}", 2, rng=3)
    assert all(problem.prompt.strip() and problem.answer for problem in problems)
    grader = Grader.make(None, problems)
    right, tally = grader.grade([f"<answer>{problem.answer}</answer>" for problem in problems], problems)
    assert (right == [1.0, 1.0]) == (task not in NOT_FULL_MARKS)
    assert tally["rewards"]["reasoning_gym"]["failures"] == 0
    wrong, tally = grader.grade(["garbage %$ {[("] * 2, problems)
    assert (wrong == [0.0, 0.0]) == (task not in LENIENT)
    assert tally["rewards"]["reasoning_gym"]["failures"] == (2 if task == "prime_factorization" else 0)
    # acre plans all its problems together, so that a run of it cannot be extended.
    more = load_prompts(f"reasoning-gym/{task}", 5, rng=3)
    assert task == "acre" or [problem.prompt for problem in more[:2]] == [problem.prompt for problem in problems]
