"""As-of joins of any tables, kept and merged in any way, against the rule row by row and others."""

from __future__ import annotations

import datetime as dt
import tempfile
from itertools import count

import duckdb
import pandas as pd
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import arrow_shuffle
from arrow_format.operators.asof_join import join_asof
from arrow_format.operators.description import ANY_PLACE
from arrow_shuffle import MergePolicy
from tests.support.asof_model import as_of
from tests.support.exhaustive import examples
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import FAST

DAY = dt.datetime(2024, 3, 30, tzinfo=dt.UTC)
KINDS = {
    "integers": (pa.int32(), pa.int64(), int, lambda steps: steps),
    "floats": (pa.float32(), pa.float64(), float, float),
    "dates": (
        pa.date32(),
        pa.date32(),
        lambda i: DAY.date() + dt.timedelta(i),
        lambda steps: dt.timedelta(steps),
    ),
    "instants": (
        pa.timestamp("s", "Europe/Berlin"),
        pa.timestamp("us", "UTC"),
        lambda i: DAY + dt.timedelta(hours=i),  # over a change of clocks
        lambda steps: dt.timedelta(hours=steps),
    ),
    "local": (
        pa.timestamp("ms"),
        pa.timestamp("us"),
        lambda i: DAY.replace(tzinfo=None) + dt.timedelta(hours=i),
        lambda steps: dt.timedelta(hours=steps),
    ),
}
"""Types of both sides, and what makes a time and a tolerance of a number."""
SORTS = [(), "t", ["k", "t"], ["k", "t", ("v", "descending")], [("t", "descending")]]
ROWS = st.lists(
    st.tuples(st.none() | st.integers(0, 3), st.none() | st.integers(0, 9)), max_size=14
)
MERGES = [
    None,
    {"by": "subpartition", "policy": MergePolicy(rewrite="always", min_regions=2)},
    {"by": "map_output", "policy": MergePolicy(rewrite="never")},
    {"by": "map_output", "policy": MergePolicy(rewrite="always")},
]


