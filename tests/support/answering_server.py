"""A server on the loopback interface that gives the answers a test wants, and no others."""

from __future__ import annotations

import contextlib
import http.client
import struct
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SO_LINGER, SOL_SOCKET
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping
    from email.message import Message


@dataclass(frozen=True)
class Answer:
    """An answer to a request."""

    status: int
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    """Whether more is promised than comes before the connection ends."""
    lost: bool = False
    """Whether the connection is reset instead, as when a server is killed."""


def refusal(status: int, code: str = "SomeCode", said: str = "Some text.") -> Answer:
    """Return an error as stores give it."""
    content = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{said}</Message></Error>"
    return Answer(status, content.encode(), {"Content-Type": "application/xml"})


@dataclass(frozen=True)
class Asked:
    """A request."""

    method: str
    path: str
    """With the query."""
    headers: Message
    content: bytes


_OF_A_CONNECTION = {
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "server",
    "transfer-encoding",
}


def connected(upstream: str, asked: Asked) -> http.client.HTTPConnection:
    """Return a connection to a server to which the headers of a request were written."""
    connection = http.client.HTTPConnection(upstream, timeout=60)
    connection.putrequest(asked.method, asked.path, skip_host=True, skip_accept_encoding=True)
    for name, value in asked.headers.items():  # the same Host, which was signed
        if name.lower() != "connection":
            connection.putheader(name, value)
    return connection


def forwarded(upstream: str, asked: Asked) -> Answer:
    """Return what a server answers to a request."""
    with contextlib.closing(connected(upstream, asked)) as connection:
        connection.endheaders(asked.content or None)
        answer = connection.getresponse()
        content = answer.read()
        headers = {
            name: value
            for name, value in answer.getheaders()
            if name.lower() not in _OF_A_CONNECTION
        }
        if asked.method == "HEAD":
            headers["Content-Length"] = answer.getheader("Content-Length") or "0"
        return Answer(answer.status, content, headers)


@contextlib.contextmanager
def answering(
    answer: Callable[[Asked], Answer | None], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve in a thread while the context lasts; its URL. ``answer`` is called in other threads.

    The connection ends with no answer where that is None.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            given = answer(Asked(self.command, self.path, self.headers, content))
            if given is None:
                self.close_connection = True
                return
            if given.lost:
                self.close_connection = True
                # Closed so, it sends a reset.
                self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                return
            promised = len(given.content) + given.cut
            self.send_response(given.status)
            for name, value in ({"Content-Length": str(promised)} | dict(given.headers)).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(given.content)
                self.close_connection = given.cut

        do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
