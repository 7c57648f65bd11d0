"""Options of the data source: strings from Spark to checked values. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from arrow_format.errors import OptionError
from arrow_format.keys.partitioner import (
    BroadcastPartitioner,
    ColumnPartitioner,
    HashPartitioner,
    Partitioner,
    RoundRobinPartitioner,
)
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.log.consumers import check_consumer
from arrow_format.log.snapshot import VersionSpan
from arrow_format.model import MAX_SUBPARTITIONS, SAFE_NAME
from arrow_format.options import (
    CODECS,
    ReadOptions,
    ResultPartitionType,
    WriteOptions,
    check_num_subpartitions,
)
from arrow_format.storage.open import scheme_of
from arrow_format.storage.options import StorageOptions
from connector.options.text import (
    bad,
    boolean,
    num_bytes,
    parse_bounds,
    parse_duration,
    parse_sort_keys,
    unknown,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from arrow_format.keys.sort_keys import SortBy


STORAGE_PREFIX = "storage."
"""What the names of options begin with that go to the object store."""
SECRET_PREFIX = "storage.secret."
"""The same; Spark's plans and logs hide the values of options whose names say secret."""

_SECRETS = re.compile(r"key(?!_id)|sas|credential|bearer|certificate")
_SECRET_VALUES = re.compile(r"://[^/\s]*@|[?&]sig=")
"""A password or signature inside of a URL."""
_HIDDEN = re.compile(r"secret|password|token")
"""Of what Spark hides by default (``spark.redaction.regex``)."""


