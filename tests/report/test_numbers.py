"""How numbers are written with their intervals."""

from __future__ import annotations

import math

import pytest

from gradstats.report.numbers import common_exponent, number_with_interval

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("triple", "plain", "latex"),
    [
        ((0.7887, 0.475, 1.102), "0.79 ± 0.31", r"$0.79 \pm 0.31$"),
        ((1.305, 1.067, 1.596), "1.30 +0.29 −0.24", r"$1.30^{+0.29}_{-0.24}$"),
        ((387.7, 288.7, 520.6), "388 +133 −99", r"$388^{+133}_{-99}$"),
        ((-0.012, -0.045, 0.021), "−0.012 ± 0.033", r"$-0.012 \pm 0.033$"),
        ((-0.001, -0.2, 0.2), "0.00 ± 0.20", r"$0.00 \pm 0.20$"),
        ((1.0, 1.0, 1.0), "1", "$1$"),
        ((0.765625, 0.765625 - 1e-15, 0.765625 + 1e-15), "0.766", "$0.766$"),
        ((2.5, NAN, NAN), "2.5", "$2.5$"),
        ((INF, NAN, NAN), "∞", r"$\infty$"),
        ((NAN, NAN, NAN), "–", "--"),
        ((NAN, 57.7, INF), "> 57.7", "$> 57.7$"),
        ((NAN, NAN, 3.0), "< 3", "$< 3$"),
        ((0.15, -INF, 0.62), "0.15 +0.47 −∞", r"$0.15^{+0.47}_{-\infty}$"),
        ((0.15, NAN, 0.62), "0.15 +0.47", "$0.15^{+0.47}$"),
        ((0.42, 0.013, 13.4), "0.42 +13 −0.41", "$0.42^{+13}_{-0.41}$"),
        ((0.579, -12.4, 0.987), "0.58 +0.41 −13", "$0.58^{+0.41}_{-13}$"),
        ((0.9999, 0.9983, 1.0), "0.9999 +0.0001 −0.0016", "$0.9999^{+0.0001}_{-0.0016}$"),
        ((0.0031, 2.4e-188, 3.97e182), "0.0031 +∞ −0.0031", r"$0.0031^{+\infty}_{-0.0031}$"),
        ((0.25, -3.97e182, 0.5), "0.25 +0.25 −∞", r"$0.25^{+0.25}_{-\infty}$"),
        ((0.0, -3.0, 3.0), "0.0 ± 3.0", r"$0.0 \pm 3.0$"),
    ],
)
def test_numbers_have_the_digits_their_intervals_allow(triple, plain, latex):
    assert number_with_interval(*triple) == plain
    assert number_with_interval(*triple, markup="latex") == latex


def test_html_stacks_unequal_sides_and_escapes():
    stacked = '1.30 <span class="sides"><span>+0.29</span> <span>−0.24</span></span>'
    assert number_with_interval(1.305, 1.067, 1.596, markup="html") == stacked
    assert number_with_interval(NAN, 3.0, INF, markup="html") == "&gt; 3"


def test_powers_of_ten_are_shared_by_a_column():
    assert common_exponent([(1.23e7, 1.1e7, 1.4e7), (4.0, NAN, NAN)]) == 7
    assert common_exponent([(0.0004, 0.0003, 0.0005)]) == -4
    assert common_exponent([(1234.0, 1000.0, 1500.0), (NAN, NAN, INF)]) == 0
    # One row without a sensible value leaves the others as they are.
    assert common_exponent([(88.0, 72.0, 107.0), (89.0, 73.0, 110.0), (-1.19e14, NAN, NAN)]) == 0
    assert number_with_interval(1.23e7, 1.13e7, 1.33e7, exponent=7) == "1.23 ± 0.10"


def test_an_estimate_outside_of_what_is_possible_is_a_bound():
    assert number_with_interval(-0.004, 0.0, 0.017) == "< 0.017"
    assert number_with_interval(1.004, 0.97, 1.0) == "> 0.97"
    assert number_with_interval(1.004, 1.0, 1.0) == "1"
    assert number_with_interval(-0.004, 0.0, 0.017, markup="latex") == "$< 0.017$"


