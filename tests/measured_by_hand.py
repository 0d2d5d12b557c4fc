"""A measurement of random numbers, without a model, and what a run answers from one."""

import warnings

import numpy as np
import pandas as pd
from conftest import ragged_rollouts

from gradstats.analyses import registry
from gradstats.config.experiment import Experiment
from gradstats.measurement import Measurement, WeightedGradients


def measured_by_hand(n=5, seed=0, tokens=True, blocks=True) -> Measurement:
    """Random numbers in every field."""
    rng = np.random.default_rng(seed)
    rollouts = ragged_rollouts(n, seed)
    counts = [len(row) for row in rollouts.frame["completion_tokens"]]

    def ragged(*shape):
        return [rng.normal(size=(count, *shape)).astype(np.float32) for count in counts]

    def gradients():
        norms = pd.DataFrame(rng.uniform(1, 2, (n, 2)), columns=["layer 0", "layer 1"])
        sketches = rng.normal(size=(n, 8)).astype(np.float32)
        return norms, sketches, np.stack([sketches * 2, -sketches], axis=1) if blocks else None

    norms, sketches, by_block = gradients()
    positions = [np.arange(min(2, count)) for count in counts]
    scores = {
        "token_projections": ragged(3),
        "heavy_positions": positions,
        "heavy_sq_norms": [rng.uniform(1, 2, len(rows)) for rows in positions],
        "heavy_sketches": [rng.normal(size=(len(rows), 8)).astype(np.float32) for rows in positions],
    }
    return Measurement(
        rollouts,
        norms,
        sketches,
        *(ragged() for _ in range(4)),
        metadata={"sketch_dim": 8, "engine": "by hand"},
        weighted={"half": WeightedGradients(*gradients(), ragged())},
        sketches_by_block=by_block,
        proxies={"logit": rng.uniform(1, 2, n), "head": rng.uniform(1, 2, n)},
        **(scores if tokens else {}),
    )


def assert_identical(one: Measurement, other: Measurement) -> None:
    assert one.rollouts.frame.equals(other.rollouts.frame)
    pd.testing.assert_frame_equal(one.sq_norms_by_block, other.sq_norms_by_block)
    np.testing.assert_array_equal(one.sketches, other.sketches)
    _assert_same_blocks(one.sketches_by_block, other.sketches_by_block)
    for name, gradients in one.weighted.items():
        pd.testing.assert_frame_equal(gradients.sq_norms_by_block, other.weighted[name].sq_norms_by_block)
        np.testing.assert_array_equal(gradients.sketches, other.weighted[name].sketches)
        _assert_same_blocks(gradients.sketches_by_block, other.weighted[name].sketches_by_block)
        for row, same in zip(gradients.weights, other.weighted[name].weights, strict=True):
            np.testing.assert_array_equal(row, same)
    fields, others = (each.per_token_fields() | each.heavy_fields() for each in (one, other))
    assert list(fields) == list(others)
    for name, rows in fields.items():
        for row, same in zip(rows, others[name], strict=True):
            np.testing.assert_array_equal(row, same)
    assert set(one.proxies) == set(other.proxies)
    for name, values in one.proxies.items():
        np.testing.assert_array_equal(values, other.proxies[name])
    assert one.metadata == other.metadata


def _assert_same_blocks(one: np.ndarray | None, other: np.ndarray | None) -> None:
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        np.testing.assert_array_equal(one, other)


def breakdowns(measured, section):
    """The answers of a run besides those on α and on the estimators, and the tables beside them, by name."""
    experiment = Experiment.model_validate(
        {"name": "mine", "policy": {"name": "p"}, "prompts": {"source": "embedded"}}
        | {"variance": section.model_dump()}
    )
    found = {}
    for analysis in registry.all_analyses():
        if analysis.in_run is None or analysis.section:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answered = analysis.answer_in_run(measured, experiment, {})
        except ValueError:  # the data are too few
            continue
        if answered is not None and len(answered[1].frame):
            found |= {analysis.name: answered[1], **answered[1].further}
    return found
