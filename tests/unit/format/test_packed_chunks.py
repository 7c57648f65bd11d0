"""Packed columns: every type comes back exactly, in fewer bytes, and no damage leads outside."""

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
from arrow_format.format import packed_decoder
from arrow_format.format.codec_zstd import FrameEncoder
from arrow_format.format.packed_decoder import Unpacker
from arrow_format.format.packed_encoder import PackedRows
from arrow_format.format.packed_layout import NODE, num_nodes
from arrow_format.format.packed_runs import MANY_CHUNKS
from integration.readers.packed_columns import unpack
from tests.support.tables import tables


def unpacked(schema, columns, num_rows, wanted=None, times=1):
    """Unpack columns that lie one behind the other, or those of them at the positions wanted.

    As often as ``times`` says: they are unpacked in another way where that is often.
    """
    ends = np.cumsum([len(column) for column in columns]).tolist()
    content = pa.py_buffer(b"".join(columns))
    edges = zip([0, *ends], ends, strict=False)
    sections = [(i, [edge] * times) for i, edge in enumerate(edges)]
    if wanted is not None:
        sections = [sections[i] for i in wanted]
    arrays = Unpacker(schema).unpack(content, sections, [(num_rows, 0, num_rows)] * times)
    names = [schema.names[i] for i, _ in sections]
    fields = [schema.field(name) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def there_and_back(batch: pa.RecordBatch, start: int = 0, stop: int | None = None):
    stop = batch.num_rows if stop is None else stop
    columns = PackedRows(batch).columns(start, stop)
    found = unpacked(batch.schema, columns, stop - start)
    found.validate(full=True)
    for column, array in zip(columns, found.columns, strict=True):
        # A second implementation, which knows the page of the format alone.
        other = unpack(memoryview(column), array.type, stop - start)
        assert repr(other.to_pylist()) == repr(array.to_pylist())
    return found


@pytest.mark.slow
@given(st.data())
def test_chunks_that_are_unpacked_together_come_one_behind_the_other(data):
    """Of other widths, bases and nulls, with any rows wanted of each"""
    table = data.draw(tables())
    schema = data_schema(table.schema)
    rows = normalise(table.combine_chunks().to_batches()[0], schema) if table.num_rows else None
    if rows is None:
        return
    position = st.integers(0, rows.num_rows)
    content, sections, wanted, expected = b"", [[] for _ in schema], [], []
    for _ in range(data.draw(st.integers(1, 4))):
        start, first, end, stop = sorted(data.draw(st.tuples(*[position] * 4)))
        for of_column, column in zip(sections, PackedRows(rows).columns(start, stop), strict=True):
            of_column.append((len(content), len(content) + len(column)))
            content += column
        wanted.append((stop - start, first - start, end - start))
        expected.append(rows.slice(first, end - first))
    times = data.draw(st.sampled_from([1, MANY_CHUNKS]))  # many are unpacked in another way
    sections, wanted, expected = (
        [each * times for each in sections],
        wanted * times,
        expected * times,
    )
    with pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans(), "each by itself, as large ones"):
            patch.setattr(packed_decoder, "JOINED_ROWS", 0)
        patch.setattr(packed_decoder, "JOINED_VALUES", data.draw(st.sampled_from([1, 5, 1 << 16])))
        found = Unpacker(schema).unpack(pa.py_buffer(content), enumerate(sections), wanted)
    batch = pa.RecordBatch.from_arrays(found, schema=schema)
    batch.validate(full=True)
    assert repr(batch.to_pylist()) == repr(pa.Table.from_batches(expected).to_pylist())


def several(arrays):
    """The packed columns of chunks one behind the other, and where those of each are."""
    columns = [PackedRows(pa.record_batch([one], ["c"])).columns(0, len(one))[0] for one in arrays]
    ends = np.cumsum([len(column) for column in columns]).tolist()
    return bytearray(b"".join(columns)), [*zip([0, *ends], ends, strict=False)]


