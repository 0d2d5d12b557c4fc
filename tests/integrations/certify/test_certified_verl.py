"""verl's own code under certify: estimators and losses whose weights are known, and what its splits must not change."""

import numpy as np
import pytest

from gradstats.estimators import get

pytest.importorskip("verl", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore")

#: Setting and sampler → the label with the same weights.
EQUAL = {
    ("rloo, vanilla, seq-mean-token-sum", "on-policy"): "rloo",
    ("grpo, vanilla, seq-mean-token-mean", "older"): "recipe:grpo(scale=group_std(eps=1e-6))",
    ("grpo not_by_std, gspo, seq-mean-token-mean", "older"): (
        "recipe:custom(advantage=group_mean, ratio=sequence_clip(eps_low=0.2, eps_high=0.2), aggregation=sequence_mean)"
    ),
    ("grpo not_by_std, vanilla, seq-mean-token-sum, token", "older"): (
        "recipe:custom(advantage=group_mean, correction=truncate_tokens)"
    ),
}


@pytest.fixture(scope="module")
def subjects():
    from gradstats.integrations.certify.verl import verl_subjects

    return {(one.name, one.sampler): one for one in verl_subjects()}


@pytest.mark.parametrize("setting", EQUAL)
def test_weights_are_those_of_the_label(subjects, setting):
    from gradstats.integrations.certify.batches import Batches
    from gradstats.integrations.certify.labels import label_weights

    batches, numbers = Batches.of(setting[1]), np.arange(3, 400, 80)
    found = np.stack([subjects[setting].gradient(batches.completions(number)).numpy() for number in numbers])
    expected = label_weights(batches, get(EQUAL[setting]), numbers)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("loss", "same"), [("vanilla", True), ("geo_mean", False)])
def test_micro_batches_are_normalised_by_the_whole_batch(subjects, loss, same):
    from gradstats.integrations.certify.batches import Batches
    from gradstats.integrations.certify.invariances import accumulation_steps

    batches = Batches.of("older")
    subject = subjects[f"grpo not_by_std, {loss}, seq-mean-token-mean", "older"]
    found = accumulation_steps(subject, batches.completions(int(batches.tried[0])))
    assert found < 1e-12 if same else found == pytest.approx(1.0)
