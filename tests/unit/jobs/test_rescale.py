"""Another number of subpartitions: one entry, and whatever reads or writes goes on."""

import pickle
from collections import Counter

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import arrow_shuffle
from arrow_format.epochs.batches import EpochBatches
from arrow_format.epochs.options import Epochs
from arrow_format.filters.keys import subpartitions_of_keys
from arrow_format.jobs.commit import commit_job
from arrow_format.log import carried
from arrow_format.log.commit_log import CommitLog
from arrow_format.read.shuffle import open_shuffle as open_format
from arrow_format.storage.open import open_storage
from arrow_format.streaming.flush_pending import flush_pending
from arrow_shuffle import MergePolicy, open_shuffle, write_shuffle
from tests.support.exhaustive import examples
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import before_first_entry
from tests.support.small_shuffles import FAST, begin, begun_with, collect, write_tasks

ALWAYS = MergePolicy(rewrite="always")
BY = pytest.mark.parametrize("by", ["map_output", "subpartition"])


def rows(*ids, v=0):
    return pa.table({"k": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids), pa.int64())})


def write(path, *ids, n=8, mode="errorifexists", v=0, **how):
    return write_shuffle(
        rows(*ids, v=v), path, keys="k", num_subpartitions=n, mode=mode, options=FAST, **how
    )


def stored(path, version=None):
    table = open_shuffle(path, version).read().read_all()
    return Counter(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True))


def numbers(path, version=None):
    """Subpartitions of a version, and of its files."""
    shuffle = open_shuffle(path, version)
    files = [file.num_subpartitions for output in shuffle.map_outputs for file in output.files]
    return shuffle.num_subpartitions, files


def check(path, expected):
    """Check a version by whole reads, each subpartition, its totals, and lookups."""
    shuffle = open_shuffle(path)
    assert stored(path) == Counter(expected)
    n = shuffle.num_subpartitions
    ids = pa.record_batch([pa.array([k for k, _ in expected], pa.int64())], names=["k"])
    places = subpartitions_of_keys(ids, shuffle.partitioner, n)
    counts = np.bincount(places, minlength=n)
    assert shuffle.subpartition_rows.to_pylist() == counts.tolist()
    for i in {0, n - 1, int(places[0]) if len(places) else 0}:
        found = shuffle.read(subpartitions=i).read_all()["k"].to_pylist()
        assert Counter(found) == Counter(ids["k"].filter(pa.array(places == i)).to_pylist())
    some = sorted({k for k, _ in expected})[::7]
    wanted = [k for k, _ in expected if k in some]
    assert sorted(shuffle.lookup({"k": some}).read_all()["k"].to_pylist()) == sorted(wanted)
    assert shuffle.verify().ok
    return n


@pytest.fixture
def path(tmp_path):
    """One map output of 8 subpartitions."""
    write(tmp_path / "s", *range(100))
    return tmp_path / "s"


def of(*ranges, v=0):
    return [(k, v) for ids in ranges for k in ids]


def test_new_files_have_the_new_number_and_the_version_is_read_by_one_that_divides_all(path):
    rescaling = open_shuffle(path).rescale(12)
    assert (rescaling.version, rescaling.num_subpartitions, rescaling.is_new) == (2, 4, True)
    assert "a merge makes it 12" in str(rescaling)
    receipt = open_shuffle(path).append(rows(*range(100, 150)))
    assert (receipt.num_subpartitions, len(receipt.subpartition_rows)) == (4, 4)
    assert receipt.notes == (
        "The version is read by 4 subpartitions, the most that divide those of all files; a merge "
        "makes it 12.",
    )
    assert numbers(path) == (4, [8, 12])
    assert check(path, of(range(150))) == 4
    assert "a merge makes it 12" in str(open_shuffle(path).explain())
    assert "a merge makes it 12" in str(open_shuffle(path).select("v").explain())
    assert numbers(path, 1) == (8, [8])


@BY
@pytest.mark.parametrize("sort_by", [(), ("v", "k")], ids=["in any order", "sorted"])
@pytest.mark.parametrize("unique", [None, ["k"]], ids=["", "unique"])
def test_a_merge_makes_it_true(tmp_path, by, sort_by, unique):
    path, how = tmp_path / "s", {"sort_by": sort_by, "unique": unique}
    write(path, *range(100), **how)
    open_shuffle(path).rescale(16)
    write(path, *range(100, 140), mode="append", n=8, **how)
    open_shuffle(path).delete({"k": [*range(0, 140, 5)]}, erase=False)
    expected = of(k for k in range(140) if k % 5)
    before = open_shuffle(path)
    assert check(path, expected) == 8
    report = before.merge(by, policy=ALWAYS)
    assert (report.version, numbers(path)) == (5, (16, [16]))
    assert check(path, expected) == 16
    assert stored(path, 4) == stored(path) == Counter(expected)
    assert not open_shuffle(path).changes(since=4).read_all().num_rows
    assert all(output.files[0].placed for output in open_shuffle(path).map_outputs)
    assert open_shuffle(path).explain().scaled is None


