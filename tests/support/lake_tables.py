"""Tables of Delta and Iceberg with deletes that their Python libraries read and cannot write."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestWriterV2,
)
from pyiceberg.typedef import Record
from pyroaring import BitMap

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyiceberg.table import Table

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


# Iceberg ------------------------------------------------------------------------------------------


def iceberg_table(directory: Path, rows: pa.Table) -> Table:
    """Return a table of these rows, with a catalog in the directory."""
    catalog = SqlCatalog(
        "test", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/warehouse"
    )
    catalog.create_namespace("test")
    table = catalog.create_table("test.rows", rows.schema, properties={"format-version": "2"})
    table.append(rows)
    return table


class _DeletesWriter(ManifestWriterV2):  # type: ignore[misc]
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def delete_rows(table: Table, rows: pa.Table, equality_ids: list[int] | None = None) -> None:
    """Commit a file of deletes: of ``file_path`` and ``pos``, or of values of columns."""
    path = f"{table.location()}/data/deletes-{table.metadata.last_sequence_number}.parquet"
    pq.write_table(rows, path.removeprefix("file://"))
    with table.io.new_input(path).open() as written:
        size = len(written.read())
    is_equality = equality_ids is not None
    content = DataFileContent.EQUALITY_DELETES if is_equality else DataFileContent.POSITION_DELETES
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows.num_rows,
        file_size_in_bytes=size,
        equality_ids=equality_ids,
    )
    file.spec_id = table.spec().spec_id
    with table.transaction() as transaction:
        append = transaction.update_snapshot().fast_append()

        def writer(spec: Any) -> ManifestWriterV2:
            return _DeletesWriter(
                spec,
                table.schema(),
                append.new_manifest_output(),
                append.snapshot_id,
                "deflate",
            )

        append.new_manifest_writer = writer
        append.append_data_file(file)
        append.commit()


def delete_positions(table: Table, path: str, positions: Iterable[int]) -> None:
    """Delete rows of one file, by their numbers in it."""
    numbers = list(positions)
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
            pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
        ]
    )
    delete_rows(table, pa.table([[path] * len(numbers), numbers], schema=schema))


# Delta --------------------------------------------------------------------------------------------


def delete_by_vector(directory: Path, positions: Iterable[int]) -> None:
    """Give the one file of a Delta table of one version an inline deletion vector."""
    log = directory / "_delta_log"
    actions = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    (added,) = (action["add"] for action in actions if "add" in action)
    (metadata,) = (action["metaData"] for action in actions if "metaData" in action)
    metadata["configuration"] = {"delta.enableDeletionVectors": "true"}
    bitmap = BitMap(positions)
    payload = struct.pack("<iqi", 1681511377, 1, 0) + bitmap.serialize()
    size = len(payload)
    vector = {
        "storageType": "i",
        "pathOrInlineDv": _z85(payload + b"\0" * (-size % 4)),
        "sizeInBytes": size,
        "cardinality": len(bitmap),
    }
    removed = {
        "path": added["path"],
        "deletionTimestamp": added["modificationTime"],
        "dataChange": True,
    }
    features = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    commit = [
        {"protocol": protocol},
        {"metaData": metadata},
        {"remove": removed},
        {"add": {**added, "deletionVector": vector}},
    ]
    (log / f"{1:020}.json").write_text("\n".join(map(json.dumps, commit)) + "\n")


def map_columns(directory: Path, names: dict[str, str]) -> None:
    """Rename columns of a Delta table of one version in its metadata, and not in its files."""
    log = directory / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            action["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"], 1):
                field["metadata"] = {
                    "delta.columnMapping.id": number,
                    "delta.columnMapping.physicalName": field["name"],
                }
                field["name"] = names.get(field["name"], field["name"])
            action["metaData"]["schemaString"] = json.dumps(schema)
    log.write_text("\n".join(map(json.dumps, actions)) + "\n")


def _z85(payload: bytes) -> str:
    text = ""
    for (word,) in struct.iter_unpack(">I", payload):
        text += "".join(Z85[word // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return text
