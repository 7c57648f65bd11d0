"""A daemon of Spark's Python processes that loads the connector once, before it forks them.

Spark forks a Python process for each plan of a source and for many tasks, and each would load the
connector anew, which takes longer than a small read. Set where Spark is started::

    spark.python.daemon.module  connector.worker_daemon

It runs ``pyspark.daemon`` as Spark does. Every host that runs Python for the application must have
this package, in the Python that Spark runs there.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager

# What plans and tasks import.
import connector.map_task
import connector.operators.tasks
import connector.source.data_source
import connector.source.reader
import connector.source.stream_reader
import connector.source.stream_writer
import connector.source.writer  # noqa: F401

if __name__ == "__main__":
    gc.freeze()  # pages of what is loaded stay shared with the processes
    manager()
