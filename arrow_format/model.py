"""The nouns of a shuffle as frozen values: chunks, regions, partitioned files, map outputs.

Nothing here does I/O. Rows are counted in rows, sizes in bytes, and every array is one-dimensional.
Source: FLIP-148 (regions, partitioned file), with chunks as the physical unit inside a region.
"""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003  msgspec reads the annotations
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Meta

from arrow_format.errors import CorruptShuffleError, FormatVersionError, OptionError

FORMAT_VERSION = 1
"""Version of the files this code writes; it reads this version and older ones."""

DATA_SUFFIX = ".shuffle.data"
INDEX_SUFFIX = ".shuffle.index"

MAX_SUBPARTITIONS = 1_000_000

MAX_INTEGER = (1 << 62) - 1
"""Largest number in a file: the sum of two fits into 64 bits."""

SAFE_NAME = re.compile(r"[A-Za-z0-9_\-]{1,100}")
"""Form of names in paths and in the log."""

Natural = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Name = Annotated[str, Meta(pattern=rf"\A{SAFE_NAME.pattern}\Z")]
"""Of a job, shuffle, commit, tag or application."""

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

BROADCAST = -1
"""What a partitioner returns for a row that every subpartition reads; it is stored once."""


def check_format_version(version: int, what: str) -> None:
    """Raise FormatVersionError if this release is too old, CorruptShuffleError below version 1."""
    if version < 1:
        msg = f"{what} has format version {version}; the first is 1"
        raise CorruptShuffleError(msg)
    if version > FORMAT_VERSION:
        msg = (
            f"{what} has format version {version}, this arrow-shuffle reads up to "
            f"{FORMAT_VERSION}; read it with a newer one"
        )
        raise FormatVersionError(msg)


@dataclass(frozen=True, slots=True)
class PartitionedFileMetadata:
    """What an index records besides the regions: enough to read the data file alone."""

    shuffle_id: str
    job_id: str
    map_task: Natural
    attempt: Natural
    data_schema: pa.Schema
    num_subpartitions: Annotated[int, Meta(ge=0, le=MAX_SUBPARTITIONS)]
    partitioner: Mapping[str, Any]
    """The partitioner as JSON, see :meth:`arrow_format.keys.partitioner.Partitioner.describe`."""
    sort_by: tuple[tuple[str, str], ...] = ()
    statistics: tuple[str, ...] = ()
    """Columns whose chunks have statistics, in the order in which the index has them."""
    data_bytes: Natural = 0
    """Length of the data file."""
    frame_crc32: Natural = 0
    """CRC-32 of its bytes that belong to no chunk (magic, padding, footer), in file order."""
    format_version: int = FORMAT_VERSION


FILE_STATISTICS = pa.struct(
    [
        pa.field("column", pa.int64(), nullable=False),
        pa.field("minimum", pa.binary()),
        pa.field("maximum", pa.binary()),
        pa.field("null_count", pa.int64(), nullable=False),
    ]
)
"""What a log entry says of the values of one column of a file, by its id; null where there is no
bound. Before the commit, which gives ids, the column is its position in the schema of the file. See
:mod:`arrow_format.format.single_values` for the bytes."""


@dataclass(frozen=True, slots=True)
class Mask:
    """Rows of a partitioned file that are gone, as a log entry names them.

    See ``docs/format/masks.md``, and :mod:`arrow_format.format.masks` for what its frame has.
    """

    num_rows: int = 0
    """How many there are; 0: there is no mask."""
    number: int = 0
    """Number of the entry that put the mask; 0 until it has one."""
    frame: bytes = b""
    """Its bytes; empty where they are in an object."""
    path: str = ""
    """That object, in the shuffle's directory; empty where there is none."""
    offset: int = 0
    """Where the frame begins in the object."""
    length: int = 0
    """Bytes of the frame."""
    crc32: int = 0
    """CRC-32 of the frame."""

    def __bool__(self) -> bool:
        return self.num_rows > 0


NO_MASK = Mask()


