"""Writes that are repeated with the same transaction, as users repeat them."""

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from arrow_format import (
    CommitConflictError,
    OptionError,
    open_shuffle,
)
from arrow_format.jobs.write import append_shuffle
from arrow_format.log.names import entry_path
from arrow_format.model import Transaction
from tests.support.guarantees import guarantee
from tests.support.small_log import small_segments
from tests.support.small_shuffles import FAST, collect, files_below, write_rows


def table(start=0):
    return pa.table({"k": range(start, start + 10)})


def write(path, number, *, rows=None, mode="append", application="nightly", **how):
    rows = table() if rows is None else rows
    return write_rows(path, rows, "k", n=2, mode=mode, transaction=(application, number), **how)


def never():
    """Rows of which a repetition takes none but the first, for their schema."""
    yield table().to_batches()[0]
    pytest.fail("more rows were read")


@guarantee("transactions")
@pytest.mark.parametrize("mode", ["append", "overwrite", "errorifexists", "ignore"])
def test_a_write_is_committed_once_however_often_it_is_repeated(tmp_path, mode):
    first = write(tmp_path / "s", 7, mode=mode)
    there = files_below(tmp_path)
    assert not first.is_repetition
    for rows in (None, never()):
        again = write(tmp_path / "s", 7, rows=rows, mode=mode)
        assert again.is_repetition
        assert "committed before" in str(again)
        assert (again.version, again.num_rows) == (first.version, first.num_rows) == (1, 10)
        assert again.subpartition_rows == first.subpartition_rows
    assert files_below(tmp_path) == there


@guarantee("transactions")
def test_appends_of_rows_and_of_datasets_are_committed_once(tmp_path):
    write(tmp_path / "s", 1)
    for _ in range(2):
        append_shuffle(table(10), tmp_path / "s", options=FAST, transaction=("nightly", 2))
    for _ in range(2):
        dataset = ds.dataset(table(20))
        append_shuffle(dataset, tmp_path / "s", options=FAST, transaction=("nightly", 3))
    append_shuffle(table(30), tmp_path / "s", options=FAST)
    assert sorted(open_shuffle(tmp_path / "s").to_table()["k"].to_pylist()) == [*range(40)]


@guarantee("transactions")
def test_a_backfill_is_not_dropped_without_a_word(tmp_path):
    write(tmp_path / "s", 20251101)
    write(tmp_path / "s", 20251103)
    there = files_below(tmp_path)
    with pytest.raises(CommitConflictError, match=r"number 20251102 of application 'nightly' is"):
        write(tmp_path / "s", 20251102, rows=never())
    assert files_below(tmp_path) == there
    assert write(tmp_path / "s", 20251101).is_repetition, "which is there, though it is smaller"
    assert write(tmp_path / "s", 0, application="nightly-20251102").version == 3


def test_an_expected_version_is_not_asked_of_a_repetition(tmp_path):
    write(tmp_path / "s", 1, expected_version=0)
    write(tmp_path / "s", 2, expected_version=1)
    assert write(tmp_path / "s", 1, expected_version=0).is_repetition
    with pytest.raises(CommitConflictError, match="expected_version=1"):
        write(tmp_path / "s", 3, expected_version=1)


@pytest.mark.slow
@guarantee("remembered transactions")
def test_what_was_committed_is_known_when_its_entry_was_removed(path):
    with small_segments():
        for number in range(12):
            write(path, number, mode="overwrite")
            write(path, number, mode="overwrite", application="b")
        collect(path, 2)
        assert not (path / "commit_log" / f"{0:018d}").exists()
        there = files_below(path)
        for number in range(12):
            again = write(path, number, mode="overwrite")
            found = again.version, again.num_rows, again.num_map_outputs, again.is_repetition
            assert found == (2 * number + 1, 10, 1, True)
            is_there = (path / entry_path(again.version)).exists()
            assert again.num_subpartitions == (2 if is_there else 0)
            str(again), again._repr_html_()
        assert files_below(path) == there


@pytest.mark.parametrize(
    ("transaction", "message"),
    [
        ("nightly", "transaction='nightly': expected an application and a number"),
        (("nightly",), "expected an application and a number"),
        (["nightly", 1], "expected an application and a number"),
        (("a b", 1), "application_id='a b': expected 1 to 100 letters"),
        (("nightly", -1), "number=-1: expected a whole number"),
        (("nightly", True), "number=True: expected a whole number"),
    ],
)
def test_what_is_no_transaction_is_refused(tmp_path, transaction, message):
    with pytest.raises(OptionError, match=message):
        write_rows(tmp_path / "s", never(), "k", transaction=transaction)
    assert Transaction.of(None) is None
    assert not (tmp_path / "s").exists()
