"""Golden shuffles of what the format allows, and writers make rarely or never: readers read it."""

from __future__ import annotations

import datetime as dt
import os
import random
import shutil
import zlib
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from arrow_format import (
    BROADCAST,
    HashPartitioner,
    RoundRobinPartitioner,
    collect_garbage,
    rollback_shuffle,
)
from arrow_format.format.index_file import assemble
from arrow_format.format.masks import RowMask
from arrow_format.jobs.delete_rows import delete_rows
from arrow_format.jobs.retention import release_consumed
from arrow_format.jobs.tags import tag_shuffle, untag_shuffle
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.framing import from_frame
from arrow_format.log.names import entry_path, range_path
from arrow_format.model import Transaction
from arrow_format.storage.open import open_storage
from arrow_format.streaming.flush_pending import flush_pending
from tests.compat.contradictions import node
from tests.compat.golden import Golden, flights
from tests.compat.rewritten import ROWS, Version, change
from tests.support.consumers import ConsumerRegistry
from tests.support.hostile import framed, index_parts, rebuilt
from tests.support.indexes import said_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from arrow_format.keys.partitioner import Assign


def put_range(golden: Golden, number: int) -> None:
    """Put the checkpoint of a number, which a commit does not do so early."""
    log = CommitLog(open_storage(str(golden.path)))
    newest = log.view().last
    assert newest is not None
    log.put_checkpoint(newest, number)


def rare_log() -> None:
    """A range that removes, tags, what replaces all when it is flushed, and names to ignore."""
    golden = Golden("rare_log", 3, HashPartitioner("id"))
    path = golden.path
    golden.commit("errorifexists", [flights(0, 10), flights(10, 10)])
    golden.commit("append", [flights(20, 10)])
    put_range(golden, 2)
    golden.merge("never")  # 3
    put_range(golden, 3)  # begins after 2, and removes what that adds
    golden.commit("append", [flights(30, 5)])  # 4, which knows of it
    tag_shuffle(path, "one", 1)
    untag_shuffle(path, "one")
    storage = open_storage(str(path))
    for number, mode in enumerate(("append", "overwrite", "append")):
        rows = flights(40 + 2 * number, 5)
        golden.commit(mode, [rows], Transaction("a-query", number), pending=True)
    golden.rows = []
    golden.expect(10, [pa.concat_tables([flights(42, 5).slice(0, 2), flights(44, 5)])])
    flush_pending(storage, options=golden.options)
    golden.commit("append", [flights(60, 5)])
    # Names that readers ignore, in a segment that has no entry yet, too.
    for name in ("000000000000000000", "000000000000000001"):
        segment = path / "commit_log" / name
        segment.mkdir(exist_ok=True)
        (segment / ".tmp-00000000000000000999.entry-abc").write_bytes(b"{")
        (segment / "0000000000000000099.entry").write_bytes(b"{")
    golden.refuses(dict.fromkeys((5, 6, 7, 8, 9), "absent"))


def rare_releases() -> None:
    """A range that begins with a version, and says what was released of it."""
    golden = Golden(
        "rare_releases", 3, HashPartitioner("id"), result_type="PIPELINED_BOUNDED",
        max_unconsumed_versions=4,
    )  # fmt: skip
    golden.commit("errorifexists", [flights(0, 10)])
    consumed = len(golden.rows)
    golden.commit("append", [flights(10, 5)])
    put_range(golden, 2)
    golden.rows = golden.rows[consumed:]
    storage = open_storage(str(golden.path))
    ConsumerRegistry(storage).advance("a", 1)
    release_consumed(storage, sync=False)  # 3
    golden.expect(3, [flights(0, 0)])
    put_range(golden, 3)
    golden.commit("append", [flights(15, 5)])


def blank_entries() -> None:
    """A log that a collection left nothing of before its base, but for a tag.

    Behind the base is a range that begins before it, as a writer with an old view puts: no reader
    takes it.
    """
    golden = Golden("blank_entries", 3, HashPartitioner("id"))
    path = golden.path
    golden.commit("errorifexists", [flights(0, 10)])
    golden.commit("append", [flights(10, 10)])
    tag_shuffle(path, "two", 2)
    golden.commit("append", [flights(20, 5)])
    golden.commit("append", [flights(25, 5)])
    shutil.copytree(path, golden.directory / "before")
    for _ in range(2):
        for file in path.rglob("*"):
            os.utime(file, (0, 0))  # the clock that stands still is behind that of the disk
        collect_garbage(path, retention=dt.timedelta(0), compact_log=True)
    head, _ = from_frame((path / entry_path(6)).read_bytes(), dict[str, Any])
    before, _ = from_frame((path / entry_path(4)).read_bytes(), dict[str, Any])
    old = {**head, "range": {"after": 4, "parent": before["commit_id"]}}
    (path / range_path(6)).write_bytes(framed(old, {}))
    golden.commit("append", [flights(30, 5)])
    golden.refuses(dict.fromkeys((1, 3, 4, 6, 7), "absent"))


