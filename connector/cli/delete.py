"""The command ``delete``: deletes the rows of given keys, and checks that their bytes are gone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arrow_format.errors import OptionError, SchemaError
from connector.cli.output import FOUND_WRONG, JsonOption, PathArgument, progress, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from arrow_format.read.shuffle import Shuffle


def delete(
    path: PathArgument,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE[,COLUMN=VALUE...]",
            help="A key, with a value for each key column of the shuffle. May be repeated.",
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A parquet or csv file of the key columns: a key a row."),
    ] = None,
    erase: Annotated[
        bool,
        typer.Option(
            "--erase/--no-erase",
            help="Write the files again without the rows, or only mark the rows as gone.",
        ),
    ] = True,
    expected_version: Annotated[
        int | None,
        typer.Option(help="Delete only if no rows were added or taken away after this version."),
    ] = None,
    transaction: Annotated[
        tuple[str, int] | None,
        typer.Option(
            metavar="APPLICATION NUMBER",
            help="Delete once, however often it is repeated: an application's numbers ascend.",
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="RECEIPT.json",
            help="Delete nothing; say whether the rows of an earlier deletion are gone from disk.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete the rows.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete the rows of given keys, as a new version; print a receipt to keep (--json).

    Exit status with --check: 0 where the last byte is gone, else 1.
    """
    from arrow_format.jobs.delete_rows import delete_rows, repeated_deletion
    from arrow_format.model import Transaction
    from arrow_format.read.shuffle import open_shuffle
    from arrow_format.storage.open import open_storage

    if check is not None:
        if key or keys is not None or transaction is not None or expected_version is not None:
            msg = "--check deletes nothing; leave the options of a deletion out"
            raise OptionError(msg)
        _check(path, check, as_json=as_json)
        return
    if bool(key) == (keys is not None):
        msg = "expected --key, once or repeatedly, or --keys FILE"
        raise OptionError(msg)
    # First, since the shuffle may have other keys by now, or none.
    receipt = repeated_deletion(open_storage(path), Transaction.of(transaction))
    if receipt is not None:
        show(receipt, as_json=as_json)
        return
    shuffle = open_shuffle(path)
    table = _keys_in(keys, shuffle) if keys is not None else _parsed_keys(key or (), shuffle)
    if not yes:
        msg = (
            f"the rows of {table.num_rows:,} key(s) in {shuffle.path} would be deleted; give --yes "
            "to do it"
        )
        raise OptionError(msg)
    with progress(f"Deleting from {shuffle.path}", None) as advance:
        receipt = delete_rows(
            path,
            table,
            erase=erase,
            expected_version=expected_version,
            transaction=transaction,
            on_bytes=advance,
        )
    show(receipt, as_json=as_json)


def _key_names(shuffle: Shuffle) -> list[str]:
    from arrow_format.keys.co_partitioning import partition_keys

    return list(partition_keys(shuffle) or ())


def _parsed_keys(texts: Sequence[str], shuffle: Shuffle) -> pa.RecordBatch:
    """Return keys given as texts; a value may hold commas, but not ``,COLUMN=`` of a key column."""
    import pyarrow as pa

    from arrow_format.arrays.buffers import binary_array  # pa.array imports pandas

    names = _key_names(shuffle)
    between = re.compile(",(?=(?:" + "|".join(map(re.escape, names)) + ")=)")
    rows = []
    for text in texts:
        pairs = [part.partition("=") for part in between.split(text)]
        row = {name: value for name, _, value in pairs}
        if len(row) < len(pairs) or not all(equals for _, equals, _ in pairs):
            msg = f"--key {text}: expected COLUMN=VALUE, with commas between several columns"
            raise OptionError(msg)
        if names and row.keys() != set(names):
            msg = f"--key {text}: expected a value for each key column: {', '.join(names)}"
            raise SchemaError(msg)
        rows.append(row)
    columns = {
        name: binary_array([row.get(name, "").encode() for row in rows], pa.string())
        for name in rows[0]
    }
    return pa.record_batch(columns)


def _keys_in(file: Path, shuffle: Shuffle) -> pa.Table:
    """Return the keys in a file; of a csv file an empty field is an empty text, or else a null."""
    import pyarrow as pa

    try:
        if file.suffix == ".parquet":
            from pyarrow import parquet

            return parquet.read_table(file)
        if file.suffix == ".csv":
            from pyarrow import csv

            types = {name: shuffle.schema.field(name).type for name in _key_names(shuffle)}
            return csv.read_csv(file, convert_options=csv.ConvertOptions(column_types=types))
    except (pa.ArrowException, OSError) as error:
        msg = f"--keys {file}: cannot be read: {error}"
        raise OptionError(msg) from error
    msg = f"--keys {file}: expected a file that ends with .parquet or .csv"
    raise OptionError(msg)


def _check(path: str, file: Path, *, as_json: bool) -> None:
    from arrow_format.jobs.deletion_receipt import DeletionReceipt
    from arrow_format.jobs.erasure import erasure_status

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        msg = f"--check {file}: cannot be read: {error}"
        raise OptionError(msg) from error
    status = erasure_status(path, DeletionReceipt.from_json(text))
    show(status, as_json=as_json)
    if not status.is_gone:
        raise typer.Exit(FOUND_WRONG)
