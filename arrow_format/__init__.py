"""The Arrow shuffle format and its engine: sort-merge write, verified read, no Spark needed.

Start with :func:`write_shuffle` and :func:`open_shuffle`. Names are loaded on first use, so that
importing the package (as Spark's discovery of data sources does) costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from arrow_format.batch_stream import BatchReader
    from arrow_format.buffer_output import BufferOutput, decorated
    from arrow_format.consumption import (
        ConsumerState,
        Consumption,
        consume,
        forget_consumer,
        list_consumers,
        release_shuffle,
    )
    from arrow_format.dataset import Shuffle, open_shuffle
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
    from arrow_format.flush_buffer import FlushReason
    from arrow_format.flush_options import FlushOptions
    from arrow_format.garbage import collect_garbage
    from arrow_format.gc_report import GcReport
    from arrow_format.given_bounds import sample_bounds
    from arrow_format.latest_by_key import latest_per_key
    from arrow_format.merge_job import MergeReport, merge_shuffle
    from arrow_format.merge_policy import MergePolicy
    from arrow_format.merger import PartitionedFileMerger
    from arrow_format.model import BROADCAST, MapOutput, PartitionedFile
    from arrow_format.operator_attributes import (
        OperatorAttributes,
        OperatorAttributesBuilder,
    )
    from arrow_format.options import ReadOptions, WriteOptions
    from arrow_format.partitioned_file import PartitionedFileWriter
    from arrow_format.partitioned_file_reader import PartitionedFileReader
    from arrow_format.partitioner import (
        BroadcastPartitioner,
        ColumnPartitioner,
        HashPartitioner,
        Partitioner,
        RoundRobinPartitioner,
    )
    from arrow_format.pending_flush import flush_pending
    from arrow_format.range_partitioner import RangePartitioner
    from arrow_format.read_buffer_pool import ReadBufferPool
    from arrow_format.read_scheduler import ReadScheduler
    from arrow_format.receipt import ShuffleReceipt
    from arrow_format.result_partition import SortMergeResultPartition
    from arrow_format.result_type import ResultPartitionType
    from arrow_format.shuffle_changes import open_shuffle_changes
    from arrow_format.sort_buffer import SortBuffer
    from arrow_format.stream_elements import LatencyMarker, Output, Watermark, WatermarkStatus
    from arrow_format.subpartition_reader import SortMergeSubpartitionReader
    from arrow_format.verify import VerifyReport
    from arrow_format.write import write_shuffle

_HOME = {
    "batch_stream": ("BatchReader",),
    "buffer_output": ("BufferOutput", "decorated"),
    "consumption": (
        "ConsumerState",
        "Consumption",
        "consume",
        "forget_consumer",
        "list_consumers",
        "release_shuffle",
    ),
    "dataset": ("Shuffle", "open_shuffle"),
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
    "flush_buffer": ("FlushReason",),
    "flush_options": ("FlushOptions",),
    "garbage": ("collect_garbage",),
    "gc_report": ("GcReport",),
    "given_bounds": ("sample_bounds",),
    "latest_by_key": ("latest_per_key",),
    "merge_job": ("MergeReport", "merge_shuffle"),
    "merge_policy": ("MergePolicy",),
    "merger": ("PartitionedFileMerger",),
    "model": ("BROADCAST", "MapOutput", "PartitionedFile"),
    "operator_attributes": ("OperatorAttributes", "OperatorAttributesBuilder"),
    "options": ("ReadOptions", "WriteOptions"),
    "partitioned_file": ("PartitionedFileWriter",),
    "partitioned_file_reader": ("PartitionedFileReader",),
    "partitioner": (
        "BroadcastPartitioner",
        "ColumnPartitioner",
        "HashPartitioner",
        "Partitioner",
        "RoundRobinPartitioner",
    ),
    "pending_flush": ("flush_pending",),
    "range_partitioner": ("RangePartitioner",),
    "read_buffer_pool": ("ReadBufferPool",),
    "read_scheduler": ("ReadScheduler",),
    "receipt": ("ShuffleReceipt",),
    "result_type": ("ResultPartitionType",),
    "result_partition": ("SortMergeResultPartition",),
    "shuffle_changes": ("open_shuffle_changes",),
    "sort_buffer": ("SortBuffer",),
    "stream_elements": ("LatencyMarker", "Output", "Watermark", "WatermarkStatus"),
    "subpartition_reader": ("SortMergeSubpartitionReader",),
    "verify": ("VerifyReport",),
    "write": ("write_shuffle",),
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
