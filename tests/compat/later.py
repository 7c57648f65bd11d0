"""Golden shuffles that nothing writes yet, made by hand, so that readers of today read them."""

from __future__ import annotations

import json
import shutil
import uuid
import zlib
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import zstandard
from msgspec import structs

from arrow_format import HashPartitioner, RoundRobinPartitioner
from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.format.batch_frame import decode_batch, encode_batch
from arrow_format.format.index_blocks import BLOCK_SCHEMA
from arrow_format.format.index_file import (
    assemble,
    decode_directory,
    directory_place,
    encode_index,
)
from arrow_format.format.ipc import to_json
from arrow_format.format.masks import RowMask
from arrow_format.log.commit_log import CommitLog, draft
from arrow_format.log.delta import Delta
from arrow_format.log.entry import FENCE, LogEntry, decode_entry, encode_entry
from arrow_format.log.job_ends import JobEnd
from arrow_format.log.names import entry_path
from arrow_format.log.outputs import MapOutputs
from arrow_format.model import Mask, Position
from arrow_format.storage.open import open_storage
from tests.compat import rewritten
from tests.compat.golden import Golden, flights
from tests.compat.rewritten import ROWS
from tests.support.hostile import sealed, stated
from tests.support.indexes import decode_index, said_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def rescaled() -> None:
    """Files of 8 subpartitions in versions of 8 and of 4, which nothing writes yet.

    Each version is written as a shuffle of its own; their entries are put into one log.
    """
    golden = Golden("rescaled", 4, HashPartitioner("id"))
    shuffle = golden.path
    (shuffle / entry_path(1)).parent.mkdir(parents=True)
    entries: list[LogEntry] = []
    tasks = [flights(100 * number, 100).combine_chunks() for number in range(3)]
    stored = []
    for version, (n, task) in enumerate(zip((8, 4, 8), tasks, strict=True), start=1):
        alone = Golden(f"rescaled/{version}", n, golden.partitioner, chunk_bytes=256)
        alone.commit("errorifexists", [task])
        written = alone.directory / "shuffle"
        shutil.copytree(written / "map_outputs", shuffle / "map_outputs", dirs_exist_ok=True)
        entry = decode_entry((written / entry_path(1)).read_bytes())
        shutil.rmtree(alone.directory)
        if entries:
            shape = structs.replace(entries[0].shape, num_subpartitions=4)
            entry = structs.replace(
                entry,
                version=version,
                operation="append",
                parent=entries[-1].commit_id,
                state=structs.replace(
                    entry.state, shape=shape, version=version, content=version, changed=version,
                    jobs={entry.job_id: JobEnd(version, fenced=False)}, writers=("rescale",),
                ),
                content=replace(
                    entry.content,
                    added=MapOutputs.of(
                        replace(output, position=Position(version, 0, version))
                        for output in entry.map_outputs
                    ),
                ),
            )  # fmt: skip
        entries.append(entry)
        (shuffle / entry_path(version)).write_bytes(encode_entry(entry))
        # The rows of a file are in the order of its own subpartitions.
        schema = data_schema(task.schema)
        ids = golden.partitioner.bind(schema, n, 0)(normalise(task.to_batches()[0], schema))
        rows = task.take(pa.array(np.argsort(ids, kind="stable")))
        field = pa.field("_subpartition", pa.int32(), nullable=False)
        stored.append(rows.append_column(field, pa.array(np.sort(ids), pa.int32())))
        write_modulo(golden, entry, stored)
    _mask_third_rows(golden, entries, stored)


def _mask_third_rows(golden: Golden, entries: list[LogEntry], stored: list[pa.Table]) -> None:
    """Put a deletion of every third stored row of each file, in a version of 4 subpartitions."""
    number, n = len(entries) + 1, golden.n
    outputs, left, totals = [], [], np.zeros((2, n), np.int64)
    for entry, rows in zip(entries, stored, strict=True):
        (output,) = entry.map_outputs
        (file,) = output.files
        positions = np.arange(0, len(rows), 3)
        frame = RowMask.of({0: positions}).encode()
        mask = Mask(len(positions), number, frame, length=len(frame), crc32=zlib.crc32(frame))
        file = replace(file, num_rows=len(rows) - len(positions), mask=mask)
        outputs.append(replace(output, files=(file,)))
        gone = rows["_subpartition"].to_numpy()[positions] % n
        totals[0] -= np.bincount(gone, minlength=n)
        left.append(rows.filter(pa.array(np.arange(len(rows)) % 3 > 0)))
    added, last = MapOutputs.of(outputs), entries[-1]
    state = last.state
    state = structs.replace(
        state, version=number, changed=number, deleted=number, readers=("masks",),
        shape=structs.replace(state.shape, num_subpartitions=n), jobs={},
    )  # fmt: skip
    entry = structs.replace(
        last, version=number, operation="delete", parent=last.commit_id, state=state,
        commit_id=uuid.uuid4().hex, job_id=None, num_outputs=len(added), num_rows=added.num_rows,
        num_bytes=added.num_bytes, content=Delta(added, added.keys, totals=(totals[0], totals[1])),
    )  # fmt: skip
    (golden.path / entry_path(number)).write_bytes(encode_entry(entry))
    write_modulo(golden, entry, left)


def write_modulo(golden: Golden, entry: LogEntry, stored: list[pa.Table]) -> None:
    """Write down that a version has the rows of files of its n, or of multiples of that."""
    whole = pa.concat_tables(stored).combine_chunks()
    at = whole.num_columns - 1
    of = whole["_subpartition"].to_numpy() % entry.num_subpartitions
    whole = whole.set_column(at, whole.schema.field(at), pa.array(of, pa.int32()))
    golden.write(entry.version, whole.take(pa.array(np.argsort(of, kind="stable"))))


