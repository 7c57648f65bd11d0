"""What is known of a version without reading its files: all of it is in the commit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.keys.partitioner import Partitioner, partitioner_from_description
from arrow_format.read.subpartition_reader import select_columns, with_subpartition_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.result import ResultDescription
    from arrow_format.log.snapshot import Snapshot, VersionSpan
    from arrow_format.model import MapOutput
    from arrow_format.storage.open import Storage


class VersionFacts:
    """A version as its log describes it."""

    def __init__(self, storage: Storage, snapshot: Snapshot) -> None:
        self._storage = storage
        self._snapshot = snapshot
        self._entry: LogEntry = snapshot.newest

    @property
    def path(self) -> str:
        """Absolute path or URI."""
        return self._storage.root

    @property
    def storage(self) -> Storage:
        """Storage of its files."""
        return self._storage

    @property
    def schema(self) -> pa.Schema:
        """Columns as they are stored."""
        return self._entry.data_schema

    @property
    def spark_schema(self) -> str | None:
        """Spark's JSON of the schema; None when the shuffle was written without Spark."""
        return self._entry.spark_schema

    @property
    def version(self) -> int:
        """Number of this version, from 1."""
        return self._snapshot.version

    @property
    def snapshot(self) -> Snapshot:
        """The version as the commit log describes it: newest entry and map outputs."""
        return self._snapshot

    @property
    def span(self) -> VersionSpan | None:
        """Versions whose rows these are; None for all rows of the version."""
        return self._snapshot.span

    @property
    def commit_id(self) -> str:
        """Unique id of the commit that made this version."""
        return self._entry.commit_id

    @property
    def num_subpartitions(self) -> int:
        """Number of subpartitions, empty ones included."""
        return self._entry.num_subpartitions

    @property
    def num_rows(self) -> int:
        """Number of stored rows; a broadcast row counts once."""
        return self._snapshot.num_rows

    @property
    def num_bytes(self) -> int:
        """Size of the data files, in bytes."""
        return self._snapshot.num_bytes

    @property
    def partitioner(self) -> Partitioner | Mapping[str, Any]:
        """The partitioner, or its description when a user defined it."""
        description = self._entry.partitioner
        return partitioner_from_description(description) or description

    @property
    def sort_by(self) -> SortBy:
        """Pairs of column and order that sort the rows of each subpartition; empty for none."""
        return self._entry.sort_by

    @property
    def combine(self) -> Mapping[str, str]:
        """Functions of the columns that hold partial results, several per key; empty for none."""
        return self._entry.combine

    @property
    def unique(self) -> tuple[str, ...]:
        """Columns that identify a row, none of which is null; empty where none do."""
        return self._entry.shape.unique_names

    @property
    def result(self) -> ResultDescription:
        """Result type, bounds and owner."""
        return self._entry.result

    @property
    def map_outputs(self) -> Sequence[MapOutput]:
        """Map outputs, in reading order."""
        return self._snapshot.map_outputs

    def schema_of(
        self, columns: Sequence[str] | None = None, *, with_subpartition: bool = False
    ) -> pa.Schema:
        """Return the schema of the batches that :meth:`read` delivers; reads nothing.

        Parameters
        ----------
        columns, with_subpartition
            As for :meth:`read`.

        Raises
        ------
        SchemaError
            The shuffle has no such column, or has one named ``_subpartition`` itself.
        """
        schema = pa.schema([self.schema.field(i) for i in select_columns(self.schema, columns)])
        return with_subpartition_schema(schema) if with_subpartition else schema