def test_it_shrinks_at_once(tmp_path):
    write(tmp_path, *range(100), n=16)
    assert open_shuffle(tmp_path).rescale(8).num_subpartitions == 8
    write(tmp_path, *range(100, 120), mode="append", n=16)
    assert numbers(tmp_path) == (8, [16, 8])
    assert check(tmp_path, of(range(120))) == 8


def test_the_number_that_it_has_is_nothing_new(path):
    assert not open_shuffle(path).rescale(8).is_new
    open_shuffle(path).rescale(16)
    again = open_shuffle(path).rescale(16)
    assert (again.version, again.is_new) == (2, False)
    assert "nothing was changed" in str(again)
    assert open_shuffle(path).version == 2


def test_back_again_before_any_file_has_the_new_number(path):
    open_shuffle(path).rescale(12)
    assert numbers(path) == (4, [8])
    assert open_shuffle(path).rescale(8).num_subpartitions == 8
    assert check(path, of(range(100))) == 8


def test_of_no_rows(tmp_path):
    write(tmp_path)
    assert open_shuffle(tmp_path).rescale(16).num_subpartitions == 16
    write(tmp_path, 1, 2, mode="append")
    assert check(tmp_path, of([1, 2])) == 16


@guarantee("another n")
def test_an_append_that_began_before_is_found_by_lookup_join_and_delete(path, tmp_path):
    job, statuses = begun_with(path, rows(*range(100, 200)), n=8)
    open_shuffle(path).rescale(16)
    open_shuffle(path).merge(policy=ALWAYS)
    assert numbers(path) == (16, [16])
    receipt = commit_job(job, statuses, mode="append")
    assert (numbers(path), receipt.num_subpartitions) == ((8, [16, 8]), 8)
    shuffle = open_shuffle(path)
    assert shuffle.lookup({"k": [150]}).read_all().num_rows == 1
    write(tmp_path / "other", *range(150, 160), n=16)
    joined = shuffle.join(open_shuffle(tmp_path / "other"), on="k", suffixes=("", "_r"))
    assert joined.read().read_all().num_rows == 10
    assert shuffle.delete({"k": [150]}).num_rows == 1
    check(path, [(k, 0) for k in range(200) if k != 150])


def test_other_libraries_read_files_of_several_numbers(path):
    open_shuffle(path).rescale(12)
    shuffle = open_shuffle(path)
    shuffle.append(rows(*range(100, 150), v=1))
    shuffle.delete({"k": [5, 120]}, erase=False)
    shuffle, left = shuffle.newest(), sorted({*range(150)} - {5, 120})
    dataset = shuffle.to_dataset()
    assert sorted(dataset.to_table()["k"].to_pylist()) == left
    found = duckdb.connect().execute("SELECT k FROM dataset WHERE v = 1 ORDER BY k").fetchall()
    assert [k for (k,) in found] == [k for k in left if k >= 100]
    assert sorted(shuffle.to_polars().collect()["k"].to_list()) == left
    reader = EpochBatches(open_format(path), ["k"], Epochs(batch_size=16, seed=1))
    epoch = [k for batch in reader for k in batch["k"].to_pylist()]
    assert sorted(epoch) == left
    assert (shuffle.count_rows(), shuffle.min_max(["k"])["k"][1].as_py()) == (148, 149)
    assert shuffle.count_rows(filter="k > 140") == 9


def test_an_append_with_a_number_of_its_own_takes_that_of_the_shuffle(path):
    open_shuffle(path).rescale(16)
    write(path, *range(100, 110), mode="append", n=8)
    assert numbers(path) == (8, [8, 16])


def test_without_a_rescale_another_number_is_refused(path):
    with pytest.raises(arrow_shuffle.errors.SchemaError, match=r"cannot append with 16; .*rescale"):
        write(path, 1, mode="append", n=16)


def test_an_overwrite_begins_again(path):
    open_shuffle(path).rescale(16)
    write(path, 1, 2, mode="overwrite", n=6)
    assert numbers(path) == (6, [6])
    with pytest.raises(arrow_shuffle.errors.SchemaError, match="cannot append with 16"):
        write(path, 1, mode="append", n=16)


