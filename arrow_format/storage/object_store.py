"""Storage in an object store, and multipart uploads to it."""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from arrow_format.concurrency import run_concurrently
from arrow_format.errors import ClosedError, CorruptShuffleError, ShuffleError, StorageError
from arrow_format.storage.credentials import check_end, options_of
from arrow_format.storage.obstore_connection import (
    WHICH_STORE,
    connect,
    environment_digest,
    obstore,
    parse_uri,
    which_store,
)
from arrow_format.storage.options import StorageOptions
from arrow_format.storage.protocol import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectReader,
    ObjectStat,
    ObjectWriter,
    PutRefusedError,
    check_length,
    truncated_error,
)
from arrow_format.storage.put_probe import MANY_ROUNDS, ROUNDS, check_store
from arrow_format.storage.repeated import answered, uncertain
from arrow_format.storage.store_errors import (
    ConflictedError,
    OutOfRangeError,
    StoreErrors,
    UnansweredError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from arrow_format.storage.protocol import ByteSource


T = TypeVar("T")

PART_BYTES = 8 << 20
PARTS_UNDER_WAY = 2
"""An open object takes up to three parts of memory: two on their way and one being filled."""
MAX_OBJECT_BYTES = 10_000 * PART_BYTES
"""S3 takes 10,000 parts."""

SIGN_INTERVAL_S = 300.0
"""Seconds until the first sign of an upload, and between signs; most uploads end before it."""
SIGN_SUFFIX = ".writing"

GAP_BYTES = 1 << 20
"""Sent in about the time in which a store answers a request: 30 ms, of which 10 wait at once."""
MAX_REQUESTS = 8
"""Concurrent requests of one caller: each waits for the store most of its time."""

_CONFLICTS = 6
_CHECKED: set[Hashable] = set()
"""Stores that this process knows to keep put-if-absent."""
_PLAIN = re.compile(r"[A-Za-z0-9_=/-]*")
"""A prefix that every store keeps as it is."""


class ObjectStorage:
    """A shuffle below a prefix of a bucket or container.

    Put-if-absent is a conditional put. If the library repeated it after an answer got lost, the
    object has the same bytes, which is how this storage recognises its own put.

    ``uri`` is ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``az://container/prefix``; options
    have obstore's names and override the environment. Raises :class:`OptionError` for another URI
    or one with credentials, for an unknown option, and where obstore is not installed.
    """

    max_requests = MAX_REQUESTS
    gap_bytes = GAP_BYTES
    puts_may_come_late = True
    has_directories = False
    keeps_what_it_shows = True

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        self._scheme, self._bucket, self._prefix = parse_uri(uri)
        self.root = f"{self._scheme}://{self._bucket}/{self._prefix}".rstrip("/")
        given = options if isinstance(options, StorageOptions) else StorageOptions(options)
        self.options = given or StorageOptions(options_of(os.environ))
        _ = self._store  # refuses unknown options

    def __reduce__(self) -> tuple[Callable[..., ObjectStorage], tuple[Any, ...]]:
        is_checked = self._as_checked() in _CHECKED
        endpoint = environment_digest(WHICH_STORE) if is_checked else None
        return _received, (self.root, self.options, endpoint)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ObjectStorage):
            return NotImplemented
        return (self.root, self.options) == (other.root, other.options)

    def __hash__(self) -> int:
        return hash((self.root, self.options))

    def __repr__(self) -> str:
        return f"ObjectStorage({self.root!r})"

    @property
    def place(self) -> tuple[frozenset[str], str]:
        return which_store(self._scheme, self.options), self.root

    @property
    def _store(self) -> Any:  # noqa: ANN401
        return connect(self._scheme, self._bucket, self.options)

    def _errors(self, what: str, path: str, *, creates: bool = False) -> StoreErrors:
        where = f"{self.root}/{path}".rstrip("/")
        return StoreErrors(what, where, self.options, creates=creates)

    def _answered(
        self,
        what: str,
        path: str,
        ask: Callable[[], T],
        *,
        creates: bool = False,
        repeats: tuple[type[StorageError], ...] = (UnansweredError,),
    ) -> T:
        return answered(self._errors(what, path, creates=creates), ask, repeats)

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def without_new_directories(self) -> ObjectStorage:
        return self

    def make_directory(self, path: str, *, sync: bool) -> None:
        """Do nothing."""

    def prune(self, path: str, *, and_root: bool) -> None:
        """Do nothing."""

    def free_bytes(self) -> None:
        """Return None: a store has no limit that can be asked for."""

    def open_writer(self, path: str, *, sync: bool) -> ObjectWriter:
        """Start an upload, which replaces an object of that name: writers choose random names.

        A long upload shows itself by an object next to it, ``<path>.writing``. Raises StorageError
        where the credentials have ended: the store would refuse it once a part is there.
        """
        check_end(self.root, self.options)
        return Upload(self, path)

    def put_if_absent(self, path: str, data: bytes, *, sync: bool) -> None:
        self.check_puts()
        for attempt in range(_CONFLICTS):
            try:
                self._put(path, data)
            except ObjectExistsError as error:
                conflict = str(error)
                with contextlib.suppress(ObjectNotFoundError):
                    if self.read(path) == data:
                        return
                    raise
                # Another put was in progress when ours came, or its object was deleted since.
                time.sleep(random.uniform(0, 0.05 * 2**attempt))
            except PutRefusedError as error:
                if not attempt:
                    raise
                raise uncertain(error) from None
            else:
                return
        msg = f"{conflict}. It is not there, {_CONFLICTS} times: others delete it; try again"
        raise StorageError(msg)

    def replace(self, path: str, data: bytes, *, sync: bool) -> None:
        self._put(path, data, mode="overwrite")

    def check_puts(self, *, for_long: bool = False) -> None:
        checked = self._as_checked()
        if for_long or checked not in _CHECKED:
            check_store(_Probed(self), num_rounds=MANY_ROUNDS if for_long else ROUNDS)
            _CHECKED.add(checked)

    def _as_checked(self) -> Hashable:
        """Return what is checked once: the store in this process, and a prefix that may change."""
        prefix = "" if _PLAIN.fullmatch(self._prefix) else self._prefix
        endpoint = environment_digest(WHICH_STORE)
        return (self._scheme, self._bucket, prefix, self.options, endpoint, os.getpid())

    def _put(
        self, path: str, data: bytes, *, mode: str = "create", what: str = "create it"
    ) -> None:
        put = partial(obstore().put, self._store, self._key(path), data, mode=mode)
        self._answered(what, path, partial(put, use_multipart=False), creates=mode == "create")

    def open_reader(self, path: str, *, mapped: bool = False) -> ObjectReader:
        return _Reader(self, path)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Read the ranges concurrently."""
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
                buffers = obstore().get_ranges(
                    self._store,
                    self._key(path),
                    starts=[offset for offset, _ in wanted],
                    lengths=[length for _, length in wanted],
                    coalesce=0,
                )
        except OutOfRangeError:
            raise self._truncated(path, ranges) from None
        if [len(buffer) for buffer in buffers] != [length for _, length in wanted]:
            raise self._truncated(path, ranges)
        rest = iter(buffers)
        return [_aligned(next(rest)) if length else pa.py_buffer(b"") for _, length in ranges]

    def _truncated(self, path: str, ranges: Sequence[tuple[int, int]]) -> CorruptShuffleError:
        stat = self.stat(path)
        num_bytes = None if stat is None else stat.num_bytes
        return truncated_error(f"{self.root}/{path}", num_bytes, max(map(sum, ranges)))

    def read(self, path: str, *, num_bytes: int | None = None) -> bytes:
        with self._errors("read it", path):
            answer = obstore().get(self._store, self._key(path))
            check_length(f"{self.root}/{path}", answer.meta["size"], num_bytes)
            return bytes(answer.bytes())

    def stat(self, path: str) -> ObjectStat | None:
        """Return the status of an object; a directory exists when objects are below it."""
        key = self._key(path)
        if key:
            with contextlib.suppress(ObjectNotFoundError), self._errors("look at it", path):
                meta = obstore().head(self._store, key)
                # On gs each object has a generation; "null" has one put before there were versions.
                is_versioned = self._scheme != "gs" and meta.get("version") not in (None, "null")
                return replace(_stat_of(meta), is_versioned=is_versioned)
        below = self._answered(
            "look at it",
            path,
            lambda: next(iter(obstore().list(self._store, key or None, chunk_size=1)), None),
        )
        return ObjectStat(0, is_directory=True) if below else None

    def list(self, path: str) -> list[str]:
        key, listed = self._key(path), self._listed(path)
        keys = [*listed["common_prefixes"], *(meta["path"] for meta in listed["objects"])]
        # Consoles put an empty object "prefix/" to show a directory.
        return sorted(below.rpartition("/")[2] for below in keys if below != key)

    def files(self, path: str, *, depth: int = 1) -> dict[str, ObjectStat]:
        """Return the files below ``path`` with one request per 1,000 objects, at any depth."""
        key = self._key(path)
        listed = self._listed(path)["objects"] if depth == 1 else self._all_below(path)
        above = f"{self._prefix}/" if self._prefix else ""
        start = len(f"{key}/") if key else 0
        # Consoles put an empty object "prefix/" to show a directory.
        files = {
            meta["path"][len(above) :]: _stat_of(meta)
            for meta in listed
            if meta["path"] != key and meta["path"].count("/", start) < depth
        }
        return dict(sorted(files.items()))

    def _listed(self, path: str) -> Mapping[str, Any]:
        key = self._key(path) or None
        return self._answered(
            "list it", path, lambda: obstore().list_with_delimiter(self._store, key)
        )

    def _all_below(self, path: str) -> Sequence[Mapping[str, Any]]:
        def ask() -> Sequence[Mapping[str, Any]]:
            pages = obstore().list(self._store, self._key(path) or None, chunk_size=1_000)
            return [meta for page in pages for meta in page]

        return self._answered("list it", path, ask)

    def delete(self, path: str) -> None:
        with contextlib.suppress(ObjectNotFoundError):
            self._answered(
                "delete it", path, lambda: obstore().delete(self._store, self._key(path))
            )

    def delete_all(self, paths: Sequence[str]) -> None:
        """Delete many objects with one request, where the store offers that."""
        if not paths:
            return
        try:
            keys = [self._key(path) for path in paths]
            self._answered(
                "delete it and others", paths[0], lambda: obstore().delete(self._store, keys)
            )
        except ObjectNotFoundError:  # a store that minds may have left the others undeleted
            run_concurrently([partial(self.delete, path) for path in paths], self.max_requests)


def _received(root: str, options: StorageOptions, endpoint: str | None) -> ObjectStorage:
    """Return a storage that another process sent, which had checked the store at an endpoint."""
    storage = ObjectStorage(root, options)
    if endpoint == environment_digest(WHICH_STORE):
        _CHECKED.add(storage._as_checked())
    return storage


@dataclass(frozen=True, slots=True)
class _Probed:
    """What :mod:`~arrow_format.storage.put_probe` asks of a storage."""

    storage: ObjectStorage

    @property
    def root(self) -> str:
        return self.storage.root

    def key(self, path: str) -> str:
        return self.storage._key(path)

    def put_once(self, path: str, data: bytes) -> None:
        what = "put an object there, as every commit does"
        self.storage._put(path, data, what=what)

    def read(self, path: str) -> bytes:
        return self.storage.read(path)

    def keys_below(self, path: str) -> set[str]:
        return {meta["path"] for meta in self.storage._all_below(path)}

    def delete_all(self, paths: Sequence[str]) -> None:
        self.storage.delete_all(paths)


class Upload:
    """A multipart upload: an :class:`ObjectWriter`.

    The store shows nothing of it before it is closed, so every :data:`SIGN_INTERVAL_S` it puts a
    sign for garbage collection: an object next to it. Views are kept of what was given until a
    part is full: until then to start it again, later by obstore's writer.
    """

    def __init__(self, storage: ObjectStorage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._upload: Any = None  # obstore's writer, from the first whole part on
        self._first: list[memoryview] = []  # what was given before
        self._is_open = True
        self._num_bytes = 0
        self._signed_at = time.monotonic()
        self._is_signed = False

    def writev(self, buffers: Sequence[ByteSource]) -> None:
        if not self._is_open:
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
            if self._upload is not None:
                with self._storage._errors("write to it", self._path):
                    self._upload.write(view)
                continue
            self._first.append(view)
            if self._num_bytes >= PART_BYTES:
                self._start()
        self._sign_if_due()

    def _start(self) -> None:
        """Give what there is to obstore, which starts an upload if it is a part.

        That may be repeated: a store shows nothing of an upload that it may have started before.
        """
        repeats = (UnansweredError, ConflictedError)
        self._upload = self._storage._answered("create it", self._path, self._new, repeats=repeats)
        self._first = []

    def _new(self) -> Any:  # noqa: ANN401
        upload = obstore().open_writer(
            self._storage._store,
            self._storage._key(self._path),
            buffer_size=PART_BYTES,
            max_concurrency=PARTS_UNDER_WAY,
        )
        for view in self._first:
            upload.write(view)
        return upload

    def _sign_if_due(self) -> None:
        if time.monotonic() - self._signed_at < SIGN_INTERVAL_S:
            return
        self._is_signed = True
        # Without a sign the job only seems more silent than it is: no reason to fail.
        with contextlib.suppress(ShuffleError):
            self._storage._put(self._path + SIGN_SUFFIX, b"", mode="overwrite")
        self._signed_at = time.monotonic()

    def _unsign(self) -> None:
        if self._is_signed:
            self._is_signed = False
            # Garbage collection removes a sign that stays: no commit names it.
            with contextlib.suppress(ShuffleError):
                self._storage.delete(self._path + SIGN_SUFFIX)

    def truncate(self, num_bytes: int) -> None:
        msg = f"{self._storage.root}/{self._path}: cannot be cut to {num_bytes} bytes"
        raise StorageError(msg)

    def close(self) -> None:
        if self._is_open:
            if self._upload is None:
                self._start()
            try:
                with self._storage._errors("finish it", self._path):
                    self._upload.close()
            except ShuffleError:
                if not self._is_there():
                    raise
            self._upload, self._is_open = None, False
            self._unsign()

    def _is_there(self) -> bool:
        """Whether the store has the whole object, though the last request failed.

        Where its answer was lost obstore repeats the request, and a store that finished the upload
        knows it no more. No other writer puts an object of this name, and it appears whole or not
        at all; an object of its size is this one.
        """
        with contextlib.suppress(ShuffleError):
            whole = ObjectStat(self._num_bytes, is_directory=False)
            return self._storage.stat(self._path) == whole
        return False

    def abort(self) -> None:
        upload, self._upload = self._upload, None
        if upload is not None:
            # An upload that cannot be aborted stays invisible until the store expires it.
            with contextlib.suppress(Exception):
                upload.__exit__(StorageError, StorageError("given up"), None)
        self._is_open, self._first = False, []
        self._unsign()


def _stat_of(meta: Mapping[str, Any]) -> ObjectStat:
    """Return the status of an object from its metadata."""
    modified_ms = int(meta["last_modified"].timestamp() * 1000)
    return ObjectStat(meta["size"], is_directory=False, modified_ms=modified_ms)


def _aligned(answer: object) -> pa.Buffer:
    """Return bytes as a buffer whose start is aligned, as Arrow's readers want it."""
    buffer = pa.py_buffer(answer)
    if buffer.address % 8 == 0:
        return buffer
    copied = pa.allocate_buffer(buffer.size)
    memoryview(copied).cast("B")[:] = memoryview(buffer).cast("B")
    return copied


class _Reader:
    """An :class:`ObjectReader`; nothing stays open."""

    def __init__(self, storage: ObjectStorage, path: str) -> None:
        self._storage = storage
        self._path = path

    def get_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        return self._storage.get_ranges(self._path, ranges)

    def close(self) -> None:
        """Nothing stays open between two requests."""
