"""What the tests of samplers share."""

import pytest

from gradstats.policy.policy import Policy, load_policy


@pytest.fixture(scope="session")
def policy(policy_folder) -> Policy:
    return load_policy(policy_folder)
