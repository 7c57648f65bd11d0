"""Calls of a user's function for each group of rows with equal keys, in the task that reads them.

What is done for all groups of a block is done for whole columns; a group costs a slice and the
call.
"""

from __future__ import annotations

import collections.abc
import inspect
import re
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from arrow_format.arrays.batches import BATCH_BYTES, BATCH_ROWS, copied
from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.conversion import key_text
from arrow_format.arrays.selection import joined, take
from arrow_format.arrays.stored_types import conform, in_time_zone
from arrow_format.errors import OptionError, SchemaError
from arrow_format.keys.key_numbers import key_numbers
from arrow_format.operators.groups import GroupBlock, cogrouped_blocks, grouped_blocks
from arrow_format.operators.results import fitted, noted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.model import Int64Array
    from arrow_format.operators.inputs import Input
    from arrow_format.operators.placement import Result

    GroupResult = tuple[Int64Array, Int64Array, pa.RecordBatch]
    """Numbers of groups in a block, how many rows each has, and these rows."""


@dataclass(frozen=True)
class Form:
    """What a function of a group takes."""

    takes_key: bool
    takes: Literal["frame", "frames", "table"]


def form_of(function: Any, num_sides: int = 1) -> Form:  # noqa: ANN401
    """Return what a function takes, by its parameters and their annotations; raises OptionError.

    Of a cogroup, of two sides, it takes the rows of both.
    """
    rows = "frame" if num_sides == 1 else "left, right"
    if not callable(function):
        msg = f"function is {type(function).__name__}: expected a callable({rows}) or (key, {rows})"
        raise OptionError(msg)
    try:
        signature = inspect.signature(function)
    except ValueError as error:  # of some that are written in C
        msg = (
            f"function is {function!r}, which does not say what it takes: expected a function("
            f"{rows}) or function(key, {rows}), such as a lambda that calls it"
        )
        raise OptionError(msg) from error
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    if len(parameters) - num_sides not in (0, 1):
        msg = (
            f"function takes {len(parameters)} arguments: expected function({rows}) or "
            f"function(key, {rows})"
        )
        raise OptionError(msg)
    while isinstance(function, partial):
        function = function.func
    takes_key, of_rows = len(parameters) > num_sides, parameters[-1]
    hints = {of_rows.name: of_rows.annotation, "return": signature.return_annotation}
    if any(isinstance(annotation, str) for annotation in hints.values()):
        # One that only a type checker imports.
        with suppress(NameError, AttributeError, KeyError, TypeError):
            method = function if inspect.isroutine(function) else type(function).__call__
            hints |= typing.get_type_hints(method)
    given = hints[of_rows.name]
    if given in (pa.Table, "pa.Table", "pyarrow.Table"):
        return Form(takes_key, "table")
    if _is_iterator_of(given, "RecordBatch"):
        msg = (
            "function takes an iterator of pyarrow.RecordBatch: expected a pyarrow.Table, an "
            "iterator of pandas.DataFrame, or a frame; map_subpartitions hands over batches"
        )
        raise OptionError(msg)
    # As applyInPandas decides: by both, and from the annotations alone.
    if _is_iterator_of(given, "DataFrame") and _is_iterator_of(hints["return"], "DataFrame"):
        return Form(takes_key, "frames")
    return Form(takes_key, "frame")


def _is_iterator_of(annotation: Any, kind: str) -> bool:  # noqa: ANN401
    """Whether an annotation is an iterator of a class of that name; text may not be resolved."""
    if isinstance(annotation, str):
        return re.fullmatch(rf"([\w.]+\.)?Iterator\[([\w.]+\.)?{kind}\]", annotation) is not None
    items = typing.get_args(annotation)
    return (
        typing.get_origin(annotation) is collections.abc.Iterator
        and len(items) == 1
        and getattr(items[0], "__name__", None) == kind
    )


@dataclass(frozen=True)
class OtherSide:
    """The right side of a cogroup."""

    rows: Input
    columns: tuple[str, ...]
    """Read, the keys among them."""
    keys: tuple[str, ...]


