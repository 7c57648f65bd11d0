"""Saying which columns identify a row of a shuffle that is there: all rows are looked at first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from arrow_format.errors import DuplicateKeyError, OptionError
from arrow_format.filters.spark_rules import char_lengths
from arrow_format.jobs.alter import Alteration, altered_meanwhile
from arrow_format.jobs.cleanup import publish
from arrow_format.keys.row_identity import check_sequence, check_unique
from arrow_format.log.commit_log import CommitLog, draft
from arrow_format.log.conflicts import Claims, check_needs, check_version_number
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.shuffle import check_there
from arrow_format.read.totals import totals_of
from arrow_format.read.unique_keys import problem_of_rows
from arrow_format.storage.open import Place, open_storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.log.snapshot import Snapshot


def identify_rows(
    path: Place, unique: str | Sequence[str], *, expected_version: int | None = None
) -> Alteration:
    """Say which columns identify a row, none where no name is given; as one version.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.alter`.
    """
    check_version_number(expected_version)
    storage = open_storage(path)
    check_there(storage)
    log = CommitLog(storage)
    checked = 0
    """The content of the version whose rows were looked at; 0 before that."""
    meant: tuple[int, ...] | None = None

    def check(snapshot: Snapshot, version: LogEntry) -> None:
        if not snapshot.map_outputs.placed.all():
            msg = (
                f"{storage.root}: some rows do not lie where the partitioner places them, so that "
                "rows of one key may be apart; nothing was changed. Write the rows again"
            )
            raise OptionError(msg)
        num_rows, _ = totals_of(snapshot, storage.root)
        # An index keeps the names that it was given: another one for each look.
        indexes = IndexCache(storage)
        problem = problem_of_rows(snapshot.map_outputs, version, indexes, num_rows)
        if problem is not None:
            msg = f"{storage.root}: {problem}; nothing was changed"
            raise DuplicateKeyError(msg)

    def decide(view: LogView) -> LogEntry:
        nonlocal checked, meant
        check_needs("alter", log, view, Claims(expected_version))
        shape = view.state.shape
        assert shape is not None  # since there is a version
        padded = char_lengths(shape.spark_schema)
        names = check_unique(shape.data_schema, unique, shape.partitioner, shape.combine, padded)
        check_sequence(shape.data_schema, shape.sequence_name, names)
        ids = tuple(shape.columns.by_name[name] for name in names)
        if meant not in (None, ids):
            raise altered_meanwhile(storage.root, names)
        meant = ids
        entry = draft(view, "alter", state={"shape": replace(shape, unique=ids)})
        if shape.sequence_by and {*ids} != {*shape.unique}:
            snapshot = log.snapshot_of(view)
            if snapshot is not None and len(snapshot.readable().tombstones):
                msg = (
                    f"{storage.root}: rows that changes deleted are known by "
                    f"{', '.join(shape.unique_names)}, so that {', '.join(names)} would not say "
                    "which change is older than a deletion; nothing was changed. Overwrite the "
                    "shuffle, or keep its unique columns"
                )
                raise OptionError(msg)
        # What was added since the rows were looked at was not; merges and deletions add nothing.
        if ids and checked != view.state.content:
            snapshot = log.snapshot_of(view)
            assert snapshot is not None
            check(snapshot, entry)
            checked = view.state.content
        return entry

    entry = publish(log, decide, "the columns that identify a row were set")
    return Alteration(storage.root, entry.version, entry.data_schema)
