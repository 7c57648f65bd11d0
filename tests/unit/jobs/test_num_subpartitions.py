"""The number of subpartitions of a write that does not say it."""

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import (
    ColumnPartitioner,
    OptionError,
    RangePartitioner,
    ShuffleExistsError,
    open_shuffle,
    write_shuffle,
)
from arrow_format.jobs.num_subpartitions import (
    LEAST_BYTES,
    MOST,
    SUBPARTITION_BYTES,
    number_for,
)
from tests.support.small_shuffles import FAST, files_below

TABLE = pa.table({"k": range(1000), "v": [0.5] * 1000})


def write(source, path, **how):
    how = {"keys": "k", "options": FAST} | how
    return write_shuffle(source, path, **how)


def wide(num_bytes):
    """Rows of so many bytes, of a few different keys."""
    value = "x" * (1 << 16)
    num_rows = num_bytes >> 16
    return pa.table({"k": range(num_rows), "v": pa.array([value] * num_rows)})


@given(num_bytes=st.integers(0, 1 << 50), cores=st.integers(1, 256))
def test_a_power_of_two_by_bytes_and_cores(num_bytes, cores):
    n = number_for(num_bytes, cores)
    assert n & (n - 1) == 0
    assert 1 <= n <= MOST
    assert n == MOST or n * SUBPARTITION_BYTES >= num_bytes
    assert n == MOST or n >= min(2 * cores, num_bytes // LEAST_BYTES)
    assert number_for(num_bytes + 1, cores) >= n
    least = max(2 * num_bytes / SUBPARTITION_BYTES, min(4 * cores, 2 * num_bytes / LEAST_BYTES), 2)
    assert n < 2 * least  # no more than twice what either asks for


@pytest.mark.parametrize(
    "source",
    [
        lambda _: TABLE,
        lambda _: TABLE.to_batches(),
        lambda _: TABLE.to_pandas(),
        lambda _: pl.DataFrame(TABLE),
        lambda path: ds.dataset(path),
    ],
    ids=["table", "batches", "pandas", "polars", "files"],
)
def test_few_bytes_are_one_subpartition_and_the_receipt_says_so(tmp_path, source):
    ds.write_dataset(TABLE, tmp_path / "files", format="parquet")
    receipt = write(source(tmp_path / "files"), tmp_path / "s")
    assert open_shuffle(tmp_path / "s").num_subpartitions == receipt.num_subpartitions == 1
    (note,) = receipt.notes
    assert note.startswith("1 subpartition, by ")
    assert note in str(receipt)
    assert note in receipt._repr_html_()
    assert "better" not in note


def test_each_megabyte_is_work_for_a_core(tmp_path, monkeypatch):
    monkeypatch.setattr("arrow_format.jobs.write.available_cores", lambda: 2)
    assert write(wide(3 << 20), tmp_path / "three").num_subpartitions == 4
    assert write(wide(9 << 20), tmp_path / "nine").num_subpartitions == 4


def test_the_receipt_says_what_would_have_been_better(tmp_path):
    """Of rows of which it was not known how large they are: pandas counts 8 bytes of a text."""
    frame = pd.DataFrame({"k": range(200), "v": pd.Series(["x" * 65536] * 200, dtype=object)})
    (note,) = write(frame, tmp_path / "s").notes
    assert note.startswith("1 subpartition, by 3.2 kB of rows; by the 13.")
    assert note.endswith("would have been better")


def test_a_number_that_is_given_is_not_told_of(tmp_path):
    assert write(TABLE, tmp_path / "s", num_subpartitions=7).notes == ()


@pytest.mark.parametrize("mode", ["append", "overwrite", "ignore"])
@pytest.mark.parametrize("source", [lambda: TABLE, TABLE.to_reader], ids=["table", "reader"])
def test_the_number_of_the_shuffle_that_is_there(tmp_path, source, mode):
    write(TABLE, tmp_path / "s", num_subpartitions=5)
    receipt = write(source(), tmp_path / "s", mode=mode)
    assert receipt.num_subpartitions == 5
    assert receipt.notes == ()


def test_a_shuffle_that_is_there_is_an_error_still(tmp_path):
    write(TABLE, tmp_path / "s", num_subpartitions=5)
    with pytest.raises(ShuffleExistsError):
        write(TABLE.to_reader(), tmp_path / "s")


def test_the_number_of_ranges(tmp_path):
    ranges = RangePartitioner(keys="k", bounds=[300, 600])
    how = {"keys": None, "partitioner": ranges}
    assert write(TABLE.to_reader(), tmp_path / "s", **how).num_subpartitions == 3
    # Two subpartitions do not fit three ranges; nine do.
    for n, expected in ((2, 3), (9, 9)):
        write(TABLE, tmp_path / str(n), num_subpartitions=n)
        receipt = write(TABLE, tmp_path / str(n), mode="overwrite", **how)
        assert receipt.num_subpartitions == expected


@pytest.mark.parametrize(
    ("source", "how", "message"),
    [
        (TABLE.to_reader, {}, "num_subpartitions: give it, .* only known when they were read"),
        (lambda: iter(TABLE.to_batches()), {}, "num_subpartitions: give it, "),
        (
            lambda: TABLE,
            {"keys": None, "partitioner": ColumnPartitioner("k")},
            "num_subpartitions: give it; column 'k' has the subpartitions",
        ),
    ],
    ids=["reader", "iterator", "column"],
)
def test_what_does_not_tell_a_number(tmp_path, source, how, message):
    with pytest.raises(OptionError, match=message):
        write(source(), tmp_path / "s", **how)
    assert files_below(tmp_path) == []
