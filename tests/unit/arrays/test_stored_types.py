"""What is stored for an Arrow schema, and how batches are made to fit it."""

import ctypes
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from arrow_format.arrays.stored_types import conform, data_schema, normalise
from arrow_format.errors import SchemaError

FLAT_TYPES = [
    pa.null(),
    pa.bool_(),
    pa.int8(),
    pa.uint64(),
    pa.float16(),
    pa.float64(),
    pa.decimal32(5, 2),
    pa.decimal64(15, 2),
    pa.decimal128(38, 10),
    pa.decimal256(60, 10),
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time64("ns"),
    pa.timestamp("ns"),
    pa.timestamp("us", "Asia/Kathmandu"),
    pa.duration("us"),
    pa.month_day_nano_interval(),
    pa.string(),
    pa.binary(),
    pa.binary(3),
]

ENCODED_TYPES = [
    (pa.large_string(), pa.string()),
    (pa.string_view(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.binary_view(), pa.binary()),
    (pa.dictionary(pa.int8(), pa.string()), pa.string()),
    (pa.dictionary(pa.uint64(), pa.string_view()), pa.string()),
    (pa.dictionary(pa.int32(), pa.timestamp("us", "UTC")), pa.timestamp("us", "UTC")),
    (pa.run_end_encoded(pa.int16(), pa.large_string()), pa.string()),
    (pa.run_end_encoded(pa.int32(), pa.list_view(pa.int8())), pa.list_(pa.int8())),
    (pa.uuid(), pa.binary(16)),
    (pa.json_(pa.large_string()), pa.string()),
    (pa.bool8(), pa.int8()),
    (pa.opaque(pa.string_view(), "kind", "vendor"), pa.string()),
    (pa.large_list(pa.string_view()), pa.list_(pa.string())),
    (pa.list_view(pa.large_string()), pa.list_(pa.string())),
    (pa.large_list_view(pa.int32()), pa.list_(pa.int32())),
    (pa.list_(pa.uuid(), 2), pa.list_(pa.binary(16), 2)),
    (
        pa.map_(pa.dictionary(pa.int8(), pa.string()), pa.large_list(pa.large_binary())),
        pa.map_(pa.string(), pa.list_(pa.binary())),
    ),
    (
        pa.struct([("a", pa.string_view()), ("b", pa.struct([("c", pa.large_string())]))]),
        pa.struct([("a", pa.string()), ("b", pa.struct([("c", pa.string())]))]),
    ),
]


def one_column(array: pa.Array, *, nullable: bool = True, **metadata: str) -> pa.RecordBatch:
    field = pa.field("c", array.type, nullable, metadata or None)
    return pa.RecordBatch.from_arrays([array], schema=pa.schema([field]))


def schema_of(type_: pa.DataType, *, nullable: bool = True) -> pa.Schema:
    return pa.schema([pa.field("c", type_, nullable)])


def through_ipc(batch: pa.RecordBatch) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


# data_schema -------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", FLAT_TYPES, ids=str)
def test_flat_types_are_stored_as_they_are(type_):
    schema = schema_of(type_)

    assert data_schema(schema).equals(schema, check_metadata=True)
    batch = one_column(pa.nulls(3, type_))
    taken = through_ipc(batch.take(pa.array([2, 0, 1])))
    taken.validate(full=True)
    assert taken.equals(batch)


@pytest.mark.parametrize(("given_type", "stored"), ENCODED_TYPES, ids=str)
def test_encodings_are_stored_as_values_of_the_plain_type(given_type, stored):
    schema = data_schema(schema_of(given_type))

    assert schema.field("c").type == stored
    assert data_schema(schema).equals(schema, check_metadata=True), "which is its own"


def test_nullability_and_field_metadata_stay_and_schema_metadata_goes():
    inner = pa.field("x", pa.large_string(), nullable=False, metadata={"unit": "m"})
    element = pa.field("item", pa.struct([inner]), nullable=False, metadata={"e": "1"})
    schema = pa.schema(
        [pa.field("c", pa.large_list(element), nullable=False, metadata={"comment": "hi"})],
        metadata={"pandas": "{}"},
    )

    stored = data_schema(schema)

    want = pa.schema(
        [
            pa.field(
                "c",
                pa.list_(element.with_type(pa.struct([inner.with_type(pa.string())]))),
                nullable=False,
                metadata={"comment": "hi"},
            )
        ]
    )
    assert stored.equals(want, check_metadata=True)
    assert stored.metadata is None


def test_an_extension_type_this_process_does_not_know_is_stored_as_storage_alone():
    # A reader that knows the type would otherwise see another schema than the one in the log.
    metadata = {"ARROW:extension:name": "vendor.point", "ARROW:extension:metadata": "", "k": "v"}
    field = pa.field("c", pa.binary(), metadata=metadata)

    assert data_schema(pa.schema([field])).field("c").metadata == {b"k": b"v"}


def test_no_columns_are_refused():
    with pytest.raises(SchemaError, match=r"no columns.*add a column"):
        data_schema(pa.schema([]))


def test_duplicate_names_are_refused():
    schema = pa.schema([("a", pa.int8()), ("b", pa.int8()), ("a", pa.string())])

    with pytest.raises(SchemaError, match="columns with the same name: 'a'; rename or drop"):
        data_schema(schema)


def test_duplicate_names_in_a_struct_are_refused_with_the_path():
    twice = pa.struct([pa.field("x", pa.int8()), pa.field("x", pa.int8())])

    with pytest.raises(SchemaError, match=r"fields of column 'c\.element' .*: 'x'"):
        data_schema(schema_of(pa.list_(twice)))


@pytest.mark.parametrize(
    "union",
    [
        pa.dense_union([pa.field("i", pa.int32())]),
        pa.sparse_union([pa.field("i", pa.int32())]),
    ],
    ids=["dense", "sparse"],
)
def test_unions_are_refused_at_any_depth(union):
    with pytest.raises(SchemaError, match=r"column 'c' has type .*union.*cast it or drop it"):
        data_schema(schema_of(union))
    with pytest.raises(SchemaError, match=r"column 'c\.value\.x'"):
        data_schema(schema_of(pa.map_(pa.string(), pa.struct([("x", union)]))))


def test_year_month_intervals_are_refused():
    # pyarrow can name this type but neither make it nor hold an array of it.
    class CSchema(ctypes.Structure):
        _fields_ = (
            ("format", ctypes.c_char_p),
            ("name", ctypes.c_char_p),
            ("metadata", ctypes.c_char_p),
            ("flags", ctypes.c_int64),
            ("n_children", ctypes.c_int64),
            ("children", ctypes.c_void_p),
            ("dictionary", ctypes.c_void_p),
            ("release", ctypes.c_void_p),
            ("private_data", ctypes.c_void_p),
        )

    @ctypes.CFUNCTYPE(None, ctypes.POINTER(CSchema))
    def release(pointer):
        pointer.contents.release = None

    address = ctypes.cast(release, ctypes.c_void_p).value
    c_schema = CSchema(b"tiM", b"months", None, 2, 0, None, None, address, None)
    field = pa.Field._import_from_c(ctypes.addressof(c_schema))

    with pytest.raises(SchemaError, match="column 'months' has type month_interval"):
        data_schema(pa.schema([field]))


# normalise: batches that fit ---------------------------------------------------------------------


def test_a_batch_that_fits_is_given_back_itself():
    batch = one_column(pa.array([1, 2]))

    assert normalise(batch, schema_of(pa.int64())) is batch


def test_only_metadata_differs_so_nothing_is_copied():
    batch = one_column(pa.array(["a", None, "b"]), comment="of the batch")
    schema = pa.schema([pa.field("c", pa.string(), metadata={"comment": "of the shuffle"})])

    result = normalise(batch, schema)

    assert result.schema.equals(schema, check_metadata=True)
    assert [b.address for b in result.column(0).buffers()] == [
        b.address for b in batch.column(0).buffers()
    ]


def test_a_nullable_batch_without_nulls_fits_a_non_nullable_column():
    schema = schema_of(pa.int64(), nullable=False)

    result = normalise(one_column(pa.array([1, 2])), schema)

    assert result.schema.equals(schema, check_metadata=True)


def test_duplicated_values_of_columns_are_taken_by_position():
    batch = pa.RecordBatch.from_pydict({"a": ["x"], "b": ["y"]})
    schema = pa.schema([("a", pa.string()), ("b", pa.string())])

    assert normalise(batch, schema).to_pydict() == {"a": ["x"], "b": ["y"]}


# normalise: time zones ---------------------------------------------------------------------------

EDGES = [-(2**63) + 1, -62_135_596_800_000_000, -1, 0, None, 253_402_300_799_999_999, 2**63 - 1]


def nested_in(type_: pa.DataType) -> list[pa.DataType]:
    return [
        type_,
        pa.list_(type_),
        pa.list_(type_, 1),
        pa.struct([("t", type_)]),
        pa.map_(type_, pa.list_(type_)),
    ]


def nested_value(type_: pa.DataType, value: Any) -> Any:
    if pa.types.is_map(type_):
        return None if value is None else [(value, [value, None])]
    if pa.types.is_struct(type_):
        return {"t": value}
    return [value] if pa.types.is_nested(type_) else value


@pytest.mark.parametrize("kind", range(5), ids=["flat", "list", "fixed", "struct", "map"])
@pytest.mark.parametrize("cut", [slice(0, None), slice(2, 5), slice(0, 0)], ids=str)
def test_time_zones_are_relabelled_and_values_stay(kind, cut):
    new_york = nested_in(pa.timestamp("us", "America/New_York"))[kind]
    utc = nested_in(pa.timestamp("us", "UTC"))[kind]
    # As integers first: Python has no dates for the extremes.
    plain_type = nested_in(pa.int64())[kind]
    plain = pa.array([nested_value(plain_type, value) for value in EDGES], plain_type)
    batch = one_column(plain.view(new_york))[cut]

    result = normalise(batch, schema_of(utc))

    result.validate(full=True)
    assert result.schema == schema_of(utc)
    assert result.column(0).view(plain_type).equals(plain[cut])


def test_relabelling_copies_nothing():
    array = pa.array([1, None], pa.timestamp("us", "Asia/Tokyo"))

    result = normalise(one_column(array), schema_of(pa.timestamp("us", "UTC"))).column(0)

    assert [b.address for b in result.buffers()] == [b.address for b in array.buffers()]
    assert result[0].as_py() == datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "type_", [pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.int64()], ids=str
)
def test_a_missing_time_zone_or_another_unit_is_no_label(type_):
    batch = one_column(pa.array([1], type_))

    with pytest.raises(SchemaError, match=re.escape(f"'c' has type {type_}, but")):
        normalise(batch, schema_of(pa.timestamp("us", "UTC")))


