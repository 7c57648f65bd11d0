"""Requests per operation on an object store, and how many are waited for one after the other.

Of a log with few versions and of one with many, on which an operation must not ask for more. One
table: change it where an operation asks for less.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest

from arrow_format import open_shuffle
from arrow_format.jobs import garbage
from arrow_format.log import names
from arrow_format.storage.object_store import MAX_REQUESTS
from tests.simulation import actors
from tests.simulation.explorer import PAUSE_MS
from tests.simulation.files import EMPTY
from tests.simulation.process import START_MS, note, this, virtual_world
from tests.simulation.programs import Program
from tests.support.small_log import small_segments

SEGMENT = 64
"""Numbers of a segment here, so that a log of several is soon made."""

FEW, MANY = 10, 88
"""Versions of the log before the operation, the latter more than a segment has."""

KINDS = {"list": "lists", "files": "lists", "read": "gets", "stat": "heads", "put": "puts"} | {
    "upload": "puts",
    "delete": "deletes",
    "delete_all": "deletes",
}


class Requests(NamedTuple):
    log_lists: int = 0
    """Of them those of the log: a commit needs two, however long the log is."""
    lists: int = 0
    gets: int = 0
    heads: int = 0
    puts: int = 0
    deletes: int = 0
    trips: int = 0
    """Waited for one after the other, with at most eight requests at a time."""


EXPECTED = {
    # Of the log: lists; lists gets heads puts deletes trips.
    ("append", FEW): Requests(2, 3, 2, 2, 3, 0, 9),
    ("append", MANY): Requests(2, 3, 2, 2, 3, 0, 9),
    ("overwrite", FEW): Requests(2, 3, 2, 2, 3, 0, 9),
    ("overwrite", MANY): Requests(2, 3, 2, 2, 3, 0, 9),
    ("open", FEW): Requests(2, 2, 11, 0, 0, 0, 6),
    ("open", MANY): Requests(2, 2, 11, 0, 0, 0, 7),
    ("merge", FEW): Requests(4, 5, 37, 1, 3, 0, 24),
    ("merge", MANY): Requests(4, 5, 37, 1, 3, 0, 28),
    ("merge with nothing to do", FEW): Requests(2, 2, 12, 0, 0, 0, 6),
    ("merge with nothing to do", MANY): Requests(2, 2, 12, 0, 0, 0, 7),
    # It reads the rows of the keys' subpartitions in every region.
    # And every entry, for the bounds that the log has.
    ("delete", FEW): Requests(9, 10, 73, 0, 1, 0, 31),
    ("delete", MANY): Requests(9, 10, 232, 0, 1, 0, 61),
    ("alter", FEW): Requests(4, 4, 13, 1, 1, 0, 12),
    ("alter", MANY): Requests(4, 4, 13, 1, 1, 0, 13),
    ("rollback", FEW): Requests(4, 4, 8, 11, 1, 0, 13),
    ("rollback", MANY): Requests(4, 4, 8, 11, 1, 0, 13),
    ("tag", FEW): Requests(5, 5, 9, 1, 2, 0, 14),
    ("tag", MANY): Requests(5, 5, 9, 1, 2, 0, 14),
    # It lists the consumers, for what readers that died left.
    ("gc with nothing to do", FEW): Requests(7, 11, 15, 4, 0, 0, 23),
    ("gc with nothing to do", MANY): Requests(7, 12, 14, 5, 0, 0, 25),
    # It lists the data files once, however many jobs they are of.
    ("release", FEW): Requests(9, 13, 22, 5, 2, 1, 35),
    ("release", MANY): Requests(9, 14, 21, 6, 2, 1, 37),
    # It lists the records of a consumer again after it has read one.
    ("consume", FEW): Requests(4, 11, 10, 2, 2, 0, 24),
    ("consume", MANY): Requests(4, 11, 11, 2, 2, 0, 24),
    ("acknowledge", FEW): Requests(2, 10, 5, 0, 3, 0, 18),
    ("acknowledge", MANY): Requests(2, 10, 5, 0, 3, 0, 18),
}


def _open(storage):
    open_shuffle(storage)


OPERATIONS = {
    "append": actors.write("append", [1]),
    "overwrite": actors.write("overwrite", [1], "overwrite"),
    "alter": actors.alter("alter"),
    "rollback": actors.rollback("rollback", 5),
    "tag": actors.tag("t", 5),
    "delete": actors.delete("delete", [-1]),
    "open": _open,
    "merge with nothing to do": actors.merge("merge"),
    "merge": actors.merge("merge"),
    "gc with nothing to do": actors.collect(24),
    "release": actors.release(),
    "consume": actors.consumes("c", "c"),
    # What was consumed before is not released again.
    "acknowledge": actors.advance("c", FEW, ()),
}
PIPELINED = ("consume", "acknowledge")
_TWO_LATER = (
    actors.merge("before"),
    actors.write("before-1", [-1]),
    actors.write("before-2", [-2]),
)
BEFORE = {
    # So that it replaces as much, however many versions there were.
    "merge": _TWO_LATER,
    "merge with nothing to do": (actors.merge("before"),),
    "delete": _TWO_LATER,
    "acknowledge": (actors.consumes("c", "before"),),
    "gc with nothing to do": (actors.collect(24),) * 2,
    "release": (actors.collect(24),) * 2,
    "consume": (
        actors.consumes("c", "before"),
        actors.collect(24),
        actors.write("before-1", [-1]),
    ),
}


class Log:
    """A storage on which operations run one after the other."""

    def __init__(self, files=EMPTY, now_ms=START_MS, who="first"):
        self.files, self._now_ms, self._count, self._who = files, now_ms, 0, who

    def run(self, act):
        """Run an operation; return its requests, and what it noted."""
        self._count += 1
        program = Program(
            f"{self._who}-{self._count}", act, is_store=True, max_requests=MAX_REQUESTS
        )
        self.files, node = program.run_alone(self.files, self._now_ms)
        assert node.error is None
        assert not [event for event in node.events if event[0] in ("fails", "gives up")]
        calls = [call for call, _ in node.history()]
        counts = Counter(KINDS[call[0]] for call in calls if call[0] in KINDS)
        counts["log_lists"] = sum(call[0] == "list" and "commit_log" in call[1] for call in calls)
        return counts, node


@pytest.fixture(scope="module", params=[FEW, MANY])
def logs(request):
    """Logs of that many versions, of a table and of a result with a consumer."""
    segments = small_segments(SEGMENT, names.CHECKPOINT_INTERVAL, garbage.REMOVAL_DELAY_MS)
    with segments, virtual_world():
        table, result = Log(), Log()
        for row in range(request.param):
            table.run(actors.write(f"row {row}", [row]))
            result.run(actors.write(f"row {row}", [row], result_type="PIPELINED"))
        yield request.param, table.files, result.files


@pytest.mark.parametrize("operation", OPERATIONS)
def test_requests(logs, operation):
    versions, table, result = logs
    # So much later that no task of the jobs can still write.
    log = Log(result if operation in PIPELINED else table, START_MS + PAUSE_MS, "later")
    for before in BEFORE.get(operation, ()):
        log.run(before)

    def act(storage):
        OPERATIONS[operation](storage)
        note("trips", this().trips)

    counts, node = log.run(act)
    requests = Requests(**counts, trips=node.events[-1][1])
    assert requests == EXPECTED[operation, versions]
