"""Servers of object stores on the loopback interface: what they have in common.

Each runs in a process of its own, once for all tests of a session, and is ended with it. One that
others make may not be installed: its tests are skipped then, but fail where ``CI`` is set, since
nobody would notice what is never run.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PROJECT = Path(__file__).parents[2]
INSTALLED = PROJECT / ".cache" / "stores"
"""Where ``make store-servers`` puts the servers that others make."""

_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)
_PR_SET_PDEATHSIG = 1

NO_METADATA = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1",
    "AZURE_MSI_ENDPOINT": "http://127.0.0.1:1",
    "GCE_METADATA_HOST": "127.0.0.1:1",
    "GCE_METADATA_IP": "127.0.0.1:1",
}
"""Variables that lead obstore to a port where nobody listens when it looks for credentials at the
metadata service of a cloud's machine: no test asks an address outside of this one."""


@dataclass(frozen=True)
class Request:
    """A request that a server answered."""

    method: str
    path: str
    """With the query."""
    began: float
    ended: float
    """Both in seconds, by one clock."""


def round_trips(requests: Sequence[Request]) -> int:
    """Return how many requests at least came one after another: each after an answer."""
    found, last = 0, -1.0
    for request in sorted(requests, key=lambda one: one.ended):
        if request.began >= last:
            found, last = found + 1, request.ended
    return found


def most_at_once(requests: Sequence[Request]) -> int:
    """Return how many requests were under way at one time."""
    return max(sum(one.began <= at.began < one.ended for one in requests) for at in requests)


@dataclass(frozen=True)
class StoreServer(ABC):
    """A server that runs."""

    scheme: ClassVar[str]
    """Of the URIs of its shuffles."""
    url: str

    @property
    @abstractmethod
    def options(self) -> dict[str, str]:
        """Storage options to use it with."""

    @abstractmethod
    def new_bucket(self, kind: str = "bucket") -> str:
        """Make a bucket whose name begins with ``kind``, and return the name."""

    @contextlib.contextmanager
    def requests(self, bucket: str) -> Iterator[list[Request]]:
        """Collect the requests of a bucket in the list given; it is full when the context ends.

        Only servers of this project know their requests.
        """
        found: list[Request] = []
        before = len(self._all_requests())
        yield found
        found += [
            one for one in self._all_requests()[before:] if re.match(rf"/{bucket}[/?]", one.path)
        ]

    def _all_requests(self) -> list[Request]:
        with urllib.request.urlopen(f"{self.url}/-/requests") as answer:
            return [Request(*one) for one in json.load(answer)]


@pytest.fixture(autouse=True, scope="session")
def no_metadata() -> Iterator[None]:
    """Keep tests, and the processes that they start, from metadata services."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in NO_METADATA.items():
            patch.setenv(name, value)
        yield


def put(url: str, headers: Mapping[str, str]) -> None:
    """Put an empty object, or what a store makes of such a request."""
    request = urllib.request.Request(url, method="PUT", headers=dict(headers))
    with urllib.request.urlopen(request, timeout=30):
        pass


def end_with_input() -> None:
    """End this process with its standard input: whoever started it may be killed."""
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on."""
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in free]


def free_port() -> int:
    """Return one such port."""
    return free_ports(1)[0]


@contextlib.contextmanager
def listening(
    what: str,
    command: Sequence[str],
    port: int,
    *,
    environment: Mapping[str, str] | None = None,
    patience_s: float = 60,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server while the context lasts; it begins when the server takes connections.

    It ends with the process that started it, where the system offers that (Linux). The end of a
    pipe is its standard input, so that one that reads it knows anywhere.

    Raises
    ------
    RuntimeError
        It ends immediately, or takes no connection for so long.
    """
    process = subprocess.Popen(
        command,
        cwd=PROJECT,
        env=os.environ | (environment or {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_end_with_parent,
    )
    try:
        deadline = time.monotonic() + patience_s
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            status = process.poll()
            if status is not None or time.monotonic() > deadline:
                how = "takes no connection" if status is None else f"ended with status {status}"
                msg = f"the {what} server {how}; try: {shlex.join(command)}"
                raise RuntimeError(msg)
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.communicate()


def _end_with_parent() -> None:
    """Let this process be killed when the thread that started it ends, where there is prctl."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)


def installed(program: str, variable: str, what: str) -> str:
    """Return the path of a program that others make, or skip; fail instead where ``CI`` is set.

    It is looked for in the environment variable, where make installs it, and on PATH.
    """
    places = (INSTALLED / "azurite" / "node_modules" / ".bin", INSTALLED / "seaweedfs" / "bin")
    installed_here = (str(place / program) for place in places if (place / program).exists())
    found = os.environ.get(variable) or next(installed_here, None) or shutil.which(program)
    if found is not None:
        return found
    skip_but_in_ci(f"{what} is not run: there is no {program}; install it with: make store-servers")


def skip_but_in_ci(msg: str) -> NoReturn:
    """Skip a test for what is not installed; fail instead where ``CI`` is set."""
    if os.environ.get("CI", "").lower() in ("", "0", "false"):
        pytest.skip(msg)
    pytest.fail(f"{msg} (not skipped, since CI is set)", pytrace=False)
