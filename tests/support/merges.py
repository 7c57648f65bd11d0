"""Small shuffles and files to merge."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from arrow_format import MergePolicy, WriteOptions, merge_shuffle
from arrow_format.log.commit_log import CommitLog
from arrow_format.model import BROADCAST
from arrow_format.read.subpartition_reader import SortMergeSubpartitionReader
from arrow_format.storage.open import PosixStorage
from tests.support.own_partitioner import OwnPartitioner
from tests.support.small_shuffles import entry_of, numbered, write_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from arrow_format import MergeReport, ShuffleReceipt
    from arrow_format.model import PartitionedFile
    from arrow_format.options import RewriteChoice
    from arrow_format.read.partitioned_file import PartitionedFileReader
    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.open import Place

N = 6
TINY = WriteOptions(sync=False, sort_buffer_bytes=4_096, chunk_bytes=300, statistics="all")
CODECS = pytest.mark.parametrize("codec", ["none", "zstd"])
FROM_COLUMN = OwnPartitioner(lambda batch, _: batch["p"].to_numpy(), {"kind": "from_column"}, "p")
"""Takes the ids from column `p`, BROADCAST among them."""
NEVER, ALWAYS = MergePolicy(rewrite="never"), MergePolicy(rewrite="always")
POLICIES = pytest.mark.parametrize("policy", [NEVER, ALWAYS], ids=["append", "rewrite"])
WAYS = pytest.mark.parametrize(
    "how",
    [{"policy": NEVER}, {"policy": ALWAYS}, {"policy": ALWAYS, "by": "subpartition"}],
    ids=["append", "rewrite", "by subpartition"],
)


def ids_of(num_rows: int, seed: int = 0, n: int = N, broadcast: bool = False) -> list[int]:
    """Return random subpartitions; with ``broadcast`` a third of the rows are for all."""
    ids = np.random.default_rng(seed).integers(0, n, num_rows)
    if broadcast:
        ids[(np.arange(num_rows) // 25) % 3 == 1] = BROADCAST
    return [int(number) for number in ids]


def append_version(
    path: Path | str,
    num_tasks: int = 2,
    rows: int = 150,
    options: WriteOptions = TINY,
    broadcast: bool = False,
    n: int = N,
    sort_by: Sequence[Any] = (),
) -> ShuffleReceipt:
    """Commit one version more: map tasks of several regions each, rotated."""
    seed = CommitLog(PosixStorage(str(path))).newest_version() * 100
    tasks = [
        numbered_batches(ids_of(rows, number, n, broadcast), 1_000 * number)
        for number in range(seed, seed + num_tasks)
    ]
    return write_tasks(
        path, tasks, n, mode="append", partitioner=FROM_COLUMN, options=options, sort_by=sort_by
    )


def numbered_batches(ids: list[int], start: int, rows: int = 10) -> list[pa.RecordBatch]:
    """Return numbered rows of these subpartitions, a few in each batch."""
    return [numbered(ids[i : i + rows], start + i) for i in range(0, len(ids), rows)]


def merge_by(
    path: Place, how: RewriteChoice | Literal["subpartition"], options: WriteOptions
) -> MergeReport:
    """Merge by map output with a policy that rewrites so, or by subpartition."""
    if how == "subpartition":
        return merge_shuffle(path, by=how, options=options)
    policy = MergePolicy(rewrite=how)
    return merge_shuffle(path, by="map_output", policy=policy, options=options)


def contents(shuffle: Shuffle) -> list[pa.Table]:
    """Rows of each subpartition in reading order, and of a range that is read together."""
    return [
        *(shuffle.subpartition(i).read_all() for i in range(shuffle.num_subpartitions)),
        shuffle.read(range(1, 4), with_subpartition=True).read_all(),
    ]


def files_of(shuffle: Shuffle) -> list[PartitionedFile]:
    """Return the files of a version."""
    return [file for output in shuffle.map_outputs for file in output.files]


def rows_in(*indexes: PartitionedFileReader) -> list[tuple[int, int]]:
    """`(subpartition, v)` by subpartition, in the order a reader gives."""
    rows = []
    for subpartition in range(N):
        for index in indexes:
            entry = entry_of(index.file, N)
            for run in SortMergeSubpartitionReader(
                index.storage, entry, entry.map_outputs, subpartition, subpartition + 1
            ):
                rows += [(subpartition, v) for v in run.batch["v"].to_pylist()]
    return rows


class Failing:
    """Counts calls of `os` functions that change files, and makes one of them fail."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        names: Sequence[str] = ("writev", "fsync", "open", "link"),
    ) -> None:
        self.calls = 0
        self.fails_at: int | None = None
        for name in names:
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name)))

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which fails at its call."""

        def call(*arguments: Any, **how: Any) -> Any:
            reads = function.__name__ == "open" and not arguments[1] & os.O_CREAT
            if not reads:
                self.calls += 1
                if self.calls == self.fails_at:
                    raise OSError(errno.ENOSPC, "No space left on device")
            return function(*arguments, **how)

        return call