def expiring() -> None:
    """A version whose files a collection removes, and the shuffle before it."""
    golden = Golden("expiring", 3, HashPartitioner("id"))
    golden.commit("errorifexists", [flights(0, 10), flights(10, 10)])
    golden.commit("overwrite", [flights(20, 10)])
    path = golden.path
    shutil.copytree(path, golden.directory / "before")
    for file in path.rglob("*"):
        os.utime(file, (0, 0))
    collect_garbage(path, retention=dt.timedelta(0))
    golden.refuses({1: "absent"})


class Mixed:
    """Rows of negative ids to all subpartitions, the others by turns."""

    def describe(self) -> dict[str, Any]:
        """Return what the log says."""
        return {"kind": "mixed"}

    def check(self, schema: pa.Schema) -> None:
        """Accept every schema."""

    def bind(self, schema: pa.Schema, num_subpartitions: int, map_task: int) -> Assign:
        """Return the function that assigns rows."""
        del schema, map_task

        def assign(batch: pa.RecordBatch) -> NDArray[np.int32]:
            ids = batch.column(0).to_numpy()
            return np.where(ids < 0, BROADCAST, ids % num_subpartitions).astype(np.int32)

        return assign


def rare_blocks() -> None:
    """Blocks of one range, of which one has what all subpartitions read; a mask of such rows."""
    golden = Golden("rare_blocks", 3, Mixed(), statistics=())
    rows = pa.table({"id": pa.array([*range(9), -1, -2, -3], pa.int64())})

    def split(version: Version) -> None:
        parts = version.blocks[0]
        version.blocks = [[part] for part in parts if part["kind"] == 1]
        version.blocks.append([part for part in parts if part["kind"] == 0])
        version.ranges = [(0, 3), (0, 3)]

    def mask(version: Version) -> None:
        split(version)
        (broadcast,), (unicast,) = version.blocks
        gone = {unicast["region"]: np.array([4]), broadcast["region"]: np.array([0, 2])}
        version.put_mask(RowMask.of(gone).encode(), 3)
        version.file["num_broadcast_rows"] = 1
        for subpartition, num_rows in enumerate((2, 3, 2)):
            version.totals[subpartition]["num_rows"] -= num_rows

    for number, how in enumerate((split, mask), start=1):
        golden.commit("overwrite", [rows])
        change(golden, number, how)
    written = pa.ipc.open_file(golden.directory / "expected-1.arrow").read_all()
    golden.write(2, written.filter(pc.invert(pc.is_in(written["id"], pa.array([4, -1, -3])))))


def two_files() -> None:
    """A map output of two files: those of two map tasks, as if one of these had written both."""
    golden = Golden("two_files", 3, HashPartitioner("id"))
    golden.commit("errorifexists", [flights(0, 20), flights(20, 20)])

    def join(entry: dict[str, Any], path: Path) -> None:
        first, second = entry["map_outputs"]
        (file,) = second["files"]
        index = path / (file["path"] + ".shuffle.index")
        metadata, blocks = index_parts(index.read_bytes())
        changed = assemble({**metadata, "map_task": 0}, blocks)
        index.write_bytes(changed)
        first["files"].append({**file, **said_of(changed)})
        entry["map_outputs"] = [first]
        entry["num_outputs"] = 1

    rebuilt(golden.path, join)


def both_codecs() -> None:
    """Map outputs of both codecs, and a merge of them that copies their chunks."""
    golden = Golden("both_codecs", 3, HashPartitioner("id"))
    golden.commit("errorifexists", [flights(0, 20)])
    golden.options = replace(golden.options, codec="none")
    golden.commit("append", [flights(20, 20)])
    golden.merge("never")


