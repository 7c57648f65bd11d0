"""As-of joins: the cases of the design, what is refused, and what they compose with."""

from __future__ import annotations

import datetime as dt

import pandas as pd
import pyarrow as pa
import pytest

import arrow_shuffle
from arrow_format.operators.description import ANY_PLACE
from arrow_format.read.shuffle import open_shuffle as open_stored
from arrow_shuffle import MergePolicy, open_shuffle
from arrow_shuffle.errors import OptionError, SchemaError
from tests.support.memory_pool import counted_pool
from tests.support.merges import ALWAYS
from tests.support.operations import made, written
from tests.support.recording_storage import RecordingStorage
from tests.support.small_shuffles import FAST

SECOND = dt.timedelta(seconds=1)


def rows(values, *, time="t", value="v", type_=None):
    type_ = type_ or pa.int64()
    keys, times, last = zip(*values, strict=True)
    columns = {"k": pa.array(keys, pa.int64()), time: pa.array(times, type_), value: pa.array(last)}
    return pa.table(columns)


@pytest.fixture
def features(tmp_path):
    path = tmp_path / "features"
    written(path, rows([(1, 10, "a"), (1, 15, "c")]), "k")
    written(path, rows([(1, 10, "b"), (None, 10, "n"), (1, None, "x")]), "k", mode="append")
    return open_shuffle(path)


@pytest.fixture
def labels(tmp_path):
    asked = [(1, 10, 0), (1, 20, 1), (None, 10, 2), (1, None, 3), (2, 10, 4)]
    return written(tmp_path / "labels", rows(asked, value="id"), "k")


def values(asked, name="v"):
    return [row[name] for row in sorted(asked.to_table().to_pylist(), key=lambda row: row["id"])]


def check_times(labels, features, early=None):
    def joined(**how):
        return values(labels.join(features, how="asof", time="t", **how))

    assert joined() == ["b", "c", None, None, early]
    assert joined(allow_exact_matches=False) == [early, "c", None, None, early]
    assert joined(direction="forward") == ["a", None, None, None, None]
    assert joined(tolerance=5) == ["b", "c", None, None, None]
    assert joined(tolerance=4) == ["b", None, None, None, None]
    assert joined(tolerance=0) == ["b", None, None, None, None]


def test_the_last_row_of_an_equal_time_counts(labels, features):
    check_times(labels, features)


@pytest.mark.parametrize(
    ("by", "rewrite"),
    [("map_output", "never"), ("map_output", "always"), ("subpartition", "always")],
)
def test_merges_leave_it_so(tmp_path, labels, features, by, rewrite):
    written(tmp_path / "features", rows([(key, 0, "z") for key in range(9)]), "k", mode="append")
    features = features.newest()
    features.merge(by, policy=MergePolicy(rewrite=rewrite), options=FAST)
    assert features.newest().version > features.version
    check_times(labels, features.newest(), early="z")


def test_a_corrected_row_stands_later(tmp_path, labels):
    how = {"unique": ["k", "id"], "n": 2}
    first = rows([(1, 10, 1), (1, 10, 2)], value="id").append_column("v", pa.array(["a", "b"]))
    features = written(tmp_path / "f", first, "k", **how)
    labels = labels.select("k", "t", "id")

    def last():
        found = labels.join(features.newest().select("t", "v"), how="asof", time="t")
        return values(found)[0]

    labels = written(tmp_path / "again", labels.to_table(), "k", n=2)
    assert last() == "b"
    corrected = rows([(1, 10, 1)], value="id").append_column("v", pa.array(["c"]))
    written(tmp_path / "f", corrected, "k", mode="upsert", **how)
    assert last() == "c"
    features.newest().merge(policy=ALWAYS, options=FAST)
    assert last() == "c"


def test_nearest_goes_backward_from_the_middle(tmp_path):
    features = written(tmp_path / "f", rows([(1, 8, "before"), (1, 12, "after")]), "k")
    labels = written(tmp_path / "l", rows([(1, 10, 0), (1, 11, 1), (1, 9, 2)], value="id"), "k")
    asked = labels.join(features, how="asof", time="t", direction="nearest")
    assert values(asked) == ["before", "after", "before"]


