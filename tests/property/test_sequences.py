"""Upserts with a sequence, in any order and split over any commits, against a dictionary."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import arrow_shuffle

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
