"""Shuffles in object stores, ``s3://``, ``gs://`` and ``az://``, by the library obstore.

There are no directories: a name with ``/`` is a name. An object appears whole when its upload is
completed, and is durable then; an upload that nobody completes stays invisible.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.errors import ClosedError, CorruptShuffleError, StorageError
from arrow_format.storage_connection import (
    OutOfRangeError,
    connect,
    obstore,
    parse_uri,
    store_errors,
)
from arrow_format.storage_options import StorageOptions
from arrow_format.storage_protocol import (
    ByteSource,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectReader,
    ObjectStat,
    ObjectWriter,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

PART_BYTES = 8 << 20
PARTS_UNDER_WAY = 2
"""An open object takes up to three parts of memory: two on their way and one being filled."""
MAX_OBJECT_BYTES = 10_000 * PART_BYTES
"""S3 takes 10,000 parts."""

MAX_REQUESTS = 8
"""Requests worth having under way at once: each waits for the store most of its time."""

_CONFLICTS = 6
_CHECKED: set[Hashable] = set()
"""Buckets that keep the condition of a put, as this process found out."""


class ObjectStorage:
    """A shuffle below a prefix of a bucket or container.

    Put-if-absent is a conditional put. One that was repeated below us, after an answer got lost, is
    recognised by its bytes.

    Parameters
    ----------
    uri
        ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``az://container/prefix``.
    options
        As obstore has them; they win over the environment.

    Raises
    ------
    OptionError
        Not such a URI, or it holds credentials; an unknown option; obstore is not installed.
    """

    max_requests = MAX_REQUESTS
    puts_may_come_late = True

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        self._scheme, self._bucket, self._prefix = parse_uri(uri)
        self.root = f"{self._scheme}://{self._bucket}/{self._prefix}".rstrip("/")
        self._options = options if isinstance(options, StorageOptions) else StorageOptions(options)
        _ = self._store  # unknown options are refused here

    def __reduce__(self) -> tuple[type[ObjectStorage], tuple[str, StorageOptions]]:
        return ObjectStorage, (self.root, self._options)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectStorage):
            return NotImplemented
        return (self.root, self._options) == (other.root, other._options)

    def __hash__(self) -> int:
        return hash((self.root, self._options))

    def __repr__(self) -> str:
        return f"ObjectStorage({self.root!r})"

    @property
    def _store(self) -> Any:  # noqa: ANN401
        return connect(self._scheme, self._bucket, self._options)

    def _errors(self, what: str, path: str) -> contextlib.AbstractContextManager[None]:
        return store_errors(what, f"{self.root}/{path}".rstrip("/"), self._options)

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def without_new_directories(self) -> ObjectStorage:
        """See :meth:`Storage.without_new_directories`; there are none to miss."""
        return self

    def make_directory(self, path: str, *, sync: bool) -> None:
        """See :meth:`Storage.make_directory`; does nothing."""
        del path, sync

    def prune(self, path: str, *, and_root: bool) -> None:
        """See :meth:`Storage.prune`; does nothing."""
        del path, and_root

    def free_bytes(self) -> None:
        """See :meth:`Storage.free_bytes`; nobody can tell."""

    def open_writer(self, path: str, *, sync: bool) -> ObjectWriter:
        """See :meth:`Storage.open_writer`.

        An upload replaces an object of that name: those who write choose names at random.
        """
        del sync
        with self._errors("create it", path):
            upload = obstore().open_writer(
                self._store,
                self._key(path),
                buffer_size=PART_BYTES,
                max_concurrency=PARTS_UNDER_WAY,
            )
        return _Upload(self, path, upload)

    def put_if_absent(self, path: str, data: bytes, *, sync: bool) -> None:
        """See :meth:`Storage.put_if_absent`."""
        del sync
        self._check_conditional_puts(path)
        for attempt in range(_CONFLICTS):
            try:
                self._put(path, data)
            except ObjectExistsError:
                found = self._whole(path)
                if found is not None:
                    if found == data:
                        return
                    raise
                # Another's put was under way when ours came, or it was deleted since.
                time.sleep(random.uniform(0, 0.05 * 2**attempt))
            else:
                return
        msg = f"{self.root}/{path}: others put and delete it all the time; try again"
        raise StorageError(msg)

    def _check_conditional_puts(self, path: str) -> None:
        """Check once that the store keeps the condition of a put; some do not know it.

        Raises
        ------
        StorageError
            It does not: of two writers who commit at once, one would lose its rows.
        """
        where = frozenset(item for item in os.environ.items() if "ENDPOINT" in item[0])
        checked = (self._scheme, self._bucket, self._options, where, os.getpid())
        if checked in _CHECKED:
            return
        above, slash, name = path.rpartition("/")
        # Garbage collection knows the prefix: a writer that is killed here leaves the probe.
        probe = f"{above}{slash}.tmp-{name}-{secrets.token_hex(8)}"
        with contextlib.suppress(ObjectExistsError):
            self._put(probe, b"")
            self._put(probe, b"")
            self.delete(probe)
            msg = (
                f"{self.root}: the store replaces an object although it was told not to "
                "(If-None-Match), so commits are not safe. Use one that knows conditional puts"
            )
            raise StorageError(msg)
        self.delete(probe)
        _CHECKED.add(checked)

    def _put(self, path: str, data: bytes) -> None:
        with self._errors("create it", path):
            obstore().put(self._store, self._key(path), data, mode="create", use_multipart=False)

    def _whole(self, path: str) -> bytes | None:
        """Return all bytes of an object; None when there is none."""
        try:
            with self._errors("read it", path):
                return bytes(obstore().get(self._store, self._key(path)).bytes())
        except ObjectNotFoundError:
            return None

    def open_reader(self, path: str, *, mapped: bool = False) -> ObjectReader:
        """See :meth:`Storage.open_reader`; nothing is mapped."""
        del mapped
        return _Reader(self, path)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """See :meth:`Storage.get_ranges`; several ranges are read at once."""
        for offset, length in ranges:
            if min(offset, length) < 0 or max(offset, length) > MAX_OBJECT_BYTES:
                raise self._truncated(path, ranges)
        wanted = [(offset, length) for offset, length in ranges if length]
        if not wanted:
            if ranges:
                with self._errors("read it", path):
                    size = obstore().head(self._store, self._key(path))["size"]
                if max(offset for offset, _ in ranges) > size:
                    raise self._truncated(path, ranges)
            return [pa.py_buffer(b"") for _ in ranges]
        try:
            with self._errors("read it", path):
                found = obstore().get_ranges(
                    self._store,
                    self._key(path),
                    starts=[offset for offset, _ in wanted],
                    lengths=[length for _, length in wanted],
                    coalesce=0,
                )
        except OutOfRangeError:
            raise self._truncated(path, ranges) from None
        if [len(one) for one in found] != [length for _, length in wanted]:
            raise self._truncated(path, ranges)
        rest = iter(found)
        return [_aligned(next(rest)) if length else pa.py_buffer(b"") for _, length in ranges]

    def _truncated(self, path: str, ranges: Sequence[tuple[int, int]]) -> CorruptShuffleError:
        stat = self.stat(path)
        found = "is not there" if stat is None else f"has {stat.num_bytes} bytes"
        msg = (
            f"{self.root}/{path}: {found}, expected at least {max(map(sum, ranges))}; "
            "it was truncated or replaced after the commit"
        )
        return CorruptShuffleError(msg)

    def stat(self, path: str) -> ObjectStat | None:
        """See :meth:`Storage.stat`; a directory is there when objects are below it."""
        key = self._key(path)
        if key:
            with contextlib.suppress(ObjectNotFoundError), self._errors("look at it", path):
                found = obstore().head(self._store, key)
                modified_ms = int(found["last_modified"].timestamp() * 1000)
                return ObjectStat(found["size"], False, modified_ms)
        with self._errors("look at it", path):
            below = next(iter(obstore().list(self._store, key or None, chunk_size=1)), None)
        return ObjectStat(0, is_directory=True) if below else None

    def list(self, path: str) -> list[str]:
        """See :meth:`Storage.list`."""
        key = self._key(path)
        with self._errors("list it", path):
            found = obstore().list_with_delimiter(self._store, key or None)
        objects = [one["path"] for one in found["objects"]]
        # Consoles put an empty object "prefix/" to show a directory.
        below = [*found["common_prefixes"], *(one for one in objects if one != key)]
        return sorted(one.rpartition("/")[2] for one in below)

    def delete(self, path: str) -> None:
        """See :meth:`Storage.delete`."""
        with contextlib.suppress(ObjectNotFoundError), self._errors("delete it", path):
            obstore().delete(self._store, self._key(path))


def _aligned(found: object) -> pa.Buffer:
    """Return what was read as a buffer; Arrow's readers want its start aligned."""
    buffer = pa.py_buffer(found)
    if buffer.address % 8 == 0:
        return buffer
    copied = pa.allocate_buffer(buffer.size)
    memoryview(copied).cast("B")[:] = memoryview(buffer).cast("B")
    return copied


