"""Finding a policy's files: missing folders, pickled weights, other tokenizers, adapters."""

import json
import shutil
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import ragged_rollouts, tiny_model, tiny_tokenizer
from safetensors.torch import load_file, save_file

from gradstats.gradients import measure
from gradstats.policy.checkpoint import (
    EMBEDDED_FOLDER,
    PolicyMismatchError,
    check_vocabulary,
    checkpoint_names,
    known_as,
    refuse_other_policy,
    tokenizer_digest,
    weights_digest,
)
from gradstats.policy.policy import load_policy
from gradstats.rollouts.table import Rollouts


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        *((one, FileNotFoundError, "the model folder .* does not exist") for one in ("./absent", "/absent/folder")),
        *((one, FileNotFoundError, "the model folder .* does not exist") for one in ("~/absent", "some/nested/folder")),
        (".", FileNotFoundError, r"holds no config\.json"),
        ("absent.gguf", FileNotFoundError, r"the GGUF file absent\.gguf does not exist"),
        ("nobody/nothing", ConnectionError, "neither a local folder nor .*hf download nobody/nothing --local-dir"),
    ],
)
def test_a_policy_that_is_not_there_is_named_with_the_remedy(name, error, message, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        load_policy(name)


@pytest.mark.parametrize("content", [b"", b"GGUF" + bytes(40), b"\x00\xff" * 500])
def test_a_damaged_gguf_file_is_said_to_be_damaged(tmp_path, content):
    pytest.importorskip("gguf")
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(OSError, match=r"the GGUF file .*model\.gguf cannot be loaded; a file may be damaged: "):
        load_policy(tmp_path / "model.gguf")


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"\xff" * 64 + data[64:]])
def test_damaged_weights_and_adapters_are_said_to_be_damaged(folder, adapter_folder, damage):
    adapter = adapter_folder[0]
    for weights in (folder / "model.safetensors", adapter / "adapter_model.safetensors"):
        weights.write_bytes(damage(weights.read_bytes()))
    with pytest.raises(OSError, match="the model folder .*copy cannot be loaded; a file may be damaged: "):
        load_policy(folder)
    with pytest.raises(ValueError, match=r"the adapter .* does not fit the model .*, or is damaged: "):
        load_policy(adapter)


def test_a_model_is_known_by_what_it_is_loaded_by_and_a_folder_without_weights_is_named(policy_folder, tmp_path):
    assert known_as(load_policy("embedded", revision="step-1000", progress=False).model) == "embedded"
    assert known_as(load_policy(policy_folder).model) == str(policy_folder)
    assert known_as(tiny_model("qwen2")) == "Qwen2ForCausalLM"
    folder = copied(policy_folder, tmp_path / "empty", ["model.safetensors"])
    with pytest.raises(OSError, match="the model folder .* cannot be loaded"):
        load_policy(folder)


def copied(folder, target, without=()):
    shutil.copytree(folder, target)
    for name in without:
        (target / name).unlink()
    return target


def test_pickled_weights_are_refused_unless_allowed(policy_folder, tmp_path):
    folder = copied(policy_folder, tmp_path / "pickled", ["model.safetensors"])
    state = load_policy(policy_folder).model.state_dict()
    torch.save(state, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"are pickled \(pytorch_model\.bin\).*or give --set policy.allow_pickle=true"):
        load_policy(folder)
    loaded = load_policy(folder, allow_pickle=True).model.state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    # With both there, the safetensors are taken and the pickle is never opened.
    shutil.copy(f"{policy_folder}/model.safetensors", folder)
    (folder / "pytorch_model.bin").write_bytes(b"not a pickle")
    assert load_policy(folder).name == str(folder)


def test_model_code_is_run_on_request_only(policy_folder, tmp_path):
    folder = copied(policy_folder, tmp_path / "own_code")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise RuntimeError('it ran')")
    with pytest.raises(ValueError, match="its own model code: read it, then give --set policy.trust_remote_code=true"):
        load_policy(folder)
    with pytest.raises(RuntimeError, match="it ran"):
        load_policy(folder, trust_remote_code=True)


