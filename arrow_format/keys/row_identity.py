"""Which columns can identify a row. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from arrow_format.errors import OptionError, SchemaError
from arrow_format.keys.partitioner import HashPartitioner, as_names
from arrow_format.keys.sort_keys import ORDERS, key_fields

if TYPE_CHECKING:
    import pyarrow as pa

    from arrow_format.keys.partitioner import Partitioner


_KEYS: Mapping[str, Callable[[Mapping[str, Any]], Sequence[str]]] = {
    "hash": lambda described: described["keys"],
    "range": lambda described: [name for name, _ in described["keys"]],
    "column": lambda described: [described["column"]],
}
"""Columns that decide the subpartition, by the kind of a partitioner that is described. The bounds
of ranges, which are dear to decode, do not matter."""


def names_of(unique: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns that are given to identify a row, empty for none.

    Raises OptionError where these are no names, or one is given twice.
    """
    return () if unique is None or unique in ((), []) else as_names(unique, "unique")


def check_unique(
    schema: pa.Schema,
    unique: str | Sequence[str] | None,
    partitioner: Partitioner | Mapping[str, Any],
    combine: Mapping[str, str],
    padded: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the columns that identify a row, empty for none.

    Rows of equal values in them have to meet in one subpartition: so the keys of the partitioner
    are among them. ``padded`` are columns whose texts Spark pads. Raises OptionError where the keys
    are not, where one is given twice or rows are combined, and SchemaError where one is missing,
    padded or of a type that is no key.
    """
    names = names_of(unique)
    if not names:
        return names
    given = f"unique={list(names)}"
    described = partitioner if isinstance(partitioner, Mapping) else partitioner.describe()
    keys_of = _KEYS.get(described["kind"])
    if keys_of is None:
        msg = (
            f"{given}: rows of one key have to meet in a subpartition, and a partitioner of kind "
            f"{described['kind']!r} has no keys; give keys=, or a RangePartitioner"
        )
        raise OptionError(msg)
    keys = keys_of(described)
    missing = [name for name in keys if name not in names]
    if missing:
        msg = (
            f"{given}: the shuffle is partitioned by {missing[0]!r}, so that rows that are equal "
            f"in {', '.join(names)} alone may lie in several subpartitions; add it to unique, or "
            "partition by fewer columns"
        )
        raise OptionError(msg)
    if combine:
        msg = f"{given}: rows of equal keys are combined, and nothing else identifies one"
        raise OptionError(msg)
    HashPartitioner(names).check(schema)
    for name in names:
        if name not in padded:
            continue
        msg = (
            f"{given}: column {name!r} is CHAR, whose texts Spark pads with spaces and "
            "others do not, so that equal ones have other bytes; store it as STRING"
        )
        raise SchemaError(msg)
    return names


def check_sequence(
    schema: pa.Schema,
    sequence_by: str | None,
    unique: Sequence[str],
    collated: Collection[str] = (),
) -> str | None:
    """Return the column whose largest value is the newest change of a row; None for none.

    ``unique`` are the columns that identify a row, ``collated`` those with a collation. Raises
    OptionError where nothing does, or it is one of them or no name, and SchemaError where it is
    missing, collated, or its values have no order.
    """
    if sequence_by is None:
        return None
    given = f"sequence_by={sequence_by!r}"
    if not isinstance(sequence_by, str):
        msg = f"{given}: expected the name of one column"
        raise OptionError(msg)
    if not unique:
        msg = f"{given}: nothing identifies a row, so that none has a newest change; give unique="
        raise OptionError(msg)
    if sequence_by in unique:
        msg = f"{given}: the column is one of those that identify a row, which no change changes"
        raise OptionError(msg)
    key_fields(schema, ((sequence_by, ORDERS[0]),), "sequence_by")
    if sequence_by in collated:
        msg = f"{given}: the column has a collation, and bytes are compared here"
        raise SchemaError(msg)
    return sequence_by
