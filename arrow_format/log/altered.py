"""Shapes whose columns have other names, or of which some are gone; pure.

An alteration makes such a shape, and an earlier version is read with a later one's names so.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec.structs import replace

from arrow_format.arrays.column_ids import names_in, renamed
from arrow_format.arrays.spark_schema_evolution import rename_spark
from arrow_format.keys.partitioner import key_columns, partitioner_from_description
from arrow_format.keys.partitioner import renamed as renamed_partitioner

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from arrow_format.arrays.column_ids import Columns
    from arrow_format.log.state import VersionShape


def altered(
    shape: VersionShape, names: Mapping[str, str], dropped: Collection[str] = ()
) -> VersionShape:
    """Return a shape with new names of some columns, and without the dropped ones.

    None of these is a key, sort column or combined column.
    """
    schema, ids = shape.data_schema, shape.columns.by_path
    kept = [field for field in schema if field.name not in dropped]
    return replace(
        shape,
        data_schema=renamed(pa.schema(kept), names),
        column_ids=tuple(id_ for path, id_ in ids.items() if path[0] not in dropped),
        spark_schema=rename_spark(shape.spark_schema, names, dropped),
        partitioner=_renamed_description(shape.partitioner, names),
        sort_by=tuple((names.get(name, name), order) for name, order in shape.sort_by),
        combine={names.get(name, name): function for name, function in shape.combine.items()},
    )


def as_called_in(shape: VersionShape, later: Columns) -> VersionShape:
    """Return the shape of an earlier version with the names of a later one.

    Columns that the later one lacks are none of the rows any more.
    """
    if shape.columns == later:
        return shape
    names = names_in(shape.columns, later)
    of_later = later.by_name.values()
    dropped = [name for name, id_ in shape.columns.by_name.items() if id_ not in of_later]
    return altered(shape, names, dropped)


def _renamed_description(description: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    partitioner = partitioner_from_description(description)
    keys = key_columns(partitioner)
    if not keys or all(names.get(key, key) == key for key in keys):
        return description  # bounds are not decoded and encoded for nothing
    assert partitioner is not None
    called = renamed_partitioner(partitioner, {key: names.get(key, key) for key in keys})
    # JSON knows no tuples.
    return description if called is None else dict(json.loads(json.dumps(called.describe())))
