"""Aggregate functions: which values are kept of a group, and the result they give. Pure.

A name that Spark's SQL has gives what Spark's SQL gives, also where PyArrow's function of that name
gives something else: sums are exact or an error, NaN is the largest number, ``stddev`` and
``variance`` are those of a sample, ``first`` and ``last`` may be null. Names that only PyArrow has
(:data:`OF_PYARROW`) give what PyArrow gives.

Source: Spark 4.3, ``org.apache.spark.sql.catalyst.expressions.aggregate``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import to_arrow, to_numpy, to_scalar
from arrow_format.arrays.conversion import (
    canonical_floats,
    ordered_bits,
    ordered_bits_as_floats,
)
from arrow_format.arrays.exact_sums import (
    Column,
    addable,
    cast_checked,
    exact_mean,
    exact_sum,
    map_chunks,
    sum_state,
)
from arrow_format.arrays.gather import gather
from arrow_format.errors import OptionError, SchemaError
from arrow_format.keys.group_values import combine_column

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Options: TypeAlias = pc.FunctionOptions | None

_LAST_RESORT = 1 << 40
"""Added to the number of a row that is taken only if the group has no other."""


def _unchanged(column: Column) -> Column:
    return column


@dataclass(frozen=True, slots=True)
class Partial:
    """One value that is kept of each group, and how it is computed."""

    function: str
    """PyArrow's function of groups."""
    before: Callable[[Column], Column] = _unchanged
    """Makes its argument of the column of rows."""
    after: Callable[[Column, Column], Column] = lambda grouped, _: grouped
    """Gets what the function returned, one value per group, and the column of rows."""
    options: pc.FunctionOptions | None = None

    @property
    def takes_numbers(self) -> bool:
        """Whether :meth:`of_groups` computes it; otherwise only PyArrow does."""
        return self.options is None and self.function in _OF_NUMBERED_GROUPS

    def of_groups(
        self, columns: Sequence[Column], groups: NDArray[np.int64], num_groups: int
    ) -> Column:
        """Return the value of each group, as PyArrow's function has it, by the groups' numbers."""
        if not columns:
            return pa.chunked_array([to_arrow(np.bincount(groups, minlength=num_groups))])
        (rows,) = columns
        column = self.before(rows)
        if self.function == "count":
            groups = groups if not column.null_count else groups[_validity(column)]
            values = to_arrow(np.bincount(groups, minlength=num_groups))
        else:
            type_ = _type_of_sums(column.type) if self.function == "sum" else None
            values = combine_column(column.chunks, self.function, groups, num_groups, type_=type_)
        return self.after(pa.chunked_array([values]), rows)


_OF_NUMBERED_GROUPS = frozenset({"count", "count_all", "max", "min", "sum"})


def _type_of_sums(type_: pa.DataType) -> pa.DataType:
    """Return the type in which PyArrow adds values."""
    if pt.is_decimal(type_):
        is_wide = pt.is_decimal256(type_)
        return pa.decimal256(76, type_.scale) if is_wide else pa.decimal128(38, type_.scale)
    return pa.float64() if pt.is_floating(type_) else pa.int64()


@dataclass(frozen=True, slots=True)
class Method:
    """How a function is computed of columns of one type."""

    steps: tuple[Partial, ...]
    merges: tuple[Partial, ...] | None = None
    """One per step: merges its values of parts of a group. None: a group is needed whole."""
    of_pieces: tuple[Partial, ...] | None = None
    """The same, of a few large parts, where to merge many small ones would take too long."""
    finish: Callable[..., Column] = _unchanged
    """Makes the result of the values kept; raises :class:`DoesNotFitError`."""
    nullable: bool = True

    def __post_init__(self) -> None:
        if self.merges is not None and len(self.merges) != len(self.steps):
            raise AssertionError(self)


