"""What the log of a shuffle says of a version: its state, and its map outputs in reading order."""

import json
import zlib
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa

from integration.readers.arrow_frames import NewerError, Row, check, fields, section

ADD = {"append", "overwrite", "pending", "pending-overwrite"}
PUBLISH = {
    "overwrite", "append", "merge", "delete", "upsert", "rollback", "alter", "rescale", "release"
}  # fmt: skip
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
    "files:[file",
    file=pa.struct(_FILE),
)
_TOTALS = fields("num_rows:int64 num_bytes")
_SECTIONS = {"added": _ADDED, "removed": fields("key:string"), "totals": _TOTALS}
# What is said where a key is missing.
_HEAD: Row = dict.fromkeys(("num_outputs", "num_rows", "num_bytes"), 0)
_HEAD |= {"job_id": None, "range": None, "sections": ()}
_STATE: Row = dict.fromkeys(("version", "content", "changed", "ended", "base", "checkpoint"), 0)
_STATE |= {"oldest": 1, "readers": (), "tags": {}}


class NoShuffleError(Exception):
    """There is no such version."""


def parsed(text: bytes) -> Row:
    """Return an object of JSON, of a version of the format that is known.

    Numbers that are none of the format's stay text, which is no number where one is needed.
    """

    def number(text: str) -> int | str:
        return int(text) if 0 <= int(text) < 1 << 62 else text

    kinds: Row = {"parse_constant": {}.__getitem__, "parse_float": str, "parse_int": number}
    found: Row = json.loads(text.decode(), **kinds)
    check(found["format_version"] >= 1, "format version 0")
    if found["format_version"] > 1:
        raise NewerError(f"format version {found['format_version']}")
    return found


def opened(path: Path) -> SimpleNamespace:
    """Return an entry or a range: the keys of its JSON, and the rows of its sections."""
    line, _, rest = path.read_bytes().partition(b"\n")
    stated, _, rest = rest.partition(b"\n")
    check(stated == b"arrow-shuffle-log %d %08x" % (len(line), zlib.crc32(line)), path)
    of = SimpleNamespace(**_HEAD | parsed(line))
    of.state = SimpleNamespace(**_STATE | of.state)
    check((f"{of.number:020}", bool(of.range)) == (path.stem, path.suffix == ".range"), path)
    if of.operation not in PUBLISH | OTHERS or {*of.state.readers} - {"masks"}:
        raise NewerError(f"operation {of.operation}, features {of.state.readers}")
    rows: dict[str, list[Row]] = {name: [] for name in _SECTIONS}
    for name, length, crc32, size in of.sections:
        part, rest = rest[:length], rest[length:]
        check((len(part), zlib.crc32(part)) == (length, crc32), f"section {name} of {path}")
        if name in _SECTIONS:
            rows[name] = section(part, pa.schema(_SECTIONS[name]), size).to_pylist()
    check(not rest, f"{len(rest)} bytes behind the sections of {path}")
    check(len({name for name, *_ in of.sections}) == len(of.sections), "a section twice")
    of.added, of.removed, of.totals = rows.values()
    released = of.state.released if of.operation == "release" else {}
    ends, through = released.get("ended", False), released.get("through", 0)
    clears = ends or of.operation in ("overwrite", "rollback")
    own = {"after": of.number - 1, "parent": of.parent, "clears": clears, "released": through}
    span = {"clears": False, "released": 0} | of.range if of.range else own
    of.after, of.parent, of.clears, of.released = itemgetter(*own)(span)
    _check(of, ends)
    if span is own:
        _check_entry(of)
    return of


def _check(of: SimpleNamespace, ends: bool) -> None:
    number, state = of.number, of.state
    check((of.parent is None) == (of.after == 0) and of.after < number, "parent")
    check(max(of.released, state.ended, state.checkpoint + 1) <= number, "numbers")
    check(state.content <= state.changed <= state.version <= number, "versions of the state")
    check(state.base <= state.oldest <= max(state.version, 1), "the oldest version")
    check((state.version == number) == (of.operation in PUBLISH), "the newest version")
    check((state.ended == number) == ends, "the end")
    files = files_of(of.added)
    check(len({(file["root"], file["path"]) for file in files}) == len(files), "a file twice")
    masked = any(file["mask_rows"] for file in files)
    check(not masked or "masks" in state.readers, "masks without the feature")


