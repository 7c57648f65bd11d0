"""Several targets of one pass: which are written, what fails, and what a killed process leaves."""

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
)
from arrow_format.jobs.job import run_map_tasks
from arrow_format.keys.partitioner import ColumnPartitioner
from arrow_format.storage.local import PosixWriter
from arrow_format.storage.open import PosixStorage
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


@pytest.mark.parametrize("other", ["x", "./x", "y/../x", "link"])
def test_a_path_is_one_target(tmp_path, other):
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "x")
    with pytest.raises(OptionError, match="two targets have this path"):
        write_shuffles(never(), [target(tmp_path / "x", "a"), target(f"{tmp_path}/{other}", "b")])
    assert list((tmp_path / "x").iterdir()) == []


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
        f"{tmp_path}/c. Repeated with the same transactions, the write writes these alone"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"a"}
    receipts = write_shuffles(ROWS, targets)
    assert [receipt.is_repetition for receipt in receipts] == [True, False, False]
    assert [open_shuffle(tmp_path / name).num_rows for name in names] == [100] * 3


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
