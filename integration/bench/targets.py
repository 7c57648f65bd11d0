"""The ratios to reach, by part and number of subpartitions."""

from __future__ import annotations

from integration.bench.results import Target

ENGINE_NONE_AGAINST_PEERS = {
    200: Target(at_least=2.3),
    2_000: Target(at_least=3.5),
    20_000: Target(at_least=5),
}
"""Speed of a clustered write without compression, against the fastest partitioned writer."""

ENGINE_ZSTD_AGAINST_PEERS = {
    200: Target(at_least=1.7),
    2_000: Target(at_least=2),
    20_000: Target(at_least=3),
}
"""Speed of a compressed clustered write, against the fastest partitioned writer that compresses."""

ENGINE_NONE_AGAINST_IPC = {200: Target(at_least=0.40), 20_000: Target(at_least=0.33)}
"""Speed of a clustered write without compression, against an IPC file in input order."""

WRITE_AGAINST_DRAIN = {"zstd": Target(at_most=1.5), "none": Target(at_most=1.3)}
"""Time of ``write_shuffle``, against a mapInArrow that only drains its input."""

WRITE_AGAINST_PARQUET = {200: Target(at_least=1.5)}
"""Speed of ``write_shuffle``, against ``repartition(n, key).write.parquet``."""

READ_AGAINST_PARQUET = Target(at_most=1.3)
"""Time of a coalesced read, against ``spark.read.parquet`` of the same rows."""

PEAK_MEMORY = Target(at_most=1)
"""Peak RSS, against base + 1.25 x sort buffer + 64 MiB + the largest batch."""

MAX_OPEN_FILES = 15
"""Files a map task may have open at once."""
