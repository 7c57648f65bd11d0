"""What actors do: the operations of the library, and what each says of itself for the oracle."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from arrow_format import (
    MergePolicy,
    collect_garbage,
    delete_rows,
    drop_shuffle,
    erasure_status,
    flush_pending,
    merge_shuffle,
    open_shuffle,
    open_shuffle_changes,
    release_shuffle,
    relocate_shuffle,
    rename_columns,
    repair_shuffle,
    rollback_shuffle,
    tag_shuffle,
    untag_shuffle,
    write_shuffle,
)
from arrow_format.errors import (
    CorruptShuffleError,
    ShuffleError,
    ShuffleNotFoundError,
    UnsettledCommitError,
)
from arrow_format.jobs.cleanup import abort_after, abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.rescale import rescale_shuffle
from arrow_format.jobs.target import open_target
from arrow_format.log.names import entry_path
from arrow_format.streaming.consumption import Consumer
from arrow_format.streaming.version_hold import VersionHold
from arrow_shuffle import consume
from tests.simulation.layouts import NARROW, OPTIONS, Layout
from tests.simulation.observers import rows_of
from tests.simulation.process import actor, note
from tests.simulation.storage import open_directory, replace_file, set_mounted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from arrow_format import DeletionReceipt
    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.model import MapStatus, Transaction
    from arrow_format.options import MergeBy
    from arrow_format.storage.open import Storage

Act = "Callable[[Storage], None]"

_COMMITTED = re.compile(r"committed as version (\d+)")
_COMMITTED_ONCE = re.compile(r"version (\d+) has expired")
"""Of the commit of a job: it was committed before, and that version has expired since."""


def error_of(error: ShuffleError) -> str:
    """Return an error for a note; damage is marked."""
    mark = "Corrupt: " if isinstance(error, CorruptShuffleError) else ""
    return f"{mark}{type(error).__name__}: {error}"


@contextlib.contextmanager
def or_gives_up() -> Iterator[None]:
    """Say so where the block fails with an error that says nothing of a commit."""
    try:
        yield
    except ShuffleError as error:
        note("gives up", error_of(error))


def commits(
    op: str,
    kind: str,
    rows: Sequence[int],
    act: Callable[[], int | None],
    *,
    pending: bool = False,
    is_job: bool = False,
) -> None:
    """Run a commit that returns its version, or None for no version; say how it ended."""
    note("begins", op, kind, tuple(rows))
    try:
        version = act()
    except UnsettledCommitError:
        note("unknown", op)
    except ShuffleError as error:
        committed = _COMMITTED.search(str(error))
        if is_job and isinstance(error, ShuffleNotFoundError):
            committed = _COMMITTED_ONCE.search(str(error))
        if committed and pending:
            note("pends", op, tuple(rows), int(committed[1]))
        elif committed:
            note("is", op, int(committed[1]))
        else:
            note("fails", op, error_of(error))
    except KeyboardInterrupt:
        note("unknown", op)
        raise
    else:
        if pending:
            note("pends", op, tuple(rows), version)
            return
        note(*(("does nothing", op) if version is None else ("is", op, version)))


@dataclass(frozen=True)
class Prepared:
    """A job whose map outputs are written, and which is still to be committed."""

    job: ShuffleJob
    statuses: tuple[MapStatus, ...]
    rows: tuple[int, ...]
    mode: str


def prepare(
    rows: Sequence[int], mode: str = "append", layout: Layout = NARROW, **options: Any
) -> Callable[[Storage], Prepared]:
    """Return what begins a job and writes its map outputs."""

    def act(storage: Storage) -> Prepared:
        job = begin_job(
            storage,
            layout.schema,
            num_subpartitions=layout.num_subpartitions,
            partitioner=layout.partitioner,
            unique=layout.unique,
            options=replace(layout.options, **options),
        )
        open_target(job, mode)
        batches = layout.table(rows).to_batches()
        return Prepared(job, (run_map_task(job, 0, 0, batches),), tuple(rows), mode)

    return act


def commit(
    op: str,
    prepared: Prepared,
    *,
    transaction: Transaction | None = None,
    pending: bool = False,
    is_alone: bool = True,
    expected_version: int | None = None,
) -> Callable[[Storage], None]:
    """Return the commit of a prepared job; it is aborted where that fails, as by a driver.

    ``is_alone`` says that no other process commits the job.
    """

    def act(storage: Storage) -> None:
        job = replace(prepared.job, storage=storage)

        def run() -> int:
            try:
                return commit_job(
                    job,
                    prepared.statuses,
                    mode=prepared.mode,
                    transaction=transaction,
                    pending=pending,
                    expected_version=expected_version,
                ).version
            except BaseException as error:
                if is_alone:
                    abort_after(job, error)
                else:
                    with contextlib.suppress(ShuffleError):
                        abort_job(job)
                raise

        commits(op, prepared.mode, prepared.rows, run, pending=pending, is_job=True)

    return act


def abort(op: str, prepared: Prepared) -> Callable[[Storage], None]:
    """Return the abort of a prepared job by a driver."""

    def act(storage: Storage) -> None:
        with or_gives_up():
            abort_job(replace(prepared.job, storage=storage))

    return act


def _kind_of(mode: str, layout: Layout) -> str:
    """Return what a write does to the rows that are there, as the model names it."""
    if mode == "append" and layout.unique:
        return "insert"
    return "newest" if mode == "upsert" and layout.sequence_by else mode


def write(
    op: str,
    rows: Sequence[int],
    mode: str = "append",
    layout: Layout = NARROW,
    row_kind: str | None = None,
    **options: Any,
) -> Any:
    """Return a write in one process: job, map task and commit.

    With ``row_kind`` rows are changes, of which the negative ones delete.
    """

    def act(storage: Storage) -> None:
        commits(
            op,
            _kind_of(mode, layout),
            rows,
            lambda: (
                write_shuffle(
                    layout.table(rows) if row_kind is None else layout.changes(rows, row_kind),
                    storage,
                    num_subpartitions=layout.num_subpartitions,
                    partitioner=layout.partitioner,
                    unique=layout.unique,
                    sequence_by=layout.sequence_by,
                    row_kind=row_kind,
                    mode=mode,  # type: ignore[arg-type]
                    options=replace(layout.options, **options),
                ).version
            ),
        )

    return act


def merge(
    op: str, by: MergeBy = "map_output", layout: Layout = NARROW
) -> Callable[[Storage], None]:
    """Return a merge; by subpartition it joins all regions."""
    policy = None if by == "map_output" else MergePolicy(rewrite="always")

    def act(storage: Storage) -> None:
        def run() -> int | None:
            report = merge_shuffle(storage, by=by, policy=policy, options=layout.options)
            return report.version if report.plan.merges else None

        commits(op, "keep", (), run)

    return act


def rollback(op: str, version: int, *, undoes: bool = False) -> Callable[[Storage], None]:
    """Return a rollback to a version; where it ``undoes`` deletions, their rows come back."""

    def act(storage: Storage) -> None:
        if undoes:
            note("undoes", op, version)

        def run() -> int:
            return rollback_shuffle(storage, version, undo_deletions=undoes).version

        commits(op, "rollback", (version,), run)

    return act


def alter(op: str, new: str = "") -> Callable[[Storage], None]:
    """Return a renaming of the first column, whatever it is called; after the actor if not new."""

    def act(storage: Storage) -> None:
        def run() -> int:
            name = open_shuffle(storage).schema.names[0]
            return rename_columns(storage, {name: new or op}).version

        commits(op, "keep", (), run)

    return act


def rescale(op: str, num_subpartitions: int) -> Callable[[Storage], None]:
    """Return a rescale, which has no rows."""

    def act(storage: Storage) -> None:
        def run() -> int | None:
            rescaling = rescale_shuffle(storage, num_subpartitions)
            return rescaling.version if rescaling.is_new else None

        commits(op, "keep", (), run)

    return act


def delete(
    op: str,
    keys: Sequence[int],
    *,
    erases: bool = False,
    masks: bool = False,
    layout: Layout = NARROW,
    transaction: tuple[str, int] | None = None,
) -> Callable[[Storage], None]:
    """Return a deletion of the rows with some values, which it writes no more, or ``masks``.

    Where it ``erases``, a collection follows, and the question whether the last byte is gone.
    """

    def act(storage: Storage) -> None:
        receipts: list[DeletionReceipt] = []

        def run() -> int | None:
            done = delete_rows(
                storage,
                layout.keys(keys),
                erase=not masks,
                options=layout.options,
                transaction=transaction,
            )
            receipts.append(done)
            note("deletes", op, done.searched_version, done.unsearched_version, done.to_json())
            return done.version if done.num_files else None

        commits(op, "delete", keys, run)
        if erases and receipts:
            in_turn(collect(), ask(receipts[0], keys))(storage)

    return act


def ask(receipt: DeletionReceipt, keys: Sequence[int]) -> Callable[[Storage], None]:
    """Return the question whether the last byte of some rows is gone."""

    def act(storage: Storage) -> None:
        with or_gives_up():
            if erasure_status(storage, receipt).is_gone:
                note("gone", tuple(keys))

    return act


def tag(name: str, version: int | None = None) -> Callable[[Storage], None]:
    """Return what sets a tag."""

    def act(storage: Storage) -> None:
        with or_gives_up():
            note("tags", name, tag_shuffle(storage, name, version).version)

    return act


def untag(name: str) -> Callable[[Storage], None]:
    """Return what removes a tag."""

    def act(storage: Storage) -> None:
        note("untags", name)
        with or_gives_up():
            untag_shuffle(storage, name)

    return act


def repair() -> Callable[[Storage], None]:
    """Return a repair of the log."""

    def act(storage: Storage) -> None:
        with or_gives_up():
            report = repair_shuffle(storage, dry_run=False)
            note("repairs", tuple(each.number for each in report.given_up))

    return act


def damage(number: int, data: bytes | None) -> Callable[[Storage], None]:
    """Return what puts other bytes in the place of an entry of the log, or removes it."""

    def act(storage: Storage) -> None:
        path = entry_path(number)
        if data is None:
            storage.delete(path)
        else:
            replace_file(storage, path, data)

    return act


def collect(hours: float = 0, *, compact_log: bool = False) -> Callable[[Storage], None]:
    """Return a collection with a retention."""

    def act(storage: Storage) -> None:
        with or_gives_up():
            collect_garbage(storage, retention=timedelta(hours=hours), compact_log=compact_log)

    return act


def read(version: int | str | None = None) -> Callable[[Storage], None]:
    """Return a reader of the newest version, or of a given one or its tag."""

    def act(storage: Storage) -> None:
        opened = None
        try:
            opened = open_shuffle(storage, version)
            note("reads", opened.version, rows_of(opened), version is None)
        except ShuffleNotFoundError as error:
            if opened is None and version is None:
                note("finds nothing")
            else:
                note("expired", version if opened is None else opened.version, str(error))
        except ShuffleError as error:
            note("gives up", error_of(error))

    return act


def holds(version: int | None = None, *, moves: bool = False) -> Callable[[Storage], None]:
    """Return a reader that holds a version, by default the newest, and reads it twice.

    Then it ``moves`` to what is the newest by then, and reads that.
    """

    def read_held(storage: Storage, version: int) -> None:
        try:
            note("reads", version, rows_of(open_shuffle(storage, version)), False)
        except ShuffleNotFoundError as error:
            note("lost", version, str(error))

    def act(storage: Storage) -> None:
        try:
            opened = open_shuffle(storage, version)
            hold = VersionHold.take(storage, opened.version)
        except ShuffleNotFoundError:
            note("expired", version, "before it was held")
            return
        except ShuffleError as error:
            note("gives up", error_of(error))
            return
        with or_gives_up(), hold:
            for _ in range(2):
                read_held(storage, hold.version)
            if moves:
                newest = open_shuffle(storage).version
                hold.move(newest)
                read_held(storage, newest)

    return act


def read_changes(after: int) -> Callable[[Storage], None]:
    """Return a reader of what was appended after a version."""

    def act(storage: Storage) -> None:
        try:
            opened = open_shuffle_changes(storage, after)
            note("changes", after, opened.version, rows_of(opened))
        except ShuffleNotFoundError as error:
            note("expired", None, str(error))
        except ShuffleError as error:
            note("gives up", error_of(error))

    return act


def release() -> Callable[[Storage], None]:
    """Return the release of a result by name."""

    def act(storage: Storage) -> None:
        note("releases")
        with or_gives_up():
            release_shuffle(storage)

    return act


def drop(*, force: bool = False) -> Callable[[Storage], None]:
    """Return the removal of the shuffle for good."""

    def act(storage: Storage) -> None:
        with or_gives_up():
            with contextlib.suppress(ShuffleNotFoundError):  # another was faster
                drop_shuffle(storage, force=force)
            note("dropped")

    return act


def consumes(consumer: str, name: str, timeout: float = 0.0, turns: int = 1) -> Any:
    """Return a consumer that reads what is new and records it."""

    def act(storage: Storage) -> None:
        for turn in range(turns):
            try:
                with consume(storage, consumer=consumer, request_timeout=timeout) as consumption:
                    version = consumption.shuffle.version
                    rows = rows_of(consumption.shuffle)
                    note("gets", consumer, version, rows, f"{name}-{turn}", actor().slept_s)
                    time.sleep(1)  # it works on them
                    note("ends", consumer)
                    # A filter of warnings would be that of all actors.
                    with contextlib.suppress(RuntimeWarning):
                        consumption.commit()
                    note("records", consumer, version, f"{name}-{turn}")
            except ShuffleError as error:
                note("ends", consumer)
                note("gives up", error_of(error))

    return act


def advance(consumer: str, version: int, rows: Sequence[int]) -> Callable[[Storage], None]:
    """Return a consumer that records a version, with rows that it has read before."""

    def act(storage: Storage) -> None:
        note("consumes", consumer, tuple(rows))
        with or_gives_up():
            at_work = Consumer(storage, consumer)
            at_work.register(0)
            with contextlib.suppress(RuntimeWarning):
                at_work.commit(version)
            at_work.close()

    return act


def flush(op: str, rows: Sequence[int]) -> Callable[[Storage], None]:
    """Return a flush of what is pending."""

    def act(storage: Storage) -> None:
        try:
            receipt = flush_pending(storage, options=OPTIONS)
            note("flushes", op, None if receipt is None else receipt.version)
        except ShuffleError as error:
            note("cannot flush", op, error_of(error))

    return act


def at(
    directory: str, act: Callable[[Storage], Any], *, is_another: bool = True
) -> Callable[[Storage], Any]:
    """Return what does something with another shuffle, at an absolute path.

    Or with the one that the oracle judges, which is still to be moved from there to its place.
    """

    def elsewhere(_: Storage) -> Any:
        process = actor()
        process.is_elsewhere = is_another
        result = act(open_directory(directory))
        process.is_elsewhere = False
        return result

    return elsewhere


def relocate(became: Literal["moved", "copied"]) -> Callable[[Storage], None]:
    """Return what says that a shuffle was moved, or is a copy."""

    def act(storage: Storage) -> None:
        with or_gives_up():
            relocate_shuffle(storage, became)

    return act


def unmount(directory: str) -> Callable[[Storage], None]:
    """Return what lets the disk of a local directory vanish."""
    return lambda _: set_mounted(directory, False)


def mount(directory: str) -> Callable[[Storage], None]:
    """Return what lets the disk of a local directory come back."""
    return lambda _: set_mounted(directory, True)


def in_turn(*acts: Callable[[Storage], None]) -> Callable[[Storage], None]:
    """Return several operations of one process, one after the other."""

    def act(storage: Storage) -> None:
        for each in acts:
            each(storage)

    return act
