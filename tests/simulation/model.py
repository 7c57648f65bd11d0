"""The plain model: which rows a version has after a commit, and what is left of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from arrow_format.log.names import MAP_OUTPUT_DIRECTORY
from arrow_format.storage.local_dirs import root_path
from tests.simulation.explorer import Wrong
from tests.simulation.layouts import DISK, key_of
from tests.simulation.traces import files_with

if TYPE_CHECKING:
    from tests.simulation.files import Files
    from tests.simulation.observers import Rows, Seen


class Deletion(NamedTuple):
    """A deletion that was carried out."""

    receipt: str
    keys: Rows
    """Those that no commit adds after it."""
    is_only: bool
    """Whether no commit of the schedule adds one before it either, which it may not have seen."""
    unsearched: int
    """A version up to which there are rows that were not searched; 0: none."""
    searched: int
    """The version that was searched."""
    is_undone: bool
    """Whether a rollback of the schedule may have brought its rows back."""


class Left(NamedTuple):
    """What is left after the schedule and collections."""

    pending: Rows
    """Rows that wait for a flush."""
    tagged: tuple[int, ...]
    """Versions that have a tag."""
    may_be_tagged: tuple[int, ...]
    """Versions that had one at some moment; it may have been removed before, or since."""
    deletions: tuple[Deletion, ...]


def rows_after(
    rows: Rows,
    kind: str,
    given: Rows,
    contents: dict[int, set[Rows]],
    searched: tuple[int, int] | None = None,
) -> set[Rows]:
    """Return the rows that a version may have after one of these rows.

    A deletion keeps what was appended after the version that it ``searched``, whatever its value;
    the second number says up to which version there is such a row, if any.
    """
    if kind == "keep":
        return {rows}
    if kind == "append":
        return {tuple(sorted((*rows, *given)))}
    if kind in ("insert", "upsert"):  # rows that are there are refused, or replaced
        keys = {key_of(row) for row in given}
        others = tuple(row for row in rows if key_of(row) not in keys)
        is_possible = kind == "upsert" or others == rows
        return {tuple(sorted((*others, *given)))} if is_possible else set()
    if kind == "newest":  # the largest row of a key stays, if the upsert has its key
        keys = {key_of(row) for row in given}
        every = sorted((*rows, *given))
        newest = {key_of(row): row for row in every if key_of(row) in keys and row > 0}
        buried = {row for row in every if row < 0}
        left = (
            row
            for key, row in newest.items()
            if row >= max((-each for each in buried if key_of(each) == key), default=0)
        )
        others = (row for row in rows if key_of(row) not in keys and row > 0)
        return {tuple(sorted((*others, *left, *buried)))}
    if kind == "overwrite":
        return {tuple(sorted(given))}
    if kind == "rollback":
        return set(contents.get(given[0], ()))
    versions = contents if searched is None else [searched[0]]
    possible = {each for version in versions for each in contents.get(version, ())}
    after: set[Rows] = set()
    for each in possible:
        gone = Counter({row: count for row, count in Counter(each).items() if row in given})
        left = tuple(sorted((Counter(rows) - gone).elements()))
        if searched is None or searched[1] or not {*left} & {*given}:
            after.add(left)
    return after


def rows_added(contents: dict[int, set[Rows]], after: int, version: int) -> set[Rows]:
    """Return the rows that may have been added after a version, up to another.

    Those too that were deleted again: a reader of changes gets what each version has added.
    """
    paths: set[tuple[Rows, Rows]] = {(rows, ()) for rows in contents[after]}
    for number in range(after + 1, version + 1):
        paths = {
            (new, tuple(sorted((*added, *(Counter(new) - Counter(old)).elements()))))
            for old, added in paths
            for new in contents.get(number, {old})
        }
    return {added for _, added in paths}


def check_gone(rows: Rows, files: Files, anothers: tuple[str, ...] = ()) -> None:
    """Check that no file has a trace of deleted rows; these must be nowhere by chance.

    Those of another shuffle may have: they begin with some paths.
    """
    for path, row in files_with(files, rows):
        if not path.startswith(anothers):
            raise Wrong(f"row {row} was said to be gone, and {path} has it")


def roots_of_another(files: Files, first: Files, another: str) -> tuple[str, ...]:
    """Return where files of another shuffle are: its own, and the local roots of its jobs.

    It is a copy, or the original: what was there ``first`` belongs to both as far as one can see.
    """
    if not another:
        return ()
    ours, theirs = _jobs_in(first, ""), _jobs_in(files, f"{another}/")
    return (f"{another}/", *(root_path(DISK, job_id) for job_id in sorted(theirs - ours)))


def _jobs_in(files: Files, prefix: str) -> set[str]:
    above = f"{prefix}{MAP_OUTPUT_DIRECTORY}/"
    return {
        path[len(above) :].partition("/")[0] for path in files.entries if path.startswith(above)
    }


def check_repaired(
    events: list[tuple[Any, ...]], first: Seen, seen: Seen, damaged: int, given_up: set[int]
) -> None:
    """Check a log after repairs, to which rows are appended, and of which a number was damaged.

    ``first`` is what could be read before the schedule; ``given_up`` are numbers that repairs gave
    up, besides those that they have said.
    """
    given_up = given_up | {damaged}
    given_up |= {number for event in events if event[0] == "repairs" for number in event[1]}
    failed = {event[1] for event in events if event[0] == "fails"}
    begun = {event[1]: {*event[3]} for event in events if event[0] == "begins"}
    kept = {event[1] for event in events if event[0] == "is" and event[2] not in given_up}
    before = {*(first.versions.get(damaged - 1) or ())}
    sure = before.union(*(begun[op] for op in kept))
    newest = {*(first.versions.get(damaged) or ())}
    may = sure.union(newest, *(rows for op, rows in begun.items() if op not in failed))
    rows = Counter(seen.versions.get(seen.newest) or ())
    if not sure <= rows.keys() <= may or max(rows.values(), default=1) > 1:
        raise Wrong(
            f"after a repair that gave up {sorted(given_up)} version {seen.newest} has rows "
            f"{sorted(rows.elements())}, expected {sorted(sure)}, and of {sorted(may - sure)} some"
        )
    every = before.union(newest, *begun.values())
    for event in events:
        if event[0] == "reads" and not before <= {*event[2]} <= every:
            raise Wrong(f"a reader of version {event[1]} got rows {event[2]}")