@dataclass(frozen=True)
class EachGroup:
    """Reads subpartitions, and yields what the function returns for each of their groups."""

    rows: Input
    columns: tuple[str, ...]
    sort_by: SortBy
    call: GroupCall
    time_zone: str | None
    """Of the timestamps that the function reads; as they are stored when None."""
    keeps_keys: bool = False
    """Whether each row of a result must have the key of its group."""
    other: OtherSide | None = None
    """The right side of a cogroup."""

    def __call__(self, subpartitions: Sequence[int]) -> Generator[Result]:
        """Yield the results, each row with the subpartition of its group."""
        rows, keys = self.rows, self.call.form.keys
        place = rows.partitioner.bind(rows.schema_of(keys), rows.num_subpartitions, 0)  # type: ignore[union-attr]
        with closing(self._blocks(subpartitions)) as blocks:
            for block in blocks:
                firsts = block.keys(keys)
                ids = np.asarray(place(firsts), np.int32)
                for groups, counts, batch in self.call.results(self._zoned(block)):
                    if self.keeps_keys:
                        self._check_keys(firsts, groups, counts, batch)
                    yield np.repeat(ids[groups], counts), batch
                del block  # before the next is read

    def _blocks(self, subpartitions: Sequence[int]) -> Generator[GroupBlock]:
        keys, other = self.call.form.keys, self.other
        if other is None:
            return grouped_blocks(
                self.rows, keys, self.columns, subpartitions, sort_by=self.sort_by
            )
        columns = self.columns, other.columns
        return cogrouped_blocks((self.rows, other.rows), (keys, other.keys), columns, subpartitions)

    def _zoned(self, block: GroupBlock) -> GroupBlock:
        """Return a block with the timestamps that the function reads."""
        batch = self._in_zone(block.batch, self.rows, self.columns)
        other, of_groups = block.other, block.of_groups
        if other is not None and self.other is not None:
            other = self._in_zone(other[0], self.other.rows, self.other.columns), other[1]
        if of_groups is not None:
            of_groups = self._in_zone(of_groups, self.rows, self.call.form.keys)
        return GroupBlock(batch, block.starts, other, of_groups)

    def _in_zone(
        self, batch: pa.RecordBatch, rows: Input, columns: Sequence[str]
    ) -> pa.RecordBatch:
        schema = rows.schema_of(columns)
        return conform(
            batch, schema if self.time_zone is None else in_time_zone(schema, self.time_zone)
        )

    def _check_keys(
        self, firsts: pa.RecordBatch, groups: Int64Array, counts: Int64Array, made: pa.RecordBatch
    ) -> None:
        """Raise SchemaError for a row that has another key than its group."""
        form, group_of = self.call.form, np.repeat(groups, counts)
        wanted = take(firsts, to_arrow(group_of))
        pairs = [
            pa.concat_arrays([wanted[name], made[name].cast(wanted[name].type)])
            for name in form.keys
        ]
        numbers, _ = key_numbers(pairs)
        differ = np.flatnonzero(numbers[: len(group_of)] != numbers[len(group_of) :])
        if len(differ):
            row = int(differ[0])
            msg = (
                f"a row of the group {key_text(wanted, form.keys, row)} of {form.path} has "
                f"{key_text(made, form.keys, row)}: rows of groups that are replaced must have the "
                "key of their group. If the key was NaN: pandas returns NaN as a null; let the "
                "function take and return a pyarrow.Table"
            )
            raise SchemaError(msg)


@dataclass(frozen=True)
class GroupsForm:
    """What a call per group is given, and what it returns."""

    path: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    takes_key: bool
    takes_frames: bool
    """Whether rows come as an iterator of frames, and results as another."""
    schema: pa.Schema
    other_columns: tuple[str, ...] = ()
    """Of the right side of a cogroup."""

    def where(self, block: GroupBlock, group: int) -> str:
        """Return the name of a group for messages."""
        key = key_text(block.keys(self.keys), self.keys, group)
        return f"the group {key} of {self.path}"


class GroupCall(ABC):
    """Calls a user's function for each group of a block."""

    form: GroupsForm

    @abstractmethod
    def results(self, block: GroupBlock) -> Iterator[GroupResult]:
        """Yield the rows of some groups; each group once, if it has any."""


@dataclass(frozen=True)
class TableCall(GroupCall):
    """Calls a function of a table of PyArrow."""

    form: GroupsForm
    function: Callable[..., Any]

    def results(self, block: GroupBlock) -> Iterator[GroupResult]:
        """Yield results as :class:`GroupCall` says."""
        form, starts = self.form, block.starts.tolist()
        rows = pa.Table.from_batches([block.batch.select(form.columns)])
        keys = block.keys(form.keys).columns if form.takes_key else []
        if block.other is not None:
            others = pa.Table.from_batches([block.other[0].select(form.other_columns)])
            other_starts = block.other[1].tolist()
        groups: list[int] = []
        counts: list[int] = []
        made: list[pa.RecordBatch] = []
        num_rows = num_bytes = 0
        for group, (start, stop) in enumerate(pairwise(starts)):
            given = [rows.slice(start, stop - start)]
            if block.other is not None:
                first, end = other_starts[group], other_starts[group + 1]
                given.append(others.slice(first, end - first))
            if form.takes_key:
                given.insert(0, tuple(column[group] for column in keys))
            with noted("map_groups", partial(form.where, block, group)):
                table = called(self.function, given, pa.Table)
                where = form.where(block, group) if not table.schema.equals(form.schema) else ""
                batches = table.to_batches() if table.num_columns or table.num_rows else []
                fitting = [fitted(batch, form.schema, where) for batch in batches]
            if table.num_rows:
                groups.append(group)
                counts.append(table.num_rows)
                num_rows += table.num_rows
                num_bytes += table.nbytes
            is_full = num_rows >= BATCH_ROWS or num_bytes >= BATCH_BYTES or group + 2 == len(starts)
            # The function may change its buffers in the next call, and a slice would pin all rows.
            made += map(copied, fitting)
            if is_full and num_rows:
                yield np.array(groups), np.array(counts), joined(made)
                groups, counts, made = [], [], []
                num_rows = num_bytes = 0


def called(function: Callable[..., Any], given: list[Any], expected: type) -> Any:  # noqa: ANN401
    """Call a function of the user; raises SchemaError where the result is of another class."""
    try:
        result = function(*given)
    except StopIteration as error:
        msg = "the function raised StopIteration; catch it, where it is the end of an iterator"
        raise RuntimeError(msg) from error
    check_kind("returned", result, expected)
    return result


def check_kind(did: str, result: object, expected: type) -> None:
    """Raise SchemaError unless what a function ``did`` is of a class."""
    if not isinstance(result, expected):
        kind = "None" if result is None else f"a {type(result).__name__}"
        package = expected.__module__.partition(".")[0]
        wanted = f"a {package}.{expected.__name__}"
        if expected is Iterable:
            wanted = "an iterator of pandas.DataFrame, as it is annotated"
        msg = f"the function {did} {kind}: expected {wanted}"
        raise SchemaError(msg)
