"""Bitmaps that stay bitmaps: any run of any slice equals its values."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.arrays.buffers import all_set, boolean_bits, run_of_bits, validity_bits

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
