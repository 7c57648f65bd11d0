"""The kit: asks a reader, in any language, for all golden shuffles and for damaged ones.

``python -m tests.compat.kit --reader COMMAND`` starts the command, which answers as
:mod:`integration.readers.serve` says, and prints where it answers otherwise than it should.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pyarrow as pa

from tests.compat.golden import ELSEWHERE, HERE, moved

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

UNORDERED = ("combined",)
"""Shuffles of which rows of a region are in no order."""

Change = Callable[[Path], object]
"""Damages a file."""


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


def of_another_job(file: Path) -> None:
    """Change the job of a marker."""
    file.write_text(json.dumps({**json.loads(file.read_text()), "job_id": "another"}))


def of_another_log(file: Path) -> None:
    """Change the commit id of an entry or a range, so that it is not the parent of the next."""
    line, _, rest = file.read_bytes().split(b"\n", 2)
    line = json.dumps({**json.loads(line), "commit_id": "another"}).encode()
    file.write_bytes(b"%s\narrow-shuffle-log %d %08x\n%s" % (line, len(line), crc32(line), rest))


_ENTRY, _INDEX, _DATA = "*.entry", "*.shuffle.index", "*.shuffle.data"

DAMAGES: tuple[tuple[str, int, str, Change], ...] = (
    *(("versions", 4, _ENTRY, flip(place)) for place in (0.01, 0.4, 0.6, 0.99)),
    ("versions", 4, _ENTRY, cut),
    ("long_log", 529, "*528.range", flip(0.5)),
    ("long_log", 2, "*00002.range", flip(0.9)),
    ("rare_log", 4, "*00003.range", flip(0.9)),
    ("rare_releases", 4, "*00003.range", flip(0.9)),
    ("transactions", 6, "*00004.entry", Path.unlink),
    ("versions", 4, "*00003.entry", of_another_log),
    ("long_log", 529, "*512.range", of_another_log),
    *(("blocks", 1, _INDEX, flip(place)) for place in (0.1, 0.5, 0.995)),
    ("types", 1, _INDEX, cut),
    ("types", 1, _INDEX, Path.unlink),
    *(("wide", 1, _DATA, flip(place)) for place in (0.01, 0.3, 0.7)),
    *(("regions_none", 1, _DATA, flip(place)) for place in (0.4, 0.6)),
    ("merged", 4, _DATA, cut),
    ("broadcast", 1, _DATA, Path.unlink),
    ("rescaled", 3, _INDEX, flip(0.05)),
    ("large_mask", 2, "*.shuffle.masks", flip(0.5)),
    ("large_mask", 2, "*.shuffle.masks", Path.unlink),
    *(("roots", 2, "arrow-shuffle-root.json", how) for how in (Path.unlink, of_another_job)),
    *(("types", 1, kind, linked) for kind in (_INDEX, _DATA)),
)
"""Shuffle, version, file (the last of that pattern) and change, which a reader of rows finds."""


@dataclass(frozen=True)
class Case:
    """One version of a shuffle of the kit, and what a reader must answer."""

    name: str
    version: int
    answer: str
    damage: tuple[str, Change] | None = None

    def __str__(self) -> str:
        where = "" if self.damage is None else f", {self.damage[0]} damaged"
        return f"{self.name} version {self.version}{where}"

    @property
    def directory(self) -> Path:
        """Where the shuffle is in the kit."""
        return HERE / self.name

    @property
    def expected(self) -> pa.Table | None:
        """The rows that it must give; None where the answer is another."""
        path = self.directory / f"expected-{self.version}.arrow"
        if self.answer != "rows":
            return None
        return pa.ipc.open_file(pa.py_buffer(path.read_bytes())).read_all()

    @contextmanager
    def in_place(self) -> Iterator[Path]:
        """Give the shuffle; a copy, where its log names places or it is damaged."""
        if self.damage is None and not (self.directory / "disk").exists():
            yield self.directory / "shuffle"
            return
        with tempfile.TemporaryDirectory() as place:
            copied(self.directory, Path(place) / self.name)
            shuffle = Path(place) / self.name / "shuffle"
            if self.damage is not None:
                pattern, change = self.damage
                file = sorted(shuffle.parent.rglob(pattern))[-1]
                change(file)
            yield shuffle


def copied(original: Path, copy: Path) -> Path:
    """Copy a shuffle of the kit; the log of one with further roots then names those beside it."""
    shutil.copytree(original, copy)
    if (copy / "disk").exists():
        for file in (copy / "shuffle/commit_log").glob("*/*.entry"):
            file.write_bytes(moved(file.read_bytes(), ELSEWHERE, str(copy)))
        for file in copy.rglob("*.json"):
            file.write_text(file.read_text().replace(ELSEWHERE, str(copy)))
    return copy


def cases() -> list[Case]:
    """Return all of the kit: versions with rows, refused ones, damaged ones."""
    found = [
        Case(path.parent.name, int(path.stem.removeprefix("expected-")), "rows")
        for path in sorted(HERE.glob("*/expected-*.arrow"))
    ]
    for path in sorted(HERE.glob("*/refused.json")):
        answers = json.loads(path.read_text())
        found += [Case(path.parent.name, int(of), answer) for of, answer in answers.items()]
    found += [Case(name, v, "damage", (file, change)) for name, v, file, change in DAMAGES]
    return found


def as_bits(table: pa.Table) -> pa.Table:
    """Return floats as the integers of their bits: NaN equals itself, and -0.0 is not 0.0."""
    numbers = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}
    for place, field in enumerate(table.schema):
        kind = numbers.get(field.type)
        if kind is not None:
            chunks = [chunk.view(kind) for chunk in table.column(place).chunks]
            table = table.set_column(place, field.name, pa.chunked_array(chunks, kind))
    return table.combine_chunks()


def in_some_order(table: pa.Table) -> pa.Table:
    """Return rows by subpartition and values."""
    names = ["_subpartition", *table.schema.names[:-1]]
    return table.sort_by([(name, "ascending") for name in names]).combine_chunks()


def problems(command: Sequence[str]) -> Iterator[str]:
    """Start a reader, ask it for every case, and yield where it answers otherwise."""
    with (
        tempfile.TemporaryDirectory() as place,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as reader,
    ):
        for number, case in enumerate(cases()):
            rows = Path(place) / f"{number}.arrow"
            with case.in_place() as shuffle:
                asked = {"shuffle": str(shuffle), "version": case.version, "rows": str(rows)}
                said = _answer(reader, json.dumps(asked))
            if said.get("answer") != case.answer:
                yield f"{case}: {said}, expected {case.answer!r}"
            elif not _are_equal(case, rows):
                yield f"{case}: other rows than were written"
            rows.unlink(missing_ok=True)


def _answer(reader: subprocess.Popen[str], asked: str) -> dict[str, Any]:
    assert reader.stdin is not None
    assert reader.stdout is not None
    print(asked, file=reader.stdin, flush=True)
    line = reader.stdout.readline()
    answer: dict[str, Any] = json.loads(line) if line else {"answer": "nothing"}
    return answer


def _are_equal(case: Case, path: Path) -> bool:
    if case.answer != "rows":
        return True
    with pa.OSFile(str(path)) as file:
        return read_alike(case, pa.ipc.open_file(file).read_all())


def read_alike(case: Case, found: pa.Table) -> bool:
    """Whether rows that were read are those that a case has."""
    expected = case.expected
    if expected is None or not found.schema.equals(expected.schema):
        return False
    if case.name in UNORDERED:
        found, expected = in_some_order(found), in_some_order(expected)
    return bool(as_bits(found).equals(as_bits(expected)))


def main() -> int:
    """Ask the reader of the command line; return the exit status."""
    parser = argparse.ArgumentParser(description="Ask a reader for all of the kit.")
    parser.add_argument("--reader", required=True, help="command that answers the kit")
    found = list(problems(shlex.split(parser.parse_args().reader)))
    print("\n".join([*found, f"{len(cases())} cases, {len(found)} answered otherwise"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
