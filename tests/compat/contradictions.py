"""Golden shuffles whose checksums fit, and which a reader must refuse all the same.

Each version replaces the one before, and breaks one rule of ``docs/format/``; the last is sound.
"""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import zstandard

from arrow_format import RoundRobinPartitioner
from arrow_format.format.batch_frame import encode_batch, encode_table
from arrow_format.format.masks import RowMask
from tests.compat.contradictory_index import INDEX
from tests.compat.damages import TOTALS
from tests.compat.golden import SEEN_WHOLE, Golden
from tests.compat.rewritten import (
    ROWS,
    Version,
    change,
    compressed_message,
    lying,
    sections_of,
    two_frames,
    with_dictionary,
    without_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MASK_SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (("region", pa.int32()), ("first_row", pa.int64()), ("rows", pa.binary()))
    ]
)


# Of the log


def _compressed_section(version: Version) -> dict[str, bytes]:
    sections = sections_of(version)
    batch = pa.RecordBatch.from_pylist(version.totals * 100, TOTALS)
    return sections | {"totals": zstandard.compress(compressed_message(batch))}


def _reframed(change: Callable[[bytes], bytes], stated: int | None = None) -> Any:
    """Change the frame of the last section; its size is stated as before, or so many more."""

    def changed(version: Version) -> None:
        sections = sections_of(version)
        totals = change(sections["totals"])
        size = zstandard.frame_content_size(sections["totals"]) + (stated or 0)
        version.encoded = lambda _: sections | {"totals": totals}
        version.listed = lambda listed: listed[-1].__setitem__(3, size)

    return changed


def _large_section(version: Version) -> None:
    """More than 64 MiB, and more than 1,000 times its length."""
    version.put_maximum(b"x" * (64 << 20))


def _null(version: Version) -> None:
    schema = pa.schema([pa.field(field.name, field.type) for field in TOTALS])
    rows = [*version.totals, {"num_rows": 0, "num_bytes": None}]
    totals = encode_table(pa.Table.from_pylist(rows, schema))
    version.encoded = lambda of: sections_of(of) | {"totals": totals}


def _other_columns(version: Version) -> None:
    totals = encode_table(
        pa.table({"num_rows": [3], "num_bytes": [version.file["data_bytes"]], "x": [0]})
    )
    version.encoded = lambda of: sections_of(of) | {"totals": totals}


def _twice(version: Version) -> None:
    version.listed = lambda listed: listed.append(listed[-1])
    version.behind = sections_of(version)["totals"]


def _removes(version: Version) -> None:
    keys = encode_table(pa.table({"key": ["a/0"]}))
    version.encoded = lambda of: sections_of(of) | {"removed": keys}


def _totals_of_three(version: Version) -> None:
    version.put_subpartitions(2)
    version.totals.append({"num_rows": 0, "num_bytes": 0})


def _no_multiple(version: Version) -> None:
    version.put_subpartitions(2)
    version.directory["num_subpartitions"] = version.file["num_subpartitions"] = 3


def _file_twice(version: Version) -> None:
    version.add(num_rows=version.file["num_rows"], num_bytes=version.file["data_bytes"])
    version.outputs[0]["files"].append(version.file)


def _key_twice(version: Version) -> None:
    _file_twice(version)
    version.outputs[0]["files"].pop()
    version.outputs.append({**version.outputs[0], "order": 1})
    version.head["num_outputs"] += 1


LOG: Mapping[str, Callable[[Version], object]] = {
    "num_rows of the entry is no sum": lambda v: v.head.update(num_rows=4),
    "num_bytes of the entry is no sum": lambda v: v.head.update(num_bytes=4),
    "num_outputs of the entry is no count": lambda v: v.head.update(num_outputs=2),
    "totals are not those of the map outputs": lambda v: v.totals[0].update(num_rows=4),
    "a section with BodyCompression": lambda v: setattr(v, "encoded", _compressed_section),
    "a section that does not state its size": _reframed(without_size),
    "a section of two frames": _reframed(two_frames),
    "a section of a dictionary": _reframed(with_dictionary),
    "a frame of fewer bytes than it states": _reframed(lying(8), 8),
    "a frame of more bytes than it states": _reframed(lying(-8), -8),
    "a section of more than 64 MiB": _large_section,
    "a null": _null,
    "a column more": _other_columns,
    "a section twice": _twice,
    "a section without rows": lambda v: v.totals.clear(),
    "a section of what an overwrite removes": _removes,
    "totals of another number of subpartitions": _totals_of_three,
    "a file of no multiple of subpartitions": _no_multiple,
    "a file of no subpartitions": lambda v: v.file.update(num_subpartitions=0),
    "a map output of another version": lambda v: v.outputs[0].update(version=1),
    "a map output of another place": lambda v: v.outputs[0].update(order=1),
    "a map output of another map task": lambda v: v.outputs[0].update(map_task=1),
    "a map output of another job": lambda v: v.outputs[0].update(job_id="another"),
    "a name that is none": lambda v: v.outputs[0].update(job_id="a/b"),
    "a path from the root": lambda v: v.file.update(path=f"/{v.file['path']}"),
    "a path with an empty part": lambda v: v.file.update(path=v.file["path"].replace("/", "//")),
    "a root that is relative": lambda v: v.file.update(root=b"disk"),
    "a root that is a URI": lambda v: v.file.update(root=b"file:///disk"),
    "a root with NUL": lambda v: v.file.update(root=b"/\0"),
    "another content size": lambda v: setattr(
        v, "listed", lambda of: of[0].append(of[0].pop() + 8)
    ),
    "bytes behind the sections": lambda v: setattr(v, "behind", b"\0"),
    "the number of another entry": lambda v: v.head.update(number=1000),
    "a number that JSON has not": lambda v: v.head.update(later=float("nan")),
    "a path that leads upwards": lambda v: v.file.update(path=f"map_outputs/../{v.file['path']}"),
    "a file twice": _file_twice,
    "a key twice": _key_twice,
}


