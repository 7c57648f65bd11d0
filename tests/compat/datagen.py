"""Writes the golden shuffles of the format version this code writes.

``python -m tests.compat.datagen`` writes ``tests/compat/v<version>/`` anew. Ids, times and counters
are fixed, so that what changes in a diff is the format. Never regenerate the files of a version
that was released: they stand for what is on users' disks.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
import secrets
import shutil
import time
import uuid
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pyarrow as pa

from arrow_format import ColumnPartitioner, HashPartitioner, RoundRobinPartitioner, WriteOptions
from arrow_format.arrow_types import data_schema, normalise
from arrow_format.commit import commit_job
from arrow_format.job import begin_job, run_map_task
from arrow_format.model import FORMAT_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrow_format import Partitioner

HERE = Path(__file__).parent / f"v{FORMAT_VERSION}"


@contextmanager
def fixed_ids(seed: int) -> Iterator[None]:
    """Random ids count up from ``seed`` and clocks stand still."""
    numbers = itertools.count(seed)
    with ExitStack() as stack:
        for module, name, replacement in (
            (uuid, "uuid4", lambda: uuid.UUID(int=next(numbers))),
            (secrets, "token_hex", lambda length: f"{next(numbers):0{2 * length}x}"),
            (time, "time_ns", lambda: 1_700_000_000_000_000_000),
            (time, "perf_counter_ns", lambda: 0),
        ):
            stack.enter_context(mock.patch.object(module, name, replacement))
        yield


class Golden:
    """One golden shuffle and, beside it, the rows of each version as they must be read."""

    def __init__(self, name: str, n: int, partitioner: Partitioner, **options: object) -> None:
        self.directory = HERE / name
        self.n = n
        self.partitioner = partitioner
        self.options = WriteOptions(sync=False, **options)
        self.rows: list[pa.Table] = []

    def commit(self, mode: str, tasks: Sequence[pa.Table]) -> None:
        """Commit a map output per table, and write down what a reader must find."""
        schema = data_schema(tasks[0].schema)
        job = begin_job(
            str(self.directory / "shuffle"),
            tasks[0].schema,
            num_subpartitions=self.n,
            partitioner=self.partitioner,
            options=self.options,
        )
        statuses = [run_map_task(job, i, 0, task.to_batches()) for i, task in enumerate(tasks)]
        version = commit_job(job, statuses, mode=mode).version
        if mode == "overwrite":
            self.rows = []
        with_ids = schema.append(pa.field("_subpartition", pa.int32(), nullable=False))
        for number, task in enumerate(tasks):
            assign = self.partitioner.bind(schema, self.n, number)
            for batch in task.to_batches():
                plain = normalise(batch, schema)
                ids = pa.array(assign(plain), pa.int32())
                columns = [*plain.columns, ids]
                self.rows.append(pa.Table.from_arrays(columns, schema=with_ids))
        # By subpartition, and within one as the rows came: `sorted` is stable, `sort_by` is not.
        rows = pa.concat_tables([with_ids.empty_table(), *self.rows])
        order = sorted(range(len(rows)), key=rows["_subpartition"].to_pylist().__getitem__)
        expected = rows.take(pa.array(order, pa.int64())).combine_chunks()
        with pa.ipc.new_file(self.directory / f"expected-{version}.arrow", expected.schema) as out:
            out.write_table(expected)


def flights(start: int, rows: int) -> pa.Table:
    """Rows with a skewed key, nulls, repeating and empty text; in batches of seven."""
    made = random.Random(start)
    numbers = range(start, start + rows)
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "carrier": pa.array(
                [made.choice(["UA", "UA", "UA", "B6", "DL", "", None]) for _ in numbers],
                pa.string(),
            ),
            "delay": pa.array([None if i % 9 == 0 else i * 0.25 for i in numbers], pa.float64()),
        }
    )
    return pa.Table.from_batches(table.to_batches(max_chunksize=7), table.schema)


def every_type() -> pa.Table:
    """A column of every stored type, with nulls."""
    when = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)
    columns = {
        "p": pa.array([2, 0, 2, 1, 0], pa.int32()),
        "bool": pa.array([True, None, False, True, None]),
        "int8": pa.array([-128, 127, None, 0, 1], pa.int8()),
        "int16": pa.array([-(2**15), 2**15 - 1, None, 0, 1], pa.int16()),
        "int64": pa.array([-(2**63), 2**63 - 1, None, 0, 1], pa.int64()),
        "uint8": pa.array([255, 0, None, 7, 8], pa.uint8()),
        "float32": pa.array([0.1, -0.0, None, float("inf"), 1e-45], pa.float32()),
        "float64": pa.array([0.1, -0.0, None, float("-inf"), 5e-324], pa.float64()),
        "decimal": pa.array([Decimal("0.01"), None, Decimal("-9.99"), Decimal(0), Decimal(1)],
                            pa.decimal128(38, 10)),
        "date": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31), dt.date(1970, 1, 1),
                          None]),
        "timestamp": pa.array([when, None, when, when, None], pa.timestamp("us")),
        "instant": pa.array([when, None, when, when, None], pa.timestamp("us", tz="UTC")),
        "duration": pa.array([-1, None, 0, 1, 2**40], pa.duration("us")),
        "string": pa.array(["", None, "é", "日本語 🦆", "x" * 300]),
        "binary": pa.array([b"", None, b"\xff", b"\0", b"x"]),
        "fixed": pa.array([b"abcd", None, b"\0\0\0\0", b"efgh", b"ijkl"], pa.binary(4)),
        "list": pa.array([[1, None], None, [], [3], [4, 5, 6]], pa.list_(pa.int32())),
        "struct": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}, {"a": 2, "b": []},
                            {"a": 3, "b": [None]}]),
        "map": pa.array([[("k", 1)], None, [], [("a", None), ("b", 2)], [("", 0)]],
                        pa.map_(pa.string(), pa.int64())),
        "null": pa.nulls(5),
    }  # fmt: skip
    return pa.table(columns)


def main() -> None:
    """Write all golden shuffles of this format version."""
    shutil.rmtree(HERE, ignore_errors=True)
    for seed, codec in ((1_000, "zstd"), (2_000, "none")):
        with fixed_ids(seed):
            golden = Golden(
                f"regions_{codec}",
                5,
                HashPartitioner("carrier"),
                codec=codec,
                sort_buffer_bytes=4_096,
                chunk_bytes=256,
            )
            golden.commit("errorifexists", [flights(0, 60), flights(60, 60)])
    with fixed_ids(3_000):
        golden = Golden("versions", 3, RoundRobinPartitioner())
        empty = flights(0, 0)
        golden.commit("errorifexists", [flights(0, 4)])
        golden.commit("append", [empty, flights(4, 3)])
        golden.commit("overwrite", [flights(100, 5)])
        golden.commit("append", [flights(105, 2)])
    with fixed_ids(4_000):
        golden = Golden("types", 3, ColumnPartitioner("p"))
        golden.commit("errorifexists", [every_type()])
    with fixed_ids(5_000):
        golden = Golden("many_subpartitions", 300_000, HashPartitioner("id", "carrier"))
        golden.commit("errorifexists", [flights(0, 20)])
    with fixed_ids(6_000):
        golden = Golden("noise", 2, HashPartitioner("b"), codec_level=-7, chunk_bytes=1)
        noise = random.Random(1).randbytes(4_096)
        golden.commit("errorifexists", [pa.table({"b": [noise, bytes(4_096), bytes(3)]})])
    with fixed_ids(7_000):
        golden = Golden("no_rows", 3, HashPartitioner("id"))
        golden.commit("errorifexists", [flights(0, 0)])


if __name__ == "__main__":
    main()
