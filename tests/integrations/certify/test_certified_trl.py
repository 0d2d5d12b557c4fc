"""GRPOTrainer's own code under certify: settings whose weights are known, and what its splits must not change."""

import numpy as np
import pytest

from gradstats.estimators import get
from gradstats.integrations.certify.batches import Batches
from gradstats.integrations.certify.invariances import accumulation_steps, deviation, masked_row, processes
from gradstats.integrations.certify.labels import label_weights
from gradstats.integrations.certify.trl import trl_subjects

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def subjects():
    return {(one.name, one.sampler): one for one in trl_subjects()}


def test_every_setting_is_listed(subjects):
    assert {name.split(", ")[0].split()[0] for name, _ in subjects} >= {
        "grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo",
    }  # fmt: skip
    # TRL refuses vespo with two of the modes
    assert len(subjects) == 9 * 3 * 2 * (2 + 4) + 8 - 3 * 2 * 2


def test_cispo_with_the_default_bound_multiplies_every_ratio_to_at_most_a_fifth(subjects):
    batch = Batches.of("on-policy").completions(150)
    low, high = (
        subjects[f"{name}, none, token, off", "on-policy"].gradient(batch) for name in ("cispo", "cispo ε_high=5")
    )
    assert deviation(low * 5, high) < 1e-12


def test_settings_have_the_weights_of_their_label_in_words_of_trl(subjects):
    """Of one loss or more for each loss type, correction, unit of the advantage, level of ratios and KL term."""
    known = [one for one in subjects.values() if one.expected]
    assert [name for (name, _), one in subjects.items() if not one.expected] == ["grpo, none, sequence, off, ρ·k3"] * 2
    for subject in known[::4]:
        batches, numbers = Batches.of(subject.sampler), np.array([57, 260])
        found = np.stack([subject.gradient(batches.completions(number)).numpy() for number in numbers])
        expected = label_weights(batches, get(subject.expected), numbers)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12, err_msg=subject.expected)


@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo", "bnpo"])
def test_only_the_local_token_mean_depends_on_how_a_batch_is_split(subjects, loss):
    batches = Batches.of("older")
    subject, batch = subjects[f"{loss}, group, token, off", "older"], batches.completions(int(batches.tried[0]))
    for check in (accumulation_steps, processes):
        assert (check(subject, batch) > 1e-2) == (loss == "bnpo")
    assert masked_row(subject, batch) < 1e-12