def test_chunks_that_are_unpacked_together_have_a_base_and_a_sign_each():
    kind = pa.decimal128(38, 0)
    bases = (5, -1, (1 << 62) - 3, -(1 << 63), 1 << 62)
    arrays = [pa.array([Decimal(base), Decimal(base + 2)], kind) for base in bases]
    content, sections = several(arrays)
    (found,) = Unpacker(pa.schema({"c": kind})).unpack(
        pa.py_buffer(bytes(content)), [(0, sections)], [(2, 0, 2)] * len(arrays)
    )
    found.validate(full=True)
    assert found.to_pylist() == [value for one in arrays for value in one.to_pylist()]


@pytest.mark.parametrize("damaged", range(3))
def test_digits_of_each_chunk_that_is_unpacked_with_others_are_looked_at(damaged):
    content, sections = several([pa.array([0.25, 1.5])] * 3)
    content[sections[damaged][0] + 2] = 16
    with pytest.raises(ValueError, match="floats of 16 digits"):
        Unpacker(pa.schema({"c": pa.float64()})).unpack(
            pa.py_buffer(bytes(content)), [(0, sections)], [(2, 0, 2)] * 3
        )


@pytest.mark.slow
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


def column(values, type_):
    return pa.record_batch([pa.array(values, type_)], names=["c"])


@pytest.mark.parametrize(
    ("values", "type_", "num_bytes"),
    [
        ([7] * 1000, pa.int64(), 1000),
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
        ([1.5] * 1000, pa.float64(), 1000),
        ([1.25, -3.5] * 500, pa.float64(), 2000),
        ([0.1, 1e6] * 500, pa.float64(), 4000),
        ([1 / 3, 1.5] * 500, pa.float64(), 8000),
        ([1.0, 1e18] * 500, pa.float64(), 8000),
        ([1.5] * 1000, pa.float32(), 4000),
        (["ab", "cd"] * 500, pa.string(), 3000),
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
    (packed,) = PackedRows(batch).columns(0, 1000)
    headers = NODE.size * num_nodes(type_)
    assert headers + num_bytes <= len(packed) <= headers + num_bytes + 16
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
    (found,) = unpacked(batch.schema, PackedRows(batch).columns(0, 2), 2).columns
    assert found.buffers()[1].equals(wide.buffers()[1])


def test_validity_is_left_out_where_a_run_has_no_null():
    batch = column([None] * 8 + list(range(1000)), pa.int16())
    rows = PackedRows(batch)
    assert len(rows.columns(8, 1008)[0]) < len(rows.columns(0, 1000)[0])
    assert there_and_back(batch, 8, 1008).equals(batch.slice(8))


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


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, MANY_CHUNKS])
def test_no_damage_leads_outside_of_the_column(times):
    """The CRC catches damage first; even without it, bad lengths are refused and never followed."""
    columns = PackedRows(BATCH).columns(0, 3)
    for number, packed in enumerate(columns):
        schema = pa.schema([BATCH.schema.field(number)])
        for i in range(len(packed)):
            for bit in range(8):
                damaged = bytearray(packed)
                damaged[i] ^= 1 << bit
                try:
                    found = unpacked(schema, [bytes(damaged)], 3, times=times)
                except (ValueError, pa.ArrowException):
                    continue
                assert found.num_rows == 3 * times
                found.validate()
        for length in range(len(packed)):
            with pytest.raises(ValueError, match=r"."):
                unpacked(schema, [packed[:length]], 3, times=times)
        with pytest.raises(ValueError, match="a column ends at byte"):
            unpacked(schema, [packed + bytes(8)], 3, times=times)


def test_a_column_takes_no_byte_of_another():
    columns = PackedRows(BATCH).columns(0, 3)
    content = pa.py_buffer(b"".join(columns))
    for stop in range(len(columns[0])):
        with pytest.raises(ValueError, match=r"."):
            Unpacker(BATCH.schema).unpack(content, [(0, [(0, stop)])], [(3, 0, 3)])


