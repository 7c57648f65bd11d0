"""PyArrow's expressions as conditions.

PyArrow has no public way to look inside an expression. What it pickles is the one complete form: an
Arrow IPC file whose schema's metadata lists the nodes in pre-order, and whose one row has the
values of literals and options. A form that differs from what is known here is an OptionError.
``Expression.to_substrait`` is no alternative: it refuses safe casts, which are PyArrow's default.

As filters are Spark's, ``isin`` is Spark's ``IN``: of a null neither true nor false, whatever the
values; and ``is_nan`` of a null is false.

Source: Arrow C++, ``compute/expression.cc`` (``Serialize``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pyarrow as pa

from arrow_format.arrays.conversion import convert
from arrow_format.arrays.stored_types import data_schema
from arrow_format.errors import OptionError, SchemaError
from arrow_format.filters.expression import (
    Column,
    Comparison,
    Expression,
    IsIn,
    IsNaN,
    IsNull,
    Literal,
    Not,
    all_of,
    any_of,
)
from arrow_format.format.ipc import file_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow.compute as pc

_COMPARISONS = {
    "equal": "=",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_OTHERS = ("and_kleene", "or_kleene", "and", "or", "invert", "is_in", "is_null", "is_valid",
           "is_nan", "cast of a value", "if_else of DuckDB's IN")  # fmt: skip
_ALLOWED = ", ".join([*_COMPARISONS, *_OTHERS])


def from_arrow(expression: pc.Expression) -> Expression:
    """Return PyArrow's expression as a condition; OptionError for what is not supported."""
    try:
        stored = expression.__reduce__()[1][0]
        nodes = iter([(key.decode(), value.decode()) for key, value in file_metadata(stored)])
        with pa.ipc.open_file(stored) as reader:
            row = reader.get_batch(0) if reader.num_record_batches else None
        values = [] if row is None else [column[0] for column in row.columns]
        return _Reader(expression, nodes, values).whole()
    except (
        ValueError, TypeError, LookupError, AttributeError, StopIteration, pa.ArrowException,
    ) as error:  # fmt: skip
        msg = (
            f"filter={expression}: PyArrow {pa.__version__} writes expressions in a form that is "
            f"not known ({type(error).__name__}: {error}); give the filter as text in SQL"
        )
        raise OptionError(msg) from error


class _Call(NamedTuple):
    """A call of a function, whose operands are being read."""

    function: str
    operands: list[Expression]
    options: dict[str, Any]


class _Reader:
    """Reads the nodes of one expression."""

    def __init__(
        self, expression: pc.Expression, nodes: Iterator[tuple[str, str]], values: list[pa.Scalar]
    ) -> None:
        self._expression = expression
        self._nodes = nodes
        self._values = values

    def whole(self) -> Expression:
        """Read all nodes, those inside of a call before its end."""
        calls: list[_Call] = [_Call("", [], {})]
        for kind, content in self._nodes:
            call = calls[-1]
            if kind == "call":
                calls.append(_Call(content, [], {}))
            elif kind == "end":
                ended = calls.pop()
                calls[-1].operands.append(self._call(*ended))
            elif kind == "options":
                scalar = self._values[int(content)]
                call.options.update((field.name, scalar[i]) for i, field in enumerate(scalar.type))
            else:
                call.operands.append(self._leaf(kind, content))
        ((_, (tree,), _),) = calls
        return tree

    def _leaf(self, kind: str, content: str) -> Expression:
        if kind == "field_ref":
            return Column(content)
        if kind == "literal":
            return Literal(_stored(self._values[int(content)]))
        if kind == "nested_field_ref":
            self._refuse(
                "it names a field inside of a column, and a filter on nested fields is not "
                "supported"
            )
        msg = f"unexpected {kind!r}"
        raise ValueError(msg)

    def _call(
        self, function: str, operands: list[Expression], options: dict[str, Any]
    ) -> Expression:
        if function in _COMPARISONS:
            left, right = operands
            return Comparison(_COMPARISONS[function], left, right)
        if function in ("and_kleene", "and", "and_"):
            return all_of(operands)
        if function in ("or_kleene", "or", "or_"):
            return any_of(operands)
        if function == "if_else" and _is_null_propagation(*operands):
            return operands[1]
        of_one: dict[str, Callable[[Expression], Expression]] = {
            "invert": Not,
            "is_valid": lambda operand: Not(IsNull(operand)),
            "is_nan": IsNaN,
            "is_null": partial(_is_null, options),
            "is_in": partial(_is_in, options),
            "cast": partial(self._cast, options),
        }
        if function not in of_one:
            self._refuse(f"function {function!r} is not supported; those that are: {_ALLOWED}")
        (operand,) = operands
        return of_one[function](operand)

    def _cast(self, options: dict[str, Any], operand: Expression) -> Expression:
        if not isinstance(operand, Literal):
            self._refuse("only values can be cast; cast the value to the column's type instead")
        safe = not any(
            value.as_py() for name, value in options.items() if name.startswith("allow_")
        )
        target = options["to_type"].type
        try:
            return Literal(_stored(operand.value.cast(target, safe=safe)))
        except pa.ArrowException as error:
            self._refuse(f"{operand.value} cannot be cast to {target}: {error}")

    def _refuse(self, why: str) -> NoReturn:
        msg = f"filter={self._expression}: {why}"
        raise OptionError(msg)


def _is_null_propagation(condition: Expression, kept: Expression, other: Expression) -> bool:
    """Whether this is null where a column is, else ``IN``, as DuckDB writes it: Spark's ``IN``."""
    match condition, kept, other:
        case Not(IsNull(Column(name))), IsIn(Column(same)), Literal(value):
            return name == same and not value.is_valid
    return False


def _is_null(options: dict[str, Any], operand: Expression) -> Expression:
    if options and options["nan_is_null"].as_py():
        return any_of([IsNull(operand), IsNaN(operand)])
    return IsNull(operand)


def _is_in(options: dict[str, Any], operand: Expression) -> Expression:
    values = options["value_set"].values
    return IsIn(operand, _as_stored(values))


def _stored(value: pa.Scalar) -> pa.Scalar:
    return _as_stored(pa.repeat(value, 1))[0]


def _as_stored(values: pa.Array) -> pa.Array:
    """Return values in the type that is stored for theirs: the text of a dictionary, say."""
    try:
        type_ = data_schema(pa.schema([("value", values.type)])).field(0).type
        return convert(values, type_)
    except SchemaError as error:
        msg = f"filter: a value of type {values.type} compares with no column; cast it"
        raise OptionError(msg) from error
