"""A server that speaks Azure's protocol for blobs on the loopback interface: azurite, if there.

It comes from npm: ``npm install azurite``, with its ``node_modules/.bin`` on PATH or its
``azurite-blob`` named by the environment variable AZURITE.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import time
import urllib.request
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCOUNT = "devstoreaccount1"
SECRET = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key that azurite knows, as its documentation has it."""


@dataclass(frozen=True)
class AzureServer:
    """A server that runs."""

    url: str

    @property
    def options(self) -> dict[str, str]:
        """Storage options to use it with."""
        return {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": SECRET,
            "azure_storage_endpoint": self.url,
            "allow_http": "true",
        }

    def new_bucket(self) -> str:
        """Make a container and return its name."""
        name = f"container-{uuid.uuid4().hex[:12]}"
        date = dt.datetime.now(dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
        signed = "".join(
            [
                "PUT" + "\n" * 12,
                *(f"{name}:{value}\n" for name, value in headers.items()),
                f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container",
            ]
        )
        mac = hmac.new(base64.b64decode(SECRET), signed.encode(), hashlib.sha256)
        signature = base64.b64encode(mac.digest()).decode()
        request = urllib.request.Request(
            f"{self.url}/{name}?restype=container",
            method="PUT",
            headers=headers | {"Authorization": f"SharedKey {ACCOUNT}:{signature}"},
        )
        with urllib.request.urlopen(request, timeout=30):
            return name


@contextlib.contextmanager
def serving(program: str, patience_s: float = 60) -> Iterator[AzureServer]:
    """Run azurite while the context lasts.

    Raises
    ------
    RuntimeError
        It ends immediately, or takes no connection for so long.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = "--silent --inMemoryPersistence --skipApiVersionCheck --disableTelemetry"
    process = subprocess.Popen(
        [program, *arguments.split(), "--blobHost", "127.0.0.1", "--blobPort", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + patience_s
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            status = process.poll()
            if status is not None or time.monotonic() > deadline:
                how = "takes no connection" if status is None else f"ended with status {status}"
                msg = f"the Azure server {how}; try: {program} --blobPort {port}"
                raise RuntimeError(msg)
            time.sleep(0.05)
        yield AzureServer(f"http://127.0.0.1:{port}/{ACCOUNT}")
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def azure() -> Iterator[AzureServer]:
    program = os.environ.get("AZURITE") or shutil.which("azurite-blob")
    if program is None:
        pytest.skip("az:// is not run: there is no azurite-blob (npm install azurite)")
    with serving(program) as server:
        yield server
