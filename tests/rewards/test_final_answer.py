"""The final answer of a completion."""

from __future__ import annotations

import pytest

from gradstats.rewards.registry import final_answer


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<answer> 4 </answer> or <answer>5</answer> 6", "5"),
        (r"\boxed{3} so \boxed{\frac{1}{2}} 9", r"\frac{1}{2}"),
        (r"12 and \boxed{3", "3"),
        ("from 5-3 to 1,204.50 apples", "1204.50"),
        ("<answer>a,b</answer>", "a,b"),
        ("  yes ", "yes"),
        ("1,2,3", "3"),
        ("-4", "-4"),
    ],
)
def test_the_final_answer_of_a_completion(completion, expected):
    assert final_answer(completion) == expected
