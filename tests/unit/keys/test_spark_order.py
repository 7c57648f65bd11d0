"""Codes compare as Spark compares values: against a slow model, for every sortable type."""

import math
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.arrays.radix_sort import sort_permutation
from arrow_format.keys.sort_keys import ORDERS, normalise_sort_by
from arrow_format.keys.spark_order import (
    ALL_ROWS,
    comparable_codes,
    key_codes,
    num_text_words,
    order_codes,
    sorting_bytes,
)
from tests.support.memory import traced_peak
from tests.support.spark_order_model import compare, sorted_rows
from tests.support.tables import FLAT

LONG_TEXT = st.builds(
    lambda head, middle, tail: head * middle + tail,
    st.sampled_from(["", "a", "prefix/", "\x00", "é"]),
    st.integers(0, 40),
    st.text(st.sampled_from("ab\x00é\U0001f986"), max_size=9),
)
LONG_BYTES = st.builds(
    lambda count, tail: b"\xff" * count + tail, st.integers(0, 150), st.binary(max_size=9)
)
SORTABLE = [
    *FLAT,
    (pa.float16(), st.floats(width=16)),
    (pa.decimal128(18, 2), dict(FLAT)[pa.decimal128(5, 2)]),
    (pa.decimal32(5, 2), dict(FLAT)[pa.decimal128(5, 2)]),
    (pa.decimal64(5, 2), dict(FLAT)[pa.decimal128(5, 2)]),
    (pa.date64(), st.dates()),
    (pa.string(), LONG_TEXT),
    (pa.binary(), LONG_BYTES),
]
EDGES = st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.5, -1.5, 5e-324])


@st.composite
def columns(draw, max_rows=30):
    """A column of any sortable type with few distinct values, nulls, and an offset."""
    type_, values = draw(st.sampled_from(SORTABLE))
    if pa.types.is_float64(type_):
        values = values | EDGES
    if draw(st.booleans()):
        type_ = pa.struct([("x", type_), ("y", pa.int8())])
        values = st.fixed_dictionaries(
            {"x": st.none() | values, "y": st.none() | st.integers(0, 2)}
        )
    pool = draw(st.lists(st.none() | values, min_size=1, max_size=8))
    cells = draw(st.lists(st.sampled_from(pool), max_size=max_rows))
    return pa.array([None, *cells], type_).slice(1)


def rows_of(codes, num_rows):
    return list(zip(*(c.tolist() for c in codes), strict=True)) or [()] * num_rows


@given(columns(), st.sampled_from(ORDERS))
def test_codes_compare_as_spark_compares(array, order):
    values = array.to_pylist()
    rows = rows_of(order_codes(array, order), len(values))
    for i, one in enumerate(values):
        for j, other in enumerate(values):
            assert (rows[i] > rows[j]) - (rows[i] < rows[j]) == compare(one, other, order)


@given(columns(), columns(), st.sampled_from(ORDERS), st.sampled_from(ORDERS))
def test_several_keys_sort_as_in_spark(one, other, first, second):
    num_rows = min(len(one), len(other))
    arrays = [one.slice(0, num_rows), other.slice(0, num_rows)]
    rows = list(zip(*(array.to_pylist() for array in arrays), strict=True))
    found = sort_permutation(key_codes(arrays, [first, second]))
    assert found.tolist() == sorted_rows(rows, [first, second])


@given(columns(), st.sampled_from(ORDERS), st.integers(0, 30))
def test_codes_of_two_arrays_can_be_compared(array, order, cut):
    one, other = array.slice(0, cut), array.slice(cut)
    num_words = num_text_words(array) + 1
    codes = [
        rows_of([read(ALL_ROWS) for read in comparable_codes(part, order, num_words)], len(part))
        for part in (one, other)
    ]
    found = [[(a > b) - (a < b) for b in codes[1]] for a in codes[0]]
    right = other.to_pylist()
    assert found == [[compare(a, b, order) for b in right] for a in one.to_pylist()]


@given(columns(), st.sampled_from(ORDERS))
def test_codes_of_some_rows(array, order):
    rows = np.arange(len(array))[::-2]
    reads = comparable_codes(array, order, 3)
    assert [read(rows).tolist() for read in reads] == [
        read(ALL_ROWS)[rows].tolist() for read in reads
    ]
    assert len(reads) > 0


def test_every_nan_is_the_same_and_the_largest():
    patterns = [0x7FF8 << 48, 0xFFF8 << 48, 0x7FF0 << 48 | 1, 0xFFFF << 48, (1 << 64) - 1]
    nans = [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in patterns]
    array = pa.array(np.array([*nans, math.inf, -0.0, 0.0, -math.inf]))
    _, codes = order_codes(array, "ascending")
    assert len(set(codes[:5].tolist())) == 1
    assert codes[0] > codes[5] > codes[6] == codes[7] > codes[8]


def test_words_at_the_end_of_the_bytes():
    # The last texts lie nearer to the end of their buffer than a word is long.
    for texts in (["b", "a"], ["", ""], ["xyzxyzxyz", "b", "", "a"], ["longer than eight", "a"]):
        array = pa.array(texts)
        assert sort_permutation(order_codes(array, "ascending")).tolist() == sorted_rows(
            [(text,) for text in texts], ["ascending"]
        )


@pytest.mark.parametrize("length", [7, 21, 22, 112, 113, 1_000])
def test_texts_that_agree_for_long(length):
    random = np.random.default_rng(length)
    texts = ["a" * (length - 3) + f"{n:03d}" for n in random.integers(0, 200, 500)]
    texts += [text[:-1] for text in texts[:50]] + [text + "\x00" for text in texts[:50]]
    found = sort_permutation(order_codes(pa.array(texts), "descending"))
    assert found.tolist() == sorted_rows([(text,) for text in texts], ["descending"])


@pytest.mark.parametrize(
    "array",
    [
        pa.array(np.random.default_rng(1).normal(size=200_000)),
        pa.array(np.arange(200_000)[::-1] << 25, mask=np.arange(200_000) % 9 == 0),
        pa.array([f"Customer#{n:09d}" for n in range(200_000)]),
        pa.array([f"https://www.example.com/a/long/path/{n:09d}" for n in range(200_000)]),
    ],
    ids=["double", "nulls", "words", "ranks"],
)
def test_sorting_takes_the_memory_it_says(array):
    ids = np.zeros(len(array), np.int32)
    ids[::2] = 19_999

    def sort():
        sort_permutation(order_codes(array, "ascending"), ids)

    sort()
    peak = traced_peak(sort)
    # The permutation itself (4 bytes) is charged by whoever keeps it.
    assert peak <= (sorting_bytes([array.type]) + 4) * len(array) + 100_000


def test_memory_of_structs_is_that_of_their_fields():
    one = pa.struct([("x", pa.int32()), ("y", pa.bool_())])
    assert sorting_bytes([one]) == sorting_bytes([pa.int32()]) + 3
    assert sorting_bytes([pa.struct([("x", pa.string())])]) > sorting_bytes([pa.string()])
    assert sorting_bytes([pa.null()]) > 0
    assert normalise_sort_by("a") == (("a", "ascending"),)
