"""What the log of a shuffle says of a version: its state, and its map outputs in reading order."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from integration.readers.arrow_frames import NewerError, check, fields, section

if TYPE_CHECKING:
    from pathlib import Path

ADD = {"append", "overwrite", "pending", "pending-overwrite"}
PUBLISH = {"overwrite", "append", "merge", "delete", "upsert", "rollback", "alter", "release"}
REMOVE = {"merge", "delete", "upsert"}
OTHERS = {"pending", "pending-overwrite", "fence", "expire", "tag", "erase", "blank"}

_FILE = fields(
    "path:string root:binary num_rows:int64 num_regions data_bytes raw_bytes index_bytes "
    "directory_bytes directory_crc32 num_broadcast_rows num_subpartitions first_subpartition "
    "end_subpartition statistics:[bounds placed:bool_ mask_rows:int64 mask_number mask_offset "
    "mask_length mask_crc32 mask_path:string mask:binary",
    bounds=pa.struct(fields("column:int64 minimum:binary maximum null_count:int64")),
)
_ADDED = fields(
    "version:int64 order last_version job_id:string map_task:int64 attempt column_ids:[int32 "
    "counters:counts files:[file",
    counts=pa.map_(pa.string(), pa.int64()),
    file=pa.struct(_FILE),
)
_SECTIONS = {
    "added": _ADDED,
    "removed": fields("key:string"),
    "totals": fields("num_rows:int64 num_bytes"),
}


class NoShuffleError(Exception):
    """There is no such version."""


def parsed(text: bytes) -> dict[str, Any]:
    """Return an object of JSON, of a version of the format that is known.

    Numbers that are none of the format's stay text, which is no number where one is needed.
    """

    def number(text: str) -> int | str:
        return int(text) if 0 <= int(text) < 1 << 62 else text

    found: dict[str, Any] = json.loads(
        text.decode(), parse_constant={}.__getitem__, parse_float=str, parse_int=number
    )
    check(found["format_version"] >= 1, "format version 0")
    if found["format_version"] > 1:
        raise NewerError(f"format version {found['format_version']}")
    return found


class File:
    """An entry or a range."""

    def __init__(self, path: Path) -> None:
        line, _, rest = path.read_bytes().partition(b"\n")
        stated, _, rest = rest.partition(b"\n")
        check(stated == b"arrow-shuffle-log %d %08x" % (len(line), zlib.crc32(line)), path)
        self.head = head = parsed(line)
        self.number, self.operation, self.state = head["number"], head["operation"], head["state"]
        check(f"{self.number:020}" == path.stem, path)
        check(("range" in head) == (path.suffix == ".range"), path)
        self.publishes = self.operation in PUBLISH
        if not self.publishes and self.operation not in OTHERS:
            raise NewerError(f"operation {self.operation}")
        if {*self.state.get("readers", ())} - {"masks"}:
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
        self.num_totals = len(found.get("totals", ()))
        self.totals = _sums(found.get("totals", ()), "num_rows", "num_bytes")
        self._check_state()
        if "range" in head:
            span = head["range"]
            self.after, self.parent = span["after"], span["parent"]
            self.clears, self.released = span.get("clears"), span.get("released", 0)
        else:
            self._check_sums()
            self.after, self.parent = self.number - 1, head["parent"]
            self.clears = self.operation in ("overwrite", "rollback") or self.ends
            self.released = 0 if self.clears else self.through
        check(self.after < self.number and (self.parent is None) == (self.after == 0), "parent")
        check(self.released <= self.number, "released")
        if "range" not in head and not self.publishes:  # what it adds is of no version
            self.added, self.totals = [], [0, 0]

    def _check_state(self) -> None:
        names = ("content", "changed", "version", "base", "checkpoint", "ended")
        content, changed, version, base, known, ended = (self.state.get(of, 0) for of in names)
        oldest = self.state.get("oldest", 1)
        check(content <= changed <= version <= self.number, "versions of the state")
        check(base <= oldest <= max(version, 1) and known < self.number, "numbers of the state")
        check((version == self.number) == self.publishes, "the newest version")
        released = self.state["released"] if self.operation == "release" else {}
        self.ends, self.through = released.get("ended", False), released.get("through", 0)
        check(ended <= self.number and (ended == self.number) == self.ends, "the end")
        files = [file for output in self.added for file in output["files"]]
        check(len({(file["root"], file["path"]) for file in files}) == len(files), "a file twice")
        masked = any(file["mask_rows"] for file in files)
        check(not masked or "masks" in self.state.get("readers", ()), "masks without the feature")

    def _check_sums(self) -> None:
        files = [file for output in self.added for file in output["files"]]
        sums = [len(self.added), *_sums(files, "num_rows", "data_bytes")]
        stated = [self.head.get(of, 0) for of in ("num_outputs", "num_rows", "num_bytes")]
        check(sums == stated or self.operation == "blank", "sums of an entry")
        check(not self.removed or self.operation in REMOVE, "removed")
        for i, of in enumerate(self.added if self.operation in ADD else ()):
            place = of["version"], of["last_version"], of["order"], of["map_task"], of["job_id"]
            check(place == (self.number, self.number, i, i, self.head["job_id"]), "a map output")


def _sums(rows: Any, *names: str) -> list[int]:  # noqa: ANN401 - rows as Python has them
    return [sum(row[name] for row in rows) for name in names]


class Log:
    """The log of a shuffle, as its newest entry has it."""

    def __init__(self, shuffle: Path) -> None:
        self._directory = shuffle / "commit_log"
        segments = sorted(path.name for path in self._directory.glob("[0-9]" * 18))
        for segment in reversed(segments):
            entries, ranges = (
                [int(path.stem) for path in self._directory.glob(f"{segment}/{'[0-9]' * 20}.{of}")]
                for of in ("entry", "range")
            )
            if entries:
                self.newest = File(self._path(max(entries), "entry"))
                self.state = self.newest.state
                below = [number for number in ranges if number <= self.newest.number]
                self._newest_range = max([*below, self.state.get("checkpoint", 0)])
                return
        check(not segments or not self._is_removed(512 * int(segments[0])), "no entry is left")
        raise NoShuffleError("the log is empty")

    def _path(self, number: int, kind: str) -> Path:
        return self._directory / f"{number // 512:018}" / f"{number:020}.{kind}"

    def _is_removed(self, number: int) -> bool:
        return (self._directory / "expired" / f"{number // 512:018}").exists()

    def open_version(self, number: int | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the shape of a version, the newest when None, and its map outputs."""
        newest = self.state.get("version", 0)
        number = newest if number is None else number
        if not 0 < number <= newest:
            raise NoShuffleError(f"{number} is no version")
        if number >= self.state.get("oldest", 1):
            found = self._collect(number)
        elif number in [tag["version"] for tag in self.state.get("tags", {}).values()]:
            found = [File(self._path(number, "range"))]
        else:
            raise NoShuffleError(f"version {number} has expired")
        own = found[0]
        if not own.publishes or own.state.get("ended", 0) > own.state.get("content", 0):
            raise NoShuffleError(f"{number} is no version, or released")
        outputs, totals = _joined(found)
        shape = own.state["shape"]
        n, ids = shape["num_subpartitions"], shape["column_ids"]
        check(0 < n <= 1_000_000 and not any(of.num_totals % n for of in found), "subpartitions")
        check(min(ids) > 0 and max(ids) <= own.state["last_column_id"], "ids of columns")
        files = [file for output in outputs for file in output["files"]]
        rows, broadcast, size = _sums(files, "num_rows", "num_broadcast_rows", "data_bytes")
        check(totals == [rows + (n - 1) * broadcast, size], f"totals of version {number}")
        check(not any(file["num_subpartitions"] % n for file in files), "subpartitions of a file")
        return shape, outputs

    def _collect(self, number: int) -> list[File]:
        """Return what a version is made of, the newest first."""
        base = self.state.get("base", 0)
        known = self._newest_range if self._newest_range <= number else 0
        found: list[File] = []
        while number and not (found and found[-1].clears):
            of = None
            if number == base or (number == known and self._path(number, "range").exists()):
                of = File(self._path(number, "range"))
                of = None if 0 < of.after < base and number != base else of
            if of is None:
                of = File(self._path(number, "entry"))
                known = max(known if known < number else 0, of.state.get("checkpoint", 0))
                check(of.operation != "blank", f"entry {number} is blank")
            else:
                known = of.after
            check(not found or found[-1].parent == of.head["commit_id"], f"parent of {number}")
            found.append(of)
            number = of.after
        check(not self._is_removed(found[-1].number), "a segment that was read was removed")
        return found


def _joined(found: list[File]) -> tuple[list[dict[str, Any]], list[int]]:
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
