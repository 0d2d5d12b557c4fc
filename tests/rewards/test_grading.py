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


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        # mixed numbers
        (
            "2 2/3",
            [r"\boxed{\frac{8}{3}}", r"\boxed{2\frac{2}{3}}", "The answer is 2 2/3."],
            [r"\boxed{\frac{4}{3}}", "2"],
        ),
        ("-2 2/3", [r"\boxed{-\frac{8}{3}}", "It is −2⅔."], [r"\boxed{\frac{8}{3}}", r"\boxed{-\frac{4}{3}}"]),
        ("2", [r"\boxed{2}"], ["The answer is 2 2/3.", r"\boxed{2 2/3}"]),
        ("1 1/2 hours", [r"\boxed{1.5}", "3/2"], ["1"]),
        # thousands
        ("1 000", ["The answer is 1000.", r"\boxed{1\,000}", r"\boxed{1,000}"], ["The answer is 0.", r"\boxed{0}"]),
        ("1_000", [r"\boxed{1000}"], [r"\boxed{1}"]),
        ("1000000", [r"\boxed{1.000.000}", r"\boxed{1 000 000}", "It is 10,00,000."], [r"\boxed{0}"]),
        # intervals
        ("(-∞, 5]", [r"\boxed{(-\infty,5]}", "It is (-∞, 5]."], ["The answer is 5.", r"\boxed{(-\infty,5)}"]),
        ("(-oo, 3) U (5, inf)", [r"\boxed{(-\infty,3)\cup(5,\infty)}"], [r"\boxed{(-\infty,3)}"]),
        ("(1, 2)", ["The answer is (1, 2)."], ["2"]),
        ("5", [r"\boxed{5}"], ["The answer is (-∞, 5].", "The answer is (1, 5)."]),
        # powers
        ("1e3", [r"\boxed{1000}", "1000", "10^3"], [r"\boxed{3e}", r"\boxed{8.15}"]),
        ("2**10", [r"\boxed{1024}", "The answer is 2^{10}.", "It is 2^10."], ["The answer is 2."]),
        ("1.2 × 10⁻³", ["0.0012", r"\boxed{1.2\times10^{-3}}"], ["10", r"\boxed{0.12}"]),
        ("1500000", ["about 1.5e6 people", "1.5 × 10⁶"], ["1.5"]),
        ("x²", [r"\boxed{x^2}"], [r"\boxed{x}"]),
        ("100,00", [r"\boxed{100}"], [r"\boxed{0, 100}"]),
        # limits, percent, signs of mathematics
        ("x ∈ [−2, ∞)", [r"\boxed{[-2,\infty)}"], [r"\boxed{-2}"]),
        ("5 1/2 %", [r"\boxed{5.5\%}", r"\boxed{0.055}"], [r"\boxed{5.5}"]),
        ("3pi", [r"\boxed{3\pi}"], [r"\boxed{3}"]),
        ("∛8", [r"\boxed{2}"], [r"\boxed{8}"]),
        # units, currencies, words
        ("25 m/s", [r"\boxed{25}", r"\boxed{25\text{ m/s}}"], [r"\boxed{52}"]),
        ("€5", [r"\boxed{5}"], [r"\boxed{6}"]),
        ("Monday", [r"\boxed{\text{Monday}}", "It is Monday."], [r"\boxed{Tuesday}", "It is not Monday."]),
        ("yes", [r"\boxed{\text{Yes}}", r"\boxed{yes}"], [r"\boxed{no}"]),
        ("3x+2t", [r"\boxed{2t+3x}"], [r"\boxed{3x+2}"]),
        ("1 or 2", [r"\boxed{1, 2}"], [r"\boxed{2}"]),
        # signs
        ("-3", ["The answer is −3.", r"\boxed{−3}", "It is - 3."], ["The answer is 3."]),
    ],
)
def test_numbers_with_one_plain_reading_are_read_as_written(answer, right, wrong):
    assert math_scorer.check_reference(answer) is None
    assert [score(completion, answer) for completion in right] == [1.0] * len(right)
    assert [score(completion, answer) for completion in wrong] == [0.0] * len(wrong)


MISREAD = [
    ("2 hours 30 minutes", "30", r"\boxed{2\text{ hours } 30\text{ minutes}}"),
    ("12 apples and 3 pears", "3", r"\boxed{12 apples and 3 pears}"),
    ("12:30", "2/5", "The answer is 12:30."),
    ("12:30 pm", "12", "12:30 pm"),
    ("2024-01-05", "2018", r"\boxed{2024-01-05}"),
    ("10-15", "-5", r"\boxed{10-15}"),
    ("5'3\"", "53", "5'3\""),
    ("5 ft 3 in", "3", r"\boxed{5 ft 3 in}"),
    ("1 million", "1", r"\boxed{1 million}"),
    ("2 and 1/2", "1/2", r"\boxed{2 and 1/2}"),
    ("12 34", "46", r"\boxed{12 34}"),
    ("12,34,567", r"\boxed{567}", r"\boxed{12,34,567}"),
    ("6 R 2", r"\boxed{12R}", r"\boxed{6 R 2}"),
    ("June 5", "5", r"\boxed{June 5}"),
    ("1,5 kg", "5", r"\boxed{1,5 kg}"),
    ("$5M", "5", r"\boxed{\$5M}"),
    ("> 5", "5", r"\boxed{> 5}"),
    ("1_0", "1", r"\boxed{1_0}"),
    ("1-1/2", r"\boxed{\frac{1}{2}}", r"\boxed{1-1/2}"),
    ("0x1F", r"\boxed{0}", r"\boxed{0x1F}"),
]


