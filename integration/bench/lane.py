"""From Parquet files to a shuffle without entering the JVM, on two local cores, against Spark.

As in the part ``spark``, all run in one session after a round that does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.dataset as ds

import arrow_shuffle
from arrow_format import WriteOptions
from integration.bench import targets
from integration.bench.inputs import KEY
from integration.bench.results import Line, Part, compare
from integration.bench.rounds import check_rows
from integration.bench.spark import NOTE, measure_actions, session, size_lines
from integration.programs.datasets import lineitem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from integration.bench.results import Timing
    from integration.bench.rounds import Settings
    from integration.bench.spark import Action

REPARTITION = "read.parquet, repartition, Parquet"
FRAME = "write_shuffle of the DataFrame, zstd"


def lane_label(codec: str, *, sync: bool = True) -> str:
    """Label of the write of a dataset; ``sync`` is the default of the options."""
    return f"lane {codec}" + ("" if sync else ", no fsync")


def lane_lines(case: str, codecs: Sequence[str], timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on one number of subpartitions."""
    peer, goal = timings[REPARTITION], targets.LANE_AGAINST_PARQUET
    lines = []
    for codec in codecs:
        ours, unsynced = timings[lane_label(codec)], timings[lane_label(codec, sync=False)]
        lines += [
            compare(case, "speed", "Spark's writer", ours, peer, goal),
            compare(case, "speed", "Spark's writer", unsynced, peer),
            compare(case, "time", "through the JVM", ours, timings[FRAME]),
        ]
    return lines + size_lines(case, [timings[lane_label(codec)] for codec in codecs], peer)


def run(settings: Settings) -> Part:
    """Measure writes of a dataset."""
    settings.report("making the input")
    source = lineitem(settings.scale)
    title = f"Lane, Parquet to shuffle, Spark local[2], lineitem SF {settings.scale:g} by {KEY}"
    part = Part("lane", title, notes=[NOTE])
    with session(settings) as spark:
        num_rows = spark.read.parquet(str(source)).count()

        def shuffle(n: int, options: WriteOptions, *, through_jvm: bool = False) -> Action:
            def write(out: Path) -> None:
                # Opened again each time, as Spark plans again: nothing known of the files is kept.
                rows = spark.read.parquet(str(source)) if through_jvm else ds.dataset(source)
                receipt = arrow_shuffle.write_shuffle(
                    rows, out, num_subpartitions=n, keys=KEY, options=options, spark=spark
                )
                check_rows(receipt.num_rows, num_rows)

            return write

        def repartition(n: int) -> Action:
            def write(out: Path) -> None:
                spark.read.parquet(str(source)).repartition(n, KEY).write.parquet(str(out))

            return write

        for n in settings.numbers:
            actions: dict[str, Action] = {
                lane_label(codec, sync=sync): shuffle(n, WriteOptions(codec=codec, sync=sync))
                for codec in settings.codecs
                for sync in (True, False)
            }
            actions[FRAME] = shuffle(n, WriteOptions(), through_jvm=True)
            actions[REPARTITION] = repartition(n)
            case = f"lane, n = {n:,}"
            timings = measure_actions(settings, part, case, actions)
            part.lines += lane_lines(case, settings.codecs, timings)
    return part