# normalise: encodings ----------------------------------------------------------------------------

TEXTS = st.one_of(st.none(), st.text(max_size=20))
ROWS = st.lists(TEXTS, max_size=30)


def run_ends(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Runs of one to three equal rows, written as run-end encoded."""
    ends = np.cumsum([1 + i % 3 for i in range(len(values))], dtype=np.int32)
    return pa.RunEndEncodedArray.from_arrays(pa.array(ends), pa.array(values, type_))


def encoded_forms(values: list[str | None]) -> list[tuple[pa.Array, pa.DataType]]:
    """The same rows in every encoding, each with its plain type."""
    text = pa.array(values, pa.string())
    pairs = [None if v is None else [v, None, v] for v in values]
    maps = [None if v is None else [(v, v), (v + "2", None)] for v in values]
    structs = [None if v is None else {"a": v, "b": [v]} for v in values]
    dictionary = text.dictionary_encode()
    offsets = pa.array(range(len(values) + 1), pa.int32())
    return [
        (text.cast(pa.large_string()), pa.string()),
        (text.cast(pa.string_view()), pa.string()),
        (text.cast(pa.large_binary()), pa.binary()),
        (dictionary, pa.string()),
        (
            pa.DictionaryArray.from_arrays(
                dictionary.indices, dictionary.dictionary.cast(pa.string_view())
            ),
            pa.string(),
        ),
        (run_ends(values, pa.string()), pa.string()),
        (run_ends(pairs, pa.list_view(pa.string())), pa.list_(pa.string())),
        (pa.array(pairs, pa.large_list(pa.string())), pa.list_(pa.string())),
        (pa.array(pairs, pa.list_view(pa.string())), pa.list_(pa.string())),
        (pa.array(pairs, pa.large_list_view(pa.string_view())), pa.list_(pa.string())),
        (pa.array(pairs, pa.list_(pa.large_string(), 3)), pa.list_(pa.string(), 3)),
        (pa.ListArray.from_arrays(offsets, dictionary), pa.list_(pa.string())),
        (pa.array(maps, pa.map_(pa.large_string(), pa.string_view())), MAPS),
        (
            pa.array(
                structs, pa.struct([("a", pa.string_view()), ("b", pa.list_view(pa.string()))])
            ),
            pa.struct([("a", pa.string()), ("b", pa.list_(pa.string()))]),
        ),
        (pa.ExtensionArray.from_storage(pa.json_(pa.large_string()), text.cast(
            pa.large_string())), pa.string()),
    ]  # fmt: skip


MAPS = pa.map_(pa.string(), pa.string())


@given(values=ROWS, start=st.integers(0, 30), length=st.integers(0, 90))
def test_decoding_keeps_every_value_of_any_slice(values, start, length):
    for array, plain_type in encoded_forms(values):
        rows = array.to_pylist()[start : start + length]
        batch = one_column(array).slice(start, length)
        schema = data_schema(batch.schema)

        result = normalise(batch, schema)

        result.validate(full=True)
        assert schema.field("c").type == plain_type
        assert result.schema.equals(schema, check_metadata=True)
        assert result.num_rows == len(rows)
        if pa.types.is_binary(plain_type):
            rows = [row if row is None else bytes(row) for row in rows]
        assert result.column(0).to_pylist() == rows
        assert through_ipc(result).equals(result)
        assert normalise(result, schema) is result


def test_list_views_may_overlap_and_stand_in_any_order():
    values = pa.array([10, 11, 12, 13])
    mask = pa.array([False, True, False, False, False])
    offsets, sizes = pa.array([2, 0, 1, 0, 4], pa.int32()), pa.array([2, 4, 2, 3, 0], pa.int32())
    array = pa.ListViewArray.from_arrays(offsets, sizes, values, mask=mask)
    want = [[12, 13], None, [11, 12], [10, 11, 12], []]
    schema = schema_of(pa.list_(pa.int64()))

    for start in range(6):
        result = normalise(one_column(array[start:]), schema)
        assert result.column(0).to_pylist() == want[start:]
        # The null list points to four values, which are not copied.
        assert len(result.column(0).values) == sum(map(len, filter(None, want[start:])))


def test_a_null_among_the_values_of_a_dictionary_is_a_null():
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["a", None]))

    result = normalise(one_column(array), schema_of(pa.string()))
    assert result.column(0).to_pylist() == ["a", None, None]
    with pytest.raises(SchemaError, match="column 'c' is declared non-nullable"):
        normalise(one_column(array), schema_of(pa.string(), nullable=False))


def test_a_slice_does_not_pay_for_what_it_leaves_out():
    # Decoding all 1,000 rows would take 100 kB.
    words = pa.array([["x" * 100]] * 1000, pa.list_(pa.dictionary(pa.int8(), pa.string())))

    result = normalise(one_column(words)[10:11], schema_of(pa.list_(pa.string())))

    assert result.column(0).get_total_buffer_size() < 1000


WORD = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize(
    ("type_", "plain"),
    [
        (pa.struct([("f", WORD)]), pa.struct([("f", pa.string())])),
        (
            pa.struct([("s", pa.struct([("f", pa.list_(WORD, 2))]))]),
            pa.struct([("s", pa.struct([("f", pa.list_(pa.string(), 2))]))]),
        ),
    ],
    ids=str,
)
def test_an_index_inside_a_null_row_may_lead_nowhere(type_, plain):
    result = normalise(one_column(pa.array([None, None], type_)), schema_of(plain))

    result.validate(full=True)
    assert result.column(0).to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("inside", "plain", "value"),
    [
        (pa.struct([("x", pa.string_view())]), pa.struct([("x", pa.string())]), {"x": "q" * 20}),
        (pa.list_(pa.string_view()), pa.list_(pa.string()), ["q" * 20, None]),
        (pa.list_view(pa.binary_view()), pa.list_(pa.binary()), [b"q" * 20]),
        (WORD, pa.string(), "q"),
    ],
    ids=str,
)
def test_views_inside_list_views(inside, plain, value):
    array = pa.array([[value], None, [], [None, value]], pa.list_view(inside))

    for start in range(5):
        result = normalise(one_column(array[start:]), schema_of(pa.list_(plain)))
        result.validate(full=True)
        assert result.column(0).to_pylist() == array.to_pylist()[start:]


def test_runs_inside_list_views():
    array = pa.ListViewArray.from_arrays(
        pa.array([2, 0], pa.int32()),
        pa.array([1, 2], pa.int32()),
        run_ends(["a", "b"], pa.string()),
    )

    result = normalise(one_column(array), schema_of(pa.list_(pa.string())))
    assert result.column(0).to_pylist() == [["b"], ["a", "b"]]


@pytest.mark.parametrize("index", [7, -1])
def test_an_index_outside_of_its_dictionary_is_refused(index):
    array = pa.DictionaryArray.from_arrays(
        pa.array([0, index], pa.int8()), pa.array(["a"]), safe=False
    )

    with pytest.raises(SchemaError, match=r"column 'c' of type dictionary.*out of bounds"):
        normalise(one_column(array), schema_of(pa.string()))


# normalise: refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a"], "lacks 'b'; the shuffle's columns are 'a', 'b'"),
        (["a", "B"], "lacks 'b' and has 'B'"),
        (["a", "b", "c"], "has 'c', which the shuffle does not have"),
        (["b", "a"], "in the order 'b', 'a'"),
    ],
    ids=str,
)
def test_other_names_are_refused_with_the_names(names, message):
    batch = pa.RecordBatch.from_pydict({name: [1] for name in names})

    with pytest.raises(SchemaError, match=message):
        normalise(batch, pa.schema([("a", pa.int64()), ("b", pa.int64())]))


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (pa.int32(), pa.int64()),
        (pa.float64(), pa.int64()),
        (pa.large_binary(), pa.string()),
        (pa.decimal128(5, 2), pa.decimal128(6, 2)),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.list_(pa.int32(), 2), pa.list_(pa.int32())),
        (pa.list_(pa.int32(), 2), pa.list_(pa.int32(), 3)),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())])),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int32()), ("b", pa.int32())])),
        (pa.map_(pa.int32(), pa.int32()), pa.map_(pa.int32(), pa.string())),
        (pa.map_(pa.int32(), pa.int32()), pa.map_(pa.int32(), pa.int32(), keys_sorted=True)),
        (pa.dictionary(pa.int8(), pa.int32()), pa.int64()),
    ],
    ids=str,
)
def test_another_type_is_refused_with_both_types(have, want):
    with pytest.raises(SchemaError) as caught:
        normalise(one_column(pa.nulls(0, have)), schema_of(want))

    assert f"column 'c' has type {have}, but the shuffle stores {want}" in str(caught.value)


NON_NULL = pa.field("item", pa.int64(), nullable=False)
NESTED_NULLS = [
    (pa.list_(NON_NULL), [[1], None, [None]], "c.element"),
    (pa.list_(NON_NULL, 2), [[1, 2], None, [None, 3]], "c.element"),
    (pa.struct([NON_NULL]), [{"item": 1}, None, {"item": None}], "c.item"),
    (pa.map_(pa.int64(), NON_NULL), [[(1, 1)], None, [(2, None)]], "c.value"),
    (
        pa.list_(pa.struct([pa.field("x", pa.list_(NON_NULL))])),
        [[{"x": [1]}, {"x": None}], None, [{"x": [2, None]}]],
        "c.element.x.element",
    ),
    (
        pa.map_(pa.struct([NON_NULL]), pa.int64()),
        [[({"item": 1}, 1)], None, [({"item": None}, 1)]],
        "c.key.item",
    ),
]


@pytest.mark.parametrize(("type_", "rows", "path"), NESTED_NULLS, ids=lambda x: str(x)[:30])
def test_nulls_in_non_nullable_places_are_refused_and_null_parents_are_fine(type_, rows, path):
    batch = one_column(pa.array(rows, type_))
    message = re.escape(f"column {path!r} is declared non-nullable but has 1 null")

    assert normalise(batch[:2], batch.schema).num_rows == 2
    with pytest.raises(SchemaError, match=message):
        normalise(batch, batch.schema)
    with pytest.raises(SchemaError, match=message):
        normalise(batch[2:], batch.schema)


@pytest.mark.parametrize(("type_", "rows", "path"), NESTED_NULLS, ids=lambda x: str(x)[:30])
def test_nullability_inside_a_type_may_differ_as_long_as_the_values_fit(type_, rows, path):
    nullable = pa.array(rows, all_nullable(type_))
    assert nullable.type != type_

    fitted = normalise(one_column(nullable[:2]), schema_of(type_))
    fitted.validate(full=True)
    assert fitted.column(0).to_pylist() == nullable[:2].to_pylist()
    loosened = normalise(fitted, schema_of(nullable.type))
    assert loosened.column(0).equals(nullable[:2])
    with pytest.raises(SchemaError, match=re.escape(repr(path))):
        normalise(one_column(nullable), schema_of(type_))


def test_nulls_under_a_null_struct_do_not_count():
    # As Spark sends them: the child of a null struct is null, whatever the child declares.
    child = pa.array([1, None, 3])
    array = pa.StructArray.from_arrays(
        [child], fields=[NON_NULL], mask=pa.array([False, True, False])
    )
    assert array.field(0).null_count == 1

    assert normalise(one_column(array), schema_of(array.type)).num_rows == 3
    assert normalise(one_column(array)[1:], schema_of(array.type)).num_rows == 2


def all_nullable(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_map(type_):
        return pa.map_(all_nullable(type_.key_type), all_nullable(type_.item_type))
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(pa.field("item", all_nullable(type_.value_type)), type_.list_size)
    if pa.types.is_list(type_):
        return pa.list_(pa.field("item", all_nullable(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(f.name, all_nullable(f.type)) for f in type_])
    return type_


def test_a_null_in_a_non_nullable_column_is_refused_only_where_the_slice_has_it():
    batch = one_column(pa.array([1, None, 3]))
    schema = schema_of(pa.int64(), nullable=False)

    assert normalise(batch[2:], schema).to_pydict() == {"c": [3]}
    assert normalise(batch[:0], schema).num_rows == 0
    with pytest.raises(SchemaError, match=r"column 'c' is declared non-nullable but has 1 null"):
        normalise(batch, schema)


def test_an_extension_type_fits_its_storage():
    # 16 bytes of UUID; Decimal shows that a flat type beside it stays untouched.
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16, None], pa.binary(16)))
    batch = pa.RecordBatch.from_arrays(
        [uuids, pa.array([Decimal("1.50"), None], pa.decimal128(5, 2))], names=["u", "d"]
    )

    result = normalise(batch, data_schema(batch.schema))

    assert result.to_pydict() == {"u": [b"0" * 16, None], "d": [Decimal("1.50"), None]}


# conform -----------------------------------------------------------------------------------------

STORED = pa.RecordBatch.from_arrays(
    [pa.array([1, 2]), pa.array(["x", None]), pa.array([3, 4], pa.timestamp("us", "UTC"))],
    schema=pa.schema(
        [
            pa.field("a", pa.int64(), nullable=False, metadata={"m": "1"}),
            pa.field("b", pa.string()),
            pa.field("t", pa.timestamp("us", "UTC")),
        ]
    ),
)


def test_columns_are_selected_by_name_in_the_order_asked_for():
    target = pa.schema([("b", pa.string()), ("a", pa.int64())])

    result = conform(STORED, target)

    assert result.schema.equals(target, check_metadata=True)
    assert result.to_pydict() == {"b": ["x", None], "a": [1, 2]}


@pytest.mark.parametrize("metadata", [None, {b"k": b"v"}])
def test_rows_are_counted_without_any_column(metadata):
    target = pa.schema([], metadata=metadata)

    result = conform(STORED, target)

    assert (result.num_rows, result.num_columns) == (2, 0)
    assert result.schema.equals(target, check_metadata=True)


def test_conforming_to_its_own_schema_is_free():
    assert conform(STORED, STORED.schema) is STORED


def test_asking_for_a_missing_column_names_those_there_are():
    with pytest.raises(SchemaError, match="column 'z' is not there; columns are a, b, t"):
        conform(STORED, pa.schema([("z", pa.int64())]))


def test_asking_for_no_nulls_where_there_are_some_is_refused():
    with pytest.raises(SchemaError, match="column 'b' is declared non-nullable"):
        conform(STORED, pa.schema([pa.field("b", pa.string(), nullable=False)]))


def test_a_batch_with_columns_does_not_fit_a_schema_without():
    with pytest.raises(SchemaError, match="has 'a', 'b', 't', which"):
        normalise(STORED, pa.schema([]))
