"""Which rows were deleted, inserted and erased between two versions, and what is read to say it."""

import pickle
from collections import Counter

import pyarrow as pa
import pytest

import arrow_shuffle
from arrow_format import MergePolicy, merge_shuffle
from arrow_format.errors import (
    CorruptShuffleError,
    OptionError,
    ResultReleasedError,
    SchemaError,
    ShuffleNotFoundError,
    ShuffleOverwrittenError,
)
from arrow_format.log import net_changes
from arrow_format.operators import net_changes as compare
from arrow_format.options import ReadOptions, ResultPartitionType, WriteOptions
from arrow_shuffle import HashPartitioner, RoundRobinPartitioner, open_shuffle, write_shuffle
from tests.support import customers
from tests.support.recording_storage import RecordingStorage
from tests.support.small_shuffles import collect

N = 4
FAST = WriteOptions(sync=False, schema_evolution=True)
SMALL = WriteOptions(sync=False, sort_buffer_bytes=4_096, chunk_bytes=64, schema_evolution=True)


def table(*keys, v="a", **columns):
    return pa.table({"k": pa.array(keys, pa.int64()), "v": [f"{v}{k}" for k in keys], **columns})


def write(path, rows, mode="append", **how):
    how = {"keys": "k", "num_subpartitions": N, "options": FAST, **how}
    return write_shuffle(rows, path, mode=mode, **how).version


def mask(path, *keys):
    open_shuffle(path).delete({"k": [*keys]}, erase=False, options=FAST)


def erase(path, *keys):
    open_shuffle(path).delete({"k": [*keys]}, options=FAST)


def merge(path, rewrite="always"):
    before = open_shuffle(path).version
    merge_shuffle(path, by="map_output", policy=MergePolicy(rewrite=rewrite), options=FAST)
    assert open_shuffle(path).version > before


def changes(path, since, version=None, **how):
    """What changed, each row as a tuple that begins with the kind; sorted."""
    found = open_shuffle(path, version).changes(since, **how).read_all()
    rows = [(row.pop("_change_type"), *row.values()) for row in found.to_pylist()]
    return sorted(rows, key=str)


def inserts(*keys, v="a"):
    return [("insert", k, f"{v}{k}") for k in keys]


def deletes(*keys, v="a"):
    return [("delete", k, f"{v}{k}") for k in keys]


def knows_nothing(log, view, since, now, changed):
    """As where the entries of merges and deletions say nothing of what moved."""
    return net_changes._Known(changed, since, {})


@pytest.fixture
def path(tmp_path):
    """Version 1 has keys 0 to 9, version 2 adds 10 to 14."""
    write(tmp_path, table(*range(10)))
    write(tmp_path, table(*range(10, 15)))
    return tmp_path


# One operation ------------------------------------------------------------------------------------


def test_an_append_inserts_its_rows(path):
    assert changes(path, 1) == inserts(*range(10, 15))
    assert changes(path, 0, 1) == inserts(*range(10))
    assert changes(path, 0) == sorted(inserts(*range(15)), key=str)
    assert changes(path, 2) == changes(path, 1, 1) == []


def test_columns_keys_and_kinds_are_typed(path):
    mask(path, 3)
    found = open_shuffle(path).changes(1)
    assert found.schema == pa.schema(
        [("k", pa.int64()), ("v", pa.string()), pa.field("_change_type", pa.string(), False)]
    )
    rows = found.read_all()
    assert Counter(rows["_change_type"].to_pylist()) == {"delete": 1, "insert": 5}
    tight = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string(), False)])
    write(path, table(1, v="b").cast(tight), mode="overwrite")
    schema = open_shuffle(path).changes(4).schema
    assert [field.nullable for field in schema] == [True, True, False]


def test_a_masked_row_is_deleted_with_its_values(path):
    mask(path, 3, 11, 99)
    assert changes(path, 2) == deletes(11, 3)
    assert changes(path, 1) == [*deletes(3), *inserts(10, 12, 13, 14)]
    mask(path, 4)
    assert changes(path, 3) == deletes(4)
    assert changes(path, 2) == deletes(11, 3, 4)


