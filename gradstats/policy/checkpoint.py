"""Checkpoints: where weights lie, what they may hold, their digests, and the policy that ships with the package.

Digests are computed from the files, so that they do not depend on dtype or device.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import warnings
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase

from gradstats.config.options import how_to_set
from gradstats.policy.model import CausalModel, vocabulary_size
from gradstats.system.environment import commit_of, hub_problem
from gradstats.system.files import refuse_missing_model

if TYPE_CHECKING:
    from transformers import GgufConfig


class ParametersError(ValueError):
    """The parameters of a checkpoint are not those of its architecture."""


EMBEDDED = "embedded"
EMBEDDED_FOLDER = Path(str(importlib.resources.files("gradstats"))) / "data" / "embedded_policy"

_SAFE = ("*.safetensors",)
_PICKLED = ("*.bin", "*.pt", "*.pth")
_PICKLES = f"give {how_to_set('policy.allow_pickle', True)}"
# Vocabularies are padded to round numbers, by no more than this many ids.
_PADDING = 2048
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_PICKLED_ADAPTER = "adapter_model.bin"
# What transformers reports of parameters that are not those of the architecture, in words, and why they are refused.
_OTHER_PARAMETERS = {
    "missing_keys": ("lack", "its values would be random"),
    "mismatched_keys": ("hold another shape of", "its values would be random"),
    "unexpected_keys": ("hold", "which the architecture does not have"),
}


def known_as(model: CausalModel) -> str:
    """Return the name that a loaded model can be loaded by again; that of its class where it was not loaded."""
    source = getattr(model.config, "_name_or_path", "")
    return EMBEDDED if source == str(EMBEDDED_FOLDER) else source or type(model).__name__


def locate(name: str) -> tuple[str, dict[str, str]]:
    """Return the source and the options to pass to ``from_pretrained``; local paths come first."""
    if name == EMBEDDED:
        return str(EMBEDDED_FOLDER), {}
    refuse_missing_model(name)
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise FileNotFoundError(f"the model folder {name} holds no config.json: is it a saved transformers model?")
        return str(path), {}
    return name, {}


def is_on_hub(name: str) -> bool:
    """Return whether a policy's weights (for an adapter, those of its base) come from a repository on the hub."""
    source, _ = locate(adapter_base(name) if is_adapter(name) else name)
    return not Path(source).is_dir()


def dequantised() -> dict[str, GgufConfig]:
    """Return the options of ``from_pretrained`` that dequantise the weights of a GGUF file."""
    try:
        import accelerate  # noqa: F401  (transformers needs both to read GGUF)
        import gguf  # noqa: F401
        from transformers import GgufConfig
    except ImportError as error:
        raise ImportError("reading a GGUF file needs gguf and accelerate: pip install 'gradstats[gguf]'") from error
    return {"quantization_config": GgufConfig(dequantize=True)}


def refuse_pickled(name: str, folder: Path) -> None:
    """Refuse a folder that has only pickled weights: reading a pickle may run code."""
    for index in sorted(folder.glob("*.index.json")):  # names the files that are read in its place
        try:
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"the index {index} of {name} is damaged ({error}): download it again") from error
        outside = sorted(
            str(file) for file in named if Path(str(file)).name != file or not str(file).endswith(".safetensors")
        )
        if outside and index.name.startswith("model.safetensors"):
            raise ValueError(
                f"the index {index.name} of {name} names {outside[0]}, which is not a file in safetensors beside it: a "
                f"pickle may run code when it is read; {_PICKLES} if you trust its origin"
            )
    pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
    if pickled and not any(path for pattern in _SAFE for path in folder.glob(pattern)):
        raise ValueError(
            f"the weights of {name} are pickled ({pickled[0]}), and a pickle may run code when it is read: convert "
            f"them to safetensors, or {_PICKLES} if you trust their origin"
        )


def weights_file(source: str, options: Mapping[str, str], checkpoint: str | None) -> Path:
    """Return where the weights of a local policy are: a folder, a GGUF file, or a checkpoint of the embedded policy."""
    if checkpoint is not None:
        return Path(source) / "checkpoints" / f"{checkpoint}.safetensors"
    return Path(source) / options["gguf_file"] if "gguf_file" in options else Path(source)


