"""Appends that take everything but the rows from the shuffle that is there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from arrow_format.errors import OptionError
from arrow_format.jobs.write import Source, write_shuffle
from arrow_format.keys.partitioner import Partitioner
from arrow_format.options import WriteOptions, check_type
from arrow_format.read.shuffle import open_shuffle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow.dataset as ds

    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.storage.open import Place


def append_shuffle(
    batches: Source,
    path: Place,
    *,
    options: WriteOptions | None = None,
    for_spark: bool = True,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
    expected_version: int | None = None,
    transaction: tuple[str, int] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt:
    """Append rows to a shuffle in this process: partitioned, sorted and stored as those there.

    Number of subpartitions, partitioner, sort keys, combined columns and codec are those of the
    newest version. Columns are matched by name: one that the rows lack is null there, and must be
    nullable; one that the shuffle lacks becomes a new nullable column, and one that may be null in
    these rows becomes nullable. A number may be wider than before, unless it is a key. A shuffle of
    combined rows takes no new columns.

    Parameters
    ----------
    batches, path
        As for :func:`~arrow_format.write_shuffle`.
    options
        How to write; its codec and ``schema_evolution`` are not used. Defaults when None.
    for_spark, columns, filter, expected_version, transaction, storage_options
        As for :func:`~arrow_format.write_shuffle`.

    Returns
    -------
    ShuffleReceipt
        What was appended.

    Raises
    ------
    ShuffleNotFoundError, ResultReleasedError
        There is no shuffle to append to.
    OptionError
        A partitioner of your own places its rows: give it to ``write_shuffle(..., mode="append")``.
    SchemaError, StorageError, CommitConflictError
        As for :func:`~arrow_format.write_shuffle`; nothing is left behind.
    """
    return write_shuffle(
        batches,
        path,
        **like_newest(path, options, storage_options),
        mode="append",
        for_spark=for_spark,
        columns=columns,
        filter=filter,
        expected_version=expected_version,
        transaction=transaction,
        storage_options=storage_options,
    )


def like_newest(
    path: Place,
    options: WriteOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the arguments of a write whose rows are stored like those of the newest version.

    They are ``num_subpartitions``, ``partitioner``, ``sort_by``, ``combine``, and ``options`` with
    codec and schema evolution. Raises as :func:`append_shuffle`.
    """
    shuffle = open_shuffle(path, storage_options=storage_options)
    partitioner = shuffle.partitioner
    if not isinstance(partitioner, Partitioner):
        msg = (
            f"{shuffle.path} is partitioned by {dict(partitioner)}, a partitioner of your own, of "
            'which only the description is stored: append with write_shuffle(..., mode="append", '
            "partitioner=...)"
        )
        raise OptionError(msg)
    options = WriteOptions() if options is None else check_type("options", options, WriteOptions)
    return {
        "num_subpartitions": shuffle.num_subpartitions,
        "partitioner": partitioner,
        "sort_by": shuffle.sort_by,
        "combine": shuffle.combine,
        "options": replace(
            options, codec=shuffle.snapshot.newest.shape.codec, schema_evolution=True
        ),
    }
