"""What is new between two versions: each row once, however the versions are cut into spans."""

import pickle

import pyarrow as pa
import pytest

from arrow_format import merge_shuffle, open_shuffle, open_shuffle_changes
from arrow_format.errors import (
    CorruptShuffleError,
    OptionError,
    SchemaError,
    ShuffleNotFoundError,
    ShuffleOverwrittenError,
)
from arrow_format.jobs.alter import alter_columns
from arrow_format.log.changes import check_commit_id, commit_id_of, steps_after
from arrow_format.log.snapshot import VersionSpan
from arrow_format.options import WriteOptions
from arrow_format.storage.open import ObjectNotFoundError
from tests.support.log_entries import fence
from tests.support.logs import add, log_of
from tests.support.recording_storage import RecordingStorage
from tests.support.small_log import SEGMENT
from tests.support.small_shuffles import FAST, collect, write_tasks

N = 5


def new(path, start, end=None, **how):
    return open_shuffle_changes(path, start, end, **how).read().read_all()["v"].to_pylist()


def rows(*starts):
    return sorted(start + i for start in starts for i in range(N))


@pytest.fixture
def path(tmp_path):
    """Versions 1 and 2 appended, 3 a merge, 4 a fence, 5 and 6 appended."""
    for start in (0, 10):
        add(tmp_path, start)
    merge_shuffle(tmp_path, options=FAST, by="map_output")
    fence(log_of(tmp_path), "lost")
    for start in (50, 60):
        add(tmp_path, start)
    return tmp_path


VERSIONS = (0, 1, 2, 3, 5, 6)
ADDED = {1: 0, 2: 10, 5: 50, 6: 60}


@pytest.mark.parametrize("start", VERSIONS)
def test_appends_are_new_and_merges_and_fences_are_not(path, start):
    for end in VERSIONS[VERSIONS.index(start) :]:
        if end:
            expected = [ADDED[version] for version in range(start + 1, end + 1) if version in ADDED]
            found = open_shuffle_changes(path, start, end)
            assert sorted(found.read().read_all()["v"].to_pylist()) == rows(*expected)
            assert found.num_rows == sum(found.subpartition_rows.to_pylist()) == N * len(expected)
            assert (found.version, found.num_subpartitions) == (end, N)
            assert found.verify().ok
            assert pickle.loads(pickle.dumps(found)).read().read_all() == found.read().read_all()


def test_all_of_it_is_read_as_the_newest_version_is(path):
    """From the beginning: files that were merged are read merged, and checkpoints are used."""
    found = open_shuffle_changes(path, 0)
    assert found.span is None
    assert found.map_outputs == open_shuffle(path).map_outputs


def test_only_new_entries_and_files_are_read(path):
    storage = RecordingStorage(str(path))
    assert sorted(new(storage, 5)) == rows(60)
    names = {name.rpartition("/")[2] for name in storage.others}
    assert {f"{6:020d}.entry"} == {name for name in names if name.endswith(".entry")}
    assert len([name for name in names if name.endswith(".index")]) == 1


def test_one_subpartition_and_some_columns(path):
    found = open_shuffle_changes(path, 2).subpartition(3, ["v"], with_subpartition=True)
    assert found.read_all().to_pylist() == [
        {"v": 53, "_subpartition": 3}, {"v": 63, "_subpartition": 3},
    ]  # fmt: skip


def test_an_overwrite_is_an_error_that_names_it_unless_asked(path):
    assert add(path, 70, mode="overwrite") == 7
    assert add(path, 80) == 8
    for start in (0, 1, 6):
        with pytest.raises(ShuffleOverwrittenError, match=r"version 7 overwrote .*at version 7"):
            new(path, start)
    assert sorted(new(path, 7)) == rows(80)
    assert sorted(new(path, 5, 6)) == rows(60)
    assert sorted(new(path, 5, overwrites="deliver")) == rows(60, 70, 80)
    assert sorted(new(path, 0, overwrites="deliver")) == rows(0, 10, 50, 60, 70, 80)
    assert sorted(new(path, 0, 6)) == rows(0, 10, 50, 60), "it was not there then"


