"""Change feeds that come in order: the last change of each key counts, deletions too."""

from __future__ import annotations

from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import arrow_shuffle
from arrow_format.errors import DuplicateKeyError, OptionError, SchemaError
from arrow_format.jobs.alter import rename_columns
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.identify import identify_rows
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.write import write_shuffle
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.write.merge_policy import MergePolicy
from arrow_shuffle import open_shuffle
from arrow_shuffle.write import append_shuffle
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import before_first_entry
from tests.support.small_shuffles import FAST
from tests.unit.jobs.test_upsert import UNIQUE, Orders, create, orders_in, table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    Change = tuple[str, tuple[int, int], str | None]

WORDS = {"upsert": ["c", "r", "u", "+I", "+U", "insert", "update_postimage"],
         "delete": ["d", "-D", "delete"], "ignore": ["-U", "update_preimage"]}  # fmt: skip
KEYS = st.tuples(st.integers(0, 3), st.integers(0, 1))
ALL_WORDS = [*chain.from_iterable(WORDS.values())]
CHANGES = st.lists(
    st.tuples(st.sampled_from(ALL_WORDS), KEYS, st.sampled_from(["x", "y", None])), max_size=12
)


def feed(changes: Sequence[Change]) -> pa.Table:
    words, keys, states = zip(*changes, strict=True) if changes else ((), (), ())
    customers, numbers = zip(*keys, strict=True) if keys else ((), ())
    return pa.table(
        {
            "customer": pa.array(customers, pa.int64()),
            "op": pa.array(words, pa.string()),
            "order": pa.array(numbers, pa.int32()),
            "state": pa.array(states, pa.string()),
        }
    )


def apply(changes: Sequence[Change], path: Path, **how: object):
    return append_shuffle(feed(changes), path, mode="upsert", row_kind="op", **how)


def after(orders: Orders, changes: Sequence[Change]) -> Orders:
    left = dict(orders)
    for word, key, state in changes:
        if word in WORDS["upsert"]:
            left[key] = state
        elif word in WORDS["delete"]:
            left.pop(key, None)
    return left


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create(tmp_path / "s", {(1, 10): "old", (1, 11): "old", (2, 10): "old"})
    return tmp_path / "s"


@guarantee("upserts")
@given(feeds=st.lists(CHANGES, min_size=1, max_size=4))
def test_feeds_are_applied_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, feeds: list[list[Change]]
) -> None:
    path = tmp_path_factory.mktemp("feeds") / "s"
    expected: Orders = {(1, 0): "old", (2, 0): "old"}
    create(path, expected)
    for changes in feeds:
        now = after(expected, changes)
        receipt = apply(changes, path, options=FAST)
        assert orders_in(path) == now
        assert len(now) - len(expected) == receipt.num_rows - receipt.num_replaced
        expected = now
    assert open_shuffle(path).verify().ok


def test_a_deletion_needs_the_keys_alone(path: Path) -> None:
    changes = feed([("d", (1, 11), None), ("u", (2, 10), "new"), ("d", (9, 9), None)])
    receipt = append_shuffle(changes, path, mode="upsert", row_kind="op")
    assert (receipt.num_rows, receipt.num_replaced) == (1, 2)
    assert orders_in(path) == {(1, 10): "old", (2, 10): "new"}
    append_shuffle(
        changes.select(["order", "op", "customer"]).slice(0, 1), path, mode="upsert", row_kind="op"
    )
    assert orders_in(path) == {(1, 10): "old", (2, 10): "new"}


def test_all_rows_may_be_deleted(path: Path) -> None:
    apply([("d", key, None) for key in orders_in(path)], path)
    assert open_shuffle(path).num_rows == 0
    apply([("c", (1, 10), "again")], path)
    assert orders_in(path) == {(1, 10): "again"}


@guarantee("upserts")
def test_a_row_that_another_writer_brings_meanwhile_is_deleted_too(path: Path) -> None:
    with before_first_entry(lambda: append_shuffle(table({(9, 9): "a", (8, 8): "a"}), path)):
        apply([("d", (9, 9), None)], path)
    assert (9, 9) not in orders_in(path)
    with before_first_entry(lambda: rename_columns(path, {"order": "number"})):
        apply([("d", (8, 8), None), ("u", (1, 10), "new")], path)
    rename_columns(path, {"number": "order"})
    assert orders_in(path) == {(1, 10): "new", (1, 11): "old", (2, 10): "old"}


