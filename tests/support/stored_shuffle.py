"""A shuffle in an object store, for tests of what becomes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import arrow_format
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.names import (
    entry_path,
    expired_path,
    numbers_of,
    range_path,
    segment_of,
)
from arrow_format.storage.open import open_storage
from arrow_format.storage.put_probe import PROBE_DIRECTORY
from tests.support.small_shuffles import live_files
from tests.support.store_server import PROJECT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrow_format.jobs.gc_files import GcReport
    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.model import MapStatus
    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.open import Storage
    from tests.support.store_server import StoreServer

N = 5
"""Subpartitions."""


class StoredShuffle:
    """A shuffle in a store, and the options to reach it with."""

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        self.path = path
        self.options = dict(options)

    @staticmethod
    def at(server: StoreServer) -> StoredShuffle:
        """Return one in a bucket of its own."""
        path = f"{server.scheme}://{server.new_bucket()}/some/shuffle"
        return StoredShuffle(path, server.options)

    def by(self, options: Mapping[str, str]) -> StoredShuffle:
        """Return the same one, reached with other options."""
        return StoredShuffle(self.path, options)

    @property
    def given(self) -> dict[str, Any]:
        """The options, as an argument."""
        return {"storage_options": self.options}

    @property
    def storage(self) -> Storage:
        """Its files."""
        return open_storage(self.path, self.options)

    def write(self, start: int, count: int = 10, mode: Any = "append", **how: Any) -> int:
        """Write consecutive values; return the version."""
        receipt = arrow_format.write_shuffle(
            rows(start, count),
            self.path,
            keys="k",
            num_subpartitions=N,
            mode=mode,
            **self.given,
            **how,
        )
        assert receipt.version is not None
        return receipt.version

    def start_job(self, start: int = 1_000) -> tuple[ShuffleJob, list[MapStatus]]:
        """Return a job whose map task has ended, ready to commit."""
        (batch,) = rows(start, 10).to_batches()
        by_key = HashPartitioner("k")
        job = begin_job(self.storage, batch.schema, num_subpartitions=N, partitioner=by_key)
        open_target(job, "append")
        return job, [run_map_task(job, 0, 0, [batch])]

    def collect(self, retention: timedelta = timedelta(0), **how: Any) -> GcReport:
        """Collect garbage."""
        return arrow_format.collect_garbage(self.path, retention=retention, **self.given, **how)

    def open(self, version: int | str | None = None) -> Shuffle:
        """Open a version."""
        return arrow_format.open_shuffle(self.path, version, **self.given)

    def values(self, version: int | str | None = None) -> list[int]:
        """Return the values of a version that is whole."""
        opened = self.open(version)
        assert opened.verify().ok
        return sorted(opened.read(columns=["v"]).read_all()["v"].to_pylist())

    def files(self) -> dict[str, int]:
        """Return the size of each file.

        But for what a killed process left of asking the store, which is left for some time.
        """
        found = self.storage.files("", depth=9)
        return {
            path: stat.num_bytes
            for path, stat in found.items()
            if not path.startswith(f"{PROBE_DIRECTORY}/")
        }

    def check_no_orphan(self) -> None:
        """Everything that is there is needed by the newest version, and all it needs is there."""
        shuffle = self.open()
        assert shuffle.verify().ok
        view = CommitLog(self.storage).view()
        there = set(self.files())
        outputs = {path for path in there if path.startswith("map_outputs/")}
        assert outputs == live_files(shuffle)
        removed = range(segment_of(view.state.base))
        numbers = range(numbers_of(len(removed))[0], view.newest + 1)
        entries = set(map(entry_path, numbers))
        in_log = {path for path in there if path.startswith("commit_log/")}
        assert entries <= in_log
        assert in_log - entries <= {*map(range_path, numbers), *map(expired_path, removed)}
        assert shuffle.subpartition_rows.to_pylist()  # totals are there, wherever

    def start(self, program: str, *arguments: object) -> subprocess.Popen[str]:
        """Start a process that gets the path and ``arguments``, and the options on its input."""
        process = subprocess.Popen(
            [sys.executable, "-c", program, self.path, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self.options))
        process.stdin.close()
        process.stdin = None  # for communicate()
        return process


def rows(start: int, count: int) -> pa.Table:
    """Return rows of consecutive values, and few keys."""
    numbers = range(start, start + count)
    return pa.table({"k": [number % 17 for number in numbers], "v": list(numbers)})
