"""CONFORMANCE, group "Commit": several processes write, merge, read and collect one shuffle."""

import json
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from arrow_format import collect_garbage, open_shuffle
from arrow_format.log.commit_log import CommitLog
from arrow_format.storage.open import PosixStorage
from tests.support.contending import ROWS
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import live_files

ROOT = Path(__file__).parents[2]
TURNS = times(5, 40)
RETENTION = 0.5
ROLES = ["append", "append", "overwrite", "merge", "read", "gc"]


def run_all(path):
    """Run a process for each role; return all that they told."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.contending", role, str(number), str(path),
             str(TURNS), str(RETENTION)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number, role in enumerate(ROLES)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    told = []
    for process in processes:
        out, _ = process.communicate(timeout=120 + 20 * TURNS)
        assert process.returncode == 0
        told += [json.loads(line) for line in out.splitlines()]
    return told


def contents(told):
    """Firsts of the writes in each version, by what the winners were told."""
    winners = {one["version"]: one for one in told if "version" in one and one["role"] != "read"}
    found, held = {}, []
    for version in sorted(winners):
        one = winners[version]
        if one["role"] == "overwrite":
            held = []
        if "first" in one:
            held = sorted([*held, one["first"]])
        found[version] = held
    return found


@guarantee("contention")
def test_nothing_is_lost_and_nothing_is_half_seen(tmp_path):
    path = tmp_path / "shuffle"
    told = run_all(path)
    wrong = [one for one in told if "error" in one and not one["allowed"]]
    # Before anybody wrote there is nothing to read, merge or collect.
    early = r"is not there|no committed shuffle|holds no shuffle"
    wrong = [one for one in wrong if not re.search(early, one["message"])]
    assert wrong == []

    expired = sum(one.get("expired", 0) for one in told if one["role"] == "gc")
    assert expired > 0, "or nothing was collected under the others, and nothing is shown here"

    written = [one["version"] for one in told if "version" in one and one["role"] != "read"]
    assert len(written) == len(set(written)) > 2 * TURNS, "every version has one winner"
    expected = contents(told)
    for one in told:
        if one["role"] == "read" and "version" in one:
            assert one["whole"]
            assert one["firsts"] == expected[one["version"]]
    newest = open_shuffle(path)
    assert newest.version == max(expected)
    values = sorted(newest.read().read_all()["v"].to_pylist())
    assert values == [v for first in expected[newest.version] for v in range(first, first + ROWS)]
    assert newest.verify().ok

    collect_garbage(path, retention=timedelta(0))
    newest = open_shuffle(path)
    there = {str(one.relative_to(path)) for one in path.glob("map_outputs/*/*")}
    assert there == live_files(newest), "nothing but what the newest version names"
    assert sorted(newest.read().read_all()["v"].to_pylist()) == values
    log = CommitLog(PosixStorage(str(path)))
    assert not [one for one in (path / "commit_log").rglob("*") if ".tmp" in one.name]
    assert log.view().oldest == newest.version
