"""An Arrow schema as text, the form it has inside the JSON of an index or a log entry."""

from __future__ import annotations

import base64

import pyarrow as pa


def schema_to_text(schema: pa.Schema) -> str:
    """Base64 of ``schema`` as an Arrow IPC schema message."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def schema_from_text(text: str) -> pa.Schema:
    """Inverse of :func:`schema_to_text`; bad text raises ValueError or an Arrow error."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
