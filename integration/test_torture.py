"""A short run of what ``make torture`` runs for as long as one likes."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from arrow_format.jobs.job import run_map_task
from integration.torture.checks import TortureError, check_state, files_beside
from integration.torture.children import Message, child
from integration.torture.harness import Harness
from integration.torture.operations import Operation, begin, perform, task_batches
from integration.torture.rounds import plan_round
from integration.torture.run import run_rounds
from integration.torture.watching import Outcome
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from integration.programs.cluster import Cluster


@guarantee("kills")
def test_ten_rounds(cluster: Cluster, tmp_path: Path):
    harness = Harness(tmp_path, cluster)
    try:
        account = run_rounds(harness, 1, 10, say=print)
    finally:
        harness.close()

    print(account)
    assert "8 of the engine alone, 2 through Spark" in account
    assert {where for where, *_ in harness.hits} == {"engine", "Spark"}
    assert len({hit for *_, hit in harness.hits}) >= 4, "blows must fall into different phases"


def test_a_round_follows_from_seed_and_number():
    assert plan_round(1, 7) == plan_round(1, 7)
    rounds = [plan_round(1, number, local_dirs=("/d",)) for number in range(200)]
    assert len({str(one) for one in rounds}) == 200
    assert sum(one.through_spark for one in rounds) == 40
    assert {one.operation.kind for one in rounds} == {"append", "overwrite", "read", "merge", "gc"}
    assert {one.victim for one in rounds} == {
        "process", "map task", "Python worker", "executor JVM", "driver JVM", "driver Python",
    }  # fmt: skip


# The checks themselves ---------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> str:
    """Two commits: rows 0 to 99 and 500 to 699."""
    path = str(tmp_path / "s")
    for one in (Operation("append", 0, 100), Operation("append", 500, 200, 2)):
        perform(one, path, lambda phase: None)
    return path


def test_a_state_is_told_from_others(written: str):
    both = ((0, 100), (500, 200))
    assert check_state(written, [((0, 100),), both]) == both
    for wrong in (((0, 100),), ((0, 101), (500, 200)), ((500, 200),), None):
        with pytest.raises(TortureError, match="300 rows 0-99, 500-699; expected one of"):
            check_state(written, [wrong])


def test_rows_that_are_not_as_written_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import integration.torture.operations as operations

    path = str(tmp_path / "s")
    with monkeypatch.context() as patched:
        patched.setattr(operations, "MOST_WORDS", 3)
        perform(Operation("append", 0, 100), path, lambda phase: None)
    with pytest.raises(TortureError, match="other than they were written"):
        check_state(path, [((0, 100),)])


def test_what_lies_beside_a_version_is_seen(written: str, tmp_path: Path):
    assert files_beside(written) == []
    disk = tmp_path / "disk"
    dead = begin(Operation("append", 900, 10, local_dirs=(str(disk),)), written)
    for number in range(2):  # one for each root
        run_map_task(dead, number, 0, task_batches(Operation("append", 900, 10), 0))
    found = files_beside(written, [str(disk)])
    assert all(dead.job_id in name for name in found)
    assert sum(".shuffle." in name for name in found) == 4
    assert any(name.endswith("arrow-shuffle-root.json") for name in found)

    perform(Operation("overwrite", 2_000, 10), written, lambda phase: None)
    old = [name for name in files_beside(written) if dead.job_id not in name]
    assert len(old) == 2 * 3, "data and index of three map outputs"


# The harness itself ------------------------------------------------------------------------------


def _hang(how: str, announce: Callable[[str], None]) -> None:
    announce(how)
    time.sleep(60)


def test_a_child_that_hangs_is_named_with_where_it_stands():
    with child(_hang, "commit") as process:
        announced = process.next()
        assert announced is not None
        assert announced.value == "commit"
        with pytest.raises(
            TimeoutError, match=r"for 0\.2 s, which is in commit of _hang"
        ) as raised:
            process.next(0.2)
    assert "test_torture.py" in str(raised.value), "the line at which it hangs"
    assert "in _hang" in str(raised.value)


SPARK_GAVE_UP = "Authorized committer (attemptNumber=0, stage=1, partition=2) failed"


@pytest.mark.parametrize(
    ("victim", "way", "failure", "may_fail"),
    [
        ("executor JVM", "df.write", SPARK_GAVE_UP, True),
        ("executor JVM", "df.write", "rows were lost", False),
        ("executor JVM", "function", SPARK_GAVE_UP, False),
        ("Python worker", "df.write", SPARK_GAVE_UP, False),
        ("Python worker", "df.write", "worker died", False),
        ("driver JVM", "df.write", "connection refused", True),
        ("process", "engine", "it broke", False),
    ],
)
def test_who_may_fail(tmp_path: Path, victim: str, way: str, failure: str, may_fail: bool):
    planned = replace(plan_round(1, 4), victim=victim)
    planned = replace(planned, operation=replace(planned.operation, way=way))
    outcome = Outcome([Message("phase", "write", 0.0), Message("failed", failure, 1.0)])
    harness = Harness(tmp_path, None)
    if may_fail:
        harness._check_survival(planned, outcome)
    else:
        with pytest.raises(TortureError, match="the job failed all the same"):
            harness._check_survival(planned, outcome)
