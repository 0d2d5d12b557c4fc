"""A separate process for functions that may hang, exhaust memory, or depend on how this process was started.

Timeouts by signal exist in the main thread only and do not interrupt a computation that never returns to the
interpreter. A process can be killed from any thread, whatever it is doing, at the cost of starting another. It is
started with a fixed seed of string hashes, on which the order of sets depends.

Workers of ``pebble`` have neither an environment, as that seed needs, nor options of Python (``-P``) of their own;
``loky`` gives them an environment but no limit on the time of a call.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pickle
import subprocess
import sys
import threading
import traceback
from typing import Any

#: Seconds for one call by default; then the process is killed.
SECONDS = 30.0
_STARTING_SECONDS = 120.0


class IsolatedTimeoutError(TimeoutError):
    """A call took longer than its limit."""


class IsolatedError(RuntimeError):
    """A function raised, or its process died."""


class IsolatedProcess:
    """One process, started at the first call and again after each death."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = os.getpid()
        self._imported: set[str] = set()

    def call(self, function: str, *arguments: object, seconds: float = SECONDS) -> Any:
        """Call a function in the other process and return its value."""
        module = function.partition(":")[0]
        question = json.dumps({"call": function, "arguments": arguments})
        with self._lock:
            fresh = self._start(module)
            text, timed_out = self._exchange(question, seconds)
            if not text and not timed_out and not fresh:
                # It may have died of an earlier call: try this one in a new process.
                self.close()
                self._start(module)
                text, timed_out = self._exchange(question, seconds)
            if not text:
                self.close()
        if timed_out and not text:
            raise IsolatedTimeoutError(f"it did not end within {seconds:g} s and was stopped")
        if not text:
            raise IsolatedError("its process died (out of memory?)")
        answer = json.loads(text)
        if "raised" in answer:
            raise _exception(answer["raised"], answer["message"])
        return answer["value"]

    def close(self) -> None:
        """End the process; the next call starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        self._imported.clear()

    def _start(self, module: str) -> bool:
        """Start the process if there is none, and let it import a module; True when it was started now."""
        if self._owner != os.getpid():  # a forked child must not share its parent's pipes
            self._owner, self._process = os.getpid(), None
        fresh = self._process is None or self._process.poll() is not None
        if fresh:
            self.close()
            one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "gradstats.system.worker_main"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C must not reach it: the current call may finish
                env=os.environ | one_thread | {"PYTHONPATH": search_path(), "PYTHONHASHSEED": "0"},
            )
        if module not in self._imported:
            text, _ = self._exchange(json.dumps({"import": module}), _STARTING_SECONDS)
            answer = json.loads(text) if text else {"raised": "", "message": "it ended immediately"}
            if "raised" in answer:
                self.close()
                raise RuntimeError(f"the process that runs {module} does not start: {answer['message']}")
            self._imported.add(module)
        return fresh

    def _exchange(self, line: str, seconds: float) -> tuple[str, bool]:
        """Send one line and return the answer, or an empty text and whether time ran out."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        killed = threading.Event()

        def kill() -> None:
            killed.set()
            process.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            text = process.stdout.readline()
            return text if text.endswith("\n") else "", killed.is_set()
        except OSError:
            return "", killed.is_set()
        except BaseException:  # Ctrl-C: a late answer would be mistaken for that of the next call
            self.close()
            raise
        finally:
            timer.cancel()


def search_path() -> str:
    """Return the ``PYTHONPATH`` with which a child finds the modules that this process finds."""
    return os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))


def portable(error: BaseException) -> BaseException:
    """Return an error as another process can read it: itself, or its sentence where its constructor takes more."""
    error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
    try:
        again = pickle.loads(pickle.dumps(error))
        if type(again) is type(error) and str(again) == str(error):
            return error
    except Exception:  # of whatever the error holds
        pass
    kind = ValueError if isinstance(error, ValueError) else RuntimeError
    return kind(str(error) if kind is ValueError else f"{type(error).__name__}: {error}")


def _exception(name: str, message: str) -> Exception:
    """Return the exception of this package with that name and message; others become an :class:`IsolatedError`."""
    module, _, kind = name.partition(":")
    if module.startswith("gradstats."):
        return getattr(importlib.import_module(module), kind)(message)
    return IsolatedError(f"{kind}: {message}")


#: The worker of this process.
PROCESS = IsolatedProcess()
atexit.register(PROCESS.close)
