"""Digests of the parts of a policy: its weights, its adapter, its tokenizer.

They are computed from the files, so that they do not depend on dtype or device.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

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
    """Refuse rollouts that another policy drew, as far as both have digests of the same part.

    Args:
        recorded: the ``policy`` in the metadata of the rollouts; those of earlier versions have no digests.
        digests: those of the policy that is loaded now.
        what: what was drawn, such as "the rollouts".
        remedy: what to do, after a colon.

    Raises:
        PolicyMismatchError: naming the part that differs.
    """
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
