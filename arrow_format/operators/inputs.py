"""The shuffles that an operation reads: opened at versions that stay, and restricted by filters."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow.compute as pc

from arrow_format.errors import OptionError, SchemaError
from arrow_format.options import check_flag, check_read_options
from arrow_format.read.shuffle import Shuffle, open_shuffle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arrow_format.filters.spark_rules import SparkSettings
    from arrow_format.options import ReadOptions

Path: TypeAlias = str | os.PathLike[str]
Filter: TypeAlias = str | pc.Expression | None


def open_shuffles(
    shuffles: Path | Sequence[Path],
    version: int | Sequence[int | None] | None,
    options: ReadOptions | None,
    storage_options: Mapping[str, str] | None = None,
    *,
    check: bool = False,
) -> tuple[Shuffle, ...]:
    """Open one shuffle or several, at versions fixed from here on.

    They share the memory of ``options``. With ``check`` they ask where each row belongs, see
    :meth:`Shuffle.checking`. Raises OptionError, or as :func:`arrow_format.open_shuffle`.
    """
    check_flag("check", check)
    paths = paths_of(shuffles)
    versions = list(version) if isinstance(version, Sequence) else [version] * len(paths)
    if len(versions) != len(paths):
        msg = f"version={version!r}: expected one for each of the {len(paths)} shuffles"
        raise OptionError(msg)
    share = check_read_options(options).shared_by(len(paths))
    opened = (
        open_shuffle(path, number, options=share, storage_options=storage_options)
        for path, number in zip(paths, versions, strict=True)
    )
    return tuple(shuffle.checking() if check else shuffle for shuffle in opened)


def paths_of(shuffles: Path | Sequence[Path]) -> list[Path]:
    """Return the paths of one shuffle or several; raises OptionError."""
    is_one = isinstance(shuffles, str | os.PathLike) or not isinstance(shuffles, Iterable)
    paths: list[Any] = [shuffles] if is_one else list(shuffles)  # type: ignore[arg-type]
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            msg = f"shuffle {path!r}: expected the path or URI of a shuffle"
            raise OptionError(msg)
    if not paths:
        msg = "shuffles is empty: expected one path or several"
        raise OptionError(msg)
    return paths


def where(
    shuffle: Shuffle, filter: Filter, settings: SparkSettings, what: str = "filter"
) -> Shuffle:
    """Return a shuffle restricted to the rows of a filter; ``settings`` are for its text.

    Raises OptionError and SchemaError, which begin with ``what``.
    """
    if filter is None:
        return shuffle
    try:
        return shuffle.where(shuffle.bound(filter, settings))
    except (OptionError, SchemaError) as error:
        msg = f"{what}: {str(error).removeprefix('filter: ')}"
        raise type(error)(msg) from error


def where_each(
    shuffles: Sequence[Shuffle], filter: Filter | Sequence[Filter], settings: SparkSettings
) -> tuple[Shuffle, ...]:
    """Return shuffles restricted by one filter, or by one for each; raises as :func:`where`."""
    is_one = isinstance(filter, str) or not isinstance(filter, Sequence)
    filters: Any = [filter] * len(shuffles) if is_one else filter
    if len(filters) != len(shuffles):
        msg = f"filter={filter!r}: expected one, or one for each of the {len(shuffles)} shuffles"
        raise OptionError(msg)
    return tuple(
        where(shuffle, each, settings, f"filter of {shuffle.path}")
        for shuffle, each in zip(shuffles, filters, strict=True)
    )
