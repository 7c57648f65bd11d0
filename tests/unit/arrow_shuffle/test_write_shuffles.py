"""Several targets of one pass: which are written, what fails, and what a killed process leaves."""

import contextlib
import signal

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import arrow_shuffle
from arrow_format import OutOfDiskError, RangePartitioner, WriteOptions
from arrow_format.errors import (
    CommitConflictError,
    OptionError,
    SchemaError,
    ShuffleExistsError,
    StorageError,
    UnsettledCommitError,
)
from arrow_format.jobs.job import ShuffleJob, run_map_tasks
from arrow_format.jobs.write import _refuse_overlapping
from arrow_format.keys.partitioner import ColumnPartitioner
from arrow_format.log.reader import LogReader
from arrow_format.storage.local import PosixWriter
from arrow_format.storage.open import PosixStorage, open_storage
from arrow_shuffle import Target, open_shuffle, write_shuffle, write_shuffles
from tests.support.broken_methods import break_method
from tests.support.guarantees import guarantee
from tests.support.programs import run_python
from tests.support.small_shuffles import FAST, begin, files_below, numbered

ROWS = pa.table({"a": range(100), "b": [v % 7 for v in range(100)]})


def target(path, keys, **how):
    return Target(path, keys=keys, **{"num_subpartitions": 3, "options": FAST, **how})


def read_of(path):
    return open_shuffle(path).read(with_subpartition=True).read_all()


def never():
    """Rows of which only the schema is looked at."""
    yield ROWS.to_batches()[0]
    pytest.fail("rows were read")


def assert_as_alone(path, alone, rows=ROWS, **how):
    write_shuffle(rows, alone, options=FAST, **how)
    assert read_of(path) == read_of(alone)


def test_each_target_has_what_a_write_of_its_own_has(tmp_path):
    how = [
        {"keys": "a", "num_subpartitions": 5, "sort_by": [("b", "descending")]},
        {"keys": "b", "num_subpartitions": 2, "combine": {"a": "sum"}},
        {"keys": "a", "num_subpartitions": 3, "unique": ["a"]},
        {"partitioner": RangePartitioner(keys="b"), "num_subpartitions": 4},
    ]
    targets = [Target(tmp_path / str(i), options=FAST, **each) for i, each in enumerate(how)]
    receipts = write_shuffles(ROWS, targets)
    assert [receipt.path for receipt in receipts] == [str(tmp_path / str(i)) for i in range(4)]
    for i, each in enumerate(how):
        assert_as_alone(tmp_path / str(i), tmp_path / f"alone-{i}", **each)
    with pytest.raises(arrow_shuffle.errors.DuplicateKeyError):
        write_shuffle(ROWS, tmp_path / "2", keys="a", num_subpartitions=3, mode="append")


@pytest.mark.parametrize("threads", [1, 3])
def test_files_are_read_once(tmp_path, threads):
    rows = pa.table({"a": range(50_000), "s": [f"row {v % 97}" for v in range(50_000)]})
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=5_000)
    files = ds.dataset(tmp_path / "rows.parquet")
    options = WriteOptions(sync=False, threads=threads, sort_buffer_bytes=256 << 10)
    how = [{"keys": "a", "num_subpartitions": 20}, {"keys": "s", "num_subpartitions": 7}]
    write_shuffles(
        files, [Target(tmp_path / each["keys"], options=options, **each) for each in how]
    )
    for each in how:
        write_shuffle(files, tmp_path / "alone", options=options, mode="overwrite", **each)
        assert read_of(tmp_path / each["keys"]) == read_of(tmp_path / "alone")


