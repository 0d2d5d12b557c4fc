"""The engines on the policy of the demo, at its own precision."""

from __future__ import annotations

import numpy as np

import gradstats as gs


def test_ghost_gives_the_numbers_of_vmap():
    policy = gs.load_policy("embedded", progress=False)
    problems = gs.load_prompts("embedded", 3, rng=1)
    rollouts = gs.sample(policy, problems, group_size=2, max_new_tokens=96, rng=1, progress=False)
    ghost, vmap = (
        gs.measure(policy, rollouts, engine=engine, sketch_dim=4096, progress=False) for engine in ("ghost", "vmap")
    )
    assert (ghost.metadata["engine"], vmap.metadata["engine"]) == ("ghost", "vmap")
    np.testing.assert_allclose(ghost.sq_norms, vmap.sq_norms, rtol=1e-5)
    for name, norms in vmap.sq_norms_by_block.items():
        np.testing.assert_allclose(ghost.sq_norms_by_block[name], norms, rtol=1e-5, err_msg=name)
    inner, expected = (one.sketches @ one.sketches.T for one in (ghost, vmap))
    np.testing.assert_allclose(inner, expected, atol=1e-5 * float(vmap.sq_norms.max()))
