"""The map outputs of an entry, a checkpoint or a version: a table, decoded when it is needed.

A version may have a hundred thousand of them. Sums and selections work on columns; objects are made
of the map outputs that are asked for. See ``docs/format/reading.md`` for the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice, pairwise
from operator import index
from typing import TYPE_CHECKING, overload

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
    to_scalar,
)
from arrow_format.arrays.selection import take
from arrow_format.errors import CorruptShuffleError
from arrow_format.format.batch_frame import decode_batches, decode_table, encode_table
from arrow_format.format.single_values import from_binaries
from arrow_format.format.statistics import UNKNOWN, ColumnStatistics
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
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from arrow_format.arrays.column_ids import Columns
    from arrow_format.model import Int64Array

_NO_PATH = r"[^\w\-./]|(^|/)\.{0,2}(/|$)"
"""In RE2 ``\\w`` is a letter, digit or underscore of ASCII."""
_NUMBERS = (
    "num_rows", "num_regions", "data_bytes", "raw_bytes", "index_bytes", "directory_bytes",
    "directory_crc32",
    "num_broadcast_rows", "num_subpartitions", "first_subpartition", "end_subpartition",
)  # fmt: skip


_MASK_NUMBERS = {
    "mask_rows": "num_rows", "mask_number": "number", "mask_offset": "offset",
    "mask_length": "length", "mask_crc32": "crc32",
}  # fmt: skip
"""Columns of a file's mask, and their fields of :class:`Mask`."""


_SLASH = text_array(["/"])[0]  # a str would be converted by what imports pandas


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
        *(_required(name, pa.int64()) for name in _MASK_NUMBERS),
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
        _required("counters", pa.map_(pa.string(), _required("value", pa.int64()))),
        _required("files", pa.list_(_required("item", _FILE))),
    ]
)

_INTEGERS = [field.name for field in SCHEMA if field.type == pa.int64()]

_MANY = 4096
"""Map outputs whose check takes longer than its call."""


