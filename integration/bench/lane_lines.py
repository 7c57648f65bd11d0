"""Lines of the table on the lane, from timings by label. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from integration.bench import targets
from integration.bench.results import Line, amount_line, cost_line, speed_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from integration.bench.results import Timing

REPARTITION = "read.parquet, repartition, Parquet"
FRAME = "write_shuffle of the DataFrame, zstd"


def lane_label(codec: str, *, sync: bool = True) -> str:
    """Label of the write of a dataset; ``sync`` is the default of the options."""
    return f"lane {codec}" + ("" if sync else ", no fsync")


def lane_lines(case: str, codecs: Iterable[str], timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on one number of subpartitions."""
    codecs = tuple(codecs)
    peer, goal = timings[REPARTITION], targets.LANE_AGAINST_PARQUET
    lines = []
    for codec in codecs:
        ours, unsynced = timings[lane_label(codec)], timings[lane_label(codec, sync=False)]
        lines += [
            speed_line(case, "speed, Spark's writer = 1", ours, peer, goal),
            speed_line(case, "speed, Spark's writer = 1", unsynced, peer),
            cost_line(case, "time, through the JVM = 1", ours, timings[FRAME]),
        ]
    for codec in codecs:
        ours = timings[lane_label(codec)]
        lines.append(
            amount_line(
                case,
                f"bytes, Parquet = 1 (files: {ours.num_files:,}, {peer.num_files:,})",
                (ours.label, (ours.num_bytes or 0) / 1e6),
                (peer.label, (peer.num_bytes or 0) / 1e6),
                "MB",
            )
        )
    return lines
