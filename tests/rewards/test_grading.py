"""One reward or several, and how answers are compared."""

import math

import pytest
from math_verify.errors import TimeoutException

from gradstats.prompts import Problem
from gradstats.prompts.load import load_prompts
from gradstats.rewards import math_scorer
from gradstats.rewards.grading import (
    Grader,
    GradingCounts,
    ReferenceAnswerError,
    RewardCounts,
    ScoringTimeoutError,
    merge_grading_counts,
    ungraded_sentence,
    warn_ungraded,
)
from gradstats.rewards.registry import get_reward
from gradstats.system.worker import PROCESS, IsolatedError


def score(completion, answer):
    """The score in the process that scores of a run come from."""
    return get_reward("math")(completion, Problem("p", "?", answer))


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        (r"so we get \boxed{\frac{1}{2}}", "0.5", 1.0),
        ("The answer is 72.", "72", 1.0),
        ("First 72, then finally the answer is 71.", "72", 0.0),
        ("no idea", "72", 0.0),
        ("", "72", 0.0),
        (r"$x = -4$", "-4", 1.0),
    ],
)
def test_math_verify_compares_the_final_expression(completion, answer, expected):
    assert score(completion, answer) == expected


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (r"\left( 3, \frac{\pi}{2} \right)", r"\boxed{(3, \pi/2)}", r"\boxed{3}"),
        (r"\frac{14}{3}", "$14/3$", "14"),
        (r"\text{Evelyn}", r"\boxed{\text{Evelyn}}", r"\boxed{\text{Angela}}"),
        (r"p - q", r"\boxed{p-q}", r"\boxed{q-p}"),
        (r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}", r"\boxed{\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}}", "2/3"),
        (r"(-\infty, 2)", r"$(-\infty,2)$", "2"),
        ("5 apples", r"\boxed{5}", r"\boxed{6}"),
        ("2/3 cup", r"\boxed{\frac{2}{3}}", r"\boxed{2}"),
        ("70000", "that makes $70,000", "7000"),
    ],
)
def test_reference_answers_are_read_whole(answer, right, wrong):
    assert score(right, answer) == 1.0
    assert score(wrong, answer) == 0.0


def test_a_reference_answer_is_read_as_text_or_as_mathematics():
    assert math_scorer.math_score("5", "5 apples") == 1.0
    assert math_scorer.math_score(r"\boxed{(1, 2)}", r"\left(1, 2\right)") == 1.0
    math_scorer.check_reference("5 apples")
    with pytest.raises(
        ReferenceAnswerError, match=r"math-verify cannot parse the reference answer '\$': use another rew"
    ):
        math_scorer.check_reference("$")


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({"1": True}, 1.0),
        ({"1": TimeoutException(), "2": True}, 1.0),
        ({"1": ValueError(), "2": False}, 0.0),
        ({"1": TimeoutException(), "2": False}, None),
    ],
)
def test_a_comparison_that_times_out_counts_unless_another_is_equal(monkeypatch, outcomes, expected):
    def verify(gold, candidate, **options):
        assert gold == "gold"
        outcome = outcomes[candidate]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(math_scorer, "_parse_reference", lambda answer: ("gold",))
    monkeypatch.setattr(math_scorer, "_parse", lambda text: list(outcomes))
    monkeypatch.setattr(math_scorer, "verify", verify)
    if expected is None:
        with pytest.raises(ScoringTimeoutError, match="a comparison by math-verify took over 5 s"):
            math_scorer.math_score("text", "answer")
    else:
        assert math_scorer.math_score("text", "answer") == expected


def test_a_parse_that_times_out_is_counted_and_one_that_fails_finds_nothing(monkeypatch):
    def fails(error):
        def parse(text, **options):
            raise error

        return parse

    monkeypatch.setattr(math_scorer, "_parse_reference", lambda answer: (answer,))
    monkeypatch.setattr(math_scorer, "parse", fails(TimeoutException()))
    with pytest.raises(ScoringTimeoutError, match="a parse by math-verify took over 5 s"):
        math_scorer.math_score("text", "answer")
    monkeypatch.setattr(math_scorer, "parse", fails(RecursionError()))
    assert math_scorer.math_score("text", "answer") == 0.0


PROBLEMS = [Problem("a", "?", "7"), Problem("b", "?", "8"), Problem("c", "?", "9")]
TEXTS = ["7", "it is 8", "no idea"]


