"""Files that somebody made to hurt: every checksum fits, and what it covers is anything at all.

Readers give an error of ours or rows, at once, and never ask for more memory than a chunk may have
or a file has: each try runs with 256 MiB to spare. A night tries far more.
"""

from __future__ import annotations

import base64
import gc
import json
import random
import re
import shutil
import struct
import time
import zlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from arrow_format import (
    CorruptShuffleError,
    MergePolicy,
    RangePartitioner,
    ShuffleError,
    WriteOptions,
    merge_shuffle,
    open_shuffle,
    write_shuffle,
)
from arrow_format.arrays.stored_types import data_schema
from arrow_format.format.chunk_table import ChunkTable
from arrow_format.format.codec_none import message_frames
from arrow_format.format.codec_zstd import FrameEncoder
from arrow_format.format.codecs import ChunkDecoder
from arrow_format.format.index_file import encode_index
from arrow_format.format.ipc import schema_from_text, schema_to_text
from arrow_format.format.packed_decoder import Unpacker
from arrow_format.format.packed_encoder import PackedRows
from arrow_format.format.packed_layout import NODE
from arrow_format.format.regions import PrefixSums
from arrow_format.keys.partitioner import partitioner_from_description
from arrow_format.log.entry import check_entry, decode_entry
from arrow_format.log.framing import from_frame
from arrow_format.log.state import VersionShape
from arrow_format.log.totals import decode_totals, encode_totals
from arrow_format.model import Transaction
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.subpartition_reader import files_of
from arrow_format.storage.open import PosixStorage
from tests.support.chunks import decoded
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.hostile import (
    EXAMPLES,
    changed_bytes,
    changed_chunk,
    changed_index,
    changed_json,
    forged_frame,
    little_memory,
    rebuilt,
    sealed,
)
from tests.support.indexes import decode_index, said_of
from tests.support.small_shuffles import numbered, write_tasks