@pytest.mark.parametrize("start", [0, 2])
def test_an_overwrite_of_another_shape_is_never_read_together(path, start):
    add(path, 70, mode="overwrite", n=4)
    with pytest.raises(SchemaError, match=r"differ in their subpartitions \(5 and 4\)"):
        new(path, start, overwrites="deliver")
    other = pa.record_batch({"p": pa.array([0], pa.int32()), "v": ["text"]})
    add(path, 80, mode="overwrite", n=5, batch=other)
    with pytest.raises(SchemaError, match="versions 6 and 8 differ in their schema"):
        open_shuffle_changes(path, 5, overwrites="deliver")


def test_columns_are_nullable_where_any_version_has_nulls(tmp_path):
    tight = pa.schema([pa.field("p", pa.int32(), nullable=False), ("v", pa.int64())])
    loose = pa.schema([("p", pa.int32()), ("v", pa.int64())])
    for schema, mode in ((loose, "append"), (tight, "overwrite"), (tight, "append")):
        add(tmp_path, 0, mode=mode, n=1, batch=pa.record_batch([[0], [None]], schema=schema))
    found = open_shuffle_changes(tmp_path, 0, overwrites="deliver")
    assert found.schema.field("p").nullable
    assert found.read().read_all().num_rows == 3
    assert not open_shuffle_changes(tmp_path, 2).schema.field("p").nullable


def test_a_version_that_is_not_there_yet(path):
    """However large its number is: it is no bad argument."""
    for start in (8, 100, 1 << 61):
        with pytest.raises(
            ShuffleNotFoundError, match=f"version {start} is not there; the newest is"
        ):
            new(path, start)


class TestExpiry:
    def test_what_has_expired_is_an_error_but_for_the_beginning(self, path):
        collect(path)
        assert add(path, 70) == 8
        assert sorted(new(path, 0)) == rows(0, 10, 50, 60, 70)
        assert sorted(new(path, 5)) == rows(60, 70), "version 5 expired, but its rows are known"
        for start in (1, 3):
            message = rf"versions {start + 1} to 5 have expired .*versions 6 to 8"
            with pytest.raises(ShuffleNotFoundError, match=message):
                new(path, start)
        with pytest.raises(ShuffleNotFoundError, match="version 5 has expired"):
            new(path, 0, 5)

    def test_numbers_of_fences_may_expire(self, tmp_path):
        add(tmp_path, 0)
        fence(log_of(tmp_path), "lost")
        add(tmp_path, 10)
        pickled = pickle.dumps(open_shuffle_changes(tmp_path, 1))
        collect(tmp_path)
        assert sorted(new(tmp_path, 1)) == rows(10)
        assert pickle.loads(pickled).num_rows == N

    def test_a_span_whose_versions_expire_says_so(self, path):
        span = open_shuffle_changes(path, 1)
        pickled = pickle.dumps(span)
        add(path, 70, mode="overwrite")
        collect(path)
        with pytest.raises(ShuffleNotFoundError, match="version 2 has expired"):
            span.read().read_all()
        with pytest.raises(ShuffleNotFoundError, match="version 2 has expired"):
            list(span.reader(0, N))
        with pytest.raises(ShuffleNotFoundError, match="version 2 has expired"):
            span.verify()
        with pytest.raises(ShuffleNotFoundError, match="version 2 has expired"):
            pickle.loads(pickled).read().read_all()

    def test_totals_are_those_of_the_span(self, path):
        """They were read with its entries, and are known when these have expired."""
        span = open_shuffle_changes(path, 1)
        add(path, 70)
        collect(path)
        assert sum(span.subpartition_rows.to_pylist()) == 3 * N


