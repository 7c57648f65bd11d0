"""A golden shuffle while it is made: fixed ids and clocks, and the rows that a reader must find."""

from __future__ import annotations

import itertools
import json
import random
import secrets
import shutil
import time
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa
from msgspec import structs

from arrow_format import BROADCAST, MergePolicy, WriteOptions, merge_shuffle
from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.log.entry import decode_entry, encode_entry
from arrow_format.log.outputs import MapOutputs
from arrow_format.model import FORMAT_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from arrow_format import Partitioner
    from arrow_format.model import Transaction
    from arrow_format.options import MergeBy, RewriteChoice

_MANY = 2_000
"""Rows from which on what is expected is compressed."""

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


SEEN_WHOLE = "rows or damage"
"""The answer where a check of whole files finds damage, and a reader of rows may find it."""


class Golden:
    """One golden shuffle and, beside it, the rows of each version as they must be read."""

    def __init__(
        self,
        name: str,
        n: int,
        partitioner: Partitioner,
        sort_by: tuple[str | tuple[str, str], ...] = (),
        sort_key: Callable[[dict[str, Any]], Any] | None = None,
        combine: Mapping[str, str] | None = None,
        unique: tuple[str, ...] = (),
        sequence_by: str | None = None,
        **options: object,
    ) -> None:
        self.directory = HERE / name
        self.combine = combine
        self.unique = unique
        self.sequence_by = sequence_by
        self.n = n
        self.stored: int | None = None
        """Subpartitions of files, where versions may have divisors of them: the order of rows in a
        file is that of its own."""
        self.partitioner = partitioner
        self.sort_by = sort_by
        self.sort_key = sort_key or (lambda row: [row[name] for name in sort_by])
        """Sorts rows of a subpartition, as Python values, as `sort_by` says."""
        self.options = WriteOptions(sync=False, **options)
        self.rows: list[pa.Table] = []

    def commit(
        self,
        mode: str,
        tasks: Sequence[pa.Table],
        transaction: Transaction | None = None,
        *,
        pending: bool = False,
        left: Sequence[pa.Table] | None = None,
        row_kind: str | None = None,
    ) -> None:
        """Commit a map output per table, and write down what a reader must find.

        ``left`` are the rows of it that stay; None for all. ``row_kind`` is the column of changes
        that says what each does.
        """
        job = begin_job(
            str(self.path),
            tasks[0].schema,
            num_subpartitions=self.stored or self.n,
            partitioner=self.partitioner,
            sort_by=self.sort_by,
            combine=self.combine,
            unique=self.unique,
            sequence_by=self.sequence_by,
            row_kind=row_kind,
            options=self.options,
        )
        statuses = [run_map_task(job, i, 0, task.to_batches()) for i, task in enumerate(tasks)]
        receipt = commit_job(job, statuses, mode=mode, transaction=transaction, pending=pending)
        if pending:
            return
        if mode == "overwrite":
            self.rows = []
        if self.combine:
            tasks = [combined_rows(task, self.combine) for task in tasks]
        if self.stored is not None:
            n = self.stored
            tasks = [self._as_stored(task, n, number) for number, task in enumerate(tasks)]
        self.expect(receipt.version, tasks if left is None else left)

    @property
    def path(self) -> Path:
        """Where the shuffle is."""
        return self.directory / "shuffle"

    def merge(self, rewrite: RewriteChoice, by: MergeBy = "map_output") -> None:
        """Merge the newest version; a reader must find the same rows."""
        policy = MergePolicy(rewrite=rewrite)
        report = merge_shuffle(self.path, policy=policy, options=self.options, by=by)
        self.repeat(report.version, report.version - 1)

    def repeat(self, version: int, earlier: int) -> None:
        """Write down that a version has the rows of an earlier one."""
        shutil.copy(
            self.directory / f"expected-{earlier}.arrow",
            self.directory / f"expected-{version}.arrow",
        )

    def divide(self, version: int, n: int) -> None:
        """Write down that a version has the rows that are left, in other subpartitions."""
        self.n = n
        tables = [row.drop_columns("_subpartition") for row in self.rows]
        self.rows = []
        self.expect(version, tables)

    def rewritten(self, version: int, n: int) -> None:
        """The same, where all rows were written to one file of these subpartitions."""
        whole = pa.concat_tables(self.rows).drop_columns("_subpartition")
        self.n, self.rows = n, []
        self.expect(version, [self._as_stored(whole, n, 0)])

    def _as_stored(self, task: pa.Table, n: int, map_task: int) -> pa.Table:
        """Return the rows of a map task in the order in which its one region has them."""
        schema = data_schema(task.schema)
        (batch,) = task.combine_chunks().to_batches()
        ids = self.partitioner.bind(schema, n, map_task)(normalise(batch, schema))
        ranks = (ids - 7919 * map_task) % n
        return task.take(pa.array(np.argsort(ranks, kind="stable")))

    def expect(self, version: int, tasks: Sequence[pa.Table]) -> None:
        """Write down that a version has the rows of the one before, and these behind them."""
        schema = data_schema(tasks[0].schema)
        with_ids = schema.append(pa.field("_subpartition", pa.int32(), nullable=False))
        if self.n == 1 and not self.sort_by:
            # Of any number: in the order in which they came, and compressed.
            for task in tasks:
                ids = pa.array(np.zeros(len(task), np.int32))
                columns = [*task.select(schema.names).columns, ids]
                self.rows.append(pa.Table.from_arrays(columns, schema=with_ids))
            self.write(version, pa.concat_tables(self.rows), compression="zstd")
            return
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
        names = [key if isinstance(key, str) else key[0] for key in self.sort_by]
        shown = rows.select(["_subpartition", *names]).to_pylist()
        keys = [(row["_subpartition"], self.sort_key(row)) for row in shown]
        order = sorted(range(len(rows)), key=keys.__getitem__)
        self.write(version, rows.take(pa.array(order, pa.int64())))

    def refuses(self, answers: Mapping[int, str]) -> None:
        """Write down that a reader gives no rows of some versions, but these answers."""
        path = self.directory / "refused.json"
        path.write_text(json.dumps(answers, indent=1) + "\n")
        for version in answers:
            (self.directory / f"expected-{version}.arrow").unlink(missing_ok=True)

    def write(self, version: int, rows: pa.Table, compression: str | None = None) -> None:
        """Write down that a version has these rows, in reading order; many are compressed."""
        compression = "zstd" if len(rows) > _MANY else compression
        options = pa.ipc.IpcWriteOptions(compression=compression)
        path = self.directory / f"expected-{version}.arrow"
        with pa.ipc.new_file(path, rows.schema, options=options) as out:
            out.write_table(rows.combine_chunks())


def combined_rows(table: pa.Table, combine: Mapping[str, str]) -> pa.Table:
    """Return one row for each key, in the order in which keys came."""
    keys = [name for name in table.column_names if name not in combine]
    groups = table.group_by(keys, use_threads=False).aggregate([*combine.items()])
    names = [f"{name}_{combine[name]}" if name in combine else name for name in table.column_names]
    return groups.select(names).rename_columns(table.column_names)


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


def moved(entry: bytes, before: str, after: str) -> bytes:
    """Return a log entry in which a directory has another name."""
    found = decode_entry(entry)
    outputs = [
        replace(
            output,
            files=tuple(
                replace(file, root=file.root.replace(before, after)) for file in output.files
            ),
        )
        for output in found.map_outputs
    ]
    content = replace(found.content, added=MapOutputs.of(outputs))
    return encode_entry(structs.replace(found, content=content))


ELSEWHERE = "/arrow-shuffle-golden"
"""Stands for the directory of a golden shuffle with roots, wherever that is."""
