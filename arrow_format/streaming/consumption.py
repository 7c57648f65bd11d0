"""Consumption of a result by named consumers, each of which records how far it has consumed.

.. code-block:: python

    with consume("/data/page_views", consumer="report", request_timeout=60) as consumption:
        table = consumption.shuffle.read().read_all()

What was read counts as consumed when the block ends without an exception.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from arrow_format.errors import (
    BackPressureTimeoutError,
    ClosedError,
    CorruptShuffleError,
    ShuffleError,
    ShuffleNotFoundError,
    StorageError,
)
from arrow_format.jobs.back_pressure import unconsumed_after
from arrow_format.jobs.garbage import collect, remove_released
from arrow_format.jobs.release import DueRelease
from arrow_format.jobs.retention import RELEASED_TOGETHER, release_consumed
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.conflicts import check_version_number
from arrow_format.log.consumers import ConsumerRegistry, check_consumer, consumer_directory
from arrow_format.log.names import LOG_DIRECTORY, MAP_OUTPUT_DIRECTORY
from arrow_format.options import WriteOptions, check_flag, check_name, check_seconds
from arrow_format.read.presentation import count_of, format_bytes
from arrow_format.read.shuffle import Shuffle, check_there
from arrow_format.report import Report
from arrow_format.storage.open import open_storage
from arrow_format.streaming.flush_pending import flush_pending
from arrow_format.streaming.lease import shown_holder, take_lease
from arrow_format.streaming.result_request import await_result

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from arrow_format.log.consumers import ConsumerRecord
    from arrow_format.options import ReadOptions
    from arrow_format.storage.open import Place, Storage


AnyShuffle = TypeVar("AnyShuffle", bound=Shuffle)

_PATIENCE_S = 1.0
"""For other consumers of a full result, when one is asked to flush: it has rows to consume."""


class Consumer:
    """A named consumer at work: holds its lease, and records how far it has consumed.

    ``timeout`` is how many seconds to wait while another process holds the name. It takes up to a
    minute more to learn whether a process on another machine is alive. Raises OptionError for a
    malformed name, ConsumerError where a living process holds it.
    """

    def __init__(self, storage: Storage, name: str, *, timeout: float = 0.0) -> None:
        self.storage = storage
        self.name = check_consumer(name)
        self._makes_root = storage.has_directories and storage.stat("") is None
        self._lease = take_lease(storage, name, timeout=timeout)

    def register(self, version: int) -> int:
        """Register the consumer, a new one at ``version``; return the last version it consumed."""
        if self._lease.record.version is None:
            self._lease.put(lambda record: record.consumed(version))
        return self._lease.record.version or 0

    @property
    def has_consumed(self) -> bool:
        """Whether a version was recorded as consumed, by this process or an earlier one."""
        return self._lease.record.has_consumed

    def commit(self, version: int, *, ends: bool = False) -> None:
        """Record durably that everything up to ``version`` is consumed; ``ends`` the hold, too.

        Versions of an ephemeral result that all consumers have consumed are released, and their
        files removed, up to a bound: this neither aborts jobs nor expires versions by age. The rest
        is left to garbage collection; a :class:`RuntimeWarning` names what could not be removed. By
        then the version counts as consumed, even where warnings are turned into errors. Raises
        ConsumerError where another process has taken the name over; then nothing was recorded.
        """

        def consumed(record: ConsumerRecord) -> ConsumerRecord:
            record = record.consumed(version)
            return replace(record, holder=None) if ends else record

        self._lease.put(consumed)
        try:
            if release_consumed(self.storage, at_least=RELEASED_TOGETHER) is not None:
                remove_released(self.storage)
        except ShuffleError as error:  # the version is consumed all the same
            warnings.warn(
                f"consumer {self.name!r} has consumed version {version}, but what all consumers "
                f"have consumed could not be removed ({error}); `arrow-shuffle gc "
                f"{self.storage.root}` does so",
                RuntimeWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """Release the name; calling it again does nothing.

        A new name is removed where no shuffle appeared: a mistyped path must not leave files.
        """
        is_in_vain = self._is_in_vain()
        self._lease.end(removes=is_in_vain)
        if is_in_vain:
            with contextlib.suppress(ShuffleError):
                self.storage.prune(consumer_directory(self.name), and_root=self._makes_root)

    def _is_in_vain(self) -> bool:
        """Whether no shuffle exists or was begun here, and no other process had the name."""
        with contextlib.suppress(ShuffleError):
            own = {LOG_DIRECTORY, MAP_OUTPUT_DIRECTORY}
            if self._lease.is_first and own.isdisjoint(self.storage.list("")):
                self._lease.put()  # fails where another process has taken the name over
                return True
        return False


class Consumption(Generic[AnyShuffle]):
    """The rows that one consumer is about to consume, of a fixed version.

    See :func:`arrow_shuffle.consume`.

    .. code-block:: python

        with arrow_shuffle.consume("/data/orders", consumer="report") as consumption:
            table = consumption.shuffle.to_table()
    """

    def __init__(self, consumer: Consumer, shuffle: AnyShuffle) -> None:
        self._consumer = consumer
        self._shuffle = shuffle
        self._is_open = True

    @property
    def consumer(self) -> str:
        """Name of the consumer."""
        return self._consumer.name

    @property
    def shuffle(self) -> AnyShuffle:
        """The rows to consume: all of a blocking result, the new ones of a pipelined result."""
        return self._shuffle

    def commit(self) -> None:
        """Record durably that :attr:`shuffle` is consumed, and end.

        Raises
        ------
        ConsumerError
            Another process has taken the name over; nothing was recorded.
        ClosedError
            The consumption has ended before.
        """
        if not self._is_open:
            msg = f"the consumption by {self.consumer!r} has ended; call consume again"
            raise ClosedError(msg)
        try:
            self._consumer.commit(self._shuffle.version, ends=True)
        finally:
            self.close()

    def close(self) -> None:
        """End without recording: unless committed before, the same rows come the next time."""
        self._is_open = False
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None and self._is_open:
            self.commit()
        else:
            self.close()


def request_result(
    path: Place,
    consumer: str,
    request_timeout: float,
    allow_empty: bool,
    options: ReadOptions | None,
    storage_options: Mapping[str, str] | None,
    *,
    flush: bool = False,
) -> tuple[Consumer, Shuffle]:
    """Request a result as :func:`consume` does; return both parts of a :class:`Consumption`."""
    timeout = check_seconds("request_timeout", request_timeout)
    check_flag("flush", flush)
    storage = open_storage(path, storage_options)
    check_consumer(consumer)
    check_there(storage, may_come=timeout > 0)  # before anything is made there
    end = time.monotonic() + timeout
    holder = Consumer(storage, consumer, timeout=timeout)
    try:
        consumed = holder.register(0)
        # Even if the name took all the time, a consumer that waits must get an error that says so.
        left = max(end - time.monotonic(), 0.001) if timeout else 0.0
        snapshot = await_result(
            storage,
            left,
            consumed=consumed,
            consumer=consumer,
            allow_empty=allow_empty,
            before_look=partial(_flush_overdue, storage) if flush else None,
        )
        return holder, Shuffle(storage, snapshot, options)
    except BaseException:
        holder.close()
        raise


def _flush_overdue(storage: Storage) -> None:
    # A result that is full has rows to consume first.
    with contextlib.suppress(BackPressureTimeoutError, ShuffleNotFoundError):
        flush_pending(storage, due=True, options=WriteOptions(back_pressure_timeout=_PATIENCE_S))


def release_shuffle(
    path: Place,
    *,
    expected_version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> bool:
    """Release a result as a whole, whatever its type, and remove its files.

    .. code-block:: python

        arrow_shuffle.release_shuffle("/data/orders")

    Pending rows of a stream with a flush interval are removed too, even before the first version.
    Readers and consumers then get a :class:`ResultReleasedError`; a writer may write a new result
    to the same path. Tagged versions are kept.

    Parameters
    ----------
    path, storage_options
        As for :func:`~arrow_shuffle.open_shuffle`.
    expected_version
        Release only if no rows were added or taken away after that version; None: do not ask.

    Returns
    -------
    bool
        Whether there was a result to release.

    Raises
    ------
    CommitConflictError
        Rows were changed after the expected version, or it is not there; nothing was released.
    CorruptShuffleError, StorageError
        The log cannot be read or written. Or files could not be removed: then the result is
        released all the same, and garbage collection removes them.
    """
    storage = open_storage(path, storage_options)
    check_version_number(expected_version)
    if DueRelease("released by name").carry_out(storage, expected_version=expected_version) is None:
        return False
    try:
        collect(storage)
    except StorageError as error:
        msg = (
            f"{storage.root}: was released, but not all of its files could be removed ({error}). "
            "Collect garbage to remove them, and where that is refused, as someone who may delete"
        )
        raise StorageError(msg) from error
    return True


@dataclass(frozen=True, slots=True)
class ConsumerState(Report):
    """How far one consumer has consumed.

    .. code-block:: python

        for consumer in orders.consumers():
            print(consumer.name, consumer.version, consumer.unconsumed_bytes)

    Parameters
    ----------
    name
        Name of the consumer.
    version
        Last version that is consumed; 0 for none.
    unconsumed_versions
        Later versions with rows for it.
    unconsumed_bytes
        Stored bytes of these.
    held_by
        The process that is at work under this name, or None. For a process on another machine this
        is a guess by the age of its last heartbeat, which clocks may disagree on.
    """

    name: str
    version: int
    unconsumed_versions: int
    unconsumed_bytes: int
    held_by: str | None

    def _lines(self) -> Iterator[str]:
        left = "nothing before it"
        if self.unconsumed_versions:
            left = (
                f"{count_of(self.unconsumed_versions, 'version')} of "
                f"{format_bytes(self.unconsumed_bytes)} before it"
            )
        state = f"running, {self.held_by}" if self.held_by else "not running"
        yield f"{self.name}: version {self.version:,}; {left}; {state}"


def list_consumers(
    path: Place, *, storage_options: Mapping[str, str] | None = None
) -> tuple[ConsumerState, ...]:
    """Return the consumers of a shuffle, by name.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.consumers`.
    """
    storage = open_storage(path, storage_options)
    check_there(storage)
    log = CommitLog(storage)
    states = []
    for name, record in sorted(ConsumerRegistry(storage).records().items()):
        version = record.version or 0
        left = unconsumed_after(log, version, name)
        held_by = shown_holder(record)
        states.append(ConsumerState(name, version, left.num_versions, left.num_bytes, held_by))
    return tuple(states)


def forget_consumer(
    path: Place, consumer: str, *, storage_options: Mapping[str, str] | None = None
) -> bool:
    """Remove a consumer that will not come back, so that no result waits for it.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.forget_consumer`.
    """
    storage = open_storage(path, storage_options)
    registry = ConsumerRegistry(storage)
    try:
        newest = registry.newest(check_name("consumer", consumer))
        if newest.version is None and newest.holder is None:
            return False
        lease = take_lease(storage, consumer)
    except CorruptShuffleError:
        registry.remove(consumer)
        registry.newest(consumer)  # raises unless it was removed
        return True
    is_known = lease.record.version is not None
    try:
        lease.put(lambda record: replace(record, version=None, first=None))
    finally:
        lease.end()
    # The newest record stays: by that a process that slept learns that it lost the name.
    registry.remove(consumer, through=lease.record.number - 1)
    return is_known
