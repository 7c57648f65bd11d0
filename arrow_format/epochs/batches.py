"""The batches of a rank in one epoch after the other, and its position in them."""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from arrow_format.epochs.position import Position, no_state, position_of
from arrow_format.epochs.reader import EpochReader
from arrow_format.errors import ClosedError, OptionError, ShuffleNotFoundError, StorageError
from arrow_format.options import check_flag, check_integer
from arrow_format.streaming.version_hold import VersionHold

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from arrow_format.epochs.options import Epochs
    from arrow_format.model import Int64Array
    from arrow_format.read.shuffle import Shuffle

LOG = logging.getLogger(__name__)

LARGEST = (1 << 63) - 1


class EpochBatches:
    """Record batches of the rows of a shuffle, in epochs, for one of several ranks.

    .. code-block:: python

        epochs = shuffle.epochs(["x", "y"], batch_size=500, seed=7)
        for epoch in range(epochs.epoch, 10):
            epochs.set_epoch(epoch)
            for batch in epochs: ...

    Iterating yields the batches of the epoch, those that are left where a position was loaded.
    Parameters are those of :meth:`arrow_shuffle.Shuffle.epochs`.
    """

    def __init__(
        self,
        rows: Shuffle,
        columns: Sequence[str] | None,
        epochs: Epochs,
        *,
        rank: int = 0,
        world_size: int = 1,
        hold: bool = True,
    ) -> None:
        self.rank, self.world_size = check_rank(rank, world_size)
        self._epochs = epochs
        self._columns = None if columns is None else [*columns]
        self._wants_hold = check_flag("hold", hold)
        self._hold: VersionHold | None = None
        self._follows = rows.span is None and not rows.is_named
        self.reader = EpochReader(rows, rows.schema_of(columns).names, epochs)
        """Reads the batches of the version."""
        self._pin(rows, self.reader)
        self.position = Position.start(0, epochs.lanes)
        """Where all ranks are, as far as this one knows."""
        self._batches: Int64Array | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_hold": None, "_wants_hold": False}

    def close(self) -> None:
        """Let the version expire, which is kept from that while this object is there."""
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    def _keep_version(self) -> None:
        """Keep collections of garbage from the version, where that can be written down."""
        if not self._wants_hold or (self._hold is not None and self._hold.version == self.version):
            return
        try:
            if self._hold is not None and self._hold.version < self.version:
                self._hold.move(self.version)
                return
            self.close()
            self._hold = VersionHold.take(storage=self._rows.storage, version=self.version)
        except (StorageError, ClosedError) as error:
            self.close()
            LOG.info("%s: reads a version that may expire: %s", self.path, error)

    def _pin(self, rows: Shuffle, reader: EpochReader | None = None) -> None:
        if reader is None:
            reader = EpochReader(rows, self.reader.columns, self._epochs)
        self.reader = reader
        self._rows = rows
        fault = self.reader.fault
        if fault is not None:
            warnings.warn(fault, stacklevel=4)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches: the columns have the types of the version."""
        return self._rows.schema_of(self.reader.columns)

    @property
    def path(self) -> str:
        """Path of the shuffle."""
        return self._rows.path

    @property
    def num_rows(self) -> int:
        """Rows of an epoch, of all ranks."""
        return self.reader.num_rows

    @property
    def version(self) -> int:
        """The version that the epoch reads."""
        return self._rows.version

    @property
    def epoch(self) -> int:
        """The epoch that iterating reads."""
        return self.position.epoch

    def __len__(self) -> int:
        """Return the batches that are left of the epoch, for this rank alone, without workers."""
        return self.num_batches(1)

    def num_batches(self, num_workers: int) -> int:
        """Return the batches that are left of the epoch, for so many workers of this rank."""
        position = self.position_of(num_workers)
        each = self.reader.num_batches(position)
        left = np.array(each) - position.batches  # fewer than none of a state with pad=True
        return int(np.maximum(left, 0)[self.rank * num_workers :][:num_workers].sum())

    def readers(self, num_workers: int) -> range:
        """Return the numbers of the readers of this rank, one for each worker."""
        return range(self.rank * num_workers, (self.rank + 1) * num_workers)

    def position_of(self, num_workers: int) -> Position:
        """Return the position as so many workers of each rank go on from it."""
        num_readers, lanes = self.world_size * num_workers, self._epochs.lanes
        if self._epochs.drop_last and num_readers > lanes:
            msg = (
                f"drop_last=True: of {num_readers} readers (workers of ranks) {lanes} have a lane, "
                f"the others no rows, and so no reader would get a batch; give lanes={num_readers} "
                "or more"
            )
            raise OptionError(msg)
        return self.position.read_by(num_readers)

    def set_epoch(self, epoch: int, *, version: int | None = None) -> None:
        """Let the next iterations read an epoch, from its begin unless its position was loaded.

        It reads the newest version there is now, unless the shuffle was opened by number, tag or
        time, or is of rows that were ``added``. Several ranks must read the same version: they stay
        at theirs, unless one is given.

        Parameters
        ----------
        epoch
            Number of the epoch, from 0: with the seed it decides the order.
        version
            The version to read, the same on all ranks, such as :attr:`version` of one of them after
            it has set the epoch.

        Raises
        ------
        OptionError
            A number is not a whole one from 0; or another version is given where the rows are those
            of ``added``.
        SchemaError
            The version has other columns. Version and epoch stay as they were.
        ShuffleNotFoundError
            There is no such version any more.
        """
        check_integer("epoch", epoch, 0, LARGEST, "epochs")
        if version is not None:
            check_integer("version", version, 1, LARGEST, "a version")
        if not self.would_begin(epoch):
            return
        if version is not None:
            self.read_version(version)
        elif self._follows and self.world_size == 1:
            newest = self._rows.newest_alike()
            if newest is not self._rows:
                self._pin(newest)
        self.position = Position.start(epoch, self._epochs.lanes)
        self._batches = None

    def read_version(self, version: int) -> None:
        """Let the next iterations read a version; raises as :meth:`set_epoch`."""
        if version != self.version:
            self._pin(self._alike(version))

    def would_begin(self, epoch: int) -> bool:
        """Whether to set that epoch begins it: it was not read from, nor its position loaded."""
        return epoch != self.epoch or (self._batches is None and not self.position.num_readers)

    def newest_version(self) -> int:
        """Return the version that the next epoch is to read; raises as :meth:`set_epoch`."""
        return self._rows.newest_alike().version if self._follows else self.version

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        batches = self.begin(1)
        for reader, batch in self.shared(self.position, 0, 1):
            batches[reader] += 1
            yield batch

    def shared(
        self, position: Position, worker: int, num_workers: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the batches of one of this rank's workers, from a position on.

        Each with the number of the reader that the worker is.
        """
        position = position.read_by(self.world_size * num_workers)
        own = self.readers(num_workers)
        # A loader asks its first worker first: that goes on as the one whose turn it was.
        turn = int(np.argmin(position.batches[own.start : own.stop]))
        reader = own[(worker + turn) % num_workers]
        for batch in self.reader.batches(position, reader, int(position.batches[reader])):
            yield reader, batch

    def begin(self, num_workers: int) -> Int64Array:
        """Begin an iteration by so many workers of this rank, and hold the version.

        Returns the batches that each reader took, shape ``(num_readers,)``, which the iteration
        counts on; those of the last one that began are in :meth:`state_dict`.
        """
        self._keep_version()
        self.position = self.position_of(num_workers)
        self._batches = self.position.batches.copy()
        return self._batches

    def _now(self) -> Position:
        if self._batches is None:
            return self.position
        return self.reader.advanced(self.position, self._batches)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this rank, of numbers, texts, lists and dicts only.

        It counts the batches that the loop was given. See :func:`merge_states`.
        """
        return {
            **self._now().state(),
            "version": self.version,
            "commit": self._rows.commit_id,
            "rows": self.reader.fingerprint,
            "columns": list(self.reader.columns),
            "ranks": [self.rank],
            "world_size": self.world_size,
            "of": self._identity(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterations go on at a position.

        Parameters
        ----------
        state
            Of :func:`merge_states`, which any number of ranks and workers can go on at; or of
            :meth:`state_dict` of this rank, for as many.

        Raises
        ------
        OptionError
            The state is of other options, of another rank or of some ranks only, or none at all.
        ShuffleNotFoundError
            It is of a version that has expired.
        """
        position = position_of(state)
        try:
            of, version, ranks = dict(state["of"]), int(state["version"]), list(state["ranks"])
            commit, world_size = str(state["commit"]), int(state["world_size"])
            fingerprint, columns = int(state["rows"]), list(state["columns"])
        except (KeyError, TypeError, ValueError) as error:
            raise no_state(state) from error
        for name, value in self._identity().items():
            if of.get(name) != value:
                msg = (
                    f"the state is of {name} {of.get(name)!r}, and this one has {value!r}: give "
                    "the same arguments as where it was saved"
                )
                raise OptionError(msg)
        if len(position.taken) != self._epochs.lanes:
            raise no_state(state)
        is_own = ranks == [self.rank] and world_size == self.world_size
        if len(ranks) != world_size and not is_own:
            msg = (
                f"the state is of ranks {ranks} of {world_size}, and this is rank {self.rank} of "
                f"{self.world_size}: give merge_states([...]) of the states of all ranks"
            )
            raise OptionError(msg)
        rows, reader = self._rows, self.reader
        if (version, commit) != (self.version, rows.commit_id):
            rows = self._opened(version, commit)
        if rows is not self._rows or columns != list(reader.columns):
            reader = EpochReader(rows, columns, self._epochs)
        if fingerprint != reader.fingerprint:
            msg = (
                f"the state is of other rows of version {version}: give the same filter, and the "
                "same added(since=...), as where it was saved"
            )
            raise OptionError(msg)
        if reader is not self.reader:
            self._pin(rows, reader)
        self.position = replace(position, is_of_all=len(ranks) == world_size)
        self._batches = None

    def _opened(self, version: int, commit: str) -> Shuffle:
        try:
            return self._alike(version, commit)
        except ShuffleNotFoundError as error:
            msg = (
                f"{error}. The state is a position in version {version}, so that its epoch cannot "
                "be ended; begin the next one: set_epoch(epoch + 1) reads the newest version"
            )
            raise type(error)(msg) from error

    def _alike(self, version: int, commit: str | None = None) -> Shuffle:
        span = self._rows.span
        if span is not None:
            msg = (
                f"{self.path}: these rows are those that were added after version {span.start}, up "
                f"to {span.end}, so that they are of no version {version}; give those that were "
                f"added up to it: open_shuffle(..., {version}).added(since={span.start})"
            )
            raise OptionError(msg)
        return self._rows.alike(version, commit)

    def _identity(self) -> dict[str, Any]:
        """Return what must be equal for a position to mean the same rows."""
        return {
            "filter": None if self._rows.filter is None else str(self._rows.filter),
            "latest_by": self._rows.latest_column,
            "columns": self._columns,
            "batch_size": self._epochs.batch_size,
            "seed": self._epochs.seed,
            "memory_bytes": self._epochs.memory_bytes,
            "lanes": self._epochs.lanes,
        }


def check_rank(rank: int, world_size: int) -> tuple[int, int]:
    """Return rank and number of ranks; raises OptionError unless they are whole and fit."""
    check_integer("world_size", world_size, 1, 1 << 31, "ranks")
    return check_integer("rank", rank, 0, world_size - 1, "ranks"), world_size
