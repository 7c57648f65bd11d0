"""A shuffle as a dataset of PyArrow, for those that push columns and filters into one: DuckDB.

PyArrow has no interface for datasets of others. As Lance does, this is a subclass with a scanner of
its own, which DuckDB, Polars and PyArrow's own methods call. What passes it by and reads files
finds one that refuses, so nothing is taken for an empty dataset.
"""

from __future__ import annotations

import atexit
import io
import threading
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow.dataset as ds

from arrow_format.arrays.selection import keep
from arrow_format.errors import OptionError
from arrow_format.filters.from_arrow import columns_of, parts_of
from arrow_format.integrations.pushdown import restricted, small_at_first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    import pyarrow.compute as pc

    from arrow_format.read.shuffle import Shuffle


class _RefusingFile(io.RawIOBase):
    """A file that cannot be read."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return 0

    def seek(self, *_: int) -> NoReturn:
        msg = (
            "PyArrow reads the files of this dataset, and a shuffle has none that it can read: "
            "take its to_table() or scanner() first"
        )
        raise OptionError(msg)


_FORMAT = ds.IpcFileFormat()

_REFUSING = _FORMAT.make_fragment(_RefusingFile())
"""One for all: PyArrow keeps the frames in which a fragment is made, and what they refer to."""


class ShuffleDataset(ds.FileSystemDataset):  # type: ignore[misc]
    """Rows of a shuffle, read at each scan with the columns and the filter of that scan.

    A filter finds the rows that it finds in every dataset of PyArrow. Of a conjunction, the parts
    that a shuffle takes decide what is read; where they are not all, PyArrow evaluates the whole.
    Scans keep the order of rows. It can be pickled.

    Raises
    ------
    OptionError
        From joins, sorting and unions of datasets, which read files: take a table first.
    """

    def __init__(self, rows: Shuffle, ordered: bool = False) -> None:
        super().__init__([_REFUSING], rows.schema_of(), _FORMAT)
        self._rows = rows
        self._is_ordered = ordered

    def __reduce__(self) -> tuple[Callable[..., ShuffleDataset], tuple[Shuffle, bool]]:
        return type(self), (self._rows, self._is_ordered)

    def __repr__(self) -> str:
        return f"<ShuffleDataset of {self._rows!r}>"

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        **options: Any,  # noqa: ANN401
    ) -> ds.Scanner:
        """Return a scanner, to be used once; parameters of :meth:`pyarrow.dataset.Dataset.scanner`.

        Raises
        ------
        SchemaError
            The shuffle has no such column.
        """
        parts, is_whole = ([], True) if filter is None else parts_of(filter, self.schema)
        rows, all_pushed = restricted(self._rows, parts)
        is_exact = is_whole and all_pushed
        needed = _needed(columns, None if is_exact else filter)
        reader = rows.read(columns=needed, ordered=self._is_ordered)
        few = small_at_first(reader)
        batches = UntilExit(few if is_exact else _matching(few, filter))
        return ds.Scanner.from_batches(batches, schema=reader.schema, columns=columns, **options)

    def filter(self, expression: pc.Expression) -> ShuffleDataset:
        """Return the rows that match, as a dataset.

        Raises
        ------
        OptionError, SchemaError
            The expression is no filter of a shuffle.
        """
        return type(self)(self._rows.where(expression), self._is_ordered)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:  # noqa: ANN401
        """Return the number of rows; decodes only what a filter needs and statistics do not say."""
        parts, is_whole = ([], True) if filter is None else parts_of(filter, self.schema)
        rows, all_pushed = restricted(self._rows, parts)
        if is_whole and all_pushed:
            return rows.count_rows()
        return int(self.scanner([], filter, **options).count_rows())


class UntilExit:
    """Batches that threads of Arrow take, until Python ends.

    They read ahead, and go on where a query with a limit has ended long ago. A thread that enters
    Python while the interpreter is taken apart aborts the process, or never returns. So the last
    thing of a program is that all of these have no more batches.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches, self._lock, self._has_ended = batches, threading.Lock(), False
        _scans.add(self)

    def __iter__(self) -> UntilExit:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._lock:
            if self._has_ended:
                raise StopIteration
            try:
                return next(self._batches)
            except BaseException:
                self._has_ended = True
                raise

    def end(self) -> bool:
        """Give no more batches; return whether a thread may still ask for one."""
        with self._lock:
            had_ended, self._has_ended = self._has_ended, True
        return not had_ended


_scans: weakref.WeakSet[UntilExit] = weakref.WeakSet()


@atexit.register
def _end_scans() -> None:
    if any([scan.end() for scan in list(_scans)]):
        time.sleep(0.05)  # until the threads that wait for batches have seen that there are none


def _needed(
    columns: Sequence[str] | Mapping[str, pc.Expression] | None, filter: pc.Expression | None
) -> list[str] | None:
    """Return the columns that a scan reads, those of a filter that PyArrow evaluates too.

    None for all, also where an expression does not say which it reads.
    """
    if columns is None:
        return None
    names: list[str] = []
    try:
        for column in columns.values() if isinstance(columns, Mapping) else columns:
            names += [column] if isinstance(column, str) else columns_of(column)
        if filter is not None:
            names += columns_of(filter)
    except OptionError:  # columns by position
        return None
    return list(dict.fromkeys(names))


def _matching(
    batches: Iterator[pa.RecordBatch], condition: pc.Expression
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        answer = ds.Scanner.from_batches(
            [batch], schema=batch.schema, columns={"": condition}
        ).to_table()
        yield keep(batch, answer.column(0).combine_chunks())
