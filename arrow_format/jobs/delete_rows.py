"""Deletion of the rows of given keys: a new version without them, of the files that held them.

The subpartitions of the keys are searched in every file. Map outputs that hold such rows are
written again without them, and take the place of the old ones. The files of earlier versions are
kept until garbage collection removes them. A deletion that fails or dies changes nothing.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.errors import CommitConflictError, OptionError, ShuffleError
from arrow_format.filters.keys import Keys, stored_keys, subpartitions_of_keys
from arrow_format.format.single_values import from_binaries
from arrow_format.format.statistics import has_statistics
from arrow_format.jobs.deletion_receipt import DeletionReceipt, HoldingFile
from arrow_format.jobs.kept_outputs import lost_bounds, superseded_outputs
from arrow_format.jobs.replacement import Replacement, expiry_is_conflict, replace_outputs
from arrow_format.keys.column_statistics import MOST_CHARACTERS
from arrow_format.keys.key_set import KeySet
from arrow_format.keys.partitioner import HashPartitioner, key_columns, partitioner_from_description
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.log.commit_log import AlreadyCommittedError, CommitLog, draft
from arrow_format.log.conflicts import check_expected, check_version_number
from arrow_format.log.entry import ERASE
from arrow_format.log.names import MAP_OUTPUT_DIRECTORY
from arrow_format.log.pending import pending_outputs
from arrow_format.log.reader import LogView
from arrow_format.model import MapOutput
from arrow_format.options import WriteOptions, check_type
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.key_search import Matches, search
from arrow_format.read.shuffle import open_shuffle
from arrow_format.storage.local_dirs import WriteRoots, known_roots
from arrow_format.storage.open import Place, open_storage
from arrow_format.storage.root_owner import directory_id
from arrow_format.write.counters import sum_counters
from arrow_format.write.merger import ignore
from arrow_format.write.row_deleter import RowDeleter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.log.delta import Totals
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.log.state import LogState
    from arrow_format.read.shuffle import Shuffle

ATTEMPTS = 4
"""How often a deletion begins again whose map outputs another writer replaced meanwhile."""


def delete_rows(
    path: Place,
    keys: Keys,
    *,
    expected_version: int | None = None,
    options: WriteOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
    on_bytes: Callable[[int], None] = ignore,
) -> DeletionReceipt:
    """Delete the rows of given keys from the newest version, as a new version.

    Rows that another writer appends meanwhile are kept, those of the keys too: the receipt says
    so. Earlier versions stay readable and hold the rows until they expire and are collected. Where
    another writer merges, deletes or overwrites meanwhile, the deletion begins again with the new
    version, up to :data:`ATTEMPTS` times in all.

    Parameters
    ----------
    path
        Directory or URI of the shuffle, which must be partitioned by the hash or ranges of keys.
    keys
        The keys, one per row: exactly the key columns of the partitioner, as a table, record batch
        or dict of columns; a single value in a dict goes with all of the others. Values are cast to
        the stored types, where none changes by that; a number is no timestamp. A null
        is a key like any other, NaN equals NaN, and -0.0 equals 0.0. Without rows nothing happens.
    expected_version
        Delete only if no rows were added or taken away after this version, retries included.
    options
        Memory, chunk size, level, sync, and local directories for the new files; defaults when
        None. Its codec is not used: files keep theirs.
    storage_options
        As for :func:`~arrow_format.open_shuffle`.
    on_bytes
        Called with the stored bytes that were searched or rewritten since the last call.

    Returns
    -------
    DeletionReceipt
        What was deleted, and what still holds the rows. No version is added where no row has a key;
        where earlier versions may have some, the log says that they are to go.

    Raises
    ------
    ShuffleNotFoundError
        There is no shuffle. Its subclass ``ResultReleasedError``: it was released.
    OptionError
        An argument is bad, or the keys of the shuffle do not decide the subpartition of a row.
    SchemaError
        The columns are not the key columns, or a value does not fit the stored type.
    CommitConflictError
        Rows were added or taken away after ``expected_version``; or other writers replaced the
        files at each attempt.
    CorruptShuffleError, FormatVersionError
        A file to be searched is damaged or missing.
    StorageError, OutOfDiskError
        The files could not be written.

    After any error nothing was changed.
    """
    options = WriteOptions() if options is None else check_type("options", options, WriteOptions)
    check_version_number(expected_version)
    storage = open_storage(path, storage_options)
    for left in reversed(range(ATTEMPTS)):
        shuffle = open_shuffle(storage)
        log = CommitLog(storage)
        check_expected(log, log.view(), expected_version)
        deletion = _Deletion(shuffle, keys, options, on_bytes)
        try:
            with expiry_is_conflict("delete", shuffle):
                return deletion.run(expected_version)
        except AlreadyCommittedError:
            raise
        except CommitConflictError:
            if not left:
                raise
    raise AssertionError  # the last attempt returns or raises


@dataclass(frozen=True, slots=True)
class _Holding:
    """A map output that holds rows of the keys."""

    output: MapOutput
    matches: tuple[Matches, ...]
    """In each of its files."""

    @property
    def num_rows(self) -> int:
        return sum(matches.num_rows for matches in self.matches)


class _Deletion:
    """One attempt to delete rows of the version that a shuffle was opened at.

    Raises what :func:`delete_rows` does.
    """

    def __init__(
        self,
        shuffle: Shuffle,
        keys: Keys,
        options: WriteOptions,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._shuffle = shuffle
        self._newest = shuffle.snapshot.newest
        self._partitioner = _check_partitioned(shuffle)
        self._keys = _key_set(shuffle, self._partitioner, keys)
        self._options = options
        self._on_bytes = on_bytes
        self._indexes = IndexCache(shuffle.storage)
        self._searched: frozenset[int] = frozenset()
        """Numbers of the pending commits that were searched, if any."""

    def run(self, expected_version: int | None) -> DeletionReceipt:
        """Search, write and commit."""
        receipt = DeletionReceipt(
            path=self._shuffle.path,
            version=self._newest.version,
            commit_id=self._newest.commit_id,
            searched_version=self._newest.version,
            unsearched_version=0,
            num_keys=len(self._keys),
            num_rows=0,
            subpartition_rows={},
            num_files=0,
            num_bytes=0,
            written_bytes=0,
            oldest_version=self._newest.version,
            tags={},
            pending=(),
            bound_columns=self._bound_columns(),
            statistics_columns=(),
            files=(),
        )
        if not len(self._keys):
            return receipt
        holding = self._search(self._newest, self._shuffle.map_outputs)
        log = CommitLog(self._shuffle.storage)
        receipt = log.read(lambda view: self._with_others(receipt, log, view))
        if holding:
            return self._carry_out(receipt, holding, expected_version)
        if receipt.files or receipt.pending:
            receipt = self._ask(receipt, log, expected_version)
        return replace(receipt, statistics_columns=self._statistics_columns(self._shuffle.snapshot))

    def _search(self, version: LogEntry, outputs: Sequence[MapOutput]) -> list[_Holding]:
        """Return the map outputs that hold rows of the keys."""
        files = [(output, file) for output in outputs for file in output.files]
        indexes = self._indexes.indexes_of(version, files)
        by_file = search(indexes, self._keys, version.data_schema, self._on_bytes)
        matches = (by_file.get(number, Matches()) for number in count())
        each = [_Holding(output, tuple(islice(matches, len(output.files)))) for output in outputs]
        return [holding for holding in each if holding.num_rows]

    def _with_others(
        self, receipt: DeletionReceipt, log: CommitLog, view: LogView
    ) -> DeletionReceipt:
        """Add what holds rows of the keys, or may, besides the version that is searched."""
        waiting = pending_outputs(log, view)
        self._searched = frozenset(waiting.numbers)
        pending = [entry for entry in waiting.entries if self._may_be_pending(entry)]
        outputs = superseded_outputs(log, view, self._shuffle.snapshot)
        outputs += [output for entry in pending for output in entry.map_outputs]
        tags = view.state.tags.items()
        return replace(
            receipt,
            oldest_version=view.oldest,
            tags={name: tag.version for name, tag in tags if tag.version <= receipt.version},
            pending=tuple(entry.version for entry in pending),
            files=self._files_of(outputs),
        )

    def _with_late(
        self, receipt: DeletionReceipt, log: CommitLog, now: LogState
    ) -> DeletionReceipt:
        """Add what was committed between the search and the deletion, by the state at that."""
        late = [number for number in now.pending.numbers if number not in self._searched]
        found: dict[int, Sequence[MapOutput]] = dict.fromkeys(late, ())
        with contextlib.suppress(ShuffleError):  # else removed since: no one knows what they had
            for number, entry in log.records(late).items():
                found[number] = entry.map_outputs
                if not self._may_be_pending(entry):
                    del found[number]
        outputs = [output for held in found.values() for output in held]
        return replace(
            receipt,
            unsearched_version=now.content if now.content > self._newest.version else 0,
            pending=(*receipt.pending, *found),
            files=receipt.files + self._files_of(outputs),
        )

    def _ask(
        self, receipt: DeletionReceipt, log: CommitLog, expected_version: int | None
    ) -> DeletionReceipt:
        """Say in the log that rows are to go that only earlier versions may have."""
        searched, seen = receipt.version, LogView()

        def decide(view: LogView) -> LogEntry | None:
            nonlocal seen
            check_expected(log, view, expected_version)
            seen = view
            if view.state.deleted >= searched:
                return None
            return draft(view, ERASE, state={"deleted": searched})

        log.append(decide, sync=self._options.sync)
        return self._with_late(receipt, log, seen.state)

    def _may_be_pending(self, entry: LogEntry) -> bool:
        """Whether a pending commit has rows of the keys, as far as that can be known."""
        if self._placed_by(entry) != self._placed_by(self._newest):
            return True
        with contextlib.suppress(ShuffleError):  # flushed and removed meanwhile, say
            return bool(self._search(entry, entry.map_outputs))
        return True

    def _placed_by(self, entry: LogEntry) -> tuple[object, ...]:
        """Return what decides the subpartition of a key among the rows of an entry."""
        types = [field.type for field in entry.data_schema if field.name in self._keys.names]
        return entry.num_subpartitions, dict(entry.partitioner), types

    def _carry_out(
        self, receipt: DeletionReceipt, holding: Sequence[_Holding], expected_version: int | None
    ) -> DeletionReceipt:
        """Write map outputs without the rows, and commit them in the place of the old ones."""
        n = self._newest.num_subpartitions
        totals = np.zeros(n, np.int64), np.zeros(n, np.int64)
        written: list[Replacement] = []

        def write(job: ShuffleJob) -> tuple[list[Replacement], Totals]:
            roots = WriteRoots(job.storage, job.open_local_roots())
            written.extend(
                self._write(job, roots, number, held, totals) for number, held in enumerate(holding)
            )
            return written, totals

        _, committed = replace_outputs(
            "delete", self._shuffle, self._options, write, expected_version
        )
        receipt = self._with_late(receipt, CommitLog(self._shuffle.storage), committed.newest.state)
        lost = np.flatnonzero(totals[0])
        outputs = [held.output for held in holding]
        return replace(
            receipt,
            version=committed.version,
            commit_id=committed.newest.commit_id,
            num_rows=sum(held.num_rows for held in holding),
            subpartition_rows=dict(zip(lost.tolist(), (-totals[0][lost]).tolist(), strict=True)),
            num_files=sum(len(output.files) for output in outputs),
            num_bytes=sum(output.num_bytes for output in outputs),
            written_bytes=sum(output.num_bytes for change in written for output in change.outputs),
            statistics_columns=self._statistics_columns(committed),
            files=self._files_of(outputs) + receipt.files,
        )

    def _write(
        self, job: ShuffleJob, roots: WriteRoots, number: int, holding: _Holding, totals: Totals
    ) -> Replacement:
        """Write one map output without the rows, and add to the totals per subpartition."""
        started = time.perf_counter_ns()
        output = holding.output
        deleter = RowDeleter(
            self._keys, roots, job.metadata(number, 0), job.options, self._on_bytes
        )
        files = []
        for place, (file, matches) in enumerate(zip(output.files, holding.matches, strict=True)):
            name = f"{number:05d}-0-{secrets.token_hex(6)}-{place}"
            index = self._indexes.index_of(self._newest, output, file)
            written, added = deleter.write(index, matches, partial(job.path_in, name))
            for total, part in zip(totals, added, strict=True):
                total += part
            if written is not None:
                files.append(written)
        if not files:
            return Replacement((output,), ())
        counters = sum_counters([output.counters]) | {
            "num_rows": sum(file.num_rows for file in files),
            "raw_bytes": sum(file.raw_bytes for file in files),
            "stored_bytes": sum(file.data_bytes for file in files),
            "num_regions": sum(file.num_regions for file in files),
            "merge_ns": time.perf_counter_ns() - started,
        }
        kept = MapOutput(job.job_id, number, 0, tuple(files), counters, output.position)
        return Replacement((output,), (kept,))

    def _files_of(self, outputs: Iterable[MapOutput]) -> tuple[HoldingFile, ...]:
        """Return the files of map outputs, with the ids of the local directories they are in."""
        each = [(output, file) for output in outputs for file in output.files]
        roots: dict[str, set[str]] = {}
        for output, file in each:
            if file.root:
                roots.setdefault(output.job_id, set()).add(file.root)
        ids = {
            root.path: root.directory_id or directory_id(root.directory) or ""
            for job_id, named in roots.items()
            for root in known_roots(
                self._shuffle.storage, f"{MAP_OUTPUT_DIRECTORY}/{job_id}", named
            )
        }
        return tuple(
            HoldingFile(
                output.job_id, output.map_task, file.root, file.path, ids.get(file.root, "")
            )
            for output, file in each
        )

    def _bound_columns(self) -> tuple[str, ...]:
        partitioner = self._partitioner
        if not isinstance(partitioner, RangePartitioner) or not len(self._keys):
            return ()
        bounds = partitioner.fitted(self._newest.data_schema).bounds
        if bounds is None:
            return ()
        return tuple(n for n in self._keys.names if self._keys.has_value_of(n, bounds[n]))

    def _statistics_columns(self, version: Snapshot) -> tuple[str, ...]:
        """Return columns of which the log has bounds of the past that may be of rows of the keys.

        Of files, and of ranges of other shapes; ``version`` is without these. Rows of the keys that
        only older files had are not read, so every bound that only files of the past have may be of
        one.
        """
        log, schema = CommitLog(self._shuffle.storage), self._newest.data_schema
        for _ in range(2):  # or a moment's fault keeps the receipt open until a compaction
            with contextlib.suppress(ShuffleError):  # the deletion is committed
                lost = log.read(lambda view: lost_bounds(log, view, version))
                found = {n for n, values in lost.of_files.items() if self._may_be_bounds(n, values)}
                found.update(*map(self._columns_of_ranges, lost.of_shapes))
                return tuple(sorted(found))
        return tuple(field.name for field in schema if has_statistics(field.type))

    def _columns_of_ranges(self, description: Mapping[str, Any]) -> set[str]:
        """Return columns of which bounds of an earlier shape may be values of the deleted rows."""
        partitioner = partitioner_from_description(description)
        bounds = partitioner.bounds if isinstance(partitioner, RangePartitioner) else None
        if bounds is None:
            return set()
        names = self._keys.names
        return {
            name
            for name in bounds.schema.names
            if name not in names or self._may_have_value_of(name, bounds[name])
        }

    def _may_have_value_of(self, name: str, values: pa.Array) -> bool:
        try:
            return self._keys.has_value_of(name, values)
        except (ValueError, pa.ArrowException):  # of a type that was not widened to the keys'
            return True

    def _may_be_bounds(self, name: str, stored: pa.Array) -> bool:
        if name not in self._keys.names:
            return True
        try:
            values = from_binaries(stored, self._newest.data_schema.field(name).type)
        except (ValueError, pa.ArrowException):  # of an earlier type
            return True
        is_text = pt.is_string(values.type) or pt.is_binary(values.type)
        if is_text and pc.max(pc.binary_length(values)).as_py() >= MOST_CHARACTERS:
            return True  # it may be cut
        return self._keys.has_value_of(name, values)


def _check_partitioned(shuffle: Shuffle) -> HashPartitioner | RangePartitioner:
    """Return the partitioner of a shuffle whose keys decide the subpartition; else OptionError."""
    partitioner = shuffle.partitioner
    if isinstance(partitioner, HashPartitioner | RangePartitioner):
        return partitioner
    kind = shuffle.snapshot.newest.partitioner["kind"]
    msg = (
        f"{shuffle.path}: is partitioned by {kind!r}, so that no key says where its rows are. "
        "Deletion by key takes a shuffle partitioned by keys or ranges; read this one, and "
        "overwrite it with the rows to keep"
    )
    raise OptionError(msg)


def _key_set(
    shuffle: Shuffle, partitioner: HashPartitioner | RangePartitioner, given: Keys
) -> KeySet:
    names = key_columns(partitioner) or ()
    keys = stored_keys(given, names, shuffle.schema, shuffle.spark_schema)
    n = shuffle.num_subpartitions
    return KeySet(keys, subpartitions_of_keys(keys, partitioner, n), n)
