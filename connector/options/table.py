"""The table of all options: what each is called, how its text is parsed, what it sets and does.

``docs/reference/options.md`` is generated from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from arrow_format.errors import OptionError
from arrow_format.storage.open import scheme_of
from connector.options.filters import parse_arrow_filter
from connector.options.text import (
    as_is,
    boolean,
    lower,
    num_bytes,
    parse_bounds,
    parse_combine,
    parse_interval,
    parse_names,
    parse_pin,
    parse_sort_keys,
    parse_starting_version,
    parse_statistics,
    parse_subpartitions,
    parse_version,
    seconds,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Settings = TypeVar("Settings")


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the data source."""

    name: str
    """As documented; Spark hands names over in lower case."""
    parse: Callable[[str, str], Any]
    """Takes the name and the text; see :mod:`connector.options.text`."""
    field: str
    """What it sets: class and field. The class checks ranges and combinations."""
    doc: str
    """What it does, for the reference: Markdown, without a period at the end."""
    default: str | None = None
    """The default for the reference, where that of the field does not show it."""
    may_be_empty: bool = False
    """Whether an empty text counts as not given; elsewhere it is an error."""


WRITE_OPTIONS = (
    Option("keys", as_is, "TargetOptions.partitioner",
           'columns to hash as Spark does, `a,b` or `["a","b"]`; with `partitioner=range` sort '
           "keys as in `sortBy`, with `column` the one column that holds the subpartition",
           default="those of the existing shuffle", may_be_empty=True),
    Option("partitioner", lower, "TargetOptions.partitioner",
           "`hash`, `range`, `roundrobin`, `broadcast` or `column`",
           default="`hash` where `keys` are given, else that of the existing shuffle"),
    Option("numSubpartitions", whole, "TargetOptions.num_subpartitions",
           "number of subpartitions, 1 to 1,000,000; required for a new shuffle",
           default="that of the existing shuffle"),
    Option("rangeBounds", parse_bounds, "TargetOptions.range_bounds",
           "upper bounds of the ranges of `partitioner=range`, ascending, with dates, timestamps "
           'and decimals as text: `["2024-06-30"]`; required for a new shuffle of ranges',
           default="those of the existing shuffle", may_be_empty=True),
    Option("sortBy", parse_sort_keys, "TargetOptions.sort_by",
           "order of the rows of each subpartition: `a, b desc nulls first`",
           default="that of the existing shuffle, else as they arrive", may_be_empty=True),
    Option("combine", parse_combine, "TargetOptions.combine",
           "functions of the columns that are no keys, `n:sum, price:max`, or JSON "
           '`{"n": "sum"}`: rows of equal keys in a task become one',
           default="those of the existing shuffle, else none", may_be_empty=True),
    Option("sortBufferBytes", num_bytes, "WriteOptions.sort_buffer_bytes",
           "memory for clustering in each task; a region holds at most 3/8 of it"),
    Option("codec", lower, "WriteOptions.codec",
           "`zstd`, or `none`: data files are then plain Arrow IPC files"),
    Option("codecLevel", whole, "WriteOptions.codec_level", "zstd level, -7 to 22"),
    Option("chunkBytes", num_bytes, "WriteOptions.chunk_bytes",
           "bytes, before compression, at which a chunk closes, at most 4 MiB"),
    Option("statistics", parse_statistics, "WriteOptions.statistics",
           "columns whose minimum, maximum and null count are stored per file and chunk, so that "
           'filters skip what cannot match: `a,b` or `["a","b"]`, `all`, or `none`',
           default="sort and range keys; numbers, dates and times",
           may_be_empty=True),
    Option("threads", whole, "WriteOptions.threads",
           "threads of each task that gather, pack and compress", default="1"),
    Option("localDirs", parse_names, "WriteOptions.local_dirs",
           "absolute directories on other disks, `/d1,/d2`, over which map outputs are spread as "
           "well", default="none", may_be_empty=True),
    Option("resultType", lower, "WriteOptions.result_type",
           "who consumes the result and when it is released: `BLOCKING_PERSISTENT`, `BLOCKING`, "
           "`PIPELINED` or `PIPELINED_BOUNDED`",
           default="that of the existing shuffle, else `BLOCKING_PERSISTENT`"),
    Option("maxUnconsumedBytes", num_bytes, "WriteOptions.max_unconsumed_bytes",
           "of `PIPELINED_BOUNDED`: stored bytes that may wait for the slowest consumer",
           default="no limit"),
    Option("maxUnconsumedVersions", whole, "WriteOptions.max_unconsumed_versions",
           "of `PIPELINED_BOUNDED`: versions that may wait for the slowest consumer",
           default="16 where `maxUnconsumedBytes` is not given"),
    Option("backPressureTimeout", seconds, "WriteOptions.back_pressure_timeout",
           "of `PIPELINED_BOUNDED`: how long a commit waits for the slowest consumer before it "
           "fails", default="10min"),
    Option("mergeSchema", boolean, "WriteOptions.schema_evolution",
           "whether an append may add columns to the shuffle, and widen numbers to the types of "
           "the appended rows"),
)  # fmt: skip
"""Options of writes, batch and streaming."""

