"""Options of streams: strings from Spark to checked values. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from arrow_format.errors import OptionError
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.log.changes import OVERWRITES
from arrow_format.streaming.flush_options import FlushOptions
from arrow_format.streaming.operator_attributes import OperatorAttributes, is_output_buffered
from connector.options.flush_options import MAX_INTERVAL, parse_flush_options
from connector.options.flush_options import NAMES as FLUSH_OPTIONS
from connector.options.source import (
    READ_OPTIONS,
    WRITE_OPTIONS,
    known_options,
    scan_options,
    target_options,
)
from connector.options.stream_progress import StepLimits
from connector.options.text import bad, boolean, num_bytes, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.keys.sort_keys import SortBy
    from connector.options.source import ScanOptions, TargetOptions

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
