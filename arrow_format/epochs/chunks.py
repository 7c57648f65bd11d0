"""The chunks of a version as an epoch deals them, and their rows, in any order of chunks."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.format.regions import RegionKind
from arrow_format.read.chunk_plan import ChunkRead, subpartitions_of_chunks
from arrow_format.read.estimates import estimate_column_share
from arrow_format.read.fetched_chunks import edges_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from arrow_format.model import Int64Array
    from arrow_format.read.chunk_reader import ChunkReader
    from arrow_format.read.shuffle import Shuffle


class VersionChunks:
    """The chunks that have rows to deliver, in the order of files and of their bytes.

    To know them, the indexes of all files are read and kept. With a filter, and of the last rows of
    keys, what decides which rows these are is read, too, unless ``counted`` says their numbers.

    ``rows`` is what is read, and ``columns`` what is delivered of it.
    """

    def __init__(
        self, rows: Shuffle, columns: Sequence[str], counted: Int64Array | None = None
    ) -> None:
        n = rows.num_subpartitions
        self._reader = rows.reader(0, n, columns)
        self._files: list[ChunkReader] = []
        places: list[Int64Array] = []
        subpartitions, num_rows, row_bytes = [], [], []
        share = estimate_column_share(rows.snapshot, {*columns}) if columns else 0.0
        self.raw_bytes = 0
        """Bytes in Arrow of all their rows, by estimate: what reading all of them decodes."""
        for source, planned in self._reader.to_deliver():
            chunks = [*planned]
            if not chunks:
                continue
            number = len(self._files)
            self._files.append(source)
            places.append(np.array([(number, *one[:7]) for one in chunks], np.int64))
            first, _ = subpartitions_of_chunks(chunks, source.index.regions, n)
            subpartitions.append(first)
            num_rows.append([_num_rows(source, one, n) for one in chunks])
            sizes = [source.raw_bytes(one) * share for one in chunks]
            self.raw_bytes += int(sum(sizes))
            row_bytes.append(np.array(sizes) / [_stored_rows(source, one) for one in chunks])
        self._places = np.concatenate([np.empty((0, 8), np.int64), *places])
        self.subpartition = np.concatenate([np.empty(0, np.int64), *subpartitions])
        """Of the first row of each; shape ``(num_chunks,)``, as the others."""
        self.num_rows: Int64Array = np.concatenate([np.empty(0), *num_rows]).astype(np.int64)
        """Rows to deliver."""
        if rows.filter is not None:
            self.num_rows = self._counted(rows) if counted is None else counted
        each = np.concatenate([np.empty(0), *row_bytes])
        self.num_bytes: Int64Array = (each * self.num_rows).astype(np.int64)
        """Bytes of these rows in Arrow, by estimate."""

    def read(self, chunks: Int64Array) -> Iterator[pa.RecordBatch]:
        """Yield the rows to deliver of some chunks, which ascend, in that order.

        Raises ShuffleError as for reading.
        """
        for rows in self._reader.rows(self._planned(chunks)):
            yield rows.batch

    def _planned(self, chunks: Int64Array) -> Iterator[tuple[ChunkReader, Iterator[ChunkRead]]]:
        wanted = self._places[chunks].tolist()
        for number, of_file in groupby(wanted, lambda one: one[0]):
            source = self._files[number]
            yield source, iter(source.wanted([ChunkRead(*one[1:]) for one in of_file]))

    def _counted(self, rows: Shuffle) -> Int64Array:
        """Count the rows of each chunk that a filter keeps."""
        number_of = {
            (self._files[file].order, part, chunk): number
            for number, (file, _, chunk, *_, part) in enumerate(self._places.tolist())
        }
        counts = np.zeros(len(self._places), np.int64)
        for pairs, _, kept in rows.reader(0, rows.num_subpartitions, []).located():
            numbers = [number_of[source.order, one.part, one.chunk] for source, one in pairs]
            of_each = np.diff(np.searchsorted(kept, edges_of(pairs)))
            times = [_times(source, one, rows.num_subpartitions) for source, one in pairs]
            np.add.at(counts, numbers, of_each * times)
        return counts


def _times(source: ChunkReader, chunk: ChunkRead, num_subpartitions: int) -> int:
    """Return how often each row of a chunk comes: a broadcast one once for each subpartition."""
    kind = source.index.regions[chunk.part].kind
    return num_subpartitions if kind is RegionKind.BROADCAST else 1


def _stored_rows(source: ChunkReader, chunk: ChunkRead) -> int:
    start, stop = source.index.regions[chunk.part].chunk_rows(chunk.chunk)
    return max(stop - start, 1)


def _num_rows(source: ChunkReader, chunk: ChunkRead, num_subpartitions: int) -> int:
    return source.num_rows_left(chunk) * _times(source, chunk, num_subpartitions)
