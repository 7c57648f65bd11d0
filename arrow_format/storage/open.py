"""Opens the storage of a path or URI, and exports the protocol of all storages.

Only this package opens, lists and deletes files and objects.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

from arrow_format.errors import OptionError
from arrow_format.storage.local import PosixStorage
from arrow_format.storage.options import STORES
from arrow_format.storage.protocol import (
    ByteSource,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectReader,
    ObjectStat,
    ObjectWriter,
    Storage,
    names_in_use,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ByteSource",
    "ObjectExistsError",
    "ObjectNotFoundError",
    "ObjectReader",
    "ObjectStat",
    "ObjectWriter",
    "Place",
    "PosixStorage",
    "Storage",
    "names_in_use",
    "open_made_directory",
    "open_named_directory",
    "open_storage",
    "scheme_of",
]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_LOCAL = re.compile(r"(?://(?:localhost)?(?=/)|(?!//))(/.*)", re.DOTALL)
"""What may follow ``file:``; no host but this one."""

Place: TypeAlias = "str | os.PathLike[str] | Storage"
"""Location of a shuffle: a path or URI, or the storage that was opened on it."""


def open_storage(path: Place, storage_options: Mapping[str, str] | None = None) -> Storage:
    """Return the storage of a directory or URI; a storage is returned as it is.

    URIs begin with ``file:///`` (where ``%20`` and the like are decoded), ``s3://``, ``gs://`` or
    ``az://``. ``storage_options`` are for object stores: credentials, region, endpoint, with
    obstore's names; they override the environment. Raises :class:`OptionError` for an empty or
    impossible path, a URI of another scheme, or options that do not fit.
    """
    if isinstance(path, PosixStorage):
        return path
    if not isinstance(path, str | os.PathLike):
        from arrow_format.storage.object_store import ObjectStorage

        if isinstance(path, ObjectStorage):
            return path
        raise OptionError(_no_path(path))
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        msg = f"path={path!r}: expected a directory"
        raise OptionError(msg)
    scheme = scheme_of(text)
    rest = text if scheme is None else text[len(scheme) + 1 :]
    if scheme == "file":
        rest = _directory_of(text, rest)
    if not _is_name(rest):
        # Not repeated: a URI may hold a password.
        msg = "path: expected a directory, but no name holds a NUL or half a surrogate pair"
        raise OptionError(msg)
    if scheme in STORES and rest.startswith("//"):
        from arrow_format.storage.object_store import ObjectStorage

        return ObjectStorage(f"{scheme}:{rest}", storage_options)
    if storage_options:
        msg = "storage_options: only object stores (s3://, gs://, az://) take them; leave them out"
        raise OptionError(msg)
    if scheme not in (None, "file"):
        raise _foreign(scheme)
    return PosixStorage(rest)


def _no_path(given: object) -> str:
    """Return what is wrong with something that is no path, and which call was meant."""
    kind = type(given)
    meant = ""
    if hasattr(kind, "readStream"):
        meant = (
            ". A session goes where the work is run: open_shuffle(path).to_spark(spark), "
            "write_shuffle(source, path, spark=spark)"
        )
    elif hasattr(kind, "mapInArrow") or hasattr(kind, "__arrow_c_stream__"):
        meant = ". Rows come first: write_shuffle(rows, path, keys=...)"
    return f"path is {kind.__name__}: expected the directory or URI of a shuffle{meant}"


def scheme_of(path: str) -> str | None:
    """Return the lower-case scheme of a URI (RFC 3986), or None for a local path.

    A local path whose first part looks like a scheme is written ``./a:b``, or in full.
    """
    match = _SCHEME.match(path)
    return None if match is None else match[1].lower()


def _directory_of(uri: str, rest: str) -> str:
    """Return the local directory of a ``file:`` URI; ``rest`` is what follows the scheme."""
    match = _LOCAL.fullmatch(rest)
    if match is None:
        msg = f"path={uri!r}: expected file:///directory, of this machine"
        raise OptionError(msg)
    return unquote(match[1], errors="surrogateescape")


def _foreign(scheme: str) -> OptionError:
    """Return the error of a URI that no storage serves; it shows no more than the scheme."""
    if scheme in STORES:
        what = f"expected {scheme}://, with two slashes"
    elif len(scheme) == 1:
        what = "looks like a drive of Windows, which is not supported"
    else:
        what = f"{scheme}: is not supported yet"
    return OptionError(
        f"path={scheme}:...: {what}; use s3://, gs://, az://, or a local or mounted directory. A "
        f"local directory whose name begins like that is ./{scheme}:..., or its absolute path"
    )


def _is_name(path: str) -> bool:
    """Whether the system could have a file of that name."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        return False


def open_named_directory(path: str) -> PosixStorage:
    """Return the storage of a directory that a user named, by its absolute path; it may be a link.

    It is no shuffle that an operation was given, but what a file says of one, or a local directory.
    """
    return PosixStorage(path)


def open_made_directory(path: str) -> PosixStorage:
    """Return the storage of a directory that a job makes: it must not be a symbolic link.

    ``path`` is absolute; the user chose the parts before the last, so those may be links.
    """
    return PosixStorage(path, may_be_link=False)
