"""Server responses that arrived before a batch failed, kept in a file so that they are not paid for twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from gradstats.sampling.sampler import Completion, KeepsAnswers, Sampler
from gradstats.system.files import read_json, write_json

Drawn = TypeVar("Drawn")


@dataclass(frozen=True)
class Unfinished:
    """A batch that failed.

    Attributes:
        answers: those that had arrived.
        error: why it failed.
    """

    answers: dict[str, Completion]
    error: BaseException


def draw_with_answers(
    sampler: Sampler, answers: Mapping[str, Completion], draw: Callable[[], Drawn]
) -> Drawn | Unfinished:
    """Draw a batch with the answers kept from an earlier failure of it.

    Args:
        sampler: any sampler; one that does not keep answers is left alone.
        answers: the answers, by request.
        draw: draws the batch.

    Returns:
        The batch; where drawing it failed and answers had arrived before, these.
    """
    if not isinstance(sampler, KeepsAnswers):
        return draw()
    sampler.kept.clear()
    sampler.kept.update(answers)
    try:
        return draw()
    except BaseException as error:
        if not sampler.kept:
            raise
        return Unfinished(dict(sampler.kept), error)
    finally:
        sampler.kept.clear()


def draw_keeping_answers(sampler: Sampler, path: Path, draw: Callable[[], Drawn]) -> Drawn:
    """Draw a batch with the answers in a file, which is written when that fails and removed when it succeeds.

    Args:
        sampler: any sampler.
        path: the file of the batch, see :func:`answers_path`.
        draw: draws the batch.

    Raises:
        ValueError: when the file is damaged.
    """
    return keep_answers(draw_with_answers(sampler, read_answers(path), draw), path)


def answers_path(folder: Path, batch: int) -> Path:
    """Return where the answers of a batch are kept."""
    return folder / f".answers-{batch:05d}.json"


def read_answers(path: Path) -> dict[str, Completion]:
    """Return the answers that a failed batch left, by request; none where there is no file.

    Raises:
        ValueError: when the file is damaged.
    """
    if not path.exists():
        return {}
    try:
        return {key: _completion(entry) for key, entry in read_json(path)["answers"].items()}
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} does not contain server responses: remove it; they will be requested again"
        ) from error


def keep_answers(drawn: Drawn | Unfinished, path: Path) -> Drawn:
    """Write the answers of an unfinished batch and raise its error; remove those of a finished one and return it."""
    if isinstance(drawn, Unfinished):
        write_json(path, {"answers": {key: asdict(completion) for key, completion in drawn.answers.items()}})
        raise drawn.error
    path.unlink(missing_ok=True)
    return drawn


def _completion(entry: dict[str, object]) -> Completion:
    """Restore a completion; JSON has no NaN."""
    logprobs = entry["logprobs"]
    if isinstance(logprobs, list):
        entry = entry | {"logprobs": [math.nan if value is None else value for value in logprobs]}
    return Completion(**entry)  # pyright: ignore[reportArgumentType]