def test_of_an_erased_row_the_keys_alone_come_out(path):
    erase(path, 3, 11)
    assert changes(path, 2) == [("erase", 11, None), ("erase", 3, None)]
    assert changes(path, 1) == [("erase", 3, None), *inserts(10, 12, 13, 14)]
    assert changes(path, 1, 2) == inserts(*range(10, 15)), "as version 2 itself can be read"


def test_an_erased_row_that_was_masked_before_has_no_values(path):
    mask(path, 3, 4)
    erase(path, 3)
    assert changes(path, 2) == [("erase", 3, None), ("erase", 4, None)], "nobody knows which"
    assert changes(path, 3) == []


def test_an_erasure_that_the_log_does_not_have_shows_no_values(path):
    """Of rows that only earlier versions have: a deletion is the newest version already."""
    mask(path, 3)
    merge(path)
    mask(path, 5)
    number = open_shuffle(path).version
    receipt = open_shuffle(path).delete({"k": [3]})
    assert (receipt.num_rows, receipt.version, bool(receipt.files)) == (0, number, True)
    assert changes(path, 2) == [("delete", 5, "a5"), ("erase", 3, None)]


def test_an_erasure_of_what_only_earlier_versions_have_is_obeyed(path):
    mask(path, 3)
    merge(path)
    assert changes(path, 2) == deletes(3)
    write(path, table(20))
    erase(path, 3)
    assert changes(path, 2) == [("erase", 3, None), *inserts(20)]
    assert changes(path, 2, 4) == [("erase", 3, None)], "of pinned versions too"


@pytest.mark.parametrize("rewrite", ["never", "always"])
def test_a_merge_changes_nothing_and_no_row_is_read(path, rewrite):
    merge(path, rewrite)
    storage = RecordingStorage(str(path))
    assert open_shuffle(storage).changes(2).read_all().num_rows == 0
    assert not storage.rounds
    assert not [name for name in storage.others if "map_outputs" in name]
    assert changes(path, 1) == inserts(*range(10, 15))


def test_names_of_columns_are_those_of_this_version(path):
    open_shuffle(path).rename_columns({"v": "w", "k": "key"})
    assert changes(path, 2) == []
    found = open_shuffle(path).changes(1).read_all()
    assert found.column_names == ["key", "w", "_change_type"]
    assert sorted(found["w"].to_pylist()) == ["a10", "a11", "a12", "a13", "a14"]
    open_shuffle(path).delete({"key": [3]})
    assert open_shuffle(path).changes(2).read_all().to_pylist() == [
        {"key": 3, "w": None, "_change_type": "erase"}
    ]


def test_a_dropped_column_is_none_of_the_rows(path):
    mask(path, 3)
    open_shuffle(path).drop_columns(["v"])
    assert changes(path, 2) == [("delete", 3)]


def test_a_rollback_takes_back_and_gives_back(path):
    mask(path, 3)
    write(path, table(20))
    open_shuffle(path).rollback(2, undo_deletions=True)
    assert changes(path, 2) == []
    assert changes(path, 3) == inserts(3)
    assert changes(path, 4) == [*deletes(20), *inserts(3)]


def test_a_rollback_over_merges_reads_none_of_what_they_moved(path):
    write(path, table(20))
    merge(path)
    open_shuffle(path).rollback(2)
    storage = RecordingStorage(str(path))
    assert open_shuffle(storage).changes(2).read_all().num_rows == 0
    assert changes(path, 4) == deletes(20)
    (output,) = open_shuffle(path, 3).map_outputs[2:]
    merged = open_shuffle(path, 4).map_outputs
    for other in (*merged, *open_shuffle(path, 2).map_outputs):
        for file in other.files:
            (path / file.data_path).rename(path / "away")
            assert changes(path, 4) == deletes(20), "only what version 3 added is read"
            (path / "away").rename(path / file.data_path)
    (path / output.files[0].data_path).unlink()
    with pytest.raises(CorruptShuffleError):
        changes(path, 4)


