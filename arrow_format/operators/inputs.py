"""What an operation reads: a shuffle, or the rows that another operation makes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

import pyarrow.compute as pc

from arrow_format.errors import OptionError, SchemaError
from arrow_format.operators.computed import Computed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from arrow_format.filters.row_filter import RowFilter
    from arrow_format.filters.spark_rules import SparkSettings
    from arrow_format.read.chunk_plan import Piece
    from arrow_format.read.shuffle import Shuffle

    Input: TypeAlias = Shuffle | Computed

Filter: TypeAlias = str | pc.Expression | None


@dataclass(frozen=True)
class InputSlice:
    """Some of the rows and columns of an input."""

    rows: Input
    """The input, restricted to the rows that are read."""
    columns: Sequence[str] | None
    """Columns to deliver, in that order; all when None."""
    subpartitions: Sequence[int] | None
    """Ascending; all when None."""

    def pruned(self, names: Sequence[str]) -> InputSlice:
        """Return the same, of which no other columns are made where rows are made at all."""
        if not isinstance(self.rows, Computed):
            return self
        return InputSlice(self.rows.pruned(names), self.columns, self.subpartitions)

    @property
    def names(self) -> list[str]:
        """Names of the columns to deliver."""
        return list(self.rows.schema.names if self.columns is None else self.columns)


def bound(rows: Input, filter: str | pc.Expression, settings: SparkSettings) -> RowFilter:
    """Return a filter bound to the columns of an input; ``settings`` are for its text.

    Raises OptionError and SchemaError, which name the input.
    """
    try:
        return rows.bound(filter, settings)
    except (OptionError, SchemaError) as error:
        msg = f"filter of {rows.path}: {str(error).removeprefix('filter: ')}"
        raise type(error)(msg) from error


def common_subpartitions(inputs: Sequence[InputSlice]) -> Sequence[int] | None:
    """Return the subpartitions that an operation works on; raises OptionError where they differ.

    One that selects none works on those that the others select.
    """
    asked = [each for each in inputs if each.subpartitions is not None]
    for other in asked[1:]:
        if other.subpartitions != asked[0].subpartitions:
            msg = (
                f"subpartitions: {asked[0].rows.path} and {other.rows.path} are restricted to "
                "different ones, and an operation works on the same of each; select equal ones"
            )
            raise OptionError(msg)
    return asked[0].subpartitions if asked else None


def batches_again(
    rows: Input,
    ranges: Sequence[tuple[int, int]],
    columns: Sequence[str],
    *,
    ordered: bool = False,
    piece: Piece | None = None,
) -> Callable[[], Iterator[pa.RecordBatch]]:
    """Return what reads ranges ``[first, end)`` of subpartitions, each time that it is called.

    Of one subpartition it may be a ``piece``. Rows come in the order of the shuffle with
    ``ordered``, else in no particular one, but the same each time.
    """
    if isinstance(rows, Computed):
        return rows.again(ranges, columns, piece).__iter__
    return partial(_batches, rows, ranges, columns, ordered, piece)


def _batches(
    shuffle: Shuffle,
    ranges: Sequence[tuple[int, int]],
    columns: Sequence[str],
    ordered: bool,
    piece: Piece | None,
) -> Iterator[pa.RecordBatch]:
    runs = chain.from_iterable(
        shuffle.rows(range(first, end), columns, piece=piece)
        if ordered
        else shuffle.reader(first, end, columns, piece=piece)
        for first, end in ranges
    )
    # A generator's variable would keep each run until the next is read; map keeps none.
    return map(attrgetter("batch"), runs)
