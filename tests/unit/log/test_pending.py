"""Pending map outputs: durable, unseen until they are flushed, the latest row of each key, once."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format import (
    FlushOptions,
    flush_pending,
    open_shuffle,
    open_shuffle_changes,
    release_shuffle,
)
from arrow_format.errors import (
    OptionError,
    ResultReleasedError,
    SchemaError,
    ShuffleError,
    ShuffleNotFoundError,
    ShuffleOverwrittenError,
)
from arrow_format.jobs.commit import commit_job
from arrow_format.keys.partitioner import RoundRobinPartitioner
from arrow_format.log.entry import check_entry, decode_entry, encode_entry
from arrow_format.log.pending import pending_outputs
from arrow_format.options import WriteOptions
from arrow_format.storage.open import open_storage
from arrow_format.streaming import flush_pending as pending_flush
from arrow_format.streaming.flush_pending import flush_if_due, flush_if_last, is_flush_due
from arrow_shuffle import consume
from connector.cli import main as cli
from tests.support.exhaustive import examples
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import before_first_entry
from tests.support.logs import log_of, put, start_job
from tests.support.recording_storage import RecordingStorage
from tests.support.small_shuffles import collect, files_below, write_rows

N = 4
MEMORY_ONLY = {
    "max_interval": timedelta(days=1),
    "memory_buffer_only": True,
    "max_buffered_bytes": 1 << 16,
}


def rows(path, version=None):
    return sorted(map(tuple, (row.values() for row in read(path, version))))


def read(path, version=None):
    return open_shuffle(path, version).read().read_all().to_pylist()


def pending(path):
    log = log_of(path)
    return pending_outputs(log, log.view())


def flush(path, **arguments):
    return flush_pending(path, options=WriteOptions(sync=False), **arguments)


def test_what_is_pending_is_seen_by_nobody_until_it_is_flushed(path):
    put(path, [(1, 1), (2, 1)])
    with pytest.raises(ShuffleNotFoundError):
        open_shuffle(path)
    put(path, [(1, 2), (3, 2)])
    receipt = flush(path)
    assert receipt.version == 3
    assert rows(path) == [(1, 2), (2, 1), (3, 2)]
    assert flush(path) is None
    with pytest.raises(ShuffleNotFoundError, match="version 2 is not there; that number has rows"):
        open_shuffle(path, 2)


def test_a_result_that_begins_anew_each_time_takes_the_place_of_what_is_there(path):
    put(path, [(1, 1), (9, 1)], mode="overwrite")
    flush(path)
    put(path, [(1, 2), (2, 2)], mode="overwrite")
    put(path, [(1, 3), (3, 3)], mode="overwrite")
    assert rows(path) == [(1, 1), (9, 1)]
    flush(path)
    assert rows(path) == [(1, 3), (3, 3)]


def test_a_flush_that_overwrites_hides_nothing_from_who_reads_all_there_was(tmp_path):
    put(tmp_path, [(1, 1)], mode="overwrite")
    put(tmp_path, [(2, 2)], pending=False)
    put(tmp_path, [(3, 3)])
    flush(tmp_path)
    assert rows(tmp_path) == [(1, 1), (3, 3)]
    with pytest.raises(ShuffleOverwrittenError, match="version 4 overwrote"):
        open_shuffle_changes(tmp_path, 0)
    changes = open_shuffle_changes(tmp_path, 0, overwrites="deliver").read().read_all()
    assert sorted(changes["k"].to_pylist()) == [1, 2, 3]


def test_a_batch_is_pending_once_whoever_commits_it_again(path):
    first = put(path, [(1, 1)], batch=0)
    again = put(path, [(1, 5)], batch=0)
    assert (first.version, again.version) == (1, 1)
    flush(path)
    assert put(path, [(1, 6)], batch=0).version == 1
    assert rows(path) == [(1, 1)]
    assert flush(path) is None


@guarantee("flush on Spark")
def test_what_is_pending_goes_with_the_result_that_is_released(path):
    put(path, [(5, 5)], pending=False)
    put(path, [(1, 1)])
    release_shuffle(path)
    assert flush(path) is None
    collect(path)
    assert not [one for one in files_below(path) if one.endswith(".data")]
    put(path, [(1, 2)])
    flush(path)
    assert rows(path) == [(1, 2)]


def test_what_is_pending_is_released_where_there_is_no_version_too(path):
    assert not release_shuffle(path)
    put(path, [(1, 1)])
    assert release_shuffle(path)
    with pytest.raises(ResultReleasedError, match=r"it had no version\. Write it again"):
        open_shuffle(path)
    assert flush(path) is None
    assert not [one for one in files_below(path) if one.endswith(".data")]
    assert not release_shuffle(path)
    put(path, [(2, 2)], schema=pa.schema([("k", pa.int64()), ("w", pa.int64())]))
    put(path, [(2, 3)], schema=pa.schema([("k", pa.int64()), ("w", pa.int64())]))
    flush(path)
    assert rows(path) == [(2, 3)]
    with consume(path, consumer="a") as consumption:
        assert consumption.shuffle.num_rows == 1


def test_it_is_flushed_for_a_query_whose_last_batch_is_pending_and_for_no_other(path):
    storage, options = open_storage(path), WriteOptions(sync=False)
    flush_if_last(storage, "query", FlushOptions(), options)
    put(path, [(1, 1)], batch=0)
    put(path, [(1, 2)])
    flush_if_last(storage, "another", FlushOptions(), options)
    assert pending(path).numbers == (1, 2)
    flush_if_last(storage, "query", FlushOptions(), options)
    assert rows(path) == [(1, 2)]
    put(path, [(1, 3)], batch=1, pending=False)
    put(path, [(1, 4)])
    flush_if_last(storage, "query", FlushOptions(), options)
    assert pending(path).numbers == (5,)
    put(path, [(9, 9)], pending=False, mode="overwrite")
    flush(path)
    collect(path)
    flush_if_last(storage, "query", FlushOptions(), options)
    assert rows(path) == [(1, 4), (9, 9)]


@guarantee("pending files")
def test_what_comes_while_it_is_flushed_waits_for_the_next_flush(path):
    put(path, [(1, 1)])
    with before_first_entry(lambda: put(path, [(1, 2)])):
        flush(path)
    assert rows(path) == [(1, 1)]
    assert pending(path).numbers == (2,)
    collect(path)
    flush(path)
    assert rows(path) == [(1, 1), (1, 2)]


@guarantee("pending batches")
def test_of_several_that_flush_at_once_one_wins(path):
    for value in range(3):
        put(path, [(key, value) for key in range(20)])
    with ThreadPoolExecutor(4) as pool:
        assert len([*pool.map(flush, [path] * 4)]) == 4
    assert rows(path) == [(key, 2) for key in range(20)]
    collect(path)
    assert len([one for one in files_below(path) if one.endswith(".data")]) == 1


def test_a_flush_whose_files_went_under_it_gives_the_version_of_the_other(path):
    for value in range(2):
        put(path, [(1, value)])
    slow = RecordingStorage(str(path))

    def be_faster(_):
        slow.before = lambda _: None
        flush(path)
        collect(path)

    slow.before = be_faster
    assert flush(slow).version == 3
    assert rows(path) == [(1, 1)]


@guarantee("pending files")
def test_gc_keeps_what_is_pending_and_removes_what_was_flushed(path):
    put(path, [(8, 8)], pending=False)
    put(path, [(9, 9)], pending=False)
    put(path, [(1, 1)])
    put(path, [(7, 7)], pending=False)
    put(path, [(1, 2)])
    collect(path, 2)
    assert rows(path) == [(7, 7), (8, 8), (9, 9)]
    flush(path)
    before = rows(path)
    assert before == [(1, 2), (7, 7), (8, 8), (9, 9)]
    collect(path, 2)
    assert rows(path) == before
    assert len([one for one in files_below(path) if one.endswith(".data")]) == 4
    assert log_of(path).view().oldest == 7, "the flush, after a collection"


def test_a_batch_is_known_when_its_number_has_expired(path):
    put(path, [(1, 1)], batch=4)
    flush(path)
    put(path, [(2, 2)], pending=False)
    collect(path)
    again = put(path, [(1, 9)], batch=4)
    assert (again.is_repetition, again.version, again.num_rows) == (True, 1, 1)
    assert rows(path) == [(1, 1), (2, 2)]


@guarantee("refused batch")
def test_what_does_not_fit_what_is_pending_is_refused(path):
    put(path, [(1, 1)])
    other = pa.schema([("k", pa.int64()), ("v", pa.string())])
    with pytest.raises(
        SchemaError, match="cannot append rows of another schema: column 'v' is int64 there"
    ):
        put(path, [(1, "x")], schema=other)
    assert pending(path).numbers == (1,)


def test_a_first_version_that_what_is_pending_could_not_follow_is_refused(tmp_path):
    def write(column, kind=None):
        options = WriteOptions(sync=False, result_type=kind)
        write_rows(path, pa.table({"k": [2], "v": column}), "k", n=N, options=options)

    path = tmp_path / "s"
    put(path, [(1, 1)], result_type="PIPELINED")
    schema = "cannot append rows of another schema: column 'v' is int64 there"
    with pytest.raises(SchemaError, match=f"{schema}.*wait to be flushed"):
        write(["x"])
    kind = "result type BLOCKING_PERSISTENT is not PIPELINED"
    with pytest.raises(OptionError, match=f"{kind}.*wait to be flushed"):
        write([2])
    write([2], "PIPELINED")
    flush(path)
    assert rows(path) == [(1, 1), (2, 2)]


def test_a_first_version_asks_again_at_its_commit_what_is_pending_by_then(path):
    job, statuses = start_job(path)
    put(path, [(1, 1)])
    with pytest.raises(SchemaError, match=r"another schema: .*wait to be flushed"):
        commit_job(job, statuses, mode="append")
    flush(path)
    assert rows(path) == [(1, 1)]


def test_what_is_pending_is_of_one_type_before_there_is_a_version(path):
    put(path, [(1, 1)], result_type="PIPELINED")
    put(path, [(2, 2)])
    flush(path)
    assert open_shuffle(path).result.type.name == "PIPELINED"


def test_an_overwrite_that_what_is_pending_could_not_follow_waits_for_its_flush(path):
    def overwrite():
        write_rows(path, pa.table({"k": [2], "v": [2]}), "k", n=N + 1, mode="overwrite")

    put(path, [(0, 0)], pending=False)
    put(path, [(1, 1)])
    with pytest.raises(SchemaError, match=r"append with 5; .*\. Rows that wait to be flushed"):
        overwrite()
    flush(path)
    assert rows(path) == [(0, 0), (1, 1)]
    overwrite()
    assert rows(path) == [(2, 2)]


def test_a_flush_that_a_release_overtakes_says_so(path, monkeypatch):
    put(path, [(1, 1)])
    run = pending_flush.run_map_task

    def run_and_release(*arguments):
        status = run(*arguments)
        release_shuffle(path)
        return status

    monkeypatch.setattr(pending_flush, "run_map_task", run_and_release)
    with pytest.raises(ResultReleasedError, match="released by name"):
        flush(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BLOCKING", "PIPELINED"])
def test_what_a_dead_application_has_pending_goes_if_it_is_its_own(tmp_path, dead, kind):
    put(tmp_path / "s", [(1, 1)], result_type=kind, owner=dead)
    put(tmp_path / "mine", [(1, 1)], result_type=kind)
    for name in ("s", "mine"):
        collect(tmp_path / name)
    assert pending(tmp_path / "mine").numbers == (1,)
    assert pending(tmp_path / "s").numbers == (() if kind == "BLOCKING" else (1,))


def test_rows_that_have_no_place_by_key_cannot_be_flushed(tmp_path):
    put(tmp_path / "s", [(1, 1)], partitioner=RoundRobinPartitioner())
    with pytest.raises(OptionError, match="rows of one key must be in one subpartition"):
        flush(tmp_path / "s")


def test_a_flush_that_fails_leaves_what_is_pending(path):
    put(path, [(1, 1)])
    (data,) = path.glob("map_outputs/*/*.data")
    content = data.read_bytes()
    data.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    before = files_below(path)
    data.write_bytes(content[:8])
    with pytest.raises(ShuffleError):
        flush(path)
    assert files_below(path) == before
    data.write_bytes(content)
    flush(path)
    assert rows(path) == [(1, 1)]


@pytest.mark.slow
def test_memory_is_bounded_by_passes_over_the_keys(path):
    for value in range(3):
        put(path, [(key, value) for key in range(20_000)])
    flush(path, max_bytes=1 << 17)
    assert rows(path) == [(key, 2) for key in range(20_000)]


def test_pending_stands_in_the_log_and_every_flip_is_noticed(path):
    put(path, [(1, 1)], batch=3)
    data = (path / "commit_log" / f"{0:018d}" / f"{1:020d}.entry").read_bytes()
    entry = decode_entry(data)
    assert entry.operation == "pending"
    assert decode_entry(encode_entry(entry)) == entry
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1
        with pytest.raises(ShuffleError):
            check_entry(bytes(flipped))


@pytest.mark.parametrize(
    ("since_ms", "raw_bytes", "flush_options", "now_ms", "expected"),
    [
        (1000, 0, {"max_interval": timedelta(seconds=5)}, 5999, False),
        (1000, 0, {"max_interval": timedelta(seconds=5)}, 6000, True),
        (1000, 0, {"max_interval": timedelta(seconds=5)}, 999, True),
        (None, 0, {"max_interval": timedelta(seconds=5)}, 10**9, False),
        (1000, 0, {}, 10**9, False),
        (1000, 1 << 16, MEMORY_ONLY, 2000, True),
        (1000, (1 << 16) - 1, MEMORY_ONLY, 2000, False),
        (1000, 1 << 16, MEMORY_ONLY | {"memory_buffer_only": False}, 2000, False),
    ],
)
def test_when_a_flush_is_due(since_ms, raw_bytes, flush_options, now_ms, expected):
    assert is_flush_due(since_ms, raw_bytes, FlushOptions(**flush_options), now_ms) is expected


@pytest.mark.parametrize(
    ("flushed", "first", "now", "memory_only", "expected"),
    [
        (None, 1, 5.999, False, False),
        (None, 1, 6, False, True),
        (1, 9, 6, False, True),
        (8, 9, 12.999, False, False),
        (8, 9, 9, True, True),
        (1, None, 99, False, False),
    ],
)
def test_the_interval_begins_with_the_last_flush_or_the_first_commit(
    path, monkeypatch, flushed, first, now, memory_only, expected
):
    for when, rows_then in ((flushed, [(1, 1)]), (first, [(key, 1) for key in range(5000)])):
        if when is not None:
            monkeypatch.setattr(time, "time_ns", lambda when=when: int(when * 1e9))
            put(path, rows_then)
            if when == flushed:
                flush(path)
    before = pending(path).numbers
    monkeypatch.setattr(time, "time_ns", lambda: int(now * 1e9))
    options = FlushOptions(
        max_interval=timedelta(seconds=5),
        memory_buffer_only=memory_only,
        max_buffered_bytes=1 << 16,
    )
    flush_if_due(open_storage(path), options, WriteOptions(sync=False))
    assert (pending(path).numbers != before) is expected


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["put", "replace", "version"]),
            st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), max_size=5),
        ),
        st.sampled_from([("flush", None), ("gc", None)]),
        st.tuples(st.just("checkpoint"), st.integers(0, 20)),
    ),
    max_size=12,
)


def checkpoint(path, place):
    """Let a checkpoint stand for the log up to one of its numbers."""
    log = log_of(path)
    view = log.view()
    log.put_checkpoint(view.last, view.oldest + place % (view.newest - view.oldest + 1))


@pytest.mark.slow
@guarantee("pending batches")
@settings(max_examples=examples(25, 100), deadline=None)
@given(steps=STEPS)
def test_any_sequence_gives_what_a_plain_model_gives(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("pending") / "s"
    versions: list[tuple[int, int]] | None = None
    waiting: list[list[tuple[int, int]]] = []
    anew = False
    for what, given_rows in steps:
        if what == "put":
            put(path, given_rows)
            waiting.append(given_rows)
        elif what == "replace":
            put(path, given_rows, mode="overwrite")
            waiting, anew = [given_rows], True
        elif what == "version":
            put(path, given_rows, pending=False)
            versions = (versions or []) + given_rows
        elif what == "flush":
            assert (flush(path) if path.exists() else None) is None or waiting
            if waiting:
                latest = {key: value for batch in waiting for key, value in batch}
                versions = ([] if anew or versions is None else versions) + list(latest.items())
                waiting, anew = [], False
        elif what == "checkpoint" and path.exists():
            checkpoint(path, given_rows)
        elif path.exists():
            collect(path)
        assert [entry.num_rows for entry in pending(path).counting] == list(map(len, waiting))
        if versions is None:
            with pytest.raises(ShuffleNotFoundError):
                open_shuffle(path)
        else:
            assert rows(path) == sorted(versions)


def test_the_command_flushes_and_names_a_path_that_is_none(tmp_path, capsys):
    path = tmp_path / "s"
    put(path, [(1, 1), (2, 2)])
    assert cli.main(["flush", str(path)]) == 0
    assert "version 2: 2 rows" in capsys.readouterr().out
    assert cli.main(["flush", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: nothing is pending\n"
    assert cli.main(["flush", str(tmp_path / "typo")]) == 1
    assert "ShuffleNotFoundError" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()


def test_a_blocking_result_is_not_released_while_anything_is_pending(path):
    for is_pending in (False, True):
        put(path, [(int(is_pending), 5)], pending=is_pending, result_type="BLOCKING")
    with consume(path, consumer="a") as consumption:
        assert consumption.shuffle.num_rows == 1
    collect(path)
    flush(path)
    with consume(path, consumer="a") as consumption:
        assert consumption.shuffle.num_rows == 2
    with pytest.raises(ResultReleasedError):
        open_shuffle(path)


@pytest.mark.parametrize("look", [open_shuffle, lambda path: open_shuffle_changes(path, 0)])
def test_whoever_looks_for_a_version_is_told_what_is_pending(tmp_path, look):
    with pytest.raises(ShuffleNotFoundError, match="nothing was written, or not committed"):
        look(tmp_path)
    for batch in range(2):
        put(tmp_path / "s", [(1, batch)], batch=batch)
    with pytest.raises(ShuffleNotFoundError) as raised:
        look(tmp_path / "s")
    assert "holds no committed shuffle; 2 commit(s) of a stream are pending" in str(raised.value)
    assert f"`arrow-shuffle flush {tmp_path}/s`" in str(raised.value)
    assert cli.main(["flush", str(tmp_path / "s")]) == 0
    assert look(tmp_path / "s").read().read_all().num_rows == 1
