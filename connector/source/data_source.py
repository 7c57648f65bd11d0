"""The Spark data source ``arrow_shuffle``; it imports its readers and writers on first use.

It is pickled by value: where a server lacks this package it is there, and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource

from connector.arrival import pickle_by_value, require_here

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from connector.source.reader import ShuffleSourceReader
    from connector.source.stream_reader import ShuffleStreamReader
    from connector.source.stream_writer import ShuffleStreamWriter
    from connector.source.writer import ShuffleSourceWriter


class ArrowShuffleDataSource(DataSource):
    """Format ``arrow_shuffle`` of Spark's batch and streaming readers and writers."""

    hidden_options: ClassVar[Mapping[str, str]] = {}
    """Further options of a batch read, which Spark does not know and so cannot show."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "arrow_shuffle"

    def schema(self) -> StructType:
        """Return the schema of the shuffle at option ``path``."""
        require_here()
        from connector.source.reader import schema_of_source

        return schema_of_source(self.options)

    def reader(self, schema: StructType) -> ShuffleSourceReader:
        """Return a reader of exactly ``schema``; it pins the version here."""
        require_here()
        from connector.source.reader import ShuffleSourceReader

        return ShuffleSourceReader({**self.options, **self.hidden_options}, schema)

    def writer(self, schema: StructType, overwrite: bool) -> ShuffleSourceWriter:
        """Return a writer of rows of ``schema``; mode overwrite or append."""
        require_here()
        from connector.source.writer import ShuffleSourceWriter

        return ShuffleSourceWriter(self.options, schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> ShuffleStreamReader:
        """Return a reader of what each version adds, in exactly ``schema``."""
        require_here()
        from connector.source.stream_reader import ShuffleStreamReader

        return ShuffleStreamReader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ShuffleStreamWriter:
        """Return a writer of micro-batches; output mode complete overwrites, append appends."""
        require_here()
        from connector.source.stream_writer import ShuffleStreamWriter

        return ShuffleStreamWriter(self.options, schema, overwrite=overwrite)


pickle_by_value(__name__)
