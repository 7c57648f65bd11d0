"""Whatever is written, consumed, released, merged or killed: each consumer has each row once.

The model is what each version added, and how far each consumer has come. Collections run with
retention 0, so that everything that may go does; what is pending, unconsumed or just appended must
not.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from arrow_format import (
    ResultPartitionType,
    WriteOptions,
    collect_garbage,
    flush_pending,
    forget_consumer,
    merge_shuffle,
    open_shuffle,
    release_shuffle,
)
from arrow_format.errors import (
    CommitConflictError,
    RequestTimeoutError,
    ResultReleasedError,
    ShuffleNotFoundError,
)
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.target import open_target
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.pending import pending_outputs
from arrow_format.storage.open import PosixStorage
from arrow_shuffle import consume
from tests.support.consumers import ConsumerRegistry
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import dies_after, instead_of_first_entry
from tests.support.small_log import LOG_SIZES, log_of_sizes
from tests.support.small_shuffles import FAST, begin, run

NAMES = st.sampled_from(["a", "b"])
EVENTS = st.sampled_from([None, "write", "merge", "collect"]) | st.integers(0, 8)
"""What happens to an operation: nothing, its death after so many changes, or what another process
does just before it puts an entry of the log."""


def values(shuffle):
    return sorted(shuffle.read().read_all()["v"].to_pylist())


@guarantee("pending in checkpoints")
class ResultsMachine(RuleBasedStateMachine):
    @initialize(
        kind=st.sampled_from([*[ResultPartitionType.PIPELINED] * 2, ResultPartitionType.BLOCKING]),
        sizes=LOG_SIZES,
    )
    def start(self, kind, sizes):
        self.path = Path(tempfile.mkdtemp())
        self.patch = log_of_sizes(*sizes)
        self.kind = kind
        self.next = 0
        self.n = 3
        self.begin_result(0)
        self.is_there = False
        self.pending: list[tuple[bool, list[int]]] = []
        self.progress: dict[str, int] = {}
        self.known_rows: dict[str, set[int]] = {}
        """Of a consumer that has consumed nothing yet: rows that it must get."""

    def teardown(self):
        self.patch.undo()
        shutil.rmtree(self.path, ignore_errors=True)

    def begin_result(self, after):
        """Nothing is there; the next result has the numbers after ``after``."""
        self.is_there = False
        self.after = after
        self.added: dict[int, list[int]] = {}
        self.content: dict[int, list[int]] = {}
        """Of ``added`` what is in the newest version, were nothing released."""
        self.through = 0
        """Up to where rows may have been released."""

    def log(self):
        return CommitLog(PosixStorage(str(self.path)))

    def newest(self):
        return self.log().newest_version()

    def put(self, mode, *, pending):
        self.next += 100
        rows = list(range(self.next, self.next + 3))
        options = WriteOptions(sync=False, result_type=self.kind)
        job = begin(self.path, n=self.n, partitioner=HashPartitioner("v"), options=options)
        open_target(job, mode)
        statuses = [run(job, 0, range(3), start=rows[0])]
        return commit_job(job, statuses, mode=mode, pending=pending).version, rows

    def committed(self, version, mode, rows):
        if mode == "overwrite" or not self.is_there:
            self.content = {}
        self.is_there = True
        self.added[version] = self.content[version] = rows
        for known in self.known_rows.values():
            known.update(rows)

    @rule(mode=st.sampled_from(["append", "append", "append", "overwrite"]))
    def write(self, mode):
        version, rows = self.put(mode, pending=False)
        self.committed(version, mode, rows)

    @rule(mode=st.sampled_from(["append", "append", "overwrite"]))
    def put_pending(self, mode):
        _, rows = self.put(mode, pending=True)
        self.pending.append((mode == "overwrite", rows))

    @precondition(lambda self: self.pending)
    @rule(event=EVENTS)
    def flush(self, event):
        before = self.log().view()
        with contextlib.suppress(CommitConflictError):  # with retention 0 any job may be given up
            self.amid(event, lambda: flush_pending(self.path, options=FAST))
        flushed = []
        pending = before.state.pending.numbers
        for number in range(before.newest + 1, self.newest() + 1):
            left = self.log().record(number).state.pending.numbers
            if len(left) < len(pending):
                flushed.append(number)
            pending = left
        if not flushed:
            assert isinstance(event, int) or event == "collect"
            return
        (version,) = flushed
        anew = [place for place, (begins, _) in enumerate(self.pending) if begins]
        rows = [row for _, some in self.pending[max(anew, default=0) :] for row in some]
        self.committed(version, "overwrite" if anew else "append", rows)
        self.pending = []

    @precondition(lambda self: self.is_there)
    @rule()
    def merge(self):
        merge_shuffle(self.path, options=FAST, by="map_output")

    @rule(name=NAMES, commits=st.booleans() | st.just(True), event=EVENTS)
    def consume(self, name, commits, event):
        storage = PosixStorage(str(self.path))
        is_in_vain = not storage.list(f"consumers/{name}") and not (
            {"commit_log", "map_outputs"} & set(storage.list(""))
        )
        if name not in self.progress:
            self.progress[name] = 0
            self.known_rows[name] = self.rows_there() if self.is_there else set()
        error = self.expected_error(name)
        if error is not None:
            with pytest.raises(error) as raised:
                consume(self.path, consumer=name)
            assert raised.type is error
            if is_in_vain:
                del self.progress[name], self.known_rows[name]
            assert ConsumerRegistry(storage).progress(name) == self.progress.get(name)
            return
        consumption = consume(self.path, consumer=name)
        self.check_rows(name, values(consumption.shuffle))
        if not commits:
            consumption.close()
            return
        version = consumption.shuffle.version
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            self.amid(event, consumption.commit)  # which tells what it could not remove
        progress = ConsumerRegistry(storage).progress(name)
        assert progress in ({version, self.progress[name]} if isinstance(event, int) else {version})
        self.progress[name] = progress
        if progress:
            self.known_rows.pop(name, None)
        self.released_by_consumers()

    def expected_error(self, name):
        if not self.is_there:
            return ResultReleasedError if self.after else ShuffleNotFoundError
        left = self.due(name) if self.progress[name] else self.known_rows[name]
        if self.kind.is_pipelined and not left:
            return RequestTimeoutError
        return None

    def due(self, name):
        """Rows of versions that a consumer has before it."""
        seen = max(self.progress[name], self.after)
        return {row for version, rows in self.added.items() if version > seen for row in rows}

    def rows_there(self):
        return set(values(open_shuffle(self.path)))

    def check_rows(self, name, got):
        assert len(set(got)) == len(got), "doubled"
        if not self.kind.is_pipelined:
            assert set(got) == {row for rows in self.content.values() for row in rows}
        elif self.progress[name]:
            assert set(got) == self.due(name)
        else:
            everything = {row for rows in self.added.values() for row in rows}
            assert self.known_rows[name] <= set(got) <= everything

    def released_by_consumers(self):
        """Take note of what consumers, or a collection for them, may have released."""
        consumed = min(self.progress.values(), default=0)
        self.through = max(self.through, consumed)
        if not self.kind.is_pipelined and self.is_there:
            newest = self.log().snapshot()
            if newest.ended is not None:
                assert consumed >= max(self.added)
                assert not self.pending, "which nobody has consumed"
                self.begin_anew(newest.version)

    def begin_anew(self, number):
        self.begin_result(number)
        for known in self.known_rows.values():
            known.clear()
        if not self.pending:  # the next one need not be like it
            self.n = 7 - self.n

    @precondition(lambda self: self.progress)
    @rule(name=NAMES)
    def forget(self, name):
        assert forget_consumer(self.path, name) == (name in self.progress)
        self.progress.pop(name, None)
        self.known_rows.pop(name, None)

    @precondition(lambda self: self.is_there or self.pending)
    @rule(event=EVENTS)
    def release(self, event):
        before = self.newest()
        self.amid(event, lambda: release_shuffle(self.path))
        newest = self.log().snapshot()
        if newest is not None and newest.ended is not None and newest.version > before:
            self.pending = []
            self.begin_anew(newest.version)

    @rule(event=EVENTS)
    def collect(self, event):
        if not (self.path / "commit_log").exists():
            return
        self.amid(event, lambda: collect_garbage(self.path, retention=timedelta(0)))
        self.released_by_consumers()

    def amid(self, event, act):
        """Do something, amid one of :data:`EVENTS`."""
        if event is None:
            act()
        elif isinstance(event, int):
            dies_after(event, act)
        else:
            self.while_another(event, act)

    def while_another(self, event, act):
        def come_first(put, _):
            if event == "write":
                self.write("append")
            elif event == "merge" and self.is_there:
                self.merge()
            elif event == "collect":
                collect_garbage(self.path, retention=timedelta(0))
            put()

        with instead_of_first_entry(come_first):
            act()

    @invariant()
    def what_is_pending_is_in_the_log(self):
        log = self.log()
        entries = log.read(partial(pending_outputs, log)).entries
        assert [entry.num_rows for entry in entries] == [len(rows) for _, rows in self.pending]

    @invariant()
    def what_is_left_can_be_read(self):
        if not self.is_there:
            return
        shuffle = open_shuffle(self.path)
        got = values(shuffle)
        assert len(set(got)) == len(got), "doubled"
        assert sum(shuffle.subpartition_rows.to_pylist()) == len(got)
        there = {row for rows in self.content.values() for row in rows}
        kept = {
            row
            for version, rows in self.content.items()
            if version > self.through or not self.kind.is_pipelined
            for row in rows
        }
        assert kept <= set(got) <= there


TestResultsMachine = ResultsMachine.TestCase
TestResultsMachine.settings = settings(max_examples=times(8, 100), stateful_step_count=15)
