"""What is changed of a golden shuffle before it is read, or while it is, and what is then due.

Of the log's files the JSON may be changed, behind a length and a CRC that fit again. A reader that
opens a file of which the runner has a lease (Linux) waits until the runner has changed the shuffle.
"""

from __future__ import annotations

import fcntl
import json
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.format.batch_frame import decode_table, encode_table
from arrow_format.log.framing import from_frame
from tests.support.hostile import forged_frame, sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Change = Callable[[Path], object]
    """Changes a file."""


class NotOpenedError(Exception):
    """A reader did not open a file at whose opening the shuffle changes."""


@dataclass(frozen=True)
class Damage:
    """A change of one file of a golden shuffle, and what a reader of rows then answers."""

    what: str
    name: str
    version: int
    pattern: str
    """Of the path of the file; of several the last."""
    change: Change = Path.stat
    answer: str = "damage"

    @contextmanager
    def made(self, golden: Path) -> Iterator[None]:
        """Make the change to a copy of the golden shuffle."""
        self.change(last_of(golden, self.pattern))
        yield


class Moment(Damage):
    """A change of the whole shuffle, from ``before/`` to ``shuffle/``, while a reader reads it.

    It happens when the reader opens the file.
    """

    @contextmanager
    def made(self, golden: Path) -> Iterator[None]:
        """Have the shuffle as it was before, until the file is opened."""
        shuffle, later = golden / "shuffle", golden / "later"
        shuffle.rename(later)
        (golden / "before").rename(shuffle)
        with at_opening(last_of(shuffle, self.pattern), changes(shuffle, later)):
            yield


def last_of(directory: Path, pattern: str) -> Path:
    """Return the last file of a directory, at any depth, of a pattern."""
    return sorted(directory.rglob(pattern))[-1]


def changes(now: Path, later: Path) -> Callable[[], None]:
    """Return what makes a directory as another: it puts files, replaces, and removes the others.

    It opens none of those that are there, of which one may be leased.
    """
    before, after = (
        {
            file.relative_to(of): file.read_bytes()
            for file in sorted(of.rglob("*.*"))
            if file.is_file()
        }
        for of in (now, later)
    )

    def change() -> None:
        for path, content in after.items():
            if before.get(path) != content:
                (now / path).parent.mkdir(parents=True, exist_ok=True)
                (now / "put").write_bytes(content)
                (now / "put").replace(now / path)
        for path in before.keys() - after:
            (now / path).unlink()

    return change


@contextmanager
def at_opening(file: Path, act: Callable[[], object]) -> Iterator[None]:
    """Act when another process opens a file for the first time, which waits for it."""
    over, acted = threading.Event(), threading.Event()
    with file.open("rb") as leased:
        # This signal is ignored, unlike that of leases.
        fcntl.fcntl(leased, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)

        def watch() -> None:
            while not over.is_set():
                if fcntl.fcntl(leased, fcntl.F_GETLEASE) != fcntl.F_WRLCK:
                    act()
                    acted.set()
                    break
                time.sleep(0.001)
            fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_UNLCK)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
        if not acted.is_set():
            msg = f"{file} was not opened"
            raise NotOpenedError(msg)


# Of any file


