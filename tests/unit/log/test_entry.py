"""Log entries: round trip, every flip and every cut, hostile content."""

import json
import zlib
from dataclasses import replace

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import zstandard
from msgspec import structs

from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.batch_frame import encode_table
from arrow_format.format.ipc import to_json
from arrow_format.log.delta import Delta
from arrow_format.log.entry import (
    FENCE,
    LogEntry,
    blank_of,
    check_entry,
    decode_entry,
    encode_entry,
)
from arrow_format.log.framing import from_frame, to_frame
from arrow_format.log.outputs import MapOutputs
from arrow_format.log.state import LogState, VersionShape
from arrow_format.log.totals import encode_totals
from arrow_format.model import MapOutput, PartitionedFile, Position, Transaction
from tests.support.guarantees import guarantee
from tests.support.hostile import forged_frame, framed

FILE = PartitionedFile("map_outputs/job/00000-0-ab-0", 6, 2, 64, 100, 900, 300, 2**32 - 1)
SHAPE = VersionShape(
    shuffle_id="s",
    data_schema=pa.schema(
        [
            pa.field("a", pa.int32(), nullable=False, metadata={"x": "y"}),
            pa.field("ü", pa.list_(pa.struct([("b", pa.decimal128(38, 10))]))),
        ]
    ),
    spark_schema='{"type":"struct"}',
    num_subpartitions=3,
    partitioner={"kind": "hash", "keys": ["a"], "seed": 42},
    column_ids=(1, 2, 3, 5),
    sort_by=(("a", "descending"),),
)
SHAPE_JSON = msgspec.to_builtins(SHAPE, enc_hook=to_json)
OUTPUTS = (
    MapOutput("job", 0, 2, (FILE, replace(FILE, path="map_outputs/job/00000-0-ab-1"))),
    MapOutput("job", 1, 0, ()),
)
TOTALS = np.array([5, 0, 7], np.int64), np.array([100, 0, 28], np.int64)
ENTRY = LogEntry(
    version=7,
    operation="append",
    commit_id="c",
    parent="b",
    committed_at_ms=1_700_000_000_000,
    state=LogState(
        shape=SHAPE, version=7, content=7, changed=7, oldest=2, checkpoint=3, last_column_id=6
    ),
    job_id="job",
    content=Delta(MapOutputs.of(OUTPUTS).with_columns(SHAPE.columns).at_version(7), totals=TOTALS),
    num_outputs=2,
    num_rows=12,
    num_bytes=128,
    counters={"final_flushes": 2},
)


NO_ROWS = structs.replace(
    ENTRY, content=Delta(), num_outputs=0, num_rows=0, num_bytes=0, job_id="job"
)


def forged(entry=ENTRY, sections=None, **changes):
    """Bytes of an entry whose JSON was changed, with a checksum that fits."""
    return forged_frame(encode_entry(entry), changes, sections)


def sealed(body: bytes) -> bytes:
    return body + b"\narrow-shuffle-log %d %08x\n" % (len(body), zlib.crc32(body))


def with_outputs(*outputs, operation="append"):
    """Bytes of an entry of any map outputs, whose sums fit."""
    made = MapOutputs.of(outputs).with_columns(SHAPE.columns).at_version(7)
    sums = made.num_rows, made.num_bytes
    totals = tuple(np.array([total, 0, 0], np.int64) for total in sums)
    entry = structs.replace(
        ENTRY, operation=operation, num_outputs=len(made), num_rows=sums[0], num_bytes=sums[1],
        content=Delta(made, totals=totals),
    )  # fmt: skip
    return encode_entry(entry)


def test_round_trip():
    found = decode_entry(encode_entry(ENTRY))
    assert found == ENTRY
    assert found.data_schema.equals(ENTRY.data_schema, check_metadata=True)
    assert [part.tolist() for part in found.totals] == [part.tolist() for part in TOTALS]
    assert list(found.map_outputs) == [
        replace(one, position=Position(7, one.map_task, 7), column_ids=SHAPE.column_ids)
        for one in OUTPUTS
    ]


def test_the_first_line_of_an_entry_is_for_people_too():
    body, trailer, _ = encode_entry(ENTRY).split(b"\n", 2)
    assert json.loads(body)["number"] == 7
    assert trailer == b"arrow-shuffle-log %d %08x" % (len(body), zlib.crc32(body))