def refuse_other_parameters(name: str, report: Mapping[str, Collection[str | tuple[Any, ...]]]) -> None:
    """Refuse weights that do not match the architecture: missing parameters would have random values."""
    for kind, (words, remedy) in _OTHER_PARAMETERS.items():
        keys = sorted(key if isinstance(key, str) else key[0] for key in report.get(kind, ()))
        if keys:
            raise ParametersError(
                f"the weights of {name} {words} {keys[0]} ({len(keys)} of the parameters in all), {remedy}: load a "
                "checkpoint of the architecture that its config.json names"
            )


def check_vocabulary(name: str, tokenizer: PreTrainedTokenizerBase, model: CausalModel) -> None:
    """Refuse a tokenizer that cannot belong to the model."""
    n_tokens = max(tokenizer.get_vocab().values(), default=-1) + 1
    n_rows = vocabulary_size(model)
    if n_tokens > n_rows or 2 * n_tokens < n_rows:
        raise ValueError(
            f"the tokenizer of {name} does not belong to its model: it has {n_tokens} tokens and the model embeds "
            f"{n_rows}; put the tokenizer files of the model into its folder"
        )
    if n_rows - n_tokens > _PADDING:
        warnings.warn(
            f"the model {name} embeds {n_rows} tokens and its tokenizer knows only {n_tokens}: "
            "check that it is the model's",
            UserWarning,
            stacklevel=3,
        )


def is_adapter(name: str) -> bool:
    """Return whether a local folder holds a peft adapter and not a whole model."""
    folder = Path(name).expanduser()
    return (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file()


def adapter_base(name: str) -> str:
    """Return the base model that an adapter folder names."""
    path = Path(name).expanduser() / "adapter_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as JSON ({error}): save the adapter again") from error
    base = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not base:
        raise ValueError(
            f"the adapter {name} names no base model: name the base as policy, and {how_to_set('policy.adapter', name)}"
        )
    return base


def adapter_folder(adapter: str, allow_pickle: bool) -> Path:
    """Return the local folder of an adapter; ``owner/name`` and ``owner/name@revision`` are fetched from the hub."""
    folder = Path(adapter).expanduser()
    repo_id, _, revision = adapter.partition("@")
    if not folder.is_dir() and repo_id.count("/") == 1 and not adapter.startswith((".", "/", "~")):
        if reason := hub_problem(repo_id, "adapter_config.json", revision=revision or None):
            raise unreachable(adapter, reason, "adapter")
        from huggingface_hub import snapshot_download

        commit = commit_of(repo_id, "adapter_config.json", revision=revision or None)
        wanted = [*_ADAPTER_FILES, "*token*", "vocab*", "merges*", "chat_template*", *[_PICKLED_ADAPTER] * allow_pickle]
        folder = Path(snapshot_download(repo_id, revision=commit or revision or None, allow_patterns=wanted))
    if not (folder / "adapter_config.json").is_file():
        raise FileNotFoundError(f"the adapter {adapter} is not a folder with an adapter_config.json: save it with peft")
    if not allow_pickle:
        refuse_pickled(f"the adapter {adapter}", folder)
    return folder


def load_adapter(model: CausalModel, adapter: str, folder: Path) -> None:
    """Load a peft adapter into a model; afterwards its parameters are trainable and those of the base are not."""
    try:
        import peft  # noqa: F401  (transformers needs it for adapters)
    except ImportError as error:
        raise ImportError(f"the adapter {adapter} needs peft: pip install 'gradstats[peft]'") from error
    try:
        report = model.load_adapter(str(folder), is_trainable=True)
    except Exception as error:  # peft and safetensors raise errors of any type for a damaged file
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"the adapter {adapter} does not fit the model {type(model).__name__}, or is damaged: {reason}"
        ) from error
    stray = sorted(report.missing_keys | report.unexpected_keys | set(report.mismatched_keys))
    if stray:
        raise ValueError(
            f"the adapter {adapter} does not fit the model {type(model).__name__}: {len(stray)} of its parameters are "
            f"missing, unexpected or of another shape ({stray[0]})"
        )


