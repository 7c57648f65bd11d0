"""No way to read has rows that a mask took."""

from dataclasses import replace

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from arrow_format import (
    CommitConflictError,
    CorruptShuffleError,
    MergePolicy,
    delete_rows,
    erasure_status,
    merge_shuffle,
    rollback_shuffle,
    tag_shuffle,
    untag_shuffle,
)
from arrow_format.jobs import mask_rows
from arrow_format.jobs.delete_rows import repeated_deletion
from arrow_format.model import Transaction
from arrow_format.storage.open import PosixStorage
from arrow_format.write import map_output
from arrow_shuffle import open_shuffle
from integration.readers.rows import read
from tests.support.customers import (
    TINY,
    N,
    append,
    append_tasks,
    contents,
    rows,
    status_after,
    without,
)
from tests.support.foreign_writer import check_but_for_broadcasts
from tests.support.guarantees import guarantee
from tests.support.logs import log_of
from tests.support.small_shuffles import collect, write_rows

APPENDS = MergePolicy(rewrite="never")
FEWER = MergePolicy(min_regions=1 << 20)


@pytest.fixture(params=["inside", "object"], autouse=True)
def place(request, monkeypatch):
    """Where masks are: in the entry, or in an object."""
    if request.param == "object":
        monkeypatch.setattr(mask_rows, "MAX_INSIDE_BYTES", 0)
    return request.param


@pytest.fixture
def path(tmp_path):
    """A shuffle of 400 rows of 40 keys."""
    append(tmp_path / "s", 0)
    return tmp_path / "s"


def append_with_broadcasts(path, start):
    append_tasks(path, start, num_tasks=1)


def mask(path, keys, **how):
    return delete_rows(path, {"k": keys}, erase=False, options=TINY, **how)


def check(path, expected):
    """Every way to read gives exactly these rows of each subpartition."""
    shuffle = open_shuffle(path)
    assert contents(path) == expected
    num_rows = sum(map(len, expected))
    assert shuffle.subpartition_rows.to_pylist() == [len(table) for table in expected]
    assert shuffle.count_rows() == num_rows
    everything = pa.concat_tables(expected)
    assert shuffle.to_table() == everything
    assert shuffle.to_table(columns=["s"], with_subpartition=True)["s"] == everything["s"]
    for text, condition in (
        ("v < 300", pc.less(everything["v"], 300)),
        ("v < 100000", pc.less(everything["v"], 100_000)),
        ("k IN (3, 5, 7)", pc.is_in(everything["k"], pa.array([3, 5, 7]))),
        ("s = 'customer 5!'", pc.equal(everything["s"], "customer 5!")),
    ):
        found = shuffle.to_table(filter=text)
        assert found == everything.filter(condition), text
        assert shuffle.count_rows(filter=text) == len(found), text
    for name, (low, high) in shuffle.min_max(["v", "k"]).items():
        found = {"min": low.as_py(), "max": high.as_py()}
        assert found == pc.min_max(everything[name]).as_py()
    assert shuffle.to_dataset().count_rows() == num_rows
    assert shuffle.to_polars().select(pl.len()).collect().item() == num_rows
    with_ids = read(path)
    assert with_ids.drop_columns(["_subpartition"]) == everything
    check_but_for_broadcasts(shuffle)


@pytest.mark.slow
@guarantee("masked rows")
@pytest.mark.parametrize("writes", [append, append_with_broadcasts])
def test_no_way_to_read_has_masked_rows(tmp_path, writes):
    path = tmp_path / "s"
    writes(path, 0)
    writes(path, 1000)
    before = contents(path)
    receipt = mask(path, [3, 5])
    expected = without(before, [3, 5])
    check(path, expected)
    lost = {i: len(b) - len(a) for i, (a, b) in enumerate(zip(expected, before, strict=True))}
    assert receipt.subpartition_rows == {i: count for i, count in lost.items() if count}
    assert (receipt.num_rows, receipt.erases, receipt.written_bytes) == (40, False, 0)
    assert contents(path, 2) == before
    assert not mask(path, [3, 5]).num_rows
    append(path, 5000)
    latest = contents(path)
    mask(path, [5, 7, 100])
    check(path, without(latest, [5, 7, 100]))


