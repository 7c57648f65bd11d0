"""Writes the golden shuffles of the format version this code writes.

``python -m tests.compat.datagen`` writes those of ``tests/compat/v<version>/`` that are not there.
Ids, times and counters are fixed, so that what changes in a diff is the format. Never write one
anew that was released: it stands for what is on users' disks, also when the code of today would
write other bytes.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import re
import shutil
import tempfile
import uuid
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa

from arrow_format import (
    BroadcastPartitioner,
    ColumnPartitioner,
    HashPartitioner,
    RangePartitioner,
    RoundRobinPartitioner,
    WriteOptions,
    collect_garbage,
    rollback_shuffle,
)
from arrow_format.jobs import garbage
from arrow_format.jobs.alter import alter_columns
from arrow_format.jobs.delete_rows import delete_rows
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.release import DueRelease
from arrow_format.jobs.rescale import rescale_shuffle
from arrow_format.jobs.retention import release_consumed
from arrow_format.jobs.tags import tag_shuffle
from arrow_format.log.commit_log import CommitLog, draft
from arrow_format.log.entry import FENCE
from arrow_format.log.names import CHECKPOINT_INTERVAL, SEGMENT_ENTRIES, expired_path
from arrow_format.model import Transaction
from arrow_format.storage.open import open_storage
from arrow_format.streaming.flush_pending import flush_pending
from tests.compat import golden as golden_module
from tests.compat import later, rare, schemas
from tests.compat.contradictions import RULES, contradictions
from tests.compat.golden import ELSEWHERE, Golden, fixed_ids, flights, moved
from tests.compat.kit import DIGESTS, digests
from tests.compat.rare import put_range
from tests.support.consumers import ConsumerRegistry
from tests.support.hostile import forged_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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


def every_other_type() -> pa.Table:
    """A column of every stored type that :func:`every_type` lacks, with nulls."""
    day = dt.time(23, 59, 59)
    columns: dict[str, tuple[pa.DataType, list[Any]]] = {
        "uint16": (pa.uint16(), [2**16 - 1, 0, None, 7, 8]),
        "uint32": (pa.uint32(), [2**32 - 1, 0, None, 7, 8]),
        "uint64": (pa.uint64(), [2**64 - 1, 2**64 - 200, None, 2**63, 2**63 + 1]),
        "float16": (pa.float16(), [np.float16(0.5), np.float16(-0.0), None,
                                   np.float16("inf"), np.float16(6e-8)]),
        "decimal32": (pa.decimal32(9, 2), [Decimal("9999999.99"), None, Decimal("-9.99"),
                                           Decimal(0), Decimal(1)]),
        "decimal64": (pa.decimal64(18, 0), [Decimal(10**18 - 1), None, Decimal(1 - 10**18),
                                            Decimal(0), Decimal(1)]),
        "wide_decimal": (pa.decimal128(38, 0), [Decimal(10**38 - 1), None, Decimal(-1),
                                                Decimal(0), Decimal(1)]),
        "decimal256": (pa.decimal256(76, 3), [Decimal(10**72), None, Decimal("-0.001"),
                                              Decimal(0), Decimal(1)]),
        "date64": (pa.date64(), [dt.date(1, 1, 1), None, dt.date(9999, 12, 31),
                                 dt.date(1970, 1, 1), None]),
        "time32_s": (pa.time32("s"), [day, None, dt.time(0), dt.time(1), dt.time(2)]),
        "time32_ms": (pa.time32("ms"), [day, None, dt.time(0), dt.time(1), dt.time(2)]),
        "time64_us": (pa.time64("us"), [day, None, dt.time(0), dt.time(1), dt.time(2)]),
        "time64_ns": (pa.time64("ns"), [1, None, 86_399_999_999_999, 0, 2]),
        "timestamp_s": (pa.timestamp("s"), [-1, None, 2**40, 0, 1]),
        "timestamp_ms": (pa.timestamp("ms", "UTC"), [-1, None, 2**40, 0, 1]),
        "timestamp_ns": (pa.timestamp("ns", "Europe/Berlin"), [-1, None, 2**62, 0, 1]),
        "duration_ns": (pa.duration("ns"), [-1, None, 2**62, 0, 1]),
        "interval": (pa.month_day_nano_interval(), [(-1, 2, -3), None, (0, 0, 0), (1, 1, 1),
                                                    (2**31 - 1, -(2**31), 2**63 - 1)]),
        "fixed_list": (pa.list_(pa.int16(), 2), [[1, None], None, [-1, 300], [3, 4], [5, 6]]),
        "nested_fixed_list": (pa.list_(pa.list_(pa.float32(), 2), 1),
                              [[[0.5, 1]], None, [None], [[2, 3]], [[4, None]]]),
        "struct_of_lists": (pa.struct([("x", pa.list_(pa.uint8(), 1)), ("y", pa.float16())]),
                            [{"x": [1], "y": None}, None, {"x": None, "y": np.float16(1)},
                             {"x": [None], "y": None}, {"x": [255], "y": np.float16(2)}]),
    }  # fmt: skip
    arrays = {name: pa.array(values, type_) for name, (type_, values) in columns.items()}
    return pa.table({"p": pa.array([2, 0, 2, 1, 0], pa.int32()), **arrays})


def regions(name: str, codec: str, chunk_bytes: int, **more: Any) -> None:
    golden = Golden(
        name, 5, HashPartitioner("carrier"), codec=codec, sort_buffer_bytes=4_096,
        chunk_bytes=chunk_bytes, **more,
    )  # fmt: skip
    golden.commit("errorifexists", [flights(0, 60), flights(60, 60)])


def versions() -> None:
    golden = Golden("versions", 3, RoundRobinPartitioner())
    empty = flights(0, 0)
    golden.commit("errorifexists", [flights(0, 4)])
    golden.commit("append", [empty, flights(4, 3)])
    golden.commit("overwrite", [flights(100, 5)])
    golden.commit("append", [flights(105, 2)])


def wide() -> None:
    """Frames of one column and of many, which do not lie side by side."""
    golden = Golden("wide", 2, RoundRobinPartitioner())
    made = random.Random(8)
    columns = {
        f"c{i}": pa.array([made.random() for _ in range(1_100)])
        if i in (2, 9)
        else pa.array([j % i for j in range(1_100)], pa.int8())
        for i in range(1, 15)
    }
    golden.commit("errorifexists", [pa.table(columns)])


def types(name: str, table: pa.Table, **options: Any) -> None:
    golden = Golden(name, 3, ColumnPartitioner("p"), **options)
    golden.commit("errorifexists", [table])


def many_subpartitions() -> None:
    golden = Golden("many_subpartitions", 300_000, HashPartitioner("id", "carrier"))
    golden.commit("errorifexists", [flights(0, 20)])


def many_columns() -> None:
    """Frames of many columns each, 300 together."""
    golden = Golden("many_columns", 4, HashPartitioner("c0"), statistics=("c0",))
    columns = {f"c{i}": pa.array([(i * row) % 251 for row in range(40)]) for i in range(300)}
    golden.commit("errorifexists", [pa.table(columns)])


def blocks() -> None:
    """An index of several blocks: 20,000 subpartitions, of which most have a row."""
    golden = Golden("blocks", 20_000, HashPartitioner("id"), chunk_bytes=4 << 10)
    golden.commit("errorifexists", [pa.table({"id": pa.array(range(30_000), pa.int32())})])


def noise() -> None:
    """A frame that is larger than its content, and one that is much smaller."""
    golden = Golden("noise", 2, HashPartitioner("b"), codec_level=-7, chunk_bytes=4_096)
    random_bytes = random.Random(1).randbytes(10_000)
    golden.commit("errorifexists", [pa.table({"b": [random_bytes, bytes(10_000), bytes(3)]})])


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
    golden.merge("never")
    golden.merge("always")


def masks() -> None:
    """Masks inside of entries and in an object, second ones, and a merge of what is left."""
    golden = Golden("masks", 3, HashPartitioner("id"), sort_buffer_bytes=4096, chunk_bytes=256)
    for mode in ("errorifexists", "append"):
        start = 60 * len(golden.rows)
        golden.commit(mode, [flights(start, 30), flights(start + 30, 30)])
    ids = [row["id"][0].as_py() for row in golden.rows]

    def mask(keys: list[Any], version: int, max_inside_bytes: int) -> None:
        with mock.patch("arrow_format.jobs.mask_rows.MAX_INSIDE_BYTES", max_inside_bytes):
            delete_rows(golden.path, {"id": keys}, erase=False, options=golden.options)
        golden.rows = [row for row in golden.rows if row["id"][0].as_py() not in keys]
        golden.expect(version, [flights(0, 0)])

    mask(ids[::7], 3, 4096)
    mask(ids[1:50:9], 4, 0)
    golden.merge("always")
    mask(ids[3:80:11], 6, 0)


def large_mask() -> None:
    """A mask of several pieces that is larger than its entry, so that it is an object."""
    golden = Golden("large_mask", 1, HashPartitioner("id"))
    ids = pa.table({"id": pa.array(range(70_000), pa.int32())})
    golden.commit("errorifexists", [ids])
    is_gone = np.random.default_rng(9).random(len(ids)) < 0.5
    gone = ids["id"].filter(pa.array(is_gone)).to_pylist()
    delete_rows(golden.path, {"id": gone}, erase=False, options=golden.options)
    golden.rows = [rows.filter(pa.array(~is_gone)) for rows in golden.rows]
    golden.expect(2, [ids.slice(0, 0)])


def upsert() -> None:
    """Rows in the place of others: masks and new rows in one entry."""
    golden = Golden(
        "upsert", 3, HashPartitioner("id"), unique=("id",), sort_buffer_bytes=4096, chunk_bytes=256
    )
    golden.commit("errorifexists", [flights(0, 30), flights(30, 30)])
    ids = [*range(2, 60, 5), 70]
    golden.rows = [row for row in golden.rows if row["id"][0].as_py() not in ids]
    delays = [None, *map(float, ids[1:])]
    golden.commit("upsert", [pa.table({"id": ids, "carrier": ["new"] * len(ids), "delay": delays})])


def sequence() -> None:
    """Changes in any order: masks on rows of the entry that adds them, of which none may be left.

    An overwrite, an append whose rows are all late, and an upsert have such masks.
    """
    golden = Golden(
        "sequence", 3, HashPartitioner("id"), unique=("id",), sequence_by="rev", chunk_bytes=64
    )

    def changes(ids: Sequence[int], revisions: Sequence[int]) -> pa.Table:
        return pa.table({"id": pa.array(ids, pa.int64()), "rev": pa.array(revisions, pa.int64())})

    older, newer = changes(range(10), [1] * 10), changes(range(12), [3] * 12)
    golden.commit("upsert", [older, newer], left=[newer])
    golden.commit("upsert", [changes(range(4), [2] * 4)], left=[older[:0]])
    golden.rows = [row for row in golden.rows if row["id"][0].as_py() != 2]
    mixed = changes([2, 3, 20, 20], [5, 1, 7, 6])
    golden.commit("upsert", [mixed], left=[mixed.take([0, 2])])


def scaled() -> None:
    """Another number of subpartitions: files of 8, of 12 and of 6 in one log.

    A deletion masks rows of files of two numbers, and merges place all rows again.
    """
    golden = Golden("scaled", 8, HashPartitioner("id"), chunk_bytes=256)
    golden.stored = 8
    golden.commit("errorifexists", [flights(0, 40), flights(40, 40)])
    rescale_shuffle(golden.path, 12)
    golden.divide(2, 4)
    golden.stored = 12
    golden.commit("append", [flights(80, 30)])
    golden.stored = 8  # it began before
    golden.commit("append", [flights(110, 10)])
    gone = list(range(0, 120, 7))
    deleted = delete_rows(golden.path, {"id": gone}, erase=False, options=golden.options)
    golden.rows = [row for row in golden.rows if row["id"][0].as_py() not in gone]
    golden.divide(deleted.version, 4)
    golden.merge("always")
    golden.rewritten(deleted.version + 1, 12)
    rescale_shuffle(golden.path, 6)
    golden.divide(deleted.version + 2, 6)
    golden.stored = 6
    golden.commit("append", [flights(120, 10)])
    golden.merge("always", "subpartition")


def tombstones() -> None:
    """Deletions in any order: in an overwrite, beside rows, alone, and joined by a merge.

    Their files lack columns of the rows, of which one is never null, and are in no order.
    """
    golden = Golden(
        "tombstones",
        3,
        HashPartitioner("id"),
        sort_by=("state",),
        unique=("id",),
        sequence_by="rev",
        chunk_bytes=64,
    )
    fields = [("id", pa.int64()), ("rev", pa.int64()), ("state", pa.string())]
    schema = pa.schema([pa.field(name, type_, nullable=False) for name, type_ in fields])
    kind = pa.field("op", pa.string(), nullable=False)

    def changes(*rows: tuple[str, int, int, str]) -> pa.Table:
        of_changes = pa.schema([kind, *schema])
        named = [dict(zip(of_changes.names, row, strict=True)) for row in rows]
        return pa.Table.from_pylist(named, of_changes)

    def commit(tasks: Sequence[pa.Table], left: Sequence[int]) -> None:
        """Commit tasks of which the rows of the first stay that are ``left``."""
        some = tasks[0].drop_columns(["op"]).take(pa.array(left, pa.int64()))
        golden.commit("upsert", tasks, left=[some], row_kind="op")

    new = [("c", i, 1, f"new {9 - i}") for i in range(10)]
    late = changes(("u", 3, 2, "late"))
    commit([changes(*new, ("d", 3, 4, "")), late], [0, 1, 2, *range(4, 10)])
    golden.rows = [row for row in golden.rows if row["id"][0].as_py() not in (4, 5, 6)]
    commit(
        [changes(("u", 6, 2, "paid"), ("d", 4, 2, ""), ("d", 5, 2, ""), ("u", 3, 3, "late"))], [0]
    )
    golden.merge("always")
    commit([changes(("u", 4, 1, "late"), ("u", 5, 3, "again"), ("d", 70, 5, ""))], [1])
    commit([changes(("d", 71, 5, ""))], [])


def statistics() -> None:
    """Bounds that are cut, absent, unknown of a part, and of none of the columns."""
    texts = ["a text of more than sixteen", "\U0010ffff" * 17, "é" * 16, None]
    tables = [
        pa.table({"id": pa.array(ids), "text": pa.array(texts[: len(ids)]), "x": pa.array(numbers)})
        for ids, numbers in (
            ([1, 2, 3, 4], [float("inf"), -0.0, None, 1.5]),
            ([5, 6], [1.0, float("-inf")]),
            ([7], [0.5]),
        )
    ]
    golden = Golden("statistics", 3, HashPartitioner("id"), chunk_bytes=1)
    for table, chosen in zip(tables, ("all", ("text",), ()), strict=True):
        golden.options = replace(golden.options, statistics=chosen)
        golden.commit("append", [table])
    golden.merge("never")


def collected() -> None:
    """Two versions, a job that died and is fenced as number 3, version 4; all before it expired."""
    golden = Golden("collected", 3, HashPartitioner("id"))
    golden.commit("errorifexists", [flights(0, 20)])
    golden.commit("append", [flights(20, 20), flights(40, 20)])
    shuffle = golden.path
    job = begin_job(
        str(shuffle), flights(0, 1).schema, num_subpartitions=3, partitioner=golden.partitioner
    )
    run_map_task(job, 0, 0, flights(0, 5).to_batches())
    CommitLog(job.storage).append(
        lambda view: draft(view, FENCE, gives_up=(job.job_id,)), sync=False
    )
    golden.commit("append", [flights(60, 20)])
    for path in shuffle.rglob("*"):
        os.utime(path, (0, 0))  # the clock that stands still is behind that of the disk
    collect_garbage(shuffle, retention=dt.timedelta(0))
    golden.refuses({1: "absent", 2: "absent", 3: "absent", 5: "absent"})


def transactions() -> None:
    """Batches 0 and 1 of a query with a checkpoint of both, a plain append, batch 2, a deletion."""
    golden = Golden("transactions", 3, HashPartitioner("id"))
    golden.commit("errorifexists", [flights(0, 20)], Transaction("a-query", 0))
    golden.commit("append", [flights(20, 20)], Transaction("a-query", 1))
    put_range(golden, 2)
    golden.commit("append", [flights(40, 5)])
    golden.commit("append", [flights(45, 20)], Transaction("a-query", 2))
    path, options = str(golden.path), golden.options
    keys = {"id": flights(50, 1)["id"].to_pylist()}
    delete_rows(path, keys, transaction=("forget", 1), options=options)
    golden.rows = [row for row in golden.rows if row["id"].to_pylist() != keys["id"]]
    golden.expect(5, [flights(0, 0)])
    golden.commit("append", [flights(50, 1)])
    delete_rows(path, {"id": [-1]}, transaction=("forget", 2), options=options)


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
    storage = open_storage(str(golden.path))
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
    storage = open_storage(str(golden.path))
    flush_pending(storage, options=WriteOptions(sync=False))
    golden.commit("append", [held[2]], Transaction("a-query", 2), pending=True)
    put_range(golden, 4)
    golden.commit("append", [flights(40, 5)])


def columns() -> None:
    """Columns that were renamed, dropped, added under the name of one that was, and widened."""
    golden = Golden("columns", 3, HashPartitioner("id"), statistics="all", schema_evolution=True)
    path = golden.path
    narrow = flights(0, 5)
    narrow = narrow.set_column(2, "delay", narrow["delay"].cast(pa.float32()))
    golden.commit("errorifexists", [narrow])
    golden.partitioner = HashPartitioner("number")
    names = {"id": "number", "carrier": "delay", "delay": "minutes"}

    def altered(change: Callable[[pa.Table], pa.Table], **how: Any) -> None:
        version = alter_columns(path, **how).version
        golden.rows = [change(rows) for rows in golden.rows]
        schema = golden.rows[0].schema
        golden.expect(version, [schema.remove(len(schema) - 1).empty_table()])

    altered(lambda rows: rows.rename_columns([*names.values(), "_subpartition"]), rename=names)
    altered(lambda rows: rows.drop_columns("delay"), drop=["delay"])
    later = flights(5, 4).rename_columns(["number", "minutes", "delay"])
    later = later.set_column(1, "minutes", flights(5, 4)["delay"])
    later = later.set_column(2, "delay", pa.array([1, None, 3, 4], pa.int8()))
    schema = later.schema.append(pa.field("_subpartition", pa.int32(), nullable=False))
    golden.rows = [
        pa.Table.from_arrays(
            [rows[0], rows[1].cast(pa.float64()), pa.nulls(len(rows), pa.int8()), rows[2]],
            schema=schema,
        )
        for rows in golden.rows
    ]
    golden.commit("append", [later])
    golden.merge("never")
    rollback_shuffle(path, 2)
    golden.repeat(6, 2)


def ranges() -> None:
    """Ranges of two keys, one descending, appended to and merged by subpartition."""
    bounds = [("UA", 30), ("DL", 0), ("B6", 10)]
    keys = [("carrier", "descending"), ("id", "ascending")]
    golden = Golden("ranges", 4, RangePartitioner(keys, bounds=bounds))
    golden.commit("errorifexists", [flights(0, 20), flights(20, 20)])
    golden.commit("append", [flights(40, 20), flights(60, 20)])
    golden.merge("always", "subpartition")


def long_log() -> None:
    """A log whose first segment is gone but for a tag's range, with a base, and a range behind it.

    Between the rows are fences of jobs that never committed.
    """
    golden = Golden("long_log", 3, HashPartitioner("id"))
    shuffle = golden.path
    log = CommitLog(open_storage(str(shuffle)))

    def fences(last: int) -> None:
        for _ in range(log.newest_version(), last):
            gone = uuid.uuid4().hex
            log.append(lambda view, gone=gone: draft(view, FENCE, gives_up=(gone,)), sync=False)

    golden.commit("errorifexists", [flights(0, 10)])
    golden.commit("append", [flights(10, 5)])
    tag_shuffle(shuffle, "two", 2)
    golden.commit("append", [flights(15, 5)])
    fences(SEGMENT_ENTRIES - 1)
    golden.commit("append", [flights(20, 5)])
    with mock.patch.object(garbage, "REMOVAL_DELAY_MS", 0):
        for _ in range(3):
            for path in shuffle.rglob("*"):
                os.utime(path, (0, 0))
            collect_garbage(shuffle, retention=dt.timedelta(0))
    for version in (1, 4):
        (golden.directory / f"expected-{version}.arrow").unlink()
    removed = shuffle / expired_path(0)
    receipts = {"receipts": {"3": {"what": "a deletion returned"}}}
    removed.write_bytes(forged_frame(removed.read_bytes(), receipts))
    fences(SEGMENT_ENTRIES + CHECKPOINT_INTERVAL - 2)
    for start in (25, 30, 35):
        golden.commit("append", [flights(start, 5)])


def constants() -> None:
    """Rows of a byte: more of them in a chunk than a reader of 8 bytes each expects."""
    golden = Golden("constants", 1, RoundRobinPartitioner(), chunk_bytes=4 << 20)
    golden.commit("errorifexists", [pa.table({"c": pa.array(np.full(3_500_000, -7, np.int8))})])


def large_rows() -> None:
    """Two rows, each a chunk larger than those of several rows: of equal items, and of text too."""
    golden = Golden("large_rows", 1, RoundRobinPartitioner(), chunk_bytes=4 << 20)
    items = [np.full(num, 5, np.int8) for num in (6_000_000, 10_000_000)]
    table = pa.table(
        {
            "id": pa.array([0, 1]),
            "items": pa.array(items, pa.list_(pa.int8())),
            "text": pa.array(["", "x" * (9 << 20)]),
        }
    )
    golden.commit("errorifexists", [table])


def sorted_down() -> None:
    """By a struct, descending, and where that agrees by a number that may be null."""
    made = random.Random(7)
    columns = {
        "id": pa.array([made.choice([None, 1, 2, 3]) for _ in range(60)], pa.int32()),
        "s": pa.array(
            [
                made.choice([None, {"a": made.choice([None, 1, 2]), "b": made.choice("xyz")}])
                for _ in range(60)
            ],
            pa.struct([("a", pa.int32()), ("b", pa.string())]),
        ),
        "v": pa.array(range(60), pa.int32()),
    }
    tables = [pa.table(columns).slice(start, 30) for start in (0, 30)]

    def key(row: dict[str, Any]) -> tuple[object, ...]:
        s = row["s"]
        inside = (True,) if s is None else (False, s["a"] is None, -(s["a"] or 0), -ord(s["b"]))
        return inside, (row["id"] is None, row["id"] or 0)

    golden = Golden(
        "sorted_down", 3, HashPartitioner("v"), sort_buffer_bytes=4 << 10, chunk_bytes=16 << 10,
        sort_by=(("s", "descending"), ("id", "ascending nulls last")), sort_key=key,
    )  # fmt: skip
    golden.commit("errorifexists", tables)


def combined() -> None:
    """Rows of equal keys put together in each of two map tasks, and in those of an append."""
    golden = Golden(
        "combined", 3, HashPartitioner("carrier"), combine={"id": "sum", "delay": "max"}
    )
    golden.commit("errorifexists", [flights(0, 30), flights(30, 30)])
    golden.commit("append", [flights(60, 30)])


def fenced() -> None:
    """A version, the fence of a job that never committed, and the version after it."""
    golden = Golden("fenced", 3, HashPartitioner("id"))
    golden.commit("errorifexists", [flights(0, 20)])
    log = CommitLog(open_storage(str(golden.path)))
    gone = uuid.uuid4().hex
    log.append(lambda view: draft(view, FENCE, gives_up=(gone,)), sync=False)
    golden.commit("append", [flights(20, 20)])
    golden.refuses({2: "absent", 4: "absent"})


def ended(name: str, *, begins_again: bool) -> None:
    """A result that was given up, and what came after: another, or what is pending."""
    golden = Golden(name, 3, HashPartitioner("id"))
    golden.commit("errorifexists", [flights(0, 10)])
    storage = open_storage(str(golden.path))
    DueRelease("its owner").carry_out(storage, sync=False)
    if begins_again:
        golden.commit("overwrite", [flights(50, 10)])
        golden.commit("append", [flights(60, 10)])
        golden.refuses({2: "absent"})
    else:
        golden.commit("append", [flights(20, 5)], Transaction("a-query", 0), pending=True)
        golden.refuses({2: "absent", 3: "absent"})


def roots() -> None:
    """Map outputs in the shuffle and on another disk; the log names that by :data:`ELSEWHERE`."""
    place = golden_module.HERE / "roots"
    golden = Golden("roots", 3, HashPartitioner("id"), local_dirs=(str(place / "disk"),))
    tasks = [flights(start, 10) for start in range(0, 30, 10)]
    golden.commit("errorifexists", tasks)
    golden.commit("append", [flights(30, 10), flights(40, 10)])
    for file in (golden.path / "commit_log").glob("*/*.entry"):
        file.write_bytes(moved(file.read_bytes(), str(place), ELSEWHERE))
    for file in golden.directory.rglob("*.json"):
        said = file.read_text().replace(str(place), ELSEWHERE)
        file.write_text(re.sub(r'"inode": \d+', '"inode": 1', said))


ALL: tuple[tuple[int, Callable[[], None]], ...] = (
    (1_000, lambda: regions("regions_zstd", "zstd", 64)),
    (2_000, lambda: regions("regions_none", "none", 256)),
    (3_000, versions),
    (4_000, lambda: types("types", every_type(), statistics="all")),
    (5_000, many_subpartitions),
    (6_000, noise),
    (7_000, no_rows),
    (8_000, wide),
    (11_000, broadcast),
    (12_000, lambda: regions("regions_sorted", "none", 256, sort_by=("id",))),
    (13_000, merged),
    (14_000, collected),
    (15_000, transactions),
    (16_000, results),
    (17_000, waiting),
    # What a reader that was written from the specification alone found no example of.
    (
        18_000,
        lambda: types("other_types_none", every_other_type(), codec="none", statistics="all"),
    ),
    (19_000, lambda: types("other_types_zstd", every_other_type())),
    (20_000, constants),
    (21_000, large_rows),
    (22_000, sorted_down),
    (23_000, fenced),
    (24_000, lambda: ended("ended", begins_again=True)),
    (25_000, lambda: ended("gone", begins_again=False)),
    (26_000, roots),
    (27_000, statistics),
    (28_000, combined),
    (29_000, columns),
    (30_000, ranges),
    (31_000, long_log),
    (32_000, later.rescaled),
    (33_000, many_columns),
    (34_000, blocks),
    (35_000, later.unknown_names),
    *(
        (1_000 * number, partial(later.refused, name, change))
        for number, (name, change) in enumerate(later.REFUSED.items(), 36)
    ),
    (39_000, later.unknown_encoding),
    (40_000, masks),
    (41_000, large_mask),
    (42_000, upsert),
    (43_000, later.unknown_region),
    *(
        (44_000 + 1_000 * number, partial(contradictions, f"contradictions_{name}", rules, **how))
        for number, (name, rules, how) in enumerate(RULES)
    ),
    (50_000, rare.rare_log),
    (51_000, rare.blank_entries),
    (52_000, rare.rare_blocks),
    (53_000, rare.two_files),
    (54_000, rare.both_codecs),
    (55_000, rare.widened),
    (56_000, rare.sorted_values),
    (57_000, rare.rare_bytes),
    (58_000, rare.rare_releases),
    (59_000, rare.rare_bounds),
    (60_000, rare.undone),
    (61_000, rare.other_names),
    (62_000, rare.expiring),
    (63_000, later.unknown_index),
    (64_000, later.of_no_reader),
    (65_000, sequence),
    (66_000, scaled),
    (67_000, tombstones),
)


def main() -> None:
    """Write the schemas, and the golden shuffles of this format version that are not there."""
    schemas.write()
    here = golden_module.HERE
    there = {path.name for path in here.iterdir()} if here.exists() else set()
    for seed, write in ALL:
        with fixed_ids(seed), tempfile.TemporaryDirectory() as scratch:
            with mock.patch.object(golden_module, "HERE", Path(scratch)):
                write()
            (made,) = Path(scratch).iterdir()
            if made.name not in there:
                shutil.copytree(made, here / made.name)
    DIGESTS.write_text(json.dumps(digests(), indent=1) + "\n")


if __name__ == "__main__":
    main()
