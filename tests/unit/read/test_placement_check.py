"""Rows that are elsewhere than the partitioner in the log says: who finds them, and who trusts."""

import concurrent.futures
import pickle

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import delete_rows, merge_shuffle
from arrow_format.errors import CorruptShuffleError, OptionError
from arrow_format.format import index_file
from arrow_format.jobs.merge_work import SubpartitionMerge
from arrow_format.jobs.rollback import rollback_shuffle
from arrow_format.write.merge_policy import MergePolicy
from arrow_shuffle import (
    BroadcastPartitioner,
    ColumnPartitioner,
    HashPartitioner,
    RangePartitioner,
    RoundRobinPartitioner,
    WriteOptions,
    open_shuffle,
)
from tests.support.foreign_writer import append_misplaced
from tests.support.guarantees import guarantee
from tests.support.operations import made, written
from tests.support.own_partitioner import OwnPartitioner

N = 8
OPTIONS = WriteOptions(sync=False, chunk_bytes=1)
ROWS = pa.table(
    {"k": np.arange(1_000) % 8, "v": np.arange(1_000), "who": list(map(str, range(1000)))}
)
ASKED = {
    "hash": HashPartitioner("v"),
    "hash of several": HashPartitioner("who", "k"),
    "range": RangePartitioner("v", bounds=[17, 500, 800]),
    "range down": RangePartitioner(("who", "descending"), bounds=["7", "5", "2"]),
    "column": ColumnPartitioner("k"),
}


def next_one(ids, _):
    """Place the last row of each batch in the next subpartition."""
    ids[-1] = (ids[-1] + 1) % N
    return ids


def all_elsewhere(ids, _):
    return (ids + 3) % N


def misplaced(path, partitioner=ASKED["hash"], place=next_one, table=ROWS, **how):
    append_misplaced(path, table, partitioner, place, num_subpartitions=N, options=OPTIONS, **how)
    return open_shuffle(path)


def placed(path):
    return open_shuffle(path).map_outputs.placed.tolist()


def write(path, table=ROWS, **how):
    how = {"keys": "v", "options": OPTIONS, "mode": "append", **how}
    return written(path, table, n=N, **how)


def values(reader):
    return sorted(reader.read_all()["v"].to_pylist())


# verify -------------------------------------------------------------------------------------------


@guarantee("verified placement")
@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize("is_marked", [False, True])
def test_verify_names_the_first_row_that_is_elsewhere(tmp_path, kind, is_marked):
    write(tmp_path, keys=None, partitioner=ASKED[kind])
    assert open_shuffle(tmp_path).verify().placement == "checked"
    shuffle = misplaced(tmp_path, ASKED[kind], placed=is_marked)
    (problem,) = shuffle.verify(raise_on_damage=False).problems
    wrong = shuffle.map_outputs[1].files[0]
    belongs = ASKED[kind].bind(ROWS.schema, N, 0)(ROWS.slice(999).to_batches()[0])[0]
    assert wrong.data_path in str(problem)
    assert f"is in subpartition {(belongs + 1) % N} of 8" in str(problem)
    assert f"belongs to subpartition {belongs}" in str(problem)
    with pytest.raises(CorruptShuffleError, match="write them again"):
        shuffle.verify()


def test_verify_finds_a_row_that_every_subpartition_reads(tmp_path):
    def for_all(ids, _):
        ids[7] = -1
        return ids

    with pytest.raises(CorruptShuffleError, match="is in every subpartition of 8, and belongs to"):
        misplaced(tmp_path, place=for_all).verify()


def test_verify_finds_a_broadcast_row_that_one_subpartition_reads(tmp_path):
    def of_one(ids, _):
        ids[7] = 3
        return ids

    shuffle = misplaced(tmp_path, BroadcastPartitioner(), of_one)
    with pytest.raises(
        CorruptShuffleError, match="is in subpartition 3 of 8, and belongs to every"
    ):
        shuffle.verify()
    write(tmp_path / "b", keys=None, partitioner=BroadcastPartitioner())
    assert open_shuffle(tmp_path / "b").verify().placement == "checked"


