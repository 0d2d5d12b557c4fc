"""The prompt without which a variance changes most."""

from gradients_by_hand import along, statistics_of

from gradstats.stats.variance.estimates import most_influential_prompt


def test_the_heaviest_gradient_counts_most():
    assert most_influential_prompt(statistics_of(along(1e-3, 1e3, -1e-3, 1e-3))) == 1


def test_a_gradient_near_the_mean_does_not_although_it_is_large():
    # About their mean of 9 the gradients lie at 1, 1, 1 and -3: the smallest is the one that spreads them.
    assert most_influential_prompt(statistics_of(along(10.0, 10.0, 10.0, 6.0))) == 3
