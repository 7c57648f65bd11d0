"""The plan of a join of two shuffles: the columns of its result, their sides and names. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import no_rows
from arrow_format.arrays.stored_types import same_but_labels
from arrow_format.errors import OptionError, SchemaError
from arrow_format.keys.co_partitioning import (
    Partitioned,
    check_co_partitioned,
    has_broadcast_rows,
    is_broadcast,
    partition_keys,
)
from arrow_format.operators.key_index import KeyIndex
from arrow_format.read.subpartition_reader import select_columns

JoinKind: TypeAlias = Literal[
    "inner", "left", "leftouter", "left_outer", "right", "rightouter", "right_outer", "full",
    "outer", "fullouter", "full_outer", "semi", "leftsemi", "left_semi", "anti", "leftanti",
    "left_anti", "asof",
]  # fmt: skip
"""Kinds of join as they may be given; an as-of join has a plan of its own."""

KINDS = {
    **{kind: kind for kind in ("inner", "left", "right", "full", "semi", "anti")},
    **{f"{kind}outer": kind for kind in ("left", "right", "full")},
    **{f"left{kind}": kind for kind in ("semi", "anti")},
    "outer": "full",
}
"""Kinds of join by the names that Spark has for them, without underscores."""


@dataclass(frozen=True, slots=True)
class JoinedColumn:
    """A column of the result; of both sides, it has the left value, or the right where null."""

    name: str
    left: str | None
    right: str | None


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """Which rows are joined, and which columns the result has."""

    how: str
    """inner, left, right, full, semi or anti."""
    keys: tuple[tuple[str, str], ...]
    """Pairs of columns that are equal, left and right."""
    columns: tuple[JoinedColumn, ...]

    def is_nullable(self, column: JoinedColumn, *, left: bool, right: bool) -> bool:
        """Whether a column of the result may be null, by whether that of each side may.

        A side that lacks the column does not count.
        """
        if column.right is None:
            return left or self.how in ("right", "full")
        if column.left is None:
            return right or self.how in ("left", "full")
        return left or right  # a key: every row has it from one side

    def schema(self, left: pa.Schema, right: pa.Schema) -> pa.Schema:
        """Return the schema of the result, of the stored columns of both sides."""
        fields = []
        for column in self.columns:
            sides = [
                schema.field(name)
                for schema, name in ((left, column.left), (right, column.right))
                if name is not None
            ]
            nullable = [field.nullable for field in sides]
            may_be_null = self.is_nullable(column, left=nullable[0], right=nullable[-1])
            fields.append(sides[0].with_name(column.name).with_nullable(may_be_null))
        return pa.schema(fields)

    @property
    def multiplies(self) -> bool:
        """Whether a row of the left comes once for each of the right that it matches."""
        return self.how not in ("semi", "anti")

    def keeps(self, *, left: bool) -> bool:
        """Whether rows of a side without a match are in the result."""
        return self.how in (("left", "full", "anti") if left else ("right", "full"))

    @property
    def cuts(self) -> tuple[int, ...]:
        """The sides, 0 and 1, of which each row is joined without a look at others of its side."""
        return {"inner": (0, 1), "right": (1,), "full": ()}.get(self.how, (0,))

    @property
    def why_whole(self) -> str:
        """Why a subpartition that is heavy is not read in pieces."""
        if not self.cuts:
            return "a full join keeps rows of both sides that match nothing, each once"
        if len(self.cuts) > 1:
            return "neither side alone has much more than a task should read"
        side = ("left", "right")[self.cuts[0]]
        return f"of a {self.how} join the {side} is cut, and has little there"

    def candidates(
        self, left: Sequence[int] | None, right: Sequence[int] | None
    ) -> Sequence[int] | None:
        """Return the subpartitions that the result can have rows of, ascending; None for all.

        ``left`` and ``right`` are those that each side can have rows of.
        """
        if self.how in ("left", "anti"):
            return left
        if self.how == "right":
            return right
        if self.how == "full":
            return None if left is None or right is None else sorted({*left, *right})
        if left is None or right is None:
            return right if left is None else left
        return sorted({*left} & {*right})

    def name_of(self, column: str, *, of_right: bool) -> str | None:
        """Return the name in the result of a column of one side; None if some row lacks its value.

        A key has it also where the result has the other side's column, which is equal.
        """
        sides = [
            (each.right, each.left, each.name) if of_right else (each.left, each.right, each.name)
            for each in self.columns
        ]
        has_all = self.how not in (("left", "full") if of_right else ("right", "full"))
        for own, other, name in sides:
            if own == column and (has_all or other is not None):
                return name
        if self.how != "inner":
            return None
        equal = {pair[not of_right] for pair in self.keys if pair[of_right] == column}
        return next((name for _, other, name in sides if other in equal), None)

    def sources_of(self, name: str) -> Iterator[tuple[int, str]]:
        """Yield the inputs, 0 for the left, and their columns that a column of the result is of."""
        column = next(each for each in self.columns if each.name == name)
        sides = enumerate((column.left, column.right))
        yield from ((number, column) for number, column in sides if column is not None)

    @property
    def left_columns(self) -> list[str]:
        """Columns to read on the left."""
        names = [a for a, _ in self.keys] + [c.left for c in self.columns if c.left is not None]
        return list(dict.fromkeys(names))

    @property
    def right_columns(self) -> list[str]:
        """Columns to read on the right."""
        names = [b for _, b in self.keys] + [c.right for c in self.columns if c.right is not None]
        return list(dict.fromkeys(names))


def plan_join(
    left: Partitioned,
    right: Partitioned,
    *,
    on: str | Sequence[str | tuple[str, str]] | None = None,
    how: str = "inner",
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[str] | None = None,
    suffixes: Sequence[str] | None = None,
) -> JoinPlan:
    """Plan a join of two co-partitioned shuffles.

    Columns come as Spark's ``df.join(other, on=[...])`` returns them: keys of the same name first
    and once, then the other columns of the left, then of the right. Keys of two names stay in their
    place.

    A shuffle with some broadcast rows is treated as one that is broadcast whole. Without ``on``,
    the partition keys are equal columns; they must have the same names on both sides.

    Raises OptionError where the shuffles are not co-partitioned, ``on`` lacks partition keys or is
    omitted where their names differ, an argument is malformed, or ``how`` is unknown or would
    repeat broadcast rows. Raises SchemaError where a column is missing, keys are nested or cannot
    be compared, or two columns of the result have the same name.
    """
    check_suffixes(suffixes, 2)
    kind = KINDS.get(how.lower().replace("_", "")) if isinstance(how, str) else None
    if kind is None:
        msg = f"how={how!r}: expected inner, left, right, full, semi, anti or asof"
        raise OptionError(msg)
    check_co_partitioned([left, right])
    _check_broadcast(left, right, kind)
    keys = join_keys(left, right, on)
    shared = [a for a, b in keys if a == b]
    lefts = chosen_columns(left.schema, left_columns, "left_columns", shared)
    rights = chosen_columns(right.schema, right_columns, "right_columns", shared)
    if kind in ("semi", "anti"):
        rights = []
    in_left, in_right = kind != "right", kind in ("right", "full")
    columns = [
        JoinedColumn(name, name if in_left else None, name if in_right else None) for name in shared
    ]
    (of_left, of_right) = named_columns([lefts, rights], shared, suffixes)
    columns += [JoinedColumn(called, name, None) for called, name in of_left]
    columns += [JoinedColumn(called, None, name) for called, name in of_right]
    if not columns:
        msg = "no column is selected of either side: a result needs at least one"
        raise SchemaError(msg)
    return JoinPlan(kind, keys, tuple(columns))


def _check_broadcast(left: Partitioned, right: Partitioned, how: str) -> None:
    allowed = {(False, True): ("inner", "left", "semi", "anti"), (True, False): ("inner", "right")}
    sides = (has_broadcast_rows(left), has_broadcast_rows(right))
    if not any(sides) or how in allowed.get(sides, ()):
        return
    if is_broadcast(left) and is_broadcast(right):
        msg = (
            f"{left.path} and {right.path} are both broadcast: every subpartition would return the "
            "same rows. Write one of them with keys=..., or join the DataFrames of to_spark() in "
            "Spark, each of .select(subpartitions=0)"
        )
    elif all(sides):
        msg = (
            f"{left.path} and {right.path} both have broadcast rows, which every subpartition "
            "would join again; let Spark join them as they were before they were written"
        )
    else:
        side, shuffle = ("left", left) if sides[0] else ("right", right)
        what = "is broadcast" if is_broadcast(shuffle) else "has broadcast rows"
        msg = (
            f"how={how!r}: the {side} shuffle {shuffle.path} {what}, so each subpartition would "
            f"return its unmatched rows again; allowed are {', '.join(allowed[sides])}"
        )
    raise OptionError(msg)


def check_suffixes(suffixes: object, num_sides: int) -> None:
    """Raise OptionError unless there is a suffix for each side, or None."""
    if suffixes is None:
        return
    if (
        not isinstance(suffixes, tuple | list)
        or len(suffixes) != num_sides
        or not all(isinstance(suffix, str) for suffix in suffixes)
    ):
        how_many = "two strings" if num_sides == 2 else f"{num_sides} strings, one for each side"
        msg = f'suffixes={suffixes!r}: expected {how_many}, such as ("_left", "_right"), or None'
        raise OptionError(msg)


def join_keys(
    left: Partitioned, right: Partitioned, on: str | Sequence[str | tuple[str, str]] | None
) -> tuple[tuple[str, str], ...]:
    """Return the pairs of columns that are equal, which have the partition keys of both sides.

    Raises OptionError where ``on`` lacks some, or is None and the names of keys differ; SchemaError
    where a column is missing, its values cannot be looked up, or the types of a pair differ.
    """
    keys = _key_pairs(left, right, on)
    for side, shuffle in enumerate((left, right)):
        for pair in keys:
            _check_key(shuffle, pair[side])
    for left_key, right_key in keys:
        types = left.schema.field(left_key).type, right.schema.field(right_key).type
        if not same_but_labels(*types):
            msg = (
                f"key {left_key!r} of the left is {types[0]}, {right_key!r} of the right "
                f"{types[1]}: cast one of them before it is written"
            )
            raise SchemaError(msg)
    return keys


def _key_pairs(
    left: Partitioned, right: Partitioned, on: str | Sequence[str | tuple[str, str]] | None
) -> tuple[tuple[str, str], ...]:
    needed = _needed_keys(left, right)
    if on is None:
        if not needed:
            msg = (
                "on=None: the partitioners of the shuffles do not say which columns are equal; "
                "name them, on=[...]"
            )
            raise OptionError(msg)
        _check_names_agree(left, right, needed)
        return needed
    if isinstance(on, str) and on in KINDS and on not in left.schema.names:
        msg = f"on={on!r} is a kind of join, and no column: say how={on!r}"
        raise OptionError(msg)
    pairs = given_pairs(on)
    missing = [pair for pair in needed if pair not in pairs]
    if missing and not (is_broadcast(left) or is_broadcast(right)):
        msg = (
            f"on={on!r} lacks the partition key(s) {_written(missing)} of {left.path} and "
            f"{right.path}: rows that agree on the others alone lie in different subpartitions. "
            "Add them, or join the DataFrames of to_spark() in Spark"
        )
        raise OptionError(msg)
    return pairs


def given_pairs(on: str | Sequence[str | tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the pairs (left, right) of columns that are named; raises OptionError."""
    given: Sequence[object] = on if isinstance(on, Sequence) and not isinstance(on, str) else [on]
    pairs = tuple(_pair(item) for item in given)
    if not pairs or len(set(pairs)) < len(pairs):
        msg = f"on={on!r}: expected column names or pairs (left, right), each once"
        raise OptionError(msg)
    return pairs