BATCH_WRITE_OPTIONS = (
    Option("expectedVersion", whole, "TargetOptions.expected_version",
           "write only if no rows were added or taken away after this version; 0 expects that "
           "there is none yet", default="not checked"),
    Option("txnAppId", as_is, "TargetOptions.txn_app_id",
           "with `txnVersion`: an application, 1 to 100 letters, digits, `_` and `-`, whose write "
           "of that number is committed [once](../guide/writing.md#once), however often it is run",
           default="none: each write is committed"),
    Option("txnVersion", whole, "TargetOptions.txn_version",
           "with `txnAppId`: the number of the write, from 0, ascending",
           default="none"),
)  # fmt: skip
"""Further options of batch writes."""

SINK_OPTIONS = (
    Option("emptyVersions", boolean, "SinkOptions.empty_versions",
           "whether a micro-batch without rows becomes a version too"),
    Option("flush.maxInterval", parse_interval, "FlushOptions.max_interval",
           "commit micro-batches as pending, and once this long has passed since the last flush "
           "publish all of them as one version with the latest row of each key (Flink: "
           "`execution.flush.max-interval`)", default="none: each micro-batch is a version"),
    Option("flush.memoryBufferOnly", boolean, "FlushOptions.memory_buffer_only",
           "flush as soon as `flush.maxBufferedBytes` are pending, instead of reading them in "
           "several passes (Flink: `execution.flush.memory-buffer-only`)"),
    Option("flush.maxBufferedBytes", num_bytes, "FlushOptions.max_buffered_bytes",
           "memory of a flush, which runs on the driver's machine"),
    Option("isOutputIdempotent", boolean, "OperatorAttributes.is_output_idempotent",
           "whether the latest row of each key alone gives the right result; where not, "
           "`flush.maxInterval` has no effect", default="`true`"),
)  # fmt: skip
"""Further options of streaming writes."""