def written(path, rows, type_, make, name, *, days=1, n=3, merge=None, **how):
    """Write rows, some a day, and number them in a column; return the shuffle."""
    schema = pa.schema([("k", pa.int64()), ("t", type_), (name, pa.int64())])
    numbers = count()
    step = max(-(-len(rows) // days), 1)
    for start in range(0, max(len(rows), 1), step):
        part = rows[start : start + step]
        keys = [k for k, _ in part]
        times = [None if t is None else make(t) for _, t in part]
        table = pa.table([keys, times, [next(numbers) for _ in part]], schema=schema)
        arrow_shuffle.write_shuffle(
            table,
            path,
            keys="k",
            num_subpartitions=n,
            mode="append",
            options=FAST,
            for_spark=False,
            **how,
        )
    shuffle = arrow_shuffle.open_shuffle(path)
    if merge is not None:
        shuffle.merge(**merge, options=FAST)
        shuffle = shuffle.newest()
    return shuffle


def in_order(shuffle, *columns):
    """Return the rows in the order of the shuffle, as tuples."""
    return list(zip(*(shuffle.to_table()[name].to_pylist() for name in columns), strict=True))


def in_blocks(asked, group_bytes):
    """Return the rows of a join within so many bytes."""
    plan = asked._description.bind(ANY_PLACE)
    join = plan.work.work
    assert join.func is join_asof
    batches = join.func(
        *join.args, range(plan.placed_as.num_subpartitions), group_bytes=group_bytes
    )
    return pa.Table.from_batches(batches, plan.schema)


@guarantee("rows as of a time")
@settings(max_examples=examples(60, 1000))
@given(st.data())
def test_each_label_has_the_rows_of_the_rule(data):
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    label_type, type_, make, reach = KINDS[kind]
    direction = data.draw(st.sampled_from(["backward", "forward", "nearest"]))
    exact, steps = data.draw(st.booleans()), data.draw(st.none() | st.integers(0, 4))
    tolerance = None if steps is None else reach(steps)
    ties = data.draw(st.sampled_from([None, "tie"]))
    labels, *tables = (data.draw(ROWS) for _ in range(data.draw(st.integers(2, 3))))
    with tempfile.TemporaryDirectory() as path:
        left = written(
            f"{path}/labels", labels, label_type, make, "label", days=data.draw(st.integers(1, 3)),
            sort_by=data.draw(st.sampled_from(SORTS[:3:2])), n=data.draw(st.sampled_from([3, 6])),
        )  # fmt: skip
        rights = []
        for number, rows in enumerate(tables):
            right = written(
                f"{path}/{number}", rows, type_, make, "v", days=data.draw(st.integers(1, 4)),
                sort_by=data.draw(st.sampled_from(SORTS)), merge=data.draw(st.sampled_from(MERGES)),
            )  # fmt: skip
            rights.append(right)
        how = {
            "direction": direction,
            "allow_exact_matches": exact,
            "tolerance": tolerance,
            "ties": None if ties is None else "v",
        }
        names = [f"v{number}" for number in range(len(tables))]
        suffixes = None if len(tables) == 1 else ("", *(str(i) for i in range(len(tables))))
        names = ["v"] if suffixes is None else names
        asked = left.join(rights, how="asof", time="t", suffixes=suffixes, **how)
        steps_of = {None: None, **{make(number): number for number in range(10)}}
        keys = [(k, steps_of[t]) for k, t in in_order(left, "k", "t")]
        numbers = [row[0] for row in in_order(left, "label")]
        expected = {number: [] for number in numbers}
        for right in rights:
            there = in_order(right, "k", "t", "v")
            values = [v for _, _, v in there]
            found = as_of(
                keys,
                [(k, steps_of[t]) for k, t, _ in there],
                direction=direction,
                allow_exact_matches=exact,
                tolerance=steps,
                ties=None if ties is None else values,
            )
            for number, place in zip(numbers, found, strict=True):
                expected[number].append(None if place is None else values[place])
        for rows in (
            asked.to_table(),
            in_blocks(asked, data.draw(st.sampled_from([40, 300, 900]))),
        ):
            assert rows.column_names == ["k", "t", "label", *names]
            got = {row["label"]: [row[name] for name in names] for row in rows.to_pylist()}
            assert rows.num_rows == len(labels)
            assert got == expected


NEW = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), NEW),
        st.tuples(st.just("upsert"), NEW),
        st.tuples(st.sampled_from(["delete", "erase"]), st.integers(0, 3)),
        st.tuples(st.just("rescale"), st.sampled_from([3, 6, 12])),
        st.tuples(st.just("merge"), st.sampled_from(MERGES[1:])),
        st.tuples(st.just("rollback"), st.just(None)),
    ),
    max_size=6,
)


def lived(path, first, steps, sort_by):
    """Return a table of identified rows after what was done to it."""
    ids = count(10)

    def numbered(pairs, known=0):
        made = [next(ids) if i >= known else i for i, _ in enumerate(pairs)]
        keys, times = zip(*pairs, strict=True)
        return pa.table({"k": keys, "t": times, "id": made, "v": range(len(pairs))})

    how = {"keys": "k", "num_subpartitions": 3, "sort_by": sort_by, "options": FAST}
    arrow_shuffle.write_shuffle(numbered(first, len(first)), path, unique=["k", "id"], **how)
    for what, given_ in steps:
        shuffle = arrow_shuffle.open_shuffle(path)
        if what == "append":
            shuffle.append(numbered(given_), options=FAST)
        elif what == "upsert":  # of identities that are there, mostly, under any key
            rows = numbered(given_, known=min(3, len(given_)))
            shuffle.upsert(rows, options=FAST)
        elif what in ("delete", "erase"):
            shuffle.delete({"k": [given_]}, erase=what == "erase", options=FAST)
        elif what == "rescale":
            shuffle.rescale(given_)
        elif what == "merge":
            shuffle.merge(**given_, options=FAST)
        elif shuffle.version > 1:
            shuffle.rollback(shuffle.version - 1, undo_deletions=True)
    return arrow_shuffle.open_shuffle(path)


