"""What a join of two shuffles gives: which columns, from which side, under which names. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
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
    "left_anti",
]  # fmt: skip
"""Kinds of join as they may be given."""

KINDS = {
    "inner": "inner",
    "left": "left",
    "leftouter": "left",
    "right": "right",
    "rightouter": "right",
    "full": "full",
    "outer": "full",
    "fullouter": "full",
    "semi": "semi",
    "leftsemi": "semi",
    "anti": "anti",
    "leftanti": "anti",
}
"""Kinds of join by the names that Spark has for them; underscores make no difference."""


@dataclass(frozen=True, slots=True)
class JoinedColumn:
    """A column of the result; of both sides, it is the left's value or else the right's."""

    name: str
    left: str | None
    right: str | None


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """A join."""

    how: str
    """inner, left, right, full, semi or anti."""
    keys: tuple[tuple[str, str], ...]
    """Pairs of columns that are equal, left and right."""
    columns: tuple[JoinedColumn, ...]

    def keeps(self, *, left: bool) -> bool:
        """Whether rows of a side that match nothing are in the result."""
        return self.how in (("left", "full", "anti") if left else ("right", "full"))

    @property
    def left_columns(self) -> list[str]:
        """Columns to read on the left."""
        read = [a for a, _ in self.keys] + [c.left for c in self.columns if c.left is not None]
        return list(dict.fromkeys(read))

    @property
    def right_columns(self) -> list[str]:
        """Columns to read on the right."""
        read = [b for _, b in self.keys] + [c.right for c in self.columns if c.right is not None]
        return list(dict.fromkeys(read))


def plan_join(
    left: Partitioned,
    right: Partitioned,
    *,
    on: str | Sequence[str | tuple[str, str]] | None = None,
    how: str = "inner",
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[str] | None = None,
    suffixes: tuple[str, str] | None = None,
) -> JoinPlan:
    """Plan a join of two co-partitioned shuffles.

    Columns come as Spark's ``df.join(other, on=[...])`` gives them: keys of one name first and
    once, then what is left of the left, then of the right. Keys of two names stay where they are.

    A shuffle of which some rows are broadcast is taken as one that is broadcast whole. Without
    ``on``, the partition keys are equal columns; they must have the same names on both sides.

    Raises
    ------
    OptionError
        The shuffles are not co-partitioned, ``on`` lacks partition keys or is left out where their
        names differ, an argument is of another form, or ``how`` is no kind of join or gives
        broadcast rows more than once.
    SchemaError
        A column is not there, keys have types that differ by more than a time zone's name, are
        nested or cannot be looked up, or two columns of the result have one name.
    """
    _check_suffixes(suffixes)
    kind = KINDS.get(how.lower().replace("_", "")) if isinstance(how, str) else None
    if kind is None:
        msg = f"how={how!r}: expected inner, left, right, full, semi or anti"
        raise OptionError(msg)
    check_co_partitioned([left, right])
    _check_broadcast(left, right, kind)
    keys = _join_keys(left, right, on)
    for side, shuffle in enumerate((left, right)):
        for pair in keys:
            _check_key(shuffle, pair[side])
    for one, other in keys:
        types = left.schema.field(one).type, right.schema.field(other).type
        if not same_but_labels(*types):
            msg = (
                f"key {one!r} of the left is {types[0]}, {other!r} of the right {types[1]}: cast "
                "one of them before it is written"
            )
            raise SchemaError(msg)
    shared = [a for a, b in keys if a == b]
    lefts = _chosen(left.schema, left_columns, "left_columns", shared)
    rights = _chosen(right.schema, right_columns, "right_columns", shared)
    if kind in ("semi", "anti"):
        rights = []
    columns = [_key_column(name, kind) for name in shared]
    columns += _named(lefts, rights, shared, suffixes)
    if not columns:
        msg = "left_columns and right_columns are empty: a result needs at least one column"
        raise SchemaError(msg)
    return JoinPlan(kind, keys, tuple(columns))


def _check_broadcast(left: Partitioned, right: Partitioned, how: str) -> None:
    allowed = {(False, True): ("inner", "left", "semi", "anti"), (True, False): ("inner", "right")}
    sides = (has_broadcast_rows(left), has_broadcast_rows(right))
    if not any(sides) or how in allowed.get(sides, ()):
        return
    if is_broadcast(left) and is_broadcast(right):
        msg = (
            f"{left.path} and {right.path} are both broadcast: every subpartition would give the "
            "same rows. Read one of them with read_shuffle(..., subpartitions=0)"
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
            f"give its unmatched rows again; allowed are {', '.join(allowed[sides])}"
        )
    raise OptionError(msg)


def _check_suffixes(suffixes: object) -> None:
    if suffixes is None:
        return
    if (
        not isinstance(suffixes, tuple | list)
        or len(suffixes) != 2
        or not all(isinstance(one, str) for one in suffixes)
    ):
        msg = f'suffixes={suffixes!r}: expected two texts, such as ("_left", "_right"), or None'
        raise OptionError(msg)


def _join_keys(
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
    given: Iterable[object] = [on] if isinstance(on, str) else on
    if not isinstance(given, Iterable):
        given = [given]
    pairs = tuple(_pair(one) for one in given)
    if not pairs or len(set(pairs)) < len(pairs):
        msg = f"on={on!r}: expected column names or pairs (left, right), each of them once"
        raise OptionError(msg)
    missing = [pair for pair in needed if pair not in pairs]
    if missing and not (is_broadcast(left) or is_broadcast(right)):
        msg = (
            f"on={on!r} lacks the partition key(s) {_written(missing)}: rows that agree on the "
            "others alone lie in different subpartitions. Add them, or let Spark join what "
            "read_shuffle gives"
        )
        raise OptionError(msg)
    return pairs


def _check_names_agree(
    left: Partitioned, right: Partitioned, needed: Sequence[tuple[str, str]]
) -> None:
    """Refuse to take columns of two names, or of one side only, for equal ones."""
    for side, (one, other) in enumerate(((left, right), (right, left))):
        missing = [pair[side] for pair in needed if pair[side] not in one.schema.names]
        if missing:  # of a broadcast shuffle; the names are those of the other
            theirs = [pair[1 - side] for pair in needed]
            own = ["..." if pair[side] in missing else pair[side] for pair in needed]
            pairs = zip(*((theirs, own) if side else (own, theirs)), strict=True)
            msg = (
                f"on=None: {one.path} has no column {', '.join(map(repr, missing))}, by which "
                f"{other.path} is partitioned: say which columns are equal, "
                f"on=[{_written(pairs)}] with columns of {one.path}, which are "
                f"{', '.join(one.schema.names)}"
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
    """Pairs of columns as they are given to ``on``."""
    return ", ".join(
        json.dumps(a, ensure_ascii=False)
        if a == b
        else f"({json.dumps(a, ensure_ascii=False)}, {json.dumps(b, ensure_ascii=False)})"
        for a, b in pairs
    )


def _pair(one: object) -> tuple[str, str]:
    if isinstance(one, str):
        return one, one
    if isinstance(one, tuple | list) and len(one) == 2 and all(isinstance(x, str) for x in one):
        return one[0], one[1]
    msg = f"on: {one!r} is neither a column name nor a pair (left, right) of them"
    raise OptionError(msg)


def _needed_keys(left: Partitioned, right: Partitioned) -> tuple[tuple[str, str], ...]:
    """Pairs of columns that decide the subpartition of a row, as far as that is known."""
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
            "what is in it as columns of their own"
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


def _chosen(
    schema: pa.Schema, columns: Sequence[str] | None, what: str, shared: Sequence[str]
) -> list[str]:
    """Columns asked for, but for those that come as shared keys anyhow."""
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


def _key_column(name: str, how: str) -> JoinedColumn:
    return JoinedColumn(
        name, None if how == "right" else name, name if how in ("right", "full") else None
    )


def _named(
    lefts: Sequence[str],
    rights: Sequence[str],
    shared: Sequence[str],
    suffixes: tuple[str, str] | None,
) -> list[JoinedColumn]:
    """Name the columns of one side each; those of one name get suffixes."""
    both = set(lefts) & set(rights)
    if both and suffixes is None:
        msg = (
            f"both sides have {', '.join(sorted(map(repr, both)))}: leave them out of left_columns "
            'or right_columns, or name them apart with suffixes=("_left", "_right")'
        )
        raise SchemaError(msg)
    ends = suffixes or ("", "")
    named = [JoinedColumn(name + ends[0] * (name in both), name, None) for name in lefts]
    named += [JoinedColumn(name + ends[1] * (name in both), None, name) for name in rights]
    names = [*shared, *(column.name for column in named)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        msg = f"suffixes={suffixes!r}: the result would have two columns {', '.join(twice)}"
        raise SchemaError(msg)
    return named
