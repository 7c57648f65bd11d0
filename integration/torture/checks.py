"""Whether a shuffle holds what it must, whole and verified, and nothing else lies next to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format import HashPartitioner, ShuffleNotFoundError, open_shuffle
from arrow_format.log.changes import entries_of
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.names import LOG_DIRECTORY, TEMPORARY
from arrow_format.storage.local_dirs import ROOT_LIST_NAME
from arrow_format.storage.open import open_storage
from arrow_format.storage.root_owner import DIRECTORY_ID_NAME, MARKER_NAME
from integration.torture.operations import KEY, NUM_SUBPARTITIONS, SCHEMA, State, rows_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class TortureError(Exception):
    """A promise was broken: rows were lost or mixed, or files are left behind."""


def check_state(path: str, allowed: Sequence[State]) -> State:
    """Check that the newest version is one of several, whole and verified; return which.

    Raises
    ------
    TortureError
        It is none of them.
    ShuffleError
        It cannot be read.
    """
    try:
        shuffle = open_shuffle(path)
    except ShuffleNotFoundError:
        if None in allowed:
            return None
        raise
    rows = shuffle.read(with_subpartition=True).read_all()
    shuffle.verify()
    found = np.sort(rows["v"].to_numpy())
    expected = {state: numbers_of(state) for state in allowed if state is not None}
    state = next((s for s, numbers in expected.items() if np.array_equal(found, numbers)), None)
    if state is None:
        msg = (
            f"{path}: version {shuffle.version} holds {len(found)} rows {_runs(found)}; expected "
            f"one of {list(allowed)}"
        )
        raise TortureError(msg)
    _check_rows(path, rows)
    _check_order(path, rows, state)
    return state


def numbers_of(state: State) -> np.ndarray:
    """Return the numbers of all rows of a state, ascending."""
    runs = [np.arange(first, first + count) for first, count in state or ()]
    return np.sort(np.concatenate([*runs, np.zeros(0, np.int64)])).astype(np.int64)


def _runs(numbers: np.ndarray) -> str:
    """Show sorted numbers as runs."""
    edges = np.flatnonzero(np.diff(numbers) != 1)
    starts = [0, *(edges + 1).tolist()]
    ends = [*edges.tolist(), len(numbers) - 1]
    shown = [f"{numbers[a]}-{numbers[b]}" for a, b in zip(starts, ends, strict=True) if b >= a]
    return f"{', '.join(shown[:20])}{', ...' if len(shown) > 20 else ''}"


def _check_rows(path: str, rows: pa.Table) -> None:
    """Check that each row is as it was written, and where its key belongs."""
    expected = pa.Table.from_batches([rows_of(rows["v"].to_numpy())])
    if not rows.select(SCHEMA.names).cast(SCHEMA).equals(expected):
        msg = f"{path}: rows came back other than they were written"
        raise TortureError(msg)
    place = HashPartitioner(KEY).bind(SCHEMA, NUM_SUBPARTITIONS, 0)
    places = np.concatenate(
        [place(batch) for batch in expected.to_batches()] + [np.zeros(0, np.int64)]
    )
    if not np.array_equal(places, rows["_subpartition"].to_numpy()):
        msg = f"{path}: rows came back in other subpartitions than their keys belong to"
        raise TortureError(msg)


def _check_order(path: str, rows: pa.Table, state: State) -> None:
    """Check that rows of a subpartition come by commit, and inside of one by map task and arrival.

    Both are the order of the numbers of a commit.
    """
    runs = [np.arange(first, first + count) for first, count in state or ()]
    order = np.concatenate([*runs, np.zeros(0, np.int64)])
    by_number = np.argsort(order)
    numbers = rows["v"].to_numpy()
    ranks = by_number[np.searchsorted(order, numbers, sorter=by_number)]
    places = rows["_subpartition"].to_numpy()
    if not np.array_equal(np.lexsort((ranks, places)), np.arange(len(numbers))):
        msg = f"{path}: rows came back in another order than they were written"
        raise TortureError(msg)


def files_beside(path: str, local_dirs: Collection[str] = ()) -> list[str]:
    """Return the files and empty directories that are no part of the newest version.

    Parameters
    ----------
    local_dirs
        Where else writes to this shuffle may have put files.
    """
    storage = open_storage(path)
    live = {path}
    newest = CommitLog(storage).snapshot()
    for output in newest.map_outputs if newest else ():
        for file in output.files:
            root = file.root or path
            live.update((f"{root}/{file.data_path}", f"{root}/{file.index_path}"))
    found = []
    for place in (path, *local_dirs):
        for one in sorted(Path(place).rglob("*")):
            name = str(one)
            # Entries, and whatever else the log keeps of itself.
            is_log = LOG_DIRECTORY in one.parts and not one.name.startswith(TEMPORARY)
            if one.is_dir():
                is_live = any(one.iterdir())
            elif one.name == ROOT_LIST_NAME:  # of a job with live files elsewhere
                in_roots = (other for other in live if not other.startswith(f"{path}/"))
                is_live = any(f"-{one.parent.name}/" in other for other in in_roots)
            elif one.name == DIRECTORY_ID_NAME:
                is_live = True
            elif one.name == MARKER_NAME:
                is_live = any(other.startswith(f"{one.parent}/") for other in live)
            else:
                is_live = is_log or name in live
            if not is_live:
                found.append(name)
    return found


def uncommitted(path: str, names: Sequence[str]) -> list[str]:
    """Return those of several files besides the newest version that a committed job wrote.

    Until garbage is collected, files of older versions and of jobs that died may lie there. Those
    of a job that is in the log and that no version names must not.
    """
    log = CommitLog(open_storage(path))
    committed, live = set(), set()
    for entry in log.read(lambda view: [*entries_of(log, range(1, view.newest + 1))]):
        committed.add(entry.job_id)
        live.update(file.path for output in entry.map_outputs for file in output.files)
    return [
        name
        for name in names
        if (match := re.search(r"(map_outputs/([0-9a-f]{32})/.*\.shuffle)\.", name))
        and match[2] in committed
        and match[1] not in live
    ]
