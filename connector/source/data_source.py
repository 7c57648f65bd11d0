"""The Spark data source ``arrow_shuffle``. Light to import: the rest is loaded when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

    from connector.source.reader import ShuffleSourceReader
    from connector.source.stream_reader import ShuffleStreamReader
    from connector.source.stream_writer import ShuffleStreamWriter
    from connector.source.writer import ShuffleSourceWriter


class ArrowShuffleDataSource(DataSource):
    """``spark.read``, ``df.write``, ``spark.readStream`` and ``df.writeStream`` with its name."""

    hidden_options: ClassVar[Mapping[str, str]] = {}
    """Options of a batch read beside those that Spark knows, and would show."""

    @classmethod
    def name(cls) -> str:
        """Name of the format."""
        return "arrow_shuffle"

    def schema(self) -> StructType:
        """Return the schema of the shuffle at ``path``, as Spark wrote it."""
        from connector.source.reader import schema_of_source

        return schema_of_source(self.options)

    def reader(self, schema: StructType) -> ShuffleSourceReader:
        """Reader that delivers exactly ``schema``; it pins the version here."""
        from connector.source.reader import ShuffleSourceReader

        return ShuffleSourceReader({**self.options, **self.hidden_options}, schema)

    def writer(self, schema: StructType, overwrite: bool) -> ShuffleSourceWriter:
        """Writer for rows of ``schema``; mode overwrite or append."""
        from connector.source.writer import ShuffleSourceWriter

        return ShuffleSourceWriter(self.options, schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> ShuffleStreamReader:
        """Reader that follows the versions and delivers exactly ``schema`` of what they add."""
        from connector.source.stream_reader import ShuffleStreamReader

        return ShuffleStreamReader(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ShuffleStreamWriter:
        """Writer of micro-batches; output mode complete overwrites, append appends."""
        from connector.source.stream_writer import ShuffleStreamWriter

        return ShuffleStreamWriter(self.options, schema, overwrite=overwrite)
