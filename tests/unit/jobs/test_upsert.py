"""Rows that replace those of the same key: what identifies a row, and what others do meanwhile."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import arrow_shuffle
from arrow_format import RangePartitioner, RoundRobinPartitioner, WriteOptions
from arrow_format.errors import (
    CommitConflictError,
    CorruptShuffleError,
    DuplicateKeyError,
    OptionError,
    SchemaError,
    ShuffleNotFoundError,
)
from arrow_format.jobs import unique_rows
from arrow_format.jobs.alter import drop_columns, rename_columns
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.delete_rows import delete_rows
from arrow_format.jobs.history import history_of
from arrow_format.jobs.identify import identify_rows
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.merge import merge_shuffle
from arrow_format.jobs.rollback import rollback_shuffle
from arrow_format.jobs.write import write_shuffle
from arrow_format.keys.partitioner import ColumnPartitioner, HashPartitioner
from arrow_format.read import unique_keys
from arrow_format.read.shuffle import open_shuffle
from arrow_format.storage.open import open_storage
from arrow_format.streaming.collection import collect_garbage
from arrow_format.streaming.consumption import release_shuffle
from arrow_format.write.merge_policy import MergePolicy
from arrow_shuffle.write import append_shuffle
from tests.support.foreign_writer import append_misplaced
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import before_first_entry
from tests.support.logs import log_of
from tests.support.small_shuffles import FAST, begin, collect

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UNIQUE = ("customer", "order")
SMALL = WriteOptions(sync=False, sort_buffer_bytes=4096, chunk_bytes=64)
Orders = dict[tuple[int, int], str]


def table(orders: Orders) -> pa.Table:
    customers, numbers = zip(*orders, strict=True) if orders else ((), ())
    columns = {"customer": pa.array(customers, pa.int64()), "order": pa.array(numbers, pa.int32())}
    return pa.table({**columns, "state": pa.array([*orders.values()], pa.string())})


def create(path: Path, orders: Orders, **how: object) -> None:
    how = {"keys": "customer", "num_subpartitions": 4, "unique": UNIQUE, "options": FAST, **how}
    write_shuffle(table(orders), path, **how)


def upsert(path: Path, orders: Orders, **how: object):
    return append_shuffle(table(orders), path, mode="upsert", **how)


def orders_in(path: Path, version: int | None = None) -> Orders:
    rows = open_shuffle(path, version).read().read_all().to_pylist()
    found = {(row["customer"], row["order"]): row["state"] for row in rows}
    assert len(found) == len(rows), "an order is there twice"
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two customers, of whom one has two orders."""
    create(tmp_path / "s", {(1, 10): "old", (1, 11): "old", (2, 10): "old"})
    return tmp_path / "s"


# What is replaced --------------------------------------------------------------------------------


@guarantee("upserts")
def test_other_orders_of_the_customer_stay(path: Path) -> None:
    receipt = upsert(path, {(1, 11): "new", (3, 10): "new"})
    assert (receipt.num_rows, receipt.num_replaced, receipt.version) == (2, 1, 2)
    assert orders_in(path) == {
        (1, 10): "old", (1, 11): "new", (2, 10): "old", (3, 10): "new"
    }  # fmt: skip
    assert "2 rows, in the place of 1, " in str(receipt)
    shuffle = open_shuffle(path)
    assert shuffle.unique == UNIQUE
    assert shuffle.num_rows == sum(shuffle.subpartition_rows.to_pylist()) == 4
    assert orders_in(path, 1) == {(1, 10): "old", (1, 11): "old", (2, 10): "old"}


def test_what_replaces_nothing_is_an_append(path: Path) -> None:
    upsert(path, {(3, 10): "new"})
    entry = log_of(path).record(2)
    assert entry.operation == "append"
    upsert(path, {(3, 10): "newer"})
    assert log_of(path).record(3).operation == "upsert"


def test_all_rows_of_a_map_output_may_be_replaced(path: Path) -> None:
    new = dict.fromkeys(orders_in(path), "new")
    upsert(path, new)
    assert orders_in(path) == new
    (output,) = open_shuffle(path).map_outputs
    assert output.job_id == log_of(path).record(2).job_id
    assert open_shuffle(path).num_bytes == output.num_bytes


