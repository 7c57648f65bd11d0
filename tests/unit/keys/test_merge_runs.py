"""Merging runs gives what sorting everything would, in rounds, whatever the batches are."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.keys.merge_runs import merge_sorted
from arrow_format.keys.sort_keys import ORDERS
from tests.support.spark_order_model import sorted_rows

SCHEMA = pa.schema(
    [("a", pa.float64()), ("s", pa.string()), ("run", pa.int64()), ("v", pa.int64())]
)
NUMBERS = st.none() | st.sampled_from([float("nan"), 0.0, -0.0, 1.0, -3.5])
WORDS = st.none() | st.sampled_from(["", "a", "a\x00", "long enough to be ranked, not coded", "é"])


@st.composite
def sorted_runs(draw):
    """Runs of sorted rows, cut into batches, some of them empty; and the orders of `a` and `s`."""
    orders = draw(st.tuples(st.sampled_from(ORDERS), st.sampled_from(ORDERS)))
    runs = []
    for number in range(draw(st.integers(0, 5))):
        keys = draw(st.lists(st.tuples(NUMBERS, WORDS), max_size=20))
        keys = [keys[i] for i in sorted_rows(keys, orders)]
        rows = [(a, s, number, v) for v, (a, s) in enumerate(keys)]
        cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=4)))
        runs.append(
            [
                batch_of(rows[start:end])
                for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)
            ]
        )
    return runs, orders


def batch_of(rows):
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)],
        schema=SCHEMA,
    )


@given(sorted_runs(), st.sampled_from([1, 3, 1_000]))
def test_merged_is_sorted_and_stable(case, min_rows):
    runs, (first, second) = case
    rows = [tuple(row.values()) for run in runs for batch in run for row in batch.to_pylist()]
    expected = [rows[i][2:] for i in sorted_rows([row[:2] for row in rows], (first, second))]

    merged = list(merge_sorted(runs, (("a", first), ("s", second)), min_rows=min_rows))

    assert all(batch.num_rows and batch.schema.equals(SCHEMA) for batch in merged)
    found = [(row["run"], row["v"]) for batch in merged for row in batch.to_pylist()]
    assert found == expected


def numbers(values):
    return pa.record_batch({"k": pa.array(values, pa.int64())})


class Counting:
    """A run that knows how many of its batches were asked for."""

    def __init__(self, batches):
        self.batches = batches
        self.asked = 0

    def __iter__(self):
        for batch in self.batches:
            self.asked += 1
            yield batch


BY_K = (("k", "ascending"),)


def test_runs_are_read_as_they_are_needed():
    runs = [
        Counting([numbers(range(start, start + 10)) for start in range(base, base + 100, 10)])
        for base in (0, 1_000)
    ]
    merged = merge_sorted(runs, BY_K, min_rows=1)
    assert next(merged).num_rows == 10
    assert [run.asked for run in runs] == [1, 1]
    seen = [next(merged).num_rows for _ in range(9)]
    assert seen == [10] * 9
    assert [run.asked for run in runs] == [10, 1], "what lies behind has to wait"
    assert sum(batch.num_rows for batch in merged) == 100


def test_large_rows_are_not_hoarded():
    rows = [pa.record_batch({"k": [i], "s": ["x" * 10_000]}) for i in range(100)]
    runs = [Counting(rows), Counting(rows)]
    merged = merge_sorted(runs, BY_K, max_bytes=100_000)
    next(merged)
    assert all(run.asked < 10 for run in runs)
    assert sum(batch.num_rows for batch in merged) > 180


def test_what_a_round_gives_is_cut(monkeypatch):
    monkeypatch.setattr("arrow_format.keys.merge_runs.PIECE_BYTES", 100)
    runs = [[numbers(range(start, 400, 2))] for start in (0, 1)]
    merged = list(merge_sorted(runs, BY_K))
    assert len(merged) > 10
    assert [k for batch in merged for k in batch["k"].to_pylist()] == list(range(400))
    large = [[pa.record_batch({"k": [k], "s": ["x" * 5_000]})] for k in (2, 1)]
    assert [batch["k"].to_pylist() for batch in merge_sorted(large, BY_K)] == [[1], [2]]


def test_rounds_are_few_when_runs_cover_the_same_keys():
    random = np.random.default_rng(0)
    runs = []
    for _ in range(20):
        keys = np.sort(random.integers(0, 1 << 40, 20_000))
        runs.append([numbers(keys[s : s + 1_000]) for s in range(0, 20_000, 1_000)])
    merged = list(merge_sorted(runs, BY_K, min_rows=1_000))
    assert len(merged) < 80
    found = np.concatenate([batch["k"].to_numpy() for batch in merged])
    assert found.tolist() == sorted(k for run in runs for b in run for k in b["k"].to_pylist())


@pytest.mark.parametrize("runs", [[], [[]], [[], [numbers([])]]])
def test_nothing_to_merge(runs):
    assert list(merge_sorted(runs, BY_K)) == []


def test_one_run_passes_through():
    batches = [numbers([1, 2]), numbers([]), numbers([2, 3])]
    (first, second) = merge_sorted([[], batches], BY_K)
    assert (first, second) == (batches[0], batches[2])
