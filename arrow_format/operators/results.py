"""Results of a user's function, brought to the schema that was declared.

``mapInArrow`` of Spark takes them by position and checks neither names nor types.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.arrays.batches import BATCH_BYTES, copied, rebatched
from arrow_format.arrays.stored_types import conform, data_schema, same_but_labels
from arrow_format.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence


def results_of(
    call: Callable[[], Any], schema: pa.Schema, *, caller: str, where: str
) -> Generator[pa.RecordBatch]:
    """Call a user's function and yield its results, brought to the declared schema.

    An error of the function gets notes of where it was raised (``caller`` is the function of ours,
    ``where`` has subpartitions and paths) and of its cause: PySpark prints notes, but neither cause
    nor context. StopIteration becomes RuntimeError, since in a generator it would pass for the end.
    """
    with noted(caller, where):
        try:
            results = call()
        except StopIteration as error:
            raise RuntimeError(_ended(where)) from error
        try:
            yield from checked_results(results, schema, where)
        except RuntimeError as error:
            # What Python makes of StopIteration that leaves a generator.
            if str(error) == "generator raised StopIteration":
                raise RuntimeError(_ended(where)) from (error.__cause__ or error)
            raise


class noted:
    """Adds notes to an error of a user's function: where it was raised, and its cause.

    PySpark prints notes, but neither cause nor context.
    """

    def __init__(self, caller: str, where: str | Callable[[], str]) -> None:
        self._caller = caller
        self._where = where

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Add the notes."""
        if not isinstance(error, Exception):
            return
        where = self._where if isinstance(self._where, str) else self._where()
        error.add_note(f"in {self._caller}, {where}")
        setattr(error, _OF_FUNCTION, True)
        cause = error.__cause__
        if cause is None and not error.__suppress_context__:
            cause = error.__context__
        if cause is not None:
            cause = cause.with_traceback(without_our_frames(cause.__traceback__))
            error.add_note("caused by:\n" + "".join(traceback.format_exception(cause)).rstrip())


_OF_FUNCTION = "_of_function_given_to_arrow_shuffle"
_OURS = frozenset({"arrow_format", "arrow_shuffle", "connector"})


def is_of_function(error: BaseException) -> bool:
    """Whether an error left a user's function, or what is wrong with its results."""
    return hasattr(error, _OF_FUNCTION)


def without_our_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of our packages; None where it has no other."""
    kept: TracebackType | None = None
    for frame in reversed(list(_each(frames))):
        package = str(frame.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if package not in _OURS:
            kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


def _each(frames: TracebackType | None) -> Iterator[TracebackType]:
    while frames is not None:
        yield frames
        frames = frames.tb_next


def _ended(where: str) -> str:
    return (
        f"{where}: the function raised StopIteration, as read_next_batch() does when there are no "
        "more batches: the subpartition is empty, or the reader at its end. Iterate over the "
        "reader, or catch it"
    )


def checked_results(results: Any, schema: pa.Schema, where: str) -> Iterator[pa.RecordBatch]:  # noqa: ANN401
    """Yield copies of the batches of a function, brought to a schema; close ``results`` then.

    None is empty, and one much larger than :data:`~connector.source.reader.BATCH_BYTES` comes in
    parts. Columns may have another order, and encodings or labels that
    :func:`~arrow_format.arrays.stored_types.data_schema` resolves.
    """
    if not isinstance(results, Iterable) or isinstance(results, pa.RecordBatch | pa.Table):
        msg = (
            f"{where}: the function returned {_kind(results)}: expected an iterator of "
            "pyarrow.RecordBatch; yield them, or return a list"
        )
        raise SchemaError(msg)
    try:
        for result in results:
            # The function may change its buffers when it goes on, while rows wait to be written.
            # In parts, which are handed on one by one: a large batch is not there twice.
            parts = rebatched([fitted(result, schema, where)], min_rows=1, max_bytes=BATCH_BYTES)
            yield from map(copied, parts)
            del parts, result  # before the next is made
    finally:
        # Before the readers are closed: the function may still read from them.
        close = getattr(results, "close", None)
        if close is not None:
            close()


def fitted(batch: Any, schema: pa.Schema, where: str) -> pa.RecordBatch:  # noqa: ANN401
    """Return a batch of a function brought to a schema; SchemaError names what does not fit."""
    if not isinstance(batch, pa.RecordBatch):
        msg = f"{where}: the function yielded {_kind(batch)}: expected a pyarrow.RecordBatch"
        raise SchemaError(msg)
    try:
        if not batch.schema.equals(schema):
            _check_columns(batch.schema, schema)
        return conform(batch, schema)
    except SchemaError as error:
        msg = (
            f"{where}: a batch that the function yielded does not fit the schema: {error} "
            f"(expected {_columns(schema)}; found {_columns(batch.schema)})"
        )
        raise SchemaError(msg) from None


def _check_columns(given: pa.Schema, schema: pa.Schema) -> None:
    stored = data_schema(given)
    if difference := names_that_differ(stored.names, schema.names):
        raise SchemaError(difference)
    for field in schema:
        type_ = stored.field(field.name).type
        if not same_but_labels(type_, field.type):
            msg = f"column {field.name!r} is {type_}, not {field.type}; cast it"
            raise SchemaError(msg)


def names_that_differ(given: Sequence[object], expected: Sequence[str]) -> str:
    """Return which columns a result lacks and has besides, for a message; empty if none."""
    missing = [name for name in expected if name not in given]
    extra = [str(name) for name in given if name not in expected]
    parts = [f"it lacks {', '.join(missing)}"] * bool(missing)
    parts += [f"it has {', '.join(extra)} besides"] * bool(extra)
    return " and ".join(parts)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "no columns"


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
