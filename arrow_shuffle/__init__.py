"""Shuffles that are kept: written once, by keys, and read many times, with Spark or without.

.. code-block:: python

    import arrow_shuffle
    import pyarrow as pa

    orders = pa.table({"customer": [3, 1, 3], "price": [5.0, 7.5, 2.5]})
    arrow_shuffle.write_shuffle(orders, "/data/orders", keys="customer", num_subpartitions=8)
    kept = arrow_shuffle.open_shuffle("/data/orders")
    spent = kept.aggregate("customer", {"spent": ("price", "sum")})
    print(spent.read().read_all())      # in this process; .to_spark(spark) in Spark
    print(spent.write("/data/spent"))   # or as another shuffle; spark=spark has tasks write it

:func:`write_shuffle` writes DataFrames of Spark, tables, frames, files, and tables of Delta and
Iceberg; :func:`write_shuffles` writes each :class:`Target` of several with the same rows.
:func:`open_shuffle` opens a :class:`Shuffle`, with all that can be asked of it and done to it; what
is asked is an :class:`Operation` until it is run. Work is done in Spark where a session is given or
the source is a DataFrame, and in this process otherwise.

- To Spark's readers and writers it is a format: :class:`ArrowShuffleDataSource`.
- For streams: :func:`foreach_batch`, :func:`flush_when_done`, :func:`consume`,
  :class:`BufferedOutput`.
- For training in epochs, ``Shuffle.epochs`` and ``to_torch``: :func:`merge_states`.
- Where no version can be opened: :func:`collect_garbage`, :func:`flush_pending`,
  :func:`release_shuffle`, :func:`repair_shuffle`, :func:`drop_shuffle`.
- With ``mapInArrow`` in one's own hands: :class:`ShuffleMapTask`, :func:`commit_shuffle`,
  :func:`abort_shuffle`.
- How rows are placed: ``keys=``, or a :class:`Partitioner`. How to write and read:
  :class:`WriteOptions`, :class:`ReadOptions`. What is wrong here: :func:`check_environment`.

Errors are in :mod:`arrow_shuffle.errors`. The names are loaded on first use, so that pyspark and
pandas are imported only by what needs them.
"""

from __future__ import annotations

from arrow_format import __version__ as __version__
from arrow_format.lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
