"""One entry of the commit log, to and from JSON.

The per-subpartition totals stand in a file of their own beside it, named with length and CRC by the
entry. See ``docs/format/v1.md``.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.errors import CorruptShuffleError
from arrow_format.log_lines import natural
from arrow_format.model import FORMAT_VERSION, Int64Array, MapOutput, PartitionedFile
from arrow_format.schema_text import schema_from_text, schema_to_text

if TYPE_CHECKING:
    from collections.abc import Mapping

OPERATIONS = ("overwrite", "append", "replace")
"""``overwrite`` starts a version from nothing, ``append`` adds map outputs to the one before,
``replace`` names all map outputs anew that together hold the rows of the one before."""

_SAFE_PATH = re.compile(r"[A-Za-z0-9_\-.]+(/[A-Za-z0-9_\-.]+)*")
_LATER = ("num_broadcast_rows",)
"""Fields of a file that the first entries did not have; 0 where they are missing."""
_TOTALS_SCHEMA = pa.schema(
    [pa.field("num_rows", pa.int64(), False), pa.field("num_bytes", pa.int64(), False)]
)


@dataclass(frozen=True, slots=True)
class TotalsFile:
    """Where the rows and bytes per subpartition of one entry stand."""

    path: str
    length: int
    crc32: int
    offset: int = 0
    """Byte of the file at which they start; not 0 in a checkpoint."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A version: what one committed job added to, or put in place of, the version before."""

    version: int
    operation: str
    shuffle_id: str
    job_id: str
    commit_id: str
    committed_at_ms: int
    """Milliseconds since 1970 by the committing machine's clock; for people, not for order."""
    data_schema: pa.Schema
    spark_schema: str | None
    """Spark's JSON of the schema; None when it was written without Spark."""
    num_subpartitions: int
    partitioner: Mapping[str, Any]
    map_outputs: tuple[MapOutput, ...]
    totals: TotalsFile
    sort_by: tuple[tuple[str, str], ...] = ()
    roots: tuple[str, ...] = ()
    """Directories of the roots 1, 2, ... of :attr:`PartitionedFile.root`, absolute."""
    format_version: int = field(default=FORMAT_VERSION)

    @property
    def is_whole(self) -> bool:
        """Whether it names all map outputs of its version, so that none before it are needed."""
        return self.operation != "append"

    @property
    def num_rows(self) -> int:
        """Rows of the map outputs it names; a broadcast row counts once."""
        return sum(output.num_rows for output in self.map_outputs)

    @property
    def delivered_rows(self) -> int:
        """Rows that all subpartitions together read of it."""
        n = self.num_subpartitions
        return sum(output.delivered_rows(n) for output in self.map_outputs)

    @property
    def num_bytes(self) -> int:
        """Bytes of the data files it names."""
        return sum(output.num_bytes for output in self.map_outputs)


def entry_to_json(entry: LogEntry) -> dict[str, Any]:
    """JSON of an entry."""
    return {
        "format_version": entry.format_version,
        "version": entry.version,
        "operation": entry.operation,
        "shuffle_id": entry.shuffle_id,
        "job_id": entry.job_id,
        "commit_id": entry.commit_id,
        "committed_at_ms": entry.committed_at_ms,
        "data_schema": schema_to_text(entry.data_schema),
        "spark_schema": entry.spark_schema,
        "num_subpartitions": entry.num_subpartitions,
        "partitioner": dict(entry.partitioner),
        "sort_by": [list(key) for key in entry.sort_by],
        "roots": list(entry.roots),
        "num_rows": entry.num_rows,
        "num_bytes": entry.num_bytes,
        "totals": {
            "path": entry.totals.path,
            "length": entry.totals.length,
            "crc32": entry.totals.crc32,
        },
        "map_outputs": [output_to_json(output) for output in entry.map_outputs],
    }


def output_to_json(output: MapOutput) -> dict[str, Any]:
    """JSON of a map output."""
    return {
        "job_id": output.job_id,
        "map_task": output.map_task,
        "attempt": output.attempt,
        "counters": dict(output.counters),
        "files": [
            {name: getattr(file, name) for name in PartitionedFile.__dataclass_fields__}
            for file in output.files
        ],
    }


