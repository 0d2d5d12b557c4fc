"""A run directory that contains the answers of a finished run but not its shards."""

from dataclasses import replace

import numpy as np
import pandas as pd

from gradstats.analyses import registry
from gradstats.answers.answer import Answer, answer_paths
from gradstats.config.experiment import Experiment
from gradstats.rollouts.table import Rollouts
from gradstats.stats import fit_length_scaling
from gradstats.system.files import write_json

ESTIMATORS = ("rloo", "reinforce", "length_weighted(alpha=0.8, loo=True)", "<b>mine</b>")


def save_run(folder, name="saved <run>", seed=0, **settings):
    """A run directory that contains the numbers of a finished run but not its shards."""
    rng = np.random.default_rng(seed)
    (folder / "tables").mkdir(parents=True)
    experiment = {"name": name, "policy": {"name": "models/p"}, "prompts": {"source": "embedded"}} | settings
    (folder / "experiment.yaml").write_text(Experiment.model_validate(experiment).to_yaml())
    points = pd.DataFrame({"prompt_id": np.repeat([f"p{i}" for i in range(15)], 4), "sample_id": np.tile(range(4), 15)})
    points["length"] = np.ceil(np.exp(rng.normal(4, 0.7, 60))).astype(int)
    points["sq_norm"] = points["length"] ** 1.6 * np.exp(rng.normal(0, 0.4, 60))
    points["reward"] = rng.integers(0, 2, 60).astype(float)
    points["truncated"] = False
    fit = fit_length_scaling(lengths=points["length"], sq_norms=points["sq_norm"], groups=points["prompt_id"])
    of_fit = {"method": "ols", "interval": "cluster", "confidence_level": 0.95, "metric": "euclidean", "n_prompts": 15}
    row = fit.to_frame()
    about = {**row.iloc[0].to_dict(), "metric": "euclidean", "sentences": ["Not on-policy: <script>.", "Careful."]}
    further = {"length_scaling": Answer("length_scaling", points, of_fit)}
    save_answer(folder, Answer("alpha", row, about, further=further))
    frame = pd.DataFrame({"estimator": ESTIMATORS, "group_size": 4})
    values = {
        "trace_cov": [300.0, 390.0, 280.0, 310.0],
        "ratio": [1.0, 1.3, 0.93, 1.03],
        "matched_ratio": [1.0, 1.3, 0.93, np.nan],
    }
    for column in (
        "trace_cov",
        "signal_sq",
        "noise_to_signal",
        "ratio",
        "matched_ratio",
        "cosine",
        "bias_share",
        "matched_bias_share",
        "kept_share",
    ):
        frame[column] = values.get(column, [0.5] * 4)
        frame[f"{column}_low"], frame[f"{column}_high"] = 0.8 * frame[column], 1.3 * frame[column]
    frame["in_best_set"] = [False, False, True, None]
    about = {"reference": "rloo", "confidence_level": 0.95, "n_prompts": 15, "prompts_per_batch": 128}
    about |= {"target": "on_policy", "metric": "euclidean"}
    of_one_size = {"n_groups": 15, "n_completions": 60}
    save_answer(folder, Answer("variance", frame, about | of_one_size, notes=("a note",)))
    sizes = pd.concat([frame.assign(group_size=size) for size in (2, 4)], ignore_index=True)
    for part in ("within_prompt", "between_prompt"):
        for end in ("", "_low", "_high"):
            sizes[f"{part}{end}"] = sizes[f"trace_cov{end}"] / sizes["group_size"]
    equal = pd.DataFrame({"estimator": ESTIMATORS[:2], "group_size": 4, "equivalent_group_size": [4.0, 3.1]})
    equal = equal.assign(equivalent_group_size_low=[4.0, 2.8], equivalent_group_size_high=[4.0, 3.5])
    equal = Answer("equivalent_group_size", equal, about)
    further = {"equivalent_group_size": equal}
    save_answer(folder, Answer("group_sizes", sizes, about | {"group_size_of_run": 4}, further=further))
    bins = frame[:2].assign(estimator="rloo", length_low=[10, 61], length_high=[60, 300], n_completions=30, scale=1.0)
    rates = pd.concat(
        [frame[:2].assign(success_low=at / 2, success_high=(at + 1) / 2, n_prompts=7, scale=1.0) for at in (0, 1)]
    )
    for share in ("share_of_gradient", "share_of_variance"):
        for end, of_half in (("", 0.5), ("_low", 0.3), ("_high", 0.7)):
            bins[f"{share}{end}"] = rates[f"{share}{end}"] = of_half
    save_answer(folder, Answer("length_bins", bins, about))
    rates = rates.sort_values("estimator", kind="stable")
    save_answer(folder, Answer("success_bins", rates, about | {"group_size": 2}))
    noise = [frame[:2].assign(group_size=n, n_prompts=60.0 / n, extrapolated=n > 4) for n in (2, 4, 8)]
    noise = pd.concat(noise, ignore_index=True)
    for end in ("", "_low", "_high"):
        noise[f"relative_noise{end}"] = noise[f"ratio{end}"]
    save_answer(folder, Answer("allocation", noise, about | {"tokens": 3000.0, "reference_size": 4}))
    write_json(folder / "manifest.json", {"experiment": name, "versions": {"numpy": "2"}, "remarks": ["a remark"]})
    return folder


