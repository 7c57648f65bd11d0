"""Spark schemas at the doors: no JVM needed."""

import base64
import json
import os
import pickle

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    CharType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    GeographyType,
    GeometryType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    UserDefinedType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from arrow_format.arrays.stored_types import data_schema, same_but_labels
from arrow_format.errors import OptionError, SchemaError
from connector.map_task import ShuffleMapTask
from connector.options.batch import parse_target_options
from connector.source.writer import begin_target_job
from connector.spark_types import (
    arrow_schema_of,
    check_keys,
    spark_schema_from_json,
    spark_schema_of,
)
from tests.support.guarantees import guarantee


class PointUDT(UserDefinedType):
    """Stored as its two coordinates."""

    @classmethod
    def sqlType(cls):
        return ArrayType(DoubleType(), containsNull=False)

    @classmethod
    def module(cls):
        return "a_module_that_is_not_there"


class WrappedUDT(PointUDT):
    """Stored as something that is no key and cannot be written."""

    @classmethod
    def sqlType(cls):
        return StructType([StructField("v", cls.inside)])


class VariantUDT(WrappedUDT):
    inside = VariantType()


class MonthsUDT(WrappedUDT):
    inside = YearMonthIntervalType()


FLAT = [
    (BooleanType(), pa.bool_()),
    (ByteType(), pa.int8()),
    (ShortType(), pa.int16()),
    (IntegerType(), pa.int32()),
    (LongType(), pa.int64()),
    (FloatType(), pa.float32()),
    (DoubleType(), pa.float64()),
    (DecimalType(38, 18), pa.decimal128(38, 18)),
    (StringType(), pa.string()),
    (BinaryType(), pa.binary()),
    (DateType(), pa.date32()),
    (TimestampType(), pa.timestamp("us", "UTC")),
    (TimestampNTZType(), pa.timestamp("us")),
    (TimeType(9), pa.time64("ns")),  # Arrow carries no precision, so no other comes back
    (DayTimeIntervalType(), pa.duration("us")),
    (NullType(), pa.null()),
]
TAGGED = [VariantType(), GeometryType(4326), GeometryType("ANY"), GeographyType(4326)]
KEYS = [spark_type for spark_type, _ in FLAT if spark_type != NullType()]
NO_KEYS = [
    *TAGGED,
    NullType(),
    MapType(StringType(), IntegerType()),
    StringType("UTF8_LCASE"),
    StringType("UTF8_BINARY_RTRIM"),
    StringType("UNICODE_CI"),
    VariantUDT(),
]


def struct_of(type_, name="c", **options):
    return StructType([StructField(name, type_, **options)])


def inside(type_):
    """Every way to hide a type in another, with its path."""
    return [
        (type_, "c"),
        (ArrayType(type_), "c.element"),
        (struct_of(type_, "x"), "c.x"),
        (struct_of(ArrayType(struct_of(type_, "y.z")), "x"), "c.x.element.y.z"),
    ]


# arrow_schema_of ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("spark_type", "arrow_type"), FLAT, ids=str)
def test_each_flat_type_has_its_arrow_type(spark_type, arrow_type):
    assert arrow_schema_of(struct_of(spark_type)) == pa.schema([("c", arrow_type)])


@pytest.mark.parametrize(
    "type_",
    [*(spark_type for spark_type, _ in FLAT), *TAGGED, StringType("UNICODE"), PointUDT()],
    ids=str,
)
def test_whatever_is_written_is_stored_as_spark_reads_it(type_):
    for nested, _ in inside(type_):
        for outer in (nested, MapType(StringType(), nested)):
            schema = arrow_schema_of(struct_of(outer))
            assert data_schema(schema).equals(schema, check_metadata=True)


def test_a_schema_without_columns_is_refused():
    with pytest.raises(SchemaError, match=r"no columns.*add a column"):
        arrow_schema_of(StructType([]))


@pytest.mark.parametrize(
    "type_",
    [YearMonthIntervalType(), CalendarIntervalType(), CharType(3), VarcharType(3), MonthsUDT()],
    ids=str,
)
def test_types_without_an_arrow_form_are_refused_with_the_path(type_):
    for nested, path in inside(type_):
        with pytest.raises(SchemaError) as caught:
            arrow_schema_of(StructType([StructField("a", LongType()), StructField("c", nested)]))
        where = f"{path}.v" if isinstance(type_, MonthsUDT) else path
        assert f"column {where!r} has type " in str(caught.value)
        assert "which Spark cannot pass as Arrow: " in str(caught.value)


