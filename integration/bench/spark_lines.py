"""Lines of the table on Spark, from timings by label. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from integration.bench import targets
from integration.bench.results import Line, Timing, amount_line, cost_line, speed_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DRAIN = "mapInArrow drain"
REPARTITION = "repartition, Parquet"
BUCKET_BY = "bucketBy table"
OWN_SHUFFLE = "repartition -> noop"
READ_PARQUET = "read.parquet"
READ_FLOOR = "Python source floor"
OUR_IDS = "keys hashed by us"
SPARK_IDS = "ids computed by Spark"


def write_label(codec: str, *, sync: bool = True) -> str:
    """Label of our write; ``sync`` is the default of the options."""
    return f"ours {codec}" + ("" if sync else ", no fsync")


def read_label(codec: str) -> str:
    """Label of our read."""
    return f"read_shuffle {codec}"


def round_trip_label(codec: str) -> str:
    """Label of our write and read."""
    return f"write, read -> noop {codec}"


def round_trip_lines(case: str, codecs: Iterable[str], timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on writing and reading once, from the timings of one case."""
    target = targets.ROUND_TRIP_AGAINST_SHUFFLE
    return [
        cost_line(
            case, "time, Spark = 1", timings[round_trip_label(codec)], timings[OWN_SHUFFLE], target
        )
        for codec in codecs
    ]


def write_lines(
    case: str, n: int, codecs: Iterable[str], timings: Mapping[str, Timing]
) -> list[Line]:
    """Lines on writing, from the timings of one case."""
    lines = []
    for codec in codecs:
        ours = timings[write_label(codec)]
        unsynced = timings[write_label(codec, sync=False)]
        target = targets.WRITE_AGAINST_DRAIN[codec]
        lines += [
            cost_line(case, "time, drain = 1", ours, timings[DRAIN], target),
            cost_line(case, "time, drain = 1", unsynced, timings[DRAIN]),
            cost_line(case, "time, without fsync = 1", ours, unsynced),
        ]
        peers = [label for label in (REPARTITION, BUCKET_BY) if label in timings]
        for label in peers:
            goal = targets.WRITE_AGAINST_PARQUET.get(n) if label == REPARTITION else None
            lines.append(speed_line(case, "speed, Spark's writer = 1", ours, timings[label], goal))
    for codec in codecs:
        ours, parquet = timings[write_label(codec)], timings[REPARTITION]
        lines.append(
            amount_line(
                case,
                f"bytes, Parquet = 1 (files: {ours.num_files:,}, {parquet.num_files:,})",
                (ours.label, (ours.num_bytes or 0) / 1e6),
                (parquet.label, (parquet.num_bytes or 0) / 1e6),
                "MB",
            )
        )
    return lines


def read_lines(case: str, codecs: Iterable[str], timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on coalesced reading, from the timings of one case."""
    parquet, floor = timings[READ_PARQUET], timings[READ_FLOOR]
    ours = [timings[read_label(codec)] for codec in codecs]
    target = targets.READ_AGAINST_PARQUET
    return [
        *(cost_line(case, "time, Parquet = 1", timing, parquet, target) for timing in ours),
        *(cost_line(case, "time, Python floor = 1", timing, floor) for timing in ours),
        cost_line(case, "time, Parquet = 1", floor, parquet),
    ]


def id_lines(case: str, timings: Mapping[str, Timing]) -> list[Line]:
    """The line on who computes the ids."""
    return [cost_line(case, "time, ids from Spark = 1", timings[OUR_IDS], timings[SPARK_IDS])]
