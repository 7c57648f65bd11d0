"""What the log of a shuffle says of a version: its state, and its map outputs in reading order."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from integration.readers.arrow_frames import DamageError, NewerError, check, fields, section

if TYPE_CHECKING:
    from pathlib import Path

PUBLISH = {"overwrite", "append", "merge", "delete", "upsert", "rollback", "alter", "release"}
OTHERS = {"pending", "pending-overwrite", "fence", "expire", "tag", "erase", "blank"}

_INT, _TEXT, _BYTES = pa.int64(), pa.string(), pa.binary()
_BOUNDS = fields(int64="column", binary="minimum maximum") + fields(int64="null_count")
_FILE = [
    *fields(string="path", binary="root"),
    *fields(int64="num_rows num_regions data_bytes raw_bytes index_bytes directory_bytes"),
    *fields(int64="directory_crc32 num_broadcast_rows num_subpartitions first_subpartition"),
    *fields(int64="end_subpartition"),
    ("statistics", pa.list_(pa.struct(_BOUNDS))),
    *fields(bool_="placed", int64="mask_rows mask_number mask_offset mask_length mask_crc32"),
    *fields(string="mask_path", binary="mask"),
]
_SECTIONS = {
    "added": [
        *fields(int64="version order last_version", string="job_id"),
        *fields(int64="map_task attempt"),
        ("column_ids", pa.list_(pa.int32())),
        ("counters", pa.map_(_TEXT, _INT)),
        ("files", pa.list_(pa.struct(_FILE))),
    ],
    "removed": fields(string="key"),
    "totals": fields(int64="num_rows num_bytes"),
}


class NoShuffleError(Exception):
    """There is no such version."""


class MissingError(DamageError):
    """A file of the log is not there: a reader looks again."""


def parsed(text: bytes) -> dict[str, Any]:
    """Return an object of JSON, of a version of the format that is known."""

    def refuse(name: str) -> None:
        raise DamageError(f"{name} in JSON")

    found: dict[str, Any] = json.loads(text.decode(), parse_constant=refuse)
    if found.get("format_version", 1) > 1:
        raise NewerError(f"format version {found['format_version']}")
    return found


class _File:
    """An entry or a range."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise MissingError(f"{path} is not there")
        line, _, rest = path.read_bytes().partition(b"\n")
        stated, _, rest = rest.partition(b"\n")
        check(stated == b"arrow-shuffle-log %d %08x" % (len(line), zlib.crc32(line)), path)
        self.head = head = parsed(line)
        self.number, self.operation, self.state = head["number"], head["operation"], head["state"]
        check(f"{self.number:020}" == path.stem, path)
        check(("range" in head) == (path.suffix == ".range"), path)
        if self.operation not in PUBLISH | OTHERS:
            raise NewerError(f"operation {self.operation}")
        if set(self.state.get("readers", ())) - {"masks"}:
            raise NewerError(f"features {self.state['readers']}")
        found: dict[str, list[dict[str, Any]]] = {}
        for name, length, crc32, size in head.get("sections", ()):
            part, rest = rest[:length], rest[length:]
            check((len(part), zlib.crc32(part)) == (length, crc32), f"section {name} of {path}")
            check(name not in found, f"section {name} twice")
            of = _SECTIONS.get(name)
            found[name] = section(part, pa.schema(of), size).to_pylist() if of else []
        check(not rest, f"{len(rest)} bytes behind the sections of {path}")
        self.added, self.removed = found.get("added", []), found.get("removed", [])
        files = [file for output in self.added for file in output["files"]]
        check(len({(file["root"], file["path"]) for file in files}) == len(files), "a file twice")
        self.totals = _sums(found.get("totals", ()), "num_rows", "num_bytes")
        if "range" in head:
            of_range = head["range"]
            self.after, self.parent = of_range["after"], of_range["parent"]
            self.clears, self.released = of_range.get("clears"), of_range.get("released", 0)
            return
        stated_sums = [head.get(name, 0) for name in ("num_outputs", "num_rows", "num_bytes")]
        sums = [len(self.added), *_sums(files, "num_rows", "data_bytes")]
        check(stated_sums == sums or self.operation == "blank", f"sums of {path}")
        released = self.state["released"] if self.operation == "release" else {}
        self.after, self.parent = self.number - 1, head["parent"]
        self.clears = self.operation in ("overwrite", "rollback") or released.get("ended")
        self.released = 0 if self.clears else released.get("through", 0)
        if self.operation not in PUBLISH:  # what it adds is of no version
            self.added, self.totals = [], [0, 0]