def _schema(*fields: tuple[str, pa.DataType]) -> str:
    return base64.b64encode(pa.schema(fields).serialize()).decode()


def _types(**types: pa.DataType) -> Callable[[Version], object]:
    """Say that columns of the version have other types."""

    def changed(version: Version) -> None:
        schema = ROWS.schema
        for name, kind in types.items():
            schema = schema.set(schema.get_field_index(name), pa.field(name, kind))
        version.put_schema(schema)

    return changed


def _of_a_struct(version: Version) -> None:
    """Have structs whose fields have other names than those of the version."""
    stored, said = (
        ROWS.schema.set(3, pa.field("l", pa.struct([(name, pa.int8())]))) for name in ("x", "y")
    )
    version.put_column(3, node(255, 0) + node(1, 0, b"\1\2\3"))
    version.directory["data_schema"] = base64.b64encode(stored.serialize()).decode()
    version.put_schema(said)


def _ids(version: Version, ids: list[int]) -> None:
    version.head["state"]["shape"]["column_ids"] = ids
    version.head["state"]["last_column_id"] = 9


TYPES: Mapping[str, Callable[[Version], object]] = {
    "a narrower integer": _types(i=pa.int16()),
    "an integer of another sign": _types(i=pa.uint32()),
    "a wider integer of another sign": _types(i=pa.uint64()),
    "a float of an integer": _types(i=pa.float64()),
    "a date of an integer": _types(i=pa.date32()),
    "a narrower float": _types(f=pa.float32()),
    "an integer of a float": _types(f=pa.int64()),
    "a binary of a text": _types(s=pa.binary()),
    "a list of other items": _types(l=pa.list_(pa.int16())),
    "a text of a list": _types(l=pa.string()),
    "a struct of other fields": _of_a_struct,
    "items of another id": lambda v: _ids(v, [1, 2, 3, 4, 6]),
    "an id twice": lambda v: _ids(v, [1, 2, 3, 4, 4]),
    "an id twice in the file": lambda v: v.outputs[0].update(column_ids=[1, 2, 3, 4, 4]),
    "fewer ids than columns": lambda v: _ids(v, [1, 2, 3]),
    "more ids than columns": lambda v: _ids(v, [1, 2, 3, 4, 5, 6]),
}

DIRECTORY: Mapping[str, Callable[[Version], object]] = {
    "the index of another job": lambda v: v.directory.update(job_id="another"),
    "of another map task": lambda v: v.directory.update(map_task=1),
    "of another attempt": lambda v: v.directory.update(attempt=1),
    "of another number of subpartitions": lambda v: v.directory.update(num_subpartitions=2),
    "of another order": lambda v: v.directory.update(sort_by=[["i", "ascending"]]),
    "of another length of the data file": lambda v: v.directory.update(data_bytes=8 << 10),
    "a length that is no integer": lambda v: v.directory.update(
        data_bytes=float(v.directory["data_bytes"])
    ),
    "version 0 of the format": lambda v: v.directory.update(format_version=0),
    "no schema": lambda v: v.directory.update(data_schema=""),
    "a schema of no column": lambda v: v.directory.update(data_schema=_schema()),
    "two columns of a name": lambda v: v.directory.update(
        data_schema=_schema(
            *[(of, ROWS.schema.field(of).type) for of in ("i", "f", "s")],
            ("i", pa.list_(pa.int8())),
        )
    ),
    "a directory that does not state its size": lambda v: setattr(v, "of_directory", without_size),
    "a directory of two frames": lambda v: setattr(v, "of_directory", two_frames),
    "a directory of a dictionary": lambda v: setattr(v, "of_directory", with_dictionary),
    "a directory of fewer bytes than it states": lambda v: setattr(v, "of_directory", lying(1)),
    "other columns than its ids": lambda v: v.outputs[0].update(column_ids=[1, 2, 3]),
}

