"""What the rows of a change feed do, whether they come in order or in any. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import to_arrow, to_numpy
from arrow_format.arrays.selection import keep
from arrow_format.errors import SchemaError
from arrow_format.keys.key_groups import key_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

UPSERTS = ("c", "r", "u", "+I", "+U", "insert", "update_postimage")
"""The row is there now: of Debezium, of Flink, and of Spark's and Delta's change feeds."""
DELETES = ("d", "-D", "delete")
"""No row of the key is there now; its other columns mean nothing."""
IGNORED = ("-U", "update_preimage")
"""What a row was before the next change, which says what it is."""


def check_row_kind(schema: pa.Schema, row_kind: str, needed: Sequence[str]) -> None:
    """Raise SchemaError where changes lack a needed column, or ``row_kind`` is no text."""
    for name in (row_kind, *needed):
        if name not in schema.names:
            msg = f"row_kind={row_kind!r}: the changes have no column {name!r}"
            raise SchemaError(msg)
    type_ = schema.field(row_kind).type
    if not (pt.is_string(type_) or pt.is_large_string(type_)):
        msg = f"row_kind={row_kind!r}: the column is {type_}, expected text such as 'u', 'd'"
        raise SchemaError(msg)


def _kinds(
    changes: pa.Table | pa.RecordBatch, row_kind: str, unique: Sequence[str]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which rows are there, and which are deleted; raises SchemaError as documented."""
    kinds = changes[row_kind]
    if isinstance(kinds, pa.ChunkedArray):
        kinds = kinds.combine_chunks()
    kinds = pc.utf8_rtrim(kinds, " ")  # texts of a CHAR are padded
    is_upsert, is_delete, is_ignored = (
        to_numpy(pc.is_in(kinds, pa.array(known, kinds.type)))
        for known in (UPSERTS, DELETES, IGNORED)
    )
    unknown = np.flatnonzero(~(is_upsert | is_delete | is_ignored))
    if len(unknown):
        row = int(unknown[0])
        msg = (
            f"row_kind={row_kind!r}: row {row:,}{_key_of(changes, unique, row)} is "
            f"{kinds[row].as_py()!r}, which is none of "
            f"{', '.join((*UPSERTS, *DELETES, *IGNORED))}"
        )
        raise SchemaError(msg)
    return is_upsert, is_delete


def _key_of(changes: pa.Table | pa.RecordBatch, unique: Sequence[str], row: int) -> str:
    """Return the key of a row for a message: of a batch in a task the number says little."""
    key = {name: changes[name][row].as_py() for name in unique if name in changes.schema.names}
    return f" ({', '.join(f'{name}={value!r}' for name, value in key.items())})"


def split_changes(
    changes: pa.RecordBatch, row_kind: str, needed: Sequence[str]
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the rows that are there by changes in any order, and of the deletions some columns.

    ``needed`` are these: what identifies a row, and last what says which change is newer. The
    column ``row_kind`` is in neither. Raises SchemaError where a row has another kind or none, or a
    deletion nothing by which it would be newer than a row.
    """
    is_upsert, is_delete = _kinds(changes, row_kind, needed[:-1])
    rows = changes.drop_columns([row_kind])
    gone = keep(rows.select(needed), to_arrow(is_delete))
    if gone.num_columns and gone.column(gone.num_columns - 1).null_count:
        lacks = to_numpy(changes[needed[-1]].is_null())
        row = int(np.flatnonzero(is_delete & lacks)[0])
        msg = (
            f"row_kind={row_kind!r}: row {row:,}{_key_of(changes, needed[:-1], row)} is a deletion "
            f"whose {needed[-1]!r} is null, so that no row is older than it: give it a value"
        )
        raise SchemaError(msg)
    return (rows if is_upsert.all() else keep(rows, to_arrow(is_upsert))), gone


def last_changes(
    changes: pa.Table, row_kind: str, unique: Sequence[str]
) -> tuple[pa.Table, pa.RecordBatch]:
    """Return the last row of each key that is there after all changes, and the keys that are not.

    ``changes`` come in the order in which they happened, ``row_kind`` is the column that says what
    each does, which rows do not have after it. Keys are the columns of ``unique``, in that order.

    Raises SchemaError where such a column is missing, or a row has another kind, or none.
    """
    check_row_kind(changes.schema, row_kind, unique)
    is_upsert, is_delete = _kinds(changes, row_kind, unique)
    rows, is_left = changes.drop_columns([row_kind]), is_upsert | is_delete
    if not is_left.all():
        rows, is_delete = keep(rows, to_arrow(is_left)), is_delete[is_left]
    last = np.zeros(rows.num_rows, np.bool_)
    if rows.num_rows:
        _, of_keys = key_groups([rows[name].combine_chunks() for name in unique])
        last[of_keys] = True
    gone = keep(rows.select(unique), to_arrow(last & is_delete)).combine_chunks()
    (keys,) = gone.to_batches() or [pa.RecordBatch.from_pylist([], gone.schema)]
    return keep(rows, to_arrow(last & ~is_delete)), keys
