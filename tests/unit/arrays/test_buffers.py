"""Arrow arrays as NumPy arrays and back, without pandas; and bitmaps that stay bitmaps."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from arrow_format.arrays.buffers import (
    all_set,
    boolean_bits,
    no_rows,
    run_of_bits,
    to_arrow,
    to_numpy,
    to_scalar,
    validity_bits,
)
from tests.support.programs import printed

BITS = st.lists(st.sampled_from([True, True, True, False, None]), max_size=60) | st.integers(
    0, 40
).map(lambda n: [True] * n)


@given(BITS, st.integers(0, 60), st.data())
def test_any_run_of_any_slice(values, first, data):
    array = pa.array(values, pa.bool_())[first:]
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(array))] * 2)))
    wanted = array[start:stop]
    for bitmap, bits in [
        (boolean_bits(array), wanted.fill_null(False)),
        (validity_bits(array), wanted.is_valid()),
    ]:
        if bitmap is None:
            assert array.null_count == 0
            continue
        run = run_of_bits(bitmap, start, stop)
        expected = bits.to_numpy(zero_copy_only=False)
        assert run.tolist() == np.packbits(expected.astype(bool), bitorder="little").tolist()
        assert all_set(run, len(wanted)) == bool(expected.all())


DTYPES = [
    np.dtype(name) for name in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", "?")
]
VALUES = st.sampled_from(DTYPES).flatmap(lambda dtype: np_st.arrays(dtype, st.integers(0, 70)))


@given(VALUES, st.integers(1, 3), st.data())
def test_arrays_are_those_that_pyarrow_makes(values, step, data):
    some = values[::step]
    mask = data.draw(st.none() | np_st.arrays(np.bool_, len(some)))
    made = to_arrow(some, mask)
    made.validate(full=True)
    expected = pa.array(some, mask=mask)
    assert made.type == expected.type
    assert made.null_count == expected.null_count
    assert [str(value) for value in made] == [str(value) for value in expected]


@given(VALUES, st.integers(0, 20))
def test_and_come_back(values, start):
    back = to_numpy(to_arrow(values).slice(start))
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values[start:])


def test_numbers_are_not_copied():
    values = np.arange(5)
    assert to_arrow(values).buffers()[1].address == values.ctypes.data
    assert np.shares_memory(to_numpy(to_arrow(values)), values)


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (7, pa.int8()),
        (2**63, pa.uint64()),
        (0.5, pa.float16()),
        (True, pa.bool_()),
        (np.nan, pa.float32()),
    ],
)
def test_scalars(value, type_):
    assert str(to_scalar(value, type_)) == str(pa.scalar(value, type_))
    assert to_scalar(value, type_).type == type_


def test_nulls_have_no_number():
    with pytest.raises(pa.ArrowInvalid, match="1 of 2 values are null"):
        to_numpy(pa.array([1, None]))


@pytest.mark.parametrize(
    "type_", [pa.int8(), pa.map_(pa.string(), pa.int8()), pa.dictionary(pa.int8(), pa.string())]
)
def test_no_rows(type_):
    assert no_rows(type_).equals(pa.array([], type_))


# In a process of its own: here pandas has long been imported.
WITHOUT_PANDAS = """
import sys
import pyarrow as pa, pyarrow.compute as pc
from arrow_format import merge_shuffle, open_shuffle, write_shuffle

path = sys.argv[1]
keys = pc.rank(pa.nulls(5_000, pa.int64()), tiebreaker="first").cast(pa.int64())
table = pa.Table.from_arrays([keys, keys.cast(pa.string())], ["k", "s"])
for order in ({"keys": "k"}, {"keys": ["s"], "sort_by": "k"}):
    name = f"{path}/{len(order)}"
    for mode in ("errorifexists", "append"):
        write_shuffle(table, name, num_subpartitions=9, mode=mode, **order)
    merge_shuffle(name, by="map_output")
    shuffle = open_shuffle(name)
    assert shuffle.read().read_all().num_rows == 10_000
    assert sum(shuffle.subpartition(i).read_all().num_rows for i in range(9)) == 10_000
print("pandas" in sys.modules)
"""


@pytest.mark.slow
def test_writing_and_reading_import_no_pandas(tmp_path):
    assert printed(WITHOUT_PANDAS, tmp_path) == "False\n"