@pytest.mark.parametrize(
    ("type_", "path"),
    [
        (ArrayType(NullType(), containsNull=False), "c.element"),
        (MapType(NullType(), NullType()), "c.key"),
        (MapType(StringType(), NullType(), valueContainsNull=False), "c.value"),
        (struct_of(NullType(), "x", nullable=False), "c.x"),
    ],
    ids=["array()", "map()", "map value", "struct"],
)
def test_void_that_is_never_null_is_refused(type_, path):
    with pytest.raises(SchemaError, match=f"column '{path}' has type non-nullable void"):
        arrow_schema_of(struct_of(type_))


def test_a_column_of_void_that_is_never_null_is_refused():
    with pytest.raises(SchemaError, match="column 'c' has type non-nullable void"):
        arrow_schema_of(struct_of(NullType(), nullable=False))


@pytest.mark.parametrize("for_map_in_arrow", [False, True])
def test_equal_names_are_refused(for_map_in_arrow):
    schema = StructType([StructField("a", LongType()), StructField("a", StringType())])

    with pytest.raises(SchemaError, match="columns with the same name: 'a'"):
        arrow_schema_of(schema, for_map_in_arrow=for_map_in_arrow, case_sensitive=True)


def test_equal_names_in_a_struct_are_refused_with_the_path():
    twice = StructType([StructField("x", LongType()), StructField("x", LongType())])

    with pytest.raises(SchemaError, match=r"fields of column 'c\.element' .*'x'"):
        arrow_schema_of(struct_of(ArrayType(twice)))


def test_names_that_differ_in_case_only_fail_in_map_in_arrow_unless_the_session_tells_them_apart():
    schema = StructType([StructField("a", LongType()), StructField("A", StringType())])

    assert arrow_schema_of(schema).names == ["a", "A"]
    assert arrow_schema_of(schema, for_map_in_arrow=True, case_sensitive=True).names == ["a", "A"]
    with pytest.raises(SchemaError, match=r"columns 'a', 'A' have the same name for Spark"):
        arrow_schema_of(schema, for_map_in_arrow=True)


def test_case_never_matters_inside_a_struct():
    both = StructType([StructField("x", LongType()), StructField("X", LongType())])

    arrow_schema_of(struct_of(both), for_map_in_arrow=True)


@pytest.mark.parametrize("name", ["a.b", ".", "a`b", "`a`", "*"])
def test_names_that_map_in_arrow_cannot_find_are_refused_for_it_alone(name):
    assert arrow_schema_of(struct_of(LongType(), name)).names == [name]
    with pytest.raises(SchemaError, match=r"mapInArrow cannot find .*df\.write\.format"):
        arrow_schema_of(struct_of(LongType(), name), for_map_in_arrow=True)


@pytest.mark.parametrize("name", ["", " ", "a b", "é", "a,b", "a\nb", "a*"])
def test_other_odd_names_are_fine_and_so_are_dots_in_a_struct(name):
    schema = struct_of(struct_of(LongType(), "x.y"), name)

    assert arrow_schema_of(schema, for_map_in_arrow=True).names == [name]


# check_keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", [*KEYS, PointUDT()], ids=str)
def test_types_that_can_be_keys_can_be_so_nested(type_):
    for nested, _ in inside(type_):
        check_keys(struct_of(nested), ["c"])


@pytest.mark.parametrize("type_", NO_KEYS, ids=str)
def test_types_that_cannot_be_keys_are_refused_with_the_path_and_why(type_):
    for nested, path in inside(type_):
        schema = StructType([StructField("k", LongType()), StructField("c", nested)])
        check_keys(schema, ["k"])
        with pytest.raises(SchemaError) as caught:
            check_keys(schema, ["k", "c"])
        where = f"{path}.v" if isinstance(type_, VariantUDT) else path
        assert f"column {where!r} of type " in str(caught.value)
        assert " cannot be a key: " in str(caught.value)


