"""Completions of a run measured again with another ε and other second moments: on embedded, against autograd."""

import os
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from small_runs import sampled_and_measured

import gradstats as gs
from gradstats.config.experiment import Experiment
from gradstats.system.files import read_json

PARAMETERS = r"\.layers\."


@pytest.fixture(scope="module")
def moments(tmp_path_factory):
    """Second moments unlike those of the run, on file."""
    draws = np.random.default_rng(0)
    model = gs.load_policy("embedded").model
    values = {
        name: torch.as_tensor(draws.gamma(0.5, 1e-8, tuple(value.shape)), dtype=torch.float32)
        for name, value in model.named_parameters()
    }
    path = tmp_path_factory.mktemp("moments") / "second_moments.safetensors"
    gs.AdamMetric(values, source="drawn at random").save(path)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 5 prompts with 4 completions each in Adam's metric, in layers alone, beside one in the Euclidean."""
    path = tmp_path_factory.mktemp("runs") / "adam"
    metric = {"metric": "adam(eps=1e-5)", "second_moments": "embedded", "params": PARAMETERS, "sketch_dim": 64}
    data = {
        "policy": {"name": "embedded"},
        "prompts": {"source": "embedded", "n": 5},
        "sampling": {"group_size": 4, "max_new_tokens": 160},
    }
    for name, measurement in (("adam", metric), ("euclidean", {"sketch_dim": 64})):
        chosen = data | {"name": name, "measurement": measurement}
        if name == "euclidean":  # of the same completions
            shutil.copytree(path / "rollouts", path.with_name(name) / "rollouts", copy_function=os.link)
        sampled_and_measured(Experiment.model_validate(chosen), path.with_name(name))
    return path


def slope(logs, column, length="length"):
    return np.polyfit(logs[length], logs[column], 1)[0] / 2


