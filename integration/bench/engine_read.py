"""Reading with the engine on one core: everything, a few columns, one subpartition of many."""

from __future__ import annotations

import gc
import random
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format import HashPartitioner, WriteOptions, open_shuffle, write_shuffle
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.target import open_target
from integration.bench import lineitem
from integration.bench.child import run_in_child
from integration.bench.engine import timings_of
from integration.bench.engine_read_lines import (
    COLUMNS,
    MAP_OUTPUTS,
    POINT_SUBPARTITIONS,
    POINTS,
    labels_of,
    point_lines,
    read_lines,
    source_of,
)
from integration.bench.ipc import read_batches
from integration.bench.results import Line, Part, Timing, turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def write_all(rows: str, out: str, codec: str, num_subpartitions: int | None) -> dict[str, Any]:
    """Write what is read: a shuffle, or without ``num_subpartitions`` one IPC file in input order.

    Its batches are those of the input, of 10,000 rows; ``zstd`` compresses their buffers.
    """
    batches = read_batches(Path(rows))
    if num_subpartitions is None:
        options = pa.ipc.IpcWriteOptions(compression=None if codec == "none" else codec)
        with (
            pa.OSFile(out, "wb") as file,
            pa.ipc.new_file(file, batches[0].schema, options=options) as sink,
        ):
            for batch in batches:
                sink.write_batch(batch)
    else:
        write_shuffle(
            batches,
            out,
            num_subpartitions=num_subpartitions,
            keys=lineitem.KEY,
            options=WriteOptions(codec=codec, sync=False),
        )
    return {}


def write_map_outputs(rows: str, out: str, num_subpartitions: int) -> dict[str, Any]:
    """Write a zstd shuffle of :data:`MAP_OUTPUTS` map outputs; returns the bytes of its files."""
    batches = read_batches(Path(rows))
    job = begin_job(
        out,
        batches[0].schema,
        num_subpartitions=num_subpartitions,
        partitioner=HashPartitioner((lineitem.KEY,)),
        options=WriteOptions(sync=False),
    )
    open_target(job, "errorifexists")
    statuses = [
        run_map_task(job, task, 0, batches[task::MAP_OUTPUTS]) for task in range(MAP_OUTPUTS)
    ]
    commit_job(job, statuses)
    files = [path for path in Path(out).rglob("*") if path.is_file()]
    return {"num_bytes": sum(path.stat().st_size for path in files)}


def read_all(path: str, kind: str, columns: list[str] | None) -> dict[str, Any]:
    """Read all rows, batch after batch, keeping none; the batches are not looked at.

    Parameters
    ----------
    path
        What :func:`write_all` wrote.
    kind
        ``shuffle``, ``file`` (the IPC file read through a file handle) or ``mapped`` (through a
        memory map: what is not looked at is never read then).
    columns
        Columns to read; all when None. Of an IPC file the others are left out by its reader.

    Returns
    -------
    dict
        ``seconds``, ``cpu_seconds``, ``num_rows``.
    """
    if kind == "shuffle":
        open_shuffle(path).subpartition(0, columns).read_all()  # loads the code
    gc.collect()
    cpu_before, started = time.process_time(), time.perf_counter()
    if kind == "shuffle":
        num_rows = sum(batch.num_rows for batch in open_shuffle(path).read(columns=columns))
    else:
        with pa.memory_map(path) if kind == "mapped" else pa.OSFile(path) as file:
            reader = pa.ipc.open_file(file)
            if columns is not None:
                wanted = [reader.schema.get_field_index(name) for name in columns]
                options = pa.ipc.IpcReadOptions(included_fields=wanted)
                reader = pa.ipc.open_file(file, options=options)
            numbers = range(reader.num_record_batches)
            num_rows = sum(reader.get_batch(i).num_rows for i in numbers)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_before
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "num_rows": num_rows}


def read_points(path: str) -> dict[str, Any]:
    """Read single subpartitions: the first with opening, then others with the indexes at hand.

    Returns
    -------
    dict
        ``cold`` and ``warm``: mean ``seconds`` and ``cpu_seconds``, and ``num_bytes`` that were
        read from files, for one subpartition.
    """
    shuffle = open_shuffle(path)
    points = random.Random(1).sample(range(shuffle.num_subpartitions), POINTS)
    shuffle.subpartition(points[0]).read_all()  # loads the code

    def measured(read: Callable[[], object], times: int) -> dict[str, Any]:
        before, cpu_before, started = _bytes_read(), time.process_time(), time.perf_counter()
        read()
        return {
            "seconds": (time.perf_counter() - started) / times,
            "cpu_seconds": (time.process_time() - cpu_before) / times,
            "num_bytes": (_bytes_read() - before) // times,
        }

    def several() -> None:
        for point in points:
            shuffle.subpartition(point).read_all()

    cold = measured(lambda: open_shuffle(path).subpartition(points[0]).read_all(), 1)
    return {"cold": cold, "warm": measured(several, POINTS)}


