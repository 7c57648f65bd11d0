"""CONFORMANCE, group "Commit": merges beside other writers, on failing disks, and killed."""

import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    CommitConflictError,
    CorruptShuffleError,
    OptionError,
    OutOfDiskError,
    ShuffleNotFoundError,
    StorageError,
    WriteOptions,
    merge_shuffle,
    open_shuffle,
    write_shuffle,
)
from arrow_format.jobs import replacement
from arrow_format.log.commit_log import CommitLog
from arrow_format.storage.open import PosixStorage
from tests.support.exhaustive import exhaustive, part
from tests.support.guarantees import guarantee
from tests.support.memory_pool import counted_pool
from tests.support.merges import (
    ALWAYS,
    CODECS,
    TINY,
    WAYS,
    Failing,
    N,
    append_version,
    contents,
    files_of,
)
from tests.support.small_shuffles import (
    files_below,
    numbered,
    write_tasks,
)

ROOT = Path(__file__).resolve().parents[2]


def meanwhile(monkeypatch, action):
    """Run `action` once, after the merge has decided and before its entry is put."""
    draft, done = replacement.draft, []

    def late(*arguments, **fields):
        entry = draft(*arguments, **fields)
        if not done:
            done.append(True)
            action()
        return entry

    monkeypatch.setattr(replacement, "draft", late)


@guarantee("concurrent merge")
@WAYS
def test_rows_appended_meanwhile_stay(path, how, monkeypatch):
    append_version(path)
    append_version(path)
    meanwhile(monkeypatch, lambda: append_version(path))
    report = merge_shuffle(path, **{"by": "map_output", **how}, options=TINY)
    assert report.version == 4
    assert report.num_map_outputs == (6, 3)
    merged = open_shuffle(path)
    assert [output.position.version for output in merged.map_outputs] == [1, 3, 3]
    assert contents(merged) == contents(open_shuffle(path, version=3))
    merged.verify()


@guarantee("concurrent merge")
@WAYS
@pytest.mark.parametrize("what", ["overwrite", "merge"])
def test_an_overwrite_or_another_merge_meanwhile_fails_it(path, how, what, monkeypatch):
    append_version(path)
    append_version(path)
    left = []

    def other():
        monkeypatch.undo()
        if what == "merge":
            merge_shuffle(path, policy=ALWAYS, options=TINY, by="map_output")
        else:
            write_tasks(path, [[numbered([1])]], N, mode="overwrite")
        left.append(set(files_below(path)))

    meanwhile(monkeypatch, other)
    with pytest.raises(CommitConflictError, match="is not part of the newest version any more"):
        merge_shuffle(path, **{"by": "map_output", **how}, options=TINY)
    mine = left[0] - set(files_below(path))
    assert set(files_below(path)) < left[0]
    assert {name.rpartition(".")[2] for name in mine if "." in name} == {"data", "index"}
    assert open_shuffle(path).version == 3
    open_shuffle(path).verify()


def test_merging_while_others_append(path):
    append_version(path)
    stop = threading.Event()
    errors = []

    def appending():
        try:
            while not stop.is_set():
                append_version(path, num_tasks=1, rows=30)
                time.sleep(0.05)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=appending)
    thread.start()
    try:
        for _ in range(5):
            merge_shuffle(path, policy=ALWAYS, options=TINY, by="map_output")
    finally:
        stop.set()
        thread.join()
    assert not errors
    shuffle = open_shuffle(path)
    rows = 0
    for version in range(1, shuffle.version + 1):
        entry = CommitLog(PosixStorage(str(path))).entry(version)
        rows += 0 if entry.operation == "merge" else entry.num_rows
    assert shuffle.num_rows == rows
    shuffle.verify()


@WAYS
def test_a_disk_that_fails_anywhere_leaves_the_version_whole(path, how, monkeypatch):
    options = replace(TINY, sync=True)
    append_version(path)
    append_version(path)
    expected = contents(open_shuffle(path))
    with monkeypatch.context() as context:
        failing = Failing(context)
        shutil.copytree(path, path.with_name("counted"))
        failing.calls = 0
        merge_shuffle(path.with_name("counted"), **{"by": "map_output", **how}, options=options)
        steps = failing.calls
        before = files_below(path)
        for failing.fails_at in part(range(1, steps + 1), 16):
            failing.calls = 0
            try:
                merge_shuffle(path, **{"by": "map_output", **how}, options=options)
            except OutOfDiskError:
                assert files_below(path) == before
                assert open_shuffle(path).version == 2
                continue
            except StorageError as error:
                # The entry was there already when making it durable failed.
                if "committed as version 3" not in str(error):
                    raise
            break
    assert contents(open_shuffle(path)) == expected
    open_shuffle(path).verify()


