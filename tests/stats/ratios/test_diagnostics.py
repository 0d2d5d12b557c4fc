"""Ratio diagnostics: the frames, bins of length, and what they say where something is missing."""

from __future__ import annotations

import numpy as np
import pytest

import gradstats as gs
from gradstats.estimators import Batch
from tests.off_policy import turned_policy


@pytest.fixture(scope="module")
def batch() -> Batch:
    return turned_policy().sample(60, 4, rng=0)[0]


def test_the_three_ratios(batch: Batch):
    assert batch.logprobs is not None
    assert batch.old_logprobs is not None
    frame = gs.ratio_diagnostics(batch).to_frame().query("not by_length").set_index("ratio")
    log_ratio = np.where(batch.mask, batch.logprobs - batch.old_logprobs, 0.0)
    product = np.exp(log_ratio.sum(axis=1))
    values = {
        "token": np.exp(log_ratio[batch.mask]),
        "product": product,
        "geometric_mean": product ** (1 / batch.lengths),
    }
    for name, ratios in values.items():
        row = frame.loc[name]
        assert row["n"] == ratios.size
        assert row["n_prompts"] == 60
        assert row["mean"] == pytest.approx(ratios.mean())
        assert row["variance"] == pytest.approx(ratios.var())
        assert row["chi_squared"] == pytest.approx(np.mean((ratios - 1) ** 2))
        assert row["effective_sample_size"] == pytest.approx(ratios.sum() ** 2 / (ratios**2).sum())


def test_by_length(batch: Batch):
    assert batch.logprobs is not None
    assert batch.old_logprobs is not None
    found = gs.ratio_diagnostics(batch, n_bins=3)
    frame = found.to_frame().query("by_length and ratio == 'product'")
    assert frame["n"].sum() == 240
    assert np.all(frame["length_low"].to_numpy()[1:] > frame["length_high"].to_numpy()[:-1])
    first = frame.iloc[0]
    inside = (batch.lengths >= first["length_low"]) & (batch.lengths <= first["length_high"])
    ratios = np.exp((batch.logprobs - batch.old_logprobs).sum(axis=1)[inside])
    assert first["chi_squared"] == pytest.approx(np.mean((ratios - 1) ** 2))
    assert found.confidence_interval(0.9)[0] < found.product.effective_sample_size.value


def test_clipping_names_what_could_not_be_evaluated(batch: Batch):
    found = gs.ratio_diagnostics(batch.with_fields(values=None, token_energy=None))
    frame = found.clipping_frame()
    assert {"grpo", "dapo", "gspo", "cispo"} <= set(frame["recipe"])
    assert "ppo" not in set(frame["recipe"])
    assert any(note.startswith("ppo is left out: ") and "values" in note for note in found.notes)
    assert any("measure with token_probes" in note and "grpo" in note for note in found.notes)
    assert frame.set_index("recipe").loc["gspo", "removed_of"] == "sq_norms"


def test_chosen_recipes(batch: Batch):
    found = gs.ratio_diagnostics(batch, ["dapo", gs.recipes.get("grpo", eps_high=0.5)])
    assert list(found.clipping_frame()["recipe"]) == ["dapo", gs.recipes.get("grpo", eps_high=0.5).label]
    with pytest.raises(ValueError, match="needs values"):
        gs.ratio_diagnostics(batch.with_fields(values=None), ["ppo"])


def test_ratios_that_overflow_are_named(batch: Batch):
    far = batch.with_fields(old_logprobs=np.where(batch.mask, -400.0, 0.0))
    found = gs.ratio_diagnostics(far)
    assert "overflows" in found.notes[0]
    assert np.isfinite(found.product.effective_sample_size.value)


def test_what_is_refused(batch: Batch):
    with pytest.raises(ValueError, match="ratios need the log-probabilities of sampler and scorer"):
        gs.ratio_diagnostics(batch.with_fields(old_logprobs=None))
    with pytest.raises(ValueError, match="n_bins=0 must be at least 1"):
        gs.ratio_diagnostics(batch, n_bins=0)