def test_rounding_does_not_put_an_estimate_outside_of_its_interval():
    """A cosine of exactly 1, whose interval is cut there."""
    assert number_with_interval(1.0 + 2e-14, 1.0 - 1e-14, 1.0) == number_with_interval(1.0, 1.0, 1.0) == "1"
    assert number_with_interval(1.0 + 2e-14, 0.9, 1.0) == number_with_interval(1.0, 0.9, 1.0)
    assert number_with_interval(1.01, 0.9, 1.0) == "> 0.9"


def test_bounds_are_rounded_outwards():
    """A cosine whose interval starts at 0.9998 is not above 1."""
    assert number_with_interval(1.2, 0.9998, 1.0) == "> 0.999"
    assert number_with_interval(NAN, NAN, 0.12301) == "< 0.124"
    assert number_with_interval(NAN, NAN, 0.1 + 0.2) == "< 0.3"  # not 0.301
    assert number_with_interval(NAN, -0.12301, INF) == "> −0.124"
    assert number_with_interval(NAN, 57.7, INF) == "> 57.7"
    assert number_with_interval(NAN, 1235.6, INF) == "> 1230"


def test_rounding_of_float32_is_not_printed_as_an_interval():
    assert number_with_interval(0.99999994, 0.999999938, 0.99999995) == "1"
    assert number_with_interval(1.0, 0.962, 1.0 + 1e-12, markup="latex") == "$1.000^{+0}_{-0.038}$"
    assert number_with_interval(0.002, 0.002 - 3e-5, 0.002 + 3e-5) == "0.002000 ± 0.000030"  # a measured one stays


@pytest.mark.parametrize(
    ("triple", "wide", "narrow"),
    [
        ((0.7887, 0.475, 1.102), r"$0.79 \pm 0.31$", r"$0.79_{\pm 0.31}$"),
        ((1.305, 1.067, 1.596), r"$1.30^{+0.29}_{-0.24}$", r"$1.30^{+0.29}_{-0.24}$"),
        ((NAN, 0.2, 1.0), r"$0.20$ to $1.00$", r"$[0.20, 1.00]$"),
        ((4.79e-6, NAN, NAN), r"$4.79 \cdot 10^{-6}$", r"$4.79 \cdot 10^{-6}$"),
        ((1e-6, NAN, NAN), "$10^{-6}$", "$10^{-6}$"),
        ((1.81e-4, 1.65e-4, 1.97e-4), r"$(1.81 \pm 0.16) \cdot 10^{-4}$", r"$1.81_{\pm 0.16} \cdot 10^{-4}$"),
        ((NAN, 2e-5, 6e-5), r"$[2.0, 6.0] \cdot 10^{-5}$", r"$[2.0, 6.0] \cdot 10^{-5}$"),
        ((NAN, NAN, 1e-9), "$< 10^{-9}$", "$< 10^{-9}$"),
        ((NAN, 3.21e7, INF), r"$> 3.21 \cdot 10^{7}$", r"$> 3.21 \cdot 10^{7}$"),
        ((0.0004, 0.0001, 0.0015), r"$0.0004^{+0.0011}_{-0.0003}$", r"$0.0004^{+0.0011}_{-0.0003}$"),
        ((0.0, 0.0, 0.0), "$0$", "$0$"),
        ((NAN, NAN, NAN), "--", "--"),
    ],
)
def test_latex_saves_space_and_writes_no_number_with_an_e(triple, wide, narrow):
    assert number_with_interval(*triple, markup="latex") == wide
    assert number_with_interval(*triple, markup="latex", narrow=True) == narrow


def test_a_range_without_a_value():
    assert number_with_interval(math.nan, -1.0, 1.0) == "−1.0 to 1.0"
    assert number_with_interval(math.nan, 0.2, 1.0, markup="latex") == "$0.20$ to $1.00$"