def test_the_newest_of_rows_created_for_one_time(tmp_path):
    late = rows([(1, 10, "late"), (1, 10, "first"), (1, 10, "unknown")])
    late = late.append_column("created", pa.array([3, 1, None]))
    features = written(tmp_path / "f", late, "k")
    labels = written(tmp_path / "l", rows([(1, 10, 0)], value="id"), "k")
    for direction in ("backward", "forward", "nearest"):
        asked = labels.join(features, how="asof", time="t", direction=direction, ties="created")
        assert values(asked) == ["late"]
        # What decides need not be delivered.
        few = labels.join(
            features.select("v", "created"), how="asof", time="t", direction=direction
        )
        assert values(few) == [{"forward": "late"}.get(direction, "unknown")]


def test_columns_are_those_of_the_labels_then_those_that_are_added(tmp_path, labels):
    balances = written(tmp_path / "b", rows([(1, 9, 5)], time="at", value="v"), "k")
    visits = written(tmp_path / "v", rows([(1, 9, 7)], time="at", value="v"), "k")
    asked = labels.join(
        [balances, visits], how="asof", time=("t", "at"), suffixes=("", "_balance", "_visits")
    )
    assert asked.schema.names == [
        "k", "t", "id", "at_balance", "v_balance", "at_visits", "v_visits",
    ]  # fmt: skip
    assert [field.nullable for field in asked.schema] == [True] * 7
    both = asked.select("v_visits", "v_balance").to_table()
    assert sorted(both["v_visits"].drop_null().to_pylist()) == [7, 7]
    assert sorted(both["v_balance"].drop_null().to_pylist()) == [5, 5]
    with pytest.raises(SchemaError, match="several sides have 'at', 'v': leave them out of all"):
        labels.join([balances, visits], how="asof", time=("t", "at"))


def test_tolerances_and_times_of_each_side(tmp_path, labels):
    balances = written(tmp_path / "b", rows([(1, 9, 5)], time="at", value="balance"), "k")
    visits = written(tmp_path / "v", rows([(1, 15, 7)], value="visits"), "k")
    asked = labels.join(
        [balances.select("balance"), visits],
        how="asof",
        time=[("t", "at"), "t"],
        tolerance=[1, None],
    )
    assert values(asked, "balance")[:2] == [5, None]
    assert values(asked, "visits")[:2] == [None, 7]


def test_a_side_whose_columns_nobody_asks_for_is_not_read(tmp_path, labels, features):
    other = written(tmp_path / "o", rows([(1, 9, 5)], value="w"), "k")
    both = labels.join([features, other], how="asof", time="t")
    assert [path for path, _ in both.select("id", "w").explain().reads] == [
        labels.path, other.path,
    ]  # fmt: skip
    # What it is joined with takes its columns alone.
    counted = both.select("k").aggregate("k", {"n": ("*", "count")})
    assert [path for path, _ in counted.explain().reads] == [labels.path]


TIMES = [
    (pa.timestamp("us"), "1s", [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 1)]),
    (pa.timestamp("ns", "UTC"), SECOND, [
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, 0, 0, 1, tzinfo=dt.UTC),
    ]),
    (pa.date32(), "1d", [dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
    (pa.int16(), 1, [1, 2]),
    (pa.float32(), 0.5, [1.0, 1.5]),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "tolerance", "times"), TIMES, ids=[str(t) for t, *_ in TIMES])
def test_a_tolerance_includes_its_end(tmp_path, type_, tolerance, times):
    features = written(tmp_path / "f", rows([(1, times[0], "f")], type_=type_), "k")
    labels = written(tmp_path / "l", rows([(1, times[1], 0)], value="id", type_=type_), "k")
    assert values(labels.join(features, how="asof", time="t", tolerance=tolerance)) == ["f"]
    less = {"1s": "999ms", "1d": "23h", 1: 0, 0.5: 0.4}.get(
        tolerance, SECOND - pd.Timedelta(1, "ns")
    )
    assert values(labels.join(features, how="asof", time="t", tolerance=less)) == [None]


