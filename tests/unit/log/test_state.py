"""What an entry says of the log as a whole: round trip, and what a hostile one may not say."""

import copy

import msgspec
import pytest
from msgspec.structs import replace

from arrow_format.errors import CorruptShuffleError, OptionError
from arrow_format.format.ipc import to_json
from arrow_format.log.entry import PENDING, PENDING_OVERWRITE, decode_entry, encode_entry
from arrow_format.log.result import PERSISTENT, Released, ResultDescription, describe_result
from arrow_format.log.state import (
    LastCommit,
    LogState,
    PendingNumbers,
    Tag,
    Undone,
    problems_of_state,
)
from arrow_format.options import ResultPartitionType, WriteOptions
from arrow_format.process_identity import this_process
from tests.unit.log.test_entry import NO_ROWS, SHAPE, forged

BOUNDED = ResultDescription(ResultPartitionType.PIPELINED_BOUNDED, 1 << 20, 3)
OWNED = ResultDescription(ResultPartitionType.BLOCKING, owners=(this_process(),))
STATE_JSON = msgspec.to_builtins(NO_ROWS.state, enc_hook=to_json)


def after(entry=NO_ROWS, **changes):
    return replace(entry, state=replace(entry.state, **changes))


RELEASE = after(
    replace(NO_ROWS, operation="release"),
    content=6,
    released=Released(through=6, by="consumed by ä", ended=False, at=7),
)


@pytest.mark.parametrize(
    "entry",
    [
        after(shape=replace(SHAPE, result=BOUNDED)),
        after(shape=replace(SHAPE, result=OWNED)),
        RELEASE,
        after(RELEASE, ended=7, released=Released(6, "x", ended=True, at=7)),
        after(pending=PendingNumbers.of((2, 3, 5), 17)),
        after(pending=PendingNumbers((), 17)),
        after(applications={"q": LastCommit(6, 2**40)}),
        after(tags={"v": Tag(4)}, restored=(3, 5), swept=4, expired=1, base=1, blank=1),
        after(deleted=5, undone=Undone(3, 6)),
        *(
            replace(
                after(version=6, content=6, changed=6, pending=PendingNumbers.of((2, 7))),
                operation=operation,
                pending_shape=SHAPE,
            )
            for operation in (PENDING, PENDING_OVERWRITE)
        ),
        after(replace(NO_ROWS, operation="merge"), content=6, changed=6),
    ],
)
def test_round_trip(entry):
    assert decode_entry(encode_entry(entry)) == entry


