"""The table of map outputs: its columns, objects as rows of it and back, and what is wrong in one.

See ``docs/format/reading.md`` for the columns.
"""

from __future__ import annotations

from itertools import chain, islice, pairwise
from operator import index
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrow_format.arrays.buffers import (
    binary_array,
    list_array,
    no_rows,
    text_array,
    to_arrow,
    to_numpy,
)
from arrow_format.arrays.selection import take
from arrow_format.model import (
    FILE_STATISTICS,
    MAX_INTEGER,
    MAX_SUBPARTITIONS,
    NO_MASK,
    MapOutput,
    Mask,
    PartitionedFile,
    Position,
)
from arrow_format.options import is_absolute_directory, normal_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from arrow_format.model import Int64Array

_NO_PATH = r"[^\w\-./]|(^|/)\.{0,2}(/|$)"
"""In RE2 ``\\w`` is a letter, digit or underscore of ASCII."""
_NUMBERS = (
    "num_rows", "num_regions", "data_bytes", "raw_bytes", "index_bytes", "directory_bytes",
    "directory_crc32",
    "num_broadcast_rows", "num_subpartitions", "first_subpartition", "end_subpartition",
)  # fmt: skip


MASK_NUMBERS = {
    "mask_rows": "num_rows", "mask_number": "number", "mask_offset": "offset",
    "mask_length": "length", "mask_crc32": "crc32",
}  # fmt: skip
"""Columns of a file's mask, and their fields of :class:`Mask`."""


SLASH = text_array(["/"])[0]  # a str would be converted by what imports pandas


def _required(name: str, type_: pa.DataType) -> pa.Field:
    return pa.field(name, type_, nullable=False)


_FILE = pa.struct(
    [
        _required("path", pa.string()),
        # The bytes of a path, which need not be UTF-8.
        _required("root", pa.binary()),
        *(_required(name, pa.int64()) for name in _NUMBERS),
        _required("statistics", pa.list_(_required("item", FILE_STATISTICS))),
        _required("placed", pa.bool_()),
        *(_required(name, pa.int64()) for name in MASK_NUMBERS),
        _required("mask_path", pa.string()),
        _required("mask", pa.binary()),
    ]
)
SCHEMA = pa.schema(
    [
        # 0 until the entry that adds it has its number; the same of last_version.
        _required("version", pa.int64()),
        _required("order", pa.int64()),
        _required("last_version", pa.int64()),
        _required("job_id", pa.string()),
        _required("map_task", pa.int64()),
        _required("attempt", pa.int64()),
        # None until then, too.
        _required("column_ids", pa.list_(_required("item", pa.int32()))),
        _required("files", pa.list_(_required("item", _FILE))),
    ]
)

_INTEGERS = [field.name for field in SCHEMA if field.type == pa.int64()]


def column_in(table: pa.Table, name: str) -> pa.Array:
    """Return a column in one piece."""
    column = table.column(name)
    if not column.num_chunks:
        return no_rows(column.type)
    # Arrow copies even a single chunk to combine it.
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def keys_of(table: pa.Table) -> pa.StringArray:
    """Return ``<job>/<map task>`` of each map output."""
    tasks = table.column("map_task").cast(pa.string())
    return pc.binary_join_element_wise(table.column("job_id"), tasks, SLASH).combine_chunks()


def files_in(table: pa.Table) -> pa.StructArray:
    """Return the files of all map outputs, in reading order."""
    return column_in(table, "files").flatten()


def lengths_of(lists: pa.ListArray) -> Int64Array:
    """Return how many items each list has."""
    return to_numpy(pc.list_value_length(lists)).astype(np.int64)


def to_table(outputs: Sequence[MapOutput]) -> pa.Table:
    """Return map outputs as a table of :data:`SCHEMA`."""
    positions = [output.position or Position(0, output.map_task, 0) for output in outputs]
    files = [file for output in outputs for file in output.files]
    roots = [file.root.encode("utf-8", "surrogateescape") for file in files]
    columns = {
        **{
            name: _integers(getattr(place, name) for place in positions)
            for name in Position._fields
        },
        "job_id": text_array(output.job_id for output in outputs),
        "map_task": _integers(output.map_task for output in outputs),
        "attempt": _integers(output.attempt for output in outputs),
        "column_ids": _id_lists([output.column_ids for output in outputs]),
        "files": list_array(
            (len(output.files) for output in outputs),
            pa.StructArray.from_arrays(
                [
                    text_array(file.path for file in files),
                    binary_array(roots, pa.binary()),
                    *(_integers(getattr(file, name) for file in files) for name in _NUMBERS),
                    _statistics([file.statistics for file in files]),
                    to_arrow(np.array([file.placed for file in files], np.bool_)),
                    *(
                        _integers(getattr(file.mask, name) for file in files)
                        for name in MASK_NUMBERS.values()
                    ),
                    text_array(file.mask.path for file in files),
                    binary_array([file.mask.frame for file in files], pa.binary()),
                ],
                fields=list(_FILE),
            ),
            SCHEMA.field("files").type,
        ),
    }
    return pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _statistics(of_files: Sequence[pa.StructArray]) -> pa.ListArray:
    entries = [pa.nulls(0, FILE_STATISTICS), *of_files]
    type_ = _FILE.field("statistics").type
    return list_array(map(len, of_files), pa.concat_arrays(entries), type_)