def output_from_json(value: Mapping[str, Any]) -> MapOutput:
    """Inverse of :func:`output_to_json`.

    Raises
    ------
    KeyError, TypeError, ValueError
        It is not of that form, or a path would leave the shuffle's directory.
    """
    files = []
    for described in value["files"]:
        integers = {
            name: natural(described.get(name, 0) if name in _LATER else described[name])
            for name in PartitionedFile.__dataclass_fields__
            if name != "path"
        }
        files.append(PartitionedFile(path=_safe_path(described["path"]), **integers))
    return MapOutput(
        job_id=str(value["job_id"]),
        map_task=natural(value["map_task"]),
        attempt=natural(value["attempt"]),
        files=tuple(files),
        counters={str(name): int(count) for name, count in value["counters"].items()},
    )


def _absolute(root: object) -> str:
    if not isinstance(root, str) or not root.startswith("/"):
        msg = f"root {root!r} is no absolute directory"
        raise ValueError(msg)
    return root


def _safe_path(path: object) -> str:
    """Return ``path`` if it stays below the directory it is relative to."""
    if not isinstance(path, str) or not _SAFE_PATH.fullmatch(path) or ".." in path.split("/"):
        msg = f"path {path!r} would leave the shuffle's directory"
        raise ValueError(msg)
    return path


def entry_from_json(value: Mapping[str, Any]) -> LogEntry:
    """Inverse of :func:`entry_to_json`.

    Raises
    ------
    KeyError, TypeError, ValueError, ArrowException, OSError
        It is not of that form.
    """
    totals = value["totals"]
    entry = LogEntry(
        version=natural(value["version"]),
        operation=value["operation"],
        shuffle_id=str(value["shuffle_id"]),
        job_id=str(value["job_id"]),
        commit_id=str(value["commit_id"]),
        committed_at_ms=natural(value["committed_at_ms"]),
        data_schema=schema_from_text(value["data_schema"]),
        spark_schema=value["spark_schema"],
        num_subpartitions=natural(value["num_subpartitions"]),
        partitioner=dict(value["partitioner"]),
        sort_by=tuple((str(name), str(order)) for name, order in value["sort_by"]),
        map_outputs=tuple(output_from_json(output) for output in value["map_outputs"]),
        totals=TotalsFile(
            _safe_path(totals["path"]), natural(totals["length"]), natural(totals["crc32"])
        ),
        roots=tuple(_absolute(root) for root in value.get("roots", ())),
        format_version=value["format_version"],
    )
    if (value["num_rows"], value["num_bytes"]) != (entry.num_rows, entry.num_bytes):
        msg = "totals differ from the sum over map outputs"
        raise ValueError(msg)
    return entry


def encode_totals(num_rows: Int64Array, num_bytes: Int64Array) -> bytes:
    """Rows and bytes per subpartition as an Arrow IPC file with zstd buffers."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, _TOTALS_SCHEMA, options=options) as writer:
        writer.write_batch(
            pa.RecordBatch.from_arrays(
                [pa.array(num_rows), pa.array(num_bytes)], schema=_TOTALS_SCHEMA
            )
        )
    return bytes(sink.getvalue().to_pybytes())


def read_totals(data: pa.Buffer) -> tuple[Int64Array, Int64Array]:
    """Inverse of :func:`encode_totals`; raises an Arrow error when it is not of that form."""
    table = pa.ipc.open_file(data).read_all()
    rows, sizes = (table.column(name).to_numpy() for name in _TOTALS_SCHEMA.names)
    return rows, sizes


def decode_totals(data: pa.Buffer, entry: LogEntry) -> tuple[Int64Array, Int64Array]:
    """Verify and parse the totals of ``entry``: rows and bytes per subpartition (int64).

    Raises
    ------
    CorruptShuffleError
        They are not those the entry names.
    """
    if data.size != entry.totals.length or zlib.crc32(data) != entry.totals.crc32:
        msg = f"totals of version {entry.version} are not those that were committed"
        raise CorruptShuffleError(msg)
    try:
        rows, sizes = read_totals(data)
    except (pa.ArrowException, OSError, IndexError, ValueError) as error:
        msg = f"totals of version {entry.version} are not of this format ({error})"
        raise CorruptShuffleError(msg) from error
    if len(rows) != entry.num_subpartitions or int(rows.sum()) != entry.delivered_rows:
        msg = f"totals of version {entry.version} do not add up to its {entry.delivered_rows} rows"
        raise CorruptShuffleError(msg)
    return rows, sizes
