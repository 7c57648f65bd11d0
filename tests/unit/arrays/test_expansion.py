"""Batches that grow when they are normalised are cut by what their rows will take."""

import mmap

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.arrays import expansion
from arrow_format.arrays.expansion import EXPANDED_BYTES, expandable_slices, stored_batches
from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.errors import SchemaError
from tests.unit.arrays.test_stored_types import ROWS, encoded_forms, one_column

LONG = "x" * 300_000


def plain_pieces(batch):
    schema = data_schema(batch.schema)
    return list(stored_batches(batch, schema))


def rows_of(batch):
    return batch.column(0).to_pylist()


@given(ROWS, st.integers(0, 30), st.integers(1, 40), st.integers(1, 7))
def test_all_rows_come_in_order(values, start, max_bytes, block_rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expansion, "EXPANDED_BYTES", max_bytes)
        patch.setattr(expansion, "BLOCK_ROWS", block_rows)
        patch.setattr(expansion, "BLOCK_VALUES", block_rows)
        for array, plain_type in encoded_forms(values):
            batch = one_column(array).slice(start)
            found = plain_pieces(batch)
            rows = [row for piece in found for row in rows_of(piece)]
            expected = normalise(batch, data_schema(batch.schema))
            assert rows == rows_of(expected)
            for piece in found:
                if piece.num_rows > 1 and plain_type == pa.string():
                    assert sum(map(len, map(str.encode, filter(None, rows_of(piece))))) <= max_bytes


VALUES = pa.array([LONG, "", None, LONG])
INDICES = pa.array(np.arange(400) % 4)
DICTIONARY = pa.DictionaryArray.from_arrays(INDICES, VALUES)
VIEWS = VALUES.cast(pa.string_view())


@pytest.mark.parametrize(
    "array",
    [
        DICTIONARY,
        pa.DictionaryArray.from_arrays(INDICES, VIEWS),
        pa.concat_arrays([VIEWS] * 100),
        pa.RunEndEncodedArray.from_arrays(pa.array([90, 398, 400], pa.int32()), VALUES[:3]),
        pa.RunEndEncodedArray.from_arrays(pa.array([100, 300, 400], pa.int32()), VALUES[1:]),
        pa.ListArray.from_arrays(pa.array(range(0, 401, 8), pa.int32()), DICTIONARY),
        pa.FixedSizeListArray.from_arrays(DICTIONARY, 4),
        pa.StructArray.from_arrays([DICTIONARY], ["f"]),
        pa.ListViewArray.from_arrays(
            pa.array([0] * 100, pa.int32()), pa.array([3] * 100, pa.int32()), VALUES
        ),
        pa.MapArray.from_arrays(
            pa.array(range(0, 401, 4), pa.int32()), pa.array(np.arange(400)), DICTIONARY
        ),
    ],
    ids=lambda array: str(array.type)[:40],
)
def test_no_piece_of_several_rows_takes_more_than_it_may(array):
    found = plain_pieces(one_column(array))
    assert sum(piece.num_rows for piece in found) == len(array)
    sizes = [piece.nbytes for piece in found if piece.num_rows > 1]
    assert max(sizes) < EXPANDED_BYTES + (64 << 10)
    assert sum(sizes) > 6 * len(LONG), "it is the long values that were cut"


def test_a_row_of_more_is_a_piece_of_its_own(monkeypatch):
    monkeypatch.setattr(expansion, "EXPANDED_BYTES", 1000)
    found = plain_pieces(one_column(DICTIONARY))
    assert [piece.num_rows for piece in found[:4]] == [1, 2, 1, 1]


def test_what_does_not_grow_is_not_cut():
    batch = pa.record_batch({"a": np.arange(1_000_000)})
    (only,) = expandable_slices(batch, data_schema(batch.schema))
    assert only is batch


def test_many_short_values_are_one_piece():
    batch = one_column(pa.array(["a", "b"] * 20_000).dictionary_encode())
    assert len(plain_pieces(batch)) == 1


@pytest.mark.parametrize("type_", [pa.large_string(), pa.large_binary()])
def test_text_behind_the_first_two_gigabytes_of_a_batch(type_):
    """Slices are small wherever they are, but Arrow's cast compares where they end."""
    start = 1 << 31
    content = mmap.mmap(-1, start + 16)  # pages that nobody touches take no memory
    content[start : start + 3] = b"abc"
    offsets = pa.py_buffer(np.array([0, start, start + 1, start + 1, start + 3], np.int64))
    valid = pa.py_buffer(bytes([0b1011]))
    text = pa.Array.from_buffers(type_, 4, [valid, offsets, pa.py_buffer(content)])
    rows = [row for piece in plain_pieces(one_column(text).slice(1)) for row in rows_of(piece)]
    assert rows == pa.array([b"a", None, b"bc"], pa.binary()).cast(type_).to_pylist()


def test_a_batch_of_another_type_is_cut_all_the_same_and_then_refused():
    schema = pa.schema([("c", pa.string())])
    for array in [pa.array([1, None]), pa.nulls(2), pa.array([0, 1]).dictionary_encode()]:
        with pytest.raises(SchemaError, match="'c' has type"):
            list(stored_batches(one_column(array), schema))