def _check_names_agree(
    left: Partitioned, right: Partitioned, needed: Sequence[tuple[str, str]]
) -> None:
    """Refuse to guess which columns are equal where names differ or a side lacks one."""
    for side, (shuffle, other) in enumerate(((left, right), (right, left))):
        missing = [pair[side] for pair in needed if pair[side] not in shuffle.schema.names]
        if missing:  # of a broadcast shuffle; the names are those of the other
            theirs = [pair[1 - side] for pair in needed]
            own = ["..." if pair[side] in missing else pair[side] for pair in needed]
            pairs = zip(*((theirs, own) if side else (own, theirs)), strict=True)
            msg = (
                f"on=None: {shuffle.path} has no column {', '.join(map(repr, missing))}, by which "
                f"{other.path} is partitioned: say which columns are equal, "
                f"on=[{_written(pairs)}] with columns of {shuffle.path}, which are "
                f"{', '.join(shuffle.schema.names)}"
            )
            raise OptionError(msg)
    if any(a != b for a, b in needed):
        lefts, rights = (", ".join(names) for names in zip(*needed, strict=True))
        msg = (
            f"on=None: {left.path} is partitioned by {lefts}, {right.path} by {rights}: where "
            f"names differ, say which columns are equal, on=[{_written(needed)}] if these are"
        )
        raise OptionError(msg)