def test_an_overwrite_deletes_what_is_gone_and_inserts_what_is_new(path):
    write(path, table(1, 2, 2, 30), mode="overwrite")
    expected = [*deletes(0, 10, 11, 12, 13, 14, 3, 4, 5, 6, 7, 8, 9), *inserts(2, 30)]
    assert changes(path, 2) == expected
    write(path, table(1, 2, 2, 30), mode="overwrite")
    assert changes(path, 3) == []


@pytest.mark.parametrize(
    "how",
    [
        {"num_subpartitions": 7},
        {"keys": None, "partitioner": HashPartitioner("v")},
        {"keys": None, "partitioner": RoundRobinPartitioner()},
        {"sort_by": "v"},
    ],
    ids=["n", "keys", "no keys", "order"],
)
def test_an_overwrite_with_another_layout(path, how):
    before = table(*range(15))
    write(path, table(1, 2, 2, 30), mode="overwrite", **how)
    expected = [*deletes(0, 10, 11, 12, 13, 14, 3, 4, 5, 6, 7, 8, 9), *inserts(2, 30)]
    assert changes(path, 2) == expected
    open_shuffle(path).rollback(2)
    assert changes(path, 2) == []
    assert changes(path, 3) == sorted(
        [*deletes(2, 30), *inserts(*range(0, 1), *range(3, 15))], key=str
    )
    assert open_shuffle(path).num_rows == len(before)


def test_an_overwrite_with_columns_that_do_not_fit_is_to_be_recomputed(path):
    write(path, pa.table({"k": [1, 2], "v": [1.5, 2.5]}), mode="overwrite")
    with pytest.raises(
        SchemaError, match=r"'v' is string in version 2 and double .* recompute all"
    ):
        changes(path, 2)


# Several operations -------------------------------------------------------------------------------


def test_what_was_added_and_deleted_again_is_none(path):
    write(path, table(20, 21))
    mask(path, 20)
    assert changes(path, 2) == inserts(21)
    erase(path, 21)
    assert changes(path, 2) == []


def test_a_row_that_was_deleted_and_added_again_is_none(path):
    mask(path, 3)
    write(path, table(3))
    assert changes(path, 2) == []
    erase(path, 3)
    write(path, table(3))
    assert changes(path, 2) == []
    assert changes(path, 4) == []


def test_a_row_that_was_replaced_is_deleted_and_inserted(path):
    mask(path, 3)
    write(path, table(3, v="b"))
    assert changes(path, 2) == [*deletes(3), *inserts(3, v="b")]
    kinds = open_shuffle(path).changes(2).read_all()["_change_type"].to_pylist()
    assert kinds == ["delete", "insert"]


def test_an_upsert_deletes_what_it_replaced_and_inserts_the_new_rows(tmp_path):
    write(tmp_path, table(*range(10)), unique="k")
    open_shuffle(tmp_path).upsert(table(3, 4, 20, v="b"), options=FAST)
    expected = [*deletes(3, 4), *inserts(20, 3, 4, v="b")]
    assert changes(tmp_path, 1) == expected
    storage = RecordingStorage(str(tmp_path))
    assert changes(storage, 2) == []
    assert not storage.rounds
    merge(tmp_path)
    assert changes(tmp_path, 1) == expected
    assert changes(tmp_path, 2) == []
    open_shuffle(tmp_path).upsert(table(3, 5), options=FAST)
    assert changes(tmp_path, 1) == [*deletes(4), *inserts(20, 4, v="b")], "3 and 5 are as before"
    feed = pa.table({"k": [4, 20, 30], "v": ["a4", None, "a30"], "op": ["u", "d", "c"]})
    open_shuffle(tmp_path).upsert(feed, row_kind="op", options=FAST)
    assert changes(tmp_path, 1) == inserts(30)
    with pytest.raises(ShuffleOverwrittenError, match=r"version 5 replaced rows by an upsert"):
        open_shuffle(tmp_path).added(4)
    erase(tmp_path, 3)
    assert changes(tmp_path, 1) == [("erase", 3, None), *inserts(30)]


def test_equal_rows_are_counted(path):
    write(path, table(3, 3, 3, 30))
    mask(path, 3)
    write(path, table(3, 3))
    assert changes(path, 2) == [*inserts(3), *inserts(30)]
    assert changes(path, 3) == deletes(3, 3)


