"""One quantity has one value and one interval, in whatever answer of a run it stands."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gradstats import estimators
from gradstats.analyses import registry
from gradstats.answers.answer import Answer, is_answer
from gradstats.config.experiment import Experiment
from gradstats.measurement.measurement import Measurement
from gradstats.rollouts.table import Rollouts
from gradstats.stats.variance import products
from gradstats.system.files import read_json

FIGURES = Path(__file__).parents[2] / "figures"
ESTIMATORS = [
    "reinforce", "rloo", "group_mean", "grpo", "token_mean(loo=True)", "recipe:dapo", "batch_mean(loo=True)",
    "asymmetric(delta=-0.1, loo=True)",
]  # fmt: skip
#: What of an estimator a column is, by question and name, where it is not its name.
ALIASES = {
    ("batch_size", "critical_batch"): "noise_to_signal",
    ("batch_size", "relative_prompts"): "matched_ratio",
    ("allocation", "relative_noise"): "matched_ratio",
    ("optimal_baselines", "ratio_to_learned"): "ratio",
}
OF_A_REFERENCE = {"ratio", "matched_ratio", "tokens_saved", "relative_progress"}
OF_A_BATCH = {"bias_share", "matched_bias_share", "alignment", "relative_progress"}
COMPONENTS = ("within_prompt", "between_prompt")
#: Committed runs of an earlier version, whose other intervals are as they were measured (figures/README.md).
EARLIER = {
    *("qwen_1_5b", "qwen_adam", "qwen_gsm8k", "qwen_mawps", "qwen_mawps_tokens", "smollm2"),
    *("embedded_resolved", "embedded_resolved_layers", "embedded_values", "embedded_zoo_stale"),
}
#: Columns by which the rows of one estimator differ, as bins do.
PARTS = ("block", "length_low", "length_high", "success_low", "success_high")


def quantities(answers: dict[str, Answer]) -> dict[tuple, dict[str, tuple[float, float, float]]]:
    """Return what the answers of a run say of each quantity: its key → the place → value, low, high."""
    found: dict[tuple, dict[str, tuple[float, float, float]]] = defaultdict(dict)
    for place, answer in answers.items():
        for one in (answer, *answer.further.values()):
            for key, interval in _of_one(one):
                found[key][place if one is answer else f"{place}/{one.question}"] = interval
    return found


def _scale(label: str, size: float) -> float | None:
    return estimators.get(label).expected_scale(int(size))


def _of_one(answer: Answer):
    frame, about = answer.frame, answer.about
    if answer.question == "profile":
        about = {"reference": "rloo", **about}
        frame = frame.loc[frame["quantity"].str.contains(" of ")]
        names = frame["quantity"].str.split(" of ", n=1, expand=True)
        ends = frame[["value", "low", "high"]].to_numpy(dtype=float)
        frame = pd.DataFrame(ends, columns=["matched_ratio", "matched_ratio_low", "matched_ratio_high"])
        frame = frame.assign(estimator=names[1].to_numpy())
    if "estimator" not in frame:
        return
    stems = [name[:-4] for name in frame if name.endswith("_low") and f"{name[:-4]}_high" in frame]
    run_size = about.get("group_size_of_run") or about.get("reference_size") or 8
    for _, of_part in frame.groupby([name for name in ("block", "group_size") if name in frame] or (lambda _: 0)):
        family = tuple(sorted(of_part["estimator"]))
        for row in of_part.to_dict("records"):
            size = float(row.get("group_size", run_size))
            part = tuple(row[name] for name in PARTS if name in row)
            for stem in set(stems) - set(PARTS) - {"length", "success"}:
                name = ALIASES.get((answer.question, stem), stem)
                interval = tuple(float(row.get(f"{stem}{end}", np.nan)) for end in ("", "_low", "_high"))
                if answer.question == "allocation" and name in COMPONENTS and _scale(row["estimator"], size) != 1.0:
                    continue  # at the scale of the target, which is not its own
                key = [name, row["estimator"], size, part, about.get("confidence_level"), about.get("metric")]
                key.append(about.get("max_grad_norm"))  # clipped gradients are others, as the notes say
                if name.removesuffix("_simultaneous") in OF_A_REFERENCE:
                    beside = (
                        about.get("best_learned") if stem.startswith("ratio_to_learned") else about.get("reference")
                    )
                    key += [str(beside), float(about["reference_size"]) if "reference_size" in about else size]
                if name in OF_A_BATCH:
                    key.append(float(row["prompts"]) if "prompts" in row else about.get("prompts_per_batch"))
                if name.endswith("_simultaneous"):
                    key.append(family)
                yield tuple(key), interval


def conflicts(answers: dict[str, Answer]) -> list[str]:
    """Return each pair of places that give one quantity two values or intervals."""
    pairs = []
    for key, places in quantities(answers).items():
        (first, one), *others = places.items()
        pairs += [
            f"{' '.join(map(str, key[:4]))}: {_written(one)} in {first}, {_written(other)} in {place}"
            for place, other in others
            if not np.allclose(one, other, rtol=1e-8, atol=1e-9, equal_nan=True)  # ends that are searched for
        ]
    return pairs


def _written(interval: tuple[float, float, float]) -> str:
    return "{:.6g} [{:.6g}, {:.6g}]".format(*interval)


def measured_run(signal: float, n_prompts: int = 40) -> Measurement:
    """A measurement of prompts of 8 completions, sketched by block, whose longer answers are less often correct."""
    rng = np.random.default_rng(1)
    n = 8 * n_prompts
    lengths = np.ceil(np.exp(rng.normal(2.5, 0.6, n))).astype(int)
    ease = 0.4 * rng.random(n_prompts)[np.arange(n) // 8]
    rewards = (rng.random(n) < 0.9 - 0.25 * np.log(lengths) + ease).astype(float)
    scores = rng.normal(size=(n, 2, 64)) * np.sqrt(lengths)[:, None, None] / np.sqrt([[[1.0], [3.0]]])
    scores[:, :, 0] += signal * (rewards - rewards.mean())[:, None]
    squares = (scores**2).sum(axis=2)
    rollouts = Rollouts.from_sequences(
        [[1]] * n,
        [[0] * length for length in lengths],
        rewards,
        [f"p{row // 8:02d}" for row in range(n)],
        metadata={"sampler": {"temperature": 1.0, "top_p": 1.0, "top_k": 0}},
    )
    return Measurement(
        rollouts,
        sq_norms_by_block=pd.DataFrame(squares, columns=["attention", "mlp"]),
        sketches=scores.sum(axis=1),
        logprobs=[np.full(length, np.log(0.125)) for length in lengths],
        entropy=[np.full(length, np.log(8.0)) for length in lengths],
        sum_pi_squared=[np.full(length, 0.125) for length in lengths],
        hidden_sq_norms=[np.ones(length) for length in lengths],
        metadata={"policy": {"temperature": 1.0}},
        sketches_by_block=scores,
    )


def asked_of(measured: Measurement, **variance) -> dict[str, Answer]:
    """Return the answers to all questions that a run with these settings can be asked."""
    experiment = Experiment.model_validate(
        {
            "name": "asked",
            "policy": {"name": "none"},
            "prompts": {"source": "none"},
            "variance": {"estimators": ESTIMATORS, **variance},
        }
    )
    asked = {
        "curve": {"estimator": "asymmetric(loo=True)", "values": "delta=-0.1:0:2"},
        "shift": {"estimator": "token_mean(loo=True)"},
    }
    found = {}
    for analysis in registry.all_analyses():
        if analysis.name == "plan" or analysis.unavailable_because(measured):
            continue
        result = analysis.answer_in_run(measured, experiment, asked.get(analysis.name, {}))
        if result is not None:
            found[analysis.name] = result[1]
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("signal", "few_scores", "settings"),
    [
        (3.0, True, {}),
        (3.0, False, {"seed": 3, "confidence_level": 0.8}),
        (0.0, True, {"group_size": 4, "reference": "grpo", "prompts_per_batch": 8}),
        (3.0, True, {"max_grad_norm": 5.0}),
    ],
    ids=["as usual", "another seed and level, large scores", "no signal, another size and reference", "clipped"],
)
def test_all_answers_of_a_run_state_one_number(signal, few_scores, settings, monkeypatch):
    if not few_scores:
        monkeypatch.setattr(products, "FEWEST_NUMBERS", 0)
    answers = asked_of(measured_run(signal), **settings)
    assert {"variance", "group_sizes", "batch_size", "allocation", "optimal_baselines", "profile"} <= set(answers)
    shared = [places for places in quantities(answers).values() if len(places) > 1]
    assert len(shared) > 70
    found = conflicts(answers)
    assert not found, "\n".join([f"{len(found)} pairs", *found])


@pytest.mark.parametrize("run", sorted({path.parent.name for path in FIGURES.glob("*/variance.json")}))
def test_all_answers_of_a_committed_run_state_one_number(run):
    states = [*(FIGURES / run).glob("*.json"), *(FIGURES / run / "tables").glob("*.json")]
    answers = [Answer.read(state.with_suffix("")) for state in states if is_answer(read_json(state))]
    found = conflicts({one.question if one.question != "curve" else one.about["curve"]: one for one in answers})
    if run in EARLIER:
        found = [pair for pair in found if pair.startswith("noise_to_signal")]
    assert not found, "\n".join([f"{len(found)} pairs", *found])


@pytest.mark.filterwarnings("ignore")
def test_a_pair_is_found_where_value_or_interval_differ():
    (one,) = (answer for name, answer in asked_of(measured_run(3.0)).items() if name == "variance")
    frame = one.frame.assign(cosine_high=one.frame["cosine_high"] - 1e-6)
    (first, *_) = conflicts({"variance": one, "again": Answer("variance", frame, one.about)})
    assert first.startswith("cosine reinforce 8.0")
    assert conflicts({"variance": one, "again": one}) == []
