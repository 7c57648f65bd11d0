"""Deletion of the rows of given keys: a new version without them, of the files that held them.

The subpartitions of the keys are searched in every file. Map outputs that hold such rows are
written again without them, and take the place of the old ones; or a mask says that they are gone.
The files of earlier versions are kept until garbage collection removes them. A deletion that fails
or dies changes nothing.

The receipt is complete before the commit: where the deletion is a transaction, the entry has it.
"""

from __future__ import annotations

import contextlib
import secrets
import uuid
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs

from arrow_format.errors import CommitConflictError, OptionError, ShuffleError
from arrow_format.filters.keys import Keys, stored_keys, subpartitions_of_keys
from arrow_format.jobs.bounds_of_keys import BoundsOfKeys, LookedBack
from arrow_format.jobs.deletion_receipt import DeletionReceipt, HoldingFile
from arrow_format.jobs.job_files import job_directory
from arrow_format.jobs.live_outputs import superseded_outputs
from arrow_format.jobs.mask_rows import MaskedRows, mask_rows
from arrow_format.jobs.replacement import (
    Replacement,
    expiry_is_conflict,
    open_to_replace,
    replace_outputs,
)
from arrow_format.jobs.tombstones import masked
from arrow_format.keys.key_set import KeySet
from arrow_format.keys.partitioner import HashPartitioner, key_columns
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.log.commit_log import AlreadyCommittedError, CommitLog, EntryFields, draft
from arrow_format.log.conflicts import check_expected, check_version_number
from arrow_format.log.entry import ERASE
from arrow_format.log.outputs import NO_OUTPUTS, MapOutputs
from arrow_format.log.pending import pending_outputs
from arrow_format.log.totals import sum_totals
from arrow_format.log.transactions import committed_by, find_transaction
from arrow_format.model import MapOutput, Transaction
from arrow_format.options import WriteOptions, check_flag, check_write_options, ignore
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.key_search import Matches, search
from arrow_format.read.tombstones import entry_of, opened, shape_of, unmasked
from arrow_format.storage.local_dirs import WriteRoots, known_roots
from arrow_format.storage.open import Place, open_storage
from arrow_format.storage.root_owner import directory_id
from arrow_format.write.row_deleter import RowDeleter
from arrow_format.write.tombstones import metadata_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.log.totals import Totals
    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.open import Storage

MOST_SEARCHED = 8
"""How often pending commits that come while a deletion is committed are searched. After that they
may hold rows of the keys: more would come than it can look at."""

ATTEMPTS = 4
"""How often a deletion begins again whose map outputs another writer replaced meanwhile."""


def delete_rows(
    path: Place,
    keys: Keys,
    *,
    erase: bool = True,
    expected_version: int | None = None,
    transaction: tuple[str, int] | None = None,
    options: WriteOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
    on_bytes: Callable[[int], None] = ignore,
) -> DeletionReceipt:
    """Delete the rows of given keys from the newest version, as a new version.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.delete`.
    """
    options = check_write_options(options)
    check_flag("erase", erase)
    check_version_number(expected_version)
    once = Transaction.of(transaction)
    storage = open_storage(path, storage_options)
    for left in reversed(range(ATTEMPTS)):
        before = repeated_deletion(storage, once)
        if before is not None:
            return before
        shuffle = open_to_replace(storage, expected_version)
        deletion = _Deletion(shuffle, keys, options, once, expected_version, on_bytes, erase=erase)
        try:
            with expiry_is_conflict("delete", shuffle):
                return deletion.run()
        except _RepetitionError as error:
            return DeletionReceipt.from_log(error.receipt, storage.root)
        except CommitConflictError as error:
            before = repeated_deletion(storage, once)
            if before is not None:
                return before
            if not left or isinstance(error, AlreadyCommittedError):
                raise
    raise AssertionError  # the last attempt returns or raises


def repeated_deletion(storage: Storage, once: Transaction | None) -> DeletionReceipt | None:
    """Return the receipt of a deletion that was committed before; None if it may be committed.

    Raises CommitConflictError as :func:`delete_rows` does of a transaction.
    """
    if once is None:
        return None
    before = find_transaction(CommitLog(storage), once, deletes=True)
    return None if before is None else DeletionReceipt.from_log(before.receipt or {}, storage.root)


