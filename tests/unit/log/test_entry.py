"""Log entries and totals: round trip, every flip and every cut, hostile content."""

import json
import zlib
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.log.entry import (
    LogEntry,
    TotalsFile,
)
from arrow_format.log.record import decode_record, encode_record
from arrow_format.log.totals_file import decode_totals, encode_totals
from arrow_format.model import MapOutput, PartitionedFile
from tests.support.guarantees import guarantee

FILE = PartitionedFile("map_outputs/job/00000-0-ab-0", 6, 2, 64, 100, 900, 2**32 - 1)
ENTRY = LogEntry(
    version=7,
    operation="append",
    shuffle_id="s",
    job_id="job",
    commit_id="c",
    committed_at_ms=1_700_000_000_000,
    data_schema=pa.schema(
        [
            pa.field("a", pa.int32(), nullable=False, metadata={"x": "y"}),
            pa.field("ü", pa.list_(pa.struct([("b", pa.decimal128(38, 10))]))),
        ]
    ),
    spark_schema='{"type":"struct"}',
    num_subpartitions=3,
    partitioner={"kind": "hash", "keys": ["a"], "seed": 42},
    map_outputs=(
        MapOutput("job", 0, 2, (FILE, replace(FILE, path="map_outputs/job/00000-0-ab-1"))),
        MapOutput("job", 1, 0, (), {"num_batches": 4}),
    ),
    totals=TotalsFile("commit_log/totals-c.arrow", 100, 5),
    sort_by=(("a", "descending"),),
)


def forged(**changes):
    """Bytes of an entry whose JSON was changed, with a checksum that fits."""
    value = json.loads(encode_record(ENTRY).partition(b"\n")[0])
    return sealed(json.dumps({**value, **changes}).encode())


def sealed(body: bytes) -> bytes:
    return body + b"\narrow-shuffle-log %d %08x\n" % (len(body), zlib.crc32(body))


def described():
    return json.loads(encode_record(ENTRY).partition(b"\n")[0])["map_outputs"]


def test_round_trip():
    found = decode_record(encode_record(ENTRY))
    assert found == ENTRY
    assert found.data_schema.equals(ENTRY.data_schema, check_metadata=True)
    assert found.num_rows == 12
    assert found.num_bytes == 128


def test_an_entry_is_two_lines_for_people_too():
    body, trailer, rest = encode_record(ENTRY).split(b"\n")
    assert json.loads(body)["version"] == 7
    assert trailer == b"arrow-shuffle-log %d %08x" % (len(body), zlib.crc32(body))
    assert rest == b""


def test_every_flip_and_every_truncation_is_refused():
    data = encode_record(ENTRY)
    for i in range(len(data)):
        with pytest.raises(CorruptShuffleError):
            decode_record(data[:i])
        for mask in (0x01, 0x20, 0xFF):
            damaged = bytearray(data)
            damaged[i] ^= mask
            with pytest.raises(CorruptShuffleError):
                decode_record(bytes(damaged))


@pytest.mark.parametrize("tail", [b"\n", b" ", b"\0", b"arrow-shuffle-log 1 00000000\n"])
def test_trailing_bytes_are_refused(tail):
    with pytest.raises(CorruptShuffleError):
        decode_record(encode_record(ENTRY) + tail)


def test_an_absurd_length_is_refused():
    body = encode_record(ENTRY).partition(b"\n")[0]
    crc = b"%08x\n" % zlib.crc32(body)
    for length in (b"0%d" % len(body), b"9" * 5_000):
        with pytest.raises(CorruptShuffleError, match="where its trailer says"):
            decode_record(body + b"\narrow-shuffle-log " + length + b" " + crc)


@guarantee("paths")
@pytest.mark.parametrize(
    "path",
    ["../x", "a/../b", "..", "a/..", "/etc/passwd", "", "a//b", "a/", "a\\b", "s3://x", "a\nb", "ü",
     5, ".", "./a", "a/.", "a/./b", "commit_log/./totals-c.arrow"],
)  # fmt: skip
def test_paths_that_leave_the_directory_or_have_another_spelling_are_refused(path):
    outputs = described()
    outputs[0]["files"][0]["path"] = path
    for data in (
        forged(map_outputs=outputs),
        forged(totals={"path": path, "length": 1, "crc32": 1}),
    ):
        with pytest.raises(CorruptShuffleError, match=r"would leave the .* or is not normalised"):
            decode_record(data)


def test_roots_are_absolute_directories():
    assert decode_record(forged(roots=["/disk1/a", "/disk2/b"])).roots == ("/disk1/a", "/disk2/b")
    for wrong in (["disk1"], [1], ["/a", None]):
        with pytest.raises(CorruptShuffleError, match="is not an absolute directory"):
            decode_record(forged(roots=wrong))


