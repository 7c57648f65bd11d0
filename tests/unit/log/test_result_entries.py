"""What log entries say of results: round trip, and what a hostile entry may not say."""

import json
from dataclasses import replace

import pytest

from arrow_format.errors import CorruptShuffleError, OptionError
from arrow_format.log.record import (
    PENDING,
    PENDING_OVERWRITE,
    Fence,
    Pending,
    decode_record,
    encode_record,
)
from arrow_format.log.result import (
    PERSISTENT,
    Released,
    ResultDescription,
    describe_result,
)
from arrow_format.options import ResultPartitionType, WriteOptions
from arrow_format.process_identity import this_process
from tests.unit.log.test_entry import ENTRY, forged

BOUNDED = ResultDescription(ResultPartitionType.PIPELINED_BOUNDED, 1 << 20, 3)
OWNED = ResultDescription(ResultPartitionType.BLOCKING, owners=(this_process(),))
RELEASED = Released(through=6, by="consumed by ä", ended=False)


@pytest.mark.parametrize(
    "record",
    [
        replace(ENTRY, result=BOUNDED),
        replace(ENTRY, result=OWNED),
        replace(ENTRY, operation="release", map_outputs=(), released=RELEASED),
        replace(ENTRY, flushed=6),
        replace(ENTRY, operation="replace", content=6),
        Pending(replace(ENTRY, operation=PENDING)),
        Pending(replace(ENTRY, operation=PENDING_OVERWRITE)),
        Fence(3, "c", 5, ("j",), failed=True),
    ],
)
def test_round_trip(record):
    assert decode_record(encode_record(record)) == record


def test_an_entry_without_any_of_it_has_the_bytes_it_always_had():
    value = json.loads(encode_record(ENTRY).partition(b"\n")[0])
    assert not {"result", "released", "flushed", "content", "transaction"} & value.keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"result": {}},
        {"result": {"type": "EPHEMERAL"}},
        {"result": {"type": ["BLOCKING"]}},
        {"result": "BLOCKING"},
        {"result": {"type": "PIPELINED_BOUNDED", "max_unconsumed_bytes": -1}},
        {"result": {"type": "PIPELINED_BOUNDED", "max_unconsumed_versions": "3"}},
        {"result": {"type": "BLOCKING", "owners": [{}]}},
        {
            "result": {
                "type": "BLOCKING",
                "owners": [{"host": "h", "boot": "b", "pid": 1 << 40, "started": 0}],
            }
        },
        {"released": {"through": 1, "by": "x", "ended": True}},
        {"operation": "release"},
        {"operation": "release", "released": {"through": 7, "by": "x", "ended": True}},
        {"operation": "release", "released": {"through": 1, "by": 4, "ended": True}},
        {"operation": "release", "released": {"through": 1, "by": "x", "ended": "yes"}},
        {"operation": "release", "released": {"through": 1}},
        {"flushed": 7},
        {"flushed": "1"},
        {"flushed": -1},
        {"content": 6},
        {"operation": "replace", "content": 7},
        {"operation": "replace", "content": "6"},
    ],
)
def test_what_does_not_go_together_is_refused(changes):
    with pytest.raises(CorruptShuffleError, match="log entry is not of this format"):
        decode_record(forged(**changes))


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
