"""How many prompts a variance rests on."""

import numpy as np
import pytest
from comparison_batches import interleaved_batch, quiet_compare
from gradients_by_hand import along, statistics_of

from gradstats.stats.variance.estimates import n_effective_beside, n_effective_prompts


def test_equal_gradients_are_worth_their_number_and_one_that_dominates_is_worth_one():
    assert n_effective_prompts(statistics_of(along(1, -1, 1, -1))) == pytest.approx(4.0, rel=1e-12)
    heavy = statistics_of(along(1e-3, 1e3, -1e-3, 1e-3))
    assert n_effective_prompts(heavy) == pytest.approx(1.0, rel=1e-9)


def test_what_it_is_compared_with_counts_as_well():
    even, heavy = along(1, -1, 1, -1), along(1e-3, 1e3, -1e-3, 1e-3)
    assert n_effective_beside(statistics_of(even)) == np.inf
    assert n_effective_beside(statistics_of(even, even, heavy)) < 2.0 < n_effective_beside(statistics_of(even, even))


def test_several_groups_of_a_prompt_count_once():
    statistics = statistics_of([[[1.0], [-1.0]], [[2.0], [0.0]], [[0.0], [0.0]]])
    squares = np.array([1.0, 2.0, 0.0])
    assert n_effective_prompts(statistics) == pytest.approx(squares.sum() ** 2 / (squares**2).sum(), rel=1e-12)


def test_the_frame_names_the_prompt_and_a_note_says_what_follows():
    batch, scores = interleaved_batch([4] * 80)
    at = batch.groups == "p007"
    scores[at] *= 40.0
    result = quiet_compare(batch.with_fields(sq_norms=(scores**2).sum(axis=1)), ["reinforce", "grpo"], scores)
    frame = result.to_frame()
    assert set(frame["most_influential_prompt"]) == {"p007"}
    assert (frame["n_effective_prompts"] < 2).all()
    text = " ".join(result.notes)
    assert "(prompt p007 counts most), and about 50 are needed" in text
    assert "intervals of reinforce and grpo may be too narrow" in text
    assert "80 prompts count as 1 effective prompts" in text
    alone = quiet_compare(batch, ["reinforce"], scores, reference="reinforce").notes
    assert "intervals of reinforce may be too narrow" in " ".join(alone)


def test_even_gradients_get_no_note():
    rng = np.random.default_rng(0)
    batch, _ = interleaved_batch([4] * 200)
    batch = batch.with_fields(rewards=np.ones(800))
    result = quiet_compare(batch, ["reinforce"], rng.choice([-1.0, 1.0], size=(800, 50)), reference="reinforce")
    assert not any("effective prompts" in note for note in result.notes)
