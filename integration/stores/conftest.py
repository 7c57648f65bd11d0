"""The stores of these tests; those that cut listings short elsewhere have whole pages here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import gcs_server, s3_server
from tests.support.stored_shuffle import StoredShuffle
from tests.support.stores import STORES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.gcs_server import GcsServer
    from tests.support.s3_server import S3Server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """Moto."""
    with s3_server.serving(page=1_000) as server:
        yield server


@pytest.fixture(scope="session")
def gs() -> Iterator[GcsServer]:
    """The server of this project."""
    with gcs_server.serving(page=1_000) as server:
        yield server


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    """The name of the fixture of a server."""
    name: str = request.param
    return name


@pytest.fixture
def stored(request: pytest.FixtureRequest, store: str) -> StoredShuffle:
    """A place for a shuffle in each store."""
    return StoredShuffle.at(request.getfixturevalue(store))