def test_a_feed_of_another_library_has_other_types(path: Path) -> None:
    changes = feed([("u", (1, 10), "new"), ("d", (1, 11), None)])
    encoded = changes.set_column(1, "op", changes["op"].dictionary_encode())
    wide = encoded.set_column(2, "order", changes["order"].cast(pa.int64()))
    append_shuffle(wide, path, mode="upsert", row_kind="op")
    assert orders_in(path) == {(1, 10): "new", (2, 10): "old"}


@pytest.mark.parametrize("key", ["k", "a"])
def test_a_deletion_means_the_columns_that_it_was_read_with(tmp_path: Path, key: str) -> None:
    """Another writer names them in another order, or others, before the entry is put."""
    path = tmp_path / "s"
    rows = pa.table({"k": [1, 2], "a": [2, 1]})
    write_shuffle(rows, path, keys="k", unique=["k", "a"], num_subpartitions=1, options=FAST)
    gone = pa.table({"op": ["d"], "k": [1], "a": [2]})
    unique = ["a", "k"] if key == "a" else "k"
    with before_first_entry(lambda: identify_rows(path, unique)):
        if key == "k":
            with pytest.raises(SchemaError, match="rows are identified by k; cannot append rows"):
                append_shuffle(gone, path, mode="upsert", row_kind="op")
        else:
            append_shuffle(gone, path, mode="upsert", row_kind="op")
    left = open_shuffle(path).read().read_all().to_pylist()
    assert left == (rows.to_pylist() if key == "k" else [{"k": 2, "a": 1}])


def test_what_deletions_lack_says_nothing_of_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "s"
    schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string(), False)])
    rows = pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]}, schema)
    write_shuffle(rows, path, keys="k", unique="k", num_subpartitions=1, options=FAST)
    how = {"mode": "upsert", "row_kind": "op"}
    append_shuffle(pa.table({"op": ["d"], "k": [1]}), path, **how)
    append_shuffle(pa.table({"op": ["d"], "k": [2], "v": pa.nulls(1)}), path, **how)
    append_shuffle(pa.table({"op": ["d", "u"], "k": [7, 3], "v": [None, "new"]}), path, **how)
    assert open_shuffle(path).read().read_all().to_pylist() == [{"k": 3, "v": "new"}]
    assert open_shuffle(path).schema == schema


def test_a_repeated_feed_is_not_read(path: Path) -> None:
    how = {"mode": "upsert", "row_kind": "op", "transaction": ("feed", 1)}
    append_shuffle(feed([("d", (1, 11), None)]), path, **how)
    again = append_shuffle(feed([("what", (2, 10), None)]), path, **how)
    assert again.is_repetition
    assert orders_in(path) == {(1, 10): "old", (2, 10): "old"}


