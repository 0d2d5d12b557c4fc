"""verl's own code under certify: estimators and losses whose weights are known, and what its splits must not change."""

import numpy as np
import pytest

from gradstats.estimators import get

pytest.importorskip("verl", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def subjects():
    from gradstats.integrations.certify.verl import verl_subjects

    return {(one.name, one.sampler): one for one in verl_subjects()}


def test_settings_have_the_weights_of_their_label_in_words_of_verl(subjects):
    """Of every estimator, loss, correction and KL term; ``token-sum`` is the sum here times the completions."""
    from gradstats.integrations.certify.batches import Batches
    from gradstats.integrations.certify.labels import label_weights

    known = [one for one in subjects.values() if one.expected and "optimal_token" not in one.name]
    assert {one.setting["loss_mode"] for one in subjects.values() if not one.expected} == {
        "bypass_mode reinforce token", "bypass_mode reinforce sequence", "bypass_mode ppo_clip", "vanilla",
    }  # fmt: skip
    for subject in known[::3]:
        batches, numbers = Batches.of(subject.sampler), np.array([57, 260])
        found = np.stack([subject.gradient(batches.completions(number)).numpy() for number in numbers])
        label = get(subject.expected)
        expected = label_weights(batches, label, numbers)
        if label.aggregation.name == "sequence_sum" and subject.setting["loss_agg_mode"] == "token-sum":
            expected *= found.shape[1]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9, err_msg=subject.expected)


def test_the_token_baseline_takes_energies_of_the_policy_that_drew(subjects):
    from gradstats.integrations.certify.batches import Batches, policy

    batches, number = Batches.of("older"), np.array([57])
    rows, drawn_by = batches.rows[57], policy("before")
    assert np.array_equal(drawn_by.logprobs, batches.policy.old_logprobs)
    as_drawn = {name: getattr(drawn_by, name)[rows] for name in ("logprobs", "sum_pi_squared")}
    expected = get("otb").advantages(batches.batch(number).with_fields(**as_drawn))
    found = subjects["optimal_token_baseline, vanilla, token-mean", "older"].advantages(batches.completions(57))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(("loss", "same"), [("vanilla", True), ("geo_mean", False)])
def test_micro_batches_are_normalised_by_the_whole_batch(subjects, loss, same):
    from gradstats.integrations.certify.batches import Batches
    from gradstats.integrations.certify.invariances import accumulation_steps

    batches = Batches.of("older")
    subject = subjects[f"grpo not_by_std, {loss}, seq-mean-token-mean", "older"]
    found = accumulation_steps(subject, batches.completions(int(batches.tried[0])))
    assert found < 1e-12 if same else found == pytest.approx(1.0)
