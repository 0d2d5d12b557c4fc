"""Tables of gradients split by success rate and by length."""

from __future__ import annotations

from comparison_batches import correlated_batch, quiet_compare

from gradstats.plots.allocation import bin_label
from gradstats.report.analysis_tables import (
    ALLOCATION_HEADINGS,
    BLOCK_HEADINGS,
    SUCCESS_HEADINGS,
    allocation_table,
    block_table,
    success_table,
)
from gradstats.stats import VarianceByBlock, allocate, variance_by_success


def test_one_row_for_each_estimator_and_bin():
    batch, scores = correlated_batch(n_prompts=30, size=8)
    frame = variance_by_success(batch, ["rloo", "grpo"], scores, bins=2).to_frame(0.9)
    table = success_table(frame)
    assert len(table.rows) == 4
    low, high, n = frame.loc[0, ["success_low", "success_high", "n_prompts"]]
    assert table.rows[0] == f"rloo, {bin_label(low, high)} (n = {n:.0f})"
    assert list(table.columns) == list(SUCCESS_HEADINGS.values())
    assert "of the other half of the completions), groups of 4 completions, 90% intervals" in table.caption
    given = variance_by_success(batch, ["rloo"], scores, success=[0.5] * 240, bins=1).to_frame()
    assert "(as given), groups of 8 completions" in success_table(given).caption
    assert success_table(given).rows == ("rloo, 0.5 (n = 30)",)


def test_one_row_for_each_block_and_estimator():
    batch, scores = correlated_batch(n_prompts=30, size=8)
    of_size = {sizes: quiet_compare(batch, ["rloo", "grpo"], scores, group_size=sizes) for sizes in (4, (2, 4))}
    found = VarianceByBlock({"attention": of_size[4], "mlp": of_size[4]})
    table = block_table(found.to_frame(0.9))
    assert table.rows == ("attention, rloo", "attention, grpo", "mlp, rloo", "mlp, grpo")
    assert list(table.columns) == list(BLOCK_HEADINGS.values())
    assert table.columns["ratio"][0] == (1.0, 1.0, 1.0)
    assert "to that of rloo on the same block, 90% intervals" in table.caption
    assert block_table(VarianceByBlock({"mlp": of_size[2, 4]}).to_frame()).rows[0] == "mlp, rloo, N=2"


def test_allocations():
    batch, scores = correlated_batch(n_prompts=30, size=8)
    frame = allocate(batch, ["rloo"], scores, tokens=10_000, group_sizes=[2, 8, 32]).to_frame()
    table = allocation_table(frame)
    n = frame["n_prompts"]
    assert table.rows == (f"rloo, 2 × {n[0]:.3g}", f"rloo, 8 × {n[1]:.3g}", f"rloo, 32* × {n[2]:.3g}")
    many = allocation_table(frame.assign(n_prompts=12345.6))
    assert many.rows[0] == "rloo, 2 × 12,346"
    assert list(table.columns) == list(ALLOCATION_HEADINGS.values())
    assert "10,000 completion tokens" in table.caption
    assert "relative to rloo with 8 completions per prompt" in table.caption
