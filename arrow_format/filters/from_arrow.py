"""PyArrow's expressions as conditions, with the meaning that they have in PyArrow.

PyArrow has no public way to look inside an expression. What it pickles is the one complete form: an
Arrow IPC file whose schema's metadata lists the nodes in pre-order, and whose one row has the
values of literals and options. A form that differs from what is known here is an OptionError.
``Expression.to_substrait`` is no alternative: it refuses safe casts, which are PyArrow's default.

Conditions are Spark's (see :mod:`~arrow_format.filters.expression`), so what PyArrow finds
otherwise is written out. To it, a comparison with NaN is false; ``is_nan`` of a null is null;
``isin`` is never null, and a null in its list equals null.

Source: Arrow C++, ``compute/expression.cc`` (``Serialize``), ``compute/api_scalar.h``.
"""

from __future__ import annotations

import contextlib
import math
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.selection import keep
from arrow_format.errors import OptionError
from arrow_format.filters.comparison import is_number
from arrow_format.filters.expression import (
    FLIPPED,
    UNKNOWN,
    And,
    Column,
    Comparison,
    Expression,
    IsIn,
    IsNull,
    Literal,
    Not,
    Or,
    all_of,
    any_of,
)
from arrow_format.filters.scalars import as_stored, number
from arrow_format.format.ipc import file_metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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

_CONJUNCTIONS = ("and_kleene", "and", "and_")
"""Which of them makes no difference to the rows that pass a filter."""

_MATCH, _SKIP, _EMIT_NULL, _INCONCLUSIVE = range(4)
"""``SetLookupOptions::NullMatchingBehavior``."""

_NAN = Literal(number(math.nan))


def from_arrow(expression: pc.Expression, schema: pa.Schema) -> Expression:
    """Return PyArrow's expression as a condition; OptionError for what is not supported.

    ``schema`` says which columns are floating-point numbers; others may be missing in it.
    """
    with _known_form(expression):
        return _positive(_Translation(expression, schema).condition(_tree_of(expression)))


def parts_of(expression: pc.Expression, schema: pa.Schema) -> tuple[list[Expression], bool]:
    """Return conditions that all rows fulfil which an expression is true for.

    And whether they are all of it: one that is not supported is left out of a conjunction. Of an
    expression whose form is not known, such as one with columns by position, there are none.
    """
    translation = _Translation(expression, schema)
    found, is_whole = [], True
    with contextlib.suppress(OptionError), _known_form(expression):
        for part in _chain(_tree_of(expression), _CONJUNCTIONS):
            try:
                found.append(_positive(translation.condition(part)))
            except OptionError:
                is_whole = False
        return found, is_whole
    return [], False


def columns_of(expression: pc.Expression) -> list[str]:
    """Return the columns that an expression reads, each once; OptionError if that is not known."""
    names: dict[str, None] = {}
    with _known_form(expression):
        nodes = [_tree_of(expression)]
        while nodes:
            node = nodes.pop()
            if node.kind in ("field_ref", "nested_field_ref"):
                names[node.name] = None
            nodes += node.operands
    return list(names)


# The form that is pickled -------------------------------------------------------------------------


class _Node(NamedTuple):
    """A call of a function with its operands; or a leaf."""

    kind: str
    """``call``, ``literal``, ``field_ref`` or ``nested_field_ref``."""
    name: str
    """Of the function, or of the column."""
    operands: list[_Node]
    options: dict[str, Any]
    value: pa.Scalar | None = None


@contextmanager
def _known_form(expression: pc.Expression) -> Iterator[None]:
    """Make an OptionError of what another form leads to."""
    try:
        yield
    except (
        ValueError, TypeError, LookupError, AttributeError, StopIteration, pa.ArrowException,
    ) as error:  # fmt: skip
        msg = (
            f"filter={expression}: PyArrow {pa.__version__} writes expressions in a form that is "
            f"not known ({type(error).__name__}: {error}); give the filter as text in SQL"
        )
        raise OptionError(msg) from error


def _tree_of(expression: pc.Expression) -> _Node:
    stored = expression.__reduce__()[1][0]
    nodes = iter([(key.decode(), value.decode()) for key, value in file_metadata(stored)])
    with pa.ipc.open_file(stored) as reader:
        row = reader.get_batch(0) if reader.num_record_batches else None
    return _read(nodes, [] if row is None else [column[0] for column in row.columns])


