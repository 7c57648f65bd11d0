"""Rows of equal keys combined: what each function gives, when rows stay, and when it stops."""

import numpy as np
import pyarrow as pa
import pytest

from arrow_format.write.combining import Combiner, expected_part

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])


def unasked(rows):
    raise AssertionError(rows)


def columns_of(keys, values=None):
    keys = np.asarray(keys)
    values = np.ones(len(keys), np.int64) if values is None else np.array(values)
    halves = [slice(0, len(keys) // 3), slice(len(keys) // 3, None)]
    return [[pa.array(column[half]) for half in halves] for column in (keys, values)]


def combine(keys, combiner, values=None, num_combined=0):
    found = combiner.combined(columns_of(keys, values), num_combined)
    if found is None:
        return None
    ks, ns = found
    return dict(zip(ks.to_pylist(), ns.to_pylist(), strict=True))


def test_each_key_has_one_row():
    combiner = Combiner(SCHEMA, {"n": "sum"}, unasked)
    assert combine([5, 9, 5, 5, 9, 5, 5], combiner) == {5: 5, 9: 2}
    assert combiner.num_absorbed == 5
    assert not combiner.stopped


def test_it_stops_where_few_rows_are_combined():
    combiner = Combiner(SCHEMA, {"n": "sum"}, unasked)
    assert combine([1, 2, 3, 4, 4], combiner) == {1: 1, 2: 1, 3: 1, 4: 2}
    assert combiner.stopped


def test_rows_that_were_combined_before_do_not_count():
    combiner = Combiner(SCHEMA, {"n": "sum"}, unasked)
    keys = [*range(20), *([7] * 4), *([8] * 4)]
    assert len(combine(keys, combiner, num_combined=20)) == 20
    assert not combiner.stopped


@pytest.mark.parametrize("adjacent", [True, False])
@pytest.mark.parametrize(("repeats", "pays"), [(1, False), (4, True), (10, True), (1000, True)])
def test_a_sample_decides_before_rows_are_grouped(repeats, pays, adjacent):
    keys = np.repeat(np.arange(200_000 // repeats), repeats)
    if not adjacent:
        keys = np.random.default_rng(1).permutation(keys)
    combiner = Combiner(SCHEMA, {"n": "sum"}, unasked)
    found = combine(keys, combiner)
    assert combiner.stopped is not pays
    if pays:
        assert found == dict.fromkeys(range(200_000 // repeats), repeats)
    else:
        assert found is None


def test_one_frequent_key_among_many_rare_ones_does_not_pay():
    keys = np.where(np.arange(200_000) % 50 == 0, 0, np.arange(200_000))
    assert combine(keys, Combiner(SCHEMA, {"n": "sum"}, unasked)) is None


def test_half_of_the_rows_with_one_key_pays():
    keys = np.where(np.arange(200_000) % 2 == 0, 0, np.arange(200_000))
    assert len(combine(keys, Combiner(SCHEMA, {"n": "sum"}, unasked))) == 100_001


def test_rows_whose_sum_does_not_fit_stay_as_they_are():
    combiner = Combiner(SCHEMA, {"n": "sum"}, unasked)
    assert combine([1, 1, 1], combiner, [2**62, 2**62, 1]) is None
    assert not combiner.stopped
    assert combine([1, 1, 1], combiner, [2**62, 0, 1]) == {1: 2**62 + 1}


def test_the_expected_part_of_what_is_left():
    assert expected_part(np.array([5, 7, 3]), 10**6) == 0
    assert expected_part(np.ones(10_000, int), 10**6) == 1
    # 10 rows of each key: a sample of m rows of N has 9 m**2 / 2N pairs.
    pairs = 9 * 10_000**2 // (2 * 10**6)
    counts = np.array([2] * pairs + [1] * (10_000 - 2 * pairs))
    assert expected_part(counts, 10**6) == pytest.approx(0.1, rel=0.01)
