"""Options of streams: strings from Spark to checked values. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from arrow_format.errors import OptionError
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.log.changes import OVERWRITES
from arrow_format.streaming.latest_by_key import DEFAULT_BYTES, LEAST_BYTES
from arrow_format.streaming.options import FlushOptions, OperatorAttributes, is_output_buffered
from arrow_format.strict_json import natural
from connector.options.source import (
    READ_OPTIONS,
    WRITE_OPTIONS,
    known_options,
    scan_options,
    target_options,
)
from connector.options.text import bad, boolean, num_bytes, parse_duration, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.log.changes import Step
    from connector.options.source import ScanOptions, TargetOptions


MAX_INTERVAL = "flush.maxInterval"
"""Flink: ``execution.flush.max-interval``."""
MEMORY_BUFFER_ONLY = "flush.memoryBufferOnly"
"""Flink: ``execution.flush.memory-buffer-only``."""
MAX_BUFFERED_BYTES = "flush.maxBufferedBytes"

FLUSH_OPTIONS = (MAX_INTERVAL, MEMORY_BUFFER_ONLY, MAX_BUFFERED_BYTES)
"""Names of all of them."""

_PREFIX = "flush."
_INTERVALS = "500ms, 90s, 2min or 1h"


def parse_interval(value: object, name: str) -> timedelta | None:
    """Return a flush interval: None and timedeltas as they are, text as a duration above zero.

    Raises
    ------
    OptionError
        It is none of these.
    """
    if value is None or isinstance(value, timedelta):
        interval = value
    elif isinstance(value, str):
        interval = parse_duration(value, name, examples=_INTERVALS)
    else:
        msg = f"{name}={value!r}: expected text as {_INTERVALS}, or a timedelta"
        raise OptionError(msg)
    if interval is not None and interval <= timedelta():
        msg = f"{name}={value!r}: expected more than no time; leave it out to buffer nothing"
        raise OptionError(msg)
    return interval


def parse_flush_options(options: Mapping[str, str]) -> FlushOptions:
    """Read the options that begin with ``flush.``; others are left alone.

    Parameters
    ----------
    options
        As Spark hands them over: names in any case, values text.

    Raises
    ------
    OptionError
        A value is bad, or there is no such option; names it.
    """
    known = {name.lower(): name for name in FLUSH_OPTIONS}
    found: dict[str, str] = {}
    for key, value in options.items():
        if not key.lower().startswith(_PREFIX):
            continue
        name = known.get(key.lower())
        if name is None:
            msg = f"option {key!r} is not known; there are {', '.join(FLUSH_OPTIONS)}"
            raise OptionError(msg)
        found[name] = value
    text = found.get(MAX_BUFFERED_BYTES, str(DEFAULT_BYTES))
    most = num_bytes(MAX_BUFFERED_BYTES, text)
    if most < LEAST_BYTES:
        raise bad(MAX_BUFFERED_BYTES, text, f"at least {LEAST_BYTES >> 10}k")
    return FlushOptions(
        max_interval=parse_interval(found.get(MAX_INTERVAL), MAX_INTERVAL),
        memory_buffer_only=boolean(MEMORY_BUFFER_ONLY, found.get(MEMORY_BUFFER_ONLY, "false")),
        max_buffered_bytes=most,
    )


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """All rows of a version, and of those before it, were read."""

    version: int
    """0: none were."""
    commit_id: str | None = None
    """Whose version it is, so that a shuffle that was made anew is noticed; None where a stream
    begins, of which nothing was read yet, or where nothing tells the id any more."""
    consumed: bool = False
    """Whether rows up to there were read under the name of its consumer; without a commit id."""

    @property
    def begins(self) -> bool:
        """Whether nothing was read yet."""
        return self.commit_id is None and not self.consumed

    def to_json(self) -> dict[str, int | str | bool]:
        """As Spark keeps it in its checkpoint."""
        if self.begins:
            return {"version": self.version}
        if self.commit_id is None:
            return {"version": self.version, "consumed": True}
        return {"version": self.version, "commitId": self.commit_id}

    @staticmethod
    def from_json(value: Mapping[str, object]) -> StreamOffset:
        """Inverse of :meth:`to_json`.

        Raises
        ------
        OptionError
            It is of another source.
        """
        try:
            version = natural(value["version"])
            commit_id, consumed = value.get("commitId"), value.get("consumed", False)
            if (commit_id is None or isinstance(commit_id, str)) and isinstance(consumed, bool):
                return StreamOffset(version, commit_id, consumed)
        except (KeyError, ValueError, AttributeError, TypeError):
            pass
        msg = (
            f"offset {value!r} in the checkpoint is not of this source; it has a version and a "
            "commitId. Give the query the checkpointLocation that it had"
        )
        raise OptionError(msg)


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What a batch may have at most; None: any number. A version is never split."""

    max_versions: int | None = None
    """Versions that add rows."""
    max_rows: int | None = None
    max_bytes: int | None = None
    """Bytes of the data files."""

    @property
    def are_none(self) -> bool:
        """Whether a batch may have anything."""
        return self == StepLimits()

    def tightened(self, other: StepLimits) -> StepLimits:
        """Return what keeps to both."""
        return StepLimits(
            _smaller(self.max_versions, other.max_versions),
            _smaller(self.max_rows, other.max_rows),
            _smaller(self.max_bytes, other.max_bytes),
        )

    def end_of(self, steps: Iterable[Step]) -> int | None:
        """Return the version up to which a batch goes; None where there is nothing to read.

        The first version with rows is always taken, since a batch of none would never end. What is
        not needed of ``steps`` is not asked for.

        Parameters
        ----------
        steps
            The versions that follow, in order.
        """
        versions = rows = num_bytes = 0
        end = None
        for step in steps:
            if not step.adds:  # nothing to read, and nothing to wait for
                end = step.version if versions else end
                continue
            versions, rows, num_bytes = (
                versions + 1,
                rows + step.num_rows,
                num_bytes + step.num_bytes,
            )
            if versions > 1 and not self._allow(versions, rows, num_bytes):
                break
            end = step.version
        return end

    def _allow(self, versions: int, rows: int, num_bytes: int) -> bool:
        return (
            (self.max_versions is None or versions <= self.max_versions)
            and (self.max_rows is None or rows <= self.max_rows)
            and (self.max_bytes is None or num_bytes <= self.max_bytes)
        )


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