def parse_storage_options(known: Mapping[str, str]) -> StorageOptions:
    """Read the options that begin with :data:`STORAGE_PREFIX`; others are left alone.

    Parameters
    ----------
    known
        Options; names of these in small letters.

    Raises
    ------
    OptionError
        Spark would show a secret, by the name it has.
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


RESULT_OPTIONS = (
    "resultType",
    "maxUnconsumedBytes",
    "maxUnconsumedVersions",
    "backPressureTimeout",
)
"""Names of those of a write."""
REQUEST_OPTIONS = ("requestTimeout", "consumer")
"""Names of those of a read."""


@dataclass(frozen=True, slots=True)
class ResultRequest:
    """How a read asks for a result."""

    timeout: float = 0.0
    """Seconds to wait for the shuffle to be there."""
    consumer: str | None = None
    """The name under which it consumes; None where it only looks."""


def parse_request(known: Mapping[str, str]) -> ResultRequest:
    """Read :data:`REQUEST_OPTIONS` among options by their documented names.

    Raises
    ------
    OptionError
        A value is bad; names it.
    """
    timeout = parse_duration(known.get("requestTimeout", "0s"), "option requestTimeout")
    consumer = check_consumer(known["consumer"]) if "consumer" in known else None
    return ResultRequest(timeout.total_seconds(), consumer)


def parse_result_options(known: Mapping[str, str]) -> dict[str, object]:
    """Read :data:`RESULT_OPTIONS` among options by their documented names.

    Returns
    -------
    dict
        Arguments of :class:`~arrow_format.WriteOptions`.

    Raises
    ------
    OptionError
        A value is bad, or the type is one that has no such option; names it.
    """
    settings: dict[str, object] = {}
    kind = known.get("resultType", "").upper()
    if "resultType" in known:
        names = ResultPartitionType.__members__
        if kind not in names:
            raise bad("resultType", known["resultType"], f"one of {', '.join(names)}")
        settings["result_type"] = kind
    is_bounded = kind == ResultPartitionType.PIPELINED_BOUNDED.name
    for name, key in (
        ("maxUnconsumedBytes", "max_unconsumed_bytes"),
        ("maxUnconsumedVersions", "max_unconsumed_versions"),
    ):
        if name in known:
            if not is_bounded:
                msg = f"option {name}: only resultType=PIPELINED_BOUNDED has bounds; give it too"
                raise OptionError(msg)
            parse = num_bytes if name.endswith("Bytes") else whole
            settings[key] = parse(name, known[name])
    if "backPressureTimeout" in known:
        if kind and not is_bounded:  # without a type, that of the shuffle appended to holds
            msg = (
                "option backPressureTimeout: only resultType=PIPELINED_BOUNDED waits for its "
                f"consumers, and resultType is {kind}; leave one of them out"
            )
            raise OptionError(msg)
        wait = parse_duration(known["backPressureTimeout"], "option backPressureTimeout")
        settings["back_pressure_timeout"] = wait.total_seconds()
    return settings


WRITE_OPTIONS = (
    "keys",
    "partitioner",
    "numSubpartitions",
    "sortBy",
    "codec",
    "codecLevel",
    "chunkBytes",
    "sortBufferBytes",
    "localDirs",
    "rangeBounds",
    *RESULT_OPTIONS,
)
READ_OPTIONS = (
    "subpartitions",
    "coalesce",
    "targetPartitionBytes",
    "splitSkewed",
    "withSubpartition",
    "version",
    "memoryBytes",
    "memoryMap",
    *REQUEST_OPTIONS,
)
PIN = "pin"
"""Name of the option by which a DataFrame says which commit of ``version`` it reads, and which span
of versions; for :func:`connector.read_shuffle` alone."""
PARTITIONERS = ("hash", "range", "roundrobin", "broadcast", "column")
DEFAULT_TARGET_PARTITION_BYTES = 64 << 20

_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_PIN = re.compile(rf"({SAFE_NAME.pattern})(?: ([0-9]{{1,18}})-([0-9]{{1,18}})-([0-9]{{1,18}}))?")


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Options of one read."""

    path: str
    subpartitions: tuple[int, ...] | None = None
    coalesce: bool = True
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES
    split_skewed: bool = False
    with_subpartition: bool = False
    version: int | None = None
    commit_id: str | None = None
    """Of that version: another one of its number is refused."""
    span: VersionSpan | None = None
    """Which versions up to that one; None: all of it."""
    storage_options: StorageOptions = field(default_factory=StorageOptions)
    options: ReadOptions = field(default_factory=ReadOptions)
    request: ResultRequest = field(default_factory=ResultRequest)


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Options of one write through the data source.

    ``num_subpartitions``, ``partitioner`` and ``sort_by`` are None when they were not given; an
    append takes those of the shuffle that is there. A range partitioner has no bounds yet: those
    that were given are in ``range_bounds``, since the types of their columns are not known here.
    """

    path: str
    num_subpartitions: int | None
    partitioner: Partitioner | None
    options: WriteOptions
    sort_by: SortBy | None = None
    range_bounds: tuple[Any, ...] | None = None
    storage_options: StorageOptions = field(default_factory=StorageOptions)


def _without_catalog(options: Mapping[str, str]) -> dict[str, str]:
    """Options without the properties that Spark's catalog adds on ``CREATE TABLE``."""
    if "provider" not in options:
        return dict(options)
    own = ("provider", "location", "owner", "external", "is_managed_location", "comment")
    return {
        name: value
        for name, value in options.items()
        if name not in own and not name.startswith("option.")
    }


def _known(options: Mapping[str, str], *internal: str) -> dict[str, str]:
    """Options by their documented names; a table's options hold those of reads and writes."""
    return known_options(
        options,
        (*WRITE_OPTIONS, *READ_OPTIONS, *internal),
        f"write options are {', '.join(WRITE_OPTIONS)}, read options are {', '.join(READ_OPTIONS)}",
    )


def known_options(
    options: Mapping[str, str], allowed: Iterable[str], described: str
) -> dict[str, str]:
    """Options by their documented names.

    Parameters
    ----------
    options
        As Spark hands them over.
    allowed
        Names of those that may be there, beside the path and those of an object store.
    described
        What they are, for the message.

    Raises
    ------
    OptionError
        There is another one, or no absolute path.
    """
    names = {name.lower(): name for name in ("path", *allowed)}
    known = {}
    for key, value in _without_catalog(options).items():
        name = names.get(key.lower())
        if name is None and key.lower().startswith(STORAGE_PREFIX):
            name = key.lower()
        if name is None:
            of_stores = (
                f"those of an object store begin with {STORAGE_PREFIX}, such as "
                f"{STORAGE_PREFIX}aws_region"
            )
            raise unknown(key, names, f"{described}; {of_stores}")
        known[name] = value
    if not known.get("path"):
        msg = (
            "no path was given; use load(path) or save(path). In SQL, Spark 4.3 does not hand the "
            "OPTIONS of a table on: give them as in INSERT INTO t WITH (path '...') and SELECT ... "
            "FROM t WITH (path '...'), or use CREATE TEMPORARY VIEW t ... USING arrow_shuffle "
            "OPTIONS (path '...')"
        )
        raise OptionError(msg)
    path = known["path"]
    if scheme_of(path) is None and not path.startswith("/"):
        msg = (
            f"path={path!r} is relative; give an absolute path. This runs in a process of Spark's "
            "own, whose working directory is not yours and may be deleted with the session"
        )
        raise OptionError(msg)
    return known


