"""Opens the rows that were added to a shuffle after one of its versions.

Apart from ``shuffle`` because it is a public entry of its own, which most readers never load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.errors import ShuffleNotFoundError
from arrow_format.log.changes import OVERWRITES, changes_of, plan_changes
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.pending import no_version_error
from arrow_format.options import check_choice, check_integer
from arrow_format.read.shuffle import Shuffle
from arrow_format.storage.open import Place, open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrow_format.log.reader import LogView
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.options import ReadOptions


def open_shuffle_changes(
    path: Place,
    start: int,
    end: int | None = None,
    *,
    overwrites: str = "fail",
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Shuffle:
    """Open the rows that were added to a shuffle after version ``start``, up to ``end``.

    .. code-block:: python

        seen = 0
        new = open_shuffle_changes(path, seen)
        ...  # new.read(), new.subpartition(7), ...
        seen = new.version

    Parameters
    ----------
    path
        Directory or URI of the shuffle.
    start
        Last version whose rows are known; 0 for none. Where the first versions have expired, 0
        gives all rows of the oldest version that has not, and what was added after it.
    end
        Last version to read; the newest when None.
    overwrites
        ``fail``: a version after ``start`` that overwrote the shuffle is an error. ``deliver``: its
        rows are delivered like those of one that appended.
    options, storage_options
        As for :func:`~arrow_format.open_shuffle`.

    Returns
    -------
    Shuffle
        Holds these rows only, and reads them as any other; its ``version`` is ``end``. Merges add
        no rows.

    Raises
    ------
    ShuffleOverwrittenError
        A version after ``start`` overwrote the shuffle.
    OptionError
        ``end`` is before ``start``, or an argument has a bad value.
    ShuffleNotFoundError
        The shuffle has no such version, or versions after ``start`` have expired.
    SchemaError
        A version that overwrote the shuffle has another schema or number of subpartitions.
    CorruptShuffleError, FormatVersionError
        The commit log is damaged or of a newer format version.
    """
    check_integer("start", start, 0, 1 << 62, "a version")
    if end is not None:
        check_integer("end", end, 1, 1 << 62, "a version")
    check_choice("overwrites", overwrites, OVERWRITES)
    storage = open_storage(path, storage_options)
    log = CommitLog(storage)

    def changes(view: LogView) -> Snapshot:
        newest = log.newest_entry(view)
        if newest is None:
            raise no_version_error(log)
        last = newest.version if end is None else end
        if max(start, last) > newest.version:
            msg = (
                f"{log.root}: version {max(start, last)} is not there; the newest is "
                f"{newest.version}"
            )
            raise ShuffleNotFoundError(msg)
        return changes_of(log, plan_changes(log, view, start, last, overwrites=overwrites))

    return Shuffle(storage, log.read(changes), options)
