"""What a commit may follow, whatever was committed since it began: the rules of all operations.

A commit decides by the newest entry, and decides again when another writer takes its number. So it
is rebased over any other commit that leaves what it needs. :data:`NEEDS` says what each operation
needs, :data:`BROKEN_BY` what takes that away; ``docs/guide/long-lived-tables.md`` has both as one
table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from arrow_format.arrays.buffers import to_numpy
from arrow_format.errors import CommitConflictError
from arrow_format.log.result import released_error
from arrow_format.model import MAX_INTEGER
from arrow_format.options import check_integer

if TYPE_CHECKING:
    from arrow_format.log.outputs import MapOutputs
    from arrow_format.log.reader import LogReader, LogView


class Need(Enum):
    """What an operation needs of the log when it is committed."""

    EXPECTED = "no rows were added or taken away after `expected_version`, if that is given"
    SHAPE = "its rows fit the newest version"
    PENDING_SHAPE = "its rows fit those that wait to be flushed"
    RESULT = "the result was not released as a whole"
    INPUTS = (
        "the map outputs that it replaces are in the newest version, and no other rows of them are "
        "masked"
    )
    SOURCE = "the version that it names has not expired, and was not released"
    DELETIONS = "no rows were deleted after that version, unless deletions may be undone"
    FLUSHED = "no commit of a stream waits to be flushed"
    NAME = "no version has its name"
    COLUMNS = "the columns that it names are there, and are the same"


NEEDS: dict[str, tuple[Need, ...]] = {
    "append": (Need.EXPECTED, Need.SHAPE),
    "upsert": (Need.EXPECTED, Need.SHAPE),
    "overwrite": (Need.EXPECTED, Need.PENDING_SHAPE),
    "merge": (Need.EXPECTED, Need.RESULT, Need.INPUTS),
    "delete": (Need.EXPECTED, Need.RESULT, Need.INPUTS),
    "rollback": (Need.EXPECTED, Need.SOURCE, Need.DELETIONS, Need.FLUSHED),
    "alter": (Need.EXPECTED, Need.RESULT, Need.FLUSHED, Need.COLUMNS),
    "rescale": (Need.EXPECTED, Need.RESULT),
    "release": (Need.EXPECTED,),
    "expire": (),
    "tag": (Need.SOURCE, Need.NAME),
}
"""What each operation needs; it is rebased over all that leaves this."""

BROKEN_BY: dict[Need, tuple[str, ...]] = {
    Need.EXPECTED: ("append", "upsert", "overwrite", "delete", "rollback", "release", "alter"),
    Need.SHAPE: ("overwrite", "rollback", "alter"),
    Need.PENDING_SHAPE: ("pending",),
    Need.RESULT: ("release",),
    Need.INPUTS: ("overwrite", "upsert", "merge", "delete", "rollback", "release"),
    Need.SOURCE: ("expire", "release"),
    Need.DELETIONS: ("delete",),
    Need.FLUSHED: ("pending",),
    Need.NAME: ("tag",),
    Need.COLUMNS: ("alter",),
}
"""Operations of other writers that may take away what one needs. A merge or deletion does so only
where it replaced the same map outputs, an overwrite or pending rows where their shape is another,
an alteration where a column of the rows, or one that it names, was altered, a release where it
released the version, an expiry where that expired, and a tag of the same name."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What a commit relies on."""

    expected_version: int | None = None
    """The newest version that the writer knows; None: it does not ask."""
    source: int | None = None
    """The version that it names."""
    undo_deletions: bool = False
    """Whether rows may come back that were deleted after that version."""