FUZZ = settings(
    max_examples=EXAMPLES,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SEEDS = st.integers(0, 1 << 64).map(random.Random)
MOST_SECONDS = 20.0
SMALL = WriteOptions(sync=False, chunk_bytes=1, sort_buffer_bytes=1 << 10)


@pytest.fixture(scope="module", params=["zstd", "none", "sorted"])
def sound(request, tmp_path_factory):
    """A shuffle of two versions; each test leaves it as it was."""
    path = tmp_path_factory.mktemp(request.param) / "s"
    for start in (0, 8):
        if request.param == "sorted":
            table = pa.Table.from_batches([numbered([3, 1, 1, 0], start)])
            write_shuffle(
                table, path, num_subpartitions=4, mode="append", sort_by="v", options=SMALL,
                partitioner=RangePartitioner("p", bounds=[0, 1, 2]),
            )  # fmt: skip
        else:
            options = replace(SMALL, codec=request.param)
            tasks = [[numbered([3, 1, 1], start), numbered([2, 0], start + 3)]]
            transaction = Transaction("a-query", start)
            write_tasks(path, tasks, 4, mode="append", options=options, transaction=transaction)
    return path


def see_all(path):
    """Everything that a reader, a planner or a tool asks of a shuffle."""
    shuffle = open_shuffle(path)
    shuffle.weights(), shuffle.read_bytes
    shuffle.partitioner, repr(shuffle), shuffle.plan()
    for columns in (None, shuffle.schema.names[:1], []):
        for ordered in (True, False):
            for batch in shuffle.read(columns=columns, ordered=ordered):
                batch.validate()
    shuffle.subpartition(1).read_all()
    shuffle.verify(raise_on_damage=False)


def survives(act, *arguments):
    """Whether ``act`` went well; fails at any error that is not ours, and when it takes long."""
    started = time.monotonic()
    try:
        with little_memory():
            act(*arguments)
    except ShuffleError:
        return False
    finally:
        assert time.monotonic() - started < MOST_SECONDS
    return True


def restored(path, file, content):
    """Read a shuffle with other bytes in one of its files."""
    original = file.read_bytes()
    try:
        file.write_bytes(content)
        survives(see_all, path)
    finally:
        file.write_bytes(original)


# Anything at all ---------------------------------------------------------------------------------


@guarantee("hostile files")
@FUZZ
@given(rng=SEEDS)
def test_log_entries(sound, rng):
    entries = sorted(sound.rglob("*.entry"))
    file = rng.choice(entries)
    data = file.read_bytes()
    value, sections = from_frame(data, dict)
    body = json.dumps(changed_json(rng, value)).encode()
    if rng.random() < 0.1:
        body = changed_bytes(rng, body)
    rest = b"".join(bytes(section) for section in sections.values())
    restored(sound, file, sealed(body.replace(b"\n", b" "), rest))


@guarantee("hostile files")
@FUZZ
@given(rng=SEEDS)
def test_sections_of_log_entries(sound, rng):
    file = rng.choice(sorted(sound.rglob("*.entry")))
    data = file.read_bytes()
    name, section = rng.choice([*from_frame(data, dict)[1].items()])
    restored(sound, file, forged_frame(data, {}, {name: changed_section(rng, section)}))


def changed_section(rng, section):
    """Return a section that was changed, mostly inside of its frame."""
    if rng.random() < 0.2:
        return changed_bytes(rng, section)
    return zstandard.compress(changed_bytes(rng, zstandard.decompress(section)))


@guarantee("hostile files")
@FUZZ
@given(rng=SEEDS)
def test_indexes(sound, rng):
    entry_file = sorted(sound.rglob("*.entry"))[-1]
    kept = entry_file.read_bytes()
    described = decode_entry(kept).map_outputs[0].files[0]
    file = sound / described.index_path
    original = file.read_bytes()
    index = changed_index(rng, original)

    def fit(value, _):
        one = value["map_outputs"][0]["files"][0]
        one |= said_of(index)
        with_numbers(value, one, index)

    try:
        file.write_bytes(index)
        rebuilt(sound, fit)
        survives(see_all, sound)
    finally:
        file.write_bytes(original)
        entry_file.write_bytes(kept)
    survives(decode_index, index)


def with_numbers(value, one, index):
    """Make the entry say what the index says, where it says anything: so readers go on."""
    try:
        metadata, regions = decode_index(index)
    except ShuffleError:
        return
    for name, number in (
        ("num_rows", sum(region.num_rows for region in regions)),
        ("data_bytes", metadata.data_bytes),
    ):
        total = "num_bytes" if name == "data_bytes" else name
        value[total] += number - one[name]
        one[name] = number
    one["num_regions"] = len(regions)


@guarantee("hostile files")
@FUZZ
@given(rng=SEEDS)
def test_totals(sound, rng):
    entry_file = sorted(sound.rglob("*.entry"))[-1]
    kept = entry_file.read_bytes()
    if rng.random() < 0.4:
        rows = np.array([rng.choice([0, 1, -1, 1 << 62]) for _ in range(rng.choice([0, 4, 5]))])
        content = encode_totals((rows.astype(np.int64),) * 2)
    else:
        content = changed_section(rng, from_frame(kept, dict)[1]["totals"])
    restored(sound, entry_file, forged_frame(kept, {}, {"totals": content}))


MERGES = [MergePolicy(rewrite="always"), MergePolicy(rewrite="never")]


def rows_in(path, version, *, is_sorted):
    """Rows of a version with their subpartitions; None where they cannot be read."""
    try:
        with little_memory():
            table = open_shuffle(path, version).read(with_subpartition=True).read_all()
    except ShuffleError:
        return None
    # As they are stored: text need not be UTF-8.
    columns = [
        column.cast(pa.binary()) if pa.types.is_string(column.type) else column
        for column in table.columns
    ]
    rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
    # Rows that lie about their order come in any.
    return sorted(rows, key=repr) if is_sorted else rows


@guarantee("hostile merge")
@exhaustive(least=6)
@pytest.mark.parametrize("policy", MERGES, ids=lambda policy: policy.rewrite)
@pytest.mark.parametrize("what", ["chunk", "index"])
@FUZZ
@given(rng=SEEDS)
def test_merges(sound, tmp_path_factory, policy, what, rng):
    """A merge of hostile inputs fails as ours, or its version reads as the one before."""
    path = tmp_path_factory.mktemp("merge") / "s"
    shutil.copytree(sound, path)
    try:
        merge_hostile(path, policy, what, rng, is_sorted="sorted" in str(sound))
    finally:
        shutil.rmtree(path.parent)


def merge_hostile(path, policy, what, rng, *, is_sorted):
    def change(value, path):
        one = rng.choice([f for output in value["map_outputs"] for f in output["files"]])
        index_file = path / f"{one['path']}.shuffle.index"
        if what == "index":
            index = changed_index(rng, index_file.read_bytes())
            with_numbers(value, one, index)
        else:
            data_file = path / f"{one['path']}.shuffle.data"
            data = bytearray(data_file.read_bytes())
            index = changed_chunk(rng, data, index_file.read_bytes())
            data_file.write_bytes(data)
        index_file.write_bytes(index)
        one |= said_of(index)

    rebuilt(path, change)
    before = rows_in(path, 2, is_sorted=is_sorted)
    options = WriteOptions(sync=False, sort_buffer_bytes=1 << 20)
    if survives(lambda: merge_shuffle(path, policy=policy, options=options, by="map_output")):
        after = rows_in(path, None, is_sorted=is_sorted)
        assert after == before
        event("merged whole" if after is not None else "merged, and unreadable as before")
    else:
        assert not list(path.glob("commit_log/*/*3.entry")), "nothing was committed"
        assert rows_in(path, 2, is_sorted=is_sorted) == before
        event("refused")


@pytest.mark.parametrize("policy", MERGES, ids=lambda policy: policy.rewrite)
def test_merges_of_sound_files(sound, tmp_path, policy):
    """Or the test above would merge nothing."""
    shutil.copytree(sound, tmp_path / "s")
    before = rows_in(tmp_path / "s", 2, is_sorted=False)
    report = merge_shuffle(
        tmp_path / "s", policy=policy, options=WriteOptions(sync=False), by="map_output"
    )
    assert report.version == 3
    assert len(before) == (8 if "sorted" in str(sound) else 10)
    assert rows_in(tmp_path / "s", 3, is_sorted=False) == before


BATCH = pa.RecordBatch.from_pylist(
    [
        {"p": 1, "s": "text", "l": [1, 2], "m": [("k", 1)], "f": [1.5, 2.5], "b": True},
        {"p": 3, "s": None, "l": [], "m": None, "f": [0.0, None], "b": None, "d": 5},
        {"p": 1 << 40, "s": "", "l": None, "m": [("x", None)], "f": None, "b": False, "d": None},
    ],
    schema=pa.schema(
        [
            ("p", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int32())),
            ("m", pa.map_(pa.string(), pa.int8())), ("f", pa.list_(pa.float64(), 2)),
            ("b", pa.bool_()), ("n", pa.null()), ("d", pa.decimal128(20)),
            ("t", pa.struct([("a", pa.binary()), ("i", pa.binary(3))])),
        ]
    ),
)  # fmt: skip


