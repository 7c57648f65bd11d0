"""Ids of columns at every depth, which tell a column from others that had its name; pure.

Ids of a schema are listed depth first: each column, then what is inside it. An id is given once:
see ``docs/format/reading.md``. What is read from a file is called by the names of its version, so
that nothing but this module knows that the names in the file may be others.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import pyarrow as pa
from pyarrow import types as pt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

MAX_COLUMN_ID = (1 << 31) - 1

Path: TypeAlias = tuple[str, ...]
"""Names from a column down to what is inside it."""


class Columns(NamedTuple):
    """A schema with the ids of its columns."""

    schema: pa.Schema
    ids: tuple[int, ...]
    """Depth first; as many as :func:`paths_of` yields."""

    @property
    def by_path(self) -> dict[Path, int]:
        """The id of each column, and of all inside it."""
        return dict(zip(paths_of(self.schema), self.ids, strict=True))

    @property
    def by_name(self) -> dict[str, int]:
        """The id of each column, in order."""
        return {path[0]: id_ for path, id_ in self.by_path.items() if len(path) == 1}

    def only(self, names: Iterable[str]) -> Columns:
        """Return some of the columns, in the order of their names."""
        names = [*names]
        schema = pa.schema([self.schema.field(name) for name in names])
        by_path = self.by_path
        return Columns(schema, tuple(by_path[path] for path in paths_of(schema)))


NO_COLUMNS = Columns(pa.schema([]), ())


def paths_of(schema: pa.Schema) -> Iterator[Path]:
    """Yield the path of each column and of all that is inside it, depth first."""
    for field in schema:
        yield from _paths(field.type, (field.name,))


def _paths(type_: pa.DataType, path: Path) -> Iterator[Path]:
    yield path
    if pt.is_struct(type_):
        for child in type_:
            yield from _paths(child.type, (*path, child.name))
    elif pt.is_map(type_):
        yield from _paths(type_.key_type, (*path, "key"))
        yield from _paths(type_.item_type, (*path, "value"))
    elif pt.is_list(type_) or pt.is_fixed_size_list(type_):
        yield from _paths(type_.value_type, (*path, "item"))


def give_ids(schema: pa.Schema, known: Iterable[Columns], last: int) -> Columns:
    """Return a schema with ids: those of the first of ``known`` with the same path, or new ones.

    New ones ascend from the one after ``last``.
    """
    given: dict[Path, int] = {}
    for columns in reversed([*known]):
        given |= columns.by_path
    new = count(last + 1)
    return Columns(
        schema, tuple(given[path] if path in given else next(new) for path in paths_of(schema))
    )


def problem_of_ids(columns: Columns) -> str | None:
    """Return what is wrong with ids that were read, if anything."""
    schema, ids = columns
    expected = sum(1 for _ in paths_of(schema))
    if len(ids) != expected:
        return f"there are {len(ids)} ids of {expected} columns"
    if len(set(ids)) < len(ids):
        return "two columns have one id"
    if ids and not (min(ids) >= 1 and max(ids) <= MAX_COLUMN_ID):
        return f"an id of a column is not from 1 to {MAX_COLUMN_ID}"
    return None


def names_in(stored: Columns, version: Columns) -> dict[str, str]:
    """Return what the columns of a file, or of an earlier version, are called in a version.

    Those that the version lacks get names that none of its columns has.
    """
    of_version = {id_: name for name, id_ in version.by_name.items()}
    taken = {*version.schema.names}
    names = {}
    for name, id_ in stored.by_name.items():
        if id_ in of_version:
            names[name] = of_version[id_]
            continue
        unused = f"{name} (dropped)"
        while unused in taken:
            unused += "'"
        taken.add(unused)
        names[name] = unused
    return names


def renamed(schema: pa.Schema, names: Mapping[str, str]) -> pa.Schema:
    """Return a schema with other names of columns."""
    return pa.schema([field.with_name(names.get(field.name, field.name)) for field in schema])


def inside_is_alike(stored: Columns, version: Columns) -> bool:
    """Whether what is inside the columns that both have has the same ids in both."""
    theirs = _insides(version)
    return all(inside == theirs.get(id_, inside) for id_, inside in _insides(stored).items())


def _insides(columns: Columns) -> dict[int, Sequence[int]]:
    insides: dict[int, list[int]] = {}
    current: list[int] = []
    for path, id_ in columns.by_path.items():
        if len(path) == 1:
            current = insides.setdefault(id_, [])
        else:
            current.append(id_)
    return {id_: inside for id_, inside in insides.items() if inside}