def widened() -> None:
    """Columns of each kind that became wider; rows are sorted by one of them."""
    golden = Golden(
        "widened", 3, HashPartitioner("id"), schema_evolution=True,
        sort_by=(("a", "descending nulls first"),),
        sort_key=lambda row: (row["a"] is not None, -(row["a"] or 0)),
    )  # fmt: skip
    values = {
        "a": [1, None, -128, 5, 5],
        "b": [255, None, 0, 1, 2],
        "c": [Decimal("1.50"), None, Decimal("-9.99"), Decimal(0), Decimal(1)],
        "d": [Decimal("1.50"), None, Decimal("-9.99"), Decimal(0), Decimal(1)],
        "e": [0.1, None, -0.0, 1.5, 2.0],
    }
    narrow = (pa.int8(), pa.uint8(), pa.decimal32(5, 2), pa.decimal128(5, 2), pa.float32())
    wide = (pa.int64(), pa.uint32(), pa.decimal64(12, 2), pa.decimal256(50, 2), pa.float64())

    def rows(start: int, kinds: tuple[pa.DataType, ...]) -> pa.Table:
        ids = pa.array(range(start, start + 5), pa.int64())
        columns = [pa.array(of, kind) for of, kind in zip(values.values(), kinds, strict=True)]
        return pa.table([ids, *columns], names=["id", *values])

    golden.commit("errorifexists", [rows(0, narrow)])
    later = rows(5, wide)
    schema = later.schema.append(golden.rows[0].schema.field("_subpartition"))
    golden.rows = [row.cast(schema) for row in golden.rows]
    golden.commit("append", [later])


def other_names() -> None:
    """Files whose types have other names than those of the version: what changes no bytes."""
    golden = Golden("other_names", 3, HashPartitioner("id"), schema_evolution=True)

    def rows(start: int, zone: str, item: pa.Field, *, sorted_keys: bool) -> pa.Table:
        kinds = {
            "id": pa.int64(),
            "when": pa.timestamp("us", zone),
            "list": pa.list_(item),
            "map": pa.map_(pa.string(), pa.list_(item), keys_sorted=sorted_keys),
            "struct": pa.struct([pa.field("x", pa.list_(item), item.nullable)]),
        }
        of_rows = [
            (start, 1, [1, 2], [("a", [3])], {"x": [4]}),
            (start + 1, None, None, None, None),
            (start + 2, -1, [], [], {"x": []}),
        ]
        columns = zip(*of_rows, strict=True)
        return pa.table(
            [pa.array(of, kind) for of, kind in zip(columns, kinds.values(), strict=True)],
            names=[*kinds],
        )

    item, element = pa.field("item", pa.int8()), pa.field("element", pa.int8(), nullable=False)
    golden.commit("errorifexists", [rows(0, "UTC", item, sorted_keys=False)])
    with mock.patch.object(golden, "expect"):
        golden.commit("append", [rows(3, "Europe/Berlin", element, sorted_keys=True)])
    golden.expect(2, [rows(3, "UTC", item, sorted_keys=False)])


def rare_bounds() -> None:
    """Texts and binaries whose bounds are cut where it is hard, in a chunk each."""
    golden = Golden("rare_bounds", 1, RoundRobinPartitioner(), statistics="all", chunk_bytes=1)
    begin = b"a" * 15
    texts = [
        *(begin + end.encode() for end in ("\ud7ffx", "\U0010ffffx", "bx", "é")),
        begin[:14] + "\U0010ffff\U0010ffffx".encode(),
        b"ab\xffc",
        b"\xff",
    ]
    binaries = [begin + b"ab", begin + b"\xffb", b"\xff" * 17, b"\xff" * 16, begin, b"", None]
    for text, octets in zip(texts, binaries, strict=True):
        columns = {"text": _array([text], pa.string()), "binary": pa.array([octets], pa.binary())}
        golden.commit("append", [pa.table(columns)])


def undone() -> None:
    """A deletion that was undone: a rollback to a version before it."""
    golden = Golden("undone", 3, HashPartitioner("id"))
    path = golden.path
    golden.commit("errorifexists", [flights(0, 20)])
    delete_rows(path, {"id": [3, 4]}, options=golden.options)
    rows = golden.rows
    golden.rows = [row for row in rows if row["id"][0].as_py() not in (3, 4)]
    golden.expect(2, [flights(0, 0)])
    rollback_shuffle(path, 1, undo_deletions=True)
    golden.rows = rows
    golden.expect(3, [flights(0, 0)])


def sorted_values() -> None:
    """Floats with NaN and both zeros, booleans and texts, in every order of nulls."""
    golden = Golden(
        "sorted_values", 2, HashPartitioner("id"), sort_buffer_bytes=4 << 10,
        sort_by=(
            ("f", "descending nulls first"), ("b", "ascending"), ("t", "ascending nulls last"),
        ),
        sort_key=_sort_key,
    )  # fmt: skip
    made = random.Random(5)
    size = 120
    columns = {
        "id": pa.array(range(size), pa.int64()),
        "f": made.choices([None, float("nan"), -0.0, 0.0, 1.5, float("-inf")], k=size),
        "b": made.choices([None, False, True], k=size),
        "t": made.choices([None, "", "a", "ab", "\U00010000", "\uffff"], k=size),
    }
    table = pa.table(columns)
    golden.commit("errorifexists", [table.slice(0, 60), table.slice(60)])