@guarantee("hostile files")
@pytest.mark.parametrize("form", ["message", "frames", "packed"])
@FUZZ
@given(rng=SEEDS)
def test_chunks(form, rng):
    """Behind a good CRC: what comes out can be looked at without leaving the chunk."""
    if form == "message":
        payload = changed_bytes(rng, BATCH.serialize().to_pybytes())
        frames = message_frames(BATCH.num_columns, len(payload), zlib.crc32(payload))
    else:
        packed = PackedRows(BATCH).columns(0, 3)
        if form == "packed":
            packed = [changed_bytes(rng, one) if rng.random() < 0.3 else one for one in packed]
        (chunk,) = FrameEncoder(1, 256 << 10).encode([packed])
        payload, frames = bytes(chunk.payload), chunk.frames
        if form == "frames":
            stored = [changed_bytes(rng, payload[a:b]) for a, b in pairwise(frames.edges)]
            payload = b"".join(stored)
            frames = replace(frames, length=[*map(len, stored)], crc32=[*map(zlib.crc32, stored)])
    columns = rng.choice([None, None, [1, 2], [3], []])

    def decode():
        decoder = ChunkDecoder(BATCH.schema, columns)
        found = decoded(decoder, pa.py_buffer(payload), frames, 3)
        assert found.num_rows == 3
        found.validate()
        for array in found.columns:
            look_at(array)

    survives(decode)


