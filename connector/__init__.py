"""Shuffles of Spark DataFrames: written through ``mapInArrow``, read through ``spark.read``.

Names are loaded on first use: Spark's discovery of data sources imports this package and must stay
fast, and a failing import there would disable every Python data source.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from arrow_format import __version__
from arrow_format.extras import is_installed, needed_by

_HOME = {
    "arrow_format.jobs.delete_rows": "delete_rows",
    "arrow_format.jobs.deletion_receipt": "DeletionReceipt",
    "arrow_format.jobs.erasure": "erasure_status",
    "arrow_format.jobs.receipt": "ShuffleReceipt",
    "connector.environment.findings": "Finding",
    "connector.environment.report": "EnvironmentReport check_environment",
    "connector.map_task": "ShuffleMapTask abort_shuffle commit_shuffle",
    "connector.merge": "merge_shuffle",
    "connector.micro_batches": "foreach_batch",
    "connector.operators.aggregate": "aggregate_shuffle",
    "connector.operators.buffered_output": "BufferedOutput",
    "connector.operators.groups": "map_groups",
    "connector.operators.join": "join_shuffles",
    "connector.operators.map": "map_subpartitions",
    "connector.read": "SparkConsumption consume read_shuffle",
    "connector.source.data_source": "ArrowShuffleDataSource",
    "connector.stream_end": "flush_when_done",
    "connector.range_sample": "sample_range_partitioner",
    "connector.write": "append_shuffle write_shuffle",
}
"""Public names by module. ``__init__.pyi`` has the same for type checkers; a test compares them."""

_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

__all__ = sorted(
    name
    for name, module in _MODULE_OF.items()
    if is_installed("pyspark") or module.startswith("arrow_format.")
)
"""Names that can be loaded here, which is what ``import *`` and ``help()`` take."""


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _MODULE_OF:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    # An ImportError, and no AttributeError: "from connector import x" would replace its message.
    with needed_by(f"connector.{name}"):
        return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