def test_steps_say_what_each_version_adds(path):
    log = log_of(path)
    assert [(one.version, one.num_rows) for one in steps_after(log, log.view(), 0)] == [
        (1, 5), (2, 5), (3, 0), (5, 5), (6, 5),
    ]  # fmt: skip
    sizes = {one.version: one.num_bytes for one in steps_after(log, log.view(), 2)}
    assert sizes == {3: 0, 5: log.entry(5).num_bytes, 6: log.entry(6).num_bytes}
    collect(path)
    add(path, 70)
    log = log_of(path)
    assert [(one.version, one.num_rows) for one in steps_after(log, log.view(), 0)] == [
        (6, 20), (8, 5),
    ]  # fmt: skip
    with pytest.raises(ShuffleNotFoundError, match="have expired"):
        list(steps_after(log, log.view(), 2))


def test_a_shuffle_made_anew_is_noticed(path, tmp_path_factory):
    log = log_of(path)
    ids = {version: commit_id_of(log, log.view(), version) for version in (1, 3, 6)}
    check_commit_id(log, log.view(), 6, ids[6])
    collect(path)
    add(path, 70)
    log = log_of(path)
    assert commit_id_of(log, log.view(), 1) is None
    assert commit_id_of(log, log.view(), 5) is None, "a version that has expired may be any"
    with pytest.raises(CorruptShuffleError, match="removed and written again"):
        check_commit_id(log, log.view(), 6, ids[3])
    other = tmp_path_factory.mktemp("other")
    add(other, 0)
    for version in (1, 6):
        with pytest.raises(CorruptShuffleError, match="removed and written again"):
            check_commit_id(log_of(other), log_of(other).view(), version, ids[version])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"start": -1}, OptionError, "start=-1: expected a whole number"),
        ({"start": "1"}, OptionError, "start='1'"),
        ({"start": 2, "end": 1}, OptionError, "version 1 is before version 2"),
        ({"start": 0, "overwrites": "maybe"}, OptionError, "expected one of 'fail', 'deliver'"),
        ({"start": 9}, ShuffleNotFoundError, "version 9 is not there; the newest is 6"),
        ({"start": 1, "end": 7}, ShuffleNotFoundError, "version 7 is not there"),
        (
            {"start": 1, "end": 4},
            ShuffleNotFoundError,
            "version 4 is not there; that number gives up",
        ),
    ],
)
def test_bad_arguments(path, arguments, error, message):
    with pytest.raises(error, match=message):
        open_shuffle_changes(path, **arguments)


def test_nothing_there(tmp_path):
    with pytest.raises(ShuffleNotFoundError, match="holds no committed shuffle"):
        open_shuffle_changes(tmp_path, 0)


def test_no_rows_of_no_version(path):
    found = open_shuffle_changes(path, 6)
    assert found.span == VersionSpan(0, 6, 6)
    assert (found.num_rows, found.read().read_all().num_rows) == (0, 0)
    assert [part.tolist() for part in found.weights()] == [[0] * N] * 2


# Other columns ------------------------------------------------------------------------------------


def add_with(path, start, mode="append", **columns):
    """Add rows with more columns, and `v` from `start` on; `p` is the subpartition."""
    batch = pa.record_batch(
        {"p": pa.array(range(N), pa.int32()), "v": pa.array(range(start, start + N)), **columns}
    )
    options = WriteOptions(sync=False, schema_evolution=True)
    return write_tasks(path, [[batch]], N, mode=mode, options=options).version


