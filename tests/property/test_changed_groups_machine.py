"""Whatever happens to a source and to a result of its groups: ``since="last"`` is a full run.

Both are changed by all that there is, in any order, and runs die anywhere.
"""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import arrow_shuffle
from arrow_format import HashPartitioner, RangePartitioner, WriteOptions
from arrow_format.errors import CommitConflictError, ShuffleNotFoundError
from arrow_format.write.merge_policy import MergePolicy
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import CHANGES, before_first_entry, dies_after

SMALL = WriteOptions(sync=False, sort_buffer_bytes=4096, chunk_bytes=64)
KEYS, NUMBERS = st.integers(0, 5), st.integers(0, 3)
ROWS = st.dictionaries(st.tuples(KEYS, NUMBERS), st.integers(0, 4), max_size=6)
BY = st.sampled_from(["map_output", "subpartition"])
PARTITIONERS = st.sampled_from([HashPartitioner("k"), RangePartitioner("k", bounds=[1, 3])])
MADE = pa.schema([("k", pa.int64()), ("i", pa.int64()), ("sum", pa.int64())])


def sums(key: tuple[pa.Scalar, ...], rows: pa.Table) -> pa.Table:
    """Return no row, one or two of a group; by position, since columns are renamed."""
    total = pc.sum(rows.column(2)).as_py()
    count = total % 3
    columns = [[key[0].as_py()] * count, [*range(count)], [total + rows.num_rows] * count]
    return pa.table(columns, schema=MADE)


def table(rows, value="v"):
    keys, numbers = zip(*rows, strict=True) if rows else ((), ())
    columns = {"k": pa.array(keys, pa.int64()), "n": pa.array(numbers, pa.int64())}
    return pa.table({**columns, value: pa.array([*rows.values()], pa.int64())})


@guarantee("changed groups")
class ChangedGroupsMachine(RuleBasedStateMachine):
    @initialize(
        by=PARTITIONERS, rows=ROWS, has_result=st.booleans(), result_by=PARTITIONERS, n=KEYS
    )
    def start(self, by, rows, has_result, result_by, n):
        self.directory = Path(tempfile.mkdtemp())
        self.source, self.result = self.directory / "source", self.directory / "result"
        self.value, self.is_current = "v", False
        self.how = {"partitioner": by, "num_subpartitions": 3, "unique": ["k", "n"]}
        arrow_shuffle.write_shuffle(table(rows), self.source, options=SMALL, **self.how)
        if has_result:  # with a layout of its own, and rows of somebody else
            m = 3 if isinstance(result_by, RangePartitioner) else n + 1
            rows = pa.table([[1], [0], [7]], schema=MADE)
            arrow_shuffle.write_shuffle(
                rows, self.result, partitioner=result_by, num_subpartitions=m,
                unique=["k", "i"], options=SMALL,
            )  # fmt: skip

    def teardown(self):
        shutil.rmtree(self.directory, ignore_errors=True)

    def groups(self, **how):
        return arrow_shuffle.open_shuffle(self.source).map_groups(sums, MADE, **how)

    def compute(self, since="last"):
        return self.groups(since=since).write(self.result, mode="replace_groups", options=SMALL)

    def shuffle(self, of_result):
        path = self.result if of_result else self.source
        self.is_current = False
        try:
            return arrow_shuffle.open_shuffle(path)
        except ShuffleNotFoundError:
            return None

    @rule()
    def run(self):
        try:
            self.compute()
        except ShuffleNotFoundError:  # what the result has seen has expired
            self.compute("all")
        self.is_current = True

    @rule()
    def run_twice(self):
        self.run()
        before = arrow_shuffle.open_shuffle(self.result).version
        receipt = self.compute()
        assert receipt.is_repetition
        assert "nothing was computed" in str(receipt)
        assert arrow_shuffle.open_shuffle(self.result).version == before

    @rule(num_calls=st.integers(0, 12))
    def run_that_dies(self, num_calls):
        def act():
            try:
                self.compute()
            except ShuffleNotFoundError:
                self.compute("all")

        self.is_current = False
        dies_after(num_calls, act, CHANGES)
        self.run()

    @rule(by=BY, merges=st.booleans())
    def run_while_the_result_changes(self, by, merges):
        if self.shuffle(of_result=True) is None:
            return
        self.run()
        self.upsert({(1, 1): 1, (2, 2): 2})

        def meanwhile():
            shuffle = arrow_shuffle.open_shuffle(self.result)
            if merges:
                shuffle.merge(by=by, policy=MergePolicy(rewrite="always"), options=SMALL)
            else:
                shuffle.append(pa.table([[9], [9], [9]], schema=MADE), options=SMALL)

        with before_first_entry(meanwhile):
            try:
                self.compute()
            except CommitConflictError:
                assert not merges
        self.run()

    @rule(rows=ROWS)
    def upsert(self, rows):
        self.shuffle(of_result=False).upsert(table(rows, self.value), options=SMALL)

    @rule(rows=ROWS)
    def overwrite(self, rows):
        self.shuffle(of_result=False)
        arrow_shuffle.write_shuffle(
            table(rows, self.value), self.source, mode="overwrite", options=SMALL, **self.how
        )

    @rule(key=KEYS, erase=st.booleans(), of_result=st.booleans())
    def delete(self, key, erase, of_result):
        shuffle = self.shuffle(of_result)
        if shuffle is not None:
            shuffle.delete({"k": [key]}, erase=erase, options=SMALL)

    @rule(by=BY, of_result=st.booleans())
    def merge(self, by, of_result):
        is_current = self.is_current
        shuffle = self.shuffle(of_result)
        if shuffle is not None:
            shuffle.merge(by=by, policy=MergePolicy(rewrite="always"), options=SMALL)
        self.is_current = is_current

    @rule(n=st.sampled_from([1, 2, 4, 6]), of_result=st.booleans())
    def rescale(self, n, of_result):
        is_current = self.is_current
        shuffle = self.shuffle(of_result)
        if shuffle is not None and isinstance(shuffle.partitioner, HashPartitioner):
            shuffle.rescale(n)
        self.is_current = is_current

    @rule(back=st.integers(1, 3), of_result=st.booleans())
    def rollback(self, back, of_result):
        shuffle = self.shuffle(of_result)
        if shuffle is None or shuffle.version <= back:
            return
        try:
            shuffle.rollback(shuffle.version - back, undo_deletions=True)
        except ShuffleNotFoundError:
            return
        if not of_result:
            self.value = shuffle.newest().schema.names[2]

    @rule()
    def rename(self):
        before, self.value = self.value, "w" if self.value == "v" else "v"
        self.shuffle(of_result=False).rename_columns({before: self.value})

    @rule(of_result=st.booleans())
    def collect(self, of_result):
        is_current = self.is_current
        shuffle = self.shuffle(of_result)
        if shuffle is not None:
            shuffle.collect_garbage(retention=timedelta(0))
        self.is_current = is_current

    @invariant()
    def the_result_is_a_full_run(self):
        if not self.is_current:
            return
        found = arrow_shuffle.open_shuffle(self.result).to_table().to_pylist()
        expected = self.groups().to_table().to_pylist()
        assert sorted(map(str, found)) == sorted(map(str, expected))


TestChangedGroups = ChangedGroupsMachine.TestCase
TestChangedGroups.settings = settings(max_examples=times(10, 100), stateful_step_count=20)
