"""Shuffles of any numbers of subpartitions, whatever happened to them, against DuckDB.

Joins of all kinds, of joins too, cogroups and functions of subpartitions, in the tasks of one
thread, which loses nothing by any number.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from math import gcd

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from arrow_shuffle import MergePolicy, open_shuffle
from arrow_shuffle.operation import Rows
from tests.support.exhaustive import examples
from tests.support.guarantees import guarantee
from tests.support.operations import written
from tests.support.small_shuffles import FAST

NUMBERS = st.sampled_from([1, 2, 3, 4, 6, 8, 9, 12, 16, 30])
KEYS = st.one_of(st.none(), st.integers(-4, 30))
KINDS = st.sampled_from(["inner", "left", "right", "full", "semi", "anti"])
LIFE = st.lists(
    st.one_of(
        st.tuples(st.just("rescale"), NUMBERS),
        st.tuples(st.just("append"), st.lists(KEYS, max_size=12)),
        st.tuples(st.just("delete"), st.integers(-4, 30)),
        st.tuples(st.just("merge"), st.sampled_from(["map_output", "subpartition"])),
    ),
    max_size=4,
)
SIDE = st.tuples(NUMBERS, st.lists(KEYS, max_size=40), LIFE, st.booleans())


def table(name, keys):
    numbers = pa.array(range(len(keys)), pa.int64())
    return pa.table({"k": pa.array(keys, pa.int64()), name: numbers})


def lived(path, name, side):
    """Write a side, and let it live; return its shuffle."""
    n, keys, life, is_sorted = side
    shuffle = written(path, table(name, keys), "k", n=n, sort_by=name if is_sorted else ())
    for what, how in life:
        if what == "rescale":
            shuffle.rescale(how)
        elif what == "append":
            shuffle.append(table(name, how), options=FAST)
        elif what == "delete":
            shuffle.delete({"k": how}, erase=False, options=FAST)
        else:
            shuffle.merge(how, policy=MergePolicy(rewrite="always"), options=FAST)
        shuffle = shuffle.newest()
    return shuffle


def counted(rows):
    return Counter(tuple(row.items()) for row in rows.to_pylist())


def joined_by_duckdb(how, columns, left, right):
    kind = {"full": "FULL OUTER", "semi": "SEMI", "anti": "ANTI"}.get(how, how.upper())
    key = {"right": "r.k", "full": "coalesce(l.k, r.k)"}.get(how, "l.k")
    names = ", ".join([f"{key} AS k", *(name for name in columns if name != "k")])
    with duckdb.connect() as connection:
        connection.register("l", left)
        connection.register("r", right)
        query = f"SELECT {names} FROM l {kind} JOIN r ON l.k = r.k"
        return connection.sql(query).arrow().read_all()


@pytest.fixture(scope="module")
def one_task():
    with ThreadPoolExecutor(1) as pool:
        yield pool


@guarantee("any n")
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=examples(25, 300),
    deadline=None,
)
@given(left=SIDE, right=SIDE, third=SIDE, kinds=st.tuples(KINDS, KINDS))
def test_rows_are_those_of_the_tables(tmp_path_factory, one_task, left, right, third, kinds):
    path = tmp_path_factory.mktemp("numbers")
    sides = [
        lived(path / name, name, one) for name, one in zip("abc", (left, right, third), strict=True)
    ]
    tables = [side.to_table() for side in sides]
    numbers = [side.num_subpartitions for side in sides]
    event(f"read by {gcd(*numbers[:2])} of {min(numbers[:2])}")

    def rows(asked: Rows) -> pa.Table:
        return asked.read(executor=one_task).read_all()

    once = sides[0].join(sides[1], on="k", how=kinds[0])
    assert once.num_subpartitions == gcd(*numbers[:2])
    expected = joined_by_duckdb(kinds[0], once.schema.names, *tables[:2])
    assert counted(rows(once)) == counted(expected)

    twice = once.join(sides[2], on="k", how=kinds[1])
    both = joined_by_duckdb(kinds[1], twice.schema.names, expected, tables[2])
    assert counted(rows(twice)) == counted(both)
    assert twice.num_subpartitions == gcd(*numbers)
    twice.write(path / "out", options=FAST, executor=one_task)
    kept = open_shuffle(path / "out")
    assert counted(kept.to_table()) == counted(both)
    assert kept.verify().problems == ()

    def sizes(key, a: pa.Table, b: pa.Table):
        return pa.table({"k": [key[0]], "n": [f"{a.num_rows} {b.num_rows}"]})

    of_keys = [Counter(each["k"].to_pylist()) for each in tables]
    groups = rows(sides[0].cogroup(sides[1]).map_groups(sizes, "k bigint, n string")).to_pylist()
    assert {group["k"]: group["n"] for group in groups} == {
        key: f"{of_keys[0][key]} {of_keys[1][key]}" for key in {*of_keys[0], *of_keys[1]}
    }
    assert len(groups) == len({*of_keys[0], *of_keys[1]})

    def each(number, *readers):
        for side, reader in enumerate(readers):
            for batch in reader:
                ids = [pa.array([i] * batch.num_rows, pa.int64()) for i in (number, side)]
                yield pa.record_batch([*ids, batch["k"]], names=["number", "side", "k"])

    schema = "number bigint, side bigint, k bigint"
    found = rows(sides[0].map_subpartitions(each, schema, others=sides[1:])).to_pylist()
    for side, keys in enumerate(of_keys):
        assert Counter(row["k"] for row in found if row["side"] == side) == keys
    n = gcd(*numbers)
    for row in found:
        assert row["number"] == sides[0].subpartition_of(k=row["k"]) % n
