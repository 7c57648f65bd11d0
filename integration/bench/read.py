"""Reading with the engine on one core: everything, a few columns, one subpartition of many.

Each round is a fresh process. Both sides hand out batches that are not looked at.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format import HashPartitioner, WriteOptions, open_shuffle, write_shuffle
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.target import open_target
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.engine import write_ipc_file
from integration.bench.inputs import KEY, ipc_stream, read_batches
from integration.bench.results import (
    Line,
    Part,
    Timing,
    amount_line,
    compare,
    megabytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from integration.bench.rounds import Settings

COLUMNS = ("l_extendedprice", "l_shipmode")
"""The few columns: a decimal and a text."""

MAP_OUTPUTS = 50
POINT_SUBPARTITIONS = 20_000
POINTS = 100
"""Subpartitions that are read one by one."""

FEW = ", a few columns"
WHOLE, OPENED, OPEN = "the whole shuffle", "opened for it", "of an open shuffle"


def write_all(rows: str, out: str, codec: str, num_subpartitions: int | None) -> dict[str, Any]:
    """Write what is read: a shuffle, or without ``num_subpartitions`` one IPC file in input order.

    Its batches are those of the input, of 10,000 rows; ``zstd`` compresses their buffers.
    """
    batches = read_batches(Path(rows))
    if num_subpartitions is None:
        write_ipc_file(batches, Path(out), None if codec == "none" else codec)
    else:
        options = WriteOptions(codec=codec, sync=False)
        write_shuffle(batches, out, num_subpartitions=num_subpartitions, keys=KEY, options=options)
    return {}


def write_map_outputs(rows: str, out: str, num_subpartitions: int) -> dict[str, Any]:
    """Write a zstd shuffle of :data:`MAP_OUTPUTS` map outputs; returns the bytes of its files."""
    batches = read_batches(Path(rows))
    job = begin_job(
        out,
        batches[0].schema,
        num_subpartitions=num_subpartitions,
        partitioner=HashPartitioner((KEY,)),
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
    """Read all rows, batch after batch, keeping none, and time it.

    ``kind`` is ``ours``, or ``IPC``: a file read through a file handle into memory that is used
    again for the next batch, whose reader leaves out columns that are not asked for.
    """
    if kind == "ours":
        open_shuffle(path).subpartition(0, columns).read_all()  # loads the code
    with timed() as answer:
        if kind == "ours":
            num_rows = sum(batch.num_rows for batch in open_shuffle(path).read(columns=columns))
        else:
            with pa.OSFile(path) as file:
                reader = pa.ipc.open_file(file)
                if columns is not None:
                    wanted = [reader.schema.get_field_index(name) for name in columns]
                    options = pa.ipc.IpcReadOptions(included_fields=wanted)
                    reader = pa.ipc.open_file(file, options=options)
                numbers = range(reader.num_record_batches)
                num_rows = sum(reader.get_batch(i).num_rows for i in numbers)
    return {**answer, "num_rows": num_rows}


def read_points(path: str, *, opens: bool) -> dict[str, Any]:
    """Read single subpartitions, and time one.

    ``opens``: one, with opening the shuffle for it. Otherwise the mean of :data:`POINTS` from a
    shuffle that is open, its indexes cached. ``num_bytes`` are those read from files.
    """
    shuffle = open_shuffle(path)
    points = random.Random(1).sample(range(shuffle.num_subpartitions), POINTS)
    shuffle.subpartition(points[0]).read_all()  # loads the code
    if opens:
        points = points[:1]
    bytes_before = bytes_read()
    with timed() as answer:
        for point in points:
            (open_shuffle(path) if opens else shuffle).subpartition(point).read_all()
    answer["num_bytes"] = bytes_read() - bytes_before
    return {name: value / len(points) for name, value in answer.items()}


def bytes_read() -> int:
    """Bytes that this process has read from files so far; 0 where the system has no counter."""
    counters = Path("/proc/self/io")
    if not counters.exists():
        return 0
    return int(counters.read_text().split("rchar: ")[1].split()[0])


def read_lines(case: str, codecs: Iterable[str], timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on reading everything, and a few columns of it."""
    lines = []
    for codec in codecs:
        whole, few = timings[f"ours {codec}"], timings[f"ours {codec}{FEW}"]
        peer, peer_few = timings[f"IPC {codec}"], timings[f"IPC {codec}{FEW}"]
        lines += [
            compare(case, "speed", "IPC", whole, peer, targets.READ_AGAINST_IPC, best=True),
            compare(case, "speed", f"IPC{FEW}", few, peer_few, best=True),
            compare(
                case, "time", "all columns", few, whole, best=True,
            ),
        ]  # fmt: skip
    return lines


