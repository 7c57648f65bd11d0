"""The ratios to reach, and to aim at, by part and number of subpartitions."""

from __future__ import annotations

from integration.bench.results import Target

ENGINE_NONE_AGAINST_PEERS = {
    200: Target(at_least=2.3, aim=3),
    2_000: Target(at_least=3.5, aim=5),
    20_000: Target(at_least=5, aim=7),
}
"""Speed of a clustered write without compression, against the fastest partitioned writer."""

ENGINE_ZSTD_AGAINST_PEERS = {
    200: Target(at_least=1.7, aim=2.2),
    2_000: Target(at_least=2, aim=2.5),
    20_000: Target(at_least=3, aim=3.7),
}
"""Speed of a compressed clustered write, against the fastest partitioned writer that compresses."""

ENGINE_NONE_AGAINST_IPC = {
    200: Target(at_least=0.40, aim=0.55),
    20_000: Target(at_least=0.33, aim=0.55),
}
"""Speed of a clustered write without compression, against an IPC file in input order."""

TWO_CORES_AGAINST_ONE = Target(at_least=1.7)
"""Speed of a write of Parquet files on two cores, against the same on one."""

TWO_CORES_AGAINST_PEERS = Target(at_least=1.5)
"""Speed of a write of Parquet files on two cores, against the fastest partitioned writer there."""

WRITE_AGAINST_DRAIN = {"zstd": Target(at_most=1.5), "none": Target(at_most=1.3)}
"""Time of ``write_shuffle``, against a mapInArrow that only drains its input."""

WRITE_AGAINST_PARQUET = {200: Target(at_least=1.5)}
"""Speed of ``write_shuffle``, against ``repartition(n, key).write.parquet``."""

READ_AGAINST_IPC = Target(at_least=0.7)
"""Speed of a verified read of everything, against an IPC file of the same codec in input order."""

FEW_OF_LINEITEM = Target(at_most=0.20)
"""Time of two of sixteen columns of codec zstd, against all, without an order."""

TWO_AGAINST_POLARS = Target(at_most=1.7)
"""Processor time of two of sixteen columns without an order, against Polars from Parquet."""

TWO_AGAINST_PYARROW = Target(at_most=1.1)
"""The same against PyArrow."""

ALL_AGAINST_POLARS = Target(at_most=0.95)
"""Processor time of all columns without an order, against Polars that hands Arrow over."""

FEW_OF_WIDE = Target(at_most=0.15)
"""Time of 20 of 300 columns of codec zstd, against all."""

TWO_OF_WIDE = Target(at_most=0.04)
"""Time of 2 of 300 columns of codec zstd, against all."""

TWO_OF_WIDE_BYTES = Target(at_most=3)
"""Bytes read for 2 of 300 columns, against a Parquet file of zstd in input order."""

KEY_MS = {"from nothing": 60.0, "of an open shuffle": 25.0}
"""Milliseconds of the rows of a key in 200 map outputs, n = 20,000."""

ONE_OF_MANY_MS = 1_000.0
"""Milliseconds of one subpartition of 10,000 map outputs, of an open shuffle that has read it."""

KEYS_AGAINST_LANCE = Target(at_most=2.5), Target(at_most=2), Target(at_most=0.8)
"""Processor time of 100 keys, of one key, and of one key in a new process, against Lance with a
BTREE index."""

READ_AFTER_APPENDS = Target(at_most=1.2)
"""Processor time of reading all rows of many small appends, against Lance and Delta."""

MERGE_OF_APPENDS = Target(at_most=1.6)
"""Processor time of merging them, against what Lance and Delta take to compact theirs."""

MASK_AGAINST_LANCE = Target(at_most=4)
"""Processor time of a deletion of few keys with a mask, against Lance's, which writes row numbers
without asking where rows of a key can be."""

ERASE_AGAINST_DELTA = Target(at_most=1.2)
"""Processor time of a deletion of few keys that writes files again, against Delta's, which writes
those of the keys' buckets."""