def test_a_rollback_has_the_number_of_its_version(path):
    open_shuffle(path).rescale(16)
    write(path, *range(100, 120), mode="append")
    open_shuffle(path).merge(policy=ALWAYS)
    open_shuffle(path).rollback(1)
    assert check(path, of(range(100))) == 8
    open_shuffle(path).rollback(3)
    assert check(path, of(range(120))) == 8
    write(path, 200, mode="append")
    assert numbers(path) == (8, [8, 16, 16])


@pytest.mark.parametrize("n", [16, 12])
def test_rows_are_replaced_by_their_identity(tmp_path, n):
    write(tmp_path, *range(50), unique=["k"])
    job, statuses = begun_with(tmp_path, rows(*range(40, 60), v=1), n=8, mode="upsert")
    open_shuffle(tmp_path).rescale(n)
    open_shuffle(tmp_path).upsert(rows(*range(30, 45), 70, v=2))
    commit_job(job, statuses, mode="upsert")
    open_shuffle(tmp_path).merge("map_output", policy=ALWAYS)
    open_shuffle(tmp_path).upsert(rows(0, 80, v=3))
    expected = [*of(range(1, 30)), *of(range(30, 40), [70], v=2), *of(range(40, 60), v=1)]
    expected += of([0, 80], v=3)
    assert check(tmp_path, expected) == n
    with pytest.raises(arrow_shuffle.errors.DuplicateKeyError):
        open_shuffle(tmp_path).append(rows(5))


def test_changes_in_any_order(tmp_path):
    how = {"unique": ["k"], "sequence_by": "v", "mode": "upsert"}
    write(tmp_path, *range(20), v=5, **how)
    open_shuffle(tmp_path).rescale(12)
    open_shuffle(tmp_path).upsert(rows(*range(10), v=4))
    open_shuffle(tmp_path).upsert(rows(*range(10, 30), v=6))
    assert check(tmp_path, [*of(range(10), v=5), *of(range(10, 30), v=6)]) == 4
    open_shuffle(tmp_path).merge()
    assert check(tmp_path, [*of(range(10), v=5), *of(range(10, 30), v=6)]) == 12


@BY
@pytest.mark.parametrize("are_left", [True, False])
def test_what_says_when_keys_were_deleted_has_the_number_of_new_files(tmp_path, by, are_left):
    how = {"unique": ["k"], "sequence_by": "v", "mode": "upsert"}
    write(tmp_path, *range(10), v=5, **how)
    kinds = pa.array(["d"] * 10).slice(0, 5 if are_left else 10)
    gone = rows(*range(len(kinds)), v=7).append_column("op", kinds)
    open_shuffle(tmp_path).upsert(gone, row_kind="op")
    open_shuffle(tmp_path).rescale(12)
    for turn in range(2):
        n = 12 if turn else 4
        left = of(range(5, 10), v=5) if are_left else []
        assert check(tmp_path, left) == n
        open_shuffle(tmp_path).upsert(rows(2, 3, v=6))  # before they were deleted
        assert check(tmp_path, left) == n
        open_shuffle(tmp_path).merge(by, policy=ALWAYS)
        assert check(tmp_path, left) == 12
        tombstones = open_shuffle(tmp_path).snapshot.tombstones
        assert {*tombstones.of_files("num_subpartitions").tolist()} == {12}
    open_shuffle(tmp_path).upsert(rows(2, v=8))
    assert stored(tmp_path)[2, 8] == 1


def pending(path, *ids, n=8):
    job = begin(path, rows().schema, n=n, partitioner=arrow_shuffle.HashPartitioner("k"))
    job, statuses = begun_with(path, rows(*ids, v=1), n=n)
    commit_job(job, statuses, mode="append", pending=True)


def test_batches_that_wait_are_flushed_and_deleted_from(path):
    pending(path, 200, 201)
    open_shuffle(path).rescale(12)
    pending(path, 201, 202)
    pending(path, 203, n=12)
    receipt = open_shuffle(path).delete({"k": [202]})
    assert receipt.pending == (4,)
    assert open_shuffle(path).delete({"k": [999]}).pending == ()
    flush_pending(path)
    assert numbers(path) == (4, [8, 12])
    assert check(path, [*of(range(100)), *of(range(200, 204), v=1)]) == 4