def test_units_of_time_may_differ(tmp_path):
    at = dt.datetime(2024, 1, 1, 12)
    features = written(
        tmp_path / "f", rows([(1, at, "f")], type_=pa.timestamp("s")), "k", for_spark=False
    )
    labels = rows([(1, at, 0), (1, at - SECOND / 1000, 1)], value="id", type_=pa.timestamp("ns"))
    labels = written(tmp_path / "l", labels, "k", for_spark=False)
    assert values(labels.join(features, how="asof", time="t")) == ["f", None]


def test_a_time_beyond_the_finer_unit_is_an_error(tmp_path):
    far = dt.datetime(9999, 1, 1)
    features = written(
        tmp_path / "f", rows([(1, far, "f")], type_=pa.timestamp("s")), "k", for_spark=False
    )
    near = rows([(1, dt.datetime(2024, 1, 1), 0)], value="id", type_=pa.timestamp("ns"))
    labels = written(tmp_path / "l", near, "k", for_spark=False)
    # Backward it is after every label: nobody compares it.
    assert values(labels.join(features, how="asof", time="t")) == [None]
    with pytest.raises(SchemaError, match=r"compared as timestamp\[ns\], which does not reach"):
        labels.join(features, how="asof", time="t", direction="forward").to_table()


REFUSED = [
    ({"time": None}, OptionError, "needs time="),
    ({"time": "no"}, SchemaError, "'no'"),
    ({"time": ("t", "t", "t")}, OptionError, "expected a column, or a pair"),
    ({"time": ["t", "t"]}, OptionError, "has 2 values for 1 right sides"),
    ({"time": "k", "tolerance": "7d"}, OptionError, "expected a whole number, 0 or more"),
    ({"tolerance": -1}, OptionError, "0 or more"),
    ({"tolerance": 1.5}, OptionError, "expected a whole number"),
    ({"tolerance": True}, OptionError, "expected a whole number"),
    ({"direction": "sideways"}, OptionError, "expected backward, forward or nearest"),
    ({"allow_exact_matches": 1}, OptionError, "allow_exact_matches"),
    ({"ties": "no"}, SchemaError, "'no'"),
    ({"ties": 3}, OptionError, "expected a column of"),
    ({"time": ("t", "v")}, SchemaError, "'v' of .* string"),
    ({"suffixes": ("", "_r", "_s")}, OptionError, "expected two strings"),
    ({"on": ["t"]}, OptionError, "lacks the partition key"),
]


REFUSED += [
    ({"on": [("k", "v")], "time": "t"}, OptionError, "lacks the partition key.* of .*labels and"),
    ({"time": ("t", "no")}, SchemaError, "time, of .*features: column 'no'"),
    ({"ties": "no"}, SchemaError, "ties, of .*features: column 'no'"),
]


@pytest.mark.parametrize(("how", "error", "message"), REFUSED)
def test_what_does_not_fit_is_refused(labels, features, how, error, message):
    with pytest.raises(error, match=message):
        labels.join(features, how="asof", **{"time": "t", **how})


def test_arguments_of_other_joins(labels, features):
    with pytest.raises(OptionError, match='how="asof"'):
        labels.join(features, how="left", time="t")
    with pytest.raises(OptionError, match="other is empty"):
        labels.join([], how="asof", time="t")
    with pytest.raises(OptionError, match="other is list"):
        labels.join([features], how="left")


def test_times_with_and_without_a_zone(tmp_path):
    at = dt.datetime(2024, 1, 1)
    features = written(tmp_path / "f", rows([(1, at, "f")], type_=pa.timestamp("us")), "k")
    labels = rows([(1, at, 0)], value="id", type_=pa.timestamp("us", "UTC"))
    labels = written(tmp_path / "l", labels, "k")
    with pytest.raises(SchemaError, match="both have a zone or have none"):
        labels.join(features, how="asof", time="t")
    with pytest.raises(OptionError, match="expected a timedelta"):
        labels.join(labels.select("t"), how="asof", time="t", tolerance=7)


