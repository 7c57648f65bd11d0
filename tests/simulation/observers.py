"""What the oracle runs on a storage: it reads all there is, and collects what is left over."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from arrow_format import (
    DeletionReceipt,
    collect_garbage,
    drop_shuffle,
    erasure_status,
    flush_pending,
    open_shuffle,
    relocate_shuffle,
    repair_shuffle,
)
from arrow_format.errors import (
    OptionError,
    ShuffleError,
    ShuffleNotFoundError,
    StorageError,
)
from arrow_format.log.names import (
    IDENTITY_DIRECTORY,
    MAP_OUTPUT_DIRECTORY,
    entry_path,
    expired_path,
    numbers_of,
    range_path,
    segment_of,
    segment_path,
)
from arrow_format.log.reader import LogReader, LogView
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.key_search import keys_in
from arrow_format.read.tombstones import opened, shape_of
from arrow_format.storage.local_dirs import ROOT_LIST_NAME
from arrow_format.storage.root_owner import DIRECTORY_ID_NAME, MARKER_NAME
from tests.simulation.layouts import COPY, DISK
from tests.simulation.storage import open_directory

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrow_format.storage.open import Storage

Rows = tuple[int, ...]


class Seen(NamedTuple):
    """What can be read of a storage at one moment."""

    newest: int
    """Newest version; 0 where there is none."""
    versions: dict[int, Rows | None]
    """Rows of each version up to the newest; None where it cannot be opened."""


def rows_of(shuffle: Any) -> Rows:
    """Return the rows of a shuffle, sorted; their column may have been renamed.

    A tombstone is the negative of its sequence; of equal ones there is one.
    """
    rows = shuffle.read().read_all().column(0).to_pylist()
    version, tombstones = shuffle.snapshot.newest, shuffle.snapshot.tombstones
    buried: set[int] = set()
    if len(tombstones):
        schema, every = (
            shape_of(version.shape).data_schema,
            np.ones(version.num_subpartitions, bool),
        )
        files = opened(version, tombstones, IndexCache(shuffle.storage))
        for _, (numbers,) in keys_in(files, [version.shape.sequence_name], schema, every):
            buried.update(-number for number in numbers.to_pylist())
    return tuple(sorted((*rows, *buried)))


def observe(storage: Storage) -> Seen:
    """Read every version."""
    try:
        newest = open_shuffle(storage).version
    except ShuffleNotFoundError:
        return Seen(0, {})
    versions: dict[int, Rows | None] = {}
    for version in range(newest, 0, -1):
        try:
            versions[version] = rows_of(open_shuffle(storage, version))
        except ShuffleNotFoundError:
            versions[version] = None
    return Seen(newest, versions)


def glimpse(storage: Storage) -> Seen:
    """Read the newest version."""
    try:
        shuffle = open_shuffle(storage)
    except ShuffleNotFoundError:
        return Seen(0, {})
    return Seen(shuffle.version, {shuffle.version: rows_of(shuffle)})


def verify(storage: Storage) -> tuple[frozenset[str], tuple[str, ...]]:
    """Read all that can be opened; return the files that it names and those of the log.

    Also return the earlier segments that are kept: a temporary file in them goes with them.
    """
    view = LogReader(storage).view()
    named = _files_of_log(view)
    # Whose local roots are stays, whatever becomes of them.
    named |= {f"{IDENTITY_DIRECTORY}/{name}" for name in storage.list(IDENTITY_DIRECTORY)}
    named.add(f"{DISK}/{DIRECTORY_ID_NAME}")
    first = segment_of(min(view.state.base, *view.state.pending.numbers, view.state.base))
    segments = tuple(segment_path(segment) for segment in range(first, segment_of(view.newest)))
    try:
        newest = open_shuffle(storage)
    except ShuffleNotFoundError:
        return frozenset(named), segments
    for version in range(newest.version, 0, -1):
        try:
            shuffle = open_shuffle(storage, version)
        except ShuffleNotFoundError:
            continue
        shuffle.verify()
        for output in shuffle.snapshot.all_outputs:
            for file in output.files:
                where = f"{file.root}/" if file.root else ""
                named |= {where + file.data_path, where + file.index_path}
                named |= {file.mask.path} - {""}
                if file.root:
                    roots = f"{MAP_OUTPUT_DIRECTORY}/{output.job_id}/{ROOT_LIST_NAME}"
                    named |= {where + MARKER_NAME, roots}
    return frozenset(named), segments


def _files_of_log(view: LogView) -> set[str]:
    """Return the files of the log that are not left over, by what its newest entry says.

    Of segments that were removed the lists stay; others are kept whole.
    """
    state = view.state
    first = segment_of(min(state.base, *state.pending.numbers, state.base))
    kept = {range_path(tag.version) for tag in state.tags.values()}
    kept |= {expired_path(segment) for segment in range(first)}
    for number in range(numbers_of(first).start, view.newest + 1):
        kept |= {entry_path(number), range_path(number)}
    return kept


def as_of(when_ms: int) -> Callable[[Storage], int]:
    """Return what asks for the newest version by a time; 0 where there was none."""

    def act(storage: Storage) -> int:
        try:
            return open_shuffle(storage, datetime.fromtimestamp(when_ms / 1000, UTC)).version
        except ShuffleNotFoundError:
            return 0

    return act


def collect(storage: Storage) -> None:
    try:
        collect_garbage(storage, retention=timedelta(0))
    except ShuffleNotFoundError:
        return


def drop(storage: Storage) -> None:
    """Remove what is left of the shuffle."""
    with contextlib.suppress(ShuffleNotFoundError):
        receipt = drop_shuffle(storage, force=True)
        if not receipt.is_complete:
            # A job made local roots, and died, where it no longer said whose they are.
            relocate_shuffle(storage, "moved")
            receipt = drop_shuffle(storage, force=True)
        if not receipt.is_complete:
            raise StorageError(str(receipt))


def relocate(became: Literal["moved", "copied"]) -> Callable[[Storage], None]:
    """Return what says what became of a shuffle, unless that was settled."""

    def act(storage: Storage) -> None:
        with contextlib.suppress(OptionError):
            relocate_shuffle(storage, became)

    return act


def settle(another: str) -> Callable[[Storage], tuple[frozenset[str] | None, Rows]]:
    """Return what collects another shuffle, and reads what it names outside of it, and its rows.

    A copy can be read only as long as the original keeps its files: else what it names is None.
    """

    def act(_: Storage) -> tuple[frozenset[str] | None, Rows]:
        storage = open_directory(another)
        try:
            if another == COPY:
                relocate("copied")(storage)
            for _ in range(2):
                collect(storage)
            named, _ = verify(storage)
            return frozenset(path for path in named if path.startswith("/")), newest_rows(storage)
        except ShuffleError:
            if another == COPY:
                return None, ()
            raise

    return act


def newest_rows(storage: Storage) -> Rows:
    """Return the rows of the newest version."""
    return rows_of(open_shuffle(storage))


def flush(storage: Storage) -> None:
    try:
        flush_pending(storage)
    except ShuffleNotFoundError:
        return


def repair(storage: Storage) -> tuple[int, ...]:
    """Give up what cannot be read at the end of the log; return the numbers."""
    report = repair_shuffle(storage, dry_run=False)
    return tuple(each.number for each in report.given_up)


def is_gone(receipt: str) -> Callable[[Storage], bool]:
    """Return what says whether the rows of a deletion are gone."""

    def act(storage: Storage) -> bool:
        return erasure_status(storage, DeletionReceipt.from_json(receipt)).is_gone

    return act
