"""Options of batch reads and writes: from Spark's texts to checked settings. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from arrow_format.errors import OptionError
from arrow_format.filters.spark_rules import SparkSettings
from arrow_format.filters.spark_text import zone_of
from arrow_format.keys.partitioner import (
    BroadcastPartitioner,
    ColumnPartitioner,
    HashPartitioner,
    Partitioner,
    RoundRobinPartitioner,
)
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.log.conflicts import check_version_number
from arrow_format.log.consumers import check_consumer
from arrow_format.model import Transaction
from arrow_format.options import ReadOptions, WriteOptions, check_integer, check_num_subpartitions
from arrow_format.storage.options import StorageOptions
from connector.options.table import (
    ARROW_FILTER,
    BATCH_READ_OPTIONS,
    BATCH_WRITE_OPTIONS,
    PIN,
    READ_OPTIONS,
    STORAGE_PREFIX,
    WRITE_OPTIONS,
    build,
    known_options,
)
from connector.options.text import bad, parse_names, parse_sort_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrow_format.keys.sort_keys import SortBy
    from connector.options.filters import ArrowFilter
    from connector.options.text import Pin

PARTITIONERS = ("hash", "range", "roundrobin", "broadcast", "column")
DEFAULT_TARGET_PARTITION_BYTES = 64 << 20
BATCH_OPTIONS = {
    "write options": (*WRITE_OPTIONS, *BATCH_WRITE_OPTIONS),
    "read options": (*READ_OPTIONS, *BATCH_READ_OPTIONS),
}
"""Options of batch reads and writes, both of them for each: a SQL table has them together."""


@dataclass(frozen=True, slots=True)
class ResultRequest:
    """How a read asks for a result."""

    timeout: float = 0.0
    """Seconds to wait for the shuffle to appear."""
    consumer: str | None = None
    """The name under which it consumes; None where it only reads."""

    def __post_init__(self) -> None:
        if self.consumer is not None:
            check_consumer(self.consumer)


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Options of one read; bad values raise OptionError at construction."""

    path: str
    subpartitions: tuple[int, ...] | None = None
    coalesce: bool = True
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES
    split_skewed: bool = False
    with_subpartition: bool = False
    filter: str | None = None
    """A condition of the rows, in SQL."""
    time_zone: str | None = None
    """Of dates and timestamps in a filter that name none."""
    arrow_filter: ArrowFilter | None = None
    """A filter that is no text."""
    version: int | str | None = None
    """Its number, a tag, or a time, see :mod:`arrow_format.log.version_names`."""
    pin: Pin | None = None
    """The commit that ``version`` must be, and which versions up to it are read."""
    storage_options: StorageOptions = field(default_factory=StorageOptions)
    options: ReadOptions = field(default_factory=ReadOptions)
    request: ResultRequest = field(default_factory=ResultRequest)

    def __post_init__(self) -> None:
        most = (1 << 63) - 1
        check_integer("target_partition_bytes", self.target_partition_bytes, 1, most, "bytes")
        for name in ("coalesce", "split_skewed", "with_subpartition"):
            if not isinstance(getattr(self, name), bool):
                msg = f"{name}={getattr(self, name)!r}: expected True or False"
                raise OptionError(msg)
        if self.time_zone is not None:
            zone_of(self.time_zone)
        if self.filter is not None and self.arrow_filter is not None:
            msg = f"filter={self.filter!r}: the DataFrame has a filter; use where() on it instead"
            raise OptionError(msg)
        if self.split_skewed and not self.coalesce:
            msg = (
                "split_skewed=True: coalesce=False asks for exactly one Spark partition per "
                "subpartition, so none can be split; leave one of them out"
            )
            raise OptionError(msg)
        if self.pin is not None and not isinstance(self.version, int):
            msg = f"pin={self.pin!r}: expected option version with it"
            raise OptionError(msg)

    @property
    def settings(self) -> SparkSettings:
        """What is known of the session; all of it was looked at where a frame was pinned."""
        if self.pin is None:
            return SparkSettings.unknown(self.time_zone)
        return SparkSettings(self.time_zone)


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Options of one write through the data source; bad values raise OptionError at construction.

    ``num_subpartitions``, ``partitioner``, ``sort_by`` and ``combine`` are None where they were
    not given; an append takes those of the existing shuffle. A range partitioner has no bounds
    yet: they are in ``range_bounds`` if they were given, since the types of their columns are not
    known here.
    """

    path: str
    num_subpartitions: int | None = None
    partitioner: Partitioner | None = None
    options: WriteOptions = field(default_factory=WriteOptions)
    sort_by: SortBy | None = None
    combine: Mapping[str, str] | None = None
    range_bounds: tuple[Any, ...] | None = None
    storage_options: StorageOptions = field(default_factory=StorageOptions)
    expected_version: int | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None

    def __post_init__(self) -> None:
        check_version_number(self.expected_version)
        _ = self.transaction
        if self.num_subpartitions is not None:
            check_num_subpartitions(self.num_subpartitions)
        if self.range_bounds is not None and not isinstance(
            self.partitioner, RangePartitioner | None
        ):
            msg = "range_bounds: only partitioner=range has bounds; leave it out"
            raise OptionError(msg)

    @property
    def transaction(self) -> Transaction | None:
        """What the write is committed once as; raises OptionError where that is half or bad."""
        if self.txn_app_id is None and self.txn_version is None:
            return None
        if self.txn_app_id is None or self.txn_version is None:
            msg = "txn_app_id and txn_version: one of them is missing; give both, or neither"
            raise OptionError(msg)
        try:
            return Transaction(self.txn_app_id, self.txn_version)
        except OptionError as error:
            message = str(error)
        fields = {"application_id=": "txn_app_id=", "number=": "txn_version="}
        for theirs, ours in fields.items():
            message = message.replace(theirs, ours)
        raise OptionError(message)


def parse_read_options(options: Mapping[str, str]) -> ScanOptions:
    """Return the options of a read from those that Spark hands over.

    Raises OptionError for an unknown option or a bad value; it names both and what is allowed.
    """
    known = known_options(options, BATCH_OPTIONS, PIN.name, ARROW_FILTER.name)
    target_options(known)
    return scan_options(known)


def parse_target_options(options: Mapping[str, str]) -> TargetOptions:
    """Return the options of a write; raises as :func:`parse_read_options`."""
    known = known_options(options, BATCH_OPTIONS)
    scan_options(known)
    return target_options(known)


def scan_options(known: Mapping[str, str]) -> ScanOptions:
    """Return the options of a read among those that are known by their documented names."""
    return build(
        ScanOptions,
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
        partitioner=_partitioner(known),
        storage_options=parse_storage_options(known),
        options=build(WriteOptions, known),
    )


def _partitioner(known: Mapping[str, str]) -> Partitioner | None:
    """Return the partitioner of options ``partitioner`` and ``keys``; None without either."""
    text = known.get("keys")
    kind = known.get("partitioner", "hash" if text else "").lower()
    if not kind:
        return None
    if kind not in PARTITIONERS:
        raise bad("partitioner", kind, f"one of {', '.join(PARTITIONERS)}")
    if kind == "range" and text:
        return RangePartitioner(keys=parse_sort_keys("keys", text))
    keys = parse_names("keys", text) if text else ()
    if kind in ("roundrobin", "broadcast"):
        if keys:
            msg = f"option keys: partitioner={kind} takes none"
            raise OptionError(msg)
        return RoundRobinPartitioner() if kind == "roundrobin" else BroadcastPartitioner()
    if not keys or (kind == "column" and len(keys) != 1):
        need = "the one column that holds the subpartition" if kind == "column" else "column names"
        msg = f"option keys: partitioner={kind} needs {need}, found {text or 'none'!r}"
        raise OptionError(msg)
    return ColumnPartitioner(keys[0]) if kind == "column" else HashPartitioner(keys)


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
                f"{SECRET_PREFIX}{own}, or give storage_options to connector.read_shuffle and "
                "connector.write_shuffle"
            )
            raise OptionError(msg)
        options[own] = value
    return StorageOptions(options)
