"""How numbers are written with their intervals."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from printed_numbers import NUMBER, as_number

from gradstats.analyses.numbers import (
    common_exponent,
    displayable_interval,
    format_estimate,
    format_number,
    minimiser_with_interval,
)

INF, NAN = math.inf, math.nan
COSINE, SHARE, POSITIVE = (-1.0, 1.0), (0.0, 1.0), (0.0, INF)


@pytest.mark.parametrize(
    ("triple", "plain", "latex"),
    [
        ((0.7887, 0.475, 1.102), "0.79 [0.47, 1.10]", r"$0.79 \pm 0.31$"),
        ((1.305, 1.067, 1.596), "1.30 [1.07, 1.60]", r"$1.30^{+0.30}_{-0.23}$"),
        ((387.7, 288.7, 520.6), "390 [290, 520]", r"$390^{+130}_{-100}$"),
        ((719561.0, 476948.0, 1085588.0), "720,000 [480,000, 1,090,000]", r"$720{,}000^{+370{,}000}_{-240{,}000}$"),
        ((-0.012, -0.045, 0.021), "−0.012 [−0.045, 0.021]", r"$-0.012 \pm 0.033$"),
        ((-0.001, -0.2, 0.2), "0.00 [−0.20, 0.20]", r"$0.00 \pm 0.20$"),
        ((1.0, 1.0, 1.0), "1", "$1$"),
        ((0.765625, 0.765625 - 1e-15, 0.765625 + 1e-15), "0.766", "$0.766$"),
        ((2.5, NAN, NAN), "2.5", "$2.5$"),
        ((INF, NAN, NAN), "not bounded", r"$\infty$"),
        ((INF, 11.0, INF), "not bounded", r"$\infty$"),
        ((1.0, 1.0, INF), "1", "$1$"),
        ((NAN, NAN, NAN), "–", "--"),
        ((NAN, 57.7, INF), "≥ 57", r"$\geq 57$"),
        ((NAN, NAN, 3.0), "≤ 3", r"$\leq 3$"),
        ((0.15, -INF, 0.62), "0.15 [≤ 0.62]", r"$0.15\ [\leq 0.62]$"),
        ((60.0, 20.8, INF), "60 [≥ 20]", r"$60\ [\geq 20]$"),  # a bound is rounded outwards here too
        ((0.15, -INF, 0.6201), "0.15 [≤ 0.63]", r"$0.15\ [\leq 0.63]$"),
        ((119.3, 60.5, 1565.9), "120 [60, 1,570]", r"$120\ [60, 1{,}570]$"),
        ((0.42, 0.013, 13.4), "0.42 [0.013, 13.4]", r"$0.42\ [0.013, 13.4]$"),
        ((0.9999, 0.9983, 1.0), "0.99990 [0.99830, 1.00000]", "$0.99990^{+0.00010}_{-0.00160}$"),
        ((0.0031, 2.4e-188, 3.97e182), "0.0031 [≥ 0]", r"$0.0031\ [\geq 0]$"),
        ((0.31, 6.8e-6, 1.0), "0.31 [0.00, 1.00]", "$0.31^{+0.69}_{-0.31}$"),
        ((0.0006, 0.0, 0.0298), "0.001 [0, 0.030]", r"$0.001^{+0.029}_{-0.001}$"),
        ((0.748, 0.0, 4139.6), "0.75 [0, 4,100]", r"$0.75\ [0, 4{,}100]$"),
        # Without limits an estimate outside of its interval shows which end was cut; bounds are rounded outwards.
        ((-0.004, 0.0, 0.017), "≤ 0.017", r"$\leq 0.017$"),
        ((1.2, 0.9998, 1.0), "≥ 0.9998", r"$\geq 0.9998$"),  # a cosine whose interval starts there is not above 1
        ((NAN, NAN, 0.12301), "≤ 0.13", r"$\leq 0.13$"),
        ((NAN, NAN, 0.1 + 0.2), "≤ 0.3", r"$\leq 0.3$"),  # not 0.301
        ((NAN, -0.12301, INF), "≥ −0.13", r"$\geq -0.13$"),
        ((NAN, 1235.6, INF), "≥ 1,200", r"$\geq 1{,}200$"),
        ((NAN, 3.0, 14.0), "[3, 14]", r"$[3, 14]$"),  # ends of bins are whole
        ((2.3e-11, 1.6e-11, 3.3e-11), "2.30·10⁻¹¹ [1.60·10⁻¹¹, 3.30·10⁻¹¹]", r"$2.30^{+1.00}_{-0.70} \cdot 10^{-11}$"),
    ],
)
def test_numbers_have_the_digits_their_intervals_allow(triple, plain, latex):
    assert format_estimate(*triple) == plain
    assert format_estimate(*triple, markup="latex") == latex


def test_html_marks_the_interval():
    assert format_estimate(1.305, 1.067, 1.596, markup="html") == '1.30 <span class="ends">[1.07, 1.60]</span>'
    assert format_estimate(NAN, 3.0, INF, markup="html") == "≥ 3"


def test_powers_of_ten_are_shared_by_a_column():
    assert common_exponent([(1.23e7, 1.1e7, 1.4e7), (4.0, NAN, NAN)]) == 7
    assert common_exponent([(0.0004, 0.0003, 0.0005)]) == -4
    assert common_exponent([(1234.0, 1000.0, 1500.0), (NAN, NAN, INF)]) == 0
    # One row without a sensible value leaves the others as they are.
    assert common_exponent([(88.0, 72.0, 107.0), (89.0, 73.0, 110.0), (-1.19e14, NAN, NAN)]) == 0
    assert format_estimate(1.23e7, 1.13e7, 1.33e7, exponent=7) == "1.23 [1.13, 1.33]"


@pytest.mark.parametrize(
    ("triple", "limits", "plain"),
    [
        ((1.1, 0.928, 1.0), COSINE, "≥ 0.928"),  # an unbiased cosine
        ((-0.336, 0.0, 0.1332), SHARE, "≤ 0.134"),
        ((-0.02, -0.1, 0.08), POSITIVE, "≤ 0.08"),  # a variance whose interval was not cut
        ((0.02, -0.1, 0.08), POSITIVE, "0.020 [0, 0.080]"),
        ((1.2, 0.3, 0.6), POSITIVE, "≥ 0.3"),
        ((NAN, -1.0, 1.0), COSINE, "–"),
        ((NAN, -1.0, 1.0 - 1e-15), COSINE, "–"),
        ((NAN, 0.0, INF), POSITIVE, "–"),
        ((0.7, 0.0, INF), POSITIVE, "–"),  # nothing is excluded
        ((0.7, 0.0, 1.0), SHARE, "0.70 [0, 1.00]"),
        ((1.004, 1.0, 1.0), COSINE, "–"),  # cut to a point, which would look exact
        ((1.0 + 1e-9, 1.0, 1.0), COSINE, "1"),
        ((0.3, 0.4, 0.6), COSINE, "[0.40, 0.60]"),  # neither end is a limit
    ],
)
def test_an_estimate_outside_of_what_is_possible_is_a_bound(triple, limits, plain):
    assert format_estimate(*triple, limits=limits) == plain


def test_rounding_does_not_put_an_estimate_outside_of_its_interval():
    """A cosine of exactly 1, whose interval is cut there."""
    assert format_estimate(1.0 + 2e-14, 1.0 - 1e-14, 1.0) == format_estimate(1.0, 1.0, 1.0) == "1"
    assert format_estimate(1.0 + 2e-14, 0.9, 1.0) == format_estimate(1.0, 0.9, 1.0)
    assert format_estimate(1.01, 0.9, 1.0) == "≥ 0.9"


def test_rounding_of_float32_is_not_printed_as_an_interval():
    assert format_estimate(0.99999994, 0.999999938, 0.99999995) == "1"
    assert format_estimate(1.0, 0.962, 1.0 + 1e-12, markup="latex") == "$1.000^{+0}_{-0.038}$"
    assert format_estimate(0.002, 0.002 - 3e-5, 0.002 + 3e-5) == "0.002000 [0.001970, 0.002030]"  # measured


@pytest.mark.parametrize(
    ("triple", "wide", "narrow"),
    [
        ((0.7887, 0.475, 1.102), r"$0.79 \pm 0.31$", r"$0.79_{\pm 0.31}$"),
        ((NAN, 0.2, 0.9), r"$[0.20, 0.90]$", r"$[0.20, 0.90]$"),
        ((NAN, 1234.5, 5678.0), r"$[1{,}200, 5{,}700]$", r"$[1{,}200, 5{,}700]$"),
        ((4.79e-6, NAN, NAN), r"$4.79 \cdot 10^{-6}$", r"$4.79 \cdot 10^{-6}$"),
        ((1e-6, NAN, NAN), "$10^{-6}$", "$10^{-6}$"),
        ((1.81e-4, 1.65e-4, 1.97e-4), r"$(1.81 \pm 0.16) \cdot 10^{-4}$", r"$1.81_{\pm 0.16} \cdot 10^{-4}$"),
        ((NAN, 2e-5, 6.01e-5), r"$[2.0, 6.0] \cdot 10^{-5}$", r"$[2.0, 6.0] \cdot 10^{-5}$"),
        ((NAN, NAN, 1e-9), r"$\leq 10^{-9}$", r"$\leq 10^{-9}$"),
        ((NAN, 3.21e7, INF), r"$\geq 3.2 \cdot 10^{7}$", r"$\geq 3.2 \cdot 10^{7}$"),
    ],
)
def test_latex_saves_space_and_writes_no_number_with_an_e(triple, wide, narrow):
    assert format_estimate(*triple, markup="latex") == wide
    assert format_estimate(*triple, markup="latex", narrow=True) == narrow


@pytest.mark.parametrize(
    ("triple", "limits", "latex"),
    [
        ((0.184, 0.0, 0.372), SHARE, "$0.18^{+0.19}_{-0.18}$"),  # not ± 0.19, which leaves what is possible
        ((0.4956, 0.3, 0.7249), SHARE, "$0.50^{+0.22}_{-0.20}$"),  # 0.72, as 0.50 [0.30, 0.72] has it
        ((0.8751, 0.749, 1.0), SHARE, "$0.88^{+0.12}_{-0.13}$"),  # as good as symmetric, but 0.88 + 0.13 is above 1
    ],
)
def test_errors_in_latex_lead_to_the_ends_that_are_printed_elsewhere(triple, limits, latex):
    assert format_estimate(*triple, limits=limits, markup="latex") == latex


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.87123, "0.871"),
        (12345.6, "12,300"),
        (768.0, "768"),
        (1234567.0, "1,234,567"),
        (-0.0, "0"),
        (-2.5, "−2.5"),
        (2.31e-11, "2.31·10⁻¹¹"),
        (3.0e12, "3·10¹²"),
        (NAN, "–"),
        (INF, "not bounded"),
    ],
)
def test_a_number_alone(number, text):
    assert format_number(number) == text


def test_what_is_printed_lies_in_what_is_printed_beside_it():
    """At every size and width, also after rounding, and never with a positive power of ten."""
    rng = np.random.default_rng(0)
    for _ in range(3000):
        value = rng.normal() * 10.0 ** rng.uniform(-6, 7)
        low, high = value - abs(value) * 10.0 ** rng.uniform(-4, 1), value + abs(value) * 10.0 ** rng.uniform(-4, 2)
        text = format_estimate(value, low, high)
        assert not re.search(r"\de|∞", text)
        shown, first, last = map(as_number, re.findall(NUMBER, text))
        assert first <= shown <= last, text
        assert first < last, text


def test_what_is_known_exactly_is_0_but_for_rounding():
    assert displayable_interval(*[-2.2e-16] * 3) == (0.0, 0.0, 0.0)
    assert displayable_interval(*[1e-9] * 3) == (1e-9, 1e-9, 1e-9)
    assert displayable_interval(2.2e-16, -0.1, 0.1)[1:] == (-0.1, 0.1)


def test_a_ratio_that_is_not_known_to_any_power_of_ten_is_not_resolved():
    assert format_estimate(0.363, 4e-9, 3.3e7, limits=POSITIVE) == "–"
    assert format_estimate(NAN, 4e-9, 3.3e7, limits=POSITIVE) != "–"  # an interval alone may be of anything
    assert displayable_interval(1.0, 1e-4, 1e4, POSITIVE) == (1.0, 1e-4, 1e4)
    assert displayable_interval(1.0, 1e-9, 3.0, POSITIVE) == (1.0, 1e-9, 3.0)
    assert format_estimate(2.17, 0.0443, 1.4e7, limits=POSITIVE) == "2.2 [≥ 0.044]"


@pytest.mark.parametrize(
    ("numbers", "written"),
    [
        ((0.5, 0.25, 1.0), "0.5 [0.25, 1]"),
        ((0.5, 0.0, 1.2345), "0.5 [≤ 0, 1.2]"),
        ((1.0, 0.0, 2.0), "1 [≤ 0, ≥ 2]"),
        ((1.5, 1.2345, 2.0), "1.5 [1.2, ≥ 2]"),
        ((1.0, 1.0, 1.0), "1"),
    ],
)
def test_an_end_that_is_cut_is_written_as_such(numbers, written):
    assert minimiser_with_interval(*numbers, [2.0, 0.0, 1.0]) == written


def test_a_minimiser_is_written_with_minus_signs():
    assert minimiser_with_interval(-0.094, -0.12, -0.068, [-0.5, 0.5]) == "−0.094 [−0.12, −0.068]"
    assert minimiser_with_interval(0.0, -INF, 1.0, (-INF, INF)) == "0 [−inf, 1]"
