"""Asks the partitioner that the log records where rows belong, and compares where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.conversion import key_text
from arrow_format.arrays.row_fit import RowFit
from arrow_format.errors import CorruptShuffleError, OptionError, SchemaError
from arrow_format.format.codec import StoredChunk
from arrow_format.format.codecs import ChunkDecoder
from arrow_format.format.regions import RegionKind
from arrow_format.keys.partitioner import BroadcastPartitioner, can_be_asked, key_columns
from arrow_format.model import BROADCAST
from arrow_format.read.fetched_chunks import subpartitions_in

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.read.chunk_plan import ChunkRead
    from arrow_format.read.chunk_reader import ChunkReader


class PlacementCheck:
    """Whether the rows of a version are in the subpartitions that its partitioner gives them.

    ``schema`` is the data schema of the version, and ``partitioner`` one of those that
    :func:`placement_check` takes; CorruptShuffleError where it cannot be that of such rows.
    """

    def __init__(self, partitioner: Partitioner, schema: pa.Schema, num_subpartitions: int) -> None:
        self._partitioner = partitioner
        self._n = num_subpartitions
        self._schema = schema
        self._columns = [schema.get_field_index(name) for name in key_columns(partitioner) or ()]
        keys = pa.schema([schema.field(i) for i in self._columns])
        try:
            self._assign = partitioner.bind(keys, num_subpartitions, 0)
        except (OptionError, SchemaError) as error:
            msg = f"the log has a partitioner that is none of its rows: {error}"
            raise CorruptShuffleError(msg) from error

    def columns_of(self, schema: pa.Schema) -> list[int]:
        """Return the positions of the keys in the schema of a file, of those that it has."""
        names = [self._schema.field(i).name for i in self._columns]
        return [i for name in names if (i := schema.get_field_index(name)) >= 0]

    def check_stored(self, source: ChunkReader, chunk: ChunkRead, stored: pa.Buffer) -> None:
        """Check the rows of a chunk as it is stored, of which the keys alone are decoded.

        Not those of other blocks of its index, which were not read: they are rows of subpartitions
        that were not asked for. Raises as :meth:`check_rows`.
        """
        part = source.index.regions[chunk.part]
        start, end = part.chunk_rows(chunk.chunk)
        known = chunk._replace(first_row=max(0, -start), end_row=min(end, part.num_rows) - start)
        schema = source.index.metadata.data_schema
        columns = self.columns_of(schema)
        places = source.places(chunk, columns)
        whole = StoredChunk(stored, places, (0, places.num_rows))
        with source.located(chunk):
            rows = ChunkDecoder(schema, columns).decode([whole])
        self.check_rows(source, known, rows.slice(known.first_row, known.end_row - known.first_row))

    def check_rows(self, source: ChunkReader, chunk: ChunkRead, rows: pa.RecordBatch) -> None:
        """Check the rows wanted of a chunk, with the keys at least, in the schema of the file.

        Raises CorruptShuffleError with the file, the chunk and the first row that lies elsewhere.
        """
        region = source.index.regions[chunk.part]
        if region.kind is RegionKind.BROADCAST:
            are_in = np.full(rows.num_rows, BROADCAST, np.int32)
        else:
            are_in = subpartitions_in(region, chunk, self._n)
        fit = RowFit(rows.schema, self._schema, self._columns)
        columns = fit.fit(
            [rows.column(i) for i in fit.columns], range(len(fit.schema)), len(are_in)
        )
        if isinstance(self._partitioner, BroadcastPartitioner):  # of no columns, so of no rows
            keys, belong = None, np.full(len(are_in), BROADCAST, np.int32)
        else:
            keys = pa.RecordBatch.from_arrays(columns, schema=fit.schema)
            try:
                belong = np.asarray(self._assign(keys), np.int32)
            except SchemaError as error:
                msg = f"{source.where(chunk)}: {self._partitioner!r} places no such row: {error}"
                raise CorruptShuffleError(msg) from error
        elsewhere = np.flatnonzero(belong != are_in)
        if len(elsewhere):
            row = int(elsewhere[0])
            key = "" if keys is None else f" with {key_text(keys, keys.schema.names, row)}"
            msg = (
                f"{source.where(chunk)}: a row{key} is in {_place(are_in[row])} of {self._n}, and "
                f"belongs to {_place(belong[row])} by {self._partitioner!r}: joins, lookups and "
                "filters look for it there. Its writer placed rows otherwise than it said: read "
                "all rows of the version, and write them again"
            )
            raise CorruptShuffleError(msg)


def _place(subpartition: int) -> str:
    return "every subpartition" if subpartition == BROADCAST else f"subpartition {subpartition}"


def placement_check(
    partitioner: Partitioner | Mapping[str, Any], schema: pa.Schema, num_subpartitions: int
) -> PlacementCheck | None:
    """Return a check of a version's rows; None where its partitioner cannot be asked.

    That is so of round robin, and of a user's own, of which there is a description.
    """
    if not (can_be_asked(partitioner) or isinstance(partitioner, BroadcastPartitioner)):
        return None
    return PlacementCheck(partitioner, schema, num_subpartitions)  # type: ignore[arg-type]


def required_check(
    path: str, partitioner: Partitioner | Mapping[str, Any], schema: pa.Schema, n: int
) -> PlacementCheck:
    """Return a check as :func:`placement_check` does; OptionError where there is none."""
    check = placement_check(partitioner, schema, n)
    if check is None:
        msg = (
            f"check=True: {path} is partitioned by {partitioner!r}, which does not say where a row "
            "belongs; leave check out"
        )
        raise OptionError(msg)
    return check
