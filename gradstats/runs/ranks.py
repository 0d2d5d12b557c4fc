"""The ranks of a model that is larger than one GPU, which ``torchrun`` starts: all of them do what the first decides.

The first rank alone reads what there is of a run, and writes. torchrun ends all ranks when one has ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

Value = TypeVar("Value")

# One rank may fit a value head, or wait for other processes, while the others wait for it.
_LONGEST_WAIT = timedelta(hours=24)
# Seconds in which torchrun ends the ranks when one has ended.
_LONGEST_END = 30.0


def n_ranks() -> int:
    """Return how many ranks hold the model together: 1 where torchrun did not start this process."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def is_first() -> bool:
    """Return whether this process is the first rank, or the only one."""
    return n_ranks() == 1 or os.environ["RANK"] == "0"


def agreed(decide: Callable[[], Value]) -> Value:
    """Return in all ranks what the first one finds."""
    if n_ranks() == 1:
        return decide()
    from torch import distributed

    found: list[Any] = [decide() if is_first() else None]
    distributed.broadcast_object_list(found, src=0)
    return found[0]


@contextmanager
def joined_ranks() -> Iterator[None]:
    """Let the ranks find each other, while the context is open."""
    if n_ranks() == 1:
        yield
        return
    import torch
    from torch import distributed

    on_gpus, number = torch.cuda.is_available(), int(os.environ["LOCAL_RANK"])
    if on_gpus and number < torch.cuda.device_count():
        torch.cuda.set_device(number)
    distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpus else "gloo", timeout=_LONGEST_WAIT)
    try:
        yield  # where an error ends this rank, the others wait for it in vain, and torchrun ends them
    except Exception as error:
        if " by peer" in str(error):  # another rank has ended, and has said why: torchrun ends this one
            time.sleep(_LONGEST_END)
        raise
    distributed.destroy_process_group()
