"""Storage in an object store, and multipart uploads to it."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.concurrency import run_concurrently
from arrow_format.errors import ClosedError, CorruptShuffleError, ShuffleError, StorageError
from arrow_format.storage.obstore_connection import (
    OutOfRangeError,
    StoreErrors,
    connect,
    environment_digest,
    obstore,
    parse_uri,
)
from arrow_format.storage.options import StorageOptions
from arrow_format.storage.protocol import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectReader,
    ObjectStat,
    ObjectWriter,
    check_length,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from arrow_format.storage.protocol import ByteSource


PART_BYTES = 8 << 20
PARTS_UNDER_WAY = 2
"""An open object takes up to three parts of memory: two on their way and one being filled."""
MAX_OBJECT_BYTES = 10_000 * PART_BYTES
"""S3 takes 10,000 parts."""

SIGN_INTERVAL_S = 300.0
"""Seconds from the beginning of an upload, and from one sign to the next; most end before."""
SIGN_SUFFIX = ".writing"


class Upload:
    """An object on its way.

    Parameters
    ----------
    upload
        The writer of obstore. It keeps views of what it is given until a part is full.
    where
        Path of the object, for messages.
    errors
        Gives the context that turns an error of obstore into ours, for what is being done.
    sign
        Puts the sign, or another in its place.
    remove_sign
        Removes it.
    """

    def __init__(
        self,
        upload: Any,  # noqa: ANN401
        where: str,
        errors: Callable[[str], contextlib.AbstractContextManager[None]],
        sign: Callable[[], None],
        remove_sign: Callable[[], None],
    ) -> None:
        self._upload: Any = upload
        self._where = where
        self._errors = errors
        self._sign = sign
        self._remove_sign = remove_sign
        self._num_bytes = 0
        self._signed_at = time.monotonic()
        self._is_signed = False

    def writev(self, buffers: Sequence[ByteSource]) -> None:
        """See :meth:`ObjectWriter.writev`."""
        if self._upload is None:
            msg = f"{self._where}: already closed"
            raise ClosedError(msg)
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            self._num_bytes += len(view)
            if self._num_bytes > MAX_OBJECT_BYTES:
                msg = (
                    f"{self._where}: is larger than the {MAX_OBJECT_BYTES} "
                    "bytes an object may have; write more, smaller map outputs"
                )
                raise StorageError(msg)
            with self._errors("write to it"):
                self._upload.write(view)
        self._sign_if_due()

    def _sign_if_due(self) -> None:
        if time.monotonic() - self._signed_at < SIGN_INTERVAL_S:
            return
        self._is_signed = True
        # Without it the job looks as silent as it would have: that is no reason to fail.
        with contextlib.suppress(ShuffleError):
            self._sign()
        self._signed_at = time.monotonic()

    def _unsign(self) -> None:
        if self._is_signed:
            self._is_signed = False
            # What stays is removed with what else a commit does not name.
            with contextlib.suppress(ShuffleError):
                self._remove_sign()

    def truncate(self, num_bytes: int) -> None:
        """Raise: parts that are gone cannot be cut, and there is no other directory to go to."""
        msg = f"{self._where}: cannot be cut to {num_bytes} bytes"
        raise StorageError(msg)

    def close(self) -> None:
        """See :meth:`ObjectWriter.close`."""
        if self._upload is not None:
            with self._errors("finish it"):
                self._upload.close()
            self._upload = None
            self._unsign()

    def abort(self) -> None:
        """See :meth:`ObjectWriter.abort`."""
        upload, self._upload = self._upload, None
        if upload is not None:
            # An upload that cannot be given up stays invisible; the store clears it some day.
            with contextlib.suppress(Exception):
                upload.__exit__(StorageError, StorageError("given up"), None)
            self._unsign()


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
    has_directories = False
    keeps_what_it_shows = True

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        self._scheme, self._bucket, self._prefix = parse_uri(uri)
        self.root = f"{self._scheme}://{self._bucket}/{self._prefix}".rstrip("/")
        self.options = options if isinstance(options, StorageOptions) else StorageOptions(options)
        _ = self._store  # unknown options are refused here

    def __reduce__(self) -> tuple[type[ObjectStorage], tuple[str, StorageOptions]]:
        return ObjectStorage, (self.root, self.options)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectStorage):
            return NotImplemented
        return (self.root, self.options) == (other.root, other.options)

    def __hash__(self) -> int:
        return hash((self.root, self.options))

    def __repr__(self) -> str:
        return f"ObjectStorage({self.root!r})"

    @property
    def _store(self) -> Any:  # noqa: ANN401
        return connect(self._scheme, self._bucket, self.options)

    def _errors(self, what: str, path: str) -> StoreErrors:
        return StoreErrors(what, f"{self.root}/{path}".rstrip("/"), self.options)

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

        An upload replaces an object of that name: those who write choose names at random. One that
        takes long shows itself by an object beside it, ``<path>.writing``.
        """
        del sync
        with self._errors("create it", path):
            upload = obstore().open_writer(
                self._store,
                self._key(path),
                buffer_size=PART_BYTES,
                max_concurrency=PARTS_UNDER_WAY,
            )
        sign = path + SIGN_SUFFIX
        return Upload(
            upload,
            f"{self.root}/{path}",
            partial(self._errors, path=path),
            partial(self._put, sign, b"", mode="overwrite"),
            partial(self.delete, sign),
        )

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
        where = environment_digest("ENDPOINT")
        checked = (self._scheme, self._bucket, self.options, where, os.getpid())
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

    def _put(self, path: str, data: bytes, *, mode: str = "create") -> None:
        with self._errors("create it", path):
            obstore().put(self._store, self._key(path), data, mode=mode, use_multipart=False)

    def _whole(self, path: str) -> bytes | None:
        """Return all bytes of an object; None when there is none."""
        try:
            return self.read(path)
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

    def read(self, path: str, *, num_bytes: int | None = None) -> bytes:
        """See :meth:`Storage.read`."""
        with self._errors("read it", path):
            found = obstore().get(self._store, self._key(path))
            check_length(f"{self.root}/{path}", found.meta["size"], num_bytes)
            return bytes(found.bytes())

    def stat(self, path: str) -> ObjectStat | None:
        """See :meth:`Storage.stat`; a directory is there when objects are below it."""
        key = self._key(path)
        if key:
            with contextlib.suppress(ObjectNotFoundError), self._errors("look at it", path):
                return _stat_of(obstore().head(self._store, key))
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

    def files(self, path: str, *, depth: int = 1) -> dict[str, ObjectStat]:
        """See :meth:`Storage.files`; one request per 1,000 objects, whatever the depth."""
        key = self._key(path)
        with self._errors("list it", path):
            if depth == 1:
                listed = obstore().list_with_delimiter(self._store, key or None)["objects"]
            else:
                pages = obstore().list(self._store, key or None, chunk_size=1_000)
                listed = [one for page in pages for one in page]
        above = f"{self._prefix}/" if self._prefix else ""
        start = len(f"{key}/") if key else 0
        # Consoles put an empty object "prefix/" to show a directory.
        found = {
            one["path"][len(above) :]: _stat_of(one)
            for one in listed
            if one["path"] != key and one["path"].count("/", start) < depth
        }
        return dict(sorted(found.items()))

    def delete(self, path: str) -> None:
        """See :meth:`Storage.delete`."""
        with contextlib.suppress(ObjectNotFoundError), self._errors("delete it", path):
            obstore().delete(self._store, self._key(path))

    def delete_all(self, paths: Sequence[str]) -> None:
        """See :meth:`Storage.delete_all`; many by one request, where the store has such a one."""
        if not paths:
            return
        try:
            with self._errors("delete it and others", paths[0]):
                obstore().delete(self._store, [self._key(path) for path in paths])
        except ObjectNotFoundError:  # some stores mind; the others of them may still be there
            run_concurrently([partial(self.delete, path) for path in paths], self.max_requests)


def _stat_of(meta: Mapping[str, Any]) -> ObjectStat:
    """Return what the store says of an object, asked for it or in a listing."""
    modified_ms = int(meta["last_modified"].timestamp() * 1000)
    return ObjectStat(meta["size"], is_directory=False, modified_ms=modified_ms)


def _aligned(found: object) -> pa.Buffer:
    """Return what was read as a buffer; Arrow's readers want its start aligned."""
    buffer = pa.py_buffer(found)
    if buffer.address % 8 == 0:
        return buffer
    copied = pa.allocate_buffer(buffer.size)
    memoryview(copied).cast("B")[:] = memoryview(buffer).cast("B")
    return copied


class _Reader:
    """An object to read from; there is nothing to keep open."""

    def __init__(self, storage: ObjectStorage, path: str) -> None:
        self._storage = storage
        self._path = path

    def get_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        return self._storage.get_ranges(self._path, ranges)

    def close(self) -> None:
        """Do nothing."""
