"""Options of streams: from Spark's texts to checked settings. Pure."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING

from arrow_format.errors import OptionError
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.log.changes import OVERWRITES
from arrow_format.options import check_choice
from arrow_format.streaming.options import FlushOptions, OperatorAttributes, is_output_buffered
from connector.options.source import BATCH_OPTIONS, scan_options, target_options
from connector.options.table import (
    READ_OPTIONS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    WRITE_OPTIONS,
    build,
    known_options,
)
from connector.spark_version import refuse_limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.log.changes import LogStep
    from connector.options.source import ScanOptions, TargetOptions

_MAX_INTERVAL = "flush.maxInterval"
_IDEMPOTENT = "isOutputIdempotent"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of one ``df.writeStream``."""

    target: TargetOptions
    flush: FlushOptions
    attributes: OperatorAttributes
    """What the query says of its output."""
    empty_versions: bool = False

    def waits(self, partitioner: Partitioner, sort_by: SortBy, combine: Mapping[str, str]) -> bool:
        """Whether rows wait for later ones of their key; else each micro-batch is a version.

        The arguments are those of the shuffle, from these options or an existing one. Raises
        OptionError where rows would wait and are to be sorted or combined.
        """
        waits = is_output_buffered(
            self.attributes,
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
        attributes=build(OperatorAttributes, {_IDEMPOTENT: "true"} | known),
    )


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What a batch may have at most; None: any number. A version is never split."""

    max_versions: int | None = None
    """Versions that add rows."""
    max_rows: int | None = None
    max_bytes: int | None = None
    """Bytes of data files."""

    def __post_init__(self) -> None:
        for name in ("max_versions", "max_rows", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                msg = f"{name}={value!r}: expected a whole number, at least 1"
                raise OptionError(msg)

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
    """Options of one ``spark.readStream``."""

    scan: ScanOptions
    starting_version: int | None = 0
    """The version after which the first batch begins; 0 is the beginning, None the newest."""
    on_overwrite: str = "fail"
    """What to do with a version that overwrites, see :mod:`arrow_format.log.changes`."""
    limits: StepLimits = field(default_factory=StepLimits)

    def __post_init__(self) -> None:
        check_choice("on_overwrite", self.on_overwrite, OVERWRITES)


def parse_source_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the options of a source; raises as :func:`parse_sink_options`."""
    known = known_options(
        options, {"options of a stream's source": (*READ_OPTIONS, *SOURCE_OPTIONS)}
    )
    return _source_options(known)


def parse_schema_options(options: Mapping[str, str]) -> ScanOptions:
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
    return build(SourceOptions, known, scan=scan_options(known), limits=limits)
