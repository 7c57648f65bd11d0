"""The scan of a dataset by map tasks, against what pyarrow reads in one go; real files."""

import dataclasses
import datetime as dt
import decimal
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from arrow_format.errors import OptionError, SchemaError, StorageError
from arrow_format.ingest import files as file_reader
from arrow_format.ingest import scan as dataset_scan
from arrow_format.ingest.files import RowSize
from arrow_format.ingest.scan import ScannedRows, plan_scan
from arrow_format.ingest.spark_types import as_spark_reads, schema_as_spark_reads
from arrow_format.keys.range_partitioner import RangePartitioner
from tests.support.files import SAVED

NUM_ROWS = 2_000


def table(num_rows=NUM_ROWS, start=0):
    numbers = np.arange(start, start + num_rows)
    return pa.table(
        {
            "k": numbers,
            "s": pa.array([f"text {i % 37}" if i % 5 else None for i in numbers.tolist()]),
            "l": pa.array([[i, None] if i % 3 else None for i in numbers.tolist()]),
            "st": pa.array(
                [{"a": i, "b": {"c": str(i)}} if i % 7 else None for i in numbers.tolist()]
            ),
            "m": pa.array(
                [[(str(i), i % 4)] for i in numbers.tolist()], pa.map_(pa.string(), pa.int32())
            ),
            "n": pa.nulls(num_rows, pa.float64()),
        }
    )


def read(scan):
    """All rows of a scan as its tasks give them, which must have been sent to them."""
    scan = pickle.loads(pickle.dumps(scan))
    batches = [batch for task in range(scan.num_tasks) for batch in scan.read(task)]
    assert all(batch.schema.equals(scan.schema, check_metadata=True) for batch in batches)
    return pa.Table.from_batches(batches, scan.schema)


def plan(dataset, num_tasks=3, **arguments):
    return plan_scan(dataset, parallelism=2, num_tasks=num_tasks, **arguments)