@pytest.mark.parametrize(("answer", "wrong", "right"), MISREAD)
def test_a_reference_without_a_plain_reading_equals_the_same_text_only(answer, wrong, right):
    assert math_scorer.check_reference(answer) is not None
    assert score(wrong, answer) == 0.0
    assert score(right, answer) == 1.0


def test_references_that_are_misread_are_all_in_one_warning(recwarn):
    problems = [Problem(f"row-{row}", "?", answer) for row, (answer, _, _) in enumerate(MISREAD)]
    Grader.make({"math": 0.0, "exact": 1.0}, [*PROBLEMS, *problems])
    (warning,) = recwarn
    sentence = str(warning.message)
    assert f"does not read {len(MISREAD)} of {len(MISREAD) + 3} reference answers as they are written" in sentence
    assert (
        "'row-0': '2 hours 30 minutes' as 30; 'row-1': '12 apples and 3 pears' as 3; 'row-2': '12:30' as 2/5"
        in sentence
    )
    assert all(f"{problem.prompt_id!r}: {problem.answer!r} as " in sentence for problem in problems)
    Grader.make("exact", problems)
    assert len(recwarn) == 1


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("First 72, then finally the answer is 71.", "72", 0.0),
        (r"so we get \boxed{\frac{1}{2}}", "0.5", 1.0),
        (r"$x = -4$", "-4", 1.0),
        ("", "72", 0.0),
        (r"\boxed{1}, \boxed{840}", "1840", 0.0),
        (r"\boxed{1} then \boxed{840}", "1", 0.0),
        (r"\boxed{1} and $\boxed{2}$", "1, 2", 1.0),
        (r"\boxed{1}, \boxed{840}", "1, 840", 1.0),
        (r"\boxed{50}\%", "0.5", 1.0),
        (r"\boxed{\boxed{840}}", "840", 1.0),
        (r"earlier \boxed{840}, but no: \boxed{", "840", 0.0),
        ("<think>maybe 840", "840", 0.0),
        ("<think>maybe 840</think> The answer is 7.", "840", 0.0),
        ("The answer is **840**.", "840", 1.0),
        ("<think>7</think><answer>840</answer>", "840", 1.0),
        ("The answer is 12:30.", "12", 0.0),
    ],
)
def test_which_part_of_a_completion_counts(completion, answer, expected):
    assert score(completion, answer) == expected


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("0.0000001", "0.0000002", False),
        ("0.00000014", "0.0000001", False),
        ("1e-7", "10^{-7}", True),
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}", False),
        (r"\frac{1}{2^{99}}", "2^{-99}", True),
        ("1", "0.9999999", False),
        ("1.1", "1.1000001", False),
        ("(0.0000001, 1)", "(0.0000002, 1)", False),
        (r"\begin{pmatrix} 0.0000001 \\ 1 \end{pmatrix}", r"\begin{pmatrix} 0.0000002 \\ 1 \end{pmatrix}", False),
        ("123456789012345678", "123456789012345679", False),
        ("6.02e23", r"6.02 \times 10^{23}", True),
        # one is the other rounded, or differs by the rounding of floating-point numbers
        ("0.333333", r"\frac{1}{3}", True),
        ("0.33", r"\frac{1}{3}", False),
        ("0.3333333333", "0.333333", True),
        ("2.449490", r"\sqrt{6}", True),
        ("3.1415927", r"\pi", True),
        ("0.3", "0.30000000000000004", True),
        (r"9\%", "9", True),
    ],
)
def test_numbers_that_differ_are_different_unless_one_is_rounded(one, other, equal):
    assert score(rf"\boxed{{{one}}}", other) == equal
    assert score(rf"\boxed{{{other}}}", one) == equal


def test_a_reference_answer_is_read_as_text_or_as_mathematics():
    assert math_scorer.math_score("5", "5 apples") == 1.0
    assert math_scorer.math_score(r"\boxed{(1, 2)}", r"\left(1, 2\right)") == 1.0
    math_scorer.check_reference("5 apples")
    with pytest.raises(ReferenceAnswerError, match=r"math-verify cannot parse the reference answer '\$': use another"):
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

    monkeypatch.setattr(math_scorer, "_reference", lambda answer: math_scorer._Reference(("gold",), None))
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

    monkeypatch.setattr(math_scorer, "_reference", lambda answer: math_scorer._Reference((answer,), None))
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
    assert list(tally["disagreements"].items()) == [
        ("math | test_grading:short", 1), ("math | exact", 1), ("test_grading:short | exact", 0),
    ]  # fmt: skip
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
    lost = {"timeouts": 1, "failures": 1, "first_failure": "its process died (out of memory?)"}
    assert tally["rewards"]["math"] == {"weight": 1.0} | lost


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
    assert (both["completions"], both["disagreements"]) == (6, {"math | exact": 2})
    assert ungraded_sentence(both) is ungraded_sentence(None) is None
    warn_ungraded(both)
    assert first["disagreements"] == {"math | exact": 1}  # the shards stay as they were
    assert merge_grading_counts([]) == {"completions": 0, "rewards": {}, "disagreements": {}}


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
