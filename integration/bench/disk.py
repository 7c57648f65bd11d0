"""Bytes on disk, against Spark's own shuffle files of the same rows from the same map tasks."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING

from arrow_format import WriteOptions
from integration.bench.disk_lines import byte_lines
from integration.bench.lineitem import KEY
from integration.bench.results import Line, Part
from integration.bench.spark import files_below, session
from integration.programs.datasets import LINEITEM_PARTS, lineitem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import DataFrame

SETTINGS = {
    "spark.io.compression.codec": "zstd",
    # Otherwise files of a shuffle may go while they are looked at, once nobody holds its query.
    "spark.cleaner.referenceTracking": "false",
}


def run(
    scale: float, *, numbers: Iterable[int], scratch: Path, step: Callable[[str], None]
) -> Part:
    """Measure bytes; ``step`` is told what comes next."""
    step("making the input")
    source = lineitem(scale)
    lines: list[Line] = []
    logging.getLogger("py4j").setLevel(logging.ERROR)
    step("starting Spark")
    with session(scratch, SETTINGS) as spark:
        rows = spark.read.parquet(str(source))
        num_rows = rows.count()
        for n in numbers:
            step(f"bytes, n = {n:,}: Spark's shuffle")
            sparks = _spark_shuffle(rows, n, scratch / "local")
            step(f"bytes, n = {n:,}: ours")
            data, all_files = _our_shuffle(rows, n, num_rows, scratch / f"ours-{n}")
            lines += byte_lines(n, data, all_files, sparks)
    notes = (
        f"{LINEITEM_PARTS} map tasks on both sides; Spark: shuffle_*.data of repartition(n, key) "
        "to noop, spark.io.compression.codec=zstd, its own index files not counted",
        "ours: the target is for everything below the shuffle's directory: data, index, commit log",
    )
    title = f"Bytes on disk, zstd, Spark local[2], lineitem SF {scale:g} by {KEY}"
    return Part("bytes", title, tuple(lines), {}, notes)


def _spark_shuffle(rows: DataFrame, n: int, local: Path) -> int:
    """Bytes of the data files that one shuffle adds below Spark's local directory."""
    rows.repartition(n, KEY).write.format("noop").mode("overwrite").save()
    files = list(local.rglob("shuffle_*.data"))
    num_bytes = sum(file.stat().st_size for file in files)
    for file in files:
        file.unlink()
    if not num_bytes:
        msg = f"n = {n}: Spark left no shuffle files below {local}"
        raise RuntimeError(msg)
    return num_bytes


def _our_shuffle(rows: DataFrame, n: int, num_rows: int, path: Path) -> tuple[int, int]:
    """Bytes of our data files, and of all our files."""
    import connector

    options = WriteOptions(codec="zstd", sync=False)
    receipt = connector.write_shuffle(rows, path, num_subpartitions=n, keys=KEY, options=options)
    if receipt.num_rows != num_rows:
        msg = f"n = {n}: {receipt.num_rows:,} rows came out of {num_rows:,}"
        raise RuntimeError(msg)
    all_files, _ = files_below(path)
    shutil.rmtree(path)
    return receipt.num_bytes, all_files
