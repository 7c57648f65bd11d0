"""The object stores that tests run on, and how long requests to them are repeated."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from arrow_format.storage import obstore_connection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrow_format.storage.open import Storage

STORES = {
    "s3": "S3 (moto)",
    "seaweedfs": "S3 (SeaweedFS)",
    "azure": "Azure (azurite)",
    "gs": "Google (our server)",
}
"""Names of the fixtures of servers, and of the stores."""


@contextlib.contextmanager
def retrying_for(seconds: float) -> Iterator[None]:
    """Let requests be repeated for so long, after pauses of 1 to 20 milliseconds."""
    backoff = {
        "init_backoff": timedelta(milliseconds=1),
        "max_backoff": timedelta(milliseconds=20),
        "base": 2,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(obstore_connection._RETRY, "backoff", backoff)
        patch.setitem(obstore_connection._RETRY, "retry_timeout", timedelta(seconds=seconds))
        obstore_connection._connect.cache_clear()
        yield
    obstore_connection._connect.cache_clear()


def put(storage: Storage, path: str, data: bytes, *, sync: bool = False) -> None:
    """Write an object as data files are written."""
    writer = storage.open_writer(path, sync=sync)
    writer.writev([data])
    writer.close()