def _written(pairs: Iterable[tuple[str, str]]) -> str:
    """Pairs of columns as the user would write them in ``on``."""
    return ", ".join(
        json.dumps(a, ensure_ascii=False)
        if a == b
        else f"({json.dumps(a, ensure_ascii=False)}, {json.dumps(b, ensure_ascii=False)})"
        for a, b in pairs
    )


def _pair(item: object) -> tuple[str, str]:
    if isinstance(item, str):
        return item, item
    if isinstance(item, tuple | list) and len(item) == 2 and all(isinstance(x, str) for x in item):
        return item[0], item[1]
    msg = f"on: {item!r} is neither a column name nor a pair (left, right) of them"
    raise OptionError(msg)


def _needed_keys(left: Partitioned, right: Partitioned) -> tuple[tuple[str, str], ...]:
    """Pairs of columns that decide the subpartition of a row, where the partitioners say so."""
    lefts, rights = partition_keys(left) or (), partition_keys(right) or ()
    if is_broadcast(left):
        lefts = rights
    elif is_broadcast(right):
        rights = lefts
    return tuple(zip(lefts, rights, strict=True))


def _check_key(shuffle: Partitioned, name: str) -> None:
    select_columns(shuffle.schema, [name])
    type_ = shuffle.schema.field(name).type
    if pt.is_nested(type_):
        msg = (
            f"{shuffle.path}: key {name!r} is {type_}; a nested column cannot be joined on: store "
            "its fields as columns of their own"
        )
        raise SchemaError(msg)
    keys = [no_rows(type_)]
    try:
        KeyIndex(keys).look_up(keys)
    except pa.ArrowNotImplementedError as error:
        msg = (
            f"{shuffle.path}: key {name!r} is {type_}, which cannot be looked up; cast it before "
            "it is written: float16 to float32, small decimals to decimal128"
        )
        raise SchemaError(msg) from error


