"""A value head against Monte-Carlo values: by hand, and against every state of an enumerated policy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gradstats.analyses import critic_quality
from gradstats.analyses.critic import FAILED, RECOVERED
from gradstats.estimators import Batch
from gradstats.reference import EnumeratedPolicy
from gradstats.rollouts.table import Rollouts


def head(true, position):
    """Values of a head that shrinks the true ones towards the middle, and shifts them more the later they are."""
    return 0.3 + 0.4 * true + 0.05 * position


@pytest.fixture(scope="module")
def sampled():
    """The policy, and many completions of it with values of four fresh ones at every state."""
    policy = EnumeratedPolicy(vocabulary=3, max_length=4, n_prompts=2, rng=1)
    batch, _, _ = policy.sample(4000, 2, rng=2)
    positions = np.arange(batch.mask.shape[1])
    noisy = np.random.default_rng(3).binomial(4, np.clip(batch.values, 0, 1)) / 4
    return policy, batch.with_fields(values=noisy, fitted_values=head(batch.values, positions))


def exact(policy, step=None):
    """Bias and explained variance over the states that trajectories visit, by enumeration."""
    chosen = policy.mask if step is None else policy.mask & (np.arange(policy.max_length) == step)
    rows, positions = np.nonzero(chosen)
    share = policy.probabilities[rows] / policy.probabilities[rows].sum()
    true = policy.values[rows, positions]
    error = head(true, positions) - true
    spread = share @ true**2 - (share @ true) ** 2
    return share @ error, 1.0 - share @ error**2 / spread if spread > 1e-12 else np.nan


def test_bias_and_explained_variance_are_those_of_the_true_values(sampled):
    policy, batch = sampled
    found = {row.states: row for row in critic_quality(batch, last_step=9).rows}
    assert list(found)[:5] == ["all", "step 0", "step 1", "step 2", "step 3"]
    for name, step in (("all", None), ("step 0", 0), ("step 1", 1), ("step 2", 2), ("step 3", 3)):
        bias, explained = exact(policy, step)
        row = found[name]
        assert abs(row.bias.value - bias) < 4.0 * row.bias.stderr
        assert 0 < row.bias.stderr < 0.02
        value, low, high = row.explained_variance.with_interval(0.999)
        if step != 0:  # of two prompts' values the spread is small
            assert low < explained < high
            assert high - low < 0.8
    # Taking the Monte-Carlo values for the true ones counts their noise as an error of the head.
    value = found["all"].explained_variance.with_interval(0.95)[0]
    v, m = batch.fitted_values[batch.mask], batch.values[batch.mask]
    assert 1.0 - np.mean((v - m) ** 2) / np.var(m) < value - 0.1
    assert found[RECOVERED].explained_variance.unexplained is None
    said = critic_quality(batch, last_step=9).sentence()
    assert said.startswith(f"The values of the head are off by {found['all'].bias.value:.3f}"[:-1].replace("-", "−"))
    assert f"explain {value:.0%} [" in said


def test_steps_and_states_after_a_wrong_step_by_hand():
    nan = np.nan
    values = [[0.75, nan, 0.25, 0.5, nan], [0.75, 0.0, 0.25, nan, 0.5], [0.25, 0.0, 1.0, 0.0, 0.75]] * 3
    fitted = [[0.5, 0.1, 0.5, 0.9, 0.1], [0.5, 0.4, 0.3, 0.2, 0.1], [0.5, 0.5, 0.5, 0.5, 0.5]] * 3
    batch = Batch([1, 0, 1] * 3, [5, 5, 5] * 3, np.repeat([0, 1, 2], 3), values=values, fitted_values=fitted)
    rows = {row.states: row for row in critic_quality(batch, last_step=2).rows}
    assert [(name, row.n) for name, row in rows.items()] == [
        ("all", 3 * 12), ("step 0", 9), ("step 1", 9), ("step 2 and later", 18), (RECOVERED, 6), (FAILED, 6)
    ]  # fmt: skip
    assert rows["step 0"].bias.value == pytest.approx(0.5 - 1.75 / 3)
    # Recovered: 0.9 against 0.5 after the fall to 0.25, and 0.5 against 0.75 after that from 1 to 0.
    assert rows[RECOVERED].bias.value == pytest.approx((0.4 - 0.25) / 2)
    assert rows[FAILED].bias.value == pytest.approx((0.05 - 0.4) / 2)
    frame = critic_quality(batch).to_frame()
    assert frame.attrs["low"] == 0.25
    assert frame["explained_variance"].iloc[-2:].isna().all()


@pytest.mark.parametrize(
    ("fields", "asked", "message"),
    [
        ({}, {}, r"needs fitted_values: .*values\.fitted in a run"),
        ({"values": None}, {"fitted_values": [[0.5], [0.5]]}, r"needs values: .*--set values\.monte_carlo=4"),
        ({"token_rewards": [[1.0], [0.0]]}, {"fitted_values": [[0.5], [0.5]]}, "rewards by token"),
        ({}, {"last_step": -1}, "last_step=-1 must be at least 0"),
    ],
)
def test_missing_values_and_rewards_by_token_are_refused(fields, asked, message):
    batch = Batch([1, 0], [1, 1], ["a", "b"], values=[[0.5], [0.5]])
    with pytest.raises(ValueError, match=message):
        critic_quality(batch.with_fields(**fields), **asked)


def test_what_cannot_be_estimated_is_missing_with_a_note():
    two, three = (
        Batch([1, 0, 1][:n], [1] * n, range(n), values=[[0.5]] * n, fitted_values=[[0.5]] * n) for n in (2, 3)
    )
    found = critic_quality(two)
    assert found.to_frame()["bias"].isna().all()
    assert "all: 2 prompts have such states, too few for intervals" in found.notes
    assert any("is not resolved" in note for note in critic_quality(three).notes)


def test_values_of_a_measurement_may_be_given():
    rollouts = Rollouts.from_sequences([[5]] * 3, [[1, 2]] * 3, [1.0, 0.0, 1.0], ["a", "b", "c"])
    measured = SimpleNamespace(rollouts=rollouts, fitted_values=[np.array([0.5, 0.25])] * 3)
    found = critic_quality(measured, values=[np.array([0.25, np.nan])] * 3)
    assert found.rows[0].bias.value == pytest.approx(0.25)
    assert found.rows[0].n == 3