def look_at(array):
    """Touch every value: what leads outside of its memory would end the process."""
    try:
        array.to_pylist()
    except (UnicodeDecodeError, ValueError, OverflowError):
        # Text need not be UTF-8, nor a decimal within its precision: Spark writes and reads both.
        array.cast(pa.binary()) if pa.types.is_string(array.type) else array.nbytes


@guarantee("hostile files")
@FUZZ
@given(rng=SEEDS)
@example(random.Random(6086825))  # bounds of text that is no UTF-8, which repr shows
def test_schemas_and_bounds(rng):
    schema = BATCH.schema
    text = changed_bytes(rng, base64.b64decode(schema_to_text(schema)))
    bounds = RangePartitioner("p", "s", bounds=[(1, "a"), (2, "b")]).describe()["bounds"]
    hostile = changed_bytes(rng, base64.b64decode(bounds))

    def parse():
        with little_memory():
            try:
                found = schema_from_text(base64.b64encode(text).decode())
            except (ValueError, OSError, pa.ArrowException):
                return
            assert data_schema(found).equals(found)
            ChunkDecoder(found)

    parse()
    described = {
        "kind": "range", "keys": [["p", "ascending"], ["s", "ascending"]],
        "bounds": base64.b64encode(hostile).decode(),
    }  # fmt: skip
    survives(lambda: repr(partitioner_from_description(described)))


def test_what_spark_writes_is_no_damage(tmp_path):
    """Text that is no UTF-8 and decimals beyond their precision come back, bounds of them too."""
    text = pa.array([b"\xff\xfe", b"a"], pa.binary()).view(pa.string())
    wide = pa.array([10**12, 5], pa.decimal128(38)).buffers()
    narrow = pa.Array.from_buffers(pa.decimal128(5), 2, wide)
    table = pa.table({"s": text, "d": narrow, "l": pa.ListArray.from_arrays([0, 1, 2], text)})
    for codec in ("none", "zstd"):
        bounds = pa.table({"s": text.take([1])})
        write_shuffle(
            table, tmp_path / codec, num_subpartitions=2, options=WriteOptions(codec=codec),
            partitioner=RangePartitioner("s", bounds=bounds),
        )  # fmt: skip
        shuffle = open_shuffle(tmp_path / codec)
        assert shuffle.verify().ok
        found = shuffle.read().read_all().combine_chunks()
        assert found["s"].cast(pa.binary()).to_pylist() == [b"a", b"\xff\xfe"]
        assert found["d"].chunk(0).buffers()[1].to_pybytes()[16:] == wide[1].to_pybytes()[:16]
        assert isinstance(shuffle.partitioner, RangePartitioner)
    odd = RangePartitioner("s", bounds=pa.table({"s": text.take([0])})).describe()
    assert partitioner_from_description(odd) is not None


# Known ways to hurt ------------------------------------------------------------------------------


def changed(path, **changes):
    """Put other values into the newest entry."""

    def change(value, _):
        shape = value["state"]["shape"]
        for name, new in changes.items():
            (shape if name in VersionShape.__struct_fields__ else value)[name] = new

    rebuilt(path, change)