class MapOutputs(Sequence[MapOutput]):
    """Map outputs in reading order.

    ``table`` gives their columns when they are first needed, and ``check`` is given these if they
    are not trusted; both may raise CorruptShuffleError.
    """

    def __init__(
        self, table: Callable[[], pa.Table], check: Callable[[pa.Table], None] | None = None
    ) -> None:
        self._make, self._check = table, check
        self._table: pa.Table | None = None
        self._objects: tuple[MapOutput, ...] | None = None

    @staticmethod
    def of(outputs: Iterable[MapOutput]) -> MapOutputs:
        """Return the given ones, in their order."""
        if isinstance(outputs, MapOutputs):
            return outputs
        objects = tuple(outputs)
        made = MapOutputs(lambda: _to_table(objects))
        made._objects = objects
        return made

    @staticmethod
    def of_table(table: pa.Table) -> MapOutputs:
        """Return those of a table of :data:`SCHEMA`."""
        return MapOutputs(lambda: table)

    @staticmethod
    def concat(parts: Sequence[MapOutputs]) -> MapOutputs:
        """Return those of all parts, in reading order."""
        return MapOutputs.composed(parts, [NO_KEYS] * len(parts))[0]

    @staticmethod
    def composed(
        parts: Sequence[MapOutputs], removed: Sequence[pa.Array]
    ) -> tuple[MapOutputs, pa.Array]:
        """Return what parts leave, in reading order, each of which first removes some keys.

        Also those of the keys that were there before all parts.
        """
        if len(parts) < 2:
            return (parts[0], removed[0]) if parts else (NO_OUTPUTS, NO_KEYS)
        # Those of the parts are not kept: together they take as much memory as the whole.
        made = [part._make() if part._table is None else part._table for part in parts]
        left, gone = _left(made, removed)
        # Many small tables are checked together far faster; but together they may break a rule
        # that each of them keeps. What is not left of them nobody uses.
        small = [rest for table, rest in zip(made, left, strict=True) if len(table) < _MANY]
        are_sound = not any(_problems(_together(small)))
        for part, table in zip(parts, made, strict=True):
            is_checked = part._table is not None or (are_sound and len(table) < _MANY)
            if part._check is not None and not is_checked:
                part._check(table)
        return MapOutputs.of_table(_in_order(_together(left))), gone

    @property
    def table(self) -> pa.Table:
        """Their columns, of :data:`SCHEMA`."""
        # Several threads may do this: they make equal tables.
        if self._table is None:
            table = self._make()
            if self._check is not None:
                self._check(table)
            self._table = table
        return self._table

    def __reduce__(self) -> tuple[Callable[[pa.Table], MapOutputs], tuple[pa.Table]]:
        return MapOutputs.of_table, (self.table,)

    def __len__(self) -> int:
        return self.table.num_rows if self._objects is None else len(self._objects)

    @overload
    def __getitem__(self, at: int) -> MapOutput: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[MapOutput]: ...
    def __getitem__(self, at: int | slice) -> MapOutput | Sequence[MapOutput]:
        return self._all()[at]

    def __iter__(self) -> Iterator[MapOutput]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self._all() == tuple(other)

    def __hash__(self) -> int:
        return hash(len(self))

    def __repr__(self) -> str:
        return f"MapOutputs({self._all()!r})"

    def _all(self) -> tuple[MapOutput, ...]:
        if self._objects is None:
            self._objects = tuple(_to_outputs(self.table))
        return self._objects

    @property
    def keys(self) -> pa.StringArray:
        """``<job>/<map task>`` of each, by which an entry names those that it removes."""
        table = self.table
        tasks = table.column("map_task").cast(pa.string())
        return pc.binary_join_element_wise(table.column("job_id"), tasks, _SLASH).combine_chunks()

    @property
    def places(self) -> pa.StringArray:
        """``<job>/<map task>/<version>/<mask number>`` of each.

        A rollback puts it where another version was, and a deletion masks rows of it.
        """
        numbers = (self.versions, self.mask_numbers)
        columns = (to_arrow(each).cast(pa.string()) for each in numbers)
        return pc.binary_join_element_wise(self.keys, *columns, _SLASH)

    @property
    def mask_numbers(self) -> Int64Array:
        """The entry that last masked rows of each; 0 where none did."""
        return self._largest(self.of_files("mask_number"))

    @property
    def has_masks(self) -> bool:
        """Whether rows of any file are masked."""
        return bool(np.any(self.of_files("mask_rows")))

    def _largest(self, of_files: Int64Array) -> Int64Array:
        """Return the largest of numbers of the files of each; 0 without files."""
        lists = _column(self.table, "files")
        largest = np.zeros(len(lists), np.int64)
        np.maximum.at(largest, np.repeat(np.arange(len(lists)), _lengths(lists)), of_files)
        return largest

    @property
    def versions(self) -> Int64Array:
        """The version that added the first rows of each."""
        return to_numpy(_column(self.table, "version"))

    @property
    def last_versions(self) -> Int64Array:
        """The version that added the last rows of each."""
        return to_numpy(_column(self.table, "last_version"))

    @property
    def job_ids(self) -> set[str]:
        """The jobs that wrote them, and the objects of their masks."""
        return {
            *self.table.column("job_id").unique().to_pylist(),
            *self._mask_jobs.unique().to_pylist(),
        } - {""}

    @property
    def _mask_jobs(self) -> pa.StringArray:
        """The job that wrote the object of each file's mask; empty where there is none."""
        paths = _files(self.table).field("mask_path")
        return pc.replace_substring_regex(paths, r"^.*/([^/]+)/[^/]+$", r"\1")

    @property
    def stored_rows(self) -> Int64Array:
        """Rows that each data file has, masked ones too, in reading order."""
        return self.of_files("num_rows") + self.of_files("mask_rows")

    def of_files(self, name: str) -> Int64Array:
        """Return a number of each file, such as ``data_bytes``, in reading order (int64)."""
        return to_numpy(_files(self.table).field(name))

    @property
    def placed(self) -> NDArray[np.bool_]:
        """Whether the rows of each file are known to be where they belong, in reading order."""
        return to_numpy(_files(self.table).field("placed"))

    @property
    def columns_with_statistics(self) -> set[int]:
        """Ids of columns of which something is known in any file."""
        return set(_files(self.table).field("statistics").flatten().field("column").to_pylist())

    def bounds(self) -> dict[int, pa.Array]:
        """Return the bounds of all files by id of the column, as they are stored; none twice."""
        entries = _files(self.table).field("statistics").flatten()
        columns = entries.field("column")
        bounds = {}
        for id_ in columns.unique().to_pylist():
            of_column = entries.filter(pc.equal(columns, to_scalar(id_, pa.int64())))
            both = [of_column.field(side) for side in ("minimum", "maximum")]
            bounds[id_] = pa.concat_arrays(both).drop_null().unique()
        return bounds

    def file_statistics(
        self, names: Iterable[str], version: Columns
    ) -> dict[str, ColumnStatistics]:
        """Return what is known of columns in each file, in reading order.

        Parameters
        ----------
        names
            Columns of ``version``.
        version
            The columns as which rows are read: bounds have their types. Of a column that a file
            lacks nothing is known here; its index says that. They are of all rows that are stored,
            those that are masked too.

        Raises
        ------
        CorruptShuffleError
            The statistics of a column are not of its type.
        """
        files = _files(self.table)
        num_rows = self.stored_rows
        lists = files.field("statistics")
        file_of = np.repeat(np.arange(len(files)), _lengths(lists))
        entries = lists.flatten()
        columns, ids = to_numpy(entries.field("column")), version.by_name
        statistics = {}
        for name in names:
            type_ = version.schema.field(name).type
            rows = np.flatnonzero(columns == ids[name])
            if not len(rows):
                statistics[name] = ColumnStatistics.unknown(type_, num_rows)
                continue
            of_column = take(entries, to_arrow(rows))
            null_count = np.full(len(files), UNKNOWN, np.int64)
            null_count[file_of[rows]] = to_numpy(of_column.field("null_count"))
            entry_of = np.full(len(files), -1, np.int64)
            entry_of[file_of[rows]] = np.arange(len(rows))
            places = to_arrow(entry_of, entry_of < 0)
            try:
                low, high = (
                    take(from_binaries(of_column.field(side), type_), places)
                    for side in ("minimum", "maximum")
                )
            except (ValueError, pa.ArrowException) as error:
                msg = f"the log has statistics of column {name!r} that are not {type_}: {error}"
                raise CorruptShuffleError(msg) from error
            statistics[name] = ColumnStatistics(low, high, null_count, num_rows)
        return statistics

    def _sum(self, name: str) -> int:
        return int(self.of_files(name).sum())

    @property
    def num_files(self) -> int:
        """How many files they have."""
        return len(_files(self.table))

    def num_files_beyond(self, column_ids: Sequence[int]) -> int:
        """Return how many files have columns with other ids than these."""
        lists = _column(self.table, "column_ids")
        is_other = ~np.isin(to_numpy(lists.values), column_ids)
        of_output = np.repeat(np.arange(len(self)), _lengths(lists))
        num_files = _lengths(_column(self.table, "files"))
        return int(num_files[np.unique(of_output[is_other])].sum())

    @property
    def num_rows(self) -> int:
        """Rows stored; a broadcast row counts once."""
        return self._sum("num_rows")

    @property
    def num_bytes(self) -> int:
        """Bytes of the data files."""
        return self._sum("data_bytes")

    @property
    def raw_bytes(self) -> int:
        """Bytes of the rows as Arrow holds them in memory."""
        return self._sum("raw_bytes")

    @property
    def num_broadcast_rows(self) -> int:
        """Rows that every subpartition reads."""
        return self._sum("num_broadcast_rows")

    def delivered_rows(self, num_subpartitions: int) -> int:
        """Rows that all subpartitions together read: a broadcast row counts for each."""
        return self.num_rows + (num_subpartitions - 1) * self.num_broadcast_rows

    def without(self, keys: pa.Array) -> MapOutputs:
        """Return those whose keys are not among ``keys``."""
        if not len(keys) or not len(self):
            return self
        return self._where(pc.invert(pc.is_in(self.keys, keys)))

    def among(self, keys: pa.Array) -> MapOutputs:
        """Return those whose keys are among ``keys``."""
        return self._where(pc.is_in(self.keys, keys))

    def once(self) -> MapOutputs:
        """Return the first of each key, or of each mask of one."""
        masks = to_arrow(self.mask_numbers).cast(pa.string())
        names = pc.binary_join_element_wise(self.keys, masks, _SLASH)
        numbers = to_numpy(names.dictionary_encode().indices)
        _, firsts = np.unique(numbers, return_index=True)
        if len(firsts) == len(numbers):
            return self
        is_first = np.zeros(len(numbers), np.bool_)
        is_first[firsts] = True
        return self._where(to_arrow(is_first))

    def of_jobs(self, job_ids: Iterable[str]) -> MapOutputs:
        """Return those that some jobs wrote, or the object of a mask of which one did."""
        jobs = text_array(job_ids)
        are_own = to_numpy(pc.is_in(_column(self.table, "job_id"), jobs))
        are_masks = to_numpy(pc.is_in(self._mask_jobs, jobs))
        return self._where(to_arrow(are_own | (self._largest(are_masks.astype(np.int64)) > 0)))

    def added_after(self, version: int) -> MapOutputs:
        """Return those with rows that were added after a version."""
        if version <= 0 or not len(self):
            return self
        return self._where(to_arrow(self.last_versions > version))

    def of_ranges(self, ranges: Sequence[tuple[int, int]], num_subpartitions: int) -> MapOutputs:
        """Return those with a file that may have rows in ranges ``[first, end)``, ascending.

        One of more subpartitions than there are may have some of any: it counts them otherwise.
        """
        firsts, ends = np.array(ranges, np.int64).reshape(-1, 2).T
        first, end = (self.of_files(f"{side}_subpartition") for side in ("first", "end"))
        # The first range that ends behind the beginning of the file is the only one to ask.
        at = np.searchsorted(ends, first, side="right")
        starts = np.append(firsts, np.iinfo(np.int64).max)[at]
        is_asked = np.maximum(first, starts) < end
        if len(ranges):
            is_asked |= self.of_files("num_subpartitions") > num_subpartitions
        numbers = np.repeat(np.arange(len(self)), _lengths(_column(self.table, "files")))
        kept = np.zeros(len(self), np.bool_)
        kept[numbers[is_asked]] = True
        return self if kept.all() else self._where(to_arrow(kept))

    def _where(self, mask: pa.Array | pa.ChunkedArray) -> MapOutputs:
        return MapOutputs.of_table(self.table.filter(mask).combine_chunks())

    def at_version(self, number: int) -> MapOutputs:
        """Return them with the positions of outputs that the entry of a number adds."""
        columns = {"version": self.versions, "last_version": self.last_versions}
        placed = self._with({name: np.where(at == 0, number, at) for name, at in columns.items()})
        at, rows = placed.of_files("mask_number"), placed.of_files("mask_rows")
        is_new = (at == 0) & (rows > 0)
        return placed._with_files({"mask_number": np.where(is_new, number, at)})

    def without_positions(self) -> MapOutputs:
        """Return them as what one entry adds, in their order."""
        nought = np.zeros(len(self), np.int64)
        return self._with(
            {"version": nought, "order": np.arange(len(self)), "last_version": nought}
        )

    def with_columns(self, columns: Columns) -> MapOutputs:
        """Return them with ids, where all files have these columns."""
        table, n = self.table, len(self)
        ids = to_arrow(np.tile(np.array(columns.ids, np.int32), n))
        of_outputs = list_array([len(columns.ids)] * n, ids, SCHEMA.field("column_ids").type)
        lists = _files(table).field("statistics")
        entries = lists.flatten()
        by_position = np.array([*columns.by_name.values()], np.int64)
        of_entries = to_arrow(by_position[to_numpy(entries.field("column"))])
        entries = _replaced(entries, "column", of_entries)
        files = _replaced(
            _files(table), "statistics", list_array(_lengths(lists), entries, lists.type)
        )
        of_files = list_array(_lengths(_column(table, "files")), files, SCHEMA.field("files").type)
        for name, array in (("column_ids", of_outputs), ("files", of_files)):
            at = SCHEMA.get_field_index(name)
            table = table.set_column(at, SCHEMA.field(at), array)
        return MapOutputs.of_table(table)

    def _with_files(self, columns: Mapping[str, Int64Array]) -> MapOutputs:
        table, files = self.table, _files(self.table)
        if all(np.array_equal(self.of_files(name), values) for name, values in columns.items()):
            return self
        for name, values in columns.items():
            files = _replaced(files, name, to_arrow(values))
        at = SCHEMA.get_field_index("files")
        lists = list_array(_lengths(_column(table, "files")), files, SCHEMA.field(at).type)
        return MapOutputs.of_table(table.set_column(at, SCHEMA.field(at), lists))

    def _with(self, columns: Mapping[str, Int64Array]) -> MapOutputs:
        table = self.table
        for name, values in columns.items():
            at = SCHEMA.get_field_index(name)
            table = table.set_column(at, SCHEMA.field(at), to_arrow(values))
        return MapOutputs.of_table(table)


