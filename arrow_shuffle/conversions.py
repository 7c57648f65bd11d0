"""Rows of a shuffle in the hands of other libraries, which read only what a query needs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from arrow_format.epochs.options import LANES, MEMORY_BYTES, Epochs
from arrow_format.extras import needed_by
from arrow_format.integrations.pushdown import TASK_BYTES
from arrow_format.read.shuffle import Shuffle as StoredShuffle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import dask.dataframe as dd
    import polars as pl
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    import ray.data

    from arrow_format.epochs.batches import EpochBatches
    from arrow_format.epochs.torch_dataset import ShuffleIterableDataset


class Convertible(StoredShuffle):
    """A shuffle as Polars, PyArrow, DuckDB, Dask, Ray Data and PyTorch take it."""

    def to_polars(
        self, subpartitions: Iterable[int] | None = None, *, ordered: bool = False
    ) -> pl.LazyFrame:
        """Return a lazy frame of Polars, which reads only what its query needs.

        .. code-block:: python

            orders.to_polars().filter(pl.col("price") > 100).select("customer").collect()

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

        .. code-block:: python

            dataset = orders.to_dataset()
            duckdb.sql("SELECT customer FROM dataset WHERE price > 100").fetchall()

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

        .. code-block:: python

            orders.to_dask(columns=["customer", "price"]).groupby("customer").price.sum().compute()

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

        .. code-block:: python

            orders.to_ray(columns=["customer", "price"]).take(10)

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
            num_rows_known=rows.is_whole,
        )
        return ray_dataset(source, **options)

    def epochs(
        self,
        columns: Sequence[str] | None = None,
        *,
        batch_size: int,
        filter: str | pc.Expression | None = None,
        seed: int | None = 0,
        memory_bytes: int = MEMORY_BYTES,
        lanes: int = LANES,
        drop_last: bool = False,
        pad: bool = False,
        rank: int = 0,
        world_size: int = 1,
        hold: bool = True,
    ) -> EpochBatches:
        """Return the rows in epochs: every row once in each, mixed, in another order each time.

        .. code-block:: python

            epochs = orders.epochs(["customer", "price"], batch_size=256, seed=7)
            for epoch in range(2):
                epochs.set_epoch(epoch)
                print(sum(batch.num_rows for batch in epochs))

        Iterating yields record batches. Any number of ranks shares an epoch, and it can be ended by
        any other number: see :func:`merge_states`. Whatever the rows are kept by, batches have some
        of each part of the shuffle, as far as memory has room for.

        Parameters
        ----------
        columns, filter
            As for :meth:`read`. With a filter its columns are read once, to count the rows.
        batch_size
            Rows of each batch; a rank's last may have fewer.
        seed
            Decides the order, with the number of the epoch. None: the order of :meth:`read`.
        memory_bytes
            Memory of a reader, in which it mixes rows: 1 MiB at least. The more, the more parts of
            the shuffle a batch has rows of.
        lanes
            Streams that the rows are dealt to: at most so many readers get rows, and a sixteenth of
            them have the memory full.
        drop_last
            Give each reader equally many batches, all of ``batch_size`` rows, as collective
            operations need: as many as the one with the fewest rows has. The rows left out are
            others in each epoch.
        pad
            Give each reader equally many batches, all of ``batch_size`` rows: as many as the one
            with the most rows has. Readers with fewer get some of their rows twice.
        rank, world_size
            Number of this rank, from 0, and how many there are.
        hold
            Whether, from the first batch on, garbage collection leaves the version of the epoch
            alone, whatever its age, until the next epoch is set, or the object or its process is
            gone. That takes a small file beside the log: where none may be put, a line of the log
            of this process says so, and the epoch reads all the same.

        Returns
        -------
        EpochBatches
            The batches of this rank; ``set_epoch``, ``state_dict`` and ``load_state_dict`` are its
            methods.

        Raises
        ------
        OptionError, SchemaError
            An argument or a column does not fit.

        Warns
        -----
        UserWarning
            Batches would not be mixed well: rows of a key fill so many chunks that those in memory
            have keys too often or not at all. The message has the figure and what to do.
        """
        from arrow_format.epochs.batches import EpochBatches

        epochs = Epochs(batch_size, seed, memory_bytes, lanes, drop_last, pad)
        return EpochBatches(
            self.where(filter), columns, epochs, rank=rank, world_size=world_size, hold=hold
        )

    def to_torch(
        self,
        columns: Sequence[str] | None = None,
        *,
        batch_size: int,
        filter: str | pc.Expression | None = None,
        seed: int | None = 0,
        memory_bytes: int = MEMORY_BYTES,
        lanes: int = LANES,
        drop_last: bool = False,
        pad: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        convert: Callable[[pa.RecordBatch], Any] | None = None,
        hold: bool = True,
    ) -> ShuffleIterableDataset:
        """Return an iterable dataset of PyTorch that yields batches of the rows, in epochs.

        .. code-block:: python

            numbers = orders.to_torch(["customer", "price"], batch_size=256)
            for batch in numbers.loader(num_workers=0):
                print(torch.mean(batch["price"]))

        Each rank and worker reads rows of its own, and together they read all rows, once per epoch.
        See :class:`~arrow_format.epochs.torch_dataset.ShuffleIterableDataset` for epochs and for
        going on where a training stopped, on as many ranks and workers or on others.

        Parameters
        ----------
        columns, batch_size, filter, seed, memory_bytes, lanes, drop_last, pad, hold
            As for :meth:`epochs`; each worker of a rank is a reader.
        rank, world_size
            Of the process that trains; by default those of ``torch.distributed``, if that is
            initialised when the dataset is made, else 0 of 1.
        convert
            Makes of each record batch what the dataset yields. By default a dict of a tensor for
            each column, which must be of numbers, booleans, or lists of them of one length, and
            without nulls. A loader yields what it returns as it is.

        Raises
        ------
        MissingPackageError
            PyTorch is not installed.
        OptionError, SchemaError
            An argument or a column does not fit.

        Warns
        -----
        UserWarning
            As :meth:`epochs`.
        """
        with needed_by("to_torch()"):
            from arrow_format.epochs.torch_dataset import ShuffleIterableDataset
        return ShuffleIterableDataset(
            self.where(filter),
            columns,
            Epochs(batch_size, seed, memory_bytes, lanes, drop_last, pad),
            rank=rank,
            world_size=world_size,
            convert=convert,
            hold=hold,
        )
