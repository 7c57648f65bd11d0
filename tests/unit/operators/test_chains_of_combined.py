"""Partial results of combined rows stay partial in a join: what is refused of them stays so."""

import pyarrow as pa
import pytest

from arrow_format.errors import OptionError
from tests.support.operations import written

ROWS = pa.table({"k": [1, 1, 2, 2, 2], "v": [1, 2, 3, 4, 5]})


@pytest.fixture
def sums(tmp_path):
    sums = written(tmp_path / "sums", ROWS, "k", combine={"v": "sum"})
    sums.append(ROWS)
    return sums.newest()


@pytest.fixture
def names(tmp_path):
    return written(tmp_path / "names", pa.table({"k": [1, 2], "v": [7, 8]}), "k")


@pytest.mark.parametrize("asked", [("*", "count"), ("v_sums", "max"), ("v_sums", "avg")])
def test_an_aggregation_takes_no_partial_result_for_a_row(sums, names, asked):
    joined = sums.join(names, suffixes=("_sums", ""))
    with pytest.raises(OptionError, match="partial results"):
        joined.aggregate("k", {"x": asked})
    with pytest.raises(OptionError, match="partial results"):
        joined.join(names, how="semi").select("k").aggregate("k", {"x": ("*", "count")})
    with pytest.raises(OptionError, match="partial results"):
        joined.select(filter="v_sums > 10").aggregate("k", {"x": ("v_sums", "sum")})


def test_columns_that_are_left_out_make_rows_partial(sums, names):
    with pytest.raises(OptionError, match="partial results"):
        sums.join(names, how="semi").select("k").aggregate("k", {"n": ("*", "count")})
    with pytest.raises(OptionError, match="partial results"):
        sums.select("k").join(names).aggregate("k", {"n": ("*", "count")})


def test_sums_are_completed(sums, names):
    joined = sums.join(names, suffixes=("_sums", "")).aggregate("k", {"x": ("v_sums", "sum")})
    assert sorted(joined.to_table().to_pylist(), key=str) == [{"k": 1, "x": 6}, {"k": 2, "x": 24}]
    kept = names.join(sums, how="semi").aggregate("k", {"n": ("*", "count")})
    assert sorted(map(str, kept.to_table().to_pylist())) == ["{'k': 1, 'n': 1}", "{'k': 2, 'n': 1}"]