def test_norms_are_those_of_autograd_under_each_metric(script, run, moments, tmp_path, capsys):
    out = tmp_path / "out"
    script.main(run, "adam(eps=1e-8)", moments, run.with_name("euclidean"), prompts=3, out=out)
    points = pd.read_csv(out / "points.csv", dtype={"prompt_id": str})
    assert (len(points), points["prompt_id"].nunique()) == (36, 3)
    policy = gs.load_policy("embedded")
    frame = gs.read_rollouts(run).frame.astype({"prompt_id": str}).set_index(["prompt_id", "sample_id"])
    chosen = {name: value for name, value in policy.model.named_parameters() if ".layers." in name}
    own, other = (gs.AdamMetric.read(file, policy.model).second_moments for file in ("embedded", moments))
    metrics = {"of the run": (own, 1e-5), "other metric": (own, 1e-8), "other second moments": (other, 1e-5)}
    points = points.set_index(["prompt_id", "sample_id", "metric"])
    for row in points.xs("of the run", level="metric").iloc[[0, -1]].itertuples():
        completion = frame.loc[row.Index]
        tokens = torch.as_tensor([*completion.prompt_tokens, *completion.completion_tokens])
        first = len(completion.prompt_tokens)
        logprobs = policy.model(tokens[None]).logits[0, first - 1 : -1].log_softmax(dim=-1)
        score = logprobs.gather(1, tokens[first:, None]).sum()
        gradients = dict(zip(chosen, torch.autograd.grad(score, list(chosen.values())), strict=True))
        for which, (second, eps) in metrics.items():
            scaled = [gradients[name].double() / (second[name].double().sqrt() + eps) for name in chosen]
            expected = sum(float(one.square().sum()) for one in scaled)
            assert_allclose(points.loc[(*row.Index, which), "sq_norm"], expected, rtol=1e-3)

    logs = np.log(points[["length", "sq_norm"]])
    slopes = {which: slope(logs.xs(which, level="metric"), "sq_norm") for which in metrics}
    said = capsys.readouterr().out.splitlines()[-2:]
    for line, which in zip(said, ("other metric", "other second moments"), strict=True):
        assert line.startswith(f"{which}: ")
        pair = [float(value) for value in re.findall(r"alpha=([\d.]+)", line)]
        assert pair == pytest.approx([slopes[which], slopes["of the run"]])
    blocks = pd.read_csv(out / "blocks.csv").set_index(["metric", "block"])
    for which, expected in slopes.items():
        assert blocks.loc[(which, "total"), "alpha"] == pytest.approx(expected)
        assert blocks.loc[which, "share_of_sq_norm"].drop("total").sum() == pytest.approx(1.0)

    adam, plain = (gs.read_measurement(one) for one in (run, run.with_name("euclidean")))
    of_layers = plain.sq_norms_by_block.filter(like="layers.")
    measured = {"adam": adam.sq_norms, "plain": of_layers.sum(axis=1)}
    measured |= {"adam_layer": adam.sq_norms_by_block["layers.1"], "plain_layer": of_layers["layers.1"]}
    logs = np.log(pd.DataFrame({"length": adam.lengths} | {name: np.asarray(one) for name, one in measured.items()}))
    inside = logs - logs.groupby(np.asarray(adam.rollouts.prompt_id)).transform("mean")
    differences = pd.read_csv(out / "differences.csv").set_index("block")
    assert list(differences.index) == [*adam.sq_norms_by_block, "total", "total, within prompts"]
    for block, (of, ending) in {
        "total": (logs, ""),
        "layers.1": (logs, "_layer"),
        "total, within prompts": (inside, ""),
    }.items():
        expected = slope(of, f"adam{ending}") - slope(of, f"plain{ending}")
        assert differences.loc[block, "difference"] == pytest.approx(expected), block
    assert (differences["difference_simultaneous_low"] < differences["difference_low"]).all()
    assert (differences["difference_low"] < differences["difference"]).all()

    table = pd.read_csv(out / "moments.csv").set_index("part").loc["layers"]
    own, other = (torch.cat([one[name].flatten().double() for name in chosen]).numpy() for one in (own, other))
    some = (own > 0) & (other > 0)
    assert table["coordinates"] == len(own)
    assert table["below_1e-05"] == pytest.approx(np.mean(np.sqrt(own) < 1e-5))
    assert 0 < table["other_below_1e-05"] == pytest.approx(np.mean(np.sqrt(other) < 1e-5))
    assert table["correlation"] == pytest.approx(np.corrcoef(np.log(own[some]), np.log(other[some]))[0, 1])
    manifest = read_json(out / "manifest.json")
    assert (manifest["run"], manifest["n_prompts"]) == ("adam", 3)
    assert [one["eps"] for one in manifest["metrics"].values()] == [1e-5, 1e-8, 1e-5]
    assert [one["source"] == "drawn at random" for one in manifest["metrics"].values()] == [False, False, True]


def test_too_many_prompts_and_other_completions_are_refused(script, run, moments, tmp_path):
    plain = run.with_name("euclidean")
    with pytest.raises(SystemExit, match="--prompts is 6: .* has 5, and an interval takes at least 2"):
        script.main(run, second_moments=moments, euclidean=plain, prompts=6, out=tmp_path / "out")
    with pytest.raises(SystemExit, match="euclidean is to be measured in Adam's metric, and --euclidean .*adam in the"):
        script.main(plain, second_moments=moments, euclidean=run, out=tmp_path / "out")
    measured = gs.read_measurement(plain)
    embeddings = measured.sq_norms_by_block.filter(like="embed")
    others = {
        "holds other completions than": measured.select(np.arange(8)),
        "did not measure layers.0, .* as": replace(measured, sq_norms_by_block=embeddings),
    }
    for number, (message, other) in enumerate(others.items()):
        folder = tmp_path / str(number)
        other.save(folder)
        with pytest.raises(SystemExit, match=f"--euclidean .* {message} .*adam"):
            script.main(run, second_moments=moments, euclidean=folder, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