@dataclass(frozen=True, slots=True)
class PartitionedFile:
    """A finished data file with its index, as a map status or a log entry names it.

    Source: FLIP-148, ``PartitionedFile``.

    Parameters
    ----------
    path
        Path without suffix, relative to its root.
    num_rows
        Rows stored that no mask took; a broadcast row counts once.
    num_regions
        Regions, one per flush of the sort buffer.
    data_bytes
        Length of the data file.
    raw_bytes
        Bytes of the rows as Arrow holds them in memory.
    index_bytes
        Length of the index file.
    directory_bytes, directory_crc32
        Length and CRC-32 of the directory at the end of the index, which tie the log entry to it.
    num_broadcast_rows
        Rows of ``num_rows`` that every subpartition reads; they are stored once.
    num_subpartitions
        By which its rows are placed: that of its version, or a multiple of it.
    mask
        Rows that are gone, :data:`NO_MASK` for none.
    first_subpartition, end_subpartition
        Subpartitions ``[first, end)`` have all rows. Broadcast rows are in all of them.
    statistics
        Of the columns of which something is known, each once, of the type :data:`FILE_STATISTICS`.
    placed
        Whether each row is known to be where the shuffle's partitioner places it: one of this
        project's did, which places a row by its values alone.
    root
        Absolute directory of the local root that ``path`` is relative to; empty for the shuffle
        itself.
    """

    path: str
    num_rows: int
    num_regions: int
    data_bytes: int
    raw_bytes: int
    index_bytes: int
    directory_bytes: int
    directory_crc32: int
    num_broadcast_rows: int = 0
    num_subpartitions: int = 1
    first_subpartition: int = 0
    end_subpartition: int = MAX_SUBPARTITIONS
    statistics: pa.StructArray = field(
        default_factory=lambda: pa.nulls(0, FILE_STATISTICS), hash=False
    )
    placed: bool = False
    root: str = ""
    mask: Mask = NO_MASK

    @property
    def stored_rows(self) -> int:
        """Rows that the data file has, those that are masked too."""
        return self.num_rows + self.mask.num_rows

    def delivered_rows(self, num_subpartitions: int) -> int:
        """Rows that all subpartitions together read: a broadcast row counts for each."""
        return self.num_rows + (num_subpartitions - 1) * self.num_broadcast_rows

    @property
    def data_path(self) -> str:
        """Path of the data file."""
        return self.path + DATA_SUFFIX

    @property
    def index_path(self) -> str:
        """Path of the index file."""
        return self.path + INDEX_SUFFIX


class Position(NamedTuple):
    """Where a map output comes in reading order."""

    version: int
    """The version that added its rows, or the first of them."""
    order: int
    """Its place among the map outputs of that version."""
    last_version: int
    """The version that added its last rows, which only a merge makes another."""


@dataclass(frozen=True, slots=True)
class MapOutput:
    """What one attempt of a map task wrote: no file when it had no rows, mostly one.

    Parameters
    ----------
    job_id
        Job that the map task belongs to.
    map_task
        Number of the map task, from 0.
    attempt
        Number of the attempt, from 0.
    files
        Files in reading order.
    position
        Its place in reading order: of a merged one, that of its first input. None before the
        commit.
    column_ids
        Ids of the columns of its files, see :mod:`arrow_format.arrays.column_ids`. None before the
        commit.
    """

    job_id: str
    map_task: int
    attempt: int
    files: tuple[PartitionedFile, ...]
    position: Position | None = None
    column_ids: tuple[int, ...] = ()

    @property
    def num_rows(self) -> int:
        """Rows written; a broadcast row counts once."""
        return sum(file.num_rows for file in self.files)

    def delivered_rows(self, num_subpartitions: int) -> int:
        """Rows that all subpartitions together read: a broadcast row counts for each."""
        return sum(file.delivered_rows(num_subpartitions) for file in self.files)

    @property
    def num_bytes(self) -> int:
        """Bytes of the data files."""
        return sum(file.data_bytes for file in self.files)

    @property
    def raw_bytes(self) -> int:
        """Bytes of the rows as Arrow holds them in memory."""
        return sum(file.raw_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class MapStatus:
    """What a finished map task reports to the commit.

    The two arrays have one value per subpartition. They are None when they are too large to send;
    the commit then reads the indexes instead. ``counters`` are by name, see
    :class:`arrow_format.write.counters.MapCounters`.
    """

    output: MapOutput
    subpartition_rows: Int64Array | None = None
    subpartition_bytes: Int64Array | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    tombstones: MapOutput | None = None
    """Of changes with deletions: see :mod:`arrow_format.jobs.tombstones`."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """Makes a commit idempotent: the number of a batch within its application.

    Numbers of an application ascend. A number that is in the log is not committed again; one that
    is smaller than a committed one, and is not in the log itself, is refused.
    """

    application_id: str
    """Such as the id of a streaming query: 1 to 100 of ``A-Z a-z 0-9 _ -``."""
    number: int
    """Number of the batch, from 0."""

    def __post_init__(self) -> None:
        """Raise OptionError for values that readers of the log would refuse."""
        name, number = self.application_id, self.number
        if not isinstance(name, str) or not SAFE_NAME.fullmatch(name):
            problem = "expected 1 to 100 letters, digits, _ and -"
            raise OptionError.of("application_id", name, problem)
        if isinstance(number, np.integer):
            number = int(number)
            object.__setattr__(self, "number", number)
        if not isinstance(number, int) or isinstance(number, bool):
            number = -1
        if not 0 <= number <= MAX_INTEGER:
            problem = f"expected a whole number from 0 to {MAX_INTEGER:,}"
            raise OptionError.of("number", self.number, problem)

    @staticmethod
    def of(value: Transaction | tuple[str, int] | None) -> Transaction | None:
        """Return what an argument ``transaction`` says; raises OptionError where that is none."""
        if value is None or isinstance(value, Transaction):
            return value
        if not isinstance(value, tuple) or len(value) != 2:
            msg = f"transaction={value!r}: expected an application and a number, as ('nightly', 7)"
            raise OptionError(msg)
        return Transaction(*value)