def test_modes_are_those_of_each_target(tmp_path):
    for name in ("appended", "replaced", "ignored", "merged"):
        write_shuffles(ROWS, [target(tmp_path / name, "a", unique=["a"])])
    changes = pa.table({"a": range(90, 110), "b": [0] * 20})
    with pytest.raises(ShuffleExistsError):
        write_shuffles(changes, [target(tmp_path / "new", "a"), target(tmp_path / "merged", "a")])
    assert not (tmp_path / "new").exists()
    new, replaced, ignored, merged = write_shuffles(
        changes,
        [
            target(tmp_path / "new", "b"),
            target(tmp_path / "replaced", "b", mode="overwrite"),
            target(tmp_path / "ignored", "a", mode="ignore"),
            target(tmp_path / "merged", "a", mode="upsert"),
        ],
    )
    found = [(each.version, each.num_rows) for each in (new, replaced, ignored, merged)]
    assert found == [(1, 20), (2, 20), (1, 100), (2, 20)]
    assert merged.num_replaced == 10
    assert open_shuffle(tmp_path / "merged").num_rows == 110
    (alone,) = write_shuffles(never(), [target(tmp_path / "ignored", "a", mode="ignore")])
    assert alone.version == 1


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"keys": "c"}, SchemaError, "'c'"),
        ({"keys": "a", "sort_by": ["c"]}, SchemaError, "'c'"),
        ({"keys": "a", "expected_version": 3}, CommitConflictError, "expected_version=3"),
        ({"keys": "a", "mode": "upsert"}, OptionError, "unique"),
        ({"keys": "a", "row_kind": "b"}, OptionError, "row_kind"),
        ({"keys": "a", "options": 7}, OptionError, "options"),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_all_targets_are_checked_before_a_row_is_read(tmp_path, wrong, error, message, last):
    good = target(tmp_path / "good", "a")
    bad = Target(tmp_path / "bad", **{"num_subpartitions": 2, **wrong})
    with pytest.raises(error, match=message):
        write_shuffles(never(), [good, bad] if last else [bad, good])
    assert files_below(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_target_is_checked_before_another_takes_a_sample(tmp_path, monkeypatch):
    broken = AssertionError("a sample was taken")
    break_method(monkeypatch, RangePartitioner, "sampled", broken)
    ranges = Target(tmp_path / "r", partitioner=RangePartitioner(keys="a"), num_subpartitions=2)
    with pytest.raises(SchemaError, match="'c'"):
        write_shuffles(ROWS, [ranges, target(tmp_path / "good", "c")])
    write_shuffles(ROWS, [target(tmp_path / "there", "a")])
    for how, error in [
        ({}, ShuffleExistsError),
        ({"mode": "append", "sort_by": ["a"]}, SchemaError),
        ({"mode": "append", "expected_version": 3}, CommitConflictError),
    ]:
        with pytest.raises(error, match=f"{tmp_path}/there"):
            write_shuffles(ROWS, [ranges, target(tmp_path / "there", "a", **how)])
    late = Target(ranges.path, **ranges.how, expected_version=3)
    with pytest.raises(CommitConflictError):
        write_shuffles(ROWS, [late])
    ignored = Target(tmp_path / "there", mode="ignore", **ranges.how)
    assert [receipt.version for receipt in write_shuffles(ROWS, [ignored])] == [1]
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("other", ["x", "./x", "y/../x", "link"])
def test_a_path_is_one_target(tmp_path, other):
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "x")
    with pytest.raises(OptionError, match="two targets have this path"):
        write_shuffles(never(), [target(tmp_path / "x", "a"), target(f"{tmp_path}/{other}", "b")])
    assert list((tmp_path / "x").iterdir()) == []


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("outer", ["n", "link", "."])
def test_no_path_is_inside_of_another(tmp_path, outer, is_first):
    (tmp_path / "link").symlink_to(tmp_path / "n")
    targets = [target(f"{tmp_path}/{outer}", "a"), target(tmp_path / "n" / "m", "b")]
    with pytest.raises(OptionError, match=r"/n/m: is inside of .*, the path of another target"):
        write_shuffles(never(), targets if is_first else targets[::-1])
    assert [path.name for path in tmp_path.iterdir()] == ["link"]
    both = [target(tmp_path / "n", "a"), target(tmp_path / "n2", "b")]
    assert len(write_shuffles(ROWS, both)) == 2


@pytest.mark.parametrize(
    ("options", "others", "is_one"),
    [
        ({"endpoint": "http://h1"}, {"endpoint": "http://h2"}, False),
        ({"endpoint": "http://h1"}, {"aws_endpoint": "http://h1/"}, True),
        ({"endpoint": "http://h1", "region": "r"}, {"endpoint": "http://h1"}, True),
        ({"region": "r"}, {"endpoint": "http://of-environment"}, True),
        ({"region": "r"}, {"endpoint": "http://h1"}, False),
    ],
)
def test_a_path_is_one_target_in_one_store(monkeypatch, options, others, is_one):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://of-environment")
    places = [open_storage("s3://b/x", each).place for each in (options, others)]
    assert (places[0] == places[1]) is is_one
    storages = [open_storage("s3://b/x", options), open_storage("s3://b/x/y", others)]
    refused = pytest.raises(OptionError, match="s3://b/x/y: is inside of s3://b/x")
    with refused if is_one else contextlib.nullcontext():
        _refuse_overlapping(storages)


