"""Shuffles of Spark DataFrames: written through ``mapInArrow``, read through ``spark.read``.

Names are loaded on first use: Spark's discovery of data sources imports this package and must stay
fast, and a failing import there would disable every Python data source.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from arrow_format import __version__

if TYPE_CHECKING:
    from arrow_format.jobs.receipt import ShuffleReceipt
    from connector.consumption import SparkConsumption, consume
    from connector.map_task import ShuffleMapTask, abort_shuffle, commit_shuffle
    from connector.operators.aggregate import aggregate_shuffle
    from connector.operators.buffered_output import BufferedOutput
    from connector.operators.join import join_shuffles
    from connector.operators.map import map_subpartitions
    from connector.read import read_shuffle
    from connector.sampling import sample_range_partitioner
    from connector.source.data_source import ArrowShuffleDataSource
    from connector.write import write_shuffle

_MODULE_OF = {
    "ArrowShuffleDataSource": "connector.source.data_source",
    "BufferedOutput": "connector.operators.buffered_output",
    "ShuffleReceipt": "arrow_format.jobs.receipt",
    "SparkConsumption": "connector.consumption",
    "consume": "connector.consumption",
    "aggregate_shuffle": "connector.operators.aggregate",
    "join_shuffles": "connector.operators.join",
    "map_subpartitions": "connector.operators.map",
    "ShuffleMapTask": "connector.map_task",
    "abort_shuffle": "connector.map_task",
    "commit_shuffle": "connector.map_task",
    "read_shuffle": "connector.read",
    "sample_range_partitioner": "connector.sampling",
    "write_shuffle": "connector.write",
}

__all__ = [
    "ArrowShuffleDataSource",
    "BufferedOutput",
    "ShuffleMapTask",
    "ShuffleReceipt",
    "SparkConsumption",
    "abort_shuffle",
    "aggregate_shuffle",
    "commit_shuffle",
    "consume",
    "join_shuffles",
    "map_subpartitions",
    "read_shuffle",
    "sample_range_partitioner",
    "write_shuffle",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    module = _MODULE_OF.get(name)
    if module is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