def method_of(
    function: str, types: Sequence[pa.DataType], options: pc.FunctionOptions | None = None
) -> Method:
    """Return how a function of Spark's or PyArrow's (without ``hash_``) is computed.

    Raises OptionError where the function is unknown or does not take these options, SchemaError
    where it does not take columns of these types.
    """
    if function not in OF_SPARK and function not in OF_PYARROW:
        msg = f"no function {function!r}; expected one of {', '.join(ALL_FUNCTIONS)}"
        raise OptionError(msg)
    if options is not None:
        _check_options(function, options)
    if function in OF_PYARROW:
        return _as_pyarrow_does(function, options)
    if len(types) != 1:
        msg = f"{function!r} takes one column, not {len(types)}"
        raise SchemaError(msg)
    return OF_SPARK[function](types[0], options)


def _check_options(function: str, options: pc.FunctionOptions) -> None:
    # PyArrow reads the bytes of any options as those of the function.
    expected = next((name for name, takers in _OPTIONS.items() if function in takers), None)
    if expected is None:
        msg = f"{function!r} takes no options; some functions do, by their names in PyArrow"
        raise OptionError(msg)
    if type(options).__name__ != expected:
        msg = f"{function!r} takes pyarrow.compute.{expected}, not {type(options).__name__}"
        raise OptionError(msg)


# Sums and means ----------------------------------------------------------------------------------


def _sum(type_: pa.DataType, options: Options) -> Method:
    if pt.is_floating(type_) or pt.is_null(type_):
        return _mergeable([Partial("sum", _as_double, options=options)], ["sum"])
    step = _exact_total("sum", type_, options)
    return _mergeable([step], ["sum"], finish=partial(exact_sum, type_))


def _exact_total(function: str, type_: pa.DataType, options: Options) -> Partial:
    state = sum_state(type_)
    if state is None:
        raise _not_taken(function, type_, "numbers and durations")
    return Partial("sum", addable, partial(_grouped_as, state), options)


def _mean(type_: pa.DataType, options: Options) -> Method:
    if pt.is_decimal(type_) or pt.is_duration(type_):
        total = _exact_total("avg", type_, options)
        return _mergeable(
            [total, Partial("count")], ["sum", "sum"], finish=partial(exact_mean, type_)
        )
    if not (_is_number(type_) or pt.is_boolean(type_)):
        raise _not_taken("avg", type_, "numbers and durations")
    # Means of integers are doubles too, as in Spark.
    total = Partial("sum", _as_double, options=options)
    return _mergeable(
        [total, Partial("count")],
        ["sum", "sum"],
        finish=lambda total, count: pc.divide(total, _as_double(count)),
    )


def _product(type_: pa.DataType, options: Options) -> Method:
    if not _is_number(type_):
        raise _not_taken("product", type_, "numbers")
    return _mergeable([Partial("product", _as_double, options=options)], ["product"])


# Spread ------------------------------------------------------------------------------------------


def _spread(function: str, ddof: int, type_: pa.DataType, options: Options) -> Method:
    options = pc.VarianceOptions(ddof=ddof) if options is None else options
    return _moment(function, 0.0, type_, options)


def _moment(function: str, of_equals: float | None, type_: pa.DataType, options: Options) -> Method:
    """Compute a moment, ``of_equals`` where all values are equal: there PyArrow is inexact."""
    if not _is_number(type_):
        raise _not_taken(function, type_, "numbers")
    ends = [_end_of_floats(end, pa.float64(), before=_as_double) for end in ("min", "max")]
    first = Partial(function, _as_double, options=options)
    return Method((first, *ends), finish=partial(_unless_equal, of_equals))


def _unless_equal(of_equals: float | None, moment: Column, low: Column, high: Column) -> Column:
    equal = pc.and_(pc.equal(low, high), pc.is_finite(low))
    equal = pc.and_(equal, pc.is_valid(moment))  # of too few values it stays null
    type_ = pa.float64()
    instead = pa.nulls(1, type_)[0] if of_equals is None else to_scalar(of_equals, type_)
    return pc.if_else(equal, instead, moment)


# Minimum, maximum, first and last ----------------------------------------------------------------


def _end(function: str, type_: pa.DataType, options: Options) -> Method:
    if pt.is_floating(type_):
        step = _end_of_floats(function, type_, options)
    elif pt.is_duration(type_):
        step = Partial(function, lambda c: c.cast(pa.int64()), partial(_grouped_as, type_), options)
    elif pt.is_nested(type_):
        raise _not_taken(function, type_, "columns that are not nested")
    else:
        step = Partial(function, options=options)
    merges = None if options is not None else (step,)
    return Method((step,), merges, finish=_signed)