@guarantee("another n")
def test_a_rescale_is_no_change_and_readers_of_what_is_new_go_on(path):
    open_shuffle(path).rescale(12)
    write(path, 100, 101, mode="append")
    open_shuffle(path).merge(policy=ALWAYS)
    write(path, 102, mode="append")
    newest = open_shuffle(path)
    assert newest.num_subpartitions == 12
    assert newest.added(0).read().read_all().num_rows == 103
    assert sorted(newest.added(1).read().read_all()["k"].to_pylist()) == [100, 101, 102]
    assert newest.added(2).num_subpartitions == 4  # by those of version 3
    assert newest.added(3).num_subpartitions == 12
    changes = newest.changes(since=1).read_all()
    assert sorted(changes["k"].to_pylist()) == [100, 101, 102]
    assert {*changes["_change_type"].to_pylist()} == {"insert"}
    assert not open_shuffle(path, 2).changes(since=1).read_all().num_rows
    open_shuffle(path).delete({"k": [3, 100]}, erase=False)
    changes = open_shuffle(path).changes(since=1).read_all().select(["k", "_change_type"])
    found = {(row["k"], row["_change_type"]) for row in changes.to_pylist()}
    assert found == {(3, "delete"), (101, "insert"), (102, "insert")}


def test_a_version_that_is_too_large_to_be_carried_is_read_by_the_same_number(path, monkeypatch):
    monkeypatch.setattr(carried, "CARRIED_BYTES", 0)
    whole = open_shuffle(path)
    half = pickle.loads(pickle.dumps(whole.divided(4)))
    assert half.num_subpartitions == 4
    assert half.read(subpartitions=3).read_all()["k"].to_pylist() == (
        whole.read(subpartitions=3).read_all()["k"].to_pylist()
        + whole.read(subpartitions=7).read_all()["k"].to_pylist()
    )


@pytest.mark.parametrize("what", ["append", "rescale", "delete", "upsert", "merge"])
@BY
def test_others_write_during_a_merge_that_scales(tmp_path, by, what):
    write(tmp_path, *range(100), unique=["k"])
    open_shuffle(tmp_path).rescale(16)
    left = Counter(of(range(100)))

    def meanwhile():
        shuffle = open_shuffle(tmp_path)
        if what == "append":
            shuffle.append(rows(*range(100, 110)))
            left.update(of(range(100, 110)))
        elif what == "rescale":
            shuffle.rescale(12)
        elif what == "delete":
            shuffle.delete({"k": [7]}, erase=False)
            del left[7, 0]
        elif what == "upsert":
            shuffle.upsert(rows(7, v=1))
            del left[7, 0]
            left[7, 1] = 1
        else:
            shuffle.merge(by, policy=ALWAYS)

    try:
        with before_first_entry(meanwhile):
            open_shuffle(tmp_path).merge(by, policy=ALWAYS)
    except arrow_shuffle.errors.CommitConflictError:
        assert what == "merge"
    assert check(tmp_path, [*left.elements()]) == (4 if what == "rescale" else 16)
    open_shuffle(tmp_path).merge(by, policy=ALWAYS)
    assert check(tmp_path, [*left.elements()]) == (12 if what == "rescale" else 16)


@settings(max_examples=examples(20, 200), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([6, 8, 12, 16]), st.integers(0, 80)), max_size=4),
    st.lists(st.lists(st.integers(0, 120), min_size=1, max_size=30), min_size=1, max_size=3),
    st.sampled_from(["map_output", "subpartition"]),
    st.integers(0, 3),
)
def test_rows_that_are_deleted_while_others_are_placed_again_are_gone(
    tmp_path_factory, outputs, deletions, by, num_pieces
):
    path = tmp_path_factory.mktemp("masks") / "s"
    write(path, *range(0, 120, 2))
    open_shuffle(path).rescale(24)
    for n, first in outputs:
        job, statuses = begun_with(path, rows(*range(first, first + 40)), n=n)
        commit_job(job, statuses, mode="append")
    open_shuffle(path).delete({"k": [3, 30, 31]}, erase=False)
    left = stored(path)
    policy = MergePolicy(rewrite="always", target_file_bytes=1 << (6 + num_pieces))

    def meanwhile():
        for keys in deletions:
            open_shuffle(path).delete({"k": keys}, erase=False)
            for k in keys:
                left.pop((k, 0), None)

    with before_first_entry(meanwhile):
        open_shuffle(path).merge(by, policy=policy)
    n = check(path, [*left.elements()])
    assert n == 24 or not left
    found = open_shuffle(path)
    assert {*numbers(path)[1]} <= {24}
    assert found.num_rows == left.total()


def test_a_merge_that_finds_nothing_to_merge_sees_that_all_have_the_number_now(path):
    open_shuffle(path).rescale(16)
    write(path, 200, 201, mode="append")
    open_shuffle(path).delete({"k": [*range(100)]})
    assert numbers(path) == (8, [16])
    report = open_shuffle(path).merge()
    assert (report.version, numbers(path)) == (5, (16, [16]))
    assert check(path, of([200, 201])) == 16


