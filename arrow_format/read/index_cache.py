"""Cache of the verified indexes of one version's files, bounded in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from arrow_format.arrays.column_ids import Columns, inside_is_alike, names_in, problem_of_ids
from arrow_format.arrays.schema_evolution import can_read_as, shared_columns
from arrow_format.concurrency import run_concurrently
from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.read.partitioned_file import PartitionedFileReader, decode_fetched
from arrow_format.read.scheduler import ADVICE
from arrow_format.storage.local_dirs import ReadRoots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.log.entry import LogEntry
    from arrow_format.model import MapOutput, PartitionedFile
    from arrow_format.read.partitioned_file import FetchedBlock, IndexPart
    from arrow_format.storage.open import Storage

CACHE_BYTES = 32 << 20
MAX_WINDOW = 64
"""Files whose indexes are decoded together: in each call NumPy does little for one of them."""
WINDOW_BYTES = 256 << 10
"""Of their indexes, on disk; more gain nothing, and all of them are in memory at a time."""

Loaded = TypeVar("Loaded")
"""What a caller wants of an index."""
Ranges = TypeVar("Ranges", None, "Sequence[tuple[int, int]]")
"""Subpartitions ``[first, end)`` that are wanted of a file; None for all."""
Wanted = TypeVar("Wanted", bound="tuple[MapOutput, PartitionedFile, Any, Any]")


class IndexCache:
    """Opens and verifies indexes, as far as they are needed, and keeps those used most recently.

    Safe to share between threads. It keeps at most ``max_bytes`` of blocks and directories, and the
    last index whatever its size. An index that is missing, damaged, or of another map output or
    schema raises CorruptShuffleError, one of a newer version FormatVersionError.
    """

    def __init__(self, storage: Storage, max_bytes: int = CACHE_BYTES) -> None:
        self.roots = ReadRoots(storage)
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[str, str, int], tuple[PartitionedFileReader, int]] = (
            OrderedDict()
        )
        """With the bytes of each, by storage, path and mask; most recently used last."""
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def index_of(
        self, version: LogEntry, output: MapOutput, file: PartitionedFile
    ) -> PartitionedFileReader:
        """Return the whole index of a file of a version, given the version's newest entry."""
        (index,) = self.indexes_of(version, [(output, file)])
        return index

    def _fetched(
        self,
        version: LogEntry,
        output: MapOutput,
        file: PartitionedFile,
        ranges: Sequence[tuple[int, int]] | None,
        columns: Sequence[str],
    ) -> tuple[PartitionedFileReader, list[FetchedBlock]]:
        """Open an index unless it is kept, and read what is missing of ranges."""
        storage = self.roots.storage_of(file, output.job_id)
        with self._lock:
            kept = self._kept.get((storage.root, file.path, file.mask.number))
        with _described(output):
            if kept is None:
                reader = PartitionedFileReader(storage, file, self.roots.storage)
                if output.column_ids:  # none are given before the commit: names are the version's
                    _name_columns(reader, version, output)
                _check_identity(reader, version, output)
            else:
                reader = kept[0]
            reader.mask  # noqa: B018  here, where several are read concurrently
            return reader, reader.fetch(ranges, columns)

    def _keep(self, reader: PartitionedFileReader) -> None:
        key = reader.storage.root, reader.file.path, reader.file.mask.number
        num_bytes = reader.num_bytes
        with self._lock:
            _, before = self._kept.pop(key, (reader, 0))
            self._kept[key] = reader, num_bytes
            self._kept_bytes += num_bytes - before
            while self._kept_bytes > self._max_bytes and len(self._kept) > 1:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._kept_bytes -= dropped

    def indexes_of(
        self, version: LogEntry, files: Iterable[tuple[MapOutput, PartitionedFile]]
    ) -> Iterator[PartitionedFileReader]:
        """Yield the whole index of each file, in their order.

        Where each costs a round trip, some are loaded concurrently, at most as many as are kept.
        """
        wanted = ((output, file, None, ()) for output, file in files)
        windows = self._all(version, wanted, lambda reader, *_: reader.load())
        return chain.from_iterable(windows)

    def parts_of(
        self,
        version: LogEntry,
        files: Iterable[
            tuple[MapOutput, PartitionedFile, Sequence[tuple[int, int]], Sequence[str]]
        ],
    ) -> Iterator[list[IndexPart]]:
        """Yield what the index of each file says of ranges of subpartitions, in their order.

        As :meth:`indexes_of`, those together that were opened together; the last of each is columns
        of which statistics are wanted too. See :meth:`PartitionedFileReader.of_ranges`.
        """
        return self._all(version, files, PartitionedFileReader.of_ranges)

    def _all(
        self,
        version: LogEntry,
        files: Iterable[tuple[MapOutput, PartitionedFile, Ranges, Sequence[str]]],
        load: Callable[[PartitionedFileReader, Ranges, Sequence[str]], Loaded],
    ) -> Iterator[list[Loaded]]:
        max_requests = self.roots.storage.max_requests
        for window in self._windows(files, max_requests):
            fetched = run_concurrently(
                [partial(self._fetched, version, *wanted) for wanted in window],
                max_requests,
            )
            # Below, the reader of one that cannot be decoded says which it is.
            with suppress(CorruptShuffleError, FormatVersionError):
                decode_fetched(chain.from_iterable(blocks for _, blocks in fetched))
            loaded: list[Loaded] = []
            try:
                for (output, _, ranges, columns), (reader, _) in zip(window, fetched, strict=True):
                    with _described(output):
                        loaded.append(load(reader, ranges, columns))
                    self._keep(reader)
            except (CorruptShuffleError, FormatVersionError):
                yield loaded  # what is before the damaged one
                raise
            yield loaded

    def _windows(self, files: Iterable[Wanted], first: int) -> Iterator[list[Wanted]]:
        """Yield files that are opened together: ``first``, then more where they are small."""
        window: list[Wanted] = []
        num_bytes, most = 0, first
        for wanted in files:
            size = wanted[1].index_bytes
            most_bytes = self._max_bytes
            if len(window) >= first:
                most_bytes = min(most_bytes, WINDOW_BYTES)
            if window and (len(window) == most or num_bytes + size > most_bytes):
                yield window
                window, num_bytes, most = [], 0, max(first, min(2 * most, MAX_WINDOW))
            window.append(wanted)
            num_bytes += size
        if window:
            yield window


