"""One rank of a process group that measures a sharded model: ``python sharded_ranks.py RANK STORE CASE [FOLDER …]``.

It ends with exit code 0 if the measurement equals that of the whole model, or fails as it should.
"""

import sys

import numpy as np
import pytest
import torch
from conftest import ragged_rollouts, tiny_model
from torch import distributed
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import gradstats as gs
import gradstats.gradients as gradients
from gradstats.gradients import head
from gradstats.gradients.distributed import GroupMemoryError
from gradstats.measurement.measurement import Measurement

# The call of the second layer's MLP at which memory runs out: after the probes and the self-check.
_FAILS_AT = 16


def sharded(model: torch.nn.Module, **options: object) -> torch.nn.Module:
    """Shard every layer, and the rest of the model, over both ranks."""
    mesh = distributed.device_mesh.init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def measured(model: object, engine: str = "auto", **options: object) -> Measurement:
    """Norms, sketches and one further weighting of a few rollouts, in an odd number of chunks."""
    rollouts = ragged_rollouts(9)
    halves = [[0.5] * len(tokens) for tokens in rollouts.tokens("completion_tokens")]
    options |= {"blocks": "parameter", "sketch_dim": 64, "token_weights": {"halves": halves}, "token_budget": 45}
    return gradients.measure(model, rollouts, engine=engine, progress=False, **options)


def measured_from(folder: str, *, divided: bool) -> Measurement:
    """The same, and more, of a policy and a reference that are loaded from a folder."""
    policy, reference = (
        gs.load_policy(folder, temperature=temperature, device="cpu", sharded=divided, progress=False)
        for temperature in (0.9, 1.3)
    )
    return measured(policy, token_exact=0.3, reference_policy=reference)


def assert_equal_to_the_whole_model(**options: object) -> None:
    expected = measured(tiny_model("qwen2", tied=True), "loop")
    found = measured(sharded(tiny_model("qwen2", tied=True)), **options)
    assert found.metadata["engine"] == "ghost"
    for name, values in expected.sq_norms_by_block.items():
        np.testing.assert_allclose(found.sq_norms_by_block[name], values, rtol=1e-9, atol=1e-18, err_msg=name)
    np.testing.assert_allclose(found.sketches, expected.sketches, atol=1e-10)
    np.testing.assert_allclose(found.weighted["halves"].sketches, expected.weighted["halves"].sketches, atol=1e-10)


def assert_memory_exhaustion_ends_the_group() -> None:
    model = sharded(tiny_model("qwen2", tied=True))
    calls = []

    def count(*_: object) -> None:
        calls.append(1)
        if distributed.get_rank() == 1 and len(calls) == _FAILS_AT:
            raise MemoryError

    model.model.layers[1].mlp.register_forward_pre_hook(count)
    with pytest.raises(GroupMemoryError, match=r"on one rank, on 2 sequences of .* all ranks have to begin again"):
        measured(model)


def assert_mixed_precision_is_refused() -> None:
    model = sharded(
        tiny_model("qwen2", dtype=torch.float32), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    )
    message = r"^model\.embed_tokens \(Embedding\) computes in bfloat16 with its weight replaced .* are float32: meas"
    with pytest.raises(ValueError, match=message):
        measured(model)


def assert_different_rollouts_are_refused() -> None:
    rollouts = ragged_rollouts(3 + distributed.get_rank())
    with pytest.raises(ValueError, match="the 2 ranks that hold the model were given different rollouts: give every"):
        gradients.measure(sharded(tiny_model("qwen2")), rollouts, progress=False)


if __name__ == "__main__":
    rank, store, case, *folders = sys.argv[1:]
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    if case == "files":
        source, out = folders
        measured_from(source, divided=True).save(f"{out}-{rank}")
    elif case == "mixed precision":
        assert_mixed_precision_is_refused()
    elif case == "memory":
        assert_memory_exhaustion_ends_the_group()
    elif case == "different rollouts":
        assert_different_rollouts_are_refused()
    elif case == "long":
        head.MOST_LOGITS, head._SLICE["cpu"] = 0, 200
        assert_equal_to_the_whole_model(recompute="on")
    else:
        assert_equal_to_the_whole_model()
    distributed.destroy_process_group()