def test_a_policy_that_never_rewrites_leaves_the_number(path):
    open_shuffle(path).rescale(16)
    write(path, *range(100, 110), mode="append")
    open_shuffle(path).merge("map_output", policy=MergePolicy(rewrite="never"))
    assert numbers(path) == (8, [8, 16])


def test_collections_and_checkpoints_keep_it(path):
    open_shuffle(path).rescale(12)
    for first in range(100, 140, 2):
        write(path, first, first + 1, mode="append")
    open_shuffle(path).merge(policy=ALWAYS)
    open_shuffle(path).rescale(6)
    write(path, 140, mode="append")
    log = CommitLog(open_storage(path))
    assert log.view().state.checkpoint
    collect(path, 2)
    assert check(path, of(range(141))) == 6
    open_shuffle(path).rescale(9)
    open_shuffle(path).merge(policy=ALWAYS)
    assert check(path, of(range(141))) == 9


def test_what_it_refuses(tmp_path, path):
    def refused(place, n, error, match, **how):
        with pytest.raises(getattr(arrow_shuffle.errors, error), match=match):
            open_shuffle(place).rescale(n, **how)

    for n in (0, 1_000_001, True, "8"):
        refused(path, n, "OptionError", "num_subpartitions")
    refused(path, 16, "CommitConflictError", "there is none yet", expected_version=0)
    ranges = arrow_shuffle.RangePartitioner(keys=["k"], bounds=[10, 20])
    write_shuffle(
        rows(1), tmp_path / "ranges", partitioner=ranges, num_subpartitions=3, options=FAST
    )
    refused(tmp_path / "ranges", 4, "OptionError", "placed by 'range'.*overwrite")
    write_tasks(tmp_path / "column", [[pa.record_batch({"p": [0, 1]})]], 2)
    refused(tmp_path / "column", 4, "OptionError", "placed by 'column'.*overwrite")
    everywhere = arrow_shuffle.BroadcastPartitioner()
    write_tasks(tmp_path / "all", [[pa.record_batch({"p": [0]})]], 2, partitioner=everywhere)
    refused(tmp_path / "all", 4, "OptionError", "placed by 'broadcast'")
    shuffle = open_shuffle(path)
    arrow_shuffle.release_shuffle(path)
    with pytest.raises(arrow_shuffle.errors.CommitConflictError, match="released"):
        shuffle.rescale(16)


STEPS = st.one_of(
    st.tuples(st.just("rescale"), st.sampled_from([4, 6, 8, 12, 16, 24])),
    st.tuples(st.sampled_from(["append", "late", "upsert", "delete", "mask"]), st.integers(0, 60)),
    st.tuples(st.sampled_from(["map_output", "subpartition"]), st.just(0)),
)


@guarantee("another n")
@settings(max_examples=examples(25, 300), deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=10), st.booleans())
def test_whatever_is_done_the_rows_are_those_of_a_model(tmp_path_factory, steps, is_sorted):
    path = tmp_path_factory.mktemp("law") / "s"
    how = {"unique": ["k"], "sort_by": ("v",) if is_sorted else ()}
    write(path, *range(20), **how)
    model = dict.fromkeys(range(20), 0)
    for number, (step, at) in enumerate(steps, start=1):
        shuffle, ids = open_shuffle(path), [*range(at, at + 5)]
        if step == "rescale":
            shuffle.rescale(at)
        elif step in ("map_output", "subpartition"):
            shuffle.merge(step, policy=ALWAYS)
            assert "a merge makes it" not in str(open_shuffle(path).explain().scaled)
        elif step in ("delete", "mask"):
            shuffle.delete({"k": ids}, erase=step == "delete")
            for k in ids:
                model.pop(k, None)
        else:
            if step == "append":
                shuffle.delete({"k": ids}, erase=False)
            if step == "late":  # it began with another number
                job, statuses = (
                    begun_with(
                        path, rows(*ids, v=number), n=10, mode="upsert", sort_by=how["sort_by"]
                    )
                    if shuffle.snapshot.newest.shape.rescaled_to
                    else (None, None)
                )
                if job is not None:
                    commit_job(job, statuses, mode="upsert")
                    model |= dict.fromkeys(ids, number)
                continue
            write_shuffle(
                rows(*ids, v=number), path, keys="k", num_subpartitions=shuffle.num_subpartitions,
                mode=step, options=FAST, sort_by=how["sort_by"],
            )  # fmt: skip
            model |= dict.fromkeys(ids, number)
        check(path, [*model.items()])
