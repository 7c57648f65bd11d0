"""Groups that are made again in a result: which, what becomes of others, and what is refused."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrow_shuffle
from arrow_shuffle.errors import (
    CommitConflictError,
    OptionError,
    SchemaError,
    ShuffleNotFoundError,
)
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import before_first_entry
from tests.support.small_shuffles import FAST

SCHEMA = pa.schema([("customer", pa.int64()), ("spent", pa.int64())])
NOTHING = SCHEMA.empty_table()
CALLED: list[int] = []


def spent(key, orders: pa.Table):
    (customer,) = (value.as_py() for value in key)
    CALLED.append(customer)
    total = pc.sum(orders["price"]).as_py()
    return pa.table([[customer], [total]], schema=SCHEMA) if total else NOTHING


def other(key, orders: pa.Table):
    return spent(key, orders)


def orders(prices, start=0):
    numbers = np.arange(start, start + len(prices))
    customers, price = zip(*prices, strict=True) if prices else ((), ())
    return pa.table(
        {
            "customer": pa.array(customers, pa.int64()),
            "number": numbers,
            "price": pa.array(price, pa.int64()),
        }
    )


@pytest.fixture
def source(tmp_path):
    rows = orders([(1, 5), (1, 6), (2, 7), (7, 70), (8, 80)])
    how = {"keys": "customer", "num_subpartitions": 4, "unique": ["customer", "number"]}
    arrow_shuffle.write_shuffle(rows, tmp_path / "orders", options=FAST, **how)
    return arrow_shuffle.open_shuffle(tmp_path / "orders")


@pytest.fixture
def result(tmp_path):
    return tmp_path / "spent"


def compute(source, result, function=spent, since="last", name=None, **how):
    CALLED.clear()
    groups = source.newest().map_groups(function, SCHEMA, since=since, name=name)
    return groups.write(result, mode="replace_groups", options=FAST, **how)


def rows_of(result):
    rows = arrow_shuffle.open_shuffle(result).to_table().to_pylist()
    found = {row["customer"]: row["spent"] for row in rows}
    assert len(found) == len(rows)
    return found


@guarantee("changed groups")
def test_a_group_that_yields_nothing_today_and_one_without_rows_vanish(source, result):
    assert "of which there was no result" in compute(source, result).notes[0]
    assert rows_of(result) == {1: 11, 2: 7, 7: 70, 8: 80}
    source.upsert(pa.table({"customer": [7], "number": [3], "price": [0]}))
    source.newest().delete({"customer": [8]}, erase=False)
    receipt = compute(source, result)
    assert CALLED == [7]
    assert "computed 2 groups" in str(receipt)
    assert receipt.num_replaced == 2
    assert rows_of(result) == {1: 11, 2: 7}


@guarantee("changed groups")
def test_a_source_that_was_rolled_back_by_two_versions_gives_a_full_run(source, result):
    source.append(orders([(1, 100)], 10))
    source.newest().append(orders([(2, 100), (9, 9)], 20))
    compute(source, result)
    assert rows_of(result) == {1: 111, 2: 107, 7: 70, 8: 80, 9: 9}
    source.newest().rollback(1)
    compute(source, result)
    assert sorted(CALLED) == [1, 2]
    assert rows_of(result) == {1: 11, 2: 7, 7: 70, 8: 80}


PROGRAM = """
import sys
import tests.unit.operators.test_changed_groups as test
import arrow_shuffle, os, signal
test.compute(arrow_shuffle.open_shuffle(sys.argv[1]), sys.argv[2])
os.kill(os.getpid(), signal.SIGKILL)
"""


@guarantee("changed groups")
def test_killed_after_the_put_and_run_again_it_is_the_same(source, result):
    for number in range(2):
        command = [sys.executable, "-c", PROGRAM, source.path, os.fspath(result)]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        before = rows_of(result)
        receipt = compute(source, result)
        assert receipt.is_repetition
        assert "nothing was computed" in str(receipt)
        assert not CALLED
        assert receipt.version == number + 1
        assert rows_of(result) == before
        source.append(orders([(2, 1)], 10 + number))


def test_merges_and_renamed_columns_of_the_source_compute_nothing_and_are_seen(source, result):
    source.append(orders([(1, 1)], 10))
    compute(source, result)
    source.newest().merge()
    source.newest().rename_columns({"number": "line"})
    receipt = compute(source, result)
    assert not CALLED
    assert receipt.version == 2  # which has seen them, so that they may expire
    source.newest().collect_garbage(retention=timedelta(0))
    source.newest().append(orders([(2, 1)], 11).rename_columns(["customer", "line", "price"]))
    compute(source, result)
    assert CALLED == [2]


def test_a_result_that_was_rolled_back_or_changed_becomes_a_full_run(source, result):
    compute(source, result)
    source.append(orders([(2, 100)], 10))
    compute(source, result)
    expected = rows_of(result)
    shuffle = arrow_shuffle.open_shuffle(result)
    shuffle.rollback(1)
    assert "others changed 1 in" in str(compute(source, result))
    assert CALLED == [2]
    assert rows_of(result) == expected
    shuffle.newest().delete({"customer": [1]})
    shuffle.newest().append(pa.table([[99], [1]], schema=SCHEMA))
    compute(source, result)
    assert CALLED == [1]
    assert rows_of(result) == expected
    shuffle.newest().delete({"customer": [1]})
    shuffle.newest().collect_garbage(retention=timedelta(0))
    receipt = compute(source, result)
    assert "since others changed" in str(receipt)
    assert rows_of(result) == expected


def test_what_others_wrote_is_replaced_and_keeps_its_layout(source, result):
    rows = pa.table([[5], [5]], schema=SCHEMA)
    how = {"keys": "customer", "num_subpartitions": 7, "unique": "customer", "sort_by": ["spent"]}
    arrow_shuffle.write_shuffle(rows, result, options=FAST, **how)
    receipt = compute(source, result)
    assert "since others wrote what was there" in str(receipt)
    source.append(orders([(8, 1)], 10))
    compute(source, result)
    assert CALLED == [8]
    assert rows_of(result) == {1: 11, 2: 7, 7: 70, 8: 81}
    shuffle = arrow_shuffle.open_shuffle(result)
    assert (shuffle.num_subpartitions, shuffle.unique) == (7, ("customer",))
    assert shuffle.sort_by == (("spent", "ascending"),)
    shuffle.verify()


def test_an_expired_version_of_the_source_says_to_compute_all(source, result):
    compute(source, result)
    source.append(orders([(1, 1)], 10))
    source.newest().collect_garbage(retention=timedelta(0))
    with pytest.raises(ShuffleNotFoundError, match=r'has expired.*since="all"'):
        compute(source, result)
    assert 'as since="all" asks' in str(compute(source, result, since="all"))
    assert rows_of(result)[1] == 12


def test_another_function_source_and_key_are_refused(source, result, tmp_path):
    compute(source, result)
    with pytest.raises(OptionError, match=r"was made by 'spent'.*this is 'other'.*since=\"all\""):
        compute(source, result, other)
    compute(source, result, other, since="all")
    again = tmp_path / "again"
    arrow_shuffle.write_shuffle(
        source.to_table(), again, keys="customer", num_subpartitions=4, options=FAST
    )
    with pytest.raises(OptionError, match="is another shuffle"):
        compute(arrow_shuffle.open_shuffle(again), result, other)
    by_spent = tmp_path / "by spent"
    rows = pa.table([[5], [5]], schema=SCHEMA)
    arrow_shuffle.write_shuffle(rows, by_spent, keys="spent", num_subpartitions=4, options=FAST)
    with pytest.raises(OptionError, match="is partitioned by spent, and the groups are by cust"):
        compute(source, by_spent)
    with pytest.raises(OptionError, match=r"keys=\['spent'\]: the groups are by customer"):
        compute(source, tmp_path / "new", keys="spent")
    pinned = source.map_groups(other, SCHEMA, since="last")
    source.append(orders([(1, 1)], 10))
    compute(source, result, other)
    with pytest.raises(OptionError, match="open the newest"):
        pinned.write(result, mode="replace_groups")


def test_names_and_modes_that_do_not_fit_are_refused(source, result):
    for function in (lambda key, rows: rows, functools.partial(spent)):
        with pytest.raises(OptionError, match="give name="):
            source.map_groups(function, SCHEMA, since="last")
    with pytest.raises(OptionError, match="since=3: expected 'last'"):
        source.map_groups(spent, SCHEMA, since=3)
    with pytest.raises(OptionError, match="since=None: expected 'last'"):
        source.map_groups(spent, SCHEMA, name="spent")
    changing = source.map_groups(functools.partial(spent), SCHEMA, since="last", name="spent")
    for run in (changing.to_table, changing.explain, lambda: changing.write(result)):
        with pytest.raises(OptionError, match="which groups are made, the result says"):
            run()
    with pytest.raises(OptionError, match="which groups are made, the result says"):
        changing.select("spent")
    with pytest.raises(OptionError, match="which groups are replaced is known of map_groups"):
        source.map_groups(spent, SCHEMA).write(result, mode="replace_groups")
    computed = source.aggregate("customer", {"n": ("*", "count")})
    counted = computed.map_groups(spent, SCHEMA, since="last")
    with pytest.raises(OptionError, match="rows of one shuffle"):
        counted.write(result, mode="replace_groups")


def test_a_row_of_another_key_than_its_group_is_refused(source, result):
    def shifted(rows: pa.Table):
        return pa.table([[3], [1]], schema=SCHEMA)

    with pytest.raises(SchemaError, match=r"a row of the group customer=\d of .* has customer=3"):
        compute(source, result, shifted)


def test_what_others_change_in_the_result_meanwhile_is_a_conflict_unless_it_is_a_merge(
    source, result
):
    compute(source, result)
    source.append(orders([(1, 100), (2, 100)], 10))
    shuffle = arrow_shuffle.open_shuffle(result)
    with (
        before_first_entry(lambda: shuffle.delete({"customer": [2]})),
        pytest.raises(CommitConflictError, match="which changed rows"),
    ):
        compute(source, result)
    with before_first_entry(lambda: shuffle.newest().merge()):
        compute(source, result)
    assert rows_of(result) == {1: 111, 2: 107, 7: 70, 8: 80}
    source.newest().append(orders([(1, 1)], 30))
    with before_first_entry(lambda: compute(source, result)):
        receipt = compute(source, result)
    assert receipt.is_repetition
    assert rows_of(result)[1] == 112


def test_selections_of_the_source_keep_their_meaning(source, result):
    def write():
        few = source.newest().select("price", filter="price > 6", key_values={"customer": [1, 2]})
        few.map_groups(spent, SCHEMA, since="last").write(result, mode="replace_groups")

    write()
    assert rows_of(result) == {2: 7}
    source.append(orders([(1, 3), (1, 9), (8, 1)], 10))
    write()
    assert rows_of(result) == {1: 9, 2: 7}


def test_explain_says_how_many_chunks_have_rows_of_the_groups(tmp_path, result):
    rows = orders([(customer, 1) for customer in range(200) for _ in range(50)])
    small = arrow_shuffle.WriteOptions(sync=False, chunk_bytes=4096)
    how = {"keys": "customer", "num_subpartitions": 100}
    arrow_shuffle.write_shuffle(rows, tmp_path / "s", options=small, **how)
    source = arrow_shuffle.open_shuffle(tmp_path / "s")
    compute(source, result)
    source.append(orders([(1, 1), (2, 1)], 100_000), options=small)
    changing = source.newest().map_groups(spent, SCHEMA, since="last")
    computed, chunks = changing.explain(into=result).notes
    assert computed.endswith("2 changed from version 1 to 2")
    touched, total = (int(word) for word in chunks.split() if word.isdigit())
    assert 2 <= touched <= 8 < total
    assert chunks in str(changing.explain(into=result))


def test_a_write_replaces_the_groups_of_its_rows(source):
    rows = orders([(1, 1), (1, 2), (9, 9)], 50)
    receipt = arrow_shuffle.write_shuffle(
        rows, source.path, keys="customer", num_subpartitions=4, mode="replace_groups"
    )
    assert receipt.num_replaced == 2
    found = source.newest().to_table().to_pylist()
    prices = sorted((row["customer"], row["price"]) for row in found)
    assert prices == [(1, 1), (1, 2), (2, 7), (7, 70), (8, 80), (9, 9)]
    round_robin = arrow_shuffle.RoundRobinPartitioner()
    with pytest.raises(OptionError, match=r"mode='replace_groups'.*has none"):
        arrow_shuffle.write_shuffle(
            rows, f"{source.path}-2", partitioner=round_robin, num_subpartitions=4,
            mode="replace_groups",
        )  # fmt: skip


def test_columns_of_the_source_that_come_or_go_compute_all_groups(source, result):
    def columns(key, rows: pa.Table):
        return pa.table({"customer": rows["customer"][:1], "spent": [len(rows.schema)]})

    compute(source, result, columns)
    source.newest().drop_columns(["price"])
    receipt = compute(source, result, columns)
    assert "since the columns of" in receipt.notes[0]
    assert {*rows_of(result).values()} == {2}
