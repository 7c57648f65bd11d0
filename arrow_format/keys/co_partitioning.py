"""Whether shuffles are co-partitioned: equal keys are in subpartitions of equal number; pure.

They are if they assign rows by the same rule, which treats the values alike, to the same number of
subpartitions. A broadcast shuffle fits every other: each subpartition reads all its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.selection import take
from arrow_format.errors import OptionError
from arrow_format.keys.partitioner import (
    BroadcastPartitioner,
    HashPartitioner,
    Partitioner,
    RoundRobinPartitioner,
    key_columns,
)
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.keys.spark_hash import MAX_LONG_DIGITS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrow_format.model import MapOutput

_INSTEAD = (
    "write one of them as the other, or take to_spark() of both and let Spark bring their rows "
    "together"
)


class Partitioned(Protocol):
    """The properties compared; a :class:`~arrow_format.read.shuffle.Shuffle` has them."""

    @property
    def path(self) -> str:
        """Name in messages."""

    @property
    def num_subpartitions(self) -> int:
        """Number of subpartitions."""

    @property
    def partitioner(self) -> Partitioner | Mapping[str, Any]:
        """The partitioner, or the description of a user's own."""

    @property
    def schema(self) -> pa.Schema:
        """Stored columns."""

    @property
    def combine(self) -> Mapping[str, str]:
        """Functions of the columns that hold partial results, several per key."""

    @property
    def map_outputs(self) -> Sequence[MapOutput]:
        """Results of the map tasks."""


def is_broadcast(shuffle: Partitioned) -> bool:
    """Whether every subpartition reads all rows."""
    return isinstance(shuffle.partitioner, BroadcastPartitioner)


def has_broadcast_rows(shuffle: Partitioned) -> bool:
    """Whether some rows are read by every subpartition; a user's partitioner may broadcast some."""
    return is_broadcast(shuffle) or any(
        file.num_broadcast_rows for output in shuffle.map_outputs for file in output.files
    )


def partition_keys(shuffle: Partitioned) -> tuple[str, ...] | None:
    """Return the columns whose values decide the subpartition, in the partitioner's order.

    Empty for broadcast and round-robin; None for a user's own partitioner, whose are unknown.
    """
    return key_columns(shuffle.partitioner)


def check_co_partitioned(shuffles: Sequence[Partitioned]) -> None:
    """Raise OptionError, with two shuffles and their difference, unless all are co-partitioned.

    Names of key columns may differ, and so may types whose equal values are assigned alike:
    integers of up to 32 bits, decimals of one scale. Partitioners by column and users' own must
    have equal descriptions. A single shuffle is accepted, however it is partitioned.
    """
    first, *others = [shuffle for shuffle in shuffles if not is_broadcast(shuffle)] or shuffles[:1]
    for other in others:
        why = _what_differs(first, other)
        if why:
            msg = f"not co-partitioned: {why} (left: {first.path}, right: {other.path}); {_INSTEAD}"
            raise OptionError(msg)


def _what_differs(left: Partitioned, right: Partitioned) -> str | None:
    a, b = left.partitioner, right.partitioner
    kinds = [_kind(partitioner) for partitioner in (a, b)]
    if kinds[0] != kinds[1]:
        return f"the left is partitioned by {kinds[0]}, the right by {kinds[1]}"
    if isinstance(a, RoundRobinPartitioner):
        return "both assign rows round-robin, whatever their values"
    if left.num_subpartitions != right.num_subpartitions:
        return (
            f"the left has {left.num_subpartitions} subpartitions, the right "
            f"{right.num_subpartitions}"
        )
    if isinstance(a, HashPartitioner) and isinstance(b, HashPartitioner):
        return _keys_differ(left, right)
    if isinstance(a, RangePartitioner) and isinstance(b, RangePartitioner):
        why = _keys_differ(left, right)
        if why is None and _orders(a) != _orders(b):
            why = f"the left's keys go {', '.join(_orders(a))}, the right's {', '.join(_orders(b))}"
        if why is None and _unnamed(a) != _unnamed(b):
            why = f"the bounds differ: {a!r} and {b!r}"
        return why
    descriptions = [p.describe() if isinstance(p, Partitioner) else dict(p) for p in (a, b)]
    if descriptions[0] != descriptions[1]:
        return f"the left's partitioner is {descriptions[0]}, the right's {descriptions[1]}"
    return None


def _kind(partitioner: Partitioner | Mapping[str, Any]) -> str:
    description = partitioner.describe() if isinstance(partitioner, Partitioner) else partitioner
    return str(description["kind"])


def _keys_differ(left: Partitioned, right: Partitioned) -> str | None:
    keys = [partition_keys(shuffle) or () for shuffle in (left, right)]
    if len(keys[0]) != len(keys[1]):
        return f"the left's keys are {', '.join(keys[0])}, the right's {', '.join(keys[1])}"
    for pair in zip(*keys, strict=True):
        types = [
            shuffle.schema.field(key).type for shuffle, key in zip((left, right), pair, strict=True)
        ]
        if placed_as(types[0]) != placed_as(types[1]):
            return (
                f"the left's key {pair[0]!r} is {types[0]}, the right's {pair[1]!r} is {types[1]}, "
                "and equal values of these are placed differently"
            )
    return None


def placed_as(type_: pa.DataType) -> str:
    """Return the name of the kind of value a partitioner sees; equal values of it hash alike.

    Source: Spark's ``Murmur3Hash``: an int hashes differently from the same long, and a decimal by
    its unscaled value, as a long up to 18 digits and as bytes beyond.
    """
    if pt.is_int8(type_) or pt.is_int16(type_) or pt.is_int32(type_):
        return "int"
    if pt.is_decimal(type_):
        digits = "up to" if type_.precision <= MAX_LONG_DIGITS else "more than"
        return f"decimal of scale {type_.scale} and {digits} {MAX_LONG_DIGITS} digits"
    if pt.is_timestamp(type_):
        zone = "without" if type_.tz is None else "with"
        return f"timestamp[{type_.unit}] {zone} time zone"
    if pt.is_list(type_):
        return f"array of {placed_as(type_.value_type)}"
    if pt.is_struct(type_):
        return f"struct of ({', '.join(placed_as(field.type) for field in type_)})"
    return str(type_)


def _orders(partitioner: RangePartitioner) -> list[str]:
    return [order for _, order in partitioner.keys]


def _unnamed(partitioner: RangePartitioner) -> RangePartitioner:
    """Return the partitioner with numbered keys, and with one type for each kind of value."""
    names = [str(i) for i in range(len(partitioner.keys))]
    keys = list(zip(names, _orders(partitioner), strict=True))
    bounds = partitioner.bounds
    if bounds is None:
        return RangePartitioner(keys=keys)
    columns = [column.cast(_widest(column.type)) for column in bounds.columns]
    # Copied, so that garbage under nulls or around a slice makes no difference.
    rows = to_arrow(np.arange(bounds.num_rows))
    batch = take(pa.RecordBatch.from_arrays(columns, names=names), rows)
    return RangePartitioner(keys=keys, bounds=batch)


def _widest(type_: pa.DataType) -> pa.DataType:
    """Return the widest type of the same :func:`placed_as`."""
    if placed_as(type_) == "int":
        return pa.int32()
    if pt.is_decimal(type_):
        return pa.decimal128(
            MAX_LONG_DIGITS if type_.precision <= MAX_LONG_DIGITS else 38, type_.scale
        )
    if pt.is_timestamp(type_) and type_.tz is not None:
        return pa.timestamp(type_.unit, "UTC")
    return type_
