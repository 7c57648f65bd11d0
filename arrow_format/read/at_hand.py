"""Rows of a shuffle in the hands of Python's other tools; all of it reads by ``Shuffle.read``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from arrow_format.extras import needed_by
from arrow_format.integrations.readable import TASK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import dask.dataframe as dd
    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    import ray.data

    from arrow_format.arrays.batch_stream import BatchReader
    from arrow_format.filters.expression import Expression
    from arrow_format.filters.row_filter import RowFilter
    from arrow_format.filters.spark_rules import SparkSettings
    from arrow_format.integrations.readable import TaskGroup
    from arrow_format.integrations.torch_dataset import ShuffleIterableDataset
    from arrow_format.keys.partitioner import Partitioner


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
    def count_rows(self, *, filter: str | pc.Expression | None = None) -> int:
        """Return how many rows are read."""

    @property
    @abstractmethod
    def commit_id(self) -> str:
        """Unique id of the commit that made this version."""

    @property
    @abstractmethod
    def path(self) -> str:
        """Absolute path or URI."""

    @property
    @abstractmethod
    def partitioner(self) -> Partitioner | Mapping[str, Any]:
        """The partitioner, or its description when a user defined it."""

    @property
    @abstractmethod
    def subpartition_rows(self) -> pa.Int64Array:
        """Rows of each subpartition; int64, shape ``(num_subpartitions,)``."""

    @property
    @abstractmethod
    def filter(self) -> object | None:
        """The filter that all reads are restricted by; None for all rows."""

    @abstractmethod
    def bound(self, filter: str | pc.Expression | Expression, settings: SparkSettings) -> RowFilter:
        """Return a filter bound to the columns."""

    @abstractmethod
    def where(self, filter: str | pc.Expression | RowFilter | None) -> AtHand:
        """Return the rows that a filter is true for; this itself without one."""

    @abstractmethod
    def task_groups(
        self,
        max_bytes: int | None,
        subpartitions: int | Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> list[TaskGroup]:
        """Return what each of several tasks reads."""

    @abstractmethod
    def for_tasks(self, tasks: Sequence[tuple[tuple[int, int], ...]]) -> Sequence[AtHand]:
        """Return what each of several tasks is to carry that read these ranges."""

    @abstractmethod
    def read(
        self,
        subpartitions: int | Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        filter: str | pc.Expression | None = None,
        ordered: bool = True,
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
        ordered: bool = True,
        with_subpartition: bool = False,
    ) -> pa.Table:
        """Return rows in memory; parameters, order and errors are those of :meth:`read`."""
        return self.read(
            subpartitions,
            columns,
            filter=filter,
            ordered=ordered,
            with_subpartition=with_subpartition,
        ).read_all()

    def to_pandas(
        self,
        subpartitions: int | Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        filter: str | pc.Expression | None = None,
        ordered: bool = True,
        with_subpartition: bool = False,
    ) -> Any:  # noqa: ANN401
        """Return rows as a :class:`pandas.DataFrame`, in the types that PyArrow chooses.

        For others, use ``to_table(...).to_pandas(...)``. Parameters, order and errors are those of
        :meth:`read`.
        """
        return self.read(
            subpartitions,
            columns,
            filter=filter,
            ordered=ordered,
            with_subpartition=with_subpartition,
        ).read_pandas()

    def to_polars(
        self, subpartitions: Iterable[int] | None = None, *, ordered: bool = False
    ) -> pl.LazyFrame:
        """Return a lazy frame of Polars, which reads only what its query needs.

        The columns of the query, its predicates on them and its first number of rows reach the
        shuffle. Each time it is collected, it reads this version, batch by batch. The types are
        those Polars gives to the columns of Arrow.

        Parameters
        ----------
        subpartitions
            Some subpartitions; all when None.
        ordered
            Whether rows come in the order of :meth:`read`; otherwise in that of its
            ``ordered=False``.

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
            from arrow_format.integrations.polars_source import lazy_frame
        return lazy_frame(self, subpartitions, ordered=ordered)

    def to_dataset(self, *, ordered: bool = False) -> ds.Dataset:
        """Return a dataset of PyArrow, from which DuckDB reads only what a query needs.

        DuckDB finds it by the name of its variable, and asks for columns and filters. PyArrow's
        own methods (``to_table``, ``to_batches``, ``head``, ``count_rows``) and
        ``polars.scan_pyarrow_dataset`` do so too. What reads files of a dataset, such as its joins
        and sorting, raises OptionError.

        Parameters
        ----------
        ordered
            Whether rows come in the order of :meth:`read`; otherwise in that of its
            ``ordered=False``.
        """
        from arrow_format.integrations.dataset import ShuffleDataset

        return ShuffleDataset(self, ordered)

    def to_dask(
        self,
        subpartitions: int | Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        filter: str | pc.Expression | None = None,
        partition_bytes: int | None = TASK_BYTES,
    ) -> dd.DataFrame:
        """Return a frame of Dask, whose tasks read this version when it is computed.

        Rows with equal keys are in one partition; divisions are unknown, since keys are hashed.
        Types are pandas' types of Arrow (:class:`pandas.ArrowDtype`), so that nulls change none.
        Dask asks for no more columns than a query needs. Workers need this package, and see the
        shuffle under its path.

        Parameters
        ----------
        subpartitions, columns, filter
            As for :meth:`read`.
        partition_bytes
            Adjacent subpartitions are one partition of Dask until their rows take so many bytes in
            Arrow, by estimate. None: each subpartition is a partition, empty ones too.

        Raises
        ------
        MissingPackageError
            Dask or pandas is not installed.
        OptionError, SchemaError
            As for :meth:`read`; while the frame is computed, ShuffleError as for reading.
        """
        with needed_by("to_dask()"):
            from arrow_format.integrations.dask_frame import dask_frame
        rows = self.where(filter)
        groups = rows.task_groups(partition_bytes, subpartitions, columns)
        return dask_frame(rows, groups, columns)

    def to_ray(
        self,
        subpartitions: int | Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        filter: str | pc.Expression | None = None,
        **options: Any,  # noqa: ANN401
    ) -> ray.data.Dataset:
        """Return a data set of Ray Data, whose tasks read adjacent subpartitions of this version.

        Rows with equal keys are read by one task. Workers need this package, and see the shuffle
        under its path.

        Parameters
        ----------
        subpartitions, columns, filter
            As for :meth:`read`.
        options
            Of :func:`ray.data.read_datasource`: ``override_num_blocks``, ``concurrency``, ...

        Raises
        ------
        MissingPackageError
            Ray is not installed.
        OptionError, SchemaError
            As for :meth:`read`; while the data set is read, ShuffleError as for reading.
        """
        with needed_by("to_ray()"):
            from arrow_format.integrations.ray_source import ShuffleDatasource, ray_dataset
        rows = self.where(filter)
        source = ShuffleDatasource(
            rows,
            columns,
            partial(rows.task_groups, subpartitions=subpartitions, columns=columns),
            num_rows_known=rows.filter is None,
        )
        return ray_dataset(source, **options)

    def to_torch(
        self,
        columns: Sequence[str] | None = None,
        *,
        batch_size: int,
        filter: str | pc.Expression | None = None,
        seed: int | None = 0,
        shuffle_rows: int = 1 << 16,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        convert: Callable[[pa.RecordBatch], Any] | None = None,
    ) -> ShuffleIterableDataset:
        """Return an iterable dataset of PyTorch that yields batches of this version's rows.

        Give it to a ``DataLoader`` with ``batch_size=None``. Each rank and worker reads a share of
        its own: shares differ by one row at most, and together they are all rows, once per epoch.
        See :class:`~arrow_format.integrations.torch_dataset.ShuffleIterableDataset` for epochs and
        for going on where a training stopped.

        Parameters
        ----------
        columns, filter
            As for :meth:`read`. With a filter its columns are read once, to count the rows.
        batch_size
            Rows of each batch; a share's last may have fewer.
        seed
            Decides the order, with the number of the epoch. None: the order of :meth:`read`.
        shuffle_rows
            Rows that are shuffled together, and in memory at a time, about.
        drop_last
            Give each rank and worker equally many batches, all of ``batch_size`` rows, as
            collective operations need; the rows left out are others in each epoch.
        rank, world_size
            Of the process that trains; by default those of ``torch.distributed``, if that is
            initialised when the dataset is made, else 0 of 1.
        convert
            Makes of each record batch what the dataset yields. By default a dict of a tensor for
            each column, which must be of numbers, booleans, or lists of them of one length, and
            without nulls.

        Raises
        ------
        MissingPackageError
            PyTorch is not installed.
        OptionError, SchemaError
            An argument or a column does not fit.

        Warns
        -----
        UserWarning
            Batches would not be mixed well, by the sizes of subpartitions: a key has so many rows
            that a window of ``shuffle_rows`` has few keys, or it is a part of a subpartition.
        """
        with needed_by("to_torch()"):
            from arrow_format.integrations.epochs import Epochs
            from arrow_format.integrations.torch_dataset import ShuffleIterableDataset
        return ShuffleIterableDataset(
            self.where(filter),
            columns,
            Epochs(
                batch_size=batch_size, seed=seed, shuffle_rows=shuffle_rows, drop_last=drop_last
            ),
            rank=rank,
            world_size=world_size,
            convert=convert,
        )