IDEMPOTENT = "isOutputIdempotent"
SINK_OPTIONS = ("emptyVersions", *FLUSH_OPTIONS, IDEMPOTENT)
"""Options of a sink beside those of a batch write."""
SOURCE_OPTIONS = (
    "startingVersion",
    "onOverwrite",
    "maxVersionsPerTrigger",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
)
"""Options of a source beside those of a batch read, ``version`` excepted."""

_VERSION = re.compile(r"\d{1,18}")
_OF_THE_QUERY = ("checkpointLocation", "queryName")
"""Spark's own, which it hands to the sink as well."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of one ``df.writeStream``."""

    target: TargetOptions
    empty_versions: bool = False
    """Whether a micro-batch without rows becomes a version too."""
    flush: FlushOptions = field(default_factory=FlushOptions)
    """When what is pending is flushed."""
    attributes: OperatorAttributes = field(default_factory=OperatorAttributes)
    """What the query says of its output."""

    def waits(self, partitioner: Partitioner, sort_by: SortBy) -> bool:
        """Whether rows wait for later ones of their key; else each micro-batch is a version.

        Parameters
        ----------
        partitioner, sort_by
            Of the shuffle, from these options or the one that is there.

        Raises
        ------
        OptionError
            They would wait, and are to be sorted.
        """
        is_keyed = isinstance(partitioner, HashPartitioner)
        waits = is_output_buffered(
            self.attributes,
            max_interval=self.flush.max_interval,
            is_keyed=is_keyed,
            parallelism=None,
        )
        if waits and sort_by:
            msg = (
                f"option sortBy: with {MAX_INTERVAL} rows wait in the order in which they come, "
                "which sorting them would lose; leave one of them out"
            )
            raise OptionError(msg)
        return waits


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Options of a sink from what Spark hands over.

    Raises
    ------
    OptionError
        An unknown option, or a bad value; the message names it and what is allowed.
    """
    allowed = (*WRITE_OPTIONS, *SINK_OPTIONS)
    known = known_options(
        options, (*allowed, *_OF_THE_QUERY), f"options of a stream's sink are {', '.join(allowed)}"
    )
    target = target_options(known)
    empty = boolean("emptyVersions", known.get("emptyVersions", "false"))
    flush = parse_flush_options({name: known[name] for name in FLUSH_OPTIONS if name in known})
    for name in (*FLUSH_OPTIONS, IDEMPOTENT):
        if name in known and flush.max_interval is None:
            msg = f"option {name}: says nothing without {MAX_INTERVAL}; give that too"
            raise OptionError(msg)
    is_idempotent = boolean(IDEMPOTENT, known.get(IDEMPOTENT, "true"))
    attributes = OperatorAttributes(is_output_idempotent=is_idempotent)
    return SinkOptions(target, empty, flush, attributes)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of one ``spark.readStream``."""

    scan: ScanOptions
    starting_version: int | None = 0
    """The version after which the first batch begins; 0 is the beginning, None the newest."""
    on_overwrite: str = "fail"
    """What to do with a version that overwrites, see :mod:`arrow_format.log.changes`."""
    limits: StepLimits = field(default_factory=StepLimits)
    """What a batch may have at most."""


