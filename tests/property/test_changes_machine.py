"""Whatever is written, merged or collected: who reads what is new has every row once.

The machine of :mod:`tests.property.test_log_machine`, with a reader that follows.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from arrow_format import open_shuffle_changes
from arrow_format.errors import ShuffleNotFoundError, ShuffleOverwrittenError
from tests.property.test_log_machine import LogMachine
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee


@guarantee("changes")
class ChangesMachine(LogMachine):
    """Versions add rows; a reader gets those between any two of them."""

    def __init__(self):
        super().__init__()
        self.added: dict[int, list[int]] = {}
        self.overwrites: set[int] = set()
        self.seen = 0
        self.rows_seen: list[int] = []

    def committed(self, version, mode, rows):
        if mode == "overwrite" and self.versions:
            self.overwrites.add(version)
        super().committed(version, mode, rows)
        self.added[version] = rows

    def between(self, start, end):
        return [row for version in range(start + 1, end + 1) for row in self.added.get(version, ())]

    def first_expired(self, start):
        """The first version after one that is gone."""
        return next((v for v in sorted(self.versions) if start < v < self.oldest), None)

    @precondition(lambda self: self.versions)
    @rule(step=st.integers(1, 4))
    def follow(self, step):
        """A reader of all rows, a few versions at a time, from wherever it is."""
        later = [version for version in sorted(self.versions) if version > self.seen]
        if not later:
            return
        end = later[min(step, len(later)) - 1]
        gone = self.first_expired(self.seen)
        if gone is not None and (self.seen > 0 or end < self.oldest):
            with pytest.raises(ShuffleNotFoundError, match="expired"):
                open_shuffle_changes(self.path, self.seen, end, overwrites="deliver")
            self.seen, self.rows_seen = 0, []
            return
        found = open_shuffle_changes(self.path, self.seen, end, overwrites="deliver")
        rows = found.read().read_all()["v"].to_pylist()
        expected = self.between(self.seen, end)
        if gone is not None:  # the oldest as a whole, and what came after it
            expected = self.versions[self.oldest] + self.between(self.oldest, end)
        assert sorted(rows) == sorted(expected)
        self.rows_seen += rows
        assert len(set(self.rows_seen)) == len(self.rows_seen)
        if not self.overwrites:
            assert sorted(self.rows_seen) == sorted(self.versions[end])
        self.seen = end

    @precondition(lambda self: self.versions)
    @rule(start=st.integers(0, 9), length=st.integers(0, 9))
    def any_span(self, start, length):
        """Overwrites are errors unless asked."""
        there = [version for version in sorted(self.versions) if version >= self.oldest]
        start = there[start % len(there)]
        end = there[min(there.index(start) + length, len(there) - 1)]
        if any(start < version <= end for version in self.overwrites):
            with pytest.raises(ShuffleOverwrittenError, match="overwrote"):
                open_shuffle_changes(self.path, start, end)
            return
        found = open_shuffle_changes(self.path, start, end)
        assert sorted(found.read().read_all()["v"].to_pylist()) == sorted(self.between(start, end))
        assert sum(found.subpartition_rows.to_pylist()) == found.num_rows


TestChangesMachine = ChangesMachine.TestCase
TestChangesMachine.settings = settings(max_examples=times(6, 60), stateful_step_count=12)