# Of the data


def node(width: int, base: int, *buffers: bytes, flags: int = 0, digits: int = 0) -> bytes:
    """Return a packed column of one node, with padding of zeros."""
    head = bytes([flags, width, digits, *bytes(5)]) + base.to_bytes(8, "little", signed=True)
    return head + b"".join(buffer + bytes(-len(buffer) % 8) for buffer in buffers)


def _longer(version: Version) -> None:
    version.put_frame(zstandard.compress(b"".join(version.columns()) + bytes(8)))


def _shorter(version: Version) -> None:
    version.put_frame(zstandard.compress(b"".join(version.columns())[:-8]))


DATA: Mapping[str, Callable[[Version], object]] = {
    "a frame that is longer than its columns": _longer,
    "a frame that is shorter than its columns": _shorter,
    "a frame of a dictionary": lambda v: v.put_frame(
        with_dictionary(zstandard.compress(b"".join(v.columns())))
    ),
    "a flag that is none": lambda v: v.put_column(0, node(1, 0, b"\1\2\3", flags=2)),
    "a width that is none": lambda v: v.put_column(0, node(3, 0, bytes(9))),
    "a width of more bytes than the type": lambda v: v.put_column(0, node(8, 0, bytes(24))),
    "more digits than 15": lambda v: v.put_column(1, node(1, 0, b"\1\2\3", digits=16)),
    "a float of 8 bytes that is a number": lambda v: v.put_column(1, node(8, 0, bytes(24))),
    "a negative base of lengths": lambda v: v.put_column(2, node(1, -1, b"\2\1\1", b"a")),
    "lengths of 8 bytes": lambda v: v.put_column(2, node(8, 0, bytes(24))),
    "lengths that add up to too much": lambda v: v.put_column(2, node(1, (1 << 31) - 1, bytes(3))),
    "a text that ends behind its column": lambda v: v.put_column(2, node(1, 0, b"\1\0\x09", b"a")),
    "bytes behind the buffers of a column": lambda v: v.put_column(
        0, node(1, 0, b"\1\2\3", bytes(8))
    ),
}

# Of Arrow messages


def _put_message(version: Version, message: bytes) -> None:
    """Put a message in the place of the chunk of a data file of codec none."""
    place, (length,) = version.part["chunk_gap"][0], version.part["frame_length"]
    version.part["frame_length"], version.part["frame_crc32"] = (
        [len(message)],
        [zlib.crc32(message)],
    )
    version.put_data(version.data[:place] + message + version.data[place + length :])


def _two_frames_of_a_message(version: Version, of_columns: list[int]) -> None:
    length = version.part["frame_length"][0]
    place = version.part["chunk_gap"][0]
    pieces = [version.data[place:][: length - 8], version.data[place:][length - 8 : length]]
    version.part.update(chunk_frames=[2], column_frame=of_columns)
    version.part["frame_length"] = [len(piece) for piece in pieces]
    version.part["frame_crc32"] = [zlib.crc32(piece) for piece in pieces]


def _batch(rows: pa.Table) -> pa.RecordBatch:
    return rows.combine_chunks().to_batches()[0]


MESSAGE: Mapping[str, Callable[[Version], object]] = {
    "BodyCompression": lambda v: _put_message(v, compressed_message(_batch(ROWS))),
    "a message of fewer rows": lambda v: _put_message(
        v, _batch(ROWS.slice(0, 2)).serialize().to_pybytes()
    ),
    "a message of two frames": lambda v: _two_frames_of_a_message(v, [0] * 4),
    "columns of the second frame of a message": lambda v: _two_frames_of_a_message(v, [0, 1, 0, 1]),
    "a message that has packed columns": lambda v: v.part["column_raw_length"].__setitem__(0, 1),
}

# Of masks


def _mask(version: Version, region: int, rows: list[int], stated: int | None = None) -> None:
    """Mask rows of the file."""
    number = len(rows) if stated is None else stated
    version.put_mask(RowMask.of({region: np.array(rows)}).encode(), number)
    version.totals[0]["num_rows"] -= number