def test_verify_finds_a_row_without_a_place(tmp_path):
    table = ROWS.set_column(0, "k", pa.array([None, 9] + [3] * 998))
    append_misplaced(
        tmp_path, table, ColumnPartitioner("v"), lambda ids, _: ids % N, num_subpartitions=1000,
        options=OPTIONS,
    )  # fmt: skip
    assert "is in subpartition 0 of 1000" in str(
        open_shuffle(tmp_path).verify(raise_on_damage=False).problems[0]
    )


def by_length(batch, num_subpartitions):
    return np.array([len(text.as_py()) % num_subpartitions for text in batch["who"]], np.int32)


BY_LENGTH = OwnPartitioner(by_length)


@pytest.mark.parametrize("partitioner", [BY_LENGTH, RoundRobinPartitioner()])
def test_whom_nobody_can_ask_verify_calls_unknown(tmp_path, partitioner):
    shuffle = write(tmp_path, keys=None, partitioner=partitioner)
    report = shuffle.verify()
    assert (report.ok, report.placement) == (True, "unknown")
    assert "placement: unknown" in str(report)
    assert placed(tmp_path) == [False]
    with pytest.raises(OptionError, match="which does not say where a row belongs"):
        shuffle.checking()


# The mark -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ASKED)
def test_files_whose_rows_one_of_ours_placed_are_marked(tmp_path, kind):
    write(tmp_path, keys=None, partitioner=ASKED[kind])
    assert placed(tmp_path) == [True]


def mixed(path):
    """Append a marked file, one that is not, and two that are marked."""
    write(path)
    misplaced(path, place=all_elsewhere)
    write(path)
    write(path)
    assert placed(path) == [True, False, True, True]


@pytest.mark.slow
@guarantee("marked placement")
@pytest.mark.parametrize("rewrite", ["never", "always"])
def test_a_merge_marks_what_is_made_of_marked_files_alone(tmp_path, rewrite):
    mixed(tmp_path)
    policy = MergePolicy(rewrite=rewrite)
    merge_shuffle(tmp_path, policy=policy, options=OPTIONS, by="map_output")
    assert placed(tmp_path) == [False]
    write(tmp_path / "all")
    write(tmp_path / "all")
    merge_shuffle(tmp_path / "all", policy=policy, options=OPTIONS, by="map_output")
    assert placed(tmp_path / "all") == [True]
    assert values(open_shuffle(tmp_path).lookup({"v": [7]})) == [7, 7, 7, 7]


@pytest.mark.slow
@guarantee("marked placement")
@pytest.mark.parametrize("many", [False, True])
def test_a_merge_by_subpartition_marks_what_is_made_of_marked_files_alone(
    tmp_path, monkeypatch, many
):
    monkeypatch.setattr(SubpartitionMerge, "_has_many_regions", lambda *_: many)
    for path, fill in ((tmp_path / "mixed", mixed), (tmp_path / "all", write)):
        fill(path)
        write(path)
        merge_shuffle(
            path, by="subpartition", policy=MergePolicy(rewrite="always"), options=OPTIONS
        )
    assert set(placed(tmp_path / "mixed")) == {False}
    assert set(placed(tmp_path / "all")) == {True}


@guarantee("marked placement")
def test_a_deletion_keeps_the_mark_of_each_file(tmp_path):
    mixed(tmp_path)
    assert delete_rows(tmp_path, {"v": [7]}, options=OPTIONS).num_rows == 4
    assert placed(tmp_path) == [True, False, True, True]


@pytest.mark.slow
@guarantee("marked placement")
def test_marks_survive_checkpoints_rollbacks_and_pickles(tmp_path):
    mixed(tmp_path)
    for i in range(20):  # more than the entries between checkpoints
        write(tmp_path, ROWS.slice(i, 1))
    expected = [True, False, *[True] * 22]
    assert placed(tmp_path) == expected
    rollback_shuffle(tmp_path, 3)
    assert placed(tmp_path) == expected[:3]
    shuffle = pickle.loads(pickle.dumps(open_shuffle(tmp_path)))
    assert shuffle.map_outputs.placed.tolist() == expected[:3]
    assert [file.placed for each in shuffle.map_outputs for file in each.files] == expected[:3]