def flip(place: float) -> Change:
    """Flip the lowest bit of a byte, from the start (0) to the end (1) of a file."""

    def flipped(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[int(place * (len(content) - 1))] ^= 1
        file.write_bytes(content)

    return flipped


def cut(file: Path) -> None:
    """Leave half of a file."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def linked(file: Path) -> None:
    """Put a symbolic link in the place of a file."""
    file.symlink_to(file.rename(file.with_name("elsewhere")))


def but(*kept: str) -> Change:
    """Remove the files of a directory, at any depth, but for those of these names."""

    def removed(directory: Path) -> None:
        for file in directory.rglob("*.*"):
            if file.name not in kept:
                file.unlink()

    return removed


def named(name: str) -> Change:
    """Put a copy of a file of the log under another name, relative to its segment."""

    def copied(file: Path) -> None:
        copy = file.parent / name
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(file.read_bytes())

    return copied


def of_another_job(file: Path) -> None:
    """Change the job of a marker."""
    file.write_text(json.dumps({**json.loads(file.read_text()), "job_id": "another"}))


# Of files of the log

TOTALS = pa.schema(
    [pa.field(name, pa.int64(), nullable=False) for name in ("num_rows", "num_bytes")]
)
"""Of the section of that name."""


def line(change: Callable[[bytes], bytes]) -> Change:
    """Change the line of JSON."""

    def changed(file: Path) -> None:
        old, _, rest = file.read_bytes().split(b"\n", 2)
        new = change(old)
        assert new != old, file
        file.write_bytes(sealed(new, rest))

    return changed


def put(path: str, value: Any) -> Change:
    """Put a value in the place of a key, its path between dots; ``...`` takes the key out."""

    def changed(text: bytes) -> bytes:
        head = json.loads(text)
        *holders, key = path.split(".")
        inside = head
        for of in holders:
            inside = inside.setdefault(of, {})
        if value is ...:
            del inside[key]
        else:
            inside[key] = value
        return json.dumps(head).encode()

    return line(changed)


def spell(before: str, after: str) -> Change:
    """Spell a part of the JSON otherwise."""
    return line(lambda text: text.replace(before.encode(), after.encode("latin-1"), 1))


def totals(**more: int) -> Change:
    """Have totals say more of the first subpartition than its map outputs have."""

    def changed(file: Path) -> None:
        content = file.read_bytes()
        _, sections = from_frame(content, dict[str, Any])
        rows = decode_table(sections["totals"], TOTALS).to_pylist()
        rows[0] = {name: number + more.get(name, 0) for name, number in rows[0].items()}
        lying = encode_table(pa.Table.from_pylist(rows, TOTALS))
        file.write_bytes(forged_frame(content, {}, {"totals": lying}))

    return changed


def second_line(change: Callable[[bytes], bytes]) -> Change:
    """Change the line with length and CRC."""

    def changed(file: Path) -> None:
        text, second, rest = file.read_bytes().split(b"\n", 2)
        new = change(second)
        assert new != second, file
        file.write_bytes(b"\n".join([text, new, rest]))

    return changed


_ENTRY, _INDEX, _DATA, _MASK = "*.entry", "*.shuffle.index", "*.shuffle.data", "*.shuffle.masks"
_NEWEST = "versions", 4, _ENTRY
_RANGE = "long_log", 529, "*528.range"
_BASE = "long_log", 529, "*512.range"
_LARGEST = (1 << 62) - 1
_ODD = '"later":[1e400,-0.0,1E3,-5,1000000000000000000000000000000],"num_rows":2'
_EXPIRED = "expired/000000000000000000"

DAMAGES: tuple[Damage, ...] = (
    *(Damage("a bit of an entry", *_NEWEST, flip(place)) for place in (0.01, 0.4, 0.6, 0.99)),
    Damage("half of an entry", *_NEWEST, cut),
    Damage("a bit of a range", *_RANGE, flip(0.5)),
    Damage("a bit of a tag's range", "long_log", 2, "*00002.range", flip(0.9)),
    Damage("a bit of a range", "rare_log", 4, "*00003.range", flip(0.9)),
    Damage("a bit of a range", "rare_releases", 4, "*00003.range", flip(0.9)),
    *(Damage("a bit of an index", "blocks", 1, _INDEX, flip(place)) for place in (0.1, 0.5, 0.995)),
    Damage("a bit of an index", "rescaled", 3, _INDEX, flip(0.05)),
    Damage("half of an index", "types", 1, _INDEX, cut),
    *(Damage("a bit of a frame", "wide", 1, _DATA, flip(place)) for place in (0.01, 0.3, 0.7)),
    *(Damage("a bit of a message", "regions_none", 1, _DATA, flip(place)) for place in (0.4, 0.6)),
    Damage("half of a data file", "merged", 4, _DATA, cut),
    Damage("a bit of a mask", "large_mask", 2, _MASK, flip(0.5)),
    # Files that are missing, or elsewhere.
    Damage("no index", "types", 1, _INDEX, Path.unlink),
    Damage("no data file", "broadcast", 1, _DATA, Path.unlink),
    Damage("no mask", "large_mask", 2, _MASK, Path.unlink),
    Damage("an entry is missing", "transactions", 6, "*00004.entry", Path.unlink),
    Damage("the base is missing", *_BASE, Path.unlink),
    Damage("a checkpoint is missing", *_RANGE, Path.unlink, "rows"),
    Damage("no entry", "versions", 4, "commit_log", but(), "absent"),
    Damage("a list of a segment, and no entry", "long_log", 529, "commit_log", but(_EXPIRED)),
    Damage("a list of a segment with entries", *_NEWEST, named(f"../{_EXPIRED}")),
    Damage("a late entry", "long_log", 529, _ENTRY, named(f"../{0:018}/{100:020}.entry"), "rows"),
    *(Damage("a symbolic link", "types", 1, kind, linked) for kind in (_INDEX, _DATA)),
    *(
        Damage("a marker", "roots", 2, "arrow-shuffle-root.json", how)
        for how in (Path.unlink, of_another_job)
    ),
    Damage("a version to come", "versions", 5, _ENTRY, Path.stat, "absent"),
    # How JSON spells what it says.
    Damage("a number with a fraction", *_NEWEST, spell('"num_rows":2', '"num_rows":2.0')),
    Damage("a number with an exponent", *_NEWEST, spell('"num_rows":2', '"num_rows":2e0')),
    Damage("a number as text", *_NEWEST, spell('"num_rows":2', '"num_rows":"2"')),
    Damage("a key twice, the last wrong", *_NEWEST, spell(":2,", ':2,"num_rows":3,')),
    Damage("a key twice, the last right", *_NEWEST, spell(":2,", ':3,"num_rows":2,'), "rows"),
    Damage("-0", *_NEWEST, spell('"state":{', '"state":{"base":-0,'), "rows"),
    Damage("odd numbers of a key that none knows", *_NEWEST, spell('"num_rows":2', _ODD), "rows"),
    Damage("a list", *_NEWEST, line(lambda text: b"[%s]" % text)),
    Damage("a CRC of capitals", *_NEWEST, second_line(lambda of: of[:-8] + of[-8:].upper())),
    Damage(
        "a length that begins with 0", *_NEWEST, second_line(lambda of: of.replace(b"g ", b"g 0"))
    ),
    # What the JSON of an entry cannot say.
    *(
        Damage(f"n is {n}", *_NEWEST, put("state.shape.num_subpartitions", n))
        for n in (0, -3, 1_000_001)
    ),
    *(
        Damage(f"version {of} of the format", *_NEWEST, put("format_version", of))
        for of in (0, 1.0, ...)
    ),
    Damage("the largest number", *_NEWEST, put("state.pending", {"interval_ms": _LARGEST}), "rows"),
    Damage("another number", *_NEWEST, put("number", 5)),
    *(Damage("no parent", *_NEWEST, put("parent", of)) for of in (None, ...)),
    Damage("another parent", "versions", 4, "*03.entry", put("commit_id", "another")),
    Damage("no id", "versions", 4, "*03.entry", put("commit_id", ...)),
    *(Damage(f"no {of}", *_NEWEST, put(of, ...)) for of in ("operation", "state", "state.shape")),
    Damage("a range", *_NEWEST, put("range", {"after": 3, "parent": "a"})),
    *(
        Damage(f"{name} {number}", *_NEWEST, put(f"state.{name}", number))
        for name, number in (
            ("version", 3),
            ("content", 5),
            ("changed", 3),
            ("oldest", 5),
            ("base", 5),
            ("checkpoint", 9),
            ("ended", 4),
        )
    ),
    *(
        Damage(f"ids {ids}", *_NEWEST, put("state.shape.column_ids", ids))
        for ids in ([1, 1, 3], [1, 0, 3], [1, 2, 4], [1, 2])
    ),
    *(
        Damage(f"order {order}", "regions_sorted", 1, _ENTRY, put("state.shape.sort_by", [order]))
        for order in (["id", "up"], ["delay", "ascending"], ["x", "ascending"])
    ),
    Damage("a mask, and no feature", "large_mask", 2, _ENTRY, put("state.readers", ...)),
    # Ranges.
    Damage("another id", *_BASE, put("commit_id", "another")),
    Damage("no range", *_RANGE, put("range", ...)),
    *(Damage(f"after {of}", *_RANGE, put("range.after", of)) for of in (513, 528, 600)),
    Damage("after a number before the base", *_RANGE, put("range.after", 511), "rows"),
    Damage("no parent", *_RANGE, put("range.parent", None)),
    Damage("a parent of the first", *_BASE, put("range.parent", "a")),
    *(
        Damage(f"totals of another {name}", *of, totals(**{name: 1}))
        for name in ("num_rows", "num_bytes")
        for of in (_RANGE, _BASE)
    ),
    Damage("released later", *_RANGE, put("range.released", 900)),
    # While a reader reads.
    Moment("the log becomes blank", "blank_entries", 5, "*05.entry", answer="rows"),
    Moment("it expires", "blank_entries", 4, "*04.entry", answer="absent"),
    Moment("it expires, but for its tag", "blank_entries", 2, "*05.entry", answer="rows"),
    Moment("another is put", "expiring", 2, "*02.entry", answer="rows"),
    Moment("its files go", "expiring", 1, "00001-*.index", answer="absent"),
)
"""What is changed of the kit: a reader of rows answers as it says, most of it with damage."""
