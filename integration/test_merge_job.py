"""Merges as jobs of Spark: what they make, killed tasks and drivers, and collections meanwhile."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import connector.merge
from arrow_format import (
    CommitConflictError,
    MergePolicy,
    OptionError,
    collect_garbage,
    write_shuffle,
)
from arrow_shuffle import open_shuffle
from connector.pickling import pickle_by_value
from integration.programs.ways import FAST
from integration.torture.checks import files_beside
from integration.torture.operations import Operation, perform
from integration.torture.spark_driver import SparkDriver
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import files_below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from arrow_format import Shuffle
    from arrow_format.model import MapStatus
    from arrow_format.options import MergeBy
    from integration.programs.cluster import Cluster
    from tests.support.s3_server import S3Server

N = 40
SEVERAL = MergePolicy(rewrite="always", target_file_bytes=130_000)
"""Several tasks for few rows."""
pickle_by_value(__name__)
BY = pytest.mark.parametrize("by", ["subpartition", "map_output"])


def written(
    path: Path | str, times: int = 6, sort_by: Sequence[str] = (), **how: object
) -> Shuffle:
    """Return a shuffle of many map outputs, with rows of all subpartitions in each."""
    for turn in range(times):
        first = turn * 10_000
        v = range(first, first + 10_000)
        table = pa.table({"k": [i * 7919 % 9973 for i in v], "v": v, "t": [f"row {i}" for i in v]})
        write_shuffle(
            table, path, keys="k", num_subpartitions=N, mode="append", options=FAST,
            sort_by=sort_by, **how,
        )  # fmt: skip
    return open_shuffle(path, **how)


def rows_of(shuffle: Shuffle) -> list[pa.Table]:
    return [shuffle.subpartition(number).read_all() for number in range(N)]


@guarantee("merged rows")
@exhaustive()
@BY
@pytest.mark.parametrize("sort_by", [(), ("t",)])
def test_rows_and_their_order_stay(
    spark: SparkSession, tmp_path: Path, by: MergeBy, sort_by: Sequence[str]
):
    path = tmp_path / "s"
    before = written(path, sort_by=sort_by)
    expected = rows_of(before)
    report = open_shuffle(path).merge(by=by, policy=SEVERAL, options=FAST, spark=spark)
    merged = open_shuffle(path)
    assert report.plan.num_tasks > 1
    assert report.num_map_outputs == (6, report.plan.num_tasks)
    assert merged.version == report.version == before.version + 1
    assert rows_of(merged) == expected
    assert merged.verify().num_rows == before.num_rows
    assert merged.subpartition_rows.equals(before.subpartition_rows)
    assert sum(merged.subpartition_bytes.to_pylist()) == merged.num_bytes
    tasks = {output.map_task for output in merged.map_outputs}
    assert tasks == set(range(report.plan.num_tasks))
    if by == "subpartition":
        assert all(len(merged.plan(number).reads) == 1 for number in range(N))
    collect_garbage(path, retention=timedelta(0))
    assert files_beside(str(path)) == []
    assert rows_of(open_shuffle(path)) == expected


def test_what_is_not_worth_a_job(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "s"
    written(path, 2)
    assert open_shuffle(path).merge(spark=spark).plan.merges == ()
    with pytest.raises(OptionError, match="by='subpartition' joins regions"):
        open_shuffle(path).merge(policy=MergePolicy(rewrite="never"), spark=spark)
    with pytest.raises(CommitConflictError, match="expected_version=1"):
        open_shuffle(path).merge(policy=SEVERAL, expected_version=1, spark=spark)
    assert open_shuffle(path).version == 2


class _Marked(connector.merge.MergeTask):
    """A task that leaves a mark each time that it has written its map output."""

    marks: str
    times: int

    def write(self, number: int, attempt: int) -> list[MapStatus]:
        status = super().write(number, attempt)
        if number == self.work.num_tasks - 1:
            self.mark()
        return status

    def mark(self) -> None:
        raise NotImplementedError


class Killed(_Marked):
    """Kills its process the first times."""

    def mark(self) -> None:
        if len(list(Path(self.marks).iterdir())) < self.times:
            (Path(self.marks) / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Collected(_Marked):
    """Has garbage collected while the job runs."""

    def mark(self) -> None:
        collect_garbage(self.jobs[0].storage.root)
        (Path(self.marks) / "collected").touch()


class Appended(_Marked):
    """Has another writer append while the job runs."""

    def mark(self) -> None:
        written(self.jobs[0].storage.root, 1)


def with_task(
    monkeypatch: pytest.MonkeyPatch, kind: type[_Marked], marks: Path, times: int = 0
) -> None:
    """Let tasks of merges be of a kind."""

    def made(*given: object) -> _Marked:
        task = kind(*given)
        task.marks, task.times = str(marks), times
        return task

    marks.mkdir()
    monkeypatch.setattr(connector.merge, "MergeTask", made)


@guarantee("kills")
@exhaustive()
@BY
@pytest.mark.parametrize("times", [1, 2])
def test_a_killed_task_is_tried_again_or_nothing_changes(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by: MergeBy,
    times: int,
):
    """Two tries, as the session has them."""
    path = tmp_path / "s"
    expected = rows_of(written(path))
    before = files_below(path)
    with_task(monkeypatch, Killed, tmp_path / "marks", times)
    if times > 1:
        with pytest.raises(Exception, match="Python worker exited unexpectedly"):
            open_shuffle(path).merge(by=by, policy=SEVERAL, options=FAST, spark=spark)
        assert files_below(path) == before
        return
    report = open_shuffle(path).merge(by=by, policy=SEVERAL, options=FAST, spark=spark)
    merged = open_shuffle(path)
    assert len(list((tmp_path / "marks").iterdir())) == 1
    assert rows_of(merged) == expected
    merged.verify()
    files = [name for name in set(files_below(path)) - set(before) if name.endswith(".data")]
    assert len(files) == report.plan.num_tasks, "what the dead attempt wrote was removed"


@BY
def test_a_collection_leaves_the_files_of_a_live_job_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: MergeBy
):
    path = tmp_path / "s"
    expected = rows_of(written(path))
    with_task(monkeypatch, Collected, tmp_path / "marks")
    open_shuffle(path).merge(by=by, policy=SEVERAL, options=FAST, spark=spark)
    assert (tmp_path / "marks" / "collected").exists()
    assert rows_of(open_shuffle(path)) == expected


@guarantee("concurrent merge")
@BY
def test_rows_appended_meanwhile_stay(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: MergeBy
):
    path = tmp_path / "s"
    written(path)
    with_task(monkeypatch, Appended, tmp_path / "marks")
    report = open_shuffle(path).merge(by=by, policy=SEVERAL, options=FAST, spark=spark)
    merged, appended = open_shuffle(path), open_shuffle(path, 7)
    assert (report.version, merged.num_rows) == (8, 70_000)
    assert rows_of(merged) == rows_of(appended)
    assert merged.subpartition_rows.equals(appended.subpartition_rows)
    merged.verify()


@guarantee("kills")
@exhaustive()
@BY
@pytest.mark.parametrize("victim", ["driver Python", "driver JVM"])
def test_a_killed_driver_changes_nothing(
    cluster: Cluster, tmp_path: Path, by: MergeBy, victim: str
):
    path = str(tmp_path / "s")
    for turn in range(4):
        perform(Operation("append", turn * 100_000, 100_000, 3), path, lambda phase: None)
    expected = rows_in_order(path)
    driver = SparkDriver(cluster, tmp_path / "driver")
    driver.order(path, Operation("merge", by=by))
    deadline = time.monotonic() + 120
    while not files_beside(path):  # until a task has begun a file
        assert time.monotonic() < deadline, "the job wrote nothing"
        time.sleep(0.001)
    driver.strike(victim, Random(1))
    driver.bury()
    version = open_shuffle(path).version
    assert version in (4, 5), "the commit may have been faster"
    assert rows_in_order(path) == expected
    if version == 4:
        before = files_beside(path)
        collect_garbage(path)
        assert files_beside(path) == before, "for all that is known, the job may be alive"
    collect_garbage(path, retention=timedelta(0))
    assert files_beside(path) == []
    perform(Operation("merge", by=by), path, lambda phase: None)
    assert rows_in_order(path) == expected
    open_shuffle(path).verify()


def rows_in_order(path: str) -> list[list[int]]:
    shuffle = open_shuffle(path)
    return [
        shuffle.subpartition(number, columns=["v"]).read_all()["v"].to_pylist()
        for number in range(shuffle.num_subpartitions)
    ]


@exhaustive(but="by")
@BY
def test_local_directories(spark: SparkSession, tmp_path: Path, by: MergeBy):
    path = tmp_path / "s"
    disks = tuple(str(tmp_path / name) for name in ("one", "two"))
    for disk in disks:
        Path(disk).mkdir()
    expected = rows_of(written(path))
    options = replace(FAST, local_dirs=disks)
    open_shuffle(path).merge(by=by, policy=SEVERAL, options=options, spark=spark)
    merged = open_shuffle(path)
    assert len({file.root for output in merged.map_outputs for file in output.files}) > 1
    assert rows_of(merged) == expected
    merged.verify()


@exhaustive(but="by")
@BY
def test_in_an_object_store(spark: SparkSession, s3: S3Server, by: MergeBy):
    path = f"s3://{s3.new_bucket()}/merged/{by}"
    how = {"storage_options": s3.options}
    expected = rows_of(written(path, **how))
    shuffle = open_shuffle(path, **how)
    report = shuffle.merge(by=by, policy=SEVERAL, options=FAST, spark=spark)
    merged = shuffle.newest()
    assert report.plan.num_tasks > 1
    assert rows_of(merged) == expected
    merged.verify()
