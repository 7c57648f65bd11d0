"""What the log of a shuffle says of a version: its shape, and its map outputs in reading order."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import zstandard

if TYPE_CHECKING:
    from pathlib import Path

PUBLISHES = {"overwrite", "append", "upsert", "merge", "delete", "rollback", "release", "alter"}
OTHERS = {"pending", "pending-overwrite", "fence", "expire", "tag", "erase", "blank"}

_INT, _TEXT, _BYTES = pa.int64(), pa.string(), pa.binary()
_STATISTICS = pa.struct([("c", _INT), ("low", _BYTES), ("high", _BYTES), ("nulls", _INT)])
FILE = pa.struct(
    [
        ("path", _TEXT),
        ("root", _BYTES),
        *((name, _INT) for name in ("num_rows", "num_regions", "data_bytes", "raw_bytes")),
        *((name, _INT) for name in ("index_bytes", "directory_bytes", "directory_crc32")),
        *((name, _INT) for name in ("num_broadcast_rows", "num_subpartitions", "first", "end")),
        ("statistics", pa.list_(_STATISTICS)),
        ("placed", pa.bool_()),
        *((f"mask_{name}", _INT) for name in ("rows", "number", "offset", "length", "crc32")),
        ("mask_path", _TEXT),
        ("mask", _BYTES),
    ]
)
ADDED = pa.schema(
    [
        *((name, _INT) for name in ("version", "order", "last_version")),
        ("job_id", _TEXT),
        *((name, _INT) for name in ("map_task", "attempt")),
        ("column_ids", pa.list_(pa.int32())),
        ("counters", pa.map_(_TEXT, _INT)),
        ("files", pa.list_(FILE)),
    ]
)
REMOVED = pa.schema([("key", _TEXT)])
TOTALS = pa.schema([("num_rows", _INT), ("num_bytes", _INT)])


class DamageError(Exception):
    """A byte is not what was written."""


class NewerError(Exception):
    """A later release wrote it."""


class NoShuffleError(Exception):
    """There is no such version."""


@dataclass
class Version:
    """A version: everything that who reads its rows needs of the log."""

    number: int
    shape: dict[str, Any]
    outputs: list[dict[str, Any]]
    subpartition_rows: list[int]

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of its rows."""
        return schema_of(self.shape["data_schema"])