def _end_of_floats(
    function: str,
    type_: pa.DataType,
    options: pc.FunctionOptions | None = None,
    before: Callable[[Column], Column] = _unchanged,
) -> Partial:
    return Partial(
        function,
        lambda column: map_chunks(ordered_bits, before(column)),
        lambda grouped, _: map_chunks(partial(ordered_bits_as_floats, type_=type_), grouped, type_),
        options,
    )


def _at_end(function: str, _: pa.DataType, options: Options) -> Method:
    """First or last row: the lowest or highest row number, then the value of that row."""
    skips = _skips_nulls(function, options)
    is_first = function == "first"
    number = partial(_row_numbers, skips=skips, is_first=is_first)
    step = Partial("min" if is_first else "max", number, _values_at)
    return Method((step,), (step,))


def _skips_nulls(function: str, options: pc.FunctionOptions | None) -> bool:
    if options is None:
        return False
    for skips in (False, True):
        if options == pc.ScalarAggregateOptions(skip_nulls=skips):
            return skips
    msg = f"{function!r} takes no other options than ScalarAggregateOptions(skip_nulls=...)"
    raise OptionError(msg)


def _row_numbers(column: Column, *, skips: bool, is_first: bool) -> Column:
    """Return row numbers; where nulls are skipped, such that a null is taken last."""
    numbers = np.arange(len(column))
    if skips:
        late = _validity(column) != is_first
        numbers[late] += _LAST_RESORT
    return pa.chunked_array([to_arrow(numbers)])


def _values_at(numbers: Column, column: Column) -> Column:
    """Return the values at row numbers, none of them null, in their order."""
    wanted = to_numpy(numbers.combine_chunks()) & (_LAST_RESORT - 1)
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    chunk_of = np.searchsorted(ends, wanted, side="right")
    by_chunk = np.argsort(chunk_of, kind="stable")
    numbers_of_chunks, starts = np.unique(chunk_of[by_chunk], return_index=True)
    pieces: list[pa.Array] = []
    for number, rows in zip(numbers_of_chunks, np.split(wanted[by_chunk], starts)[1:], strict=True):
        chunk = column.chunk(int(number))
        pieces += gather(chunk, to_arrow((rows - ends[number] + len(chunk)).astype(np.uint64)))
    if bool((by_chunk[1:] > by_chunk[:-1]).all()):
        return pa.chunked_array(pieces, column.type)
    back = np.empty(len(wanted), np.uint64)
    back[by_chunk] = np.arange(len(wanted), dtype=np.uint64)
    return pa.chunked_array(gather(pa.concat_arrays(pieces), to_arrow(back)), column.type)


# Counts, lists and sets --------------------------------------------------------------------------


def _count(_: pa.DataType, options: Options) -> Method:
    return _mergeable([Partial("count", options=options)], ["sum"], nullable=False)


def _count_if(type_: pa.DataType, _: Options) -> Method:
    if not pt.is_boolean(type_):
        raise _not_taken("count_if", type_, "booleans")
    step = Partial("sum", _without_nulls, partial(_grouped_as, pa.int64()))
    return _mergeable([step], ["sum"], nullable=False)


def _without_nulls(column: Column) -> Column:
    return pc.fill_null(column, to_scalar(0, pa.bool_()))


def _count_distinct(type_: pa.DataType, options: Options) -> Method:
    if pt.is_nested(type_):
        raise _not_taken("count_distinct", type_, "columns that are not nested")
    return Method((Partial("count_distinct", _distinguished, options=options),), nullable=False)


def _collect_list(type_: pa.DataType, _: Options) -> Method:
    step = Partial("list", _numbered_values, partial(_values_of_lists, _list_of(type_)))
    pieces = Partial("list", _numbered, partial(_joined_lists, _list_of(type_)))
    return Method((step,), of_pieces=(pieces,), nullable=False)


def _numbered(column: Column) -> Column:
    return pa.chunked_array([to_arrow(np.arange(len(column)))])


