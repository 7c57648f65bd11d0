"""A user's function per subpartition of one shuffle or several."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from arrow_format.arrays.stored_types import conform, in_time_zone
from arrow_format.errors import OptionError
from arrow_format.keys.co_partitioning import check_co_partitioned
from arrow_format.operators.inputs import where_each
from arrow_format.operators.results import results_of
from arrow_format.operators.subpartition_readers import each_subpartition, row_source
from arrow_format.operators.tasks import Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    import pyarrow as pa

    from arrow_format.operators.inputs import Filter
    from arrow_format.operators.staying_rows import Result
    from arrow_format.operators.subpartition_readers import RowSource
    from arrow_format.read.shuffle import Shuffle

    Function: TypeAlias = Callable[..., Iterable[pa.RecordBatch]]

Columns: TypeAlias = Sequence[str] | None


def map_operation(
    shuffles: Sequence[Shuffle],
    function: Function,
    schema: pa.Schema,
    *,
    columns: Sequence[str] | Sequence[Columns] | None,
    filter: Filter | Sequence[Filter],
    time_zone: str,
) -> Operation:
    """Return the calls of a function for each subpartition of co-partitioned shuffles.

    ``schema`` is that of what the function yields, ``time_zone`` that of text filters and of the
    timestamps that it reads. Raises OptionError and SchemaError.
    """
    check_co_partitioned(shuffles)
    shuffles = where_each(shuffles, filter, time_zone)
    if not callable(function):
        msg = f"function is {type(function).__name__}: expected a callable(subpartition, *readers)"
        raise OptionError(msg)
    chosen = _columns_of_each(columns, len(shuffles))
    for shuffle, names in zip(shuffles, chosen, strict=True):
        row_source(shuffle, (), names).close()
    return Operation(shuffles, EachSubpartition(shuffles, chosen, function, schema, time_zone))


def _columns_of_each(columns: Any, number: int) -> tuple[Columns, ...]:  # noqa: ANN401
    if isinstance(columns, str):
        columns = [columns]
    if columns is not None and not isinstance(columns, Sequence):
        msg = f"columns={columns!r}: expected a list of column names, or a list for each shuffle"
        raise OptionError(msg)
    if columns is None or _are_names(columns):
        return (columns,) * number
    if len(columns) != number or not all(each is None or _are_names(each) for each in columns):
        msg = f"columns={columns!r}: expected column names, or a list for each of {number} shuffles"
        raise OptionError(msg)
    return tuple([each] if isinstance(each, str) else each for each in columns)


def _are_names(columns: object) -> bool:
    return isinstance(columns, Sequence) and all(isinstance(name, str) for name in columns)


@dataclass(frozen=True)
class EachSubpartition:
    """Calls the user's function for subpartitions, and checks its results."""

    shuffles: tuple[Shuffle, ...]
    columns: tuple[Columns, ...]
    function: Callable[..., Iterable[pa.RecordBatch]]
    schema: pa.Schema
    time_zone: str
    """Of the timestamps that the function reads."""

    def __call__(self, subpartitions: Sequence[int]) -> Generator[Result]:
        """Yield the results of the function, subpartition after subpartition."""
        paths = ", ".join(shuffle.path for shuffle in self.shuffles)
        sources = [
            RowSourceInTimeZone(row_source(shuffle, subpartitions, names), self.time_zone)
            for shuffle, names in zip(self.shuffles, self.columns, strict=True)
        ]
        with closing(each_subpartition(subpartitions, sources)) as turns:
            for subpartition, readers in turns:
                where = f"subpartition {subpartition} of {paths}"
                call = partial(self.function, subpartition, *readers)
                for batch in results_of(call, self.schema, caller="map_subpartitions", where=where):
                    yield range(subpartition, subpartition + 1), batch
                # They would keep the rows of a broadcast shuffle.
                del readers, call


class RowSourceInTimeZone:
    """Reads rows through another reader of subpartitions, with timestamps in a time zone."""

    def __init__(self, source: RowSource, time_zone: str) -> None:
        self._source = source
        self.schema = in_time_zone(source.schema, time_zone)

    def batches_of(self, subpartition: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of a subpartition."""
        with closing(self._source.batches_of(subpartition)) as batches:
            for batch in batches:
                yield conform(batch, self.schema)
                del batch  # before the next is read

    def close(self) -> None:
        """Stop reading."""
        self._source.close()
