"""Shares clipped, counted by hand on a few completions whose ratios are known."""

from __future__ import annotations

import numpy as np
import pytest

import gradstats as gs
from gradstats.analyses.ratios import clipped_share, without_clip
from gradstats.estimators import Batch, Recipe, recipes
from tests.off_policy import turned_policy

RATIOS = np.array([[1.5, 1.1, 0.5], [1.5, 0.5, 1.0], [1.0, 0.7, 1.3], [4.0, 1.0, 1.0]])
MASK = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 1]], dtype=bool)
REWARDS = np.array([1.0, 0.0, 0.0, 1.0])
ENERGY = np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 0], [9, 0, 10]])


def batch(**fields: np.ndarray) -> Batch:
    return Batch(
        REWARDS, MASK.sum(axis=1), np.array([0, 0, 1, 1]), MASK,
        logprobs=np.log(RATIOS), old_logprobs=np.zeros_like(RATIOS), **fields,
    )  # fmt: skip


SQUARES = np.array([1.0, 2.0, 3.0, 4.0])
DUAL = Recipe("group_mean", ratio="token_clip(eps_low=0.9, eps_high=9, dual_clip=1.4)")


@pytest.mark.parametrize(
    ("recipe", "known", "tokens", "completions", "removed_of", "removed"),
    [
        # A > 0 and ρ > 1.2: 1.5 of the first, 4 of the last; A < 0 and ρ < 0.8: 0.5 of the second, 0.7 of the third.
        (recipes.get("grpo"), {"token_energy": ENERGY}, 4 / 10, 1.0, "token_energy", (1 + 5 + 8 + 9) / 55),
        (recipes.get("grpo"), {"sq_norms": SQUARES}, 4 / 10, 1.0, "unknown", np.nan),
        (recipes.get("grpo", eps_high=0.6, eps_low=0.4), {}, 2 / 10, 0.5, "unknown", np.nan),
        (recipes.get("dapo"), {}, 4 / 10, 1.0, "unknown", np.nan),
        (DUAL, {}, 1 / 10, 0.25, "unknown", np.nan),
        # Geometric means 0.94, 0.91, 0.84, 2: the last three are clipped, the first is on the side of its advantage.
        (recipes.get("gspo"), {"sq_norms": SQUARES}, 7 / 10, 3 / 4, "sq_norms", 9 / 10),
        # A clipped weight removes nothing. Outside [0.8, 1.2]: 1.5 and 0.5; 1.5 and 0.5; 0.7; 4.
        (recipes.get("cispo"), {"token_energy": ENERGY}, 6 / 10, 1.0, "token_energy", 0.0),
    ],
)
def test_shares_that_are_clipped_by_hand(recipe, known, tokens, completions, removed_of, removed):
    share = clipped_share(recipe, batch(**known))
    assert share.clipped_tokens.value == pytest.approx(tokens)
    assert share.clipped_completions.value == pytest.approx(completions)
    assert share.removed_of == removed_of
    assert share.removed_share.value == pytest.approx(removed, nan_ok=True)
    assert np.isnan(share.record(0.95)["removed_share_low"]) == np.isnan(removed)


def test_intervals_leave_each_prompt_out():
    rng = np.random.default_rng(3)
    ratios = np.exp(0.3 * rng.normal(size=(40, 6)))
    many = Batch(
        rng.integers(0, 2, 40), np.full(40, 6), np.repeat(np.arange(10), 4),
        logprobs=np.log(ratios), old_logprobs=np.zeros((40, 6)),
    )  # fmt: skip
    recipe = recipes.get("grpo")
    share = clipped_share(recipe, many).clipped_tokens
    replicates = np.array(
        [clipped_share(recipe, many.select(many.groups != m)).clipped_tokens.value for m in range(10)]
    )
    assert share.stderr == pytest.approx(np.sqrt(0.9 * np.sum((replicates - replicates.mean()) ** 2)), rel=1e-9)
    row = clipped_share(recipe, many).record(0.95)
    assert 0 <= row["clipped_tokens_low"] < row["clipped_tokens"] < row["clipped_tokens_high"] <= 1