def schema_of(text: str) -> pa.Schema:
    """Return the schema in base64 of an Arrow IPC message."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))


def batch_in(frame: bytes, schema: pa.Schema, size: int | None = None) -> pa.RecordBatch:
    """Return the batch of a zstd frame that states its content size."""
    stated = zstandard.frame_content_size(frame)
    if stated < 0 or size not in (None, stated) or stated > max(64 << 20, 1000 * len(frame)):
        raise DamageError(f"a frame that states {stated} bytes")
    content = zstandard.ZstdDecompressor().decompress(frame)
    batch = pa.ipc.read_record_batch(pa.py_buffer(content), schema)
    batch.validate(full=True)
    return batch


def open_version(shuffle: Path, number: int | None = None) -> Version:
    """Return a version, the newest when None; raises one of the three errors above."""
    log = _Log(shuffle / "commit_log")
    newest, ranges = log.look()
    state = newest.state
    if not state.get("version"):
        raise NoShuffleError("there is no version")
    version = state["version"] if number is None else number
    if version > state["version"]:
        raise NoShuffleError(f"the newest version is {state['version']}")
    tagged = version < state.get("oldest", 1)
    if tagged and version not in [tag["version"] for tag in state.get("tags", {}).values()]:
        raise NoShuffleError(f"version {version} has expired")
    if tagged:
        files = [log.read(version, "range")]
    else:
        known = max(*ranges, state.get("checkpoint", 0), 0)
        files = log.collect(version, state.get("base", 0), known)
        if log.was_removed(files[-1].number):
            raise DamageError("its segment was removed: look again")
    own = files[0].state
    if files[0].head["operation"] not in PUBLISHES or own.get("version") != version:
        raise NoShuffleError(f"number {version} is no version")
    if own.get("ended", 0) > own.get("content", 0):
        raise NoShuffleError(f"version {version} was released")
    outputs, totals = _joined(files)
    n = own["shape"]["num_subpartitions"]
    rows = [sum(totals[of::n]) for of in range(n)]
    return Version(version, own["shape"], outputs, rows)


class _File:
    """An entry or a range."""

    def __init__(self, data: bytes, where: str) -> None:
        line, _, rest = data.partition(b"\n")
        trailer, _, rest = rest.partition(b"\n")
        stated = re.fullmatch(rb"arrow-shuffle-log (\d+) ([0-9a-f]{8})", trailer)
        if not stated or (int(stated[1]), int(stated[2], 16)) != (len(line), zlib.crc32(line)):
            raise DamageError(where)
        self.head = json.loads(line)
        if self.head["format_version"] > 1:
            raise NewerError(f"{where}: format {self.head['format_version']}")
        self.state = self.head.get("state", {})
        if set(self.state.get("readers", ())) - {"masks"}:
            raise NewerError(f"{where}: {self.state['readers']}")
        if self.head["operation"] not in PUBLISHES | OTHERS:
            raise NewerError(f"{where}: {self.head['operation']}")
        self.number = self.head["number"]
        self.span = self.head.get("range")
        self._sections = {}
        for name, length, crc32, size in self.head.get("sections", ()):
            section, rest = rest[:length], rest[length:]
            if len(section) != length or zlib.crc32(section) != crc32 or name in self._sections:
                raise DamageError(f"{where}: section {name}")
            self._sections[name] = section, size
        if rest:
            raise DamageError(f"{where}: {len(rest)} bytes behind the sections")

    def section(self, name: str, schema: pa.Schema) -> pa.RecordBatch:
        if name not in self._sections:
            return pa.RecordBatch.from_pylist([], schema)
        return batch_in(self._sections[name][0], schema, self._sections[name][1])

    @property
    def after(self) -> int:
        return self.span["after"] if self.span else self.number - 1

    @property
    def parent(self) -> str | None:
        return (self.span or self.head)["parent"]

    @property
    def clears(self) -> bool:
        if self.span:
            return self.span.get("clears", False)
        operation = self.head["operation"]
        ends = operation == "release" and self.state["released"]["ended"]
        return operation in ("overwrite", "rollback") or ends

    @property
    def released(self) -> int:
        if self.span:
            return self.span.get("released", 0)
        is_release = self.head["operation"] == "release" and not self.clears
        return self.state["released"]["through"] if is_release else 0

    @property
    def changes_outputs(self) -> bool:
        return bool(self.span) or self.head["operation"] in PUBLISHES


class _Log:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def look(self) -> tuple[_File, list[int]]:
        """Return the newest entry, and the numbers of the ranges in its segment."""
        for segment in sorted(self._directory.glob("[0-9]" * 18), reverse=True):
            entries = self._numbers(segment, "entry")
            if entries:
                ranges = [
                    number for number in self._numbers(segment, "range") if number <= entries[-1]
                ]
                return self.read(entries[-1], "entry"), ranges or [0]
        raise NoShuffleError("the log is empty")

    @staticmethod
    def _numbers(segment: Path, kind: str) -> list[int]:
        return sorted(int(path.stem) for path in segment.glob("[0-9]" * 20 + f".{kind}"))

    def _path(self, number: int, kind: str) -> Path:
        return self._directory / f"{number // 512:018d}" / f"{number:020d}.{kind}"

    def read(self, number: int, kind: str) -> _File:
        path = self._path(number, kind)
        if not path.exists():
            raise DamageError(f"{path} is not there")
        file = _File(path.read_bytes(), str(path))
        if file.number != number or bool(file.span) != (kind == "range"):
            raise DamageError(f"{path} is of another number")
        return file

    def was_removed(self, number: int) -> bool:
        return (self._directory / "expired" / f"{number // 512:018d}").exists()

    def collect(self, version: int, base: int, known: int) -> list[_File]:
        """Return what a version is made of, the newest first."""
        known = known if known <= version else 0
        files: list[_File] = []
        number = version
        while number > 0 and not (files and files[-1].clears):
            file = None
            if number == base or (number == known and self._path(number, "range").exists()):
                file = self.read(number, "range")
                if number != base and 0 < file.after < base:
                    file = None
            if file is None:
                file = self.read(number, "entry")
                known = max(known if known < number else 0, file.state.get("checkpoint", 0))
            else:
                known = file.after
            if files and files[-1].parent != file.head["commit_id"]:
                raise DamageError(f"{number} is not the parent of {files[-1].number}")
            files.append(file)
            number = file.after
        return files


def _joined(files: list[_File]) -> tuple[list[dict[str, Any]], list[int]]:
    """Join files, the newest first, of which at most the last clears what is before.

    Returns the map outputs, and rows per subpartition of each, one behind the other.
    """
    added: list[dict[str, Any]] = []
    removed: set[str] = set()
    totals: list[int] = []
    for file in files:
        if not file.changes_outputs:
            continue
        added += [
            output
            for output in file.section("added", ADDED).to_pylist()
            if f"{output['job_id']}/{output['map_task']}" not in removed
        ]
        removed |= set(file.section("removed", REMOVED).column(0).to_pylist())
        totals += file.section("totals", TOTALS).column(0).to_pylist()
    released = max(file.released for file in files)
    kept = [output for output in added if output["last_version"] > released]
    return sorted(kept, key=lambda output: (output["version"], output["order"])), totals