def test_rows_of_a_shuffle_are_no_feed(path: Path, tmp_path: Path) -> None:
    write_shuffle(feed([("d", (1, 10), None)]), tmp_path / "feed", keys="order")
    changes = arrow_shuffle.open_shuffle(tmp_path / "feed")
    for source in (changes, changes.select()):
        with pytest.raises(OptionError, match="come by subpartition, not in the order"):
            arrow_shuffle.open_shuffle(path).upsert(source, row_kind="op")
    with pytest.raises(OptionError, match=r"row_kind='state': .* has such a column"):
        append_shuffle(feed([]), path, mode="upsert", row_kind="state")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("x", r"row 1 \(customer=1, order=10\) is 'x', which is none of c, r"),
        (None, r"row 1 \(customer=1, order=10\) is None, which"),
        ("U", "'U'"),
    ],
)
def test_other_kinds_are_refused(path: Path, word: str | None, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        apply([("u", (1, 10), "a"), (word, (1, 10), "a")], path)  # type: ignore[list-item]
    assert open_shuffle(path).version == 1


def test_what_is_no_feed(path: Path, tmp_path: Path) -> None:
    rows = feed([("d", (1, 10), None)])
    how = {"mode": "upsert", "row_kind": "op"}
    with pytest.raises(SchemaError, match="the changes have no column 'op'"):
        append_shuffle(rows.drop_columns("op"), path, **how)
    with pytest.raises(SchemaError, match="the changes have no column 'order'"):
        append_shuffle(rows.drop_columns("order"), path, **how)
    numbers = rows.set_column(1, "op", pa.array([1]))
    with pytest.raises(SchemaError, match="the column is int64, expected text"):
        append_shuffle(numbers, path, **how)
    null = rows.set_column(2, "order", pa.array([None], pa.int32()))
    with pytest.raises(DuplicateKeyError, match="column 'order' is null in 1 of the rows"):
        append_shuffle(null, path, **how)
    with pytest.raises(OptionError, match="row_kind='op': only an upsert"):
        append_shuffle(rows, path, row_kind="op")
    write_shuffle(table({}), tmp_path / "plain", keys="customer", num_subpartitions=1)
    with pytest.raises(OptionError, match=r"only where columns of .*plain identify a row"):
        append_shuffle(rows, tmp_path / "plain", **how)
    assert open_shuffle(path).unique == UNIQUE


def sequenced(path: Path) -> Path:
    rows = pa.table({"k": pa.array(range(100), pa.int64()), "lsn": pa.array([1] * 100, pa.int64())})
    write_shuffle(rows, path, keys="k", unique="k", sequence_by="lsn", num_subpartitions=3)
    return path


def changes(*rows: tuple[str, int | None, int | None]) -> pa.Table:
    kinds, keys, numbers = zip(*rows, strict=True)
    columns = [pa.array(kinds, pa.string()), *(pa.array(of, pa.int64()) for of in (keys, numbers))]
    return pa.table(columns, names=["op", "k", "lsn"])


def upserted(path: Path, *rows: tuple[str, int | None, int | None], **how: object):
    return open_shuffle(path).upsert(changes(*rows), row_kind="op", **how)


@guarantee("deletions in any order")
def test_a_change_may_be_as_late_as_versions_are_kept(tmp_path: Path) -> None:
    """Merges join tombstones, and drop those of before the oldest version."""
    path = sequenced(tmp_path / "s")
    always = MergePolicy(rewrite="always")
    for number in range(24):
        upserted(path, ("d", number, 5), ("c", 200 + number, 1))
    assert len(open_shuffle(path).snapshot.tombstones) == 24
    open_shuffle(path).merge("map_output", policy=always)
    joined = open_shuffle(path)
    assert 3 <= len(joined.snapshot.tombstones) <= 10
    assert len(joined.map_outputs) == 1
    upserted(path, *[("u", number, 4) for number in range(24)], ("d", 50, 5))
    assert open_shuffle(path).num_rows == 99
    open_shuffle(path).collect_garbage(retention=timedelta(0))
    upserted(path, ("c", 300, 1), ("d", 51, 5))
    open_shuffle(path).merge("subpartition", policy=always)
    assert len(open_shuffle(path).snapshot.tombstones) <= 2
    upserted(path, ("u", 7, 4), ("u", 51, 4))
    keys = open_shuffle(path).to_table()["k"].to_pylist()
    assert 7 in keys  # which was deleted before the oldest version
    assert 51 not in keys
    assert not open_shuffle(path).verify().problems


def test_a_merge_takes_deleted_keys_alone_where_they_are_many(tmp_path: Path) -> None:
    path = sequenced(tmp_path / "s")
    for number in range(20):
        upserted(path, ("d", number, 5))
    report = open_shuffle(path).merge()
    assert report.plan.num_tombstones == 20
    assert "join 20 map outputs of deleted keys" in str(report.plan)
    assert len(open_shuffle(path).snapshot.tombstones) <= 10
    assert not open_shuffle(path).merge().plan.num_tombstones
    open_shuffle(path).collect_garbage(retention=timedelta(0))
    upserted(path, ("c", 300, 1))  # what came before has expired now
    open_shuffle(path).collect_garbage(retention=timedelta(0))
    assert open_shuffle(path).merge().plan.num_tombstones
    assert not len(open_shuffle(path).snapshot.tombstones)
    assert open_shuffle(path).num_rows == 81


def test_a_deletion_says_when_it_was(tmp_path: Path) -> None:
    path = sequenced(tmp_path / "s")
    with pytest.raises(SchemaError, match=r"row 1 \(k=1\) is a deletion whose 'lsn' is null"):
        upserted(path, ("u", 1, None), ("d", 1, None))
    with pytest.raises(DuplicateKeyError, match="column 'k' is null"):
        upserted(path, ("d", None, 2))
    upserted(path, ("d", 1, 7), ("u", 1, 7), ("d", 2, 7), ("u", 3, None))  # with one sequence
    rows = {row["k"]: row["lsn"] for row in open_shuffle(path).to_table().to_pylist()}
    assert (rows[1], rows[3], 2 in rows) == (7, 1, False)


@guarantee("deletions in any order")
def test_deletions_of_other_writers_count_at_each_try(tmp_path: Path) -> None:
    """A deletion that is committed while a late change is, and the reverse."""
    for first, second in ((("d", 1, 5), ("u", 1, 4)), (("u", 1, 4), ("d", 1, 5))):
        path = sequenced(tmp_path / f"{first[0]}")
        with before_first_entry(lambda path=path, first=first: upserted(path, first)):
            upserted(path, second)
        assert 1 not in open_shuffle(path).to_table()["k"].to_pylist()
        assert not open_shuffle(path).verify().problems


def test_a_feed_begins_a_shuffle(tmp_path: Path) -> None:
    feed = changes(("d", 1, 5), ("u", 1, 4), ("u", 2, 4))
    how = {"keys": "k", "unique": "k", "row_kind": "op", "num_subpartitions": 2}
    with pytest.raises(OptionError, match="give sequence_by="):
        write_shuffle(feed, tmp_path / "s", mode="upsert", **how)
    with pytest.raises(OptionError, match="only mode='upsert' takes changes"):
        write_shuffle(feed, tmp_path / "s", sequence_by="lsn", **how)
    write_shuffle(feed, tmp_path / "s", sequence_by="lsn", mode="upsert", **how)
    assert open_shuffle(tmp_path / "s").to_table().to_pylist() == [{"k": 2, "lsn": 4}]
    write_shuffle(feed.take([1]), tmp_path / "s", mode="upsert", **how)
    assert open_shuffle(tmp_path / "s").num_rows == 1


def test_an_erasure_takes_tombstones_too(tmp_path: Path) -> None:
    path = sequenced(tmp_path / "s")
    upserted(path, ("d", 123456789123, 5), ("d", 2, 5), ("c", 500, 1))
    receipt = open_shuffle(path).delete({"k": [123456789123]})
    assert receipt.num_rows == 0
    assert receipt.num_files == 1
    open_shuffle(path).collect_garbage(retention=timedelta(0))
    assert open_shuffle(path).erasure_status(receipt).is_gone
    found = (123456789123).to_bytes(8, "little")
    assert not [file for file in path.rglob("*") if file.is_file() and found in file.read_bytes()]
    upserted(path, ("u", 123456789123, 1), ("u", 2, 1))
    assert {123456789123, 500} <= {*open_shuffle(path).to_table()["k"].to_pylist()}
    assert 2 not in open_shuffle(path).to_table()["k"].to_pylist()
    assert not open_shuffle(path).verify().problems


def test_damage_of_a_tombstone_is_found(tmp_path: Path) -> None:
    path = sequenced(tmp_path / "s")
    upserted(path, ("d", 1, 5))
    (file,) = (path / "map_outputs").rglob("107*.data")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert open_shuffle(path).num_rows == 99  # which reads need not
    (problem,) = open_shuffle(path).verify(raise_on_damage=False).problems
    assert file.name in str(problem)


def without_kind(*rows: tuple[str, int | None, int | None]) -> pa.Table:
    return changes(*rows).drop_columns(["op"])


def keys_of(path: Path) -> list[int]:
    return sorted(open_shuffle(path).to_table()["k"].to_pylist())


def test_a_change_that_is_dropped_takes_no_row_away(tmp_path: Path) -> None:
    """Not one either that was appended since the deletion, which an append does not look at."""
    path = sequenced(tmp_path / "s")
    upserted(path, ("d", 1, 5))
    open_shuffle(path).append(without_kind(("c", 1, 3)))
    for late in (("u", 1, 2), ("d", 1, 4), ("u", 1, 4)):
        upserted(path, late)
        assert 1 in keys_of(path)
    upserted(path, ("d", 1, 6))
    assert 1 not in keys_of(path)


def test_tombstones_are_known_by_the_columns_of_then(tmp_path: Path) -> None:
    how = {"keys": "k", "unique": ["n", "k"], "sequence_by": "lsn", "num_subpartitions": 2}
    feed = changes(("d", 1, 5), ("u", 2, 5)).append_column("n", pa.array([7, 7], pa.int64()))
    write_shuffle(feed, tmp_path / "s", mode="upsert", row_kind="op", **how)
    with pytest.raises(OptionError, match="known by n, k, so that k would not say"):
        open_shuffle(tmp_path / "s").alter(unique=["k"])
    open_shuffle(tmp_path / "s").alter(unique=["k", "n"])  # the same in another order
    late = changes(("u", 1, 4)).append_column("n", pa.array([7], pa.int64()))
    open_shuffle(tmp_path / "s").upsert(late, row_kind="op")
    assert keys_of(tmp_path / "s") == [2]


def test_of_repeated_deletions_a_merge_keeps_one(tmp_path: Path) -> None:
    path = sequenced(tmp_path / "s")
    for _ in range(8):
        upserted(path, ("d", 1, 5), ("d", 2, 5), ("c", 500, 1))
    open_shuffle(path).merge("map_output", policy=MergePolicy(rewrite="always"))
    tombstones = open_shuffle(path).snapshot.tombstones
    assert tombstones.stored_rows.sum() == 2 * len(tombstones)
    upserted(path, ("u", 1, 4))
    assert 1 not in keys_of(path)


def test_what_was_added_is_read_after_an_overwrite_without_a_sequence(tmp_path: Path) -> None:
    path = sequenced(tmp_path / "s")
    upserted(path, ("d", 100, 5), ("u", 101, 5))
    rows = without_kind(("c", 7, 3))
    write_shuffle(rows, path, keys="k", unique="k", num_subpartitions=3, mode="overwrite")
    added = open_shuffle(path).added(1, overwrites="deliver")
    assert sorted(added.to_table()["k"].to_pylist()) == [7, 101]


def test_keys_of_structs_are_erased_with_their_tombstones(tmp_path: Path) -> None:
    type_ = pa.struct([("x", pa.int64()), ("y", pa.string())])
    keys = pa.array([{"x": n, "y": "a"} for n in range(4)], type_)
    feed = pa.table({"op": ["d", "d", "u", "u"], "k": keys, "lsn": [5, 5, 5, 5]})
    how = {"keys": "k", "unique": "k", "sequence_by": "lsn", "num_subpartitions": 2}
    write_shuffle(feed, tmp_path / "s", mode="upsert", row_kind="op", **how)
    assert open_shuffle(tmp_path / "s").delete({"k": keys[:1]}).num_files == 1
    late = feed.set_column(0, "op", pa.array(["u"] * 4)).set_column(2, "lsn", pa.array([4] * 4))
    open_shuffle(tmp_path / "s").upsert(late, row_kind="op")
    rows = open_shuffle(tmp_path / "s").to_table().to_pylist()
    assert {row["k"]["x"]: row["lsn"] for row in rows} == {0: 4, 2: 5, 3: 5}
    assert not open_shuffle(tmp_path / "s").verify().problems


def test_changes_are_committed_by_an_upsert_alone(tmp_path: Path) -> None:
    """By another mode their deletions would be lost."""
    path, feed = sequenced(tmp_path / "s"), changes(("d", 1, 5), ("u", 2, 5))
    partitioner = HashPartitioner("k")
    job = begin_job(path, feed.schema, num_subpartitions=3, partitioner=partitioner, row_kind="op")
    statuses = [run_map_task(job, 0, 0, feed.to_batches())]
    with pytest.raises(OptionError, match="only mode='upsert' applies, not 'append'"):
        commit_job(job, statuses, mode="append")
    commit_job(job, statuses, mode="upsert")
    assert 1 not in keys_of(path)
