"""Changes with a sequence, in any order and split over any commits, against a dictionary."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import arrow_shuffle
from arrow_format.jobs.alter import rename_columns
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from arrow_shuffle import Shuffle

SCHEMA = pa.schema([("k", pa.int64()), ("lsn", pa.int64()), ("v", pa.int64())])

changes = st.lists(
    st.tuples(st.integers(0, 5), st.none() | st.integers(0, 5), st.integers(0, 1 << 40)),
    max_size=12,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), changes),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 5), max_size=2)),
        st.tuples(st.just("merge"), st.sampled_from(["map_output", "subpartition"])),
    ),
    min_size=1,
    max_size=8,
)


def _rows(shuffle: Shuffle) -> dict[int, tuple[int | None, int]]:
    rows = shuffle.to_table().to_pylist()
    found = {row["k"]: (row["lsn"], row["v"]) for row in rows}
    assert len(found) == len(rows)
    return found


def _table(rows: list[tuple[int, int | None, int]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([], [], [])
    return pa.table([pa.array(of, pa.int64()) for of in columns], schema=SCHEMA)


@given(first=changes, steps=steps)
def test_the_newest_change_of_each_row_stays(
    first: list[tuple[int, int | None, int]],
    steps: list[tuple[str, list[tuple[int, int | None, int]]]],
) -> None:
    """Older changes are dropped, of equal ones the last counts; merges do not change that."""
    model: dict[int, tuple[int | None, int]] = {}
    by = {k: (lsn, v) for k, lsn, v in first}
    with tempfile.TemporaryDirectory() as parent:
        path = f"{parent}/rows"
        arrow_shuffle.write_shuffle(
            _table([(k, *of) for k, of in by.items()]),
            path,
            keys="k",
            unique="k",
            sequence_by="lsn",
            num_subpartitions=3,
        )
        model |= by
        for what, of in steps:
            shuffle = arrow_shuffle.open_shuffle(path)
            before = dict(model)
            if what == "upsert":
                receipt = shuffle.upsert(_table(of))
                for k, lsn, v in of:
                    at = -1 if lsn is None else lsn
                    there = model.get(k, (None, 0))[0]
                    if k not in model or at >= (-1 if there is None else there):
                        model[k] = lsn, v
                changed = {k for k in model if model[k] != before.get(k)}
                assert receipt.num_rows >= len(changed)
                assert receipt.num_rows - receipt.num_replaced == len(model) - len(before)
            elif what == "delete":
                shuffle.delete({"k": pa.array(of, pa.int64())}, erase=False)
                for k in of:
                    model.pop(k, None)
            else:
                shuffle.merge(of)
            now = arrow_shuffle.open_shuffle(path)
            assert _rows(now) == model
            assert now.num_rows == len(model)
            net = pa.table(now.changes(since=shuffle.version)).to_pylist()
            inserted = [row for row in net if row["_change_type"] == "insert"]
            added = {row["k"]: (row["lsn"], row["v"]) for row in inserted}
            assert {k: of for k, of in model.items() if before.get(k) != of} == {
                k: of for k, of in added.items() if before.get(k) != of
            }
        assert not arrow_shuffle.open_shuffle(path).verify().problems


feeds = st.lists(
    st.tuples(
        st.sampled_from(["c", "d", "-U", "update_postimage"]),
        st.integers(0, 3),
        st.integers(0, 5),
        st.integers(0, 1 << 40),
    ),
    max_size=10,
)
feed_steps = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), feeds),
        st.tuples(st.just("erase"), st.lists(st.integers(0, 3), min_size=1, max_size=2)),
        st.tuples(st.just("merge"), st.sampled_from(["map_output", "subpartition"])),
        st.tuples(st.just("rename"), st.none()),
        st.tuples(st.just("rescale"), st.sampled_from([2, 4, 6])),
    ),
    min_size=1,
    max_size=6,
)


def _feed(changes: list[tuple[str, int, int, int]], names: dict[str, str]) -> pa.Table:
    of = [*zip(*changes, strict=True)] if changes else [(), (), (), ()]
    # Of a deletion the other columns are not there.
    values = [None if kind == "d" else v for kind, _, _, v in changes]
    columns = {"op": pa.array(of[0], pa.string()), "k": pa.array(of[1], pa.int64())}
    columns |= {"lsn": pa.array(of[2], pa.int64()), "v": pa.array(values, pa.int64())}
    return pa.table({names.get(name, name): column for name, column in columns.items()})


@guarantee("deletions in any order")
@given(steps=feed_steps, sort_by=st.sampled_from([(), ("lsn",)]), n=st.sampled_from([1, 3]))
def test_deletions_count_in_any_order(
    steps: list[tuple[str, Any]], sort_by: tuple[str, ...], n: int
) -> None:
    """The newest change of a key counts, a row before a deletion, whatever came in between."""
    # Sequence, whether it is a row, and the value, of the newest change of each key.
    model: dict[int, tuple[int, bool, int]] = {}
    names: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as parent:
        path = f"{parent}/rows"
        arrow_shuffle.write_shuffle(
            _table([]),
            path,
            keys="k",
            unique="k",
            sequence_by="lsn",
            sort_by=sort_by,
            num_subpartitions=n,
        )
        for what, of in steps:
            shuffle = arrow_shuffle.open_shuffle(path)
            before = {k: (lsn, v) for k, (lsn, is_row, v) in model.items() if is_row}
            if what == "upsert":
                shuffle.upsert(_feed(of, names), row_kind="op")
                for kind, k, lsn, v in of:
                    change = (lsn, kind != "d", v)
                    if kind != "-U" and (k not in model or change[:2] >= model[k][:2]):
                        model[k] = change
            elif what == "erase":
                shuffle.delete({"k": pa.array(of, pa.int64())})
                for k in of:
                    model.pop(k, None)
            elif what == "merge":
                shuffle.merge(of)
            elif what == "rescale":
                shuffle.rescale(of)
            else:
                old = names.get("lsn", "lsn")
                names["lsn"] = "position" if old == "lsn" else "lsn"
                rename_columns(path, {old: names["lsn"]})
            now = arrow_shuffle.open_shuffle(path)
            rows = {k: (lsn, v) for k, (lsn, is_row, v) in model.items() if is_row}
            called = now.to_table().rename_columns(["k", "lsn", "v"]).to_pylist()
            assert {row["k"]: (row["lsn"], row["v"]) for row in called} == rows
            assert now.num_rows == len(called) == len(rows)
            assert sum(now.subpartition_rows.to_pylist()) == len(rows)
            if what != "rename":
                changed = pa.table(now.changes(since=shuffle.version)).to_pylist()
                inserted = {row["k"] for row in changed if row["_change_type"] == "insert"}
                gone = {row["k"] for row in changed} - inserted
                assert {k for k in rows if rows[k] != before.get(k)} <= inserted
                assert {k for k in before if k not in rows} <= gone
                assert what not in ("merge", "rescale") or not changed
            assert not now.verify().problems
