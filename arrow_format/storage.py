"""Where shuffles are: one protocol, and the storage that belongs to a path or URI.

Only the modules ``storage*`` open, list and delete files and objects.
"""

from __future__ import annotations

import os

from arrow_format.errors import OptionError
from arrow_format.storage_posix import PosixStorage
from arrow_format.storage_protocol import (
    ByteSource,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectReader,
    ObjectStat,
    ObjectWriter,
    Storage,
)

__all__ = [
    "ByteSource",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "ObjectReader",
    "ObjectStat",
    "ObjectWriter",
    "PosixStorage",
    "Storage",
    "open_storage",
]


def open_storage(path: str | os.PathLike[str]) -> Storage:
    """Storage for a directory or URI.

    Raises
    ------
    OptionError
        Empty, or a scheme that is not supported yet.
    """
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        msg = f"path={path!r}: expected a directory"
        raise OptionError(msg)
    scheme, separator, rest = text.partition("://")
    if separator and scheme == "file":
        return PosixStorage(rest)
    if text.startswith("file:/"):
        return PosixStorage(text.removeprefix("file:"))
    if separator:
        msg = f"path={text!r}: {scheme}:// is not supported yet; use a local or mounted directory"
        raise OptionError(msg)
    return PosixStorage(text)
