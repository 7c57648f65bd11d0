"""Columns that are renamed and dropped: who reads what, writes meanwhile, and what is refused."""

import re

import pyarrow as pa
import pytest

from arrow_format import (
    ColumnPartitioner,
    MergePolicy,
    RangePartitioner,
    RoundRobinPartitioner,
    append_shuffle,
    delete_rows,
    drop_columns,
    erasure_status,
    flush_pending,
    merge_shuffle,
    open_shuffle,
    open_shuffle_changes,
    rename_columns,
    rollback_shuffle,
    tag_shuffle,
)
from arrow_format.errors import (
    CommitConflictError,
    OptionError,
    SchemaError,
    ShuffleNotFoundError,
    StorageError,
    UnsettledCommitError,
)
from arrow_format.jobs.alter import alter_columns
from arrow_format.jobs.commit import commit_job
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.options import WriteOptions
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import before_first_entry, instead_of_first_entry
from tests.support.logs import log_of
from tests.support.own_partitioner import OwnPartitioner
from tests.support.small_shuffles import begun_with, collect, files_below, write_rows

N = 4
OPTIONS = WriteOptions(sync=False, statistics="all", chunk_bytes=64)
EVOLVES = WriteOptions(sync=False, statistics="all", schema_evolution=True)


def table(start=0, **columns):
    rows = {"k": [*range(start, start + 8)], "v": [f"v{i}" for i in range(start, start + 8)]}
    rows |= {"n": [10 * i for i in range(start, start + 8)]}
    return pa.table({**rows, **columns})


@pytest.fixture
def path(path):
    write_rows(path, table(), "k", n=N, options=OPTIONS)
    return path


def append(path, rows):
    append_shuffle(rows, path, options=OPTIONS)


def rows(path, version=None, **how):
    shuffle = open_shuffle(path, version)
    assert shuffle.verify().ok
    return sorted(shuffle.read(**how).read_all().to_pylist(), key=str)


def renamed_rows(names, start=0):
    return sorted(table(start).rename_columns(names).to_pylist(), key=str)


def test_renamed_columns_have_their_values_and_no_file_is_touched(path):
    before = {f: (path / f).read_bytes() for f in files_below(path) if (path / f).is_file()}
    altered = rename_columns(path, {"k": "key", "v": "text"})
    assert (altered.version, altered.schema.names) == (2, ["key", "text", "n"])
    assert str(altered) == f"{path}: version 2 has the columns key, text, n"
    assert rows(path) == renamed_rows(["key", "text", "n"])
    assert rows(path, 1) == renamed_rows(["k", "v", "n"])
    for file, data in before.items():
        assert (path / file).read_bytes() == data
    shuffle = open_shuffle(path)
    assert shuffle.partitioner == HashPartitioner("key")
    assert rows(path, filter="text = 'v3'") == [{"key": 3, "text": "v3", "n": 30}]
    assert shuffle.lookup({"key": [5]}).read_all().to_pylist() == [
        {"key": 5, "text": "v5", "n": 50}
    ]


def test_two_columns_swap_their_names(path):
    rename_columns(path, {"k": "n", "n": "k"})
    assert rows(path) == renamed_rows(["n", "v", "k"])
    # Bounds of the files are those of the columns, not of the names.
    assert rows(path, filter="k = 70") == [{"n": 7, "v": "v7", "k": 70}]
    assert rows(path, filter="n = 7") == [{"n": 7, "v": "v7", "k": 70}]
    found = open_shuffle(path).min_max(["k", "n"])
    assert {name: [end.as_py() for end in ends] for name, ends in found.items()} == {
        "k": [0, 70], "n": [0, 7],
    }  # fmt: skip
    append(path, pa.table({"k": [100], "v": ["new"], "n": [9]}))
    assert rows(path, filter="k = 100") == [{"n": 9, "v": "new", "k": 100}]
    delete_rows(path, {"n": [7]})
    assert rows(path, filter="k >= 70") == [{"n": 9, "v": "new", "k": 100}]