def test_a_collated_key_is_refused_with_its_collation():
    with pytest.raises(SchemaError, match="equal under UNICODE_CI may differ in their bytes"):
        check_keys(struct_of(StringType("UNICODE_CI")), ["c"])


def test_a_missing_key_is_refused_with_the_columns_there_are():
    schema = StructType([StructField("id", LongType()), StructField("b", LongType())])

    with pytest.raises(SchemaError, match="key column 'z' is not there; columns are id, b"):
        check_keys(schema, ["id", "z"])
    with pytest.raises(SchemaError, match=r"'ID' is not there \(did you mean 'id'\?\)"):
        check_keys(schema, ["ID"])


def test_a_key_given_twice_is_refused():
    with pytest.raises(SchemaError, match="keys with the same name: 'c'"):
        check_keys(struct_of(LongType()), ["c", "c"])


# spark_schema_of ---------------------------------------------------------------------------------

FLAT_TYPES = st.sampled_from([spark_type for spark_type, _ in FLAT] + TAGGED)
NAMES = st.text(max_size=5)
METADATA = st.dictionaries(NAMES, st.one_of(st.integers(-100, 100), st.text(), st.booleans()))


def attempt(function, argument):
    """The result, or else the message of the refusal."""
    try:
        return function(argument), ""
    except SchemaError as error:
        return None, str(error)


def structs(types):
    return st.lists(
        st.builds(StructField, NAMES, types, st.just(True) | st.booleans(), METADATA),
        max_size=3,
        unique_by=lambda field: field.name,
    ).map(StructType)


TYPES = st.recursive(
    FLAT_TYPES,
    lambda types: (
        st.builds(ArrayType, types, st.booleans())
        | st.builds(MapType, types, types, st.booleans())
        | structs(types)
    ),
    max_leaves=6,
)


@given(structs(TYPES))
def test_the_spark_schema_of_an_arrow_schema_is_the_one_it_came_from(schema):
    arrow, refusal = attempt(arrow_schema_of, schema)
    if refusal:
        assert "no columns" in refusal or "non-nullable void" in refusal
        return

    assert arrow.equals(to_arrow_schema(schema, timezone="UTC"), check_metadata=True)
    assert spark_schema_of(arrow) == schema


ARROW_LEAVES = st.sampled_from(
    [
        pa.int8(), pa.uint16(), pa.float16(), pa.float32(), pa.decimal128(10, 2),
        pa.decimal128(5, -2), pa.decimal256(40, 1), pa.decimal32(5, 1), pa.date32(), pa.date64(),
        pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.timestamp("ns"), pa.timestamp("us"),
        pa.timestamp("us", "Asia/Tokyo"), pa.timestamp("s", "UTC"), pa.duration("ms"),
        pa.duration("us"), pa.month_day_nano_interval(), pa.string(), pa.binary(), pa.binary(4),
        pa.null(), pa.bool_(),
    ]
)  # fmt: skip
ARROW_TYPES = st.recursive(
    ARROW_LEAVES,
    lambda types: (
        types.map(pa.list_)
        | types.map(lambda type_: pa.list_(type_, 2))
        | st.builds(pa.map_, st.just(pa.string()), types)
        | types.map(lambda type_: pa.struct([("x", type_)]))
    ),
    max_leaves=4,
)


@given(ARROW_TYPES)
def test_a_spark_schema_reads_the_stored_batches_as_they_are_or_is_refused(type_):
    stored = data_schema(pa.schema([("c", type_)]))
    schema, refusal = attempt(spark_schema_of, stored)
    if refusal:
        assert "column 'c" in refusal
        return

    asked_for = to_arrow_schema(schema, timezone="UTC")
    assert same_but_labels(stored.field("c").type, asked_for.field("c").type)


