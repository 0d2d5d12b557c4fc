"""The embedded problems: distinct, held out from training, and with answers that an evaluator confirms."""

import re

import numpy as np
import pytest

from gradstats.prompts.embedded import extract_answer, generate_problems, parse_problem


def evaluated(prompt: str) -> int:
    """Total of a problem, computed by Python after removing labels and spaces."""
    return eval(re.sub("[a-z ?]", "", prompt))


def test_answers_agree_with_an_independent_evaluation():
    for problem in generate_problems(300, rng=3):
        assert problem.answer == str(evaluated(problem.prompt))
        assert problem.difficulty == len(problem.prompt.split()) - 1
        assert sum(parse_problem(problem.prompt)) == evaluated(problem.prompt)


def test_running_totals_stay_between_0_and_99():
    for problem in generate_problems(300, rng=4, terms=24):
        totals = np.cumsum(parse_problem(problem.prompt))
        assert totals.min() >= 0
        assert totals.max() <= 99


def test_same_seed_same_problems_and_another_seed_others():
    assert generate_problems(40, rng=7) == generate_problems(40, rng=np.random.default_rng(7))
    assert generate_problems(40, rng=7) != generate_problems(40, rng=8)


def test_splits_are_disjoint_even_where_problems_are_few():
    test = {problem.prompt for problem in generate_problems(120, rng=1, split="test", terms=2)}
    train = {problem.prompt for problem in generate_problems(1000, rng=2, split="train", terms=2)}
    assert test.isdisjoint(train)


def test_ids_are_unique_and_belong_to_the_text():
    problems = generate_problems(120, rng=0, terms=2)
    assert len({problem.prompt_id for problem in problems}) == 120
    by_text = {problem.prompt: problem.prompt_id for problem in problems}
    again = [problem for problem in generate_problems(120, rng=1, terms=2) if problem.prompt in by_text]
    assert again
    assert all(by_text[problem.prompt] == problem.prompt_id for problem in again)


def test_standard_mix_reaches_from_2_to_24_terms_with_short_problems_more_often():
    sizes = np.array([problem.difficulty for problem in generate_problems(2000, rng=5)])
    assert sizes.min() == 2
    assert sizes.max() >= 22
    assert (sizes <= 8).mean() > 2 * (sizes >= 18).mean()


def test_number_of_terms_may_be_fixed_or_a_range():
    assert {problem.difficulty for problem in generate_problems(20, terms=5)} == {5}
    assert {problem.difficulty for problem in generate_problems(60, terms=(3, 4))} == {3, 4}


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("b+8@17=25;c?answer 25.", "25"),
        ("b+8@17=25;c?answer 25.<|end|>", "25"),
        ("answer 7.wait answer 8.", "8"),
        ("answer 07.", "7"),
        ("answer -3.", "-3"),
        ("b+8@17=25;c?answer 2", None),
        ("b+8@17=25;c?", None),
        ("answer .", None),
        ("", None),
    ],
)
def test_extract_answer(completion, answer):
    assert extract_answer(completion) == answer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"n": 5, "terms": 1}, "between 2 and 24, low end first, got 1"),
        ({"n": 5, "terms": (9, 4)}, "low end first, got \\(9, 4\\)"),
        ({"n": 5, "terms": 25}, "between 2 and 24"),
        ({"n": 100_000, "terms": 2}, "distinct test problems were found for n=100000, terms=2"),
    ],
)
def test_bad_arguments_are_told_in_one_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        generate_problems(**arguments)


@pytest.mark.parametrize("prompt", ["", "hello", "a17 b+8", "a17 c+8 d?", "a17 b+8 d?", "a17 b8 c?", "a17 b+8 c? "])
def test_only_running_totals_are_parsed(prompt):
    with pytest.raises(ValueError, match="prompt must look like 'a17 b\\+8 c-5 d\\?', got"):
        parse_problem(prompt)
