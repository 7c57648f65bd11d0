"""The engine on one core, against other writers of partitioned data."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from integration.bench.child import run_in_child
from integration.bench.contenders import read_once, write_once
from integration.bench.engine_lines import (
    OURS,
    PYARROW,
    UNPARTITIONED,
    contenders,
    read_lines,
    size_lines,
    write_lines,
)
from integration.bench.lineitem import ipc_stream
from integration.bench.results import Line, Part, Timing, turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


def run(
    scale: float,
    *,
    numbers: Iterable[int],
    codecs: tuple[str, ...],
    repeat: int,
    scratch: Path,
    slow: bool,
    step: Callable[[str], None],
) -> Part:
    """Measure the engine; ``step`` is told what comes next."""
    step("making the input")
    rows = str(ipc_stream(scale))
    lines: list[Line] = []
    timings: dict[str, tuple[Timing, ...]] = {}
    notes = [
        "one core, a fresh process per round, in turns; peers are given the subpartition of each "
        "row, ours computes it",
    ]
    for n in numbers:
        labels = contenders(n, codecs, slow=slow)
        if not set(PYARROW.values()) & set(labels):
            notes.append(f"n = {n:,}: pyarrow's write_dataset takes too long; --slow includes it")
        answers: dict[str, list[dict[str, Any]]] = {label: [] for label in labels}
        for number, order in enumerate(turns(labels, repeat), 1):
            for label in order:
                step(f"engine, write, n = {n:,}, round {number}: {label}")
                where = scratch / f"{len(answers[label])}-{label.replace(' ', '-')}"
                answers[label].append(
                    run_in_child(
                        write_once,
                        contender=label,
                        rows=rows,
                        scratch=str(where),
                        num_subpartitions=n,
                    )
                )
        written = {label: _timing(label, found) for label, found in answers.items()}
        raw_bytes = answers[labels[0]][0]["raw_bytes"]
        read = _read(n, codecs, rows, repeat, scratch, step)
        lines += [
            *write_lines(n, codecs, written),
            *size_lines(n, codecs, written, raw_bytes),
            *read_lines(n, read),
        ]
        timings[f"write, n = {n}"] = tuple(written.values())
        timings[f"read, n = {n}"] = tuple(read.values())
    title = f"Engine, one core, lineitem SF {scale:g} by l_orderkey"
    return Part("engine", title, tuple(lines), timings, tuple(notes))


def _read(
    n: int,
    codecs: Iterable[str],
    rows: str,
    repeat: int,
    scratch: Path,
    step: Callable[[str], None],
) -> dict[str, Timing]:
    labels = [*(OURS[codec] for codec in codecs), UNPARTITIONED]
    kept = {label: scratch / f"read-{label.replace(' ', '-')}" for label in labels}
    answers: dict[str, list[dict[str, Any]]] = {label: [] for label in labels}
    try:
        for label, where in kept.items():
            step(f"engine, read, n = {n:,}: writing {label}")
            run_in_child(
                write_once,
                contender=label,
                rows=rows,
                scratch=str(where),
                num_subpartitions=n,
                keep=True,
            )
        for number, order in enumerate(turns(labels, repeat), 1):
            for label in order:
                step(f"engine, read, n = {n:,}, round {number}: {label}")
                answers[label].append(
                    run_in_child(read_once, contender=label, scratch=str(kept[label]))
                )
    finally:
        for where in kept.values():
            shutil.rmtree(where, ignore_errors=True)
    found = {answer["num_rows"] for several in answers.values() for answer in several}
    if len(found) != 1:
        msg = f"n = {n}: readers disagree on the number of rows: {sorted(found)}"
        raise RuntimeError(msg)
    return {label: _timing(label, several) for label, several in answers.items()}


def _timing(label: str, answers: list[dict[str, Any]]) -> Timing:
    return Timing(
        label,
        tuple(answer["seconds"] for answer in answers),
        answers[0].get("num_bytes"),
        answers[0].get("num_files"),
        tuple(answer["cpu_seconds"] for answer in answers),
    )