def parse_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Options of a source from what Spark hands over.

    Raises
    ------
    OptionError
        An unknown option, or a bad value; the message names it and what is allowed.
    """
    allowed = (*(name for name in READ_OPTIONS if name != "version"), *SOURCE_OPTIONS)
    known = known_options(
        options, allowed, f"options of a stream's source are {', '.join(allowed)}"
    )
    return _source_options(known)


def _source_options(known: Mapping[str, str]) -> SourceOptions:
    """Options of a source among those of :func:`known_options`."""
    on_overwrite = known.get("onOverwrite", "fail").lower()
    if on_overwrite not in OVERWRITES:
        expected = f"one of {', '.join(OVERWRITES)}"
        raise bad("onOverwrite", known["onOverwrite"], expected)
    most = known.get("maxBytesPerTrigger")
    return SourceOptions(
        scan=scan_options(known),
        starting_version=_starting_version(known.get("startingVersion", "earliest")),
        on_overwrite=on_overwrite,
        limits=StepLimits(
            max_versions=_count(known, "maxVersionsPerTrigger"),
            max_rows=_count(known, "maxRowsPerTrigger"),
            max_bytes=None if most is None else num_bytes("maxBytesPerTrigger", most),
        ),
    )


def parse_schema_options(options: Mapping[str, str]) -> ScanOptions:
    """Options that say where the schema is, of a batch or of a stream: Spark does not say which.

    Raises
    ------
    OptionError
        As :func:`parse_source_options`.
    """
    allowed = (*READ_OPTIONS, *SOURCE_OPTIONS)
    described = (
        f"write options are {', '.join(WRITE_OPTIONS)}, read options are "
        f"{', '.join(READ_OPTIONS)}, those of a stream are {', '.join(SOURCE_OPTIONS)} too"
    )
    known = known_options(options, (*WRITE_OPTIONS, *allowed), described)
    target_options(known)
    # Also those of streams: what is bad here is told at load, and not by a query that has begun.
    return _source_options(known).scan


def _starting_version(value: str) -> int | None:
    if value.lower() in ("earliest", "latest"):
        return 0 if value.lower() == "earliest" else None
    if not _VERSION.fullmatch(value) or int(value) == 0:
        raise bad("startingVersion", value, "earliest, latest or a version, from 1")
    return int(value) - 1


def _count(known: Mapping[str, str], name: str) -> int | None:
    if name not in known:
        return None
    count = whole(name, known[name])
    if count < 1:
        raise bad(name, known[name], "a whole number, at least 1")
    return count