def test_floats_come_back_to_the_bit():
    for values in (
        [0.0, -0.0], [0.1, 0.2, 0.30000000000000004], [float("nan"), 1.5], [float("inf"), 2.0],
        [5e-324, 1.0], [-12.34, 1e9], [1e300, 0.5], [2.0**53 + 2, 1.0],
    ):  # fmt: skip
        batch = column(values, pa.float64())
        (found,) = there_and_back(batch).columns
        assert found.buffers()[1].to_pybytes()[: 8 * len(values)] == np.array(values).tobytes()


def test_floats_under_nulls_do_not_matter():
    hidden = np.array([1 / 3, 1.25, 2.5, 3.75] * 300)
    array = pa.array(hidden, mask=hidden == 1 / 3)
    batch = pa.record_batch([pa.concat_arrays([pa.array([1.5] * 1200), array])], names=["c"])
    assert len(PackedRows(batch).columns(0, 2400)[0]) < 3 * 2400
    assert there_and_back(batch).equals(batch)


RANDOM = np.random.default_rng(1)
IDS = np.arange(1 << 15)
SOME_IDS = np.sort(RANDOM.choice(1 << 20, 1 << 15, replace=False))


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        (IDS, pa.int64()),
        (IDS - 5000, pa.decimal128(15, 2)),
        (IDS * 0.5, pa.float64()),
        (SOME_IDS, pa.int64()),
        (SOME_IDS / 100, pa.float64()),
        (SOME_IDS // 40, pa.int32()),
        (SOME_IDS % 50_000 * 0.5, pa.float64()),
        (np.repeat(RANDOM.integers(0, 60_000, 1 << 14), 2), pa.int32()),
        (np.repeat(RANDOM.integers(0, 1 << 31, 1 << 14), 2), pa.int64()),
        (RANDOM.integers(0, 200, 1 << 15), pa.int64()),
        (RANDOM.integers(0, 10_000, 1 << 15), pa.int64()),
        (RANDOM.integers(0, 1_000_000, 1 << 15), pa.decimal128(15, 2)),
        (RANDOM.integers(0, 10_000, 1 << 15) / 100, pa.float64()),
        (RANDOM.integers(0, 100, 1 << 15) * 1000, pa.int64()),
    ],
)
def test_packed_numbers_compress_to_no_more_than_plain_ones(values, type_):
    if pa.types.is_decimal(type_):
        array = pa.array([Decimal(value).scaleb(-2) for value in values.tolist()], type_)
        values = values.astype(np.int64)
    else:
        array = pa.array(values).cast(type_)
        values = array.to_numpy()
    batch = pa.record_batch([array], names=["c"])
    encoder = FrameEncoder(1, 256 << 10)
    narrow, chosen = (
        encoder.compressed_bytes(memoryview(rows.columns(0, len(values))[0]))
        for rows in (PackedRows(batch), PackedRows(batch, encoder.compressed_bytes))
    )
    plain = encoder.compressed_bytes(memoryview(values.tobytes()))
    assert chosen <= 1.05 * min(narrow, plain)
    packed = PackedRows(batch, encoder.compressed_bytes).columns(0, len(values))
    assert unpacked(batch.schema, packed, len(values)).equals(batch)


@pytest.mark.parametrize("times", [1, MANY_CHUNKS])
def test_lengths_that_add_up_to_more_than_offsets_reach_are_refused(times):
    lengths = np.array([1 << 30, 1 << 30], "<u4")
    with pytest.raises(ValueError, match=f"lengths add up to {times << 31}"):
        values_of(pa.string(), 2, (0, 4, 0), buffers=lengths.tobytes(), times=times)
    with pytest.raises(ValueError, match="2 lengths of 1 bytes"):
        values_of(pa.string(), 2, (0, 1, 1 << 30), buffers=bytes(8), times=times)


def values_of(
    type_: pa.DataType,
    num_rows: int,
    *nodes: tuple[int, int, int],
    buffers: bytes = b"",
    times: int = 1,
) -> pa.Array:
    """Unpack a column of nodes ``(flags, width, base)``."""
    headers = b"".join(NODE.pack(flags, width, 0, base) for flags, width, base in nodes)
    schema = pa.schema([("c", type_)])
    return unpacked(schema, [headers + buffers], num_rows, times=times).column(0)


