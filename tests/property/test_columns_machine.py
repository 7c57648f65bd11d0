"""Columns of a long-lived table: however they are renamed, dropped and added, values are a model's.

The model has the rows of each version by the columns themselves, whatever these were called. One
write at a time is under way, while others alter what it means.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from arrow_format import (
    HashPartitioner,
    delete_rows,
    drop_columns,
    open_shuffle,
    rename_columns,
    rollback_shuffle,
)
from arrow_format.errors import CommitConflictError, SchemaError
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.options import WriteOptions
from tests.support import small_shuffles
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee
from tests.support.merges import merge_by

N = 3
KEY = 0
"""The column that is the partition key, and never dropped."""
OPTIONS = WriteOptions(sync=False, statistics="all", schema_evolution=True, chunk_bytes=64)
NAMES = st.sampled_from("abcd")
SOME = st.sets(NAMES, max_size=3).map(sorted)
TYPES = st.sampled_from([pa.int16(), pa.int32(), pa.int64()])


@guarantee("columns by id")
class ColumnsMachine(RuleBasedStateMachine):
    @initialize(names=SOME)
    def start(self, names):
        self.path = Path(tempfile.mkdtemp()) / "x"
        self.columns = count(1)
        self.keys = count(1)
        self.versions: dict[int, tuple[dict[str, int], list[dict[int, int]]]] = {}
        self.turn = 0
        self.under_way = None
        self.overwrite(names, pa.int64())

    def teardown(self):
        shutil.rmtree(self.path.parent, ignore_errors=True)

    @property
    def newest(self):
        """What the columns are called, and the rows."""
        return self.versions[max(self.versions)]

    def called(self, column):
        return next(name for name, each in self.newest[0].items() if each == column)

    def begun(self, key, names, type_):
        """Begin a write, and write its rows; return what commits it, and the rows."""
        names = [name for name in names if name != key]
        keys = [next(self.keys) for _ in range(3)]
        rows = {name: [8 * k + i for k in keys] for i, name in enumerate(names, 1)}
        table = pa.table({key: keys} | {name: pa.array(v, type_) for name, v in rows.items()})
        job = small_shuffles.begin(self.path, table.schema, N, HashPartitioner(key), OPTIONS)
        # Its directory alone is made here: what is refused is refused when it commits.
        job.make_directories()
        return job, [run_map_task(job, 0, 0, table.to_batches())], {key: keys} | rows

    def added(self, rows, known):
        """Return names and rows of a version, given the columns that names mean."""
        columns = {name: known.get(name) for name in rows}
        columns = {n: next(self.columns) if c is None else c for n, c in columns.items()}
        length = len(next(iter(rows.values())))
        return columns, [{columns[n]: rows[n][i] for n in rows} for i in range(length)]

    @rule(names=SOME, type_=TYPES)
    def overwrite(self, names, type_):
        known = self.newest[0] if self.versions else {"k": KEY}
        key = next(name for name, column in known.items() if column == KEY)
        job, statuses, rows = self.begun(key, names, type_)
        open_target(job, "overwrite")
        version = commit_job(job, statuses, mode="overwrite").version
        self.versions[version] = self.added(rows, known)

    @rule(names=SOME, type_=TYPES)
    def append(self, names, type_):
        key = self.called(KEY)
        job, statuses, rows = self.begun(key, names, type_)
        version = commit_job(job, statuses, mode="append").version
        self.commit_rows(version, rows, self.newest[0])

    def commit_rows(self, version, rows, known):
        columns, added = self.added(rows, known)
        before, earlier = self.newest
        new = {n: c for n, c in columns.items() if c not in before.values()}
        self.versions[version] = before | new, [*earlier, *added]

    @rule(names=SOME, type_=TYPES)
    def begin(self, names, type_):
        self.under_way = *self.begun(self.called(KEY), names, type_), dict(self.newest[0])

    @precondition(lambda self: getattr(self, "under_way", None))
    @rule()
    def commit(self):
        job, statuses, rows, meant = self.under_way
        self.under_way = None
        now = self.newest[0]
        is_refused = any(
            meant[name] not in now.values() if name in meant else now.get(name) in meant.values()
            for name in rows
        )
        if is_refused:
            with pytest.raises(CommitConflictError):
                commit_job(job, statuses, mode="append")
            return
        version = commit_job(job, statuses, mode="append").version
        others = {name: column for name, column in now.items() if name not in meant}
        self.commit_rows(version, rows, others | meant)

    @rule(old=NAMES | st.just("k"), new=NAMES | st.just("k"))
    def rename(self, old, new):
        columns, rows = self.newest
        names = {old: new} | ({new: old} if old != new and new in columns else {})
        if old not in columns:
            with pytest.raises(SchemaError, match="is not there"):
                rename_columns(self.path, names)
            return
        if len(names) == 2:
            with pytest.raises(SchemaError, match="two columns would have one name"):
                rename_columns(self.path, {old: new})
        version = rename_columns(self.path, names).version
        self.versions[version] = {names.get(n, n): c for n, c in columns.items()}, rows

    @rule(name=NAMES | st.just("k"))
    def drop(self, name):
        columns, rows = self.newest
        if columns.get(name, KEY) == KEY:
            with pytest.raises(SchemaError):
                drop_columns(self.path, name)
            return
        version = drop_columns(self.path, name).version
        self.versions[version] = {n: c for n, c in columns.items() if n != name}, rows

    @rule(how=st.sampled_from(["never", "always", "subpartition"]))
    def merge(self, how):
        report = merge_by(self.path, how, OPTIONS)
        if report.version not in self.versions:
            self.versions[report.version] = self.newest

    @rule(pick=st.integers(0, 30), erase=st.booleans())
    def delete(self, pick, erase):
        columns, rows = self.newest
        if not rows:
            return
        key = rows[pick % len(rows)][KEY]
        receipt = delete_rows(self.path, {self.called(KEY): [key]}, erase=erase, options=OPTIONS)
        self.versions[receipt.version] = columns, [row for row in rows if row[KEY] != key]

    @rule(pick=st.integers(0, 30))
    def roll_back(self, pick):
        version = sorted(self.versions)[pick % len(self.versions)]
        receipt = rollback_shuffle(self.path, version, undo_deletions=True)
        self.versions[receipt.version] = self.versions[version]

    @invariant()
    def versions_are_those_of_the_model(self):
        if not getattr(self, "versions", None):
            return
        self.turn += 1
        known = sorted(self.versions)
        for version in {known[-1], known[self.turn % len(known)]}:
            columns, rows = self.versions[version]
            shuffle = open_shuffle(self.path, version)
            assert set(shuffle.schema.names) == columns.keys()
            expected = Counter(tuple(row.get(c) for c in columns.values()) for row in rows)
            table = shuffle.read().read_all().select([*columns])
            assert Counter(zip(*table.to_pydict().values(), strict=True)) == expected
            name = [*columns][self.turn % len(columns)]
            values = [row.get(columns[name]) for row in rows]
            for value in [*{*values}][:3]:
                how = f"{name} is null" if value is None else f"{name} = {value}"
                assert shuffle.read(filter=how).read_all().num_rows == values.count(value)
                assert shuffle.count_rows(filter=how) == values.count(value)
        assert shuffle.verify().ok


TestColumnsMachine = ColumnsMachine.TestCase
TestColumnsMachine.settings = settings(max_examples=times(4, 60), stateful_step_count=15)
