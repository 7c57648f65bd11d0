import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.format.single_values import from_binaries, to_binaries
from arrow_format.format.statistics import has_statistics
from tests.support.tables import FLAT

WIDER = [
    (pa.int8(), pa.int32(), [-128, 127, None]),
    (pa.int32(), pa.int64(), [-1, 2**31 - 1]),
    (pa.uint8(), pa.uint64(), [255, 0]),
    (pa.float32(), pa.float64(), [-1.5, float("inf"), None]),
    (pa.decimal128(5, 2), pa.decimal128(38, 2), [None]),
    (pa.decimal32(5, 0), pa.decimal128(20, 0), [-7, 8]),
    (pa.decimal128(20, 0), pa.decimal256(50, 0), [-7, 8]),
]


@given(
    st.sampled_from([pair for pair in FLAT if has_statistics(pair[0])]).flatmap(
        lambda pair: st.tuples(st.just(pair[0]), st.lists(st.none() | pair[1], max_size=5))
    )
)
def test_values_of_every_type_come_back(case):
    type_, cells = case
    values = pa.array(cells, type_)
    sliced = pa.array([None, *cells], type_).slice(1)
    for array in (values, sliced):
        back = from_binaries(to_binaries(array), type_)
        back.validate(full=True)
        # Compared as bytes, in which NaN equals itself.
        assert to_binaries(back).equals(to_binaries(values))
        assert back.null_count == values.null_count


@pytest.mark.parametrize(("narrow", "wide", "cells"), WIDER, ids=str)
def test_values_are_read_as_a_wider_type(narrow, wide, cells):
    values = pa.array(cells, narrow)
    assert from_binaries(to_binaries(values), wide).to_pylist() == values.cast(wide).to_pylist()


def test_values_of_no_bytes_come_back():
    values = pa.array([b"", None, b""], pa.binary(0))
    assert from_binaries(to_binaries(values), pa.binary(0)).to_pylist() == values.to_pylist()


def test_values_of_several_widths_in_one_column():
    mixed = pa.concat_arrays(
        [to_binaries(pa.array([-3, None], pa.int16())), to_binaries(pa.array([1 << 40]))]
    )
    assert from_binaries(mixed, pa.int64()).to_pylist() == [-3, None, 1 << 40]


@pytest.mark.parametrize(
    ("value", "type_", "message"),
    [
        (b"\0" * 8, pa.int32(), "8 bytes is no int32"),
        (b"\0\0\0", pa.int32(), "3 bytes is no int32"),
        (b"", pa.int8(), "0 bytes is no int8"),
        (b"\0\0", pa.bool_(), "2 bytes is no bool"),
        (b"\2", pa.bool_(), "neither 0 nor 1"),
        (b"\0" * 4, pa.timestamp("us"), "4 bytes is no timestamp"),
        (b"\0" * 2, pa.float64(), "2 bytes is no double"),
        (b"\xff", pa.string(), "UTF8|UTF-8"),
    ],
)
def test_a_binary_that_is_no_value_of_the_type_is_refused(value, type_, message):
    with pytest.raises(ValueError, match=message):
        from_binaries(pa.array([None, value], pa.binary()), type_)