@pytest.mark.parametrize(
    ("type_", "nodes"),
    [
        (pa.null(), [(0, 0, 0)]),
        (pa.int64(), [(0, 0, 5)]),
        (pa.string(), [(0, 0, 0)]),
        (pa.bool_(), [(0, 1, 0)]),
        (pa.int8(), [(0, 2, 0)]),
        (pa.int32(), [(0, 8, 0)]),
        (pa.int64(), [(0, 3, 0)]),
        (pa.float64(), [(0, 8, 0)]),
        (pa.float32(), [(0, 4, 0)]),
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
    for num_rows in (0, 1):
        with pytest.raises(ValueError, match=r"a node of type .* has width \d+"):
            values_of(type_, num_rows, *nodes, buffers=bytes(64))


def test_flags_that_mean_nothing_are_refused():
    for type_, flags in ((pa.null(), 1), (pa.int8(), 2), (pa.int8(), 128)):
        with pytest.raises(ValueError, match=f"has flags {flags:#x}"):
            values_of(type_, 0, (flags, 255, 0))
    for times in (1, MANY_CHUNKS):
        with pytest.raises(ValueError, match="floats of 16 digits"):
            unpacked(pa.schema([("c", pa.float64())]), [NODE.pack(0, 1, 16, 0)], 0, times=times)


VECTORS = {
    "int32": pa.array([5, 5, 5], pa.int32()),
    "int64": pa.array([300, None, -1], pa.int64()),
    "double": pa.array([-0.25, 1.5]),
    "uint64": pa.array([(1 << 64) - 1, (1 << 64) - 2], pa.uint64()),
    "decimal128(5, 2)": pa.array([Decimal("-1.00"), Decimal("1.50")], pa.decimal128(5, 2)),
    "string": pa.array(["ab", None, ""]),
    "list<int8>": pa.array([[1, 2], [], [-1]], pa.list_(pa.int8())),
    "struct<x: bool>": pa.array([{"x": True}, {"x": False}]),
    "list<null>": pa.array([[None, None]] * 2, pa.list_(pa.null())),
}


def test_the_examples_of_the_format_are_read_and_written():
    text = Path(__file__).parents[3].joinpath("docs/format/packed.md").read_text(encoding="utf-8")
    rows = re.findall(r"^(\S.*?) {2,}((?:[0-9a-f]{16,} )+)", text, re.MULTILINE)
    found = {name: bytes.fromhex(re.sub(r"\W", "", content)) for name, content in rows}
    assert found.keys() == VECTORS.keys()
    for name, array in VECTORS.items():
        batch = pa.record_batch([array], names=["c"])
        assert unpacked(batch.schema, [found[name]], len(array)).equals(batch), name
        assert unpack(memoryview(found[name]), array.type, len(array)).equals(array), name
        assert PackedRows(batch).columns(0, len(array)) == [found[name]], name


@pytest.mark.parametrize("times", [1, MANY_CHUNKS])
def test_what_a_base_and_a_number_make(times):
    """The sum modulo 2**64, of which the value is the low bytes; a decimal of 128 bits, signed."""
    for type_, base, number, expected in (
        (pa.uint64(), -2, 1, (1 << 64) - 1),
        (pa.int8(), 127, 1, -128),
        (pa.int8(), 256 + 5, 1, 6),
        (pa.uint16(), -1, 2, 1),
        (pa.decimal128(20), -(1 << 63), 255, Decimal(-(1 << 63) + 255)),
        (pa.decimal128(20), (1 << 63) - 1, 1, Decimal(-(1 << 63))),
    ):
        buffers = bytes([number]) + bytes(7)
        found = values_of(type_, 1, (0, 1, base), buffers=buffers, times=times)
        assert found.to_pylist() == [expected] * times


def test_a_base_that_no_offset_reaches_is_refused_even_of_no_lengths():
    with pytest.raises(ValueError, match=f"0 lengths of 1 bytes, of {1 << 31} or more"):
        values_of(pa.list_(pa.string()), 1, (0, 1, 0), (0, 1, 1 << 31), buffers=bytes(8))
