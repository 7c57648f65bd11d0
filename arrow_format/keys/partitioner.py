"""Partitioners, which decide the subpartition of a row.

A partitioner is a small immutable value that can be written as JSON; :meth:`Partitioner.bind` makes
the function that a map task calls on each batch. Any object with these three methods is one:

.. code-block:: python

    @dataclass(frozen=True)
    class ByWeekday:
        column: str

        def describe(self):
            return {"kind": "by_weekday", "column": self.column}

        def check(self, schema):
            schema.field(self.column)

        def bind(self, schema, num_subpartitions, map_task):
            return lambda batch: pc.day_of_week(batch[self.column]).to_numpy() % num_subpartitions
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrow_format.arrays.buffers import to_numpy
from arrow_format.arrays.stored_types import missing_column
from arrow_format.errors import CorruptShuffleError, OptionError, SchemaError
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.keys.spark_hash import check_hashable, hash_columns, subpartition_ids
from arrow_format.model import BROADCAST
from arrow_format.options import as_several

Assign = Callable[[pa.RecordBatch], npt.NDArray[np.signedinteger[Any]]]
"""Returns the subpartition of each row of a batch, in ``[0, num_subpartitions)``, or
:data:`~arrow_format.model.BROADCAST` for a row that all of them read."""


@runtime_checkable
class Partitioner(Protocol):
    """Decides the subpartition of every row.

    .. code-block:: python

        @dataclass(frozen=True)
        class ByLastDigit:
            key: str

            def describe(self):
                return {"kind": "last_digit", "key": self.key}

            def check(self, schema):
                if self.key not in schema.names:
                    raise arrow_shuffle.errors.SchemaError(f"there is no column {self.key}")

            def bind(self, schema, num_subpartitions, map_task):
                return lambda batch: batch[self.key].to_numpy() % 10 % num_subpartitions

        digits = ByLastDigit("customer")
        arrow_shuffle.write_shuffle(rows, "/data/digits", partitioner=digits, num_subpartitions=10)
    """

    def describe(self) -> dict[str, Any]:
        """Return the value as JSON, with its ``kind``; equal values partition equally."""

    def check(self, schema: pa.Schema) -> None:
        """Raise SchemaError if the data schema lacks what this partitioner needs."""

    def bind(self, schema: pa.Schema, num_subpartitions: int, map_task: int) -> Assign:
        """Return the function that assigns the rows of one map task, batch by batch.

        It must return the same for the same rows when the task is retried.
        """


def column_index(schema: pa.Schema, name: str) -> int:
    """Return the position of a key column; SchemaError if it is missing."""
    index = schema.get_field_index(name)
    if index < 0:
        raise SchemaError(missing_column(name, schema.names, "key column"))
    return int(index)


def as_names(value: str | Sequence[str], what: str = "keys") -> tuple[str, ...]:
    """Return one name or several as a tuple; OptionError if empty, not text, or one twice."""
    names = as_several(value)
    if not names or not all(isinstance(name, str) and name for name in names):
        msg = f"{what}={value!r}: expected one column name or several"
        raise OptionError(msg)
    if len(set(names)) < len(names):
        msg = f"{what}={value!r}: a column is named twice"
        raise OptionError(msg)
    return names


def key_names(keys: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return key columns as :func:`as_names` does; none for None or an empty sequence."""
    if keys is None or (not isinstance(keys, str) and hasattr(keys, "__len__") and not len(keys)):
        return ()
    return as_names(keys)


