"""A limit on the time of a whole answer, where the timeout of an HTTP library limits each wait for bytes only."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

TOO_LATE = "the whole answer took longer than its limit"


def client_until(client: type[Any], seconds: float) -> Any:
    """Return an HTTP client whose answers end within a time, however steadily their bytes arrive.

    Args:
        client: ``openai.DefaultHttpxClient``, a client of httpx or of httpx2.
        seconds: from sending a request to the last byte of its answer; then the library's ``ReadTimeout`` is raised.
    """
    base = next(one for one in client.__mro__ if one.__name__ == "Client")
    httpx: Any = importlib.import_module(base.__module__.partition(".")[0])

    class UntilDeadline(httpx.SyncByteStream):
        def __init__(self, stream: Any, request: Any, end: float) -> None:
            self._stream, self._request, self._end = stream, request, end

        def __iter__(self) -> Iterator[bytes]:
            for part in self._stream:
                if time.monotonic() > self._end:
                    raise httpx.ReadTimeout(TOO_LATE, request=self._request)
                yield part

        def close(self) -> None:
            self._stream.close()

    class DeadlineTransport(httpx.HTTPTransport):
        def handle_request(self, request: Any) -> Any:
            end = time.monotonic() + seconds
            # The headers are read within this call, with a timeout for each byte: a thread waits for them.
            waiting = ThreadPoolExecutor(max_workers=1)
            headers = waiting.submit(super().handle_request, request)
            waiting.shutdown(wait=False)
            try:
                response = headers.result(timeout=seconds)
            except TimeoutError:
                self.close()  # the thread ends at its next byte
                raise httpx.ReadTimeout(TOO_LATE, request=request) from None
            response.stream = UntilDeadline(response.stream, request, end)
            return response

    return client(transport=DeadlineTransport())