def assert_reads_as(scan, expected):
    assert read(scan).to_pylist() == expected.to_pylist()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Directories with the same rows in each format; row groups of a few hundred rows."""
    root = tmp_path_factory.mktemp("files")
    rows, flat = table(), table().select(["k", "s", "n"])
    few = {"max_rows_per_file": 900, "max_rows_per_group": 300}
    ds.write_dataset(rows, root / "parquet", format="parquet", **few)
    ds.write_dataset(rows, root / "ipc", format="ipc", **few)
    ds.write_dataset(
        flat, root / "csv", format="csv", max_rows_per_file=900, max_rows_per_group=900
    )
    return root


# The same rows as pyarrow reads ------------------------------------------------------------------


@pytest.mark.parametrize("num_tasks", [1, 2, 5, 100])
@pytest.mark.parametrize("kind", ["parquet", "ipc", "csv"])
def test_all_rows_in_order(files, kind, num_tasks):
    dataset = ds.dataset(files / kind, format=kind)
    scan = plan(dataset, num_tasks)
    assert_reads_as(scan, dataset.to_table())
    # Three files, of three row groups or record batches each but for CSV; the last file has one.
    most = 3 if kind == "csv" else 7
    assert min(num_tasks, most) >= scan.num_tasks >= min(num_tasks, most) - 1


@pytest.mark.parametrize("kind", ["parquet", "ipc", "csv"])
def test_on_another_file_system(files, kind):
    there = fs.SubTreeFileSystem(str(files), fs.LocalFileSystem())
    dataset = ds.dataset(kind, filesystem=there, format=kind)
    assert_reads_as(plan(dataset), dataset.to_table())


def test_column_chunks_larger_than_what_is_read_at_once(files, monkeypatch):
    monkeypatch.setattr(file_reader, "STREAM_BYTES", 1)
    dataset = ds.dataset(files / "parquet")
    assert_reads_as(plan(dataset), dataset.to_table())


@pytest.mark.parametrize("kind", ["parquet", "ipc", "csv"])
def test_columns_and_filter(files, kind):
    dataset = ds.dataset(files / kind, format=kind)
    condition = (ds.field("k") >= 700) & (ds.field("s") != "text 3")
    scan = plan(dataset, columns=["n", "k"], filter=condition)
    assert scan.wanted.schema.names == ["n", "k", "s"], "what the filter looks at, and no more"
    expected = dataset.to_table(columns=["n", "k"], filter=condition)
    assert 0 < expected.num_rows < NUM_ROWS - 700
    assert_reads_as(scan, expected)
    # The dataset's own filter holds as well, and alone.
    filtered = dataset.filter(ds.field("k") >= 700)
    assert_reads_as(plan(filtered, columns=["n", "k"], filter=ds.field("s") != "text 3"), expected)
    assert_reads_as(plan(filtered), dataset.to_table(filter=ds.field("k") >= 700))


def test_row_groups_of_no_use_are_not_read(files):
    dataset = ds.dataset(files / "parquet")
    scan = plan(dataset, 100, filter=ds.field("k") >= 1_500)
    units = [unit for run in scan.tasks for unit in run]
    assert [(unit.file, unit.start, unit.stop) for unit in units] == [
        (1, 2, 3),
        (2, 0, 1),
    ]
    assert read(scan)["k"].to_pylist() == list(range(1_500, NUM_ROWS))
    nothing = plan(dataset, 100, filter=ds.field("k") < 0)
    assert read(nothing).num_rows == 0
    assert nothing.num_tasks >= 1


def test_a_filter_on_fields_of_a_struct(files):
    dataset = ds.dataset(files / "parquet")
    condition = ds.field("st", "b", "c") == "11"
    scan = plan(dataset, columns=["k"], filter=condition)
    assert scan.wanted.schema.names == ["k", "st"]
    assert read(scan)["k"].to_pylist() == [11]


NAN = float("nan")
FLOATS = pa.table(
    {
        "x": pa.array([1.0, NAN, 0.0, 0.0, None, 2.0]),
        "f": pa.array([1.0, NAN, 0.0, 0.0, None, 2.0], pa.float32()),
        "st": pa.array([{"x": 1.0}, {"x": NAN}, {"x": 0.0}, {"x": 0.0}, None, {"x": 2.0}]),
        "k": range(6),
    }
)


@pytest.mark.parametrize("num_tasks", [1, 9])
@pytest.mark.parametrize(
    ("condition", "passing"),
    [
        (lambda x: ~(x < 5), [1]),
        (lambda x: x != 1.0, [1, 2, 3, 5]),
        (lambda x: ~(x == 1.0), [1, 2, 3, 5]),
        (lambda x: ~((x == 1.0) | (ds.field("k") > 1)), [1]),
        (lambda x: x.isin([0.0]), [2, 3]),
        (lambda x: pc.is_nan(x), [1]),
    ],
)
@pytest.mark.parametrize("column", [("x",), ("f",), ("st", "x")])
def test_row_groups_are_not_left_out_by_statistics_of_floating_point(
    tmp_path, column, condition, passing, num_tasks
):
    # Of NaN the statistics say nothing, and of zeros that they lie between -0.0 and 0.0.
    pq.write_table(FLOATS, tmp_path / "x.parquet", row_group_size=2)
    scan = plan(ds.dataset(tmp_path), num_tasks, columns=["k"], filter=condition(ds.field(*column)))
    assert read(scan)["k"].to_pylist() == passing


def test_directories_are_left_out_by_floating_point(tmp_path):
    rows = pa.table({"p": [NAN, 1.0, -0.0, 2.0], "k": range(4)})
    parts = ds.partitioning(pa.schema([("p", pa.float64())]), flavor="hive")
    ds.write_dataset(rows, tmp_path, format="parquet", partitioning=parts)
    for condition, passing, num_files in (
        (~(ds.field("p") < 5), [0], 1),
        (ds.field("p") == 0, [2], 1),
        (ds.field("p") != 1, [0, 2, 3], 3),
    ):
        scan = plan(ds.dataset(tmp_path, partitioning=parts), filter=condition)
        assert len(scan.files) == num_files
        assert sorted(read(scan)["k"].to_pylist()) == passing


def test_row_groups_are_not_left_out_by_statistics_of_another_type(tmp_path):
    def passing(column, type_, condition):
        rows = pa.table({"c": column, "k": range(len(column))})
        pq.write_table(rows, tmp_path / "x.parquet", row_group_size=2)
        schema = pa.schema({"c": type_, "k": pa.int64()})
        return read(plan(ds.dataset(tmp_path, schema=schema), columns=["k"], filter=condition))

    # Written out, NaN is a value like others, and 10 comes before 9.
    texts = passing([1.0, NAN], pa.string(), ds.field("c") != "1")
    assert texts["k"].to_pylist() == [1]
    assert passing([9, 10] * 2, pa.string(), ds.field("c") == "9")["k"].to_pylist() == [0, 2]
    moments = pa.array([9, 10], pa.timestamp("us"))
    found = passing(moments, UTC, ds.field("c") == pa.scalar(9, UTC))
    assert found["k"].to_pylist() == [0]
    with pytest.raises(SchemaError, match=r"x\.parquet: column 'c' has type double, which"):
        passing([1.0, NAN], pa.int64(), ds.field("c") != 1)


FIXED = pa.list_(pa.list_(pa.int32(), 1), 2)


@pytest.mark.parametrize("kind", ["parquet", "ipc"])
def test_a_filter_over_fixed_size_lists_of_their_like(tmp_path, kind):
    # More rows than PyArrow evaluates at a time: it cuts the rest off as a slice.
    num_rows = 75_000
    numbers = pa.array(np.repeat(np.arange(num_rows, dtype=np.int32), 2))
    lists = pa.FixedSizeListArray.from_arrays(
        pa.FixedSizeListArray.from_arrays(numbers, type=FIXED.value_type), type=FIXED
    )
    rows = pa.table(
        {
            "k": np.arange(num_rows),
            "l": lists,
            "st": pa.StructArray.from_arrays([lists], names=["l"]),
        }
    )
    SAVED[kind](rows, tmp_path / f"x.{kind}")
    dataset = ds.dataset(tmp_path / f"x.{kind}", format=kind)
    scan = plan(dataset, filter=(ds.field("k") < 20_000) | (ds.field("k") >= 30_000))
    found = read(scan)
    kept = np.r_[:20_000, 30_000:num_rows]
    assert found["k"].to_numpy().tolist() == kept.tolist()
    for column in (found["l"], pc.struct_field(found["st"], "l")):
        assert pc.list_flatten(pc.list_flatten(column)).to_numpy().tolist() == (
            np.repeat(kept, 2).tolist()
        )


def test_text_that_parquet_gives_as_views_is_filtered(tmp_path):
    rows = pa.table({"s": pa.array(["a", "b", None] * 50, pa.string_view()), "k": range(150)})
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=30)
    dataset = ds.dataset(tmp_path)
    assert dataset.schema.field("s").type == pa.string_view()
    scan = plan(dataset, filter=(ds.field("s") == "b") & (ds.field("k") > 70))
    assert read(scan)["k"].to_pylist() == list(range(73, 150, 3))


def test_a_union_of_datasets(files):
    dataset = ds.dataset([ds.dataset(files / "ipc", format="ipc"), ds.dataset(files / "parquet")])
    assert_reads_as(plan(dataset), dataset.to_table())
    condition = ds.field("k") < 10
    assert read(plan(dataset.filter(condition)))["k"].to_pylist() == [*range(10), *range(10)]


def test_fragments_of_some_row_groups(files):
    whole = ds.dataset(files / "parquet")
    chosen = [fragment.subset(row_group_ids=[1]) for fragment in list(whole.get_fragments())[:2]]
    dataset = ds.FileSystemDataset(chosen, whole.schema, whole.format, whole.filesystem)
    for num_tasks in (1, 100):
        found = read(plan(dataset, num_tasks))["k"].to_pylist()
        assert found == [*range(300, 600), *range(1_200, 1_500)]


def test_directories_name_values(tmp_path):
    rows = pa.table({"p": ["a", "b", None, "b"] * 5, "y": [1, 2, 3, 2] * 5, "k": range(20)})
    parts = ds.partitioning(pa.schema([("p", pa.string()), ("y", pa.int16())]), flavor="hive")
    ds.write_dataset(rows, tmp_path / "x", format="parquet", partitioning=parts)
    for declared in (parts, "hive", ds.HivePartitioning.discover(infer_dictionary=True)):
        dataset = ds.dataset(tmp_path / "x", partitioning=declared)
        expected = dataset.to_table()
        assert sorted(read(plan(dataset))["k"].to_pylist()) == list(range(20))
        assert_reads_as(plan(dataset), expected)
        assert_reads_as(plan(dataset, columns=["p"]), expected.select(["p"]))
        scan = plan(dataset, columns=["k"], filter=ds.field("p") == "b")
        assert len(scan.files) == 1, "other directories are not looked at"
        assert read(scan)["k"].to_pylist() == [i for i in range(20) if i % 2]


def test_files_of_other_schemas(tmp_path):
    (tmp_path / "x").mkdir()
    pq.write_table(
        pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", None]}), tmp_path / "x/1"
    )
    pq.write_table(pa.table({"c": [0.5], "a": pa.array([3], pa.int64())}), tmp_path / "x/2")
    pq.write_table(pa.table({"d": [1]}), tmp_path / "x/3")
    schema = pa.schema({"a": pa.int64(), "b": pa.string(), "c": pa.float64()})
    dataset = ds.dataset(tmp_path / "x", schema=schema, format="parquet")
    assert_reads_as(plan(dataset), dataset.to_table())
    assert_reads_as(plan(dataset, columns=["b"]), dataset.to_table(columns=["b"]))
    missing = plan(dataset, columns=["a"], filter=ds.field("b").is_null())
    assert read(missing)["a"].to_pylist() == [2, 3, None]
    wrong = ds.dataset(tmp_path / "x", schema=schema.set(1, pa.field("b", pa.int32())))
    with pytest.raises(SchemaError, match=r"x/1: column 'b' has type string, which does not"):
        read(plan(wrong))


def test_empty_files_and_no_files(tmp_path):
    empty = table(7).slice(0, 0)
    for kind in ("parquet", "ipc"):
        (tmp_path / kind).mkdir()
        SAVED[kind](empty, tmp_path / kind / "a")
        for num_tasks in (1, 3):
            assert_reads_as(plan(ds.dataset(tmp_path / kind, format=kind), num_tasks), empty)
    pq.write_table(table(5), tmp_path / "parquet" / "zz.parquet")
    assert_reads_as(plan(ds.dataset(tmp_path / "parquet")), table(5))
    nothing = ds.dataset([], schema=empty.schema, format="parquet")
    scan = plan(nothing)
    assert scan.num_tasks == 1
    assert_reads_as(scan, empty)


# Types -------------------------------------------------------------------------------------------

INSTANT = dt.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=dt.UTC)
UTC = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("array", "stored"),
    [
        (pa.array([INSTANT], pa.timestamp("ns", "Asia/Tokyo")), UTC),
        (pa.array([INSTANT.replace(tzinfo=None)], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([INSTANT.replace(microsecond=0)], pa.timestamp("s", "UTC")), UTC),
        (pa.array([[INSTANT], []], pa.list_(pa.timestamp("ns", "UTC"))), pa.list_(UTC)),
        (pa.array([dt.date(2024, 2, 29)], pa.date64()), pa.date32()),
        (pa.array([dt.time(1, 2, 3)], pa.time32("ms")), pa.time64("ns")),
        (pa.array([decimal.Decimal("1.50")], pa.decimal64(5, 2)), pa.decimal128(5, 2)),
        (pa.array([np.float16(0.1), None]), pa.float32()),
        (pa.array([b"ab"], pa.binary(2)), pa.binary()),
        (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), pa.list_(pa.int32())),
        (pa.array(["a", None, "a"]).dictionary_encode(), pa.string()),
        (pa.array(["a", None], pa.large_string()), pa.string()),
        (pa.array([b"a" * 40], pa.binary_view()), pa.binary()),
        (pa.array([[1], None], pa.large_list(pa.int8())), pa.list_(pa.int8())),
        (pa.array([1, 255], pa.uint8()), pa.int16()),
        (pa.array([1, None], pa.uint16()), pa.int32()),
        (pa.array([1, None, 2**32 - 1], pa.uint32()), pa.int64()),
        (pa.array([1, None, 2**64 - 1], pa.uint64()), pa.decimal128(20, 0)),
        (pa.array([[1, 2**64 - 1]], pa.list_(pa.uint64())), pa.list_(pa.decimal128(20, 0))),
        (pa.array([dt.timedelta(hours=1), None], pa.duration("s")), pa.duration("us")),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_types_as_spark_reads_them(tmp_path, array, stored):
    rows = pa.table({"c": array, "k": range(len(array))})
    for kind in ("ipc", "parquet"):
        SAVED[kind](rows, tmp_path / kind)
        found = read(plan(ds.dataset(tmp_path / kind, format=kind)))
        assert found["c"].to_pylist() == array.to_pylist()
        assert found["k"].to_pylist() == list(range(len(array)))
        if pa.types.is_list(stored):
            assert found["c"].type.value_type == stored.value_type
        else:
            assert found["c"].type == stored
        assert all(field.nullable and not field.metadata for field in found.schema)


def test_nanoseconds_are_rounded_down_also_before_1970(tmp_path):
    inside = pa.struct([("t", pa.timestamp("ns")), ("d", pa.timestamp("s"))])
    nano, zoned = pa.timestamp("ns"), pa.timestamp("ns", "Asia/Tokyo")
    rows = pa.table(
        {
            "t": pa.array([1_999, None, -1, -1_000, -1_001, 0, -(2**63)], nano),
            "z": pa.array([-1, 1, None, -1_500, -999_999, 999, 2**63 - 1], zoned),
            "s": pa.array([{"t": 2_001, "d": 3}, None, {"t": -2_001, "d": -3}] + [{}] * 4, inside),
            "l": pa.array([[-1, 1], [], None, [None, -2_001], [5], [], [-1]], pa.list_(zoned)),
            "f": pa.array([[-1, 1], None] + [[-7, 7_000]] * 5, pa.list_(nano, 2)),
            "m": pa.array([[(-1, {"t": -1})], None, []] + [[(1, None)]] * 4, pa.map_(nano, inside)),
            "ll": pa.array([[[{"t": -1}], None, []], []] + [None] * 5, pa.list_(pa.list_(inside))),
            "d": pa.array([-1, None, -1_001, 1_999, 0, 7, 2**63 - 1], pa.duration("ns")),
        }
    )

    def down(value):
        """Every whole number of nanoseconds below a value, as microseconds."""
        if isinstance(value, dict):  # seconds in ``d``
            d = value.get("d")
            return {"t": down(value.get("t")), "d": None if d is None else d * 10**6}
        if isinstance(value, list | tuple):
            return type(value)(map(down, value))
        return value // 1_000 if value is not None else None

    def numbers(table):
        """Timestamps as the numbers that they are."""

        def plain(type_):
            if pa.types.is_temporal(type_):
                return pa.int64()
            if pa.types.is_struct(type_):
                return pa.struct([field.with_type(plain(field.type)) for field in type_])
            if pa.types.is_map(type_):
                return pa.map_(plain(type_.key_type), plain(type_.item_type))
            if pa.types.is_fixed_size_list(type_):
                return pa.list_(plain(type_.value_type), type_.list_size)
            return pa.list_(plain(type_.value_type)) if pa.types.is_list(type_) else type_

        schema = pa.schema([(field.name, plain(field.type)) for field in table.schema])
        return {
            name: table[name].cast(schema.field(name).type).to_pylist()
            for name in table.schema.names
        }

    expected = {name: [down(value) for value in values] for name, values in numbers(rows).items()}
    for kind in ("ipc", "parquet"):
        # Parquet has no seconds, and PyArrow 25 reads no null lists of a fixed size from it.
        some = rows if kind == "ipc" else rows.drop_columns(["s", "m", "ll", "f"])
        (tmp_path / kind).mkdir()
        ds.write_dataset(some, tmp_path / kind, format=kind)
        found = numbers(read(plan(ds.dataset(tmp_path / kind, format=kind))))
        assert found == {name: expected[name] for name in some.schema.names}


def test_a_slice_of_nested_nanoseconds_is_rounded_down_too():
    nano = pa.list_(pa.timestamp("ns"))
    whole = pa.array([[-1], [-1_001, 1], None, [2_999], []], nano)
    schema = schema_as_spark_reads(pa.schema({"l": nano}))
    for start in range(5):
        batch = pa.record_batch({"l": whole.slice(start, 3)})
        found = as_spark_reads(batch, schema, "x").column(0)
        found.validate(full=True)
        expected = [[-1], [-2, 0], None, [2], []][start : start + 3]
        assert found.cast(pa.list_(pa.int64())).to_pylist() == expected


def test_timestamps_that_microseconds_do_not_reach(tmp_path):
    far = pa.table({"t": pa.array([1 << 60], pa.timestamp("s"))})
    ds.write_dataset(far, tmp_path / "far", format="ipc")
    with pytest.raises(SchemaError, match=r"part-0\.arrow: column 't' has type timestamp\[s\]"):
        read(plan(ds.dataset(tmp_path / "far", format="ipc")))


def test_int96_is_an_instant_also_beyond_2262(tmp_path):
    times = [dt.datetime(2024, 1, 1, 0, 0, 0, 7), dt.datetime(9999, 12, 31), None]
    rows = pa.table({"t": pa.array(times, pa.timestamp("us")), "k": [1, 2, 3]})
    pq.write_table(rows, tmp_path / "x.parquet", use_deprecated_int96_timestamps=True)
    found = read(plan(ds.dataset(tmp_path), filter=ds.field("k") > 0))
    assert found["t"].type == UTC
    assert found["t"].cast(pa.timestamp("us")).to_pylist() == times


NANOS_A_DAY = 86_400_000_000_000
BEFORE_1970 = [-NANOS_A_DAY // 1_000, None]

# Nanoseconds without a zone, the same as INT96, instants, and what lacks the column.
KINDS_OF_TIMESTAMPS = {
    "nano": ({"t": pa.array([-NANOS_A_DAY, None], pa.timestamp("ns"))}, False),
    "int96": ({"t": pa.array([-NANOS_A_DAY, None], pa.timestamp("ns"))}, True),
    "zoned": ({"t": pa.array([-NANOS_A_DAY // 1_000, None], UTC)}, False),
    "lacks": ({"k": [1, 2]}, False),
}


def timestamps(directory, kinds, schema=None, **arguments):
    """Rows of a dataset with one file of each kind, the first of which says the schema."""
    paths = []
    for kind in kinds:
        columns, int96 = KINDS_OF_TIMESTAMPS[kind]
        paths.append(directory / f"{kind}.parquet")
        pq.write_table(pa.table(columns), paths[-1], use_deprecated_int96_timestamps=int96)
    dataset = ds.dataset([str(path) for path in paths], schema=schema)
    found = read(plan(dataset, columns=["t"], **arguments))
    return found["t"].type, found["t"].cast(pa.int64()).to_pylist()


@pytest.mark.parametrize("num_tasks", [1, 9])
@pytest.mark.parametrize("kinds", [("nano", "int96"), ("int96", "nano")])
def test_int96_does_not_mix_with_other_timestamps_without_a_zone(tmp_path, kinds, num_tasks):
    with pytest.raises(
        SchemaError,
        match=rf"{kinds[1]}\.parquet: column 't' has timestamps .* but other files of the dataset",
    ):
        timestamps(tmp_path, kinds, num_tasks=num_tasks)


def test_int96_is_what_each_file_has(tmp_path):
    assert timestamps(tmp_path, ["nano"]) == (pa.timestamp("us"), BEFORE_1970)
    assert timestamps(tmp_path, ["int96"]) == (UTC, BEFORE_1970)
    for kinds in (("int96", "zoned"), ("zoned", "int96")):
        assert timestamps(tmp_path, kinds) == (UTC, BEFORE_1970 * 2), "both are instants"
    schema = pa.schema({"t": pa.timestamp("ns"), "k": pa.int64()})
    for kinds in (("int96", "lacks"), ("lacks", "int96")):
        stored, values = timestamps(tmp_path, kinds, schema)
        assert stored == UTC
        assert sorted(values, key=str) == [*BEFORE_1970, None, None]
    assert timestamps(tmp_path, ["lacks", "nano"], schema)[0] == pa.timestamp("us")
    assert timestamps(tmp_path, ["lacks"], schema) == (pa.timestamp("us"), [None, None])
    declared = pa.schema({"t": UTC})
    for kinds in (("int96", "zoned"), ("zoned", "int96")):
        assert timestamps(tmp_path, kinds, declared) == (UTC, BEFORE_1970 * 2)


def test_few_footers_are_looked_at_to_know_which_are_int96(tmp_path, monkeypatch):
    days = pa.array(np.arange(30) * 86_400, pa.timestamp("s"))
    rows = pa.table({"p": days, "t": days, "k": range(30)})
    parts = ds.partitioning(pa.schema([("p", pa.timestamp("s"))]), flavor="hive")
    ds.write_dataset(rows, tmp_path, format="parquet", partitioning=parts)
    looks = []
    timestamps_of = dataset_scan._timestamps_of
    monkeypatch.setattr(
        dataset_scan, "_timestamps_of", lambda one: looks.append(one) or timestamps_of(one)
    )
    found = read(plan(ds.dataset(tmp_path, partitioning=parts)))
    assert found["p"].to_pylist() == found["t"].to_pylist() == days.to_pylist()
    assert len(looks) == 1


def test_int96_of_columns_with_dots_and_fields(tmp_path):
    times, inside = pa.array([5_000], pa.timestamp("ns")), pa.struct([("b", pa.timestamp("ns"))])
    rows = {"a.b": times, "a": pa.array([{"b": 1_000}], inside), "c": pa.array([[1]]), "b": times}
    pq.write_table(pa.table(rows), tmp_path / "x.parquet", use_deprecated_int96_timestamps=True)
    found = read(plan(ds.dataset(tmp_path)))
    assert found.schema.types == [
        UTC,
        pa.struct([("b", UTC)]),
        pa.list_(pa.field("element", pa.int64())),
        UTC,
    ]


def test_int96_and_arrow_files_without_a_zone_do_not_mix(tmp_path):
    rows = pa.table({"t": pa.array([1], pa.timestamp("us"))})
    pq.write_table(rows, tmp_path / "x.parquet", use_deprecated_int96_timestamps=True)
    ds.write_dataset(rows, tmp_path / "ipc", format="ipc")
    ds.write_dataset(rows, tmp_path / "csv", format="csv")
    for kind in ("ipc", "csv"):
        parquet = ds.dataset(tmp_path / "x.parquet", schema=rows.schema)
        other = ds.dataset(tmp_path / kind, format=kind, schema=rows.schema)
        with pytest.raises(SchemaError, match=r"part-0\.\w+: column 't' has timestamps without"):
            read(plan(ds.dataset([other, parquet])))


# Bounded, and the same again ---------------------------------------------------------------------


@pytest.mark.slow
def test_batches_are_a_few_megabytes_whatever_the_row_group(tmp_path, monkeypatch):
    monkeypatch.setattr(file_reader, "BATCH_BYTES", 64 << 10)
    # Of the long texts each row group has a few, once: on disk they take next to nothing.
    long = pa.array([c * 900 for c in "abc"]).take(pa.array(np.arange(30_000) % 3))
    rows = pa.table({"k": np.arange(30_000), "s": long})
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=30_000)
    scan = plan(ds.dataset(tmp_path))
    sizes = [batch.nbytes for batch in scan.read(0)]
    assert max(sizes) < 96 << 10
    assert sum(sizes) > 27_000_000
    assert_reads_as(scan, rows)


def test_how_many_rows_are_decoded_at_a_time():
    size = RowSize()
    assert not size.is_known
    assert size.num_rows(0) == file_reader.MAX_BATCH_ROWS
    assert size.num_rows(file_reader.BATCH_BYTES * 5) == 1
    size.see(pa.record_batch({"a": np.arange(10)}))
    assert size.num_rows(0) == file_reader.MAX_BATCH_ROWS
    size.see(pa.record_batch({"a": np.zeros((0,))}))
    size.see(pa.record_batch({"a": ["x" * 1_044] * 10}))
    assert size.num_rows(0) == (8 << 20) // 1_048


@pytest.mark.parametrize("kind", ["parquet", "ipc", "csv"])
def test_a_retried_task_reads_the_same_batches(files, kind):
    scan = plan(ds.dataset(files / kind, format=kind), filter=ds.field("k") != 5)
    again = pickle.loads(pickle.dumps(scan))
    for task in range(scan.num_tasks):
        first, second = list(scan.read(task)), list(again.read(task))
        assert len(first) == len(second)
        assert all(one.equals(other) for one, other in zip(first, second, strict=True))


def test_a_sample_of_what_the_filter_leaves(files):
    dataset = ds.dataset(files / "parquet")
    scan = plan(dataset, columns=["k"], filter=ds.field("k") < 1_000)
    ranges = RangePartitioner.sampled(ScannedRows(scan), ["k"], 4)
    assert ranges.bounds.column(0).to_pylist() == [249, 499, 749]


# Refusals ----------------------------------------------------------------------------------------


def test_files_that_vanish_or_change(tmp_path):
    for name in "abc":
        pq.write_table(table(50), tmp_path / f"{name}.parquet")
    dataset = ds.dataset(tmp_path)
    scan = plan(dataset)
    (tmp_path / "b.parquet").unlink()
    with pytest.raises(StorageError, match=r"b\.parquet: does not exist, but had [\d,]+ bytes"):
        read(scan)
    with pytest.raises(StorageError, match=r"b\.parquet: the dataset names this file, which"):
        plan(dataset)
    pq.write_table(table(51), tmp_path / "b.parquet")
    with pytest.raises(StorageError, match=r"b\.parquet: has [\d,]+ bytes, but had"):
        read(scan)


def fixed_table(start):
    return pa.table({"k": np.arange(start, start + 1_000)})


def write_fixed(file, start, mtime_ns):
    """Write a file whose bytes are as many whatever the numbers in it."""
    pq.write_table(
        fixed_table(start), file, row_group_size=500, use_dictionary=False, compression="none"
    )
    os.utime(file, ns=(mtime_ns, mtime_ns))
    return file.stat().st_size


def test_a_file_replaced_by_one_of_the_same_size(tmp_path):
    file, then = tmp_path / "x.parquet", 1_700_000_000_123_456_789
    size = write_fixed(file, 0, then)
    scan = plan(ds.dataset(tmp_path), 2)
    assert scan.files[0].mtime_ns == then
    assert read(scan).num_rows == 1_000
    assert write_fixed(file, 5_000, then + 1) == size
    replaced = (
        r"x\.parquet: was modified at 2023-11-14 22:13:20\.123456790 UTC, but had last "
        r"been modified at 2023-11-14 22:13:20\.123456789 UTC when .* write again"
    )
    for task in range(2):
        with pytest.raises(StorageError, match=replaced):
            list(scan.read(task))
    # Also when that happens as its rows are read.
    write_fixed(file, 0, then)
    batches = scan.read(0)
    assert next(batches)["k"][0].as_py() == 0
    write_fixed(file, 5_000, then + 1)
    with pytest.raises(StorageError, match=replaced):
        list(batches)
    # A file system that knows no times leaves the size.
    file = dataclasses.replace(scan.files[0], mtime_ns=None)
    unknown = dataclasses.replace(scan, files=(file,))
    assert read(unknown)["k"][0].as_py() == 5_000


@pytest.mark.parametrize("kind", ["parquet", "ipc"])
@pytest.mark.parametrize("num_tasks", [1, 9])
def test_a_column_that_a_file_has_twice(tmp_path, kind, num_tasks):
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["a", "a", "b"])
    file = tmp_path / f"x.{kind}"
    SAVED[kind](twice, file)
    schema = pa.schema({"a": pa.int64(), "b": pa.int64()})
    dataset = ds.dataset(file, schema=schema, format=kind)
    for arguments in ({}, {"columns": ["b"], "filter": ds.field("a") > 0}):
        with pytest.raises(SchemaError, match=rf"x\.{kind}: has 2 columns 'a'; .* rename the"):
            read(plan(dataset, num_tasks, **arguments))
    assert read(plan(dataset, num_tasks, columns=["b"]))["b"].to_pylist() == [3]


def test_whole_numbers_of_directories_beyond_int64(tmp_path):
    rows = pa.table({"p": pa.array([2**64 - 1, 2**63, 7], pa.uint64()), "k": [1, 2, 3]})
    parts = ds.partitioning(pa.schema([("p", pa.uint64())]), flavor="hive")
    ds.write_dataset(rows, tmp_path, format="parquet", partitioning=parts)
    dataset = ds.dataset(tmp_path, partitioning=parts)
    found = read(plan(dataset, columns=["p", "k"])).sort_by("k")
    assert found["p"].type == pa.decimal128(20, 0)
    assert found["p"].to_pylist() == rows["p"].to_pylist()
    assert found["k"].to_pylist() == [1, 2, 3]
    found = read(
        plan(dataset, columns=["k"], filter=ds.field("p") >= pa.scalar(2**63, pa.uint64()))
    )
    assert sorted(found["k"].to_pylist()) == [1, 2]
    small = ds.dataset(tmp_path, schema=pa.schema({"p": pa.int64(), "k": pa.int64()}),
                       partitioning=parts)  # fmt: skip
    with pytest.raises(SchemaError, match=r"parquet: column 'p' has type uint64, which"):
        read(plan(small))


@pytest.mark.parametrize("kind", ["parquet", "ipc"])
def test_damaged_files_are_named(tmp_path, kind):
    ds.write_dataset(table(5_000), tmp_path, format=kind)
    (file,) = tmp_path.iterdir()
    dataset = ds.dataset(tmp_path, format=kind)
    scan = plan(dataset)
    damaged = bytearray(file.read_bytes())
    for start in range(8, len(damaged) * 3 // 4, 1_000):
        damaged[start : start + 500] = b"\xff" * len(damaged[start : start + 500])
    file.write_bytes(damaged)
    os.utime(file, ns=(scan.files[0].mtime_ns, scan.files[0].mtime_ns))  # by a disk, not a writer
    with pytest.raises(StorageError, match=rf"{file.name}: cannot be read as "):
        read(scan)
    file.write_bytes(b"no such format" * 100)
    with pytest.raises(StorageError, match=file.name):
        plan(dataset, 100)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"columns": ["k", "no"]}, SchemaError, "column 'no' is not there .*; columns are k, s"),
        ({"columns": [1]}, SchemaError, "columns: column 1 is not there; columns are k, s"),
        ({"columns": []}, SchemaError, "columns is empty"),
        ({"columns": ["k", "k"]}, SchemaError, "columns with the same name: 'k'"),
        ({"filter": "k > 1"}, OptionError, "filter is str: expected a pyarrow expression"),
        ({"filter": ds.field("no") > 1}, OptionError, r"filter \(no > 1\) does not fit the data"),
        ({"filter": ds.field("k") > "a"}, OptionError, "does not fit the dataset"),
        ({"filter": ds.field("k")}, OptionError, "filter k gives values of type int64: expected a"),
        ({"filter": ds.scalar(None)}, OptionError, "gives values of type null: expected a boolean"),
        (
            {"filter": ds.field(0) < 5, "columns": ["k"]},
            OptionError,
            r"filter \(FieldPath\(0\) < 5\) cannot be sent .* columns by name",
        ),
        ({"filter": ds.field(1) == "text 1"}, OptionError, "columns by name .*not by position"),
        ({"filter": ds.field("st", 0) > 50}, OptionError, "columns by name .*not by position"),
        ({"num_tasks": 0}, OptionError, "num_map_tasks=0: expected a whole number of map tasks"),
    ],
)
def test_what_does_not_fit(files, arguments, error, message):
    with pytest.raises(error, match=message):
        plan(ds.dataset(files / "parquet"), **arguments)


@pytest.mark.parametrize("kind", ["parquet", "ipc", "csv"])
def test_a_filter_that_fails_on_a_row(files, kind):
    dataset = ds.dataset(files / kind, format=kind)
    scan = plan(dataset, filter=pc.scalar(1) / (ds.field("k") - 5) > 0)
    with pytest.raises(OptionError, match=r"part-0\.\w+: filter .* divide by zero"):
        read(scan)


def test_a_relative_path_means_the_same_in_a_task(files, tmp_path, monkeypatch):
    monkeypatch.chdir(files)
    scan = plan(ds.dataset("parquet"))
    monkeypatch.chdir(tmp_path)
    assert read(scan).num_rows == NUM_ROWS


def test_sources_of_other_kinds(files):
    with pytest.raises(OptionError, match="pyarrow InMemoryDataset: expected a dataset of files"):
        plan(ds.dataset(table(3)))
    with pytest.raises(OptionError, match=r"pyarrow Table: .*arrow_shuffle\.write_shuffle"):
        plan(table(3))
    sink = pa.BufferOutputStream()
    pq.write_table(table(3), sink)
    fragment = ds.ParquetFileFormat().make_fragment(pa.py_buffer(sink.getvalue()))
    held = ds.FileSystemDataset([fragment], table(0).schema, ds.ParquetFileFormat())
    with pytest.raises(OptionError, match="files in memory"):
        plan(held)


def test_columns_that_cannot_be_stored_hurt_only_when_wanted(tmp_path):
    union = pa.UnionArray.from_dense(
        pa.array([0, 0], pa.int8()), pa.array([0, 1], pa.int32()), [pa.array([1, 2])]
    )
    ds.write_dataset(pa.table({"u": union, "k": [1, 2]}), tmp_path, format="ipc")
    dataset = ds.dataset(tmp_path, format="ipc")
    with pytest.raises(SchemaError, match="column 'u' has type"):
        plan(dataset)
    found = read(plan(dataset, columns=["k"], filter=pc.field("k") > 1))
    assert found["k"].to_pylist() == [2]