def short(completion, problem):
    return len(completion) < 5


def failing_on_words(completion, problem):
    return float(completion)


def without_value(completion, problem, value=None):
    return value


def test_rewards_are_added_up_with_their_weights_and_disagreements_counted():
    grader = Grader.make({"math": 1.0, "test_grading:short": 0.1, "exact": 0.0}, PROBLEMS)
    rewards, tally = grader.grade(TEXTS, PROBLEMS)
    assert rewards == pytest.approx([1.1, 1.0, 0.0])
    assert tally["completions"] == 3
    assert tally["disagreements"] == {
        "math | test_grading:short": 1,
        "math | exact": 1,
        "test_grading:short | exact": 0,
    }
    assert {name: counts["weight"] for name, counts in tally["rewards"].items()} == grader.describe()
    assert grader(TEXTS[0], PROBLEMS[0]) == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("spec", "described"),
    [
        ("math", "math"),
        (None, "math"),
        (["math"], "math"),
        ({"math": 1}, "math"),
        ("math=0.5", {"math": 0.5}),
        (["math", "test_grading:short=-1e-1"], {"math": 1.0, "test_grading:short": -0.1}),
        (["test_grading:without_value(value=2)=0.5"], {"test_grading:without_value(value=2)": 0.5}),
        ("reasoning_gym(threshold=0.5)", "reasoning_gym(threshold=0.5)"),
        (short, "short"),
    ],
)
def test_ways_to_write_rewards(spec, described):
    assert Grader.make(spec, PROBLEMS).describe() == described


def test_each_problems_own_reward_where_they_differ():
    problems = [Problem("a", "?", "x", reward="exact"), Problem("b", "?", "8", reward="math")]
    rewards, tally = Grader.make(None, problems).grade(["x", "it is 8"], problems)
    assert rewards == [1.0, 1.0]
    assert list(tally["rewards"]) == ["each problem's own"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"math": "much"}, "the weight of reward 'math' is 'much': give a finite number"),
        ({"math": math.inf}, "the weight of reward 'math' is inf"),
        ({"math": True}, "the weight of reward 'math' is True"),
        ([], "reward is empty: name at least one"),
        (["math", "math=2"], "reward repeats a name .math, math."),
        ("reasoning_gym(thresh=1)", "the reward 'reasoning_gym' has no parameter 'thresh'; it has threshold"),
        ("math(strict=True)", "the reward 'math' has no parameter 'strict'; it has none"),
        ("test_grading:without_value(value=", "cannot read .* write it as name"),
    ],
)
def test_rewards_that_cannot_be_used_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        Grader.make(spec, PROBLEMS)


def test_a_reference_answer_that_cannot_be_parsed_is_refused_before_sampling():
    with pytest.raises(ValueError, match="problem 'bad': math-verify cannot parse the reference answer '[$]'"):
        Grader.make("math", [*PROBLEMS, Problem("bad", "?", "$")])
    with pytest.raises(ValueError, match="problem 'bad'"):
        Grader.make(None, [Problem("x", "?", "x", reward="exact"), Problem("bad", "?", "$", reward="math")])
    Grader.make("exact", [Problem("bad", "?", "$")])


def test_failures_and_timeouts_count_nothing_and_are_counted(monkeypatch):
    grader = Grader.make({"test_grading:failing_on_words": 1.0, "exact": 1.0}, PROBLEMS)
    rewards, tally = grader.grade(TEXTS, PROBLEMS)
    assert rewards == [8.0, 0.0, 0.0]
    counts = tally["rewards"]["test_grading:failing_on_words"]
    assert (counts["failures"], counts["timeouts"]) == (2, 0)
    assert counts["first_failure"].startswith("ValueError: could not convert string to float")
    assert tally["disagreements"] == {"test_grading:failing_on_words | exact": 1}

    def late(function, *arguments):
        if arguments[0] == TEXTS[0]:
            raise ScoringTimeoutError("late")
        if arguments[0] == TEXTS[2]:
            raise IsolatedError("its process died (out of memory?)")
        return 1.0

    grader = Grader.make("math", PROBLEMS)
    monkeypatch.setattr(PROCESS, "call", late)
    rewards, tally = grader.grade(TEXTS, PROBLEMS)
    assert rewards == [0.0, 1.0, 0.0]
    assert tally["rewards"]["math"] == {
        "weight": 1.0,
        "timeouts": 1,
        "failures": 1,
        "first_failure": "its process died (out of memory?)",
    }
    sentence = ungraded_sentence(merge_grading_counts([tally, tally]))
    assert "of 6 completions" in sentence
    assert "math: 2 timed out, 2 failed (the first: its process died (out of memory?))" in sentence
    assert "gradstats regrade" in sentence