@pytest.mark.slow
@guarantee("masked rows")
@pytest.mark.parametrize("writes", [append, append_with_broadcasts])
@pytest.mark.parametrize("how", [{}, {"by": "subpartition"}])
def test_a_merge_leaves_masked_rows_out(tmp_path, writes, how):
    path = tmp_path / "s"
    for start in range(0, 4000, 1000):
        writes(path, start)
    mask(path, [*range(3, 20)])
    expected = contents(path)
    merge_shuffle(path, options=TINY, **{"by": "map_output", **how})
    shuffle = open_shuffle(path)
    assert not shuffle.map_outputs.has_masks
    check(path, expected)
    mask(path, [1])
    check(path, without(expected, [1]))


@pytest.mark.slow
@pytest.mark.parametrize("sort_by", ["v", ()])
@pytest.mark.parametrize(
    "how", [{"policy": FEWER}, {"policy": FEWER, "by": "subpartition"}, {"policy": APPENDS}]
)
def test_a_merge_takes_files_of_which_many_rows_are_masked(tmp_path, how, sort_by):
    path = tmp_path / "s"
    append(path, 0, sort_by=sort_by)
    mask(path, [*range(8)])
    assert merge_shuffle(path, options=TINY, **{"by": "map_output", **how}).plan.merges == (), (
        "20 % are not more"
    )
    mask(path, [8, 9])
    masked, expected = open_shuffle(path).version, contents(path)
    report = merge_shuffle(path, options=TINY, **{"by": "map_output", **how})
    assert (report.plan.facts[0].masked_rows, report.plan.facts[0].num_rows) == (100, 400)
    assert report.after.data_bytes < report.before.data_bytes
    assert not open_shuffle(path).map_outputs.has_masks
    check(path, expected)
    assert merge_shuffle(path, options=TINY, **{"by": "map_output", **how}).plan.merges == ()
    rollback_shuffle(path, masked)
    assert open_shuffle(path).map_outputs.has_masks
    check(path, expected)
    assert merge_shuffle(path, options=TINY, **{"by": "map_output", **how}).plan.merges
    mask(path, [20])
    check(path, without(expected, [20]))
    assert merge_shuffle(path, options=TINY, **{"by": "map_output", **how}).plan.merges == ()


@pytest.mark.slow
@guarantee("masked rows")
def test_an_erasure_takes_masked_rows_along(path):
    masked = mask(path, [3])
    before = contents(path)
    erased = delete_rows(path, {"k": [3]}, options=TINY)
    assert (erased.num_rows, erased.num_files, erased.version) == (0, 1, 3)
    assert "the rows of 1 key, all of them masked before, erased as version 3" in str(erased)
    assert "rewritten  1 file" in str(erased)
    assert not open_shuffle(path).map_outputs.has_masks
    check(path, before)
    assert status_after(path, erased, compact_log=True).is_gone
    status = erasure_status(path, masked)
    assert not status.erases
    assert not status.is_gone
    assert "delete the keys again" in str(status)


@pytest.mark.slow
def test_an_erasure_of_others_takes_masked_rows_of_its_files_along(path):
    mask(path, [3])
    before = contents(path)
    delete_rows(path, {"k": [5]}, options=TINY)
    assert not open_shuffle(path).map_outputs.has_masks
    check(path, without(before, [5]))


def test_a_file_without_rows_is_named_no_more(path):
    mask(path, [*range(20)])
    mask(path, [*range(20, 40)])
    shuffle = open_shuffle(path)
    assert (len(shuffle.map_outputs), shuffle.num_rows, shuffle.num_bytes) == (0, 0, 0)
    assert shuffle.verify().ok
    append(path, 0)
    assert open_shuffle(path).count_rows() == 400


@pytest.mark.slow
@guarantee("undone deletions")
def test_a_rollback_across_a_mask_is_one_across_a_deletion(path):
    before = contents(path)
    mask(path, [3])
    with pytest.raises(CommitConflictError, match="deletion of rows"):
        rollback_shuffle(path, 1)
    mask(path, [5])
    with pytest.raises(CommitConflictError, match="deletion of rows"):
        rollback_shuffle(path, 2)
    rollback_shuffle(path, 2, undo_deletions=True)
    check(path, without(before, [3]))
    rollback_shuffle(path, 3, undo_deletions=True)
    check(path, without(before, [3, 5]))
    rollback_shuffle(path, 1, undo_deletions=True)
    check(path, before)
    mask(path, [7])
    check(path, without(before, [7]))


