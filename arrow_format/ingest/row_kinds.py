"""What the rows of a change feed do, and the net change of one that comes in order. Pure."""

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

UPSERTS = ("c", "r", "u", "+I", "+U", "insert", "update_postimage")
"""The row is there now: of Debezium, of Flink, and of Spark's and Delta's change feeds."""
DELETES = ("d", "-D", "delete")
"""No row of the key is there now; its other columns mean nothing."""
IGNORED = ("-U", "update_preimage")
"""What a row was before the next change, which says what it is."""


def last_changes(
    changes: pa.Table, row_kind: str, unique: Sequence[str]
) -> tuple[pa.Table, pa.RecordBatch]:
    """Return the last row of each key that is there after all changes, and the keys that are not.

    ``changes`` come in the order in which they happened, ``row_kind`` is the column that says what
    each does, which rows do not have after it. Keys are the columns of ``unique``, in that order.

    Raises SchemaError where such a column is missing, or a row has another kind, or none.
    """
    for name in (row_kind, *unique):
        if name not in changes.schema.names:
            msg = f"row_kind={row_kind!r}: the changes have no column {name!r}"
            raise SchemaError(msg)
    kinds = changes[row_kind].combine_chunks()
    if not (pt.is_string(kinds.type) or pt.is_large_string(kinds.type)):
        msg = f"row_kind={row_kind!r}: the column is {kinds.type}, expected text such as 'u', 'd'"
        raise SchemaError(msg)
    is_upsert, is_delete, is_ignored = (
        to_numpy(pc.is_in(kinds, pa.array(known, kinds.type)))
        for known in (UPSERTS, DELETES, IGNORED)
    )
    unknown = np.flatnonzero(~(is_upsert | is_delete | is_ignored))
    if len(unknown):
        row = int(unknown[0])
        msg = (
            f"row_kind={row_kind!r}: row {row:,} is {kinds[row].as_py()!r}, which is none of "
            f"{', '.join((*UPSERTS, *DELETES, *IGNORED))}"
        )
        raise SchemaError(msg)
    rows = changes.drop_columns([row_kind])
    if is_ignored.any():
        rows, is_delete = keep(rows, to_arrow(~is_ignored)), is_delete[~is_ignored]
    last = np.zeros(rows.num_rows, np.bool_)
    if rows.num_rows:
        _, of_keys = key_groups([rows[name].combine_chunks() for name in unique])
        last[of_keys] = True
    gone = keep(rows.select(unique), to_arrow(last & is_delete)).combine_chunks()
    (keys,) = gone.to_batches() or [pa.RecordBatch.from_pylist([], gone.schema)]
    return keep(rows, to_arrow(last & ~is_delete)), keys
