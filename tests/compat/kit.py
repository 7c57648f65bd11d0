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
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.compat.damages import DAMAGES, Damage, NotOpenedError
from tests.compat.golden import ELSEWHERE, HERE, moved

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DIGESTS = HERE.parent / "digests.json"
"""What :func:`digests` returned when the kit was changed last."""

FROZEN = HERE.parent / "frozen.json"
"""What :func:`digests` returned when version 1 was frozen: none of it ever changes."""

UNORDERED = ("combined",)
"""Shuffles of which rows of a region are in no order."""


@dataclass(frozen=True)
class Case:
    """One version of a shuffle of the kit, and what a reader must answer."""

    name: str
    version: int
    answer: str
    damage: Damage | None = None

    def __str__(self) -> str:
        where = "" if self.damage is None else f", {self.damage.what}"
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
            with nullcontext() if self.damage is None else self.damage.made(shuffle.parent):
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
    found += [Case(of.name, of.version, of.answer, of) for of in DAMAGES]
    return found


def digests() -> dict[str, str]:
    """Return a digest of the names and bytes of each shuffle of the kit, by its directory."""
    found = {}
    for directory in sorted(HERE.iterdir()):
        digest = sha256()
        for file in sorted(file for file in directory.rglob("*") if file.is_file()):
            content = file.read_bytes()
            digest.update(f"{file.relative_to(directory).as_posix()} {len(content)}\n".encode())
            digest.update(content)
        found[directory.name] = digest.hexdigest()
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
            try:
                with case.in_place() as shuffle:
                    asked = {"shuffle": str(shuffle), "version": case.version, "rows": str(rows)}
                    said = _answer(reader, json.dumps(asked))
            except NotOpenedError as error:
                said = {"answer": "too early", "why": str(error)}
            if said.get("answer") not in case.answer.split(" or "):
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