def parse_subpartitions(value: str) -> tuple[int, ...]:
    """Numbers in a text such as ``3,7-9`` (both ends included).

    Raises
    ------
    OptionError
        It is not of that form.
    """
    numbers: list[int] = []
    for part in value.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise bad("subpartitions", value, "numbers and ranges such as 3,7-9")
        first, last = int(match[1]), int(match[2] or match[1])
        if last >= MAX_SUBPARTITIONS:  # before as many numbers are made
            raise bad("subpartitions", value, f"numbers below {MAX_SUBPARTITIONS:,}")
        numbers.extend(range(first, last + 1))
    return tuple(numbers)


def format_subpartitions(numbers: tuple[int, ...]) -> str:
    """Inverse of :func:`parse_subpartitions` for ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def format_pin(commit_id: str, span: VersionSpan | None) -> str:
    """Return the text of option :data:`PIN`."""
    return commit_id if span is None else f"{commit_id} {span.base}-{span.start}-{span.end}"


def parse_pin(value: str) -> tuple[str, VersionSpan | None]:
    """Inverse of :func:`format_pin`.

    Raises
    ------
    OptionError
        It is not of that form.
    """
    match = _PIN.fullmatch(value)
    if match is None:
        raise bad(PIN, value, "nothing; connector.read_shuffle alone sets it")
    commit_id, *numbers = match.groups()
    return commit_id, None if numbers[0] is None else VersionSpan(*map(int, numbers))


def _names(value: str, option: str = "keys") -> tuple[str, ...]:
    """Names: ``a,b``, or a JSON list where a name holds a comma."""
    if value.startswith("["):
        try:
            return tuple(json.loads(value))
        except ValueError:
            raise bad(option, value, 'names such as a,b or ["a","b"]') from None
    return tuple(name.strip() for name in value.split(","))


def parse_read_options(options: Mapping[str, str]) -> ScanOptions:
    """Options of a read from what Spark hands over.

    Raises
    ------
    OptionError
        An unknown option, or a bad value; the message names it and what is allowed.
    """
    known = _known(options, PIN)
    target_options(known)
    return scan_options(known)


def scan_options(known: Mapping[str, str]) -> ScanOptions:
    """Options of a read among those of :func:`known_options`."""
    settings: dict[str, Any] = {}
    if "memoryBytes" in known:
        settings["memory_bytes"] = num_bytes("memoryBytes", known["memoryBytes"])
    if "memoryMap" in known:
        settings["memory_map"] = boolean("memoryMap", known["memoryMap"])
    commit_id, span = parse_pin(known[PIN]) if PIN in known else (None, None)
    if commit_id is not None and "version" not in known:
        raise bad(PIN, commit_id, "option version beside it")
    scan = ScanOptions(
        path=known["path"],
        subpartitions=(
            parse_subpartitions(known["subpartitions"]) if "subpartitions" in known else None
        ),
        coalesce=boolean("coalesce", known.get("coalesce", "true")),
        target_partition_bytes=num_bytes(
            "targetPartitionBytes",
            known.get("targetPartitionBytes", str(DEFAULT_TARGET_PARTITION_BYTES)),
        ),
        split_skewed=boolean("splitSkewed", known.get("splitSkewed", "false")),
        with_subpartition=boolean("withSubpartition", known.get("withSubpartition", "false")),
        version=whole("version", known["version"]) if "version" in known else None,
        commit_id=commit_id,
        span=span,
        storage_options=parse_storage_options(known),
        options=ReadOptions(**settings),
        request=parse_request(known),
    )
    check_split("option splitSkewed", "coalesce=false", scan.split_skewed, scan.coalesce)
    return scan


def check_split(option: str, other: str, split_skewed: bool, coalesce: bool) -> None:
    """Refuse two options that contradict one another.

    Raises
    ------
    OptionError
        Large subpartitions are to be split and each is to be one Spark partition.
    """
    if split_skewed and not coalesce:
        msg = (
            f"{option}: {other} asks for exactly one Spark partition per subpartition, so none can "
            "be split; leave one of them out"
        )
        raise OptionError(msg)


def parse_target_options(options: Mapping[str, str]) -> TargetOptions:
    """Options of a write from what Spark hands over.

    Raises
    ------
    OptionError
        An unknown option, or a bad value; the message names it and what is allowed.
    """
    known = _known(options)
    scan_options(known)
    return target_options(known)


def target_options(known: Mapping[str, str]) -> TargetOptions:
    """Options of a write among those of :func:`known_options`."""
    n = None
    if "numSubpartitions" in known:
        n = check_num_subpartitions(whole("numSubpartitions", known["numSubpartitions"]))
    partitioner = _partitioner(known)
    bounds = None
    if known.get("rangeBounds"):
        if partitioner is not None and not isinstance(partitioner, RangePartitioner):
            msg = "option rangeBounds: only partitioner=range has bounds; leave it out"
            raise OptionError(msg)
        bounds = parse_bounds("rangeBounds", known["rangeBounds"])
    return TargetOptions(
        path=known["path"],
        num_subpartitions=n,
        partitioner=partitioner,
        options=_write_settings(known),
        sort_by=parse_sort_keys("sortBy", known["sortBy"]) if known.get("sortBy") else None,
        range_bounds=bounds,
        storage_options=parse_storage_options(known),
    )


def _write_settings(known: Mapping[str, str]) -> WriteOptions:
    """Memory, codec and places that the options name."""
    if "codec" in known and known["codec"].lower() not in CODECS:
        raise bad("codec", known["codec"], f"one of {', '.join(CODECS)}")
    settings: dict[str, object] = {}
    if "codec" in known:
        settings["codec"] = known["codec"].lower()
    if "codecLevel" in known:
        settings["codec_level"] = whole("codecLevel", known["codecLevel"])
    if "chunkBytes" in known:
        settings["chunk_bytes"] = num_bytes("chunkBytes", known["chunkBytes"])
    if "sortBufferBytes" in known:
        settings["sort_buffer_bytes"] = num_bytes("sortBufferBytes", known["sortBufferBytes"])
    if known.get("localDirs"):
        dirs = _names(known["localDirs"], "localDirs")
        if not all(one.startswith("/") for one in dirs):
            raise bad("localDirs", known["localDirs"], "absolute directories such as /d1,/d2")
        settings["local_dirs"] = dirs
    return WriteOptions(**settings, **parse_result_options(known))  # type: ignore[arg-type]


def _partitioner(known: Mapping[str, str]) -> Partitioner | None:
    """Return the partitioner that the options name; None when they name none."""
    kind = known.get("partitioner", "hash" if known.get("keys") else "").lower()
    if not kind:
        return None
    if kind not in PARTITIONERS:
        raise bad("partitioner", kind, f"one of {', '.join(PARTITIONERS)}")
    if kind == "range" and known.get("keys"):
        return RangePartitioner(keys=parse_sort_keys("keys", known["keys"]))
    keys = _names(known["keys"]) if known.get("keys") else None
    if kind in ("roundrobin", "broadcast"):
        if keys:
            msg = f"option keys: partitioner={kind} takes none"
            raise OptionError(msg)
        return RoundRobinPartitioner() if kind == "roundrobin" else BroadcastPartitioner()
    if not keys or (kind == "column" and len(keys) != 1):
        need = "the one column that holds the subpartition" if kind == "column" else "column names"
        msg = f"option keys: partitioner={kind} needs {need}, found {known.get('keys', 'none')!r}"
        raise OptionError(msg)
    return ColumnPartitioner(keys[0]) if kind == "column" else HashPartitioner(keys)