@pytest.mark.slow
@guarantee("columns by id")
@pytest.mark.parametrize("then", ["nothing", "never", "always", "subpartition", "delete"])
def test_a_dropped_name_that_is_added_again_is_null_in_older_rows(path, then):
    drop_columns(path, ["v"])
    assert rows(path) == sorted(table().drop_columns("v").to_pylist(), key=str)
    append(path, table(8).select(["k", "n"]))
    append(path, table(16))
    rename_columns(path, {"n": "m"})
    expected = [{"k": i, "m": 10 * i, "v": f"v{i}" if i >= 16 else None} for i in range(24)]
    if then == "delete":
        delete_rows(path, {"k": [0, 17]})
        expected = [row for row in expected if row["k"] not in (0, 17)]
    elif then == "subpartition":
        merge_shuffle(path, by="subpartition", options=OPTIONS)
    elif then != "nothing":
        merge_shuffle(path, policy=MergePolicy(rewrite=then), options=OPTIONS, by="map_output")
    assert rows(path) == sorted(expected, key=str)
    assert rows(path, filter="v is null") == sorted(
        [row for row in expected if row["v"] is None], key=str
    )
    assert rows(path, filter="v = 'v3'") == []
    assert len(rows(path, filter="v = 'v20'")) == 1
    assert len(rows(path, filter="m = 30")) == 1
    shuffle = open_shuffle(path)
    assert shuffle.count_rows(filter="v is null") == sum(row["v"] is None for row in expected)
    assert [end.as_py() for end in shuffle.min_max(["v"])["v"]] == [
        "v16", "v23",
    ]  # fmt: skip


def test_what_was_dropped_is_gone_from_merged_files_and_ids_never_return(path):
    drop_columns(path, "v")
    append(path, table(8).select(["k", "n"]))
    merge_shuffle(path, policy=MergePolicy(rewrite="always"), options=OPTIONS, by="map_output")
    collect(path)
    assert [output.column_ids for output in open_shuffle(path).map_outputs] == [(1, 3)]
    append(path, table(16))
    write_rows(path, table(), "k", n=N, mode="overwrite", options=OPTIONS)
    rollback_shuffle(path, log_of(path).newest_version() - 1)
    newest = open_shuffle(path).snapshot.newest
    assert newest.columns.by_name == {"k": 1, "n": 3, "v": 4}
    assert newest.state.last_column_id == 4
    drop_columns(path, "v")
    append(path, table(24))
    assert open_shuffle(path).snapshot.newest.columns.by_name["v"] == 5


def test_a_rollback_brings_columns_back_and_a_tag_keeps_them(path):
    tag_shuffle(path, "before")
    drop_columns(path, "v")
    rename_columns(path, {"n": "m"})
    assert rows(path, "before") == renamed_rows(["k", "v", "n"])
    rollback_shuffle(path, "before")
    assert rows(path) == renamed_rows(["k", "v", "n"])
    # A name that was given to another column since is that of the new one again.
    append(path, pa.table({"k": [1], "m": [5]}))
    assert rows(path, filter="m = 5") == [{"k": 1, "v": None, "n": None, "m": 5}]


# Writes that are under way ------------------------------------------------------------------------


def under_way(path, rows):
    return begun_with(path, rows, n=N, options=EVOLVES)


def test_a_write_under_way_means_the_columns_of_when_it_began(path):
    job, statuses = under_way(path, table(8))
    rename_columns(path, {"k": "v", "v": "k"})
    commit_job(job, statuses, mode="append")
    expected = [*renamed_rows(["v", "k", "n"]), *renamed_rows(["v", "k", "n"], 8)]
    assert rows(path) == sorted(expected, key=str)
    assert rows(path, filter="v = 9") == [{"v": 9, "k": "v9", "n": 90}]


@pytest.mark.parametrize(
    ("alter", "problem"),
    [
        ({"drop": ["v"]}, "column 'v' was dropped"),
        ({"rename": {"v": "new"}}, "column 'new' became the name of another column"),
    ],
)
def test_a_write_under_way_never_lands_in_another_column(path, alter, problem):
    job, statuses = under_way(path, table(8, new=pa.array(["x"] * 8)))
    alter_columns(path, **alter)
    if "drop" in alter:
        append(path, table(16))  # of the name, and another column
    before = rows(path)
    with pytest.raises(CommitConflictError, match=problem):
        commit_job(job, statuses, mode="append")
    assert rows(path) == before


def test_two_writes_under_way_add_one_column(path):
    both = [under_way(path, table(8 * i, new=pa.array([i] * 8))) for i in (1, 2)]
    other = under_way(path, table(24, other=pa.array([3] * 8)))
    for job, statuses in (*both, other):
        commit_job(job, statuses, mode="append")
    assert open_shuffle(path).snapshot.newest.columns.ids == (1, 2, 3, 4, 5)
    assert len(rows(path, filter="new = 2")) == len(rows(path, filter="other = 3")) == 8