def test_rows_are_replaced_again_and_again_and_collected(path: Path) -> None:
    expected = orders_in(path)
    for number in range(8):
        new = {(1, 10 + number % 3): f"{number}", (number, 0): f"{number}"}
        upsert(path, new)
        expected |= new
        assert orders_in(path) == expected
        if number % 3 == 2:
            merge_shuffle(path, by=("map_output", "subpartition")[number % 2], options=FAST)
            assert orders_in(path) == expected
    collect(path)
    assert orders_in(path) == expected
    assert len(open_shuffle(path).verify().problems) == 0


def test_the_first_upsert_makes_the_shuffle(tmp_path: Path) -> None:
    create(tmp_path / "s", {(1, 1): "a"}, mode="upsert")
    create(tmp_path / "s", {(1, 1): "b"}, mode="upsert")
    assert orders_in(tmp_path / "s") == {(1, 1): "b"}


@pytest.mark.parametrize(
    "partitioner",
    [
        RangePartitioner([("customer", "descending")]),
        RangePartitioner("customer", bounds=[0, 2]),
        ColumnPartitioner("customer"),
    ],
    ids=repr,
)
def test_rows_may_be_placed_otherwise_than_by_a_hash(tmp_path: Path, partitioner: object) -> None:
    path = tmp_path / "s"
    create(path, {(1, 1): "a", (2, 1): "a", (3, 1): "a"}, keys=None, partitioner=partitioner)
    upsert(path, {(3, 1): "b", (0, 1): "b"})
    assert orders_in(path) == {(1, 1): "a", (2, 1): "a", (3, 1): "b", (0, 1): "b"}


def test_keys_are_searched_some_subpartitions_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unique_keys, "MOST_KEYS", 7)
    path = tmp_path / "s"
    expected = {(customer, order): "old" for customer in range(40) for order in range(3)}
    create(path, expected, num_subpartitions=16, options=SMALL)
    new = {(customer, order): "new" for customer in range(0, 80, 2) for order in range(1, 3)}
    with before_first_entry(lambda: upsert(path, {(0, 1): "between", (79, 0): "between"})):
        upsert(path, new, options=SMALL)
    assert orders_in(path) == expected | {(79, 0): "between"} | new


def test_map_tasks_replace_together(path: Path) -> None:
    rows = [{(1, 10): "a", (4, 1): "a"}, {}, {(2, 10): "b"}]
    job = begin_job(
        path, table({}).schema, num_subpartitions=4, partitioner=partitioner_of(path), options=FAST
    )
    statuses = [
        run_map_task(job, task, 0, table(orders).to_batches()) for task, orders in enumerate(rows)
    ]
    receipt = commit_job(job, statuses, mode="upsert")
    assert (receipt.num_map_outputs, receipt.num_rows, receipt.num_replaced) == (3, 3, 2)
    assert orders_in(path)[2, 10] == "b"


def partitioner_of(path: Path):
    return open_shuffle(path).partitioner


def test_a_shuffle_that_was_released_begins_again_with_what_identifies_a_row(path: Path) -> None:
    with before_first_entry(lambda: release_shuffle(path)):
        upsert(path, {(5, 5): "new"})
    assert orders_in(path) == {(5, 5): "new"}
    assert open_shuffle(path).unique == UNIQUE


@pytest.mark.parametrize("erase", [False, True])
def test_a_deleted_row_comes_back_once(path: Path, erase: bool) -> None:
    upsert(path, {(1, 11): "new"})
    delete_rows(path, {"customer": [1]}, erase=erase, options=FAST)
    assert orders_in(path) == {(2, 10): "old"}
    upsert(path, {(1, 11): "again"})
    append_shuffle(table({(1, 10): "again"}), path)
    assert orders_in(path) == {(2, 10): "old", (1, 10): "again", (1, 11): "again"}