def _check_entry(of: SimpleNamespace) -> None:
    sums = [len(of.added), *sums_of(files_of(of.added), "num_rows", "data_bytes")]
    stated = [of.num_outputs, of.num_rows, of.num_bytes]
    check(sums == stated or of.operation == "blank", "sums of an entry")
    check(not of.removed or of.operation in REMOVE, "removed")
    task = -1
    for i, output in enumerate(of.added if of.operation in ADD else ()):
        place = [output[key] for key in ("version", "last_version", "order", "job_id")]
        check(place == [of.number, of.number, i, of.job_id], "a map output")
        is_next = output["map_task"] > task if _are_tombstones(output) else output["map_task"] == i
        check(is_next, "map tasks")
        task = output["map_task"]
    if of.operation in OTHERS:  # what it adds is of no version
        of.added, of.totals = [], []
    n = (of.state.shape or {}).get("num_subpartitions", 1)
    check(n > 0 and len(of.totals) % n == 0, "totals of subpartitions")


def files_of(outputs: list[Row]) -> list[Row]:
    """Return the files of map outputs, each with what the log says of its map output."""
    return [output | file for output in outputs for file in output["files"]]


def sums_of(rows: list[Row], *names: str) -> list[int]:
    """Return the sums of some columns."""
    return [sum(row[name] for row in rows) for name in names]


class Log:
    """The log of a shuffle, as its newest entry has it."""

    def __init__(self, shuffle: Path) -> None:
        self._directory = Path(shuffle, "commit_log")
        segments = sorted(self._directory.glob("[0-9]" * 18))
        entries = sorted(self._directory.glob(f"{'[0-9]' * 18}/{'[0-9]' * 20}.entry"))
        if not entries:
            check(not segments or not self._is_removed(segments[0].name), "no entry is left")
            raise NoShuffleError("the log is empty")
        self.newest = opened(entries[-1])
        self.state = self.newest.state

    def _path(self, number: int) -> Path:
        return self._directory / f"{number // 512:018}" / f"{number:020}.range"

    def _is_removed(self, segment: str) -> bool:
        return (self._directory / "expired" / segment).exists()

    def open_version(self, number: int | None) -> tuple[Row, list[Row]]:
        """Return the shape of a version, the newest when None, and its files."""
        number = self.state.version if number is None else number
        kept = range(self.state.oldest, self.state.version + 1)
        if number not in kept and number not in [of["version"] for of in self.state.tags.values()]:
            raise NoShuffleError(f"{number} is no version, or has expired")
        own, *_ = found = self._collect(number)
        if own.operation in OTHERS or own.state.ended > own.state.content:
            raise NoShuffleError(f"{number} is no version, or released")
        files = files_of(_joined(found))
        n, ids = (own.state.shape[of] for of in ("num_subpartitions", "column_ids"))
        check(0 < n <= 1_000_000, "subpartitions")
        check(min(ids) > 0 and max(ids) <= own.state.last_column_id, "ids of columns")
        check(not any(file["num_subpartitions"] % n for file in files), "subpartitions of a file")
        rows, broadcast, size = sums_of(files, "num_rows", "num_broadcast_rows", "data_bytes")
        totals = sums_of([row for of in found for row in of.totals], "num_rows", "num_bytes")
        check(totals == [rows + (n - 1) * broadcast, size], f"totals of version {number}")
        return own.state.shape, files

    def _collect(self, number: int) -> list[SimpleNamespace]:
        """Return what a version is made of, the newest first."""
        base, has_expired = self.state.base, number < self.state.oldest
        found = list[SimpleNamespace]()
        while number and not (found and found[-1].clears):
            path, of = self._path(number), None
            if number == base or has_expired or path.exists():
                of = opened(path)
            if of is None or 0 < of.after < base != number:
                of = opened(path.with_suffix(".entry"))
                check(of.operation != "blank", f"entry {number} is blank")
            check(not found or found[-1].parent == of.commit_id, f"parent of {number}")
            found.append(of)
            number = of.after
        is_removed = self._is_removed(path.parent.name)
        check(has_expired or not is_removed, "a segment that was read was removed")
        return found


def _joined(found: list[SimpleNamespace]) -> list[Row]:
    """Join files, the newest first, of which at most the last clears what is before."""
    outputs, removed, released = [], set(), 0
    for of in found:
        for output in of.added:
            key = f"{output['job_id']}/{output['map_task']}"
            if key not in removed and output["last_version"] > released:
                outputs.append((output["version"], output["order"], key, output))
        removed |= {row["key"] for row in of.removed}
        released = max(released, of.released)
    check(len({key for *_, key, _ in outputs}) == len(outputs), "a map output twice")
    read = [output for *_, output in sorted(outputs, key=lambda of: of[:3])]
    return [output for output in read if not _are_tombstones(output)]


def _are_tombstones(output: Row) -> bool:
    return bool(output["files"]) and not any(file["num_rows"] for file in output["files"])
