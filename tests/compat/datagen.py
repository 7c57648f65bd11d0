"""Writes the golden shuffles of the format version this code writes.

``python -m tests.compat.datagen`` writes those of ``tests/compat/v<version>/`` that are not there.
Ids, times and counters are fixed, so that what changes in a diff is the format. Never write one
anew that was released: it stands for what is on users' disks, also when the code of today would
write other bytes.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import random
import secrets
import shutil
import tempfile
import time
import uuid
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa

from arrow_format import (
    BROADCAST,
    BroadcastPartitioner,
    ColumnPartitioner,
    HashPartitioner,
    MergePolicy,
    RoundRobinPartitioner,
    WriteOptions,
    collect_garbage,
    merge_shuffle,
)
from arrow_format.arrow_types import data_schema, normalise
from arrow_format.commit import commit_job
from arrow_format.commit_log import CommitLog
from arrow_format.consumers import ConsumerRegistry
from arrow_format.job import begin_job, run_map_task
from arrow_format.log_record import Fence
from arrow_format.model import FORMAT_VERSION, Transaction
from arrow_format.pending_flush import flush_pending
from arrow_format.result_keeping import release_consumed
from arrow_format.storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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

    def __init__(
        self,
        name: str,
        n: int,
        partitioner: Partitioner,
        sort_by: tuple[str, ...] = (),
        **options: object,
    ) -> None:
        self.directory = HERE / name
        self.n = n
        self.partitioner = partitioner
        self.sort_by = sort_by
        self.options = WriteOptions(sync=False, **options)
        self.rows: list[pa.Table] = []

    def commit(
        self,
        mode: str,
        tasks: Sequence[pa.Table],
        transaction: Transaction | None = None,
        *,
        pending: bool = False,
    ) -> None:
        """Commit a map output per table, and write down what a reader must find."""
        job = begin_job(
            str(self.directory / "shuffle"),
            tasks[0].schema,
            num_subpartitions=self.n,
            partitioner=self.partitioner,
            sort_by=self.sort_by,
            options=self.options,
        )
        statuses = [run_map_task(job, i, 0, task.to_batches()) for i, task in enumerate(tasks)]
        receipt = commit_job(job, statuses, mode=mode, transaction=transaction, pending=pending)
        if pending:
            return
        if mode == "overwrite":
            self.rows = []
        self.expect(receipt.version, tasks)

    def expect(self, version: int, tasks: Sequence[pa.Table]) -> None:
        """Write down that a version has the rows of the one before, and these behind them."""
        schema = data_schema(tasks[0].schema)
        with_ids = schema.append(pa.field("_subpartition", pa.int32(), nullable=False))
        for number, task in enumerate(tasks):
            assign = self.partitioner.bind(schema, self.n, number)
            for batch in task.to_batches():
                plain = normalise(batch, schema)
                ids = [[*range(self.n)] if i == BROADCAST else [i] for i in assign(plain).tolist()]
                for i, readers in enumerate(ids):
                    for reader in readers:
                        columns = [*plain.slice(i, 1).columns, pa.array([reader], pa.int32())]
                        self.rows.append(pa.Table.from_arrays(columns, schema=with_ids))
        # By subpartition, and within one as the rows came: `sorted` is stable, `sort_by` is not.
        rows = pa.concat_tables([with_ids.empty_table(), *self.rows])
        keys = zip(
            *(rows[name].to_pylist() for name in ("_subpartition", *self.sort_by)), strict=True
        )
        order = sorted(range(len(rows)), key=list(keys).__getitem__)
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


def regions(name: str, codec: str, chunk_bytes: int, **more: Any) -> None:
    golden = Golden(
        name,
        5,
        HashPartitioner("carrier"),
        codec=codec,
        sort_buffer_bytes=4_096,
        chunk_bytes=chunk_bytes,
        **more,
    )
    golden.commit("errorifexists", [flights(0, 60), flights(60, 60)])


def versions() -> None:
    golden = Golden("versions", 3, RoundRobinPartitioner())
    empty = flights(0, 0)
    golden.commit("errorifexists", [flights(0, 4)])
    golden.commit("append", [empty, flights(4, 3)])
    golden.commit("overwrite", [flights(100, 5)])
    golden.commit("append", [flights(105, 2)])


def types(name: str) -> None:
    Golden(name, 3, ColumnPartitioner("p")).commit("errorifexists", [every_type()])


def many_subpartitions() -> None:
    golden = Golden("many_subpartitions", 300_000, HashPartitioner("id", "carrier"))
    golden.commit("errorifexists", [flights(0, 20)])


def noise(name: str, chunk_bytes: int, size: int) -> None:
    golden = Golden(name, 2, HashPartitioner("b"), codec_level=-7, chunk_bytes=chunk_bytes)
    random_bytes = random.Random(1).randbytes(size)
    golden.commit("errorifexists", [pa.table({"b": [random_bytes, bytes(size), bytes(3)]})])


def no_rows() -> None:
    Golden("no_rows", 3, HashPartitioner("id")).commit("errorifexists", [flights(0, 0)])


def broadcast() -> None:
    golden = Golden("broadcast", 3, BroadcastPartitioner())
    golden.commit("errorifexists", [flights(0, 9), flights(9, 2)])


def merged() -> None:
    golden = Golden("merged", 3, HashPartitioner("id"))
    for mode in ("errorifexists", "append"):
        start = 40 * len(golden.rows)
        golden.commit(mode, [flights(start, 20), flights(start + 20, 20)])
    for version, rewrite in ((3, "never"), (4, "always")):
        merge_shuffle(
            golden.directory / "shuffle",
            policy=MergePolicy(rewrite=rewrite),
            options=golden.options,
        )
        shutil.copy(
            golden.directory / "expected-2.arrow", golden.directory / f"expected-{version}.arrow"
        )


def collected() -> None:
    """Two versions, a job that died and is fenced as number 3, version 4; all before it expired."""
    golden = Golden("collected", 3, HashPartitioner("id"))
    golden.commit("errorifexists", [flights(0, 20)])
    golden.commit("append", [flights(20, 20), flights(40, 20)])
    shuffle = golden.directory / "shuffle"
    job = begin_job(
        str(shuffle), flights(0, 1).schema, num_subpartitions=3, partitioner=golden.partitioner
    )
    run_map_task(job, 0, 0, flights(0, 5).to_batches())
    CommitLog(job.storage).append(
        lambda _: Fence(0, uuid.uuid4().hex, time.time_ns() // 1_000_000, (job.job_id,)), sync=False
    )
    golden.commit("append", [flights(60, 20)])
    for path in shuffle.rglob("*"):
        os.utime(path, (0, 0))  # the clock that stands still is behind that of the disk
    collect_garbage(shuffle, retention=dt.timedelta(0))
    for version in (1, 2):
        (golden.directory / f"expected-{version}.arrow").unlink()


def transactions() -> None:
    """Batches 0 and 1 of a query, a plain append, batch 2; the checkpoint stands for the first."""
    golden = Golden("transactions", 3, HashPartitioner("id"))
    golden.commit("errorifexists", [flights(0, 20)], Transaction("a-query", 0))
    golden.commit("append", [flights(20, 20)], Transaction("a-query", 1))
    golden.commit("append", [flights(40, 5)])
    CommitLog(open_storage(str(golden.directory / "shuffle"))).put_checkpoint(3, sync=False)
    golden.commit("append", [flights(45, 20)], Transaction("a-query", 2))


def results() -> None:
    """A bounded result, of whose two versions one is consumed and released; then two that wait."""
    golden = Golden(
        "results", 3, HashPartitioner("id"), result_type="PIPELINED_BOUNDED",
        max_unconsumed_versions=2, max_unconsumed_bytes=1 << 20,
    )  # fmt: skip
    golden.commit("errorifexists", [flights(0, 10)])
    consumed = len(golden.rows)
    golden.commit("append", [flights(10, 5)])
    golden.rows = golden.rows[consumed:]
    storage = open_storage(str(golden.directory / "shuffle"))
    ConsumerRegistry(storage).advance("a", 1)
    release_consumed(storage, sync=False)
    golden.expect(3, [flights(0, 0)])
    waiting = [flights(20, 5), flights(22, 5)]
    for number, rows in enumerate(waiting):
        golden.commit("append", [rows], Transaction("a-query", number), pending=True)
    golden.expect(6, [pa.concat_tables([waiting[0].slice(0, 2), waiting[1]])])
    flush_pending(storage, options=WriteOptions(sync=False))


def waiting() -> None:
    """Batches of which two were flushed and one is pending still, as a checkpoint says."""
    golden = Golden("waiting", 3, HashPartitioner("id"))
    golden.commit("errorifexists", [flights(0, 10)])
    held = [flights(20, 5), flights(22, 5), flights(30, 4)]
    for number, rows in enumerate(held[:2]):
        golden.commit("append", [rows], Transaction("a-query", number), pending=True)
    golden.expect(4, [pa.concat_tables([held[0].slice(0, 2), held[1]])])
    storage = open_storage(str(golden.directory / "shuffle"))
    flush_pending(storage, options=WriteOptions(sync=False))
    golden.commit("append", [held[2]], Transaction("a-query", 2), pending=True)
    CommitLog(storage).put_checkpoint(5, sync=False)
    golden.commit("append", [flights(40, 5)])


ALL: tuple[tuple[int, Callable[[], None]], ...] = (
    # The first chunks of codec zstd were Arrow messages. With so few bytes for each column they
    # still are.
    (1_000, lambda: regions("regions_zstd", "zstd", 256)),
    (2_000, lambda: regions("regions_none", "none", 256)),
    (3_000, versions),
    (4_000, lambda: types("types")),
    (5_000, many_subpartitions),
    (6_000, lambda: noise("noise", 1, 4_096)),
    (7_000, no_rows),
    # Since rows are packed.
    (8_000, lambda: regions("regions_packed", "zstd", 16 << 10)),
    (9_000, lambda: types("types_packed")),
    (10_000, lambda: noise("noise_packed", 4_096, 10_000)),
    (11_000, broadcast),
    (12_000, lambda: regions("regions_sorted", "none", 256, sort_by=("id",))),
    (13_000, merged),
    (14_000, collected),
    (15_000, transactions),
    (16_000, results),
    (17_000, waiting),
)


def main() -> None:
    """Write the golden shuffles of this format version that are not there."""
    there = {path.name for path in HERE.iterdir()} if HERE.exists() else set()
    for seed, write in ALL:
        with fixed_ids(seed), tempfile.TemporaryDirectory() as scratch:
            with mock.patch(f"{__name__}.HERE", Path(scratch)):
                write()
            (made,) = Path(scratch).iterdir()
            if made.name not in there:
                shutil.copytree(made, HERE / made.name)


if __name__ == "__main__":
    main()
