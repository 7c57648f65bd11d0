"""The engine on one core, against other writers of partitioned data."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from integration.bench.child import run_in_child
from integration.bench.contenders import read_once, write_once
from integration.bench.engine_lines import (
    DUCKDB_FORMATS,
    LONG_ROUND_SECONDS,
    OURS,
    PYARROW,
    UNPARTITIONED,
    ZSTD_ALONE,
    contenders,
    peer_runs_again,
    read_lines,
    size_lines,
    write_lines,
)
from integration.bench.recompress import compress_again
from integration.bench.results import Line, Part, Profile, Timing, turns
from integration.bench.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

Answers = dict[str, list[dict[str, Any]]]
"""What the processes answered, round after round, by label."""

MAIN_TABLE = "lineitem"
"""The table that is also written with fsync and read back."""


@dataclass(slots=True)
class _Case:
    """One table at one number of subpartitions."""

    table: str
    scale: float
    num_subpartitions: int
    codecs: tuple[str, ...]
    repeat: int
    scratch: Path
    step: Callable[[str], None]
    rows: str = field(init=False)

    def __post_init__(self) -> None:
        self.step(f"making the input: {self.table}")
        self.rows = str(TABLES[self.table].stream(self.scale))

    @property
    def name(self) -> str:
        return f"{self.table}, n = {self.num_subpartitions:,}"

    def write(self, labels: Sequence[str]) -> Answers:
        """Let everyone write in turns."""
        answers: Answers = {label: [] for label in labels}
        kept = self.scratch / "kept-for-zstd"
        try:
            if ZSTD_ALONE in labels:
                self.write_once(OURS["zstd"], kept, keep=True)
            for number, order in enumerate(turns(labels, self.repeat), 1):
                for label in order:
                    if not peer_runs_again(label, [a["seconds"] for a in answers[label]]):
                        continue
                    self.step(f"engine, write, {self.name}, round {number}: {label}")
                    answers[label].append(
                        run_in_child(compress_again, scratch=str(kept))
                        if label == ZSTD_ALONE
                        else self.write_once(label, self.scratch / _directory(label))
                    )
        finally:
            shutil.rmtree(kept, ignore_errors=True)
        return answers

    def write_once(self, label: str, where: Path, *, keep: bool = False) -> dict[str, Any]:
        """Let one contender write in a fresh process."""
        return run_in_child(
            write_once,
            contender=label,
            rows=self.rows,
            key=TABLES[self.table].key,
            scratch=str(where),
            num_subpartitions=self.num_subpartitions,
            keep=keep,
        )

    def read(self) -> Answers:
        """Read everything back in turns."""
        labels = [*(OURS[codec] for codec in self.codecs), UNPARTITIONED]
        kept = {label: self.scratch / f"read-{_directory(label)}" for label in labels}
        answers: Answers = {label: [] for label in labels}
        try:
            for label, where in kept.items():
                self.step(f"engine, read, {self.name}: writing {label}")
                self.write_once(label, where, keep=True)
            for number, order in enumerate(turns(labels, self.repeat), 1):
                for label in order:
                    self.step(f"engine, read, {self.name}, round {number}: {label}")
                    answers[label].append(
                        run_in_child(read_once, contender=label, scratch=str(kept[label]))
                    )
        finally:
            for where in kept.values():
                shutil.rmtree(where, ignore_errors=True)
        found = {answer["num_rows"] for several in answers.values() for answer in several}
        if len(found) != 1:
            msg = f"{self.name}: readers disagree on the number of rows: {sorted(found)}"
            raise RuntimeError(msg)
        return answers


def run(
    scale: float,
    *,
    tables: Iterable[str],
    numbers: Iterable[int],
    codecs: tuple[str, ...],
    repeat: int,
    scratch: Path,
    slow: bool,
    step: Callable[[str], None],
) -> Part:
    """Measure the engine; ``step`` is told what comes next."""
    lines: list[Line] = []
    timings: dict[str, tuple[Timing, ...]] = {}
    profiles: list[Profile] = []
    notes = [
        "one core, a fresh process per round, in turns; ratios of the best rounds; peers are given "
        "the subpartition of each row, ours computes it",
    ]
    numbers = tuple(numbers)
    for table in tables:
        for n in numbers:
            case = _Case(table, scale, n, codecs, repeat, scratch, step)
            labels = contenders(n, codecs, slow=slow, with_sync=table == MAIN_TABLE)
            answers = case.write(labels)
            written = timings_of(answers)
            raw_bytes = answers[labels[0]][0]["raw_bytes"]
            lines += write_lines(f"write, {case.name}", n, codecs, written)
            lines += size_lines(f"size, {case.name}", codecs, written, raw_bytes)
            timings[f"write, {case.name}"] = tuple(written.values())
            profiles += profiles_of(case.name, answers)
            if table == MAIN_TABLE:
                read = timings_of(case.read())
                lines += read_lines(f"read all, {case.name}", read)
                timings[f"read, {case.name}"] = tuple(read.values())
            notes += _left_out(case, labels, written)
    title = f"Engine, one core, lineitem by l_orderkey and narrow by k, scale {scale:g}"
    return Part("engine", title, tuple(lines), timings, tuple(notes), tuple(profiles))


def _left_out(case: _Case, labels: Sequence[str], written: Mapping[str, Timing]) -> list[str]:
    notes = []
    if not set(PYARROW.values()) & set(labels):
        notes.append(f"{case.name}: pyarrow's write_dataset takes too long; --slow includes it")
    if not set(DUCKDB_FORMATS) & set(labels):
        notes.append(f"{case.name}: of DuckDB only Parquet snappy; --slow includes the others")
    fewer = [t for t in written.values() if len(t.seconds) < case.repeat]
    if fewer:
        rounds = ", ".join(f"{t.label} {len(t.seconds)}" for t in fewer)
        notes.append(
            f"{case.name}: fewer rounds for peers that take more than {LONG_ROUND_SECONDS} s: "
            f"{rounds}"
        )
    return notes


def timings_of(answers: Mapping[str, list[dict[str, Any]]]) -> dict[str, Timing]:
    """Timings by label."""
    return {
        label: Timing(
            label,
            tuple(answer["seconds"] for answer in several),
            several[0].get("num_bytes"),
            several[0].get("num_files"),
            tuple(answer["cpu_seconds"] for answer in several),
            several[0].get("num_rows"),
        )
        for label, several in answers.items()
    }


def profiles_of(case: str, answers: Mapping[str, list[dict[str, Any]]]) -> list[Profile]:
    """Where the time of the fastest round of each of ours went."""
    best = {
        label: min(several, key=lambda answer: answer["seconds"])
        for label, several in answers.items()
    }
    return [
        Profile(case, label, answer["seconds"], answer["counters"])
        for label, answer in best.items()
        if answer.get("counters")
    ]


def _directory(label: str) -> str:
    return label.replace(" ", "-").replace(",", "")