MASKED_READ = Target(at_most=1.05)
"""Processor time of reading all rows that masks left of a version, against those before."""

GOAL = Target(at_most=1)
"""What takes milliseconds, against those it may take."""

COUNT_ROWS = Target(at_most=2)
"""Time of ``count_rows`` of an open shuffle, against PyArrow's of a Parquet file."""

COUNT_OF_ENGINES = Target(at_most=1.5)
"""Time of ``count(*)`` of DuckDB and Polars, which read a column for it, against PyArrow reading
one of a Parquet file."""

TWO_TARGETS_AGAINST_ONE = {"dataset": Target(at_most=1.8), "DataFrame": Target(at_most=1.3)}
"""Processor time of two targets in one pass, against the mean of each alone."""

EPOCH_AGAINST_PEERS = Target(at_least=1)
"""Speed of an epoch as tensors, against Parquet's row groups, Lance's sampler and MDS."""

EPOCH_DISTANCE = Target(at_most=1.02)
"""Distance of the labels of a batch from those of all rows, against a random permutation."""

LANE_AGAINST_PARQUET = Target(at_least=5)
"""Speed of ``write_shuffle`` of Parquet files, against Spark reading, repartitioning and writing
them."""

JOIN_AGAINST_SQL = Target(at_least=2)
"""Speed of writing two shuffles from Parquet and joining them, against Spark's sort-merge join."""

KEPT_JOIN_AGAINST_SQL = Target(at_least=4)
"""Speed of joining shuffles that are kept, against Spark's sort-merge join of the tables."""

OTHER_N_AGAINST_SQL = Target(at_least=2.5)
"""The same of shuffles with n and with 1.5 n subpartitions, read by n / 2."""

OTHER_N_AGAINST_SAME = Target(at_most=1.3)
"""Time of that join, against one of shuffles that both have n."""

LONGEST_AGAINST_MEAN = Target(at_most=1.3)
"""Processor time of the longest task of a join, against the mean, where one key has half of the
rows and its subpartition, one region, is read in pieces."""

JOIN_AGAINST_DUCKDB = Target(at_most=2)
"""Time of a join of kept shuffles without Spark, against DuckDB from Parquet, both on two cores."""

DUCKDB_OF_OURS = Target(at_most=1.2)
"""Time of DuckDB's join of two shuffles as data sets, against its join of Parquet files."""

AGGREGATE_AGAINST_APPLY = Target(at_least=5)
"""Speed of ``aggregate`` of a kept shuffle, against ``groupBy(k).applyInArrow``."""

GROUPS_AGAINST_APPLY = Target(at_least=3)
"""Speed of ``map_groups`` of a kept shuffle, against ``groupBy(k).applyInPandas`` of Parquet."""

QUERIES_AGAINST_SQL = Target(at_least=2)
"""Speed of TPC-H queries from kept shuffles, against Spark SQL from Parquet."""

PLANNER_AGAINST_PARQUET = {
    "all columns": Target(at_least=1.6),
    "all columns hashed": Target(at_least=1.6),
    "two columns": Target(at_least=2),
    "TPC-H Q1": Target(at_least=1.8),
    "group by the key": Target(at_least=2.8),
    "join of two shuffles": Target(at_least=2.7),
    "count(*)": Target(at_least=3.6),
    "max of a column": Target(at_least=3.6),
    "one key": Target(at_least=7),
    "join with few rows": Target(at_least=4),
}
"""Speed of plain SQL by the planner's reader, against Parquet of one file a subpartition."""

WRITE_AND_JOINS_AGAINST_PARQUET = {
    "Parquet": Target(at_least=2),
    "plain Parquet": Target(at_least=1.3),
}
"""Speed of a write of two tables and three joins in SQL, against Parquet clustered by the key, and
as it comes."""