def _joined_lists(type_: pa.DataType, lists: Column, column: Column) -> Column:
    """Return the values of lists, one after the other, for lists of their row numbers."""
    joined = lists.combine_chunks()
    parts = _values_at(pa.chunked_array([joined.flatten()]), column).combine_chunks()
    before = np.append(0, np.cumsum(to_numpy(pc.list_value_length(parts)), dtype=np.int64))
    ends = np.append(0, np.cumsum(to_numpy(pc.list_value_length(joined))))
    offsets = to_arrow(before[ends].astype(np.int32))
    return pa.chunked_array([pa.ListArray.from_arrays(offsets, parts.flatten(), type=type_)])


def _numbered_values(column: Column) -> Column:
    numbers = np.arange(len(column))
    numbers[~_validity(column)] = -1
    return pa.chunked_array([to_arrow(numbers)])


def _values_of_lists(type_: pa.DataType, lists: Column, column: Column) -> Column:
    """Return lists of values for lists of row numbers; -1 is left out."""
    joined = lists.combine_chunks()
    numbers = to_numpy(joined.flatten())
    kept = numbers >= 0
    ends = np.cumsum(to_numpy(pc.list_value_length(joined)))
    kept_before = np.append(0, np.cumsum(kept))
    offsets = kept_before[np.append(0, ends)].astype(np.int32)
    values = _values_at(pa.chunked_array([to_arrow(numbers[kept])]), column).combine_chunks()
    return pa.chunked_array([pa.ListArray.from_arrays(to_arrow(offsets), values, type=type_)])


def _collect_set(type_: pa.DataType, _: Options) -> Method:
    if pt.is_nested(type_):
        raise _not_taken("collect_set", type_, "columns that are not nested")
    step = Partial("distinct", _distinguished, lambda sets, _: _sets_of(_list_of(type_), sets))
    return Method((step,), nullable=False)


def _sets_of(type_: pa.DataType, sets: Column) -> Column:
    joined = sets.combine_chunks()
    values = joined.flatten()
    if pt.is_null(type_.value_type):
        values = pa.nulls(0)
    return pa.chunked_array([pa.ListArray.from_arrays(joined.offsets, values, type=type_)])


