"""Rows of shuffles of several numbers of subpartitions, read together by one that divides all."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pyarrow as pa
import pytest

from arrow_format.jobs.commit import commit_job
from arrow_shuffle import (
    BroadcastPartitioner,
    HashPartitioner,
    RangePartitioner,
    open_shuffle,
)
from arrow_shuffle.errors import CorruptShuffleError, OptionError
from tests.support.foreign_writer import append_misplaced
from tests.support.operations import written
from tests.support.small_shuffles import FAST, begun_with


def rows(*ids, v=0):
    return pa.table({"k": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids), pa.int64())})


def of(path, *ids, n, v=0, **how):
    return written(path, rows(*ids, v=v), "k", n=n, **how)


@pytest.fixture
def sides(tmp_path):
    """Two shuffles of 8 and of 12, with nulls."""
    left = of(tmp_path / "a", *range(60), None, None, n=8)
    return left, of(tmp_path / "b", *range(30, 90), None, n=12, v=1)


def counted(table):
    return Counter(map(str, table.to_pylist()))


def test_a_left_join_of_8_and_12_is_that_of_duckdb(sides, tmp_path):
    left, right = sides
    joined = left.join(right, on="k", how="left", suffixes=("", "_r"))
    assert joined.num_subpartitions == 4
    a, b = left.to_table(), right.to_table()
    query = "SELECT a.k, a.v, b.v AS v_r FROM a LEFT JOIN b ON a.k = b.k"
    with duckdb.connect() as connection:
        connection.register("a", a)
        connection.register("b", b)
        expected = connection.sql(query).arrow().read_all()
    assert counted(joined.to_table()) == counted(expected)
    reads = dict(joined.explain().reads)
    assert reads[left.path].scaled == "read by 4 subpartitions: 1 reads 1, 5 of 8"
    assert reads[right.path].scaled == "read by 4 subpartitions: 1 reads 1, 5, 9 of 12"
    joined.write(tmp_path / "out", options=FAST)
    out = open_shuffle(tmp_path / "out")
    assert (out.num_subpartitions, out.num_rows) == (4, expected.num_rows)
    for k in (3, 33):
        assert out.lookup({"k": k}).read_all()["k"].to_pylist() == [k]


def test_many_subpartitions_are_not_all_named(tmp_path):
    of(tmp_path, *range(90), n=2)
    read = of(tmp_path / "a", 1, n=4_000).join(open_shuffle(tmp_path), on="k", suffixes=("", "_r"))
    (_, first), _ = read.explain().reads
    assert first.scaled == "read by 2 subpartitions: 1 reads 1, 3, 5, 7, ... of 4,000"


def test_what_an_operation_makes_is_made_by_fewer_subpartitions(sides, tmp_path):
    third = of(tmp_path / "c", *range(50), n=6, v=2)
    joined = sides[0].join(sides[1], on="k", suffixes=("", "_r"))
    for made in (
        joined.join(third, on="k", suffixes=("", "_c")),
        third.join(joined, on="k", suffixes=("_c", "")),
        joined.select("k", filter="v_r = 1").join(third.select(), on="k", suffixes=("", "_c")),
    ):
        assert made.num_subpartitions == 2
        assert sorted(made.to_table()["k"].to_pylist()) == [*range(30, 50)]
        assert "1 reads 1, 3, 5 of 6" in str(made.explain())
    counts = sides[0].aggregate("k", {"n": ("*", "count")})
    both = counts.join(third, on="k").aggregate("k", {"m": ("n", "max")})
    assert both.num_subpartitions == 2
    assert sorted(both.to_table()["k"].to_pylist()) == [*range(50)]


def test_a_broadcast_side_stays_as_it_is(sides, tmp_path):
    everyone = written(tmp_path / "e", rows(31, 32), partitioner=BroadcastPartitioner(), n=3)
    known = sides[0].join(everyone, on="k", how="semi").join(sides[1], on="k", suffixes=("", "_r"))
    assert known.num_subpartitions == 4
    assert sorted(known.to_table()["k"].to_pylist()) == [31, 32]

    def count(number, *readers):
        yield pa.record_batch({"n": [[reader.read_all().num_rows for reader in readers]]})

    mapped = sides[0].map_subpartitions(count, "n array<bigint>", others=[sides[1], everyone])
    found = mapped.to_table()["n"].to_pylist()
    assert [sum(column) for column in zip(*found, strict=True)] == [62, 61, 2 * 4]


def test_filters_keys_and_the_last_of_a_key_are_those_of_the_shuffle(sides):
    left, right = sides
    some = left.select(filter="k >= 40").join(right.select(key_values={"k": [41, 7]}), on="k",
                                              suffixes=("", "_r"))  # fmt: skip
    assert some.to_table()["k"].to_pylist() == [41]
    (_, read), (_, looked_up) = some.explain().reads
    assert read.filter == "k >= 40"
    assert looked_up.steps[0].kept == 1, "subpartitions that have the keys"
    left.append(rows(41, v=9), options=FAST)
    last = left.newest().select(latest_by="v").join(right, on="k", suffixes=("", "_r"))
    assert {r["k"]: r["v"] for r in last.to_table().to_pylist()}[41] == 9
    assert last.to_table().num_rows == 30


def test_upserts_deletions_and_files_of_a_rescale_are_read_by_the_divisor(tmp_path):
    left = of(tmp_path / "a", *range(100), n=8, unique=["k"])
    begun = begun_with(tmp_path / "a", rows(500), n=8)
    left.upsert(rows(3, 200, v=5), options=FAST)
    left.delete({"k": [4, 5]}, erase=False)
    left.rescale(16)
    left.newest().append(rows(201, 202), options=FAST)
    commit_job(*begun, mode="append")
    left = left.newest()
    right = of(tmp_path / "b", *range(600), n=12, v=1)
    joined = left.join(right, on="k", suffixes=("", "_r"))
    found = {row["k"]: row["v"] for row in joined.to_table().to_pylist()}
    assert found == {k: 5 if k in (3, 200) else 0 for k in [*range(100), 200, 201, 202, 500]
                     if k not in (4, 5)}  # fmt: skip
    (_, read), _ = joined.explain().reads
    assert read.scaled == "read by 4 subpartitions: 1 reads 1, 5 of 8 and 1, 5, 9, 13 of 16"
    for by in ("map_output", "subpartition"):
        left.merge(by, options=FAST)
        again = left.newest().join(right, on="k", suffixes=("", "_r")).to_table()
        assert {row["k"]: row["v"] for row in again.to_pylist()} == found


def test_they_are_grouped_and_mapped(sides):
    left, right = sides

    def count(left: pa.Table, right: pa.Table) -> pa.Table:
        return pa.table({"n": [left.num_rows + 3 * right.num_rows]})

    grouped = left.cogroup(right).map_groups(count, "n bigint")
    assert Counter(grouped.to_table()["n"].to_pylist()) == {1: 30, 4: 30, 3: 30, 5: 1}

    def both(number, left, right):
        ids = [*left.read_all()["k"].to_pylist(), *right.read_all()["k"].to_pylist()]
        yield pa.record_batch({"i": [number] * len(ids), "k": pa.array(ids, pa.int64())})

    mapped = left.map_subpartitions(both, "i bigint, k bigint", others=[right]).to_table()
    assert mapped.num_rows == 123
    for i, k in zip(mapped["i"].to_pylist(), mapped["k"].to_pylist(), strict=True):
        assert i == left.subpartition_of(k=k) % 4


@pytest.mark.parametrize(("step", "is_found"), [(1, True), (4, False)])
def test_rows_that_lie_elsewhere_are_found(sides, step, is_found):
    """Those that a reader by 4 would look for elsewhere; 3 and 7 of 8 are one for it."""
    left, right = sides
    append_misplaced(
        left.path, rows(31, 32), HashPartitioner("k"), lambda ids, _: (ids + step) % 8,
        num_subpartitions=8,
    )  # fmt: skip
    joined = left.newest().join(right, on="k", how="semi", check=True)
    if is_found:
        with pytest.raises(CorruptShuffleError, match="of 4, and belongs to subpartition"):
            joined.to_table()
    else:
        assert sorted(joined.to_table()["k"].to_pylist()).count(31) == 2


def test_subpartitions_are_selected_of_the_result(sides):
    left, right = sides
    for some in (left.select(subpartitions=[1]), left.select(subpartitions=1).select("k")):
        with pytest.raises(OptionError, match=r"by its own numbers, .* by 4 .*a has 8, .*b has 12"):
            some.join(right, on="k", suffixes=("", "_r"))
    joined = left.join(right, on="k", suffixes=("", "_r"))
    by_number = [joined.select(subpartitions=i).to_table() for i in range(4)]
    assert counted(pa.concat_tables(by_number)) == counted(joined.to_table())
    for number, table in enumerate(by_number):
        assert {left.subpartition_of(k=k) % 4 for k in table["k"].to_pylist()} <= {number}


def test_a_function_of_each_subpartition_is_not_called_for_fewer(sides):
    def count(number, reader):
        yield from reader

    mapped = sides[0].map_subpartitions(count, "k bigint, v bigint")
    with pytest.raises(OptionError, match=r"map_subpartitions of .*a calls .* once it is written"):
        mapped.join(sides[1], on="k", suffixes=("", "_r"))


def test_what_would_leave_tasks_without_work_is_refused_where_it_runs(sides, tmp_path):
    left = sides[0]
    joined = left.join(of(tmp_path / "c", *range(9), n=9), on="k", suffixes=("", "_r"))
    with ThreadPoolExecutor(4) as pool:
        with pytest.raises(OptionError) as refused:
            joined.read(executor=pool)
        assert str(refused.value) == (
            f"numbers of subpartitions: {left.path} has 8, {tmp_path / 'c'} has 9, so they could "
            "be read together as 1, by 1 task where 4 run at a time; give one of them the number "
            "of the other, .rescale(8), and merge it"
        )
        with pytest.raises(OptionError, match="has 8"):
            joined.write(tmp_path / "out", executor=pool)
        assert not (tmp_path / "out").exists()
        assert left.join(sides[1], on="k", suffixes=("", "_r")).read(executor=pool).read_all()
        # Nothing is lost: one has no more to do anyway, or one task is all that runs.
        least = left.join(of(tmp_path / "d", *range(9), n=1), on="k", suffixes=("", "_r"))
        assert least.read(executor=pool).read_all().num_rows == 9
    with ThreadPoolExecutor(1) as pool:
        assert joined.read(executor=pool).read_all().num_rows == 9


def test_only_a_hash_says_where_rows_are_among_other_numbers(tmp_path):
    made = []
    for n, bounds in ((4, [10, 20, 30]), (2, [20])):
        ranges = RangePartitioner("k", bounds=bounds)
        made.append(written(tmp_path / str(n), rows(*range(40)), partitioner=ranges, n=n))
    with pytest.raises(OptionError, match="left has 4 subpartitions, the right 2"):
        made[0].join(made[1], on="k", suffixes=("", "_r"))
