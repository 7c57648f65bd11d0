"""From Parquet files to a shuffle without entering the JVM, on two local cores, against Spark.

As in the part ``spark``, all run in one session, in turns, after a round that does not count.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pyarrow.dataset as ds

from arrow_format import WriteOptions
from integration.bench import lane_lines as labels
from integration.bench.lineitem import KEY
from integration.bench.results import Line, Part
from integration.bench.spark import _Rounds, session
from integration.programs.datasets import LINEITEM_PARTS, lineitem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from integration.bench.spark import Action


def run(
    scale: float,
    *,
    numbers: tuple[int, ...],
    codecs: tuple[str, ...],
    repeat: int,
    scratch: Path,
    step: Callable[[str], None],
) -> Part:
    """Measure writes of a dataset; ``step`` is told what comes next."""
    step("making the input")
    source = lineitem(scale)
    rounds = _Rounds(scratch, repeat, step)
    lines: list[Line] = []
    logging.getLogger("py4j").setLevel(logging.ERROR)
    step("starting Spark")
    with session(scratch) as spark:
        import connector

        num_rows = spark.read.parquet(str(source)).count()

        def shuffle(n: int, options: WriteOptions, *, through_jvm: bool = False) -> Action:
            def write(out: Path) -> None:
                # Opened anew, as Spark plans anew: what is known of the files is not kept.
                rows = spark.read.parquet(str(source)) if through_jvm else ds.dataset(source)
                receipt = connector.write_shuffle(
                    rows, out, num_subpartitions=n, keys=KEY, options=options
                )
                if receipt.num_rows != num_rows:
                    msg = f"{receipt.num_rows:,} rows came out of {num_rows:,}"
                    raise RuntimeError(msg)

            return write

        def repartition(n: int) -> Action:
            def write(out: Path) -> None:
                spark.read.parquet(str(source)).repartition(n, KEY).write.parquet(str(out))

            return write

        for n in numbers:
            actions: dict[str, Action] = {
                labels.lane_label(codec, sync=sync): shuffle(
                    n, WriteOptions(codec=codec, sync=sync)
                )
                for codec in codecs
                for sync in (True, False)
            }
            actions[labels.FRAME] = shuffle(n, WriteOptions(), through_jvm=True)
            actions[labels.REPARTITION] = repartition(n)
            case = f"n = {n:,}"
            lines += labels.lane_lines(case, codecs, rounds.measure(case, actions))
    note = (
        f"local[2], {LINEITEM_PARTS} input files, one session, in turns, one warm-up round; ours "
        "fsync unless the label says otherwise, Spark's writer does not"
    )
    title = f"Lane, Parquet to shuffle, Spark local[2], lineitem SF {scale:g} by {KEY}"
    return Part("lane", title, tuple(lines), rounds.timings, (note,))
