"""Consumption of a result under a name: each consumer takes what it has not consumed, and says so.

.. code-block:: python

    with consume("/data/page_views", consumer="report", request_timeout=60) as consumption:
        table = consumption.shuffle.read().read_all()

What was read counts as consumed when the block ends without an exception.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from arrow_format.errors import ClosedError, ConsumerError, ShuffleError
from arrow_format.jobs.back_pressure import unconsumed_after
from arrow_format.jobs.garbage import collect_garbage, remove_released
from arrow_format.jobs.retention import RELEASED_TOGETHER, release_consumed
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.consumers import ConsumerRegistry, check_consumer, consumer_directory
from arrow_format.log.names import LOG_DIRECTORY, MAP_OUTPUT_DIRECTORY
from arrow_format.log.release import release_versions
from arrow_format.options import check_seconds
from arrow_format.read.shuffle import Shuffle, check_there
from arrow_format.storage.open import open_storage
from arrow_format.streaming.lease import Lease, await_holder, end_leases, shown_holder, take_lease
from arrow_format.streaming.result_request import await_result

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from arrow_format.options import ReadOptions
    from arrow_format.storage.open import Place, Storage


class Consumer:
    """One consumer at work: holds its name, and records how far it has come.

    Parameters
    ----------
    storage
        Where the result is, or will be.
    name
        1 to 100 letters, digits, ``_`` and ``-``.
    timeout
        Seconds to wait while another process holds the name. It takes up to a minute more to learn
        whether one on another machine lives.

    Raises
    ------
    OptionError
        It is no name.
    ConsumerError
        A living process holds it.
    """

    def __init__(self, storage: Storage, name: str, *, timeout: float = 0.0) -> None:
        self.storage = storage
        self.name = check_consumer(name)
        self._makes_root = storage.stat("") is None
        self._makes_name = self._makes_root or not storage.list(consumer_directory(name))
        self._registry = ConsumerRegistry(storage)
        self._lease: Lease = take_lease(storage, consumer_directory(name), timeout=timeout)

    def register(self, version: int) -> int:
        """Make the consumer known; return the version after which it goes on.

        Parameters
        ----------
        version
            Where it begins if it was not known.
        """
        return self._registry.register(self.name, version)

    @property
    def has_consumed(self) -> bool:
        """Whether anything was recorded as consumed, by this process or another one."""
        return self._registry.has_consumed(self.name)

    def commit(self, version: int) -> None:
        """Record durably that everything up to ``version`` is consumed.

        What all consumers of an ephemeral result have consumed is released, and its files are
        removed, up to a bound: this gives no job up and lets nothing expire by its age. The rest is
        for garbage collection; a :class:`RuntimeWarning` says what could not be removed. By then
        the version counts as consumed, also where warnings are turned into errors.

        Raises
        ------
        ConsumerError
            Another process has taken the name over; nothing was recorded.
        """
        self._lease.check()
        self._registry.advance(self.name, version)
        try:
            if release_consumed(self.storage, at_least=RELEASED_TOGETHER) is not None:
                remove_released(self.storage)
        except ShuffleError as error:  # it is consumed all the same
            warnings.warn(
                f"consumer {self.name!r} has consumed version {version}, but what all consumers "
                f"have consumed could not be removed ({error}); `arrow-shuffle gc "
                f"{self.storage.root}` does so",
                RuntimeWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """Let go of the name; it may be called again.

        A name that became known here is forgotten where there never was anything to consume: below
        a path that was mistyped nothing is to stay.
        """
        is_in_vain, self._makes_name = self._is_in_vain(), False  # only once: a name may be reused
        if is_in_vain:
            with contextlib.suppress(ShuffleError):
                self._registry.forget(self.name)  # while nobody else has the name
        self._lease.release()
        if is_in_vain:
            with contextlib.suppress(ShuffleError):
                self._lease.remove_term()
                self.storage.prune(consumer_directory(self.name), and_root=self._makes_root)

    def _is_in_vain(self) -> bool:
        """Whether no shuffle is here nor begun, and this one's name is nobody else's."""
        if not (self._makes_name and self._lease.is_first):
            return False
        try:
            self._lease.check()
            return not {LOG_DIRECTORY, MAP_OUTPUT_DIRECTORY} & set(self.storage.list(""))
        except ShuffleError:
            return False


class Consumption:
    """What one consumer has before it, pinned; made by :func:`consume`."""

    def __init__(self, consumer: Consumer, shuffle: Shuffle) -> None:
        self._consumer = consumer
        self._shuffle = shuffle
        self._is_open = True

    @property
    def consumer(self) -> str:
        """Name of the consumer."""
        return self._consumer.name

    @property
    def shuffle(self) -> Shuffle:
        """The rows to consume: all of a blocking result, of a pipelined one what is new."""
        return self._shuffle

    def commit(self) -> None:
        """Record durably that :attr:`shuffle` is consumed, and end.

        Raises
        ------
        ConsumerError
            Another process has taken the name over; nothing was recorded.
        ClosedError
            It has ended before.
        """
        if not self._is_open:
            msg = f"the consumption by {self.consumer!r} has ended; call consume again"
            raise ClosedError(msg)
        try:
            self._consumer.commit(self._shuffle.version)
        finally:
            self.close()

    def close(self) -> None:
        """End without recording anything, unless it has ended: the same rows come the next time."""
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


def consume(
    path: Place,
    *,
    consumer: str,
    request_timeout: float = 0.0,
    allow_empty: bool = False,
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Consumption:
    """Ask for a result under a name, before it is there if need be.

    Parameters
    ----------
    path
        Directory or URI of the shuffle.
    consumer
        Name of the consumer, under which its progress is kept: 1 to 100 letters, digits, ``_`` and
        ``-``. One process has it at a time.
    request_timeout
        Seconds to wait for the result, for more of a pipelined one, or for the name. Who waits is
        known from then on, so that a bounded result waits for it too; nothing of that stays at a
        path where nothing came. Where another machine may have the name, it takes up to a minute
        more to learn whether it lives.
    allow_empty
        What comes of a pipelined result of which nothing is new by then: a shuffle without rows
        when True, RequestTimeoutError when False.
    options, storage_options
        As for :func:`~arrow_format.open_shuffle`.

    Returns
    -------
    Consumption
        A context manager; what was read counts as consumed when it ends without an exception.

    Raises
    ------
    ConsumerError
        A living process has the name.
    ResultReleasedError, ResultFailedError, RequestTimeoutError, ShuffleNotFoundError
        As :func:`~arrow_format.streaming.result_request.await_result`.
    OptionError
        The name or the timeout is none.
    """
    return Consumption(
        *request_result(
            path,
            consumer=consumer,
            request_timeout=request_timeout,
            allow_empty=allow_empty,
            options=options,
            storage_options=storage_options,
        )
    )


def request_result(
    path: Place,
    *,
    consumer: str,
    request_timeout: float = 0.0,
    allow_empty: bool = False,
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> tuple[Consumer, Shuffle]:
    """Ask for a result as :func:`consume` does, for a :class:`Consumption` to be made of it.

    Returns
    -------
    tuple
        The consumer, which holds its name until it is closed; and what it has before it.
    """
    timeout = check_seconds("request_timeout", request_timeout)
    storage = open_storage(path, storage_options)
    check_consumer(consumer)
    stat = storage.stat("")
    if not timeout or (stat is not None and not stat.is_directory):
        check_there(storage)  # before anything is made there
    end = time.monotonic() + timeout
    holder = Consumer(storage, consumer, timeout=timeout)
    try:
        consumed = holder.register(0)
        # However long the name took: who waits is told that it waited.
        left = max(end - time.monotonic(), 0.001) if timeout else 0.0
        snapshot = await_result(
            storage, left, consumed=consumed, consumer=consumer, allow_empty=allow_empty
        )
        return holder, Shuffle(storage, snapshot, options)
    except BaseException:
        holder.close()
        raise


def release_shuffle(path: Place, *, storage_options: Mapping[str, str] | None = None) -> bool:
    """Release a result as a whole, whatever its type, and remove its files.

    What a stream with a flush interval has pending goes too, also where there is no version yet.
    Whoever asks for it from then on gets a :class:`ResultReleasedError`; a new one may be written
    in its place.

    Parameters
    ----------
    path, storage_options
        As for :func:`~arrow_format.open_shuffle`.

    Returns
    -------
    bool
        Whether there was one to release.

    Raises
    ------
    CorruptShuffleError, StorageError
        The log cannot be read or written. Or files could not be removed: then the result is
        released all the same, and garbage collection removes them.
    """
    storage = open_storage(path, storage_options)
    if release_versions(storage, by="released by name") is None:
        return False
    collect_garbage(storage)
    return True


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """How far one consumer has come.

    Parameters
    ----------
    name
        Name of the consumer.
    version
        Everything up to this version is consumed; 0 for nothing.
    unconsumed_versions
        Versions after that one with rows for it.
    unconsumed_bytes
        Stored bytes.
    held_by
        The process that is at work under this name; None while none is. Of one on another machine
        that is a guess by the age of its last sign of life, which two clocks may disagree on.
    """

    name: str
    version: int
    unconsumed_versions: int
    unconsumed_bytes: int
    held_by: str | None


def list_consumers(
    path: Place, *, storage_options: Mapping[str, str] | None = None
) -> tuple[ConsumerState, ...]:
    """Return the consumers of a shuffle, by name; see :func:`~arrow_format.open_shuffle`."""
    storage = open_storage(path, storage_options)
    check_there(storage)
    progress = ConsumerRegistry(storage).all_progress()
    return tuple(_state(storage, name, version) for name, version in sorted(progress.items()))


def _state(storage: Storage, name: str, version: int) -> ConsumerState:
    left = unconsumed_after(CommitLog(storage), version, name)
    holder = shown_holder(storage, consumer_directory(name))
    return ConsumerState(name, version, left.num_versions, left.num_bytes, holder)


def forget_consumer(
    path: Place, consumer: str, *, storage_options: Mapping[str, str] | None = None
) -> bool:
    """Forget a consumer that never comes back: nothing waits for it any more.

    Where another machine may have the name, it takes up to a minute to learn whether it lives.

    Parameters
    ----------
    path, storage_options
        As for :func:`~arrow_format.open_shuffle`.
    consumer
        Its name.

    Returns
    -------
    bool
        Whether there was one of that name.

    Raises
    ------
    ConsumerError
        A living process has the name.
    """
    storage = open_storage(path, storage_options)
    holder = await_holder(storage, consumer_directory(check_consumer(consumer)))
    if holder is not None:
        msg = f"{storage.root}: consumer {consumer!r} is at work, {holder}; stop it first"
        raise ConsumerError(msg)
    end_leases(storage, consumer_directory(consumer))
    return ConsumerRegistry(storage).forget(consumer)
