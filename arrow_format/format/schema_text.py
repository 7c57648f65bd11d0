"""An Arrow schema as text, the form it has inside the JSON of an index or a log entry."""

from __future__ import annotations

import base64

import pyarrow as pa

from arrow_format.arrays.stored_types import data_schema
from arrow_format.errors import SchemaError


def schema_to_text(schema: pa.Schema) -> str:
    """Base64 of ``schema`` as an Arrow IPC schema message."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def schema_from_text(text: object) -> pa.Schema:
    """Inverse of :func:`schema_to_text`, for the schemas that shuffles are stored with.

    Raises
    ------
    ValueError, pyarrow.ArrowException
        It is no text of a schema, or of one with types that are never stored: dictionaries,
        extension types and views are resolved before anything is written.
    """
    if not isinstance(text, str):
        msg = f"a {type(text).__name__} is no text of a schema"
        raise ValueError(msg)  # noqa: TRY004  of what was parsed, not of an argument
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    try:
        is_stored = data_schema(schema).equals(schema)
    except SchemaError as error:
        raise ValueError(str(error)) from error
    if not is_stored:
        msg = f"the schema has types that are never stored: {schema.to_string()[:500]}"
        raise ValueError(msg)
    return schema