class _RepetitionError(ShuffleError):
    """Another process committed the transaction meanwhile."""

    def __init__(self, receipt: Mapping[str, Any]) -> None:
        super().__init__("the transaction was committed meanwhile")
        self.receipt = receipt


@dataclass(frozen=True, slots=True)
class _Holding:
    """A map output that holds rows of the keys."""

    output: MapOutput
    matches: tuple[Matches, ...]
    """In each of its files."""
    are_tombstones: bool = False

    @property
    def num_rows(self) -> int:
        return 0 if self.are_tombstones else sum(each.num_rows for each in self.matches)


@dataclass(slots=True)
class _Late:
    """What came between the search and the commit; kept, where the commit is tried again."""

    holding: dict[int, MapOutputs] = field(default_factory=dict)
    """Pending commits that may hold rows of the keys, and their map outputs."""
    numbers: set[int] = field(default_factory=set)
    """All that were looked at."""
    num_tries: int = 0
    """How often there were some that had not been looked at."""


class _Deletion:
    """One attempt to delete rows of the version that a shuffle was opened at.

    Raises what :func:`delete_rows` does.
    """

    def __init__(
        self,
        shuffle: Shuffle,
        keys: Keys,
        options: WriteOptions,
        once: Transaction | None,
        expected_version: int | None,
        on_bytes: Callable[[int], None],
        *,
        erase: bool,
    ) -> None:
        self._shuffle = shuffle
        self._erase = erase
        self._log = CommitLog(shuffle.storage)
        self._newest = shuffle.snapshot.newest
        self._partitioner = _check_partitioned(shuffle)
        self._keys = _key_set(shuffle, self._partitioner, keys)
        self._bounds = BoundsOfKeys(self._log, self._newest, self._keys)
        self._options = options
        self._once = once
        self._expected_version = expected_version
        self._on_bytes = on_bytes
        self._indexes = IndexCache(shuffle.storage)
        self._searched: frozenset[int] = frozenset()
        """Numbers of the pending commits that were searched, if any."""
        self._late = _Late()

    def run(self) -> DeletionReceipt:
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
            bound_columns=self._bounds.of_ranges() if self._erase else (),
            statistics_columns=(),
            files=(),
            erases=self._erase,
        )
        if not len(self._keys):
            return receipt if self._once is None else self._ask(receipt)
        holding = self._search(self._newest, self._shuffle.map_outputs)
        if self._erase and len(tombstones := self._shuffle.snapshot.tombstones):
            holding += self._search(self._newest, tombstones, are_tombstones=True)
        log = CommitLog(
            self._shuffle.storage
        )  # keeps what it has read: not while files are written
        receipt = log.read(lambda view: self._with_others(receipt, log, view))
        return self._carry_out(receipt, holding) if holding else self._ask(receipt)

    def _search(
        self, version: LogEntry, outputs: Sequence[MapOutput], *, are_tombstones: bool = False
    ) -> list[_Holding]:
        """Return the map outputs that hold rows of the keys; in subpartitions of the version."""
        files = [(output, file) for output in outputs for file in output.files]
        indexes, schema = self._indexes.indexes_of(version, files), version.data_schema
        if are_tombstones:
            indexes = opened(version, outputs, self._indexes)
            schema = shape_of(version.shape).data_schema
        by_file = search(indexes, self._keys, schema, self._on_bytes, with_rows=not self._erase)
        matches = (by_file.get(number, Matches()) for number in count())
        each = [
            _Holding(output, tuple(islice(matches, len(output.files))), are_tombstones)
            for output in outputs
        ]
        return [holding for holding in each if self._is_due(holding)]

    def _is_due(self, holding: _Holding) -> bool:
        """Whether there is something to delete: also what a mask took, if bytes are to go."""
        return any(each.chunks if self._erase else each.num_rows for each in holding.matches)

    def _with_others(
        self, receipt: DeletionReceipt, log: CommitLog, view: LogView
    ) -> DeletionReceipt:
        """Add what holds rows of the keys, or may, besides the version that is searched."""
        waiting = pending_outputs(log, view)
        self._searched = frozenset(waiting.numbers)
        pending = [entry for entry in waiting.entries if self._may_be_pending(entry)]
        outputs: list[MapOutput] = []
        if self._erase:  # else it is never asked when the rows of earlier versions are gone
            outputs += superseded_outputs(log, view, self._shuffle.snapshot)
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
        self,
        receipt: DeletionReceipt,
        view: LogView,
        back: LookedBack | None,
        now: Callable[[], MapOutputs],
    ) -> DeletionReceipt:
        """Add what was committed between the search and the deletion, at the number it takes."""
        late, content = self._late, view.state.content
        new = [
            number
            for number in view.state.pending.numbers
            if number not in self._searched and number not in late.numbers
        ]
        late.numbers.update(new)
        late.holding |= dict.fromkeys(new, NO_OUTPUTS)
        late.num_tries += bool(new)
        if late.num_tries <= MOST_SEARCHED:
            with contextlib.suppress(ShuffleError):  # else removed since, with their map outputs
                for number, entry in self._log.records(new).items():
                    late.holding[number] = entry.map_outputs
                    if not self._may_be_pending(entry):
                        del late.holding[number]
        waiting = {*view.state.pending.numbers}
        pending = [number for number in late.holding if number in waiting]
        outputs = [output for number in pending for output in late.holding[number]]
        return replace(
            receipt,
            unsearched_version=content if content > self._newest.version else 0,
            pending=(*receipt.pending, *pending),
            files=receipt.files + self._files_of(outputs),
            statistics_columns=tuple(
                sorted(() if back is None else self._bounds.columns_at(view, back, now))
            ),
        )

    def _ask(self, receipt: DeletionReceipt) -> DeletionReceipt:
        """Say in the log that rows are to go that only earlier versions may have, if any may."""
        searched, done = receipt.version, receipt
        is_sought = self._erase and len(self._keys) > 0
        back = self._bounds.looked_back(lambda now: now) if is_sought else None

        def decide(view: LogView) -> LogEntry | None:
            nonlocal done
            check_expected(self._log, view, self._expected_version)
            self._check_is_new(view)
            if len(self._keys):
                done = self._with_late(receipt, view, back, partial(self._outputs_at, view))
            is_due = self._erase and view.state.deleted < searched
            is_asked = is_due and bool(done.files or done.pending)
            if self._once is None and not is_asked:
                return None
            state = {"deleted": searched} if is_asked else {}
            committed = self._committed_as(done)
            if committed:  # by which the log finds a transaction
                committed["job_id"] = uuid.uuid4().hex
            return draft(view, ERASE, state=state, **committed)

        self._log.append(decide, sync=self._options.sync)
        return done

    def _outputs_at(self, view: LogView) -> MapOutputs:
        snapshot = self._log.snapshot_of(view)
        return NO_OUTPUTS if snapshot is None else snapshot.map_outputs

    def _check_is_new(self, view: LogView) -> None:
        """Raise where another process has committed the transaction."""
        if self._once is not None:
            before = committed_by(self._log, view, self._once, deletes=True)
            if before is not None:
                raise _RepetitionError(before.receipt or {})

    def _committed_as(self, receipt: DeletionReceipt) -> EntryFields:
        """Return what an entry says of the transaction, if it is one."""
        if self._once is None:
            return {}
        return {"transaction": self._once, "receipt": receipt.in_log()}

    def _may_be_pending(self, entry: LogEntry) -> bool:
        """Whether a pending commit has rows of the keys, as far as that can be known."""
        if self._placed_by(entry) != self._placed_by(self._newest):
            return True
        n = self._newest.num_subpartitions
        # One that became pending before a rescale may have fewer, by which no key is known.
        if not isinstance(self._partitioner, HashPartitioner) or entry.num_subpartitions % n:
            n = entry.num_subpartitions
        if n != self._newest.num_subpartitions:
            return True
        with contextlib.suppress(ShuffleError):  # flushed and removed meanwhile, say
            return bool(self._search(entry.divided(n), entry.map_outputs))
        return True

    def _placed_by(self, entry: LogEntry) -> tuple[object, ...]:
        """Return what decides the subpartition of a key among the rows of an entry."""
        types = [field.type for field in entry.data_schema if field.name in self._keys.names]
        return dict(entry.partitioner), types

    def _carry_out(self, receipt: DeletionReceipt, holding: Sequence[_Holding]) -> DeletionReceipt:
        """Write map outputs without the rows, and commit them in the place of the old ones."""
        n = self._newest.num_subpartitions
        totals = np.zeros(n, np.int64), np.zeros(n, np.int64)
        inputs = MapOutputs.of(held.output for held in holding)
        written, back = NO_OUTPUTS, None
        decided: Callable[[], DeletionReceipt] = lambda: receipt  # noqa: E731

        def after(now: MapOutputs) -> MapOutputs:
            return MapOutputs.concat([now.without(inputs.keys), written])

        def write(job: ShuffleJob) -> tuple[list[Replacement], Totals]:
            nonlocal written, back, receipt, totals
            if self._erase:
                roots = WriteRoots(job.storage, job.open_local_roots())
                changes = [
                    self._write(job, roots, number, held, totals)
                    for number, held in enumerate(holding)
                ]
            else:
                changes, totals = mask_rows(job, map(self._masked, holding))
            outputs = MapOutputs.of(output for change in changes for output in change.outputs)
            written = outputs.with_missing_columns(job.known, job.unlogged)
            back = self._bounds.looked_back(after) if self._erase else None
            lost = np.flatnonzero(totals[0])
            receipt = replace(
                receipt,
                num_rows=sum(held.num_rows for held in holding),
                subpartition_rows=dict(
                    zip(lost.tolist(), (-totals[0][lost]).tolist(), strict=True)
                ),
                num_files=inputs.num_files,
                num_bytes=inputs.num_bytes,
                written_bytes=written.num_bytes if self._erase else 0,
                files=self._files_of(inputs) + receipt.files,
            )
            return changes, totals

        def receipt_at(
            entry: LogEntry, view: LogView, version: Callable[[], Snapshot]
        ) -> DeletionReceipt:
            named = replace(receipt, version=view.newest + 1, commit_id=entry.commit_id)
            return self._with_late(named, view, back, lambda: after(version().map_outputs))

        def complete(entry: LogEntry, view: LogView, version: Callable[[], Snapshot]) -> LogEntry:
            nonlocal decided
            decided = partial(receipt_at, entry, view, version)
            if self._once is None:  # what the receipt takes would let other writers be faster
                return entry
            self._check_is_new(view)
            done = decided()
            decided = lambda: done  # noqa: E731
            return structs.replace(entry, **self._committed_as(done))

        replace_outputs(
            "delete",
            self._shuffle,
            self._options if self._erase else replace(self._options, local_dirs=()),
            len(holding) if self._erase else 0,
            write,
            self._expected_version,
            complete,
        )
        return decided()

    def _masked(self, holding: _Holding) -> MaskedRows:
        """Return the rows of a map output that are to be masked."""
        files = [(holding.output, file) for file in holding.output.files]
        indexes = [*self._indexes.indexes_of(self._newest, files)]
        return MaskedRows(holding.output, indexes, [each.by_region for each in holding.matches])

    def _write(
        self, job: ShuffleJob, roots: WriteRoots, number: int, holding: _Holding, totals: Totals
    ) -> Replacement:
        """Write one map output without the rows, and add to the totals per subpartition."""
        output, version, metadata = holding.output, self._newest, job.metadata(number, 0)
        if holding.are_tombstones:
            totals = np.zeros_like(totals[0]), np.zeros_like(totals[1])  # which are without them
            output, version = unmasked(output), entry_of(version)
            metadata = metadata_of(metadata, version.data_schema)
        deleter = RowDeleter(self._keys, roots, metadata, job.options, self._on_bytes)
        files = []
        for place, (file, matches) in enumerate(zip(output.files, holding.matches, strict=True)):
            name = f"{number:05d}-0-{secrets.token_hex(6)}-{place}"
            index = self._indexes.index_of(version, output, file)
            written, added = deleter.write(index, matches, partial(job.path_in, number, name))
            for total, part in zip(totals, sum_totals([added], len(totals[0])), strict=True):
                total += part
            if written is not None:
                files.append(written)
        if not files:
            return Replacement((holding.output,), ())
        kept = MapOutput(job.job_id, metadata.map_task, 0, tuple(files), output.position)
        if holding.are_tombstones:
            kept = replace(kept, column_ids=version.shape.column_ids)
            (kept,) = masked(job, self._newest, [kept], self._indexes)
        return Replacement((holding.output,), (kept,))

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
            for root in known_roots(self._shuffle.storage, job_directory(job_id), named)
        }
        return tuple(
            HoldingFile(
                output.job_id, output.map_task, file.root, file.path, ids.get(file.root, "")
            )
            for output, file in each
        )


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
