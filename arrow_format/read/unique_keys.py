"""The columns that identify the rows of a version, and what is wrong with them, if anything."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.radix_sort import sort_permutation
from arrow_format.arrays.selection import keep
from arrow_format.keys.key_groups import key_groups
from arrow_format.keys.key_numbers import key_numbers
from arrow_format.keys.last_positions import last_by
from arrow_format.keys.sort_keys import ORDERS
from arrow_format.keys.spark_order import key_codes
from arrow_format.read.key_search import FoundRows, keys_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from arrow_format.log.entry import LogEntry
    from arrow_format.model import Int32Array, Int64Array, MapOutput
    from arrow_format.read.index_cache import IndexCache
    from arrow_format.read.partitioned_file import PartitionedFileReader

MOST_KEYS = 1 << 20
"""Rows whose keys are in memory together, of whole subpartitions."""


def groups_of(num_rows: Int64Array) -> list[NDArray[np.bool_]]:
    """Return which subpartitions are read together, by the rows of each: those with rows."""
    before = np.cumsum(num_rows) - num_rows
    group = np.where(num_rows > 0, before // MOST_KEYS, -1)
    return [group == number for number in np.unique(group[group >= 0])]


def unique_keys(
    files: Iterable[PartitionedFileReader],
    version: LogEntry,
    wanted: NDArray[np.bool_],
    names: Sequence[str] | None = None,
) -> tuple[pa.RecordBatch, Int32Array]:
    """Return columns of each row of wanted subpartitions, and its subpartition.

    They are those that identify a row when ``names`` is None. ``version`` has the schema to read
    them with. Raises CorruptShuffleError where a chunk cannot be read.
    """
    names = version.shape.unique_names if names is None else names
    fields = [version.data_schema.field(name) for name in names]
    parts = [*keys_in(files, [field.name for field in fields], version.data_schema, wanted)]
    columns = [
        pa.concat_arrays([of[i] for _, of in parts] or [pa.array([], field.type)])
        for i, field in enumerate(fields)
    ]
    ids = np.concatenate([np.empty(0, np.int32), *(ids for ids, _ in parts)])
    return pa.RecordBatch.from_arrays(columns, [field.name for field in fields]), ids


def not_newest(rows: Sequence[FoundRows], num_keys: int) -> Iterator[tuple[int, int, Int64Array]]:
    """Yield places of rows that are not the newest of their key: file, region, ascending places.

    The first ``num_keys`` columns are the key; the newest row has the largest value of the column
    behind them, and of equal ones it is the last. A null is less than all values.
    """
    if not rows:
        return
    columns = [pa.concat_arrays([each.columns[i] for each in rows]) for i in range(num_keys + 1)]
    is_older = np.ones(len(columns[0]), np.bool_)
    is_older[last_by(columns[:num_keys], columns[num_keys:], [ORDERS[0]])] = False
    first = 0
    for each in rows:
        older = is_older[first : first + len(each.places)]
        first += len(each.places)
        if older.any():
            yield each.order, each.region, each.places[older]


def older_than(
    rows: Sequence[FoundRows], others: Sequence[FoundRows], num_keys: int
) -> tuple[list[FoundRows], list[FoundRows]]:
    """Return those rows that are not older than the newest other one of their key, and the rest.

    Columns are as for :func:`not_newest`. One with an equal sequence is not older.
    """
    if not rows or not others:
        return [*rows], []
    every = [*others, *rows]
    columns = [pa.concat_arrays([each.columns[i] for each in every]) for i in range(num_keys + 1)]
    groups, last = key_groups(columns[:num_keys])
    order = sort_permutation(key_codes(columns[num_keys:], [ORDERS[0]]))
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    first = sum(len(each.places) for each in others)
    newest = np.full(len(last), -1, np.int64)
    np.maximum.at(newest, groups[:first], places[:first])
    is_older = places < newest[groups]
    kept, older = [], []
    for each in rows:
        of_chunk = is_older[first : first + len(each.places)]
        first += len(each.places)
        kept.append(_some(each, ~of_chunk) if of_chunk.any() else each)
        if of_chunk.any():
            older.append(_some(each, of_chunk))
    return kept, older


def _some(rows: FoundRows, mask: NDArray[np.bool_]) -> FoundRows:
    columns = [keep(column, to_arrow(mask)) for column in rows.columns]
    return replace(rows, places=rows.places[mask], columns=columns)


def problem_of_rows(
    outputs: Sequence[MapOutput], version: LogEntry, indexes: IndexCache, num_rows: Int64Array
) -> str | None:
    """Return why columns do not identify the rows of map outputs; None where they do.

    ``version`` says which columns, and ``num_rows`` has the rows of each subpartition: some
    subpartitions are compared at a time. Raises as :func:`unique_keys`.
    """
    for wanted in groups_of(num_rows):
        files = [(output, file) for output in outputs for file in output.files]
        keys, _ = unique_keys(indexes.indexes_of(version, files), version, wanted)
        problem = problem_of_keys(keys)
        if problem is not None:
            return problem
    return None


def problem_of_nulls(keys: pa.RecordBatch) -> str | None:
    """Return why keys identify no row; None where none is null."""
    for name in keys.schema.names:
        if nulls := keys[name].null_count:
            return (
                f"column {name!r} is null in {nulls:,} of the rows, and "
                f"{', '.join(keys.schema.names)} identify a row: no such column may be null"
            )
    return None


def problem_of_keys(keys: pa.RecordBatch) -> str | None:
    """Return why keys do not identify their rows; None where each is there once, without nulls."""
    named = ", ".join(keys.schema.names)
    if problem := problem_of_nulls(keys):
        return problem
    numbers, _ = key_numbers(keys.columns)
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    twice = order[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return None
    return (
        f"{len(twice):,} of the rows have the key of another one, such as "
        f"{text_of_key(keys, int(twice.min()))}, and {named} identify a row"
    )


def text_of_key(keys: pa.RecordBatch, row: int) -> str:
    """Return a key for a message."""
    return str({name: keys[name][row].as_py() for name in keys.schema.names})