@pytest.mark.parametrize(
    ("type_", "advice"),
    [
        (pa.uint8(), "cast it to int16"),
        (pa.uint64(), r"cast it to decimal128\(20, 0\)"),
        (pa.float16(), "cast it to float"),
        (pa.time32("s"), r"cast it to time64\[ns\]"),
        (pa.time64("us"), r"cast it to time64\[ns\]"),
        (pa.timestamp("ns"), r"cast it to timestamp\[us\]"),
        (pa.timestamp("ms", "UTC"), r"cast it to timestamp\[us, tz=UTC\]"),
        (pa.duration("ns"), r"cast it to duration\[us\]"),
        (pa.date64(), r"cast it to date32\[day\]"),
        (pa.decimal256(60, 2), "cast it or drop it"),
        (pa.decimal128(5, -2), r"cast it to decimal128\(7, 0\)"),
        (pa.binary(16), "cast it to binary"),
        (pa.list_(pa.float32(), 3), "cast it to list<item: float>"),
        (pa.month_day_nano_interval(), "cast it or drop it"),
    ],
    ids=str,
)
def test_types_spark_lacks_are_refused_with_the_path_and_what_to_do(type_, advice):
    with pytest.raises(SchemaError, match=f"column 'c' has type .*{advice} before it is written"):
        spark_schema_of(pa.schema([("c", type_)]))
    nested = pa.map_(pa.string(), pa.list_(pa.struct([("x", type_)])))
    with pytest.raises(SchemaError, match=r"column 'c\.value\.element\.x' has type"):
        spark_schema_of(pa.schema([("c", nested)]))


def test_instants_and_wall_clock_times_are_kept_apart():
    schema = pa.schema([("t", pa.timestamp("us", "Asia/Tokyo")), ("w", pa.timestamp("us"))])

    assert spark_schema_of(schema) == StructType(
        [StructField("t", TimestampType()), StructField("w", TimestampNTZType())]
    )


@pytest.mark.parametrize(
    ("metadata", "precision"), [(None, 9), ({"SPARK::time::precision": "3"}, 3)]
)
def test_times_of_day_keep_the_precision_spark_noted_and_else_the_finest(metadata, precision):
    schema = pa.schema([pa.field("c", pa.time64("ns"), metadata=metadata)])

    assert spark_schema_of(schema) == struct_of(TimeType(precision))


def test_metadata_that_is_not_spark_s_is_not_shown_to_spark():
    schema = pa.schema([pa.field("c", pa.int8(), metadata={"unit": "m"})])

    assert spark_schema_of(schema) == struct_of(ByteType())


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_broken_spark_metadata_is_refused_with_the_column(text):
    schema = pa.schema([pa.field("c", pa.int8(), metadata={"SPARK::metadata::json": text})])

    with pytest.raises(
        SchemaError,
        match="column 'c' has 'SPARK::metadata::json' metadata that is not a JSON object",
    ):
        spark_schema_of(schema)


# JSON --------------------------------------------------------------------------------------------


@given(structs(TYPES))
def test_a_schema_survives_its_json(schema):
    assert spark_schema_from_json(schema.json()) == schema


def test_collations_at_any_depth_survive_the_json():
    collated = StringType("UNICODE_CI")
    schema = StructType(
        [
            StructField("a", ArrayType(collated), metadata={"k": 1}),
            StructField("m", MapType(StringType("UTF8_LCASE"), collated)),
            StructField("s", struct_of(collated, "x")),
        ]
    )

    assert spark_schema_from_json(schema.json()) == schema


@pytest.mark.parametrize("text", ["", "{}", "[]", '"integer"', '{"fields": [{"name": "c"}]}'])
def test_what_is_no_schema_is_refused(text):
    with pytest.raises(SchemaError, match="not a schema in JSON"):
        spark_schema_from_json(text)


