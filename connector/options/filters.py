"""Filters that travel as an option and are no text: PyArrow's expressions and keys, as Arrow IPC.

Apart from the other texts because no user writes these. IPC and not pickle: a user who can set
an option of a DataFrame must not be able to run code in the process that reads it.
"""

from __future__ import annotations

import base64
import binascii
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from arrow_format.option_fields import Kind
from connector.options.text import INTERNAL

ArrowFilter: TypeAlias = pc.Expression | pa.RecordBatch
"""An expression; or keys, one a row."""


def format_arrow_filter(given: ArrowFilter) -> str:
    """Write an expression or keys as the text of an option."""
    if isinstance(given, pc.Expression):
        kind, stored = "expression", given.__reduce__()[1][0]
    else:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, given.schema) as writer:
            writer.write_batch(given)
        kind, stored = "keys", sink.getvalue()
    return f"{kind} {base64.b64encode(stored).decode()}"


def _parse_arrow_filter(text: str) -> ArrowFilter:
    """Inverse of :func:`format_arrow_filter`; ValueError for what it has not written."""
    kind, _, encoded = text.partition(" ")
    try:
        stored = pa.py_buffer(base64.b64decode(encoded, validate=True))
        if kind == "expression":
            # What pickle would call: PyArrow has no public name for it.
            from_ipc, _ = pc.scalar(True).__reduce__()
            return from_ipc(stored)
        if kind == "keys":
            with pa.ipc.open_stream(stored) as reader:
                batch = reader.read_next_batch()
            batch.validate(full=True)
            return batch
    except (pa.ArrowException, binascii.Error, StopIteration, OSError):
        pass
    raise ValueError


ARROW_FILTER_KIND = Kind(parse=_parse_arrow_filter, expected=INTERNAL)