def test_changes_have_the_columns_of_their_last_version(tmp_path):
    small, large = pa.array([7] * N, pa.int8()), pa.array([1 << 40] * N)
    add_with(tmp_path, 0, a=small)
    add_with(tmp_path, 10, a=large, b=["x"] * N)
    add_with(tmp_path, 20)
    for start, end, names in ((0, 1, "pva"), (0, 2, "pvab"), (1, 2, "pvab"), (2, 3, "pvab")):
        changes = open_shuffle_changes(tmp_path, start, end)
        assert changes.schema.names == list(names)
        assert changes.schema.field("a").type == (pa.int8() if end == 1 else pa.int64())
        assert sorted(new(tmp_path, start, end)) == rows(*range(10 * start, 10 * end, 10))
    added = open_shuffle_changes(tmp_path, 2).read(columns=["b", "a"]).read_all()
    assert added["a"].null_count == added["b"].null_count == N


def test_what_was_overwritten_is_read_with_the_columns_that_replaced_it_if_it_fits(tmp_path):
    small, large = pa.array([7] * N, pa.int8()), pa.array([1 << 40] * N)
    add_with(tmp_path, 0, a=small)
    add_with(tmp_path, 10, mode="overwrite", a=large, b=["x"] * N)
    both = open_shuffle_changes(tmp_path, 0, overwrites="deliver").read(columns=["b", "a"])
    assert sorted(both.read_all()["a"].to_pylist()) == [7] * N + [1 << 40] * N
    add_with(tmp_path, 20, mode="overwrite", a=small)
    with pytest.raises(SchemaError, match="differ in their schema"):
        open_shuffle_changes(tmp_path, 1, overwrites="deliver")
    # Hashes of a key of another type are others, so its rows are elsewhere.
    batch = pa.record_batch({"p": pa.array(range(N), pa.int64()), "v": range(N), "a": small})
    add(tmp_path, 30, mode="overwrite", batch=batch)
    with pytest.raises(SchemaError, match="differ in their schema"):
        open_shuffle_changes(tmp_path, 2, overwrites="deliver")


def test_what_was_overwritten_is_read_by_ids(tmp_path):
    sevens, eights = pa.array([7] * N), pa.array([8] * N)
    add_with(tmp_path, 0, a=sevens, b=eights)
    alter_columns(tmp_path, rename={"a": "b", "b": "a"})
    add_with(tmp_path, 10, mode="overwrite", a=eights, b=sevens)
    both = open_shuffle_changes(tmp_path, 0, overwrites="deliver").read().read_all()
    assert both["a"].to_pylist() == 2 * eights.to_pylist()
    assert both["b"].to_pylist() == 2 * sevens.to_pylist()
    # A name that comes back is another column, in which rows of before would be null.
    add_with(tmp_path, 20, mode="overwrite", b=sevens)
    add_with(tmp_path, 30, mode="overwrite", a=eights, b=sevens)
    for start in (0, 1):
        with pytest.raises(SchemaError, match="differ in their schema"):
            open_shuffle_changes(tmp_path, start, overwrites="deliver")
    delivered = open_shuffle_changes(tmp_path, 3, overwrites="deliver").read().read_all()
    assert sorted(delivered["v"].to_pylist()) == rows(20, 30)


@pytest.mark.slow
def test_a_commit_whose_segment_is_gone_is_still_the_one_that_was_read(path, small_log):
    """As of an offset of a stream that was away for longer than the retention."""
    for start in range(2 * SEGMENT):
        add(path, 10 * start)
    log = log_of(path)
    last = log.view().newest
    ids = {number: log.record(number).commit_id for number in (3, last)}
    for _ in range(4):
        add(path, 0, mode="overwrite")
        collect(path)
    log = log_of(path)
    view = log.view()
    assert view.state.base > SEGMENT
    with pytest.raises(ObjectNotFoundError):
        log.record(3)
    for number, commit_id in ids.items():
        log.read(lambda view, n=number, i=commit_id: check_commit_id(log, view, n, i))
        with pytest.raises(CorruptShuffleError, match="differs from the one that was read before"):
            log.read(lambda view, n=number: check_commit_id(log, view, n, "0" * 32))
    newest = view.state.version
    log.read(lambda view: check_commit_id(log, view, newest, log.record(newest).commit_id))
