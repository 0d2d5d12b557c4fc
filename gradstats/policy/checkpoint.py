"""Where a policy's weights and tokenizer are, what is refused about them, and adapters on top."""

from __future__ import annotations

import importlib.resources
import json
import warnings
from pathlib import Path
from typing import Any

from gradstats.system.hub import commit_of, hub_problem

EMBEDDED = "embedded"

_SAFE = ("*.safetensors",)
_PICKLED = ("*.bin", "*.pt", "*.pth")
# Vocabularies are padded to round numbers; more than this many ids without a token are not padding.
_PADDING = 2048
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_PICKLED_ADAPTER = "adapter_model.bin"


def locate(name: str) -> tuple[str, dict[str, Any]]:
    """What to hand to from_pretrained, after looking for local paths first.

    The hub client answers a missing folder with a sentence about repository names, so it is never asked.

    Raises:
        FileNotFoundError: when a local folder or file does not exist, or is no saved model.
    """
    if name == EMBEDDED:
        return str(importlib.resources.files("gradstats") / "data" / "embedded_policy"), {}
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise FileNotFoundError(f"the GGUF file {name} does not exist")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise FileNotFoundError(f"the model folder {name} holds no config.json: is it a saved transformers model?")
        return str(path), {}
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise FileNotFoundError(f"the model folder {name} does not exist")
    return name, {}


def is_on_hub(name: str) -> bool:
    """Whether a policy's weights come from a repository on the hub; those of its base where it is an adapter."""
    source, _ = locate(adapter_base(name) if is_adapter(name) else name)
    return not Path(source).is_dir()


def dequantised() -> dict[str, Any]:
    """Options of from_pretrained that turn a GGUF file's weights into ordinary ones.

    Raises:
        ImportError: when what transformers needs to read GGUF is not installed.
    """
    try:
        import accelerate  # noqa: F401  (transformers needs both to read GGUF)
        import gguf  # noqa: F401
        from transformers import GgufConfig
    except ImportError as error:
        raise ImportError("reading a GGUF file needs gguf and accelerate: pip install 'gradstats[gguf]'") from error
    return {"quantization_config": GgufConfig(dequantize=True)}


def refuse_pickled(name: str, folder: Path) -> None:
    """Refuse a folder whose weights are pickled only: reading a pickle may run code that it holds.

    Raises:
        ValueError: naming the files.
    """
    pickled = sorted(path.name for pattern in _PICKLED for path in folder.glob(pattern))
    if pickled and not any(path for pattern in _SAFE for path in folder.glob(pattern)):
        raise ValueError(
            f"the weights of {name} are pickled ({pickled[0]}), and a pickle may run code when it is read: convert "
            "them to safetensors, or pass allow_pickle=True if you trust where they come from"
        )


def check_vocabulary(name: str, tokenizer: Any, model: Any) -> None:
    """Refuse a tokenizer that cannot be the model's.

    Raises:
        ValueError: when it has ids that the model has no embedding for, or knows less than half of the model's ids.
    """
    n_tokens = max(tokenizer.get_vocab().values(), default=-1) + 1
    n_rows = model.get_input_embeddings().weight.shape[0]
    if n_tokens > n_rows or 2 * n_tokens < n_rows:
        raise ValueError(
            f"the tokenizer of {name} does not belong to its model: it has {n_tokens} tokens and the model embeds "
            f"{n_rows}; put the model's own tokenizer files into its folder"
        )
    if n_rows - n_tokens > _PADDING:
        warnings.warn(
            f"the model {name} embeds {n_rows} tokens and its tokenizer knows only {n_tokens}: is it the model's own?",
            UserWarning,
            stacklevel=3,
        )


def is_adapter(name: str) -> bool:
    """Whether a local folder holds a peft adapter and no whole model."""
    folder = Path(name).expanduser()
    return (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file()


def adapter_base(name: str) -> str:
    """The base model that an adapter folder names.

    Raises:
        ValueError: when it names none.
    """
    config = json.loads((Path(name).expanduser() / "adapter_config.json").read_text(encoding="utf-8"))
    base = config.get("base_model_name_or_path")
    if not base:
        raise ValueError(f"the adapter {name} names no base model: pass the base as policy and adapter={name!r}")
    return base


def adapter_folder(adapter: str, allow_pickle: bool) -> Path:
    """The local folder of an adapter, fetched from the hub where it is ``owner/name`` or ``owner/name@revision``.

    Raises:
        FileNotFoundError: when a local folder does not exist or holds no adapter.
        ConnectionError: when the hub cannot be reached.
        ValueError: when its weights are pickled and that is not allowed.
    """
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
        raise FileNotFoundError(f"the adapter {adapter} is no folder with an adapter_config.json: save it with peft")
    if not allow_pickle:
        refuse_pickled(f"the adapter {adapter}", folder)
    return folder


def load_adapter(model: Any, adapter: str, folder: Path) -> None:
    """Put a peft adapter on a model: its parameters are trainable from then on, and the base's are not.

    Raises:
        ImportError: when peft is not installed.
        ValueError: when the adapter does not fit the model.
    """
    try:
        import peft  # noqa: F401  (transformers needs it for adapters)
    except ImportError as error:
        raise ImportError(f"the adapter {adapter} needs peft: pip install 'gradstats[peft]'") from error
    try:
        found = model.load_adapter(str(folder), is_trainable=True)
    except (ValueError, RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"the adapter {adapter} does not fit the model {type(model).__name__}: {reason}") from error
    stray = sorted(found.missing_keys | found.unexpected_keys | set(found.mismatched_keys))
    if stray:
        raise ValueError(
            f"the adapter {adapter} does not fit the model {type(model).__name__}: {len(stray)} of its parameters are "
            f"missing, left over or of another shape ({stray[0]})"
        )


def load_error(name: str, source: str, error: Exception) -> Exception:
    """What to raise where transformers could not load: one sentence with the remedy."""
    reason = " ".join(str(error).split())
    if "trust_remote_code" in reason:
        return ValueError(
            f"the policy {name} brings model code of its own: read it, then pass trust_remote_code=True to run it"
        )
    if Path(source).is_dir():
        return OSError(f"the model folder {name} cannot be loaded: {reason}")
    if "safetensors" in reason and isinstance(error, OSError):
        return ValueError(
            f"the policy {name} has no safetensors on the hub, and pickled weights may run code when they are read: "
            f"pass allow_pickle=True if you trust where they come from ({reason})"
        )
    return unreachable(name, reason) if isinstance(error, OSError) else error


def unreachable(name: str, reason: str, what: str = "policy") -> ConnectionError:
    """The error for something that is neither here nor to be had from the hub."""
    repository = name.partition("@")[0]
    return ConnectionError(
        f"the {what} {name!r} is neither a local folder nor to be had from the Hugging Face hub from here ({reason}): "
        f"download it where there is a connection (hf download {repository} --local-dir "
        f"models/{repository.rpartition('/')[2]}) and pass that folder instead"
    )