def _read(nodes: Iterator[tuple[str, str]], values: list[pa.Scalar]) -> _Node:
    """Read all nodes, those inside of a call before its end."""
    calls = [_Node("call", "", [], {})]
    for kind, content in nodes:
        call = calls[-1]
        if kind == "call":
            calls.append(_Node("call", content, [], {}))
        elif kind == "end":
            calls[-2].operands.append(calls.pop())
        elif kind == "options":
            scalar = values[int(content)]
            call.options.update((field.name, scalar[i]) for i, field in enumerate(scalar.type))
        elif kind == "literal":
            call.operands.append(_Node(kind, "", [], {}, as_stored(values[int(content)])))
        elif kind == "field_ref":
            call.operands.append(_Node(kind, content, [], {}))
        elif kind == "nested_field_ref":  # the names on the path to the field follow
            names = [next(nodes)[1] for _ in range(int(content))]
            call.operands.append(_Node(kind, names[0], [], {}))
        else:
            msg = f"unexpected {kind!r}"
            raise ValueError(msg)
    ((tree,),) = [call.operands for call in calls]
    return tree


def _chain(node: _Node, names: Sequence[str]) -> list[_Node]:
    """Return the operands of a chain of functions with these names, however long it is."""
    operands, nodes = [], [node]
    while nodes:
        node = nodes.pop()
        if node.kind == "call" and node.name in names:
            nodes += reversed(node.operands)
        else:
            operands.append(node)
    return operands


# What it means ------------------------------------------------------------------------------------


class _Translation:
    """Says nodes of one expression as conditions."""

    def __init__(self, expression: pc.Expression, schema: pa.Schema) -> None:
        self._expression = expression
        self._schema = schema

    def condition(self, node: _Node) -> Expression:
        if node.value is not None:
            return Literal(node.value)
        if node.kind == "field_ref":
            return Column(node.name)
        if node.kind == "nested_field_ref":
            self._refuse(
                "it names a field inside of a column, and a filter on nested fields is not "
                "supported"
            )
        if node.name == "cast":
            return self._cast(node)
        if node.name in ("and_kleene", "or_kleene"):
            join = all_of if node.name == "and_kleene" else any_of
            return join(map(self.condition, _chain(node, [node.name])))
        return self._call(node.name, [self.condition(each) for each in node.operands], node.options)

    def _call(
        self, function: str, operands: list[Expression], options: dict[str, Any]
    ) -> Expression:
        if function in _COMPARISONS:
            left, right = operands
            return self._comparison(_COMPARISONS[function], left, right)
        if function in ("and", "and_", "or", "or_"):  # null where one is null
            holds = all_of(operands) if function.startswith("and") else any_of(operands)
            return _null_where(any_of(map(IsNull, operands)), holds)
        if function == "if_else" and (kept := _null_propagation(*operands)) is not None:
            return kept
        of_one: dict[str, Callable[[Expression], Expression]] = {
            "invert": Not,
            "is_valid": lambda operand: Not(IsNull(operand)),
            "is_nan": lambda operand: Comparison("=", operand, _NAN),
            "is_null": partial(_is_null, options),
            "is_in": partial(self._is_in, options),
        }
        if function not in of_one:
            self._refuse(f"function {function!r} is not supported; those that are: {_ALLOWED}")
        (operand,) = operands
        return of_one[function](operand)

    def _comparison(self, operator: str, left: Expression, right: Expression) -> Expression:
        compared = Comparison(operator, left, right)
        sides = [left, right]
        if any(map(_is_nan, sides)):  # a NaN is written, and all but != is false
            columns = [side for side in sides if not _is_nan(side)]
            if all(self._is_of(is_number, side) for side in columns):
                is_valid = all_of(Comparison("=", side, side) for side in columns)
                return is_valid if operator == "!=" else Not(is_valid)
            return compared
        floats = [
            side for side in sides if isinstance(side, Column) and self._is_of(pt.is_floating, side)
        ]
        nulls = [side for side in sides if isinstance(side, Literal) and not side.value.is_valid]
        if nulls or not floats:  # with a null it is null, of a NaN too
            return compared
        if len([side for side in sides if isinstance(side, Column)]) == 1:
            is_left = floats[0] is left
            over = operator if is_left else FLIPPED.get(operator, operator)
            # NaN is the largest number to Spark, and no other comparison holds for it.
            return (
                all_of([compared, Not(Comparison("=", floats[0], _NAN))])
                if ">" in over
                else (compared)
            )
        is_nan = any_of(Comparison("=", side, _NAN) for side in floats)
        holds = any_of([compared, is_nan]) if operator == "!=" else all_of([compared, Not(is_nan)])
        return _null_where(any_of(map(IsNull, sides)), holds)

    def _is_of(self, kind: Callable[[pa.DataType], bool], side: Expression) -> bool:
        """Whether a literal, or a column that is there, has a kind of type."""
        if isinstance(side, Literal):
            return kind(side.value.type)
        if not isinstance(side, Column) or side.name not in self._schema.names:
            return False
        return kind(self._schema.field(side.name).type)

    def _is_in(self, options: dict[str, Any], operand: Expression) -> Expression:
        given = as_stored(options["value_set"].values)
        if isinstance(operand, Column) and self._is_of(pt.is_floating, operand):
            self._check_floats(operand, given)
        behavior = options["null_matching_behavior"].as_py()
        values = keep(given, given.is_valid())
        found = IsIn(operand, given if behavior == _INCONCLUSIVE else values)
        if behavior in (_EMIT_NULL, _INCONCLUSIVE):
            return found
        if behavior == _MATCH and given.null_count:
            return any_of([found, IsNull(operand)])
        return all_of([Not(IsNull(operand)), found])

    def _check_floats(self, column: Column, values: pa.Array) -> None:
        """Refuse a list in which PyArrow looks for other floats than those that are equal."""
        type_ = self._schema.field(column.name).type
        numbers = keep(values, values.is_valid()).to_pylist()
        is_same = values.type.equals(type_) and not any(map(math.isnan, numbers))
        is_whole = pt.is_integer(values.type) and all(abs(number) < 1 << 24 for number in numbers)
        if 0 in numbers or not (is_same or is_whole or not numbers):
            self._refuse(
                f"column {column.name!r} is {type_}: PyArrow's isin compares it by bits, and with "
                "values of its own type; give such values, without 0 and NaN, or compare with =="
            )

    def _cast(self, node: _Node) -> Expression:
        (operand,) = node.operands
        if operand.value is None:
            self._refuse("only values can be cast; cast the value to the column's type instead")
        safe = not any(
            value.as_py() for name, value in node.options.items() if name.startswith("allow_")
        )
        target = node.options["to_type"].type
        try:
            return Literal(as_stored(operand.value.cast(target, safe=safe)))
        except pa.ArrowException as error:
            self._refuse(f"{operand.value} cannot be cast to {target}: {error}")

    def _refuse(self, why: str) -> NoReturn:
        msg = f"filter={self._expression}: {why}"
        raise OptionError(msg)