def _column(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    # Arrow copies even a single chunk to combine it.
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _replaced(structs: pa.StructArray, name: str, values: pa.Array) -> pa.StructArray:
    """Return structs without nulls with other values of a field."""
    fields = list(structs.type)
    arrays = [values if f.name == name else structs.field(f.name) for f in fields]
    return pa.StructArray.from_arrays(arrays, fields=fields)


def _files(table: pa.Table) -> pa.StructArray:
    return _column(table, "files").flatten()


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables([pa.Table.from_batches([], SCHEMA), *tables]).combine_chunks()


def _left(
    tables: Sequence[pa.Table], removed: Sequence[pa.Array]
) -> tuple[Sequence[pa.Table], pa.Array]:
    """Return what is left of tables one after the other; see :meth:`MapOutputs.composed`."""
    names = pa.chunked_array(removed, pa.string()).unique()
    if not len(names):
        return tables, NO_KEYS
    first_removed, last_removed, first_added = (
        np.full(len(names), fill, np.int64) for fill in (len(tables), -1, len(tables))
    )
    for number, keys in enumerate(removed):
        at = to_numpy(pc.index_in(keys, names))
        last_removed[at] = number
        first_removed[at] = np.minimum(first_removed[at], number)
    left = []
    keys = pa.concat_arrays([MapOutputs.of_table(table).keys for table in tables])
    found = to_numpy(pc.fill_null(pc.index_in(keys, names), to_scalar(-1, pa.int32())))
    ends = np.cumsum([len(table) for table in tables])[:-1]
    for number, at in enumerate(np.split(found, ends)):
        is_named = at >= 0
        first_added[at[is_named]] = np.minimum(first_added[at[is_named]], number)
        is_left = ~is_named | (last_removed[at] <= number)
        is_whole = bool(is_left.all())
        left.append(tables[number] if is_whole else tables[number].filter(to_arrow(is_left)))
    return left, names.filter(to_arrow(first_removed <= first_added))


def _in_order(table: pa.Table) -> pa.Table:
    """Return map outputs in reading order; only merges and deletions make another one."""
    versions, orders = (to_numpy(_column(table, name)) for name in ("version", "order"))
    ascending = np.lexsort((orders, versions))
    if np.array_equal(ascending, np.arange(len(ascending))):
        return table
    return table.take(to_arrow(ascending))


def _to_table(outputs: Sequence[MapOutput]) -> pa.Table:
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
        "counters": _maps([output.counters for output in outputs]),
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
                        for name in _MASK_NUMBERS.values()
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


def _maps(counters: Sequence[Mapping[str, int]]) -> pa.MapArray:
    type_ = SCHEMA.field("counters").type
    entries = pa.StructArray.from_arrays(
        [
            text_array(name for named in counters for name in named),
            _integers(value for named in counters for value in named.values()),
        ],
        fields=[type_.key_field, type_.item_field],
    )
    return list_array(map(len, counters), entries, type_)


def _to_outputs(table: pa.Table) -> Iterator[MapOutput]:
    files = iter(_to_files(_files(table)))
    counts = _lengths(_column(table, "files")).tolist()
    rows = table.drop_columns(["files", "column_ids"]).to_pylist()
    for row, count, ids in zip(rows, counts, _tuples(_column(table, "column_ids")), strict=True):
        yield MapOutput(
            job_id=row["job_id"],
            map_task=row["map_task"],
            attempt=row["attempt"],
            files=tuple(islice(files, count)),
            counters=dict(row["counters"]),
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
        columns = [masked.field(name).to_pylist() for name in _MASK_NUMBERS]
        columns += [masked.field(name).to_pylist() for name in ("mask_path", "mask")]
        names = (*_MASK_NUMBERS.values(), "path", "frame")
        for number, *values in zip(at.tolist(), *columns, strict=True):
            masks[number] = Mask(**dict(zip(names, values, strict=True)))
    return masks


def _lengths(lists: pa.ListArray) -> Int64Array:
    return to_numpy(pc.list_value_length(lists)).astype(np.int64)


def encode_outputs(outputs: MapOutputs) -> bytes:
    """Encode map outputs; those of no version yet get the number of the entry by being read."""
    return encode_table(outputs.table)


def decode_outputs(data: bytes) -> MapOutputs:
    """Inverse of :func:`encode_outputs`; raises ValueError or an Arrow exception."""
    table = decode_table(data, SCHEMA)
    check_outputs(table)
    return MapOutputs.of_table(table)


def decode_each(parts: Sequence[bytes]) -> MapOutputs:
    """Decode as many map outputs as parts, each encoded alone by a process that is trusted.

    Raises as :func:`decode_outputs`. What holds for several together is not checked.
    """
    table, counts = decode_batches(parts, SCHEMA)
    if max(counts) > 1:
        msg = f"{max(counts)} map outputs, where one is expected"
        raise ValueError(msg)
    return MapOutputs.of_table(table)


def check_outputs(table: pa.Table) -> None:
    """Raise ValueError for a table that cannot be one of map outputs."""
    for problem in _problems(table):
        raise ValueError(problem)


def _problems(table: pa.Table) -> Iterator[str]:
    """Yield what is wrong with map outputs, if anything."""
    files = _files(table)
    columns = [_column(table, name) for name in _INTEGERS]
    names = (*_NUMBERS, *_MASK_NUMBERS)
    columns += [_column(table, "counters").items, *(files.field(name) for name in names)]
    statistics = files.field("statistics")
    columns += [statistics.flatten().field(name) for name in ("column", "null_count")]
    unsigned = [to_numpy(column).view(np.uint64) for column in columns]
    if any(values.max(initial=0) > MAX_INTEGER for values in unsigned):
        yield f"a number is not from 0 to {MAX_INTEGER}"
    if to_numpy(_column(table, "column_ids").values).min(initial=1) < 1:
        yield "an id of a column is not from 1 on"
    if not are_names(_column(table, "job_id")):
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
    if np.any(to_numpy(columns[-1]) > np.repeat(rows, _lengths(statistics))):
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
    keys = MapOutputs.of_table(table).keys
    if pc.count_distinct(keys).as_py() < len(keys):
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
        places = pc.binary_join_element_wise(at, places, _SLASH)
    if pc.count_distinct(places).as_py() < len(places):
        yield "a file is named twice"


NO_OUTPUTS = MapOutputs.of(())
NO_KEYS = no_rows(pa.string())


def check_keys(keys: pa.Array) -> pa.Array:
    """Return keys of map outputs, each once; else ValueError."""
    jobs = pc.replace_substring_regex(keys, r"/[0-9]{1,19}$", "")
    if not are_names(jobs) or pc.any(pc.equal(jobs, keys)) or len(keys.unique()) < len(keys):
        msg = "what is removed is not named by jobs and map tasks, each once"
        raise ValueError(msg)
    return keys


def key_of(output: MapOutput) -> str:
    """Return the key of one map output, see :attr:`MapOutputs.keys`."""
    return f"{output.job_id}/{output.map_task}"
