"""What files say that only Spark knows: read as Spark does, or refused by file and column.

The files are PyArrow's with Spark's keys in their footers; ``integration/test_lane_files.py`` has
Spark's own.
"""

import datetime as dt
import json
import struct

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from arrow_format.errors import SchemaError
from arrow_format.ingest.scan import plan_scan
from arrow_format.ingest.spark_footer import (
    Calendar,
    check_orc_types,
    check_parquet_types,
    spark_footer,
)
from tests.support.files import SAVED

VERSION = "org.apache.spark.version"
LEGACY_DATES = "org.apache.spark.legacyDateTime"
LEGACY_INT96 = "org.apache.spark.legacyINT96"
ROW_METADATA = "org.apache.spark.sql.parquet.row.metadata"

UTC, LISTS = pa.timestamp("us", "UTC"), pa.list_(pa.timestamp("us"))
DAY = -141_427
MICROS = -2_208_988_800_000_000
MICROS_A_DAY = 86_400_000_000
"""The first that are the same in both calendars."""


def read_all(dataset, **arguments):
    scan = plan_scan(dataset, parallelism=1, num_tasks=1, **arguments)
    return pa.Table.from_batches(scan.read(0), scan.schema)


def read(path, **arguments):
    return read_all(ds.dataset(path), **arguments)


def write(path, columns, footer=None, **arguments):
    rows = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(rows.replace_schema_metadata(footer), path, **arguments)
    return path


# Calendar ----------------------------------------------------------------------------------------


