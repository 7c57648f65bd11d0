"""The Arrow shuffle format and its engine: sort-merge write, verified read, no Spark needed.

Start with :func:`write_shuffle` and :func:`open_shuffle`. Names are loaded on first use, so that
importing the package (as Spark's discovery of data sources does) costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_HOME = {
    "arrow_format.arrays.batch_stream": "BatchReader",
    "arrow_format.errors": """
        ArithmeticOverflowError BackPressureTimeoutError ClosedError CommitConflictError
        ConsumerError CorruptShuffleError FormatVersionError MissingPackageError OptionError
        OutOfDiskError RequestTimeoutError ResultFailedError ResultReleasedError SchemaError
        ShuffleError
        ShuffleExistsError ShuffleNotFoundError ShuffleOverwrittenError StorageError
        UnsettledCommitError
    """,
    "arrow_format.jobs.alter": "Alteration drop_columns rename_columns",
    "arrow_format.jobs.delete_rows": "delete_rows",
    "arrow_format.jobs.deletion_receipt": "DeletionReceipt",
    "arrow_format.jobs.drop": "DropReceipt drop_shuffle",
    "arrow_format.jobs.erasure": "erasure_status",
    "arrow_format.jobs.gc_files": "GcReport",
    "arrow_format.jobs.merge": "MergeReport merge_shuffle",
    "arrow_format.jobs.receipt": "ShuffleReceipt",
    "arrow_format.jobs.relocation": "Relocation relocate_shuffle",
    "arrow_format.jobs.repair": "RepairReport repair_shuffle",
    "arrow_format.jobs.rollback": "rollback_shuffle",
    "arrow_format.jobs.tags": "TaggedVersion list_tags tag_shuffle untag_shuffle",
    "arrow_format.jobs.write": "append_shuffle write_shuffle",
    "arrow_format.keys.bounds": "sample_bounds",
    "arrow_format.keys.partitioner": """
        BroadcastPartitioner ColumnPartitioner HashPartitioner Partitioner
        RoundRobinPartitioner
    """,
    "arrow_format.keys.range_partitioner": "RangePartitioner",
    "arrow_format.model": "BROADCAST MapOutput PartitionedFile",
    "arrow_format.operators.aggregate_shuffle": "aggregate_shuffle",
    "arrow_format.operators.join_shuffles": "join_shuffles",
    "arrow_format.operators.map_subpartitions": "map_subpartitions",
    "arrow_format.options": "ReadOptions ResultPartitionType WriteOptions",
    "arrow_format.read.buffer_pool": "ReadBufferPool",
    "arrow_format.read.partitioned_file": "PartitionedFileReader",
    "arrow_format.read.scheduler": "ReadScheduler",
    "arrow_format.read.shuffle": "Shuffle open_shuffle",
    "arrow_format.read.shuffle_changes": "open_shuffle_changes",
    "arrow_format.read.subpartition_reader": "SortMergeSubpartitionReader",
    "arrow_format.read.verify": "VerifyReport",
    "arrow_format.streaming.buffer_output": "BufferOutput decorated",
    "arrow_format.streaming.collection": "collect_garbage",
    "arrow_format.streaming.consumption": """
        ConsumerState Consumption consume forget_consumer list_consumers release_shuffle
    """,
    "arrow_format.streaming.elements": "LatencyMarker Output Watermark WatermarkStatus",
    "arrow_format.streaming.flush_buffer": "FlushReason",
    "arrow_format.streaming.flush_pending": "flush_pending",
    "arrow_format.streaming.latest_spilling": "latest_per_key",
    "arrow_format.streaming.options": "FlushOptions OperatorAttributes OperatorAttributesBuilder",
    "arrow_format.write.merge_policy": "MergePolicy",
    "arrow_format.write.merger": "PartitionedFileMerger",
    "arrow_format.write.partitioned_file": "PartitionedFileWriter",
    "arrow_format.write.result_partition": "SortMergeResultPartition",
    "arrow_format.write.sort_buffer": "SortBuffer",
}
"""Public names by module. ``__init__.pyi`` has the same for type checkers; a test compares them."""

_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _MODULE_OF:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
