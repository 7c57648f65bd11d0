"""Options of streams: from Spark's texts to checked settings. Pure."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING

from arrow_format.errors import OptionError
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.log.changes import OVERWRITES
from arrow_format.model import MAX_INTEGER
from arrow_format.option_fields import check_fields, option
from arrow_format.options import FLAG, choice, num_bytes, whole
from arrow_format.streaming.options import FlushOptions, OperatorAttributes, is_output_buffered
from connector.options.batch import (
    BATCH_OPTIONS,
    READ_OPTIONS,
    WRITE_OPTIONS,
    batch_read_options,
    target_options,
)
from connector.options.named import build, known_options, options_of
from connector.options.text import STARTING_VERSION
from connector.spark_version import refuse_limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.log.changes import LogStep
    from connector.options.batch import BatchReadOptions, TargetOptions

_MAX_INTERVAL = "flush.maxInterval"
_IDEMPOTENT = "isOutputIdempotent"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of one ``df.writeStream``.

    Parameters
    ----------
    target, flush
        Where it writes, and when rows that wait for later ones are published.
    empty_versions
        Whether a micro-batch without rows becomes a version too.
    is_output_idempotent
        Whether the latest row of each key alone gives the right result; where not,
        ``flush.maxInterval`` has no effect.
    """

    target: TargetOptions
    flush: FlushOptions
    empty_versions: bool = option(False, FLAG)
    is_output_idempotent: bool = option(True, FLAG)

    def __post_init__(self) -> None:
        check_fields(self)

    def waits(self, partitioner: Partitioner, sort_by: SortBy, combine: Mapping[str, str]) -> bool:
        """Whether rows wait for later ones of their key; else each micro-batch is a version.

        The arguments are those of the shuffle, from these options or an existing one. Raises
        OptionError where rows would wait and are to be sorted or combined.
        """
        waits = is_output_buffered(
            OperatorAttributes(is_output_idempotent=self.is_output_idempotent),
            max_interval=self.flush.max_interval,
            is_keyed=isinstance(partitioner, HashPartitioner),
            parallelism=None,
        )
        if waits and sort_by:
            msg = (
                f"option sortBy: with {_MAX_INTERVAL} rows wait in the order in which they arrive, "
                "which sorting would lose; leave one of them out"
            )
            raise OptionError(msg)
        if waits and combine:
            msg = (
                f"option combine: with {_MAX_INTERVAL} the latest row of each key replaces those "
                "before it, which would lose what they add; leave one of them out"
            )
            raise OptionError(msg)
        return waits


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return the options of a sink from those that Spark hands over.

    Raises OptionError for an unknown option or a bad value; it names both and what is allowed.
    """
    known = known_options(
        options,
        {"options of a stream's sink": (*WRITE_OPTIONS, *SINK_OPTIONS)},
        "checkpointLocation",  # Spark's own, which it hands to the sink as well
        "queryName",
    )
    for name in known:
        if (name.startswith("flush.") or name == _IDEMPOTENT) and _MAX_INTERVAL not in known:
            msg = f"option {name}: has no effect without {_MAX_INTERVAL}; give that too"
            raise OptionError(msg)
    return build(
        SinkOptions,
        known,
        target=target_options(known),
        flush=build(FlushOptions, known),
    )


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What a batch may have at most; a version is never split.

    Parameters
    ----------
    max_versions
        Versions with rows that a batch may have; of several limits, the tightest holds. By default
        no limit.
    max_rows
        Rows that a batch may have, unless a single version has more. By default no limit.
    max_bytes
        Bytes of data files that a batch may have, unless a single version has more. By default no
        limit.
    """

    max_versions: int | None = option(
        None, whole(1, MAX_INTEGER, "versions"), name="maxVersionsPerTrigger"
    )
    max_rows: int | None = option(None, whole(1, MAX_INTEGER, "rows"), name="maxRowsPerTrigger")
    max_bytes: int | None = option(None, num_bytes(1, MAX_INTEGER), name="maxBytesPerTrigger")

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def are_none(self) -> bool:
        """Whether a batch may have anything."""
        return self == StepLimits()

    def tightened(self, other: StepLimits) -> StepLimits:
        """Return the tighter of each two limits."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return StepLimits(
            *(min((limit for limit in pair if limit is not None), default=None) for pair in pairs)
        )

    def end_of(self, steps: Iterable[LogStep]) -> int | None:
        """Return the version at which a batch ends; None where there is nothing to read.

        The first version with rows is always taken: a batch without it would never make progress.
        ``steps`` are the versions that follow, in order, consumed only as far as needed.
        """
        versions = rows = num_bytes = 0
        end = None
        for step in steps:
            if not step.adds:  # nothing to read, and nothing to wait for
                end = step.version if versions else end
                continue
            versions += 1
            rows += step.num_rows
            num_bytes += step.num_bytes
            if versions > 1 and not self._allow(versions, rows, num_bytes):
                break
            end = step.version
        return end

    def _allow(self, *counts: int) -> bool:
        pairs = zip(counts, astuple(self), strict=True)
        return all(limit is None or count <= limit for count, limit in pairs)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of one ``spark.readStream``.

    Parameters
    ----------
    scan, limits
        What each batch reads, and how much it may have.
    starting_version
        Where a query without a checkpoint begins: ``earliest``, ``latest`` (what is committed from
        now on), or the first version to deliver; a ``consumer`` of a ``BLOCKING`` result begins at
        ``earliest``. By default ``earliest``.
    on_overwrite
        What to do with a version that overwrites: ``fail``, or ``deliver`` its rows like added
        ones.
    """

    scan: BatchReadOptions
    starting_version: int | None = option(0, STARTING_VERSION)
    """The version before the first to deliver; None for the latest."""
    on_overwrite: str = option("fail", choice(*OVERWRITES))
    limits: StepLimits = field(default_factory=StepLimits)

    def __post_init__(self) -> None:
        check_fields(self)


SINK_OPTIONS = options_of("a stream's sink", SinkOptions, FlushOptions)
"""Further options of streaming writes."""

SOURCE_OPTIONS = options_of("a stream's source", SourceOptions, StepLimits)
"""Further options of streaming reads."""


def parse_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the options of a source; raises as :func:`parse_sink_options`."""
    known = known_options(
        options, {"options of a stream's source": (*READ_OPTIONS, *SOURCE_OPTIONS)}
    )
    return _source_options(known)


def parse_schema_options(options: Mapping[str, str]) -> BatchReadOptions:
    """Return the options that locate a schema, of a batch or of a stream: Spark does not say which.

    Bad options of a stream are refused here too, at load and not when the query has begun. Raises
    as :func:`parse_sink_options`.
    """
    known = known_options(options, BATCH_OPTIONS | {"those of a stream": SOURCE_OPTIONS})
    target_options(known)
    return _source_options(known).scan


def _source_options(known: Mapping[str, str]) -> SourceOptions:
    limits = build(StepLimits, known)
    if not limits.are_none:
        refuse_limits()
    return build(SourceOptions, known, scan=batch_read_options(known), limits=limits)
