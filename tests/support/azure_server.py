"""A server that speaks Azure's protocol for blobs on the loopback interface: azurite.

It comes from npm, see ``make store-servers``; the environment variable AZURITE names another
``azurite-blob``.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import hashlib
import hmac
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.support.store_server import StoreServer, free_port, installed, listening, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ACCOUNT = "devstoreaccount1"
SECRET = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key that azurite knows, as its documentation has it."""


@dataclass(frozen=True)
class AzureServer(StoreServer):
    """A server that runs."""

    scheme = "az"

    @property
    def options(self) -> dict[str, str]:
        return {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": SECRET,
            "azure_storage_endpoint": self.url,
            "allow_http": "true",
        }

    def new_bucket(self, kind: str = "bucket") -> str:
        name = f"{kind}-{uuid.uuid4().hex[:12]}"
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
        authorization = {"Authorization": f"SharedKey {ACCOUNT}:{signature}"}
        put(f"{self.url}/{name}?restype=container", headers | authorization)
        return name


@contextlib.contextmanager
def serving(
    program: str, port: int | None = None, *, state: Path | None = None, patience_s: float = 60
) -> Iterator[AzureServer]:
    """Run azurite while the context lasts; what it holds stays in ``state``, if that is given."""
    port = port or free_port()
    where = ["--location", str(state)] if state else ["--inMemoryPersistence"]
    arguments = "--silent --skipApiVersionCheck --disableTelemetry --blobHost 127.0.0.1 --blobPort"
    command = [program, *where, *arguments.split(), str(port)]
    with listening("Azure", command, port, patience_s=patience_s):
        yield AzureServer(f"http://127.0.0.1:{port}/{ACCOUNT}")


@pytest.fixture(scope="session")
def azure() -> Iterator[AzureServer]:
    with serving(installed("azurite-blob", "AZURITE", "az://")) as server:
        yield server