def _bytes_read() -> int:
    """Bytes that this process has read from files so far; 0 where the system does not say."""
    counters = Path("/proc/self/io")
    if not counters.exists():
        return 0
    return int(counters.read_text().split("rchar: ")[1].split()[0])


def run(
    scale: float,
    *,
    numbers: Iterable[int],
    codecs: tuple[str, ...],
    repeat: int,
    scratch: Path,
    step: Callable[[str], None],
) -> Part:
    """Measure reading; ``step`` is told what comes next."""
    step("making the input: lineitem")
    rows = str(lineitem.ipc_stream(scale))
    lines: list[Line] = []
    timings: dict[str, tuple[Timing, ...]] = {}
    plain = {codec: scratch / f"plain-{codec}.arrow" for codec in codecs}
    for codec, path in plain.items():
        step(f"read: writing IPC, {codec}")
        run_in_child(write_all, rows=rows, out=str(path), codec=codec, num_subpartitions=None)
    for n in numbers:
        case = f"lineitem, n = {n:,}"
        ours = {codec: scratch / f"ours-{codec}-{n}" for codec in codecs}
        for codec, path in ours.items():
            step(f"read, {case}: writing, {codec}")
            run_in_child(write_all, rows=rows, out=str(path), codec=codec, num_subpartitions=n)
        found = _read_in_turns(codecs, ours, plain, repeat, partial(_said, step, case))
        for path in ours.values():
            shutil.rmtree(path)
        lines += read_lines(case, codecs, found)
        timings[f"read, {case}"] = tuple(found.values())
    point_lines_, point_timings = _points(rows, scratch, repeat, step)
    notes = [
        "one core, a fresh process per round, in turns; ratios of the best rounds. Both sides hand "
        "out batches that nobody looks at; ours are verified and by subpartition",
        f"a few columns: {', '.join(COLUMNS)} of 16",
    ]
    return Part(
        "read",
        f"Engine, reading on one core, lineitem, scale {scale:g}",
        (*lines, *point_lines_),
        {**timings, "read, one subpartition": point_timings},
        tuple(notes),
    )


def _said(step: Callable[[str], None], case: str, what: str) -> None:
    step(f"read, {case}, {what}")


def _read_in_turns(
    codecs: tuple[str, ...],
    ours: dict[str, Path],
    plain: dict[str, Path],
    repeat: int,
    said: Callable[[str], None],
) -> dict[str, Timing]:
    labels = labels_of(codecs)
    answers: dict[str, list[dict[str, Any]]] = {label: [] for label in labels}
    for number, order in enumerate(turns(labels, repeat), 1):
        for label in order:
            said(f"round {number}: {label}")
            codec, kind, columns = source_of(label)
            path = (ours if kind == "shuffle" else plain)[codec]
            answers[label].append(
                run_in_child(read_all, path=str(path), kind=kind, columns=columns)
            )
    num_rows = {answer["num_rows"] for several in answers.values() for answer in several}
    if len(num_rows) != 1:
        msg = f"readers disagree on the number of rows: {sorted(num_rows)}"
        raise RuntimeError(msg)
    return timings_of(answers)


def _points(
    rows: str, scratch: Path, repeat: int, step: Callable[[str], None]
) -> tuple[list[Line], tuple[Timing, ...]]:
    step("read, one subpartition: writing")
    path = scratch / "points"
    written = run_in_child(
        write_map_outputs, rows=rows, out=str(path), num_subpartitions=POINT_SUBPARTITIONS
    )
    step("read, one subpartition")
    answers = [run_in_child(read_points, path=str(path)) for _ in range(repeat)]
    whole = [
        run_in_child(read_all, path=str(path), kind="shuffle", columns=None) for _ in range(repeat)
    ]
    shutil.rmtree(path)
    found = timings_of(
        {
            "the whole shuffle": [{**one, "num_bytes": written["num_bytes"]} for one in whole],
            "opened for it": [answer["cold"] for answer in answers],
            "of an open shuffle": [answer["warm"] for answer in answers],
        }
    )
    return point_lines(found), tuple(found.values())
