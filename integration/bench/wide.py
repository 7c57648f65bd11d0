"""Tables of very many columns with the engine on one core: writing, reading all, and a few.

A third of the columns are small integers, a third floats of two digits, a third short texts.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from arrow_format import WriteOptions, open_shuffle, write_shuffle
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.engine import write_ipc_file
from integration.bench.inputs import BATCH_ROWS, as_over_ipc
from integration.bench.read import FEW, bytes_read, read_all
from integration.bench.results import Part, Timing, amount_line, compare, megabytes

if TYPE_CHECKING:
    from integration.bench.rounds import Settings

NUM_COLUMNS = 300
NUM_ROWS = 200_000
KEY = "c0"
TWO = ["c7", "c157"]
COLUMNS = [f"c{i}" for i in range(7, NUM_COLUMNS, 15)]
"""The few columns, of each kind."""


def wide_batches(num_rows: int) -> list[pa.RecordBatch]:
    """Return rows in batches as Spark hands them out."""
    random = np.random.default_rng(2)
    words = pa.array([f"w{i}" for i in range(500)])
    batches = []
    for _ in range(0, num_rows, BATCH_ROWS):
        columns = {}
        for i in range(0, NUM_COLUMNS, 3):
            columns[f"c{i}"] = pa.array(random.integers(0, 200, BATCH_ROWS))
            columns[f"c{i + 1}"] = pa.array(np.round(random.random(BATCH_ROWS) * 100, 2))
            columns[f"c{i + 2}"] = words.take(pa.array(random.integers(0, 500, BATCH_ROWS)))
        batch = pa.record_batch(columns)
        batches.append(as_over_ipc(batch.serialize(), batch.schema))
    return batches


def write_all(out: str, kind: str, codec: str, num_rows: int) -> dict[str, Any]:
    """Write a shuffle (``kind`` is ``ours``) or one ``IPC`` file in input order, and time it."""
    batches = wide_batches(num_rows)

    def write(batches: list[pa.RecordBatch], out: str) -> None:
        if kind == "ours":
            options = WriteOptions(codec=codec, sync=False)  # type: ignore[arg-type]
            write_shuffle(
                batches, out, num_subpartitions=200, keys=KEY, mode="overwrite", options=options
            )
        else:
            write_ipc_file(batches, Path(out), None if codec == "none" else codec)

    write(batches[:1], f"{out}-warm")  # loads the code
    with timed() as answer:
        write(batches, out)
    return answer


def read_two(path: str, kind: str) -> dict[str, Any]:
    """Read :data:`TWO` of a shuffle (``kind`` is ``ours``) or of a ``Parquet`` file.

    ``num_bytes`` are those read from files, of an open shuffle.
    """
    if kind == "ours":
        shuffle = open_shuffle(path)
        shuffle.subpartition(0, TWO).read_all()  # loads the code
    before = bytes_read()
    with timed() as answer:
        if kind == "ours":
            num_rows = sum(batch.num_rows for batch in shuffle.read(columns=TWO))
        else:
            num_rows = pq.read_table(path, columns=TWO, use_threads=False).num_rows
    return {**answer, "num_rows": num_rows, "num_bytes": bytes_read() - before}


def write_parquet(out: str, num_rows: int) -> dict[str, Any]:
    """Write the rows in input order as one Parquet file of zstd."""
    pq.write_table(pa.Table.from_batches(wide_batches(num_rows)), out, compression="zstd")
    return {}


def run(settings: Settings) -> Part:
    """Measure wide tables."""
    num_rows = max(round(NUM_ROWS * settings.scale), BATCH_ROWS)
    part = Part("wide", f"Engine, {NUM_COLUMNS} columns, one core, {num_rows:,} rows")
    part.notes += [
        "one core, a fresh process per round; ratios of the best rounds; a shuffle of 200 against "
        "an IPC file in input order",
        f"a few columns: {len(COLUMNS)} of {NUM_COLUMNS}",
    ]
    for codec in settings.codecs:
        case = f"wide, {codec}"
        settings.report(case)
        paths = {kind: str(settings.scratch / f"{kind}-{codec}") for kind in ("ours", "IPC")}
        writes = {
            f"{kind} {codec}": partial(
                run_in_child, write_all, out=path, kind=kind, codec=codec, num_rows=num_rows
            )
            for kind, path in paths.items()
        }
        reads = {
            f"{kind} {codec}{suffix}": partial(
                run_in_child, read_all, path=path, kind=kind, columns=columns
            )
            for kind, path in paths.items()
            for suffix, columns in (("", None), (FEW, COLUMNS))
        }
        written = settings.measure(part, f"{case}, write", writes)
        read = settings.measure(part, f"{case}, read", reads)
        ours, peer = f"ours {codec}", f"IPC {codec}"
        target = targets.FEW_OF_WIDE if codec == "zstd" else None
        part.lines += [
            compare(f"{case}, write", "speed", "IPC", written[ours], written[peer], best=True),
            compare(f"{case}, read", "speed", "IPC", read[ours], read[peer], best=True),
            compare(
                f"{case}, few", "time", "all columns", read[ours + FEW], read[ours], target,
                best=True,
            ),
        ]  # fmt: skip
        if codec == "zstd":
            _two(part, case, paths["ours"], num_rows, read[ours], settings)
    return part


def _two(
    part: Part, case: str, ours: str, num_rows: int, whole: Timing, settings: Settings
) -> None:
    parquet = str(settings.scratch / "wide.parquet")
    run_in_child(write_parquet, out=parquet, num_rows=num_rows)
    paths = {"ours": ours, "Parquet": parquet}
    timings = settings.measure(
        part,
        f"{case}, two",
        {
            f"{kind}, two": partial(run_in_child, read_two, path=path, kind=kind)
            for kind, path in paths.items()
        },
    )
    found, peer = timings["ours, two"], timings["Parquet, two"]
    part.lines += [
        compare(
            f"{case}, two", "time", "all columns", found, whole, targets.TWO_OF_WIDE, best=True
        ),
        amount_line(
            f"{case}, two", "bytes read, of Parquet = 1", megabytes(found), megabytes(peer), "MB",
            targets.TWO_OF_WIDE_BYTES,
        ),
    ]  # fmt: skip
