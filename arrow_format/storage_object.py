"""Shuffles in object stores, ``s3://``, ``gs://`` and ``az://``, by the library obstore.

There are no directories: a name with ``/`` is a name. An object appears whole when its upload is
completed, and is durable then; an upload that nobody completes stays invisible. What a message
tells of an answer are its status, code and text: never a query, a header or an option's value.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import re
import secrets
import time
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.errors import ClosedError, CorruptShuffleError, OptionError, StorageError
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

STORES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore"}
"""Schemes, and the class of obstore that speaks the protocol of each."""

PART_BYTES = 8 << 20
PARTS_UNDER_WAY = 2
"""An open object takes up to three parts of memory: two on their way and one being filled."""
MAX_OBJECT_BYTES = 10_000 * PART_BYTES
"""S3 takes 10,000 parts."""

MAX_REQUESTS = 8
"""Requests worth having under way at once: each waits for the store most of its time."""

_RETRY = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=8)},
}
"""A store that cannot be reached is an error within about a minute."""
_CONFLICTS = 6
_CHECKED: set[tuple[str, str, int]] = set()
"""Buckets that keep the condition of a put, as this process found out."""
_OWNER: dict[str, int] = {}
"""The process that obstore works in."""
_ENVIRONMENT = ("AWS_", "AZURE_", "GOOGLE_")

_NO_BUCKET = "NoSuchBucket|ContainerNotFound|bucket does not exist"
_ADVICE = (
    (_NO_BUCKET, "There is no such bucket: create it, or check the URI"),
    (
        r"169\.254\.169\.254|metadata\.google|Account must be specified",
        "No credentials were found: set them in the environment of every process, such as "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give storage_options",
    ),
    ("status code: 40[13]", "Check the credentials, and what they allow"),
    ("builder error", "For an endpoint without TLS set AWS_ALLOW_HTTP=true or option allow_http"),
    ("HTTP error", "The store cannot be reached: check endpoint, region and network"),
)


class _OutOfRangeError(StorageError):
    """An object has no such range."""


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

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        self._scheme, self._bucket, self._prefix = _parse(uri)
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
        environment = frozenset(
            item for item in os.environ.items() if item[0].startswith(_ENVIRONMENT)
        )
        return _connect(self._scheme, self._bucket, self._options, environment, os.getpid())

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
            upload = _obstore().open_writer(
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
        checked = (self._scheme, self._bucket, os.getpid())
        if checked in _CHECKED:
            return
        probe = f"{path}-probe-{secrets.token_hex(8)}"
        try:
            self._put(probe, b"")
            self._put(probe, b"")
        except ObjectExistsError:
            _CHECKED.add(checked)
        else:
            msg = (
                f"{self.root}: the store replaces an object although it was told not to "
                "(If-None-Match), so commits are not safe. Use one that knows conditional puts"
            )
            raise StorageError(msg)
        finally:
            self.delete(probe)

    def _put(self, path: str, data: bytes) -> None:
        with self._errors("create it", path):
            _obstore().put(self._store, self._key(path), data, mode="create", use_multipart=False)

    def _whole(self, path: str) -> bytes | None:
        """Return all bytes of an object; None when there is none."""
        try:
            with self._errors("read it", path):
                return bytes(_obstore().get(self._store, self._key(path)).bytes())
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
            return [pa.py_buffer(b"") for _ in ranges]
        try:
            with self._errors("read it", path):
                found = _obstore().get_ranges(
                    self._store,
                    self._key(path),
                    starts=[offset for offset, _ in wanted],
                    lengths=[length for _, length in wanted],
                    coalesce=0,
                )
        except _OutOfRangeError:
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
                return ObjectStat(_obstore().head(self._store, key)["size"], is_directory=False)
        with self._errors("look at it", path):
            below = next(iter(_obstore().list(self._store, key or None, chunk_size=1)), None)
        return ObjectStat(0, is_directory=True) if below else None

    def list(self, path: str) -> list[str]:
        """See :meth:`Storage.list`."""
        key = self._key(path)
        with self._errors("list it", path):
            found = _obstore().list_with_delimiter(self._store, key or None)
        below = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
        return sorted(one.rpartition("/")[2] for one in below)

    def delete(self, path: str) -> None:
        """See :meth:`Storage.delete`."""
        with contextlib.suppress(ObjectNotFoundError), self._errors("delete it", path):
            _obstore().delete(self._store, self._key(path))

    @contextlib.contextmanager
    def _errors(self, what: str, path: str) -> Iterator[None]:
        """Turn an error of obstore into ours, with what was tried and where."""
        where = f"{self.root}/{path}".rstrip("/")
        exceptions = importlib.import_module("obstore.exceptions")
        # Never "from error": the whole answer stands in there, and what it repeats of the request.
        try:
            yield
        except exceptions.AlreadyExistsError:
            msg = f"{where}: exists already; cannot {what}"
            raise ObjectExistsError(msg) from None
        except (exceptions.BaseError, OSError, ValueError) as error:
            text = str(error).partition("\n\nDebug source")[0]
            if isinstance(error, FileNotFoundError) and not re.search(_NO_BUCKET, text):
                msg = f"{where}: not there; cannot {what}"
                raise ObjectNotFoundError(msg) from None
            advice = next((a for pattern, a in _ADVICE if re.search(pattern, text)), "Try again")
            answer = self._options.hidden_in(_answer(text))
            msg = f"{where}: {answer}; cannot {what}. {advice}"
            raise (_OutOfRangeError if "status code: 416" in text else StorageError)(msg) from None


def _answer(text: str) -> str:
    """Return what may be shown of an error: the status, its code and text, or what went wrong."""
    status = re.search(r"status code: (\d+[^:]*)", text)
    code = re.search(r"<Code>(.*?)</Code>", text)
    said = re.search(r'<Message>(.*?)[\n<]|"message":\s*"([^"]*)"', text)
    if status:
        parts = [status[1].strip(), code and code[1], said and (said[1] or said[2])]
        return ": ".join(part for part in parts if part)
    # No query of a URL, where signatures stand, and no user of one.
    return re.sub(r"(https?://)(?:[^/@\s]*@)?([^\s?]*)(\?\S*)?", r"\1\2", text.partition("\n")[0])


def _parse(uri: str) -> tuple[str, str, str]:
    """Return scheme, bucket and prefix of a URI."""
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    prefix = prefix.strip("/")
    if "@" in bucket or "?" in rest:  # not to be repeated in a message
        msg = (
            f"path={scheme}://...: expected {scheme}://bucket/prefix and nothing else; credentials "
            "belong into the environment or storage_options"
        )
        raise OptionError(msg)
    if not bucket or any(part in ("", ".", "..") for part in prefix.split("/") if prefix):
        msg = f"path={uri!r}: expected {scheme}://bucket/prefix"
        raise OptionError(msg)
    return scheme, bucket, prefix


def _obstore() -> Any:  # noqa: ANN401
    try:
        return importlib.import_module("obstore")
    except ImportError:
        msg = (
            "object stores need the package obstore, which is not installed: "
            "pip install 'arrow-shuffle[object-stores]'"
        )
        raise OptionError(msg) from None


@lru_cache(8)
def _connect(
    scheme: str,
    bucket: str,
    options: StorageOptions,
    environment: frozenset[tuple[str, str]],
    process: int,
) -> Any:  # noqa: ANN401
    """Return the store of obstore; it keeps connections, so it is made once."""
    del environment  # obstore looks into it itself
    _check_process(process)
    _obstore()
    exceptions = importlib.import_module("obstore.exceptions")
    make: Callable[..., Any] = getattr(importlib.import_module("obstore.store"), STORES[scheme])
    try:
        return make(bucket, config=dict(options), retry_config=_RETRY)
    except exceptions.UnknownConfigurationKeyError as error:
        msg = f"storage_options: {str(error).splitlines()[0]} See the guide, Object stores"
        raise OptionError(msg) from None
    except (exceptions.BaseError, OSError, ValueError) as error:
        text = str(error).partition("\n\nDebug source")[0]
        advice = next((a for pattern, a in _ADVICE if re.search(pattern, text)), "Check them")
        msg = (
            f"{scheme}://{bucket}: storage_options or environment do not do: "
            f"{options.hidden_in(_answer(text))}. {advice}"
        )
        raise OptionError(msg) from None


def _check_process(process: int) -> None:
    """Refuse a fork of a process that used a store: it lacks the threads that do the work."""
    if process != _OWNER.setdefault("process", process):
        msg = (
            "this process was forked from one that used an object store before, and cannot use "
            "one: start processes by spawn or forkserver"
        )
        raise StorageError(msg)


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
