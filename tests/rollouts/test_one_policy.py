"""Tables of different policies are not joined unless that is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from gradstats.measurement.measurement import Measurement
from gradstats.rollouts.table import Rollouts, refuse_different_policies


def rollouts(digests, name="a"):
    policy = {"name": "p"} | ({} if digests is None else {"digests": digests})
    return Rollouts.from_sequences([[1]], [[2, 3]], np.ones(1), [name], metadata={"policy": policy})


def test_rollouts_of_other_weights_are_joined_on_request_only():
    first, second = rollouts({"weights": "a" * 64}), rollouts({"weights": "b" * 64}, "b")
    with pytest.raises(ValueError, match=r"rollouts come from policies with different weights \(SHA-256 aaaa"):
        Rollouts.concatenate([first, second])
    assert len(Rollouts.concatenate([first, second], allow_policy_mismatch=True)) == 2
    assert len(Rollouts.concatenate([first, rollouts(None, "b"), rollouts({"weights": "a" * 64}, "c")])) == 3


def test_an_adapter_that_only_one_has_is_a_difference():
    adapted, plain = {"weights": "a", "adapter": "c"}, {"weights": "a"}
    with pytest.raises(ValueError, match="different adapter"):
        refuse_different_policies([{"policy": {"digests": one}} for one in (adapted, plain)], "rollouts")
    refuse_different_policies([{"policy": {"digests": one}} for one in (plain, plain | {"tokenizer": "d"})], "rollouts")
    refuse_different_policies([{}, {"policy": None}, {"policy": {"digests": adapted}}], "rollouts")


def test_measurements_of_other_weights_are_joined_on_request_only():
    import pandas as pd

    parts = [
        Measurement(
            rollouts(None, name),
            pd.DataFrame({"all": [1.0]}),
            None,
            **{field: [np.ones(2)] for field in ("logprobs", "entropy", "sum_pi_squared", "hidden_sq_norms")},
            metadata={"policy": {"digests": {"weights": name * 64}}, "block_names": ["all"]},
        )
        for name in "ab"
    ]
    with pytest.raises(ValueError, match="measurements come from policies with different weights"):
        Measurement.concatenate(parts)
    assert len(Measurement.concatenate(parts, allow_policy_mismatch=True).rollouts) == 2
