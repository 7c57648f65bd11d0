"""Where rows of the inputs of a merge are that placed them by another number of subpartitions.

A merge keeps the order of the rows that have one subpartition in the end. So a row is behind as
many of them as come before it in the inputs, and the keys of all say which those are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.format.masks import masked_subpartitions
from arrow_format.log.totals import sum_totals
from arrow_format.read.key_search import rows_of_keys
from arrow_format.read.unique_keys import groups_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from arrow_format.keys.partitioner import HashPartitioner
    from arrow_format.log.entry import LogEntry
    from arrow_format.model import Int64Array
    from arrow_format.read.partitioned_file import PartitionedFileReader

_BITS = 31
"""Of the place of a row in its region, which has fewer rows."""


class PlacedAgain:
    """Finds rows of the inputs of one merge, and remembers them: a commit tries several times.

    ``inputs`` are their indexes, in reading order, of rows that lie where the partitioner places
    them; ``num_subpartitions`` is the number by which they were placed again.
    """

    def __init__(
        self,
        version: LogEntry,
        inputs: Sequence[PartitionedFileReader],
        partitioner: HashPartitioner,
        num_subpartitions: int,
    ) -> None:
        self._version = version
        self._inputs = inputs
        self._partitioner = partitioner
        self._n = num_subpartitions
        regions = [index.file.num_regions for index in inputs]
        self._first_region = np.cumsum([0, *regions])
        self._rows = self._numbers = self._ordinals = np.empty(0, np.int64)

    def ordinals(self, rows: Sequence[Mapping[int, Int64Array]]) -> tuple[Int64Array, Int64Array]:
        """Return the subpartition of each row, and how many rows that were left come before it.

        ``rows`` has those of each input, by region, ascending; none was gone. Reads the keys of all
        rows of their subpartitions, those of some subpartitions at a time. Raises
        CorruptShuffleError where a chunk cannot be read.
        """
        parts = [
            self._numbered(order, region, places)
            for order, of_file in enumerate(rows)
            for region, places in of_file.items()
        ]
        asked = np.sort(np.concatenate([np.empty(0, np.int64), *parts]))
        if not np.isin(asked, self._rows, assume_unique=True).all():
            self._find(asked, rows)
        at = np.searchsorted(self._rows, asked)
        return self._numbers[at], self._ordinals[at]

    def _numbered(self, order: int, region: int, places: Int64Array) -> Int64Array:
        """Return rows as numbers that ascend in reading order."""
        of_region = int(self._first_region[order]) + region << _BITS
        numbered: Int64Array = places.astype(np.int64) + of_region
        return numbered

    def _find(self, asked: Int64Array, rows: Sequence[Mapping[int, Int64Array]]) -> None:
        n = self._version.num_subpartitions
        held, wanted = np.zeros(n, np.int64), np.zeros(n, np.bool_)
        for index, of_file in zip(self._inputs, rows, strict=True):
            held += sum_totals([index.totals], n)[0]
            if of_file:
                counts, _ = masked_subpartitions(
                    of_file, index.regions, index.metadata.num_subpartitions
                )
                wanted |= sum_totals([(counts, counts)], n)[0] > 0
        found = [self._found(asked, group) for group in groups_of(np.where(wanted, held, 0))]
        every, numbers, ordinals = (np.concatenate(part) for part in zip(*found, strict=True))
        order = np.argsort(every)
        self._rows, self._numbers, self._ordinals = every[order], numbers[order], ordinals[order]

    def _found(
        self, asked: Int64Array, wanted: NDArray[np.bool_]
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return those of the rows that are in some subpartitions, which have whole new ones."""
        names, schema = [*self._partitioner.keys], self._version.data_schema
        keys = pa.schema([schema.field(name) for name in names])
        place = self._partitioner.bind(keys, self._n, 0)
        every, ids = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        for found in rows_of_keys(self._inputs, names, schema, wanted):
            every.append(self._numbered(found.order, found.region, found.places))
            ids.append(place(pa.RecordBatch.from_arrays([*found.columns], schema=keys)))
        rows, numbers = np.concatenate(every), np.concatenate(ids).astype(np.int64)
        order = np.lexsort((rows, numbers))
        rows, numbers = rows[order], numbers[order]
        ordinals = np.arange(len(rows)) - np.searchsorted(numbers, numbers)
        is_asked = np.isin(rows, asked, assume_unique=True)
        return rows[is_asked], numbers[is_asked], ordinals[is_asked]
