"""The map outputs of an entry, a checkpoint or a version: a table, decoded when it is needed.

A version may have a hundred thousand of them. Sums and selections work on columns; objects are made
of the map outputs that are asked for. :mod:`arrow_format.log.output_table` has the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import TYPE_CHECKING, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrow_format.arrays.buffers import (
    list_array,
    no_rows,
    text_array,
    to_arrow,
    to_numpy,
    to_scalar,
)
from arrow_format.arrays.selection import keep, take
from arrow_format.errors import CorruptShuffleError
from arrow_format.format.batch_frame import decode_batches, decode_table, encode_table
from arrow_format.format.single_values import from_binaries
from arrow_format.format.statistics import UNKNOWN, ColumnStatistics
from arrow_format.log.output_table import (
    SCHEMA,
    SLASH,
    are_names,
    column_in,
    files_in,
    keys_of,
    lengths_of,
    problems,
    to_outputs,
    to_table,
)
from arrow_format.model import MapOutput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from arrow_format.arrays.column_ids import Columns
    from arrow_format.model import Int64Array

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
        made = MapOutputs(lambda: to_table(objects))
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
        # Small tables are checked as one, which is far faster. If that fails, each is: a rule may
        # hold for each and not for all. What is not left of them is not used.
        each = [
            (part._check, table, rest)
            for part, table, rest in zip(parts, made, left, strict=True)
            if part._check is not None and part._table is None
        ]
        small = [rest for _, table, rest in each if len(table) < _MANY]
        are_sound = not small or not any(problems(_together(small)))
        for check, table, _ in each:
            if not are_sound or len(table) >= _MANY:
                check(table)
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
            self._objects = tuple(to_outputs(self.table))
        return self._objects

    @property
    def keys(self) -> pa.StringArray:
        """``<job>/<map task>`` of each, by which an entry names those that it removes."""
        return keys_of(self.table)

    @property
    def places(self) -> pa.StringArray:
        """``<job>/<map task>/<version>/<mask number>`` of each.

        A rollback puts it where another version was, and a deletion masks rows of it.
        """
        numbers = (self.versions, self.mask_numbers)
        columns = (to_arrow(each).cast(pa.string()) for each in numbers)
        return pc.binary_join_element_wise(self.keys, *columns, SLASH)

    @property
    def mask_numbers(self) -> Int64Array:
        """The entry that last masked rows of each; 0 where none did."""
        return self._largest(self.of_files("mask_number"))

    @property
    def has_masks(self) -> bool:
        """Whether rows of any file are masked."""
        return bool(np.any(self.of_files("mask_rows")))

    def apart(self) -> tuple[MapOutputs, MapOutputs]:
        """Return those that readers read, and tombstones: those of whose files no row is left."""
        if not self.has_masks:
            return self, NO_OUTPUTS
        left = self._largest(self.of_files("num_rows"))
        are_tombstones = (left == 0) & (lengths_of(column_in(self.table, "files")) > 0)
        if not are_tombstones.any():
            return self, NO_OUTPUTS
        rows, tombstones = (self._where(to_arrow(of)) for of in (~are_tombstones, are_tombstones))
        return rows, tombstones

    @property
    def jobs_of_masked(self) -> pa.Array:
        """The jobs that wrote those of which rows are masked."""
        jobs = column_in(self.table, "job_id")
        return jobs.filter(to_arrow(self.mask_numbers > 0)).unique()

    def _largest(self, of_files: Int64Array) -> Int64Array:
        """Return the largest of numbers of the files of each; 0 without files."""
        lists = column_in(self.table, "files")
        largest = np.zeros(len(lists), np.int64)
        np.maximum.at(largest, np.repeat(np.arange(len(lists)), lengths_of(lists)), of_files)
        return largest

    @property
    def versions(self) -> Int64Array:
        """The version that added the first rows of each."""
        return to_numpy(column_in(self.table, "version"))

    @property
    def last_versions(self) -> Int64Array:
        """The version that added the last rows of each."""
        return to_numpy(column_in(self.table, "last_version"))

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
        paths = files_in(self.table).field("mask_path")
        return pc.replace_substring_regex(paths, r"^.*/([^/]+)/[^/]+$", r"\1")

    @property
    def stored_rows(self) -> Int64Array:
        """Rows that each data file has, masked ones too, in reading order."""
        return self.of_files("num_rows") + self.of_files("mask_rows")

    def of_files(self, name: str) -> Int64Array:
        """Return a number of each file, such as ``data_bytes``, in reading order (int64)."""
        return to_numpy(files_in(self.table).field(name))

    @property
    def placed(self) -> NDArray[np.bool_]:
        """Whether the rows of each file are known to be where they belong, in reading order."""
        return to_numpy(files_in(self.table).field("placed"))

    @property
    def columns_with_statistics(self) -> set[int]:
        """Ids of columns of which something is known in any file."""
        return set(files_in(self.table).field("statistics").flatten().field("column").to_pylist())

    @property
    def columns_known_everywhere(self) -> set[int]:
        """Ids of columns of which something is known in every file."""
        columns = files_in(self.table).field("statistics").flatten().field("column")
        counted = columns.value_counts().to_pylist()
        return {of["values"] for of in counted if of["counts"] == self.num_files}

    def bounds(self) -> dict[int, pa.Array]:
        """Return the bounds of all files by id of the column, as they are stored; none twice."""
        entries = files_in(self.table).field("statistics").flatten()
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
            The statistics of a column are not of its type, or a file has two of one.
        """
        files = files_in(self.table)
        num_rows = self.stored_rows
        lists = files.field("statistics")
        file_of = np.repeat(np.arange(len(files)), lengths_of(lists))
        entries = lists.flatten()
        columns, ids = to_numpy(entries.field("column")), version.by_name
        statistics = {}
        for name in names:
            type_ = version.schema.field(name).type
            rows = np.flatnonzero(columns == ids[name])
            if not len(rows):
                statistics[name] = ColumnStatistics.unknown(type_, num_rows)
                continue
            if not np.diff(file_of[rows]).all():
                msg = f"the log has statistics of column {name!r} of a file twice"
                raise CorruptShuffleError(msg)
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
        return len(files_in(self.table))

    def num_files_beyond(self, column_ids: Sequence[int]) -> int:
        """Return how many files have columns with other ids than these."""
        lists = column_in(self.table, "column_ids")
        is_other = ~np.isin(to_numpy(lists.values), column_ids)
        of_output = np.repeat(np.arange(len(self)), lengths_of(lists))
        num_files = lengths_of(column_in(self.table, "files"))
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

    def divisor(self, *numbers: int) -> int:
        """Return the largest number of subpartitions that divides those of all files, and these."""
        return gcd(*numbers, *np.unique(self.of_files("num_subpartitions")).tolist())

    def without(self, keys: pa.Array) -> MapOutputs:
        """Return those whose keys are not among ``keys``."""
        if not len(keys) or not len(self):
            return self
        return self._where(pc.invert(pc.is_in(self.keys, keys)))

    def among(self, keys: pa.Array) -> MapOutputs:
        """Return those whose keys are among ``keys``."""
        return self._where(pc.is_in(self.keys, keys))

    def of_job(self, job_id: str | None) -> MapOutputs:
        """Return those of one job."""
        return self._where(pc.equal(column_in(self.table, "job_id"), job_id))

    def once(self) -> MapOutputs:
        """Return the first of each key, or of each mask of one."""
        masks = to_arrow(self.mask_numbers).cast(pa.string())
        names = pc.binary_join_element_wise(self.keys, masks, SLASH)
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
        are_own = to_numpy(pc.is_in(column_in(self.table, "job_id"), jobs))
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
        numbers = np.repeat(np.arange(len(self)), lengths_of(column_in(self.table, "files")))
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

    def with_columns(self, columns: Columns, unlogged: Sequence[str] = ()) -> MapOutputs:
        """Return them with ids, where all files have these columns.

        What is known of the values of columns that are ``unlogged`` is left out.
        """
        table, n = self.table, len(self)
        ids = to_arrow(np.tile(np.array(columns.ids, np.int32), n))
        of_outputs = list_array([len(columns.ids)] * n, ids, SCHEMA.field("column_ids").type)
        lists = files_in(table).field("statistics")
        entries, lengths = lists.flatten(), lengths_of(lists)
        by_position = np.array([*columns.by_name.values()], np.int64)
        of_entries = by_position[to_numpy(entries.field("column"))]
        left_out = [columns.by_name[name] for name in unlogged]
        is_left = ~np.isin(of_entries, left_out)
        file_of = np.repeat(np.arange(len(lengths)), lengths)[is_left]
        entries = keep(_replaced(entries, "column", to_arrow(of_entries)), to_arrow(is_left))
        lengths = np.bincount(file_of, minlength=len(lengths))
        files = _replaced(files_in(table), "statistics", list_array(lengths, entries, lists.type))
        of_files = list_array(
            lengths_of(column_in(table, "files")), files, SCHEMA.field("files").type
        )
        for name, array in (("column_ids", of_outputs), ("files", of_files)):
            at = SCHEMA.get_field_index(name)
            table = table.set_column(at, SCHEMA.field(at), array)
        return MapOutputs.of_table(table)

    def with_missing_columns(self, columns: Columns, unlogged: Sequence[str] = ()) -> MapOutputs:
        """Return them with ids where they have none, as :meth:`with_columns` does."""
        lacks = to_arrow(lengths_of(column_in(self.table, "column_ids")) == 0)
        lacking, others = (self._where(of) for of in (lacks, pc.invert(lacks)))
        if not len(lacking):
            return self
        return MapOutputs.concat([lacking.with_columns(columns, unlogged), others])

    def _with_files(self, columns: Mapping[str, Int64Array]) -> MapOutputs:
        table, files = self.table, files_in(self.table)
        if all(np.array_equal(self.of_files(name), values) for name, values in columns.items()):
            return self
        for name, values in columns.items():
            files = _replaced(files, name, to_arrow(values))
        at = SCHEMA.get_field_index("files")
        lists = list_array(lengths_of(column_in(table, "files")), files, SCHEMA.field(at).type)
        return MapOutputs.of_table(table.set_column(at, SCHEMA.field(at), lists))

    def _with(self, columns: Mapping[str, Int64Array]) -> MapOutputs:
        table = self.table
        for name, values in columns.items():
            at = SCHEMA.get_field_index(name)
            table = table.set_column(at, SCHEMA.field(at), to_arrow(values))
        return MapOutputs.of_table(table)


def _replaced(structs: pa.StructArray, name: str, values: pa.Array) -> pa.StructArray:
    """Return structs without nulls with other values of a field."""
    fields = list(structs.type)
    arrays = [values if f.name == name else structs.field(f.name) for f in fields]
    return pa.StructArray.from_arrays(arrays, fields=fields)


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
    versions, orders = (to_numpy(column_in(table, name)) for name in ("version", "order"))
    ascending = np.lexsort((orders, versions))
    if np.array_equal(ascending, np.arange(len(ascending))):
        return table
    return table.take(to_arrow(ascending))


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
    if not parts:
        return NO_OUTPUTS
    table, counts = decode_batches(parts, SCHEMA)
    if max(counts) > 1:
        msg = f"{max(counts)} map outputs, where one is expected"
        raise ValueError(msg)
    return MapOutputs.of_table(table)


def check_outputs(table: pa.Table) -> None:
    """Raise ValueError for a table that cannot be one of map outputs."""
    for problem in problems(table):
        raise ValueError(problem)


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