def test_a_tokenizer_of_another_vocabulary_is_refused(policy_folder, tmp_path, unchecked):
    larger = copied(policy_folder, tmp_path / "larger")
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([f"more{number}" for number in range(9)])
    tokenizer.save_pretrained(larger)
    with pytest.raises(ValueError, match="does not belong to its model: it has 50 tokens and the model embeds 41"):
        load_policy(larger)
    # transformers makes an empty tokenizer where a folder holds none.
    without = copied(policy_folder, tmp_path / "without", ["tokenizer.json", "tokenizer_config.json"])
    with pytest.raises(ValueError, match="does not belong to its model: it has 1 tokens"):
        load_policy(without)
    padded, much = (SimpleNamespace(get_input_embeddings=lambda n=n: torch.nn.Embedding(n, 2)) for n in (64, 9000))
    check_vocabulary("padded", tiny_tokenizer(), padded)
    with pytest.warns(UserWarning, match="embeds 9000 tokens and its tokenizer knows only 6000"):
        check_vocabulary("padded", SimpleNamespace(get_vocab=lambda: {"a": 5999}), much)


@pytest.fixture
def folder(policy_folder, tmp_path) -> Path:
    return copied(policy_folder, tmp_path / "copy")


@pytest.fixture
def adapter_folder(policy_folder, tmp_path):
    """A LoRA adapter with random weights, as peft saves it."""
    peft = pytest.importorskip("peft")
    base = load_policy(policy_folder).model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
        generator = torch.Generator().manual_seed(0)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
        model.peft_config["default"].base_model_name_or_path = policy_folder
        model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter", model.eval()


def test_an_adapter_is_put_on_its_base_and_alone_is_trainable(policy_folder, adapter_folder):
    folder, expected = adapter_folder
    tokens = torch.tensor([[5, 6, 7, 8]])
    by_name, beside = load_policy(folder), load_policy(policy_folder, adapter=folder)
    for policy in (by_name, beside):
        torch.testing.assert_close(policy.model(tokens).logits, expected(tokens).logits)
        trainable = [name for name, parameter in policy.model.named_parameters() if parameter.requires_grad]
        assert len(trainable) == 8
        assert all("lora_" in name for name in trainable)
    difference = load_policy(policy_folder).model(tokens).logits - expected(tokens).logits
    assert difference.abs().max() > 0.01
    assert by_name.describe()["adapter"] == str(folder)
    assert by_name.describe()["base"] == policy_folder
    assert (beside.name, beside.adapter, beside.base) == (policy_folder, str(folder), None)
    assert load_policy(folder, dtype="float64").dtype == torch.float64


def test_adapters_that_cannot_be_used_are_named(policy_folder, adapter_folder, tmp_path):
    folder, _ = adapter_folder
    with pytest.raises(FileNotFoundError, match=r"the adapter .*absent is not a folder with an adapter_config\.json"):
        load_policy(policy_folder, adapter=tmp_path / "absent")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"target_modules": ["query"]}))
    with pytest.raises(ValueError, match="the adapter .* does not fit the model Qwen2ForCausalLM, .*query"):
        load_policy(policy_folder, adapter=folder)
    (folder / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": None}))
    with pytest.raises(ValueError, match="names no base model: name the base as policy, and --set policy.adapter="):
        load_policy(folder)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ValueError, match=r"the weights of the adapter .* are pickled \(adapter_model\.bin\)"):
        load_policy(folder)
    with pytest.raises(ConnectionError, match="the adapter 'nobody/lora@v1' is neither .*hf download nobody/lora "):
        load_policy(policy_folder, adapter="nobody/lora@v1")


@pytest.mark.parametrize("named", ["pytorch_model.bin", "../elsewhere.safetensors"])
def test_an_index_that_leads_to_a_pickle_or_out_of_its_folder_is_refused(tmp_path, policy_folder, named):
    folder = copied(policy_folder, tmp_path / "sharded")
    index = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": named}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=f"names {named}, which is not a file in safetensors beside it"):
        load_policy(folder)
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(ValueError, match="the index .* is damaged"):
        load_policy(folder)


