"""A reader of batches that gives its rows once.

PyArrow's own reader ends where a source failed, and is empty when it is read a second time: then
missing rows look like no rows.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from arrow_format.errors import ClosedError, ShuffleError

if TYPE_CHECKING:
    from collections.abc import Iterable


class _Source:
    """Gives batches; after an error it gives that error again, where a generator would end."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._failure: ShuffleError | None = None
        self._has_given = False
        self._has_ended = False
        self.is_streamed = False
        """Whether a stream has given rows: who reads it may stop anywhere, and does not say so."""

    def __iter__(self) -> _Source:
        return self

    def __next__(self) -> pa.RecordBatch:
        self._check_failure()
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
        """Check that a use may begin: no rows are missing from what is left."""
        self._check_failure()
        if self.is_streamed:
            msg = (
                "a reader gives its rows once, and this one was read as a stream, which may have "
                "stopped anywhere: ask the shuffle for another"
            )
            raise ClosedError(msg)
        # Without any rows, none is the right answer every time.
        if self._has_given and self._has_ended:
            msg = (
                "a reader gives its rows once, and this one was read to its end: ask the shuffle "
                "for another, or keep what read_all() returned"
            )
            raise ClosedError(msg)

    def close(self) -> None:
        self._failure = self._failure or ClosedError("the reader was closed; read again")
        close = getattr(self._batches, "close", None)
        if close is not None:
            with contextlib.suppress(
                ValueError
            ):  # another thread is reading: it fails with the next
                close()

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))


class _Use:
    """One pass over a source, which may end after this one was made and before it begins."""

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
    """Record batches of a shuffle, read as they are asked for, once.

    It reads as a :class:`pyarrow.RecordBatchReader` does and has Arrow's C stream interface, so
    DuckDB, Polars (``pl.DataFrame(reader)``, not ``pl.from_arrow``) and PyArrow
    (``pa.table(reader)``) take it as it is. To stop early, close it, or let go of it. What takes
    nothing but PyArrow's own class takes ``pa.RecordBatchReader.from_stream(reader)``.

    Raises
    ------
    ClosedError
        From every use after it was read to its end, given rows as a stream, or closed: no use gives
        fewer rows silently.
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
        """Return the next batch; raises StopIteration when there is none."""
        return next(self)

    def read_all(self) -> pa.Table:
        """Return all rows that are left as a table."""
        return pa.Table.from_batches(self, self._schema)

    def read_pandas(self, **options: Any) -> Any:  # noqa: ANN401
        """Return all rows that are left as a pandas DataFrame.

        Parameters
        ----------
        options
            Of :meth:`pyarrow.Table.to_pandas`.
        """
        return self.read_all().to_pandas(**options)

    def cast(self, target_schema: pa.Schema) -> BatchReader:
        """Return a reader of the same rows in other types, which must have the same names.

        Raises
        ------
        ValueError, pyarrow.ArrowException
            Names differ, or no value of a type can become the other.
        """
        self._schema.empty_table().cast(target_schema)
        return BatchReader(target_schema, (batch.cast(target_schema) for batch in self))

    def close(self) -> None:
        """Stop reading and let go of files and memory; it may be called again."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        # The source of the source gives an error again, also to a stream that asks on.
        batches = _Source(_Use(self._source, is_stream=True))
        reader = pa.RecordBatchReader.from_batches(self._schema, batches)
        return reader.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<BatchReader of {', '.join(self._schema.names) or 'no columns'}>"


def reader_of(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> BatchReader:
    """Return a reader of batches.

    Parameters
    ----------
    schema
        Of the batches.
    batches
        Pulled as the reader is read; closed with it, where it has ``close``.
    """
    return BatchReader(schema, batches)