def place_of(folder, question):
    """Where a run has the answer to a question."""
    return folder / question if question in registry.OF_EVERY_RUN else folder / "tables" / question


def save_answer(folder, answer, **about):
    """Write an answer where a run has it, in place of an earlier one, about other things where some are given."""
    answer = replace(answer, about={**answer.about, **about})
    return answer.save(place_of(folder, answer.question), further_in=folder / "tables")


def saved_answer(folder, question):
    """An answer of a run."""
    return Answer.read(place_of(folder, question))


def change_frame(folder, question, change):
    """Write an answer of a run again with other numbers."""
    answer = saved_answer(folder, question)
    save_answer(folder, replace(answer, frame=change(answer.frame)))


def forget(folder, *questions):
    """Remove answers of a run."""
    for question in questions:
        for path in answer_paths(place_of(folder, question)):
            path.unlink()


#: What a model may answer: markup, the end of a script, control characters, a mark that turns all text after it.
HOSTILE = "</div></script><img src=x onerror=alert(1)> \x1b[31mred\x00 \u202etext"


def save_rollouts(folder, shards=1, **columns):
    """Add to a saved run the completions of its points, with texts; some columns may be given."""
    points = pd.read_csv(folder / "tables" / "length_scaling.csv")
    prompts, samples = points["prompt_id"].to_numpy(), points["sample_id"].to_numpy()
    given = {
        "prompt_text": [f"What is <{prompt}>?" for prompt in prompts],
        "completion_text": [f"It is {prompt} {sample}." for prompt, sample in zip(prompts, samples, strict=True)],
        "finish_reason": ["stop"] * len(points),
    } | columns
    rollouts = Rollouts.from_sequences(
        [[1]] * len(points),
        [[2] * length for length in points["length"]],
        points["reward"].to_numpy(),
        prompts,
        sample_ids=samples,
        **{name: values for name, values in given.items() if values is not None},
    )
    (folder / "rollouts").mkdir(exist_ok=True)
    for shard in range(shards):
        # Every shard has completions of each prompt, as in a run that grew.
        rows = np.flatnonzero(samples % shards == shard)
        rollouts.select(rows).to_parquet(folder / "rollouts" / f"shard-{shard:05}.parquet")
    return folder


def saved_sweep(folder, temperatures=(0.6, 1.0), missing=()):
    """The folder of a sweep over temperatures, with the numbers of its finished cells."""
    cells = [{"folder": f"temperature={value}", "settings": {"sampling.temperature": value}} for value in temperatures]
    for at, cell in enumerate(cells):
        if cell["folder"] not in missing:
            sampling = {"temperature": cell["settings"]["sampling.temperature"]}
            save_run(folder / cell["folder"], name=f"cell {at}", seed=at, sampling=sampling)
    folder.mkdir(exist_ok=True)
    write_json(folder / "sweep.json", {"name": "saved", "varied": ["sampling.temperature"], "cells": cells})
    return folder
