"""Appends with other columns: every version is read as Arrow's own concatenation of its rows."""

import tempfile
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format import (
    MergePolicy,
    merge_shuffle,
    open_shuffle,
    open_shuffle_changes,
)
from arrow_format.errors import SchemaError
from arrow_format.keys.partitioner import RoundRobinPartitioner
from arrow_format.options import WriteOptions
from tests.support.exhaustive import examples
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import files_below, write_rows
from tests.support.tables import frozen

N = 3
MAX = {8: 2**7 - 1, 16: 2**15 - 1, 32: 2**31 - 1, 64: 2**63 - 1}
CHAINS = {
    "w": [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    "u": [pa.uint8(), pa.uint32()],
    "f": [pa.float32(), pa.float64()],
    "d": [pa.decimal128(4, 2), pa.decimal128(20, 2), pa.decimal128(38, 2)],
    "s": [pa.string()],
    "l": [pa.list_(pa.int32())],
}
"""Columns besides `k`, the key, and `v`, which numbers all rows; each with its types, ascending."""


def values_of(dtype):
    if pa.types.is_decimal(dtype):
        limit = 10**dtype.precision - 1
        return st.integers(-limit, limit).map(lambda unscaled: Decimal(f"{unscaled}e-2"))
    if pa.types.is_floating(dtype):
        return st.floats(width=dtype.bit_width, allow_nan=False)
    if pa.types.is_integer(dtype):
        high = MAX[dtype.bit_width]
        low = -high - 1 if pa.types.is_signed_integer(dtype) else 0
        return st.integers(low, high) | st.sampled_from([low, high])
    if pa.types.is_list(dtype):
        return st.lists(st.none() | st.integers(0, 9), max_size=2)
    return st.text(max_size=4)


@st.composite
def batches(draw, sorted_by_w):
    """Rows of some of the columns, in any order, without `v`."""
    names = draw(st.lists(st.sampled_from(sorted(CHAINS)), max_size=4, unique=True))
    if sorted_by_w and "w" not in names:
        names.append("w")
    fields = [pa.field("k", pa.int64()), pa.field("v", pa.int64())]
    for name in names:
        dtype = draw(st.sampled_from(CHAINS[name]))
        fields.append(pa.field(name, dtype, nullable=draw(st.integers(0, 4)) > 0))
    schema = pa.schema(draw(st.permutations(fields)))
    num_rows = draw(st.integers(0, 6))
    columns = []
    for field in schema:
        values = st.integers(0, 5) if field.name in "kv" else values_of(field.type)
        cells = st.none() | values if field.nullable and field.name not in "kv" else values
        columns.append(draw(st.lists(cells, min_size=num_rows, max_size=num_rows)))
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
        schema=schema,
    )


def numbered(table, start):
    position = table.schema.get_field_index("v")
    numbers = pa.array(range(start, start + len(table)), pa.int64())
    return table.set_column(position, table.schema.field("v"), numbers)


def fits(schema, table, *, evolves):
    """Whether an append is to succeed, by the rules that users are promised."""
    for field in schema:
        if field.name not in table.column_names and not field.nullable:
            return False
    for field in table.schema:
        if field.name not in schema.names:
            if not evolves:
                return False
        elif field.name in CHAINS:
            chain = CHAINS[field.name]
            is_wider = chain.index(field.type) > chain.index(schema.field(field.name).type)
            if is_wider and not evolves:
                return False
    return True


def whole(tables):
    """What Arrow makes of them: all columns, in the widest types, null where one lacks."""
    return pa.concat_tables(tables, promote_options="permissive")


def check(shuffle, expected, sorted_by_w, columns=None):
    names = expected.column_names if columns is None else columns
    read = shuffle.read(columns=columns, with_subpartition=True)
    rows = read.read_all()
    rows.validate(full=True)
    assert rows.column_names == [*names, "_subpartition"]
    assert [rows[name].type for name in names] == [expected[name].type for name in names]
    if columns is None:
        by_number = rows.drop_columns("_subpartition").sort_by("v")
        assert [*map(frozen, by_number.to_pylist())] == [*map(frozen, expected.to_pylist())]
    if sorted_by_w and "w" in names:
        order = [
            (row["_subpartition"], row["w"] is not None, row["w"] or 0) for row in rows.to_pylist()
        ]
        assert order == sorted(order)
    if shuffle.num_rows:
        assert shuffle.verify().num_rows == len(expected)


@guarantee("evolved schema")
@settings(max_examples=examples(20, 200))
@given(st.data(), st.booleans(), st.booleans())
def test_every_version_is_what_arrow_makes_of_its_rows(data, sorted_by_w, by_key):
    rows_of, all_rows, schema = {}, [], None
    start = 0
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(data.draw(st.integers(2, 6))):
            if all_rows and data.draw(st.integers(0, 3)) == 0:
                policy = MergePolicy(
                    rewrite=data.draw(st.sampled_from(["never", "always"])), max_fan_in=2
                )
                merged = merge_shuffle(directory, policy=policy, by="map_output").version
                rows_of[merged] = list(all_rows)
                continue
            table = numbered(data.draw(batches(sorted_by_w)), start)
            evolves = data.draw(st.integers(0, 3)) > 0
            options = WriteOptions(
                sync=False,
                schema_evolution=evolves,
                codec=data.draw(st.sampled_from(["zstd", "none"])),
                statistics=data.draw(st.sampled_from([None, "all", ("k",)])),
                chunk_bytes=data.draw(st.sampled_from([1, 64, 1 << 18])),
                sort_buffer_bytes=data.draw(st.sampled_from([1 << 10, 1 << 20])),
            )

            def append(table=table, options=options):
                by = {"keys": "k"} if by_key else {"partitioner": RoundRobinPartitioner()}
                sort_by = ["w"] if sorted_by_w else []
                how = {"mode": "append", "for_spark": False, "options": options}
                return write_rows(directory, table, n=N, sort_by=sort_by, **by, **how)

            if schema is not None and not fits(schema, table, evolves=evolves):
                before = files_below(Path(directory))
                with pytest.raises(SchemaError, match="cannot append rows of another schema"):
                    append()
                assert files_below(Path(directory)) == before
                continue
            version = append().version
            start += len(table)
            all_rows.append(table)
            rows_of[version] = list(all_rows)
            schema = open_shuffle(directory).schema
        for version, tables in rows_of.items():
            expected = whole(tables)
            shuffle = open_shuffle(directory, version=version)
            check(shuffle, expected, sorted_by_w)
            some = data.draw(st.lists(st.sampled_from(expected.column_names), unique=True))
            check(shuffle, expected, sorted_by_w, some)
        newest = max(rows_of, default=0)
        for begin in [0, *rows_of]:
            if begin < newest:
                added = open_shuffle_changes(directory, begin)
                new = all_rows[len(rows_of.get(begin, [])) :]
                assert added.schema.equals(schema)
                numbers = added.read(columns=["v"]).read_all()["v"].to_pylist()
                assert sorted(numbers) == sorted(v for t in new for v in t["v"].to_pylist())
