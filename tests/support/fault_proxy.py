"""A proxy on the loopback interface that breaks chosen requests to an object store.

Or all above a rate, as a store does that is asked for one prefix too often.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tests.support.answering_server import Answer, answering, connected, forwarded, refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.answering_server import Asked
    from tests.support.store_server import StoreServer

REFUSALS = {
    "409": "OperationAborted",
    "412": "PreconditionFailed",
    "429": "TooManyRequests",
    "500": "InternalError",
    "503": "SlowDown",
}
FAULTS = ("lost", "doubled", "cut", "silent", *REFUSALS)
"""A request is carried out and its answer lost; carried out twice; cut, or its answer, half way;
never answered, and not carried out; or refused, and not carried out."""

PREFIX = r"map_outputs/.."
"""What divides the requests of a shuffle that has a limit: S3 splits a prefix by how it goes on,
after minutes of load, and here it has done so."""


class FaultProxy:
    """A proxy that runs; it breaks nothing until it is told to."""

    def __init__(self, server: StoreServer) -> None:
        self.options: dict[str, str] = {}
        """Those of the store, by way of the proxy."""
        self.broken: list[str] = []
        """The requests that were broken, or were above the rate."""
        self._upstream = urlsplit(server.url).netloc
        self._fault = ""
        self._pattern = re.compile("")
        self._left = 0
        self._rates: dict[bool, int] = {}
        self._asked: Counter[tuple[str, bool, int]] = Counter()
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def break_next(self, fault: str, pattern: str, *, times: int = 1) -> None:
        """Break the next requests in whose method and path, with the query, a pattern is found.

        A fault is one of ``FAULTS``, or any other status of an answer.
        """
        self._fault, self._pattern, self._left = fault, re.compile(pattern), times

    def limit(self, puts: int, gets: int) -> None:
        """Refuse requests by 503 SlowDown above so many a second and prefix.

        All that changes something is a put, all else a get, also a listing.
        """
        self._rates = {True: puts, False: gets}

    def _is_too_fast(self, asked: Asked) -> bool:
        request = unquote(asked.path)
        prefix = re.search(PREFIX, request)
        is_put = asked.method not in ("GET", "HEAD")
        with self._lock:
            key = (prefix[0] if prefix else "", is_put, int(time.monotonic()))
            self._asked[key] += 1
            if self._asked[key] <= self._rates.get(is_put, self._asked[key]):
                return False
            self.broken.append(f"{asked.method} {request}")
            return True

    def _is_broken(self, asked: Asked) -> bool:
        request = f"{asked.method} {unquote(asked.path)}"
        with self._lock:
            if not self._left or not self._pattern.search(request):
                return False
            self._left -= 1
            self.broken.append(request)
            return True

    def _answer(self, asked: Asked) -> Answer | None:
        if self._is_too_fast(asked):
            return refusal(503, REFUSALS["503"])
        if not self._is_broken(asked):
            return forwarded(self._upstream, asked)
        if self._fault.isdigit():
            return refusal(int(self._fault), REFUSALS.get(self._fault, "Refused"))
        if self._fault == "silent":
            self._is_over.wait()
            return None
        if self._fault == "cut" and asked.content:
            _send_half(self._upstream, asked)
            return None
        given = forwarded(self._upstream, asked)
        if self._fault == "doubled":
            return forwarded(self._upstream, asked)
        if self._fault == "cut":
            headers = dict(given.headers) | {"Content-Length": str(len(given.content))}
            return Answer(given.status, given.content[: len(given.content) // 2], headers, cut=True)
        return None


@contextlib.contextmanager
def proxy_to(server: StoreServer) -> Iterator[FaultProxy]:
    """Run a proxy while the context lasts."""
    proxy = FaultProxy(server)
    with answering(proxy._answer) as url:
        here = urlsplit(url).netloc
        proxy.options |= {
            name: value.replace(proxy._upstream, here) for name, value in server.options.items()
        }
        try:
            yield proxy
        finally:
            proxy._is_over.set()


def _send_half(upstream: str, asked: Asked) -> None:
    with contextlib.closing(connected(upstream, asked)) as connection:
        connection.endheaders(asked.content[: len(asked.content) // 2])
