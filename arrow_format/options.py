"""Options of writing and reading, checked at construction, and the types of results.

Sources: FLIP-148 for the buffers, FLINK-986 for the result types.
"""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast, get_args

import numpy as np

from arrow_format.errors import OptionError
from arrow_format.model import MAX_SUBPARTITIONS, SAFE_NAME
from arrow_format.option_fields import (
    DURATION,
    Kind,
    check_fields,
    option,
    parse_bytes,
    parse_duration,
    parse_flag,
    parse_names,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


T = TypeVar("T")

ResultTypeName: TypeAlias = Literal[
    "BLOCKING_PERSISTENT", "BLOCKING", "PIPELINED", "PIPELINED_BOUNDED"
]


class ResultPartitionType(Enum):
    """When a result can be consumed, how often, and who releases it.

    .. code-block:: python

        options = arrow_shuffle.WriteOptions(result_type="PIPELINED")
        arrow_shuffle.write_shuffle(
            rows, "/data/result", keys="customer", num_subpartitions=8, options=options
        )
    """

    BLOCKING_PERSISTENT = "BLOCKING_PERSISTENT"
    """Consumed from its commit on, by any consumer any number of times; kept until it is released
    explicitly."""
    BLOCKING = "BLOCKING"
    """Consumed from its commit on; released when its consumers have committed, or when the
    application that made it has ended."""
    PIPELINED = "PIPELINED"
    """Each version is consumed while the producer continues, once by each consumer."""
    PIPELINED_BOUNDED = "PIPELINED_BOUNDED"
    """As ``PIPELINED``, and the producer waits while too much is unconsumed."""

    @property
    def is_pipelined(self) -> bool:
        """Whether versions are consumed one by one while the producer continues."""
        return self in (ResultPartitionType.PIPELINED, ResultPartitionType.PIPELINED_BOUNDED)

    @property
    def is_blocking(self) -> bool:
        """Whether a version is consumed as a whole once it is committed."""
        return not self.is_pipelined

    @property
    def is_persistent(self) -> bool:
        """Whether the result is kept until it is released by name."""
        return self is ResultPartitionType.BLOCKING_PERSISTENT

    @property
    def is_bounded(self) -> bool:
        """Whether the unconsumed part of the result is bounded."""
        return self is ResultPartitionType.PIPELINED_BOUNDED

    @property
    def has_back_pressure(self) -> bool:
        """Whether the producer waits for consumers, as it does for a bounded result."""
        return self.is_bounded

    @property
    def is_reconsumable(self) -> bool:
        """Whether a consumer may consume a version again until it is released."""
        return self.is_blocking

    @property
    def is_released_by_consumers(self) -> bool:
        """Whether consumption releases the result; otherwise only an explicit release does."""
        return not self.is_persistent


def check_result_type(value: object) -> ResultPartitionType:
    """Return the result type that ``value`` is or names, in any case; raises OptionError."""
    if isinstance(value, ResultPartitionType):
        return value
    member = ResultPartitionType.__members__.get(value.upper()) if isinstance(value, str) else None
    if member is None:
        names = ", ".join(ResultPartitionType.__members__)
        raise OptionError.of("result_type", value, f"expected one of {names}")
    return member


Codec: TypeAlias = Literal["zstd", "none"]
WriteOrder: TypeAlias = Literal["rotated", "natural"]
RewriteChoice: TypeAlias = Literal["never", "auto", "always"]
MergeBy: TypeAlias = Literal["map_output", "subpartition"]
StatisticsChoice: TypeAlias = Literal["all"] | tuple[str, ...]
WriteMode: TypeAlias = Literal[
    "errorifexists",
    "overwrite",
    "append",
    "upsert",
    "replace_groups",
    "ignore",
    "error",
    "default",
]
"""``error`` and ``default`` are Spark's other names of ``errorifexists``."""

CODECS: tuple[str, ...] = get_args(Codec)
WRITE_ORDERS: tuple[str, ...] = get_args(WriteOrder)
REWRITE_CHOICES: tuple[str, ...] = get_args(RewriteChoice)
MERGE_BY: tuple[str, ...] = get_args(MergeBy)
WRITE_MODES: tuple[str, ...] = get_args(WriteMode)
MAX_CHUNK_BYTES = 4 << 20
MAX_CHUNK_ROWS = 1 << 25
"""Most raw bytes and rows of a chunk, unless it is a single row."""
MAX_REGION_BYTES = 1 << 30
"""Far below the 2 GiB that 32-bit offsets of an Arrow string column can address."""

MAX_THREADS = 1024

DEFAULT_RETENTION = timedelta(hours=24)
"""How long garbage collection keeps a version after another superseded it."""
LATEST_ROWS_BYTES = 64 << 20
"""Memory of rows of which the latest of each key is kept."""


def ignore(num_bytes: int) -> None:
    """Take bytes of progress for which nothing was given."""


MIN_MEMORY_BYTES = 96 << 20
MIN_SHARE_BYTES = 16 << 20
"""Memory for each of several shuffles that are read together, besides READING_BYTES for all."""
MOST_TOGETHER_BYTES = 512 << 20
"""Rows concatenated into one batch stay far below the 2 GiB of text that it can hold."""
READING_BYTES = 32 << 20
"""Memory of any read, however small: mostly what allocators keep for later."""


def check_integer(name: str, value: object, low: int, high: int, unit: str) -> int:
    """Return ``value`` if it is a whole number in range; raises OptionError."""
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise OptionError.of(name, value, f"expected {_integers(low, high, unit)}")
    return value


def _integers(low: int, high: int, unit: str) -> str:
    return f"a whole number of {unit} from {low:,} to {high:,}"


def as_several(value: object) -> tuple[Any, ...]:
    """Return the items of ``value``; a string, or what cannot be iterated, is a single item."""
    if isinstance(value, str):
        return (value,)
    try:
        return tuple(value)  # type: ignore[arg-type]
    except TypeError:  # a Column of Spark is iterable until that is tried
        return (value,)


def check_type(name: str, value: object, expected: type[T]) -> T:
    """Return ``value`` if it is of a type of this package; raises OptionError."""
    if not isinstance(value, expected):
        msg = f"{name} is {type(value).__name__}: expected arrow_shuffle.{expected.__name__}"
        raise OptionError(msg)
    return value


def check_choice(name: str, value: object, allowed: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``allowed``; raises OptionError."""
    if value not in allowed:
        raise OptionError.of(name, value, f"expected one of {', '.join(map(repr, allowed))}")
    return str(value)


def check_flag(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False; raises OptionError."""
    if not isinstance(value, bool):
        raise OptionError.of(name, value, "expected True or False")
    return value


def check_name(name: str, value: object) -> str:
    """Return ``value`` if it may be a name in the log; raises OptionError."""
    if not isinstance(value, str) or not SAFE_NAME.fullmatch(value):
        raise OptionError.of(name, value, "expected 1 to 100 letters, digits, _ and -")
    return value


def check_num_subpartitions(value: object) -> int:
    """Return ``value`` if it is a whole number from 1 to 1,000,000; raises OptionError."""
    return check_integer("num_subpartitions", value, 1, MAX_SUBPARTITIONS, "subpartitions")


def check_mode(value: object) -> WriteMode:
    """Return the write mode that ``value`` names, by its first name; raises OptionError."""
    mode = cast("WriteMode", check_choice("mode", value, WRITE_MODES))
    return "errorifexists" if mode in ("error", "default") else mode


def keeps_rows(mode: str) -> bool:
    """Whether a write mode adds to the rows that are there, some of which it may replace."""
    return mode == "append" or replaces_rows(mode)


def replaces_rows(mode: str) -> bool:
    """Whether rows of a write mode take the place of some that are there."""
    return mode in ("upsert", "replace_groups")


def normal_directory(path: str) -> str:
    """Return an absolute path in normal form; links are not followed."""
    return "/" + posixpath.normpath(path).lstrip("/")


def is_absolute_directory(path: str) -> bool:
    """Whether ``path`` can be the absolute path of a directory, and is not a URI."""
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return path.startswith("/") and "\0" not in path and "://" not in path


def check_seconds(name: str, seconds: object) -> float:
    """Return ``seconds`` as a float if they are a time to wait; raises OptionError."""
    shown: object = _TooLarge()
    with contextlib.suppress(OverflowError):
        is_bool = isinstance(seconds, bool)
        if isinstance(seconds, int | float) and not is_bool and float(seconds) >= 0:
            return float(seconds)
        shown = seconds
    raise OptionError.of(name, shown, "expected seconds, 0 or more")


class _TooLarge:
    def __repr__(self) -> str:
        return "an integer that no float holds"


# Kinds of options ---------------------------------------------------------------------------------


def whole(low: int, high: int, unit: str) -> Kind:
    """Return the kind of whole numbers from ``low`` to ``high``."""
    check = partial(check_integer, low=low, high=high, unit=unit)
    return Kind(check, int, "whole number", _integers(low, high, unit))


def num_bytes(low: int, high: int) -> Kind:
    """Return the kind of numbers of bytes from ``low`` to ``high``."""
    check = partial(check_integer, low=low, high=high, unit="bytes")
    expected = f"{_integers(low, high, 'bytes')}, such as 67108864, 64m or 1g"
    return Kind(check, parse_bytes, "size", expected)


def choice(*words: str) -> Kind:
    """Return the kind of one of some words in lower case, a text of it in any case."""
    return Kind(partial(check_choice, allowed=words), str.lower, "word")


FLAG = Kind(check_flag, parse_flag, "`true` or `false`", "true or false")
NAME = Kind(check_name)
SECONDS = replace(
    DURATION, check=check_seconds, parse=lambda text: parse_duration(text).total_seconds()
)
_RESULT_TYPE = Kind(lambda _, value: check_result_type(value), form="word")


def _check_directories(name: str, value: object) -> tuple[str, ...]:
    if (
        not isinstance(value, tuple)
        or not all(isinstance(path, str) and is_absolute_directory(path) for path in value)
        or len(set(map(normal_directory, value))) < len(value)
    ):
        raise OptionError.of(name, value, "expected a tuple of different absolute directories")
    return value


_DIRECTORIES = Kind(
    _check_directories,
    parse_names,
    "names",
    "different absolute directories, such as /d1,/d2",
    may_be_empty=True,
)


def _check_statistics(name: str, value: object) -> StatisticsChoice:
    names = as_several(value)
    if not all(isinstance(name, str) and name for name in names):
        problem = "expected 'all', or names of columns such as ('day', 'price')"
        raise OptionError.of(name, value, problem)
    return "all" if value == "all" else names


def _parse_statistics(text: str) -> StatisticsChoice:
    if text.lower() in ("all", "none"):
        return "all" if text.lower() == "all" else ()
    return parse_names(text)


STATISTICS = Kind(
    _check_statistics,
    _parse_statistics,
    "names, `all` or `none`",
    "all, none, or names of columns such as a,b",
    may_be_empty=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of reading a shuffle; bad values raise :class:`OptionError` at construction.

    .. code-block:: python

        options = arrow_shuffle.ReadOptions(memory_bytes=128 << 20)
        orders = arrow_shuffle.open_shuffle("/data/orders", options=options)

    Parameters
    ----------
    memory_bytes
        Memory of reading, in bytes, 96 MiB or more, besides what the process uses anyway: about an
        eighth for prefetched chunks, an eighth for indexes, the rest for rows that are ordered and
        returned. A single row is read whatever its size. A sorted subpartition that does not fit
        takes at least 32 KiB for each region: merge shuffles of thousands of regions first.
    memory_map
        Map data files instead of reading them: no copy, for local files with codec ``none`` that
        never change. A mapped file that is truncated while it is read kills the process.
    readers
        Number of shuffles that one task reads within ``memory_bytes``: 32 MiB for all of them, and
        at least 16 MiB for each. :meth:`shared_by` sets it for functions that read several.
    """

    memory_bytes: int = option(256 << 20, num_bytes(MIN_MEMORY_BYTES, 1 << 50))
    memory_map: bool = option(False, FLAG)
    readers: int = option(1, whole(1, 1 << 20, "shuffles"), name="")

    @property
    def _spare_bytes(self) -> int:
        return (self.memory_bytes - READING_BYTES) // self.readers

    @property
    def fetched_bytes(self) -> int:
        """Most bytes of prefetched chunks."""
        return self._spare_bytes // 8

    @property
    def index_bytes(self) -> int:
        """Most bytes of cached indexes."""
        return self._spare_bytes // 8

    @property
    def group_bytes(self) -> int:
        """Most raw bytes of adjacent subpartitions that are read and ordered together."""
        return min(self._spare_bytes // 8, MOST_TOGETHER_BYTES)

    @property
    def working_set_bytes(self) -> int:
        """Most raw bytes of rows that are joined or aggregated together."""
        return min(self.memory_bytes * 3 // 16 // self.readers, MOST_TOGETHER_BYTES)

    @property
    def kept_bytes(self) -> int:
        """Most raw bytes of a broadcast shuffle that are cached for the next subpartition."""
        return self._spare_bytes // 2

    def shared_by(self, readers: int) -> ReadOptions:
        """Return the options of each of several readers that share the memory.

        Raises
        ------
        OptionError
            The memory is too little for so many readers.
        """
        return replace(self, readers=self.readers * readers)

    @property
    def batch_bytes(self) -> int:
        """Raw bytes at which a batch is returned."""
        return min(self._spare_bytes // 16, MOST_TOGETHER_BYTES)

    def __post_init__(self) -> None:
        """Check every value."""
        check_fields(self)
        needed = READING_BYTES + self.readers * MIN_SHARE_BYTES
        if self.readers > 1 and self.memory_bytes < needed:
            problem = (
                f"{self.readers} shuffles that one task reads need {needed} bytes together, "
                f"{needed >> 20} MiB; give that or more, or read fewer of them together"
            )
            raise OptionError.of("memory_bytes", self.memory_bytes, problem)


def check_read_options(value: object) -> ReadOptions:
    """Return ``value`` if it is a ReadOptions, the defaults for None; raises OptionError."""
    return ReadOptions() if value is None else check_type("options", value, ReadOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of a shuffle write; bad values raise :class:`OptionError` at construction.

    .. code-block:: python

        options = arrow_shuffle.WriteOptions(sort_buffer_bytes=32 << 20, codec="none")
        arrow_shuffle.write_shuffle(
            rows, "/data/plain", keys="customer", num_subpartitions=8, options=options
        )

    Parameters
    ----------
    sort_buffer_bytes
        Memory for clustering, in bytes; a region has at most three eighths of it.
    codec
        ``zstd``: columns are packed and compressed one by one. ``none``: the data file is a plain
        Arrow IPC file.
    codec_level
        zstd level, -7 (fastest) to 22 (smallest).
    chunk_bytes
        Raw bytes at which a chunk closes at the next subpartition boundary, at most 4 MiB. A table
        of more than 16 columns has larger chunks in proportion, of 4 times as many bytes at most,
        and with codec ``none`` of 8 times. A region of fewer than 16 chunks has smaller ones, of a
        quarter as many bytes at least.
    local_dirs
        Absolute directories on other disks. Map outputs are spread round-robin over them and the
        shuffle's own directory. Tasks, commit and readers must all be able to access them. A
        directory that cannot be written is skipped, and counted as ``failed_directories`` in the
        receipt. By default none.
    write_order
        ``rotated``: each map task starts at another subpartition. ``natural``: all start at 0.
    rewrite
        Whether a map task joins its regions at its end: ``never``, ``always``, or ``auto``: when
        :class:`~arrow_format.write.merge_policy.MergePolicy` finds it worth about the work of a
        second write. That depends on how often single subpartitions are read, which only the user
        knows.
    sync
        Whether data, index, directory, then log entry are fsynced, in that order.
    result_type
        Who may consume the result, and when it is released: ``BLOCKING_PERSISTENT``, ``BLOCKING``,
        ``PIPELINED`` or ``PIPELINED_BOUNDED``, as
        :class:`~arrow_format.options.ResultPartitionType` says. By default that of the shuffle that
        is appended to, else ``BLOCKING_PERSISTENT``.
    max_unconsumed_bytes
        For ``PIPELINED_BOUNDED`` only: most stored bytes that the slowest consumer has not
        consumed. By default without limit.
    max_unconsumed_versions
        For ``PIPELINED_BOUNDED`` only: most versions that the slowest consumer has not consumed.
        By default 16 where ``max_unconsumed_bytes`` is not given.
    back_pressure_timeout
        For ``PIPELINED_BOUNDED`` only, also when an append inherits that type: how long a commit
        waits for consumers before it fails; in Python seconds. By default 10 minutes.
    schema_evolution
        Whether an append may change the columns of the shuffle: add those that it lacks, and widen
        a number to the type of the appended rows. Without it such rows are refused.
    statistics
        Columns whose minimum, maximum and null count are stored for each file, region and chunk, so
        that filters skip what cannot match: names, ``all`` that can have some (no nested ones), or
        no names. Of keys that are only hashed none are in the log, so that a deletion leaves none.
        By default sort keys, keys of ranges, and numbers, dates and times, which cost little.
    threads
        Threads that work together, the calling one included: while that one fills the buffer, the
        others pack, compress and write the region before and decode a dataset ahead, and it does
        so too instead of waiting for them. The files are the same bytes whatever it is. More than
        one take half of ``sort_buffer_bytes`` more memory, 16 MiB for each, and 32 MiB for rows
        that are decoded ahead. By default as many as the process may use cores, and 1 in tasks of
        Spark, which has one for each core.
    """

    sort_buffer_bytes: int = option(128 << 20, num_bytes(1 << 10, 1 << 40))
    codec: Codec = option("zstd", choice(*CODECS))
    codec_level: int = option(1, whole(-7, 22, "zstd levels"))
    chunk_bytes: int = option(256 << 10, num_bytes(1, MAX_CHUNK_BYTES))
    local_dirs: tuple[str, ...] = option((), _DIRECTORIES)
    write_order: WriteOrder = option("rotated", choice(*WRITE_ORDERS), name="")
    rewrite: RewriteChoice = option("never", choice(*REWRITE_CHOICES), name="")
    sync: bool = option(True, FLAG, name="")
    result_type: ResultPartitionType | ResultTypeName | None = option(None, _RESULT_TYPE)
    max_unconsumed_bytes: int | None = option(None, num_bytes(1, 1 << 60))
    max_unconsumed_versions: int | None = option(None, whole(1, 1 << 60, "versions"))
    back_pressure_timeout: float | None = option(None, SECONDS)
    schema_evolution: bool = option(False, FLAG, name="mergeSchema")
    statistics: StatisticsChoice | None = option(None, STATISTICS)
    threads: int | None = option(None, whole(1, MAX_THREADS, "threads"))

    @property
    def region_bytes(self) -> int:
        """Most bytes of memory of the rows of a region; gathering needs as much again."""
        return min(self.sort_buffer_bytes * 3 // 8, MAX_REGION_BYTES)

    def __post_init__(self) -> None:
        """Check every value."""
        check_fields(self)
        self._check_result()

    def _check_result(self) -> None:
        kind = None if self.result_type is None else check_result_type(self.result_type)
        if kind is ResultPartitionType.PIPELINED_BOUNDED:
            return
        given = "no type was given" if kind is None else f"this one is {kind.name}"
        for name in ("max_unconsumed_bytes", "max_unconsumed_versions"):
            if getattr(self, name) is not None:
                problem = f"only a result of type PIPELINED_BOUNDED has bounds, and {given}"
                raise OptionError.of(name, getattr(self, name), problem)
        if kind is not None and self.back_pressure_timeout is not None:
            problem = (
                f"only a result of type PIPELINED_BOUNDED waits for its consumers, and {given}; "
                "leave one of them out"
            )
            raise OptionError.of("back_pressure_timeout", self.back_pressure_timeout, problem)


def check_write_options(value: object) -> WriteOptions:
    """Return ``value`` if it is a WriteOptions, the defaults for None; raises OptionError."""
    return WriteOptions() if value is None else check_type("options", value, WriteOptions)
