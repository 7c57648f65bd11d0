"""Bytes of rows: against what Arrow says of each row by itself."""

import pyarrow as pa
import pytest

from arrow_format.arrays.row_sizes import row_sizes

TEXTS = ["", "a", None, "é" * 50, "x" * 1_000]
COLUMNS = {
    "numbers": pa.array(range(5), pa.int64()),
    "flags": pa.array([True, None, False, True, True]),
    "money": pa.array([1, 2, None, 4, 5], pa.decimal128(20, 2)),
    "nothing": pa.nulls(5),
    "texts": pa.array(TEXTS),
    "lists": pa.array([[text] * i for i, text in enumerate(TEXTS)], pa.list_(pa.string())),
    "maps": pa.array(
        [[(str(i), text)] * i for i, text in enumerate(TEXTS)], pa.map_(pa.string(), pa.string())
    ),
    "structs": pa.array([{"t": text, "l": [1] * i} for i, text in enumerate(TEXTS)]),
    "fixed": pa.array([[1, 2, 3]] * 5, pa.list_(pa.int64(), 3)),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(("first", "end"), [(0, 5), (2, 5), (1, 3), (2, 2)])
def test_sizes_are_about_those_of_single_rows(name, first, end):
    column = COLUMNS[name].slice(first, end - first)
    batch = pa.record_batch([column, column], names=["a", "b"])
    sizes = row_sizes(batch.columns, batch.num_rows)
    assert sizes.shape == (end - first,)
    for i, size in enumerate(sizes.tolist()):
        alone = pa.concat_batches([batch.slice(i, 1)]).nbytes
        assert abs(size - alone) <= 60


def test_items_without_bytes_count_and_cost_nothing():
    """A billion nulls: an array with an entry for each would take 8 GB."""
    offsets = pa.array([0, 5, 5, 1_000_000_005], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.nulls(1_000_000_005))
    assert row_sizes([lists], 3).tolist() == [9, 4, 1_000_000_004]
    assert row_sizes([lists.slice(1)], 2).tolist() == [4, 1_000_000_004]
    fixed = pa.FixedSizeListArray.from_arrays(pa.nulls(12), 4)
    assert row_sizes([fixed.slice(1)], 2).tolist() == [4, 4]