def test_an_entry_has_no_field_of_what_it_does_not_say():
    value, sections = from_frame(encode_entry(NO_ROWS), dict)
    assert not {"transaction", "gives_up", "failed", "pending_shape"} & value.keys()
    assert (
        not {"released", "pending", "tags", "applications", "base", "readers", "writers"}
        & value["state"].keys()
    )
    assert sections == {}


@guarantee("no fallback")
def test_every_flip_and_every_truncation_is_refused():
    data = encode_entry(ENTRY)
    for i in range(len(data)):
        with pytest.raises(CorruptShuffleError):
            decode_entry(data[:i])
        for mask in (0x01, 0xFF):
            damaged = bytearray(data)
            damaged[i] ^= mask
            with pytest.raises(CorruptShuffleError):
                decode_entry(bytes(damaged))


@pytest.mark.parametrize("tail", [b"\n", b" ", b"\0", b"arrow-shuffle-log 1 00000000\n"])
def test_trailing_bytes_are_refused(tail):
    with pytest.raises(CorruptShuffleError):
        decode_entry(encode_entry(ENTRY) + tail)


def test_an_absurd_length_is_refused():
    body = encode_entry(ENTRY).partition(b"\n")[0]
    crc = b"%08x\n" % zlib.crc32(body)
    for length in (b"0%d" % len(body), b"9" * 5_000):
        with pytest.raises(CorruptShuffleError, match="where its trailer says"):
            decode_entry(body + b"\narrow-shuffle-log " + length + b" " + crc)


@guarantee("paths")
@pytest.mark.parametrize(
    "path",
    ["../x", "a/../b", "..", "a/..", "/etc/passwd", "", "a//b", "a/", "a\\b", "s3://x", "a\nb", "ü",
     ".", "./a", "a/.", "a/./b"],
)  # fmt: skip
def test_paths_that_leave_the_directory_or_have_another_spelling_are_refused(path):
    data = with_outputs(MapOutput("job", 0, 2, (replace(FILE, path=path),)))
    with pytest.raises(CorruptShuffleError, match=r"would leave the .* or is not normalised"):
        check_entry(data)


@pytest.mark.parametrize("root", ["disk1", "s3://x", "/a\0b", "/x/s3://y"])
@pytest.mark.parametrize("operation", ["append", "overwrite", "merge", "delete"])
def test_a_root_that_is_no_absolute_directory_is_refused(root, operation):
    output = MapOutput("job", 0, 2, (replace(FILE, root=root),), position=Position(7, 0, 7))
    with pytest.raises(CorruptShuffleError, match="is not an absolute directory"):
        check_entry(with_outputs(output, operation=operation))


def test_roots_are_bytes_that_need_no_encoding():
    output = MapOutput("job", 0, 2, (replace(FILE, root="/disk\udcff/a"),))
    (found,) = decode_entry(with_outputs(output)).map_outputs
    assert found.files[0].root == "/disk\udcff/a"


@guarantee("paths")
@pytest.mark.parametrize("other", ["/disk1/a", "/disk1/./a", "/disk1//a/", "//disk1/b/../a"])
def test_a_file_that_is_named_twice_by_two_roots_is_refused(other):
    def named(root):
        files = [replace(FILE, root=one, path="a-file") for one in ("/disk1/a", root)]
        return with_outputs(MapOutput("job", 0, 2, tuple(files)))

    check_entry(named("/disk2/a"))
    with pytest.raises(CorruptShuffleError, match="a file is named twice"):
        check_entry(named(other))


def test_newer_versions_operations_and_features_say_so():
    with pytest.raises(FormatVersionError, match=r"format version 2.*reads up to 1.*newer"):
        decode_entry(forged(format_version=2, anything="else"))
    with pytest.raises(FormatVersionError, match=r"operation 'dissolve', which.*use a newer one"):
        decode_entry(forged(operation="dissolve"))
    with pytest.raises(FormatVersionError, match=r"feature 'levitation', which.*use a newer one"):
        decode_entry(forged(state={"readers": ["levitation"]}, number="anything"))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_rows": 11},
        {"num_rows": 12.0},
        {"num_bytes": 128.0},
        {"num_bytes": 127},
        {"num_outputs": 3},
        {"number": -1},
        {"number": True},
        {"number": "7"},
        {"number": 8},
        {"parent": None},
        {"parent": "../x"},
        {"commit_id": "a/b"},
        {"format_version": "1"},
        {"format_version": None},
        {"gives_up": [5]},
        {"gives_up": "job"},
        {"operation": []},
        {"state": {"readers": 5}},
        {"state": {"readers": [5]}},
        {"state": {"writers": [5]}},
        {"state": None},
        {"state": {}},
        {"pending_shape": SHAPE_JSON},
        {"transaction": "text"},
        {"job_id": "other"},
    ],
)
def test_content_of_another_form_is_refused(changes):
    with pytest.raises(CorruptShuffleError, match="log entry is not of this format"):
        check_entry(forged(**changes))


