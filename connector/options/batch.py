"""Options of batch reads and writes: from Spark's texts to checked settings. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from arrow_format.errors import OptionError
from arrow_format.filters.spark_rules import SparkSettings
from arrow_format.keys.partitioner import (
    BroadcastPartitioner,
    ColumnPartitioner,
    HashPartitioner,
    Partitioner,
    RoundRobinPartitioner,
)
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.model import MAX_INTEGER, MAX_SUBPARTITIONS, Transaction
from arrow_format.option_fields import check_fields, option
from arrow_format.options import FLAG, NAME, SECONDS, ReadOptions, WriteOptions, num_bytes, whole
from arrow_format.storage.options import StorageOptions
from connector.options.filters import ARROW_FILTER_KIND
from connector.options.named import STORAGE_PREFIX, build, known_options, options_of
from connector.options.text import (
    BOUNDS,
    COMBINE,
    KEYS,
    NAMES,
    PARTITIONER,
    PIN_KIND,
    SORT_KEYS,
    SUBPARTITIONS,
    TEXT,
    VERSION,
    ZONE,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.options import WriteMode
    from connector.options.filters import ArrowFilter
    from connector.options.text import Pin

DEFAULT_TARGET_PARTITION_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ResultRequest:
    """How a read asks for a result.

    Parameters
    ----------
    timeout
        How long to wait for the shuffle, and for the name of a ``consumer``; in Python seconds. By
        default neither is waited for.
    consumer
        Name under which a stream consumes a result: 1 to 100 letters, digits, ``_`` and ``-``; in a
        batch ``arrow_shuffle.consume`` does that. By default none: the result is read, not
        consumed.
    """

    timeout: float = option(0.0, SECONDS, name="requestTimeout")
    consumer: str | None = option(None, NAME)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class BatchReadOptions:
    """Options of one read, also of a stream's; bad values raise OptionError at construction.

    Parameters
    ----------
    path
        Of the shuffle.
    subpartitions
        Subpartitions to read, such as ``3,7-9``. By default all.
    filter
        Condition of the rows to read, in a subset of SQL: ``day >= DATE '2024-06-01' AND customer
        IN (17, 18)``. By default none: all rows.
    latest_by
        Column by which only the last row of each key is read, chosen before ``filter``: that with
        the greatest value, null being the smallest. By default all rows are read.
    time_zone
        Time zone of dates and timestamps in ``filter`` that name none: a region or an offset;
        ``to_spark`` sets that of the session. By default none: a filter that
        needs one is refused.
    coalesce
        Whether adjacent subpartitions share a Spark partition; otherwise each is exactly one, empty
        ones too.
    target_partition_bytes
        Bytes on disk of a coalesced Spark partition.
    split_skewed
        Whether several Spark partitions may read a subpartition larger than
        ``target_partition_bytes``: runs of its rows, cut between chunks.
    with_subpartition
        Whether to append the int column ``_subpartition``.
    version
        The committed version to read: its number, the name of its tag, or a time with a zone,
        ``2026-11-20 12:00+01:00``, for the newest that was committed by then. By default the
        newest.
    pin
        The commit that ``version`` must be, and which versions up to it are read.
    arrow_filter
        A filter that is no text.
    storage_options, options, request
        Of the object store, of the reader, and of a result.
    """

    path: str
    subpartitions: tuple[int, ...] | None = option(None, SUBPARTITIONS)
    filter: str | None = option(None, TEXT)
    latest_by: str | None = option(None, TEXT, only="batch")
    time_zone: str | None = option(None, ZONE)
    coalesce: bool = option(True, FLAG)
    target_partition_bytes: int = option(
        DEFAULT_TARGET_PARTITION_BYTES, num_bytes(1, (1 << 63) - 1)
    )
    split_skewed: bool = option(False, FLAG)
    with_subpartition: bool = option(False, FLAG)
    version: int | str | None = option(None, VERSION, only="batch")
    pin: Pin | None = option(None, PIN_KIND, only="to_spark")
    arrow_filter: ArrowFilter | None = option(None, ARROW_FILTER_KIND, only="to_spark")
    storage_options: StorageOptions = field(default_factory=StorageOptions)
    options: ReadOptions = field(default_factory=ReadOptions)
    request: ResultRequest = field(default_factory=ResultRequest)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.filter is not None and self.arrow_filter is not None:
            problem = "the DataFrame has a filter; use where() on it instead"
            raise OptionError.of("filter", self.filter, problem)
        if self.split_skewed and not self.coalesce:
            problem = (
                "without coalesce each subpartition is exactly one Spark partition, so none can be "
                "split; leave one of them out"
            )
            raise OptionError.of("split_skewed", True, problem)
        if self.pin is not None and not isinstance(self.version, int):
            raise OptionError.of("pin", str(self.pin), "expected option version with it")

    @property
    def settings(self) -> SparkSettings:
        """What is known of the session; all of it was looked at where a frame was pinned."""
        if self.pin is None:
            return SparkSettings.unknown(self.time_zone)
        return SparkSettings(self.time_zone)


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Options of one write through the data source; bad values raise OptionError at construction.

    Parameters
    ----------
    path
        Of the shuffle.
    keys
        Columns to hash as Spark does; for ranges sort keys as in ``sort_by``, with ``column`` the
        one column that holds the subpartition. By default those of the existing shuffle.
    partitioner_name
        ``hash``, ``range``, ``roundrobin``, ``broadcast`` or ``column``. By default ``hash`` where
        ``keys`` are given, else that of the existing shuffle.
    num_subpartitions
        Number of subpartitions, 1 to 1,000,000; required for a new shuffle. By default that of the
        existing shuffle.
    range_bounds
        Upper bounds of the ranges of ``partitioner=range``, ascending, with dates, timestamps and
        decimals as text: ``["2024-06-30"]``; required for a new shuffle of ranges. By default those
        of the existing shuffle.
    sort_by
        Order of the rows of each subpartition: ``a, b desc nulls first``. By default that of the
        existing shuffle, else as they arrive.
    combine
        Functions of the columns that are no keys, ``n:sum, price:max``, or JSON ``{"n": "sum"}``:
        rows of equal keys in a task become one. By default those of the existing shuffle, else
        none.
    unique
        Columns that identify a row, those of ``keys`` among them; no two rows are equal in all of
        them. By default those of the existing shuffle where ``keys`` and ``partitioner`` are too,
        else none.
    sequence_by
        Column of which a newer change of a row has a larger value: an upsert drops changes that are
        older than the row that is there. By default that of the existing shuffle, else none.
    row_kind
        Column that says what each change of an upsert does, in the words of Debezium, Delta or
        Flink; it is not stored, and deletions need the columns of ``unique`` and ``sequenceBy``
        alone. By default each row is there.
    upsert
        Whether rows that are appended replace those that are equal in the columns of ``unique``. By
        default such rows are refused.
    expected_version
        Write only if no rows were added or taken away after this version; 0 expects that there is
        none yet. By default not checked.
    txn_app_id
        With ``txn_version``: an application, 1 to 100 letters, digits, ``_`` and ``-``, whose write
        of that number is committed once, however often it is run. By default none: each write is
        committed.
    txn_version
        With ``txn_app_id``: the number of the write, from 0, ascending. By default none.
    storage_options, options
        Of the object store, and of the writer.
    """

    path: str
    keys: str | None = option(None, KEYS)
    partitioner_name: str | None = option(None, PARTITIONER, name="partitioner")
    num_subpartitions: int | None = option(None, whole(1, MAX_SUBPARTITIONS, "subpartitions"))
    range_bounds: tuple[Any, ...] | None = option(None, BOUNDS)
    sort_by: SortBy | None = option(None, SORT_KEYS)
    combine: Mapping[str, str] | None = option(None, COMBINE)
    unique: tuple[str, ...] | None = option(None, NAMES)
    sequence_by: str | None = option(None, TEXT)
    row_kind: str | None = option(None, TEXT)
    upsert: bool = option(False, FLAG)
    expected_version: int | None = option(None, whole(0, MAX_INTEGER, "a version"), only="batch")
    txn_app_id: str | None = option(None, NAME, only="batch")
    txn_version: int | None = option(None, whole(0, MAX_INTEGER, "a write"), only="batch")
    storage_options: StorageOptions = field(default_factory=StorageOptions)
    options: WriteOptions = field(default_factory=WriteOptions)

    def __post_init__(self) -> None:
        check_fields(self)
        _ = self.transaction
        partitioner = self.partitioner
        if self.range_bounds is not None and not isinstance(partitioner, RangePartitioner | None):
            problem = "only partitioner=range has bounds; leave it out"
            raise OptionError.of("range_bounds", self.range_bounds, problem)

    def mode(self, *, overwrite: bool) -> WriteMode:
        """Return the mode of a write that Spark calls an overwrite, or an append; OptionError."""
        if overwrite and self.upsert:
            problem = "an overwrite keeps no rows to be replaced; leave it out, or append"
            raise OptionError.of("upsert", self.upsert, problem)
        if self.row_kind is not None and not self.upsert:
            problem = "only an upsert takes changes; give upsert too"
            raise OptionError.of("row_kind", self.row_kind, problem)
        return "overwrite" if overwrite else "upsert" if self.upsert else "append"

    @property
    def transaction(self) -> Transaction | None:
        """What the write is committed once as; raises OptionError where half of it is missing."""
        name, number = self.txn_app_id, self.txn_version
        if name is None and number is None:
            return None
        if name is None or number is None:
            missing = "txn_app_id" if name is None else "txn_version"
            problem = "missing, and an application and its number go together; give both or neither"
            raise OptionError.of(missing, None, problem)
        return Transaction(name, number)

    @property
    def partitioner(self) -> Partitioner | None:
        """The partitioner of name and keys; None for that of the existing shuffle.

        One of ranges has no bounds yet: the types of its columns are not known here. Raises
        OptionError where name and keys do not fit.
        """
        text, kind = self.keys, self.partitioner_name
        if kind is None and text:
            kind = "hash"
        if not kind:
            return None
        if kind == "range" and text:
            return RangePartitioner(keys=SORT_KEYS.of_text("keys", text))
        keys = NAMES.of_text("keys", text) if text else ()
        if kind in ("roundrobin", "broadcast"):
            if keys:
                raise OptionError.of("keys", text, f"partitioner={kind} takes none")
            return RoundRobinPartitioner() if kind == "roundrobin" else BroadcastPartitioner()
        if kind == "column" and len(keys) != 1:
            problem = "partitioner=column needs the one column that holds the subpartition"
            raise OptionError.of("keys", text, problem)
        if not keys:
            raise OptionError.of("keys", text, f"partitioner={kind} needs column names")
        return ColumnPartitioner(keys[0]) if kind == "column" else HashPartitioner(keys)


