"""Blocks of parameters: labels, cells of the map, which tables have a map."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fixture_frames import blocks

from gradstats import analyses
from gradstats.analyses import registry
from gradstats.analyses.alpha_by_block import has_kinds
from gradstats.analyses.numbers import format_estimate
from gradstats.rollouts.table import Rollouts


def test_the_map_puts_each_block_in_its_cell():
    blocks = ["model.embed_tokens.weight", *(f"model.layers.{layer}.mlp.up.weight" for layer in (0, 1)), "total"]
    frame = pd.DataFrame({"block": blocks, "share_of_sq_norm": [0.5, 0.2, 0.3, 1.0]})
    ax = analyses.plot_block_heatmap(frame)
    drawn = np.ma.filled(ax.collections[0].get_array(), np.nan)
    np.testing.assert_array_equal(drawn, [[0.5, np.nan, np.nan], [np.nan, 0.2, 0.3]])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["–", "0", "1"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["embed_tokens", "up"]
    with pytest.raises(ValueError, match="value='norm' cannot be drawn: choose from share_of_sq_norm, alpha"):
        analyses.plot_block_heatmap(frame, value="norm")


def test_the_sentence_names_the_ends_and_the_largest_block():
    rng = np.random.default_rng(0)
    lengths, powers = rng.integers(10, 200, 60), {"middle": 1.2, "steep": 2.0, "flat": 0.9}  # of squared norms
    shares = pd.DataFrame({name: lengths**power * rng.lognormal(0.0, 0.2, 60) for name, power in powers.items()})
    rollouts = Rollouts.from_sequences(
        [[1]] * 60, [[0] * length for length in lengths], np.zeros(60), [f"p{row // 4:02d}" for row in range(60)]
    )
    measured = SimpleNamespace(
        rollouts=rollouts, lengths=lengths, sq_norms=shares.sum(axis=1).to_numpy(), sq_norms_by_block=shares
    )
    found = analyses.alpha_by_block(measured)
    alpha = found.to_frame().set_index("block")
    flat, steep = (
        format_estimate(*alpha.loc[name, ["alpha", "alpha_low", "alpha_high"]]) for name in ("flat", "steep")
    )
    assert found.sentence() == (
        f"α lies between {flat} (flat) and {steep} (steep); steep holds "
        f"{shares['steep'].sum() / shares.to_numpy().sum():.0%} of ‖S‖²."
    )
    by_mean = analyses.alpha_by_block(measured, method="gamma")
    assert by_mean.sentence().startswith("α by gamma lies between ")
    assert "parameters (gamma), 95% intervals" in registry.get("alpha_by_block").caption(by_mean.to_frame())
    assert alpha["alpha"]["flat"] < alpha["alpha"]["middle"] < alpha["alpha"]["steep"]


def test_blocks_with_the_same_ending_stay_apart():
    labels = [label.get_text() for label in analyses.plot_alpha_by_block(blocks("long names")).get_yticklabels()]
    assert len(set(labels)) == 3
    frame = blocks("ordinary")
    points = [line for line in analyses.plot_alpha_by_block(frame).lines if line.get_linestyle() == "None"]
    np.testing.assert_array_equal([point.get_xdata()[0] for point in points], frame["alpha"])
    assert [point.get_marker() for point in points] == ["o"] * (len(frame) - 1) + ["D"]  # of the whole gradient


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["embedding", "layers.0", "layers.1", "total"], False),
        (["model.layers.0.mlp.up_proj.weight", "total"], True),
        (["transformer.h.3.attn.c_proj", "total"], True),
        ([], False),
    ],
)
def test_a_map_needs_kinds_of_parameter_within_layers(names, expected):
    assert has_kinds(pd.DataFrame({"block": names})) is expected