# Who trusts ---------------------------------------------------------------------------------------


FINDS = {
    "lookup": lambda shuffle: shuffle.lookup({"v": [7, 999]}),
    "filter": lambda shuffle: shuffle.read(filter="v IN (7, 999)"),
    "range filter": lambda shuffle: shuffle.read(filter="v = 7 OR v = 999"),
    "a part": lambda shuffle: shuffle.where("v IN (7, 999)").read(range(N)),
}


@guarantee("lookups", "marked placement")
@pytest.mark.parametrize("how", FINDS)
@pytest.mark.parametrize("sort_by", [(), ("k",)])
def test_rows_of_a_file_without_mark_are_found_wherever_they_are(tmp_path, how, sort_by):
    write(tmp_path, sort_by=sort_by)
    shuffle = misplaced(tmp_path, place=all_elsewhere, sort_by=sort_by)
    assert values(FINDS[how](shuffle)) == [7, 7, 999, 999]


@pytest.mark.parametrize("kind", ASKED)
def test_filters_find_misplaced_rows_of_every_partitioner(tmp_path, kind):
    shuffle = misplaced(tmp_path, ASKED[kind], all_elsewhere)
    for text in ("v = 7", "who = '7'", "k = 7 AND v = 7", "v > 6 AND v < 8"):
        assert values(shuffle.read(filter=text)) == [7]


def test_only_files_without_mark_are_read_whole(tmp_path):
    write(tmp_path)
    misplaced(tmp_path, place=all_elsewhere)

    def step(shuffle, what):
        plan = shuffle.where("v = 7").explain()
        (found,) = [step for step in plan.steps if step.what == what]
        return found

    of_marked, of_both = (
        step(open_shuffle(tmp_path, version), "chunks").kept for version in (1, 2)
    )
    assert step(open_shuffle(tmp_path, 1), "subpartitions").kept == 1
    every = step(open_shuffle(tmp_path), "subpartitions")
    assert (every.kept, "not all files are marked as placed" in every.why) == (N, True)
    num_chunks = open_shuffle(tmp_path, 1).verify().num_chunks
    assert of_marked <= num_chunks / 4
    assert of_both == of_marked + num_chunks


@guarantee("marked placement")
@pytest.mark.parametrize("kind", ["hash", "hash of several", "range", "range down"])
def test_a_deletion_finds_rows_of_files_without_mark_wherever_they_are(tmp_path, kind):
    write(tmp_path, keys=None, partitioner=ASKED[kind])
    misplaced(tmp_path, ASKED[kind], all_elsewhere)
    keys = {"v": [7, 999], "who": ["7", "999"], "k": [7, 7]}
    names = [key if isinstance(key, str) else key[0] for key in ASKED[kind].keys]
    receipt = delete_rows(tmp_path, {name: keys[name] for name in names}, options=OPTIONS)
    assert receipt.num_rows == 4
    assert not {7, 999} & set(values(open_shuffle(tmp_path).read()))
    assert open_shuffle(tmp_path).num_rows == 1996


def test_a_false_mark_is_trusted_and_verify_finds_it(tmp_path):
    shuffle = misplaced(tmp_path, place=all_elsewhere, placed=True)
    assert values(shuffle.lookup({"v": [7]})) == []
    assert delete_rows(tmp_path, {"v": [7]}, options=OPTIONS).num_rows == 0
    with pytest.raises(CorruptShuffleError, match="belongs to subpartition"):
        shuffle.verify()


# check=True ---------------------------------------------------------------------------------------


@pytest.fixture
def sides(tmp_path):
    left = write(tmp_path / "l")
    renamed = ROWS.rename_columns(["k2", "v", "who2"])
    return left, misplaced(tmp_path / "r", table=renamed, placed=True)


def count(joined):
    yield pa.record_batch({"n": [joined.read_all().num_rows]})


