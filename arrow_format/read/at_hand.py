"""Rows of a shuffle in the hands of Python's other tools; all of it reads by ``Shuffle.read``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from arrow_format.extras import needed_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    from arrow_format.arrays.batch_stream import BatchReader


class AtHand(ABC):
    """What a :class:`~arrow_format.read.shuffle.Shuffle` gives to other tools.

    It is a container of its subpartitions: ``len`` is their number, and iterating reads each.
    DuckDB, Polars, pandas and all other consumers of Arrow's C stream interface accept the object
    itself, and read all of it.
    """

    @property
    @abstractmethod
    def num_subpartitions(self) -> int:
        """Number of subpartitions."""

    @abstractmethod
    def schema_of(
        self, columns: Sequence[str] | None = None, *, with_subpartition: bool = False
    ) -> pa.Schema:
        """Return the schema of what is read."""

    @abstractmethod
    def where(self, filter: pc.Expression) -> AtHand:
        """Return the rows that a filter is true for."""

    @abstractmethod
    def read(
        self,
        subpartitions: int | Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        filter: str | pc.Expression | None = None,
        batch_size: int | None = None,
        with_subpartition: bool = False,
    ) -> BatchReader:
        """Read rows."""

    def subpartition(
        self,
        subpartition: int,
        columns: Sequence[str] | None = None,
        *,
        with_subpartition: bool = False,
    ) -> BatchReader:
        """Read the rows of one subpartition; see :meth:`read`."""
        return self.read([subpartition], columns, with_subpartition=with_subpartition)

    def __len__(self) -> int:
        return self.num_subpartitions

    def __iter__(self) -> Iterator[BatchReader]:
        """Yield a reader of each subpartition, ascending, empty ones too.

        A chunk holds several small subpartitions, and each reader decodes it again. To read many of
        them quickly, use :meth:`read` with ``with_subpartition``.
        """
        return map(self.subpartition, range(self.num_subpartitions))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return all rows as an Arrow C stream, in the order of :meth:`read`."""
        return self.read().__arrow_c_stream__(requested_schema)

    def to_table(
        self,
        subpartitions: int | Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        filter: str | pc.Expression | None = None,
        with_subpartition: bool = False,
    ) -> pa.Table:
        """Return rows in memory; parameters, order and errors are those of :meth:`read`."""
        return self.read(
            subpartitions, columns, filter=filter, with_subpartition=with_subpartition
        ).read_all()

    def to_pandas(
        self,
        subpartitions: int | Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        filter: str | pc.Expression | None = None,
        with_subpartition: bool = False,
    ) -> Any:  # noqa: ANN401
        """Return rows as a :class:`pandas.DataFrame`, in the types that PyArrow chooses.

        For others, use ``to_table(...).to_pandas(...)``. Parameters, order and errors are those of
        :meth:`read`.
        """
        return self.read(
            subpartitions, columns, filter=filter, with_subpartition=with_subpartition
        ).read_pandas()

    def to_polars(self, subpartitions: Iterable[int] | None = None) -> pl.LazyFrame:
        """Return a lazy frame of Polars, which reads only what its query needs.

        The columns of the query, its predicates on them and its first number of rows reach the
        shuffle. Each time it is collected, it reads this version, batch by batch, in the order of
        :meth:`read`. The types are those Polars gives to the columns of Arrow.

        Parameters
        ----------
        subpartitions
            Some subpartitions; all when None.

        Raises
        ------
        MissingPackageError
            Polars is not installed.
        OptionError
            While reading: a subpartition is out of range.
        ShuffleError
            While reading, as for :meth:`read`; Polars may raise it as an error of its own.
        """
        with needed_by("to_polars()"):
            from arrow_format.read.polars_source import lazy_frame
        return lazy_frame(self, subpartitions)

    def to_dataset(self) -> ds.Dataset:
        """Return a dataset of PyArrow, from which DuckDB reads only what a query needs.

        DuckDB finds it by the name of its variable, and asks for columns and filters. PyArrow's
        own methods (``to_table``, ``to_batches``, ``head``, ``count_rows``) and
        ``polars.scan_pyarrow_dataset`` do so too. What reads files of a dataset, such as its joins
        and sorting, raises OptionError.
        """
        from arrow_format.read.dataset import ShuffleDataset

        return ShuffleDataset(self)
