"""Renaming and dropping columns: the shape of a shuffle changes, and no file does."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.arrays.stored_types import missing_column
from arrow_format.errors import CommitConflictError, OptionError, SchemaError
from arrow_format.jobs.cleanup import publish
from arrow_format.keys.partitioner import as_names, key_columns, partitioner_from_description
from arrow_format.log.altered import altered
from arrow_format.log.commit_log import CommitLog, draft
from arrow_format.log.conflicts import Claims, check_needs, check_version_number
from arrow_format.read.shuffle import check_there
from arrow_format.report import Report
from arrow_format.storage.open import Place, open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.log.state import VersionShape


@dataclass(frozen=True, slots=True)
class Alteration(Report):
    """A version with the rows of the one before it, and other columns.

    .. code-block:: python

        alteration = orders.rename_columns({"price": "amount"})
        print(alteration.version, alteration.schema.names)

    Parameters
    ----------
    path
        Absolute path or URI of the shuffle.
    version
        The new version.
    schema
        Its columns.
    """

    path: str
    version: int
    schema: pa.Schema

    def _lines(self) -> Iterator[str]:
        yield f"{self.path}: version {self.version} has the columns {', '.join(self.schema.names)}"


def rename_columns(
    path: Place,
    names: Mapping[str, str],
    *,
    expected_version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Alteration:
    """Give columns other names; no file is written, read or moved.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.rename_columns`.
    """
    return alter_columns(
        path, rename=names, expected_version=expected_version, storage_options=storage_options
    )


def drop_columns(
    path: Place,
    names: str | Sequence[str],
    *,
    expected_version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Alteration:
    """Take columns out of a shuffle; no file is written, read or moved.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.drop_columns`.
    """
    return alter_columns(
        path,
        drop=as_names(names, "names"),
        expected_version=expected_version,
        storage_options=storage_options,
    )


def alter_columns(
    path: Place,
    *,
    rename: Mapping[str, str] | None = None,
    drop: Sequence[str] = (),
    expected_version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Alteration:
    """Rename and drop columns as one version; see :func:`rename_columns`, :func:`drop_columns`."""
    check_version_number(expected_version)
    names = _checked_names(rename or {})
    if not names and not drop:
        msg = "no column is to be renamed or dropped; give one"
        raise OptionError(msg)
    storage = open_storage(path, storage_options)
    check_there(storage)
    log = CommitLog(storage)
    meant: dict[str, int] | None = None

    def decide(view: LogView) -> LogEntry:
        nonlocal meant
        check_needs("alter", log, view, Claims(expected_version))
        shape = view.state.shape
        assert shape is not None  # since there is a version
        for problem in _problems(shape, names, drop):
            msg = f"{storage.root}: {problem}; nothing was changed"
            raise SchemaError(msg)
        ids = shape.columns.by_name
        named = {name: ids[name] for name in (*names, *drop)}
        if meant not in (None, named):
            raise altered_meanwhile(storage.root, named)
        meant = named
        return draft(view, "alter", state={"shape": altered(shape, names, drop)})

    entry = publish(log, decide, "the columns were altered")
    return Alteration(storage.root, entry.version, entry.data_schema)


def altered_meanwhile(root: str, names: Iterable[str]) -> CommitConflictError:
    """Return the error of names that mean other columns now than when an operation began."""
    return CommitConflictError(
        f"{root}: another writer altered the columns {', '.join(names)} meanwhile; nothing was "
        "changed. Look at the newest version, then try again"
    )


def _checked_names(names: Mapping[str, str]) -> dict[str, str]:
    given = dict(names)
    if not all(_is_name(name) for pair in given.items() for name in pair):
        msg = f"names={names!r}: expected new names of columns by their old ones"
        raise OptionError(msg)
    return given


def _is_name(name: object) -> bool:
    """Whether it is a text, not empty and without half a surrogate pair, which UTF-8 lacks."""
    return isinstance(name, str) and bool(name) and not re.search("[\ud800-\udfff]", name)


def _problems(
    shape: VersionShape, names: Mapping[str, str], dropped: Sequence[str]
) -> Iterator[str]:
    """Yield why columns of a shape cannot be renamed and dropped, if anything."""
    there = shape.data_schema.names
    for name in (*names, *dropped):
        if name not in there:
            yield missing_column(name, there)
    for name in names:
        if name in dropped:
            yield f"column {name!r} cannot be renamed and dropped at once"
    keys = key_columns(partitioner_from_description(shape.partitioner))
    if keys is None:
        yield (
            f"rows are placed by a partitioner of your own ({shape.partitioner['kind']!r}), which "
            "may name any column: overwrite the shuffle with the columns that it should have"
        )
    fixed = {
        **dict.fromkeys(shape.combine, "is combined"),
        **dict.fromkeys((name for name, _ in shape.sort_by), "is a sort key"),
        **dict.fromkeys(shape.unique_names, "is one of those that identify a row"),
        **({shape.sequence_name: "says which change is the newest"} if shape.sequence_name else {}),
        **dict.fromkeys(keys or (), "decides the subpartition of each row"),
    }
    for name in dropped:
        if name in fixed:
            yield f"column {name!r} {fixed[name]}, and cannot be dropped"
    left = [names.get(name, name) for name in there if name not in dropped]
    if not left:
        yield "no column would be left"
    new = [name.lower() for name in {*names.values()}]
    times = Counter(name.lower() for name in left)
    if any(times[name] > 1 for name in new):  # Spark tells no two columns apart by case
        twice = [name for name in left if times[name.lower()] > 1]
        yield f"two columns would have one name but for case: {', '.join(map(repr, twice))}"