def test_what_is_no_list_of_targets(tmp_path):
    with pytest.raises(OptionError, match="none is given"):
        write_shuffles(never(), [])
    with pytest.raises(OptionError, match=r"targets is str: expected arrow_shuffle\.Target"):
        write_shuffles(never(), str(tmp_path))
    with pytest.raises(OptionError, match=r"columns: no argument of a target; expected path, tab"):
        Target(tmp_path, columns=["a"])
    with pytest.raises(OptionError, match="neither path nor table"):
        write_shuffles(never(), [Target(keys="a")])


def test_a_target_shows_no_credentials():
    shown = repr(Target("s3://b/x", keys="a", storage_options={"secret_access_key": "never"}))
    assert shown == "Target('s3://b/x', keys='a')"
    assert repr(Target(table="a.b", mode="append")) == "Target(table='a.b', mode='append')"


def test_rows_that_are_stored_in_two_types_are_refused(tmp_path):
    """A column of subpartitions stays the integer that it is."""
    rows = pa.table({"p": pa.array([0, 1], pa.uint64()), "v": [1, 2]})
    by_column = Target(
        tmp_path / "p", partitioner=ColumnPartitioner("p"), num_subpartitions=2, options=FAST
    )
    message = f"{tmp_path}/p: column 'p' is stored as int64, and as decimal"
    with pytest.raises(OptionError, match=message):
        write_shuffles(rows, [target(tmp_path / "v", "v"), by_column])
    assert list(tmp_path.iterdir()) == []
    receipts = write_shuffles(rows, [target(tmp_path / "v", "v"), by_column], for_spark=False)
    assert [receipt.num_rows for receipt in receipts] == [2, 2]


# Memory -------------------------------------------------------------------------------------------