def test_of_a_file_that_no_row_is_left_of_a_deletion_is_taken_for_an_erasure(path):
    mask(path, *range(10, 15))
    assert changes(path, 2) == [("erase", k, None) for k in range(10, 15)]


def test_a_merge_between_an_append_and_a_deletion(path):
    write(path, table(20, 21))
    merge(path)
    mask(path, 3, 20)
    assert changes(path, 2) == [*deletes(3), *inserts(21)]
    assert changes(path, 4) == deletes(20, 3)
    write(path, table(22))
    merge(path)
    assert changes(path, 2) == [*deletes(3), *inserts(21, 22)]


@pytest.mark.parametrize("num_merges", [1, 3])
def test_merges_between_are_told_from_the_log(path, num_merges, monkeypatch):
    for number in range(num_merges):
        write(path, table(20 + number))
        merge(path)
    mask(path, 3)
    write(path, table(30))
    expected = [*deletes(3), *inserts(*range(20, 20 + num_merges), 30)]
    storage = RecordingStorage(str(path))
    assert changes(storage, 2) == expected
    # Rows that moved are not decoded: the files that had them may lack their data.
    for output in open_shuffle(path, 2).map_outputs:
        (path / output.files[0].data_path).unlink()
    assert changes(path, 2) == expected
    monkeypatch.setattr(net_changes, "_known_of", knows_nothing)
    with pytest.raises(CorruptShuffleError):
        changes(path, 2)


@pytest.mark.parametrize("num_erasures", [1, 2])
def test_of_what_an_erasure_wrote_again_few_subpartitions_are_read(
    tmp_path, num_erasures, monkeypatch
):
    rows = pa.table({"k": range(4_000), "v": [f"a{k}" for k in range(4_000)]})
    write(tmp_path, rows, num_subpartitions=64, options=SMALL)
    write(tmp_path, table(-1), num_subpartitions=64)
    merge(tmp_path, "always")
    mask(tmp_path, 5)
    for key in range(num_erasures):
        erase(tmp_path, 7 + key)
    expected = [*(("erase", k, None) for k in [5, 7, 8][: 1 + num_erasures])]
    compared = []

    def counted(both, *how):
        compared.append(both.num_rows)
        return _net(both, *how)

    _net = compare._net
    monkeypatch.setattr(compare, "_net", counted)
    for since in (1, 2, 3, 4):
        inserted = inserts(-1) if since == 1 else []
        assert changes(tmp_path, since) == [*expected[since == 4 :], *inserted]
    assert max(compared) < 2 * len(rows) / 8
    with monkeypatch.context() as patch:
        patch.setattr(net_changes, "_known_of", knows_nothing)
        assert changes(tmp_path, 3) == expected
    assert max(compared) > len(rows)


def test_an_erasure_after_a_rollback_over_a_mask(path):
    """As many rows of a subpartition are not the same rows then."""
    write(path, table(3, 3, v="b"))
    mask(path, 3)
    open_shuffle(path).rollback(3, undo_deletions=True)
    keys = [k for k in range(10) if k != 3]
    own = open_shuffle(path).subpartition_of(k=3)
    other = next(k for k in keys if open_shuffle(path).subpartition_of(k=k) == own)
    erase(path, other)
    assert changes(path, 4) == [("erase", other, None), *inserts(3), *inserts(3, 3, v="b")]


def test_rows_are_compared_where_the_log_cannot_tell(path, monkeypatch):
    """As where the entries of merges are gone: by subpartition, in as many passes as are needed."""
    monkeypatch.setattr(net_changes, "_known_of", knows_nothing)
    write(path, table(*range(100, 400)))
    merge(path)
    mask(path, 3, 104)
    expected = [("erase", 104, None), ("erase", 3, None)]
    assert changes(path, 3) == expected
    for most in (4 << 10, 20 << 10):
        monkeypatch.setattr(ReadOptions, "working_set_bytes", property(lambda _, most=most: most))
        assert changes(path, 3) == expected
        open_shuffle(path).rollback(4, undo_deletions=True)
        write(path, table(3, v="b"))
        assert changes(path, 3) == inserts(3, v="b")
        write(path, table(*range(100, 400), 7), mode="overwrite")
        gone = [*range(7), *range(8, 15)]
        assert changes(path, 4) == sorted(deletes(*gone), key=str)
        open_shuffle(path).rollback(5, undo_deletions=True)