def point_lines(case: str, timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on reading one subpartition: its time and the bytes read, against the whole."""
    whole = timings[WHOLE]
    lines = []
    for point in (timings[OPENED], timings[OPEN]):
        line = compare(case, "time", "all rows", point, whole, best=True)
        milliseconds = {"ours_value": 1e3 * line.ours_value, "other_value": 1e3 * line.other_value}
        lines.append(replace(line, unit="ms", **milliseconds))
        what = "bytes read, of all files = 1"
        lines.append(amount_line(case, what, megabytes(point), megabytes(whole), "MB"))
    return lines


def run(settings: Settings) -> Part:
    """Measure reading."""
    settings.report("making the input")
    rows = str(ipc_stream(settings.scale))
    part = Part("read", f"Engine, reading on one core, lineitem, scale {settings.scale:g}")
    part.notes += [
        "one core, a fresh process per round; ratios of the best rounds. Both sides hand out "
        "batches that are not looked at; ours are verified and by subpartition",
        f"a few columns: {', '.join(COLUMNS)} of 16",
    ]
    scratch = settings.scratch
    plain = {codec: scratch / f"plain-{codec}.arrow" for codec in settings.codecs}
    for codec, path in plain.items():
        settings.report(f"read: writing IPC, {codec}")
        run_in_child(write_all, rows=rows, out=str(path), codec=codec, num_subpartitions=None)
    for n in settings.numbers:
        case = f"read, n = {n:,}"
        ours = {codec: scratch / f"ours-{codec}-{n}" for codec in settings.codecs}
        for codec, path in ours.items():
            settings.report(f"{case}: writing, {codec}")
            run_in_child(write_all, rows=rows, out=str(path), codec=codec, num_subpartitions=n)
        measures = {
            f"{kind} {codec}{suffix}": partial(
                run_in_child, read_all, path=str(paths[codec]), kind=kind, columns=columns
            )
            for codec in settings.codecs
            for suffix, columns in (("", None), (FEW, COLUMNS))
            for kind, paths in (("ours", ours), ("IPC", plain))
        }
        timings = settings.measure(part, case, measures)
        if len({timing.num_rows for timing in timings.values()}) != 1:
            msg = f"{case}: readers disagree on the number of rows"
            raise RuntimeError(msg)
        part.lines += read_lines(case, settings.codecs, timings)
        for path in ours.values():
            shutil.rmtree(path)
    _points(part, rows, settings)
    return part


def _points(part: Part, rows: str, settings: Settings) -> None:
    case = f"one of {POINT_SUBPARTITIONS:,}, {MAP_OUTPUTS} map outputs"
    settings.report(f"{case}: writing")
    path = str(settings.scratch / "points")
    n = POINT_SUBPARTITIONS
    written = run_in_child(write_map_outputs, rows=rows, out=path, num_subpartitions=n)

    def read_whole() -> dict[str, Any]:
        return {**run_in_child(read_all, path=path, kind="ours", columns=None), **written}

    measures = {
        WHOLE: read_whole,
        OPENED: partial(run_in_child, read_points, path=path, opens=True),
        OPEN: partial(run_in_child, read_points, path=path, opens=False),
    }
    part.lines += point_lines(case, settings.measure(part, case, measures))
