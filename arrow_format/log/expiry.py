"""Tells a file that garbage collection removed, with its version, from one that is damaged."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from arrow_format.errors import CorruptShuffleError, ShuffleError, ShuffleNotFoundError
from arrow_format.log.reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrow_format.storage.open import Storage


def has_expired(storage: Storage, version: int) -> bool:
    """Whether garbage collection gave a version up; False where the log cannot be looked at."""
    with contextlib.suppress(ShuffleError):
        return LogReader(storage).has_expired(version)
    return False


def expired_error(storage: Storage, version: int) -> ShuffleNotFoundError:
    """Return the error of a version that expired while it was read."""
    return ShuffleNotFoundError(
        f"{storage.root}: version {version} has expired and was removed by garbage collection "
        "while it was read; nothing is damaged. Open the newest version, and collect with a "
        "retention longer than reading takes"
    )


@contextlib.contextmanager
def expiry_told(storage: Storage, version: int) -> Iterator[None]:
    """Say that a version has expired where reading it finds damage because of that.

    Raises
    ------
    ShuffleNotFoundError
        In the place of a CorruptShuffleError, when the version has expired.
    """
    try:
        yield
    except CorruptShuffleError as error:
        if has_expired(storage, version):
            raise expired_error(storage, version) from error
        raise
