"""The published α setting from end to end, with a small random model instead of the 1.5 B model."""

import dataclasses
import json

import pandas as pd
import pytest
import torch
import yaml
from command_line import run as command
from conftest import tiny_config
from small_runs import sampled_and_measured
from transformers import AddedToken, AutoModelForCausalLM, GenerationConfig, Qwen2Tokenizer

import gradstats
from gradstats.config.experiment import load_experiment, shipped_experiments
from gradstats.rollouts.table import read_rollouts
from gradstats.runs.analysis import analyse
from gradstats.runs.directory import RunDirectory

VARIANTS = {
    "alpha_r1_distill_model_defaults": {"sampling.temperature": 0.6, "sampling.top_p": 0.95},
    "alpha_r1_distill_scored_at_0_6": {"sampling.temperature": 0.6, "policy.temperature": 0.6},
    "alpha_r1_distill_8_rollouts": {"sampling.group_size": 8},
}

# The shape of the model's own template: what follows the user's message is opened for the answer.
TEMPLATE = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(is_tool=false, system_prompt='') %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}"
    "{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}"
    "{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}"
    "{{'<｜User｜>' + message['content']}}{%- endif %}"
    "{%- if message['role'] == 'assistant' %}{% set content = message['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor -%}"
    "{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\\n'}}{% endif %}"
)