def test_a_merge_and_a_deletion_under_way_keep_ids(path):
    append(path, table(8))
    with before_first_entry(lambda: alter_columns(path, rename={"n": "v", "v": "n"})):
        merge_shuffle(path, policy=MergePolicy(rewrite="always"), options=OPTIONS, by="map_output")
    with before_first_entry(lambda: drop_columns(path, "v")):
        delete_rows(path, {"k": [*range(8, 16)]})
    assert rows(path) == sorted(
        table().drop_columns("n").rename_columns(["k", "n"]).to_pylist(), key=str
    )


def test_pending_rows_are_flushed_first(path):
    job, statuses = under_way(path, table(8, new=pa.array([1] * 8)))
    commit_job(job, statuses, mode="append", pending=True)
    with pytest.raises(CommitConflictError, match=r"wait to be flushed.*arrow-shuffle flush"):
        rename_columns(path, {"v": "w"})
    late = under_way(path, table(16, new=pa.array([2] * 8)))
    flush_pending(path)
    assert open_shuffle(path).snapshot.newest.columns.by_name["new"] == 4
    rename_columns(path, {"v": "w", "n": "v"})
    # Begun before the alteration, pending after it, flushed with what began later.
    commit_job(*late, mode="append", pending=True)
    job, statuses = under_way(
        path, table(24, new=pa.array([3] * 8)).rename_columns(["k", "w", "v", "new"])
    )
    commit_job(job, statuses, mode="append", pending=True)
    flush_pending(path)
    found = [row for row in rows(path) if row["k"] >= 8]
    assert found == sorted(
        [{"k": i, "w": f"v{i}", "v": 10 * i, "new": i // 8} for i in range(8, 32)], key=str
    )


# Readers ------------------------------------------------------------------------------------------


def test_changes_have_the_names_of_the_last_version(path):
    append(path, table(8))
    alter_columns(path, rename={"n": "v"}, drop=["v"])
    append(path, pa.table({"k": [99], "v": [990], "n": ["new"]}))
    changes = open_shuffle_changes(path, 1)
    found = sorted(changes.read().read_all().to_pylist(), key=str)
    expected = [{"k": i, "v": 10 * i, "n": None} for i in range(8, 16)]
    assert found == sorted([*expected, {"k": 99, "v": 990, "n": "new"}], key=str)
    before = open_shuffle_changes(path, 1, 2).read().read_all()
    assert before.column_names == ["k", "v", "n"]
    assert sorted(before["v"].to_pylist()) == sorted(f"v{i}" for i in range(8, 16))
    assert open_shuffle_changes(path, 2, 3).read().read_all().num_rows == 0


def test_a_reader_of_a_version_keeps_its_names(path):
    shuffle = open_shuffle(path)
    rename_columns(path, {"v": "w"})
    assert sorted(shuffle.read().read_all().to_pylist(), key=str) == renamed_rows(["k", "v", "n"])


@pytest.mark.slow
def test_in_checkpoints_and_bases(path):
    for number in range(20):
        rename_columns(path, {f"v{number - 1}" if number else "v": f"v{number}"})
    append(path, table(8).rename_columns(["k", "v19", "n"]))
    assert len(rows(path, filter="v19 = 'v9'")) == 1
    collect(path, compact_log=True)
    assert len(rows(path, filter="v19 = 'v3'")) == 1
    drop_columns(path, "v19")
    append(path, table(16).rename_columns(["k", "v19", "n"]))
    assert rows(path, filter="v19 = 'v3'") == []


# Keys, order, combined rows -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "how",
    [
        {"keys": "k"},
        {"keys": "k", "sort_by": [("v", "descending")]},
        {"partitioner": RangePartitioner("v", ("k", "descending"), bounds=[("v2", 2), ("v5", 5)])},
        {"partitioner": ColumnPartitioner("k")},
    ],
)
@pytest.mark.parametrize("rewrite", ["never", "always"])
def test_keys_are_renamed_wherever_they_are_named(tmp_path, how, rewrite):
    path = tmp_path / "x"
    for _ in range(2):
        write_rows(path, table(), n=8, mode="append", options=OPTIONS, **how)
    before = open_shuffle(path).read().read_all().rename_columns(["v", "n", "k"])
    rename_columns(path, {"k": "v", "v": "n", "n": "k"})
    assert open_shuffle(path).read().read_all() == before
    assert len(rows(path, filter="v = 3 and n = 'v3'")) == 2
    append(path, table().rename_columns(["v", "n", "k"]))
    assert len(rows(path, filter="v = 3 and n = 'v3'")) == 3
    merge_shuffle(path, policy=MergePolicy(rewrite=rewrite), options=OPTIONS, by="map_output")
    assert len(rows(path, filter="v = 3 and n = 'v3'")) == 3
    if "sort_by" in how:
        texts = open_shuffle(path).read([0]).read_all()["n"].to_pylist()
        assert texts == sorted(texts, reverse=True)
    with pytest.raises(SchemaError, match="column 'v' decides the subpartition"):
        drop_columns(path, "v")


def test_combined_columns_are_renamed_and_none_is_dropped(tmp_path):
    path = tmp_path / "x"
    combined = table().drop_columns("v")
    write_rows(path, combined, "k", n=N, combine={"n": "sum"}, options=OPTIONS)
    rename_columns(path, {"n": "total", "k": "n"})
    assert open_shuffle(path).combine == {"total": "sum"}
    append(path, pa.table({"n": [1], "total": [5]}))
    assert rows(path, filter="n = 1") == [{"n": 1, "total": 10}, {"n": 1, "total": 5}]
    with pytest.raises(SchemaError, match="'total' is combined"):
        drop_columns(path, "total")


def test_bounds_of_an_erased_key_are_found_under_its_old_name(tmp_path):
    path = tmp_path / "x"
    ranges = RangePartitioner("k", bounds=[3, 5])
    write_rows(path, table(), n=3, partitioner=ranges, options=OPTIONS)
    rename_columns(path, {"k": "key"})
    assert open_shuffle(path).snapshot.newest.shape.bounds_since == 1
    receipt = delete_rows(path, {"key": [3]})
    assert receipt.bound_columns == ("key",)
    assert not erasure_status(path, receipt).is_gone


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "error", "problem"),
    [
        ({"rename": {"x": "y"}}, SchemaError, "column 'x' is not there"),
        ({"drop": ["V"]}, SchemaError, "column 'V' is not there (did you mean 'v'?)"),
        ({"rename": {"v": "k"}}, SchemaError, "two columns would have one name but for case"),
        ({"rename": {"v": "K"}}, SchemaError, "'k', 'K'"),
        ({"rename": {"v": "w"}, "drop": ["v"]}, SchemaError, "renamed and dropped at once"),
        ({"drop": ["k"]}, SchemaError, "'k' decides the subpartition of each row"),
        ({}, OptionError, "no column is to be renamed or dropped"),
        ({"rename": {"v": ""}}, OptionError, "expected new names of columns"),
        ({"rename": {"v": 3}}, OptionError, "expected new names of columns"),
        ({"rename": {"v": "\ud800"}}, OptionError, "expected new names of columns"),
        ({"drop": ["\ud800"]}, SchemaError, "is not there"),
        ({"drop": ["v"], "expected_version": 0}, CommitConflictError, "expected_version=0"),
    ],
)
def test_what_is_refused(path, how, error, problem):
    with pytest.raises(error, match=re.escape(problem)):
        alter_columns(path, **how)
    assert log_of(path).newest_version() == 1