class _Upload:
    """An object on its way, in parts."""

    def __init__(self, storage: ObjectStorage, path: str, upload: Any) -> None:  # noqa: ANN401
        self._storage = storage
        self._path = path
        self._upload: Any = upload
        self._num_bytes = 0

    def writev(self, buffers: Sequence[ByteSource]) -> None:
        if self._upload is None:
            msg = f"{self._storage.root}/{self._path}: already closed"
            raise ClosedError(msg)
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            self._num_bytes += len(view)
            if self._num_bytes > MAX_OBJECT_BYTES:
                msg = (
                    f"{self._storage.root}/{self._path}: is larger than the {MAX_OBJECT_BYTES} "
                    "bytes an object may have; write more, smaller map outputs"
                )
                raise StorageError(msg)
            with self._storage._errors("write to it", self._path):
                self._upload.write(view)

    def truncate(self, num_bytes: int) -> None:
        """Raise: parts that are gone cannot be cut, and there is no other directory to go to."""
        msg = f"{self._storage.root}/{self._path}: cannot be cut to {num_bytes} bytes"
        raise StorageError(msg)

    def close(self) -> None:
        if self._upload is not None:
            with self._storage._errors("finish it", self._path):
                self._upload.close()
            self._upload = None

    def abort(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            # An upload that cannot be given up stays invisible; the store clears it some day.
            with contextlib.suppress(Exception):
                upload.__exit__(StorageError, StorageError("given up"), None)


class _Reader:
    """An object to read from; there is nothing to keep open."""

    def __init__(self, storage: ObjectStorage, path: str) -> None:
        self._storage = storage
        self._path = path

    def get_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        return self._storage.get_ranges(self._path, ranges)

    def close(self) -> None:
        """Do nothing."""
