"""Results whose rows stay in the subpartitions they came from: no exchange, but a check.

The check is the partitioner itself: it takes a few nanoseconds per row, where writing one takes a
hundred, and nothing less tells for certain that a user's function left the keys alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pyarrow import types as pt

from arrow_format.arrays.conversion import key_text
from arrow_format.errors import OptionError, SchemaError
from arrow_format.keys.co_partitioning import partition_keys, placed_as
from arrow_format.keys.partitioner import HashPartitioner, key_columns, renamed
from arrow_format.read.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from arrow_format.keys.co_partitioning import Partitioned
    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.model import Int32Array

    Origin = Sequence[int] | Int32Array
    """Subpartitions that the rows of a result were made of, ascending; an array has that of each
    row."""
    Result = tuple[Origin, pa.RecordBatch]


_OF_PANDAS = (
    ". If the key was NaN: pandas returns NaN as a null. Let the function take and return a "
    "pyarrow.Table, which keeps it, or leave these rows out with filter="
)


@dataclass(frozen=True)
class Placement:
    """How the rows of a result are placed in subpartitions."""

    partitioner: Partitioner
    num_subpartitions: int
    stays: bool
    """Whether each row must belong to a subpartition that it came from."""

    def rows(
        self, results: Iterable[Result], schema: pa.Schema, where: str
    ) -> Generator[pa.RecordBatch | Rows]:
        """Yield results as a map task takes them: rows that stay know their subpartitions.

        ``schema`` is the data schema of the results, ``where`` names the inputs. Raises SchemaError
        for a row that belongs elsewhere, with its keys and both subpartitions.
        """
        if not self.stays:
            for _, batch in results:
                yield batch
            return
        assign = self.partitioner.bind(schema, self.num_subpartitions, 0)
        for origin, batch in results:
            ids = np.asarray(assign(batch), np.int32)
            elsewhere = np.flatnonzero(~_among(ids, origin))
            if len(elsewhere):
                raise SchemaError(self._misplaced(batch, ids, int(elsewhere[0]), origin, where))
            yield Rows(batch, ids)

    def _misplaced(
        self,
        batch: pa.RecordBatch,
        ids: Int32Array,
        row: int,
        origin: Origin,
        where: str,
    ) -> str:
        names = key_columns(self.partitioner) or ()
        keys = key_text(batch, names, row)
        numbers = origin[row : row + 1] if isinstance(origin, np.ndarray) else origin
        came_from = f"subpartition {numbers[0]}"
        if len(numbers) > 1:
            came_from = f"subpartitions {numbers[0]} to {numbers[-1]}"
        is_null = any(
            pt.is_floating(batch[name].type) and not batch[name][row].is_valid for name in names
        )
        return (
            f"a row of the result with {keys} came from {came_from} of {where}, and belongs to "
            f"subpartition {ids[row]} of {self.num_subpartitions}: rows that stay where they are "
            f"must have the key with which they were read. Keep {', '.join(names)} as it is, or "
            "partition the result: by other columns with keys=..., or by this one with "
            "write_shuffle(result.to_spark(), path, keys=...)" + _OF_PANDAS * is_null
        )


def _among(ids: Int32Array, origin: Origin) -> npt.NDArray[np.bool_]:
    if isinstance(origin, np.ndarray):
        return np.equal(ids, origin)
    if isinstance(origin, range):
        return (ids >= origin.start) & (ids < origin.stop)
    return np.isin(ids, np.asarray(origin))


def plan_placement(
    source: Partitioned,
    schema: pa.Schema,
    names: Callable[[str], str | None] = str,
    *,
    keys: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
) -> Placement:
    """Return how results are placed: where they came from, or by a partitioner of ``keys``.

    Parameters
    ----------
    source
        The shuffle in whose subpartitions the results were made.
    schema
        Data schema of the results.
    names
        Returns the name in the results of a column of ``source``, or None if its values are not
        those of ``source`` in every row.
    keys
        Columns of the results to hash; the partition keys of ``source`` when None. Where they are
        those, and the number of subpartitions too, rows stay.
    num_subpartitions
        That of ``source`` when None.

    Raises
    ------
    OptionError
        There are no ``keys``, and the results do not have the partition keys of ``source``.
    """
    n = source.num_subpartitions if num_subpartitions is None else num_subpartitions
    kept, why_not = _kept(source, schema, names)
    if keys is None:
        if kept is None:
            msg = f"keys=None: {why_not}; give keys=..., the columns to partition the result by"
            raise OptionError(msg)
        return Placement(kept, n, stays=n == source.num_subpartitions)
    partitioner = HashPartitioner(keys)
    return Placement(partitioner, n, stays=kept == partitioner and n == source.num_subpartitions)


def _kept(
    source: Partitioned, schema: pa.Schema, names: Callable[[str], str | None]
) -> tuple[Partitioner | None, str]:
    """Return the partitioner of ``source`` for the results; or None, and why."""
    columns = partition_keys(source)
    if not columns:
        description = source.partitioner
        kind = "of your own" if columns is None else description.describe()["kind"]  # type: ignore[union-attr]
        return None, (
            f"the partitioner of {source.path} ({kind}) does not say by which columns the result "
            "is partitioned"
        )
    found: Mapping[str, str | None] = {column: names(column) for column in columns}
    for column, name in found.items():
        if name is None:
            return None, (
                f"not every row of the result has the {column!r} by which {source.path} is "
                "partitioned"
            )
        if name not in schema.names:
            return None, f"the result lacks {name!r}, by which {source.path} is partitioned"
        types = source.schema.field(column).type, schema.field(name).type
        if placed_as(types[0]) != placed_as(types[1]):
            return None, (
                f"{name!r} of the result is {types[1]}, {column!r} of {source.path} is {types[0]}, "
                "and equal values of these are placed differently"
            )
    return renamed(source.partitioner, found), ""  # type: ignore[arg-type]