def test_a_wider_type_and_a_new_column_change_no_row(tmp_path):
    small, large = pa.array([7, 8], pa.int8()), pa.array([1 << 40])
    write(tmp_path, table(1, 2, a=small))
    write(tmp_path, table(3, a=large, b=["x"]))
    assert changes(tmp_path, 1) == [("insert", 3, "a3", 1 << 40, "x")]
    mask(tmp_path, 1)
    assert changes(tmp_path, 1) == [("delete", 1, "a1", 7, None), ("insert", 3, "a3", 1 << 40, "x")]
    write(tmp_path, table(1, a=pa.array([7], pa.int8())))
    assert changes(tmp_path, 2) == []
    open_shuffle(tmp_path).rollback(1, undo_deletions=True)
    assert open_shuffle(tmp_path).changes(2).schema.field("a").type == pa.int64()
    assert changes(tmp_path, 2) == [("delete", 3, "a3", 1 << 40)]


@pytest.mark.parametrize("num_rows", [1, 3])
def test_some_columns(path, num_rows):
    """By whose values rows differ then."""
    keys = [*range(20, 20 + num_rows)]
    write(path, table(*keys))
    mask(path, 3)
    write(path, table(3, v="b"))
    assert changes(path, 2, columns=["k"]) == [("insert", k) for k in keys]
    assert changes(path, 2, columns=["v"]) == [
        ("delete", "a3"), *(("insert", f"a{k}") for k in keys), ("insert", "b3"),
    ]  # fmt: skip


def test_columns_of_any_type(tmp_path):
    types = {
        "m": (pa.map_(pa.string(), pa.int32()), [[("x", 1), ("y", None)], [], None]),
        "f": (pa.list_(pa.float64(), 2), [[1.5, float("nan")], [0.0, None], None]),
        "l": (pa.list_(pa.struct([("a", pa.string())])), [[{"a": "x"}, None], [], None]),
        "d": (pa.decimal128(30, 2), [1, None, 2]),
        "t": (pa.timestamp("us", "UTC"), [1, None, 2]),
        "b": (pa.bool_(), [True, False, None]),
        "n": (pa.null(), [None] * 3),
        "i": (pa.month_day_nano_interval(), [(1, 2, 3), None, (1, 2, 4)]),
        "x": (pa.binary(3), [b"abc", None, b"abd"]),
    }
    columns = {name: pa.array(values, type_) for name, (type_, values) in types.items()}
    rows = pa.table({"k": [1, 2, 3], **columns})
    write(tmp_path, rows, for_spark=False)
    write(tmp_path, rows, mode="overwrite", for_spark=False)
    found = open_shuffle(tmp_path).changes(1)
    assert found.read_all().num_rows == 0
    for name in types:
        if name == "n":
            continue
        other = rows.set_column(
            rows.column_names.index(name), name, rows[name].take(pa.array([1, 0, 2]))
        )
        write(tmp_path, other, mode="overwrite", for_spark=False)
        version = open_shuffle(tmp_path).version
        kinds = Counter(
            (row["_change_type"], row["k"])
            for row in open_shuffle(tmp_path).changes(1).read_all().to_pylist()
        )
        assert kinds == dict.fromkeys(
            [(kind, k) for kind in ("delete", "insert") for k in (1, 2)], 1
        )
        assert open_shuffle(tmp_path, version).changes(1, ["k"]).read_all().num_rows == 0


# Layouts ------------------------------------------------------------------------------------------


def of_versions(path, since, **how):
    """What the rows of a version and of the newest say, each as often as it is read."""
    before, after = (
        Counter(
            map(tuple, (row.values() for row in open_shuffle(path, version).to_table().to_pylist()))
        )
        for version in (since, None)
    )
    found = Counter(changes(path, since, **how))
    inserted = Counter({row[1:]: n for row, n in found.items() if row[0] == "insert"})
    gone = Counter({row[1:]: n for row, n in found.items() if row[0] != "insert"})
    return before, after, inserted, gone