@pytest.mark.parametrize("root", [1, 3, 1 << 40])
@pytest.mark.parametrize("operation", ["append", "overwrite", "replace", "pending"])
def test_a_file_in_a_root_that_is_not_named_is_refused(root, operation):
    outputs = described()
    outputs[0]["files"][1]["root"] = root
    roots = ["/disk1/a"] if root == 3 else []
    with pytest.raises(
        CorruptShuffleError, match=rf"in root {root}, and the entry names {len(roots)}"
    ):
        decode_record(forged(map_outputs=outputs, roots=roots, operation=operation))


@guarantee("paths")
@pytest.mark.parametrize("other", ["/disk1/a", "/disk1/./a", "/disk1//a/", "//disk1/b/../a"])
def test_a_file_that_is_named_twice_by_two_roots_is_refused(other):
    outputs = described()
    for number, file in enumerate(outputs[0]["files"]):
        file |= {"root": number + 1, "path": "a-file"}
    assert decode_record(forged(map_outputs=outputs, roots=["/disk1/a", "/disk2/a"]))
    with pytest.raises(CorruptShuffleError, match="a file is named twice"):
        decode_record(forged(map_outputs=outputs, roots=["/disk1/a", other]))


def test_entries_from_before_broadcast_and_roots_are_read():
    outputs = described()
    for output in outputs:
        for file in output["files"]:
            del file["num_broadcast_rows"]
    value = json.loads(forged(map_outputs=outputs).partition(b"\n")[0])
    del value["roots"]
    entry = decode_record(sealed(json.dumps(value).encode()))
    assert entry.roots == ()
    assert {file.num_broadcast_rows for output in entry.map_outputs for file in output.files} == {0}


def test_newer_versions_and_operations_say_so():
    with pytest.raises(FormatVersionError, match=r"format version 2.*reads up to 1.*newer"):
        decode_record(forged(format_version=2, anything="else"))
    with pytest.raises(FormatVersionError, match=r"operation 'dissolve'.*overwrite, append, repl"):
        decode_record(forged(operation="dissolve"))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_rows": 11},
        {"num_rows": 12.0},
        {"num_bytes": 128.0},
        {"format_version": 0},
        {"num_bytes": 127},
        {"version": -1},
        {"version": True},
        {"version": "7"},
        {"num_subpartitions": 1.5},
        {"format_version": "1"},
        {"format_version": None},
        {"data_schema": "!"},
        {"data_schema": "AAAA"},
        {"partitioner": 5},
        {"sort_by": [1]},
        {"map_outputs": None},
        {"map_outputs": [{}]},
        {"totals": {}},
        {"totals": {"path": "a", "length": -1, "crc32": 0}},
        {"operation": []},
    ],
)
def test_content_of_another_form_is_refused(changes):
    with pytest.raises((CorruptShuffleError, FormatVersionError)):
        decode_record(forged(**changes))


@pytest.mark.parametrize("body", [b"", b"5", b"null", b"[]", b"{}", b'"x"', b"\xff", b"{"])
def test_a_body_that_is_no_entry_is_refused(body):
    with pytest.raises(CorruptShuffleError, match="not of this format"):
        decode_record(sealed(body))


ROWS, SIZES = np.array([5, 0, 7], np.int64), np.array([100, 0, 28], np.int64)
TOTALS = encode_totals(ROWS, SIZES)


def entry_with(totals: bytes) -> LogEntry:
    return replace(ENTRY, totals=TotalsFile("commit_log/t", len(totals), zlib.crc32(totals)))


def test_totals_round_trip():
    rows, sizes = decode_totals(pa.py_buffer(TOTALS), entry_with(TOTALS))
    assert rows.tolist() == ROWS.tolist()
    assert sizes.tolist() == SIZES.tolist()
    assert rows.dtype == sizes.dtype == np.int64


def test_every_flip_and_truncation_of_totals_is_refused():
    entry = entry_with(TOTALS)
    for i in range(len(TOTALS)):
        damaged = bytearray(TOTALS)
        damaged[i] ^= 0xFF
        for data in (bytes(damaged), TOTALS[:i]):
            with pytest.raises(CorruptShuffleError, match="version 7"):
                decode_totals(pa.py_buffer(data), entry)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no Arrow file",
        encode_totals(np.array([12]), np.array([128])),
        encode_totals(np.array([5, 0, 8]), SIZES),
    ],
)
def test_totals_that_do_not_fit_their_entry_are_refused(data):
    with pytest.raises(CorruptShuffleError, match="version 7"):
        decode_totals(pa.py_buffer(data), entry_with(data))