def test_an_opened_recipe_weights_by_the_ratio_alone():
    for name in ("grpo", "gspo", "cispo"):
        opened = without_clip(recipes.get(name)).token_weights(batch())
        assert np.all(opened[MASK] != 0)
    truncated = Recipe("rloo", ratio="sequence_product(truncate=1.1)")
    assert without_clip(truncated).ratio.label == "sequence_product"
    assert clipped_share(truncated, batch()).clipped_completions.value == pytest.approx(1 / 4)


@pytest.fixture(scope="module")
def drawn() -> Batch:
    return turned_policy().sample(60, 4, rng=0)[0]


def test_the_three_ratios(drawn: Batch):
    frame = gs.ratio_diagnostics(drawn).to_frame().query("not by_length").set_index("ratio")
    log_ratio = np.where(drawn.mask, drawn.logprobs - drawn.old_logprobs, 0.0)
    product = np.exp(log_ratio.sum(axis=1))
    values = {
        "token": np.exp(log_ratio[drawn.mask]),
        "product": product,
        "geometric_mean": product ** (1 / drawn.lengths),
    }
    for name, ratios in values.items():
        row = frame.loc[name]
        assert (row["n"], row["n_prompts"]) == (ratios.size, 60)
        assert row["mean"] == pytest.approx(ratios.mean())
        assert row["variance"] == pytest.approx(ratios.var())
        assert row["chi_squared"] == pytest.approx(np.mean((ratios - 1) ** 2))
        assert row["effective_sample_size"] == pytest.approx(ratios.sum() ** 2 / (ratios**2).sum())
    found = gs.ratio_diagnostics(drawn, n_bins=3)
    by_length = found.to_frame().query("by_length and ratio == 'product'")
    assert by_length["n"].sum() == 240
    assert np.all(by_length["length_low"].to_numpy()[1:] > by_length["length_high"].to_numpy()[:-1])
    first = by_length.iloc[0]
    inside = (drawn.lengths >= first["length_low"]) & (drawn.lengths <= first["length_high"])
    assert first["chi_squared"] == pytest.approx(np.mean((product[inside] - 1) ** 2))
    assert found.confidence_interval(0.9)[0] < found.product.effective_sample_size.value


def test_clipping_names_what_could_not_be_evaluated(drawn: Batch):
    without = drawn.with_fields(values=None, token_energy=None)
    found = gs.ratio_diagnostics(without)
    frame = found.clipping_frame()
    assert {"grpo", "dapo", "gspo", "cispo"} <= set(frame["recipe"])
    assert "ppo" not in set(frame["recipe"])
    assert any(note.startswith("ppo is left out: ") and "values" in note for note in found.notes)
    assert any("measure with --set measurement.token_probes" in note and "grpo" in note for note in found.notes)
    assert frame.set_index("recipe").loc["gspo", "removed_of"] == "sq_norms"
    chosen = ["dapo", gs.recipes.get("grpo", eps_high=0.5)]
    labels = gs.ratio_diagnostics(drawn, chosen).clipping_frame()["recipe"]
    assert list(labels) == ["dapo", chosen[1].label]
    with pytest.raises(ValueError, match="needs values"):
        gs.ratio_diagnostics(without, ["ppo"])


def test_what_is_refused_or_named(drawn: Batch):
    with pytest.raises(ValueError, match="ratios need the log-probabilities of sampler and scorer"):
        gs.ratio_diagnostics(drawn.with_fields(old_logprobs=None))
    with pytest.raises(ValueError, match="n_bins=0 must be at least 1"):
        gs.ratio_diagnostics(drawn, n_bins=0)
    found = gs.ratio_diagnostics(drawn.with_fields(old_logprobs=np.where(drawn.mask, -400.0, 0.0)))
    assert "overflows" in found.notes[0]
    assert np.isfinite(found.product.effective_sample_size.value)


def test_the_figure_is_of_policies_that_differ(drawn: Batch):
    ax = gs.ratio_diagnostics(drawn, n_bins=2).plot()
    assert len(ax.get_xticks()) > 0
    same = drawn.with_fields(old_logprobs=drawn.logprobs)
    with pytest.raises(ValueError, match="the two policies count as one"):
        gs.ratio_diagnostics(same, n_bins=2).plot()
