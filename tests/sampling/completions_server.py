"""A server of the completions API in the test process, with configurable responses."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any], int], tuple[int, Any]]


class CompletionsServer:
    """Address of the server, and every completion request that it has received."""

    def __init__(self, answer: Answer, models: tuple[str, ...], delay: float) -> None:
        self.requests: list[dict[str, Any]] = []
        self.most_at_once = 0
        self._under_way = 0
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.reply(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in models]})

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server._lock:
                    server.requests.append(request)
                    number = len(server.requests)
                    server._under_way += 1
                    server.most_at_once = max(server.most_at_once, server._under_way)
                try:
                    time.sleep(delay)
                    status, body = answer(request, number)
                finally:
                    with server._lock:
                        server._under_way -= 1
                self.reply(status, body)

            def reply(self, status: int, body: Any) -> None:
                data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:  # the client did not wait for it
                    pass

            def log_message(self, *words: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @contextmanager
    def running(self) -> Iterator[CompletionsServer]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()


def serving(answer: Answer, models: tuple[str, ...] = ("tiny",), delay: float = 0.0) -> Any:
    """A context in which a :class:`CompletionsServer` runs.

    Args:
        answer: from a request and its number, counted from 1, to the status and body of the answer.
        models: what it lists.
        delay: seconds that each answer takes.
    """
    return CompletionsServer(answer, models, delay).running()


def completion(text: str, finish_reason: str = "stop", usage: dict[str, int] | None = None, **choice: Any) -> Any:
    """A well-formed response."""
    entry = {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None, **choice}
    body = {"id": "1", "object": "text_completion", "created": 0, "model": "tiny", "choices": [entry]}
    return body | ({} if usage is None else {"usage": usage})