READ_OPTIONS = (
    Option("subpartitions", parse_subpartitions, "ScanOptions.subpartitions",
           "subpartitions to read, `3,7-9`", default="all"),
    Option("filter", as_is, "ScanOptions.filter",
           "condition of the rows to read, in a [subset of SQL](../guide/reading.md#filters): "
           "`day >= DATE '2024-06-01' AND customer IN (17, 18)`", default="none: all rows"),
    Option("timeZone", as_is, "ScanOptions.time_zone",
           "time zone of dates and timestamps in `filter` that name none: a region or an offset; "
           "`connector.read_shuffle` sets that of the session",
           default="none: a filter that needs one is refused"),
    Option("coalesce", boolean, "ScanOptions.coalesce",
           "whether adjacent subpartitions share a Spark partition; otherwise each is exactly one, "
           "empty ones too"),
    Option("targetPartitionBytes", num_bytes, "ScanOptions.target_partition_bytes",
           "bytes on disk of a coalesced Spark partition"),
    Option("splitSkewed", boolean, "ScanOptions.split_skewed",
           "whether several Spark partitions may read a subpartition larger than "
           "`targetPartitionBytes`, by map output or region"),
    Option("withSubpartition", boolean, "ScanOptions.with_subpartition",
           "whether to append the int column `_subpartition`"),
    Option("memoryBytes", num_bytes, "ReadOptions.memory_bytes",
           "memory that a reading task may take besides its process's own, 96 MiB or more"),
    Option("memoryMap", boolean, "ReadOptions.memory_map",
           "whether to map data files instead of reading them: for local files with codec `none` "
           "that are never changed"),
    Option("requestTimeout", seconds, "ResultRequest.timeout",
           "how long to wait for the shuffle, and for the name of a `consumer`", default="`0s`"),
    Option("consumer", as_is, "ResultRequest.consumer",
           "name under which a stream consumes a result: 1 to 100 letters, digits, `_` and `-`; in "
           "a batch `connector.consume` does that",
           default="none: the result is read, not consumed"),
)  # fmt: skip
"""Options of reads, batch and streaming."""

BATCH_READ_OPTIONS = (
    Option("version", parse_version, "ScanOptions.version",
           "the committed version to read: its number, the name of its tag, or a time with a zone, "
           "`2026-11-20 12:00+01:00`, for the newest that was committed by then", default="newest"),
)  # fmt: skip
"""Further options of batch reads."""

SOURCE_OPTIONS = (
    Option("startingVersion", parse_starting_version, "SourceOptions.starting_version",
           "where a query without a checkpoint begins: `earliest`, `latest` (what is committed "
           "from now on), or the first version to deliver; a `consumer` of a `BLOCKING` result "
           "begins at `earliest`", default="`earliest`"),
    Option("onOverwrite", lower, "SourceOptions.on_overwrite",
           "what to do with a version that overwrites: `fail`, or `deliver` its rows like added "
           "ones"),
    Option("maxVersionsPerTrigger", whole, "StepLimits.max_versions",
           "versions that a batch may have; of several limits, the tightest holds",
           default="no limit"),
    Option("maxRowsPerTrigger", whole, "StepLimits.max_rows",
           "rows that a batch may have, unless a single version has more", default="no limit"),
    Option("maxBytesPerTrigger", num_bytes, "StepLimits.max_bytes",
           "bytes of data files that a batch may have, unless a single version has more",
           default="no limit"),
)  # fmt: skip
"""Further options of streaming reads."""

PIN = Option("pin", parse_pin, "ScanOptions.pin", "set by connector.read_shuffle alone")
"""Internal: which commit of ``version`` a DataFrame reads, and which span of versions."""

ARROW_FILTER = Option("arrowFilter", parse_arrow_filter, "ScanOptions.arrow_filter",
                      "set by connector.read_shuffle alone")  # fmt: skip
"""Internal: a filter that is no text, see :mod:`connector.options.filters`."""

_ALL = (
    *WRITE_OPTIONS, *BATCH_WRITE_OPTIONS, *SINK_OPTIONS,
    *READ_OPTIONS, *BATCH_READ_OPTIONS, *SOURCE_OPTIONS, PIN, ARROW_FILTER,
)  # fmt: skip


# From options to settings -------------------------------------------------------------------------


