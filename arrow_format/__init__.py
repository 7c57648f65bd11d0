"""The Arrow shuffle format and its engine: sort-merge write, verified read, no Spark needed.

Start with :func:`write_shuffle` and :func:`open_shuffle`. Names are loaded on first use, so that
importing the package (as Spark's discovery of data sources does) costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from arrow_format.arrays.batch_stream import BatchReader
    from arrow_format.errors import (
        ArithmeticOverflowError,
        BackPressureTimeoutError,
        ClosedError,
        CommitConflictError,
        ConsumerError,
        CorruptShuffleError,
        FormatVersionError,
        OptionError,
        OutOfDiskError,
        RequestTimeoutError,
        ResultFailedError,
        ResultReleasedError,
        SchemaError,
        ShuffleError,
        ShuffleExistsError,
        ShuffleNotFoundError,
        ShuffleOverwrittenError,
        StorageError,
        UnsettledCommitError,
    )
    from arrow_format.jobs.garbage import collect_garbage
    from arrow_format.jobs.gc_report import GcReport
    from arrow_format.jobs.merge import MergeReport, merge_shuffle
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.jobs.write import write_shuffle
    from arrow_format.keys.bounds import sample_bounds
    from arrow_format.keys.partitioner import (
        BroadcastPartitioner,
        ColumnPartitioner,
        HashPartitioner,
        Partitioner,
        RoundRobinPartitioner,
    )
    from arrow_format.keys.range_partitioner import RangePartitioner
    from arrow_format.model import BROADCAST, MapOutput, PartitionedFile
    from arrow_format.options import ReadOptions, WriteOptions
    from arrow_format.read.buffer_pool import ReadBufferPool
    from arrow_format.read.partitioned_file import PartitionedFileReader
    from arrow_format.read.scheduler import ReadScheduler
    from arrow_format.read.shuffle import Shuffle, open_shuffle
    from arrow_format.read.shuffle_changes import open_shuffle_changes
    from arrow_format.read.subpartition_reader import SortMergeSubpartitionReader
    from arrow_format.read.verify import VerifyReport
    from arrow_format.result_type import ResultPartitionType
    from arrow_format.streaming.buffer_output import BufferOutput, decorated
    from arrow_format.streaming.consumption import (
        ConsumerState,
        Consumption,
        consume,
        forget_consumer,
        list_consumers,
        release_shuffle,
    )
    from arrow_format.streaming.elements import LatencyMarker, Output, Watermark, WatermarkStatus
    from arrow_format.streaming.flush_buffer import FlushReason
    from arrow_format.streaming.flush_options import FlushOptions
    from arrow_format.streaming.flush_pending import flush_pending
    from arrow_format.streaming.latest_by_key import latest_per_key
    from arrow_format.streaming.operator_attributes import (
        OperatorAttributes,
        OperatorAttributesBuilder,
    )
    from arrow_format.write.merge_policy import MergePolicy
    from arrow_format.write.merger import PartitionedFileMerger
    from arrow_format.write.partitioned_file import PartitionedFileWriter
    from arrow_format.write.result_partition import SortMergeResultPartition
    from arrow_format.write.sort_buffer import SortBuffer

_HOME = {
    "arrays.batch_stream": ("BatchReader",),
    "streaming.buffer_output": ("BufferOutput", "decorated"),
    "streaming.consumption": (
        "ConsumerState",
        "Consumption",
        "consume",
        "forget_consumer",
        "list_consumers",
        "release_shuffle",
    ),
    "read.shuffle": ("Shuffle", "open_shuffle"),
    "errors": (
        "ArithmeticOverflowError",
        "BackPressureTimeoutError",
        "ClosedError",
        "CommitConflictError",
        "ConsumerError",
        "CorruptShuffleError",
        "FormatVersionError",
        "OptionError",
        "OutOfDiskError",
        "RequestTimeoutError",
        "ResultFailedError",
        "ResultReleasedError",
        "SchemaError",
        "ShuffleError",
        "ShuffleExistsError",
        "ShuffleNotFoundError",
        "ShuffleOverwrittenError",
        "StorageError",
        "UnsettledCommitError",
    ),
    "streaming.flush_buffer": ("FlushReason",),
    "streaming.flush_options": ("FlushOptions",),
    "jobs.garbage": ("collect_garbage",),
    "jobs.gc_report": ("GcReport",),
    "keys.bounds": ("sample_bounds",),
    "streaming.latest_by_key": ("latest_per_key",),
    "jobs.merge": ("MergeReport", "merge_shuffle"),
    "write.merge_policy": ("MergePolicy",),
    "write.merger": ("PartitionedFileMerger",),
    "model": ("BROADCAST", "MapOutput", "PartitionedFile"),
    "streaming.operator_attributes": ("OperatorAttributes", "OperatorAttributesBuilder"),
    "options": ("ReadOptions", "WriteOptions"),
    "write.partitioned_file": ("PartitionedFileWriter",),
    "read.partitioned_file": ("PartitionedFileReader",),
    "keys.partitioner": (
        "BroadcastPartitioner",
        "ColumnPartitioner",
        "HashPartitioner",
        "Partitioner",
        "RoundRobinPartitioner",
    ),
    "streaming.flush_pending": ("flush_pending",),
    "keys.range_partitioner": ("RangePartitioner",),
    "read.buffer_pool": ("ReadBufferPool",),
    "read.scheduler": ("ReadScheduler",),
    "jobs.receipt": ("ShuffleReceipt",),
    "result_type": ("ResultPartitionType",),
    "write.result_partition": ("SortMergeResultPartition",),
    "read.shuffle_changes": ("open_shuffle_changes",),
    "write.sort_buffer": ("SortBuffer",),
    "streaming.elements": ("LatencyMarker", "Output", "Watermark", "WatermarkStatus"),
    "read.subpartition_reader": ("SortMergeSubpartitionReader",),
    "read.verify": ("VerifyReport",),
    "jobs.write": ("write_shuffle",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "BROADCAST",
    "ArithmeticOverflowError",
    "BackPressureTimeoutError",
    "BatchReader",
    "BroadcastPartitioner",
    "BufferOutput",
    "ClosedError",
    "ColumnPartitioner",
    "CommitConflictError",
    "ConsumerError",
    "ConsumerState",
    "Consumption",
    "CorruptShuffleError",
    "FlushOptions",
    "FlushReason",
    "FormatVersionError",
    "GcReport",
    "HashPartitioner",
    "LatencyMarker",
    "MapOutput",
    "MergePolicy",
    "MergeReport",
    "OperatorAttributes",
    "OperatorAttributesBuilder",
    "OptionError",
    "OutOfDiskError",
    "Output",
    "PartitionedFile",
    "PartitionedFileMerger",
    "PartitionedFileReader",
    "PartitionedFileWriter",
    "Partitioner",
    "RangePartitioner",
    "ReadBufferPool",
    "ReadOptions",
    "ReadScheduler",
    "RequestTimeoutError",
    "ResultFailedError",
    "ResultPartitionType",
    "ResultReleasedError",
    "RoundRobinPartitioner",
    "SchemaError",
    "Shuffle",
    "ShuffleError",
    "ShuffleExistsError",
    "ShuffleNotFoundError",
    "ShuffleOverwrittenError",
    "ShuffleReceipt",
    "SortBuffer",
    "SortMergeResultPartition",
    "SortMergeSubpartitionReader",
    "StorageError",
    "UnsettledCommitError",
    "VerifyReport",
    "Watermark",
    "WatermarkStatus",
    "WriteOptions",
    "collect_garbage",
    "consume",
    "decorated",
    "flush_pending",
    "forget_consumer",
    "latest_per_key",
    "list_consumers",
    "merge_shuffle",
    "open_shuffle",
    "open_shuffle_changes",
    "release_shuffle",
    "sample_bounds",
    "write_shuffle",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    module = _MODULE_OF.get(name)
    if module is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
