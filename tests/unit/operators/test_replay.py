"""Batches that are read again: the same each time, in a file only where they are needed again."""

from itertools import islice

import pyarrow as pa
import pytest

from arrow_format.operators import replay
from arrow_format.operators.replay import Replayed
from tests.support.operations import written

BATCHES = [pa.record_batch({"n": list(range(i, i + 10))}) for i in range(0, 100, 10)]
SCHEMA = BATCHES[0].schema


@pytest.fixture
def written_bytes(monkeypatch):
    sizes, add = [0], replay._Spilled.add

    def counted(file, batch):
        sizes[0] += batch.nbytes
        add(file, batch)

    monkeypatch.setattr(replay._Spilled, "add", counted)
    return sizes


@pytest.mark.parametrize("makes_equal", [False, True])
@pytest.mark.parametrize("max_bytes", [0, 200, 1 << 20])
@pytest.mark.parametrize("stops", [[], [0], [1], [4], [7, 3], [4, 9], [10, 10], [5, 5, 2, 9]])
def test_each_time_has_the_same(makes_equal, max_bytes, stops):
    rows = Replayed(SCHEMA, lambda: (b for b in BATCHES), max_bytes, makes_equal=makes_equal)
    for stop in stops:
        assert list(islice(rows, stop)) == BATCHES[:stop]
    assert list(rows) == BATCHES
    assert list(rows) == BATCHES


def test_a_function_is_called_once():
    calls = []

    def make():
        calls.append(1)
        yield from BATCHES

    rows = Replayed(SCHEMA, make, 0)
    assert list(islice(rows, 3)) == BATCHES[:3]
    assert list(rows) == list(rows) == BATCHES
    assert len(calls) == 1


def test_one_pass_writes_nothing(written_bytes):
    rows = Replayed(SCHEMA, lambda: (b for b in BATCHES), 100, makes_equal=True)
    assert list(rows) == BATCHES
    assert written_bytes == [0]
    assert list(rows) == BATCHES
    assert written_bytes == [sum(batch.nbytes for batch in BATCHES[1:])]


def test_an_aggregation_of_a_large_join_writes_nothing(tmp_path, written_bytes, monkeypatch):
    monkeypatch.setattr(replay.Replayed, "__init__", _within(replay.Replayed.__init__, 1 << 10))
    rows = written(tmp_path / "a", pa.table({"k": [0] * 300, "a": range(300)}), "k", n=1)
    pairs = rows.join(rows, suffixes=("", "_r"))
    counted = pairs.aggregate("k", {"n": ("*", "count"), "m": ("a", "max")})
    assert counted.to_table().to_pylist() == [{"k": 0, "n": 90_000, "m": 299}]
    assert written_bytes == [0]


def _within(init, max_bytes):
    def made(self, schema, make, _max_bytes, **how):
        init(self, schema, make, max_bytes, **how)

    return made