@pytest.fixture
def shuffle(tmp_path):
    path = tmp_path / "s"
    write_tasks(path, [[numbered([3, 1, 1])], [numbered([2])]], 4, options=SMALL)
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_subpartitions": 10**6 + 1}, "Expected `int` <= 1000000"),
        ({"num_subpartitions": 0}, "Expected `int` >= 1 - at `$.state.shape.num_subpartitions`"),
        ({"committed_at_ms": 1 << 60}, "Expected `int` <= 253402300799000"),
        ({"format_version": None}, "Expected `int`, got `null` - at `$.format_version`"),
        ({"format_version": -1}, "format version -1; the first is 1"),
        ({"job_id": "../x"}, "at `$.job_id`"),
        ({"shuffle_id": "a/b"}, "at `$.state.shape.shuffle_id`"),
        ({"sort_by": [["nope", "ascending"]]}, "column 'nope' is not there"),
        ({"sort_by": [["v", "sideways"]]}, "order 'sideways' is not one of"),
        ({"partitioner": [["kind", "hash"]]}, "Expected `object`, got `array`"),
        ({"partitioner": {"kind": None}}, "not an object with a kind"),
        ({"spark_schema": {}}, "Expected `str | null`, got `object`"),
    ],
)  # fmt: skip
def test_entries_that_were_accepted_once(shuffle, changes, message):
    changed(shuffle, **changes)
    with pytest.raises(CorruptShuffleError, match=re.escape(message)):
        open_shuffle(shuffle)


def test_map_tasks_must_be_there_each_once(shuffle):
    (file,) = shuffle.rglob("*.entry")
    kept = file.read_bytes()
    for change in (
        lambda one, two: [two, one],
        lambda one, _: [one, one],
        lambda one, two: [one, {**two, "map_task": 2}],
        lambda _, two: [two],
    ):
        file.write_bytes(kept)

        def fit(value, _, change=change):
            outputs = value["map_outputs"] = change(*value["map_outputs"])
            value["num_outputs"] = len(outputs)
            for name in ("num_rows", "data_bytes"):
                total = sum(sum(f[name] for f in output["files"]) for output in outputs)
                value["num_bytes" if name == "data_bytes" else name] = total

        rebuilt(shuffle, fit)
        with pytest.raises(CorruptShuffleError, match=r"each once and in order|named twice"):
            open_shuffle(shuffle)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"format_version":1,"operation":' + b'{"x":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
        b'{"format_version":' + b"9" * 5_000 + b"}",
        b'{"format_version":1,"format_version":1}',
        b'{"format_version":1e999}',
        "{}".encode("utf-16"),
    ],
    ids=["arrays", "objects", "digits", "repeated", "infinite", "utf-16"],
)
def test_json_that_is_hard_to_read(body):
    assert not survives(check_entry, sealed(body))
    with pytest.raises(CorruptShuffleError):
        check_entry(sealed(body))


def test_a_far_away_version_number_takes_no_time(shuffle):
    (file,) = shuffle.rglob("*.entry")
    shutil.copy(file, file.with_name("9" * 20 + ".entry"))
    started = time.monotonic()
    with little_memory():
        assert open_shuffle(shuffle).version == 1, "a name of another segment is none"
    assert time.monotonic() - started < 1


def test_an_append_of_another_shape_is_refused(shuffle):
    write_tasks(shuffle, [[numbered([0])]], 4, mode="append", options=SMALL)
    newest = sorted(shuffle.rglob("*.entry"))[-1]
    kept = newest.read_bytes()
    other = numbered([]).schema.set(1, pa.field("v", pa.float64()))
    for changes in (
        {"num_subpartitions": 5},
        {"sort_by": [["v", "ascending"]]},
        {"data_schema": schema_to_text(other)},
    ):
        changed(shuffle, **changes)
        with pytest.raises(CorruptShuffleError):
            open_shuffle(shuffle).read().read_all()
        newest.write_bytes(kept)
    assert open_shuffle(shuffle).num_rows == 5


NO_BOUNDS = schema_to_text(pa.schema([("p", pa.int32())]))
"""A stream that ends behind its schema."""


