"""The plan of an as-of join: the sides, their times, and the columns of its result. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from math import isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.stored_types import ORDERED_TYPES
from arrow_format.errors import OptionError, SchemaError
from arrow_format.keys.co_partitioning import (
    check_co_partitioned,
    has_broadcast_rows,
    is_broadcast,
    partition_keys,
)
from arrow_format.operators.asof_match import Direction, TimeRule
from arrow_format.operators.join_plan import (
    check_suffixes,
    chosen_columns,
    given_pairs,
    join_keys,
    named_columns,
)
from arrow_format.option_fields import DURATION
from arrow_format.options import check_flag
from arrow_format.read.subpartition_reader import select_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrow_format.keys.co_partitioning import Partitioned

Time: TypeAlias = str | tuple[str, str]
"""The column of times: of both sides, or of the left and of the right."""
Tolerance: TypeAlias = str | timedelta | float | None

_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


@dataclass(frozen=True, slots=True)
class TimeRequest:
    """What is asked of the times of a side; :class:`AsOfPlan` has it with checked values."""

    time: Time
    tolerance: Tolerance = None
    ties: str | None = None
    """A column, of which the greatest value counts among rows of one time."""


@dataclass(frozen=True, slots=True)
class AsOfSide:
    """One of the sides whose rows are added."""

    keys: tuple[tuple[str, str], ...]
    """Pairs of columns that are equal, left and this."""
    times: tuple[str, str]
    """Columns of times, left and this."""
    compared_as: pa.DataType
    """Type in which the times are compared: an integer or float one, or timestamps of a unit."""
    rule: TimeRule
    ties: str | None
    columns: tuple[tuple[str, str], ...]
    """Names in the result, and columns of this side."""

    @property
    def read_columns(self) -> list[str]:
        """Columns to read."""
        ties = [] if self.ties is None else [self.ties]
        names = [*(b for _, b in self.keys), self.times[1], *ties, *(b for _, b in self.columns)]
        return list(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class AsOfPlan:
    """Each row of the left as it is, then columns of the row that each side has as of its time."""

    left: tuple[tuple[str, str], ...]
    """Names in the result, and columns of the left."""
    sides: tuple[AsOfSide, ...]

    @property
    def columns(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        """Names in the result, and columns, of the left and then of each side."""
        return self.left, *(side.columns for side in self.sides)

    @property
    def left_columns(self) -> list[str]:
        """Columns to read of the left."""
        asked = [
            name for side in self.sides for name in (*(a for a, _ in side.keys), side.times[0])
        ]
        return list(dict.fromkeys([*(name for _, name in self.left), *asked]))

    def name_of(self, column: str) -> str | None:
        """Return the name in the result of a column of the left; None where it is left out."""
        return next((called for called, name in self.left if name == column), None)

    def sources_of(self, name: str) -> Iterator[tuple[int, str]]:
        """Yield the input and its column that a column of the result has the values of."""
        for number, columns in enumerate(self.columns):
            yield from ((number, column) for called, column in columns if called == name)

    def schema(self, left: pa.Schema, rights: Sequence[pa.Schema]) -> pa.Schema:
        """Return the schema of the result, of the stored columns of all sides."""
        fields = [left.field(column).with_name(name) for name, column in self.left]
        for side, schema in zip(self.sides, rights, strict=True):
            fields += [
                schema.field(column).with_name(name).with_nullable(True)
                for name, column in side.columns
            ]
        return pa.schema(fields)

    def pruned(self, names: Sequence[str]) -> AsOfPlan:
        """Return the plan that makes these columns of the result alone, of the same sides."""
        left, *rights = (
            tuple(each for each in columns if each[0] in names) for columns in self.columns
        )
        sides = zip(self.sides, rights, strict=True)
        return AsOfPlan(left, tuple(replace(side, columns=columns) for side, columns in sides))


def time_requests(
    num_rights: int,
    time: Time | list[Time] | None,
    tolerance: Tolerance | list[Tolerance] = None,
    ties: str | list[str | None] | None = None,
) -> tuple[TimeRequest, ...]:
    """Return what is asked of the times of each right; a list has a value for each.

    Raises OptionError where it has another number of them, or there is no time, or no right.
    """
    if not num_rights:
        msg = "other is empty: expected rows, or a list of them"
        raise OptionError(msg)
    if time is None:
        msg = 'how="asof" needs time=..., the column of times, or a pair (left, right) of columns'
        raise OptionError(msg)
    each = []
    for name, given in (("time", time), ("tolerance", tolerance), ("ties", ties)):
        values: list[Any] = given if isinstance(given, list) else [given] * num_rights
        if len(values) != num_rights:
            msg = (
                f"{name}={given!r} has {len(values)} values for {num_rights} right sides: expected "
                "one for each, or one without a list for all; a pair is a tuple"
            )
            raise OptionError(msg)
        each.append(values)
    return tuple(TimeRequest(*values) for values in zip(*each, strict=True))


def plan_asof_join(
    left: Partitioned,
    rights: Sequence[Partitioned],
    requests: Sequence[TimeRequest],
    *,
    on: str | Sequence[str | tuple[str, str]] | None = None,
    direction: Direction = "backward",
    allow_exact_matches: bool = True,
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[Sequence[str] | None],
    suffixes: tuple[str, ...] | None = None,
) -> AsOfPlan:
    """Plan an as-of join of co-partitioned shuffles.

    The columns of the left come as they are; then those of each right, without keys and a time that
    have the name of theirs on the left.

    Raises OptionError where the shuffles are not co-partitioned, or an argument is malformed or
    does not fit the times. Raises SchemaError where a column is missing, keys or times cannot be
    compared, or two columns of the result have one name.
    """
    if direction not in get_args(Direction):
        msg = f"direction={direction!r}: expected backward, forward or nearest"
        raise OptionError(msg)
    check_flag("allow_exact_matches", allow_exact_matches)
    check_suffixes(suffixes, 1 + len(rights))
    _check_whole_rows(left, is_left=True)
    sides, chosen = [], []
    for right, request, columns in zip(rights, requests, right_columns, strict=True):
        _check_whole_rows(right, is_left=False)
        keys = _keys(left, right, on)
        side = _timed(left, right, request, keys, TimeRule(direction, allow_exact_matches))
        shared = [a for a, b in (*keys, side.times) if a == b]
        chosen.append(chosen_columns(right.schema, columns, "right_columns", shared))
        sides.append(side)
    lefts = chosen_columns(left.schema, left_columns, "left_columns", ())
    (of_left, *of_rights) = named_columns([lefts, *chosen], (), suffixes)
    return AsOfPlan(
        tuple(of_left),
        tuple(
            replace(side, columns=tuple(columns))
            for side, columns in zip(sides, of_rights, strict=True)
        ),
    )


def _check_whole_rows(shuffle: Partitioned, *, is_left: bool) -> None:
    """Refuse rows that are partial, or of which every subpartition would read some again."""
    if shuffle.combine:
        msg = (
            f"{shuffle.path} is combined, and its rows are partial results: aggregate it, write "
            "that, and join what is written"
        )
        raise OptionError(msg)
    if has_broadcast_rows(shuffle) and (is_left or not is_broadcast(shuffle)):
        msg = (
            f"{shuffle.path} has broadcast rows, which every subpartition would join again; write "
            "it with keys=..., or let Spark join"
        )
        raise OptionError(msg)


def _keys(
    left: Partitioned, right: Partitioned, on: str | Sequence[str | tuple[str, str]] | None
) -> tuple[tuple[str, str], ...]:
    """Return the columns that are equal; raises as :func:`plan_asof_join`."""
    own, other = partition_keys(left) or (), partition_keys(right) or ()
    named = {b: a for a, b in given_pairs(on)} if on is not None else {name: name for name in other}
    asked = [named.get(name, "") for name in other]
    if own and asked and {*asked} != {*own} and {*asked} <= {*left.schema.names}:
        msg = (
            f"{right.path} is kept by {', '.join(other)} and the labels, {left.path}, by "
            f"{', '.join(own)}: join in two steps. First what is kept by {', '.join(own)}, if "
            "anything is, then write the result by the other key, and go on with that: "
            f'labels.join(..., how="asof", ...).write(path, keys={asked!r}), and '
            f'open_shuffle(path).join(features, how="asof", ...). A number of each row, written '
            "with the labels, restores their order"
        )
        raise OptionError(msg)
    check_co_partitioned([left, right])
    return join_keys(left, right, on)


# Times --------------------------------------------------------------------------------------------


def _timed(
    left: Partitioned,
    right: Partitioned,
    request: TimeRequest,
    keys: tuple[tuple[str, str], ...],
    rule: TimeRule,
) -> AsOfSide:
    """Return a side without its columns; raises as :func:`plan_asof_join`."""
    time = request.time
    times = (time, time) if isinstance(time, str) else time
    is_pair = isinstance(times, tuple | list) and len(times) == 2
    if not is_pair or not all(isinstance(name, str) for name in times):
        msg = f"time={time!r}: expected a column, or a pair (left, right) of columns"
        raise OptionError(msg)
    types = []
    for shuffle, name in zip((left, right), times, strict=True):
        types.append(_type_of(shuffle, name, "time"))
    compared_as = _compared_as(*types)
    if compared_as is None:
        msg = (
            f"time: {times[0]!r} of {left.path} is {types[0]}, {times[1]!r} of {right.path} "
            f"{types[1]}; expected timestamps that both have a zone or have none, dates, integers "
            "with a sign, or floats, on both sides: cast one before it is written"
        )
        raise SchemaError(msg)
    if request.ties is not None:
        _check_ties(right, request.ties)
    rule = replace(rule, tolerance=_tolerance(request.tolerance, compared_as))
    return AsOfSide(keys, (times[0], times[1]), compared_as, rule, request.ties, ())


def _compared_as(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type in which times of two types are compared; None where they cannot be."""
    types = (left, right)
    if all(map(pt.is_signed_integer, types)):
        return pa.int64()
    if all(pt.is_floating(type_) for type_ in types):
        return pa.float64()
    if all(map(pt.is_timestamp, types)) and (left.tz is None) == (right.tz is None):
        units = ("s", "ms", "us", "ns")
        unit = units[max(units.index(type_.unit) for type_ in types)]
        return pa.timestamp(unit, left.tz and "UTC")
    return pa.date32() if all(map(pt.is_date32, types)) else None


