"""An answer that arrives byte by byte ends within the limit."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from gradstats.sampling.sampler import client_until

openai = pytest.importorskip("openai")


HEADERS = b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n"


def drip(listening: socket.socket, pause: float, dripping_headers: bool) -> None:
    """Answer one request with a body of 200 bytes, one at a time, or with the headers one byte at a time."""
    connection, _ = listening.accept()
    connection.recv(65536)
    try:
        at_once, one_by_one = (b"", HEADERS + 200 * b"x") if dripping_headers else (HEADERS, 200 * b"x")
        connection.sendall(at_once)
        for byte in one_by_one:
            connection.sendall(bytes([byte]))
            time.sleep(pause)
    except OSError:  # the client has left
        pass
    finally:
        connection.close()


@pytest.mark.parametrize("dripping_headers", [False, True])
@pytest.mark.parametrize(("pause", "late"), [(0.2, True), (0.0, False)])
def test_a_dripping_answer_is_given_up(pause, late, dripping_headers):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=drip, args=(listening, pause, dripping_headers), daemon=True).start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        # Each wait for bytes is far below the timeout of the library.
        with client_until(openai.DefaultHttpxClient, 1.0 if late else 60.0) as client:
            start = time.monotonic()
            if late:
                with pytest.raises(Exception, match="the whole answer took longer"):
                    client.get(address)
                assert time.monotonic() - start < 7.0  # the headers alone take 8
            else:
                assert len(client.get(address).content) == 200
