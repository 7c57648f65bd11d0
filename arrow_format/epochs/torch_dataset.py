"""A shuffle as a dataset of PyTorch. Which rows come when is decided by ``epochs``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import types as pt
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from arrow_format.arrays.buffers import to_numpy
from arrow_format.epochs.batches import EpochBatches, check_rank
from arrow_format.epochs.position import Position
from arrow_format.errors import OptionError, SchemaError
from arrow_format.options import check_integer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from arrow_format.epochs.options import Epochs
    from arrow_format.model import Int64Array
    from arrow_format.read.shuffle import Shuffle

EPOCH, VERSION, READERS, IS_OF_ALL, WORKERS, HEAD = range(6)
"""What the workers of a loader share, before the batches that each took, the origin and what was
taken of each lane."""

MOST_WORKERS = 1 << 10
"""Of a rank."""


class ShuffleIterableDataset(IterableDataset):  # type: ignore[misc]
    """Batches of the rows of a shuffle; :meth:`loader` gives a ``DataLoader`` of them.

    Each rank and worker reads lanes of its own, in an order that seed and epoch decide. A loop sets
    the epoch before each, as with ``DistributedSampler``, else the order stays the same::

        loader = dataset.loader(num_workers=2)
        for epoch in range(dataset.epoch, 10):
            dataset.set_epoch(epoch)
            for batch in loader: ...

    To go on where it stopped, it saves :meth:`state_dict`, and another process gives it to
    :meth:`load_state_dict` before its loop. With :func:`arrow_shuffle.merge_states` any number of
    ranks and workers goes on; as many as before get the batches that would have come.

    Parameters are those of :meth:`arrow_shuffle.Shuffle.to_torch`.
    """

    def __init__(
        self,
        rows: Shuffle,
        columns: Sequence[str] | None,
        epochs: Epochs,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        convert: Callable[[pa.RecordBatch], Any] | None = None,
        hold: bool = True,
    ) -> None:
        super().__init__()
        self._of_group = rank is None and _has_group()
        rank, world_size = _rank_of(rank, world_size)
        self._batches = EpochBatches(
            rows, columns, epochs, rank=rank, world_size=world_size, hold=hold
        )
        if convert is None:
            for field in self._batches.schema:
                _check_is_tensor(field)
        self._convert = tensors_of if convert is None else convert
        # In memory that the workers of a loader share, those that are kept between epochs too.
        self._shared = torch.zeros(
            HEAD + MOST_WORKERS + 2 * epochs.lanes, dtype=torch.int64
        ).share_memory_()
        self._share_position()

    def __repr__(self) -> str:
        batches = self._batches
        return (
            f"<{type(self).__name__} of {self.num_rows:,} rows of {batches.path}, version "
            f"{self.version}, epoch {self.epoch}, rank {batches.rank} of {batches.world_size}>"
        )

    @property
    def num_rows(self) -> int:
        """Rows of an epoch, of all ranks; ``drop_last`` leaves out some."""
        return self._batches.num_rows

    @property
    def version(self) -> int:
        """The version that the epoch reads."""
        return self._batches.version

    @property
    def epoch(self) -> int:
        """The epoch that iterating reads."""
        return self._batches.epoch

    def set_epoch(self, epoch: int, *, version: int | None = None) -> None:
        """Let the next iterations read an epoch, from its begin unless its position was loaded.

        It reads the newest version there is now, unless the shuffle was opened by number, tag or
        time, or is of rows that were ``added``. Ranks of ``torch.distributed`` all read that which
        the first one finds, so all of them must call this. Ranks that were given as ``rank=`` stay
        at their version, unless all are given another.

        Parameters
        ----------
        epoch
            Number of the epoch, from 0: with the seed it decides the order.
        version
            The version to read, the same on all ranks.

        Raises
        ------
        OptionError
            A number is not a whole one from 0.
        ShuffleNotFoundError
            There is no such version any more.
        """
        if self._of_group and version is None and self._batches.would_begin(epoch):
            found = [self._batches.newest_version()]
            torch.distributed.broadcast_object_list(found, src=0)
            (version,) = found
        self._batches.set_epoch(epoch, version=version)
        self._share_position()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this rank, of numbers, texts, lists and dicts only.

        It counts the batches that the loop was given, whatever workers have read ahead.

        Raises
        ------
        OptionError
            A ``DataLoader`` with workers, which :meth:`loader` did not make, reads this dataset: it
            does not say which batches the loop was given.
        """
        if int(self._shared[WORKERS]):
            msg = (
                f"a DataLoader with {int(self._shared[WORKERS])} workers reads ahead and does not "
                "say how far its loop has come: make it by dataset.loader(num_workers=...)"
            )
            raise OptionError(msg)
        return self._batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterations go on at a position.

        Parameters
        ----------
        state
            Of :func:`arrow_shuffle.merge_states`, which any number of ranks and workers can go on
            at; or of :meth:`state_dict` of this rank, for as many.

        Raises
        ------
        OptionError
            The state is of other options, of another rank or of some ranks only, or none at all.
        ShuffleNotFoundError
            It is of a version that has expired: :meth:`set_epoch` begins the next epoch.
        """
        self._batches.load_state_dict(state)
        self._share_position()

    def loader(self, num_workers: int = 0, **options: Any) -> EpochLoader:  # noqa: ANN401
        """Return a loader of the batches, which counts those that the loop was given.

        Parameters
        ----------
        num_workers
            Processes that read. With 0 this one does, with a thread more: faster, unless what
            ``convert`` does takes most of the time, since each tensor of a worker's batch costs a
            message to this process.
        options
            Of ``torch.utils.data.DataLoader``: ``pin_memory``, ``prefetch_factor``,
            ``persistent_workers``, ``multiprocessing_context``...
        """
        return EpochLoader(self, num_workers, **options)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this process's share.

        Raises
        ------
        SchemaError
            As :func:`tensors_of`, unless another function converts.
        ShuffleError
            As for reading.
        """
        worker = get_worker_info()
        if worker is not None:
            self._shared[WORKERS] = worker.num_workers
            for _, batch in self.numbered():
                yield batch
            return
        batches = self.begin(1)
        for reader, batch in self.numbered():
            batches[reader] += 1
            yield batch

    def close(self) -> None:
        """Let the version expire, which is kept from that while the dataset is there."""
        self._batches.close()

    def begin(self, num_workers: int) -> Int64Array:
        """Begin an iteration by so many workers; as :meth:`EpochBatches.begin`."""
        batches = self._batches.begin(num_workers)
        self._share_position()
        return batches

    def num_batches(self, num_workers: int) -> int:
        """Return the batches that are left of the epoch, for so many workers of this rank."""
        return self._batches.num_batches(max(num_workers, 1))

    def numbered(self) -> Iterator[tuple[int, Any]]:
        """Yield the batches of this process, each with the number of the reader that it is."""
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        head, own, lanes = np.split(self._shared.numpy().copy(), [HEAD, HEAD + MOST_WORKERS])
        batches = np.zeros(head[READERS], np.int64)
        readers = self._readers(batches)
        batches[readers] = own[: len(batches[readers])]
        origin, taken = lanes.reshape(2, -1)
        is_of_all = bool(head[IS_OF_ALL])
        position = Position(int(head[EPOCH]), batches, origin, taken, is_of_all)
        # Of a worker that was kept from an epoch before it may be another.
        self._batches.read_version(int(head[VERSION]))
        for reader, batch in self._batches.shared(position, number, count):
            yield reader, self._convert(batch)

    def _share_position(self) -> None:
        """Write down where workers go on."""
        position = self._batches.position
        own = np.zeros(MOST_WORKERS, np.int64)
        batches = position.batches[self._readers(position.batches)]
        own[: len(batches)] = batches
        head = [position.epoch, self.version, position.num_readers, position.is_of_all, 0]
        shared = np.concatenate([head, own, position.origin, position.taken])
        self._shared.copy_(torch.from_numpy(shared))

    def _readers(self, batches: Int64Array) -> slice:
        """Return which of all readers are those of this rank."""
        own = self._batches.readers(len(batches) // self._batches.world_size)
        return slice(own.start, own.stop)


class _Numbered(IterableDataset):  # type: ignore[misc]
    """The batches of a dataset with the numbers of their readers."""

    def __init__(self, dataset: ShuffleIterableDataset) -> None:
        super().__init__()
        self.dataset = dataset

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self.dataset.numbered()


class EpochLoader(DataLoader):  # type: ignore[misc]
    """A loader of the batches of an epoch; made by :meth:`ShuffleIterableDataset.loader`.

    Its length is that of the rest of the epoch. The epoch is set, and a position saved and loaded,
    by the dataset.
    """

    def __init__(self, dataset: ShuffleIterableDataset, num_workers: int, **options: Any) -> None:  # noqa: ANN401
        for name in (
            "batch_size",
            "sampler",
            "batch_sampler",
            "shuffle",
            "drop_last",
            "collate_fn",
        ):
            if name in options:
                msg = f"loader({name}=...): the dataset makes the batches; see to_torch()"
                raise OptionError(msg)
        check_integer("num_workers", num_workers, 0, MOST_WORKERS, "workers")
        super().__init__(
            _Numbered(dataset),
            batch_size=None,
            num_workers=num_workers,
            collate_fn=_as_it_is,
            **options,
        )
        self._of = dataset

    def __len__(self) -> int:
        return self._of.num_batches(self.num_workers)

    def __iter__(self) -> Iterator[Any]:
        batches = self._of.begin(max(self.num_workers, 1))
        # Without workers DataLoader's own way takes longer than to read a batch of few columns.
        is_plain = self.num_workers == 0 and not self.pin_memory
        for reader, batch in self._of.numbered() if is_plain else super().__iter__():
            batches[int(reader)] += 1
            yield batch


def _as_it_is(batch: tuple[int, Any]) -> tuple[int, Any]:
    """Of a ``DataLoader`` that is to make no tensors of what the dataset yields."""
    return batch


def _has_group() -> bool:
    distributed = torch.distributed
    return bool(distributed.is_available() and distributed.is_initialized())


def _rank_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if rank is None and world_size is None:
        if not _has_group():
            return 0, 1
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if rank is None or world_size is None:
        msg = f"rank={rank!r}, world_size={world_size!r}: give both, or none"
        raise OptionError(msg)
    return check_rank(rank, world_size)


# Tensors ------------------------------------------------------------------------------------------


def tensors_of(batch: pa.RecordBatch) -> dict[str, torch.Tensor]:
    """Return a tensor for each column, shape ``(num_rows, ...)``, in memory of its own.

    Raises
    ------
    SchemaError
        A column has nulls, or lists of several lengths.
    """
    return {
        field.name: torch.from_numpy(_values(batch.column(i), field).copy())
        for i, field in enumerate(batch.schema)
    }


def _values(column: pa.Array, field: pa.Field) -> Any:  # noqa: ANN401
    if column.null_count:
        msg = (
            f"column {field.name!r} has nulls, and a tensor has none: filter them out "
            f"({field.name} IS NOT NULL), or give convert=..."
        )
        raise SchemaError(msg)
    if not _is_list(column.type):
        return to_numpy(column)
    # Spark has no lists of fixed length, so any will do whose rows are equally long.
    values = _values(column.flatten(), field)
    length, rest = divmod(len(values), max(len(column), 1))
    offsets = None if pt.is_fixed_size_list(column.type) else to_numpy(column.offsets)
    if rest or (offsets is not None and (np.diff(offsets) != length).any()):
        msg = (
            f"column {field.name!r} has lists of several lengths, and a tensor has one: cut or "
            "fill them, or give convert=..."
        )
        raise SchemaError(msg)
    return values.reshape(len(column), length, *values.shape[1:])


def _check_is_tensor(field: pa.Field) -> None:
    type_ = field.type
    while _is_list(type_):
        type_ = type_.value_type
    if not (pt.is_integer(type_) or pt.is_floating(type_) or pt.is_boolean(type_)):
        msg = (
            f"column {field.name!r} has type {field.type}: a tensor takes numbers, booleans, and "
            "lists of them. Choose other columns, or give convert=..."
        )
        raise SchemaError(msg)


def _is_list(type_: pa.DataType) -> bool:
    return bool(pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_))