def test_another_entity_takes_two_steps(tmp_path):
    events = pa.table(
        {"customer": [1, 1, 2], "merchant": [7, 8, 7], "t": [5, 6, 7], "id": [0, 1, 2]}
    )
    labels = written(tmp_path / "l", events, "customer")
    customers = pa.table({"customer": [1, 2], "t": [1, 1], "age": [30, 40]})
    merchants = pa.table({"merchant": [7, 8], "t": [6, 1], "rating": [3, 4]})
    by_customer = written(tmp_path / "c", customers, "customer")
    by_merchant = written(tmp_path / "m", merchants, "merchant")
    with pytest.raises(OptionError, match="join in two steps") as found:
        labels.join([by_customer, by_merchant], how="asof", time="t")
    assert by_merchant.path in str(found.value)
    assert "keys=['merchant']" in str(found.value)
    with pytest.raises(OptionError, match="join in two steps"):
        labels.join(by_merchant, on="merchant", how="asof", time="t")
    first = labels.join(by_customer, how="asof", time="t")
    first.write(tmp_path / "by_merchant", keys="merchant", options=FAST)
    both = open_shuffle(tmp_path / "by_merchant").join(by_merchant, how="asof", time="t")
    assert values(both, "age") == [30, 30, 40]
    assert values(both, "rating") == [None, 4, 3]


def test_partial_rows_and_broadcast_ones(tmp_path, labels, features):
    combined = written(tmp_path / "c", rows([(1, 1, 2)]), "k", combine={"v": "sum", "t": "max"})
    with pytest.raises(OptionError, match="is combined"):
        labels.join(combined, how="asof", time="t")
    everyone = rows([(1, 9, "all"), (2, 9, "two")])
    arrow_shuffle.write_shuffle(
        everyone, tmp_path / "b", partitioner=arrow_shuffle.BroadcastPartitioner(),
        num_subpartitions=2, options=FAST,
    )  # fmt: skip
    broadcast = open_shuffle(tmp_path / "b")
    asked = labels.join(broadcast, on="k", how="asof", time="t")
    assert values(asked) == ["all", "all", None, None, "two"]
    with pytest.raises(OptionError, match="has broadcast rows"):
        broadcast.join(labels, on="k", how="asof", time="t")


def test_selections_of_both_sides(labels, features):
    # Times are found as keys are, whether they are selected or not.
    asked = labels.select("id", filter="t >= 20").join(
        features.select("v", filter="v <> 'c'"), how="asof", time="t"
    )
    assert asked.to_table().to_pylist() == [{"id": 1, "v": "b"}]


def test_results_go_on(tmp_path, labels, features):
    asked = labels.join(features, how="asof", time="t")
    made(asked, tmp_path / "set")
    kept = open_shuffle(tmp_path / "set")
    assert kept.partitioner == labels.partitioner
    assert values(kept.select()) == ["b", "c", None, None, None]
    again = asked.join(features.select("t", "v"), how="asof", time="t", suffixes=("", "_2"))
    assert values(again, "v_2") == ["b", "c", None, None, None]
    counted = asked.aggregate("k", {"n": ("v", "count")}).to_table().to_pylist()
    assert {row["k"]: row["n"] for row in counted} == {1: 2, 2: 0, None: 0}
    of_one = asked.select("id", "v", filter="id < 2", subpartitions=range(5)).to_table()
    assert sorted(of_one["v"].to_pylist()) == ["b", "c"]

    def lengths(joined):
        for batch in joined:
            yield pa.record_batch({"n": pa.array([batch.num_rows])})

    then = labels.join(features, how="asof", time="t", then=lengths, schema="n bigint")
    assert sum(then.to_table()["n"].to_pylist()) == 5
    assert values(labels.join(asked.select("t", "v"), how="asof", time="t"))[0] == "b"


def test_an_empty_side_adds_nulls(tmp_path, labels):
    empty = written(tmp_path / "e", rows([(1, 1, "v")]).slice(0, 0), "k")
    assert values(labels.join(empty, how="asof", time="t")) == [None] * 5
    assert empty.join(labels.select("t", "id"), how="asof", time="t").to_table().num_rows == 0