def test_the_first_format_version_is_one():
    with pytest.raises(CorruptShuffleError, match="has format version 0; the first is 1"):
        decode_entry(forged(format_version=0))


@pytest.mark.parametrize("body", [b"", b"5", b"null", b"[]", b"{}", b'"x"', b"\xff", b"{"])
def test_a_body_that_is_no_entry_is_refused(body):
    with pytest.raises(CorruptShuffleError, match="not of this format"):
        decode_entry(sealed(body))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ((OUTPUTS[1],), "each once and in order"),
        ((OUTPUTS[1], OUTPUTS[0]), "each once and in order"),
        ((OUTPUTS[0], OUTPUTS[0]), "each once and in order"),
        ((replace(OUTPUTS[0], job_id="another"),), "not those of job job"),
        ((replace(OUTPUTS[0], job_id="a/b"),), "not those of job job"),
        ((replace(OUTPUTS[0], attempt=-1),), "is not from 0 to"),
        ((replace(OUTPUTS[0], position=Position(3, 0, 7)),), "was added by another entry"),
        ((replace(OUTPUTS[0], position=Position(7, 0, 8)),), "after its own entry"),
        ((replace(OUTPUTS[0], position=Position(7, 0, 6)),), "before it began"),
        ((replace(OUTPUTS[0], files=(replace(FILE, num_regions=7),)),), "rows in its regions"),
        ((replace(OUTPUTS[0], files=(replace(FILE, num_broadcast_rows=7),)),), "in its regions"),
        ((replace(OUTPUTS[0], files=(replace(FILE, raw_bytes=1 << 62),)),), "is not from 0 to"),
    ],
)
def test_hostile_map_outputs_are_refused(outputs, message):
    with pytest.raises(CorruptShuffleError, match=message):
        check_entry(with_outputs(*outputs))


def test_map_outputs_are_refused_where_they_are_read_and_the_file_is_named():
    data = with_outputs(OUTPUTS[1])
    entry = decode_entry(data, "/s/commit_log/7.entry")
    assert entry.num_outputs == 1, "sums are known without them"
    with pytest.raises(CorruptShuffleError, match=r"/s/commit_log/7\.entry is not of this format"):
        len(entry.map_outputs)


@pytest.mark.parametrize(
    ("totals", "message"),
    [
        ((np.array([12]), np.array([128])), "totals of 1 subpartitions, expected 3"),
        ((np.array([5, 0, 8]), TOTALS[1]), "do not add up to 12 rows in 128 bytes"),
        ((np.array([13, -1, 0]), TOTALS[1]), "is below 0"),
        ((np.array([1 << 62, 0, 0]), TOTALS[1]), "larger than any shuffle"),
    ],
)
def test_totals_that_do_not_fit_their_entry_are_refused(totals, message):
    with pytest.raises(CorruptShuffleError, match=message):
        check_entry(forged(sections={"totals": encode_totals(totals)}))


def test_map_outputs_without_totals_are_refused():
    with pytest.raises(CorruptShuffleError, match="there are no totals"):
        check_entry(forged(sections={"totals": None}))


def test_sections_of_other_names_are_checked_and_skipped_whole():
    """A later release may put more into an entry, where readers can do without."""
    more = zstandard.compress(b"a batch of 2030")
    data = forged(sections={"zonemaps": more})
    check_entry(data)
    assert decode_entry(data) == ENTRY
    assert decode_entry(data).map_outputs == ENTRY.map_outputs
    at = data.index(more)
    with pytest.raises(CorruptShuffleError, match="'zonemaps' of a log entry does not match"):
        decode_entry(data[: at + 1] + b"x" + data[at + 2 :])


