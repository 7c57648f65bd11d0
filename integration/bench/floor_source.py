"""A Spark data source in Python that only hands out batches: no source of ours can be faster."""

from __future__ import annotations

from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from integration.bench.ipc import BATCH_ROWS, read_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

READY_BATCHES = 20
"""Batches that are handed out over and over."""


class FloorSource(DataSource):
    """Reads with ``schema(...)``, options ``path`` (IPC stream), ``numRows`` and ``partitions``."""

    @classmethod
    def name(cls) -> str:
        """Name for ``format``."""
        return "bench_floor"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader; the schema is that of the stream."""
        del schema
        return _FloorReader(self.options)


class _FloorReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._path = options["path"]
        self._num_batches = -(-int(options["numRows"]) // BATCH_ROWS)
        self._num_partitions = int(options["partitions"])

    def partitions(self) -> list[InputPartition]:
        edges = [
            number * self._num_batches // self._num_partitions
            for number in range(self._num_partitions + 1)
        ]
        return [InputPartition(end - start) for start, end in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from islice(cycle(read_batches(Path(self._path), READY_BATCHES)), partition.value)
