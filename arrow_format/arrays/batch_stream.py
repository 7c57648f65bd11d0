"""A reader of batches that raises where rows would be missing.

PyArrow's own reader ends where its source failed, and is empty when it is read a second time.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from arrow_format.errors import ClosedError, ShuffleError
from arrow_format.extras import needed_by

if TYPE_CHECKING:
    from collections.abc import Iterable


class _Source:
    """Batches from an iterator; after an error it raises again, where a generator would end."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._failure: ShuffleError | None = None
        self._has_given = False
        self._has_ended = False
        self._process: int | None = None
        """That began to read; the threads that read ahead are there."""
        self.is_streamed = False
        """Whether a C stream has given rows: its consumer may stop anywhere without notice."""

    def __iter__(self) -> _Source:
        return self

    def __next__(self) -> pa.RecordBatch:
        self._check_failure()
        if self._is_forked():
            msg = (
                "another process, of which this one is a fork, began to read here, and has the "
                "threads that go on: ask the shuffle for another reader"
            )
            raise ClosedError(msg)
        self._process = os.getpid()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._has_ended = True
            raise
        except BaseException as error:
            self._failure = (
                error
                if isinstance(error, ShuffleError)
                else ClosedError(f"reading was ended by {type(error).__name__}; read again")
            )
            raise
        self._has_given = True
        return batch

    def check_unread(self) -> None:
        """Raise unless a new pass would miss no rows."""
        self._check_failure()
        if self.is_streamed:
            msg = (
                "a reader gives its rows once, and this one was read as a stream, which may have "
                "stopped anywhere: ask the shuffle for another"
            )
            raise ClosedError(msg)
        # A source without rows may be read again: the answer is the same.
        if self._has_given and self._has_ended:
            msg = (
                "a reader gives its rows once, and this one was read to its end: ask the shuffle "
                "for another, or keep what read_all() returned"
            )
            raise ClosedError(msg)

    def close(self) -> None:
        self._failure = self._failure or ClosedError("the reader was closed; read again")
        close = getattr(self._batches, "close", None)
        if close is not None and not self._is_forked():
            # ValueError: another thread is reading; its next batch raises.
            with contextlib.suppress(ValueError):
                close()

    def _is_forked(self) -> bool:
        return self._process not in (None, os.getpid())

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))


class _Use:
    """One pass over a source, checked again at its first batch: others may read in between."""

    def __init__(self, source: _Source, *, is_stream: bool = False) -> None:
        source.check_unread()
        self._source = source
        self._is_stream = is_stream
        self._has_begun = False

    def __iter__(self) -> _Use:
        return self

    def __next__(self) -> pa.RecordBatch:
        if not self._has_begun:
            self._source.check_unread()
            self._has_begun = True
        batch = next(self._source)
        self._source.is_streamed |= self._is_stream
        return batch


class BatchReader:
    """Record batches of a shuffle, read on demand and once.

    .. code-block:: python

        with orders.read(columns=["price"]) as reader:
            for batch in reader:
                print(batch.num_rows)

    It has the methods of a :class:`pyarrow.RecordBatchReader` and Arrow's C stream interface, so
    DuckDB, Polars (``pl.DataFrame(reader)``, not ``pl.from_arrow``) and PyArrow
    (``pa.table(reader)``) take it as it is. What accepts PyArrow's own class only takes
    ``pa.RecordBatchReader.from_stream(reader)``. To stop early, close it or drop it.

    Parameters
    ----------
    schema
        Of the batches.
    batches
        Pulled as the reader is read; closed with it if it has ``close``.

    Raises
    ------
    ClosedError
        From every use after it was read to its end, given rows as a stream, or closed: no use
        returns fewer rows silently.
    """

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        self._schema = schema
        self._source = _Source(batches)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches."""
        return self._schema

    def __iter__(self) -> _Use:
        return _Use(self._source)

    def __next__(self) -> pa.RecordBatch:
        if self._source.is_streamed:
            self._source.check_unread()
        return next(self._source)

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the next batch; raises StopIteration after the last."""
        return next(self)

    def read_all(self) -> pa.Table:
        """Return the remaining rows as a table."""
        return pa.Table.from_batches(self, self._schema)

    def read_pandas(self, **options: Any) -> Any:  # noqa: ANN401
        """Return the remaining rows as a pandas DataFrame; options of ``Table.to_pandas``."""
        with needed_by("a pandas DataFrame"):
            return self.read_all().to_pandas(**options)

    def cast(self, target_schema: pa.Schema) -> BatchReader:
        """Return a reader of the same rows in other types.

        Raises
        ------
        ValueError, pyarrow.ArrowException
            The names differ, or Arrow has no cast between two types.
        """
        self._schema.empty_table().cast(target_schema)
        return BatchReader(target_schema, (batch.cast(target_schema) for batch in self))

    def close(self) -> None:
        """Stop reading and release files and memory; may be called again."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        # Wrapped again, so that a stream that reads on after an error gets the error again.
        batches = _Source(_Use(self._source, is_stream=True))
        reader = pa.RecordBatchReader.from_batches(self._schema, batches)
        return reader.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<BatchReader of {', '.join(self._schema.names) or 'no columns'}>"