@pytest.mark.parametrize("size", [0, 14, 16, 1 << 40])
def test_a_section_of_another_content_size_is_refused(size):
    more = zstandard.compress(b"a batch of 2030")
    value, _ = from_frame(encode_entry(NO_ROWS), dict)
    described = [["added", len(more), zlib.crc32(more), size]]
    with pytest.raises(CorruptShuffleError, match=f"does not have {size} bytes decompressed"):
        decode_entry(framed({**value, "sections": described}, {"added": more}))


KEYS = pa.schema([pa.field("key", pa.string(), False)])


@pytest.mark.parametrize(
    "sections",
    [
        {"added": b""},
        {"added": b"no Arrow stream"},
        {"totals": encode_table(pa.table({"key": ["job/0"]}, KEYS))},
        {"removed": encode_table(pa.table({"key": ["job/0", "job/0"]}, KEYS))},
        {"removed": encode_table(pa.table({"key": ["job"]}, KEYS))},
        {"removed": encode_table(pa.table({"key": ["../x/0"]}, KEYS))},
        {"removed": encode_table(pa.table({"key": ["job/0"]}, KEYS))},
    ],
)
def test_sections_of_another_form_are_refused(sections):
    with pytest.raises(CorruptShuffleError, match="is not of this format"):
        check_entry(forged(sections=sections))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([["added", -1, 0, 0]], "Expected `int` >= 0"),
        ([["added", 5, 0]], "not of this format"),
        ([["added", 10**9, 0, 0]], "does not match its checksum"),
        ([["jobs", 0, 0, 0]], "not of this format .*determining content size"),
        ([[5, 0, 0, 0]], "not of this format"),
        (None, "not of this format"),
    ],
)
def test_hostile_lists_of_sections_are_refused(value, message):
    body = json.dumps({"format_version": 1, "sections": value}).encode()
    with pytest.raises(CorruptShuffleError, match=message):
        from_frame(sealed(body), dict)
    with pytest.raises(CorruptShuffleError, match="1 bytes after its end"):
        from_frame(to_frame({}) + b"x", dict)


FENCED = LogEntry(
    version=1, operation=FENCE, commit_id="c", parent=None, committed_at_ms=0, state=LogState(),
    gives_up=("j",), failed=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "changes", "message"),
    [
        (FENCED, {"parent": "b"}, "number 1 must name the commit before it, unless"),
        (FENCED, {"num_outputs": 1}, "operation fence adds map outputs"),
        (FENCED, {"operation": "append"}, "version 0 cannot be the newest after operation append"),
        (FENCED, {"operation": "pending"}, "pending map outputs have a shape"),
        (ENTRY, {"operation": "fence"}, "version 7 cannot be the newest after operation fence"),
        (ENTRY, {"operation": "blank"}, "a blank entry has what it may not have"),
        (ENTRY, {"operation": "release"}, "a release names what was released"),
        (
            structs.replace(ENTRY, state=structs.replace(ENTRY.state, content=6)),
            {},
            "cannot have content 6",
        ),
    ],
)
def test_operations_and_what_they_say_go_together(entry, changes, message):
    assert decode_entry(encode_entry(FENCED)) == FENCED
    assert decode_entry(encode_entry(blank_of(ENTRY))) == blank_of(ENTRY)
    with pytest.raises(CorruptShuffleError, match=message):
        decode_entry(forged(entry, **changes))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "log entry is not of this format"),
        ({}, "missing required field `application_id`"),
        ({"application_id": "a"}, "missing required field `number`"),
        ({"application_id": "../a", "number": 1}, "expected 1 to 100 letters"),
        ({"application_id": "", "number": 1}, "expected 1 to 100 letters"),
        ({"application_id": "x" * 101, "number": 1}, "expected 1 to 100 letters"),
        ({"application_id": 5, "number": 1}, "Expected `str`, got `int`"),
        ({"application_id": "a", "number": -1}, "expected a whole number"),
        ({"application_id": "a", "number": True}, "Expected `int`, got `bool`"),
        ({"application_id": "a", "number": 1.0}, "Expected `int`, got `float`"),
        ({"application_id": "a", "number": 1 << 62}, "expected a whole number"),
    ],
)
def test_a_hostile_transaction_is_refused(value, message):
    with pytest.raises(CorruptShuffleError, match=message):
        decode_entry(forged(transaction=value))


def test_a_transaction_comes_back():
    entry = structs.replace(ENTRY, transaction=Transaction("q", 2**40))
    assert decode_entry(encode_entry(entry)) == entry