def _null_where(is_null: Expression, holds: Expression) -> Expression:
    """Return a condition that is null in some rows, and elsewhere that one."""
    return any_of([all_of([Not(is_null), holds]), all_of([is_null, UNKNOWN])])


def _is_nan(side: Expression) -> bool:
    if not isinstance(side, Literal) or not pt.is_floating(side.value.type):
        return False
    return side.value.is_valid and math.isnan(float(side.value.as_py()))


def _null_propagation(
    condition: Expression, kept: Expression, other: Expression
) -> Expression | None:
    """Return ``IN`` as Spark has it, null where the column is, from how DuckDB writes it."""
    match condition, kept, other:
        case (
            Not(IsNull(Column(name))),
            And((Not(IsNull(Column(same))), IsIn(Column(last)) as found)),
            Literal(value),
        ):
            return found if name == same == last and not value.is_valid else None
    return None


def _is_null(options: dict[str, Any], operand: Expression) -> Expression:
    if options and options["nan_is_null"].as_py():
        return any_of([IsNull(operand), Comparison("=", operand, _NAN)])
    return IsNull(operand)


def _positive(expression: Expression) -> Expression:
    """Return a condition that is true for the same rows, without checks that say nothing more.

    Of rows that are left out it may be null where the other is false.
    """
    if isinstance(expression, Or):
        return any_of(map(_positive, expression.operands))
    if not isinstance(expression, And):
        return expression
    listed = {
        operand.operand.name
        for operand in expression.operands
        if isinstance(operand, IsIn) and isinstance(operand.operand, Column)
    }
    return all_of(
        _positive(operand) for operand in expression.operands if not _is_check_of(operand, listed)
    )


def _is_check_of(expression: Expression, names: set[str]) -> bool:
    match expression:
        case Not(IsNull(Column(name))):
            return name in names
    return False