CHILD = """
import os, sys, signal
from arrow_format import MergePolicy, WriteOptions, merge_shuffle
path, die_at = sys.argv[1], int(sys.argv[2])
calls = 0
def dying(function):
    def call(*arguments, **how):
        global calls
        calls += 1
        if calls == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **how)
    return call
for name in ("writev", "fsync", "link", "unlink"):
    setattr(os, name, dying(getattr(os, name)))
options = WriteOptions(sort_buffer_bytes=4096, chunk_bytes=300)
merge_shuffle(path, by=sys.argv[3], policy=MergePolicy(rewrite="always"), options=options)
print(calls)
"""


@exhaustive("by", least=6)
@pytest.mark.parametrize(
    ("by", "die_at"),
    [
        *(("map_output", call) for call in (1, 3, 5, 8, 12, 16, 20, 22, 24, 26, 28, 29, 30)),
        *(("subpartition", call) for call in (1, 3, 5, 7, 9, 11, 13)),
    ],
)
def test_a_killed_merge_leaves_a_whole_version_and_can_be_run_again(path, by, die_at):
    append_version(path)
    append_version(path)
    expected = contents(open_shuffle(path))
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(die_at), by],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode() + child.stdout.decode()
    shuffle = open_shuffle(path)
    assert contents(shuffle) == expected
    shuffle.verify()
    report = merge_shuffle(path, policy=ALWAYS, options=TINY, by="map_output")
    assert contents(open_shuffle(path)) == expected
    assert len(open_shuffle(path).map_outputs) == 1
    assert report.version == shuffle.version + bool(report.plan.merges)


@WAYS
def test_a_damaged_version_is_not_merged(path, how):
    append_version(path)
    append_version(path)
    file = files_of(open_shuffle(path))[2]
    for damaged in (path / file.data_path, path / file.index_path):
        sound = damaged.read_bytes()
        damaged.write_bytes(sound[:20] + bytes([sound[20] ^ 1]) + sound[21:])
        before = files_below(path)
        with pytest.raises(CorruptShuffleError, match=damaged.name):
            merge_shuffle(path, **{"by": "map_output", **how}, options=TINY)
        assert files_below(path) == before
        damaged.write_bytes(sound)
    assert merge_shuffle(path, **{"by": "map_output", **how}, options=TINY).version == 3


def test_there_is_nothing_to_merge(tmp_path):
    with pytest.raises(ShuffleNotFoundError):
        merge_shuffle(tmp_path / "nowhere", by="map_output")
    with pytest.raises(OptionError, match=r"policy is str: expected arrow_shuffle.MergePolicy"):
        merge_shuffle(tmp_path, policy="always", by="map_output")
    with pytest.raises(OptionError, match=r"options is dict: expected arrow_shuffle.WriteOptions"):
        merge_shuffle(tmp_path, options={"sync": False}, by="map_output")


@exhaustive()
@CODECS
@pytest.mark.parametrize("n", [1, 40, 5_000])
def test_memory_is_that_of_a_map_task(path, codec, n):
    """Columns in Arrow's pool; what NumPy and zstd take is small beside them."""
    keys = np.random.default_rng(1).integers(0, 10_000, 200_000)
    batch = pa.record_batch({"k": keys, "s": [f"some text of row {i}" for i in range(200_000)]})
    options = WriteOptions(sync=False, codec=codec, sort_buffer_bytes=4 << 20, chunk_bytes=32 << 10)
    batches = (batch.slice(i, 4_000) for i in range(0, 200_000, 4_000))
    write_shuffle(batches, path, num_subpartitions=n, keys="k", options=options)
    expected = open_shuffle(path).read().read_all()
    with counted_pool() as pool:
        merge_shuffle(path, policy=ALWAYS, options=options, by="map_output")
    # Three quarters of the buffer, a read ahead of it, and a round of chunks.
    assert 0 < pool.max_memory() < 0.75 * (4 << 20) + (8 << 20) + (2 << 20)
    assert open_shuffle(path).read().read_all().equals(expected)
    (file,) = files_of(open_shuffle(path))
    assert file.num_regions == 1
