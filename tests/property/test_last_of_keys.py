"""The last row of each key, of any history of a shuffle, against ten lines of Python."""

import math

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import arrow_shuffle
from arrow_shuffle import MergePolicy, WriteOptions
from tests.support.exhaustive import examples
from tests.support.guarantees import guarantee
from tests.support.operations import written

NAN = float("nan")
KEYS = [None, NAN, 0.0, -0.0, 1.0, 2.5, -7.0, 2.0**60]
REVS = [None, NAN, -math.inf, -1.0, -0.0, 0.0, 0.5, 3.0, math.inf]
CONDITIONS = {
    None: lambda row: True,
    "v < 4": lambda row: row["v"] < 4,
    "k > 0": lambda row: row["k"] is not None and not row["k"] <= 0,
    "k > 0 AND v < 4": lambda row: row["k"] is not None and not row["k"] <= 0 and row["v"] < 4,
    "rev IS NOT NULL": lambda row: row["rev"] is not None,
    "s = 'a' OR v = 9": lambda row: row["s"] == "a" or row["v"] == 9,
}
SMALL = WriteOptions(sync=False, chunk_bytes=4096, sort_buffer_bytes=1 << 20)
OFTEN = st.sampled_from(["append", "append", "merge", "delete"])
MERGES = [("subpartition", "always"), ("map_output", "always"), ("map_output", "never")]
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from(KEYS),
            "rev": st.sampled_from(REVS),
            "v": st.integers(0, 9),
            "s": st.sampled_from(["a", "b"]),
        }
    ),
    max_size=12,
)


def table_of(rows):
    columns = {name: [row[name] for row in rows] for name in ("k", "rev", "v", "s")}
    types = {"k": pa.float64(), "rev": pa.float64(), "v": pa.int64(), "s": pa.string()}
    return pa.table({n: pa.array(columns[n], types[n], from_pandas=False) for n in types})


def same(value):
    """What two values have in common that count as one."""
    if value is None:
        return (0, 0)
    return (2, 0) if isinstance(value, float) and math.isnan(value) else (1, value + 0.0)


def oracle(rows, condition):
    """The last row of each key: rows are in the order of the shuffle."""
    last = {}
    for row in rows:
        key = same(row["k"])
        if key not in last or same(row["rev"]) >= same(last[key]["rev"]):
            last[key] = row
    return [row for row in last.values() if CONDITIONS[condition](row)]


def counted(rows):
    return sorted((same(r["k"]), same(r["rev"]), r["v"], r["s"]) for r in rows)


@guarantee("latest rows")
@settings(
    max_examples=examples(60, at_night=1_000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.data())
def test_the_last_row_of_each_key_is_that_of_a_model(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("last") / "s"
    sort_by = data.draw(st.sampled_from([(), (), "v", (("s", "descending"), "v")]))
    n = data.draw(st.sampled_from([1, 3]))
    shuffle = written(path, table_of(data.draw(ROWS)), "k", n=n, sort_by=sort_by, options=SMALL)
    for what in data.draw(st.lists(OFTEN)):
        if what == "append":
            shuffle.append(table_of(data.draw(ROWS)), options=SMALL)
        elif what == "merge":
            by, rewrite = data.draw(st.sampled_from(MERGES))
            shuffle.merge(by, policy=MergePolicy(rewrite=rewrite), options=SMALL)
        else:
            keys = pa.array([data.draw(st.sampled_from(KEYS))], pa.float64(), from_pandas=False)
            shuffle.delete({"k": keys}, options=SMALL)
    shuffle = shuffle.newest()
    condition = data.draw(st.sampled_from(list(CONDITIONS)))
    # In what order these come, other tests say; merges keep it.
    expected = oracle(shuffle.to_table().to_pylist(), condition)
    latest = shuffle.latest_by("rev").where(condition)
    assert counted(latest.to_table().to_pylist()) == counted(expected)
    assert counted(latest.to_table(ordered=False).to_pylist()) == counted(expected)
    assert latest.count_rows() == len(expected)
    asked = shuffle.select("k", "rev", "v", "s", latest_by="rev", filter=condition)
    assert counted(asked.to_table().to_pylist()) == counted(expected)
    assert asked.aggregate("k", {"n": ("*", "count")}).to_table().num_rows == len(expected)
    some = {"k": pa.array(data.draw(st.lists(st.sampled_from(KEYS), min_size=1)), pa.float64())}
    wanted = {same(key) for key in some["k"].to_pylist()}
    found = latest.lookup(some).read_all().to_pylist()
    assert counted(found) == counted(row for row in expected if same(row["k"]) in wanted)
    assert arrow_shuffle.open_shuffle(path).count_rows() == shuffle.num_rows
