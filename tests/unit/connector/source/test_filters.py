"""Filters of the data source up to its tasks: what they refuse, and which partitions are left."""

import pickle

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from arrow_format import open_shuffle, write_shuffle
from arrow_format.errors import OptionError, SchemaError
from arrow_format.filters.keys import bind_keys
from connector.options.filters import format_arrow_filter
from connector.source.described import MOST_FILTER_CHARACTERS, shortened
from connector.source.reader import ShuffleSourceReader, restricted, schema_of_source
from connector.source.stream_reader import ShuffleStreamReader
from tests.support.small_shuffles import write_rows

N = 8
SCHEMA = StructType().add("k", LongType()).add("s", StringType())
ROWS = pa.table({"k": range(100), "s": [f"text {i % 10}" for i in range(100)]})


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("filters") / "s"
    write_rows(path, ROWS, "k", n=N)
    return path


def reader_of(path, schema=SCHEMA, **options):
    return ShuffleSourceReader({"path": str(path), **options}, schema)


def rows_of(reader):
    task = pickle.loads(pickle.dumps(reader))
    batches = [batch for part in reader.partitions() for batch in task.read(part)]
    return sorted(row["k"] for batch in batches for row in batch.to_pylist())


def in_memory(expression):
    return ROWS.filter(expression)["k"].to_pylist()


def test_only_rows_of_the_filter_are_delivered(path):
    few = (pc.field("k") < 50) & (pc.field("s") == "text 3")
    expected = in_memory(few)
    assert rows_of(reader_of(path, filter="k < 50 AND S = 'text 3'")) == expected
    assert rows_of(reader_of(path, arrowFilter=format_arrow_filter(few))) == expected
    # The columns that decide need not be asked for.
    assert rows_of(reader_of(path, StructType([SCHEMA["k"]]), filter="s = 'text 3'")) == in_memory(
        pc.field("s") == "text 3"
    )


def test_spark_partitions_are_only_for_what_can_have_rows(path):
    shuffle = open_shuffle(path)
    where = shuffle.subpartition_of(k=17)
    (partition,) = reader_of(path, filter="k = 17").partitions()
    assert partition.ranges == ((where, where + 1),)
    none = reader_of(path, filter="k = 17", subpartitions=str((where + 1) % N))
    assert [part.ranges for part in none.partitions()] == [()]
    assert rows_of(none) == []
    each = reader_of(path, filter="k = 17", coalesce="false")
    assert [part.ranges for part in each.partitions()] == [((i, i + 1),) for i in range(N)]
    assert rows_of(each) == [17]


def test_keys_travel_to_the_tasks(path):
    shuffle = open_shuffle(path)
    keys = bind_keys({"k": [17, None, 18]}, shuffle.schema, shuffle.partitioner).batch
    reader = reader_of(path, arrowFilter=format_arrow_filter(keys))
    assert rows_of(reader) == [17, 18]


@pytest.mark.parametrize(
    ("condition", "error", "message"),
    [
        ("x = 3", SchemaError, "'x' is not there; columns are k, s"),
        ("k = DATE '2024-06-01'", SchemaError, "column 'k' is int64, which does not compare with"),
        ("s = 'a' AND k > AND", OptionError, "does not parse: line 1, column 17, at 'AND'"),
        ("", OptionError, "does not parse: expected a condition such as"),
        ("upper(s) = 'A'", OptionError, r"'UPPER\(s\)' .* is not supported"),
    ],
)
def test_a_filter_that_does_not_fit_is_refused_before_any_task(path, condition, error, message):
    options = {"path": str(path), "filter": condition}
    for read in (lambda: reader_of(path, filter=condition), lambda: schema_of_source(options)):
        with pytest.raises(error, match=message):
            read()


def test_a_column_of_spark_is_told_what_to_do(path):
    class Column:  # as Spark's, which needs a session
        __module__ = "pyspark.sql.classic.column"

        def __getattr__(self, name):
            return Column()

    for ask in (restricted, lambda shuffle, filter: shuffle.where(filter)):
        with pytest.raises(OptionError, match=r"^filter is a Column of Spark.*as in filter=\"cust"):
            ask(open_shuffle(path), Column())


def test_the_option_needs_a_time_zone_only_where_it_matters(tmp_path):
    at = pa.array([0, 3_600_000_000], pa.timestamp("us", "UTC"))
    write_shuffle(pa.table({"k": [0, 1], "at": at}), tmp_path, num_subpartitions=N, keys="k")
    schema = StructType([SCHEMA["k"]])
    local = "at < TIMESTAMP '1970-01-01 01:00:00'"
    for make in (ShuffleSourceReader, lambda options, _: schema_of_source(options)):
        with pytest.raises(OptionError, match=r"names no time zone.*'.* Europe/Berlin'.*timeZone"):
            make({"path": str(tmp_path), "filter": local}, schema)
    with pytest.raises(OptionError, match="names no time zone"):
        open_shuffle(tmp_path).where(local)
    for options in ({"filter": local, "timeZone": "UTC"}, {"filter": f"{local[:-1]}Z'"}):
        assert rows_of(reader_of(tmp_path, schema, **options)) == [0]
    assert rows_of(reader_of(tmp_path, schema, filter="k = 1")) == [1]
    berlin = reader_of(tmp_path, schema, filter=local, timeZone="Europe/Berlin")
    assert rows_of(berlin) == []


@pytest.mark.parametrize("filter", [5, ["k = 1"], {"k": 1}])
def test_what_is_no_filter_is_refused(path, filter):
    with pytest.raises(OptionError, match=r"^filter=.* is (int|list|dict): expected a pyarrow.com"):
        restricted(open_shuffle(path), filter)


def test_keys_and_a_filter_are_not_given_together(path):
    with pytest.raises(OptionError, match=r"^filter and keys: give one of them"):
        restricted(open_shuffle(path), "k < 3", {"k": 3})


def test_a_stream_delivers_the_rows_of_its_filter(tmp_path):
    for start in (0, 100, 200):
        batch = pa.table({"k": range(start, start + 100), "s": ["a", "b"] * 50})
        write_rows(tmp_path, batch, "k", n=N, mode="append")
    options = {"path": str(tmp_path), "filter": "k IN (5, 104, 205) AND s = 'b'"}
    reader = ShuffleStreamReader(options, SCHEMA)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end["version"] == 3
    task, parts = pickle.loads(pickle.dumps(reader)), reader.partitions(start, end)
    rows = [row["k"] for part in parts for batch in task.read(part) for row in batch.to_pylist()]
    assert sorted(rows) == [5, 205]
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end


def test_a_filter_in_a_name_is_one_short_line():
    assert shortened("k = 3\n AND  s = 'a'") == "k = 3 AND s = 'a'"
    assert shortened("k" * MOST_FILTER_CHARACTERS) == "k" * MOST_FILTER_CHARACTERS
    assert shortened("kk" * MOST_FILTER_CHARACTERS) == "k" * MOST_FILTER_CHARACTERS + "..."
