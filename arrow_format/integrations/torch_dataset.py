"""A shuffle as a dataset of PyTorch. Which rows come when is decided by ``epochs``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import types as pt
from torch.utils.data import IterableDataset, get_worker_info

from arrow_format.arrays.buffers import to_numpy
from arrow_format.errors import OptionError, SchemaError
from arrow_format.integrations.epoch_reader import EpochReader
from arrow_format.integrations.epochs import taken_of_each
from arrow_format.options import check_integer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from arrow_format.integrations.epochs import Epochs
    from arrow_format.read.shuffle import Shuffle

LARGEST = (1 << 63) - 1

EPOCH, TAKEN, WORKERS, WORKERS_OF_STATE = range(4)


class ShuffleIterableDataset(IterableDataset):  # type: ignore[misc]
    """Batches of the rows of a shuffle, for a ``DataLoader`` with ``batch_size=None``.

    Each rank and worker reads a share of its own, in an order that seed and epoch decide. A shard,
    which is some adjacent subpartitions, is read as a whole except where a share begins or ends.

    A loop sets the epoch before each, as with ``DistributedSampler``, else the order stays the
    same::

        for epoch in range(dataset.epoch, 10):
            dataset.set_epoch(epoch)
            for batch in loader: ...

    To go on where it stopped, it saves :meth:`state_dict`, and another process gives it to
    :meth:`load_state_dict` before its loop: the loader goes on with the next batch of that epoch,
    and the batches are those that would have come.

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
    ) -> None:
        super().__init__()
        self._rank, self._world_size = _rank_of(rank, world_size)
        self._schema = rows.schema_of(columns)
        if convert is None:
            for field in self._schema:
                _check_is_tensor(field)
        self._convert = tensors_of if convert is None else convert
        self._rows, self._epochs = rows, epochs
        self._reader = EpochReader(rows, self._schema.names, epochs)
        # In memory that the workers of a loader share, those that are kept between epochs too.
        self._position = torch.zeros(4, dtype=torch.int64).share_memory_()
        self._yielded = 0

    @property
    def num_rows(self) -> int:
        """Rows of an epoch, of all ranks; ``drop_last`` leaves out some."""
        return self._reader.num_rows

    @property
    def epoch(self) -> int:
        """The epoch that iterating reads."""
        return int(self._position[EPOCH])

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterations read an epoch, from its begin unless its position was loaded.

        Raises OptionError unless it is a whole number from 0.
        """
        check_integer("epoch", epoch, 0, LARGEST, "epochs")
        if epoch != self.epoch:
            self._position[EPOCH], self._position[TAKEN] = epoch, 0
            self._yielded = 0

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position of this rank, of numbers and texts only.

        Parameters
        ----------
        batches
            Batches of this epoch that the loop has taken, those before a restart included. Workers
            of a loader read ahead, so it must be given if the loader has any; without workers it
            is known.

        Raises
        ------
        OptionError
            ``batches`` is needed, or out of range.
        """
        workers = int(self._position[WORKERS])
        if batches is None:
            if workers:
                msg = (
                    f"the loader has {workers} workers, which read ahead: give state_dict(batches="
                    "...), the batches that the loop has taken in this epoch"
                )
                raise OptionError(msg)
            batches = int(self._position[TAKEN]) + self._yielded
        check_integer("batches", batches, 0, LARGEST, "batches")
        return {
            "epoch": self.epoch,
            "batches": batches,
            "workers": workers,
            "of": self._identity(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iterations go on at a position of :meth:`state_dict`.

        The loader must have as many workers as that which was saved.

        Raises
        ------
        OptionError
            The position is one of other rows, ranks or options, or of no such dataset at all.
        """
        try:
            epoch, batches, workers = (state[name] for name in ("epoch", "batches", "workers"))
            of: Mapping[str, Any] = dict(state["of"])
        except (KeyError, TypeError, ValueError) as error:
            msg = f"state {state!r} is not one of state_dict()"
            raise OptionError(msg) from error
        mine = self._identity()
        for name, value in mine.items():
            if of.get(name) != value:
                msg = (
                    f"the state is of {name} {of.get(name)!r}, and this dataset has {value!r}: "
                    "make it as the one that was saved, of the same version"
                )
                raise OptionError(msg)
        check_integer("epoch", epoch, 0, LARGEST, "epochs")
        check_integer("batches", batches, 0, LARGEST, "batches")
        taken = torch.tensor([epoch, batches, 0, max(workers, 1)])
        self._position.copy_(taken)
        self._yielded = 0

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this worker's share.

        Raises
        ------
        OptionError
            The loaded position is of a loader with another number of workers.
        SchemaError
            As :func:`tensors_of`, unless another function converts.
        ShuffleError
            As for reading.
        """
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        epoch, taken, _, expected = self._position.tolist()
        if taken and expected != count:
            msg = (
                f"the position is one of a loader with {expected} workers, and this one has "
                f"{count}: give as many (num_workers=0 counts as one)"
            )
            raise OptionError(msg)
        self._position[WORKERS] = 0 if worker is None else count
        self._yielded = 0
        readers = range(self._rank * count, (self._rank + 1) * count)
        num_readers = self._world_size * count
        num_batches = [
            self._epochs.num_batches(self.num_rows, reader, num_readers) for reader in readers
        ]
        skipped, turn = taken_of_each(taken, num_batches)
        # The first worker of a loader is asked first: it goes on as the one whose turn it is.
        own = (number + turn) % count
        for batch in self._reader.batches(epoch, readers[own], num_readers, skipped[own]):
            self._yielded += 1
            yield self._convert(batch)

    def _identity(self) -> dict[str, Any]:
        """Return what must be equal for a position to mean the same rows."""
        return {
            "commit": self._rows.commit_id,
            "filter": None if self._rows.filter is None else str(self._rows.filter),
            "latest_by": self._rows.latest_column,
            "columns": list(self._schema.names),
            "batch_size": self._epochs.batch_size,
            "seed": self._epochs.seed,
            "shuffle_rows": self._epochs.shuffle_rows,
            "drop_last": self._epochs.drop_last,
            "rank": self._rank,
            "world_size": self._world_size,
        }


def _rank_of(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if rank is None and world_size is None:
        distributed = torch.distributed
        if not distributed.is_available() or not distributed.is_initialized():
            return 0, 1
        return distributed.get_rank(), distributed.get_world_size()
    if rank is None or world_size is None:
        msg = f"rank={rank!r}, world_size={world_size!r}: give both, or none"
        raise OptionError(msg)
    check_integer("world_size", world_size, 1, 1 << 31, "ranks")
    return check_integer("rank", rank, 0, world_size - 1, "ranks"), world_size


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
