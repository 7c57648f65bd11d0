"""Packed chunks: every type comes back exactly, in fewer bytes, and no damage leads outside."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.format.packed_decoder import Unpacker
from arrow_format.format.packed_encoder import PackedRows
from arrow_format.format.packed_layout import NODE, PREAMBLE, num_nodes
from tests.support.tables import stored_rows, tables


def there_and_back(batch: pa.RecordBatch, start: int = 0, stop: int | None = None):
    stop = batch.num_rows if stop is None else stop
    message = PackedRows(batch).message(start, stop)
    found = Unpacker(batch.schema).unpack(pa.py_buffer(message), stop - start)
    found.validate(full=True)
    return found


@given(st.data())
def test_any_run_of_rows_of_any_batch_comes_back(data):
    table = data.draw(tables())
    schema = data_schema(table.schema)
    for batch in table.to_batches():
        rows = normalise(batch, schema)
        first = data.draw(st.integers(0, rows.num_rows))
        rows = rows.slice(first)  # arrays that do not begin where their buffers do
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, rows.num_rows)] * 2)))
        expected = rows.slice(start, stop - start)
        found = there_and_back(rows, start, stop)
        assert found.schema.equals(schema)
        # NaN is no equal of itself; as Python values and by repr it is.
        assert repr(found.to_pylist()) == repr(expected.to_pylist())


@given(st.data())
def test_some_columns_are_those_of_all(data):
    rows = stored_rows(data.draw(tables()))
    columns = data.draw(st.lists(st.integers(0, rows.num_columns - 1), max_size=6))
    message = pa.py_buffer(PackedRows(rows).message(0, rows.num_rows))
    found = Unpacker(rows.schema, columns).unpack(message, rows.num_rows)
    found.validate(full=True)
    expected = Unpacker(rows.schema).unpack(message, rows.num_rows).select(columns)
    assert found.num_rows == rows.num_rows
    assert found.schema.equals(expected.schema)
    assert repr([c.to_pylist() for c in found]) == repr([c.to_pylist() for c in expected])


def column(values, type_):
    return pa.record_batch([pa.array(values, type_)], names=["c"])


@pytest.mark.parametrize(
    ("values", "type_", "num_bytes"),
    [
        ([7] * 1000, pa.int64(), 0),
        ([-5, 250] * 500, pa.int64(), 1000),
        ([1 << 40, (1 << 40) + 255] * 500, pa.int64(), 1000),
        ([0, 256] * 500, pa.int32(), 2000),
        ([0, 1 << 16] * 500, pa.int64(), 4000),
        ([-(1 << 63), (1 << 63) - 1] * 500, pa.int64(), 8000),
        ([0, (1 << 64) - 1] * 500, pa.uint64(), 8000),
        ([(1 << 64) - 2, (1 << 64) - 1] * 500, pa.uint64(), 1000),
        ([-128, 127] * 500, pa.int8(), 1000),
        ([Decimal("1.50"), Decimal("-1.00")] * 500, pa.decimal128(15, 2), 1000),
        ([Decimal(10**30), Decimal(1)] * 500, pa.decimal128(38, 0), 16000),
        ([Decimal(-1), Decimal(1)] * 500, pa.decimal128(38, 0), 1000),
        ([1.5] * 1000, pa.float64(), 8000),
        (["ab", "cd"] * 500, pa.string(), 2000),
        (["", "abc"] * 500, pa.string(), 2500),
        (["x" * 300, "y" * 320] * 500, pa.string(), 311_000),
        ([[1, 2], []] * 500, pa.list_(pa.int32()), 2000),
        ([None] * 1000, pa.null(), 0),
        ([True, False] * 500, pa.bool_(), 125),
    ],
)
def test_values_take_the_bytes_they_need(values, type_, num_bytes):
    batch = column(values, type_)
    assert PackedRows(batch).num_bytes == num_bytes
    message = PackedRows(batch).message(0, 1000)
    headers = PREAMBLE.size + NODE.size * num_nodes(type_)
    assert headers + num_bytes <= len(message) <= headers + num_bytes + 16
    assert there_and_back(batch).equals(batch)


def test_what_stands_under_nulls_costs_no_width():
    hidden = np.array([1 << 60, 1, 2, 3] * 250)
    array = pa.array(hidden, mask=hidden == 1 << 60)
    batch = pa.record_batch([array], names=["c"])
    assert PackedRows(batch).num_bytes == 1000 + 1000 // 8
    assert there_and_back(batch).equals(batch)


def test_decimals_beyond_their_precision_are_kept_as_they_are():
    # Arrow does not check that values keep to the precision of their type.
    wide = pa.array([Decimal(10**25), Decimal(7)], pa.decimal128(38, 0))
    narrow = pa.Array.from_buffers(pa.decimal128(5, 0), 2, wide.buffers())
    batch = pa.record_batch([narrow], names=["c"])
    message = pa.py_buffer(PackedRows(batch).message(0, 2))
    (found,) = Unpacker(batch.schema).unpack(message, 2).columns
    assert found.buffers()[1].equals(wide.buffers()[1])


def test_validity_is_left_out_where_a_run_has_no_null():
    batch = column([None] * 8 + list(range(1000)), pa.int16())
    rows = PackedRows(batch)
    assert len(rows.message(8, 1008)) < len(rows.message(0, 1000))
    assert there_and_back(batch, 8, 1008).equals(batch.slice(8))


def test_no_rows_and_no_columns():
    batch = pa.record_batch([pa.array([], pa.string())], names=["c"])
    assert there_and_back(batch).equals(batch)


BATCH = pa.record_batch(
    [
        pa.array([1, None, 300]),
        pa.array(["a", "", None]),
        pa.array([[1.5], None, []]),
        pa.array([{"x": True}, {"x": None}, None]),
        # Items that differ: of equal ones a chunk may hold any number in no bytes.
        pa.array([[("k", 1), ("long", 20)], [], None], pa.map_(pa.string(), pa.int8())),
    ],
    names=list("abcde"),
)


def test_no_damage_leads_outside_of_the_chunk():
    """The CRC catches damage first; even without it, bad lengths are refused and never followed."""
    message = PackedRows(BATCH).message(0, 3)
    for i in range(len(message)):
        for bit in range(8):
            damaged = bytearray(message)
            damaged[i] ^= 1 << bit
            try:
                found = Unpacker(BATCH.schema).unpack(pa.py_buffer(bytes(damaged)), 3)
            except (ValueError, pa.ArrowException):
                continue
            assert found.num_rows == 3
            found.validate()
    for length in range(len(message)):
        with pytest.raises(ValueError, match=r"."):
            Unpacker(BATCH.schema).unpack(pa.py_buffer(message[:length]), 3)
    with pytest.raises(ValueError, match=r"where the nodes take"):
        Unpacker(BATCH.schema).unpack(pa.py_buffer(message + bytes(8)), 3)


@pytest.mark.parametrize("columns", [[], [1], [4, 2]])
def test_damage_to_columns_that_are_stepped_over_leads_nowhere_either(columns):
    """What is refused where all columns are made is refused where some are."""
    message = PackedRows(BATCH).message(0, 3)
    everything, some = Unpacker(BATCH.schema), Unpacker(BATCH.schema, columns)
    for i in range(len(message)):
        for bit in range(8):
            damaged = bytearray(message)
            damaged[i] ^= 1 << bit
            buffer = pa.py_buffer(bytes(damaged))
            try:
                expected = everything.unpack(buffer, 3)
            except ValueError:
                with pytest.raises(ValueError, match=r"."):
                    some.unpack(buffer, 3)
            else:
                found = some.unpack(buffer, 3)
                found.validate()
                assert found.num_rows == 3
                assert [a.buffers() for a in found.columns] == [
                    a.buffers() for a in expected.select(columns).columns
                ]
    for length in range(len(message)):
        with pytest.raises(ValueError, match=r"."):
            some.unpack(pa.py_buffer(message[:length]), 3)
    with pytest.raises(ValueError, match=r"where the nodes take"):
        some.unpack(pa.py_buffer(message + bytes(8)), 3)


def test_lengths_that_add_up_to_more_than_offsets_reach_are_refused():
    lengths = np.array([1 << 30, 1 << 30], "<u4")
    message = PREAMBLE.pack(2, 1) + NODE.pack(0, 4, 0) + lengths.tobytes()
    for columns in (None, []):
        with pytest.raises(ValueError, match=f"lengths add up to {1 << 31}"):
            Unpacker(pa.schema([("c", pa.string())]), columns).unpack(pa.py_buffer(message), 2)
    message = PREAMBLE.pack(2, 1) + NODE.pack(0, 0, 1 << 30)
    with pytest.raises(ValueError, match="2 lengths of 0 bytes"):
        Unpacker(pa.schema([("c", pa.string())])).unpack(pa.py_buffer(message), 2)


def packed(num_rows: int, *nodes: tuple[int, ...], buffers: bytes = b"") -> pa.Buffer:
    """Return a packed chunk of nodes ``(flags, width, base)``."""
    headers = b"".join(NODE.pack(*one) for one in nodes)
    return pa.py_buffer(PREAMBLE.pack(num_rows, len(nodes)) + headers + buffers)


@pytest.mark.parametrize(
    ("type_", "nodes"),
    [
        (pa.null(), [(0, 0, 0)]),
        (pa.bool_(), [(0, 1, 0)]),
        (pa.int8(), [(0, 2, 0)]),
        (pa.int32(), [(0, 8, 0)]),
        (pa.int64(), [(0, 3, 0)]),
        (pa.float64(), [(0, 8, 0)]),
        (pa.float16(), [(0, 0, 0)]),
        (pa.binary(4), [(0, 4, 0)]),
        (pa.decimal256(60), [(0, 8, 0)]),
        (pa.decimal128(38), [(0, 16, 0)]),
        (pa.string(), [(0, 8, 0)]),
        (pa.string(), [(0, 255, 0)]),
        (pa.list_(pa.int8()), [(0, 255, 0), (0, 0, 0)]),
        (pa.struct([("a", pa.int8())]), [(0, 1, 0), (0, 0, 0)]),
        (pa.list_(pa.int8(), 2), [(0, 0, 0), (0, 0, 0)]),
    ],
    ids=str,
)
def test_a_width_that_the_type_does_not_have_is_refused(type_, nodes):
    unpacker = Unpacker(pa.schema([("c", type_)]))
    for num_rows in (0, 1):
        with pytest.raises(ValueError, match=r"a node of type .* has width \d+"):
            unpacker.unpack(packed(num_rows, *nodes, buffers=bytes(64)), num_rows)


def test_flags_that_mean_nothing_are_refused():
    for type_, flags in ((pa.null(), 1), (pa.int8(), 2), (pa.int8(), 128)):
        with pytest.raises(ValueError, match=f"has flags {flags:#x}"):
            Unpacker(pa.schema([("c", type_)])).unpack(packed(0, (flags, 255, 0)), 0)


VECTORS = {
    "int32": pa.array([5, 5, 5], pa.int32()),
    "int64": pa.array([300, None, -1], pa.int64()),
    "uint64": pa.array([(1 << 64) - 1, (1 << 64) - 2], pa.uint64()),
    "decimal128(5, 2)": pa.array([Decimal("-1.00"), Decimal("1.50")], pa.decimal128(5, 2)),
    "string": pa.array(["ab", None, ""]),
    "list<int8>": pa.array([[1, 2], [], [-1]], pa.list_(pa.int8())),
    "struct<x: bool>": pa.array([{"x": True}, {"x": False}]),
    "list<null>": pa.array([[None, None]] * 2, pa.list_(pa.null())),
}


def test_the_examples_of_the_format_are_read_and_written():
    text = Path(__file__).parents[3].joinpath("docs/format/v1.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \| ((?:`[0-9a-f]{16,}` ?)+) \|", text, re.MULTILINE)
    found = {name: bytes.fromhex(re.sub(r"\W", "", content)) for name, content in rows}
    assert found.keys() == VECTORS.keys()
    for name, array in VECTORS.items():
        batch = pa.record_batch([array], names=["c"])
        message = pa.py_buffer(found[name])
        assert Unpacker(batch.schema).unpack(message, len(array)).equals(batch), name
        assert PackedRows(batch).message(0, len(array)) == found[name], name


def test_what_a_base_and_a_number_make():
    """The sum modulo 2**64, of which the value is the low bytes; a decimal of 128 bits, signed."""
    for type_, base, number, expected in (
        (pa.uint64(), -2, 1, (1 << 64) - 1),
        (pa.int8(), 127, 1, -128),
        (pa.int8(), 256 + 5, 1, 6),
        (pa.uint16(), -1, 2, 1),
        (pa.decimal128(20), -(1 << 63), 255, Decimal(-(1 << 63) + 255)),
        (pa.decimal128(20), (1 << 63) - 1, 1, Decimal(-(1 << 63))),
    ):
        message = packed(1, (0, 1, base), buffers=bytes([number]) + bytes(7))
        (found,) = Unpacker(pa.schema([("c", type_)])).unpack(message, 1)[0].to_pylist()
        assert found == expected


@pytest.mark.parametrize(
    ("type_", "value_bytes"), [(pa.int8(), 1), (pa.int32(), 4), (pa.decimal128(20), 16)]
)
def test_the_bound_of_what_a_packed_chunk_becomes_is_that_of_the_format(type_, value_bytes):
    """8 MiB, and 16 times its own bytes: 24 of the headers of one node."""
    most = (8 << 20) + 16 * 24
    unpacker = Unpacker(pa.schema([("c", type_)]))
    num_rows = most // value_bytes
    assert unpacker.unpack(packed(num_rows, (0, 0, 1)), num_rows).num_rows == num_rows
    with pytest.raises(ValueError, match="expand to too many"):
        unpacker.unpack(packed(num_rows + 1, (0, 0, 1)), num_rows + 1)


def test_lengths_count_four_bytes_towards_the_bound_and_stored_values_nothing():
    most = ((8 << 20) + 16 * 24) // 4
    unpacker = Unpacker(pa.schema([("c", pa.string())]))
    assert unpacker.unpack(packed(most, (0, 0, 0)), most).num_rows == most
    with pytest.raises(ValueError, match="expand to too many"):
        unpacker.unpack(packed(most + 1, (0, 0, 0)), most + 1)
    stored = (8 << 20) + (1 << 20)
    message = packed(stored // 8, (0, 255, 0), buffers=bytes(stored))
    assert Unpacker(pa.schema([("c", pa.float64())])).unpack(message, stored // 8)


def test_a_base_that_no_offset_reaches_is_refused_even_of_no_lengths():
    message = PREAMBLE.pack(1, 2) + NODE.pack(0, 0, 0) + NODE.pack(0, 0, 1 << 31)
    unpacker = Unpacker(pa.schema([("c", pa.list_(pa.string()))]))
    with pytest.raises(ValueError, match=f"0 lengths of 0 bytes, of {1 << 31} or more"):
        unpacker.unpack(pa.py_buffer(message), 1)


@pytest.mark.parametrize("num_rows", [2, 4, (1 << 32) - 1])
def test_another_number_of_rows_is_refused_before_anything_is_made(num_rows):
    message = bytearray(PackedRows(column([7] * 3, pa.int64())).message(0, 3))
    message[:4] = num_rows.to_bytes(4, "little")
    with pytest.raises(ValueError, match=f"{num_rows} rows where the index says 3"):
        Unpacker(pa.schema([("c", pa.int64())])).unpack(pa.py_buffer(bytes(message)), 3)
