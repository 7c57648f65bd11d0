"""Where shuffles are: one protocol, and the storage that belongs to a path or URI.

Only the modules ``storage*`` open, list and delete files and objects.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeAlias

from arrow_format.errors import OptionError
from arrow_format.storage_connection import STORES
from arrow_format.storage_object import ObjectStorage
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

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ByteSource",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "ObjectReader",
    "ObjectStat",
    "ObjectStorage",
    "ObjectWriter",
    "Place",
    "PosixStorage",
    "Storage",
    "open_made_directory",
    "open_storage",
]

Place: TypeAlias = "str | os.PathLike[str] | Storage"
"""Where a shuffle is: a path or URI, or the storage that was opened there."""


def open_storage(path: Place, storage_options: Mapping[str, str] | None = None) -> Storage:
    """Storage for a directory or URI; a storage is returned as it is.

    Parameters
    ----------
    path
        Directory, ``file:///``, ``s3://``, ``gs://`` or ``az://`` URI.
    storage_options
        For an object store: credentials, region, endpoint, as obstore names them; they win over the
        environment.

    Raises
    ------
    OptionError
        Empty, no path that there can be, a scheme that is not supported yet, or options that do not
        fit.
    """
    if isinstance(path, PosixStorage | ObjectStorage):
        return path
    text = os.fspath(path)  # type: ignore[arg-type]
    if not isinstance(text, str) or not text:
        msg = f"path={path!r}: expected a directory"
        raise OptionError(msg)
    if not _is_name(text):
        # Not repeated: a URI may hold a password.
        msg = "path: expected a directory, but no name holds a NUL or half a surrogate pair"
        raise OptionError(msg)
    scheme, separator, rest = text.partition("://")
    if separator and scheme in STORES:
        return ObjectStorage(text, storage_options)
    if storage_options:
        msg = "storage_options: only object stores (s3://, gs://, az://) take them; leave them out"
        raise OptionError(msg)
    if separator and scheme == "file":
        host, slash, directory = rest.partition("/")
        if host not in ("", "localhost") or not slash:
            msg = f"path={text!r}: expected file:///directory, of this machine"
            raise OptionError(msg)
        return PosixStorage(f"/{directory}")
    if text.startswith("file:/"):
        return PosixStorage(text.removeprefix("file:"))
    if separator:
        # Not the whole URI: some hold a password.
        msg = (
            f"path={scheme}://...: {scheme}:// is not supported yet; use s3://, gs://, az://, or a "
            "local or mounted directory"
        )
        raise OptionError(msg)
    return PosixStorage(text)


def _is_name(path: str) -> bool:
    """Whether the system could have a file of that name at all."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def open_made_directory(path: str) -> Storage:
    """Storage for a directory that a job has made, or will make: no link may stand in its place.

    Parameters
    ----------
    path
        Absolute. Parts before the last were the user's choice, and may be links.
    """
    return PosixStorage(path, may_be_link=False)
