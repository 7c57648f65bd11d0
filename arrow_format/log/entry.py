"""One entry of the commit log, to and from JSON.

The totals per subpartition are in a file of their own; the entry names its path, length and CRC.
See ``docs/format/v1.md``.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.errors import OptionError, SchemaError
from arrow_format.format.ipc import schema_from_text, schema_to_text
from arrow_format.keys.sort_keys import check_sort_by
from arrow_format.log.result import (
    PERSISTENT,
    Released,
    ResultDescription,
    released_from_json,
    released_to_json,
    result_from_json,
    result_to_json,
)
from arrow_format.model import (
    FORMAT_VERSION,
    MAX_SUBPARTITIONS,
    SAFE_NAME,
    MapOutput,
    PartitionedFile,
    Transaction,
)
from arrow_format.options import is_absolute_directory, normal_directory
from arrow_format.strict_json import natural, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OPERATIONS = ("overwrite", "append", "replace", "release")
"""``overwrite`` starts a version from nothing, ``append`` adds map outputs to the version before,
``replace`` names all map outputs of a merged version, which has the rows of the one before, and
``release`` names those that are left after others were consumed or given up."""

MALFORMED: tuple[type[Exception], ...] = (
    KeyError, TypeError, ValueError, AttributeError, pa.ArrowException, OSError, OptionError,
    SchemaError,
)  # fmt: skip
"""What parsing a record raises where its JSON is well-formed and its fields are not."""

_SAFE_PATH = re.compile(r"[A-Za-z0-9_\-.]+(/[A-Za-z0-9_\-.]+)*")
_LATER = ("num_broadcast_rows",)
"""Fields of a file that the first entries lack; 0 there."""
_END_OF_TIME_MS = 253_402_300_799_000
"""The last second that has a date in Python."""


@dataclass(frozen=True, slots=True)
class TotalsFile:
    """Where the rows and bytes per subpartition of one entry are stored."""

    path: str
    length: int
    crc32: int
    offset: int = 0
    """Byte of the file at which they start; not 0 in a checkpoint."""

    @staticmethod
    def of(path: str, data: bytes) -> TotalsFile:
        """Describe a file of totals, given all its bytes."""
        return TotalsFile(path, len(data), zlib.crc32(data))


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
    transaction: Transaction | None = None
    """The transaction this commit belongs to, if any."""
    format_version: int = field(default=FORMAT_VERSION)
    result: ResultDescription = PERSISTENT
    released: Released | None = None
    """What was released; only releases have it."""
    flushed: int | None = None
    """Number of the last pending commit that this version published, with all before it; None: it
    published none."""
    content: int | None = None
    """Last earlier version that added rows. Set on merges and on releases of unfinished results;
    None if not recorded."""

    @property
    def content_version(self) -> int:
        """The last version that added rows, which neither a merge nor a release does."""
        return self.version if self.content is None else self.content

    @property
    def is_whole(self) -> bool:
        """Whether it names all map outputs of a version, so that no entry before it is needed."""
        return self.operation in OPERATIONS and self.operation != "append"

    @property
    def num_rows(self) -> int:
        """Rows of the map outputs it names; a broadcast row counts once."""
        return sum(output.num_rows for output in self.map_outputs)

    @property
    def delivered_rows(self) -> int:
        """Rows that all subpartitions together read; a broadcast row counts in each."""
        n = self.num_subpartitions
        return sum(output.delivered_rows(n) for output in self.map_outputs)

    @property
    def num_bytes(self) -> int:
        """Bytes of the data files it names."""
        return sum(output.num_bytes for output in self.map_outputs)


def entry_to_json(entry: LogEntry) -> dict[str, Any]:
    """Encode an entry; fields that came after the first release are left out where unset."""
    later = {
        "transaction": asdict(entry.transaction) if entry.transaction else None,
        "result": result_to_json(entry.result) if entry.result != PERSISTENT else None,
        "released": released_to_json(entry.released) if entry.released else None,
        "flushed": entry.flushed,
        "content": entry.content,
    }
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
        **{name: value for name, value in later.items() if value is not None},
    }


def output_to_json(output: MapOutput) -> dict[str, Any]:
    """Encode a map output."""
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
    """Inverse of :func:`output_to_json`; raises :data:`MALFORMED`."""
    files = []
    for described in value["files"]:
        integers = {
            name: natural(described.get(name, 0) if name in _LATER else described[name])
            for name in PartitionedFile.__dataclass_fields__
            if name != "path"
        }
        files.append(_consistent(PartitionedFile(path=_safe_path(described["path"]), **integers)))
    return MapOutput(
        job_id=safe_name(value["job_id"]),
        map_task=natural(value["map_task"]),
        attempt=natural(value["attempt"]),
        files=tuple(files),
        counters={str(name): natural(count) for name, count in value["counters"].items()},
    )


def _consistent(file: PartitionedFile) -> PartitionedFile:
    """Return ``file`` if each of its regions can have rows, fewer than 2**31."""
    if (
        not file.num_regions <= file.num_rows < max(file.num_regions, 1) << 31
        or file.num_broadcast_rows > file.num_rows
    ):
        msg = f"{file.path} cannot have {file.num_rows} rows in {file.num_regions} regions"
        raise ValueError(msg)
    return file


def _root(root: object) -> str:
    if not isinstance(root, str) or not is_absolute_directory(root):
        msg = f"root {root!r} is not an absolute directory"
        raise ValueError(msg)
    return root


def _safe_path(path: object) -> str:
    """Return ``path`` if it stays below its directory and is normalised: paths are compared."""
    if (
        not isinstance(path, str)
        or not _SAFE_PATH.fullmatch(path)
        or {".", ".."} & set(path.split("/"))
    ):
        msg = f"path {path!r} would leave the shuffle's directory, or is not normalised"
        raise ValueError(msg)
    return path


def safe_name(name: object) -> str:
    """Return ``name`` if it may be part of a path; raises ValueError."""
    if not isinstance(name, str) or not SAFE_NAME.fullmatch(name):
        msg = f"{name!r} is not a name of a job, shuffle, commit or application"
        raise ValueError(msg)
    return name


def entry_from_json(value: Mapping[str, Any]) -> LogEntry:
    """Inverse of :func:`entry_to_json`; raises :data:`MALFORMED`."""
    totals = value["totals"]
    data_schema = schema_from_text(value["data_schema"])
    spark_schema = value["spark_schema"]
    entry = LogEntry(
        version=natural(value["version"]),
        operation=value["operation"],
        shuffle_id=safe_name(value["shuffle_id"]),
        job_id=safe_name(value["job_id"]),
        commit_id=safe_name(value["commit_id"]),
        committed_at_ms=natural(value["committed_at_ms"], _END_OF_TIME_MS),
        data_schema=data_schema,
        spark_schema=None if spark_schema is None else text(spark_schema),
        num_subpartitions=natural(value["num_subpartitions"], MAX_SUBPARTITIONS),
        partitioner=_described(value["partitioner"]),
        sort_by=check_sort_by(data_schema, _pairs(value["sort_by"])),
        map_outputs=tuple(output_from_json(output) for output in value["map_outputs"]),
        totals=TotalsFile(
            _safe_path(totals["path"]), natural(totals["length"]), natural(totals["crc32"])
        ),
        roots=tuple(_root(root) for root in value.get("roots", ())),
        transaction=_transaction(value["transaction"]) if "transaction" in value else None,
        format_version=natural(value["format_version"]),
        result=result_from_json(value.get("result")),
        released=released_from_json(value["released"]) if "released" in value else None,
        flushed=natural(value["flushed"]) if "flushed" in value else None,
        content=natural(value["content"]) if "content" in value else None,
    )
    for problem in _problems(entry):
        raise ValueError(problem)
    stated = natural(value["num_rows"]), natural(value["num_bytes"])
    if stated != (entry.num_rows, entry.num_bytes):
        msg = "totals differ from the sum over map outputs"
        raise ValueError(msg)
    return entry


def _described(partitioner: object) -> dict[str, Any]:
    if not isinstance(partitioner, dict) or not isinstance(partitioner.get("kind"), str):
        msg = "the partitioner is not an object with a kind"
        raise ValueError(msg)  # noqa: TRY004  of what was parsed, not of an argument
    return partitioner


def _transaction(value: Mapping[str, Any]) -> Transaction:
    return Transaction(safe_name(value["application_id"]), natural(value["number"]))


def _pairs(keys: object) -> list[tuple[str, str]]:
    if not isinstance(keys, list):
        msg = "sort_by is not a list"
        raise ValueError(msg)  # noqa: TRY004  of what was parsed, not of an argument
    return [(text(name), text(order)) for name, order in keys]


def _problems(entry: LogEntry) -> Iterator[str]:
    """Yield what is wrong with the fields of an entry, if anything."""
    files = [file for output in entry.map_outputs for file in output.files]
    last = max((file.root for file in files), default=0)
    if last > len(entry.roots):
        yield f"a file is in root {last}, and the entry names {len(entry.roots)}"
    roots = ("", *map(normal_directory, entry.roots))
    if len({(roots[file.root], file.path) for file in files}) < len(files):
        yield "a file is named twice"
    if entry.num_subpartitions < 1:
        yield "there are no subpartitions"
    for number in (entry.delivered_rows, entry.num_bytes, sum(file.raw_bytes for file in files)):
        natural(number)
    if (entry.released is not None) != (entry.operation == "release"):
        yield "a release names what was released, and no other operation does"
    if entry.released is not None and entry.released.through >= entry.version:
        yield f"version {entry.version} cannot release version {entry.released.through}"
    if entry.flushed is not None and entry.flushed >= entry.version:
        yield f"version {entry.version} cannot have flushed number {entry.flushed}"
    is_rewritten = entry.operation in ("replace", "release")
    if entry.content is not None and not (is_rewritten and entry.content < entry.version):
        yield f"version {entry.version} ({entry.operation}) cannot have content {entry.content}"
    tasks = [output.map_task for output in entry.map_outputs]
    jobs = {output.job_id for output in entry.map_outputs}
    if not is_rewritten and (tasks != list(range(len(tasks))) or jobs - {entry.job_id}):
        yield f"map outputs are not those of job {entry.job_id}, each once and in order"
