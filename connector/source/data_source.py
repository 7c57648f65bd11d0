"""The Spark data source ``arrow_shuffle``; it imports its readers and writers on first use.

It is pickled by value: where a server lacks this package it is there, and says so.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pyspark.sql.datasource import DataSource

from connector.pickling import pickle_by_value, require_here, sender

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.types import StructType

    from connector.source.reader import ShuffleSourceReader
    from connector.source.stream_reader import ShuffleStreamReader
    from connector.source.stream_writer import ShuffleStreamWriter
    from connector.source.writer import ShuffleSourceWriter

Result = TypeVar("Result")


def _checked(method: Callable[..., Result]) -> Callable[..., Result]:
    """Return a method that first asks whether this process has the package; its errors are plain.

    Not :func:`~connector.plain_errors.plain_errors`, which could not be unpickled where it has not.
    """

    @functools.wraps(method)
    def checked(self: ArrowShuffleDataSource, *args: Any, **named: Any) -> Result:  # noqa: ANN401
        require_here(self.registered_by)
        from connector.plain_errors import make_plain

        try:
            return method(self, *args, **named)
        except Exception as error:
            if make_plain(error):
                raise
            raise error from None

    return checked


class ArrowShuffleDataSource(DataSource):
    """Format ``arrow_shuffle`` of Spark's batch and streaming readers and writers.

    .. code-block:: python

        writer = df.write.format("arrow_shuffle").mode("append")
        writer.options(keys="k", numSubpartitions=8).save("/data/by_k")
        reader = spark.read.format("arrow_shuffle").schema("v long")  # of the columns, this alone
        reader.option("filter", "k = 3").load("/data/by_k").show()

    Options of a write are the arguments of :func:`~arrow_shuffle.write_shuffle` and the fields of
    :class:`~arrow_shuffle.WriteOptions` in camel case; streams take them too, and
    ``flush.maxInterval``. Those of a read are the arguments of :meth:`arrow_shuffle.Shuffle.select`
    and ``to_spark``. Columns are chosen by ``.schema(...)`` and rows by ``filter``: Spark prunes
    nothing in a Python source. ``docs/reference/options.md`` lists all. Where Spark does not find
    the format, ``spark.dataSource.register(ArrowShuffleDataSource)``.
    """

    hidden_options: ClassVar[Mapping[str, str]] = {}
    """Further options of a batch read, which Spark does not know and so cannot show."""

    registered_by: ClassVar[tuple[str, str, str]] = sender()
    """Host, interpreter and release of the program that pickled this class."""

    meant: Mapping[str, int] | None = None
    """Ids of columns by name when Spark asked for the schema; Spark keeps this object with it. So
    the names of a DataFrame or a view never mean columns that got them later."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "arrow_shuffle"

    @_checked
    def schema(self) -> StructType:
        """Return the schema of the shuffle at option ``path``."""
        from connector.source.reader import schema_of_source

        schema, self.meant = schema_of_source(self.options)
        return schema

    @_checked
    def reader(self, schema: StructType) -> ShuffleSourceReader:
        """Return a reader of exactly ``schema``; it pins the version here."""
        from connector.source.reader import ShuffleSourceReader

        options = {**self.options, **self.hidden_options}
        return ShuffleSourceReader(options, schema, self.meant)

    @_checked
    def writer(self, schema: StructType, overwrite: bool) -> ShuffleSourceWriter:
        """Return a writer of rows of ``schema``; mode overwrite or append."""
        from connector.source.writer import ShuffleSourceWriter

        return ShuffleSourceWriter(self.options, schema, overwrite=overwrite)

    @_checked
    def streamReader(self, schema: StructType) -> ShuffleStreamReader:
        """Return a reader of what each version adds, in exactly ``schema``."""
        from connector.source.stream_reader import ShuffleStreamReader

        return ShuffleStreamReader(self.options, schema, self.meant)

    @_checked
    def streamWriter(self, schema: StructType, overwrite: bool) -> ShuffleStreamWriter:
        """Return a writer of micro-batches; output mode complete overwrites, append appends."""
        from connector.source.stream_writer import ShuffleStreamWriter

        return ShuffleStreamWriter(self.options, schema, overwrite=overwrite)


pickle_by_value(__name__)