@pytest.mark.parametrize(
    "description",
    [
        {"kind": "hash"}, {"kind": "hash", "keys": 5}, {"kind": "hash", "keys": []},
        {"kind": "column"}, {"kind": "column", "column": ["a"]}, {"kind": "range"},
        {"kind": "range", "keys": [["p", "ascending"]], "bounds": "AAAA"},
        {"kind": "range", "keys": [["p", "up"]], "bounds": None},
        {"kind": "range", "keys": [["p", "ascending"]], "bounds": NO_BOUNDS},
    ],
)  # fmt: skip
def test_partitioners_that_are_none(shuffle, description):
    changed(shuffle, partitioner=description)
    message = f"kind '{description['kind']}' that is malformed"
    if not description.get("bounds"):
        with pytest.raises(CorruptShuffleError, match=message):
            open_shuffle(shuffle)
        return
    found = open_shuffle(shuffle)
    assert found.read().read_all().num_rows == 4, "bounds are decoded when they are needed"
    with pytest.raises(CorruptShuffleError, match=message):
        found.partitioner  # noqa: B018
    with pytest.raises(CorruptShuffleError, match=message):
        found.verify()
    (problem,) = found.verify(raise_on_damage=False).problems
    assert message in str(problem)


def test_bounds_of_other_types_than_the_keys(shuffle):
    other = RangePartitioner("p", bounds=["a"]).describe()
    changed(shuffle, partitioner=other)
    (problem,) = open_shuffle(shuffle).verify(raise_on_damage=False).problems
    assert "bounds of key 'p' are string" in str(problem)


