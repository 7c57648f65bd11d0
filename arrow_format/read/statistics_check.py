"""Compares the rows of a file with what its index and the log say of their bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.errors import CorruptShuffleError
from arrow_format.format.statistics import UNKNOWN, ColumnStatistics, are_values
from arrow_format.format.totals import subpartition_range
from arrow_format.keys.column_statistics import combined, statistics_of_rows
from arrow_format.keys.spark_order import order_codes
from arrow_format.read.scheduler import ADVICE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from arrow_format.read.partitioned_file import PartitionedFileReader

_TOGETHER = 64
"""Chunks that are compared together: their bounds may be long texts, which are not kept."""

_FIRST = np.zeros(1, np.int64)


class StatisticsCheck:
    """Checks the statistics of one file against its rows, chunk by chunk.

    ``logged`` are those of the file in the log: of one unit, in the types of the file or later
    ones. Bounds may be unknown, and those of texts wider than the values.
    """

    def __init__(
        self, index: PartitionedFileReader, logged: Mapping[str, ColumnStatistics]
    ) -> None:
        self._index = index
        self._stored = index.statistics
        self._logged = {
            name: column for name, column in logged.items() if column.null_count[0] != UNKNOWN
        }
        self._absent = self._logged.keys() - set(index.metadata.data_schema.names)
        self._names = dict.fromkeys([*self._stored, *(self._logged.keys() - self._absent)])
        self._rows: list[dict[str, ColumnStatistics]] = []
        self._num_checked = 0
        self._whole: dict[str, ColumnStatistics] = {}

    def add(self, chunk: pa.RecordBatch) -> None:
        """Take the rows of the next chunk of the file; raises as :meth:`finish`."""
        self._rows.append(statistics_of_rows(chunk, self._names, _FIRST))
        if len(self._rows) == _TOGETHER:
            self._compare()

    def finish(self) -> None:
        """Compare what is left, and the whole file.

        Raises CorruptShuffleError where a value is beyond a bound, nulls are counted wrongly, or
        rows are in a subpartition that the log does not say.
        """
        if self._rows:
            self._compare()
        for name, logged in self._logged.items():
            actual = (
                ColumnStatistics.all_null(logged.minimum.type, logged.num_rows)
                if name in self._absent
                else self._whole[name].of_type(logged.minimum.type)
            )
            self._refuse(name, "the log", logged, actual, None)
        file, metadata = self._index.file, self._index.metadata
        first, end = subpartition_range(self._index.regions, metadata.num_subpartitions)
        if first < file.first_subpartition or end > file.end_subpartition:
            msg = (
                f"{self._where}: has rows of subpartitions {first} to {end - 1}, where the log "
                f"says {file.first_subpartition} to {file.end_subpartition - 1}. {ADVICE}"
            )
            raise CorruptShuffleError(msg)

    def _compare(self) -> None:
        rows, self._rows = self._rows, []
        first, self._num_checked = self._num_checked, self._num_checked + len(rows)
        for name in self._names:
            actual = ColumnStatistics.joined([chunk[name] for chunk in rows])
            if name in self._stored:
                stored = self._stored[name].units(first, self._num_checked)
                self._refuse(name, "the index", stored, actual, first)
            known = [self._whole[name]] if name in self._whole else []
            together = ColumnStatistics.joined([*known, actual])
            self._whole[name] = combined(together, _FIRST)

    @property
    def _where(self) -> str:
        return f"{self._index.storage.root}/{self._index.file.data_path}"

    def _refuse(
        self,
        name: str,
        who: str,
        stated: ColumnStatistics,
        actual: ColumnStatistics,
        first_chunk: int | None,
    ) -> None:
        """Raise CorruptShuffleError where statistics do not hold; None: they are of the file."""
        lies = ~holds(stated, actual)
        if not lies.any():
            return
        unit = int(np.flatnonzero(lies)[0])
        where = self._where if first_chunk is None else f"{self._where}, chunk {first_chunk + unit}"
        msg = (
            f"{where}: column {name!r} has {_shown(actual, unit)}, where {who} says "
            f"{_shown(stated, unit)}: filters would lose rows, or answers be wrong. {ADVICE}"
        )
        raise CorruptShuffleError(msg)


def holds(stated: ColumnStatistics, actual: ColumnStatistics) -> NDArray[np.bool_]:
    """Return for each unit whether no value is beyond a bound, and nulls are counted or unknown.

    A bound that must be a value is one.
    """
    nulls = (stated.null_count == UNKNOWN) | (stated.null_count == actual.null_count)
    below = _is_less(actual.minimum, stated.minimum)
    beyond = below | _is_less(stated.maximum, actual.maximum)
    if are_values(stated.minimum.type):
        beyond |= _is_less(stated.minimum, actual.minimum)
        beyond |= _is_less(actual.maximum, stated.maximum)
    are_kept: NDArray[np.bool_] = nulls & ~beyond
    return are_kept


def _is_less(left: pa.Array, right: pa.Array) -> NDArray[np.bool_]:
    """Whether a value is less than the other in Spark's order; not where one is null."""
    is_less: NDArray[np.bool_] = np.zeros(len(left), np.bool_)
    are_equal = np.ones(len(left), np.bool_)
    flags, *codes = order_codes(pa.concat_arrays([left, right]), "ascending")
    for code in codes:
        ours, theirs = code[: len(left)], code[len(left) :]
        is_less |= are_equal & (ours < theirs)
        are_equal &= ours == theirs
    is_less &= (flags[: len(left)] == 1) & (flags[len(left) :] == 1)
    return is_less


def _shown(statistics: ColumnStatistics, unit: int) -> str:
    """Describe the bounds of a unit, whatever bytes their texts have."""
    low, high = (_text_of(bounds[unit]) for bounds in (statistics.minimum, statistics.maximum))
    return f"{low} to {high} with {statistics.null_count[unit]} nulls"


def _text_of(bound: pa.Scalar) -> str:
    if pa.types.is_string(bound.type) and bound.is_valid:
        return repr(bytes(bound.as_buffer())[:100].decode(errors="replace"))
    return str(bound)[:100]
