"""Tables made by hypothesis: every type a shuffle stores, and those it resolves to plain ones."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from hypothesis import strategies as st

from arrow_format.arrays.stored_types import data_schema, normalise

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT = st.text(st.characters(codec="utf-8"), max_size=12) | st.just("") | st.just("é" * 40)
BYTES = st.binary(max_size=12)

TypeAndValues: TypeAlias = tuple[pa.DataType, st.SearchStrategy[Any]]
TypedValues: TypeAlias = st.SearchStrategy[TypeAndValues]
"""Draws an Arrow type and a strategy of Python values of it."""


def _integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    low = -(2 ** (bits - 1)) if signed else 0
    high = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    return st.integers(low, high) | st.sampled_from([low, high, 0])


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda unscaled: Decimal(f"{unscaled}e-{scale}"))


FLAT: list[TypeAndValues] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), _integers(8)),
    (pa.int16(), _integers(16)),
    (pa.int32(), _integers(32)),
    (pa.int64(), _integers(64)),
    (pa.uint8(), _integers(8, signed=False)),
    (pa.uint64(), _integers(64, signed=False)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.decimal128(5, 2), _decimals(5, 2)),
    (pa.decimal128(38, 10), _decimals(38, 10)),
    (pa.decimal256(60, 3), _decimals(60, 3)),
    (pa.date32(), st.dates()),
    (pa.time64("us"), st.times()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    (pa.duration("us"), st.timedeltas(dt.timedelta(-10_000), dt.timedelta(10_000))),
    (pa.string(), TEXT),
    (pa.binary(), BYTES),
    (pa.binary(4), st.binary(min_size=4, max_size=4)),
]

SPARK_TYPES = [
    (type_, values)
    for type_, values in FLAT
    if not (
        pa.types.is_unsigned_integer(type_)
        or pa.types.is_decimal256(type_)
        or pa.types.is_fixed_size_binary(type_)
        or pa.types.is_null(type_)
        or pa.types.is_time(type_)
    )
]
"""Spark's own types: it makes the same DataFrame of a table of them."""

ENCODED: list[TypeAndValues] = [
    (pa.large_string(), TEXT),
    (pa.large_binary(), BYTES),
    (pa.string_view(), TEXT),
    (pa.binary_view(), BYTES),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["red", "", "blue"])),
    (pa.dictionary(pa.int32(), pa.int64()), st.integers(-3, 3)),
]


def _nested(inner: TypedValues) -> TypedValues:
    def lists(pair: TypeAndValues) -> TypeAndValues:
        dtype, values = pair
        return pa.list_(dtype), st.lists(st.none() | values, max_size=3)

    def fixed(pair: TypeAndValues) -> TypeAndValues:
        dtype, values = pair
        return pa.list_(dtype, 2), st.lists(st.none() | values, min_size=2, max_size=2)

    def maps(pair: TypeAndValues) -> TypeAndValues:
        dtype, values = pair
        return (
            pa.map_(pa.string(), dtype),
            st.dictionaries(TEXT, st.none() | values, max_size=3).map(lambda d: list(d.items())),
        )

    def structs(pairs: list[TypeAndValues]) -> TypeAndValues:
        fields = [(f"f{i}", dtype) for i, (dtype, _) in enumerate(pairs)]
        return pa.struct(fields), st.fixed_dictionaries(
            {f"f{i}": st.none() | values for i, (_, values) in enumerate(pairs)}
        )

    return (
        inner.map(lists)
        | inner.map(fixed)
        | inner.map(maps)
        | st.lists(inner, min_size=1, max_size=3).map(structs)
    )


def types() -> TypedValues:
    """Pairs of an Arrow type and a strategy of Python values of it."""
    flat = st.sampled_from(FLAT) | st.sampled_from(ENCODED)
    return flat | st.recursive(st.sampled_from(FLAT), _nested, max_leaves=4)


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 40, n: int = 1_000_000) -> pa.Table:
    """A table of one to four columns, and `v` that numbers the rows; in batches of any size."""
    num_rows = draw(st.integers(0, max_rows))
    columns, fields = [], []
    for i, (dtype, values) in enumerate(draw(st.lists(types(), min_size=1, max_size=4))):
        cells = draw(
            st.lists(st.none() | values, min_size=num_rows, max_size=num_rows)
            if draw(st.booleans())
            else st.lists(values, min_size=num_rows, max_size=num_rows)
        )
        columns.append(pa.array(cells, dtype))
        fields.append(pa.field(f"c{i}", dtype))
    columns.append(pa.array(range(num_rows), pa.int64()))
    fields.append(pa.field("v", pa.int64()))
    if num_rows and draw(st.booleans()):
        # Rows that are a slice of more: offsets that do not begin at zero.
        columns = [pa.concat_arrays([c.slice(0, 1), c]).slice(1) for c in columns]
    whole = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    cuts = sorted(draw(st.lists(st.integers(0, num_rows), max_size=6)))
    batches = [
        whole.slice(start, end - start)
        for start, end in zip([0, *cuts], [*cuts, num_rows], strict=True)
    ]
    return pa.Table.from_batches(batches, schema=whole.schema)


def stored_rows(table: pa.Table) -> pa.RecordBatch:
    """All rows of a table in one batch, as chunks store them."""
    schema = data_schema(table.schema)
    none = pa.RecordBatch.from_pylist([], schema)
    return pa.concat_batches([none, *(normalise(batch, schema) for batch in table.to_batches())])


def frozen(value: object) -> object:
    """`value` of `to_pylist` in a form that can be counted; floats by their bits."""
    if isinstance(value, dict):
        return tuple((name, frozen(item)) for name, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(frozen(item) for item in value)
    if isinstance(value, float):
        return value.hex()
    return value


def counted(rows: list[tuple[int, dict[str, Any]]]) -> Counter[tuple[int, object]]:
    """The multiset of `(subpartition, row)`."""
    return Counter((subpartition, frozen(row)) for subpartition, row in rows)


def flags(lengths: Sequence[int]) -> pa.RecordBatch:
    """Return rows of lists of so many true values."""
    return pa.record_batch({"l": pa.array([[True] * n for n in lengths], pa.list_(pa.bool_()))})
