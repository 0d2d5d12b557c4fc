"""The worker process of :mod:`gradstats.system.worker`: calls arrive on standard input, one per line."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any

MEMORY_BYTES = 4 * 1024**3
_LONGEST_MESSAGE = 600


def serve() -> None:
    """Answer calls until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    _limit_memory()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that a function's output is not mistaken for an answer
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a question: the value of a call, or what it raised."""
    try:
        if "import" in question:
            importlib.import_module(question["import"])
            return {"value": None}
        module, _, function = question["call"].partition(":")
        return {"value": getattr(importlib.import_module(module), function)(*question["arguments"])}
    except BaseException as error:  # sys.exit in a user's function ends the call, not the process
        kind = type(error)
        return {"raised": f"{kind.__module__}:{kind.__name__}", "message": str(error)[:_LONGEST_MESSAGE]}


def _limit_memory() -> None:
    """Limit memory, so that a function that builds ever larger numbers fails alone, before the machine runs out."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if most == resource.RLIM_INFINITY else min(MEMORY_BYTES, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))


if __name__ == "__main__":
    serve()
