"""Schemas that machines read: of an entry's JSON, and of every batch of the format.

:mod:`tests.compat.datagen` writes them to ``tests/compat/schemas/``.
"""

from __future__ import annotations

import json
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from arrow_format.format.index_blocks import BLOCK_SCHEMA
from arrow_format.log.entry import LogEntry
from arrow_format.log.job_ends import NO_JOBS
from arrow_format.log.output_table import SCHEMA as ADDED
from arrow_format.model import PartitionedFileMetadata

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).parent / "schemas"

_TOTALS = pa.schema([pa.field(name, pa.int64(), False) for name in ("num_rows", "num_bytes")])
_REMOVED = pa.schema([pa.field("key", pa.string(), False)])
BATCHES = {
    "added": ADDED,
    "removed": _REMOVED,
    "totals": _TOTALS,
    "jobs": NO_JOBS.schema,
    "block": BLOCK_SCHEMA,
}
"""Of sections of the log, and of a block of an index."""


def schemas() -> Mapping[str, bytes]:
    """Return the content of each file, by its name."""
    files = {f"{name}.arrow": bytes(schema.serialize()) for name, schema in BATCHES.items()}
    for name, described in (("entry", _json_schema(_entry())), ("directory", _directory())):
        files[f"{name}.schema.json"] = (json.dumps(described, indent=1) + "\n").encode()
    return files


def _entry() -> type:
    """Return an entry as its JSON has it: sections are described, not held."""
    fields = [
        (
            field.encode_name,
            field.type,
            msgspec.field(default=field.default, default_factory=field.default_factory),
        )
        for field in msgspec.structs.fields(LogEntry)
        if field.name != "content"
    ]
    section = tuple[str, int, int, int]
    return msgspec.defstruct(
        "Entry", [*fields, ("sections", tuple[section, ...], ())], kw_only=True
    )


def _directory() -> dict[str, Any]:
    described = _json_schema(PartitionedFileMetadata)
    place = {"type": "array", "items": {"type": "integer"}, "minItems": 8, "maxItems": 8}
    (directory,) = (
        known for name, known in described["$defs"].items() if name == "PartitionedFileMetadata"
    )
    added = {"blocks": {"type": "array", "items": place}, "other_crc32": {"type": "integer"}}
    directory["properties"] |= added
    directory["required"] = sorted(directory["properties"])
    return described


def _json_schema(type_: type) -> dict[str, Any]:
    """Return the JSON Schema of a type, with expressions that all languages know."""
    text = json.dumps(msgspec.json.schema(type_, schema_hook=_of_other))
    text = text.replace(r"\\A", "^").replace(r"\\Z", "$")
    described: dict[str, Any] = json.loads(text, object_hook=_without_margin)
    return described


def _without_margin(described: dict[str, Any]) -> dict[str, Any]:
    """Return an object whose description has no margin, which msgspec keeps before 0.23."""
    text = described.get("description")
    return described | {"description": cleandoc(text)} if isinstance(text, str) else described


def _of_other(type_: type) -> dict[str, Any]:
    if type_ is pa.Schema:
        return {"type": "string", "contentEncoding": "base64", "description": "Arrow IPC schema"}
    raise NotImplementedError(type_)


def write() -> None:
    """Write the files."""
    HERE.mkdir(exist_ok=True)
    for name, content in schemas().items():
        (HERE / name).write_bytes(content)
