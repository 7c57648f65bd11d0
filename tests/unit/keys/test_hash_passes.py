"""Passes over rows that are too many to hold: every row in one, equal keys in the same."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.keys.hash_passes import MAX_PARTS, HashPass, expected_growth, in_passes
from tests.support.spark_order_model import as_key

SCHEMA = pa.schema({"k": pa.float64(), "s": pa.string(), "row": pa.int64()})
KEYS = ("k", "s")

floats = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.0]))
rows_of_keys = st.lists(st.tuples(floats, st.one_of(st.none(), st.text(max_size=3))), max_size=60)


def batch_of(keys):
    columns = [[key[0] for key in keys], [key[1] for key in keys], range(len(keys))]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


@given(rows_of_keys, st.lists(st.integers(2, 7), max_size=3))
def test_passes_take_every_row_once_and_equal_keys_together(keys, splits):
    passes = [HashPass(KEYS)]
    for parts in splits:
        passes = [*passes[1:], *passes[0].split(parts)]
    batch = batch_of(keys)
    taken = [hash_pass.rows_of(batch)["row"].to_pylist() for hash_pass in passes]
    assert sorted(row for rows in taken for row in rows) == list(range(len(keys)))
    assert all(rows == sorted(rows) for rows in taken)
    where = [{tuple(map(as_key, keys[row])) for row in rows} for rows in taken]
    assert sum(map(len, where)) == len(set().union(*where))


def test_both_sides_of_a_join_agree_whatever_their_columns_are_called():
    ours = pa.record_batch({"a": np.arange(1_000)})
    theirs = pa.record_batch({"b": np.arange(1_000)[::-1]})
    for hash_pass in HashPass(("a",)).split(5):
        left, right = hash_pass.rows_of(ours), hash_pass.of(["b"]).rows_of(theirs)
        assert 100 < left.num_rows < 300
        assert left["a"].to_pylist() == right["b"].to_pylist()[::-1]


class Reads:
    """Rows that are counted as they are read."""

    def __init__(self, batch, rows=100):
        self._batch = batch
        self._rows = rows
        self.num_rows = 0

    def __call__(self):
        for start in range(0, self._batch.num_rows, self._rows):
            batch = self._batch.slice(start, self._rows)
            self.num_rows += batch.num_rows
            yield batch


@pytest.mark.slow
@pytest.mark.parametrize(("max_bytes", "row_bytes"), [(8_000, 0), (16_000, 20), (80_000, 100)])
def test_no_pass_holds_more_than_it_may(max_bytes, row_bytes):
    batch = pa.record_batch({"k": np.random.default_rng(0).permutation(20_000)})
    read = Reads(batch)
    seen = []
    for hash_pass, held in in_passes(
        read, ["k"], max_bytes=max_bytes, row_bytes=row_bytes, num_rows=20_000
    ):
        assert sum(part.nbytes + row_bytes * part.num_rows for part in held) <= max_bytes
        assert pa.Table.from_batches(held).equals(pa.table(hash_pass.rows_of(batch)))
        seen += pa.Table.from_batches(held)["k"].to_pylist()
    assert sorted(seen) == list(range(20_000))
    needed = 20_000 * (8 + row_bytes) / max_bytes
    assert read.num_rows <= 20_000 * (2 * needed + 1)


def test_what_fits_is_read_once():
    read = Reads(pa.record_batch({"k": np.arange(1_000)}))
    ((hash_pass, held),) = in_passes(read, ["k"], max_bytes=8_000, num_rows=1_000)
    assert (hash_pass.modulus, len(held), read.num_rows) == (1, 10, 1_000)
    (nothing,) = in_passes(Reads(batch_of([])), KEYS, max_bytes=1, num_rows=0)
    assert nothing[1] == []


@pytest.mark.parametrize("share", [0.7, 0.9, 1.0])
def test_a_key_with_most_of_the_rows_does_not_make_passes_without_end(share):
    keys = np.random.default_rng(1).permutation(10_000)
    keys[: int(share * len(keys))] = 7
    np.random.default_rng(2).shuffle(keys)
    read = Reads(pa.record_batch({"k": keys}))
    result = [
        key
        for _, held in in_passes(read, ["k"], max_bytes=1_000, num_rows=len(keys))
        for key in pa.Table.from_batches(held)["k"].to_pylist()
    ]
    assert sorted(result) == sorted(keys.tolist())
    assert read.num_rows <= 2 * len(keys)


def test_a_key_with_many_of_the_rows_is_a_pass_by_itself():
    keys = np.random.default_rng(1).permutation(100_000)
    keys[:30_000] = 7
    np.random.default_rng(2).shuffle(keys)
    read = Reads(pa.record_batch({"k": keys}), rows=1_000)
    sizes = [
        sum(batch.num_rows for batch in held)
        for _, held in in_passes(read, ["k"], max_bytes=80_000, num_rows=len(keys))
    ]
    assert sum(sizes) == len(keys)
    assert 30_000 <= max(sizes) <= 36_000
    assert sorted(sizes)[-2] <= 10_000
    assert read.num_rows <= 40 * len(keys)


@pytest.mark.slow
def test_keys_that_come_one_after_the_other_are_divided_all_the_same():
    read = Reads(pa.record_batch({"k": np.repeat(np.arange(100), 1_000)}), rows=500)
    sizes = [
        sum(batch.num_rows for batch in held)
        for _, held in in_passes(read, ["k"], max_bytes=80_000, num_rows=100_000)
    ]
    assert sum(sizes) == 100_000
    assert max(sizes) <= 20_000
    assert read.num_rows <= 40 * 100_000


def test_nulls_that_equal_nothing_are_divided():
    keys = pa.array(range(10_000), pa.int64(), mask=np.arange(10_000) % 10 != 0)
    numbered = pa.record_batch({"k": keys, "row": np.arange(10_000)})
    most = {}
    for equal in (True, False):
        taken = [
            pa.Table.from_batches(held)["row"].to_pylist()
            for _, held in in_passes(
                Reads(numbered), ["k"], max_bytes=16_500, num_rows=10_000, nulls_are_equal=equal
            )
            if held
        ]
        assert sorted(row for rows in taken for row in rows) == list(range(10_000))
        most[equal] = max(map(len, taken))
    assert most[True] >= 9_000
    assert most[False] <= 1_000


def test_keys_that_have_no_hash_stay_together():
    keys = pa.array(range(1_000), pa.uint64())
    ((hash_pass, held),) = in_passes(
        Reads(pa.record_batch({"k": keys})), ["k"], max_bytes=100, num_rows=1_000
    )
    assert (hash_pass.modulus, sum(batch.num_rows for batch in held)) == (1, 1_000)
    # Together with a key that can be hashed, that key distinguishes them.
    batch = pa.record_batch({"k": keys, "v": np.arange(1_000)})
    assert sum(1 for _ in in_passes(Reads(batch), ["k", "v"], max_bytes=4_000, num_rows=1_000)) > 1


@pytest.mark.slow
def test_a_wrong_number_of_rows_costs_passes_and_no_rows():
    batch = pa.record_batch({"k": np.arange(5_000)})
    for num_rows in (1, 10**12):
        taken = list(in_passes(Reads(batch), ["k"], max_bytes=2_000, num_rows=num_rows))
        assert sum(part.num_rows for _, held in taken for part in held) == 5_000
        assert len(taken) <= MAX_PARTS**2


@given(st.integers(1, 1_000), st.integers(1, 20), st.integers(1, 50))
def test_groups_grow_as_random_keys_do(num_keys, more, seed):
    random = np.random.default_rng(seed)
    first, all_rows = 3_000, 3_000 * more
    keys = random.integers(0, num_keys * 20, all_rows)
    before, after = len(np.unique(keys[:first])), len(np.unique(keys))
    expected = before * expected_growth(before / first, more)
    assert expected == pytest.approx(after, rel=0.4)


def test_keys_that_come_once_grow_with_the_rows_and_one_key_does_not():
    assert expected_growth(1.0, 7.0) == pytest.approx(7)
    assert expected_growth(1e-6, 1_000.0) == pytest.approx(1)
    assert expected_growth(0.5, 1.0) == pytest.approx(1)