def unknown_names() -> None:
    """Keys of JSON, and sections, that no reader knows: it reads the rows."""
    golden = Golden("unknown_names", 3, HashPartitioner("id"))
    golden.commit("errorifexists", [flights(0, 10)])

    def change(head: dict[str, Any]) -> None:
        head["later"] = {"a": [1.5, None]}
        head["state"]["later"] = "a"
        head["state"]["writers"] = ["later"]
        head["state"]["shape"] |= {"unique": [1], "sequence_by": 3, "later": []}
        head["state"]["shape"]["partitioner"]["later"] = True

    frames = {"later": b"no frame", "tombstones": zstandard.compress(b"none of ours")}
    change_entry(golden, 1, change, frames)


REFUSED: dict[str, Callable[[dict[str, Any]], None]] = {
    "unknown_feature": lambda head: head["state"].update(readers=["later"]),
    "unknown_operation": lambda head: head.update(operation="later"),
    "unknown_version": lambda head: head.update(format_version=2),
}
"""What the newest entry has of a later release: what who reads it must know, what it does, or the
version of the format."""


def unknown_index() -> None:
    """An index of a later version of the format."""
    golden = Golden("unknown_index", 1, RoundRobinPartitioner(), statistics=())
    for _ in range(2):
        golden.commit("overwrite", [ROWS])
    rewritten.change(golden, 2, lambda version: version.directory.update(format_version=2))
    golden.refuses({2: "newer"})


def of_no_reader() -> None:
    """What readers of rows do not need: the owners of a result, and who failed."""
    golden = Golden("of_no_reader", 3, HashPartitioner("id"))
    golden.commit("errorifexists", [flights(0, 10)])
    log = CommitLog(open_storage(str(golden.path)))
    log.append(lambda view: draft(view, FENCE, gives_up=("a",), failed=True), sync=False)
    golden.commit("append", [flights(10, 5)])
    owner = {"host": "a", "boot": "b pid:[1]", "pid": 1, "started": 2}

    def change(head: dict[str, Any]) -> None:
        head["state"]["shape"]["result"] = {"type": "BLOCKING", "owners": [owner]}

    for number in (1, 2, 3):
        change_entry(golden, number, change)


def of_two_versions(name: str) -> Golden:
    """Write ten rows, and append ten."""
    golden = Golden(name, 3, HashPartitioner("id"))
    for mode in ("errorifexists", "append"):
        golden.commit(mode, [flights(0, 10)])
    return golden


def refused(name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Write a shuffle whose newest entry, of two, is of a later release."""
    golden = of_two_versions(name)
    change_entry(golden, 2, change)
    golden.refuses({1: "newer", 2: "newer"})


def unknown_region() -> None:
    """A region of a kind of a later release, in the file of the second version alone."""
    golden = of_two_versions("unknown_region")

    def change(index: bytes) -> bytes:
        directory = decode_directory(memoryview(index)[-16 - directory_place(index)[0] : -16])
        (place,) = directory.blocks
        batch = decode_batch(index[place.offset :][: place.length], BLOCK_SCHEMA)
        at = BLOCK_SCHEMA.get_field_index("kind")
        batch = batch.set_column(at, BLOCK_SCHEMA.field(at), pa.array([2], pa.uint8()))
        block = encode_batch(batch)
        metadata = msgspec.to_builtins(replace(directory.metadata, statistics=()), enc_hook=to_json)
        return assemble(metadata, [(place.first, place.end, block, b"")])

    change_index(golden, change)
    golden.refuses({2: "newer"})


def unknown_encoding() -> None:
    """A chunk of an encoding of a later release, in the file of the second version alone."""
    golden = of_two_versions("unknown_encoding")

    def change(index: bytes) -> bytes:
        metadata, regions = decode_index(index)
        tables = (region.chunks for region in regions)
        chunks = [replace(each, encoding=np.full_like(each.encoding, 2)) for each in tables]
        regions = tuple(
            replace(region, chunks=of) for region, of in zip(regions, chunks, strict=True)
        )
        return encode_index(replace(metadata, statistics=()), regions)

    change_index(golden, change)
    golden.refuses({2: "newer"})


def change_index(golden: Golden, change: Callable[[bytes], bytes]) -> None:
    """Change the index of the only file that the second entry adds."""
    path = golden.path
    entry_file = path / entry_path(2)
    entry = decode_entry(entry_file.read_bytes())
    (output,) = entry.map_outputs
    (file,) = output.files
    index = change((path / file.index_path).read_bytes())
    (path / file.index_path).write_bytes(index)
    outputs = MapOutputs.of([replace(output, files=(replace(file, **said_of(index)),))])
    content = replace(entry.content, added=outputs)
    entry_file.write_bytes(encode_entry(structs.replace(entry, content=content)))


def change_entry(
    golden: Golden,
    number: int,
    change: Callable[[dict[str, Any]], None],
    sections: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Change the JSON of an entry, and add sections."""
    path = golden.path / entry_path(number)
    line, _, rest = path.read_bytes().split(b"\n", 2)
    head = json.loads(line)
    change(head)
    more = [[name, len(data), zlib.crc32(data), stated(data)] for name, data in sections.items()]
    head["sections"] = head.get("sections", []) + more
    line = json.dumps(head, separators=(",", ":")).encode()
    path.write_bytes(sealed(line, b"".join([rest, *sections.values()])))