def build(settings_class: type[Settings], given: Mapping[str, str], **more: object) -> Settings:
    """Make an instance of a dataclass from the texts of the options that set its fields.

    ``given`` has documented names; ``more`` are fields that are settled already. The dataclass
    checks its values: an OptionError of it is raised with option and text as the user wrote them.
    """
    option_of = {}
    for option in _ALL:
        class_name, field = option.field.split(".")
        if class_name == settings_class.__name__ and field not in more:
            option_of[field] = option
    values = {
        field: option.parse(option.name, given[option.name])
        for field, option in option_of.items()
        if option.name in given
    }
    try:
        return settings_class(**values, **more)
    except OptionError as error:
        message = str(error)
    for field, value in values.items():
        name = option_of[field].name
        message = message.replace(f"{field}={value!r}", f"{name}={given[name]!r}")
    for field, option in option_of.items():
        message = re.sub(rf"\b{field}\b", option.name, message)
    msg = f"option {message}"
    raise OptionError(msg)


STORAGE_PREFIX = "storage."
"""Options with this prefix go to the object store."""

_SQL_PROPERTIES = ("provider", "location", "owner", "external", "is_managed_location", "comment")

_VERSIONS = "give option version: a number, a tag, or a time"
_HINTS = {
    "where": "give option filter",
    "columns": "columns are chosen by .schema('k BIGINT, v STRING')",
    "paths": "a shuffle has one path, as in load(path); of several take df.union",
    "timestampasof": _VERSIONS,
    "versionasof": _VERSIONS,
}
"""Options of other data sources, or of functions of ours, in lower case, and what to do instead."""


def known_options(
    options: Mapping[str, str],
    allowed: Mapping[str, Iterable[Option]],
    *others: str,
) -> dict[str, str]:
    """Return Spark's options by their documented names; those of an object store in lower case.

    ``allowed`` has the known options, by what they are called together in messages; ``others`` are
    names that messages do not list. Raises OptionError for an unknown option, and without an
    absolute path. Properties that Spark's catalog adds to a table are dropped.
    """
    known_by_name = {option.name: option for each in allowed.values() for option in each}
    names = {name.lower(): name for name in ("path", *known_by_name, *others)}
    is_table = "provider" in options
    known = {}
    for key, value in options.items():
        if is_table and (key in _SQL_PROPERTIES or key.startswith("option.")):
            continue
        name = key.lower() if key.lower().startswith(STORAGE_PREFIX) else names.get(key.lower())
        if name is None:
            raise _unknown(key, names, allowed)
        if value or name not in known_by_name or not known_by_name[name].may_be_empty:
            known[name] = value
    path = known.get("path")
    if not path:
        msg = (
            "no path was given; use load(path) or save(path). Spark does not hand the OPTIONS of a "
            "table on: give them where it is used, as in INSERT INTO t WITH (path '...'), SELECT "
            "... FROM t WITH (path '...'), spark.read.option('path', '...').table('t') and "
            "df.writeTo('t').option('path', '...').append(), or use CREATE TEMPORARY VIEW t ... "
            "USING arrow_shuffle OPTIONS (path '...'). Instead of CREATE TABLE t ... AS SELECT: "
            "df.writeTo('t').using('arrow_shuffle').option('path', '...').create()"
        )
        raise OptionError(msg)
    if scheme_of(path) is None and not path.startswith("/"):
        msg = (
            f"path={path!r} is relative; give an absolute path. This runs in a process of Spark's "
            "own, whose working directory is not yours and may be deleted with the session"
        )
        raise OptionError(msg)
    return known


def _unknown(
    given: str, names: Mapping[str, str], allowed: Mapping[str, Iterable[Option]]
) -> OptionError:
    hint = _HINTS.get(given.lower())
    alike = get_close_matches(given.lower(), names, 1)
    if hint is not None:
        return OptionError(f"option {given!r} is not known: {hint}")
    if alike:
        return OptionError(f"option {given!r} is not known (did you mean {names[alike[0]]!r}?)")
    lists = ", ".join(
        f"{what} are {', '.join(option.name for option in each)}" for what, each in allowed.items()
    )
    return OptionError(
        f"option {given!r} is not known; {lists}; those of an object store begin with "
        f"{STORAGE_PREFIX}, such as {STORAGE_PREFIX}aws_region"
    )