def test_a_version_that_is_rolled_back_to_identifies_its_rows(path: Path) -> None:
    upsert(path, {(1, 11): "new", (9, 9): "new"})
    rollback_shuffle(path, 1)
    upsert(path, {(1, 11): "newer"})
    assert orders_in(path) == {(1, 10): "old", (1, 11): "newer", (2, 10): "old"}


def test_columns_are_added_and_widened(path: Path) -> None:
    rows = table({(1, 11): "new"}).append_column("price", pa.array([2.5]))
    wide = rows.set_column(1, "order", pa.array([11], pa.int64()))
    append_shuffle(wide, path, mode="upsert")
    upsert(path, {(1, 10): "narrow"})  # as it was before
    found = open_shuffle(path).read().read_all()
    assert found.schema.field("order").type == pa.int64()
    prices = dict(zip(zip(*map(found.column, UNIQUE), strict=True), found["price"], strict=True))
    assert {key[1].as_py(): price.as_py() for key, price in prices.items()} == {10: None, 11: 2.5}


def test_a_transaction_replaces_once(path: Path) -> None:
    first = upsert(path, {(1, 11): "new"}, transaction=("daily", 1))
    again = upsert(path, {(1, 11): "newer"}, transaction=("daily", 1))
    assert again.is_repetition
    assert (again.version, again.num_rows, again.num_replaced) == (first.version, 1, 1)
    assert orders_in(path)[1, 11] == "new"


# What is refused ---------------------------------------------------------------------------------


@guarantee("upserts")
@pytest.mark.parametrize("how", ["append", "create"])
def test_no_two_rows_are_equal_in_the_columns(path: Path, tmp_path: Path, how: str) -> None:
    twice = pa.concat_tables([table({(5, 1): "a", (6, 1): "a"}), table({(6, 1): "b"})])
    before = open_shuffle(path).version
    for write in (
        partial(append_shuffle, twice, path),
        partial(append_shuffle, twice, path, mode="upsert"),
        partial(write_shuffle, twice, tmp_path / "new", keys="customer", unique=UNIQUE),
    ):
        with pytest.raises(DuplicateKeyError, match=r"1 of the rows .*'customer': 6, 'order': 1"):
            write()
    assert open_shuffle(path).version == before
    with pytest.raises(ShuffleNotFoundError):
        open_shuffle(tmp_path / "new")


@guarantee("upserts")
def test_an_append_of_a_key_that_is_there_is_refused(path: Path) -> None:
    message = r"2 of the rows .* such as .*'customer': [12], 'order': 10.*mode=\"upsert\""
    with pytest.raises(DuplicateKeyError, match=message):
        append_shuffle(table({(1, 10): "new", (2, 10): "new", (7, 7): "new"}), path)
    append_shuffle(table({(7, 7): "new"}), path)
    assert not {*(path / "map_outputs").rglob("*.data")} - {
        path / f"{file.path}.shuffle.data"
        for output in open_shuffle(path).map_outputs
        for file in output.files
    }
    upsert(path, {(1, 11): "new"})
    with pytest.raises(DuplicateKeyError, match="1 of the rows have the key of a row that is"):
        append_shuffle(table({(1, 11): "newer"}), path)


