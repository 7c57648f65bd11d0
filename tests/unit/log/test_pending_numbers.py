"""What is pending is told by checkpoints as by the entries, and found with few reads."""

import json
import uuid
from dataclasses import replace
from datetime import timedelta

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arrow_format import FlushOptions
from arrow_format.errors import CorruptShuffleError
from arrow_format.log import commit_log
from arrow_format.log.checkpoint import HEADER_BYTES, Checkpoint, body_bytes, encode_checkpoint
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.names import checkpoint_path
from arrow_format.log.pending import pending_numbers, pending_outputs
from arrow_format.log.record import Fence, Pending, PendingNumbers
from arrow_format.log.result import Released
from arrow_format.options import WriteOptions
from arrow_format.storage.open import open_storage
from arrow_format.streaming.flush_pending import flush_if_due
from tests.support.guarantees import guarantee
from tests.support.recording_storage import RecordingStorage
from tests.unit.log.test_pending import pending, put


@pytest.fixture
def path(tmp_path):
    """One version."""
    put(tmp_path / "s", [(1, 1)], pending=False)
    return tmp_path / "s"


def log_of(path):
    return CommitLog(open_storage(path))


def append(log, operation, **changes):
    """Put a record of an operation, without map outputs."""
    entry = replace(
        log.entry(1), operation=operation, map_outputs=(), commit_id=uuid.uuid4().hex, **changes
    )
    record = Pending(entry) if operation.startswith("pending") else entry
    if operation == "fence":
        record = Fence(0, entry.commit_id, 0, ())
    return log.append(lambda _: record, sync=False)


@guarantee("pending in checkpoints")
def test_a_batch_reads_little_however_long_the_log(path, monkeypatch):
    monkeypatch.setattr(commit_log, "CHECKPOINT_INTERVAL", 10)
    log = log_of(path)
    reads = []
    for _ in range(2):
        for _ in range(40):
            append(log, "append")
        storage = RecordingStorage(str(path))
        put(storage, [(1, 2)])
        flush = FlushOptions(max_interval=timedelta(hours=1))
        flush_if_due(storage, flush, WriteOptions(sync=False))
        reads.append(len(storage.others))
    assert reads[1] <= reads[0] + 10
    assert max(reads) < 60, "in several looks, each back to the newest checkpoint"
    assert pending(path).numbers == (42, 83)


STEPS = st.lists(
    st.sampled_from(
        [
            "append",
            "overwrite",
            "pending",
            "pending",
            "pending-overwrite",
            "flush of all",
            "flush of the first",
            "release",
            "fence",
        ]
    ),
    max_size=12,
)


def take(log, step, there, number):
    """Put the next record of the log; return what is pending then."""
    if step.startswith("flush"):
        flushed = there.numbers[: None if step.endswith("all") else 1]
        if not flushed:
            append(log, "fence")
            return there
        append(log, "append", committed_at_ms=number, flushed=flushed[-1])
        return PendingNumbers(there.numbers[len(flushed) :], number)
    if step == "release":
        append(log, step, released=Released(through=number - 1, by="me", ended=True))
        return PendingNumbers()
    append(log, step)
    if step.startswith("pending"):
        return replace(there, numbers=(*there.numbers, number))
    return there


@guarantee("pending in checkpoints")
@settings(max_examples=25, deadline=None)
@example(steps=["pending", "pending", "flush of the first"], order=[*range(1, 13)], seen={3})
@given(steps=STEPS, order=st.permutations(range(1, 13)), seen=st.sets(st.integers(1, 12)))
def test_checkpoints_say_what_a_walk_through_all_of_the_log_says(
    tmp_path_factory, steps, order, seen
):
    path = tmp_path_factory.mktemp("pending") / "s"
    put(path, [(1, 1)], pending=False)
    log = log_of(path)
    expected = [PendingNumbers(), PendingNumbers()]
    for number, step in enumerate(steps, 2):
        expected.append(take(log, step, expected[-1], number))
    for number in order:
        if number <= len(steps) + 1:
            log.put_checkpoint(number, sync=False)
    index = log.index()
    for checkpoints in (frozenset(), seen & index.checkpoints, index.checkpoints):
        fresh, listing = log_of(path), replace(index, checkpoints=frozenset(checkpoints))
        found = [pending_numbers(fresh, listing, number) for number in range(len(expected))]
        assert found == expected


def test_a_checkpoint_that_is_wrong_about_what_is_pending_is_damage(path):
    wrong = Checkpoint(1, None, {}, pending=PendingNumbers((1,)))
    (path / checkpoint_path(1)).write_bytes(encode_checkpoint(wrong, None))
    log = log_of(path)
    with pytest.raises(CorruptShuffleError, match=r"0001\.json: is not pending, as a checkpoint"):
        pending_outputs(log, log.index())


def test_a_checkpoint_says_nothing_of_what_is_pending_where_there_was_none(path):
    log_of(path).put_checkpoint(1, sync=False)
    data = (path / checkpoint_path(1)).read_bytes()
    body = data[HEADER_BYTES : HEADER_BYTES + body_bytes(data[:HEADER_BYTES])]
    assert "pending" not in json.loads(zstandard.decompress(body))


def test_a_checkpoint_that_does_not_know_of_what_is_pending_does_not_hide_it(path):
    put(path, [(2, 2)], batch=1)
    log = log_of(path)
    log.put_checkpoint(2, sync=False)
    whole = log_of(path).checkpoint(2)
    assert whole.pending == PendingNumbers((2,))
    older = encode_checkpoint(replace(whole, pending=None), log.totals(log.snapshot(1)))
    (path / checkpoint_path(2)).write_bytes(older)
    put(path, [(3, 3)], batch=2)
    assert log_of(path).checkpoint(2).pending is None
    assert pending(path).numbers == (2, 3)


@pytest.mark.parametrize("numbers", [(0,), (3,), (2, 1), (1, 1), (True,), ("1",), (1.0,)])
def test_numbers_that_cannot_be_pending_then_are_damage(path, numbers):
    put(path, [(2, 2)], pending=False)
    wrong = Checkpoint(2, None, {}, pending=PendingNumbers(numbers))
    (path / checkpoint_path(2)).write_bytes(encode_checkpoint(wrong, None))
    with pytest.raises(CorruptShuffleError, match=r"checkpoint is not of this format \(ValueError"):
        log_of(path).checkpoint(2)