def _integers(values: Iterable[int]) -> pa.Int64Array:
    # NumPy would cut a fraction off.
    return to_arrow(np.fromiter(map(index, values), np.int64))


def _id_lists(of_outputs: Sequence[tuple[int, ...]]) -> pa.ListArray:
    ids = np.fromiter(map(index, chain.from_iterable(of_outputs)), np.int32)
    return list_array(map(len, of_outputs), to_arrow(ids), SCHEMA.field("column_ids").type)


def to_outputs(table: pa.Table) -> Iterator[MapOutput]:
    """Inverse of :func:`to_table`."""
    files = iter(_to_files(files_in(table)))
    counts = lengths_of(column_in(table, "files")).tolist()
    rows = table.drop_columns(["files", "column_ids"]).to_pylist()
    for row, count, ids in zip(rows, counts, _tuples(column_in(table, "column_ids")), strict=True):
        yield MapOutput(
            job_id=row["job_id"],
            map_task=row["map_task"],
            attempt=row["attempt"],
            files=tuple(islice(files, count)),
            position=Position(row["version"], row["order"], row["last_version"]),
            column_ids=ids,
        )


def _tuples(lists: pa.ListArray) -> Iterator[tuple[int, ...]]:
    """Yield lists of numbers, equal ones as one tuple: nearly all map outputs have the same."""
    values = to_numpy(lists.values)
    made: dict[bytes, tuple[int, ...]] = {}
    for first, end in pairwise(to_numpy(lists.offsets).tolist()):
        each = values[first:end]
        key = each.tobytes()
        if key not in made:
            made[key] = tuple(each.tolist())
        yield made[key]


def _to_files(files: pa.StructArray) -> Iterator[PartitionedFile]:
    numbers = {name: files.field(name).to_pylist() for name in _NUMBERS}
    statistics = files.field("statistics")
    entries, offsets = statistics.values, to_numpy(statistics.offsets).tolist()
    masks = _to_masks(files)
    for path, root, placed, mask, first, end, *values in zip(
        files.field("path").to_pylist(),
        files.field("root").to_pylist(),
        files.field("placed").to_pylist(),
        masks,
        offsets[:-1],
        offsets[1:],
        *numbers.values(),
        strict=True,
    ):
        yield PartitionedFile(
            path=path,
            root=root.decode("utf-8", "surrogateescape"),
            statistics=entries.slice(first, end - first),
            placed=placed,
            mask=mask,
            **dict(zip(numbers, values, strict=True)),
        )


def _to_masks(files: pa.StructArray) -> Sequence[Mask]:
    masks = [NO_MASK] * len(files)
    at = np.flatnonzero(to_numpy(files.field("mask_rows")))
    if len(at):
        masked = take(files, to_arrow(at))
        columns = [masked.field(name).to_pylist() for name in MASK_NUMBERS]
        columns += [masked.field(name).to_pylist() for name in ("mask_path", "mask")]
        names = (*MASK_NUMBERS.values(), "path", "frame")
        for number, *values in zip(at.tolist(), *columns, strict=True):
            masks[number] = Mask(**dict(zip(names, values, strict=True)))
    return masks


