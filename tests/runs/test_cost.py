"""What a run is estimated to cost."""

from __future__ import annotations

import json

import matplotlib as mpl
import pytest

import gradstats
from gradstats.config.experiment import Experiment
from gradstats.gradients.parameters import UnsupportedModuleError, select_parameters
from gradstats.runs.cost import estimate_cost

mpl.use("Agg")


def test_cost_estimates_follow_the_settings(policy_folder, tmp_path, monkeypatch):
    (tmp_path / "p.jsonl").write_text("\n".join(json.dumps({"prompt": "ab " * k, "answer": "x"}) for k in range(1, 6)))

    def cost(measurement=None, variance=None, **sampling):
        settings = {"group_size": 4, "max_new_tokens": 12, "reward": "exact"} | sampling
        return estimate_cost(
            Experiment(
                name="c",
                policy={"name": policy_folder},
                prompts={"source": str(tmp_path / "p.jsonl")},
                sampling=settings,
                measurement={"sketch_dim": 1000} | (measurement or {}),
                variance=variance or {},
            )
        )

    few, many = cost(), cost(group_size=8)
    assert (few.n_sequences, many.n_sequences) == (20, 40)
    assert many.n_tokens == 2 * few.n_tokens == 480
    assert many.disk_gib == pytest.approx(2 * few.disk_gib)
    assert few.disk_gib * 1024**3 == pytest.approx(20 * (4 * 1000 + 12 * 40))
    assert few.n_parameters == gradstats.load_policy(policy_folder).describe()["n_parameters"]
    assert min(few.sampling_seconds, few.measuring_seconds, few.memory_gib) > 0
    tokens = cost({"token_probes": 16, "token_exact": 0.25, "token_dtype": "float16"})
    scores = 20 * (12 * 16 * 2 + 3 * (1000 * 2 + 16))
    assert (tokens.disk_gib - few.disk_gib) * 1024**3 == pytest.approx(scores)
    # The ghost engine, which auto takes where it can, holds activations of a whole chunk and no gradient of a sequence.
    assert cost({"engine": "loop"}).memory_gib < few.memory_gib < cost({"engine": "vmap"}).memory_gib
    scaled = cost({"metric": "adam", "second_moments": "embedded"})
    assert scaled.preconditioner_gib * 1024**3 == pytest.approx(4 * few.n_parameters)
    assert scaled.memory_gib == pytest.approx(few.memory_gib + scaled.preconditioner_gib)
    blocks = cost({"block_sketches": True})
    n_blocks = len(select_parameters(gradstats.load_policy(policy_folder).model).block_names)
    assert (blocks.disk_gib - few.disk_gib) * 1024**3 == pytest.approx(20 * 4 * 1000 * n_blocks)
    n_at_once = (blocks.memory_gib - few.memory_gib) * 1024**3 / (4 * 1000 * (n_blocks - 1))
    assert 1 <= round(n_at_once) == pytest.approx(n_at_once)
    # Two weightings for each clip, shared by the recipes of the same clip, where the sampler's temperature differs.
    recipes = {"estimators": ["rloo", "recipe:grpo", "recipe:dr_grpo", "recipe:dapo"]}
    assert (few.n_weightings, few.off_policy) == (0, False)
    near, far = cost(variance=recipes), cost(variance=recipes, temperature=0.5)
    assert (near.n_weightings, near.off_policy, near.disk_gib) == (4, False, few.disk_gib)
    assert (far.n_weightings, far.off_policy) == (4, True)
    assert (far.disk_gib - few.disk_gib) * 1024**3 == pytest.approx(20 * 4 * 4 * 1000)
    # Where ghost does not know the model, auto comes to vmap only if two gradients fit into memory_gib.
    monkeypatch.setattr("gradstats.runs.cost.supported_layers", _unsupported)
    for n_gradients, engine in ((1.5, "loop"), (2.5, "vmap")):
        room = {"memory_gib": n_gradients * 2 * 4 * few.n_parameters / 1024**3}
        assert cost(room).memory_gib == cost(room | {"engine": engine}).memory_gib
    assert cost(room).memory_gib > cost(room | {"engine": "loop"}).memory_gib


def test_a_cap_beyond_what_can_be_measured_is_refused(policy_folder, tmp_path, monkeypatch):
    (tmp_path / "p.jsonl").write_text('{"prompt": "1 + 1", "answer": "2"}\n')
    experiment = Experiment(
        name="c",
        policy={"name": policy_folder},
        prompts={"source": str(tmp_path / "p.jsonl")},
        sampling={"group_size": 2, "max_new_tokens": 12, "reward": "exact"},
    )
    fitting = estimate_cost(experiment).fitting_tokens
    assert fitting > 10_000
    monkeypatch.setattr("gradstats.runs.cost.total_memory_gib", lambda device: 0.01)
    with pytest.raises(
        ValueError, match=r"max_new_tokens is 12, and measuring .* about \d+ tokens fit together; lower"
    ):
        estimate_cost(experiment)


def _unsupported(*_args):
    raise UnsupportedModuleError("an unknown module")