def kinds(days, micros):
    """A file's column with one value, for each kind of column that has a calendar."""
    return {
        "date": (pa.array([0, days], pa.date32()), {}),
        "micros": (pa.array([0, micros], UTC), {}),
        "millis": (pa.array([0, micros // 1_000], pa.timestamp("ms", "UTC")), {}),
        # At midnight: old versions of PyArrow write other times before 1970 wrongly.
        "int96": (
            pa.array([0, micros // MICROS_A_DAY * MICROS_A_DAY], pa.timestamp("us")),
            {"use_deprecated_int96_timestamps": True},
        ),
        "zoneless": (pa.array([0, micros], pa.timestamp("us")), {}),
    }


@pytest.mark.parametrize(
    ("footer", "refused"),
    [
        (None, ()),
        ({VERSION: "4.3.0"}, ()),
        ({VERSION: "3.1.0"}, ()),
        ({LEGACY_DATES: "", LEGACY_INT96: ""}, ()),  # whose they are is not said
        ({VERSION: "4.3.0", LEGACY_DATES: ""}, ("date", "micros", "millis")),
        ({VERSION: "4.3.0", LEGACY_INT96: ""}, ("int96",)),
        ({VERSION: "2.4.8"}, ("date", "micros", "millis", "int96")),
        ({VERSION: "3.0.3"}, ("int96",)),
    ],
    ids=str,
)
def test_values_of_the_older_calendar_are_refused(tmp_path, footer, refused):
    for kind, (column, how) in kinds(DAY, MICROS).items():
        path = write(tmp_path / f"{kind}.parquet", {"k": [1, 2], "c": column}, footer, **how)
        assert read(path)["c"].cast(column.type).to_pylist() == column.to_pylist(), "rows of today"
    for kind, (column, how) in kinds(DAY - 1, MICROS - 1_000).items():
        path = write(tmp_path / f"{kind}.parquet", {"k": [1, 2], "c": column}, footer, **how)
        if kind in refused:
            what = "dates before 1582-10-15" if kind == "date" else "timestamps before 1900-01-01"
            with pytest.raises(SchemaError, match=rf"{kind}\.parquet: column 'c' has {what}"):
                read(path)
            assert read(path, columns=["k"])["k"].to_pylist() == [1, 2]
        else:
            assert read(path)["c"].cast(column.type).to_pylist() == column.to_pylist()


@pytest.mark.parametrize(
    "type_",
    [
        pa.struct([("x", pa.date32())]),
        pa.list_(pa.date32()),
        pa.list_(pa.struct([("x", pa.list_(pa.date32()))])),
        pa.map_(pa.date32(), pa.int32()),
        pa.map_(pa.int32(), pa.date32()),
    ],
    ids=str,
)
def test_values_inside_of_others_are_looked_at(tmp_path, type_):
    def holding(day, type_):
        if pa.types.is_struct(type_):
            return {"x": holding(day, type_.field(0).type)}
        if pa.types.is_map(type_):
            return [(holding(day, type_.key_type), holding(day, type_.item_type))]
        return [holding(day, type_.value_type), None] if pa.types.is_list(type_) else day

    for day, is_old in ((DAY, False), (DAY - 1, True)):
        column = pa.array([None, holding(day, type_)], type_)
        path = write(tmp_path / "x.parquet", {"c": column}, {VERSION: "2.4.8"})
        if is_old:
            with pytest.raises(SchemaError, match=r"x\.parquet: column 'c' has dates before 1582"):
                read(path)
        else:
            assert read(path)["c"].to_pylist() == column.to_pylist()


def test_row_groups_with_values_of_the_older_calendar_are_not_left_out_unseen(tmp_path):
    # The day that the number says today, and the one that is meant.
    said, meant = dt.date(1500, 3, 11), dt.date(1500, 3, 1)
    rows = {"d": pa.array([said] * 2 + [dt.date(2000, 1, 1)] * 2), "k": range(4)}
    path = write(tmp_path / "x.parquet", rows, {VERSION: "2.4.8"}, row_group_size=2)
    with pytest.raises(SchemaError, match="column 'd' has dates before"):
        read(path, columns=["k"], filter=ds.field("d") == meant)
    assert read(path, columns=["k"], filter=ds.field("k") > 1)["k"].to_pylist() == [2, 3]


def test_a_column_that_the_dataset_declares_as_text(tmp_path):
    write(tmp_path / "x.parquet", {"d": pa.array([DAY - 1], pa.date32())}, {VERSION: "2.4.8"})
    dataset = ds.dataset(tmp_path, schema=pa.schema({"d": pa.string()}))
    with pytest.raises(SchemaError, match="column 'd' has dates before"):
        read_all(dataset)


def test_int96_with_negative_nanoseconds_is_not_read_as_centuries_later(tmp_path):
    times, far = [-1, 7, None], 10_000_000_000_000_000  # the year 2286

    def save(writer, times, column="t"):
        rows = pa.table({"k": range(len(times)), column: pa.array(times, pa.timestamp("us"))})
        if column == "l":
            rows = pa.table({"k": rows["k"], "l": pa.array([[one] for one in times], LISTS)})
        path = tmp_path / "x.parquet"
        plain = {"use_dictionary": False, "compression": "none", "store_schema": False}
        pq.write_table(rows, path, use_deprecated_int96_timestamps=True, **plain)
        # The time of day counted back from the day after, as some write it and Spark reads it.
        usual = struct.pack("<qI", 86_400_000_000_000 - 1_000, 2_440_587)
        data = path.read_bytes().replace(usual, struct.pack("<qI", -1_000, 2_440_588))
        own = pq.read_metadata(path).created_by.encode()
        path.write_bytes(data.replace(own, writer.encode().ljust(len(own))))
        assert pq.read_metadata(path).created_by.strip() == writer
        return path

    refused = r"x\.parquet: column '{}' has timestamps from 2262 to 2554, .*'{}.*before 1970"
    for writer in ("parquet-cpp-arrow version 22.0.0", "parquet-cpp-velox version 1", "cudf"):
        for column in ("t", "l"):
            path = save(writer, times, column)
            with pytest.raises(SchemaError, match=refused.format(column, writer)):
                read(path)
            assert read(path, columns=["k"])["k"].to_pylist() == [0, 1, 2]
            with pytest.raises(SchemaError, match=refused.format(column, writer)):
                read(save(writer, [far], column))
        for others in ([7, None], [None], [9_000_000_000_000_000, 19_000_000_000_000_000]):
            assert read(save(writer, others))["t"].cast(pa.int64()).to_pylist() == others
    for writer in ("parquet-mr version 1.10.1", "parquet-cpp-arrow version 23.0.0", "impala 4"):
        assert read(save(writer, [far]))["t"].cast(pa.int64()).to_pylist() == [far]


# Types -------------------------------------------------------------------------------------------


def declared(*fields):
    """Footer in which Spark declares fields, each by name, type and perhaps metadata."""
    names = ("name", "type", "metadata")
    listed = [dict(zip(names, one, strict=False)) | {"nullable": True} for one in fields]
    return {VERSION: "4.3.0", ROW_METADATA: json.dumps({"type": "struct", "fields": listed})}


def array_of(type_):
    return {"type": "array", "elementType": type_, "containsNull": True}


POINT = {"type": "udt", "class": "C", "pyClass": "m.PointUDT", "sqlType": array_of("double")}


@pytest.mark.parametrize(
    ("type_", "metadata", "path", "what"),
    [
        ("interval day to second", {}, "c", "INTERVAL DAY TO SECOND"),
        ("interval year", {}, "c", "INTERVAL YEAR"),
        ("variant", {}, "c", "VARIANT"),
        ("geometry(SRID:0)", {}, "c", r"GEOMETRY\(SRID:0\)"),
        ("a type to come", {}, "c", "A TYPE TO COME"),
        (POINT, {}, "c", r"the user-defined type m\.PointUDT"),
        ("string", {"__COLLATIONS": {"c": "spark.UTF8_LCASE"}}, "c", r"STRING COLLATE spark\.UTF8"),
        (
            array_of("string"),
            {"__COLLATIONS": {"c.element": "icu.UNICODE"}},
            r"c\.element",
            "STRING COLLATE icu",
        ),
        (array_of("interval day"), {}, r"c\.element", "INTERVAL DAY"),
        (
            {"type": "map", "keyType": "string", "valueType": POINT, "valueContainsNull": True},
            {},
            r"c\.value",
            "the user-defined type",
        ),
        (
            {
                "type": "struct",
                "fields": [{"name": "x", "type": "variant", "nullable": True, "metadata": {}}],
            },
            {},
            r"c\.x",
            "VARIANT",
        ),
    ],
    ids=str,
)
def test_types_that_only_spark_knows_are_refused_where_they_are_wanted(
    tmp_path, type_, metadata, path, what
):
    footer = declared(("c", type_, metadata), ("k", "long", {}))
    write(tmp_path / "x.parquet", {"c": [1], "k": [2]}, footer)
    refused = rf"x\.parquet: column '{path}' is {what}.* for Spark, .* let Spark read the files"
    for arguments in ({}, {"columns": ["k"], "filter": ds.field("c") > 0}):
        with pytest.raises(SchemaError, match=refused):
            read(tmp_path, **arguments)
    assert read(tmp_path, columns=["k"])["k"].to_pylist() == [2]


def test_types_are_looked_at_in_each_file(tmp_path):
    write(tmp_path / "a.parquet", {"c": [1]})
    write(tmp_path / "b.parquet", {"c": [1]}, declared(("c", "interval day", {})))
    with pytest.raises(SchemaError, match=r"b\.parquet: column 'c' is INTERVAL DAY"):
        read(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"fields": 5}', '{"fields": [{"name": "c"}]}', "StructType(List())"],
)
def test_a_schema_that_spark_does_not_understand_is_none(tmp_path, text):
    write(tmp_path / "x.parquet", {"c": [1]}, {VERSION: "1.3.0", ROW_METADATA: text})
    assert read(tmp_path)["c"].to_pylist() == [1]


def test_variants_of_other_writers():
    variant = pa.struct([("metadata", pa.binary()), ("value", pa.binary())])
    schema = pa.schema({"a": pa.int32(), "v": pa.list_(variant), "w": variant})
    described = "optional group field_id=-1 v (Variant(1)) {"

    def check(names, described):
        check_parquet_types("x.parquet", schema, names, spark_footer(None), described)

    with pytest.raises(SchemaError, match=r"x\.parquet: column 'v\.element' is VARIANT for Spark"):
        check(["a", "v"], described)
    check(["a"], described)
    check(["a", "v", "w"], "optional group field_id=-1 v {")


def test_comments_and_the_precision_of_time_come_along(tmp_path):
    inside = [{"name": "x", "type": "long", "nullable": True, "metadata": {"comment": "in"}}]
    footer = declared(
        ("c", "long", {"comment": "out", "spark.watermarkDelayMs": 5, "__own": 1}),
        ("s", {"type": "struct", "fields": inside}, {}),
        ("t", "time(3)", {}),
        ("l", array_of("time(0)"), {}),
    )
    times = pa.array([1_000], pa.time64("us"))
    rows = {
        "c": [1],
        "s": [{"x": 1, "y": 2}],
        "t": times,
        "l": pa.array([[1_000_000]], pa.list_(times.type)),
        "u": times,
        "n": pa.array([1], pa.time64("ns")),
    }
    found = read(write(tmp_path / "x.parquet", rows, footer))
    comment, precision = b"SPARK::metadata::json", b"SPARK::time::precision"
    schema = found.schema
    assert json.loads(schema.field("c").metadata[comment]) == {"comment": "out"}
    assert json.loads(schema.field("s").type.field("x").metadata[comment]) == {"comment": "in"}
    assert schema.field("t").metadata == {precision: b"3"}
    assert schema.field("l").type.value_field.metadata == {precision: b"0"}
    assert schema.field("u").metadata == {precision: b"6"}, "what Spark takes microseconds for"
    assert not schema.field("n").metadata
    assert schema.types[2:] == [
        pa.time64("ns"),
        pa.list_(pa.field("element", pa.time64("ns"))),
        pa.time64("ns"),
        pa.time64("ns"),
    ]
    assert found["c"].to_pylist() == [1]


# ORC ---------------------------------------------------------------------------------------------


def read_orc(path, **arguments):
    return read_all(ds.dataset(path, format="orc"), **arguments)


def test_orc_timestamps_and_old_dates_are_refused(tmp_path):
    rows = pa.table(
        {
            "k": [1, 2],
            "d": pa.array([DAY, None], pa.date32()),
            "old": pa.array([DAY - 1, None], pa.date32()),
            "t": pa.array([0, 1], pa.timestamp("ns")),
            "s": pa.array([{"t": 0}, None], pa.struct([("t", pa.timestamp("ns", "UTC"))])),
        }
    )
    orc.write_table(rows, tmp_path / "x.orc")
    plain = ["k", "d"]
    assert read_orc(tmp_path, columns=plain).to_pylist() == rows.select(plain).to_pylist()
    kept = read_orc(tmp_path, columns=["k"], filter=ds.field("d").is_null())
    assert kept["k"].to_pylist() == [2]
    with pytest.raises(SchemaError, match=r"x\.orc: column 'old' has dates before 1582-10-15"):
        read_orc(tmp_path, columns=["old"])
    with pytest.raises(SchemaError, match=r"x\.orc: column 't' is a TIMESTAMP in the time zone of"):
        read_orc(tmp_path, columns=["t"])
    with pytest.raises(SchemaError, match=r"x\.orc: column 's\.t' is a TIMESTAMP"):
        read_orc(tmp_path, columns=["k"], filter=ds.field("s").is_valid())


def test_orc_of_partitions_and_missing_columns(tmp_path):
    for p in (1, 2):
        (tmp_path / f"p={p}").mkdir()
        orc.write_table(pa.table({f"k{p}": [p]}), tmp_path / f"p={p}" / "x.orc")
    schema = pa.schema({"k1": pa.int64(), "p": pa.int32(), "k2": pa.float64()})
    dataset = ds.dataset(tmp_path, schema=schema, format="orc", partitioning="hive")
    assert read_all(dataset).to_pylist() == [
        {"k1": 1, "p": 1, "k2": None},
        {"k1": None, "p": 2, "k2": 2.0},
    ]
    assert read_all(dataset, columns=["p"])["p"].to_pylist() == [1, 2]


def test_types_that_spark_notes_in_orc_are_refused():
    def field(name, type_, noted=None):
        metadata = noted and {"spark.sql.catalyst.type": noted}
        return pa.field(name, type_, metadata=metadata)

    schema = pa.schema(
        [
            field("s", pa.string(), "string"),
            field("c", pa.string(), "char(5)"),
            field("k", pa.int64()),
            field("n", pa.int64(), "timestamp_ntz"),
            field("l", pa.list_(field("item", pa.int32(), "interval year"))),
        ]
    )
    check_orc_types("x.orc", schema, ["s", "c", "k"])
    for name, what in (("n", "n' is TIMESTAMP_NTZ"), ("l", "l.element' is INTERVAL YEAR")):
        with pytest.raises(SchemaError, match=rf"x\.orc: column '{what} for Spark"):
            check_orc_types("x.orc", schema, [name])


# Spellings ---------------------------------------------------------------------------------------


def spelt(name):
    """Rows in which a name is that of a column, or of a field somewhere inside of one."""
    inside = pa.struct([(name, pa.int64())])
    return {
        "column": ({name: [1]}, name),
        "struct": ({"s": pa.array([{name: 1}], inside)}, f"s.{name}"),
        "list": ({"s": pa.array([[{name: 1}]], pa.list_(inside))}, f"s.element.{name}"),
        "map": ({"s": pa.array([[(1, {name: 1})]], pa.map_(pa.int8(), inside))}, f"s.value.{name}"),
    }


@pytest.mark.parametrize("format_", SAVED)
@pytest.mark.parametrize("kind", ["column", "struct", "list", "map"])
def test_names_that_differ_in_case_only_are_refused(tmp_path, kind, format_):
    paths = []
    for file, name in (("a", "Val"), ("b", "val")):
        rows, path = spelt(name)[kind]
        paths.append(path)
        SAVED[format_](pa.table(rows), tmp_path / file)
    with pytest.raises(SchemaError) as caught:
        read_all(ds.dataset(tmp_path, format=format_))
    assert "/b: has a column" in str(caught.value)
    assert f"{paths[1]!r} where the dataset has {paths[0]!r}" in str(caught.value)


def test_directories_and_columns_that_differ_in_case_only(tmp_path):
    (tmp_path / "P=1").mkdir()
    write(tmp_path / "P=1" / "x.parquet", {"p": pa.array([5], pa.int32()), "k": [1]})
    dataset = ds.dataset(tmp_path, partitioning="hive")
    with pytest.raises(SchemaError, match=r"has a column 'p' where the dataset has 'P'"):
        read_all(dataset)
    with pytest.raises(SchemaError, match=r"has a column 'p' where the dataset has 'P'"):
        read_all(dataset, columns=["k", "P"])
    assert read_all(dataset, columns=["k", "p"]).to_pylist() == [{"k": 1, "p": 5}]
    write(tmp_path / "P=1" / "x.parquet", {"k": [1]})
    (tmp_path / "p=2").mkdir()
    write(tmp_path / "p=2" / "x.parquet", {"k": [2]})
    with pytest.raises(SchemaError, match=r"has a column '[pP]' where the dataset has '[pP]'"):
        read_all(ds.dataset(tmp_path, partitioning="hive"))


def test_names_that_are_there_in_both_spellings(tmp_path):
    write(tmp_path / "x.parquet", {"a": [1], "A": [2]})
    assert read(tmp_path).to_pylist() == [{"a": 1, "A": 2}]


def test_a_calendar_that_concerns_nothing():
    assert not Calendar().concerns(pa.field("d", pa.date32()))
    assert not Calendar(dates=True).concerns(pa.field("t", pa.timestamp("us")))
    assert Calendar(int96=frozenset("t")).concerns(pa.field("t", pa.timestamp("us")))