@pytest.mark.parametrize("num_tasks", [1, 3])
def test_broadcast_rows_map_outputs_and_regions(tmp_path, num_tasks):
    customers.append_tasks(tmp_path, 0, num_tasks)
    customers.append_tasks(tmp_path, 400, num_tasks)
    regions = [file.num_regions for one in open_shuffle(tmp_path).map_outputs for file in one.files]
    assert max(regions) > 1
    mask(tmp_path, 7, 8)
    merge(tmp_path, "never")
    customers.append_tasks(tmp_path, 800, num_tasks)
    mask(tmp_path, 9)
    for since in (1, 2, 3, 4, 5):
        before, after, inserted, gone = of_versions(tmp_path, since)
        if since > 2:
            assert (inserted, gone) == (after - before, before - after)
        assert inserted == after - before
        assert gone.total() == (before - after).total()


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("since", "error", "message"),
    [
        (-1, ShuffleNotFoundError, "version -1 is not there"),
        (5, OptionError, r"since=5 is after version 2, .*\.newest\(\)"),
        (True, OptionError, "version=True"),
        (1.5, OptionError, "version=1.5"),
        ("never", ShuffleNotFoundError, "no version has the tag 'never'"),
    ],
)
def test_a_version_that_cannot_be_compared(path, since, error, message):
    with pytest.raises(error, match=message):
        open_shuffle(path).changes(since)


def test_a_later_version_and_an_expired_one(path):
    mask(path, 3)
    with pytest.raises(OptionError, match="since=3 is after version 2"):
        open_shuffle(path, 2).changes(3)
    collect(path)
    with pytest.raises(ShuffleNotFoundError, match=r"version 2 has expired, .* recompute all"):
        changes(path, 2)
    assert changes(path, 3) == []
    assert len(changes(path, 0)) == 14


def test_a_tagged_version_and_a_time(path):
    open_shuffle(path).tag("known", 1)
    mask(path, 3)
    expected = [*deletes(3), *inserts(*range(10, 15))]
    assert changes(path, "known") == expected
    collect(path)
    # Nothing says what was between.
    assert changes(path, "known") == [("erase", 3, None), *inserts(*range(10, 15))]


def test_a_released_version(tmp_path):
    options = WriteOptions(sync=False, result_type=ResultPartitionType.BLOCKING)
    write(tmp_path, table(1), options=options)
    pinned = open_shuffle(tmp_path)
    pinned.release()
    write(tmp_path, table(2), options=FAST)
    with pytest.raises(ResultReleasedError, match=r"was released .* recompute all"):
        changes(tmp_path, 1)
    assert changes(tmp_path, 0) == inserts(2)


def test_an_unknown_column_and_none(path):
    shuffle = open_shuffle(path)
    with pytest.raises(SchemaError, match="column 'x' is not there"):
        shuffle.changes(1, ["x"])
    with pytest.raises(OptionError, match=r"columns=\[\]: name one"):
        shuffle.changes(1, [])
    write(path, pa.table({"k": [1], "_change_type": ["x"]}), mode="overwrite")
    with pytest.raises(SchemaError, match="'_change_type' is there already"):
        open_shuffle(path).changes(2)
    assert open_shuffle(path).changes(2, ["k"]).read_all().num_rows == 14


def test_part_of_a_version_is_refused(path):
    shuffle = open_shuffle(path)
    for part in (shuffle.added(1), shuffle.where("k > 3"), shuffle.latest_by("v")):
        with pytest.raises(OptionError, match="changes are those of a whole version"):
            part.changes(1)


def test_a_version_that_expires_while_it_is_read_says_so(path):
    mask(path, *range(9))
    found = open_shuffle(path).changes(2)
    write(path, table(1), mode="overwrite")
    collect(path)
    with pytest.raises(ShuffleNotFoundError, match="has expired"):
        found.read_all()


def test_what_was_added_is_a_shuffle(path):
    mask(path, 3)
    added = open_shuffle(path).added(since=1)
    assert isinstance(added, arrow_shuffle.Shuffle)
    assert added.count_rows() == 5
    assert pickle.loads(pickle.dumps(added)).to_table() == added.to_table()