WRITE_OPTIONS = options_of("writes", TargetOptions, WriteOptions)
"""Options of writes, batch and streaming."""

BATCH_WRITE_OPTIONS = options_of("batch writes", TargetOptions, WriteOptions, only="batch")
"""Further options of batch writes."""

READ_OPTIONS = options_of("reads", BatchReadOptions, ReadOptions, ResultRequest)
"""Options of reads, batch and streaming."""

BATCH_READ_OPTIONS = options_of("batch reads", BatchReadOptions, ReadOptions, only="batch")
"""Further options of batch reads."""

PIN, ARROW_FILTER = options_of("", BatchReadOptions, only="to_spark")
"""Internal: which commit of ``version`` a DataFrame reads and which span of versions; and a filter
that is no text, see :mod:`connector.options.filters`."""

BATCH_OPTIONS = {
    "write options": (*WRITE_OPTIONS, *BATCH_WRITE_OPTIONS),
    "read options": (*READ_OPTIONS, *BATCH_READ_OPTIONS),
}
"""Options of batch reads and writes, both of them for each: a SQL table has them together."""


def parse_read_options(options: Mapping[str, str]) -> BatchReadOptions:
    """Return the options of a read from those that Spark hands over.

    Raises OptionError for an unknown option or a bad value; it names both and what is allowed.
    """
    known = known_options(options, BATCH_OPTIONS, PIN.name, ARROW_FILTER.name)
    target_options(known)
    return batch_read_options(known)


