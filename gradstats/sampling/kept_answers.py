"""Server responses that arrived before a batch failed, kept in a file so that they are not paid for twice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from gradstats.sampling.sampler import Completion, KeepsAnswers, Sampler
from gradstats.system.files import read_json, write_json


@contextmanager
def keeping_answers(sampler: Sampler, path: Path) -> Iterator[None]:
    """Give a sampler the answers kept from an earlier failure of the same batch, while the context is open.

    Args:
        sampler: any sampler; one that does not keep answers is left alone.
        path: the file of the batch, written when it fails and removed when it succeeds.

    Raises:
        ValueError: when the file is damaged.
    """
    if not isinstance(sampler, KeepsAnswers):
        yield
        return
    sampler.kept.clear()
    if path.exists():
        sampler.kept.update(_read(path))
    try:
        yield
    except BaseException:
        if sampler.kept:
            write_json(path, {"answers": {key: asdict(completion) for key, completion in sampler.kept.items()}})
        raise
    finally:
        sampler.kept.clear()
    path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Completion]:
    try:
        return {key: _completion(entry) for key, entry in read_json(path)["answers"].items()}
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} does not contain server responses: remove it; they will be requested again"
        ) from error


def _completion(entry: dict[str, object]) -> Completion:
    """Restore a completion; JSON has no NaN."""
    logprobs = entry["logprobs"]
    if isinstance(logprobs, list):
        entry = entry | {"logprobs": [math.nan if value is None else value for value in logprobs]}
    return Completion(**entry)  # pyright: ignore[reportArgumentType]
