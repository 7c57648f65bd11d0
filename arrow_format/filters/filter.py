"""A filter bound to the schema of a shuffle: which rows pass, and what need not be read for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from arrow_format.errors import OptionError
from arrow_format.filters.binding import SqlRules, bind
from arrow_format.filters.expression import (
    EXPRESSIONS,
    And,
    Expression,
    all_of,
    as_sql,
    column_names,
)
from arrow_format.filters.from_arrow import from_arrow
from arrow_format.filters.from_sql import from_sql
from arrow_format.filters.rows import rows_that_pass, truth_of
from arrow_format.filters.spark_rules import SPARK_DEFAULTS, SparkSettings, refused_columns
from arrow_format.filters.spark_text import zone_of
from arrow_format.filters.subpartitions import keys_given, subpartitions_of
from arrow_format.filters.units import possible
from arrow_format.keys.key_set import KeySet
from arrow_format.keys.partitioner import HashPartitioner

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from arrow_format.format.statistics import ColumnStatistics
    from arrow_format.model import Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """A condition on rows, bound by :func:`bind_filter`; ``str`` shows it as SQL.

    Values are compared as Spark compares them, see :mod:`~arrow_format.filters.expression`. Filters
    are equal if they have the same condition on columns of the same types.
    """

    expression: Expression
    """The condition, see :mod:`~arrow_format.filters.binding`."""
    columns: tuple[str, ...]
    """The columns that are read, in the order of the schema."""
    types: tuple[pa.DataType, ...]
    """Their types."""

    def mask(self, columns: Sequence[pa.Array], num_rows: int | None = None) -> NDArray[np.bool_]:
        """Return which rows pass: those for which the condition is true, neither false nor null.

        ``columns`` are those named in :attr:`columns`, in this order and type. A filter may have
        none; ``num_rows`` is then needed.
        """
        by_name = dict(zip(self.columns, columns, strict=True))
        count = len(columns[0]) if num_rows is None else num_rows
        return rows_that_pass(truth_of(self.expression, by_name, count))

    def may_match(
        self, statistics: Mapping[str, ColumnStatistics], num_rows: Int64Array
    ) -> NDArray[np.bool_]:
        """Return for each unit of rows whether one may pass; false only if surely none does.

        Parameters
        ----------
        statistics
            What is known of columns in the units; columns may be missing.
        num_rows
            Rows of each unit.
        """
        types = dict(zip(self.columns, self.types, strict=True))
        return possible(self.expression, statistics, types, num_rows).true

    def must_match(
        self, statistics: Mapping[str, ColumnStatistics], num_rows: Int64Array
    ) -> NDArray[np.bool_]:
        """Return for each unit whether all rows of it surely pass; see :meth:`may_match`."""
        types = dict(zip(self.columns, self.types, strict=True))
        found = possible(self.expression, statistics, types, num_rows)
        return ~(found.false | found.null)

    def subpartitions(
        self, partitioner: object, schema: pa.Schema, num_subpartitions: int
    ) -> Int64Array | None:
        """Return the subpartitions, ascending, that rows that pass can be in; None for all.

        See :func:`~arrow_format.filters.subpartitions.subpartitions_of`.
        """
        return subpartitions_of(self.expression, partitioner, schema, num_subpartitions)

    def keys(self, partitioner: object, schema: pa.Schema, num_subpartitions: int) -> KeySet | None:
        """Return keys of which each row that passes has one; None where it may have any."""
        if not isinstance(partitioner, HashPartitioner):
            return None
        keys = keys_given(self.expression, partitioner, schema)
        if keys is None:
            return None
        ids = partitioner.bind(keys.schema, num_subpartitions, 0)(keys)
        return KeySet(keys, ids, num_subpartitions)

    def part_on(self, columns: Collection[str]) -> Filter | None:
        """Return the conditions that these columns decide; None where there are none."""
        if {*self.columns} <= {*columns}:
            return self
        if not isinstance(self.expression, And):
            return None
        decided = [each for each in self.expression.operands if column_names(each) <= {*columns}]
        if not decided:
            return None
        part = all_of(decided)
        types = dict(zip(self.columns, self.types, strict=True))
        names = tuple(name for name in self.columns if name in column_names(part))
        return Filter(part, names, tuple(types[name] for name in names))

    def _identity(self) -> tuple[object, ...]:
        return as_sql(self.expression, None), self.columns, self.types

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((str(self), self.columns))

    def __str__(self) -> str:
        return as_sql(self.expression)


def bind_filter(
    filter: pc.Expression | str | Expression | Filter,
    schema: pa.Schema,
    *,
    settings: SparkSettings = SPARK_DEFAULTS,
    spark_schema: str | None = None,
) -> Filter:
    """Check a filter against the data schema that rows are read with.

    Parameters
    ----------
    filter
        An expression of PyArrow, or the same as text in Spark's SQL: comparisons, ``isin``, checks
        for null and NaN, and, or, not, and casts of values. Names are exact in an expression; in
        text, as in Spark, case does not matter.
    schema
        Columns and types, as :func:`~arrow_format.arrays.stored_types.data_schema` returns them.
    settings
        Of the Spark session whose ``where`` a text must equal.
    spark_schema
        Spark's JSON of the schema, by which a text may not compare some columns.

    Raises
    ------
    OptionError
        The filter is malformed, text does not parse (with the place), there is something in it
        that filters do not support, or that may mean something else to Spark.
    SchemaError
        A column is missing, or its values do not compare with the given ones.
    """
    if isinstance(filter, Filter):
        return filter
    zone = None if settings.time_zone is None else zone_of(settings.time_zone)
    sql = None
    if isinstance(filter, str):
        sql = SqlRules(settings, refused_columns(spark_schema))
    else:
        zone = None  # an expression has no session
    try:
        if isinstance(filter, str):
            expression = from_sql(filter, schema, zone, settings)
        elif isinstance(filter, pc.Expression):
            expression = from_arrow(filter, schema)
        elif isinstance(filter, EXPRESSIONS):
            expression = filter
        else:
            _refuse_column(filter)
            msg = (
                f"filter={filter!r} is {type(filter).__name__}: expected a pyarrow.compute."
                "Expression such as pc.field('day') >= pc.scalar(...), or text such as "
                "\"day >= DATE '2024-06-01'\""
            )
            raise OptionError(msg)
        bound = bind(expression, schema, zone, sql)
    except RecursionError as error:
        msg = "filter: conditions are nested too deeply; list values with IN"
        raise OptionError(msg) from error
    names = column_names(bound)
    fields = [field for field in schema if field.name in names]
    return Filter(
        bound, tuple(field.name for field in fields), tuple(field.type for field in fields)
    )


def _refuse_column(given: object) -> None:
    """Say what to do with a Column, which is Spark's own; its module has not been imported here."""
    if type(given).__name__ == "Column" and type(given).__module__.startswith("pyspark."):
        msg = (
            "filter is a Column of Spark, which only Spark evaluates: write the condition as text, "
            'as in filter="customer = 17", or use where() on the DataFrame'
        )
        raise OptionError(msg)