@pytest.mark.parametrize("column", UNIQUE)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_no_column_of_a_key_is_null(path: Path, column: str, mode: str) -> None:
    rows = table({(5, 1): "a", (6, 1): "a"})
    i = rows.schema.get_field_index(column)
    rows = rows.set_column(i, column, pa.array([None, 1], rows.schema.field(column).type))
    with pytest.raises(DuplicateKeyError, match=f"column '{column}' is null in 1 of the rows"):
        append_shuffle(rows, path, mode=mode)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"unique": "order"}, OptionError, "partitioned by 'customer'"),
        ({"unique": ["customer", "customer"]}, OptionError, "a column is named twice"),
        ({"unique": 5}, OptionError, "unique=5: expected one column name or several"),
        ({"unique": ["customer", 5]}, OptionError, "expected one column name or several"),
        ({"unique": ["customer", "gone"]}, SchemaError, "gone"),
        ({"keys": None, "partitioner": RoundRobinPartitioner()}, OptionError, "'roundrobin' has"),
        ({"combine": {"state": "max"}, "keys": UNIQUE}, OptionError, "are combined"),
    ],
    ids=str,
)
def test_columns_that_identify_no_row(
    tmp_path: Path, how: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        create(tmp_path / "s", {(1, 1): "a"}, **how)
    assert not (tmp_path / "s").exists()


def test_the_columns_are_those_of_the_first_write(path: Path) -> None:
    create(path, {(5, 5): "a"}, mode="append", unique=["order", "customer"])
    with pytest.raises(SchemaError, match="identified by customer, order; cannot append"):
        create(path, {(6, 5): "a"}, mode="append", unique="customer")
    with pytest.raises(SchemaError, match="'order' is one of those that identify a row"):
        drop_columns(path, "order")
    create(path, {(6, 5): "a"}, mode="overwrite", unique="customer")
    assert open_shuffle(path).unique == ("customer",)


def test_texts_that_spark_pads_identify_nothing(tmp_path: Path) -> None:
    fields = [{"name": "c", "type": "string", "nullable": True,
               "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}}]  # fmt: skip
    spark_schema = json.dumps({"type": "struct", "fields": fields})
    schema = pa.schema([("c", pa.string())])
    how = {"num_subpartitions": 1, "partitioner": HashPartitioner("c")}
    with pytest.raises(SchemaError, match="column 'c' is CHAR, whose texts Spark pads"):
        begin_job(tmp_path / "s", schema, unique="c", spark_schema=spark_schema, **how)


@pytest.mark.parametrize("kind", ["PIPELINED", "PIPELINED_BOUNDED"])
def test_what_consumers_get_is_not_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    bounds = {"max_unconsumed_versions": 2} if kind == "PIPELINED_BOUNDED" else {}
    create(path, {(1, 1): "a"}, options=WriteOptions(sync=False, result_type=kind, **bounds))
    with pytest.raises(OptionError, match=f"is a {kind} result, whose consumers get the rows"):
        upsert(path, {(1, 1): "b"})
    with pytest.raises(DuplicateKeyError):
        append_shuffle(table({(1, 1): "b"}), path)


def test_masked_rows_are_not_counted_by_a_release(tmp_path: Path) -> None:
    path = tmp_path / "s"
    create(path, {(1, 1): "a"}, options=WriteOptions(sync=False, result_type="PIPELINED"))
    with arrow_shuffle.consume(path, consumer="c"):
        pass
    append_shuffle(table({(2, 1): "b", (3, 1): "b"}), path)
    delete_rows(path, {"customer": [2]}, erase=False, options=FAST)
    collect(path)  # releases what was consumed
    assert orders_in(path) == {(3, 1): "b"}
    assert open_shuffle(path).verify().ok


def test_a_repeated_upsert_says_what_it_wrote_after_it_expired(path: Path) -> None:
    for number in range(1, 6):
        rows = {(1, 10): f"{number}", (2, 10): f"{number}", (number, 99): f"{number}"}
        first = upsert(path, rows, transaction=("daily", number))
        if number == 2:
            second = first
    collect_garbage(path, retention=timedelta(0), compact_log=True)
    again = upsert(path, {}, transaction=("daily", 2))
    assert (again.num_rows, again.num_bytes, again.num_map_outputs) == (
        second.num_rows, second.num_bytes, second.num_map_outputs
    )  # fmt: skip
    newest = history_of(open_storage(path))[-1]
    assert (newest.operation, newest.num_rows, newest.num_outputs) == ("upsert", 3, 1)


def test_without_such_columns_nothing_is_replaced(tmp_path: Path) -> None:
    create(tmp_path / "s", {(1, 1): "a"}, unique=None)
    with pytest.raises(OptionError, match="nothing identifies a row"):
        upsert(tmp_path / "s", {(1, 1): "b"})
    with pytest.raises(OptionError, match="mode='upsert': nothing identifies a row"):
        create(tmp_path / "new", {(1, 1): "a"}, unique=None, mode="upsert")
    append_shuffle(table({(1, 1): "b"}), tmp_path / "s")
    assert open_shuffle(tmp_path / "s").num_rows == 2


def test_rows_that_wait_for_a_flush_are_none_of_a_key(path: Path) -> None:
    how = {"schema": table({}).schema, "n": 4, "partitioner": partitioner_of(path)}
    job = begin(path, **how)
    with pytest.raises(OptionError, match="customer, order identify a row, and rows that wait"):
        commit_job(job, [run_map_task(job, 0, 0, [])], mode="append", pending=True)


def test_keys_that_a_writer_doubled_are_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upsert(path, {(1, 11): "new", (3, 3): "new"})
    delete_rows(path, {"customer": [2]}, erase=False, options=FAST)
    assert open_shuffle(path).verify().ok
    with monkeypatch.context() as patch:
        patch.setattr(unique_rows, "search", lambda *_, **__: {})
        append_shuffle(table({(1, 11): "newer", (3, 3): "newer"}), path)
    message = r"2 of the rows have the key of another one, such as .*, in version 4"
    with pytest.raises(CorruptShuffleError, match=message):
        open_shuffle(path).verify()
    (problem,) = open_shuffle(path).verify(raise_on_damage=False).problems
    assert "a writer did not keep to it" in str(problem)
    assert open_shuffle(path, 3).verify().ok


def test_columns_that_identify_a_row_are_said_later(tmp_path: Path) -> None:
    path = tmp_path / "s"
    create(path, {(1, 10): "old", (1, 11): "old"}, unique=None)
    with before_first_entry(lambda: append_shuffle(table({(2, 10): "other"}), path)):
        identify_rows(path, UNIQUE)
    assert open_shuffle(path).unique == UNIQUE
    upsert(path, {(2, 10): "new"})
    assert orders_in(path) == {(1, 10): "old", (1, 11): "old", (2, 10): "new"}
    identify_rows(path, ())
    append_shuffle(table({(2, 10): "twice"}), path)
    with pytest.raises(DuplicateKeyError, match="1 of the rows have the key of another one"):
        identify_rows(path, UNIQUE)
    assert open_shuffle(path).unique == ()


def test_an_append_that_began_before_is_compared_too(tmp_path: Path) -> None:
    path = tmp_path / "s"
    create(path, {(1, 10): "old"}, unique=None)
    with (
        before_first_entry(lambda: identify_rows(path, UNIQUE)),
        pytest.raises(DuplicateKeyError, match="the key of a row that is there"),
    ):
        append_shuffle(table({(1, 10): "new"}), path)


def test_rows_that_are_added_meanwhile_are_looked_at_too(tmp_path: Path) -> None:
    path = tmp_path / "s"
    create(path, {(1, 10): "old"}, unique=None)
    with (
        before_first_entry(lambda: append_shuffle(table({(1, 10): "twice"}), path)),
        pytest.raises(DuplicateKeyError, match="'customer': 1, 'order': 10"),
    ):
        identify_rows(path, UNIQUE)
    with pytest.raises(OptionError, match="partitioned by 'customer'"):
        identify_rows(path, "order")


@pytest.mark.parametrize("names", [{"a": "b", "v": "a"}, {"a": "b"}])
def test_columns_are_those_that_were_meant(tmp_path: Path, names: dict[str, str]) -> None:
    path = tmp_path / "s"
    rows = pa.table({"k": [1, 1], "a": ["x", "y"], "v": ["same", "same"]})
    write_shuffle(rows, path, keys="k", num_subpartitions=1, options=FAST)
    with (
        before_first_entry(lambda: rename_columns(path, names)),
        pytest.raises((CommitConflictError, SchemaError), match=r"altered the columns|'a' "),
    ):
        identify_rows(path, ["k", "a"])
    assert open_shuffle(path).unique == ()


def test_where_some_rows_lie_elsewhere_nothing_identifies_them(tmp_path: Path) -> None:
    rows = table({(1, 10): "a", (2, 10): "a"})
    append_misplaced(
        tmp_path / "s", rows, HashPartitioner("customer"), lambda ids, _: 1 - ids,
        num_subpartitions=2,
    )  # fmt: skip
    with pytest.raises(OptionError, match="some rows do not lie where the partitioner places them"):
        identify_rows(tmp_path / "s", UNIQUE)


def test_rows_that_wait_keep_a_shuffle_from_having_an_identity(tmp_path: Path) -> None:
    path = tmp_path / "s"
    create(path, {(1, 10): "old"}, unique=None)
    job = begin(path, table({}).schema, n=4, partitioner=partitioner_of(path))
    rows = table({(1, 10): "waits"}).to_batches()
    commit_job(job, [run_map_task(job, 0, 0, rows)], mode="append", pending=True)
    with pytest.raises(SchemaError, match="Rows that wait to be flushed have these"):
        create(path, {(1, 10): "new"}, mode="overwrite")
    with pytest.raises(CommitConflictError, match="wait to be flushed"):
        identify_rows(path, UNIQUE)


# What others do meanwhile ------------------------------------------------------------------------


def merge(path: Path, by: str) -> None:
    merge_shuffle(path, policy=MergePolicy(rewrite="always"), by=by, options=FAST)


MEANWHILE: dict[str, Callable[[Path], object]] = {
    "upsert": lambda path: upsert(path, {(1, 11): "other", (9, 9): "other"}),
    "append": lambda path: append_shuffle(table({(9, 9): "other", (8, 8): "other"}), path),
    "merge by map output": lambda path: merge(path, "map_output"),
    "merge by subpartition": lambda path: merge(path, "subpartition"),
    "delete": lambda path: delete_rows(path, {"customer": [1]}, erase=False, options=FAST),
    "erase": lambda path: delete_rows(path, {"customer": [1]}, options=FAST),
    "rename": lambda path: rename_columns(path, {"order": "number", "state": "was"}),
}


@guarantee("upserts")
@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_what_others_commit_meanwhile_counts(path: Path, meanwhile: str) -> None:
    append_shuffle(table({(4, 4): "old"}), path)
    with before_first_entry(lambda: MEANWHILE[meanwhile](path)):
        upsert(path, {(1, 11): "new", (9, 9): "new"})
    if meanwhile == "rename":
        rename_columns(path, {"number": "order", "was": "state"})
    expected = {(1, 10): "old", (2, 10): "old", (4, 4): "old", (1, 11): "new", (9, 9): "new"}
    if meanwhile == "append":
        expected[8, 8] = "other"
    if meanwhile in ("delete", "erase"):
        del expected[1, 10]
    assert orders_in(path) == expected


@guarantee("upserts")
@pytest.mark.parametrize("meanwhile", ["upsert", "append"])
def test_an_append_is_refused_where_another_writer_brought_its_key(
    path: Path, meanwhile: str
) -> None:
    with (
        before_first_entry(lambda: MEANWHILE[meanwhile](path)),
        pytest.raises(DuplicateKeyError, match=r"1 of the rows .*'customer': 9, 'order': 9"),
    ):
        append_shuffle(table({(9, 9): "new"}), path)
    assert orders_in(path)[9, 9] == "other"


@guarantee("upserts")
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_search_that_could_not_be_ended_counts_for_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """A commit decides again where what it read was removed, and others went on."""
    monkeypatch.setattr(unique_keys, "MOST_KEYS", 1)
    real, calls = unique_rows.search, count(1)

    def search(*args, **how):
        if next(calls) == at:
            append_shuffle(table({(9, at): "other"}), path)
            raise CorruptShuffleError(args[0] and "a file is gone")
        return real(*args, **how)

    monkeypatch.setattr(unique_rows, "search", search)
    upsert(path, {(1, 11): "new", (2, 10): "new", (3, 3): "new", (9, at): "new"})
    assert orders_in(path) == {
        (1, 10): "old", (1, 11): "new", (2, 10): "new", (3, 3): "new", (9, at): "new"
    }  # fmt: skip


@guarantee("upserts")
@pytest.mark.parametrize("by", ["map_output", "subpartition"])
def test_a_merge_goes_on_beside_upserts(path: Path, by: str) -> None:
    for order in range(4):
        append_shuffle(table({(customer, order): "old" for customer in range(6)}), path)
    expected = orders_in(path)
    numbers = iter(range(100))

    def others() -> None:
        number = next(numbers)
        new = {(number % 6, number % 4): f"{number}", (50 + number, 0): f"{number}"}
        expected.update(new)
        upsert(path, new)

    with before_first_entry(lambda: [others() for _ in range(3)]):
        merge(path, by)
    assert orders_in(path) == expected
    with before_first_entry(others):
        merge(path, by)
    assert orders_in(path) == expected
    assert len(open_shuffle(path).map_outputs) <= 2


def test_with_an_expected_version_an_upsert_is_a_conflict(path: Path) -> None:
    upsert(path, {(1, 11): "new"})
    for write in (upsert, lambda path, orders, **how: append_shuffle(table(orders), path, **how)):
        with pytest.raises(CommitConflictError, match="was followed by version 2"):
            write(path, {(6, 6): "new"}, expected_version=1)


def test_what_can_be_a_sequence(tmp_path: Path) -> None:
    rows = pa.table({"k": [1], "v": ["a"], "tags": [{"a": 1}], "rev": [1]})

    def refused(error: type[Exception], match: str, **how: object) -> None:
        with pytest.raises(error, match=match):
            write_shuffle(rows, tmp_path / "none", keys="k", **how)
        assert not (tmp_path / "none").exists()

    refused(OptionError, "nothing identifies a row", sequence_by="rev")
    refused(OptionError, "no change changes", unique="k", sequence_by="k")
    refused(OptionError, "name of one column", unique="k", sequence_by=["rev"])
    refused(SchemaError, "'when'", unique="k", sequence_by="when")
    rows = rows.set_column(2, "tags", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())))
    refused(SchemaError, "tags", unique="k", sequence_by="tags")


def test_a_sequence_is_kept_with_the_shuffle(tmp_path: Path) -> None:
    rows = pa.table({"k": [1, 2], "rev": [5, 5], "other": [0, 0]})
    path = tmp_path / "rows"
    write_shuffle(rows, path, keys="k", unique="k")
    late = pa.table({"k": [1], "rev": [4], "other": [1]})
    append_shuffle(late, path, mode="upsert", sequence_by="rev")
    with pytest.raises(SchemaError, match="Leave sequence_by out"):
        append_shuffle(late, path, mode="upsert", sequence_by="other")
    with pytest.raises(SchemaError, match="says which change is the newest"):
        drop_columns(path, ["rev"])
    rename_columns(path, {"rev": "revision"})
    late = late.rename_columns(["k", "revision", "other"])
    append_shuffle(late, path, mode="upsert")
    assert open_shuffle(path).to_table()["revision"].to_pylist() == [5, 5]
    with pytest.raises(DuplicateKeyError):  # an append adds rows, and replaces none
        append_shuffle(late, path)
    with pytest.raises(OptionError, match="the shuffle has such a column"):
        append_shuffle(late, path, mode="upsert", row_kind="other")


def test_two_upserts_leave_the_newest_whichever_commits_first(tmp_path: Path) -> None:
    """The second to commit has not seen the row of the first when it began."""
    for first, second in ((3, 2), (2, 3)):
        path = tmp_path / f"rows{first}"
        how = {"keys": "k", "unique": "k", "sequence_by": "rev", "num_subpartitions": 2}
        write_shuffle(pa.table({"k": [0], "rev": [0]}), path, **how)
        jobs = []
        for rev in (first, second):
            changes = pa.table({"k": [9, 9], "rev": [rev - 2, rev]})
            job = begin_job(
                open_storage(path),
                changes.schema,
                num_subpartitions=2,
                partitioner=HashPartitioner("k"),
                options=SMALL,
            )
            # Of two map tasks, of which one has the older change alone.
            batches = [changes.slice(i, 1).to_batches() for i in range(2)]
            jobs.append((job, [run_map_task(job, i, 0, each) for i, each in enumerate(batches)]))
        for job, statuses in jobs:
            commit_job(job, statuses, mode="upsert")
        found = open_shuffle(path).to_table().to_pylist()
        assert sorted((row["k"], row["rev"]) for row in found) == [(0, 0), (9, 3)]
        assert not open_shuffle(path).verify().problems


SEQUENCED = {"keys": "k", "unique": "k", "sequence_by": "rev", "num_subpartitions": 2}


def test_changes_say_how_new_they_are(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    write_shuffle(pa.table({"k": [1], "rev": [5]}), path, **SEQUENCED)
    for change in (
        lambda rows: append_shuffle(rows, path, mode="upsert"),
        lambda rows: write_shuffle(
            rows, path, keys="k", mode="upsert", options=WriteOptions(schema_evolution=True)
        ),
    ):
        with pytest.raises(SchemaError, match="the rows have no such column"):
            change(pa.table({"k": [1]}))
    nulls = pa.table({"k": pa.nulls(2, pa.int64()), "rev": [1, 2]})
    with pytest.raises(DuplicateKeyError, match="'k' is null in 2 of the rows"):
        append_shuffle(nulls, path, mode="upsert")
    assert open_shuffle(path).version == 1


def test_changes_that_are_all_late_replace_nothing(tmp_path: Path) -> None:
    """Who reads what versions add goes on, and gets none of them."""
    path = tmp_path / "rows"
    write_shuffle(pa.table({"k": [1], "rev": [5]}), path, **SEQUENCED)
    receipt = append_shuffle(pa.table({"k": [1, 1], "rev": [1, 2]}), path, mode="upsert")
    assert (receipt.num_rows, receipt.num_replaced) == (0, 0)
    receipt = append_shuffle(pa.table({"k": [7, 7], "rev": [2, 1]}), path, mode="upsert")
    assert (receipt.num_rows, receipt.num_replaced) == (1, 0)
    found = open_shuffle(path)
    assert arrow_shuffle.open_shuffle(path).added(1).to_table().to_pylist() == [{"k": 7, "rev": 2}]
    assert sorted(found.to_table()["rev"].to_pylist()) == [2, 5]
    assert not arrow_shuffle.open_shuffle(path).verify().problems
    merge_shuffle(path, by="subpartition", policy=MergePolicy(rewrite="always"))
    assert sorted(open_shuffle(path).to_table()["rev"].to_pylist()) == [2, 5]


def test_an_upsert_says_the_sequence_without_repeating_what_identifies_a_row(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows"
    rows = pa.table({"k": [1], "rev": [5]})
    write_shuffle(rows, path, keys="k", unique="k", num_subpartitions=2)
    late = pa.table({"k": [1], "rev": [3]})
    write_shuffle(late, path, keys="k", sequence_by="rev", mode="upsert")
    assert open_shuffle(path).to_table().to_pylist() == rows.to_pylist()
    with pytest.raises(OptionError, match="nothing identifies a row"):
        write_shuffle(late, path, keys="k", sequence_by="rev", mode="overwrite")
    for unique in ([], ["k", "rev"]):
        with pytest.raises(OptionError, match="sequence_by='rev'"):
            identify_rows(path, unique)


def test_a_feed_in_order_does_not_meet_a_sequence_that_came_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    rows = pa.table({"k": [1, 2], "rev": [5, 5]})
    write_shuffle(rows, path, keys="k", unique="k", num_subpartitions=2)
    feed = pa.table({"k": [1, 2], "rev": [9, 9], "op": ["d", "u"]})

    def meanwhile() -> None:
        append_shuffle(pa.table({"k": [3], "rev": [1]}), path, mode="upsert", sequence_by="rev")

    with (
        before_first_entry(meanwhile),
        pytest.raises(CommitConflictError, match="nothing was committed"),
    ):
        append_shuffle(feed, path, mode="upsert", row_kind="op")
    assert sorted(open_shuffle(path).to_table()["rev"].to_pylist()) == [1, 5, 5]