def test_no_shuffle(tmp_path):
    with pytest.raises(ShuffleNotFoundError):
        drop_columns(tmp_path / "nothing", "a")


def test_the_last_column_stays(tmp_path):
    write_rows(tmp_path / "x", pa.table({"a": [1]}), n=1, partitioner=RoundRobinPartitioner())
    with pytest.raises(SchemaError, match="no column would be left"):
        drop_columns(tmp_path / "x", "a")


def test_a_partitioner_of_ones_own_may_name_columns(tmp_path):
    own = OwnPartitioner(lambda batch, n: pa.compute.bit_wise_and(batch["k"], n - 1).to_numpy())
    write_rows(tmp_path / "x", table(), n=2, partitioner=own)
    with pytest.raises(SchemaError, match="a partitioner of your own"):
        rename_columns(tmp_path / "x", {"n": "m"})


def test_of_two_that_rename_a_column_one_wins(path):
    with (
        pytest.raises(CommitConflictError, match="another writer altered the columns v"),
        before_first_entry(lambda: alter_columns(path, rename={"v": "n", "n": "v"})),
    ):
        rename_columns(path, {"v": "text"})


@pytest.mark.parametrize("is_put", [True, False])
@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda path: rename_columns(path, {"v": "w"}), "the columns were altered"),
        (lambda path: rollback_shuffle(path, 1), "version 1 was rolled back to"),
    ],
)
def test_without_an_answer_it_says_that_it_does_not_know(path, change, what, is_put):
    def unanswered(put, _):
        if is_put:
            put()
        raise StorageError("no answer")

    with (
        pytest.raises(UnsettledCommitError, match=rf"not known whether {what}.*no answer.*Look"),
        instead_of_first_entry(unanswered),
    ):
        change(path)
    assert log_of(path).newest_version() == 1 + is_put