@pytest.mark.slow
@guarantee("retention")
def test_a_collection_keeps_the_masks_of_what_is_kept(path, place):
    before = contents(path)
    mask(path, [3])
    tag_shuffle(path, "third", 2)
    mask(path, [5])
    mask(path, [7])
    objects = lambda: {*path.rglob("*.masks")}  # noqa: E731
    assert len(objects()) == (3 if place == "object" else 0)
    collect(path)
    assert len(objects()) == (2 if place == "object" else 0)
    check(path, without(before, [3, 5, 7]))
    assert contents(path, 2) == without(before, [3])
    untag_shuffle(path, "third")
    collect(path)
    assert len(objects()) == (1 if place == "object" else 0)
    delete_rows(path, {"k": [9]}, options=TINY)
    collect(path, 2)
    assert not objects()
    check(path, without(before, [3, 5, 7, 9]))


@guarantee("masked rows")
def test_a_damaged_mask_is_an_error_and_no_row(path, place):
    mask(path, [3])
    if place == "inside":
        return  # as any byte of an entry
    (file,) = path.rglob("*.masks")
    data = file.read_bytes()
    for damaged in (data[:-1], b"\0" + data[1:], None):
        file.unlink()
        if damaged is not None:
            file.write_bytes(damaged)
        shuffle = open_shuffle(path)
        for use in (
            shuffle.to_table,
            lambda: open_shuffle(path).count_rows(filter="v < 100"),
            shuffle.verify,
            lambda: delete_rows(path, {"k": [7]}, options=TINY),
        ):
            with pytest.raises(CorruptShuffleError, match=r"mask|is not there|not found"):
                use()


def test_a_transaction_that_masks_is_one(path):
    first = mask(path, [3], transaction=("nightly", 1))
    again = mask(path, [3, 5], transaction=("nightly", 1))
    assert again.is_repetition
    assert again.version == first.version
    assert open_shuffle(path).version == 2
    found = repeated_deletion(PosixStorage(str(path)), Transaction("nightly", 1))
    assert found is not None
    assert not found.erases


@pytest.mark.slow
@guarantee("checkpoints")
def test_masks_are_in_checkpoints(path):
    append(path, 1000)
    expected = contents(path)
    for key in range(20):
        mask(path, [key])
        expected = without(expected, [key])
    assert log_of(path).view().checkpoint
    check(path, expected)
    assert contents(path, 18) == without(contents(path, 2), range(16))


@pytest.mark.slow
@guarantee("masked rows")
def test_a_mask_put_meanwhile_is_a_conflict(path, monkeypatch):
    before = contents(path)
    real, others = mask_rows.mask_rows, [5]

    def first_another(job, masked):
        if others:
            mask(path, [others.pop()])
        return real(job, masked)

    monkeypatch.setattr("arrow_format.jobs.delete_rows.mask_rows", first_another)
    mask(path, [3])
    check(path, without(before, [3, 5]))


@pytest.mark.slow
@guarantee("erased bytes")
def test_a_file_without_rows_stays_beside_others_of_its_map_output(tmp_path, monkeypatch):
    """Else no receipt of an erasure would name it."""
    monkeypatch.setattr(map_output, "MAX_INDEX_BYTES", 1)
    path, small = tmp_path / "s", replace(TINY, sort_buffer_bytes=4096)
    table = pa.concat_tables([rows(0, 150, 1), rows(150, 400, 40)])
    write_rows(path, table, "k", n=N, options=small)
    before = contents(path)
    (output,) = open_shuffle(path).map_outputs
    assert len(output.files) > 1
    mask(path, [0])
    (output,) = open_shuffle(path).map_outputs
    assert 0 in [file.num_rows for file in output.files]
    check(path, without(before, [0]))
    receipt = delete_rows(path, {"k": [0]}, options=TINY)
    assert {file.path for file in receipt.files} >= {file.path for file in output.files}
    check(path, without(before, [0]))