def bomb(batch: pa.RecordBatch, stated: int | None = None) -> bytes:
    """Return an IPC stream with zstd buffers; they state ``stated`` bytes if it is given."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    content = sink.getvalue().to_pybytes()
    if stated is not None:
        at = content.index(b"\x28\xb5\x2f\xfd") - 8
        content = content[:at] + struct.pack("<q", stated) + content[at + 8 :]
    return content


@guarantee("expansion limits")
@pytest.mark.parametrize("stated", [None, 1 << 33, 1 << 62])
def test_bombs_in_totals_go_unopened(stated):
    n = 8 << 20 if stated is None else 1000
    content = encode_totals((np.zeros(n, np.int64),) * 2)
    if stated is not None:  # in a single segment, with a size of 8 bytes
        content = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", stated) + content[7:]
    assert len(content) < 20_000
    before = pa.total_allocated_bytes()
    with pytest.raises(ValueError, match=f"a frame of .* that states {stated or ''}"):
        decode_totals(content)
    assert pa.total_allocated_bytes() - before < 1 << 20


@guarantee("expansion limits")
@pytest.mark.parametrize("stated", [None, 1 << 40])
def test_bombs_in_bounds_go_unopened(shuffle, stated):
    n = 4 << 20 if stated is None else 1000
    batch = pa.record_batch({"v": np.zeros(n, np.int64)})
    text = base64.b64encode(bomb(batch, stated)).decode()
    changed(shuffle, partitioner={"kind": "range", "keys": [["v", "ascending"]], "bounds": text})
    with little_memory(64 << 20), pytest.raises(CorruptShuffleError, match="where at most"):
        open_shuffle(shuffle).partitioner  # noqa: B018


@guarantee("expansion limits")
def test_bombs_in_messages_go_unopened():
    batch = pa.record_batch({"v": np.zeros(4 << 20, np.int64)})
    stream = pa.py_buffer(bomb(batch))
    (schema_bytes,) = struct.unpack_from("<i", stream, 4)
    message = stream.slice(8 + schema_bytes, stream.size - 16 - schema_bytes)
    assert message.size < 20_000
    frames = message_frames(1, message.size, zlib.crc32(message))
    with little_memory(), pytest.raises(CorruptShuffleError, match="its buffers are compressed"):
        decoded(ChunkDecoder(batch.schema), message, frames, batch.num_rows)


@guarantee("expansion limits")
@pytest.mark.parametrize(
    ("type_", "nodes"),
    [
        (pa.int64(), [(0, 5)]),
        (pa.decimal128(20), [(0, 5)]),
        (pa.string(), [(0, 0)]),
        (pa.list_(pa.int8()), [(0, 60), (0, 1)]),
        (pa.list_(pa.int8(), (1 << 31) - 1), [(255, 0), (0, 1)]),
        (pa.list_(pa.null(), (1 << 31) - 1), [(255, 0), (255, 0)]),
        (pa.list_(pa.list_(pa.null(), 1 << 30), 1 << 30), [(255, 0), (255, 0), (255, 0)]),
    ],
)
def test_packed_bombs_are_refused_before_anything_is_made(type_, nodes):
    num_rows = 1 << 25
    packed = b"".join(NODE.pack(0, width, 0, base) for width, base in nodes)
    gc.collect()  # what earlier tests left is not freed meanwhile
    before = pa.total_allocated_bytes()
    sections = [(0, [(0, len(packed))])]
    with little_memory(), pytest.raises(ValueError, match=r"width 0|values"):
        Unpacker(pa.schema([("c", type_)])).unpack(
            pa.py_buffer(packed), sections, [(num_rows, 0, num_rows)]
        )
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize(
    ("item", "type_", "count"),
    [
        (7, pa.int64(), 3 << 20),
        ([], pa.list_(pa.int64()), 5 << 19),
        (
            {f"{i}": 1 for i in range(8)},
            pa.struct([(f"{i}", pa.int64()) for i in range(8)]),
            1 << 19,
        ),
        (5, pa.decimal128(20), 1 << 20),
    ],
    ids=["numbers", "lists", "structs", "decimals"],
)
def test_a_row_of_many_equal_items_is_no_bomb(item, type_, count):
    items = pa.repeat(pa.scalar(item, type_), count)
    array = pa.ListArray.from_arrays([0, count], items)
    batch = pa.record_batch([array], names=["c"])
    assert batch.nbytes > 8 << 20
    (packed,) = PackedRows(batch).columns(0, 1)
    sections = [(0, [(0, len(packed))])]
    (found,) = Unpacker(batch.schema).unpack(pa.py_buffer(packed), sections, [(1, 0, 1)])
    assert found.equals(array)


def index_with(sound_index, **changes):
    """Return an index whose first chunk, or its first frame or column, says otherwise."""
    metadata, (region, *rest) = decode_index(sound_index)
    table = region.chunks.arrays()
    for name, value in changes.items():
        table[name] = table[name].copy()
        table[name].flat[0] = value
    return encode_index(metadata, [replace(region, chunks=ChunkTable(**table)), *rest])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"column_raw_length": 1 << 40}, "no writer makes such a chunk"),
        ({"column_raw_length": (8 << 20) + 1}, "no writer makes such a chunk"),
        ({"column_raw_length": 1 << 50}, "contradict each other"),
        ({"column_raw_length": -1}, "contradict each other"),
        ({"frame_length": (1 << 63) - 1}, "contradict each other"),
        ({"frame_length": 1 << 40}, "contradict"),
        ({"offset": (1 << 63) - 8, "frame_length": 100}, "contradict"),
        ({"offset": -8}, "contradict"),
    ],
)
def test_chunks_that_no_writer_makes(tmp_path, changes, message):
    write_tasks(tmp_path / "s", [[numbered([1, 1, 2])]], 4, options=SMALL)
    (file,) = tmp_path.rglob("*.index")
    with pytest.raises(CorruptShuffleError, match=message):
        decode_index(index_with(file.read_bytes(), **changes))


def test_a_chunk_becomes_at_most_32768_times_its_bytes(tmp_path):
    write_tasks(tmp_path / "s", [[numbered([1, 1, 2])]], 4)
    (file,) = tmp_path.rglob("*.index")
    _, (region,) = decode_index(file.read_bytes())
    chunks = region.chunks
    of_others = chunks.raw_length[0] - chunks.column_raw_length[0, 0]
    most = (chunks.length[0] << 15) - of_others
    decode_index(index_with(file.read_bytes(), column_raw_length=most))
    with pytest.raises(CorruptShuffleError, match="no writer makes such a chunk"):
        decode_index(index_with(file.read_bytes(), column_raw_length=most + 1))


def test_counts_that_wrap_around_are_refused(tmp_path):
    """Sums of uint32 would wrap to the 4 rows that the region has."""
    write_tasks(tmp_path / "s", [[numbered([0, 1, 2, 3])]], 4)
    (file,) = tmp_path.rglob("*.index")
    metadata, (region,) = decode_index(file.read_bytes())
    rows = np.array([1 << 31, 1 << 31, 1, 3], np.uint32)
    assert rows.sum(dtype=np.uint32) == region.num_rows
    with pytest.raises(CorruptShuffleError, match="contradicts itself"):
        decode_index(encode_index(metadata, [replace(region, rank_rows=PrefixSums(rows))]))


@pytest.mark.parametrize(
    "type_",
    [
        pa.dictionary(pa.int32(), pa.string()),
        pa.large_string(),
        pa.string_view(),
        pa.list_view(pa.int32()),
        pa.uuid(),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.dense_union([pa.field("a", pa.int8())]),
    ],
    ids=str,
)
def test_types_that_are_never_stored(shuffle, type_):
    for inside in (type_, pa.list_(type_), pa.struct([("x", type_)])):
        changed(shuffle, data_schema=schema_to_text(pa.schema([("p", inside)])))
        with pytest.raises(CorruptShuffleError, match=r"never stored|cannot be stored"):
            open_shuffle(shuffle)


def move_files(entry, root):
    for output in entry["map_outputs"]:
        for file in output["files"]:
            if "root" in file:
                file["root"] = root


@guarantee("root markers")
def test_a_root_with_the_marker_of_another_job_is_not_read(tmp_path):
    """An entry may name any directory, and still reads none that a shuffle did not mark."""
    for name in ("mine", "theirs"):
        options = WriteOptions(sync=False, local_dirs=(str(tmp_path / f"{name}-disk"),))
        tasks = [[numbered([1, 2])], [numbered([3])], [numbered([0])]]
        write_tasks(tmp_path / name, tasks, 4, options=options)
    outputs = open_shuffle(tmp_path / "theirs").map_outputs
    (theirs,) = {file.root for output in outputs for file in output.files if file.root}
    for root in (theirs, "/", "/etc", str(tmp_path), "/proc/self", "/nowhere/at/all"):
        kept = {file: file.read_bytes() for file in (tmp_path / "mine").rglob("*.entry")}
        rebuilt(tmp_path / "mine", lambda value, _, root=root: move_files(value, root))
        # /proc/self is a link, and refused as that.
        message = r"does not bear the arrow-shuffle-root\.json|/proc/self: self is a symbolic link"
        with pytest.raises(CorruptShuffleError, match=message):
            open_shuffle(tmp_path / "mine").read().read_all()
        for file, content in kept.items():
            file.write_bytes(content)
    marker = next((tmp_path / "mine-disk").rglob("arrow-shuffle-root.json"))
    for content in (b"[" * 100_000, b"{}", b"[]", b'{"job_id":"x"}', b"\xff", bytes(1 << 20)):
        marker.write_bytes(content)
        with pytest.raises(CorruptShuffleError, match="does not bear"):
            open_shuffle(tmp_path / "mine").read().read_all()


def test_the_same_path_in_two_roots_is_two_files(tmp_path):
    options = WriteOptions(sync=False, local_dirs=(str(tmp_path / "disk"),))
    write_tasks(tmp_path / "s", [[numbered([1])], [numbered([2, 3])]], 4, options=options)
    shuffle = open_shuffle(tmp_path / "s")
    one, two = files_of(shuffle.map_outputs)
    assert {bool(one.file.root), bool(two.file.root)} == {False, True}
    indexes = IndexCache(PosixStorage(shuffle.path))
    version = shuffle.snapshot.newest
    found = [indexes.index_of(version, each.output, each.file) for each in (one, two)]
    assert [index.metadata.map_task for index in found] == [0, 1]

    def repeat(value, _):
        files = value["map_outputs"][0]["files"]
        value["num_rows"] += files[0]["num_rows"]
        value["num_bytes"] += files[0]["data_bytes"]
        files.append(files[0])

    rebuilt(tmp_path / "s", repeat)
    with pytest.raises(CorruptShuffleError, match="named twice"):
        open_shuffle(tmp_path / "s")
