"""Whatever is written, merged, flushed or collected, and wherever a query dies: each row once.

Queries follow a pipelined result under a name, asked as Spark asks them: it keeps where a batch
begins and ends before it reads, and reads the same batch again after a restart. What a sink keeps
of a batch that it reads again counts once. In the end all is consumed, and nothing may be left.
"""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from pyspark.sql.types import LongType, StructType

from arrow_format import (
    WriteOptions,
    collect_garbage,
    flush_pending,
    merge_shuffle,
    open_shuffle,
)
from arrow_format.jobs.rescale import rescale_shuffle
from connector.source.stream_reader import ShuffleStreamReader
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee
from tests.support.logs import put
from tests.support.small_log import LOG_SIZES, log_of_sizes
from tests.support.small_shuffles import FAST

SCHEMA = StructType().add("v", LongType())
DEATHS = st.sampled_from(
    [None, None, None, "after it began", "after planning", "after reading", "before the commit"]
)


class Query:
    """A streaming query, and its checkpoint and sink, which outlive it."""

    def __init__(self, path, name):
        self.path, self.name = path, name
        self.begins = self.ends = None
        self.sink = {}
        """Rows of each batch, by where it began."""
        self.reader = None

    def read(self):
        partitions = self.reader.partitions(self.begins, self.ends)
        batches = [batch for one in partitions for batch in self.reader.read(one)]
        return [value for batch in batches for value in batch.column("v").to_pylist()]

    def trigger(self, limit, dies=None):
        """Run one batch; return whether there was anything."""
        if self.reader is None:
            options = {"path": str(self.path), "consumer": self.name, "onOverwrite": "deliver"}
            self.reader = ShuffleStreamReader(
                options | {"maxVersionsPerTrigger": str(limit)}, SCHEMA
            )
        if self.begins is None:
            self.begins = self.reader.initialOffset()
            if dies == "after it began":
                return self.die()
        if self.ends is None:
            end = self.reader.latestOffset(self.begins, self.reader.getDefaultReadLimit())
            if end == self.begins:
                return False
            self.ends = end
        if dies == "after planning":
            return self.die()
        rows = self.read()
        if dies == "after reading":
            return self.die()
        self.sink[self.begins["version"]] = rows
        self.begins, self.ends = self.ends, None
        if dies == "before the commit":
            return self.die()
        self.reader.commit(self.begins)
        return True

    def die(self):
        self.reader.stop()
        self.reader = None
        return True

    def rows(self):
        return [row for rows in self.sink.values() for row in rows]


@guarantee("consumed versions")
class StreamsMachine(RuleBasedStateMachine):
    @initialize(sizes=LOG_SIZES)
    def start(self, sizes):
        self.path = Path(tempfile.mkdtemp())
        self.patch = log_of_sizes(*sizes)
        self.next = 0
        self.waiting = []
        self.written = set()
        self.queries: dict[str, Query] = {}
        self.due: dict[str, set[int]] = {}
        """What each query must get, at least."""
        self.write("append", 1)

    def teardown(self):
        try:
            self.consume_all()
        finally:
            self.patch.undo()
            for query in self.queries.values():
                if query.reader is not None:
                    query.reader.stop()
            shutil.rmtree(self.path, ignore_errors=True)

    def new_rows(self, num_rows):
        first, self.next = self.next, self.next + num_rows
        return [(value, value) for value in range(first, self.next)]

    def becomes_visible(self, values):
        self.written.update(values)
        for due in self.due.values():
            due.update(values)

    @rule(mode=st.sampled_from(["append", "append", "overwrite"]), num_rows=st.integers(1, 2))
    def write(self, mode, num_rows):
        rows = self.new_rows(num_rows)
        put(self.path, rows, pending=False, mode=mode, result_type="PIPELINED")
        self.becomes_visible(value for value, _ in rows)

    @rule()
    def put_pending(self):
        rows = self.new_rows(2)
        put(self.path, rows, result_type="PIPELINED")
        self.waiting += [value for value, _ in rows]

    @precondition(lambda self: self.waiting)
    @rule()
    def flush(self):
        flush_pending(self.path, options=WriteOptions(sync=False))
        self.becomes_visible(self.waiting)
        self.waiting = []

    @rule()
    def merge(self):
        merge_shuffle(self.path, options=FAST, by="map_output")

    @rule(n=st.sampled_from([1, 2, 3, 6]))
    def rescale(self, n):
        rescale_shuffle(self.path, n)

    @rule()
    def collect(self):
        collect_garbage(self.path, retention=timedelta(0))

    @rule(name=st.sampled_from("ab"), limit=st.sampled_from([1, 1, 2, 5]), dies=DEATHS)
    def trigger(self, name, limit, dies):
        if name not in self.queries:
            self.queries[name] = Query(self.path, name)
            self.due[name] = set(open_shuffle(self.path).read().read_all()["v"].to_pylist())
        self.queries[name].trigger(limit, dies)

    def consume_all(self):
        if self.waiting:  # what is pending keeps the log, and the files it names
            self.flush()
        for name, query in self.queries.items():
            while query.trigger(3):
                pass
            got = query.rows()
            assert len(set(got)) == len(got), "doubled"
            assert self.due[name] <= set(got) <= self.written
            assert not query.trigger(3), "the name may be done with what it had before it"
        if not self.queries:
            return
        for _ in range(2):
            collect_garbage(self.path, retention=timedelta(0))
        assert open_shuffle(self.path).num_rows == 0
        assert not list(self.path.glob("map_outputs/*/*.data"))


TestStreamsMachine = StreamsMachine.TestCase
TestStreamsMachine.settings = settings(max_examples=times(8, 100), stateful_step_count=15)