def _sort_key(row: dict[str, Any]) -> tuple[object, ...]:
    f, b, t = row["f"], row["b"], row["t"]
    down = (f is not None, f is not None and f == f, 0.0 if f is None or f != f else -f)
    return down, (b is not None, bool(b)), (t is None, (t or "").encode())


def rare_bytes() -> None:
    """What a column, a frame and a data file may have, and no writer makes."""
    golden = Golden("rare_bytes", 1, RoundRobinPartitioner(), statistics=())
    for number, (how, columns) in enumerate(BYTES, start=1):
        golden.commit("overwrite", [ROWS])
        change(golden, number, how)
        (rows,) = golden.rows
        for name, values in columns.items():
            place = rows.schema.get_field_index(name)
            field = rows.schema.field(place)
            rows = rows.set_column(place, field, _array(values, field.type))
        golden.write(number, rows)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values; texts may be bytes that are no UTF-8."""
    if kind == pa.string():
        return pa.array(values, pa.binary()).view(kind)
    return pa.array(values, kind)


def _garbage(version: Version) -> None:
    """Bits and bytes that mean nothing are not 0: padding, nulls, reserved ones."""
    head = bytes([1, 2, 7, 9, 9, 9, 9, 9]) + (1).to_bytes(8, "little")
    numbers = np.array([0, 0xFFFF, 299, 0xABCD], "<u2").tobytes()
    version.put_column(0, head + bytes([0b11111101, *range(1, 8)]) + numbers)
    lengths = bytes([1, 3, 3, 9, 9, 9, 9, 9])
    head = bytes([1, 1, 7, *bytes(5)]) + bytes(8)
    version.put_column(2, head + bytes([0b11111101, *bytes(7)]) + lengths + b"aXYZbcd!")
    raw = np.array([0.25, -1.5, 10.0]).tobytes()
    version.put_column(1, bytes([0, 255, 3, *bytes(5)]) + b"anything" + raw)


def _bases(version: Version) -> None:
    version.put_column(1, node(2, -150, np.array([175, 0, 1150], "<u2").tobytes(), digits=2))
    version.put_column(2, node(1, 1, b"\0\0\2", b"abcde"))
    version.put_column(3, node(1, 1) + node(1, 0, b"\0\0\1", b"\1\4\2\3"))


def _frames(version: Version) -> None:
    """Two frames, of every other column, that do not state their size."""
    columns, place = version.columns(), version.part["chunk_gap"][0]
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    frames = [compressor.compress(b"".join(columns[start::2])) for start in (1, 0)]
    version.part["chunk_frames"], version.part["column_frame"] = [2], [1, 0, 1, 0]
    version.part["frame_length"] = [len(frame) for frame in frames]
    version.part["frame_crc32"] = [zlib.crc32(frame) for frame in frames]
    content = b"".join(frames)
    version.put_data(version.data[:place] + content + bytes(-len(content) % 8))


def _gaps(version: Version) -> None:
    """Bytes of no chunk, and of no block, before and behind these."""
    place = version.part["chunk_gap"][0]
    version.part["chunk_gap"] = [place + 8]
    version.before_blocks = b"anything"
    version.put_data(version.data[:place] + b"anything" + version.data[place:] + b"and more")


def _large_section(version: Version) -> None:
    """More than 64 MiB, of less than 1,000 times its length."""
    noise = random.Random(1).randbytes(70_000).hex()
    version.put_maximum(b"x" * (64 << 20) + noise.encode())


BYTES: tuple[tuple[Callable[[Version], object], dict[str, list[Any]]], ...] = (
    (_garbage, {"i": [1, None, 300], "s": [b"a", None, b"bcd"]}),
    (_bases, {"s": [b"a", b"b", b"cde"], "l": [[1], [4], [2, 3]]}),
    (
        lambda v: v.put_column(0, node(255, 0, np.array([-1, 2, 300], "<i4").tobytes())),
        {"i": [-1, 2, 300]},
    ),
    (
        lambda v: v.put_column(2, node(1, 0, b"\1\0\2", b"\xff\xc3\x28")),
        {"s": [b"\xff", b"", b"\xc3\x28"]},
    ),
    (_frames, {}),
    (_gaps, {}),
    (_large_section, {}),
)
"""What is changed of a version, and the columns that are other than those written."""