def chosen_columns(
    schema: pa.Schema, columns: Sequence[str] | None, what: str, shared: Sequence[str]
) -> list[str]:
    """Columns asked for, without the shared keys."""
    if columns is not None and (
        not isinstance(columns, Sequence) or not all(isinstance(name, str) for name in columns)
    ):
        msg = f"{what}={columns!r}: expected a list of column names, or None for all"
        raise OptionError(msg)
    try:
        positions = select_columns(schema, columns)
    except SchemaError as error:
        msg = f"{what}: {error}"
        raise SchemaError(msg) from error
    names = [schema.names[i] for i in positions]
    return [name for name in names if name not in shared]


def named_columns(
    sides: Sequence[Sequence[str]], shared: Sequence[str], suffixes: Sequence[str] | None
) -> list[list[tuple[str, str]]]:
    """Return the name in the result, and the column, of the columns of each side.

    Those that several sides have get suffixes. Raises SchemaError where two get one name;
    ``shared`` are names of other columns of the result.
    """
    counts = Counter(name for names in sides for name in names)
    several = {name for name, count in counts.items() if count > 1}
    if several and suffixes is None:
        who, others, ends = "both sides", "one", '("_left", "_right")'
        if len(sides) > 2:
            who, others, ends = "several sides", "all but one", "(...), one for each side"
        msg = (
            f"{who} have {', '.join(sorted(map(repr, several)))}: leave them out of {others} with "
            f"select(...), or rename them with suffixes={ends}"
        )
        raise SchemaError(msg)
    named = [
        [(name + end * (name in several), name) for name in names]
        for names, end in zip(sides, suffixes or [""] * len(sides), strict=True)
    ]
    names = Counter([*shared, *(name for side in named for name, _ in side)])
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        msg = f"suffixes={suffixes!r}: the result would have two columns {', '.join(twice)}"
        raise SchemaError(msg)
    return named