@guarantee("checked joins")
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("target", [1, 1 << 30])
def test_a_join_that_checks_refuses_a_misplaced_row(sides, first, target):
    left, right = sides[::-1] if first else sides
    how = {"target_partition_bytes": target}
    if target == 1:
        assert made(left.join(right), **how).num_rows == 999
    with pytest.raises(CorruptShuffleError, match=r"shuffle\.data.*is in subpartition \d of 8"):
        made(left.join(right, check=True), **how)
    good = sides[0].join(sides[0], check=True, suffixes=("_a", "_b"))
    assert made(good, **how).num_rows == 1_000


def test_a_join_in_processes_checks_too(sides):
    joined = sides[0].select("v").join(sides[1], check=True)
    with (
        concurrent.futures.ProcessPoolExecutor(1) as executor,
        pytest.raises(CorruptShuffleError, match="belongs to subpartition"),
    ):
        made(joined, executor=executor)


def test_a_filter_leaves_out_no_subpartition_where_a_join_checks(sides):
    left, right = (side.select(filter="v = 999") for side in sides)
    assert made(left.join(right)).num_rows == 0
    # Of a join that is a part of what is asked, too.
    for asked in (left.join(right, check=True), left.join(right, check=True).aggregate("v")):
        with pytest.raises(CorruptShuffleError, match="belongs to subpartition"):
            made(asked)


def test_a_join_that_checks_writes_nothing(sides, tmp_path):
    joined = sides[0].join(sides[1], check=True)
    with pytest.raises(CorruptShuffleError, match="belongs to subpartition"):
        made(joined, tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_a_checking_shuffle_checks_in_each_way_to_read(tmp_path):
    shuffle = misplaced(tmp_path, sort_by=["k"], placed=True).checking()
    again = pickle.loads(pickle.dumps(shuffle))
    for each in (shuffle, again, shuffle.where("k = 3"), shuffle.checking()):
        with pytest.raises(CorruptShuffleError, match="belongs to subpartition"):
            each.read().read_all()
    with pytest.raises(CorruptShuffleError, match="belongs to subpartition"):
        shuffle.lookup({"v": [999]}).read_all()


def test_a_filter_from_before_the_check_leaves_out_no_subpartition_either(tmp_path):
    filtered = misplaced(tmp_path, placed=True).where("v = 999")
    assert values(filtered.read()) == []
    with pytest.raises(CorruptShuffleError, match="belongs to subpartition"):
        filtered.checking().read().read_all()


@pytest.mark.parametrize("check", [1, None, "yes"])
def test_check_is_true_or_false(sides, check):
    with pytest.raises(OptionError, match=r"check=.*: expected True or False"):
        sides[0].join(sides[1], check=check)


def test_partitioners_that_nobody_can_ask_are_not_checked(tmp_path):
    left, right = (write(tmp_path / name, keys=None, partitioner=BY_LENGTH) for name in "lr")
    with pytest.raises(OptionError, match=r"check=True: .* which does not say where a row belongs"):
        left.join(right, on=["who"], suffixes=("", "2"), check=True)


def test_the_block_that_is_read_says_enough_to_check_its_rows(tmp_path, monkeypatch):
    """Chunks at its borders have rows too of which it does not say where they belong."""
    monkeypatch.setattr(index_file, "BLOCK_BYTES", 1)
    large = WriteOptions(sync=False)
    right = write(tmp_path / "right", options=large)
    append_misplaced(
        tmp_path / "wrong", ROWS, ASKED["hash"], all_elsewhere, num_subpartitions=N, options=large,
        placed=True,
    )  # fmt: skip
    wrong = open_shuffle(tmp_path / "wrong")
    found = [values(right.checking().read(number)) for number in range(N)]
    assert found == [values(right.read(number)) for number in range(N)]
    with_rows = [number for number in range(N) if values(wrong.read(number))]
    assert len(with_rows) > 1
    for number in with_rows:
        with pytest.raises(CorruptShuffleError, match="belongs to subpartition"):
            wrong.checking().read(number).read_all()