@settings(max_examples=examples(30, 500))
@given(NEW, STEPS, NEW, STEPS, st.sampled_from(SORTS[:4]), st.booleans(), st.booleans())
def test_whatever_was_done_to_both_sides(labels, to_labels, features, done, sort_by, latest, backs):
    """The rule is that of the rows that are there, in the order in which they are read."""
    with tempfile.TemporaryDirectory() as path:
        left = lived(f"{path}/l", labels, to_labels, ())
        right = lived(f"{path}/f", features, done, sort_by)
        rows = right.select("t", "v", latest_by="id" if latest else None)
        direction = "backward" if backs else "nearest"
        asked = left.select("k", "t", "id").join(rows, how="asof", time="t", direction=direction)
        there = right.select("k", "t", "v", latest_by="id" if latest else None).to_table()
        pairs = list(zip(there["k"].to_pylist(), there["t"].to_pylist(), strict=True))
        model = as_of(in_order(left, "k", "t"), pairs, direction=direction)
        values = [None if place is None else there["v"][place].as_py() for place in model]
        known = in_order(left, "k", "t", "id")
        expected = sorted([(*row, v) for row, v in zip(known, values, strict=True)], key=str)
        for found in (asked.to_table(), in_blocks(asked, 400)):
            rows = zip(*(found[name].to_pylist() for name in ("k", "t", "id", "v")), strict=True)
            assert sorted(rows, key=str) == expected


@settings(max_examples=examples(15, 200))
@given(ROWS, ROWS, st.sampled_from(SORTS), st.integers(1, 3))
def test_merges_change_nothing(labels, features, sort_by, days):
    with tempfile.TemporaryDirectory() as path:
        left = written(f"{path}/labels", labels, pa.int64(), int, "label")
        right = written(f"{path}/f", features, pa.int64(), int, "v", days=days, sort_by=sort_by)
        for direction in ("backward", "forward", "nearest"):
            asked = left.join(right, how="asof", time="t", direction=direction)
            before = asked.to_table().sort_by("label")
            for merge in MERGES[1:]:
                newer = written(
                    f"{path}/{direction}-{MERGES.index(merge)}", features, pa.int64(), int, "v",
                    days=days, sort_by=sort_by, merge=merge,
                )  # fmt: skip
                again = left.join(newer, how="asof", time="t", direction=direction)
                assert again.to_table().sort_by("label") == before


@settings(max_examples=examples(40, 500))
@given(st.data())
def test_others_find_the_same_where_they_agree(data):
    rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), max_size=20)
    labels = data.draw(rows)
    distinct = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), max_size=20, unique=True)
    features = data.draw(distinct)
    tolerance = data.draw(st.none() | st.integers(0, 6))
    exact = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as path:
        left = written(f"{path}/labels", labels, pa.int64(), int, "label")
        right = written(f"{path}/f", features, pa.int64(), int, "v", days=2)
        for direction in ("backward", "forward", "nearest"):
            asked = left.join(
                right, how="asof", time="t", direction=direction, tolerance=tolerance,
                allow_exact_matches=exact,
            )  # fmt: skip
            found = asked.to_table().sort_by("label")["v"].to_pylist()
            frames = [
                rows.to_table().to_pandas().sort_values("t", kind="stable")
                for rows in (left, right)
            ]
            merged = pd.merge_asof(
                *frames, on="t", by="k", direction=direction, tolerance=tolerance,
                allow_exact_matches=exact,
            ).sort_values("label")  # fmt: skip
            assert found == [None if pd.isna(v) else int(v) for v in merged["v"]]
            if direction != "nearest" and tolerance is None:
                less = {"backward": ">", "forward": "<"}[direction] + "=" * exact
                tables = {"l": left.to_table(), "r": right.to_table()}
                on = f"l.k = r.k AND l.t {less} r.t"
                sql = f"SELECT v FROM l ASOF LEFT JOIN r ON {on} ORDER BY label"
                with duckdb.connect() as connection:
                    for name, table in tables.items():
                        connection.register(name, table)
                    assert found == [v for (v,) in connection.sql(sql).fetchall()]
