"""One entry of the commit log, to and from JSON.

The per-subpartition totals stand in a file of their own beside it, named with length and CRC by the
entry. See ``docs/format/v1.md``.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

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
    from collections.abc import Mapping

    import pyarrow as pa

OPERATIONS = ("overwrite", "append", "replace", "release")
"""``overwrite`` starts a version from nothing, ``append`` adds map outputs to the one before,
``replace`` names all map outputs anew that together hold the rows of the one before, ``release``
those that are left after others were consumed or given up."""

_SAFE_PATH = re.compile(r"[A-Za-z0-9_\-.]+(/[A-Za-z0-9_\-.]+)*")
_LATER = ("num_broadcast_rows",)
"""Fields of a file that the first entries did not have; 0 where they are missing."""
_END_OF_TIME_MS = 253_402_300_799_000
"""The last second that has a date in Python."""


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
    transaction: Transaction | None = None
    """What this commit is a part of; None when it stands for itself."""
    format_version: int = field(default=FORMAT_VERSION)
    result: ResultDescription = PERSISTENT
    released: Released | None = None
    """What was released; of a release only."""
    flushed: int | None = None
    """Number of the last pending map outputs that this version has taken up, and with them all
    before; None: it has taken up none."""
    content: int | None = None
    """Of a merge, and of a release after which more may come: the last version before it that
    brought anything; None where none was noted."""

    @property
    def content_version(self) -> int:
        """The last version that brought anything, which neither a merge nor a release does."""
        return self.version if self.content is None else self.content

    @property
    def is_whole(self) -> bool:
        """Whether it names all map outputs of its version, so that none before it are needed.

        One that is pending is of no version.
        """
        return self.operation in OPERATIONS and self.operation != "append"

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
    """JSON of an entry; what came later is left out where it says nothing."""
    later: dict[str, Any] = {}
    if entry.transaction is not None:
        later["transaction"] = asdict(entry.transaction)
    if entry.result != PERSISTENT:
        later["result"] = result_to_json(entry.result)
    if entry.released is not None:
        later["released"] = released_to_json(entry.released)
    if entry.flushed is not None:
        later["flushed"] = entry.flushed
    if entry.content is not None:
        later["content"] = entry.content
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
        **later,
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
        files.append(_consistent(PartitionedFile(path=_safe_path(described["path"]), **integers)))
    return MapOutput(
        job_id=safe_name(value["job_id"]),
        map_task=natural(value["map_task"]),
        attempt=natural(value["attempt"]),
        files=tuple(files),
        counters={str(name): natural(count) for name, count in value["counters"].items()},
    )


def _consistent(file: PartitionedFile) -> PartitionedFile:
    """Return ``file`` if its numbers go together: every region has rows, less than 2**31."""
    if (
        not file.num_regions <= file.num_rows < max(file.num_regions, 1) << 31
        or file.num_broadcast_rows > file.num_rows
    ):
        msg = f"{file.path} cannot have {file.num_rows} rows in {file.num_regions} regions"
        raise ValueError(msg)
    return file


def _root(root: object) -> str:
    """Return ``root`` if it is an absolute directory."""
    if not isinstance(root, str) or not is_absolute_directory(root):
        msg = f"root {root!r} is no absolute directory"
        raise ValueError(msg)
    return root


def _safe_path(path: object) -> str:
    """Return ``path`` if it stays below the directory it is relative to.

    Each file has one path: collections, and the check that none is named twice, compare texts.
    """
    if (
        not isinstance(path, str)
        or not _SAFE_PATH.fullmatch(path)
        or {".", ".."} & set(path.split("/"))
    ):
        msg = f"path {path!r} would leave the shuffle's directory, or is not its only spelling"
        raise ValueError(msg)
    return path


def safe_name(name: object) -> str:
    """Return ``name`` if it may stand in a path."""
    if not isinstance(name, str) or not SAFE_NAME.fullmatch(name):
        msg = f"{name!r} is no name of a job, shuffle, commit or application"
        raise ValueError(msg)
    return name


def entry_from_json(value: Mapping[str, Any]) -> LogEntry:
    """Inverse of :func:`entry_to_json`.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError, ArrowException, OSError, OptionError,
    SchemaError
        It is not of that form.
    """
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
    _check(entry)
    stated = natural(value["num_rows"]), natural(value["num_bytes"])
    if stated != (entry.num_rows, entry.num_bytes):
        msg = "totals differ from the sum over map outputs"
        raise ValueError(msg)
    return entry


def _described(partitioner: object) -> dict[str, Any]:
    """Return the description of a partitioner if it is one."""
    if not isinstance(partitioner, dict) or not isinstance(partitioner.get("kind"), str):
        msg = "the partitioner is no object with a kind"
        raise ValueError(msg)  # noqa: TRY004  of what was parsed, not of an argument
    return partitioner


def _transaction(value: Mapping[str, Any]) -> Transaction:
    """Return what a commit is a part of."""
    return Transaction(safe_name(value["application_id"]), natural(value["number"]))


def _pairs(keys: object) -> list[tuple[str, str]]:
    """Return sort keys in the one form they have in a file."""
    if not isinstance(keys, list):
        msg = "sort_by is no list"
        raise ValueError(msg)  # noqa: TRY004  of what was parsed, not of an argument
    return [(text(name), text(order)) for name, order in keys]


def _check(entry: LogEntry) -> None:
    """Check what the numbers of an entry must keep to beside each other."""
    files = [file for output in entry.map_outputs for file in output.files]
    last = max((file.root for file in files), default=0)
    if last > len(entry.roots):
        msg = f"a file is in root {last}, of {len(entry.roots)} that are named"
        raise ValueError(msg)
    roots = ("", *map(normal_directory, entry.roots))
    if len({(roots[file.root], file.path) for file in files}) < len(files):
        msg = "a file is named twice"
        raise ValueError(msg)
    if entry.num_subpartitions < 1:
        msg = "there are no subpartitions"
        raise ValueError(msg)
    natural(entry.delivered_rows)
    natural(entry.num_bytes)
    natural(sum(file.raw_bytes for file in files))
    if (entry.released is not None) != (entry.operation == "release"):
        msg = "what was released belongs to a release, and to nothing else"
        raise ValueError(msg)
    if entry.released is not None and entry.released.through >= entry.version:
        msg = f"version {entry.version} cannot release version {entry.released.through}"
        raise ValueError(msg)
    if entry.flushed is not None and entry.flushed >= entry.version:
        msg = f"version {entry.version} cannot have flushed number {entry.flushed}"
        raise ValueError(msg)
    if entry.content is not None and not (
        entry.operation in ("replace", "release") and entry.content < entry.version
    ):
        msg = f"version {entry.version}, of {entry.operation}, cannot hold what {entry.content} had"
        raise ValueError(msg)
    if entry.operation in ("replace", "release"):
        return
    tasks = [output.map_task for output in entry.map_outputs]
    if tasks != list(range(len(tasks))) or {output.job_id for output in entry.map_outputs} - {
        entry.job_id
    }:
        msg = f"map outputs are not those of job {entry.job_id}, each once and in order"
        raise ValueError(msg)
