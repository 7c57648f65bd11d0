"""Whatever is upserted, appended, deleted, merged or undone: the rows are those of a dictionary.

The model is the state of each order, by version. Collections run with retention 0.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import arrow_shuffle
from arrow_format import (
    HashPartitioner,
    RangePartitioner,
    WriteOptions,
    collect_garbage,
    merge_shuffle,
    open_shuffle,
    rollback_shuffle,
)
from arrow_format.errors import (
    CommitConflictError,
    DuplicateKeyError,
    OptionError,
    ShuffleNotFoundError,
)
from arrow_format.jobs.alter import rename_columns
from arrow_format.jobs.delete_rows import delete_rows
from arrow_format.jobs.write import append_shuffle, write_shuffle
from arrow_format.write.merge_policy import MergePolicy
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import CHANGES, before_first_entry, dies_after

SMALL = WriteOptions(sync=False, sort_buffer_bytes=4096, chunk_bytes=64)
CUSTOMERS, NUMBERS = st.integers(0, 5), st.integers(0, 3)
ORDERS = st.dictionaries(st.tuples(CUSTOMERS, NUMBERS), st.text("ab", max_size=2), max_size=8)
BY = st.sampled_from(["map_output", "subpartition"])
LAYOUTS = st.sampled_from(
    [
        {"partitioner": HashPartitioner("customer"), "num_subpartitions": 3},
        {"partitioner": HashPartitioner("customer"), "sort_by": ["state"], "num_subpartitions": 2},
        {"partitioner": RangePartitioner("customer", bounds=[1, 3]), "num_subpartitions": 3},
        {"partitioner": HashPartitioner(["customer", "number"]), "num_subpartitions": 5},
    ]
)
Orders = dict[tuple[int, int], str]


@guarantee("upserts")
class UpsertsMachine(RuleBasedStateMachine):
    @initialize(how=LAYOUTS, orders=ORDERS)
    def start(self, how, orders):
        self.path = Path(tempfile.mkdtemp()) / "s"
        self.names = {"customer": "customer", "number": "number", "state": "state"}
        self.keys = ["customer", "number"][: len(how["partitioner"].keys)]
        write_shuffle(
            self.table(orders), self.path, unique=["customer", "number"], options=SMALL, **how
        )
        self.versions: dict[int, Orders] = {1: orders}

    def teardown(self):
        shutil.rmtree(self.path.parent, ignore_errors=True)

    def table(self, orders):
        customers, numbers = zip(*orders, strict=True) if orders else ((), ())
        return pa.table(
            {
                self.names["customer"]: pa.array(customers, pa.int64()),
                self.names["number"]: pa.array(numbers, pa.int32()),
                self.names["state"]: pa.array([*orders.values()], pa.string()),
            }
        )

    @property
    def orders(self):
        return self.versions[max(self.versions)]

    def committed(self, orders):
        self.versions[open_shuffle(self.path).version] = orders

    def replaced(self, orders, new):
        kept = {key: state for key, state in orders.items() if key not in new}
        return kept | new

    @rule(new=ORDERS)
    def upsert(self, new):
        receipt = append_shuffle(self.table(new), self.path, mode="upsert", options=SMALL)
        assert receipt.num_replaced == len(new.keys() & self.orders.keys())
        self.committed(self.replaced(self.orders, new))

    @rule(new=ORDERS)
    def append(self, new):
        if new.keys() & self.orders.keys():
            with pytest.raises(DuplicateKeyError):
                append_shuffle(self.table(new), self.path, options=SMALL)
            return
        append_shuffle(self.table(new), self.path, options=SMALL)
        self.committed(self.orders | new)

    @rule(new=ORDERS, others=ORDERS, by=BY, what=st.integers(0, 2))
    def upsert_while_others_do(self, new, others, by, what):
        """Others commit after the rows were searched, before the entry is put."""
        after = self.orders

        def meanwhile():
            nonlocal after
            if what == 0:
                append_shuffle(self.table(others), self.path, mode="upsert", options=SMALL)
                after = self.replaced(after, others)
            elif what == 1:
                self.merge_all(by)
            elif len(self.keys) == 1:
                self.delete_customer(1, erase=False)
                after = {key: state for key, state in after.items() if key[0] != 1}
            self.committed(after)

        with before_first_entry(meanwhile):
            append_shuffle(self.table(new), self.path, mode="upsert", options=SMALL)
        self.committed(self.replaced(after, new))

    @rule(new=ORDERS, num_calls=st.integers(0, 12))
    def upsert_that_dies(self, new, num_calls):
        def act():
            append_shuffle(self.table(new), self.path, mode="upsert", options=SMALL)

        before = open_shuffle(self.path).version
        dies_after(num_calls, act, CHANGES)
        if open_shuffle(self.path).version > before:
            self.committed(self.replaced(self.orders, new))

    def merge_all(self, by):
        try:
            merge_shuffle(self.path, by=by, policy=MergePolicy(rewrite="always"), options=SMALL)
        except CommitConflictError:
            pytest.fail("nobody else commits")

    @rule(by=BY)
    def merge(self, by):
        self.merge_all(by)
        self.committed(self.orders)

    @rule(n=st.sampled_from([1, 2, 3, 4, 6]))
    def rescale(self, n):
        shuffle = arrow_shuffle.open_shuffle(self.path)
        if isinstance(shuffle.partitioner, RangePartitioner):
            with pytest.raises(OptionError, match="only a hash"):
                shuffle.rescale(n)
            return
        if shuffle.rescale(n).is_new:
            self.committed(self.orders)

    def delete_customer(self, customer, erase):
        delete_rows(self.path, {self.names["customer"]: [customer]}, erase=erase, options=SMALL)

    @rule(customer=CUSTOMERS, erase=st.booleans())
    def delete(self, customer, erase):
        if len(self.keys) > 1:
            return
        self.delete_customer(customer, erase=erase)
        left = {key: state for key, state in self.orders.items() if key[0] != customer}
        self.committed(left)

    @rule(pick=st.integers(0, 5))
    def roll_back(self, pick):
        version = [*self.versions][pick % len(self.versions)]
        rollback_shuffle(self.path, version, undo_deletions=True)
        names = open_shuffle(self.path).schema.names
        self.names = dict(zip(self.names, names, strict=True))
        self.committed(self.versions[version])

    @rule(name=st.sampled_from(["customer", "number", "state"]))
    def rename(self, name):
        old = self.names[name]
        new = f"{old}_" if len(old) < 12 else name
        rename_columns(self.path, {old: new})
        self.names[name] = new
        self.committed(self.orders)

    @rule()
    def collect(self):
        collect_garbage(self.path, retention=timedelta(0))
        self.versions = {v: orders for v, orders in self.versions.items() if self.is_there(v)}

    def is_there(self, version):
        try:
            open_shuffle(self.path, version)
        except ShuffleNotFoundError:
            return False
        return True

    @rule(pick=st.integers(0, 5))
    def what_changed(self, pick):
        """Rows of a version, without the deleted ones and with the inserted, are those of now."""
        since = [*self.versions][pick % len(self.versions)]
        try:
            changed = arrow_shuffle.open_shuffle(self.path).changes(since).read_all().to_pylist()
        except ShuffleNotFoundError:
            return  # it has expired, with a version that was rolled back to
        found = {kind: Counter() for kind in ("insert", "delete", "erase")}
        for row in changed:
            names = self.keys if row["_change_type"] == "erase" else self.names
            found[row["_change_type"]][tuple(row[self.names[name]] for name in names)] += 1
        before, now = (
            Counter((*key, state) for key, state in orders.items())
            for orders in (self.versions[since], self.orders)
        )
        assert not (found["delete"] - before) | (found["insert"] - now)
        left, target = before - found["delete"], now - found["insert"]
        assert not target - left
        assert Counter(row[: len(self.keys)] for row in left - target) == found["erase"]

    @invariant()
    def rows_are_those_of_the_model(self):
        shuffle = open_shuffle(self.path)
        rows = shuffle.read().read_all().to_pylist()
        found = {tuple(row[self.names[n]] for n in ("customer", "number")): row for row in rows}
        states = {key: row[self.names["state"]] for key, row in found.items()}
        assert states == self.orders
        assert len(rows) == len(states) == shuffle.num_rows
        assert sum(shuffle.subpartition_rows.to_pylist()) == len(rows)
        assert shuffle.unique == (self.names["customer"], self.names["number"])
        for version, orders in [*self.versions.items()][-4:]:
            assert open_shuffle(self.path, version).num_rows == len(orders)


TestUpserts = UpsertsMachine.TestCase
TestUpserts.settings = settings(max_examples=times(10, 100), stateful_step_count=25)