@contextmanager
def _described(output: MapOutput) -> Iterator[None]:
    """Add to errors of the block whose index it is, and what to do."""
    try:
        yield
    except (CorruptShuffleError, FormatVersionError) as error:
        msg = f"{error} (index of map task {output.map_task}, attempt {output.attempt})"
        if isinstance(error, CorruptShuffleError):  # copies of a newer version do not help
            msg = f"{msg}. {ADVICE}"
        raise type(error)(msg) from error


def _name_columns(reader: PartitionedFileReader, version: LogEntry, output: MapOutput) -> None:
    """Call the columns of a file what its version calls those with the same ids."""
    stored, columns = Columns(reader.metadata.data_schema, output.column_ids), version.columns
    if stored == columns:  # as in nearly all files; walking through a schema takes long
        return
    problem = problem_of_ids(stored)
    if problem is None and not inside_is_alike(stored, columns):
        problem = "what is inside a column has other ids than in its version"
    if problem is not None:
        msg = (
            f"{reader.storage.root}/{reader.file.index_path}: the commit log has ids that are not "
            f"those of its columns ({problem}). {ADVICE}"
        )
        raise CorruptShuffleError(msg)
    reader.rename_columns(names_in(stored, columns))


def _check_identity(reader: PartitionedFileReader, version: LogEntry, output: MapOutput) -> None:
    where = f"{reader.storage.root}/{reader.file.index_path}"
    metadata = reader.metadata
    expected = (output.job_id, output.map_task, output.attempt)
    if (metadata.job_id, metadata.map_task, metadata.attempt) != expected:
        msg = (
            f"{where}: is of job {metadata.job_id}, map task {metadata.map_task}, attempt "
            f"{metadata.attempt}; the commit log expects job {output.job_id}, map task "
            f"{output.map_task}, attempt {output.attempt}. The file was swapped with another"
        )
        raise CorruptShuffleError(msg)
    n, of_version = metadata.num_subpartitions, version.num_subpartitions
    is_multiple = not n % of_version if not reader.file.num_broadcast_rows else n == of_version
    if not is_multiple or n != reader.file.num_subpartitions:
        actual = f"{n} subpartitions"
        wanted = f"{of_version}, of this file {reader.file.num_subpartitions}"
    elif not can_read_as(
        shared_columns(metadata.data_schema, version.data_schema), version.data_schema
    ):
        actual, wanted = _columns(metadata.data_schema), _columns(version.data_schema)
    elif metadata.sort_by != version.sort_by:
        actual, wanted = _order(metadata.sort_by), _order(version.sort_by)
    else:
        reader.num_subpartitions = version.num_subpartitions
        return
    msg = (
        f"{where}: has {actual}; its version has {wanted}. Map task {output.map_task}, "
        f"attempt {output.attempt}, was not written for this shuffle: write the shuffle again"
    )
    raise CorruptShuffleError(msg)


def _columns(schema: pa.Schema) -> str:
    return f"the columns {', '.join(f'{field.name}: {field.type}' for field in schema)}"


def _order(sort_by: SortBy) -> str:
    return ", ".join(f"{name} {order}" for name, order in sort_by) or "no sort order"