def change(folder: Path, alter) -> None:
    weights = load_file(folder / "model.safetensors")
    alter(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_one_changed_weight_changes_the_digest_and_the_dtype_does_not(policy_folder, folder, tmp_path):
    before = load_policy(policy_folder).digests
    assert load_policy(folder).digests == before
    assert load_policy(folder, dtype="bfloat16").describe()["digests"] == before
    change(folder, lambda weights: weights["model.norm.weight"][0].add_(1e-3))
    after = load_policy(folder).digests
    assert after["weights"] != before["weights"]
    assert after["tokenizer"] == before["tokenizer"]
    assert weights_digest(tmp_path) is None  # without weights


def test_the_tokenizer_counts_with_its_template():
    assert tokenizer_digest(tiny_tokenizer()) == tokenizer_digest(tiny_tokenizer())
    assert tokenizer_digest(tiny_tokenizer()) != tokenizer_digest(tiny_tokenizer(chat_template=False))


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda w: w.pop("model.layers.0.mlp.up_proj.weight"), r"lack model\.layers\.0\.mlp\.up_proj\.weight \(1 of"),
        (lambda w: w.update({"model.layers.7.x.weight": torch.zeros(3)}), r"hold model\.layers\.7\.x\.weight \(1 of"),
        (
            lambda w: w.update({"model.layers.0.mlp.up_proj.weight": torch.zeros(3, 3)}),
            r"hold another shape of model\.layers\.0\.mlp\.up_proj\.weight \(1 of",
        ),
    ],
)
def test_weights_of_another_architecture_are_refused(folder, alter, message):
    change(folder, alter)
    with pytest.raises(ValueError, match=message):
        load_policy(folder)


@pytest.mark.parametrize(
    ("recorded", "now", "part"),
    [
        ({"weights": "a", "tokenizer": "t"}, {"weights": "b", "tokenizer": "t"}, "weights"),
        ({"weights": "a", "tokenizer": "t"}, {"weights": "a", "tokenizer": "u"}, "tokenizer"),
        ({"weights": "a", "tokenizer": "t"}, {"weights": "a", "tokenizer": "t", "adapter": "x"}, "adapter"),
        ({"weights": "a", "adapter": "x"}, {"weights": "a"}, "adapter"),
        (None, {"weights": "a"}, None),  # what has no digests is not compared
        ({"weights": "a"}, {}, None),
    ],
)
def test_rollouts_of_another_policy_are_refused(recorded, now, part):
    message = f"the rollouts were drawn from a policy that differs in its {part} .*: restore"
    with pytest.raises(PolicyMismatchError, match=message) if part else nullcontext():
        refuse_other_policy({"digests": recorded}, now, "the rollouts", "restore")


def test_measuring_with_other_weights_needs_permission(folder):
    rollouts = Rollouts(ragged_rollouts(4).frame, {"policy": load_policy(folder).describe()})
    measure(load_policy(folder, dtype="float64"), rollouts, sketch_dim=16, progress=False)
    change(folder, lambda weights: weights["model.norm.weight"][0].add_(1e-3))
    changed = load_policy(folder)
    with pytest.raises(PolicyMismatchError, match="differs in its weights .* --allow-policy-mismatch"):
        measure(changed, rollouts, sketch_dim=16, progress=False)
    assert len(measure(changed, rollouts, sketch_dim=16, allow_policy_mismatch=True, progress=False)) == 4


def test_checkpoints_of_the_embedded_policy_are_those_of_their_files():
    digests = {load_policy("embedded").digests["weights"]}
    for name in checkpoint_names():
        policy = load_policy("embedded", revision=name)
        assert policy.revision == name
        stored = load_file(EMBEDDED_FOLDER / "checkpoints" / f"{name}.safetensors")
        assert all(torch.equal(tensor, stored[key].float()) for key, tensor in policy.model.named_parameters())
        digests.add(policy.digests["weights"])
    assert len(digests) == len(checkpoint_names()) + 1 >= 4
    known = rf"revision is \"?'main'\"?, but .* has the revisions {checkpoint_names()[0]}, "
    with pytest.raises(ValueError, match=known):
        load_policy("embedded", revision="main")