def _pieces(version: Version, pieces: list[tuple[int, int, int]]) -> None:
    """Mask rows by pieces: region, first row, and bits."""
    rows = [
        {
            "region": region,
            "first_row": first,
            "rows": bits.to_bytes(-(-bits.bit_length() // 8), "little"),
        }
        for region, first, bits in pieces
    ]
    number = sum(bits.bit_count() for *_, bits in pieces)
    version.put_mask(encode_table(pa.Table.from_pylist(rows, MASK_SCHEMA)), number)
    version.totals[0]["num_rows"] -= number


MASK: Mapping[str, Callable[[Version], object]] = {
    "a mask of a region that is not there": lambda v: _mask(v, 1, [0]),
    "a mask of another number of rows": lambda v: _mask(v, 0, [0, 1], stated=1),
    "a mask of a row that is not there": lambda v: _mask(v, 0, [0, 3]),
    "a mask of a row of the next region": lambda v: (v.put_region(), _mask(v, 0, [0, 3])),
    "a row that is masked twice": lambda v: _pieces(v, [(0, 0, 3), (0, 0, 1)]),
    "pieces in another order": lambda v: _pieces(v, [(0, 2, 1), (0, 0, 1)]),
    "a piece of a region below 0": lambda v: _pieces(v, [(-1, 0, 1)]),
    "a piece that begins below 0": lambda v: _pieces(v, [(0, -8, 0x100)]),
    "a mask in two places": lambda v: (_mask(v, 0, [0]), v.file.update(mask_path="map_outputs/a")),
    "a mask in no place": lambda v: (_mask(v, 0, [0]), v.file.update(mask=b"")),
}

# Of statistics


def _bounds(**others: tuple[Any, Any, int]) -> Callable[[Version], None]:
    """Give the chunk other statistics: minimum, maximum and number of nulls."""
    of_columns = {"i": (1, 300, 0), "f": (-1.5, 10.0, 0), "s": ("", "bcd", 0)} | others

    def changed(version: Version) -> None:
        arrays = [
            pa.array([value], kind)
            for name, values in of_columns.items()
            for value, kind in zip(values, _types_of_statistics(name), strict=True)
        ]
        names = [str(number) for number in range(len(arrays))]
        batch = pa.RecordBatch.from_arrays(arrays, names)
        version.statistics = [encode_batch(batch)]

    return changed


def _types_of_statistics(name: str) -> list[pa.DataType]:
    kind = ROWS.schema.field(name).type
    return [kind, kind, pa.int64()]


def _of_file(**others: Any) -> Callable[[Version], None]:
    """Have the log say something else of the file's first column."""
    return lambda version: version.file["statistics"][0].update(others)


STATISTICS: Mapping[str, Callable[[Version], object]] = {
    "a lower bound of a chunk above a value": _bounds(i=(2, 300, 0)),
    "an upper bound of a chunk below a value": _bounds(s=("", "bc", 0)),
    "a bound of a chunk that is no value": _bounds(f=(-2.0, 10.0, 0)),
    "another number of nulls of a chunk": _bounds(i=(1, 300, 1)),
    "more nulls of a chunk than rows": _bounds(i=(1, 300, 4)),
    "statistics of a column twice": lambda v: v.directory.update(statistics=["i", "f", "f"]),
    "statistics of a list": lambda v: v.directory.update(statistics=["i", "f", "l"]),
    "a lower bound of a file above a value": _of_file(minimum=b"\2\0\0\0"),
    "a bound of a file of another length": _of_file(maximum=b"\x2c\1\0"),
    "more nulls of a file than rows": _of_file(null_count=4),
    "statistics of a column of a file twice": lambda v: v.file["statistics"].append(
        v.file["statistics"][0]
    ),
}


RULES: tuple[tuple[str, Mapping[str, Callable[[Version], object]], dict[str, Any]], ...] = (
    ("log", LOG, {}),
    ("index", INDEX, {}),
    ("files", {**DIRECTORY, **MASK}, {}),
    ("columns", DATA, {}),
    ("messages", MESSAGE, {"codec": "none"}),
    ("types", TYPES, {}),
    ("statistics", STATISTICS, {"statistics": "all"}),
)
"""What a shuffle is called, the rules that its versions break, and how it is written."""


OF_WHOLE_FILES = (
    "a region that is missing",
    "another number of regions",
    "a region before the one before",
    "a chunk that has a place for each of two blocks",
    "a chunk of both sides of a wrap",
    "a region that wraps twice",
    "a region that goes on behind where it began",
    "another number of rows",
    "rows outside of the range that the log states",
    "broadcast rows of some subpartitions",
    "a mask of a row of the next region",
    *STATISTICS,
)
"""Rules that a reader of some subpartitions cannot know to be broken: `verify` finds it."""


def contradictions(
    name: str, rules: Mapping[str, Callable[[Version], object]], **options: Any
) -> None:
    """Write a version for each rule that breaks it, and one that breaks none."""
    golden = Golden(name, 1, RoundRobinPartitioner(), **{"statistics": (), **options})
    for _ in range(len(rules) + 1):
        golden.commit("overwrite", [ROWS])
    for number, how in enumerate(rules.values(), start=1):
        change(golden, number, how)
    golden.refuses(
        {
            number: SEEN_WHOLE if rule in OF_WHOLE_FILES else "damage"
            for number, rule in enumerate(rules, start=1)
        }
    )
