"""Writes tombstones: of deleted rows, what identified each, and when it was deleted.

:mod:`arrow_format.jobs.tombstones` has what they are for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

import numpy as np

from arrow_format.write.result_partition import SortMergeResultPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.model import Int32Array, MapOutput, PartitionedFileMetadata
    from arrow_format.options import WriteOptions
    from arrow_format.storage.open import Storage

FIRST_MAP_TASK = 1 << 30
"""Tombstones of map task ``i`` are those of map task ``FIRST_MAP_TASK + i``: an index names it, and
how many map tasks a job has is not known where it is written."""


def metadata_of(rows: PartitionedFileMetadata, schema: pa.Schema) -> PartitionedFileMetadata:
    """Return what an index says of tombstones, given what it says of rows of the map task."""
    return replace(
        rows,
        map_task=FIRST_MAP_TASK + rows.map_task,
        data_schema=schema,
        sort_by=(),
        statistics=(),
    )


class TombstoneWriter:
    """Writes the tombstones of one attempt of a map task; nothing where there are none.

    They go below ``directory`` of the shuffle, ``storage``: local roots have none. ``metadata`` is
    that of the rows of the map task. It is a context manager; unless finished, nothing of it is
    left. Raises as :class:`~arrow_format.write.result_partition.SortMergeResultPartition`.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        metadata: PartitionedFileMetadata,
        partitioner: Partitioner,
        options: WriteOptions,
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._metadata = metadata
        self._partitioner = partitioner
        self._options = options
        self._partition: SortMergeResultPartition | None = None

    def add(self, gone: pa.RecordBatch) -> None:
        """Write deletions, by the columns that tombstones have."""
        if gone.num_rows:
            n, map_task = self._metadata.num_subpartitions, self._metadata.map_task
            assign = self._partitioner.bind(gone.schema, n, map_task)
            self.emit(gone, np.asarray(assign(gone)))

    def emit(self, gone: pa.RecordBatch, subpartitions: Int32Array) -> None:
        """Write deletions whose subpartitions are known."""
        if self._partition is None:
            metadata = metadata_of(self._metadata, gone.schema)
            options = replace(self._options, threads=1)
            self._partition = SortMergeResultPartition(
                self._storage, self._directory, metadata, options
            )
        self._partition.emit(gone, subpartitions)

    def finish(self) -> MapOutput | None:
        """Finish the files, and return their map output; None where there is none."""
        return None if self._partition is None else self._partition.finish().output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._partition is not None:
            self._partition.close()