def test_a_reward_of_ones_own_that_never_works_is_refused():
    texts, problems = 8 * TEXTS[:1], 8 * PROBLEMS[:1]
    with pytest.raises(ValueError, match="'test_grading:without_value' failed on all of 8 completions; .*None"):
        Grader.make("test_grading:without_value", PROBLEMS).grade(texts, problems)
    with pytest.raises(ValueError, match="it returned nan, which is not a finite number"):
        Grader.make(lambda text, problem: math.nan, PROBLEMS).grade(texts, problems)
    _, tally = Grader.make("test_grading:without_value", PROBLEMS).grade(texts[:7], problems[:7])
    assert tally["rewards"]["test_grading:without_value"]["failures"] == 7


def test_partial_credit_is_cut_off_at_the_threshold():
    pytest.importorskip("reasoning_gym")
    (problem,) = load_prompts("reasoning-gym/chain_sum", 1)
    wrong = f"<answer>{problem.answer} or so</answer>"
    credit = Grader.make("reasoning_gym(threshold=None)", [problem])(wrong, problem)
    assert 0 < credit < 1
    for threshold, expected in ((None, credit), (credit, 1.0), (1.0, 0.0)):
        spec = f"reasoning_gym(threshold={threshold!r})"
        assert Grader.make(spec, [problem])(wrong, problem) == expected
    assert Grader.make(None, [problem])(wrong, problem) == 0.0
    assert Grader.make(None, [problem])(f"so it is {problem.answer}", problem) == 1.0
    with pytest.raises(ValueError, match=r"threshold is 1\.5: give a credit in \(0, 1\]"):
        Grader.make("reasoning_gym(threshold=1.5)", [problem])(wrong, problem)
    with pytest.raises(ValueError, match="problem 'a' is not a reasoning-gym problem"):
        Grader.make("reasoning_gym", PROBLEMS)("7", PROBLEMS[0])


def counts(completions, disagreements, **rewards) -> GradingCounts:
    """Counts of a shard; each reward as (timeouts, failures, first failure)."""
    return {
        "completions": completions,
        "rewards": {
            name: RewardCounts(weight=1.0, timeouts=timeouts, failures=failures, first_failure=first)
            for name, (timeouts, failures, first) in rewards.items()
        },
        "disagreements": disagreements,
    }


def test_tallies_add_up_and_a_clean_one_says_nothing():
    first = counts(3, {"math | exact": 1}, math=(0, 0, None), exact=(0, 0, None))
    both = merge_grading_counts([first, first])
    assert both["completions"] == 6
    assert both["disagreements"] == {"math | exact": 2}
    assert ungraded_sentence(both) is None
    assert ungraded_sentence(None) is None
    warn_ungraded(both)
    # the shards stay as they were
    assert first["disagreements"] == {"math | exact": 1}


def test_the_first_failure_of_the_first_shard_with_one_is_kept():
    shards = [
        counts(4, {}, math=(1, 0, None), exact=(0, 0, None)),
        counts(5, {}, math=(0, 2, "no number"), exact=(0, 1, "empty")),
        counts(6, {}, math=(3, 1, "too long"), exact=(0, 0, None)),
    ]
    merged = merge_grading_counts(shards)
    assert merged["rewards"]["math"] == {"weight": 1.0, "timeouts": 4, "failures": 3, "first_failure": "no number"}
    assert shards[0]["rewards"]["math"]["timeouts"] == 1
    sentence = ungraded_sentence(merged)
    assert sentence == (
        "some of 15 completions could not be scored and receive 0 from that reward; math: 4 timed out, 3 failed (the "
        "first: no number); exact: 0 timed out, 1 failed (the first: empty): correct the reward or the answers, then "
        "score again with `gradstats regrade`"
    )
    with pytest.warns(UserWarning, match="^some of 15 completions") as caught:
        warn_ungraded(merged)
    assert str(caught[0].message) == sentence


def test_no_shards_are_no_completions():
    assert merge_grading_counts([]) == {"completions": 0, "rewards": {}, "disagreements": {}}
