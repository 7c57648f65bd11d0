"""Batches as a reader that cannot be mistaken for complete after it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from arrow_format.errors import ClosedError, ShuffleError

if TYPE_CHECKING:
    from collections.abc import Iterable


class _Stream:
    """Gives batches on; after an error it gives that error again, where a generator would end."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._failure: ShuffleError | None = None

    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except BaseException as error:
            self._failure = (
                error
                if isinstance(error, ShuffleError)
                else ClosedError(f"reading was ended by {type(error).__name__}; read again")
            )
            raise


def reader_of(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Return a reader of batches; whoever catches an error and reads on gets an error again.

    Parameters
    ----------
    schema
        Of the batches.
    batches
        Pulled as the reader is read.
    """
    return pa.RecordBatchReader.from_batches(schema, _Stream(batches))