def load_error(name: str, source: str, error: Exception) -> Exception:
    """Return the error to raise when transformers could not load a policy: one sentence with the remedy."""
    if isinstance(error, ParametersError):
        return error
    reason = " ".join(str(error).split())
    if "trust_remote_code" in reason:
        return ValueError(
            f"the policy {name} contains its own model code: read it, then give "
            f"{how_to_set('policy.trust_remote_code', True)} to run it"
        )
    if Path(source).is_dir():
        what = "GGUF file" if name.endswith(".gguf") else "model folder"
        kind = "" if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__}: "
        return OSError(f"the {what} {name} cannot be loaded; a file may be damaged: {kind}{reason}")
    if "safetensors" in reason and isinstance(error, OSError):
        return ValueError(
            f"the policy {name} has no safetensors on the hub, and pickled weights may run code when they are read: "
            f"{_PICKLES} if you trust their origin ({reason})"
        )
    return unreachable(name, reason) if isinstance(error, OSError) else error


def unreachable(name: str, reason: str, what: str = "policy") -> ConnectionError:
    """Return the error for something that is neither a local folder nor available from the hub."""
    repository = name.partition("@")[0]
    return ConnectionError(
        f"the {what} {name!r} is neither a local folder nor available from the Hugging Face hub ({reason}): "
        f"download it where there is a connection (hf download {repository} --local-dir "
        f"models/{repository.rpartition('/')[2]}) and pass that folder instead"
    )


def checkpoint_names() -> list[str]:
    """Return the revisions of the embedded policy: checkpoints of its training run, in order, as ``"step-0500"``."""
    return sorted(path.stem for path in (EMBEDDED_FOLDER / "checkpoints").glob("step-*.safetensors"))


def refuse_unknown_checkpoint(revision: str, setting: str = "revision") -> None:
    """Refuse a revision that the embedded policy does not have, as the value of a setting."""
    if revision not in checkpoint_names():
        raise ValueError(
            f'{setting} is {revision!r}, but the policy "embedded" has the revisions {", ".join(checkpoint_names())}: '
            "choose one of them, or leave it out for the final weights"
        )


def load_checkpoint(model: CausalModel, revision: str) -> None:
    """Put the weights of a checkpoint of the training run into the embedded policy's model.

    Checkpoints are stored in bfloat16 and the final weights in float32: checkpoints carry rounding errors of about
    0.4 % per weight.
    """
    refuse_unknown_checkpoint(revision)
    stored = load_file(EMBEDDED_FOLDER / "checkpoints" / f"{revision}.safetensors")
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(stored[name])


_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
_OTHER_FILES = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "second_moments.safetensors")


class PolicyMismatchError(ValueError):
    """Rollouts were drawn from a policy other than the one that is loaded."""


def weights_digest(source: Path) -> str | None:
    """Digest a file of weights, or the weights in a folder; None where it holds none.

    A file that has not changed is read once in a process: reading costs one to two seconds per gigabyte.
    """
    files = [source] if source.is_file() else _weights_in(source)
    if not files:
        return None
    digests = [_digest(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest a tokenizer's vocabulary, its rules where the library states them, and its chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = None if backend is None else backend.to_str()
    parts = [sorted(tokenizer.get_vocab().items()), rules, tokenizer.chat_template]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def refuse_other_policy(recorded: Mapping[str, Any] | None, digests: Mapping[str, str], what: str, remedy: str) -> None:
    """Refuse rollouts that another policy drew, as far as both have digests of the same part."""
    before = (recorded or {}).get("digests") or {}
    differing = [part for part in before if before[part] != digests.get(part, before[part])]
    differing += [part for part in digests if before and part == "adapter" and part not in before]
    differing += [part for part in before if digests and part == "adapter" and part not in digests]
    if differing:
        part = differing[0]
        then, now = before.get(part, "none")[:12], digests.get(part, "none")[:12]
        raise PolicyMismatchError(
            f"{what} were drawn from a policy that differs in its {part} (SHA-256 {then}, now {now}): {remedy}"
        )


def _weights_in(folder: Path) -> list[Path]:
    """List the files of the first format that the folder has, in the order of their names."""
    for pattern in _WEIGHTS:
        files = sorted(path for path in folder.glob(pattern) if path.name not in _OTHER_FILES)
        if files:
            return files
    return []


@lru_cache(maxsize=256)
def _digest(path: str, _changed: int, _size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