@dataclass(frozen=True, init=False)
class HashPartitioner:
    """``pmod(hash(keys), num_subpartitions)`` with Spark's Murmur3 hash, seed 42.

    .. code-block:: python

        hashed = arrow_shuffle.HashPartitioner("customer")  # as keys="customer"
        arrow_shuffle.write_shuffle(rows, "/data/h", partitioner=hashed, num_subpartitions=8)

    Rows get the subpartition that ``df.repartition(num_subpartitions, *keys)`` gives them.

    Source: Spark, ``HashPartitioning`` and ``Murmur3Hash``.

    Parameters
    ----------
    keys
        Names of the columns to hash, in order.
    """

    keys: tuple[str, ...]

    def __init__(self, *keys: str | Sequence[str]) -> None:
        names = keys[0] if len(keys) == 1 else keys
        object.__setattr__(self, "keys", as_names(names))  # type: ignore[arg-type]

    def describe(self) -> dict[str, Any]:
        """Return the value as JSON."""
        return {"kind": "hash", "keys": list(self.keys), "seed": 42}

    def check(self, schema: pa.Schema) -> None:
        """Raise SchemaError if a key is missing or Spark has no hash of its type."""
        for key in self.keys:
            check_hashable(schema.field(column_index(schema, key)))

    def bind(self, schema: pa.Schema, num_subpartitions: int, map_task: int) -> Assign:
        """Return the function that hashes the key columns of a batch."""
        del map_task
        indices = [column_index(schema, key) for key in self.keys]

        def assign(batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
            hashes = hash_columns([batch.column(i) for i in indices])
            return subpartition_ids(hashes, num_subpartitions)

        return assign


@dataclass(frozen=True)
class RoundRobinPartitioner:
    """Rows round-robin: subpartitions differ by at most one row per map task.

    .. code-block:: python

        in_turn = arrow_shuffle.RoundRobinPartitioner()
        arrow_shuffle.write_shuffle(rows, "/data/even", partitioner=in_turn, num_subpartitions=8)

    Map tasks start at different subpartitions. A retried task assigns the same rows alike only if
    they come in the same order.

    Source: Flink, ``RebalancePartitioner``.
    """

    def describe(self) -> dict[str, Any]:
        """Return the value as JSON."""
        return {"kind": "roundrobin"}

    def check(self, schema: pa.Schema) -> None:
        """Accept every schema."""

    def bind(self, schema: pa.Schema, num_subpartitions: int, map_task: int) -> Assign:
        """Return a function that continues where the last batch ended."""
        del schema
        # A prime stride spreads the starts of neighbouring tasks.
        position = map_task * 7919 % num_subpartitions

        def assign(batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
            nonlocal position
            rows = np.arange(position, position + batch.num_rows, dtype=np.int64)
            position = (position + batch.num_rows) % num_subpartitions
            return (rows % num_subpartitions).astype(np.int32)

        return assign


@dataclass(frozen=True)
class ColumnPartitioner:
    """The subpartition of each row is in an integer column, which is stored too.

    .. code-block:: python

        by_part = arrow_shuffle.ColumnPartitioner("part")  # an integer from 0 to 3
        arrow_shuffle.write_shuffle(rows, "/data/parts", partitioner=by_part, num_subpartitions=4)

    Parameters
    ----------
    column
        Name of that column.
    """

    column: str

    def __post_init__(self) -> None:
        """Check that ``column`` is a name."""
        as_names(self.column, "column")

    def describe(self) -> dict[str, Any]:
        """Return the value as JSON."""
        return {"kind": "column", "column": self.column}

    def check(self, schema: pa.Schema) -> None:
        """Raise SchemaError if the column is missing or not an integer."""
        field = schema.field(column_index(schema, self.column))
        if not pa.types.is_integer(field.type):
            msg = (
                f"column {self.column!r} is {field.type}; a ColumnPartitioner needs an integer "
                "column with the subpartition of each row"
            )
            raise SchemaError(msg)

    def bind(self, schema: pa.Schema, num_subpartitions: int, map_task: int) -> Assign:
        """Return the function that reads and checks the column."""
        del map_task
        index = column_index(schema, self.column)

        def assign(batch: pa.RecordBatch) -> npt.NDArray[np.signedinteger[Any]]:
            column = batch.column(index)
            if column.null_count:
                msg = f"column {self.column!r} has nulls; every row needs a subpartition"
                raise SchemaError(msg)
            ids = to_numpy(column)
            if len(ids) and not (ids.min() >= 0 and ids.max() < num_subpartitions):
                bad = ids[(ids < 0) | (ids >= num_subpartitions)][0]
                msg = (
                    f"column {self.column!r} holds subpartition {bad}; there are "
                    f"{num_subpartitions}, so it must be from 0 to {num_subpartitions - 1}"
                )
                raise SchemaError(msg)
            checked: npt.NDArray[np.int32] = ids.astype(np.int32)
            return checked

        return assign


@dataclass(frozen=True)
class BroadcastPartitioner:
    """Every row to every subpartition; rows are stored once.

    .. code-block:: python

        to_all = arrow_shuffle.BroadcastPartitioner()
        arrow_shuffle.write_shuffle(rows, "/data/rates", partitioner=to_all, num_subpartitions=4)

    Source: Flink, ``BroadcastPartitioner``.
    """

    def describe(self) -> dict[str, Any]:
        """Return the value as JSON."""
        return {"kind": "broadcast"}

    def check(self, schema: pa.Schema) -> None:
        """Accept every schema."""

    def bind(self, schema: pa.Schema, num_subpartitions: int, map_task: int) -> Assign:
        """Return the function that returns BROADCAST for each row."""
        del schema, num_subpartitions, map_task
        return lambda batch: np.full(batch.num_rows, BROADCAST, np.int32)


def choose_partitioner(
    keys: str | Sequence[str] | None, partitioner: Partitioner | None
) -> Partitioner:
    """Return ``partitioner``, or a hash partitioner of ``keys``; OptionError unless given one.

    What is returned is :func:`as_described`, which raises OptionError too.
    """
    if (keys is None) == (partitioner is None):
        given = "neither" if keys is None else "both"
        msg = f"exactly one of keys and partitioner must be given, found {given}"
        raise OptionError(msg)
    if keys is not None:
        return HashPartitioner(keys)
    if not isinstance(partitioner, Partitioner) or isinstance(partitioner, type):
        msg = (
            f"partitioner={partitioner!r}: expected HashPartitioner, RangePartitioner, "
            "RoundRobinPartitioner, BroadcastPartitioner, ColumnPartitioner or an object with "
            "their methods"
        )
        raise OptionError(msg)
    return as_described(partitioner)


_KINDS: dict[str, Any] = {
    "hash": HashPartitioner,
    "roundrobin": RoundRobinPartitioner,
    "column": ColumnPartitioner,
    "range": RangePartitioner,
    "broadcast": BroadcastPartitioner,
}


def key_columns(partitioner: Partitioner | Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """Return the columns whose values decide the subpartition, in the partitioner's order.

    Empty for broadcast and round-robin; None for a user's own partitioner, whose are unknown.
    """
    if isinstance(partitioner, HashPartitioner):
        return partitioner.keys
    if isinstance(partitioner, RangePartitioner):
        return tuple(name for name, _ in partitioner.keys)
    if isinstance(partitioner, ColumnPartitioner):
        return (partitioner.column,)
    if isinstance(partitioner, BroadcastPartitioner | RoundRobinPartitioner):
        return ()
    return None


def renamed(partitioner: Partitioner, names: Mapping[str, str]) -> Partitioner | None:
    """Return a partitioner of columns by their new names; None for a user's own.

    ``names`` has the new name of each of :func:`key_columns`.
    """
    if isinstance(partitioner, HashPartitioner):
        return HashPartitioner([names[key] for key in partitioner.keys])
    if isinstance(partitioner, RangePartitioner):
        keys = [(names[name], order) for name, order in partitioner.keys]
        bounds = partitioner.bounds
        if bounds is not None:
            new = [names[name] for name in bounds.schema.names]
            bounds = pa.RecordBatch.from_arrays(bounds.columns, names=new)
        return RangePartitioner(keys=keys, bounds=bounds)
    if isinstance(partitioner, ColumnPartitioner):
        return ColumnPartitioner(names[partitioner.column])
    return None if key_columns(partitioner) is None else partitioner


def can_be_asked(partitioner: object) -> bool:
    """Whether the values of a row alone decide its subpartition, by a rule that is known here.

    That is so by the hash or ranges of keys, and by a column. The code of a user's own partitioner
    is not in the log, and the answer of round robin depends on the rows before.
    """
    return type(partitioner) in (HashPartitioner, RangePartitioner, ColumnPartitioner)


@dataclass(frozen=True)
class _Own:
    """A user's own partitioner of a class that is made of one of these: none takes it for that."""

    partitioner: Partitioner

    def describe(self) -> dict[str, Any]:
        return self.partitioner.describe()

    def check(self, schema: pa.Schema) -> None:
        self.partitioner.check(schema)

    def bind(self, schema: pa.Schema, num_subpartitions: int, map_task: int) -> Assign:
        return self.partitioner.bind(schema, num_subpartitions, map_task)

    def __repr__(self) -> str:
        return repr(self.partitioner)


def as_described(partitioner: Partitioner) -> Partitioner:
    """Return the partitioner that the log will describe: what it says is what places the rows.

    An instance of a subclass of one of these is that one where the subclass changes nothing, and a
    user's own where it describes itself. Raises OptionError where a class describes itself as one
    of these and is another, or the description is none that readers of the log can parse.
    """
    given = type(partitioner)
    if given in _KINDS.values():
        return partitioner
    described = _checked_description(partitioner)
    kind = described["kind"]
    exact = _KINDS.get(kind)
    if exact is None:
        return _Own(partitioner) if isinstance(partitioner, (*_KINDS.values(),)) else partitioner
    if not isinstance(partitioner, exact):
        msg = f"partitioner {partitioner!r}: kind {kind!r} is taken; choose another"
        raise OptionError(msg)
    before = given.__mro__[: given.__mro__.index(exact)]
    known = {*exact.__dataclass_fields__, *(name for name in vars(exact) if name[0] != "_")}
    changed = known & {name for each in before for name in vars(each)}
    if changed:
        msg = (
            f"partitioner {partitioner!r}: {given.__name__} is a {exact.__name__} with its own "
            f"{', '.join(sorted(changed))}, and describes itself as {exact.__name__}: readers "
            "would look for rows where that one puts them. Let its describe() return a kind of "
            f"its own, such as {given.__name__.lower()!r}, and all that decides where a row goes"
        )
        raise OptionError(msg)
    exactly = partitioner_from_description(described)
    assert exactly is not None  # the kind is known
    return exactly


class _Described(msgspec.Struct):
    kind: str


def _checked_description(partitioner: Partitioner) -> dict[str, Any]:
    """Return a description as the log gives it back; OptionError unless that can be parsed."""
    try:
        fields = msgspec.convert(partitioner.describe(), dict[str, Any])
        text = json.dumps(fields, allow_nan=False)
        msgspec.json.decode(text, type=_Described)
    except (TypeError, ValueError, RecursionError) as error:
        msg = (
            f"partitioner {partitioner!r}: describe() must return JSON with a 'kind' that is text, "
            f"and finite numbers ({type(error).__name__}: {error})"
        )
        raise OptionError(msg) from error
    return dict(json.loads(text))


def partitioner_from_description(description: Mapping[str, Any]) -> Partitioner | None:
    """Parse a description from the log; None if it is a user's own partitioner.

    Raises CorruptShuffleError if it has a kind of this module, but is malformed.
    """
    kind = description.get("kind")
    try:
        if kind == "hash":
            return HashPartitioner(list(description["keys"]))
        if kind == "column":
            return ColumnPartitioner(msgspec.convert(description["column"], str))
        if kind == "range":
            return RangePartitioner.from_description(description)
    except (
        KeyError, TypeError, ValueError, OSError, pa.ArrowException, OptionError, SchemaError,
    ) as error:  # fmt: skip
        msg = (
            f"the log describes a partitioner of kind {kind!r} that is malformed "
            f"({type(error).__name__}: {error}). Restore the log entry from a copy"
        )
        raise CorruptShuffleError(msg) from error
    if kind == "roundrobin":
        return RoundRobinPartitioner()
    return BroadcastPartitioner() if kind == "broadcast" else None


def check_described(description: Mapping[str, Any], schema: pa.Schema) -> None:
    """Raise SchemaError or CorruptShuffleError for a description that no rows of a schema can have.

    Bounds of ranges are not decoded: there may be a million.
    """
    partitioner = partitioner_from_description({**description, "bounds": None})
    if isinstance(partitioner, RangePartitioner):
        for name, _ in partitioner.keys:
            column_index(schema, name)
    elif partitioner is not None:
        partitioner.check(schema)