def _sums(rows: Any, *names: str) -> list[int]:  # noqa: ANN401 - rows as Python has them
    return [sum(row[name] for row in rows) for name in names]


class _Log:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.newest, self._newest_range = self._look()
        self.state = self.newest.state

    def _look(self) -> tuple[_File, int]:
        segments = sorted(path.name for path in self._directory.glob("[0-9]" * 18))
        for segment in reversed(segments):
            entries, ranges = (
                [int(path.stem) for path in self._directory.glob(f"{segment}/{'[0-9]' * 20}.{of}")]
                for of in ("entry", "range")
            )
            if entries:
                newest = self.read(max(entries))
                below = [number for number in ranges if number <= newest.number]
                return newest, max([*below, newest.state.get("checkpoint", 0)])
        if segments and self.is_removed(512 * int(segments[0])):
            raise MissingError("all entries were removed")
        raise NoShuffleError("the log is empty")

    def _path(self, number: int, kind: str) -> Path:
        return self._directory / f"{number // 512:018}" / f"{number:020}.{kind}"

    def read(self, number: int, kind: str = "entry") -> _File:
        return _File(self._path(number, kind))

    def is_removed(self, number: int) -> bool:
        return (self._directory / "expired" / f"{number // 512:018}").exists()

    def collect(self, number: int) -> list[_File]:
        """Return what a version is made of, the newest first."""
        base = self.state.get("base", 0)
        known = self._newest_range if self._newest_range <= number else 0
        found: list[_File] = []
        while number and not (found and found[-1].clears):
            of = None
            if number == base or (number == known and self._path(number, "range").exists()):
                of = self.read(number, "range")
                of = None if 0 < of.after < base and number != base else of
            if of is None:
                of = self.read(number)
                known = max(known if known < number else 0, of.state.get("checkpoint", 0))
            else:
                known = of.after
            check(not found or found[-1].parent == of.head["commit_id"], f"parent of {number}")
            found.append(of)
            number = of.after
            if of.operation == "blank" and of.after == of.number - 1:
                raise MissingError(f"entry {of.number} is blank")
        if self.is_removed(found[-1].number):
            raise MissingError("a segment that was read was removed")
        return found


def open_version(shuffle: Path, number: int | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the shape of a version, the newest when None, and its map outputs.

    It does not begin again: of a shuffle that nobody writes, what is missing is damage.
    """
    log = _Log(shuffle / "commit_log")
    newest = log.state.get("version", 0)
    number = newest if number is None else number
    if not 0 < number <= newest:
        raise NoShuffleError(f"{number} is no version")
    if number >= log.state.get("oldest", 1):
        found = log.collect(number)
    elif number in [tag["version"] for tag in log.state.get("tags", {}).values()]:
        found = [log.read(number, "range")]
    else:
        raise NoShuffleError(f"version {number} has expired")
    own = found[0]
    if own.operation not in PUBLISH or own.state.get("ended", 0) > own.state.get("content", 0):
        raise NoShuffleError(f"{number} is no version, or released")
    outputs, totals = _joined(found)
    n = own.state["shape"]["num_subpartitions"]
    files = [file for output in outputs for file in output["files"]]
    rows, broadcast, size = _sums(files, "num_rows", "num_broadcast_rows", "data_bytes")
    check(totals == [rows + (n - 1) * broadcast, size], f"totals of version {number}")
    return own.state["shape"], outputs


def _joined(found: list[_File]) -> tuple[list[dict[str, Any]], list[int]]:
    """Join files, the newest first, of which at most the last clears what is before."""
    outputs, removed, released, totals = [], set(), 0, [0, 0]
    for one in found:
        for output in one.added:
            key = f"{output['job_id']}/{output['map_task']}"
            if key not in removed and output["last_version"] > released:
                outputs.append((output["version"], output["order"], key, output))
        removed |= {row["key"] for row in one.removed}
        released = max(released, one.released)
        totals = [a + b for a, b in zip(totals, one.totals, strict=True)]
    check(len({key for *_, key, _ in outputs}) == len(outputs), "a map output twice")
    return [output for *_, output in sorted(outputs, key=lambda of: of[:3])], totals