def test_an_empty_state_says_nothing():
    assert msgspec.json.encode(LogState()) == b"{}"
    assert msgspec.json.decode(b"{}", type=LogState) == LogState()


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": None},
        {"shape": {}},
        {"version": 8},
        {"version": -1},
        {"version": True},
        {"content": 8},
        {"changed": 6},
        {"oldest": 8},
        {"base": 3},
        {"checkpoint": 1.0},
        {"ended": 8},
        {"released": {}},
        {"released": {"through": 8, "by": "x", "ended": False, "at": 7}},
        {"released": {"through": 6, "by": 5, "ended": False, "at": 7}},
        {"released": {"through": 6, "by": "x", "ended": "no", "at": 7}},
        {"released": {"through": -1, "by": "x", "ended": False, "at": 7}},
        {"applications": {"a/b": {"version": 1, "number": 1}}},
        {"applications": {"a": {"version": -1, "number": 1}}},
        {"applications": {"a": {"version": 1, "number": 1 << 62}}},
        {"applications": {"a": {"version": "1", "number": 0}}},
        {"applications": {"a": {"version": 1}}},
        {"applications": 5},
        {"tags": {"a": {"version": 8}}},
        {"tags": {"../a": {"version": 1}}},
        {"tags": {"a": {"version": -1}}},
        {"restored": [8]},
        {"restored": 5},
        {"pending": 5},
        {"pending": {"ranges": [[1]], "flushed_at_ms": None}},
        {"pending": {"ranges": [[1, 2]], "flushed_at_ms": -1}},
        *(
            {"pending": {"ranges": ranges, "flushed_at_ms": None}}
            for ranges in (
                [[0, 1]], [[1, 8]], [[3, 2]], [[3, 4], [1, 1]], [[1, 2], [2, 3]], [["1", 2]],
                [[True, 2]], [[1.0, 2]], 5, [5], [[7, 7]], [[1, 10**18]],
            )
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(changes):
    value = {**copy.deepcopy(STATE_JSON), **changes}
    value = {name: field for name, field in value.items() if field is not None}
    with pytest.raises(CorruptShuffleError, match="log entry is not of this format"):
        decode_entry(forged(NO_ROWS, state=value))


@pytest.mark.parametrize(
    "changes",
    [
        {"data_schema": "!"},
        {"data_schema": "AAAA"},
        {"data_schema": None},
        {"shuffle_id": "a/b"},
        {"num_subpartitions": 1.5},
        {"num_subpartitions": 0},
        {"num_subpartitions": 10**6 + 1},
        {"partitioner": 5},
        {"partitioner": {}},
        {"partitioner": {"kind": "hash", "keys": ["append"], "seed": 42}},
        {"partitioner": {"kind": "column", "column": "append"}},
        {"partitioner": {"kind": "column", "column": "ü"}},
        {"partitioner": {"kind": "range", "keys": [["append", "ascending"]], "bounds": "!"}},
        {"sort_by": [1]},
        {"sort_by": {}},
        {"sort_by": [["nope", "ascending"]]},
        {"spark_schema": 5},
        {"result": {"type": "EPHEMERAL"}},
        {"result": {"type": ["BLOCKING"]}},
        {"result": "BLOCKING"},
        {"result": {"type": "PIPELINED_BOUNDED", "max_unconsumed_bytes": -1}},
        {"result": {"type": "PIPELINED_BOUNDED", "max_unconsumed_versions": "3"}},
        {"result": {"type": "BLOCKING", "owners": [{}]}},
        {"result": {"type": "BLOCKING", "owners": [
            {"host": "h", "boot": "b", "pid": 1 << 40, "started": 0}]}},
    ],
)  # fmt: skip
def test_a_hostile_shape_is_refused(changes):
    value = copy.deepcopy(STATE_JSON)
    value["shape"] |= changes
    assert decode_entry(encode_entry(NO_ROWS)).shape == SHAPE  # and none like it is checked again
    for _ in range(2):
        with pytest.raises(CorruptShuffleError, match="log entry is not of this format"):
            decode_entry(forged(NO_ROWS, state=value)).shape  # noqa: B018


def test_a_few_bytes_become_no_gigabytes():
    state = LogState(pending=PendingNumbers(((1, 10**15),)))
    assert "more than 1048576 numbers are pending" in problems_of_state(state, 10**16)


@pytest.mark.parametrize("through", [7, 8])
def test_a_release_is_of_what_was_before_it(through):
    released = Released(through, "x", ended=False, at=7)
    with pytest.raises(CorruptShuffleError, match="release"):
        decode_entry(encode_entry(after(RELEASE, released=released)))


@pytest.mark.parametrize(
    ("options", "there", "expected"),
    [
        ({}, None, PERSISTENT),
        ({}, BOUNDED, BOUNDED),
        ({"result_type": "BLOCKING"}, None, OWNED),
        (
            {"result_type": "PIPELINED_BOUNDED"},
            None,
            ResultDescription(ResultPartitionType.PIPELINED_BOUNDED, None, 16),
        ),
        ({"result_type": "PIPELINED_BOUNDED"}, BOUNDED, BOUNDED),
        (
            {"result_type": "PIPELINED_BOUNDED", "max_unconsumed_bytes": 7},
            BOUNDED,
            ResultDescription(ResultPartitionType.PIPELINED_BOUNDED, 7, None),
        ),
        ({"result_type": "PIPELINED"}, BOUNDED, None),
        ({"result_type": "BLOCKING_PERSISTENT"}, OWNED, None),
    ],
)
def test_what_a_commit_says_of_its_result(options, there, expected):
    chosen = WriteOptions(**options)
    if expected is None:
        with pytest.raises(OptionError, match="a result has one type"):
            describe_result(chosen, (this_process(),), there)
    else:
        assert describe_result(chosen, (this_process(),), there) == expected