def _type_of(shuffle: Partitioned, name: str, what: str) -> pa.DataType:
    try:
        select_columns(shuffle.schema, [name])
    except SchemaError as error:
        msg = f"{what}, of {shuffle.path}: {error}"
        raise SchemaError(msg) from error
    return shuffle.schema.field(name).type


def _check_ties(right: Partitioned, name: object) -> None:
    if not isinstance(name, str):
        msg = f"ties={name!r}: expected a column of {right.path}, or None"
        raise OptionError(msg)
    type_ = _type_of(right, name, "ties")
    if not any(is_ordered(type_) for is_ordered in ORDERED_TYPES):
        msg = f"ties: column {name!r} of {right.path} is {type_}, whose values have no order"
        raise SchemaError(msg)


def _tolerance(given: Any, type_: pa.DataType) -> float | None:  # noqa: ANN401
    """Return a tolerance in the unit of the times; raises OptionError for one that does not fit."""
    if given is None:
        return None
    if pt.is_timestamp(type_) or pt.is_date(type_):
        return _duration(given, type_)
    is_whole = pt.is_integer(type_)
    is_number = isinstance(given, Integral if is_whole else Real) and not isinstance(given, bool)
    try:
        number = (int if is_whole else float)(given) if is_number else -1
    except OverflowError:
        number = -1
    if number < 0 or (not is_whole and not isfinite(number)):
        kind = "a whole number" if is_whole else "a number"
        raise OptionError.of("tolerance", given, f"expected {kind}, 0 or more, as the times are")
    return number


def _duration(given: object, type_: pa.DataType) -> int:
    """Return a duration in units of a type; what is less than one makes no difference."""
    duration = DURATION.of_text("tolerance", given) if isinstance(given, str) else given
    if not isinstance(duration, timedelta) or duration < timedelta():
        problem = f"expected a timedelta, or {DURATION.expected}, since the times are {type_}"
        raise OptionError.of("tolerance", given, problem)
    if pt.is_date(type_):
        return duration.days
    # A timedelta of pandas has nanoseconds too.
    nanoseconds = (duration // timedelta(microseconds=1)) * 1000 + getattr(
        duration, "nanoseconds", 0
    )
    return nanoseconds // _NANOSECONDS[type_.unit]