@pytest.fixture(scope="module")
def downloads(tmp_path_factory):
    """The result of the two ``hf download`` commands: a folder with a model and one with the data set."""
    root = tmp_path_factory.mktemp("r1")
    special = ["<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]
    alphabet = [*special, "<think>", "</think>", *(chr(code) for code in range(33, 127)), "Ġ", "Ċ"]
    tokenizer = Qwen2Tokenizer(
        vocab={token: number for number, token in enumerate(alphabet)},
        merges=[],
        unk_token=None,
        bos_token=special[1],
        eos_token=special[0],
        pad_token=special[0],
        additional_special_tokens=special[2:],
    )
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=False) for name in ("<think>", "</think>")])
    tokenizer.chat_template = TEMPLATE
    config = tiny_config("qwen2")
    config.update({"vocab_size": 128, "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 0})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    model.generation_config = GenerationConfig(do_sample=True, temperature=0.6, top_p=0.95, eos_token_id=0)
    model.save_pretrained(root / "models" / "DeepSeek-R1-Distill-Qwen-1.5B")
    tokenizer.save_pretrained(root / "models" / "DeepSeek-R1-Distill-Qwen-1.5B")
    rows = [(f"A farm has {n} cows and {n} hens. How many?", f"It has {n} + {n} = {2 * n}.") for n in range(40)]
    rows[5] = (rows[5][0], "Nobody knows.")
    data = root / "data" / "orca-math-word-problems-200k" / "data"
    data.mkdir(parents=True)
    pd.DataFrame(rows, columns=["question", "answer"]).to_parquet(data / "train-00000-of-00001.parquet")
    return root


LOCAL = ("policy.name=models/DeepSeek-R1-Distill-Qwen-1.5B", "prompts.source=data/orca-math-word-problems-200k")


def test_without_a_hub_one_sentence_says_what_to_download_and_where_to_put_it(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for words in (("run", "alpha_r1_distill"), ("run", "alpha_r1_distill", "--dry-run")):
        code, _, err = command(monkeypatch, capsys, *words)
        assert code == 1
        assert len(err.strip().splitlines()) == 1
        assert "`hf download deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B --local-dir models/DeepSeek-R1-" in err
        assert (
            "`hf download microsoft/orca-math-word-problems-200k --repo-type dataset --local-dir "
            "data/orca-math-word-problems-200k`" in err
        )
        assert f"--set {' '.join(LOCAL)}" in err
    pinned = ("--set", "policy.revision=v1", "prompts.settings.revision=v2")
    _, _, err = command(monkeypatch, capsys, "run", "alpha_r1_distill", *pinned)
    assert "DeepSeek-R1-Distill-Qwen-1.5B --revision v1 --local-dir" in err
    assert "--repo-type dataset --revision v2 --local-dir" in err


def test_the_whole_path_from_what_was_downloaded(monkeypatch, capsys, downloads):
    monkeypatch.chdir(downloads)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    small = ("sampling.max_new_tokens=24", "measurement.sketch_dim=256", "figures.formats=[svg]")
    code, out, err = command(monkeypatch, capsys, "run", "alpha_r1_distill", "--set", *LOCAL, *small, "--no-progress")
    assert code == 0, err
    assert "30 completions of 30 prompts" in " ".join(out.split())
    assert "  α  " in out
    run = downloads / "runs" / "alpha_r1_distill"
    rollouts = read_rollouts(run / "rollouts")
    for row in rollouts.frame.itertuples():
        # <think> and the line feed after it are prompt.
        assert row.prompt_tokens[:2] == [1, 2]
        assert row.prompt_tokens[-3:] == [3, 4, 101]
        assert len(row.completion_tokens) <= 24
    assert "5" not in set(rollouts.prompt_id)
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["policy"]["architecture"] == "Qwen2ForCausalLM"
    assert manifest["policy"]["revision"] is None
    assert manifest["prompts"] == {"source": "data/orca-math-word-problems-200k", "revision": None}
    assert manifest["generation_config_not_followed"] == {"temperature": 0.6, "top_p": 0.95}
    assert manifest["reward"] == "math"
    assert (run / "figures" / "length_scaling.svg").exists()
    # Extended to two rollouts a problem by the override alone; the first ones stay.
    first = rollouts.frame.set_index(["prompt_id", "sample_id"])["completion_tokens"]
    more = ("sampling.group_size=2",)
    code, out, err = command(
        monkeypatch, capsys, "run", "alpha_r1_distill", "--set", *LOCAL, *small, *more, "--no-progress"
    )
    assert code == 0, err
    assert "30 prompts × 2 completions" in out
    grown = read_rollouts(run / "rollouts").frame.set_index(["prompt_id", "sample_id"])["completion_tokens"]
    assert grown.loc[first.index].tolist() == first.tolist()


@pytest.mark.parametrize(("name", "changed"), VARIANTS.items())
def test_the_variants_differ_in_what_they_are_named_for(name, changed):
    published, variant = (load_experiment(each).settled_settings() for each in ("alpha_r1_distill", name))
    assert {key: value for key, value in variant.items() if value != published[key]} == changed
    # Every sampler setting is written out, none left to a default that may change.
    stated = yaml.safe_load(shipped_experiments()[name].read_text())["sampling"]
    assert {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_new_tokens"} <= stated.keys()


def test_what_the_hubs_names_stand_for_is_resolved_once_and_recorded(monkeypatch, capsys, downloads, tmp_path):
    """A reachable hub that serves the local folders; its branches move after the first request."""
    import datasets

    commits = iter("abcd")
    load_model, load_data, asked = gradstats.policy.policy.load_policy, datasets.load_dataset, []

    def load_policy(name, *, revision, **settings):
        asked.append((name, revision))
        loaded = load_model(downloads / "models" / name.rpartition("/")[2], **settings)
        return dataclasses.replace(loaded, name=name, revision=revision)

    def load_dataset(name, config, *, split, revision):
        asked.append((name, revision))
        return load_data(str(downloads / "data" / name.rpartition("/")[2]), config, split=split)

    monkeypatch.setattr("gradstats.sampling.revisions.hub_problem", lambda *_arguments: None)
    monkeypatch.setattr("gradstats.prompts.load.hub_problem", lambda *_arguments: None)
    monkeypatch.setattr("gradstats.sampling.revisions.commit_of", lambda *_arguments: 40 * next(commits))
    monkeypatch.setattr("gradstats.policy.policy.load_policy", load_policy)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    small = ("sampling.max_new_tokens=5", "measurement.sketch_dim=64")
    for n in (2, 3):
        experiment = load_experiment("alpha_r1_distill", [f"prompts.n={n}", *small])
        sampled_and_measured(experiment, tmp_path / "run")
    assert asked == 2 * [(experiment.prompts.source, 40 * "b"), *2 * [(experiment.policy.name, 40 * "a")]]
    run = RunDirectory.open(tmp_path / "run", experiment)
    analyse(run)
    manifest = run.read_manifest()
    assert manifest["policy"]["revision"] == 40 * "a"
    assert manifest["prompts"] == {"source": experiment.prompts.source, "revision": 40 * "b"}