def problems(table: pa.Table) -> Iterator[str]:
    """Yield what is wrong with map outputs, if anything."""
    files = files_in(table)
    columns = [column_in(table, name) for name in _INTEGERS]
    names = (*_NUMBERS, *MASK_NUMBERS)
    columns += [files.field(name) for name in names]
    statistics = files.field("statistics")
    columns += [statistics.flatten().field(name) for name in ("column", "null_count")]
    unsigned = [to_numpy(column).view(np.uint64) for column in columns]
    if any(values.max(initial=0) > MAX_INTEGER for values in unsigned):
        yield f"a number is not from 0 to {MAX_INTEGER}"
    if to_numpy(column_in(table, "column_ids").values).min(initial=1) < 1:
        yield "an id of a column is not from 1 on"
    if not are_names(column_in(table, "job_id")):
        yield "a job has no name of a job"
    if any_match(files.field("path"), _NO_PATH):
        yield "the path of a file would leave the shuffle's directory, or is not normalised"
    yield from _problems_of_roots(files)
    rows, regions = (to_numpy(files.field(name)) for name in ("num_rows", "num_regions"))
    masked = to_numpy(files.field("mask_rows"))
    if np.any(masked):
        yield from _problems_of_masks(files.filter(to_arrow(masked > 0)))
        rows = rows + masked
    broadcast = to_numpy(files.field("num_broadcast_rows"))
    if np.any(to_numpy(columns[-1]) > np.repeat(rows, lengths_of(statistics))):
        yield "a file has more nulls of a column than rows"
    first, end = (to_numpy(files.field(f"{side}_subpartition")) for side in ("first", "end"))
    if np.any((first > end) | ((first == end) & (rows > 0))):
        yield "a file has rows in no subpartition"
    numbers = to_numpy(files.field("num_subpartitions"))
    if np.any((numbers < 1) | (numbers > MAX_SUBPARTITIONS)):
        yield f"a file has not 1 to {MAX_SUBPARTITIONS} subpartitions"
    most = np.minimum(np.maximum(regions, 1), MAX_INTEGER >> 31) << 31
    if np.any((regions > rows) | (rows >= most) | (broadcast > rows)):
        yield "a file cannot have its rows in its regions"
    for name in ("num_rows", "data_bytes", "raw_bytes"):
        if float(to_numpy(files.field(name)).sum(dtype=float)) > MAX_INTEGER:
            yield f"{name} of all files together are above {MAX_INTEGER}"
    jobs = to_numpy(column_in(table, "job_id").dictionary_encode().indices)
    tasks = to_numpy(column_in(table, "map_task"))
    order = np.lexsort((tasks, jobs))
    if np.any((np.diff(tasks[order]) == 0) & (np.diff(jobs[order]) == 0)):
        yield "a map output is named twice"


def _problems_of_masks(files: pa.StructArray) -> Iterator[str]:
    """Yield what is wrong with masks, if anything; of files that have one."""
    inside = to_numpy(pc.binary_length(files.field("mask")))
    has_path = to_numpy(pc.binary_length(files.field("mask_path"))) > 0
    if any_match(files.field("mask_path").filter(to_arrow(has_path)), _NO_PATH):
        yield "the path of a mask would leave the shuffle's directory, or is not normalised"
    length = to_numpy(files.field("mask_length"))
    if np.any(has_path == (inside > 0)) or np.any(length != np.where(has_path, length, inside)):
        yield "a mask is not in one place"


def any_match(values: pa.Array | pa.ChunkedArray, pattern: str) -> bool:
    """Whether a part of any text matches a pattern (RE2)."""
    return bool(pc.any(pc.match_substring_regex(values, pattern), min_count=0).as_py())


def are_names(values: pa.Array | pa.ChunkedArray) -> bool:
    """Whether all texts match :data:`SAFE_NAME`, whose repetition RE2 compiles for 0.1 ms."""
    lengths = to_numpy(pc.binary_length(values).cast(pa.int64()))
    return not np.any((lengths < 1) | (lengths > 100)) and not any_match(values, r"[^\w\-]")


def _problems_of_roots(files: pa.StructArray) -> Iterator[str]:
    encoded = files.field("root").dictionary_encode()
    roots = [root.decode("utf-8", "surrogateescape") for root in encoded.dictionary.to_pylist()]
    for root in roots:
        if root and not is_absolute_directory(root):
            yield f"root {root!r} is not an absolute directory"
    normal = [normal_directory(root) if root else "" for root in roots]
    places = files.field("path")
    if len(set(normal)) > 1:
        numbers = {root: number for number, root in enumerate(dict.fromkeys(normal))}
        of_root = np.array([numbers[root] for root in normal], np.int64)
        at = to_arrow(of_root[to_numpy(encoded.indices)]).cast(pa.string())
        places = pc.binary_join_element_wise(at, places, SLASH)
    # Those of one job mostly ascend, and to find that takes no memory.
    ascend = pc.all(pc.less(places[:-1], places[1:]), min_count=0).as_py()
    if not ascend and pc.count_distinct(places).as_py() < len(places):
        yield "a file is named twice"
