"""One rank of a process group that measures a sharded model: ``python sharded_ranks.py RANK STORE CASE``.

It ends with exit code 0 if the measurement equals that of the whole model, or is refused as it should be.
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from torch import distributed
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import gradstats.gradients as gradients

# The call of the second layer's MLP at which memory runs out: after the self-check.
_FAILS_AT = 11


def sharded(model: torch.nn.Module, **options: object) -> torch.nn.Module:
    """Shard every layer, and the rest of the model, over both ranks."""
    mesh = distributed.device_mesh.init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def measured(model: torch.nn.Module, engine: str):
    """Norms, sketches and one further weighting of a few rollouts."""
    rollouts = ragged_rollouts(5)
    halves = [[0.5] * len(tokens) for tokens in rollouts.tokens("completion_tokens")]
    return gradients.measure(
        model,
        rollouts,
        engine=engine,
        blocks="parameter",
        sketch_dim=64,
        token_weights={"halves": halves},
        progress=False,
    )


def assert_equal_to_the_whole_model(*, fails: bool) -> None:
    expected = measured(tiny_model("qwen2", tied=True), "loop")
    model = sharded(tiny_model("qwen2", tied=True))
    calls = []

    def count(*_: object) -> None:
        calls.append(1)
        if fails and len(calls) == _FAILS_AT:
            raise MemoryError

    model.model.layers[1].mlp.register_forward_pre_hook(count)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = measured(model, "auto")
    assert found.metadata["engine"] == "ghost"
    assert any("memory ran out" in str(one.message) for one in caught) == fails
    for name, values in expected.sq_norms_by_block.items():
        np.testing.assert_allclose(found.sq_norms_by_block[name], values, rtol=1e-9, atol=1e-18, err_msg=name)
    np.testing.assert_allclose(found.sketches, expected.sketches, atol=1e-10)
    np.testing.assert_allclose(found.weighted["halves"].sketches, expected.weighted["halves"].sketches, atol=1e-10)


def assert_mixed_precision_is_refused() -> None:
    model = sharded(
        tiny_model("qwen2", dtype=torch.float32), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    )
    message = r"^model\.embed_tokens \(Embedding\) computes in bfloat16 with its weight replaced .* are float32: meas"
    with pytest.raises(ValueError, match=message):
        measured(model, "auto")


if __name__ == "__main__":
    rank, store, case = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    if case == "mixed precision":
        assert_mixed_precision_is_refused()
    else:
        assert_equal_to_the_whole_model(fails=case == "error in the middle")
    distributed.destroy_process_group()
