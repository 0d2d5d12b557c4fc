"""The embedded problems: distinct, held out from training, and with answers that an evaluator confirms."""

import re

import numpy as np
import pytest

from gradstats.prompts import embedded
from gradstats.prompts.embedded import extract_answer, generate_problems, parse_problem

GAINED = {"buys": 1, "finds": 1, "wins": 1, "sells": -1, "loses": -1, "gives": -1}


def counts(prompt: str) -> list[int]:
    """The count after each number of a problem's text, by the verb before the number."""
    start, *changes = re.findall(r"(\w+) (\d+)", prompt)
    assert start[0] == "has"
    return np.cumsum([int(start[1]), *(GAINED[verb] * int(number) for verb, number in changes)]).tolist()


def test_answers_agree_with_an_independent_evaluation():
    for problem in generate_problems(200, rng=3):
        assert problem.answer == str(counts(problem.prompt)[-1])
        assert problem.difficulty == len(counts(problem.prompt)) - 1
        assert parse_problem(problem.prompt).counts == counts(problem.prompt)


def test_counts_stay_between_0_and_99():
    found = np.concatenate([counts(problem.prompt) for problem in generate_problems(100, rng=4, steps=8)])
    assert found.min() >= 0
    assert found.max() <= 99


def test_days_and_months_follow_each_other():
    days, months = "MTWTFSS", "JFMAMJJASOND"
    for problem in generate_problems(100, rng=6):
        when = [change.when for change in parse_problem(problem.prompt).changes]
        calendar = days if when[0].endswith("day") else months
        assert len(set(when)) == len(when)
        assert "".join(name[0] for name in when) in 2 * calendar


def test_same_seed_same_problems_and_another_seed_others():
    assert generate_problems(40, rng=7) == generate_problems(40, rng=np.random.default_rng(7))
    assert generate_problems(40, rng=7) != generate_problems(40, rng=8)


def test_names_are_drawn_as_by_choice_so_that_a_seed_keeps_its_problems():
    ours, reference = np.random.default_rng(0), np.random.default_rng(0)
    names = list(embedded.PRONOUNS)
    for _ in range(500):
        chosen = reference.choice(len(names), 2, replace=False)
        assert embedded._draw_names(ours) == tuple(names[place] for place in chosen)
    assert ours.random() == reference.random()


def test_splits_are_disjoint_even_where_problems_are_few(monkeypatch):
    few = {"THINGS": ["pens"], "GAINS": ["buys"], "LOSSES": ["sells"], "DAYS": ["Monday"], "MONTHS": ["May", "June"]}
    for name, values in few.items():
        monkeypatch.setattr(f"gradstats.prompts.embedded.{name}", values)
    monkeypatch.setattr("gradstats.prompts.embedded.PRONOUNS", {"Mia": "she", "Tom": "he"})
    monkeypatch.setattr("gradstats.prompts.embedded.LARGEST_AMOUNT", 2)
    test = {problem.prompt for problem in generate_problems(100, rng=1, split="test", steps=2)}
    train = {problem.prompt for problem in generate_problems(700, rng=2, split="train", steps=2)}
    assert test.isdisjoint(train)


def test_ids_are_unique_and_belong_to_the_text():
    problems = generate_problems(120, rng=0)
    assert len({problem.prompt_id for problem in problems}) == 120
    by_text = {problem.prompt: problem.prompt_id for problem in problems}
    longer = generate_problems(240, rng=0)
    assert {problem.prompt: problem.prompt_id for problem in longer if problem.prompt in by_text} == by_text


def test_standard_mix_reaches_from_2_to_4_steps_with_few_more_often():
    steps = np.array([problem.difficulty for problem in generate_problems(400, rng=5)])
    counts = np.bincount(steps, minlength=5)[2:]
    assert list(counts.shape) == [3]
    assert counts.sum() == 400
    assert counts.min() > 10
    assert list(counts) == sorted(counts, reverse=True)


def test_few_steps_may_be_more_likely_in_any_range():
    steps = np.array([problem.difficulty for problem in generate_problems(200, rng=5, steps=(3, 8), falling=True)])
    assert set(steps) == set(range(3, 9))
    assert {problem.difficulty for problem in generate_problems(20, steps=5)} == {5}
    assert (steps <= 5).mean() > 0.6
    steps = np.array([problem.difficulty for problem in generate_problems(200, rng=5, falling=False)])
    assert (steps == 4).mean() > 0.25


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("Start: 17. On May: 17 + 8 = 25. The answer is 25.", "25"),
        ("So she has 25 apples. Answer: 25.<|end|>", "25"),
        ("The answer is 7. Hold on. So the answer is 8.", "8"),
        ("Answer: 07.", "7"),
        ("The answer is -3.", "-3"),
        ("So she has 25 apples. The answer is 2", None),
        ("So she has 25 apples.", None),
        ("", None),
    ],
)
def test_extract_answer(completion, answer):
    assert extract_answer(completion) == answer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"n": 5, "steps": 1}, "steps must lie between 2 and 8, low end first, got 1"),
        ({"n": 5, "steps": [2]}, r"steps is \[2\]: give one number, or two, the low end first"),
        ({"n": 5, "steps": "3"}, "steps is '3': give one number, or two, the low end first"),
        ({"n": 5, "steps": (6, 4)}, "low end first, got \\(6, 4\\)"),
        ({"n": 5, "steps": 9}, "steps must lie between 2 and 8"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(arguments, message, unchecked):
    with pytest.raises(ValueError, match=message):
        generate_problems(**arguments)


def test_more_problems_than_there_are_is_refused(monkeypatch):
    problem = generate_problems(1)[0]
    monkeypatch.setattr("gradstats.prompts.embedded._draw_problem", lambda generator, steps: problem)
    with pytest.raises(ValueError, match="Only 1 distinct test problems were found for n=2, steps=3: ask for fewer"):
        generate_problems(2, steps=3)


@pytest.mark.parametrize(
    "prompt",
    [
        "hello",
        "Mia has 12 apples.",
        "Mia has 12 apples. On Monday she buys 4. On Tuesday she gives 5 to Tom.",
        "Mia has 12 apples. On Monday he buys 4. On Tuesday she gives 5 to Tom. How many apples are left?",
        "Eve has 12 apples. On Monday she buys 4. On Tuesday she gives 5 to Tom. How many apples are left?",
        "Mia has 12 apples. On Monday she buys 4. On Tuesday she gives 5 to Tom. How many pens are left?",
    ],
)
def test_only_stories_of_this_kind_are_parsed(prompt):
    with pytest.raises(ValueError, match="prompt must"):
        parse_problem(prompt)
