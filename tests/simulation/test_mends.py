"""Each protection is needed: taken out, a search finds what goes wrong without it."""

import contextlib
import time
from unittest import mock

import pytest
from msgspec.structs import replace

from arrow_format.jobs import cleanup, garbage, gc_plan, replacement
from arrow_format.log import conflicts
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.entry import LogEntry
from arrow_format.log.reader import LogReader
from arrow_format.storage.open import ObjectNotFoundError
from arrow_format.streaming import lease, version_hold
from tests.simulation.campaign import explored


class _Anything(str):
    """Is equal to any text."""

    __slots__ = ()

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = str.__hash__


def _parents_are_not_compared():
    real = LogEntry.span.fget

    def span(self):
        numbers = real(self)
        if numbers.parent is None:
            return numbers
        return replace(numbers, parent=_Anything(numbers.parent))

    return mock.patch.object(LogEntry, "span", property(span))


def _records_count_once_they_are_put():
    real = ConsumerRegistry.put

    def put(self, name, record):
        listed = self._numbers

        def numbers(name):
            before = [number for number in listed(name) if number < record.number - 1]
            return [*before, *[n for n in (record.number - 1, record.number) if n]]

        with mock.patch.object(self, "_numbers", numbers):
            return real(self, name, record)

    return mock.patch.object(ConsumerRegistry, "put", put)


def _failed_commits_are_not_looked_for():
    def settle(job, log, error):
        cleanup._committing.discard(job.job_id)

    return mock.patch.object(cleanup, "_settle", settle)


def _collections_do_not_say_what_they_give_up():
    def give_up(self, names):
        return tuple(names)

    return mock.patch.object(garbage._Collection, "_give_up", give_up)


def _checkpoints_within_the_base_are_used():
    def checkpoint_at(self, number, checkpoint, base):
        if number == base:
            return self.base(number)
        with contextlib.suppress(ObjectNotFoundError):
            return self.checkpoint(number) if number == checkpoint else None
        return None

    return mock.patch.object(LogReader, "_checkpoint_at", checkpoint_at)


def _clocks_are_compared():
    def is_held(record):
        if record.holder is None or record.token in lease._released:
            return False
        return time.time() - record.at_ms / 1000 < lease.LEASE_SECONDS

    return mock.patch.object(lease, "_is_held", is_held)


def _holds_of_an_earlier_version_take_no_entry():
    def make_certain(storage, version):
        LogReader(storage).entry(version)  # raises where it has expired

    return mock.patch.object(version_hold, "_make_certain", make_certain)


def _holds_are_looked_for_before_the_log_is_read():
    real = gc_plan.Planner.plan

    def plan(self, view, **how):
        holds = gc_plan.reader_holds(self.storage, self.now_ms)
        with mock.patch.object(gc_plan, "reader_holds", return_value=holds):
            return real(self, self.log.view(), **how)

    return mock.patch.object(gc_plan.Planner, "plan", plan)


def _instead(owner, name, result):
    return lambda: mock.patch.object(owner, name, mock.Mock(return_value=result))


NO_FENCE = _instead(CommitLog, "give_up", True)
NO_END = _instead(LogReader, "end_of", None)
NO_INPUTS = _instead(replacement, "check_inputs", None)

# What is taken out: what the protection says, how, and a scenario whose search finds it.
MENDS = [
    ("an entry continues the one before it",
     _parents_are_not_compared, "job in a segment that is removed"),
    ("a record counts if it is the next one",
     _records_count_once_they_are_put, "consumer that sleeps"),
    ("an entry is taken back if its number was free again",
     _instead(CommitLog, "_holds", True), "entry that is put after its segment is removed"),
    ("a reader reads again if a segment was removed",
     _instead(LogReader, "_is_current", True), "reader of a segment that is removed"),
    ("an abort is an entry", NO_FENCE, "abort and commit of a job"),
    ("an abort is an entry, for a late put", NO_FENCE, "append, one fault on a store"),
    ("a job is committed once", NO_END, "one job in two processes"),
    ("a commit sees an abort", NO_END, "abort and commit of a job"),
    ("a transaction is committed once",
     _instead(LogReader, "last_commit", None), "one transaction in two jobs"),
    ("a deletion that is a transaction is committed once",
     _instead(LogReader, "last_commit", None), "one deletion that is repeated"),
    ("an expected version is the newest",
     _instead(conflicts, "check_expected", None), "two writers of one expected version"),
    ("a merge replaces what is there", NO_INPUTS, "overwrite+merge"),
    ("a merge replaces what no other merge has", NO_INPUTS, "merge+merge"),
    ("a deletion replaces what is there", NO_INPUTS, "merge+delete"),
    ("a rollback takes away what a merge replaces", NO_INPUTS, "merge+rollback"),
    ("a commit without an answer is looked for",
     _failed_commits_are_not_looked_for, "append, one fault"),
    ("a merge whose put may come late keeps its files",
     _failed_commits_are_not_looked_for, "interrupted merge on a store"),
    ("a checkpoint that begins within the base is not used",
     _checkpoints_within_the_base_are_used, "late checkpoint in a long log"),
    ("a collection gives up a job by an entry",
     _collections_do_not_say_what_they_give_up, "append+gc"),
    ("a collection gives up a tag by an entry",
     _collections_do_not_say_what_they_give_up, "tag of the newest version, which expires"),
    ("a collection keeps what a reader holds",
     _instead(gc_plan, "reader_holds", []), "hold of an earlier version and gc"),
    ("a hold of an earlier version is an entry",
     _holds_of_an_earlier_version_take_no_entry, "hold of an earlier version and gc"),
    ("holds are looked for after the log is read",
     _holds_are_looked_for_before_the_log_is_read, "hold, overwrite and gc that has looked"),
    ("no two clocks are compared", _clocks_are_compared, "name of a consumer at work"),
]  # fmt: skip

MOST_STATES = 40_000
"""The fault that takes longest is there after 31,000."""


@pytest.mark.parametrize(
    ("take_out", "name"), [pytest.param(*mend, id=what) for what, *mend in MENDS]
)
def test_is_found_when_it_is_taken_out(take_out, name, record_property):
    with take_out():
        found = explored(name, most_states=MOST_STATES)
    record_property("found", f"{found.wrong} after {found.states} states: {found.schedule}")
    assert found.wrong, found.text(name)
