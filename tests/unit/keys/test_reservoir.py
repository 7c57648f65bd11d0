"""A sample of parts of unknown length is one of all their rows."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.keys.reservoir import LEAST_ROWS, Reservoir, proportional, reservoir_size


def sampled(lengths, size, batch_rows=97):
    """The sample of parts whose rows are numbered through."""
    tables, start = [], 0
    for part, length in enumerate(lengths):
        reservoir = Reservoir(reservoir_size(size, part), part)
        for first in range(0, length, batch_rows):
            end = start + min(first + batch_rows, length)
            reservoir.add(pa.record_batch({"v": np.arange(start + first, end)}))
        start += length
        assert reservoir.num_rows == length
        if length:
            rows = pa.Table.from_batches([reservoir.rows()])
            assert rows.num_rows == min(length, reservoir_size(size, part))
            numbers = {"part": [part] * rows.num_rows, "num_rows": [length] * rows.num_rows}
            for name, values in numbers.items():
                rows = rows.append_column(name, pa.array(values))
            tables.append(rows)
    found = pa.concat_tables(tables)
    parts, num_rows = (found[name].to_numpy() for name in ("part", "num_rows"))
    return proportional(found.select(["v"]), parts, num_rows, size)["v"].to_pylist()


@given(st.lists(st.integers(0, 2_000), min_size=1, max_size=12).filter(any), st.integers(1, 3_000))
def test_each_part_has_its_share(lengths, size):
    found = sampled(lengths, size)
    share = min(size / sum(lengths), 1)
    edges = np.cumsum([0, *lengths])
    counts = np.histogram(found, edges)[0] if len(set(edges)) == len(edges) else None
    if counts is not None:
        assert counts.tolist() == np.rint(np.array(lengths) * share).astype(int).tolist()
    assert abs(len(found) - share * sum(lengths)) <= len(lengths) / 2 + 1
    # A row is there twice only where its part kept too few.
    if all(n * share <= reservoir_size(size, part) for part, n in enumerate(lengths)):
        assert len(set(found)) == len(found)


def test_all_rows_where_they_are_few():
    assert sorted(sampled([3, 0, 5], 10_000)) == list(range(8))


@pytest.mark.parametrize("lengths", [[50_000], [20_000] * 3, [10, 100_000], [1_000] * 40])
def test_quantiles_are_those_of_all_rows(lengths):
    size = 10_000
    found = np.sort(sampled(lengths, size, batch_rows=5_000))
    expected = np.quantile(np.arange(sum(lengths)), np.linspace(0, 1, 21))
    assert np.abs(np.quantile(found, np.linspace(0, 1, 21)) - expected).max() < sum(lengths) / 50
    assert sampled(lengths, size, batch_rows=5_000) == sampled(lengths, size, batch_rows=5_000)


def test_many_parts_keep_little_more_than_few():
    kept = [sum(reservoir_size(200_000, part) for part in range(n)) for n in (1, 64, 1_000)]
    assert kept[0] == 600_000
    assert kept[1] < 3_000_000
    assert kept[2] < 5_000_000
    assert reservoir_size(1, 10**6) == LEAST_ROWS