def test_only_files_within_the_tolerance_are_read(tmp_path):
    for day in range(60):
        day_rows = rows([(key, day * 24 + key, day) for key in range(20)])
        written(tmp_path / "f", day_rows, "k", mode="append", sort_by=["k", "t"])
    labels = written(tmp_path / "l", rows([(3, 59 * 24, 0), (4, 59 * 24 + 9, 1)], value="id"), "k")

    def reads(tolerance):
        storage = RecordingStorage(str(tmp_path / "f"))
        features = arrow_shuffle.shuffle.as_public(open_stored(storage))
        asked = labels.join(features, how="asof", time="t", tolerance=tolerance)
        found = values(asked)
        read = {path for path, _ in storage.rounds}
        (_, planned) = asked.explain().reads[1]
        return found, len(read), planned

    def shown(**how):
        joined = labels.join(open_shuffle(tmp_path / "f"), how="asof", time="t", **how)
        return str(joined.explain())

    assert "without a tolerance, rows of any age are read" in shown()
    assert "any age" not in shown(tolerance=7 * 24)
    week, files, planned = reads(7 * 24)
    assert (week, files) == ([58, 59], 8)
    kept = {step.what: step.kept for step in planned.steps}
    assert kept["files"] == 8
    assert kept["regions"] == 8
    every, files, _ = reads(None)
    assert (every, files) == (week, 60)


def test_rows_are_not_asked_for_their_time_where_few_are_out_of_reach(tmp_path):
    features = written(tmp_path / "f", rows([(1, time, time) for time in range(801)]), "k")

    def filter_of(time, tolerance=None):
        labels = written(tmp_path / f"l{time}", rows([(1, time, 0)], value="id"), "k")
        joined = labels.join(features, how="asof", time="t", tolerance=tolerance)
        assert values(joined) == [min(time, 800)]
        (_, planned) = joined.explain().reads[1]
        return planned.filter

    assert filter_of(700) is None
    assert "<= 699" in str(filter_of(699))
    assert filter_of(801, tolerance=701) is None
    assert ">= 101" in str(filter_of(802, tolerance=701))


def test_columns_stay_with_their_side_where_another_has_none(tmp_path, labels):
    first = written(tmp_path / "f", rows([(1, 5, "F")]), "k")
    second = written(tmp_path / "g", rows([(1, 5, "G")]).append_column("w", pa.array([7])), "k")
    joined = labels.join([first.select("k", "t"), second], how="asof", time="t")
    assert values(joined.select("id", "v"))[:2] == ["G", "G"]
    assert values(joined.select("id", "w"), "w")[:2] == [7, 7]
    both = labels.join([first, second], how="asof", time="t", suffixes=("", "_f", "_g"))
    again = both.select("k", "id", "v_g").join(labels.select("k"), how="semi").select("id", "v_g")
    assert values(again, "v_g")[:2] == ["G", "G"]


def test_a_function_is_called_once_for_each_group(tmp_path, monkeypatch):
    """However many blocks of labels ask for its rows."""
    called = []

    def counted(table: pa.Table) -> pa.Table:
        called.append(table.num_rows)
        return table

    schema = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])
    features = pa.table({"k": [1] * 50, "t": range(50), "v": range(50)}, schema)
    made_rows = written(tmp_path / "f", features, "k").map_groups(counted, schema)
    asked = pa.table({"k": [1] * 500, "t": [i % 50 for i in range(500)], "id": range(500)})
    labels = written(tmp_path / "l", asked, "k")
    joined = labels.join(made_rows, how="asof", time="t")
    work = joined._description.bind(ANY_PLACE).work.work
    found = pa.Table.from_batches(work.func(*work.args, range(5), group_bytes=4000))
    assert found.sort_by("id")["v"].to_pylist() == asked["t"].to_pylist()
    assert called == [50]


def test_few_wide_rows_among_narrow_ones_stay_in_bounds(tmp_path):
    texts = ["x" * 100_000 if i % 100 == 0 else "" for i in range(20_000)]
    features = pa.table({"k": [1] * 20_000, "t": range(20_000), "v": texts})
    written(tmp_path / "f", features, "k", n=1)
    asked = {"k": [1] * 200, "t": range(0, 20_000, 100), "id": range(200)}
    labels = written(tmp_path / "l", pa.table(asked), "k", n=1)
    joined = labels.join(open_shuffle(tmp_path / "f"), how="asof", time="t")
    work = joined._description.bind(ANY_PLACE).work.work
    group_bytes = 4 << 20
    sizes = []
    with counted_pool() as pool:
        for batch in work.func(*work.args, range(1), group_bytes=group_bytes):
            sizes += batch["v"].to_pylist()
            del batch
        assert pool.max_memory() < 12 * group_bytes
    assert sizes == texts[::100]