def _list_of(type_: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", type_, nullable=pt.is_null(type_)))


def _distinguished(column: Column) -> Column:
    """Return a column whose equal values have equal bytes."""
    if pt.is_null(column.type):  # Arrow's hash tables count nulls without a type
        return column.cast(pa.bool_())
    return map_chunks(canonical_floats, column)


def _any_or_all(function: str, type_: pa.DataType, options: Options) -> Method:
    if not pt.is_boolean(type_):
        raise _not_taken(function, type_, "booleans")
    if options is None:
        function = "max" if function == "any" else "min"
    return _mergeable([Partial(function, options=options)], [function])


# PyArrow's own -----------------------------------------------------------------------------------


def _as_pyarrow_does(function: str, options: Options) -> Method:
    step = Partial(
        function, _typed_nulls if function == "distinct" else _unchanged, options=options
    )
    merge = {"all": "all", "count_all": "sum", "one": "one"}.get(function)
    if merge is None:
        return Method((step,), finish=_signed)
    return _mergeable([step], [merge], finish=_signed, nullable=function != "count_all")


def _typed_nulls(column: Column) -> Column:
    # PyArrow crashes on distinct values of a column without a type.
    if pt.is_null(column.type):
        raise _not_taken("distinct", column.type, "columns that have a type")
    return column


# Shared ------------------------------------------------------------------------------------------


def _mergeable(
    steps: list[Partial],
    merged_by: list[str],
    finish: Callable[..., Column] = _unchanged,
    *,
    nullable: bool = True,
) -> Method:
    # PyArrow's options may demand a number of values, which a part of a group cannot know.
    has_options = any(step.options is not None for step in steps)
    merges = None if has_options else tuple(map(Partial, merged_by))
    return Method(tuple(steps), merges, finish=finish, nullable=nullable)


def _not_taken(function: str, type_: pa.DataType, taken: str) -> SchemaError:
    return SchemaError(f"{function} takes {taken}, not {type_}; cast it before it is written")


def _is_number(type_: pa.DataType) -> bool:
    return any(test(type_) for test in (pt.is_integer, pt.is_floating, pt.is_decimal, pt.is_null))


def _as_double(column: Column) -> Column:
    return column.cast(pa.float64(), safe=False)


def _grouped_as(type_: pa.DataType, grouped: Column, _: Column) -> Column:
    return grouped.cast(type_)


def _signed(column: Column) -> Column:
    # Spark has no unsigned integers of 64 bits.
    return cast_checked(column, pa.int64()) if pt.is_uint64(column.type) else column


def _validity(column: Column) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    valid: np.ndarray[tuple[int], np.dtype[np.bool_]] = to_numpy(
        pc.is_valid(column).combine_chunks()
    )
    return valid


_FUNCTIONS: dict[str, Callable[[pa.DataType, Options], Method]] = {
    "any bool_or some": partial(_any_or_all, "any"),
    "array_agg collect_list": _collect_list,
    "avg mean": _mean,
    "bool_and every": partial(_any_or_all, "all"),
    "collect_set": _collect_set,
    "count": _count,
    "count_distinct": _count_distinct,
    "count_if": _count_if,
    "first any_value first_value": partial(_at_end, "first"),
    "kurtosis": partial(_moment, "kurtosis", None),
    "last last_value": partial(_at_end, "last"),
    "max": partial(_end, "max"),
    "min": partial(_end, "min"),
    "product": _product,
    "skewness": partial(_moment, "skew", None),
    "stddev std stddev_samp": partial(_spread, "stddev", 1),
    "stddev_pop": partial(_spread, "stddev", 0),
    "sum": _sum,
    "variance var_samp": partial(_spread, "variance", 1),
    "var_pop": partial(_spread, "variance", 0),
}
OF_SPARK = {name: method for names, method in _FUNCTIONS.items() for name in names.split()}
"""Functions by their names in Spark's SQL (and ``pyspark.sql.functions``)."""

OF_PYARROW = frozenset({
    "all", "approximate_median", "count_all", "distinct", "first_last", "list", "min_max", "one",
    "pivot_wider", "skew", "tdigest",
})  # fmt: skip
"""Functions that only PyArrow has a name for."""

_OPTIONS = {
    "CountOptions": {"count", "count_distinct", "distinct"},
    "PivotWiderOptions": {"pivot_wider"},
    "ScalarAggregateOptions": {
        "all", "any", "approximate_median", "first", "first_last", "last", "max", "mean", "min",
        "min_max", "product", "sum",
    },
    "SkewOptions": {"kurtosis", "skew"},
    "TDigestOptions": {"tdigest"},
    "VarianceOptions": {"stddev", "variance"},
}  # fmt: skip
"""Functions by the class of PyArrow's options that they take."""

ALL_FUNCTIONS = sorted({*OF_SPARK, *OF_PYARROW})

OF_ROWS = frozenset({
    "any_value", "first", "first_value", "last", "last_value", "max", "min", "one",
})  # fmt: skip
"""Functions that return a value of the column."""

LISTS = {"array_agg": False, "collect_list": False, "collect_set": False, "distinct": False,
         "list": True}  # fmt: skip
"""Functions that return lists of values of the column, and whether those may be null."""

COMPARING = frozenset({"collect_set", "count_distinct", "distinct", "max", "min", "min_max"})
"""Functions that compare values of the column."""

COMPLETING = {
    "sum": frozenset({"sum"}),
    "min": frozenset({"min", "bool_and", "every"}),
    "max": frozenset({"max", "any", "bool_or", "some"}),
}
"""Functions that give the result for all rows from partial results of another, by that."""

OF_ONE_VALUE = frozenset({
    "any_value", "bool_and", "bool_or", "any", "collect_set", "count_distinct", "distinct", "every",
    "first", "first_value", "last", "last_value", "max", "min", "one", "some",
})  # fmt: skip
"""Functions that return the same however often a group repeats its only value."""

IN_ORDER = frozenset({
    "any_value", "array_agg", "collect_list", "first", "first_last", "first_value", "last",
    "last_value", "list", "one",
})  # fmt: skip
"""Functions whose result depends on the order of rows."""