class Trap:
    """Makes a directory wherever it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@guarantee("nothing unpickled")
@pytest.mark.parametrize("class_name", ["builtins.NotThere", "os.system", "builtins.print"])
def test_a_pickled_class_in_the_schema_is_never_loaded(tmp_path, class_name):
    """Spark once did; a log entry may have been written by anyone."""
    pickled = base64.b64encode(pickle.dumps(Trap(tmp_path / "sprung"))).decode()
    described = {
        "type": "udt", "pyClass": class_name, "serializedClass": pickled, "sqlType": "integer",
    }  # fmt: skip
    field = {"name": "c", "nullable": True, "metadata": {}, "type": described}
    with pytest.raises(SchemaError, match="user-defined type"):
        spark_schema_from_json(json.dumps({"type": "struct", "fields": [field]}))
    assert not (tmp_path / "sprung").exists()
    pickle.loads(base64.b64decode(pickled))
    assert (tmp_path / "sprung").exists()


def test_a_user_defined_type_without_its_class_is_refused():
    with pytest.raises(SchemaError, match=r"a_module_that_is_not_there.*user-defined type"):
        spark_schema_from_json(struct_of(PointUDT()).json())


# Metadata that is Spark's own --------------------------------------------------------------------


def with_internal_metadata():
    """Columns as the plan of a query leaves them, at every depth, with what the user noted."""
    internal = {"spark.watermarkDelayMs": 600_000, "__metadata_col": "_metadata"}
    moment = StructField("t", TimestampType(), True, {"comment": "when", **internal})
    inside = StructType([moment, StructField("n", LongType(), False, internal)])
    return StructType(
        [
            moment,
            StructField("w", inside, True, {"spark.timeWindow": True, **internal}),
            StructField("l", ArrayType(inside, False)),
            StructField("m", MapType(StringType(), inside)),
            StructField("c", StringType(), True, {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}),
        ]
    )


def metadata_in(schema):
    """All keys of metadata in a schema, at any depth."""

    def keys(value):
        if isinstance(value, list):
            return set().union(*map(keys, value))
        if isinstance(value, dict):
            return set(value.get("metadata", ())).union(*map(keys, value.values()))
        return set()

    return keys(schema.jsonValue())


THE_USERS = {"comment", "spark.timeWindow", "__CHAR_VARCHAR_TYPE_STRING"}


def test_metadata_of_a_query_is_not_read():
    given = with_internal_metadata()
    assert metadata_in(given) > THE_USERS
    found = spark_schema_from_json(given.json())
    assert metadata_in(found) == THE_USERS
    assert found.simpleString() == given.simpleString()
    nullable = [field.nullable for field in found["w"].dataType]
    assert nullable == [True, False]
    assert metadata_in(spark_schema_of(to_arrow_schema(given, timezone="UTC"))) == THE_USERS


def begun(path, schema, *, by_data_source, keys):
    """The job of a write of that schema."""
    if by_data_source:
        options = {"path": str(path), "keys": keys, "numSubpartitions": "2"}
        return begin_target_job(parse_target_options(options), schema, overwrite=False)
    return ShuffleMapTask(path, schema=schema, keys=keys, num_subpartitions=2).job


@pytest.mark.parametrize("by_data_source", [True, False])
def test_metadata_of_a_query_is_not_stored(tmp_path, by_data_source):
    given = with_internal_metadata()
    job = begun(tmp_path / "s", given, by_data_source=by_data_source, keys="t")
    assert metadata_in(StructType.fromJson(json.loads(job.spark_schema))) == THE_USERS
    stored = str(job.data_schema.serialize().to_pybytes())
    assert "spark.timeWindow" in stored
    assert "watermark" not in stored


@pytest.mark.parametrize("by_data_source", [True, False])
def test_char_and_varchar_are_stored_as_strings(tmp_path, by_data_source):
    """Spark has them in schemas where ``spark.sql.preserveCharVarcharTypeInfo`` is set."""

    def schema(char, varchar):
        inside = StructType([StructField("x", char, False, {"comment": "c"})])
        return StructType(
            [
                StructField("c", char),
                StructField("v", varchar, False),
                StructField("s", inside),
                StructField("l", ArrayType(inside, False)),
                StructField("m", MapType(varchar, char)),
            ]
        )

    given, stored = schema(CharType(5), VarcharType(4)), schema(StringType(), StringType())
    job = begun(tmp_path / "s", given, by_data_source=by_data_source, keys="c")
    assert StructType.fromJson(json.loads(job.spark_schema)) == stored
    assert job.data_schema == data_schema(to_arrow_schema(stored, timezone="UTC"))


@pytest.mark.parametrize("combine", ["n:sum", [("n", "sum")], ["n"], {"n": "avg"}])
def test_combinations_that_are_none(tmp_path, combine):
    schema = StructType().add("k", LongType()).add("n", LongType())
    with pytest.raises(OptionError, match=r"combine=.*expected columns with one of the functions"):
        ShuffleMapTask(
            tmp_path / "x", schema=schema, keys="k", num_subpartitions=2, combine=combine
        )
