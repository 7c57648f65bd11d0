"""Makes ``spark.read.format("arrow_shuffle")`` work without a ``register`` call.

Spark imports every top-level module named ``pyspark_*`` and takes its ``DefaultSource``. One that
fails to import disables all Python data sources, so nothing heavy belongs here.
"""

from connector.source.data_source import ArrowShuffleDataSource as DefaultSource

__all__ = ["DefaultSource"]
