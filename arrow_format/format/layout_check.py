"""Checks that nothing in an Arrow message leads outside of it, and nothing that may be as it likes.

Arrow takes the offsets of texts and lists as they are: one that leads outside is read from memory
that is somebody else's. Its own full validation finds that, but also refuses text that is no UTF-8
and decimals beyond their precision, which Spark writes and reads. So it is asked about the same
message as if its values were plain bytes: a message does not say of which type they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types as pt

if TYPE_CHECKING:
    from collections.abc import Iterable


class LayoutCheck:
    """Checks record batch messages of one schema.

    Parameters
    ----------
    schema
        A data schema.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = byte_schema(schema)
        self._with_offsets = [i for i, field in enumerate(self._schema) if _leads(field.type)]

    def check(self, message: pa.Buffer) -> None:
        """Check one message that is not compressed.

        Raises
        ------
        ValueError, pyarrow.ArrowException
            An offset or a count of it is wrong.
        """
        batch = pa.ipc.read_record_batch(message, self._schema)
        # That each buffer has the bytes its values take; and, where values say themselves where
        # they lie, that they lie inside. Of values of a fixed width that looks at nothing more.
        batch.validate(full=bool(self._with_offsets))


def _leads(type_: pa.DataType) -> bool:
    """Whether values of a type say themselves where they, or what is inside them, lie."""
    return bool(pt.is_binary(type_) or pt.is_nested(type_))


def check_array(array: pa.Array) -> None:
    """Check one array of a data schema as :class:`LayoutCheck` checks messages.

    Raises
    ------
    pyarrow.ArrowException
        An offset or a count of it is wrong.
    """
    array.validate()
    if pt.is_struct(array.type):
        for i in range(array.type.num_fields):
            check_array(array.field(i))
    elif pt.is_string(array.type):
        array.view(pa.binary()).validate(full=True)
    elif _leads(array.type):
        array.validate(full=True)


def byte_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that reads messages of a data schema as if all values were bytes."""
    return pa.schema(_as_bytes(schema))


def _as_bytes(fields: Iterable[pa.Field]) -> list[pa.Field]:
    return [pa.field(field.name, _layout(field.type), field.nullable) for field in fields]


def _layout(type_: pa.DataType) -> pa.DataType:
    """Return the type of the same buffers that has the fewest rules of its own."""
    if pt.is_string(type_):
        return pa.binary()
    if pt.is_struct(type_):
        return pa.struct(_as_bytes(type_))
    if pt.is_map(type_):
        # Not a map: Arrow's keys may not be null, which is checked where it matters.
        return pa.list_(pa.struct(_as_bytes([type_.key_field, type_.item_field])))
    if pt.is_fixed_size_list(type_):
        return pa.list_(_layout(type_.value_type), type_.list_size)
    if pt.is_list(type_):
        return pa.list_(_layout(type_.value_type))
    if pt.is_null(type_) or pt.is_boolean(type_) or pt.is_binary(type_):
        return type_
    return pa.binary(type_.bit_width // 8)
