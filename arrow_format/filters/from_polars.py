"""Predicates of Polars as filters, where both find the same rows; of a conjunction, the parts.

Polars has no other public way to look inside of an expression than its JSON, whose form may change:
what is not recognised is not translated, and Polars evaluates it. NaN, -0.0, nulls and texts
compare in Polars as in Spark, which filters follow. Where they differ nothing is translated: null
in a list, a comparison of null with null, arithmetic, casts that round.
"""

from __future__ import annotations

import io
import json
import math
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.selection import keep
from arrow_format.filters.expression import (
    Column,
    Comparison,
    Expression,
    IsIn,
    IsNull,
    Literal,
    Not,
    all_of,
    any_of,
)
from arrow_format.filters.scalars import as_stored, number

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPARISONS = {"Eq": "=", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_MIRRORED = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_BETWEEN = {
    "Both": ("GtEq", "LtEq"),
    "Left": ("GtEq", "Lt"),
    "Right": ("Gt", "LtEq"),
    "None": ("Gt", "Lt"),
}

EXACT_IN_DOUBLE = 1 << 53
"""Whole numbers below are the same as doubles, and larger ones stay larger."""


class _Untranslatable(Exception):
    """An expression has no filter that finds the same rows."""


def filters_of(predicate: pl.Expr, schema: pa.Schema) -> tuple[list[pl.Expr], list[Expression]]:
    """Return what Polars must evaluate of a predicate, and filters that its rows all match.

    Both are conjunctions. The first is the whole predicate, apart from hints that Polars 1.39 to
    2.0 adds and cannot evaluate itself: that a row is among the first when sorted. Columns have
    the types of ``schema``.
    """
    try:
        parts = list(_conjuncts(json.loads(predicate.meta.serialize(format="json"))))
    except RecursionError:
        return [predicate], []
    evaluated = [part for part in parts if "Display" not in part]
    filters = []
    for part in evaluated:
        try:
            filters.append(_condition(part, schema))
        except (_Untranslatable, RecursionError):
            continue
    if len(evaluated) == len(parts):
        return [predicate], filters
    return [_deserialized(part) for part in evaluated], filters


def _conjuncts(tree: Any) -> Iterator[Any]:  # noqa: ANN401
    match tree:
        case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case _:
            yield tree


def _condition(tree: Any, schema: pa.Schema) -> Expression:  # noqa: ANN401
    match tree:
        case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
            return all_of([_condition(left, schema), _condition(right, schema)])
        case {"BinaryExpr": {"left": left, "op": "Or", "right": right}}:
            return any_of([_condition(left, schema), _condition(right, schema)])
        case {"BinaryExpr": {"left": left, "op": op, "right": right}} if op in _COMPARISONS:
            if _is_constant(left):
                left, op, right = right, _MIRRORED.get(op, op), left
            return _comparison(left, op, right, schema)
        case {"Function": {"input": [operand, *given], "function": {"Boolean": function}}}:
            return _call(function, operand, given, schema)
        case {"Column": str(name)} if pt.is_boolean(schema.field(name).type):
            return Column(name)
    raise _Untranslatable


def _call(function: Any, operand: Any, given: list[Any], schema: pa.Schema) -> Expression:  # noqa: ANN401
    match function, given:
        case "Not", []:
            return Not(_condition(operand, schema))
        case "IsNull", []:
            return IsNull(_column(operand, schema)[0])
        case "IsNotNull", []:
            return Not(IsNull(_column(operand, schema)[0]))
        case "IsNan", [] if pt.is_floating(_column(operand, schema)[1]):
            return Comparison("=", _column(operand, schema)[0], Literal(number(math.nan)))
        case {"IsBetween": {"closed": closed}}, [lower, upper] if closed in _BETWEEN:
            above, below = _BETWEEN[closed]
            return all_of(
                [
                    _comparison(operand, above, lower, schema),
                    _comparison(operand, below, upper, schema),
                ]
            )
        case {"IsIn": {"nulls_equal": False}}, [values]:
            return IsIn(_column(operand, schema)[0], _values(values))
    raise _Untranslatable


def _comparison(left: Any, op: str, right: Any, schema: pa.Schema) -> Expression:  # noqa: ANN401
    constants = _constants(right)
    if len(constants) != 1 or not constants[0].is_valid:
        raise _Untranslatable
    match left:
        case {"Cast": {"expr": operand, "dtype": {"Literal": str(target)}}}:
            column, type_ = _column(operand, schema)
            if not _keeps_order(type_, target, constants[0]):
                raise _Untranslatable
        case _:
            column, _ = _column(left, schema)
    return Comparison(_COMPARISONS[op], column, Literal(as_stored(constants[0])))


def _keeps_order(type_: pa.DataType, target: str, constant: pa.Scalar) -> bool:
    """Whether values compare with a constant as they do after a cast to a type of Polars."""
    if target != "Float64" or not pt.is_float64(constant.type):
        return False
    is_exact = abs(constant.as_py()) < EXACT_IN_DOUBLE
    return bool(pt.is_float32(type_) or (pt.is_integer(type_) and is_exact))


def _column(tree: Any, schema: pa.Schema) -> tuple[Column, pa.DataType]:  # noqa: ANN401
    match tree:
        case {"Column": str(name)}:
            return Column(name), schema.field(name).type
    raise _Untranslatable


def _values(tree: Any) -> pa.Array:  # noqa: ANN401
    """Return the values of a list; Polars finds a null in it equal to nothing, and ignores it."""
    lists = _constants(tree)
    if len(lists) != 1 or not pt.is_large_list(lists.type) or not lists[0].is_valid:
        raise _Untranslatable
    values = as_stored(lists.flatten())
    values = keep(values, values.is_valid())
    if not len(values):
        raise _Untranslatable
    return values


def _is_constant(tree: Any) -> bool:  # noqa: ANN401
    match tree:
        case {"Literal": _}:
            return True
        case {"Cast": {"expr": inner}} | {"Alias": [inner, _]}:
            return _is_constant(inner)
    return False


def _constants(tree: Any) -> pa.Array:  # noqa: ANN401
    """Return the values of a constant: Polars evaluates it."""
    if not _is_constant(tree):
        raise _Untranslatable
    try:
        found = pl.select(_deserialized(tree)).to_series().to_arrow()
    # JSON has no NaN, and Arrow no numbers of 128 bits.
    except (pl.exceptions.PolarsError, pa.ArrowException) as error:
        raise _Untranslatable from error
    return found


def _deserialized(tree: Any) -> pl.Expr:  # noqa: ANN401
    return pl.Expr.deserialize(io.BytesIO(json.dumps(tree).encode()), format="json")
