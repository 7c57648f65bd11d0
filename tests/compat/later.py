"""Golden shuffles that nothing writes yet, made by hand, so that readers of today read them."""

from __future__ import annotations

import json
import shutil
import zlib
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import zstandard
from msgspec import structs

from arrow_format import HashPartitioner
from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.format.index_file import encode_index
from arrow_format.log.entry import LogEntry, decode_entry, encode_entry
from arrow_format.log.job_ends import JobEnd
from arrow_format.log.names import entry_path
from arrow_format.log.outputs import MapOutputs
from arrow_format.model import Position
from tests.compat.golden import Golden, flights
from tests.support.indexes import decode_index, said_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def rescaled() -> None:
    """Files of 8 subpartitions in versions of 8 and of 4, which nothing writes yet.

    Each version is written as a shuffle of its own; their entries are put into one log.
    """
    golden = Golden("rescaled", 4, HashPartitioner("id"))
    shuffle = golden.directory / "shuffle"
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
        whole = pa.concat_tables(stored).combine_chunks()
        of = whole["_subpartition"].to_numpy() % entry.num_subpartitions
        whole = whole.set_column(len(schema), field, pa.array(of, pa.int32()))
        golden.write(version, whole.take(pa.array(np.argsort(of, kind="stable"))))


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

    frames = {"later": b"none of ours", "tombstones": b"nor this"}
    change_entry(golden, 1, change, {name: zstandard.compress(of) for name, of in frames.items()})


def unknown_feature() -> None:
    """The newest entry says that who reads must know a feature."""

    def change(head: dict[str, Any]) -> None:
        head["state"]["readers"] = ["later"]

    refused("unknown_feature", change)


def unknown_operation() -> None:
    """The newest entry has an operation of a later release."""

    def change(head: dict[str, Any]) -> None:
        head["operation"] = "later"

    refused("unknown_operation", change)


def unknown_version() -> None:
    """The newest entry is of a later version of the format."""

    def change(head: dict[str, Any]) -> None:
        head["format_version"] = 2

    refused("unknown_version", change)


def refused(name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Write a shuffle whose newest entry, of two, is of a later release."""
    golden = Golden(name, 3, HashPartitioner("id"))
    for mode in ("errorifexists", "append"):
        golden.commit(mode, [flights(0, 10)])
    change_entry(golden, 2, change)
    golden.refuses({1: "newer", 2: "newer"})


def unknown_encoding() -> None:
    """A chunk of an encoding of a later release, in the file of the second version alone."""
    golden = Golden("unknown_encoding", 3, HashPartitioner("id"))
    for mode in ("errorifexists", "append"):
        golden.commit(mode, [flights(0, 10)])
    path = golden.directory / "shuffle"
    entry_file = path / entry_path(2)
    entry = decode_entry(entry_file.read_bytes())
    (output,) = entry.map_outputs
    (file,) = output.files
    metadata, regions = decode_index((path / file.index_path).read_bytes())
    regions = tuple(
        replace(
            region,
            chunks=replace(region.chunks, encoding=np.full_like(region.chunks.encoding, 2)),
        )
        for region in regions
    )
    index = encode_index(replace(metadata, statistics=()), regions)
    (path / file.index_path).write_bytes(index)
    outputs = MapOutputs.of([replace(output, files=(replace(file, **said_of(index)),))])
    content = replace(entry.content, added=outputs)
    entry_file.write_bytes(encode_entry(structs.replace(entry, content=content)))
    golden.refuses({2: "newer"})


def change_entry(
    golden: Golden,
    number: int,
    change: Callable[[dict[str, Any]], None],
    sections: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Change the JSON of an entry, and add sections."""
    path = golden.directory / "shuffle" / entry_path(number)
    line, _, rest = path.read_bytes().split(b"\n", 2)
    head = json.loads(line)
    change(head)
    head["sections"] += [
        [name, len(data), zlib.crc32(data), zstandard.frame_content_size(data)]
        for name, data in sections.items()
    ]
    line = json.dumps(head, separators=(",", ":")).encode()
    trailer = b"\narrow-shuffle-log %d %08x\n" % (len(line), zlib.crc32(line))
    path.write_bytes(b"".join([line, trailer, rest, *sections.values()]))