def check_needs(operation: str, log: LogReader, view: LogView, claims: Claims) -> None:
    """Raise where a commit cannot follow the newest entry of a log.

    Inputs are checked by :func:`check_inputs`, which takes longer. Shapes are checked with the job,
    by :func:`arrow_format.jobs.target.check_target`, columns by
    :func:`arrow_format.jobs.alter.alter_columns`, and the name by
    :func:`arrow_format.jobs.tags.tag_shuffle`.

    Raises CommitConflictError where the expected version was followed by one that changed rows, or
    is not there; and where commits wait to be flushed, or rows were deleted after the version that
    it names. Raises ShuffleNotFoundError where that version has expired, or is not there;
    ResultReleasedError, of that kind, where it was released.
    """
    needs = NEEDS[operation]
    if Need.EXPECTED in needs:
        check_expected(log, view, claims.expected_version)
    if Need.RESULT in needs and (view.state.is_ended or not view.state.version):
        msg = f"{log.root}: the shuffle was removed or released; nothing was committed"
        raise CommitConflictError(msg)
    if Need.SOURCE in needs and claims.source is not None:
        _check_source(log, view, claims.source)
    if Need.DELETIONS in needs and not claims.undo_deletions:
        _check_deletions(log.root, view, claims.source)
    if Need.FLUSHED in needs and view.state.pending.numbers:
        msg = (
            f"{log.root}: {len(view.state.pending.numbers)} commit(s) of a stream wait to be "
            "flushed, and would be added to what this puts in the place of all rows; nothing was "
            f"changed. Stop the stream, flush them (arrow-shuffle flush {log.root}), and try again"
        )
        raise CommitConflictError(msg)


def check_version_number(expected_version: int | None) -> int | None:
    """Return an expected version that may be one; raises OptionError."""
    if expected_version is None:
        return None
    return check_integer("expected_version", expected_version, 0, MAX_INTEGER, "a version")


def check_expected(log: LogReader, view: LogView, version: int | None) -> None:
    """Raise CommitConflictError if rows were added or taken away after an expected version.

    Also where that version is not there; 0 expects that there is none yet.
    """
    state = view.state
    if version is None or version == state.version:
        return
    if version == 0:
        problem = f"means that there is none yet, and the newest is {state.version}"
    elif version < view.oldest and state.version:
        problem = f"has expired, the oldest is {view.oldest}"
    elif version < state.changed:
        problem = f"was followed by version {state.changed}, which changed rows"
    elif version < state.version and log.record(version).is_version:
        return
    else:
        problem = f"is not there, the newest is {state.version}"
    msg = (
        f"{log.root}: expected_version={version}: version {version} {problem}; nothing was "
        "committed. Read the newest version and decide again"
    )
    raise CommitConflictError(msg)


def check_inputs(root: str, current: MapOutputs, inputs: MapOutputs) -> None:
    """Raise where the newest version does not have all that a commit replaces, as that was.

    ``current`` are its map outputs. Raises CommitConflictError.
    """
    # By their places too: what was rolled back to has another place in reading order.
    missing = np.flatnonzero(~to_numpy(pc.is_in(inputs.places, current.places)))
    if len(missing):
        job_id, task, *_ = inputs.places[int(missing[0])].as_py().split("/")
        msg = (
            f"{root}: map output {task} of job {job_id} is not part of the newest version any "
            "more, or has other rows: another writer overwrote, merged, deleted rows of, rolled "
            "back or released the shuffle meanwhile. Nothing was changed; try again if that is "
            "still wanted"
        )
        raise CommitConflictError(msg)


def _check_deletions(root: str, view: LogView, source: int | None) -> None:
    deleted = view.state.deleted
    if source is None or source >= deleted:
        return
    msg = (
        f"{root}: version {deleted} is that of a deletion of rows, which version {source} may "
        f"still have; nothing was changed. Roll back to a version from {deleted} on, or let the "
        "rows come back with undo_deletions=True (--undo-deletions): no receipt from before then "
        "says that they are gone, so delete them again afterwards"
    )
    raise CommitConflictError(msg)


def _check_source(log: LogReader, view: LogView, version: int) -> None:
    released = view.state.released
    if released is not None and (version <= released.through or version <= view.state.ended):
        raise released_error(log.root, released)
    if log.tag_of(view, version) is None:
        log.entry_at(view, version)  # raises where it has expired, or is no version
