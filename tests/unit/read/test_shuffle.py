"""Opening and reading a committed shuffle without Spark."""

import errno
import gc
import os
import re
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    ColumnPartitioner,
    FormatVersionError,
    HashPartitioner,
    OptionError,
    RoundRobinPartitioner,
    SchemaError,
    ShuffleError,
    ShuffleNotFoundError,
    StorageError,
    open_shuffle,
)
from arrow_format.log.names import entry_path
from arrow_format.log.totals import encode_totals
from arrow_format.options import WriteOptions
from arrow_format.storage import local
from tests.support.hostile import forged_frame
from tests.support.open_files import open_files
from tests.support.own_partitioner import OwnPartitioner
from tests.support.small_shuffles import SCHEMA, flip, numbered, shuffle_of, write_tasks

N = 8
IDS = [[5, 1, 1, 7, 5], [1, 0, 5], [], [7, 7, 0, 1]]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Two versions of two map outputs each; subpartitions 2, 3, 4 and 6 are empty."""
    path = tmp_path_factory.mktemp("dataset") / "x"
    starts = np.cumsum([0, *map(len, IDS)]).tolist()
    batches = [[numbered(ids, start)] for ids, start in zip(IDS, starts, strict=False)]
    write_tasks(path, batches[:2], N)
    write_tasks(path, batches[2:], N, mode="append")
    return path


@pytest.fixture
def shuffle(path):
    return open_shuffle(path)


EVERYTHING = numbered([s for ids in IDS for s in ids]).to_pylist()


def expected(subpartitions):
    """Ascending subpartition, then order of writing."""
    return [row for s in sorted(set(subpartitions)) for row in EVERYTHING if row["p"] == s]


# Opening ------------------------------------------------------------------------------------------


def test_properties(shuffle, path):
    assert shuffle.path == str(path)
    assert shuffle.schema.equals(SCHEMA)
    assert shuffle.spark_schema is None
    assert shuffle.version == 2
    assert shuffle.num_subpartitions == N
    assert shuffle.num_rows == 12
    assert shuffle.partitioner == ColumnPartitioner("p")
    assert [output.map_task for output in shuffle.map_outputs] == [0, 1, 0, 1]
    assert shuffle.snapshot.newest.version == 2
    assert shuffle.subpartition_rows.to_pylist() == [2, 4, 0, 0, 0, 3, 0, 3]
    assert sum(shuffle.subpartition_bytes.to_pylist()) == shuffle.num_bytes
    on_disk = sum(file.stat().st_size for file in path.rglob("*.shuffle.data"))
    assert shuffle.num_bytes == on_disk
    assert repr(shuffle) == f"<Shuffle {path} version 2: 12 rows in 8 subpartitions>"


def test_an_older_version(path):
    old = open_shuffle(path, version=1)
    assert (old.version, old.num_rows) == (1, 8)
    assert old.read().read_all().num_rows == 8


@pytest.mark.parametrize("version", [0, 3, -1, 1 << 70])
def test_a_version_that_is_not_there(path, version):
    with pytest.raises(ShuffleNotFoundError, match=f"version {version} is not there; .*1 to 2"):
        open_shuffle(path, version=version)


@pytest.mark.parametrize("version", [1.0, True, None.__class__, b"1"])
def test_a_version_that_is_no_number(path, version):
    with pytest.raises(OptionError, match=f"version={re.escape(repr(version))}: expected a number"):
        open_shuffle(path, version=version)


def test_paths_that_hold_no_shuffle(tmp_path):
    with pytest.raises(ShuffleNotFoundError, match=f"{tmp_path}/no: is not there; check the path"):
        open_shuffle(tmp_path / "no")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ShuffleNotFoundError, match="file: is a file, not the directory"):
        open_shuffle(tmp_path / "file")
    with pytest.raises(ShuffleNotFoundError, match="holds no committed shuffle"):
        open_shuffle(tmp_path)
    with pytest.raises(ShuffleNotFoundError, match="version 1 is not there; there are none"):
        open_shuffle(tmp_path, version=1)


@pytest.mark.parametrize(
    "partitioner", [HashPartitioner("v", "p"), RoundRobinPartitioner(), ColumnPartitioner("p")]
)
def test_the_partitioner_comes_back(tmp_path, partitioner):
    shuffle = shuffle_of(tmp_path, [numbered([1])], n=N, partitioner=partitioner)
    assert shuffle.partitioner == partitioner


def test_a_users_own_partitioner_comes_back_as_its_description(tmp_path):
    own = OwnPartitioner(lambda *_: np.array([3]))
    shuffle = shuffle_of(tmp_path / "x", [numbered([1])], n=N, partitioner=own)
    assert shuffle.partitioner == {"kind": "own"}
    assert shuffle.subpartition(3).read_all().num_rows == 1


# Reading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", range(N))
def test_one_subpartition(shuffle, one):
    table = shuffle.subpartition(one).read_all()
    assert table.schema.equals(SCHEMA)
    assert table.to_pylist() == expected([one])


@pytest.mark.parametrize(
    "several",
    [range(N), range(2, 7), [7, 0], [5, 1, 5], (), {1, 7}, np.array([5, 6, 7]), [np.int8(5)]],
)
def test_several_subpartitions_ascend_whatever_was_asked(shuffle, several):
    assert shuffle.read(several).read_all().to_pylist() == expected([int(s) for s in several])


def test_everything(shuffle):
    assert shuffle.read().read_all().to_pylist() == expected(range(N))
    assert shuffle.read(5).read_all().to_pylist() == expected([5])


@pytest.mark.parametrize("columns", [["v"], ["s", "p"], ("s",), "v"])
def test_columns(shuffle, columns):
    names = [columns] if isinstance(columns, str) else list(columns)
    for table in (
        shuffle.read(columns=columns).read_all(),
        shuffle.read([1, 5], columns).read_all(),
        shuffle.subpartition(1, columns).read_all(),
    ):
        assert table.column_names == names
    table = shuffle.read(columns=columns).read_all()
    assert table.to_pylist() == [{n: row[n] for n in names} for row in expected(range(N))]


def test_no_columns_still_count_rows(shuffle):
    batches = list(shuffle.read(columns=[]))
    assert sum(batch.num_rows for batch in batches) == 12
    assert sum(batch.num_rows for batch in shuffle.subpartition(1, columns=[])) == 4
    table = shuffle.read(columns=[], with_subpartition=True).read_all()
    assert table.to_pydict() == {"_subpartition": [row["p"] for row in expected(range(N))]}


def test_with_subpartition(shuffle):
    for reader in (
        shuffle.read(with_subpartition=True),
        shuffle.read([0, 1, 7, 5], ["v"], with_subpartition=True),
        shuffle.subpartition(5, ["v"], with_subpartition=True),
    ):
        table = reader.read_all()
        assert table.schema.field(-1).equals(pa.field("_subpartition", pa.int32(), nullable=False))
        of = {row["v"]: row["p"] for row in EVERYTHING}
        assert table["_subpartition"].to_pylist() == [of[v] for v in table["v"].to_pylist()]


def test_a_column_of_that_name_is_in_the_way(tmp_path):
    table = pa.table({"_subpartition": [1]})
    shuffle = shuffle_of(tmp_path / "x", table, "_subpartition", n=2)
    assert shuffle.read().read_all().equals(table)
    with pytest.raises(SchemaError, match="'_subpartition' is there already"):
        shuffle.read(with_subpartition=True)


@pytest.mark.parametrize("one", [N, -1, 1 << 40])
def test_out_of_range(shuffle, one):
    message = f"subpartition {one} is out of range; the shuffle has 8, 0 to 7"
    for read in (shuffle.subpartition, shuffle.read, lambda s: shuffle.read([1, s])):
        with pytest.raises(OptionError, match=message):
            read(one)


@pytest.mark.parametrize("one", ["3", 1.5, None, True, [1]])
def test_what_is_no_subpartition(shuffle, one):
    with pytest.raises(OptionError, match="expected a whole number"):
        shuffle.subpartition(one)
    with pytest.raises(OptionError, match="expected a whole number"):
        shuffle.read([0, one])


@pytest.mark.parametrize("what", [1.5, True])
def test_what_is_no_set_of_subpartitions(shuffle, what):
    with pytest.raises(OptionError, match="expected"):
        shuffle.read(what)


def test_a_missing_column(shuffle):
    with pytest.raises(SchemaError, match="column 'x' is not there; columns are p, v, s"):
        shuffle.read(columns=["v", "x"])
    with pytest.raises(SchemaError, match="column 'x' is not there"):
        shuffle.subpartition(0, columns="x")


def test_columns_are_weighed_by_their_names(tmp_path):
    table = pa.table({"key": range(100), "price": range(100)})
    shuffle = shuffle_of(tmp_path / "s", table, "key", n=4)
    (rows, one), (_, same) = shuffle.weights("price"), shuffle.weights(["price"])
    assert rows.tolist() == shuffle.subpartition_rows.to_pylist()
    assert one.tolist() == same.tolist()
    assert 0 < one.sum() < shuffle.weights()[1].sum()
    with pytest.raises(SchemaError, match="column 'nope' is not there"):
        shuffle.weights(["nope"])


def test_a_sorted_read_of_no_column_holds_its_sort_keys(tmp_path):
    texts = [f"{number:0500}" for number in range(4_000)]
    table = pa.table({"k": range(4_000), "t": texts})
    shuffle = shuffle_of(tmp_path, table, "k", n=100, sort_by="t")
    reader = shuffle._reader
    reader._options = SimpleNamespace(group_bytes=table.nbytes // 10)
    assert reader.groups(None, []) == reader.groups(None, ["t"])
    assert len(reader.groups(None, [])) > 5


def test_a_group_that_is_larger_than_the_average_says_is_read_one_by_one(path):
    """It is not held to be ordered, and no row that was read before this was seen comes twice."""
    reader = open_shuffle(path)._reader
    found = {}
    for group_bytes in (1 << 20, 1):
        reader._options = SimpleNamespace(group_bytes=group_bytes)
        runs = list(reader.ordered(0, N, None))
        assert [row for run in runs for row in run.batch.to_pylist()] == expected(range(N))
        found[group_bytes] = [len(set(run.subpartitions.tolist())) for run in runs]
    assert found[1 << 20] == [4]
    assert set(found[1]) == {1}


def test_reading_is_repeatable_and_leaves_nothing_open(shuffle):
    before = open_files()
    first = shuffle.read().read_all().to_pylist()
    gc.collect()  # what the writing left, which Python may collect at any moment
    memory = pa.total_allocated_bytes()  # with the indexes, which stay
    assert shuffle.read().read_all().to_pylist() == first
    reader = shuffle.read()
    reader.read_next_batch()
    reader.close()
    del reader
    assert open_files() == before
    assert pa.total_allocated_bytes() == memory


@pytest.mark.slow
def test_batches_are_large_enough_to_hand_on(tmp_path):
    batches = [numbered([3] * 1_000, start) for start in range(0, 200_000, 1_000)]
    tiny = WriteOptions(sync=False, sort_buffer_bytes=1 << 17)
    write_tasks(tmp_path / "x", [batches], N, options=tiny)
    shuffle = open_shuffle(tmp_path / "x")
    assert shuffle.map_outputs[0].files[0].num_regions > 100
    sizes = [batch.num_rows for batch in shuffle.subpartition(3, ["v"])]
    assert sum(sizes) == 200_000
    assert len(sizes) > 1
    assert min(sizes[:-1]) >= 65_536


# Other programs -----------------------------------------------------------------------------------


def test_pyarrow_takes_the_object(shuffle):
    assert pa.table(shuffle).to_pylist() == expected(range(N))
    wider = SCHEMA.set(1, pa.field("v", pa.float64()))
    table = pa.RecordBatchReader.from_stream(shuffle, schema=wider).read_all()
    assert table.schema.equals(wider)
    assert table["v"].to_pylist() == [float(row["v"]) for row in expected(range(N))]


# Verification -------------------------------------------------------------------------------------


def test_verify_reads_everything(shuffle, path):
    seen = []
    report = shuffle.verify(on_file=seen.append)
    assert report.ok
    assert report.problems == ()
    assert (report.path, report.version, report.num_rows) == (str(path), 2, 12)
    assert report.num_files == 3, "a map task without rows has none"
    assert report.num_bytes == shuffle.num_bytes
    assert seen == list(shuffle.map_outputs)


def test_verify_lists_every_damaged_file(tmp_path):
    write_tasks(tmp_path / "x", [[numbered([1, 2])] for _ in range(4)], N)
    files = sorted(tmp_path.rglob("*.shuffle.*"))
    data = [file for file in files if file.name.endswith("data")]
    index = [file for file in files if file.name.endswith("index")]
    flip(data[1], 20)
    index[2].unlink()
    shuffle = open_shuffle(tmp_path / "x")
    report = shuffle.verify(raise_on_damage=False)
    assert not report.ok
    assert len(report.problems) == 2
    assert str(data[1]) in str(report.problems[0])
    assert str(index[2]) in str(report.problems[1])
    assert (report.num_files, report.num_rows) == (2, 4)
    with pytest.raises(ShuffleError, match=str(data[1])):
        shuffle.verify()


def test_verify_lists_what_cannot_be_read_and_goes_on(tmp_path, monkeypatch):
    write_tasks(tmp_path, [[numbered([1])], [numbered([2])], [numbered([3])]], 5)
    broken, *_ = sorted(tmp_path.rglob("*.shuffle.data"))
    real = local.open_file

    def failing(root, path):
        if path.endswith(broken.name):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(root, path)

    monkeypatch.setattr(local, "open_file", failing)
    with pytest.raises(StorageError, match=broken.name):
        open_shuffle(tmp_path).verify()
    report = open_shuffle(tmp_path).verify(raise_on_damage=False)
    assert [broken.name in str(one) for one in report.problems] == [True]
    assert (report.ok, report.num_files) == (False, 2)


@pytest.mark.parametrize("sound", [True, False])
def test_the_rounding_of_bytes_in_totals_is_the_writers_affair(tmp_path, sound):
    """Rows of a subpartition are exact; its bytes are a share that only has to add up."""
    write_tasks(tmp_path / "x", [[numbered([1, 2, 2, 4])]], 5)
    shuffle = open_shuffle(tmp_path / "x")
    rows, sizes = shuffle.subpartition_rows.to_numpy(), shuffle.subpartition_bytes.to_numpy()
    moved = np.array([0, 3, -3, 0, 0])
    if sound:
        totals = encode_totals((rows, sizes + moved))
    else:
        totals = encode_totals((rows + np.sign(moved), sizes))
    (entry_file,) = tmp_path.rglob("*.entry")
    entry_file.write_bytes(forged_frame(entry_file.read_bytes(), {}, {"totals": totals}))
    report = open_shuffle(tmp_path / "x").verify(raise_on_damage=False)
    assert report.ok == sound
    if not sound:
        assert "rows per subpartition of version 1 differ from its indexes" in str(report.problems)


@pytest.mark.parametrize("codec", ["zstd", "none"])
@pytest.mark.parametrize("change", [-1, 1])
def test_verify_notices_a_data_file_of_another_length(tmp_path, codec, change):
    options = WriteOptions(sync=False, codec=codec)
    write_tasks(tmp_path / "x", [[numbered([1, 2])]], N, options=options)
    (data,) = tmp_path.rglob("*.shuffle.data")
    whole = data.read_bytes()
    data.write_bytes(whole[:-1] if change < 0 else whole + b"\0")
    with pytest.raises(ShuffleError, match=str(data)):
        open_shuffle(tmp_path / "x").verify()


def test_a_newer_format_version_is_told_by_name(tmp_path):
    from tests.unit.log.test_entry import forged

    (tmp_path / entry_path(1)).parent.mkdir(parents=True)
    (tmp_path / entry_path(1)).write_bytes(forged(format_version=2, number=1))
    with pytest.raises(FormatVersionError, match="format version 2"):
        open_shuffle(tmp_path)