def parse_target_options(options: Mapping[str, str]) -> TargetOptions:
    """Return the options of a write; raises as :func:`parse_read_options`."""
    known = known_options(options, BATCH_OPTIONS)
    batch_read_options(known)
    return target_options(known)


def batch_read_options(known: Mapping[str, str]) -> BatchReadOptions:
    """Return the options of a read among those that are known by their documented names."""
    return build(
        BatchReadOptions,
        known,
        path=known["path"],
        storage_options=parse_storage_options(known),
        options=build(ReadOptions, known),
        request=build(ResultRequest, known),
    )


def target_options(known: Mapping[str, str]) -> TargetOptions:
    """Return the options of a write among those that are known by their documented names."""
    return build(
        TargetOptions,
        known,
        path=known["path"],
        storage_options=parse_storage_options(known),
        options=build(WriteOptions, known),
    )


# Options of an object store -----------------------------------------------------------------------


SECRET_PREFIX = "storage.secret."
"""Prefix of options of the object store whose values Spark hides in plans and logs."""

_SECRETS = re.compile(r"key(?!_id)|sas|credential(?!_provider|_type)|bearer|certificate")
_SECRET_VALUES = re.compile(r"://[^/\s]*@|[?&]sig=")
"""A password or signature in a URL."""
_HIDDEN = re.compile(r"secret|password|token")
"""Names that Spark hides by default (``spark.redaction.regex``)."""


def parse_storage_options(known: Mapping[str, str]) -> StorageOptions:
    """Return the options of an object store, without prefixes.

    Raises OptionError where Spark would show a secret, because of the name of its option.
    """
    options = {}
    for name, value in known.items():
        if not name.startswith(STORAGE_PREFIX):
            continue
        own = name.removeprefix(SECRET_PREFIX).removeprefix(STORAGE_PREFIX)
        is_secret = _SECRETS.search(name) or _SECRET_VALUES.search(value)
        if is_secret and not _HIDDEN.search(name):
            msg = (
                f"option {name}: Spark would show its value in plans and logs; call it "
                f"{SECRET_PREFIX}{own}, or give storage_options to arrow_shuffle.open_shuffle "
                "and arrow_shuffle.write_shuffle"
            )
            raise OptionError(msg)
        options[own] = value
    return StorageOptions(options)