def test_targets_without_options_share_the_memory_of_one_write(tmp_path):
    given = WriteOptions(sort_buffer_bytes=1 << 20, sync=False)
    receipts = write_shuffles(
        ROWS,
        [
            target(tmp_path / "a", "a", options=None),
            target(tmp_path / "b", "b", options=None),
            target(tmp_path / "c", "b", options=given),
            target(tmp_path / "d", "b", options=given),
        ],
    )
    total = 2 * (WriteOptions().sort_buffer_bytes // 4) + 2 * (1 << 20)
    note = f"sort buffers of 4 targets take {total / 1e6:.1f} MB together"
    assert [receipt.notes for receipt in receipts] == [(note,)] * 4
    (alone,) = write_shuffles(ROWS, [target(tmp_path / "e", "a", options=None)])
    assert alone.notes == ()


def test_what_is_not_written_takes_no_memory(tmp_path, monkeypatch):
    sizes = []

    def noted(jobs, *arguments, **how):
        sizes.append([job.options.sort_buffer_bytes for job in jobs])
        return run_map_tasks(jobs, *arguments, **how)

    monkeypatch.setattr("arrow_format.jobs.write.run_map_tasks", noted)
    default = WriteOptions().sort_buffer_bytes
    once = {"transaction": ("load", 1), "options": None}
    first = target(tmp_path / "a", "a", **once)
    write_shuffles(ROWS, [first])
    ignored = target(tmp_path / "a", "a", mode="ignore", options=None)
    receipts = write_shuffles(ROWS, [first, target(tmp_path / "b", "b", **once)])
    receipts += write_shuffles(ROWS, [ignored, target(tmp_path / "c", "b", **once)])
    assert sizes == [[default]] * 3
    assert [receipt.notes for receipt in receipts] == [()] * 4
    more = [target(tmp_path / name, "b", **once) for name in ("d", "e")]
    kept, *written = write_shuffles(ROWS, [ignored, *more])
    assert sizes[3:] == [[default // 2] * 2]
    note = f"sort buffers of 2 targets take {default / 1e6:.1f} MB together"
    assert [receipt.notes for receipt in (kept, *written)] == [(), (note,), (note,)]


# What fails ---------------------------------------------------------------------------------------


def fails():
    yield from ROWS.to_batches()
    raise ZeroDivisionError


@pytest.mark.parametrize("threads", [1, 2])
def test_a_source_that_fails_leaves_nothing_of_any_target(tmp_path, threads):
    options = WriteOptions(sync=False, threads=threads, sort_buffer_bytes=1 << 10)
    with pytest.raises(ZeroDivisionError) as caught:
        write_shuffles(
            fails(), [target(tmp_path / name, name, options=options) for name in ("a", "b")]
        )
    assert list(tmp_path.iterdir()) == []
    assert not hasattr(caught.value, "__notes__")


@guarantee("disk full at any step")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("which", ["a", "b"])
def test_a_disk_that_is_full_leaves_nothing_of_any_target(tmp_path, monkeypatch, threads, which):
    write_shuffles(ROWS, [target(tmp_path / name, name) for name in ("a", "b")])
    there = files_below(tmp_path)
    full = OutOfDiskError("no space left on device")
    real = PosixStorage.open_writer
    broken = []

    def opened(storage, path, **how):
        writer = real(storage, path, **how)
        if storage.root.endswith(which) and path.endswith(".data"):
            broken.append(writer)
        return writer

    monkeypatch.setattr(PosixStorage, "open_writer", opened)
    break_method(monkeypatch, PosixWriter, "writev", full, lambda this, *_: this in broken)
    options = WriteOptions(sync=False, threads=threads, sort_buffer_bytes=1 << 10)
    with pytest.raises(OutOfDiskError, match="no space left"):
        write_shuffles(
            ROWS,
            [target(tmp_path / name, name, options=options, mode="append") for name in ("a", "b")],
        )
    assert broken
    assert files_below(tmp_path) == there
    assert open_shuffle(tmp_path / "a").version == open_shuffle(tmp_path / "b").version == 1


def test_a_finished_output_is_removed_where_the_next_cannot_be_finished(tmp_path, monkeypatch):
    """Of a task that fails nothing is left, though its job may go on with another attempt."""
    jobs = [begin(tmp_path / name) for name in ("a", "b")]

    def files():
        return sorted(path.suffix for path in tmp_path.rglob("*") if path.is_file())

    finished = []

    def is_of_the_second(*_):
        finished.append(files())
        return finished[-1].count(".data") == 2

    full = OutOfDiskError("no space left on device")
    break_method(monkeypatch, PosixWriter, "writev", full, is_of_the_second)
    with pytest.raises(OutOfDiskError):
        run_map_tasks(jobs, 0, 0, [numbered([0, 1, 2])])
    assert finished[-1] == [".data", ".data", ".index"]
    assert files() == []


@guarantee("several targets")
def test_a_commit_that_fails_says_which_targets_are_there(tmp_path, monkeypatch):
    names = ["a", "b", "c"]
    targets = [
        target(tmp_path / name, keys, mode="append", transaction=("load", 1))
        for name, keys in zip(names, ["a", "b", "b"], strict=True)
    ]
    with monkeypatch.context() as patch:
        denied = StorageError("permission denied")
        break_method(
            patch,
            PosixStorage,
            "put_if_absent",
            denied,
            lambda storage, path, *_: storage.root.endswith("/b") and path.endswith(".entry"),
        )
        with pytest.raises(StorageError, match="permission denied") as caught:
            write_shuffles(ROWS, targets)
    (note,) = caught.value.__notes__
    assert note == (
        f"of 3 targets {tmp_path}/a is there as version 1; nothing was committed to {tmp_path}/b, "
        f"{tmp_path}/c. Repeated as it is, the write writes only what is not there"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
    receipts = write_shuffles(ROWS, targets)
    assert [receipt.is_repetition for receipt in receipts] == [True, False, False]
    assert [open_shuffle(tmp_path / name).num_rows for name in names] == [100] * 3


def broken_commit(patch, *, puts, errors, name="b"):
    """Let the puts of entries of a target fail, each with the next error and then with the last."""
    real, left = PosixStorage.put_if_absent, list(errors)

    def put(storage, path, data, *, sync):
        is_broken = storage.root.endswith(f"/{name}") and path.endswith(".entry")
        if puts or not is_broken:
            real(storage, path, data, sync=sync)
        if is_broken:
            raise left.pop(0) if len(left) > 1 else left[0]

    patch.setattr(PosixStorage, "put_if_absent", put)


def failed_write(targets, kind):
    """Return what an error and its notes say: the last of these is that of all targets."""
    with pytest.raises(kind) as caught:
        write_shuffles(ROWS, targets)
    return [str(caught.value), *getattr(caught.value, "__notes__", [])]


LOST = "it is not known whether"
HERE = "committed as version 1"


@guarantee("several targets")
@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("error", [StorageError("timed out"), KeyboardInterrupt()], ids=type)
def test_a_commit_whose_answer_is_lost_is_there(tmp_path, monkeypatch, error, once):
    how = {"mode": "append", "transaction": ("load", 1) if once else None}
    targets = [target(tmp_path / name, "a", **how) for name in ("a", "b", "c")]
    a, b, c = (f"{tmp_path}/{name}" for name in "abc")
    with monkeypatch.context() as patch:
        broken_commit(patch, puts=True, errors=[error])
        *said, note = failed_write(targets, type(error))
    assert f"{b}: {HERE}" in "".join(said)
    advice = (
        "Repeated as it is, the write writes only what is not there"
        if once
        else f"To write the others, leave out {a}, {b}: without a transaction rows would be "
        "written again"
    )
    assert note == (
        f"of 3 targets {a} is there as version 1, {b} is there as version 1; nothing was committed "
        f"to {c}. {advice}"
    )
    receipts = write_shuffles(ROWS, targets if once else targets[2:])
    assert [receipt.is_repetition for receipt in receipts] == [True, True, False][-len(receipts) :]
    assert [open_shuffle(each.path).num_rows for each in targets] == [100] * 3


@guarantee("several targets")
@pytest.mark.parametrize("once", [True, False])
def test_a_commit_that_nobody_knows_of_is_said_to_be_so(tmp_path, monkeypatch, once):
    how = {"mode": "append", "transaction": ("load", 1) if once else None}
    targets = [target(tmp_path / name, "a", **how) for name in ("a", "b", "c")]
    a, b, c = (f"{tmp_path}/{name}" for name in "abc")
    with monkeypatch.context() as patch:
        patch.setattr(PosixStorage, "puts_may_come_late", True)
        broken_commit(patch, puts=False, errors=[StorageError("timed out")])
        error, *_, note = failed_write(targets, UnsettledCommitError)
    assert f"{b}: {LOST} job" in error
    advice = (
        "Repeated as it is, the write writes only what is not there"
        if once
        else f"To write the others, leave out {a}, and leave out {b} if it has a new version: "
        "without a transaction rows would be written again"
    )
    assert note == (
        f"of 3 targets {a} is there as version 1; nothing was committed to {c}; {LOST} {b} was "
        f"committed. {advice}"
    )


def test_the_first_commit_is_the_one_that_nobody_knows_of(tmp_path, monkeypatch):
    targets = [target(tmp_path / name, "a", mode="append") for name in ("a", "b")]
    monkeypatch.setattr(PosixStorage, "puts_may_come_late", True)
    broken_commit(monkeypatch, puts=False, errors=[StorageError("timed out")], name="a")
    *_, note = failed_write(targets, UnsettledCommitError)
    assert note == (
        f"of 2 targets nothing was committed to {tmp_path}/b; {LOST} {tmp_path}/a was committed. "
        f"To write the others, leave out {tmp_path}/a if it has a new version: without a "
        "transaction rows would be written again"
    )


@guarantee("several targets")
def test_a_commit_that_was_unsettled_is_looked_for_again(tmp_path, monkeypatch):
    targets = [target(tmp_path / name, "a", mode="append") for name in ("a", "b", "c")]
    broken_commit(monkeypatch, puts=True, errors=[StorageError("timed out")])
    silent: list[str] = []
    silent = break_method(
        monkeypatch,
        LogReader,
        "find_job",
        StorageError("no answer"),
        lambda *_: not silent,
    )
    error, note = failed_write(targets, UnsettledCommitError)
    assert f"{tmp_path}/b: {LOST} job" in error
    assert note == (
        f"of 3 targets {tmp_path}/a is there as version 1, {tmp_path}/b is there as version 1; "
        f"nothing was committed to {tmp_path}/c. To write the others, leave out {tmp_path}/a, "
        f"{tmp_path}/b: without a transaction rows would be written again"
    )


@guarantee("several targets")
def test_an_interrupt_after_the_last_commit(tmp_path, monkeypatch):
    targets = [target(tmp_path / name, "a") for name in ("a", "b")]
    break_method(
        monkeypatch,
        ShuffleJob,
        "look_into",
        KeyboardInterrupt(),
        lambda job, *_: job.storage.root.endswith("/b"),
    )
    (_, note) = failed_write(targets, KeyboardInterrupt)
    assert note == (
        f"of 2 targets {tmp_path}/a is there as version 1, {tmp_path}/b is there as version 1. "
        "All are there: do not write the rows again"
    )
    assert [open_shuffle(each.path).num_rows for each in targets] == [100] * 2


@guarantee("several targets")
def test_a_target_that_was_left_out_is_named(tmp_path, monkeypatch):
    first = target(tmp_path / "a", "a", mode="append", transaction=("load", 1))
    write_shuffles(ROWS, [first, target(tmp_path / "i", "a")])
    targets = [first, target(tmp_path / "i", "a", mode="ignore"), target(tmp_path / "b", "b")]
    broken_commit(monkeypatch, puts=False, errors=[StorageError("permission denied")])
    *_, note = failed_write(targets, StorageError)
    assert note == (
        f"of 3 targets {tmp_path}/a was there before as version 1, {tmp_path}/i is there as "
        f"version 1; nothing was committed to {tmp_path}/b. Repeated as it is, the write writes "
        "only what is not there"
    )
    assert not (tmp_path / "b").exists()


# Transactions -------------------------------------------------------------------------------------


@guarantee("several targets")
def test_no_row_is_read_where_all_targets_were_committed(tmp_path):
    def targets():
        return [
            target(tmp_path / "a", "a", mode="append", transaction=("load", 1)),
            Target(
                tmp_path / "b",
                partitioner=RangePartitioner(keys="a"),
                num_subpartitions=2,
                mode="overwrite",
                transaction=("load", 1),
                options=FAST,
            ),
        ]

    first = write_shuffles(ROWS, targets())
    there = files_below(tmp_path)
    again = write_shuffles(never(), targets())
    assert [receipt.is_repetition for receipt in again] == [True, True]
    assert [(r.path, r.version) for r in again] == [(r.path, r.version) for r in first]
    assert files_below(tmp_path) == there
    later = write_shuffles(ROWS, [*targets()[:1], target(tmp_path / "c", "b")])
    assert [receipt.is_repetition for receipt in later] == [True, False]


KILLED = """
import os, signal, sys
from pathlib import Path
import pyarrow as pa
from arrow_format.storage.open import PosixStorage
from arrow_shuffle import write_shuffles
from tests.unit.arrow_shuffle.test_write_shuffles import ROWS, loaded

real = PosixStorage.put_if_absent

def put(storage, path, data, *, sync):
    if storage.root.endswith("/" + sys.argv[2]) and path.endswith(".entry"):
        os.kill(os.getpid(), signal.SIGKILL)
    real(storage, path, data, sync=sync)

PosixStorage.put_if_absent = put
write_shuffles(ROWS, loaded(Path(sys.argv[1])))
"""


def loaded(path):
    """Targets of a load that is repeated until it is there."""
    return [
        target(path / name, keys, mode="append", transaction=("load", 8))
        for name, keys in (("a", "a"), ("b", "b"), ("c", "a"))
    ]


@guarantee("several targets")
@pytest.mark.parametrize("killed_at", ["a", "b", "c"])
def test_a_process_that_is_killed_between_two_commits(tmp_path, killed_at):
    for each in loaded(tmp_path):  # rows that were there before
        write_shuffle(ROWS, each.path, **{**each.how, "transaction": ("load", 7)})
    done = run_python(KILLED, tmp_path, killed_at)
    assert done.returncode == -signal.SIGKILL, done.stderr
    names = ["a", "b", "c"]
    before = names[: names.index(killed_at)]
    for name in names:
        there = open_shuffle(tmp_path / name)
        assert (there.version, there.num_rows) == ((2, 200) if name in before else (1, 100))
    receipts = write_shuffles(ROWS, loaded(tmp_path))
    assert [receipt.is_repetition for receipt in receipts] == [name in before for name in names]
    again = write_shuffles(never(), loaded(tmp_path))
    assert all(receipt.is_repetition for receipt in again)
    for name in names:
        there = open_shuffle(tmp_path / name)
        assert (there.version, there.num_rows, there.verify().ok) == (2, 200, True)


def test_targets_in_a_store(s3, tmp_path):
    bucket = s3.new_bucket()
    where = {"storage_options": s3.options}
    targets = [
        target(f"s3://{bucket}/a", "a", transaction=("load", 1), **where),
        target(f"s3://{bucket}/b", "b", transaction=("load", 1), **where),
        target(tmp_path / "c", "b", transaction=("load", 1)),
    ]
    assert [receipt.num_rows for receipt in write_shuffles(ROWS, targets)] == [100] * 3
    assert all(receipt.is_repetition for receipt in write_shuffles(never(), targets))
    found = open_shuffle(f"s3://{bucket}/b", **where).read(with_subpartition=True).read_all()
    assert found == read_of(tmp_path / "c")