UPSERT_AGAINST_REWRITE = Target(at_most=0.1)
"""Time of an upsert of 1 % of the keys, against writing all rows again."""

UPSERT_AGAINST_PEERS = Target(at_most=1)
"""Time of an upsert, against Delta's ``MERGE`` and Lance's ``merge_insert``."""

RESCALE = Target(at_most=1)
"""Time of a rescale, against an append of one row."""

READ_AFTER_RESCALE = Target(at_most=1.5)
"""Time of reading all rows after a rescale, before a merge, against those of one number."""

SINCE_AGAINST_ALL = {500: Target(at_most=0.03), 50: Target(at_most=0.04)}
"""Time of ``map_groups(since="last")`` where 1 % of the keys changed, against all groups, by rows
of a key."""

SINCE_AGAINST_APPLY = Target(at_least=10)
"""Speed of the same in Spark, against ``applyInPandas`` of all groups of a bucketed table."""

ASOF_AGAINST_PARQUET = Target(at_least=8)
"""Processor time of Spark's ways from Parquet to a training set, against ours."""

ASOF_AGAINST_BUCKETED = Target(at_least=5)
"""The same, of Spark's ways from bucketed, sorted tables."""

ASOF_AGAINST_DUCKDB = Target(at_least=1.5)
"""The same in one process, of DuckDB's ``ASOF JOIN`` from Parquet."""

READ_AFTER_UPSERTS = Target(at_most=1.3)
"""Time of a read of all rows after 30 upserts of 1 %, against the read before."""

READ_AFTER_MERGE = Target(at_most=1)
"""Time of a read of all rows after these and a merge by subpartition, against the read before."""

FILTER_AGAINST_WHERE = Target(at_least=5)
"""Speed of ``select(filter=)`` that keeps 1 % of the rows, against reading and filtering."""

READ_AGAINST_PARQUET = Target(at_most=1)
"""Time of a coalesced read, against ``spark.read.parquet`` of the same rows."""

ROUND_TRIP_AGAINST_SHUFFLE = Target(at_most=1.5)
"""Time of a write and a read of all of it, against Spark's own ``repartition(n, key)`` -> noop."""

MERGE = Target(at_most=2)
"""Time of a merge by subpartition, against the write of the same rows by the lane."""

ONE_MERGED = Target(at_most=1)
"""Time of one subpartition of an open shuffle that was merged by subpartition, against 10 ms."""

DAY_TIME = Target(at_most=0.1)
"""Time of reading one day of thirty, against all days."""

DAY_BYTES = Target(at_most=0.05)
"""Bytes read for one day of thirty, against all days."""

DAY_AGAINST_PARQUET = Target(at_least=1)
"""Speed of reading one day of thirty, against ``pyarrow.dataset`` on Parquet files of each day."""

KEY_AGAINST_PARQUET = Target(at_least=10)
"""Speed of reading the rows of one key, against ``pyarrow.dataset`` on the same files."""

WITHIN_LIMIT = Target(at_most=1)
"""Peak RSS, against base + 1.25 x sort buffer + 64 MiB + the largest batch; open files; memory
that a read takes, against what its options promise."""

MAX_OPEN_FILES = 15
"""Files a map task may have open at the same time."""

BUFFER_AGAINST_ALLOWED = Target(at_most=1)
"""Processor time of a buffered row, against 100 ns and that of a gather of all rows."""


def rows_downstream(updates: int) -> Target:
    """Rows that come out of a buffered output, against those that go in."""
    return Target(at_most=1 / updates)


def combined_time(repeats: int) -> Target | None:
    """Time of a combined write, against that of the rows as they are, by rows of each key."""
    if repeats == 1:
        return Target(at_most=1.05)
    return Target(at_most=0.5) if repeats >= 10 else None


def combined_bytes(repeats: int) -> Target | None:
    """Bytes of a combined write, against those of the rows as they are, by rows of each key."""
    return Target(at_most=0.5) if repeats >= 10 else None
