r"""Where an answer stands in a completion, and numbers in one notation."""

import pytest

from gradstats.rewards.answers import boxes, final_answer, plain_notation, spoken


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<answer> 4 </answer> or <answer>5</answer> 6", "5"),
        (r"\boxed{3} so \boxed{\frac{1}{2}} 9", r"\frac{1}{2}"),
        (r"\boxed{3} so \fbox{4} 9", "4"),
        ("from 5-3 to 1,204.50 apples", "1204.50"),
        ("<answer>a,b</answer>", "a,b"),
        ("  yes ", "yes"),
        ("1,2,3", "3"),
        ("-4", "-4"),
        ("It takes 2 1/2 hours", "It takes 2 1/2 hours"),
        (r"12 and \boxed{3", ""),
        (r"\boxed{12} and \boxed{3", ""),
        ("<think>maybe 840", ""),
        ("<think>maybe 840</think> It is 7", "7"),
    ],
)
def test_the_final_answer_of_a_completion(completion, expected):
    assert final_answer(completion) == expected


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        ("none", []),
        (r"\boxed{1} then \boxed{840}", ["1", "840"]),
        (r"\boxed {\frac{1}{2}} \fbox{3}", [r"\frac{1}{2}", "3"]),
        (r"\boxed{\boxed{5}}", ["{5}"]),
        (r"\boxed{\{1,2\}}", [r"\{1,2\}"]),
        (r"\boxed{\left\{ 1 \right.}", [r"\left\{ 1 \right."]),
        (r"\boxed{50}\%, or \boxed{50} percent", [r"50\%", r"50\%"]),
        (r"put it in \boxed{}: \boxed 5", ["5"]),
        (r"an open \boxed{2 and \boxed{3}", ["3"]),
        # Of a text that was cut inside its last box.
        *((cut, None) for cut in (r"earlier \boxed{840}, but no: \boxed{", r"\boxed{84", r"\boxed{\frac{1}{2}")),
    ],
)
def test_boxes_are_found_with_inner_braces(text, contents):
    found = boxes(text)
    assert (found if found is None else [box.content for box in found]) == contents


def test_boxes_without_end_are_read_in_one_pass():
    assert boxes(100_000 * r"\boxed{") is None
    assert boxes(10_000 * r"\boxed{5} ")[-1] == (99_990, 99_999, "5")


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("plain", "plain"),
        ("<think>a</think>b", "b"),
        ("a</think>b", "b"),
        ("<THINKING>a</THINKING> b <think>c</think> d", " d"),
        ("[THINK]a[/THINK]b", "b"),
        ("<think>a", None),
        ("<think>a</think> b <think> c", None),
    ],
)
def test_what_is_said_comes_after_thinking(completion, expected):
    assert spoken(completion) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("2 2/3", "(2+2/3)"), ("-2 2/3", "-(2+2/3)"), ("−2⅔", "-(2+2/3)"), ("2½ cups", "(2+1/2) cups"), ("½", "1/2"),
        ("2 3/2", "2 3/2"), (r"2\,\frac{2}{3}", r"2 \frac{2}{3}"),
        ("1 000", "1000"), ("1\u202f000\u202f000", "1000000"), (r"1\,000", "1000"), (r"1\ 000", "1000"),
        ("1{,}000", "1000"),
        (r"11,\! 111,\! 100", "11111100"), ("1'000", "1000"), ("1’000", "1000"), ("1_000_000", "1000000"),
        ("1~000", "1000"),
        ("1.000.000", "1000000"), ("1.234,56", "1234.56"), ("1 234,5", "1234.5"), ("10,00,000", "1000000"),
        ("(1,000)", "(1000)"),
        ("1.000", "1.000"), ("(1,234)", "(1,234)"), ("12 34", "12 34"), ("1 000 2/3", "(1000+2/3)"), ("204_5", "204_5"),
        ("1e3", "1000"), ("1.5E-3", "0.0015"), ("-2.5e+1", "-25"), ("2e^3", "2e^3"), ("1e400", "1*10^(400)"),
        ("1.2 × 10⁻³", "0.0012"), (r"5 \times 10^{3}", "5000"), ("5x10^3", "5000"),
        (r"6.02\cdot 10^{23}", "602" + 21 * "0"),
        (r"2^3 \times 10^4", r"2^3 \times 10^4"), (r"\frac{1}{2} \times 10^3", r"\frac{1}{2} \times 10^3"),
        ("2**10", "2^10"), ("10**-3", "10^(-3)"), ("2^{10}", "2^10"), ("10⁶", "10^6"), ("x²", "x^2"), ("5 m²", "5 m²"),
        ("It is **840** apples", "It is **840** apples"),
        ("−3", "-3"), ("It is –3", "It is -3"), ("10–15", "10–15"), ("the answer is - 5", "the answer is -5"),
        ("７", "7"),
        ("(-∞, 5]", r"(-\infty , 5]"), ("√2", r"\sqrt{2}"), ("√(x+1)", r"\sqrt{x+1}"), ("€1,000", "1000"),
        ("6÷2", "6/2"),
        ("25 m/s^2", r"25\text{ m/s}^2"), ("3x+2t", "3x+2{t}"), ("2ab", "2a{b}"), ("5 t", "5 t"), ("y = 2c", "y = 2c"),
    ],
)  # fmt: skip
def test_numbers_with_one_plain_reading_are_rewritten(written, expected):
    assert plain_notation(written) == expected
    assert plain_notation(expected) == expected
